"""What becomes of an outcome: where it is put, which method gets it, how often it is tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from signalhub.actors import RESULT, CallError, Retry, cont
from tests.support.actors.scripted import Caller, Scripted, Stage, Target

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


PLACES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda self: cont(self.keep, RESULT, 1, 2), [[7, 1, 2], {}]),
    (lambda self: cont(self.keep, 1, RESULT, 2), [[1, 7, 2], {}]),
    (lambda self: cont(self.keep, 1, 2, RESULT), [[1, 2, 7], {}]),
    (lambda self: cont(self.keep, 1, named=RESULT), [[1], {"named": 7}]),
    (lambda self: cont(self.keep, {"deep": [1, RESULT]}), [[{"deep": [1, 7]}], {}]),
    (lambda self: cont(self.keep, RESULT, RESULT), [[7, 7], {}]),
    (lambda self: self.keep, [[7], {}]),
    (lambda self: partial(self.keep, 1, named=2), [[1, 7], {"named": 2}]),
    (lambda self: "keep", [[7], {}]),
]


def test_the_outcome_stands_where_result_does_and_is_last_otherwise() -> None:
    for continuation, expected in PLACES:
        got = kept("note", 7, options=lambda self, then=continuation: {"then": then(self)})
        assert got == [expected]
    error = kept("fail", options=lambda self: {"then": cont(self.keep, RESULT, 1)})
    assert error == [[["<ValueError>", 1], {}]]


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
    local.advance(3_600)

    assert pauses() == [2, 4, 8, 16]
    assert local.notes("failing/1") == [7]
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


def test_while_a_continuation_waits_for_its_next_try_others_run() -> None:
    local = fail("failing", [KeyError("not yet")])
    local.do("failing/1", lambda self: self.call("target/1", "note", 8, then=self.on_value))

    assert local.notes("failing/1") == [8]


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
