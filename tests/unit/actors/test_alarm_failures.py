"""Alarms whose handlers fail: tried again, skipped, redriven."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Retry, alias
from signalhub.actors.api.schedules import AlarmType, Spec
from signalhub.actors.kernel.alarms import AlarmRow
from tests.support.actors.scripted import Scripted, Stage, stored

tries: list[int] = []
failures: list[BaseException] = []


@pytest.fixture(autouse=True)
def _no_tries() -> None:
    tries.clear()


@pytest.fixture
def local(tmp_path: Path) -> Stage:
    return stored(tmp_path, Failing)


class Failing(Scripted):
    """Its alarm fails as often as a test wants, each time after changing something."""

    def ring(self) -> None:
        tries.append(self.now_ms)
        self.note("rung")
        self.send("failing/other", "note")
        self.alarms.schedule(0, self.note, "followed")
        if len(tries) <= len(failures):
            raise failures[len(tries) - 1]


class Renamed(Scripted):
    """`ring` is gone."""

    kind = "failing"


class Found(Renamed):
    kind = "failing"

    @alias("ring")
    def ring_differently(self) -> None:
        self.note("rung differently")


def start(local: Stage, times: int, *, every: bool = False, **options: Any) -> None:
    """Set an alarm that fails so many times."""
    failures[:] = [KeyError("broken")] * times

    def go(self: Failing) -> None:
        if every:
            self.alarms.every(60, self.ring, id="x")
        else:
            self.alarms.schedule(10, self.ring, id="x", **options)

    local.do("failing/1", go)


def pauses() -> list[float]:
    return [(after - before) / 1000 for before, after in pairwise(tries)]


def alarm(local: Stage) -> AlarmRow:
    (found,) = local.kernel.alarms.of("failing/1")
    return found


def redrive(local: Stage) -> Any:
    return local.do("failing/1", lambda self: self.alarms.redrive("x"))


@pytest.mark.parametrize(
    ("options", "restarts", "expected"),
    [({}, False, [2, 4, 8, 16]), ({}, True, [2, 4, 8, 16]), ({"max_attempts": 2}, False, [2])],
    ids=["five times", "across a restart", "twice"],
)
def test_a_failing_alarm_is_tried_with_doubled_pauses_then_skipped_and_has_done_nothing(
    local: Stage, options: dict[str, Any], restarts: bool, expected: list[float]
) -> None:
    def skipped(self: Failing) -> list[str]:
        return [one.id for one in self.alarms.list(status="skipped")]

    start(local, 99, **options)
    local.advance(12)
    if restarts:
        local.restart()
    local.advance(3_600)

    assert pauses() == expected
    found = alarm(local)
    assert (found.status, found.attempts) == ("skipped", len(expected) + 1)
    assert found.last_error == "KeyError: 'broken'"
    assert local.do("failing/1", skipped) == ["x"]
    assert local.kernel.counters.skipped == 1
    assert local.state("failing/1").list() == local.state("failing/other").list() == {}


def test_an_alarm_that_succeeds_at_last_is_done(local: Stage) -> None:
    start(local, 3)
    assert redrive(local) is False, "only skipped alarms can be redriven"
    local.advance(3_600)

    assert len(tries) == 4
    assert local.notes("failing/1") == ["rung", "followed"]
    assert local.kernel.alarms.of("failing/1") == []
    assert local.kernel.counters.skipped == 0


def test_a_failing_alarm_does_not_stop_others(local: Stage) -> None:
    def go(self: Failing) -> None:
        for number in range(5):
            self.alarms.schedule(10, self.ring if number == 2 else self.note)

    failures[:] = [KeyError("broken")]
    local.do("failing/1", go)
    local.advance(10)

    assert len(local.notes("failing/1")) == 4


@pytest.mark.parametrize("how", ["redrive", "set again"])
def test_a_skipped_alarm_can_be_redriven_once_or_set_again(local: Stage, how: str) -> None:
    start(local, 5)
    local.advance(3_600)
    if how == "redrive":
        assert redrive(local) is True
    else:
        start(local, 5)
        local.advance(10)

    assert local.notes("failing/1")[0] == "rung"
    assert redrive(local) is False
    assert local.kernel.alarms.of("failing/1") == []


def test_a_recurring_alarm_that_fails_too_often_leaves_a_letter_and_goes_on(local: Stage) -> None:
    def redrive_letters(self: Failing) -> list[bool]:
        return [self.redrive(letter.id) for letter in self.dead_letters()]

    start(local, 5, every=True)
    local.advance(100)
    (letter,) = local.kernel.letters.of("failing/1")
    assert (letter.origin, letter.call_id, letter.attempts) == ("alarm", "x", 5)
    assert (alarm(local).status, alarm(local).attempts) == ("pending", 0)
    assert local.notes("failing/1") == []

    assert local.do("failing/1", redrive_letters) == [True]
    assert local.kernel.letters.of("failing/1") == []
    local.advance(20)
    # Tried from 60 to 90, redriven at 100, due at 120.
    assert pauses() == [2, 4, 8, 16, 10, 20]
    assert local.notes("failing/1").count("rung") == 2


def test_a_recurring_alarm_keeps_its_rhythm_however_long_its_tries_take(local: Stage) -> None:
    start(local, 3, every=True)
    local.advance(180)

    # Due at 60 and tried until 74; then at 120 and 180.
    assert pauses() == [2, 4, 8, 46, 60]


def test_a_failing_alarm_that_on_start_registers_pauses_between_its_tries(tmp_path: Path) -> None:
    class Starting(Failing):
        def on_start(self) -> None:
            self.alarms.every(60, self.ring, id="x")

    failures[:] = [ValueError("no")] * 99
    local = Stage(Starting)
    local.do("starting/1", lambda self: None)
    local.advance(119)

    assert pauses() == [2, 4, 8, 16]
    assert [one.origin for one in local.kernel.letters.of("starting/1")] == ["alarm"]


def test_an_alarm_that_asks_for_another_try_gets_it_and_that_is_no_failure(local: Stage) -> None:
    start(local, 0, max_attempts=2)
    failures[:] = [Retry(after=7)] * 9
    local.advance(15)
    assert (alarm(local).attempts, alarm(local).status) == (0, "pending")
    assert local.notes("failing/1") == []
    local.advance(100)

    assert pauses() == [7] * 9
    assert local.notes("failing/1") == ["rung", "followed"]


def test_an_actor_that_cannot_start_is_not_the_fault_of_its_alarms(local: Stage) -> None:
    class Broken(Failing):
        kind = "failing"

        def on_start(self) -> None:
            if self.now_ms < repaired_ms:
                starts.append(self.now_ms)
                raise ValueError("not today")

    starts: list[int] = []
    start(local, 0)
    repaired_ms = local.clock.now_ms() + 600_000
    local.restart(Broken)
    local.advance(599)

    assert tries == []
    assert (alarm(local).attempts, alarm(local).status) == (0, "pending")
    assert {after - before for before, after in pairwise(starts)} == {10_000}
    local.advance(20)
    assert len(tries) == 1


@pytest.mark.parametrize("every", [False, True])
def test_an_alarm_whose_method_is_gone_is_skipped_at_once(local: Stage, every: bool) -> None:
    start(local, 0, every=every)
    local.restart(Renamed)
    local.advance(86_400)

    assert (alarm(local).status, alarm(local).attempts) == ("skipped", 0)
    error = str(alarm(local).last_error)
    assert "Renamed has no method ring; if it was renamed, add @alias('ring')" in error
    assert local.kernel.counters.dead == 0
    local.restart(Found)
    assert redrive(local) is True
    assert local.notes("failing/1") == ["rung differently"]


@pytest.mark.parametrize(
    ("column", "value", "runs", "expected"),
    [
        ("spec", Spec(AlarmType.CRON, cron="* * * * *", tz="Mars/X").encode(), 1, "unknown time"),
        ("spec", Spec(AlarmType.CRON, cron="not a cron", tz="UTC").encode(), 1, "invalid cron"),
        ("spec", "{", 1, "invalid schedule of an alarm"),
        ("continuation", b"nonsense", 0, "the continuation cannot be read"),
    ],
    ids=["unknown zone", "invalid cron", "invalid spec", "invalid continuation"],
)
def test_a_stored_alarm_that_cannot_be_read_is_skipped(
    local: Stage, column: str, value: str | bytes, runs: int, expected: str
) -> None:
    start(local, 0, every=True)
    with local.kernel.store.transaction():
        local.kernel.store.execute(f"UPDATE alarms SET {column} = ?", (value,))
    local.advance(86_400)

    assert len(tries) == local.notes("failing/1").count("rung") == runs
    assert alarm(local).status == "skipped"
    assert expected in str(alarm(local).last_error)
