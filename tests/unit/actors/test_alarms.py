"""Alarms: when they run and how often, how they are found, changed and refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import RESULT, AlarmType, Schedule, cont
from signalhub.actors.api.config import DurableConfig
from signalhub.testing.clock import FakeClock
from tests.support.actors.scripted import Scripted, Stage, stored

# 08:53:20 UTC.
START_MS = FakeClock().now_ms()
START = datetime.fromtimestamp(START_MS / 1000, UTC)


class Clock(Scripted):
    def ring(self, name: str = "x") -> None:
        self.note([name, (self.now_ms - START_MS) / 1000])

    async def wait(self) -> None: ...


@pytest.fixture
def local() -> Stage:
    return Stage(Clock)


def schedule(local: Stage, when: Any, name: str = "x", **options: Any) -> None:
    local.do("clock/1", lambda self: self.alarms.schedule(when, self.ring, name, **options).id)


def every(local: Stage, seconds: Any, name: str = "x", **options: Any) -> None:
    local.do("clock/1", lambda self: self.alarms.every(seconds, self.ring, name, **options).id)


def rung(local: Stage) -> list[Any]:
    return local.notes("clock/1")


def times(local: Stage) -> list[float]:
    return [at for _, at in rung(local)]


def names(local: Stage) -> list[str]:
    return [name for name, _ in rung(local)]


@pytest.mark.parametrize(
    ("when", "due"),
    [
        (START + timedelta(seconds=90), 90),
        (90, 90),
        (0.25, 0.25),
        (timedelta(milliseconds=1), 0.001),
        (365 * 86_400, 365 * 86_400),
    ],
)
def test_a_one_shot_runs_at_its_millisecond_once(local: Stage, when: Any, due: float) -> None:
    # Late in a second, so that whole seconds would be early.
    local.clock.advance(0.95)
    schedule(local, when)
    local.advance(due - 0.95 * isinstance(when, datetime) - 0.001)
    assert rung(local) == []
    local.advance(0.001)

    assert rung(local) == [["x", due if isinstance(when, datetime) else due + 0.95]]
    assert local.count("alarms") == 0


@pytest.mark.parametrize("when", [0, -5, timedelta(0), START - timedelta(days=1)])
def test_what_is_due_runs_after_the_handler_that_sets_it(local: Stage, when: Any) -> None:
    def set_and_look(self: Clock) -> int:
        self.alarms.schedule(when, self.ring)
        return len(self.state.list())

    assert local.do("clock/1", set_and_look) == 0
    assert rung(local) == [["x", 0]]
    assert local.count("alarms") == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_alarms_run_in_the_order_of_their_times(local: Stage, is_late: bool) -> None:
    for seconds in (3, 1, 2):
        for number in range(50):
            schedule(local, START + timedelta(seconds=seconds), f"{seconds} {number}")
    if is_late:
        local.clock.advance(60)
    local.advance(3)

    # Those of the same time in the order they were set in.
    assert names(local) == [f"{seconds} {n}" for seconds in (1, 2, 3) for n in range(50)]


@pytest.mark.parametrize("when", [60, START + timedelta(seconds=60)])
def test_a_one_shot_that_became_due_during_an_absence_runs_once(tmp_path: Path, when: Any) -> None:
    local = stored(tmp_path, Clock)
    schedule(local, when)
    local.clock.advance(86_400)
    local.restart()
    local.advance(86_400)

    assert times(local) == [86_400]


@pytest.mark.parametrize(
    ("expression", "tz", "due"),
    [("0 * * * *", "UTC", [400, 4_000, 7_600]), ("0 11 * * *", "Europe/Berlin", [400])],
)
def test_cron_runs_at_every_occurrence(
    local: Stage, expression: str, tz: str, due: list[float]
) -> None:
    schedule(local, expression, tz=tz)
    local.advance(3 * 3_600)

    assert times(local) == due
    assert local.count("alarms") == 1


@pytest.mark.parametrize(
    ("set_alarm", "when", "offset"), [(schedule, "*/5 * * * *", 100), (every, 300, 0)]
)
def test_occurrences_missed_while_the_host_was_down_are_one_run(
    tmp_path: Path, set_alarm: Callable[..., None], when: Any, offset: int
) -> None:
    local = stored(tmp_path, Clock)
    set_alarm(local, when)
    local.clock.advance(86_400 + 7)
    local.restart()
    local.run()
    assert len(rung(local)) == 1
    local.advance(600)

    assert [at % 300 for at in times(local)[1:]] == [offset] * 2, "the rhythm is the old one"


def test_a_thousand_alarms_of_a_thousand_actors_all_run(local: Stage) -> None:
    for number in range(1_000):
        local.start(f"clock/{number}", lambda self: self.alarms.schedule(5, self.ring).id)
    local.advance(5)

    assert local.kernel.counters.alarms == 1_000
    assert local.count("alarms") == 0


def test_messages_are_handled_while_many_alarms_are_due() -> None:
    def again(self: Clock) -> None:
        self.alarms.schedule(0, self.script(again))

    local = Stage(Clock, config=DurableConfig(inbound_batch_size=1))
    local.start("clock/1", again)
    asked = local.begin("clock/2", "note", 7)
    for _ in range(10):
        local.turn()

    assert local.outcome(asked) == 7


def test_an_alarm_is_found_replaced_and_cancelled_once_by_its_id(local: Stage) -> None:
    def about(self: Clock) -> Any:
        found: Schedule | None = self.alarms.get("one")
        return found and [found.type.value, found.due, found.status, found.attempts]

    def cancel(self: Clock) -> Any:
        found = self.alarms.cancel("one")
        return found and found.continuation.args

    def listed(self: Clock) -> int:
        return len(self.alarms.list())

    schedule(local, 5, "first", id="one")
    schedule(local, 9, "second", id="one")

    due = START + timedelta(seconds=9)
    assert local.do("clock/1", about) == ["delayed", due, "pending", 0]
    for look, nothing in ((about, None), (cancel, None), (listed, 0)):
        assert local.do("clock/2", look) == nothing, "alarms of other actors are out of reach"
    assert local.do("clock/1", cancel) == ("second",)
    assert local.do("clock/1", cancel) is None
    schedule(local, 5, "third", id="one")
    schedule(local, 9, "fourth", id="one")
    local.advance(60)
    assert rung(local) == [["fourth", 9]]


def test_alarms_are_listed_by_time_and_filtered(local: Stage) -> None:
    schedule(local, 30, "delayed")
    schedule(local, START + timedelta(seconds=20), "scheduled")
    schedule(local, "0 0 * * *", "cron")
    every(local, 10, "interval")

    def shown(**filters: Any) -> Any:
        def look(self: Clock) -> list[Any]:
            return [one.continuation.args[0] for one in self.alarms.list(**filters)]

        return local.do("clock/1", look)

    in_order = ["interval", "scheduled", "delayed", "cron"]
    assert shown() == shown(status="pending") == in_order
    assert [shown(type=kind.value) for kind in AlarmType] == [[kind.value] for kind in AlarmType]
    assert shown(status="skipped") == []
    assert shown(start=START + timedelta(seconds=20)) == in_order[1:]
    assert shown(end=START + timedelta(seconds=20)) == in_order[:2]
    naive = (START + timedelta(seconds=30)).replace(tzinfo=None)
    assert shown(start=naive, end=naive) == ["delayed"]
    assert shown(type="cron", end=START) == []
    with pytest.raises(ValueError, match="nonsense"):
        shown(type="nonsense")


def test_trigger_runs_what_is_overdue_or_the_earliest(local: Stage) -> None:
    def overdue(self: Clock) -> int:
        self.alarms.schedule(-1, self.ring, "overdue")
        self.alarms.schedule(100, self.ring, "100")
        return self.alarms.trigger()

    assert local.do("clock/1", overdue) == 1
    for seconds in (300, 200):
        schedule(local, seconds, f"{seconds}")
    assert local.do("clock/1", lambda self: self.alarms.trigger(2)) == 2
    assert names(local) == ["overdue", "100", "200"]
    triggered = [local.do("clock/1", lambda self: self.alarms.trigger(9)) for _ in range(2)]
    assert triggered == [1, 0]
    assert local.do("clock/1", lambda self: self.alarms.trigger()) == 0
    assert times(local) == [0] * 4


REFUSED: list[tuple[str, Callable[[Any], object]]] = [
    ("invalid time", lambda self: self.alarms.schedule(object(), self.ring)),
    ("invalid cron expression", lambda self: self.alarms.schedule("every day", self.ring)),
    ("unknown time zone", lambda self: self.alarms.schedule("* * * * *", self.ring, tz="Mars/X")),
    ("a continuation must be a method", lambda self: self.alarms.schedule(1, print)),
    ("has no method 'absent'", lambda self: self.alarms.schedule(1, "absent")),
    ("argument 1", lambda self: self.alarms.schedule(1, self.ring, object())),
    ("the id of an alarm", lambda self: self.alarms.schedule(1, self.ring, id="")),
    ("the id of an alarm", lambda self: self.alarms.schedule(1, self.ring, id=7)),
    ("max_attempts", lambda self: self.alarms.schedule(1, self.ring, max_attempts=0)),
    ("an alarm has none", lambda self: self.alarms.schedule(1, cont(self.ring, RESULT))),
    ("wait is async", lambda self: self.alarms.schedule(1, self.wait)),
    ("invalid interval 0", lambda self: self.alarms.every(0, self.ring)),
    ("invalid time", lambda self: self.alarms.every("x", self.ring)),
]


@pytest.mark.parametrize(("expected", "attempt"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_wrong_alarm_is_refused_where_it_is_set_and_leaves_nothing(
    local: Stage, expected: str, attempt: Callable[[Any], object]
) -> None:
    def try_it(self: Clock) -> None:
        with pytest.raises((TypeError, ValueError)) as caught:
            attempt(self)
        assert expected in str(caught.value)

    local.do("clock/1", try_it)

    assert local.count("alarms") == 0


def set_again(self: Clock) -> None:
    self.ring()
    self.alarms.schedule(7, self.script(set_again), id="x")


def change_cron(self: Clock) -> None:
    self.ring()
    self.alarms.schedule("*/30 * * * *", self.script(change_cron), id="x")


def cancel_after_two(self: Clock) -> None:
    self.ring()
    if len(self.state.get("notes")) == 2:
        self.alarms.cancel("x")


def insist(self: Clock) -> None:
    self.ring()
    self.alarms.every(10, self.script(insist), id="x")


def renew(self: Clock) -> None:
    self.ring()
    self.alarms.cancel("x")
    self.alarms.every(10, self.script(renew), id="x")


@pytest.mark.parametrize(
    ("when", "ring", "late", "due"),
    [
        (5, set_again, 0, [5, 12, 19]),
        # At 08:55, then at 09:00, 09:30, 10:00 and 10:30.
        ("*/5 * * * *", change_cron, 0, [100, 400, 2_200, 4_000, 5_800]),
        (timedelta(seconds=5), cancel_after_two, 0, [5, 10]),
        (timedelta(seconds=10), insist, 13, [13, 20, 30]),
        (timedelta(seconds=10), renew, 13, [13, 23, 33]),
    ],
    ids=["sets itself again", "another cron", "cancels itself", "keeps its rhythm", "starts anew"],
)
def test_an_alarm_may_change_itself(
    local: Stage, when: Any, ring: Any, late: int, due: list[float]
) -> None:
    def go(self: Clock) -> None:
        is_interval = isinstance(when, timedelta)
        set_alarm: Any = self.alarms.every if is_interval else self.alarms.schedule
        set_alarm(when, self.script(ring), id="x")

    local.do("clock/1", go)
    local.clock.advance(late)
    local.advance(7_200 if ring is change_cron else 20)

    assert times(local) == due


class Starting(Clock):
    """Registers its alarm whenever it is loaded."""

    kind = "clock"
    when: Any = 60

    def on_start(self) -> None:
        self.register(self.ring)

    def register(self, ring: Any) -> None:
        is_cron = isinstance(self.when, str)
        set_alarm: Any = self.alarms.schedule if is_cron else self.alarms.every
        set_alarm(self.when, ring, id="x")


class ByCron(Starting):
    kind = "clock"
    when = "* * * * *"


class Faster(Starting):
    kind = "clock"
    when = 10


class Other(Starting):
    kind = "clock"

    def on_start(self) -> None:
        self.register(partial(self.ring, "other"))


class Quiet(Starting):
    kind = "clock"

    def on_start(self) -> None:
        self.alarms.cancel("x")


@pytest.mark.parametrize(("cls", "due"), [(Starting, [60, 120]), (ByCron, [40, 100])])
def test_an_alarm_that_on_start_registers_keeps_its_rhythm_across_restarts(
    tmp_path: Path, cls: type[Starting], due: list[float]
) -> None:
    local = stored(tmp_path, cls)
    local.start("clock/1", lambda self: None)
    for _ in range(3):
        local.advance(25)
        local.restart()
        local.start("clock/1", lambda self: None)
    local.advance(50)

    assert times(local) == due
    assert local.count("alarms") == 1


@pytest.mark.parametrize(
    ("before", "after", "rings"),
    [
        (Starting, Starting, [["x", 65]]),
        (ByCron, ByCron, [["x", 65]]),
        (Starting, Other, [["other", 65]]),
        (Starting, Faster, [["x", 75]]),
        (Starting, Quiet, []),
    ],
    ids=["same", "same cron", "another method", "another rhythm", "cancelled"],
)
def test_an_occurrence_that_is_due_when_on_start_registers_it(
    tmp_path: Path, before: type[Clock], after: type[Clock], rings: list[Any]
) -> None:
    local = stored(tmp_path, before)
    local.do("clock/1", lambda self: None)
    local.clock.advance(65)
    local.restart(after)
    local.advance(10)

    assert rung(local) == rings


def test_a_handler_that_sets_an_earlier_alarm_strands_no_overdue_one(local: Stage) -> None:
    def set_earlier(self: Clock) -> None:
        self.alarms.schedule(-100, self.ring)

    def go(self: Clock) -> None:
        self.alarms.schedule(5, self.script(set_earlier))
        self.alarms.schedule(5, self.ring)
        self.alarms.schedule(6, self.ring)

    local.do("clock/1", go)
    assert local.do("clock/1", lambda self: self.alarms.trigger(2)) == 2
    assert len(rung(local)) == 2
    local.advance(6)

    assert len(rung(local)) == 3


def test_an_alarm_cancelled_by_one_before_it_in_the_same_turn_does_not_run(local: Stage) -> None:
    def win(self: Clock, other: str) -> None:
        self.ring()
        self.alarms.cancel(other)

    def go(self: Clock) -> None:
        for own, other in ("ab", "ba"):
            self.alarms.schedule(5, self.script(win, other), id=own)

    local.do("clock/1", go)
    local.advance(5)

    assert times(local) == [5]


def test_what_a_handler_that_raised_did_to_alarms_has_not_happened(local: Stage) -> None:
    def change_and_raise(self: Clock) -> None:
        self.alarms.schedule(1, self.ring, id="x")
        self.alarms.schedule(2, self.ring)
        raise ValueError("no")

    def cancel_and_raise(self: Clock) -> None:
        self.alarms.cancel("x")
        raise ValueError("no")

    schedule(local, 5, id="x")
    for script in (change_and_raise, cancel_and_raise):
        with pytest.raises(ValueError, match="no"):
            local.do("clock/1", script)
    local.advance(60)

    assert times(local) == [5]
