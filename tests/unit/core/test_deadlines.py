"""Deadlines and heartbeats of subscriptions do not pile up, whatever else happens to them."""

from __future__ import annotations

from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    NAMED,
    attempts,
    publish,
    seqs,
    subscribe,
    subscription_of,
    working,
)

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


def test_a_message_that_is_settled_late_keeps_no_others_in_memory() -> None:
    shell = MemoryShell(Settings(message_rate=0.0))
    writer, reader = working(
        shell, 1, mode="shared", ackTimeoutMs=DAY_MS, backoffMs=0, heartbeatMs=0
    )

    for _ in range(500):
        reader.tell("hub:ack", NAMED | {"seq": publish(writer)})
    kept = len(subscription_of(shell).window.timeouts)
    reader.take()
    shell.advance(DAY_MS)

    assert kept < 100
    assert attempts(reader) == [(1, 2)]


def test_a_deadline_that_is_moved_often_is_kept_once_and_the_last_one_counts() -> None:
    shell = MemoryShell(Settings(message_rate=0.0))
    _, reader = working(shell, 1, backoffMs=0, heartbeatMs=0)

    for minutes in range(500):
        reader.tell("hub:extend", NAMED | {"seq": 1, "ms": DAY_MS + minutes * 60_000})
    kept = len(subscription_of(shell).window.due)
    shell.advance(DAY_MS + 498 * 60_000)
    early = attempts(reader)
    shell.advance(60_000)

    assert kept < 100
    assert (early, attempts(reader)) == ([], [(1, 2)])


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
