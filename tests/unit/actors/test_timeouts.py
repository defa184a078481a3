"""Calls that end by time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from signalhub.actors import Token, remote, wire
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.kernel.calls import DEADLINES_MIN, WaitingCall
from signalhub.actors.kernel.events import Effect, LocateActors
from tests.support.actors.scripted import Caller, Scripted, Stage, Target, stored

UNKNOWN = ["timeout", "unknown"]
NOT_EXECUTED = ["timeout", "no"]


@pytest.fixture
def local() -> Stage:
    local = Stage(Caller, Target)
    local.call("target/1", "note")
    return local


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({"timeout": 5}, 5), ({"timeout": timedelta(milliseconds=1)}, 0.001), ({}, 30)],
    ids=["seconds", "timedelta", "default"],
)
def test_a_call_without_an_answer_times_out_to_the_millisecond(
    local: Stage, options: dict[str, Any], seconds: float
) -> None:
    local.ask("later", **options)
    local.ask("put_off", **options)
    local.advance(seconds - 0.001)
    assert local.notes() == []
    local.advance(0.001)
    assert local.notes() == [UNKNOWN] * 2
    local.call("target/1", "answer")

    assert local.notes() == [UNKNOWN] * 2
    assert (local.kernel.counters.timeouts, local.kernel.counters.late_results) == (2, 1)
    assert local.count("inbox") == 0, "what was put off is not tried again"


@pytest.mark.parametrize(("timeout", "seconds"), [(5, 4.999), (None, 10 * 86_400)])
def test_an_answer_in_time_is_the_outcome_and_no_timeout_follows(
    local: Stage, timeout: float | None, seconds: float
) -> None:
    local.ask("later", timeout=timeout)
    local.advance(seconds)
    local.call("target/1", "answer")
    local.advance(60)

    assert local.notes() == ["late"]
    assert local.kernel.counters.timeouts == 0


def test_the_default_can_be_configured_for_the_host_and_for_a_class() -> None:
    class Hasty(Caller):
        config_overrides: ClassVar = {"call_timeout_ms": 1_000}

    local = Stage(Caller, Hasty, Target, config=DurableConfig(call_timeout_ms=2_000))
    for address in ("caller/1", "hasty/1"):
        local.do(address, lambda self: self.call("target/1", "later", then=self.note))
    local.advance(1)
    assert (local.notes("hasty/1"), local.notes()) == ([UNKNOWN], [])
    local.advance(1)

    assert local.notes() == [UNKNOWN]


def test_a_call_that_never_left_the_outbox_was_not_executed() -> None:
    class Silent(Stage):
        """A hub that does not say where the target lives."""

        def _perform(self, effect: Effect) -> None:
            if not (isinstance(effect, LocateActors) and "target/1" in effect.actors):
                super()._perform(effect)

    local = Silent(Caller, Target)
    local.ask("note", timeout=5)
    assert local.count("outbox") == 1
    local.advance(5)

    assert local.notes() == [NOT_EXECUTED]
    assert local.count("outbox") == 0
    assert local.state("target/1").list() == {}


def test_a_call_that_waits_in_the_inbox_of_its_target_was_not_executed() -> None:
    class Broken(Target):
        kind = "target"

        def on_start(self) -> None:
            raise ValueError("not today")

    def fail(self: Scripted) -> None:
        tries.append(self.now_ms)
        raise ValueError("no")

    tries: list[int] = []
    local = Stage(Caller, Broken)
    local.ask("note", timeout=5)
    local.start("caller/2", fail)
    local.run()
    assert local.count("inbox") == 1
    local.clock.advance(5)
    # What fails in the turn of the timeout does not bring the call back.
    local.start("caller/2", fail)
    local.run()

    assert local.notes() == [NOT_EXECUTED]
    assert local.count("inbox") == 0
    assert len(tries) == 2


def test_timeouts_that_passed_while_the_host_was_down_come_in_their_order(tmp_path: Path) -> None:
    def call(self: Caller) -> None:
        for seconds in (9, 3, 6):
            then = self.script(lambda self, number, outcome: self.note(number), seconds)
            self.call("target/1", "later", then=then, timeout=seconds)

    local = stored(tmp_path)
    local.do("caller/1", call)
    local.clock.advance(3_600)
    local.restart()
    local.run()

    assert local.notes() == [3, 6, 9]
    assert local.kernel.counters.timeouts == 3


def test_a_result_that_arrives_in_the_turn_of_the_timeout_is_the_only_outcome(local: Stage) -> None:
    call_id = local.ask("later", timeout=5)
    local.clock.advance(5)
    body = msgspec.Raw(b'{"ok":"just in time"}')
    result = wire.ActorMessage("result", call_id, "caller/1", body)
    local.deliver(wire.BATCH, wire.join([wire.encode(result)]), "@(actors/other)")
    local.run()

    assert local.notes() == ["just in time"]
    assert (local.kernel.counters.timeouts, local.kernel.counters.late_results) == (0, 0)


def test_a_result_that_is_stored_when_the_time_is_up_is_the_only_outcome() -> None:
    local = Stage(Caller, Target, config=DurableConfig(inbound_batch_size=1))
    local.ask("later", timeout=5)
    local.begin("target/1", "answer")
    local.turn()
    assert local.kernel.store.execute("SELECT kind FROM inbox").get == "result"
    local.clock.advance(5)
    local.run()

    assert local.notes() == ["late"]
    assert local.kernel.counters.timeouts == 0


def test_a_result_that_is_made_in_the_turn_of_the_timeout_is_late(local: Stage) -> None:
    local.ask("later", timeout=5)
    local.clock.advance(5)
    local.call("target/1", "answer")

    assert local.notes() == [UNKNOWN]
    assert local.kernel.counters.late_results == 1


@pytest.mark.parametrize(
    ("method", "expected", "timeouts"), [("note", None, 0), ("later", UNKNOWN, 1)]
)
def test_an_outcome_whose_continuation_fails_is_tried_again_as_it_was(
    local: Stage, method: str, expected: Any, timeouts: int
) -> None:
    def note_at_last(self: Caller, outcome: Any) -> None:
        tries.append(outcome)
        if len(tries) < 4:
            raise ValueError("no")
        self.note(outcome)

    def call(self: Caller) -> None:
        self.call("target/1", method, then=self.script(note_at_last), timeout=3)

    tries: list[Any] = []
    local.do("caller/1", call)
    local.advance(3_600)
    if timeouts:
        local.call("target/1", "answer")

    assert local.notes() == [expected]
    assert local.kernel.counters.timeouts == local.kernel.counters.late_results == timeouts


def test_timeouts_and_alarms_do_not_get_in_each_others_way(local: Stage) -> None:
    def go(self: Caller) -> None:
        for seconds in (8, 2):
            self.alarms.schedule(seconds, self.note, seconds)
        self.call("target/1", "later", then=self.note, timeout=5)
        self.alarms.schedule(4, self.note, 4)

    local.do("caller/1", go)
    local.advance(10)

    assert local.notes() == [2, 4, UNKNOWN, 8]


def test_a_thousand_timeouts_at_once_all_arrive() -> None:
    class Mute(Scripted):
        @remote
        def never(self) -> Token:
            return self.defer()

    def hear(self: Caller, outcome: Any) -> None:
        heard.append(outcome)

    def call(self: Caller) -> None:
        for _ in range(1_000):
            self.call("mute/1", "never", then=self.script(hear), timeout=5)

    heard: list[Any] = []
    local = Stage(Caller, Mute)
    local.do("caller/1", call)
    local.advance(5)

    assert len(heard) == 1_000


def test_the_deadlines_of_calls_that_have_ended_are_forgotten() -> None:
    local = Stage(Caller)
    calls, now_ms = local.kernel.calls, local.clock.now_ms()
    due_ms = now_ms + 3_600_000
    for number in range(3 * DEADLINES_MIN):
        waiting = WaitingCall(f"c{number}", "target/1", "m", None, None, False, b"null", due_ms)
        calls.put("caller/1", waiting)
        if number:
            calls.remove("caller/1", waiting.call_id)
        calls.expire(now_ms)

    assert len(calls._deadlines) <= DEADLINES_MIN
    assert calls.next_due_ms() == due_ms
