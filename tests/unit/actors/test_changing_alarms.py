"""Alarms that are set, set again or cancelled by the very handlers they run, or by `on_start`."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors import Actor, remote
from signalhub.testing.local_actors import LocalActors


def times(local: LocalActors, target: str) -> list[float]:
    """When the alarm ran, in seconds since the start."""
    start_ms = LocalActors().clock.now_ms()
    return [(at - start_ms) / 1000 for at in local.state(target).get("rung", [])]


class Ringing(Actor):
    def note(self) -> None:
        self.state.put("rung", [*self.state.get("rung", []), self.now_ms])


def test_an_alarm_may_set_itself_again_under_the_same_id() -> None:
    class Again(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.schedule(5, self.ring, id="x")

        def ring(self) -> None:
            self.note()
            self.alarms.schedule(7, self.ring, id="x")

    local = LocalActors(Again)
    local.call("again/1", "go")
    local.advance(20)

    assert times(local, "again/1") == [5, 12, 19]


def test_a_cron_alarm_that_replaces_itself_follows_the_new_expression() -> None:
    class Changing(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.schedule("*/5 * * * *", self.ring, id="x")

        def ring(self) -> None:
            self.note()
            self.alarms.schedule("*/30 * * * *", self.ring, id="x")

    local = LocalActors(Changing)
    local.call("changing/1", "go")
    local.advance(7_200)

    # It is 08:53:20: at 08:55, then at 09:00, 09:30, 10:00 and 10:30.
    assert times(local, "changing/1") == [100, 400, 2_200, 4_000, 5_800]


def test_a_recurring_alarm_may_cancel_itself() -> None:
    class Ending(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.every(5, self.ring, id="x")

        def ring(self) -> None:
            self.note()
            if len(self.state.get("rung")) == 2:
                self.alarms.cancel("x")

    local = LocalActors(Ending)
    local.call("ending/1", "go")
    local.advance(60)

    assert times(local, "ending/1") == [5, 10]


def test_a_recurring_alarm_that_registers_itself_again_keeps_its_rhythm() -> None:
    class Insisting(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.every(10, self.ring, id="x")

        def ring(self) -> None:
            self.note()
            self.alarms.every(10, self.ring, id="x")

    local = LocalActors(Insisting)
    local.call("insisting/1", "go")
    local.advance(35)

    assert times(local, "insisting/1") == [10, 20, 30]


def test_a_recurring_alarm_that_is_cancelled_and_set_by_its_handler_starts_anew() -> None:
    class Renewing(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.every(10, self.ring, id="x")

        def ring(self) -> None:
            self.note()
            self.alarms.cancel("x")
            self.alarms.every(10, self.ring, id="x")

    local = LocalActors(Renewing)
    local.call("renewing/1", "go")
    local.clock.advance(13)
    local.run()
    local.advance(20)

    assert times(local, "renewing/1") == [13, 23, 33]


class Starting(Ringing):
    """Registers its alarm whenever it is loaded."""

    seconds: Any = 60

    def on_start(self) -> None:
        if isinstance(self.seconds, str):
            self.alarms.schedule(self.seconds, self.ring, id="x")
        else:
            self.alarms.every(self.seconds, self.ring, id="x")

    @remote
    def hello(self) -> None: ...

    def ring(self) -> None:
        self.note()


@pytest.mark.parametrize("seconds", [60, "* * * * *"])
def test_registering_in_on_start_is_one_alarm_with_one_rhythm(tmp_path: Any, seconds: Any) -> None:
    class Registering(Starting):
        pass

    Registering.seconds = seconds
    local = LocalActors(Registering, path=tmp_path / "a.db")
    local.call("registering/1", "hello")
    for _ in range(3):
        local.advance(25)
        local.restart()
        local.call("registering/1", "hello")
    local.advance(50)

    expected = [60.0, 120.0] if seconds == 60 else [40.0, 100.0]
    assert times(local, "registering/1") == expected
    assert local.kernel.store.execute("SELECT count(*) FROM alarms").get == 1


@pytest.mark.parametrize("seconds", [60, "* * * * *"])
def test_an_occurrence_that_is_due_when_on_start_registers_it_runs_once(
    tmp_path: Any, seconds: Any
) -> None:
    class Registering(Starting):
        pass

    Registering.seconds = seconds
    local = LocalActors(Registering, path=tmp_path / "a.db")
    local.call("registering/1", "hello")
    local.clock.advance(65)
    local.restart()
    local.run()

    assert times(local, "registering/1") == [65]


def test_another_rhythm_in_on_start_takes_the_place_of_the_old_one(tmp_path: Any) -> None:
    class Faster(Starting):
        kind = "starting"
        seconds = 10

    local = LocalActors(Starting, path=tmp_path / "a.db")
    local.call("starting/1", "hello")
    local.clock.advance(65)
    local.restart(Faster)
    local.run()
    assert times(local, "starting/1") == []
    local.advance(10)

    assert times(local, "starting/1") == [75]


def test_another_method_in_on_start_takes_over_the_rhythm(tmp_path: Any) -> None:
    class Other(Starting):
        kind = "starting"

        def on_start(self) -> None:
            self.alarms.every(60, self.ring_otherwise, id="x")

        def ring_otherwise(self) -> None:
            self.state.put("otherwise", self.now_ms)

    local = LocalActors(Starting, path=tmp_path / "a.db")
    local.call("starting/1", "hello")
    local.clock.advance(65)
    local.restart(Other)
    local.run()

    assert times(local, "starting/1") == []
    assert local.state("starting/1").get("otherwise") == local.clock.now_ms()


def test_on_start_may_cancel_an_alarm_that_is_due(tmp_path: Any) -> None:
    class Quiet(Starting):
        kind = "starting"

        def on_start(self) -> None:
            self.alarms.cancel("x")

    local = LocalActors(Starting, path=tmp_path / "a.db")
    local.call("starting/1", "hello")
    local.clock.advance(65)
    local.restart(Quiet)
    local.run()

    assert times(local, "starting/1") == []


def test_a_failing_alarm_that_on_start_registers_pauses_between_its_tries() -> None:
    class Failing(Starting):
        def ring(self) -> None:
            tries.append(self.now_ms)
            raise ValueError("no")

    tries: list[int] = []
    local = LocalActors(Failing)
    local.call("failing/1", "hello")
    local.advance(119)

    assert [(one - tries[0]) / 1000 for one in tries] == [0, 2, 6, 14, 30]
    (letter,) = local.kernel.letters.of("failing/1")
    assert letter.origin == "alarm"


def test_a_handler_that_sets_an_earlier_alarm_strands_no_overdue_one() -> None:
    class Adding(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.schedule(5, self.first)
            self.alarms.schedule(5, self.ring)
            self.alarms.schedule(6, self.ring)

        def first(self) -> None:
            self.alarms.schedule(-100, self.ring)

        def ring(self) -> None:
            self.note()

        @remote
        def trigger(self, count: int) -> int:
            return self.alarms.trigger(count)

    local = LocalActors(Adding)
    local.call("adding/1", "go")
    assert local.call("adding/1", "trigger", 2) == 2
    assert len(times(local, "adding/1")) == 2
    local.advance(6)

    assert len(times(local, "adding/1")) == 3


def test_an_alarm_cancelled_by_one_before_it_in_the_same_turn_does_not_run() -> None:
    class Rivals(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.schedule(5, self.win, "b", id="a")
            self.alarms.schedule(5, self.win, "a", id="b")

        def win(self, other: str) -> None:
            self.note()
            self.alarms.cancel(other)

    local = LocalActors(Rivals)
    local.call("rivals/1", "go")
    local.advance(5)

    assert times(local, "rivals/1") == [5]


def test_an_alarm_set_by_a_handler_that_raised_does_not_exist() -> None:
    class Raising(Ringing):
        @remote
        def go(self) -> None:
            self.alarms.schedule(5, self.note, id="x")

        @remote
        def change_and_raise(self) -> None:
            self.alarms.schedule(1, self.note, id="x")
            self.alarms.schedule(2, self.note)
            raise ValueError("no")

        @remote
        def cancel_and_raise(self) -> None:
            self.alarms.cancel("x")
            raise ValueError("no")

    local = LocalActors(Raising)
    local.call("raising/1", "go")
    for method in ("change_and_raise", "cancel_and_raise"):
        with pytest.raises(ValueError, match="no"):
            local.call("raising/1", method)
    local.advance(60)

    assert times(local, "raising/1") == [5]
