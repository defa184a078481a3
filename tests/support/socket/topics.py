"""Durable topics and subscriptions in raw envelopes on any stage.

Where the specification leaves a shape open (lists of topics and subscriptions, counts that may as
well be lists) the reading is tolerant here and nowhere else.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.support.peer import Envelope, Peer, code_of
from tests.support.stage import Stage

TOPIC, NAME = "orders", "work"
OF_WORK: dict[str, Any] = {"topic": TOPIC, "subscription": NAME}
DLQ = f"{TOPIC}.dlq"
MODES = ["exclusive", "shared", "failover", "key-shared"]
# No test waits for these: what has to come again is made to do so by other means.
PATIENT: dict[str, Any] = {"ackTimeoutMs": 60_000, "backoffMs": 60_000, "backoffCapMs": 60_000}
HASTY: dict[str, Any] = {"ackTimeoutMs": 60_000, "backoffMs": 10, "backoffCapMs": 20}
UNLIMITED: dict[str, Any] = {"message_rate": 0, "connection_rate": 0}

SENT_AT_ONCE = 500
QUIET_ROUNDS = 2

Facts = dict[str, Any]

_DELIVERY = {
    "subscription": str,
    "epoch": str,
    "seq": int,
    "attempt": int,
    "redelivered": bool,
    "publishedAt": int,
    "id": str,
}
_INFO = {
    *("mode", "consumers", "floor", "next", "head", "lag", "lagSeconds", "inFlight"),
    *("waitingRetry", "settledAboveFloor", "deadLettered", "paused"),
}
# What a dead letter tells about the failure.
STORY = {
    *("topic", "subscription", "epoch", "seq", "attempts"),
    *("reason", "firstFailure", "lastFailure", "consumers"),
}
# The answer to each settling request.
SETTLED = {
    "hub:ack": "hub:acked",
    "hub:nack": "hub:nacked",
    "hub:extend": "hub:extended",
    "hub:term": "hub:termed",
}


class Delivery(NamedTuple):
    """One attempt to deliver an entry, as the consumer saw it."""

    seq: int
    attempt: int
    id: str
    epoch: str
    payload: Any
    envelope: Envelope

    @property
    def key(self) -> str | None:
        key: str | None = self.envelope["metadata"].get("key")
        return key


def delivery_of(message: Envelope) -> Delivery:
    """A copy with everything the specification promises about it."""
    assert not message["type"].startswith("hub:"), message
    assert message["correlationId"] is None, message
    metadata = message["metadata"]
    assert isinstance(metadata.get("topic"), str), message
    given = metadata["delivery"]
    assert given.keys() >= _DELIVERY.keys(), given
    for name, kind in _DELIVERY.items():
        assert type(given[name]) is kind, (name, given)
    assert given["seq"] >= 1
    assert given["attempt"] >= 1
    assert given["redelivered"] is (given["attempt"] > 1), given
    return Delivery(
        given["seq"],
        given["attempt"],
        given["id"],
        given["epoch"],
        message["payload"],
        message,
    )


def seqs(deliveries: Iterable[Delivery]) -> list[int]:
    return [delivery.seq for delivery in deliveries]


class Consumer:
    """One session's part in one subscription; `joined` is what the hub said on entering."""

    def __init__(self, peer: Peer, topic: str, name: str, joined: Facts) -> None:
        self.peer = peer
        self.topic = topic
        self.name = name
        self.joined = joined
        self.id: str = joined["subscriptionId"]

    async def next(self) -> Delivery:
        delivery = delivery_of(await self.peer.receive())
        assert delivery.envelope["metadata"]["topic"] == self.topic
        assert delivery.envelope["metadata"]["delivery"]["subscription"] == self.name
        return delivery

    async def take(self, count: int) -> list[Delivery]:
        return [await self.next() for _ in range(count)]

    async def take_and_ack(self, count: int) -> list[Delivery]:
        """Settle one after the other; the last reply says that all of it is durable."""
        taken: list[Delivery] = []
        for _ in range(count):
            taken.append(await self.next())
            if len(taken) < count:
                self.send("hub:ack", seq=taken[-1].seq)
        if taken:
            await self.ack(taken[-1].seq)
        return taken

    def send(self, how: str, **what: Any) -> None:
        """Settle without waiting for an answer."""
        self.peer.send(how, {"subscriptionId": self.id} | what)

    async def settle(self, how: str, **what: Any) -> Facts:
        """Settle and wait until it is durable; what the hub made of it."""
        reply = await self.peer.ask(how, {"subscriptionId": self.id} | what)
        assert reply["type"] == SETTLED[how], reply
        payload: Facts = reply["payload"]
        assert payload.keys() >= {"floor", "accepted", "ignored"}, payload
        return payload

    async def ack(self, *given: int) -> Facts:
        return await self.settle("hub:ack", **_named(given))

    async def nack(self, *given: int, **what: Any) -> Facts:
        return await self.settle("hub:nack", **_named(given), **what)

    async def term(self, *given: int, **what: Any) -> Facts:
        return await self.settle("hub:term", **_named(given), **what)

    async def info(self) -> Facts:
        return await sub_info(self.peer, self.topic, self.name)

    async def shows(self, **facts: Any) -> None:
        """The subscription is as said; counts may be given for lists."""
        await shows(self.peer, self.topic, self.name, **facts)

    async def quiet(self) -> None:
        await quiet(self.peer)


