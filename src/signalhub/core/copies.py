"""The copies of durable messages as their recipients see them."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from signalhub import envelope as wire
from signalhub.core.consumers import Consumer
from signalhub.core.flight import Flight
from signalhub.core.streams import Held, Mailbox, Stream
from signalhub.core.subscription import Subscription
from signalhub.entry import DeadLetter, Message, Replay


def of(subscription: Subscription, consumer: Consumer, flight: Flight, now: int) -> bytes:
    """One attempt to deliver a message to a consumer."""
    held = flight.held
    assert held is not None
    if isinstance(subscription.stream, Mailbox):
        metadata = _mail_metadata(subscription.stream, held, flight.deliveries)
    else:
        metadata = _topic_metadata(subscription, held, flight.deliveries)
    head, tail = _split(held.message, metadata, now)
    return b"".join((head, consumer.address_json, tail))


def delivery_id(subscription: Subscription, seq: int, attempt: int) -> str:
    """The name of one attempt, unlike that of any other."""
    return f"{subscription.tag}.{subscription.position.generation}.{seq}.{attempt}"


def is_attempt(subscription: Subscription, flight: Flight, given: str) -> bool:
    """Is this the name of an attempt of the present generation?"""
    name, _, attempt = given.rpartition(".")
    return (
        name == f"{subscription.tag}.{subscription.position.generation}.{flight.seq}"
        and attempt.isdecimal()
        and len(attempt) < 10
        and 1 <= int(attempt) <= flight.deliveries
    )


def live(topic: Stream, held: Held, now: int) -> tuple[bytes, bytes]:
    """Head and tail of the copies for those who only listen; they have nothing to settle."""
    return _split(held.message, _unsettled_metadata(topic, held) + b"}", now)


def replayed(topic: Stream, held: Held, to: str, now: int) -> bytes:
    """A copy somebody asked to see again."""
    metadata = _unsettled_metadata(topic, held) + b',"replay":true}'
    head, tail = _split(held.message, metadata, now)
    return b"".join((head, wire.encode(to), tail))


def _unsettled_metadata(topic: Stream, held: Held) -> bytes:
    delivery = {"epoch": topic.epoch, "seq": held.seq, "publishedAt": held.at_ms}
    more = b',"delivery":' + wire.encode(delivery)
    return b"".join((topic.copy_head, _added(held.message), more))


def _topic_metadata(subscription: Subscription, held: Held, attempt: int) -> bytes:
    message = held.message
    return b"".join(
        (
            subscription.stream.copy_head,
            b"" if _is_plain(message) else _added(message),
            subscription.copy_delivery,
            b'%d,"attempt":%d,"redelivered":%b,"publishedAt":%d,"id":"%b"}}'
            % (
                held.seq,
                attempt,
                b"true" if attempt > 1 else b"false",
                held.at_ms,
                delivery_id(subscription, held.seq, attempt).encode(),
            ),
        )
    )


def _mail_metadata(mailbox: Mailbox, held: Held, attempt: int) -> bytes:
    delivery: dict[str, object] = {
        "stream": mailbox.name,
        "epoch": mailbox.epoch,
        "seq": held.seq,
        "attempt": attempt,
        "redelivered": attempt > 1,
    }
    if mailbox.is_host:
        delivery["acceptedAt"] = held.at_ms
    message = held.message
    start = wire.forwarded_metadata(message.metadata, message.id)
    more = b"" if message.replay is None else _added(message)
    return b"".join((start, more, b',"delivery":', wire.encode(delivery), b"}"))


def _is_plain(message: Message) -> bool:
    """Do its copies carry nothing that only some do?"""
    return (
        message.key is None
        and message.headers is None
        and message.dead is None
        and message.replay is None
    )


def _added(message: Message) -> bytes:
    """What only some messages carry."""
    added: dict[str, Any] = {}
    if message.key is not None:
        added["key"] = message.key
    if message.headers is not None:
        added["headers"] = message.headers
    if message.dead is not None:
        added["deadLetter"] = dead_letter(message.dead)
    if message.replay is not None:
        # `replay` alone marks answers to `hub:replay`, which clients do not take for deliveries.
        added["original"] = original(message.replay)
    return b"," + wire.encode(added)[1:-1] if added else b""


def dead_letter(dead: DeadLetter) -> dict[str, Any]:
    """`metadata.deadLetter`."""
    return {
        "topic": dead.topic,
        "subscription": dead.subscription,
        "epoch": dead.epoch,
        "seq": dead.seq,
        "attempts": dead.attempts,
        "reason": dead.reason,
        "firstFailure": dead.first_failure,
        "lastFailure": dead.last_failure,
        "consumers": dead.consumers,
    }


def original(replay: Replay) -> dict[str, Any]:
    """`metadata.original`: which replay sent it, and where the original is."""
    return {
        "job": replay.job,
        "shard": replay.shard,
        "epoch": replay.epoch,
        "offset": replay.offset,
        "id": replay.id,
    }


def _split(message: Message, metadata: bytes, now: int) -> tuple[bytes, bytes]:
    return wire.copies(
        message_id=message.copy_id,
        sender=message.sender,
        type=message.type,
        data=Raw(message.data),
        now_ms=now,
        correlation_id=None,
        metadata=metadata,
        ttl=message.ttl,
    )
