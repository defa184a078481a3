"""Durable topics, subscriptions and mailboxes on a memory shell, in few words."""

from __future__ import annotations

from typing import Any

from signalhub.core.streams.streams import Mailbox, Topic
from signalhub.core.subscriptions.position import Position
from signalhub.core.subscriptions.subscription import Subscription
from tests.support.memory.shell import MemoryShell, Message, Peer

TOPIC, NAME = "t", "s"
NAMED: dict[str, Any] = {"topic": TOPIC, "subscription": NAME}
ACTOR = "@(a/actor)"


def create(peer: Peer, topic: str = TOPIC, **definition: Any) -> Message:
    payload: Message = peer.ask("hub:topic_create", {"topic": topic, "durable": True} | definition)
    assert payload["type"] == "hub:topic_created", payload
    return payload


def publish(peer: Peer, data: object = 1, topic: str = TOPIC, **payload: Any) -> int:
    """Publish durably; the position."""
    given = {"topic": topic, "type": "news", "data": data, "durable": True} | payload
    reply = peer.ask("hub:publish", given)
    assert reply["type"] == "hub:published", reply
    seq: int = reply["payload"]["seq"]
    return seq


def subscribe(peer: Peer, topic: str = TOPIC, name: str = NAME, **options: Any) -> str:
    """Make or join a subscription, from the earliest message on; the id of the consumer."""
    payload = {"topic": topic, "subscription": name, "from": "earliest"} | options
    reply = peer.ask("hub:subscribe", payload)
    assert reply["type"] == "hub:subscribed", reply
    consumer: str = reply["payload"]["subscriptionId"]
    return consumer


def working(
    shell: MemoryShell,
    messages: int = 0,
    *,
    definition: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Peer, Peer]:
    """A topic with messages and a consumer that has got them; writer and reader."""
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer, **(definition or {}))
    subscribe(reader, **options)
    for _ in range(messages):
        publish(writer)
    for peer in (writer, reader):
        peer.take()
    return writer, reader


def seqs(peer: Peer) -> list[int]:
    """The positions of the copies that have come since the last look."""
    return [one["metadata"]["delivery"]["seq"] for one in peer.heard()]


def attempts(peer: Peer) -> list[tuple[int, int]]:
    """The same with the number of the attempt."""
    found = [one["metadata"]["delivery"] for one in peer.heard()]
    return [(one["seq"], one["attempt"]) for one in found]


def answers(peer: Peer) -> list[str]:
    """The types of what the hub has said since the last look, the code where it is an error."""
    return [
        one["payload"]["code"] if one["type"] == "hub:error" else one["type"]
        for one in peer.take()
        if one["type"].startswith("hub:")
    ]


def code_of(reply: Message) -> str:
    assert reply["type"] == "hub:error", reply
    code: str = reply["payload"]["code"]
    return code


def topic_of(shell: MemoryShell, name: str = TOPIC) -> Topic:
    return shell.hub.streams.topics[name]


def subscription_of(shell: MemoryShell, topic: str = TOPIC, name: str = NAME) -> Subscription:
    return topic_of(shell, topic).subscriptions[name]


def position_of(shell: MemoryShell, topic: str = TOPIC, name: str = NAME) -> Position:
    return subscription_of(shell, topic, name).position


def mailbox_of(shell: MemoryShell, address: str = ACTOR) -> Mailbox:
    return shell.hub.streams.mailboxes[address]


def commit_all(shell: MemoryShell) -> None:
    """The disk takes everything, and what follows from it."""
    while shell.engine.commit():
        shell.settle()
    shell.settle()
