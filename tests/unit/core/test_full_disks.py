"""What a hub does for readers while its log is full or has failed, and how little it writes."""

from __future__ import annotations

from signalhub.core import refusals
from signalhub.settings.model import Settings
from signalhub.wire.entry import Kind
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    ACTOR,
    NAMED,
    attempts,
    code_of,
    create,
    position_of,
    publish,
    seqs,
    subscribe,
    subscription_of,
    working,
)

PARKED, MESSAGES = 500, 20


def test_a_consumer_that_comes_while_the_disk_is_full_is_served_within_what_is_reserved() -> None:
    shell = MemoryShell()
    _, reader = working(shell, 3)
    shell.engine.is_full = True

    reader.drop()
    shell.pass_time(3)
    reader = shell.connect("@(a/reader)")
    subscribe(reader)
    shell.pass_time(3)
    assert attempts(reader) == [(1, 2), (2, 2), (3, 2)]

    # What was sent then is marked after a kill, too.
    again = shell.restarted()
    again.engine.is_full = False
    reader = again.connect("@(a/reader)")
    subscribe(reader)
    assert attempts(reader) == [(1, 2), (2, 2), (3, 2)]


def test_settlements_made_while_the_disk_is_full_are_written_when_there_is_room() -> None:
    shell = MemoryShell()
    _, reader = working(shell, 1)
    shell.engine.is_full = True

    refused = reader.ask("hub:ack", NAMED | {"seq": 1})
    shell.pass_time(3)
    lost = position_of(shell.restarted()).floor
    shell.engine.is_full = False
    shell.pass_time(3)

    assert code_of(refused) == "storage_full"
    assert (lost, position_of(shell.restarted()).floor) == (0, 1)


def test_a_failed_log_refuses_what_needs_it_and_replays_what_it_has() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    for _ in range(3):
        publish(writer)
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    payload = {"topic": "t", "type": "news", "durable": True}
    assert code_of(writer.ask("hub:publish", payload)) == "storage_failed"
    assert code_of(writer.ask("hub:subscribe", NAMED)) == "storage_failed"
    assert code_of(writer.ask("hub:topic_delete", {"topic": "t"})) == "storage_failed"
    writer.take()
    reply = writer.ask("hub:replay", {"topic": "t", "fromSeq": 1})
    assert (reply["payload"]["count"], seqs(writer)) == (3, [1, 2, 3])
    actor = shell.join(ACTOR)
    writer.send(ACTOR, "tell")
    assert [one["payload"] for one in actor.heard()] == ["tell"]


def test_delayed_messages_are_not_written_again_with_every_message() -> None:
    """A cursor names all of them, so there are few cursors where they are many."""
    shell = MemoryShell(Settings(message_rate=0.0))
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    name = subscribe(reader)
    for number in range(PARKED):
        publish(writer, number, deliverAt=shell.now + 86_400_000)
    shell.pass_time(3)
    before = len(shell.engine.entries)

    for number in range(MESSAGES):
        seq = publish(writer, number)
        reader.ask("hub:ack", {"subscriptionId": name, "seq": seq})
        shell.advance(500)

    cursors = [one for one in shell.engine.entries[before:] if one.kind == Kind.CURSOR]
    assert len(position_of(shell).parked) == PARKED
    assert len(cursors) <= MESSAGES // 2
    assert subscription_of(shell).lag == 0
