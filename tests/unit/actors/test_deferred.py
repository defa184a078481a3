"""Calls that are answered later than they are handled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import RemoteError, Token
from signalhub.testing.local_actors import Unanswered
from tests.support.actors.scripted import Caller, Stage, Target, calling, number_of, stored


@pytest.fixture
def local() -> Stage:
    return Stage(Caller, Target)


def defer(self: Target, name: str) -> Token:
    token = self.defer()
    self.state.put(name, token)
    return token


def resolve(self: Target, name: str, value: Any) -> bool:
    return self.resolve(self.state.get(name), value)


def reject(self: Target, name: str) -> bool:
    return self.reject(self.state.get(name), KeyError(name))


def ask_deferred(local: Stage, name: str) -> None:
    local.ask("run", number_of(defer), name, timeout=None)


def test_calls_are_resolved_or_rejected_in_any_order_and_once(local: Stage) -> None:
    for name in "abc":
        ask_deferred(local, name)
    assert local.notes() == []

    assert local.do("target/1", resolve, "b", "second") is True
    assert local.do("target/1", reject, "a") is True
    # A token is what its id says.
    token_id = local.state("target/1").get("c").id
    assert local.do("target/1", lambda self: self.resolve(Token(token_id), "third")) is True

    assert local.do("target/1", resolve, "b", "again") is False
    assert local.do("target/1", reject, "b") is False
    assert local.notes() == ["second", "KeyError: 'a'", "third"]


def test_callers_inside_and_outside_are_answered_after_a_restart(tmp_path: Path) -> None:
    local = stored(tmp_path)
    first, second = local.start("target/1", defer, "a"), local.start("target/1", defer, "b")
    ask_deferred(local, "c")
    with pytest.raises(Unanswered):
        local.outcome(first)
    local.restart()
    local.do("target/1", resolve, "a", 7)
    local.do("target/1", reject, "b")
    local.do("target/1", resolve, "c", 8)

    assert local.outcome(first) == 7
    with pytest.raises(KeyError):
        local.outcome(second)
    assert local.notes() == [8]


def test_a_handler_that_raises_has_not_deferred(local: Stage) -> None:
    def defer_and_raise(self: Target) -> None:
        self.defer()
        raise ValueError("no")

    local.ask("run", number_of(defer_and_raise))

    assert local.notes() == ["ValueError: no"]
    assert local.count("deferred") == 0


def test_a_call_can_be_resolved_in_the_handler_that_deferred_it(local: Stage) -> None:
    def at_once(self: Target) -> Token:
        token = self.defer()
        assert self.defer() == token, "deferring twice is deferring once"
        assert self.resolve(token, "at once")
        return token

    local.ask("run", number_of(at_once))

    assert local.notes() == ["at once"]
    assert local.do("target/1", at_once) == "at once"
    assert local.kernel.counters.late_results == 0


@pytest.mark.parametrize(
    "script", [lambda self: self.defer() and "forgotten", lambda self: Token("made up")]
)
def test_a_method_that_defers_must_return_its_token(local: Stage, script: Any) -> None:
    with pytest.raises(RemoteError, match=r"must return the token from self\.defer\(\)"):
        local.do("target/1", script)
    assert local.count("deferred") == 0


def test_only_tokens_of_the_actor_can_be_resolved(local: Stage) -> None:
    ask_deferred(local, "a")
    token = local.state("target/1").get("a")

    with pytest.raises(TypeError, match="answered with its token"):
        local.do("target/1", lambda self: self.resolve("nonsense", 1))
    assert local.do("target/2", lambda self: self.resolve(token, "stolen")) is False
    assert local.notes() == []


def test_a_send_can_be_deferred_and_nobody_is_answered(local: Stage) -> None:
    local.do("caller/1", lambda self: self.send("target/1", "run", number_of(defer), "a"))

    assert local.do("target/1", resolve, "a", 7) is True
    assert local.notes() == []
    assert local.kernel.counters.late_results == 0


def test_there_is_nothing_to_defer_in_an_alarm(local: Stage) -> None:
    def wake(self: Target) -> None:
        self.defer()

    local.do("target/1", lambda self: self.alarms.schedule(0, self.script(wake)).id)

    (alarm,) = local.kernel.alarms.of("target/1")
    assert "only possible while handling a call" in str(alarm.last_error)


def test_a_call_is_answered_with_the_outcome_of_another(local: Stage) -> None:
    def broker(self: Caller, method: str) -> Token:
        token = self.defer()
        calling(method, then=partial(self.resolve, token))(self)
        return token

    assert local.do("caller/1", broker, "note") is None
    with pytest.raises(RemoteError, match="no"):
        local.do("caller/1", broker, "fail")
