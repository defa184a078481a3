"""What a hub knows after a crash, from the log and from snapshots."""

from __future__ import annotations

from typing import Any

from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer

ACTOR = "@(a/actor)"


def publish(peer: Peer, topic: str = "t", **members: Any) -> Message:
    payload = {"topic": topic, "type": "news", "data": 1, "durable": True}
    return peer.ask("hub:publish", payload, **members)


def subscribe(peer: Peer, name: str = "s", **options: Any) -> str:
    payload = {"topic": "t", "subscription": name, "from": "earliest"} | options
    reply = peer.ask("hub:subscribe", payload)
    assert reply["type"] == "hub:subscribed", reply
    identifier: str = reply["payload"]["subscriptionId"]
    return identifier


def attempts(peer: Peer) -> list[int]:
    return [one["metadata"]["delivery"]["attempt"] for one in peer.heard()]


def test_an_uncommitted_message_is_gone_and_its_position_is_used_again() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    publish(writer)
    shell.engine.is_prompt = False
    assert writer.request("hub:publish", {"topic": "t", "type": "news", "data": 2}) == []

    again = shell.restarted()
    again.engine.is_prompt = True
    writer = again.connect("@(a/writer)")

    assert publish(writer)["payload"]["seq"] == 2


def test_a_message_on_disk_that_nobody_was_told_about_is_kept() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    publish(writer)
    shell.engine.is_prompt = False
    payload = {"topic": "t", "type": "news", "data": 2}
    writer.request("hub:publish", payload, id="p2")

    again = shell.restarted(written=1)
    again.engine.is_prompt = True
    writer = again.connect("@(a/writer)")

    reply = writer.ask("hub:publish", payload, id="p2")
    assert (reply["payload"]["seq"], reply["payload"]["duplicate"]) == (2, True)


def test_positions_survive_snapshot_after_snapshot() -> None:
    shell = MemoryShell()
    for number in range(1, 6):
        shell.save_snapshot()
        writer = shell.connect("@(a/writer)")
        assert publish(writer)["payload"]["seq"] == number
        shell = shell.restarted()
    assert shell.hub.streams.topics["t"].head == 5


def test_settlements_survive_snapshot_after_snapshot() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    for _ in range(6):
        publish(writer)
    for seq in (2, 4, 1):
        reader = shell.connect("@(a/reader)")
        name = subscribe(reader)
        reader.ask("hub:ack", {"subscriptionId": name, "seq": seq})
        shell.save_snapshot()
        shell = shell.restarted()

    position = shell.hub.streams.topics["t"].subscriptions["s"].position
    assert position.floor == 2
    assert list(position.above) == [(4, 4)]


def test_what_may_have_been_sent_is_marked_though_the_reservation_is_only_in_a_snapshot() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer)
    shell.engine.is_prompt = False
    reader.request("hub:subscribe", {"topic": "t", "subscription": "s", "from": "earliest"})
    shell.engine.commit()
    shell.settle()
    shell.save_snapshot()
    shell.engine.is_prompt = True
    shell.settle()
    shell.save_snapshot()
    first = attempts(reader)

    again = shell.restarted()
    reader = again.connect("@(a/reader)")
    subscribe(reader)

    assert first == [1]
    assert attempts(reader) == [2]


def test_an_id_is_known_while_its_ask_is_on_its_way_over_several_snapshots() -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    actor.stall()
    sender.send(ACTOR, 1, pattern="ask", id="a1")
    for _ in range(3):
        shell.save_snapshot()
        publish(sender)

    again = shell.restarted()
    sender = again.connect("@(a/sender)")
    (reply,) = sender.send(ACTOR, 1, pattern="ask", id="a1")

    assert (reply["payload"]["seq"], reply["payload"]["duplicate"]) == (1, True)
    assert again.hub.streams.mailboxes[ACTOR].head == 1


def test_a_topic_and_a_mailbox_may_have_the_same_name() -> None:
    shell = MemoryShell()
    actor = shell.connect(ACTOR)
    actor.register(durable=True)
    refusal = actor.ask("hub:topic_create", {"topic": ACTOR, "durable": True})
    if refusal["type"] == "hub:error":
        return
    publish(actor, ACTOR)
    actor.drop()
    shell.connect("@(a/sender)").send(ACTOR, 1, pattern="ask")
    shell.save_snapshot()

    again = shell.restarted()

    assert again.hub.streams.topics[ACTOR].head == 1
    assert again.hub.streams.mailboxes[ACTOR].head == 1


def test_nobody_is_told_of_a_subscription_before_it_is_on_disk() -> None:
    shell = MemoryShell()
    one, two = shell.connect("@(a/one)"), shell.connect("@(a/two)")
    publish(one)
    shell.engine.is_prompt = False
    payload = {"topic": "t", "subscription": "s", "mode": "shared", "from": "earliest"}

    replies = [*one.request("hub:subscribe", payload), *two.request("hub:subscribe", payload)]
    shell.engine.is_prompt = True
    shell.settle()

    assert replies == []
    joined = [message["type"] for message in (*one.take(), *two.take())]
    assert joined.count("hub:subscribed") == 2


def test_a_refused_redrive_can_be_tried_again() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer)
    name = subscribe(reader, poison="dead_letter")
    reader.ask("hub:term", {"subscriptionId": name, "seq": 1})
    reader.take()

    shell.engine.is_full = True
    (refused,) = writer.request("hub:redrive", {"topic": "t.dlq", "all": True})
    shell.engine.is_full = False
    done = writer.ask("hub:redrive", {"topic": "t.dlq", "all": True})

    assert refused["payload"]["code"] == "storage_full"
    assert done["payload"]["count"] == 1
    assert len(reader.heard()) == 1
