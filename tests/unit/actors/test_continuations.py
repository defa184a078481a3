"""What becomes of an outcome: where it is put, which method gets it, how often it is tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from signalhub.actors import RESULT, Actor, CallError, Retry, alias, cont, remote
from signalhub.testing.local_actors import LocalActors


class Echo(Actor):
    @remote
    def echo(self, value: Any) -> Any:
        return value

    @remote
    def fail(self) -> None:
        raise ValueError("no")


Options = Callable[["Asker"], dict[str, Any]]


class Asker(Actor):
    """Makes a call with the continuation a test wants, and keeps what that is given."""

    options: Options

    @remote
    def ask_value(self) -> None:
        self.call("echo/1", "echo", 7, **type(self).options(self))

    @remote
    def ask_error(self) -> None:
        self.call("echo/1", "fail", **type(self).options(self))

    def keep(self, *args: Any, **kwargs: Any) -> None:
        shown = [f"<{one.name}>" if isinstance(one, CallError) else one for one in args]
        self.state.put("got", [*self.state.get("got", []), [shown, kwargs]])


def got(method: str, options: Options) -> Any:
    """What the continuation was given: for each run its arguments and its named ones."""

    class Asking(Asker):
        kind = "asker"

    Asking.options = staticmethod(options)
    local = LocalActors(Asking, Echo)
    local.call("asker/1", method)
    assert local.kernel.store.execute("SELECT count(*) FROM pending").get == 0
    return local.state("asker/1").get("got")


@pytest.mark.parametrize(
    ("continuation", "expected"),
    [
        (lambda actor: cont(actor.keep, RESULT, 1, 2), [[7, 1, 2], {}]),
        (lambda actor: cont(actor.keep, 1, RESULT, 2), [[1, 7, 2], {}]),
        (lambda actor: cont(actor.keep, 1, 2, RESULT), [[1, 2, 7], {}]),
        (lambda actor: cont(actor.keep, 1, named=RESULT), [[1], {"named": 7}]),
        (lambda actor: cont(actor.keep, {"deep": [1, RESULT]}), [[{"deep": [1, 7]}], {}]),
        (lambda actor: cont(actor.keep, RESULT, RESULT), [[7, 7], {}]),
        (lambda actor: actor.keep, [[7], {}]),
        (lambda actor: partial(actor.keep, 1, named=2), [[1, 7], {"named": 2}]),
        (lambda actor: "keep", [[7], {}]),
    ],
)
def test_the_outcome_stands_where_result_does_and_is_last_otherwise(
    continuation: Callable[[Asker], Any], expected: Any
) -> None:
    assert got("ask_value", lambda actor: {"then": continuation(actor)}) == [expected]


def test_an_error_stands_where_result_does_as_well() -> None:
    expected = [[["<ValueError>", 1], {}]]

    assert got("ask_error", lambda actor: {"then": cont(actor.keep, RESULT, 1)}) == expected


def both(actor: Asker) -> dict[str, Any]:
    return {"then": partial(actor.keep, "then"), "catch": partial(actor.keep, "catch")}


def only_caught(actor: Asker) -> dict[str, Any]:
    return {"catch": partial(actor.keep, "catch")}


def errors_only(actor: Asker) -> dict[str, Any]:
    return {"then": partial(actor.keep, "then"), "errors_only": True}


def errors_only_caught(actor: Asker) -> dict[str, Any]:
    return {**both(actor), "errors_only": True}


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("ask_value", both, [[["then", 7], {}]]),
        ("ask_error", both, [[["catch", "<ValueError>"], {}]]),
        ("ask_value", only_caught, None),
        ("ask_error", only_caught, [[["catch", "<ValueError>"], {}]]),
        ("ask_value", errors_only, None),
        ("ask_error", errors_only, [[["then", "<ValueError>"], {}]]),
        ("ask_value", errors_only_caught, None),
        ("ask_error", errors_only_caught, [[["catch", "<ValueError>"], {}]]),
        ("ask_value", lambda actor: {}, None),
        ("ask_error", lambda actor: {}, None),
    ],
)
def test_values_go_to_then_and_errors_to_catch_if_there_is_one(
    method: str, options: Options, expected: Any
) -> None:
    assert got(method, options) == expected


def test_an_error_nobody_hears_of_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    got("ask_error", lambda actor: {})

    assert "asker/1: fail of echo/1 failed" in caplog.text


def test_continuations_run_in_the_order_of_the_results_not_of_the_calls() -> None:
    class Slow(Actor):
        @remote
        def answer(self) -> str:
            if not times:
                times.append(self.now_ms)
                raise Retry(after=10)
            return "slow"

    class Caller(Actor):
        @remote
        def ask(self) -> None:
            self.call("slow/1", "answer", then=self.keep)
            self.call("echo/1", "echo", "quick", then=self.keep)

        def keep(self, outcome: Any) -> None:
            self.state.put("got", [*self.state.get("got", []), outcome])

    times: list[int] = []
    local = LocalActors(Caller, Slow, Echo)
    local.call("caller/1", "ask")
    local.advance(20)

    assert local.state("caller/1").get("got") == ["quick", "slow"]


class Failing(Actor):
    """Its continuation fails as often as its state says, each time after changing something."""

    @remote
    def ask(self, failures: int) -> None:
        self.state.put("failures", failures)
        self.call("echo/1", "echo", 7, then=self.on_value)

    def on_value(self, value: int) -> None:
        self.state.put("value", value)
        self.send("echo/1", "echo", "a trace")
        tries.append(self.now_ms)
        if len(tries) <= self.state.get("failures"):
            raise KeyError("not yet")


tries: list[int] = []


@pytest.fixture
def failing() -> LocalActors:
    tries.clear()
    return LocalActors(Failing, Echo)


def test_a_failing_continuation_is_tried_again_after_2_4_8_and_16_seconds(
    failing: LocalActors,
) -> None:
    failing.call("failing/1", "ask", 4)
    failing.advance(3_600)

    started = tries[0]
    assert [(one - started) / 1000 for one in tries] == [0, 2, 6, 14, 30]
    assert failing.state("failing/1").get("value") == 7
    assert failing.kernel.counters.dead == 0


def test_a_continuation_that_fails_five_times_is_a_dead_letter(failing: LocalActors) -> None:
    failing.call("failing/1", "ask", 99)
    failing.advance(3_600)

    assert len(tries) == 5
    assert failing.state("failing/1").get("value") is None
    (letter,) = failing.kernel.letters.of("failing/1")
    assert (letter.origin, letter.attempts) == ("continuation", 5)
    assert letter.error == "KeyError: 'not yet'"
    assert failing.kernel.store.execute("SELECT count(*) FROM pending").get == 0
    assert failing.kernel.store.execute("SELECT count(*) FROM inbox").get == 0


def test_what_a_failing_continuation_did_has_not_happened(failing: LocalActors) -> None:
    failing.call("failing/1", "ask", 99)

    assert failing.state("failing/1").list() == {"failures": 99}
    # The request from outside and the call; nothing of the continuation.
    assert failing.kernel.counters.requests == 2


def test_while_a_continuation_waits_for_its_next_try_others_go_on(failing: LocalActors) -> None:
    failing.call("failing/1", "ask", 1)
    failing.call("failing/1", "ask", 1)

    assert failing.state("failing/1").get("value") == 7
    assert len(tries) == 2


def test_how_often_a_continuation_is_tried_can_be_configured() -> None:
    class Impatient(Failing):
        config_overrides: ClassVar = {"handler_max_attempts": 2}

    tries.clear()
    local = LocalActors(Impatient, Echo)
    local.call("impatient/1", "ask", 99)
    local.advance(3_600)

    assert len(tries) == 2
    assert local.kernel.counters.dead == 1


def test_a_continuation_may_ask_to_be_run_later_as_often_as_it_likes() -> None:
    class Patient(Actor):
        config_overrides: ClassVar = {"handler_max_attempts": 2}

        @remote
        def ask(self) -> None:
            self.call("echo/1", "echo", 7, then=self.on_value)

        def on_value(self, value: int) -> None:
            times.append(self.now_ms)
            if len(times) < 20:
                raise Retry(after=3)
            if len(times) == 20:
                # Only this is a failure, the first of two.
                raise ValueError("no")
            self.state.put("value", value)

    times: list[int] = []
    local = LocalActors(Patient, Echo)
    local.call("patient/1", "ask")
    local.advance(100)

    assert local.state("patient/1").get("value") == 7
    assert [after - before for before, after in pairwise(times)] == [3_000] * 19 + [2_000]


def test_an_unsendable_argument_in_a_continuation_is_a_failure_like_any_other() -> None:
    class Careless(Actor):
        @remote
        def ask(self) -> None:
            self.call("echo/1", "echo", 7, then=self.on_value)

        def on_value(self, value: int) -> None:
            times.append(self.now_ms)
            self.call("echo/1", "echo", object() if len(times) < 3 else value, then=self.on_again)

        def on_again(self, value: int) -> None:
            self.state.put("value", value)

    times: list[int] = []
    local = LocalActors(Careless, Echo)
    local.call("careless/1", "ask")
    local.advance(60)

    assert local.state("careless/1").get("value") == 7


def test_a_renamed_method_is_found_by_its_alias(tmp_path: Any) -> None:
    class Caller(Actor):
        @remote
        def ask(self) -> None:
            self.call("echo/1", "echo", 7, then=self.on_value)

        def on_value(self, value: int) -> None: ...

    class Renamed(Actor):
        kind = "caller"

        @alias("on_value")
        def on_number(self, value: int) -> None:
            self.state.put("number", value)

    local = LocalActors(Caller, Echo, path=tmp_path / "a.db")
    local.begin("caller/1", "ask")
    local.turn()
    local.turn()
    local.restart(Renamed, Echo)
    local.run()

    assert local.state("caller/1").get("number") == 7
