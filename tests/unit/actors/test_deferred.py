"""Calls that are answered later than they are handled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import RemoteError, Token
from signalhub.testing.local_actors import LocalActors, Unanswered
from tests.support.actors.scripted import (
    Caller,
    Target,
    ask,
    begin,
    calling,
    count,
    do,
    notes,
    number_of,
    stored,
)


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Caller, Target)


def defer(self: Target, name: str) -> Token:
    token = self.defer()
    self.state.put(name, token)
    return token


def resolve(self: Target, name: str, value: Any) -> bool:
    return self.resolve(self.state.get(name), value)


def reject(self: Target, name: str) -> bool:
    return self.reject(self.state.get(name), KeyError(name))


def ask_deferred(local: LocalActors, name: str) -> None:
    ask(local, "run", number_of(defer), name, timeout=None)


def test_calls_are_resolved_or_rejected_in_any_order_and_once(local: LocalActors) -> None:
    for name in "abc":
        ask_deferred(local, name)
    assert notes(local) == []

    assert do(local, "target/1", resolve, "b", "second") is True
    assert do(local, "target/1", reject, "a") is True
    # A token is what its id says.
    token_id = local.state("target/1").get("c").id
    assert do(local, "target/1", lambda self: self.resolve(Token(token_id), "third")) is True

    assert do(local, "target/1", resolve, "b", "again") is False
    assert do(local, "target/1", reject, "b") is False
    assert notes(local) == ["second", "KeyError: 'a'", "third"]


def test_callers_inside_and_outside_are_answered_after_a_restart(tmp_path: Path) -> None:
    local = stored(tmp_path)
    first, second = begin(local, "target/1", defer, "a"), begin(local, "target/1", defer, "b")
    ask_deferred(local, "c")
    with pytest.raises(Unanswered):
        local.outcome(first)
    local.restart()
    do(local, "target/1", resolve, "a", 7)
    do(local, "target/1", reject, "b")
    do(local, "target/1", resolve, "c", 8)

    assert local.outcome(first) == 7
    with pytest.raises(KeyError):
        local.outcome(second)
    assert notes(local) == [8]


def test_a_handler_that_raises_has_not_deferred(local: LocalActors) -> None:
    def defer_and_raise(self: Target) -> None:
        self.defer()
        raise ValueError("no")

    ask(local, "run", number_of(defer_and_raise))

    assert notes(local) == ["ValueError: no"]
    assert count(local, "deferred") == 0


def test_a_call_can_be_resolved_in_the_handler_that_deferred_it(local: LocalActors) -> None:
    def at_once(self: Target) -> Token:
        token = self.defer()
        assert self.defer() == token, "deferring twice is deferring once"
        assert self.resolve(token, "at once")
        return token

    ask(local, "run", number_of(at_once))

    assert notes(local) == ["at once"]
    assert do(local, "target/1", at_once) == "at once"
    assert local.kernel.counters.late_results == 0


@pytest.mark.parametrize(
    "script", [lambda self: self.defer() and "forgotten", lambda self: Token("made up")]
)
def test_a_method_that_defers_must_return_its_token(local: LocalActors, script: Any) -> None:
    with pytest.raises(RemoteError, match=r"must return the token from self\.defer\(\)"):
        do(local, "target/1", script)
    assert count(local, "deferred") == 0


def test_only_tokens_of_the_actor_can_be_resolved(local: LocalActors) -> None:
    ask_deferred(local, "a")
    token = local.state("target/1").get("a")

    with pytest.raises(TypeError, match="answered with its token"):
        do(local, "target/1", lambda self: self.resolve("nonsense", 1))
    assert do(local, "target/2", lambda self: self.resolve(token, "stolen")) is False
    assert notes(local) == []


def test_a_send_can_be_deferred_and_nobody_is_answered(local: LocalActors) -> None:
    do(local, "caller/1", lambda self: self.send("target/1", "run", number_of(defer), "a"))

    assert do(local, "target/1", resolve, "a", 7) is True
    assert notes(local) == []
    assert local.kernel.counters.late_results == 0


def test_there_is_nothing_to_defer_in_an_alarm(local: LocalActors) -> None:
    def wake(self: Target) -> None:
        self.defer()

    do(local, "target/1", lambda self: self.alarms.schedule(0, self.script(wake)).id)

    (alarm,) = local.kernel.alarms.of("target/1")
    assert "only possible while handling a call" in str(alarm.last_error)


def test_a_call_is_answered_with_the_outcome_of_another(local: LocalActors) -> None:
    def broker(self: Caller, method: str) -> Token:
        token = self.defer()
        calling(method, then=partial(self.resolve, token))(self)
        return token

    assert do(local, "caller/1", broker, "note") is None
    with pytest.raises(RemoteError, match="no"):
        do(local, "caller/1", broker, "fail")