def _named(given: tuple[int, ...]) -> Facts:
    return {"seq": given[0]} if len(given) == 1 else {"seqs": list(given)}


async def expect(peer: Peer, type: str, payload: Any, answer: str, **members: Any) -> Facts:
    """Ask, and insist on the type of the answer; its payload."""
    reply = await peer.ask(type, payload, **members)
    assert reply["type"] == answer, reply
    facts: Facts = reply["payload"]
    return facts


async def refusal(peer: Peer, type: str, payload: Any, **members: Any) -> str:
    """Ask for something the hub must refuse; the code."""
    return code_of(await peer.ask(type, payload, **members))


async def create(peer: Peer, topic: str = TOPIC, **definition: Any) -> Facts:
    payload = {"topic": topic, "durable": True} | definition
    created = await expect(peer, "hub:topic_create", payload, "hub:topic_created")
    assert created["topic"] == topic
    assert isinstance(created["epoch"], str)
    assert created["epoch"]
    return created


async def publish(
    peer: Peer,
    data: Any = None,
    topic: str = TOPIC,
    *,
    members: Mapping[str, Any] | None = None,
    **payload: Any,
) -> Facts:
    """Publish durably and wait for the receipt; `members` are members of the envelope."""
    given = {"topic": topic, "type": "note", "data": data, "durable": True} | payload
    published = await expect(peer, "hub:publish", given, "hub:published", **(members or {}))
    assert published["topic"] == topic
    assert isinstance(published["epoch"], str)
    assert type(published["seq"]) is int
    return published


async def publish_all(
    peer: Peer,
    payloads: Iterable[Any],
    topic: str = TOPIC,
    key: Mapping[Any, str] | None = None,
) -> list[int]:
    """Publish without waiting in between; the seqs, in the order sent.

    The peer must not hear anything else meanwhile. `key` gives the key of a payload.
    """
    waiting = list(payloads)
    found: list[int] = []
    for start in range(0, len(waiting), SENT_AT_ONCE):
        ids = []
        for data in waiting[start : start + SENT_AT_ONCE]:
            given = {"topic": topic, "type": "note", "data": data, "durable": True}
            if key is not None:
                given["key"] = key[data]
            ids.append(peer.send("hub:publish", given, pattern="ask"))
        for message_id in ids:
            reply = await peer.receive("hub:published")
            assert reply["correlationId"] == message_id
            found.append(reply["payload"]["seq"])
    return found


async def subscribe(peer: Peer, topic: str = TOPIC, name: str = NAME, **options: Any) -> Consumer:
    """Make or join a subscription: exclusive and from the earliest entry unless said otherwise."""
    joined = await expect(
        peer, "hub:subscribe", subscription(topic, name, **options), "hub:subscribed"
    )
    assert joined["topic"] == topic
    assert joined["subscription"] == name
    return Consumer(peer, topic, name, joined)


def subscription(topic: str = TOPIC, name: str = NAME, **options: Any) -> Facts:
    """The payload of such a request."""
    return {
        "topic": topic,
        "subscription": name,
        "mode": "exclusive",
        "from": "earliest",
        **PATIENT,
    } | {("from" if key == "start" else key): value for key, value in options.items()}


async def enter(
    stage: Stage, address: str, topic: str = TOPIC, name: str = NAME, **options: Any
) -> Consumer:
    """A session of its own that consumes."""
    return await subscribe(await stage.join(f"@(local/{address})"), topic, name, **options)


async def working(
    stage: Stage,
    messages: int = 0,
    *,
    definition: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Peer, Consumer]:
    """A topic with a consumer, and the numbers from 1 published to it; the publisher too."""
    publisher = await stage.join("@(local/a)")
    await create(publisher, **(definition or {}))
    consumer = await enter(stage, "b", **options)
    await publish_all(publisher, range(1, messages + 1))
    return publisher, consumer


async def reenter(
    stage: Stage, address: str, topic: str = TOPIC, name: str = NAME, **options: Any
) -> Consumer:
    """The same after another session has vanished, as soon as the hub has noticed that."""
    peer = await stage.join(f"@(local/{address})")
    payload = subscription(topic, name, **options)
    async for _ in peer.polls():
        reply = await peer.ask("hub:subscribe", payload)
        if reply["type"] == "hub:subscribed":
            break
        assert code_of(reply) == "subscription_busy", reply
    return Consumer(peer, topic, name, reply["payload"])


