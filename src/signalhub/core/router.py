"""Messages between actors: send, broadcast, publish and subscribe.

Order of the checks: may the session speak as `from`, may it do this, was this ask accepted before,
has it expired, is the target there. An ask is acknowledged when the shell reports that the target's
bytes are the kernel's; only then is it remembered for de-duplication, so that a refused message may
be sent again with the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from signalhub import envelope as wire
from signalhub.core import refusals, requests
from signalhub.core.dedup import Ack
from signalhub.core.effects import Deliver, Effect, FanOut, Reply
from signalhub.core.policy import EVERYTHING
from signalhub.core.registry import Recipient
from signalhub.core.session import Session, State
from signalhub.core.topics import Audience
from signalhub.envelope import ASK, Envelope
from signalhub.errors import Code, Refusal
from signalhub.names import (
    ADDRESS_CHARS_MAX,
    HUB_TYPE_PREFIX,
    has_wildcard,
    is_subscribable,
    is_topic,
)

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

DELIVERED: Final = "delivered"


class Receipt(msgspec.Struct, eq=False):
    """An ask on its way: who wants to know what becomes of it."""

    message: Envelope
    askers: list[Session]
    target: str
    received_at_ms: int
    expires_at: float | None


class FanReceipt(msgspec.Struct, eq=False):
    """A publish or broadcast on its way; `topic` is `None` for a broadcast."""

    session: Session
    message: Envelope
    topic: str | None
    received_at_ms: int
    expires_at: float | None


def send(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Forward one message to one actor."""
    try:
        request = _decode_send(message.payload)
    except (ValueError, RecursionError) as error:
        raise refusals.structural(f"the payload does not fit: {error}") from None
    type = request.type
    if type.startswith(HUB_TYPE_PREFIX):
        raise _hub_type()
    target = request.to or message.to
    if session.allowance is not EVERYTHING:
        _check_sender(session, message.sender)
        if not session.allowance.may_send(target):
            raise refusals.unauthorized("send", target)
    is_ask = message.pattern == ASK
    if is_ask:
        answered = _answer_again(hub, session, message, now)
        if answered is not None:
            return answered
    expires_at = _deadline(session, message)
    if expires_at is not None and expires_at < now:
        return _expired(hub, message, is_ask)
    registration = hub.registry.find(target, now)
    if registration is None:
        if len(target) > ADDRESS_CHARS_MAX:
            raise refusals.structural(f"payload.to is longer than {ADDRESS_CHARS_MAX} characters")
        return _unknown(hub, session, message, target, now) if is_ask else _missed(hub)

    receipt = None
    if is_ask:
        receipt = Receipt(message, [session], target, now, expires_at)
        hub.asks[message.sender, message.id] = receipt
    address_json = registration.address_json
    frame = wire.forwarded(hub.ids.next(), message, address_json, type, request.data, now)
    return [Deliver(registration.session, frame, session, target, expires_at, receipt)]


_decode_send = msgspec.json.Decoder(requests.Send).decode


def _hub_type() -> Refusal:
    return refusals.structural("payload.type must not begin with `hub:`, which is the hub's own")


def _check_sender(session: Session, sender: str) -> None:
    if not session.speaks_as(sender):
        raise refusals.not_your_address(sender)


def _deadline(session: Session, message: Envelope) -> float | None:
    """When the message expires, on the sender's clock as far as the hub knows it."""
    ttl = message.ttl
    return message.timestamp + ttl + session.clock_behind_ms if ttl else None


def _expired(hub: Hub, message: Envelope, is_ask: bool) -> list[Effect]:
    if not is_ask:
        hub.tally.expired_tells += 1
        return []
    hub.tally.expired_asks += 1
    raise refusals.expired(message.ttl or 0)


def _missed(hub: Hub) -> list[Effect]:
    hub.tally.unknown_targets += 1
    return []


def _unknown(hub: Hub, session: Session, message: Envelope, target: str, now: int) -> list[Effect]:
    if hub.registry.is_away(target, now):
        raise refusals.reconnecting(target)
    return [unknown_actor(hub, session, message, target, now)]


def unknown_actor(
    hub: Hub,
    session: Session,
    message: Envelope,
    target: str,
    now: int,
    *,
    retryable: bool = False,
) -> Reply:
    """The one error both kinds of clients know by its own type."""
    hub.tally.unknown_targets += 1
    hub.tally.count_error(Code.UNKNOWN_ACTOR)
    payload = wire.encode(
        {
            "actorAddress": target,
            "code": Code.UNKNOWN_ACTOR,
            "message": f"The actor {target} is not registered with this hub.",
            "resolution": "Check the address with hub:discover, or wait until the actor registers.",
            "details": {"actorAddress": target},
            "retryable": retryable,
        }
    )
    trace = requests.trace_of(message)
    return hub.reply(session, message, "hub:unknown_actor", payload, now, trace)


