"""Accepted ids over restarts: known for the whole window, and for the message they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer
from tests.support.memory.topics import ACTOR, publish, topic_of

WINDOW_S = 300


def publish_as(peer: Peer, message_id: str, **payload: Any) -> Message:
    given = {"topic": "t", "type": "news", "data": 1, "durable": True} | payload
    return peer.ask("hub:publish", given, id=message_id)


@pytest.mark.parametrize("lives", [1, 2, 5])
def test_an_id_is_known_for_the_whole_window_however_often_the_hub_restarts(lives: int) -> None:
    shell = MemoryShell()
    publish_as(shell.connect("@(a/writer)"), "p")
    for _ in range(lives):
        shell.save_snapshot()
        shell.clock.advance(WINDOW_S / lives - 1)
        shell = shell.restarted()

    reply = publish_as(shell.connect("@(a/writer)"), "p")

    assert (reply["payload"]["seq"], reply["payload"].get("duplicate")) == (1, True)
    assert topic_of(shell).head == 1


def test_an_id_is_known_for_the_whole_window_though_older_entries_are_read_again() -> None:
    """An ask that is under way keeps the start reading from before the snapshot."""
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    publish_as(writer, "p")
    shell.save_snapshot()
    actor.stall()
    writer.send(ACTOR, 1, pattern="ask", id="a")
    shell.pass_time(30)
    publish_as(writer, "q")
    shell.save_snapshot()

    again = shell.restarted()
    again.pass_time(WINDOW_S - 40)
    reply = publish_as(again.connect("@(a/writer)"), "p")

    assert (reply["payload"]["seq"], reply["payload"].get("duplicate")) == (1, True)


def test_an_id_is_unknown_after_the_window_over_a_restart_too() -> None:
    shell = MemoryShell()
    publish_as(shell.connect("@(a/writer)"), "p")
    shell.save_snapshot()
    shell.clock.advance(WINDOW_S + 1)

    again = shell.restarted()
    reply = publish_as(again.connect("@(a/writer)"), "p")

    assert "duplicate" not in reply["payload"]
    assert reply["payload"]["seq"] == 2


def test_a_delayed_message_is_for_subscriptions_and_not_for_plain_listeners() -> None:
    shell = MemoryShell()
    writer, listener = shell.connect("@(a/writer)"), shell.connect("@(a/listener)")
    publish(writer, "first")
    listener.ask("hub:subscribe", {"topic": "t"})

    publish(writer, "later", deliverAt=shell.now + 2_000)
    publish(writer, "now")
    shell.pass_time(5)

    assert [one["payload"] for one in listener.heard()] == ["now"]