async def leave(consumer: Consumer) -> None:
    """Leave a subscription without settling anything."""
    gone = {"subscriptionId": consumer.id}
    await expect(consumer.peer, "hub:unsubscribe", gone, "hub:unsubscribed")


async def sub_info(peer: Peer, topic: str = TOPIC, name: str = NAME) -> Facts:
    info = await expect(
        peer, "hub:sub_info", {"topic": topic, "subscription": name}, "hub:sub_info_response"
    )
    assert info.keys() >= _INFO, info
    return info


async def shows(peer: Peer, topic: str = TOPIC, name: str = NAME, /, **facts: Any) -> None:
    """A subscription is as said; counts may be given for lists."""
    info = await sub_info(peer, topic, name)
    assert {fact: _size(info[fact]) for fact in facts} == facts


async def until(peer: Peer, topic: str = TOPIC, name: str = NAME, /, **facts: Any) -> Facts:
    """Look at a subscription until it is as said; counts may be given for lists."""
    async for _ in peer.polls():
        info = await sub_info(peer, topic, name)
        if all(
            info[fact] == wanted or _size(info[fact]) == wanted for fact, wanted in facts.items()
        ):
            break
    return info


def _size(given: Any) -> Any:
    """How many: a number as it is, the length of a list of names or seqs, the sum of ranges."""
    if not isinstance(given, list):
        return given
    return sum(part[1] - part[0] + 1 if isinstance(part, list) else 1 for part in given)


async def head_of(peer: Peer, topic: str = TOPIC) -> int:
    info = await expect(peer, "hub:topic_info", {"topic": topic}, "hub:topic_info_response")
    return int(info["head"])


async def replay(peer: Peer, topic: str = TOPIC, **payload: Any) -> tuple[list[Envelope], Facts]:
    """The copies and the summary that ends them."""
    asked = {"topic": topic, "fromSeq": 1} | payload
    message_id = peer.send("hub:replay", asked, pattern="ask")
    copies: list[Envelope] = []
    while (message := await peer.receive())["correlationId"] != message_id:
        assert message["metadata"]["replay"] is True, message
        assert message["metadata"]["topic"] == topic
        copies.append(message)
    assert message["type"] == "hub:replayed", message
    assert message["payload"].keys() >= {"count", "complete", "next"}
    assert message["payload"]["count"] == len(copies)
    return copies, message["payload"]


async def read_all(peer: Peer, topic: str = TOPIC) -> list[Envelope]:
    """Everything a topic holds, in order, in as many pages as the hub likes."""
    copies, summary = await replay(peer, topic)
    while not summary["complete"]:
        page, summary = await replay(peer, topic, fromSeq=summary["next"])
        copies += page
    found = [copy["metadata"]["delivery"]["seq"] for copy in copies]
    assert found == sorted(set(found))
    return copies


async def stored(peer: Peer, topic: str = TOPIC) -> list[Any]:
    """The payloads of everything a topic holds, from its first seq to its last."""
    copies = await read_all(peer, topic)
    assert len(copies) == await head_of(peer, topic)
    return [copy["payload"] for copy in copies]


async def dead_letters(peer: Peer, topic: str = f"{TOPIC}.dlq") -> list[Envelope]:
    """What is in a dead-letter topic, each with the story of its failure."""
    copies = await read_all(peer, topic)
    for copy in copies:
        assert copy["metadata"]["deadLetter"].keys() >= STORY, copy
    return copies


async def quiet(peer: Peer) -> None:
    """Nothing more comes, although something else that was published later has come.

    The marker goes the whole way of a durable message, to the disk and back, more than once.
    """
    topic = f"quiet-{uuid.uuid4()}"
    await create(peer, topic)
    marker = await subscribe(peer, topic, "marker")
    for turn in range(QUIET_ROUNDS):
        message_id = peer.send(
            "hub:publish", {"topic": topic, "type": "marker", "data": turn}, pattern="ask"
        )
        expected = {"marker", "hub:published"}
        while expected:
            message = await peer.receive()
            is_ours = message["metadata"].get("topic") == topic or (
                message["correlationId"] == message_id
            )
            assert is_ours, f"unexpected: {message}"
            expected.remove(message["type"])
    await leave(marker)
    await peer.nothing_more()


@asynccontextmanager
async def undisturbed(stage: Stage) -> AsyncIterator[None]:
    """A subscription on another topic that gets everything once and in order, whatever happens."""
    topic = "calm"
    publisher = await stage.join("@(bystander/publisher)")
    await create(publisher, topic)
    consumer = await enter(stage, "calm", topic)
    await publish_all(publisher, range(5), topic)
    yield
    await publish_all(publisher, range(5, 10), topic)
    heard = await consumer.take_and_ack(10)
    assert [delivery.payload for delivery in heard] == list(range(10))
    assert {delivery.attempt for delivery in heard} == {1}
    assert (await consumer.info())["floor"] == 10
    await consumer.peer.nothing_more()
