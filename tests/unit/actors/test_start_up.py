"""What a host does when it starts: the order of things, actors that cannot start, dormant ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import remote
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.kernel.events import Effect, Offload, SendBatch
from tests.support.actors.scripted import QUICK, Caller, Scripted, Stage, Target, stored

log: list[str] = []
is_willing: list[bool] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()
    is_willing[:] = [True]


async def work() -> None:
    log.append("work")


class Logged(Scripted):
    def on_start(self) -> None:
        log.append("on_start")
        self.state.put("started", self.state.get("started", 0) + 1)
        if not is_willing:
            raise ValueError("not today")

    @remote
    def log(self, text: str, outcome: Any = None) -> str:
        log.append(text)
        return text


class Deaf(Stage):
    """A hub that takes nothing from the host."""

    is_deaf = True

    def _perform(self, effect: Effect) -> None:
        if not (self.is_deaf and isinstance(effect, SendBatch | Offload)):
            super()._perform(effect)


def deaf(folder: Path, config: DurableConfig = QUICK) -> Deaf:
    return Deaf(Logged, Target, path=folder / "a.db", config=config)


def test_on_start_comes_first_then_the_inbox_then_timeouts_then_alarms(tmp_path: Path) -> None:
    def fill(self: Logged) -> None:
        for seconds in (9, 3, 6):
            then = self.script(Logged.log, f"timeout {seconds}")
            self.call("target/1", "later", then=then, timeout=seconds)
        for seconds in (8, 2, 5):
            self.alarms.schedule(seconds, self.log, f"alarm {seconds}")

    narrow = DurableConfig(inbound_batch_size=1, durability="process")
    local = stored(tmp_path, Logged, Target, config=narrow)
    local.call("target/1", "note")
    local.do("logged/1", fill)
    for number in range(3):
        local.begin("logged/1", "log", f"message {number}")
    local.turn()
    local.close()
    log.clear()
    local.clock.advance(3_600)
    local = stored(tmp_path, Logged, Target, clock=local.clock)
    local.run()

    assert log == [
        *("on_start", "message 1", "message 2"),
        *("timeout 3", "timeout 6", "timeout 9"),
        *("alarm 2", "alarm 5", "alarm 8"),
    ]


def test_an_actor_with_queued_work_is_woken_and_all_is_sent_again(tmp_path: Path) -> None:
    local = deaf(tmp_path)
    asked = local.begin("logged/1", "log", "hello")
    local.start("logged/1", lambda self: self.offload(work))
    local.run()
    assert local.count("outbox") == 2
    assert "work" not in log
    local.restart()
    local.run()
    assert log == ["on_start", "hello", "on_start"]
    local.is_deaf = False
    local.restart()
    local.run()

    assert local.outcome(asked) == "hello"
    assert (log.count("hello"), log.count("work")) == (1, 1)


def test_a_host_with_nothing_to_do_does_nothing(tmp_path: Path) -> None:
    local = stored(tmp_path, Logged, Target)
    local.call("logged/1", "log", "hello")
    log.clear()
    local.restart()
    assert local.kernel.turn([], local.clock.now_ms()) == []
    before = local.kernel.store.connection.total_changes()
    for _ in range(200):
        local.clock.advance(60)
        assert local.kernel.turn([], local.clock.now_ms()) == []

    assert log == []
    assert not local.kernel.has_work
    assert local.kernel.next_due_ms() is None
    assert local.kernel.store.connection.total_changes() == before


def test_more_than_fits_into_a_turn_is_recovered_in_steps(tmp_path: Path) -> None:
    def go(self: Logged) -> None:
        for _ in range(35):
            self.call("target/1", "later", then=self.note, timeout=None)
            self.offload(work)

    local = deaf(tmp_path, DurableConfig(inbound_batch_size=10, durability="process"))
    for number in range(25):
        local.begin(f"logged/{number}", "log", "x")
    local.start("logged/x", go)
    local.run()
    log.clear()
    local.restart()
    turns = 0
    while local.kernel.has_work:
        local.turn()
        turns += 1

    # Seventy calls, the work among them, by tens.
    assert turns == 7
    assert log.count("on_start") == 26


@pytest.fixture
def local(tmp_path: Path) -> Stage:
    """A host in which one kind does not start."""
    is_willing.clear()
    return stored(tmp_path, Logged, Target, Caller)


def test_an_actor_that_cannot_start_refuses_work_and_others_go_on(
    local: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    local.begin("logged/1", "log", "refused")
    asked = local.begin("target/1", "note", "done")
    local.run()

    assert local.outcome(asked) == "done"
    assert log == ["on_start"]
    assert local.state("logged/1").list() == {}
    assert "logged/1 waits: on_start failed: ValueError('not today')" in caplog.text


def test_it_is_tried_again_every_ten_seconds_and_that_is_no_attempt(local: Stage) -> None:
    for number in range(9):
        local.begin("logged/1", "log", f"{number}")
        local.advance(5)

    # At 0, 10, 20, 30 and 40 seconds.
    assert log == ["on_start"] * 5
    assert local.kernel.store.execute("SELECT max(attempts) FROM inbox").get == 0
    assert local.kernel.counters.dead == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_once_it_starts_everything_that_came_is_done_in_order(local: Stage, restarts: bool) -> None:
    texts = [f"{number}" for number in range(131)]
    asked = [local.begin("logged/1", "log", text) for text in texts[:50]]
    local.advance(15)
    asked += [local.begin("logged/1", "log", text) for text in texts[50:130]]
    local.run()
    is_willing.append(True)
    log.clear()
    if restarts:
        local.restart()
    else:
        local.clock.advance(5)
    asked.append(local.begin("logged/1", "log", "130"))
    local.run()

    assert log == ["on_start", *texts]
    assert [local.outcome(one) for one in asked] == texts
    assert local.state("logged/1").get("started") == 1


def test_a_continuation_waits_for_its_actor_to_start(local: Stage) -> None:
    is_willing.append(True)
    local.do("logged/1", lambda self: self.call("target/1", "later", then=self.note))
    is_willing.clear()
    local.restart()
    local.advance(300)
    assert local.state("logged/1").get("notes") is None
    is_willing.append(True)
    local.advance(10)

    assert local.state("logged/1").get("notes") == [["timeout", "unknown"]]
    assert local.kernel.counters.dead == 0


def test_messages_for_a_kind_that_is_not_served_wait_for_it(tmp_path: Path) -> None:
    local = stored(tmp_path, Target)
    asked = local.begin("logged/1", "log", "first")
    local.advance(60)
    local.restart(Logged, Target)
    local.run()

    assert local.outcome(asked) == "first"


def test_on_start_may_call_and_set_alarms() -> None:
    class Eager(Logged):
        def on_start(self) -> None:
            self.send("logged/1", "log", "from on_start")
            self.alarms.schedule(5, self.log, "alarm")

    local = Stage(Eager, Logged)
    local.call("logged/1", "log", "is here")
    local.call("eager/1", "log", "hello")
    local.advance(5)

    assert log[1:] == ["is here", "hello", "from on_start", "alarm"]


def test_ids_go_on_after_the_last_when_the_clock_was_set_back(tmp_path: Path) -> None:
    local = stored(tmp_path)
    before = [local.ask("later") for _ in range(3)]
    local.clock.jump(-3_600)
    local.restart()
    after = [local.ask("later") for _ in range(3)]

    assert sorted(before + after) == before + after
