"""Alarms that go well: when they run, how often, and what becomes of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from signalhub.actors import Actor, cont, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.testing.local_actors import LocalActors
from tests.support.actors.alarms import START, Clock, left, rung, set_alarm


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Clock)


@pytest.mark.parametrize(
    ("when", "due_ms"),
    [
        (START + timedelta(seconds=90), 90_000),
        (90, 90_000),
        (0.25, 250),
        (timedelta(milliseconds=1), 1),
        (365 * 86_400, 365 * 86_400_000),
    ],
)
def test_a_one_shot_runs_at_its_millisecond_and_is_removed(
    local: LocalActors, when: Any, due_ms: int
) -> None:
    set_alarm(local, when)
    local.advance((due_ms - 1) / 1000)
    assert rung(local) == []
    local.advance(0.001)

    assert rung(local) == [["x", due_ms]]
    assert left(local) == 0


@pytest.mark.parametrize("when", [0, -5, timedelta(0), START - timedelta(days=1)])
def test_what_is_due_at_once_runs_without_help_from_another_timer(
    local: LocalActors, when: Any
) -> None:
    set_alarm(local, when)

    assert rung(local) == [["x", 0]]
    assert left(local) == 0


def test_an_alarm_due_at_once_does_not_run_inside_the_handler_that_sets_it() -> None:
    class Eager(Actor):
        @remote
        def go(self) -> int:
            self.alarms.schedule(-1, self.ring)
            return len(seen)

        def ring(self) -> None:
            seen.append(self.now_ms)

    seen: list[int] = []
    local = LocalActors(Eager)

    assert local.call("eager/1", "go") == 0
    assert len(seen) == 1


def test_a_delay_below_a_second_is_not_early_late_in_a_second(local: LocalActors) -> None:
    local.clock.advance(0.95)
    set_alarm(local, 1)
    local.advance(0.999)
    assert rung(local) == []
    local.advance(0.001)

    assert rung(local) == [["x", 1_950]]


def test_alarms_run_in_the_order_of_their_times(local: LocalActors) -> None:
    for seconds in (3, 1, 2):
        set_alarm(local, seconds, f"{seconds} s")
    local.advance(3)

    assert rung(local) == [["1 s", 1_000], ["2 s", 2_000], ["3 s", 3_000]]


def test_alarms_of_the_same_time_run_in_the_order_they_were_set_in(local: LocalActors) -> None:
    names = [f"{number}" for number in range(150)]
    for name in names:
        set_alarm(local, START + timedelta(seconds=9), name)
    local.advance(9)

    assert [name for name, _ in rung(local)] == names


def test_overdue_alarms_run_in_the_order_of_their_times(local: LocalActors) -> None:
    for seconds in (3, 1, 2):
        set_alarm(local, seconds, f"{seconds} s")
    local.clock.advance(60)
    local.run()

    assert [name for name, _ in rung(local)] == ["1 s", "2 s", "3 s"]


@pytest.mark.parametrize("when", [60, START + timedelta(seconds=60)])
def test_a_one_shot_that_became_due_while_the_host_was_down_runs_once(
    tmp_path: Any, when: Any
) -> None:
    local = LocalActors(Clock, path=tmp_path / "a.db")
    set_alarm(local, when)
    local.clock.advance(86_400)
    local.restart()
    local.run()
    local.advance(86_400)

    assert rung(local) == [["x", 86_400_000]]
    assert left(local) == 0


def test_cron_runs_at_every_occurrence(local: LocalActors) -> None:
    # The tests begin at 08:53:20 UTC.
    set_alarm(local, "0 * * * *")
    local.advance(3 * 3_600)

    assert [at for _, at in rung(local)] == [400_000, 4_000_000, 7_600_000]
    assert left(local) == 1


def test_cron_follows_the_zone_it_was_given(local: LocalActors) -> None:
    set_alarm(local, "0 11 * * *", tz="Europe/Berlin")
    local.advance(3_600)

    assert [at for _, at in rung(local)] == [400_000]


@pytest.mark.parametrize(("method", "when"), [("schedule", "*/5 * * * *"), ("every", 300)])
def test_occurrences_missed_while_the_host_was_down_are_one_run(
    tmp_path: Any, method: str, when: Any
) -> None:
    local = LocalActors(Clock, path=tmp_path / "a.db")
    set_alarm(local, when, method=method)
    local.clock.advance(86_400 + 7)
    local.restart()
    local.run()
    assert len(rung(local)) == 1
    local.advance(600)

    # And the rhythm is the old one.
    offset_ms = 100_000 if method == "schedule" else 0
    assert [at % 300_000 for _, at in rung(local)[1:]] == [offset_ms] * 2


def test_an_interval_does_not_drift(local: LocalActors) -> None:
    set_alarm(local, 10, method="every")
    for _ in range(5):
        # The host is late every time.
        local.clock.advance(13)
        local.run()
    local.advance(5)

    assert [at for _, at in rung(local)] == [13_000, 26_000, 39_000, 52_000, 65_000, 70_000]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (0, [0, 60_000]),
        (timedelta(seconds=7), [7_000, 67_000]),
        (START + timedelta(seconds=9), [9_000, 69_000]),
        (None, [60_000]),
    ],
)
def test_an_interval_may_begin_at_another_time(
    local: LocalActors, first: Any, expected: list[int]
) -> None:
    set_alarm(local, 60, method="every", first=first)
    local.advance(70)

    assert [at for _, at in rung(local)] == expected


def test_an_alarm_may_be_a_partial_or_a_name() -> None:
    class Ways(Clock):
        @remote
        def go(self) -> None:
            self.alarms.schedule(1, partial(self.ring, "partial"))
            self.alarms.schedule(2, "ring", "name")
            self.alarms.schedule(3, cont(self.ring, name="named"))

    local = LocalActors(Ways)
    local.call("ways/1", "go")
    local.advance(3)

    assert [name for name, _ in local.state("ways/1").get("rung")] == ["partial", "name", "named"]


def test_a_thousand_alarms_of_a_thousand_actors_all_run() -> None:
    local = LocalActors(Clock)
    for number in range(1_000):
        local.begin(f"clock/{number}", "schedule", 5)
    local.run()
    local.advance(5)

    assert local.kernel.counters.alarms == 1_000
    assert left(local) == 0


def test_messages_go_on_while_many_alarms_are_due() -> None:
    class Busy(Clock):
        @remote
        def go(self) -> None:
            self.alarms.schedule(0, self.again)

        def again(self) -> None:
            self.alarms.schedule(0, self.again)

    local = LocalActors(Busy, Clock, config=DurableConfig(inbound_batch_size=1))
    local.begin("busy/1", "go")
    asked = local.begin("clock/1", "trigger")
    for _ in range(10):
        local.turn()

    assert local.outcome(asked) == 0
