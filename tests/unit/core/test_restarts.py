"""What a hub in the same memory finds after a crash, beyond what the specification says."""

from __future__ import annotations

import pytest

from signalhub.core.streams.recovery import Snapshot, take_snapshot
from signalhub.wire.entry import Kind, MessageBody, Outcome, SettledBody, decode_body
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    ACTOR,
    NAMED,
    attempts,
    code_of,
    create,
    publish,
    seqs,
    subscribe,
    topic_of,
    working,
)


def test_an_uncommitted_message_is_gone_and_its_position_is_used_again() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    publish(writer)
    shell.engine.is_prompt = False
    assert writer.request("hub:publish", {"topic": "t", "type": "news", "data": 2}) == []
    assert writer.request("hub:topic_create", {"topic": "u", "durable": True}) == []
    shell.save_snapshot()

    again = shell.restarted()
    again.engine.is_prompt = True

    assert list(again.hub.streams.topics) == ["t"]
    assert publish(again.connect("@(a/writer)")) == 2


def test_what_may_have_been_sent_is_marked_though_the_reservation_is_only_in_a_snapshot() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer)
    shell.engine.is_prompt = False
    reader.request("hub:subscribe", NAMED | {"from": "earliest"})
    shell.engine.commit()
    shell.settle()
    shell.save_snapshot()
    shell.engine.is_prompt = True
    shell.settle()
    shell.save_snapshot()
    assert attempts(reader) == [(1, 1)]

    again = shell.restarted()
    reader = again.connect("@(a/reader)")
    subscribe(reader)

    assert attempts(reader) == [(1, 2)]


def test_a_topic_and_a_mailbox_may_have_the_same_name() -> None:
    shell = MemoryShell()
    actor = shell.connect(ACTOR)
    actor.register(durable=True)
    create(actor, ACTOR)
    publish(actor, topic=ACTOR)
    actor.drop()
    shell.connect("@(a/sender)").send(ACTOR, 1, pattern="ask")
    shell.save_snapshot()

    again = shell.restarted()

    assert topic_of(again, ACTOR).head == 1
    assert again.hub.streams.mailboxes[ACTOR].head == 1


def test_nobody_is_told_of_a_subscription_before_it_is_on_disk() -> None:
    shell = MemoryShell()
    peers = [shell.connect("@(a/one)"), shell.connect("@(a/two)")]
    publish(peers[0])
    shell.engine.is_prompt = False
    payload = NAMED | {"mode": "shared", "from": "earliest"}

    early = [peer.request("hub:subscribe", payload) for peer in peers]
    shell.engine.is_prompt = True
    shell.settle()

    assert early == [[], []]
    told = [message["type"] for peer in peers for message in peer.take()]
    assert told.count("hub:subscribed") == 2


def test_a_refused_redrive_can_be_tried_again() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 1, poison="dead_letter")
    reader.ask("hub:term", NAMED | {"seq": 1})
    reader.take()
    redrive = {"topic": "t.dlq", "all": True}

    shell.engine.is_full = True
    assert code_of(writer.ask("hub:redrive", redrive)) == "storage_full"
    shell.engine.is_full = False

    assert writer.ask("hub:redrive", redrive)["payload"]["count"] == 1
    assert seqs(reader) == [2]


def test_an_ask_without_an_outcome_is_settled_when_its_repeat_goes_to_a_new_mailbox() -> None:
    shell = MemoryShell()
    shell.join(ACTOR)
    sender = shell.connect("@(a/sender)")
    shell.engine.is_prompt = False
    sender.send(ACTOR, 1, pattern="ask", id="once")
    shell = shell.restarted(written=1)
    shell.engine.is_prompt = True
    (orphan,) = [one for one in shell.engine.entries if one.kind == Kind.MAIL]
    shell.connect(ACTOR).register(durable=True)

    (ack,) = shell.connect("@(a/sender)").send(ACTOR, 1, pattern="ask", id="once")
    shell.tick()

    assert ack["type"] == "hub:delivery_ack"
    settled = [
        (one.offset, one.outcome)
        for entry in shell.engine.entries
        if entry.kind == Kind.SETTLED and not entry.stream
        for one in decode_body(SettledBody, entry.body).deliveries
    ]
    assert settled == [(orphan.offset, Outcome.GONE)]
    copies = [decode_body(MessageBody, one.body) for one in shell.engine.entries[1:] if one.seq]
    assert [one.copy_id for one in copies] == [decode_body(MessageBody, orphan.body).copy_id]


def test_a_snapshot_looks_only_at_streams_that_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer)
    subscribe(reader)
    for number in range(50):
        reader.register(f"@(a/{number})", durable=True)
    shell.save_snapshot()
    streams = shell.hub.streams

    def snapshot() -> Snapshot:
        with monkeypatch.context() as patch:
            patch.setattr(streams, "every", lambda: pytest.fail("it looks at all streams"))
            return take_snapshot(shell.hub.parts, shell.engine.head)

    quiet = snapshot()
    assert (quiet.streams, quiet.subscriptions) == ({}, {})

    writer.send("@(a/7)", pattern="ask")
    changed = snapshot()
    assert list(changed.streams) == [streams.mailboxes["@(a/7)"].id]
    whole = take_snapshot(shell.hub.parts, shell.engine.head, is_whole=True)
    assert len(whole.streams) == 51


def test_what_is_not_made_yet_is_in_the_snapshot_after_it_is() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer, "u")
    shell.save_snapshot()
    shell.engine.is_prompt = False
    writer.request("hub:topic_create", {"topic": "t", "durable": True})
    subscribing = {"topic": "u", "subscription": "s", "mode": "exclusive", "from": "earliest"}
    reader.request("hub:subscribe", subscribing)
    early = take_snapshot(shell.hub.parts, shell.engine.head)
    assert (early.streams, early.subscriptions) == ({}, {})

    while shell.engine.pending:
        shell.engine.commit()
        shell.settle()
    late = take_snapshot(shell.hub.parts, shell.engine.head)

    topics = shell.hub.streams.topics
    assert list(late.streams) == [topics["t"].id]
    assert list(late.subscriptions) == [(topics["u"].id, "s")]
