"""Deadlines and heartbeats of subscriptions do not pile up, whatever else happens to them."""

from __future__ import annotations

from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import NAMED, publish, seqs, subscribe, subscription_of, working

DAY_MS = 86_400_000


def test_a_message_delayed_for_long_costs_one_deadline_however_busy_its_topic_is() -> None:
    shell = MemoryShell()
    writer, reader = working(shell)
    publish(writer, deliverAt=shell.now + 300_000)

    most = 0
    for _ in range(200):
        reader.tell("hub:ack", NAMED | {"seq": publish(writer)})
        shell.pass_time(1)
        most = max(most, len(shell.hub.dispatcher._deadlines))
    reader.take()
    shell.pass_time(100)

    assert most < 100
    assert seqs(reader) == [1]


def test_a_consumer_that_joins_often_leaves_one_heartbeat() -> None:
    shell = MemoryShell()
    _, reader = working(shell, heartbeatMs=DAY_MS)

    for _ in range(50):
        subscribe(reader)
        shell.advance(20)

    assert sum(map(len, shell.hub.dispatcher._heartbeats.values())) == 1


def test_a_shorter_heartbeat_counts_from_the_update_on() -> None:
    shell = MemoryShell()
    writer, _ = working(shell, heartbeatMs=DAY_MS)

    slots = [subscription_of(shell).heartbeat_slot]
    for period_ms in (1_000, 2_000, 0):
        writer.ask("hub:sub_update", NAMED | {"heartbeatMs": period_ms})
        slots.append(subscription_of(shell).heartbeat_slot)

    first, shorter, longer, off = slots
    assert first > shorter == longer > off == -1
