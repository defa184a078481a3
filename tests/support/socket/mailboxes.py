"""Actors with mailboxes and what they settle, on any stage.

A message is asked with type `note`; its data tell one from another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.peer import Envelope, Peer
from tests.support.socket.stage import Stage as SocketStage
from tests.support.socket.topics import SETTLED, STORY
from tests.support.stage import Stage

DEAD_MAILBOXES = "dead.mailboxes"
SETTLING = ["send", "receive", "ack"]

_DELIVERY = {"stream", "epoch", "seq", "attempt", "redelivered"}

Payload = dict[str, Any]


async def join_durable(stage: Stage, address: str, *, settles: bool = False) -> Peer:
    """A session with a durable address; what waited for it is the next it receives.

    With `settles` it has announced that it settles what comes from mailboxes itself.
    """
    peer, _ = await attach(stage, address, settles=settles)
    return peer


async def attach(
    stage: Stage,
    address: str,
    *,
    settles: bool = False,
    **payload: Any,
) -> tuple[Peer, Payload]:
    """The same with what `hub:registered` said."""
    metadata: Payload = {"capabilities": SETTLING} if settles else {}
    peer = await stage.connect(**metadata)
    reply = await peer.register(address, **{"durable": True} | payload)
    assert reply["type"] == "hub:registered", reply
    return peer, reply["payload"]


async def settling_pair(stage: Stage, address: str = "@(local/a)") -> tuple[Peer, Peer]:
    """A sender, and a durable actor that settles what it gets."""
    return await stage.connect("@(local/sender)"), await join_durable(stage, address, settles=True)


async def leave(*peers: Peer) -> None:
    """End sessions politely; the hub has forgotten them when this returns."""
    for peer in peers:
        await peer.ask("hub:disconnect")
        await peer.until_closed()


async def keep_away(stage: Stage, *names: str) -> None:
    """Durable actors that exist and are away."""
    for address in names:
        await leave(await join_durable(stage, address))


async def ask(sender: Peer, to: str, data: Any = None, /, **members: Any) -> Payload:
    """Ask one note, which must be accepted; the payload of its ack."""
    reply = await sender.ask_actor(to, "note", data, **members)
    assert reply["type"] == "hub:delivery_ack", reply
    payload: Payload = reply["payload"]
    return payload


async def ask_all(sender: Peer, to: str, data: Iterable[Any], /, **members: Any) -> list[Payload]:
    """Ask many notes without waiting in between; the payloads of their acks."""
    ids = [sender.tell(to, "note", each, pattern="ask", **members) for each in data]
    replies = [await sender.reply_to(message_id) for message_id in ids]
    assert {reply["type"] for reply in replies} <= {"hub:delivery_ack"}, replies
    return [reply["payload"] for reply in replies]


async def take(peer: Peer, count: int) -> list[Envelope]:
    """The next `count` notes."""
    return [await peer.receive("note") for _ in range(count)]


async def take_until_asked(peer: Peer, sender: Peer) -> list[Envelope]:
    """All that a peer hears before something that is asked of it now."""
    asked = sender.tell(peer.sender, "last", pattern="ask")
    heard: list[Envelope] = []
    while (message := await peer.receive())["type"] != "last":
        heard.append(message)
    assert (await sender.reply_to(asked))["type"] == "hub:delivery_ack"
    return heard


def data_of(messages: Iterable[Envelope]) -> list[Any]:
    """What was sent, in order of arrival."""
    return [message["payload"] for message in messages]


def delivery_of(message: Envelope) -> Payload:
    """Where a copy stands in its mailbox, after checking that it says so in full."""
    delivery: Payload = message["metadata"]["delivery"]
    assert set(delivery) == _DELIVERY, delivery
    assert delivery["stream"] == message["to"]
    assert isinstance(delivery["epoch"], str)
    assert delivery["epoch"]
    assert type(delivery["seq"]) is int
    assert delivery["seq"] >= 1
    assert type(delivery["attempt"]) is int
    assert type(delivery["redelivered"]) is bool
    assert delivery["redelivered"] is (delivery["attempt"] >= 2)
    return delivery


def seqs_of(messages: Iterable[Envelope]) -> list[int]:
    """Positions in the mailbox, in order of arrival."""
    return [delivery_of(message)["seq"] for message in messages]


def attempts_of(messages: Iterable[Envelope]) -> list[int]:
    """How often each was tried, in order of arrival."""
    return [delivery_of(message)["attempt"] for message in messages]


def place_of(message: Envelope) -> Payload:
    """A copy as a settling request names it."""
    delivery = delivery_of(message)
    return {name: delivery[name] for name in ("stream", "epoch", "seq")}


async def settle(peer: Peer, type: str, message: Envelope, **more: Any) -> Payload:
    """Settle one copy as an ask; what the hub made of it."""
    return settled(await peer.ask(type, place_of(message) | more), type)


def settled(reply: Envelope, type: str = "hub:ack") -> Payload:
    """The answer to a settling request, after checking its form."""
    assert reply["type"] == SETTLED[type], reply
    payload: Payload = reply["payload"]
    assert {"floor", "accepted", "ignored"} <= set(payload), payload
    assert type_names(payload["floor"], payload["accepted"]) == ["int", "int"], payload
    assert isinstance(payload["ignored"], list)
    return payload


def type_names(*values: Any) -> list[str]:
    """JSON's numbers are easily mistaken for its booleans; their types are not."""
    return [type(value).__name__ for value in values]


async def hear_dead_letters(stage: Stage) -> Peer:
    """A session that hears of every mailbox message that is given up from now on."""
    peer = await stage.connect()
    reply = await peer.ask("hub:subscribe", {"topic": DEAD_MAILBOXES})
    assert reply["type"] == "hub:subscribed", reply
    return peer


def dead_letter_of(message: Envelope) -> Payload:
    """Why a message was given up, after checking that all of it is said."""
    assert message["metadata"]["topic"] == DEAD_MAILBOXES
    letter: Payload = message["metadata"]["deadLetter"]
    assert set(letter) >= STORY, letter
    assert isinstance(letter["reason"], str)
    assert letter["reason"]
    assert isinstance(letter["consumers"], list)
    assert letter["firstFailure"] <= letter["lastFailure"]
    return letter


async def counters(stage: SocketStage) -> dict[str, float]:
    """Every number the hub counts or measures, by name and labels."""
    page = (await stage.get("/metrics")).body.decode()
    samples = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def risen_by(number: float, before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Which of the numbers rose by exactly this much; tests choose one nothing else rises by."""
    return [name for name, value in after.items() if value - before.get(name, 0.0) == number]
