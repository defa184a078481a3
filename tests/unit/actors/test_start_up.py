"""What a host does when it starts: the order of things, actors that cannot start, dormant ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Actor, CallTimeout, Token, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.kernel.events import Effect, Offload, SendBatch
from signalhub.testing.local_actors import LocalActors

log: list[str] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


class Target(Actor):
    @remote
    def later(self) -> Token:
        return self.defer()

    @remote
    def note(self, text: str) -> None:
        log.append(text)


async def work() -> None:
    log.append("work")


class Busy(Actor):
    """Has something of everything waiting."""

    def on_start(self) -> None:
        log.append("on_start")

    @remote
    def fill(self) -> None:
        for seconds in (9, 3, 6):
            self.call("target/1", "later", then=self.on_done, timeout=seconds)
        for seconds in (8, 2, 5):
            self.alarms.schedule(seconds, self.ring, f"{seconds} s")
        self.send("target/1", "note", "sent before")

    @remote
    def note(self, text: str) -> None:
        log.append(text)

    @remote
    def work(self) -> None:
        self.offload(work)

    def on_done(self, outcome: Any) -> None:
        assert isinstance(outcome, CallTimeout)
        log.append("timeout")

    def ring(self, text: str) -> None:
        log.append(f"alarm {text}")


class Deaf(LocalActors):
    """A hub that takes nothing from the host."""

    is_deaf = True

    def _perform(self, effect: Effect) -> None:
        if not (self.is_deaf and isinstance(effect, SendBatch | Offload)):
            super()._perform(effect)


def test_on_start_comes_first_then_the_mailbox_then_timeouts_then_alarms(tmp_path: Path) -> None:
    small = DurableConfig(inbound_batch_size=1)
    local = LocalActors(Busy, Target, path=tmp_path / "a.db", config=small)
    local.call("target/1", "note", "hello")
    local.call("busy/1", "fill")
    for number in range(3):
        local.begin("busy/1", "note", f"message {number}")
    local.turn()
    local.close()
    log.clear()
    local.clock.advance(3_600)
    local = LocalActors(Busy, Target, path=tmp_path / "a.db", clock=local.clock)
    local.run()

    assert log == [
        "on_start",
        "message 1",
        "message 2",
        "timeout",
        "timeout",
        "timeout",
        "alarm 2 s",
        "alarm 5 s",
        "alarm 8 s",
    ]


def test_a_dormant_actor_with_queued_work_is_woken_at_the_start(tmp_path: Path) -> None:
    local = Deaf(Busy, Target, path=tmp_path / "a.db")
    local.begin("busy/1", "note", "hello")
    local.run()
    assert local.kernel.store.execute("SELECT count(*) FROM outbox").get == 1
    log.clear()
    local.restart()
    local.run()

    assert log == ["on_start"]


def test_what_was_under_way_is_sent_again_after_a_start(tmp_path: Path) -> None:
    local = Deaf(Busy, path=tmp_path / "a.db")
    asked = local.begin("busy/1", "note", "hello")
    local.run()
    local.is_deaf = False
    local.restart()
    local.run()

    assert local.outcome(asked) is None
    assert log.count("hello") == 1


def test_work_outside_actors_is_started_again(tmp_path: Path) -> None:
    local = Deaf(Busy, path=tmp_path / "a.db")
    local.begin("busy/1", "work")
    local.run()
    assert "work" not in log
    local.is_deaf = False
    local.restart()
    local.run()

    assert log.count("work") == 1


def test_a_host_with_nothing_to_do_does_nothing_at_the_start(tmp_path: Path) -> None:
    local = LocalActors(Busy, Target, path=tmp_path / "a.db")
    local.call("busy/1", "note", "hello")
    log.clear()
    local.restart()

    assert local.kernel.turn([], local.clock.now_ms()) == []
    assert log == []
    assert not local.kernel.has_work
    assert local.kernel.next_due_ms() is None


def test_a_host_with_nothing_to_do_writes_nothing() -> None:
    local = LocalActors(Busy, Target)
    local.call("busy/1", "note", "hello")
    before = local.kernel.store.connection.total_changes()
    for _ in range(200):
        local.clock.advance(60)
        assert local.kernel.turn([], local.clock.now_ms()) == []

    assert local.kernel.store.connection.total_changes() == before


def test_more_than_fits_into_a_turn_is_recovered_in_steps(tmp_path: Path) -> None:
    class Many(Busy):
        @remote
        def go(self) -> None:
            for _ in range(35):
                self.call("target/1", "later", then=self.on_done, timeout=None)
                self.offload(work)

    small = DurableConfig(inbound_batch_size=10)
    local = Deaf(Many, Target, path=tmp_path / "a.db", config=small)
    for number in range(25):
        local.begin(f"many/{number}", "note", "x")
    local.begin("many/x", "go")
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


class Stubborn(Actor):
    """Does not start before it is told to."""

    def on_start(self) -> None:
        log.append("start")
        self.state.put("started", self.state.get("started", 0) + 1)
        if not is_willing:
            raise ValueError("not today")

    @remote
    def note(self, text: str) -> str:
        log.append(text)
        return text


is_willing: list[bool] = []


@pytest.fixture
def stubborn(tmp_path: Path) -> LocalActors:
    is_willing.clear()
    return LocalActors(Stubborn, Target, path=tmp_path / "a.db")


def test_an_actor_that_cannot_start_refuses_work_and_others_go_on(
    stubborn: LocalActors, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn.begin("stubborn/1", "note", "refused")
    asked = stubborn.begin("target/1", "note", "done")
    stubborn.run()

    assert stubborn.outcome(asked) is None
    assert log == ["start", "done"]
    assert stubborn.state("stubborn/1").list() == {}
    assert "stubborn/1 waits: on_start failed: ValueError('not today')" in caplog.text


def test_it_is_tried_again_every_ten_seconds_whatever_comes_for_it(stubborn: LocalActors) -> None:
    for number in range(9):
        stubborn.begin("stubborn/1", "note", f"{number}")
        stubborn.advance(5)

    # At 0, 10, 20, 30 and 40 seconds.
    assert log == ["start"] * 5


def test_once_it_starts_everything_that_came_is_done_in_order(stubborn: LocalActors) -> None:
    asked = [stubborn.begin("stubborn/1", "note", f"{number}") for number in range(50)]
    stubborn.advance(15)
    asked += [stubborn.begin("stubborn/1", "note", f"{number}") for number in range(50, 130)]
    stubborn.run()
    is_willing.append(True)
    log.clear()
    stubborn.clock.advance(5)
    asked.append(stubborn.begin("stubborn/1", "note", "130"))
    stubborn.run()

    assert log == ["start", *(f"{number}" for number in range(131))]
    assert [stubborn.outcome(one) for one in asked] == [f"{number}" for number in range(131)]
    assert stubborn.state("stubborn/1").get("started") == 1


def test_order_is_kept_when_the_host_restarts_meanwhile(stubborn: LocalActors) -> None:
    for number in range(30):
        stubborn.begin("stubborn/1", "note", f"{number}")
    stubborn.run()
    is_willing.append(True)
    log.clear()
    stubborn.restart()
    stubborn.begin("stubborn/1", "note", "30")
    stubborn.run()

    assert log == ["start", *(f"{number}" for number in range(31))]


def test_waiting_for_an_actor_to_start_is_no_attempt(stubborn: LocalActors) -> None:
    stubborn.begin("stubborn/1", "note", "x")
    stubborn.advance(3_600)

    assert stubborn.kernel.store.execute("SELECT attempts FROM inbox").get == 0
    assert stubborn.kernel.counters.dead == 0


def test_a_continuation_waits_for_its_actor_to_start(tmp_path: Path) -> None:
    class Asking(Stubborn):
        @remote
        def ask(self) -> None:
            self.call("target/1", "later", then=self.on_done)

        def on_done(self, outcome: Any) -> None:
            log.append("timeout")

    is_willing[:] = [True]
    local = LocalActors(Asking, Target, path=tmp_path / "a.db")
    local.call("asking/1", "ask")
    is_willing.clear()
    local.restart()
    local.advance(300)
    assert "timeout" not in log
    is_willing.append(True)
    local.advance(10)

    assert log.count("timeout") == 1
    assert local.kernel.counters.dead == 0


def test_messages_for_a_kind_that_is_not_served_wait_for_it(tmp_path: Path) -> None:
    local = LocalActors(Stubborn, path=tmp_path / "a.db")
    asked = local.begin("target/1", "note", "first")
    local.run()
    local.advance(60)
    local.restart(Stubborn, Target)
    local.run()

    assert local.outcome(asked) is None
    assert log == ["first"]


def test_on_start_may_call_and_set_alarms() -> None:
    class Eager(Actor):
        def on_start(self) -> None:
            self.send("target/1", "note", "from on_start")
            self.alarms.schedule(5, self.ring)

        @remote
        def hello(self) -> None:
            log.append("hello")

        def ring(self) -> None:
            log.append("ring")

    local = LocalActors(Eager, Target)
    local.call("target/1", "note", "is here")
    local.call("eager/1", "hello")
    local.advance(5)

    assert log == ["is here", "hello", "from on_start", "ring"]


def test_ids_go_on_after_the_last_when_the_clock_was_set_back(tmp_path: Path) -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> str:
            return self.call("target/1", "later")

    local = LocalActors(Asker, Target, path=tmp_path / "a.db")
    before = [local.call("asker/1", "ask") for _ in range(3)]
    local.clock.jump(-3_600)
    local.restart()
    after = [local.call("asker/1", "ask") for _ in range(3)]

    assert sorted(before + after) == before + after
