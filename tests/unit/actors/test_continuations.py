"""What becomes of an outcome: which method gets it, how often it is tried, and late answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from signalhub.actors import RESULT, CallError, RemoteError, Retry, Token, cont
from signalhub.testing.local_actors import Unanswered
from tests.support.actors.scripted import (
    Caller,
    Scripted,
    Stage,
    Target,
    calling,
    number_of,
    stored,
)

Options = Callable[[Any], dict[str, Any]]


class Keeper(Scripted):
    def keep(self, *args: Any, **kwargs: Any) -> None:
        shown = [f"<{one.name}>" if isinstance(one, CallError) else one for one in args]
        self.note([shown, kwargs])


def kept(method: str, *args: Any, options: Options) -> Any:
    """The arguments that each run of the continuation got."""
    local = Stage(Keeper, Target)
    local.do("keeper/1", lambda self: self.call("target/1", method, *args, **options(self)))
    assert local.count("pending") == 0
    return local.notes("keeper/1")


def test_the_outcome_stands_where_result_does_and_is_last_otherwise() -> None:
    def middle(self: Keeper) -> dict[str, Any]:
        return {"then": cont(self.keep, 1, RESULT, {"deep": [RESULT]})}

    assert kept("note", 7, options=middle) == [[[1, 7, {"deep": [7]}], {}]]
    assert kept("note", 7, options=lambda self: {"then": "keep"}) == [[[7], {}]]
    last = kept("fail", options=lambda self: {"then": partial(self.keep, 1, named=2)})
    assert last == [[[1, "<ValueError>"], {"named": 2}]]


@pytest.mark.parametrize(
    ("given", "value_to", "error_to"),
    [
        ("then", "then", "then"),
        ("then catch", "then", "catch"),
        ("catch", None, "catch"),
        ("then errors_only", None, "then"),
        ("then catch errors_only", None, "catch"),
        ("", None, None),
    ],
)
def test_values_go_to_then_and_errors_to_catch_if_there_is_one(
    given: str, value_to: str | None, error_to: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def options(self: Keeper) -> dict[str, Any]:
        names = given.split()
        chosen: dict[str, Any] = {
            name: partial(self.keep, name) for name in ("then", "catch") if name in names
        }
        return chosen | ({"errors_only": True} if "errors_only" in names else {})

    value = kept("note", 7, options=options)
    error = kept("fail", options=options)

    assert value == ([[[value_to, 7], {}]] if value_to else [])
    assert error == ([[[error_to, "<ValueError>"], {}]] if error_to else [])
    assert ("keeper/1: fail of target/1 failed" in caplog.text) == (error_to is None)


def test_continuations_run_in_the_order_of_the_results_not_of_the_calls() -> None:
    local = Stage(Caller, Target)
    local.ask("later")
    local.ask("note", "quick")
    local.call("target/1", "answer", "slow")

    assert local.notes() == ["quick", "slow"]


class Failing(Scripted):
    """Its continuation fails as often as it is told, each time after changing something."""

    tries: ClassVar[list[int]] = []
    failures: ClassVar[list[BaseException]] = []

    def on_value(self, value: int) -> None:
        self.note(value)
        self.send("target/1", "note", "a trace")
        Failing.tries.append(self.now_ms)
        if len(Failing.tries) <= len(Failing.failures):
            raise Failing.failures[len(Failing.tries) - 1]


class Impatient(Failing):
    config_overrides: ClassVar = {"handler_max_attempts": 2}


def fail(kind: str, failures: list[BaseException]) -> Stage:
    """Have a continuation fail with these errors in turn; its next try is not yet due."""
    Failing.tries.clear()
    Failing.failures[:] = failures
    local = Stage(Failing, Impatient, Target)
    local.do(f"{kind}/1", lambda self: self.call("target/1", "note", 7, then=self.on_value))
    return local


def pauses() -> list[float]:
    return [(after - before) / 1000 for before, after in pairwise(Failing.tries)]


def test_a_failing_continuation_is_tried_again_after_2_4_8_and_16_seconds() -> None:
    local = fail("failing", [KeyError("not yet")] * 4)
    assert local.state("failing/1").list() == {}
    # The request from outside and the call; nothing of the continuation.
    assert local.kernel.counters.requests == 2
    local.do("failing/1", lambda self: self.call("target/1", "note", 8, then=self.note))
    assert local.notes("failing/1") == [8], "others do not wait for it"
    local.advance(3_600)

    assert pauses() == [2, 4, 8, 16]
    assert local.notes("failing/1") == [8, 7]
    assert local.kernel.counters.dead == 0


@pytest.mark.parametrize(("kind", "attempts"), [("failing", 5), ("impatient", 2)])
def test_a_continuation_that_fails_too_often_is_a_dead_letter(kind: str, attempts: int) -> None:
    local = fail(kind, [KeyError("not yet")] * 99)
    local.advance(3_600)

    assert len(Failing.tries) == attempts
    assert local.notes(f"{kind}/1") == []
    (letter,) = local.kernel.letters.of(f"{kind}/1")
    assert (letter.origin, letter.attempts) == ("continuation", attempts)
    assert letter.error == "KeyError: 'not yet'"
    assert local.count("pending", "inbox") == 0


def test_a_continuation_may_ask_to_be_run_later_as_often_as_it_likes() -> None:
    # Only the last is a failure, the first of two.
    local = fail("impatient", [*[Retry(after=3)] * 19, ValueError("no")])
    local.advance(100)

    assert local.notes("impatient/1") == [7]
    assert pauses() == [3] * 19 + [2]


def test_an_unsendable_argument_in_a_continuation_is_a_failure_like_any_other() -> None:
    def call_again(self: Caller, value: int) -> None:
        tries.append(value)
        self.call("target/1", "note", object() if len(tries) < 3 else value, then=self.note)

    tries: list[int] = []
    local = Stage(Caller, Target)
    local.do(
        "caller/1",
        lambda self: self.call("target/1", "note", 7, then=self.script(call_again)),
    )
    local.advance(60)

    assert local.notes() == [7]


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


def test_a_handler_that_raises_or_does_not_return_its_token_has_not_deferred(local: Stage) -> None:
    def defer_and_raise(self: Target) -> None:
        self.defer()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        local.do("target/1", defer_and_raise)
    for script in (lambda self: self.defer() and "forgotten", lambda self: Token("made up")):
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
