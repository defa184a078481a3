"""The wall clock is set by minutes, hours or days, and back: that ends and forgets nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from signalhub.settings.model import DispatchSettings, MailboxSettings, RoomsSettings, Settings
from signalhub.wire.entry import Kind
from tests.support.memory.rooms import RoomShell
from tests.support.memory.shell import HELLO, SETTLING_HELLO, MemoryShell
from tests.support.memory.tokens import admitted, guarded, token
from tests.support.memory.topics import (
    ACTOR,
    attempts,
    create,
    publish,
    seqs,
    subscribe,
    subscription_of,
)

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
STEPS = [sign * step for step in (6 * MINUTE_S, HOUR_S, DAY_S, 2 * DAY_S) for sign in (1, -1)]
stepping = pytest.mark.parametrize("step_s", STEPS)
# Every window here is shorter than the smallest step, and longer than the seconds a test takes.
SHORT = Settings(
    mailbox=MailboxSettings(idle_s=300.0),
    dispatch=DispatchSettings(idle_expiry_s=300.0),
    rooms=RoomsSettings(repeat_s=300.0),
)


def everywhere(shell: MemoryShell, step_s: int, check: Callable[[MemoryShell], None]) -> None:
    """Check after the step, after a restart, after the step back, and after another restart."""
    for jump_s in (step_s, -step_s):
        shell.clock.jump(jump_s)
        shell.pass_time(2)
        check(shell)
        shell = shell.restarted()
        shell.pass_time(2)
        check(shell)


@stepping
def test_an_accepted_id_is_known(step_s: int) -> None:
    shell = RoomShell(SHORT)
    sender = shell.connect("@(a/sender)")
    shell.join(ACTOR, durable=True)
    create(sender)
    given = {"topic": "t", "type": "news", "data": 1, "durable": True}
    sender.send(ACTOR, 1, pattern="ask", id="ask")
    sender.ask("hub:publish", given, id="publish")
    sender.ask("hub:broadcast", {"type": "news", "data": 1}, id="broadcast")
    shell.send("room")
    shell.save_snapshot()

    def check(now: MemoryShell) -> None:
        assert isinstance(now, RoomShell)
        again = now.connect("@(a/sender)")
        (ask,) = again.send(ACTOR, 1, pattern="ask", id="ask")
        published = again.ask("hub:publish", given, id="publish")
        again.ask("hub:broadcast", {"type": "news", "data": 1}, id="broadcast")
        assert ask["payload"]["duplicate"]
        assert published["payload"]["duplicate"]
        kinds = [one.kind for one in now.engine.entries]
        once = (Kind.MAIL, Kind.PUBLISHED, Kind.BROADCAST)
        assert [kinds.count(kind) for kind in once] == [1, 1, 1]
        assert now.send("room").seq == 1

    everywhere(shell, step_s, check)


@stepping
def test_an_id_is_known_though_the_snapshot_is_lost(step_s: int) -> None:
    shell = MemoryShell(SHORT)
    writer = shell.connect("@(a/writer)")
    given = {"topic": "t", "type": "news", "data": 1, "durable": True}
    writer.ask("hub:publish", given, id="publish")

    def check(now: MemoryShell) -> None:
        again = now.connect("@(a/writer)").ask("hub:publish", given, id="publish")
        assert again["payload"].get("duplicate") is True

    everywhere(shell, step_s, check)


@stepping
def test_a_connected_idle_actor_is_reached(step_s: int) -> None:
    shell = MemoryShell()
    actor, sender = shell.join("@(a/idle)"), shell.connect("@(a/sender)")
    shell.pass_time(2)

    for jump_s in (step_s, -step_s):
        shell.clock.jump(jump_s)
        shell.pass_time(100)
        (ack,) = sender.send("@(a/idle)", jump_s, pattern="ask")
        assert (ack["type"], ack["payload"]["status"]) == ("hub:delivery_ack", "delivered")

    assert len(actor.heard()) == 2


@stepping
def test_a_mailbox_and_a_subscription_wait_for_those_who_are_away(step_s: int) -> None:
    shell = MemoryShell(SHORT)
    sender, owner = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    owner.register(durable=True)
    create(sender)
    subscribe(owner)
    owner.drop()
    sender.send(ACTOR, 1, pattern="ask")
    publish(sender)
    shell.pass_time(100)
    shell.save_snapshot()

    def check(now: MemoryShell) -> None:
        for _ in range(3):
            now.tick()
        assert now.hub.streams.mailboxes[ACTOR].waiting(now.now) == 1
        assert subscription_of(now).lag == 1

    everywhere(shell, step_s, check)


def test_a_subscription_expires_after_its_time_though_the_clock_was_set_meanwhile() -> None:
    shell = MemoryShell(SHORT)
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    subscribe(reader)
    reader.drop()
    for step_s in (DAY_S, -2 * DAY_S):
        shell.clock.jump(step_s)
        shell.pass_time(100)
        shell.save_snapshot()
        shell = shell.restarted()
    assert shell.hub.streams.topics["t"].subscriptions

    shell.pass_time(110)

    assert not shell.hub.streams.topics["t"].subscriptions


@stepping
def test_an_ack_timeout_takes_its_time(step_s: int) -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    sender.send(ACTOR, 1, pattern="ask")
    actor.take()

    for jump_s in (step_s, -step_s):
        shell.clock.jump(jump_s)
        shell.pass_time(10)
    early = attempts(actor)
    shell.pass_time(12)

    assert early == []
    assert attempts(actor) == [(1, 2)]


@pytest.mark.parametrize("is_restarted", [False, True])
@stepping
def test_a_delayed_message_comes_after_its_delay(step_s: int, is_restarted: bool) -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer)
    publish(writer, deliverAt=shell.clock.now_ms() + 60_000)
    shell.clock.jump(step_s)
    shell.pass_time(2)
    # By the clock of whoever publishes now, which was set, too.
    publish(writer, deliverAt=shell.clock.now_ms() + 60_000)
    if is_restarted:
        shell = shell.restarted()
    reader = shell.connect("@(a/reader)")
    subscribe(reader)

    shell.pass_time(55)
    early = seqs(reader)
    shell.pass_time(10)

    assert early == []
    assert seqs(reader) == [1, 2]


@pytest.mark.parametrize("is_same_machine", [True, False])
@stepping
def test_a_message_with_a_time_to_live_is_not_called_expired(
    step_s: int, is_same_machine: bool
) -> None:
    shell = MemoryShell()
    actor, sender = shell.join("@(a/actor)"), shell.connect("@(a/sender)")
    shell.clock.jump(step_s)
    shell.pass_time(2)
    timestamp = shell.clock.now_ms() - (0 if is_same_machine else step_s)

    (ack,) = sender.send("@(a/actor)", 1, pattern="ask", ttl=5_000, timestamp=timestamp)

    assert ack["type"] == "hub:delivery_ack", ack
    assert len(actor.heard()) == 1


@stepping
def test_a_session_ends_with_its_token_and_not_with_the_clock(step_s: int) -> None:
    shell = guarded()
    peer = admitted(shell)
    shell.pass_time(2)

    shell.clock.jump(step_s)
    shell.pass_time(2)

    assert peer.closed is None
    # Others issue tokens by the wall clock, so it decides about new ones.
    late = shell.open().hello(
        "@(local/bob)", metadata=HELLO | {"authToken": token(shell, "local/bob")}
    )
    assert late["type"] == "hub:connected"


@stepping
def test_people_read_the_wall_clock(step_s: int) -> None:
    shell = MemoryShell()
    peer = shell.join("@(a/peer)")
    shell.clock.jump(step_s)
    shell.pass_time(2)

    beat, metrics = peer.ask("hub:heartbeat"), peer.ask("hub:metrics")
    registered = peer.register()

    wall_ms = shell.clock.now_ms()
    assert beat["timestamp"] == beat["payload"]["serverTime"] == wall_ms
    assert metrics["payload"]["timestamp"] == wall_ms
    assert registered["payload"]["expiresAt"] == wall_ms + 300_000


def test_times_in_the_log_never_run_back_and_follow_the_clock_slowly() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer)
    for step_s in (DAY_S, -DAY_S, HOUR_S):
        publish(writer)
        shell.clock.jump(step_s)
        shell.pass_time(2)
        shell = shell.restarted()
        writer = shell.connect("@(a/writer)")
    publish(writer)

    times = [one.at_ms for one in shell.engine.entries]
    assert times == sorted(times)
    assert times[-1] - times[0] < 10_000
    # A hundredth of the time that passes.
    ahead_ms = shell.steady.ahead_ms
    shell.pass_time(1_000)
    assert ahead_ms - shell.steady.ahead_ms == pytest.approx(10_000, rel=0.05)


def test_a_hub_that_was_down_has_not_stopped_the_time() -> None:
    shell = MemoryShell(SHORT)
    writer = shell.connect("@(a/writer)")
    given: dict[str, Any] = {"topic": "t", "type": "news", "data": 1, "durable": True}
    writer.ask("hub:publish", given, id="publish")
    shell.clock.jump(DAY_S)
    shell.pass_time(2)

    shell.clock.advance(400)
    shell = shell.restarted()

    again = shell.connect("@(a/writer)").ask("hub:publish", given, id="publish")
    assert again["payload"]["seq"] == 2
