"""Alarms that go well: when they run, how often, and what becomes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from signalhub.actors import RESULT, Actor, AlarmType, cont, op, remote
from signalhub.actors.config import DurableConfig
from signalhub.testing.local_actors import LocalActors

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Actor):
    """Sets whatever alarms a test wants, and notes when they ran."""

    @remote
    def schedule(self, when: Any, name: str = "x", **options: Any) -> str:
        return self.alarms.schedule(when, self.ring, name, **options).id

    @remote
    def every(self, seconds: Any, name: str = "x", **options: Any) -> str:
        return self.alarms.every(seconds, self.ring, name, **options).id

    @remote
    def shown(self, **filters: Any) -> list[str]:
        return [one.continuation.args[0] for one in self.alarms.list(**filters)]

    @remote
    def about(self, id: str) -> Any:
        found = self.alarms.get(id)
        return found and [found.type.value, found.due, found.status, found.attempts]

    @remote
    def cancel(self, id: str) -> Any:
        found = self.alarms.cancel(id)
        return found and found.continuation.args[0]

    @remote
    def trigger(self, count: int | None = None) -> int:
        return self.alarms.trigger(count)

    def ring(self, name: str) -> None:
        self.state.put("rung", [*self.state.get("rung", []), [name, self.now_ms - START_MS]])


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Clock)


START_MS = LocalActors(Clock).clock.now_ms()
START = EPOCH + timedelta(milliseconds=START_MS)


def set_alarm(local: LocalActors, *args: Any, method: str = "schedule", **options: Any) -> str:
    alarm_id: str = local.call("clock/1", op(method, *args, **options))
    return alarm_id


def rung(local: LocalActors) -> Any:
    return local.state("clock/1").get("rung", [])


def left(local: LocalActors) -> Any:
    return local.kernel.store.execute("SELECT count(*) FROM alarms").get


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


def test_the_same_id_replaces_the_alarm(local: LocalActors) -> None:
    set_alarm(local, 5, "first", id="one")
    set_alarm(local, 9, "second", id="one")
    local.advance(60)

    assert rung(local) == [["second", 9_000]]


def test_an_alarm_is_found_by_its_id(local: LocalActors) -> None:
    set_alarm(local, 5, id="one")

    due = START + timedelta(seconds=5)
    assert local.call("clock/1", "about", "one") == ["delayed", due, "pending", 0]
    assert local.call("clock/1", "about", "two") is None


def test_an_alarm_is_cancelled_once(local: LocalActors) -> None:
    set_alarm(local, 5, id="one")

    assert local.call("clock/1", "cancel", "one") == "x"
    assert local.call("clock/1", "cancel", "one") is None
    local.advance(60)
    assert rung(local) == []


def test_alarms_of_other_actors_are_out_of_reach(local: LocalActors) -> None:
    set_alarm(local, 5, id="one")

    assert local.call("clock/2", "about", "one") is None
    assert local.call("clock/2", "cancel", "one") is None
    assert local.call("clock/2", "shown") == []


def test_alarms_are_listed_by_time_and_filtered(local: LocalActors) -> None:
    set_alarm(local, 30, "delayed")
    set_alarm(local, START + timedelta(seconds=20), "scheduled")
    set_alarm(local, "0 0 * * *", "cron")
    set_alarm(local, 10, "interval", method="every")

    def shown(**filters: Any) -> Any:
        return local.call("clock/1", op("shown", **filters))

    assert shown() == ["interval", "scheduled", "delayed", "cron"]
    for kind in AlarmType:
        assert shown(type=kind.value) == [kind.value]
    assert shown(status="pending") == ["interval", "scheduled", "delayed", "cron"]
    assert shown(status="skipped") == []
    assert shown(start=START + timedelta(seconds=20)) == ["scheduled", "delayed", "cron"]
    assert shown(end=START + timedelta(seconds=20)) == ["interval", "scheduled"]
    naive = (START + timedelta(seconds=30)).replace(tzinfo=None)
    assert shown(start=naive, end=naive) == ["delayed"]
    assert shown(type="cron", end=START) == []
    with pytest.raises(ValueError, match="nonsense"):
        shown(type="nonsense")


def test_trigger_runs_the_earliest_even_if_they_are_not_due(local: LocalActors) -> None:
    for seconds in (300, 100, 200):
        set_alarm(local, seconds, f"{seconds} s")

    assert local.call("clock/1", "trigger", 2) == 2
    assert [name for name, _ in rung(local)] == ["100 s", "200 s"]
    assert local.call("clock/1", "trigger") == 0
    assert local.call("clock/1", "trigger", 9) == 1
    assert local.call("clock/1", "trigger", 9) == 0
    assert len(rung(local)) == 3


def test_trigger_without_a_number_runs_what_is_overdue(local: LocalActors) -> None:
    class Late(Clock):
        @remote
        def go(self) -> int:
            self.alarms.schedule(-1, self.ring, "overdue")
            self.alarms.schedule(60, self.ring, "not yet")
            return self.alarms.trigger()

    local = LocalActors(Late)

    assert local.call("late/1", "go") == 1
    assert local.state("late/1").get("rung") == [["overdue", 0]]


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (lambda actor: actor.alarms.schedule(object(), actor.ring), "is no time"),
        (lambda actor: actor.alarms.schedule("every day", actor.ring), "no cron expression"),
        (lambda actor: actor.alarms.schedule("* * * * *", actor.ring, tz="Mars/X"), "no zone"),
        (lambda actor: actor.alarms.schedule(1, print), "a continuation is a method"),
        (lambda actor: actor.alarms.schedule(1, "absent"), "has no method 'absent'"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, object()), "argument 1"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, id=""), "the id of an alarm"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, id=7), "the id of an alarm"),
        (lambda actor: actor.alarms.schedule(1, actor.ring, max_attempts=0), "max_attempts"),
        (lambda actor: actor.alarms.schedule(1, cont(actor.ring, RESULT)), "an alarm has none"),
        (lambda actor: actor.alarms.schedule(1, actor.wait), "wait is async"),
        (lambda actor: actor.alarms.every(0, actor.ring), "an interval cannot be 0"),
        (lambda actor: actor.alarms.every("x", actor.ring), "is no time"),
    ],
)
def test_a_wrong_alarm_is_refused_at_once_and_leaves_nothing(attempt: Any, expected: str) -> None:
    class Wrong(Clock):
        @remote
        def try_it(self) -> str:
            try:
                attempt(self)
            except (TypeError, ValueError) as error:
                return str(error)
            return "it was set"

        async def wait(self) -> None: ...

    local = LocalActors(Wrong)

    assert expected in local.call("wrong/1", "try_it")
    assert left(local) == 0


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