def _answer_again(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect] | None:
    """The same ack for a message accepted before; silence while its first copy is on its way."""
    pending = hub.asks.get((message.sender, message.id))
    if pending is not None:
        hub.tally.duplicates += 1
        if session not in pending.askers:
            pending.askers.append(session)
        return []
    ack = hub.dedup.find(message.sender, message.id, now)
    if ack is None:
        return None
    hub.tally.duplicates += 1
    if ack.extra:
        return [hub.reply(session, message, "hub:broadcast_ack", ack.extra, now)]
    return [_delivery_ack(hub, session, message, ack, now)]


def _delivery_ack(hub: Hub, session: Session, message: Envelope, ack: Ack, now: int) -> Reply:
    payload = wire.encode({"messageId": message.id, "deliveredAt": ack.at_ms, "status": ack.status})
    return hub.reply(session, message, "hub:delivery_ack", payload, now)


def handed_over(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """The target's bytes are the kernel's: acknowledge and remember."""
    message = receipt.message
    hub.asks.pop((message.sender, message.id), None)
    ack = Ack(at_ms=now, status=DELIVERED)
    hub.dedup.remember(message.sender, message.id, now, ack)
    hub.tally.ask_latency.observe((now - receipt.received_at_ms) / 1000)
    return [
        _delivery_ack(hub, asker, message, ack, now)
        for asker in receipt.askers
        if asker.state is State.CONNECTED
    ]


def undelivered(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """The bytes never left: say so; the same id may be tried again."""
    message = receipt.message
    hub.asks.pop((message.sender, message.id), None)
    askers = [asker for asker in receipt.askers if asker.state is State.CONNECTED]
    if receipt.expires_at is not None and receipt.expires_at < now:
        hub.tally.expired_asks += 1
        refusal = refusals.expired(message.ttl or 0)
        return [hub.refuse(asker, message, refusal, now) for asker in askers]
    return [
        unknown_actor(hub, asker, message, receipt.target, now, retryable=True) for asker in askers
    ]


def overflowed(hub: Hub, receipt: Receipt, waiting: int, now: int) -> list[Effect]:
    """Too much waits for the target already: refuse, so that the sender tries again later."""
    message = receipt.message
    hub.asks.pop((message.sender, message.id), None)
    refusal = refusals.queue_full(receipt.target, waiting, hub.settings.outbound)
    return [
        hub.refuse(asker, message, refusal, now)
        for asker in receipt.askers
        if asker.state is State.CONNECTED
    ]


def broadcast(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """One copy to every live address, optionally only to those with a capability."""
    request = requests.parse(requests.Broadcast, message.payload)
    if request.type.startswith(HUB_TYPE_PREFIX):
        raise _hub_type()
    capability = None
    if wire.is_object(message.metadata):
        given = requests.parse(requests.BroadcastMetadata, message.metadata, "metadata")
        capability = given.target_capability
    if session.allowance is not EVERYTHING:
        _check_sender(session, message.sender)
        if not session.allowance.may_broadcast(capability):
            raise refusals.unauthorized("broadcast", f"to {capability or 'everybody'}")
    is_ask = message.pattern == ASK
    if is_ask:
        answered = _answer_again(hub, session, message, now)
        if answered is not None:
            return answered
    expires_at = _deadline(session, message)
    if expires_at is not None and expires_at < now:
        return _expired(hub, message, is_ask)

    recipients: list[Recipient] = list(hub.registry.live(capability, now))
    if request.exclude_self:
        recipients = [one for one in recipients if one.address != message.sender]
    hub.tally.broadcasts += 1
    head, tail = wire.copies(
        message_id=hub.ids.next(),
        sender=message.sender,
        type=request.type,
        data=request.data,
        now_ms=now,
        correlation_id=message.id,
        metadata=wire.BROADCAST_METADATA,
        ttl=message.ttl,
    )
    receipt = FanReceipt(session, message, None, now, expires_at)
    return [FanOut(Audience(recipients), head, tail, hub.settings.broadcast_batch, receipt)]


def publish(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """One copy to every address that hears the topic, the publisher's own included."""
    request = requests.parse(requests.Publish, message.payload)
    if request.type.startswith(HUB_TYPE_PREFIX):
        raise _hub_type()
    topic = request.topic
    _check_topic(topic)
    if has_wildcard(topic):
        raise refusals.structural("payload.topic must not hold the wildcards `+` or `#`")
    if session.allowance is not EVERYTHING:
        _check_sender(session, message.sender)
        if not session.allowance.may_publish(topic):
            raise refusals.unauthorized("publish", topic)
    expires_at = _deadline(session, message)
    if expires_at is not None and expires_at < now:
        return _expired(hub, message, message.pattern == ASK)

    hub.tally.published += 1
    head, tail = wire.copies(
        message_id=hub.ids.next(),
        sender=message.sender,
        type=request.type,
        data=request.data,
        now_ms=now,
        correlation_id=message.id,
        metadata=wire.publication_metadata(topic),
        ttl=message.ttl,
    )
    receipt = FanReceipt(session, message, topic, now, expires_at)
    audience = hub.topics.audience(topic)
    return [FanOut(audience, head, tail, hub.settings.fanout_batch, receipt)]


def fanned_out(hub: Hub, receipt: FanReceipt, queued: int, failed: int, now: int) -> list[Effect]:
    """The copies are queued in order; tell the sender how many, behind its own copy."""
    session, message = receipt.session, receipt.message
    if receipt.topic is not None:
        payload = wire.encode({"topic": receipt.topic, "subscriberCount": queued})
        return [hub.reply(session, message, "hub:published", payload, now)]
    at_once = min(queued, hub.settings.broadcast_batch)
    hub.tally.broadcast_copies += queued
    hub.tally.broadcast_failed += failed
    payload = wire.encode(
        {
            "messageId": message.id,
            "deliveredCount": at_once,
            "queuedCount": queued - at_once,
            "failedCount": failed,
        }
    )
    if message.pattern == ASK:
        ack = Ack(at_ms=now, status=DELIVERED, extra=payload)
        hub.dedup.remember(message.sender, message.id, now, ack)
    return [hub.reply(session, message, "hub:broadcast_ack", payload, now)]


def _check_topic(topic: str) -> None:
    if not is_topic(topic):
        raise refusals.structural("payload.topic must have 1 to 256 characters")


def _subscribing_address(session: Session, sender: str) -> str:
    """`from` when this session registered it, else the session's identity."""
    return sender if sender in session.registrations else session.address


def subscribe(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Hear a topic, or all topics a wildcard covers, from now on."""
    topic = requests.parse(requests.Subscribe, message.payload).topic
    _check_topic(topic)
    if not is_subscribable(topic):
        raise refusals.structural("the wildcard `#` must be the last level of payload.topic")
    if session.allowance is not EVERYTHING:
        _check_sender(session, message.sender)
        if not session.allowance.may_subscribe(topic):
            raise refusals.unauthorized("subscribe", topic)
    address = _subscribing_address(session, message.sender)
    if not hub.topics.hears(session, address, topic):
        count = sum(len(one.topics) for one in (session.subscriptions or {}).values())
        if count >= hub.settings.subscriptions_max:
            raise refusals.too_many("subscriptions", hub.settings.subscriptions_max)
    subscription_id = "sub-" + hub.ids.next().decode()
    hub.topics.subscribe(session, address, topic, subscription_id)
    payload = wire.encode({"topic": topic, "subscriptionId": subscription_id})
    return [hub.reply(session, message, "hub:subscribed", payload, now)]


def unsubscribe(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Stop hearing a topic, named by itself or by a subscription id; unknown ones are a no-op."""
    request = requests.parse(requests.Unsubscribe, message.payload)
    if not request.topic and not request.subscription_id:
        raise refusals.structural("the payload needs topic or subscriptionId")
    topic = _drop(hub, session, message.sender, request)
    if message.pattern != ASK:
        return []
    payload = wire.encode({"topic": topic, "unsubscribedAt": now})
    return [hub.reply(session, message, "hub:unsubscribed", payload, now)]


def _drop(hub: Hub, session: Session, sender: str, request: requests.Unsubscribe) -> str:
    subscribers = list((session.subscriptions or {}).values())
    if not request.topic:
        for one in subscribers:
            for topic, issued in one.topics.items():
                if request.subscription_id in issued:
                    hub.topics.unsubscribe(session, one.address, topic)
                    return topic
    topic = request.topic or request.subscription_id or ""
    if not hub.topics.unsubscribe(session, _subscribing_address(session, sender), topic):
        for one in subscribers:
            hub.topics.unsubscribe(session, one.address, topic)
    return topic
