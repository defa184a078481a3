"""Alarms whose handlers fail: tried again, skipped, tried once more by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from signalhub.actors import Actor, Retry, alias, op, remote
from signalhub.actors.api.schedules import AlarmType, Spec
from signalhub.testing.local_actors import LocalActors

tries: list[int] = []


@pytest.fixture(autouse=True)
def _no_tries() -> None:
    tries.clear()


def pauses() -> list[float]:
    """Seconds between the tries."""
    return [(after - before) / 1000 for before, after in pairwise(tries)]


class Failing(Actor):
    """Its alarm fails as often as it is told to, each time after changing something."""

    @remote
    def go(self, failures: int, **options: Any) -> None:
        self.state.put("failures", failures)
        self.alarms.schedule(10, self.ring, id="x", **options)

    @remote
    def go_every(self, failures: int) -> None:
        self.state.put("failures", failures)
        self.alarms.every(60, self.ring, id="x")

    @remote
    def go_others(self) -> None:
        for number in range(5):
            self.alarms.schedule(10, self.ring if number == 2 else self.note, id=f"{number}")
        self.state.put("failures", 1)

    def ring(self) -> None:
        tries.append(self.now_ms)
        self.state.put("rung", self.state.get("rung", 0) + 1)
        self.send("failing/other", "note_it")
        self.alarms.schedule(0, self.note)
        if len(tries) <= self.state.get("failures"):
            raise KeyError("broken")

    @remote
    def note_it(self) -> None:
        self.note()

    def note(self) -> None:
        self.state.put("noted", self.state.get("noted", 0) + 1)

    @remote
    def about(self) -> Any:
        found = self.alarms.get("x")
        return found and [found.status, found.attempts, found.last_error]

    @remote
    def skipped(self) -> list[str]:
        return [one.id for one in self.alarms.list(status="skipped")]

    @remote
    def redrive_alarm(self) -> bool:
        return self.alarms.redrive("x")

    @remote
    def redrive_letters(self) -> list[bool]:
        return [self.redrive(letter.id) for letter in self.dead_letters()]


def test_a_failing_alarm_is_tried_five_times_with_doubled_pauses_and_then_skipped() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 99)
    local.advance(3_600)

    assert pauses() == [2, 4, 8, 16]
    assert local.call("failing/1", "about") == ["skipped", 5, "KeyError: 'broken'"]
    assert local.call("failing/1", "skipped") == ["x"]
    assert local.kernel.counters.skipped == 1


def test_what_a_failing_alarm_did_has_not_happened() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 99)
    local.advance(3_600)

    assert local.state("failing/1").list() == {"failures": 99}
    assert local.state("failing/other").list() == {}


def test_an_alarm_that_succeeds_at_last_is_done() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 3)
    local.advance(3_600)

    assert len(tries) == 4
    assert local.state("failing/1").get("rung") == 1
    assert local.call("failing/1", "about") is None
    assert local.kernel.counters.skipped == 0


def test_how_often_an_alarm_is_tried_can_be_said_when_it_is_set() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", op("go", 99, max_attempts=2))
    local.advance(3_600)

    assert pauses() == [2]
    assert local.call("failing/1", "about")[0] == "skipped"


def test_a_failing_alarm_does_not_stop_others() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go_others")
    local.advance(10)

    assert local.state("failing/1").get("noted") == 4


def test_the_tries_of_an_alarm_go_on_after_a_restart(tmp_path: Any) -> None:
    local = LocalActors(Failing, path=tmp_path / "a.db")
    local.call("failing/1", "go", 99)
    local.advance(12)
    local.restart()
    local.advance(3_600)

    assert pauses() == [2, 4, 8, 16]


def test_a_skipped_alarm_can_be_tried_again() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 5)
    local.advance(3_600)

    assert local.call("failing/1", "redrive_alarm") is True
    assert local.state("failing/1").get("rung") == 1
    assert local.call("failing/1", "redrive_alarm") is False
    assert local.call("failing/1", "skipped") == []


def test_only_skipped_alarms_can_be_tried_again() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 0)

    assert local.call("failing/1", "redrive_alarm") is False


def test_a_skipped_alarm_can_be_set_again_under_its_id() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 5)
    local.advance(3_600)
    local.call("failing/1", "go", 5)
    local.advance(10)

    assert local.state("failing/1").get("rung") == 1


def test_a_recurring_alarm_that_fails_at_last_leaves_a_letter_and_goes_on() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go_every", 5)
    local.advance(120)

    assert pauses() == [2, 4, 8, 16, 30]
    assert local.call("failing/1", "about") == ["pending", 0, None]
    assert local.state("failing/1").get("rung") == 1
    (letter,) = local.kernel.letters.of("failing/1")
    assert (letter.origin, letter.call_id, letter.attempts) == ("alarm", "x", 5)


def test_the_letter_of_a_recurring_alarm_can_be_redriven_beside_its_occurrences() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go_every", 5)
    local.advance(100)

    assert local.call("failing/1", "redrive_letters") == [True]
    assert local.state("failing/1").get("rung") == 1
    local.advance(20)
    assert local.state("failing/1").get("rung") == 2
    assert local.kernel.letters.of("failing/1") == []


def test_a_recurring_alarm_keeps_its_rhythm_whatever_its_tries_take() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go_every", 3)
    local.advance(180)

    # Due at 60 and tried until 74; then at 120 and 180.
    assert pauses() == [2, 4, 8, 46, 60]


def test_an_alarm_that_asks_for_another_try_gets_it_and_that_is_no_failure() -> None:
    class Waiting(Actor):
        @remote
        def go(self) -> None:
            self.alarms.schedule(1, self.ring, id="x", max_attempts=2)

        def ring(self) -> None:
            tries.append(self.now_ms)
            self.state.put("rung", True)
            if len(tries) < 10:
                raise Retry(after=7)

    local = LocalActors(Waiting)
    local.call("waiting/1", "go")
    local.advance(5)
    (alarm,) = local.kernel.alarms.of("waiting/1")
    assert (alarm.attempts, alarm.status) == (0, "pending")
    assert local.state("waiting/1").list() == {}
    local.advance(100)

    assert pauses() == [7] * 9
    assert local.state("waiting/1").get("rung") is True


def test_an_actor_that_cannot_start_is_not_the_fault_of_its_alarms(tmp_path: Any) -> None:
    class Broken(Failing):
        kind = "failing"

        def on_start(self) -> None:
            if self.now_ms < mended_ms:
                starts.append(self.now_ms)
                raise ValueError("not today")

    starts: list[int] = []
    local = LocalActors(Failing, path=tmp_path / "a.db")
    local.call("failing/1", "go", 0)
    mended_ms = local.clock.now_ms() + 600_000
    local.restart(Broken)
    local.advance(599)

    assert tries == []
    (alarm,) = local.kernel.alarms.of("failing/1")
    assert (alarm.attempts, alarm.status) == (0, "pending")
    assert {after - before for before, after in pairwise(starts)} == {10_000}
    local.advance(20)
    assert len(tries) == 1


def test_an_alarm_whose_method_is_gone_is_skipped_at_once_and_says_why(tmp_path: Any) -> None:
    class Renamed(Actor):
        kind = "failing"

        @remote
        def redrive_alarm(self) -> bool:
            return self.alarms.redrive("x")

    class Found(Renamed):
        kind = "failing"

        @alias("ring")
        def ring_differently(self) -> None:
            self.state.put("rung differently", True)

    local = LocalActors(Failing, path=tmp_path / "a.db")
    local.call("failing/1", "go", 0)
    local.restart(Renamed)
    local.advance(10)

    (alarm,) = local.kernel.alarms.of("failing/1")
    assert (alarm.status, alarm.attempts) == ("skipped", 0)
    assert "Renamed has no method ring; if it was renamed, add @alias('ring')" in str(
        alarm.last_error
    )
    local.restart(Found)
    assert local.call("failing/1", "redrive_alarm") is True
    assert local.state("failing/1").get("rung differently") is True


def test_a_recurring_alarm_whose_method_is_gone_is_skipped_instead_of_filling_the_letters(
    tmp_path: Any,
) -> None:
    class Renamed(Actor):
        kind = "failing"

    local = LocalActors(Failing, path=tmp_path / "a.db")
    local.call("failing/1", "go_every", 0)
    local.restart(Renamed)
    local.advance(86_400)

    assert local.kernel.alarms.of("failing/1")[0].status == "skipped"
    assert local.kernel.counters.dead == 0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Spec(AlarmType.CRON, cron="* * * * *", tz="Mars/Olympus").encode(), "unknown time zone"),
        (Spec(AlarmType.CRON, cron="not a cron", tz="UTC").encode(), "invalid cron expression"),
        ("{", "invalid schedule of an alarm"),
    ],
)
def test_a_stored_alarm_whose_next_time_cannot_be_found_runs_and_is_set_aside(
    spec: str, expected: str
) -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go_every", 0)
    with local.kernel.store.transaction():
        local.kernel.store.execute("UPDATE alarms SET spec = ?", (spec,))
    local.advance(86_400)

    assert len(tries) == 1
    assert local.state("failing/1").get("rung") == 1
    (alarm,) = local.kernel.alarms.of("failing/1")
    assert alarm.status == "skipped"
    assert expected in str(alarm.last_error)


def test_a_stored_alarm_that_cannot_be_read_is_skipped_at_once() -> None:
    local = LocalActors(Failing)
    local.call("failing/1", "go", 0)
    with local.kernel.store.transaction():
        local.kernel.store.execute("UPDATE alarms SET continuation = ?", (b"nonsense",))
    local.advance(10)

    (alarm,) = local.kernel.alarms.of("failing/1")
    assert alarm.status == "skipped"
    assert "the continuation cannot be read" in str(alarm.last_error)
