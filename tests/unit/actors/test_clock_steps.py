"""The wall clock of a host is set by minutes, hours or days, and back, and the host is restarted.

That ends, repeats and forgets nothing; only alarms for a time of day follow it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from signalhub.actors import Retry
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.host.thread import Turning
from signalhub.actors.kernel.events import Connected, Effect, LocateActors
from signalhub.actors.store import views
from signalhub.actors.store.store import HostStore
from signalhub.clock import SteadyClock
from signalhub.testing import FakeClock
from tests.support.actors.journey import ACTOR, Journey, arrive, asked_about
from tests.support.actors.scripted import Caller, Scripted, Stage, Target, calling, stored

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
STEPS = [sign * step for step in (6 * MINUTE_S, HOUR_S, DAY_S, 2 * DAY_S) for sign in (1, -1)]
stepping = pytest.mark.parametrize("step_s", STEPS)
START_MS = FakeClock().now_ms()
START = datetime.fromtimestamp(START_MS / 1000, UTC)


class Bell(Scripted):
    """Notes how much time has passed, and what the wall clock reads."""

    def ring(self, name: str = "x") -> None:
        self.note([name, (self.now_ms - START_MS) / 1000])


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Stage]:
    stage = stored(tmp_path, Caller, Target, Bell)
    yield stage
    stage.close()


def there_and_back(stage: Stage, step_s: float) -> Iterator[None]:
    """After the step, after a restart, after the step back, and after another restart."""
    for jump_s in (step_s, -step_s):
        stage.clock.jump(jump_s)
        stage.run()
        yield
        stage.restart()
        stage.run()
        yield


def times(stage: Stage) -> list[float]:
    return [at for _, at in stage.notes("bell/1")]


@stepping
def test_a_call_in_flight_ends_after_its_timeout(local: Stage, step_s: int) -> None:
    local.call("target/1", "note")
    local.ask("later", timeout=300)
    for _ in there_and_back(local, step_s):
        local.advance(70)
        assert local.notes() == []
    local.clock.jump(step_s)
    local.advance(19.999)
    assert local.notes() == []
    local.advance(0.001)

    assert local.notes() == [["timeout", "unknown"]]


@stepping
def test_a_call_made_after_a_step_ends_after_its_timeout(local: Stage, step_s: int) -> None:
    local.call("target/1", "note")
    local.clock.jump(step_s)
    local.ask("later", timeout=300)
    local.clock.jump(-step_s)
    local.advance(299.999)
    assert local.notes() == []
    local.advance(0.001)

    assert local.notes() == [["timeout", "unknown"]]


@stepping
def test_a_continuation_that_fails_is_tried_after_its_pauses(local: Stage, step_s: int) -> None:
    tries: list[int] = []

    def fail(self: Scripted, outcome: Any) -> None:
        tries.append(passed())
        raise ValueError("no")

    def passed() -> int:
        return round(local.clock.mono_s() - began_s)

    began_s = local.clock.mono_s()
    local.do("caller/1", lambda self: self.call("target/1", "note", then=self.script(fail)))
    for _ in there_and_back(local, step_s):
        pass
    assert tries == [0]
    local.advance(60)

    assert tries == [0, 2, 6, 14, 30]
    (letter,) = local.kernel.letters.of("caller/1")
    assert letter.dead_ms == local.clock.now_ms() - 30_000, "what people read is the wall clock"


@stepping
def test_what_asks_to_be_tried_later_is_tried_then(local: Stage, step_s: int) -> None:
    tries: list[float] = []

    def put_off(self: Scripted) -> None:
        tries.append(local.clock.mono_s())
        if len(tries) == 1:
            raise Retry(after=300)

    local.start("caller/1", put_off)
    local.run()
    for _ in there_and_back(local, step_s):
        local.advance(70)
    assert len(tries) == 1
    local.advance(20)

    assert tries[1] - tries[0] == pytest.approx(300)


@stepping
def test_an_actor_that_cannot_be_started_is_tried_again_after_ten_seconds(
    tmp_path: Path, step_s: int
) -> None:
    class Late(Target):
        kind = "target"

        def on_start(self) -> None:
            tries.append(local.clock.mono_s())
            if len(tries) < 3:
                raise ValueError("not yet")

    tries: list[float] = []
    local = Stage(Caller, Late)
    local.begin("target/1", "note", "hello")
    local.run()
    for jump_s in (step_s, -step_s):
        local.clock.jump(jump_s)
        local.advance(9.9)
        local.advance(0.1)

    assert [one - tries[0] for one in tries] == pytest.approx([0, 10, 20])
    assert local.notes("target/1") == ["hello"]


class Unplacing(Stage):
    """A hub that does not say where the target lives."""

    def _perform(self, effect: Effect) -> None:
        if not (isinstance(effect, LocateActors) and "target/1" in effect.actors):
            super()._perform(effect)


@stepping
@pytest.mark.parametrize("is_set_before", [False, True])
def test_a_request_without_a_timeout_is_given_up_after_half_an_hour(
    tmp_path: Path, step_s: int, is_set_before: bool
) -> None:
    config = DurableConfig(durability="process")
    local = Unplacing(Caller, Target, path=tmp_path / "a.db", config=config)
    if is_set_before:
        # The ids stay ahead of the wall clock.
        local.clock.jump(abs(step_s))
        local.call("caller/2", "note")
        local.clock.jump(-abs(step_s))
    local.ask("note", timeout=None)
    for _ in there_and_back(local, step_s):
        local.advance(440)
        assert (local.notes(), local.count("outbox")) == ([], 1)
    local.advance(60)

    assert local.notes() == [
        "CallUndeliverable: target/1 could not be reached: no receipt within 1800 s"
    ]
    assert local.count("outbox") == 0


@stepping
def test_a_key_is_remembered_for_a_day(local: Stage, step_s: int) -> None:
    made = local.ask("note", key="once")
    for _ in there_and_back(local, step_s):
        for _ in range(60):
            local.run()
        assert local.ask("note", key="once") == made
    local.advance(DAY_S - 1)
    assert local.ask("note", key="once") == made
    local.advance(2)

    assert local.ask("note", key="once") != made


@stepping
def test_a_request_that_has_run_is_known_however_the_clock_was_set(
    local: Stage, step_s: int
) -> None:
    data = views_of_a_call(local)
    for _ in there_and_back(local, step_s):
        local.deliver(*data)
        for _ in range(60):
            local.turn()
    assert local.notes("target/1") == ["once"]


def views_of_a_call(local: Stage) -> tuple[str, bytes]:
    """Have the target note something once; what the hub would deliver again."""
    local.begin("target/1", "note", "once")
    (sent,) = [*local._unsettled.values()]
    local.run()
    return sent.type, sent.data


# Alarms.


@stepping
@pytest.mark.parametrize("when", [300, timedelta(minutes=5)])
def test_an_alarm_after_a_delay_follows_the_time_that_passes(
    local: Stage, step_s: int, when: Any
) -> None:
    local.do("bell/1", lambda self: self.alarms.schedule(when, self.ring).id)
    for _ in there_and_back(local, step_s):
        local.advance(70)
        assert times(local) == []
    local.clock.jump(step_s)
    local.advance(20)

    assert times(local) == [300 + step_s], "with what the wall clock reads now"


@stepping
def test_an_interval_follows_the_time_that_passes(local: Stage, step_s: int) -> None:
    local.do("bell/1", lambda self: self.alarms.every(100, self.ring).id)
    for _ in there_and_back(local, step_s):
        local.advance(100)

    assert times(local) == [100 + step_s, 200 + step_s, 300, 400]


@stepping
def test_an_alarm_for_a_time_follows_the_wall_clock(local: Stage, step_s: int) -> None:
    due_s = 3 * DAY_S
    when = START + timedelta(seconds=due_s)
    local.do("bell/1", lambda self: self.alarms.schedule(when, self.ring).id)
    local.clock.jump(step_s)
    local.restart()
    local.advance(due_s - step_s - 0.001)
    assert times(local) == []
    local.advance(0.001)

    assert times(local) == [due_s]


def test_an_alarm_for_a_time_runs_when_the_clock_is_set_past_it(local: Stage) -> None:
    when = START + timedelta(minutes=5)
    local.do("bell/1", lambda self: self.alarms.schedule(when, self.ring).id)
    local.do("bell/1", lambda self: self.alarms.schedule(300, self.ring, "delayed").id)
    local.clock.jump(6 * MINUTE_S)
    local.run()

    assert local.notes("bell/1") == [["x", 360]]


@stepping
@pytest.mark.parametrize("cron", ["*/5 * * * *", "0 * * * *", "30 9 * * *"])
def test_cron_follows_the_wall_clock(local: Stage, step_s: int, cron: str) -> None:
    """It starts at 08:53:20, runs when its time is skipped, and by the clock after that."""
    every_s = {"*/5 * * * *": 300, "0 * * * *": HOUR_S, "30 9 * * *": DAY_S}[cron]
    local.do("bell/1", lambda self: self.alarms.schedule(cron, self.ring).id)
    local.clock.jump(step_s)
    local.restart()
    local.run()
    ran = times(local)
    assert ran in ([], [step_s]), "at most once for all that was skipped"
    local.advance(every_s)
    (at,) = times(local)[len(ran) :]

    assert (START_MS / 1000 + at - (9.5 * HOUR_S if every_s == DAY_S else 0)) % every_s == 0
    assert step_s < at <= step_s + every_s


@pytest.mark.parametrize("cron", ["*/5 * * * *", "30 9 * * *"])
def test_cron_goes_on_after_a_clock_that_was_days_ahead(local: Stage, cron: str) -> None:
    local.do("bell/1", lambda self: self.alarms.schedule(cron, self.ring).id)
    for _ in there_and_back(local, 2 * DAY_S):
        pass
    assert times(local) == [2 * DAY_S]
    local.advance(DAY_S)

    assert times(local)[1] == {"*/5 * * * *": 100, "30 9 * * *": 2_200}[cron]


def test_a_time_of_day_is_not_repeated_after_a_small_correction(local: Stage) -> None:
    local.do("bell/1", lambda self: self.alarms.schedule("0 9 * * *", self.ring, "daily").id)
    local.do("bell/1", lambda self: self.alarms.schedule("*/5 * * * *", self.ring, "often").id)
    local.advance(400)
    assert [name for name, _ in local.notes("bell/1")] == ["often", "daily", "often"]
    local.clock.jump(-HOUR_S)
    local.advance(HOUR_S)

    names = [name for name, _ in local.notes("bell/1")]
    assert names[3:] == ["often"] * 12


@stepping
def test_an_alarm_that_fails_is_tried_after_its_pauses(local: Stage, step_s: int) -> None:
    tries: list[int] = []

    def fail(self: Scripted) -> None:
        tries.append(round(local.clock.mono_s() - began_s))
        raise ValueError("no")

    local.do("bell/1", lambda self: self.alarms.schedule(START, self.script(fail)).id)
    began_s = local.clock.mono_s()
    tries.clear()
    local.restart()
    local.do("bell/2", lambda self: self.alarms.schedule("*/1 * * * *", self.script(fail)).id)
    for _ in there_and_back(local, step_s):
        pass
    tries.clear()
    local.advance(2)

    assert tries == [2] * len(tries)
    assert len(tries) >= 1


def test_a_cron_alarm_that_waits_for_a_retry_goes_on_by_a_clock_set_back(local: Stage) -> None:
    tries: list[float] = []

    def fail_once(self: Scripted) -> None:
        tries.append((self.now_ms - START_MS) / 1000)
        if len(tries) == 1:
            raise ValueError("no")

    cron = "*/5 * * * *"
    local.do("bell/1", lambda self: self.alarms.schedule(cron, self.script(fail_once)).id)
    local.advance(100)
    local.clock.jump(-2 * DAY_S)
    local.restart()
    local.advance(300)

    assert tries == [100, 102 - 2 * DAY_S, 400 - 2 * DAY_S]


# Restarts.


def test_a_clock_set_back_while_the_host_is_down_is_no_time_that_passed(local: Stage) -> None:
    local.call("target/1", "note")
    local.ask("later", timeout=300)
    local.advance(100)
    local.ask("note")
    local.clock.jump(-2 * DAY_S)
    local.restart()
    local.advance(199)
    assert local.notes() == [None]
    local.advance(1)

    assert local.notes() == [None, ["timeout", "unknown"]]


def test_a_clock_set_while_the_host_ran_is_known_after_a_restart_much_later(local: Stage) -> None:
    local.call("target/1", "note")
    local.ask("later", timeout=3 * HOUR_S)
    local.clock.jump(DAY_S)
    local.run()
    local.clock.advance(2 * HOUR_S)
    local.restart()
    local.advance(HOUR_S - 1)
    assert local.notes() == []
    local.advance(1)

    assert local.notes() == [["timeout", "unknown"]]


def test_cron_goes_on_by_a_clock_that_was_set_back_just_before_the_host_stopped(
    local: Stage,
) -> None:
    local.do("bell/1", lambda self: self.alarms.schedule("*/5 * * * *", self.ring).id)
    local.clock.jump(-2 * DAY_S)
    steady = local._steady
    local.kernel.time.stop(steady.now_ms(), steady.ahead_ms)
    local.restart()
    local.advance(100)

    assert times(local) == [100 - 2 * DAY_S]


def test_an_event_right_after_a_suspend_finds_the_time_passed_and_no_clock_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turned = threading.Event()
    local = Stage(Target, reached=lambda point: turned.set() if point == "commit" else None)
    asleep_s = 0
    steady = SteadyClock(local.clock, lambda: local.clock.mono_s() + asleep_s)
    began_ms = steady.now_ms()
    turning = Turning(local.kernel, steady, lambda effects: None)
    asleep_s = HOUR_S
    local.clock.jump(HOUR_S)
    turned.clear()
    turning.put([Connected()])
    turning.start()
    assert turned.wait(30)
    turning.stop()

    assert (local.kernel.time.own_ms - began_ms, local.kernel.time.ahead_ms) == (3_600_000, 0)
    assert "the wall clock was set" not in caplog.text


def test_a_file_of_the_first_release_goes_on(tmp_path: Path) -> None:
    local = Unplacing(Caller, Target, Bell, path=tmp_path / "a.db")
    local.ask("note", timeout=None)
    local.do("bell/1", lambda self: self.alarms.schedule(60, self.ring).id)
    local.do("bell/1", lambda self: self.alarms.schedule("*/5 * * * *", self.ring, "cron").id)
    rows = local.kernel.store.execute
    rows("ALTER TABLE outbox DROP COLUMN since_ms")
    rows("DROP INDEX alarms_when")
    rows("CREATE INDEX alarms_due ON alarms (status, due_ms, id)")
    rows("DELETE FROM meta WHERE key IN ('clock_ms', 'clock_ahead_ms')")
    local.clock.advance(20)
    local.restart()
    for _ in there_and_back(local, DAY_S):
        local.advance(5)
    local.advance(1_700)
    assert local.notes() == []
    assert ["x", 60] in local.notes("bell/1")
    local.advance(60)

    assert len(local.notes()) == 1
    indexes = local.kernel.store.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND name GLOB 'alarms_*'"
    )
    assert [name for (name,) in indexes] == ["alarms_when"]


def test_dating_the_messages_of_the_first_release_reads_each_of_them_once(tmp_path: Path) -> None:
    local = Unplacing(Caller, Target, path=tmp_path / "a.db")
    for _ in range(50):
        local.ask("note", timeout=None)
    store = local.kernel.store
    store.execute("UPDATE outbox SET since_ms = NULL")
    steps: list[int] = []

    def note(ended: dict[str, Any]) -> None:
        steps.append(ended["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"])

    store.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    local.kernel.outbox.date(local.kernel.time)
    store.connection.trace_v2(0)

    assert sum(steps) <= 50
    assert store.execute("SELECT count(*), count(since_ms) FROM outbox").fetchone() == (50, 50)
    local.close()


# Moves.


@pytest.mark.parametrize("step_s", [2 * DAY_S, -2 * DAY_S])
def test_times_move_along_though_the_hosts_count_theirs_from_other_clocks(step_s: int) -> None:
    def look(self: Target) -> list[Any]:
        (call,) = self.pending_calls()
        return [call.deadline_ms, *(one.due_ms for one in self.alarms.list())]

    clock = FakeClock()
    old = Stage(Target, clock=clock)
    clock.jump(step_s)
    at = datetime.fromtimestamp(clock.now_ms() / 1000 + 600, UTC)
    old.call("target/9", "note")
    old.do(ACTOR, calling("later", target="target/9", timeout=300, key="once"))
    old.do(ACTOR, lambda self: self.alarms.schedule(400, self.note, "delayed").id)
    old.do(ACTOR, lambda self: self.alarms.schedule(at, self.note, "dated").id)
    old.begin(ACTOR, "put_off")
    old.run()
    shown = old.do(ACTOR, look)
    clock.advance(100)
    new = Stage(Target, clock=clock)
    arrive(new, Journey(chars=1, old=old).run().parts)
    new.run()

    assert new.do(ACTOR, look) == shown
    paused_ms = new.kernel.store.execute("SELECT not_before_ms FROM inbox").get
    assert paused_ms - new.own_ms == 3_500_000
    new.advance(199)
    assert new.notes(ACTOR) == ["x"]
    new.advance(1)
    assert new.notes(ACTOR)[1:] == [["timeout", "unknown"]]
    new.advance(300)
    assert new.notes(ACTOR)[2:] == ["delayed", "dated"]
    until_ms = new.kernel.store.execute("SELECT until_ms FROM keys").get
    assert until_ms - new.own_ms == 86_400_000 - 600_000


@pytest.mark.parametrize("step_s", [2 * DAY_S, -2 * DAY_S])
def test_a_message_that_waits_is_as_old_in_the_new_host(step_s: int) -> None:
    """A repeat of one that was sent before must not come after others have forgotten it."""

    class Lonely(Stage):
        """Nobody serves the kind of its callee."""

        def _perform(self, effect: Effect) -> None:
            if asked_about([effect]) != ["away/1"]:
                super()._perform(effect)

    clock = FakeClock()
    old = Lonely(Target, clock=clock, foreign=["away"])
    for jump_s in (step_s, -step_s):
        clock.jump(jump_s)
        old.call("target/2", "note")
    clock.jump(step_s)
    old.do(ACTOR, lambda self: self.send("away/1", "note"))
    clock.advance(1_000)
    new = Stage(Target, clock=clock)
    arrive(new, Journey(chars=1, old=old).run().parts)

    made_ms = new.kernel.store.execute("SELECT since_ms FROM outbox").get
    assert new.own_ms - made_ms == 1_000_000


# What people read.


@stepping
def test_what_is_shown_is_what_the_wall_clock_will_read(
    local: Stage, tmp_path: Path, step_s: int
) -> None:
    def look(self: Scripted) -> list[int | None]:
        (call,) = self.pending_calls()
        return [self.now_ms, call.deadline_ms, *(one.due_ms for one in self.alarms.list())]

    local.call("target/1", "note")
    local.do("caller/1", calling("later", timeout=300))
    local.do("caller/1", lambda self: self.alarms.schedule(60, self.note).id)
    local.do("caller/1", lambda self: self.alarms.schedule("0 12 1 1 *", self.note).id)
    local.clock.jump(step_s)
    local.advance(1)
    now_ms = local.clock.now_ms()
    cron_ms = round(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
    shown = [now_ms + 299_000, now_ms + 59_000, cron_ms]

    assert local.do("caller/1", look) == [now_ms, *shown]
    store = HostStore.read_only(tmp_path / "a.db")
    (call,), alarms = views.calls(store), views.alarms(store)
    assert [call["deadlineMs"], *(one["dueMs"] for one in alarms)] == shown
    assert [one["endedMs"] for one in views.finished(store, limit=1)] == [now_ms]
    store.close()
