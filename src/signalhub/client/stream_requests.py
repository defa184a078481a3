"""What a client can say to a hub about durable topics, subscriptions and their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

from signalhub.client.answers import Original
from signalhub.client.arguments import (
    Mode,
    Poison,
    Position,
    checked_address,
    checked_name,
    checked_topic,
    wire_position,
)
from signalhub.client.delivery import Delivery, Verb
from signalhub.client.protocol.frame import FrameWriter, Kind, Request
from signalhub.wire.envelope import ASK, TELL

DeadLetterVerb = Literal["hub:redrive", "hub:purge"]


class StreamComposer:
    """Writes the requests of one client."""

    def __init__(self, frames: FrameWriter) -> None:
        self._frames = frames

    def create_topic(self, topic: str, definition: Mapping[str, Any], now_ms: int) -> Request:
        payload = {"topic": checked_topic(topic), "durable": True, **definition}
        return self._frames.request("hub:topic_create", payload, now_ms, answer="hub:topic_created")

    def update_topic(self, topic: str, definition: Mapping[str, Any], now_ms: int) -> Request:
        payload = {"topic": checked_topic(topic), **definition}
        return self._frames.request(
            "hub:topic_update", payload, now_ms, answer="hub:topic_info_response"
        )

    def topic_info(self, topic: str, now_ms: int) -> Request:
        payload = {"topic": checked_topic(topic)}
        return self._frames.request(
            "hub:topic_info", payload, now_ms, answer="hub:topic_info_response"
        )

    def list_topics(self, pattern: str | None, offset: int, limit: int, now_ms: int) -> Request:
        payload = _given(pattern=pattern, offset=offset, limit=limit)
        return self._frames.request("hub:list_topics", payload, now_ms, answer="hub:topic_list")

    def delete_topic(self, topic: str, now_ms: int) -> Request:
        return self._frames.request(
            "hub:topic_delete",
            {"topic": checked_topic(topic)},
            now_ms,
            answer="hub:topic_deleted",
            # The second time would be refused, as if the first had failed.
            is_repeatable=False,
        )

    def subscribe(
        self, seat: tuple[str, str], terms: Mapping[str, Any], now_ms: int, *, sender: str
    ) -> Request:
        return self._frames.request(
            "hub:subscribe",
            _place(*seat) | dict(terms),
            now_ms,
            sender=sender,
            subject=_subject("hub:subscribe", _place(*seat)),
            answer="hub:subscribed",
        )

    def unsubscribe(self, seat: tuple[str, str], now_ms: int, *, sender: str) -> Request:
        return self._frames.request(
            "hub:unsubscribe",
            _place(*seat),
            now_ms,
            sender=sender,
            subject=_subject("hub:unsubscribe", _place(*seat)),
            answer="hub:unsubscribed",
            # The end of the connection ends it, too.
            is_repeatable=False,
        )

    def settle(
        self,
        verb: Verb,
        place: Mapping[str, str],
        deliveries: Sequence[Delivery],
        facts: Mapping[str, Any],
        now_ms: int,
        *,
        wait: bool,
    ) -> Request:
        """Settle messages of one epoch; `place` names the subscription or the mailbox."""
        first = deliveries[0]
        if len(deliveries) == 1:
            named = _given(epoch=first.epoch, seq=first.seq, id=first.id)
        else:
            named = {"epoch": first.epoch, "seqs": [one.seq for one in deliveries]}
            if all(one.id is not None for one in deliveries):
                named["ids"] = [one.id for one in deliveries]
        return self._settlement(verb, {**place, **named, **facts}, place, now_ms, wait=wait)

    def ack_up_to(
        self, place: Mapping[str, str], epoch: str, seq: int, now_ms: int, *, wait: bool
    ) -> Request:
        payload = {**place, **_given(epoch=epoch or None), "upTo": seq}
        return self._settlement(Verb.ACK, payload, place, now_ms, wait=wait)

    def credit(
        self, subscription_id: str, messages: int | None, bytes: int | None, now_ms: int
    ) -> Request:
        if messages is None and bytes is None:
            raise ValueError("a credit is so many messages, or bytes, or both")
        if min(each for each in (messages, bytes) if each is not None) < 0:
            raise ValueError("a credit is at least 0")
        payload = _given(subscriptionId=subscription_id, messages=messages, bytes=bytes)
        return self._frames.request("hub:credit", payload, now_ms, kind=Kind.EXEMPT, pattern=TELL)

    def replay(
        self, topic: str, from_seq: int, to_seq: int | None, limit: int, now_ms: int
    ) -> Request:
        payload = _given(topic=checked_topic(topic), fromSeq=from_seq, toSeq=to_seq, limit=limit)
        return self._frames.request(
            "hub:replay", payload, now_ms, answer="hub:replayed", collects=topic
        )

    def seek(
        self, topic: str, name: str, to: Position, now_ms: int, *, dry_run: bool = False
    ) -> Request:
        payload = _place(topic, name) | {"to": wire_position(to)}
        if dry_run:
            payload["dryRun"] = True
        return self._frames.request(
            "hub:seek", payload, now_ms, answer="hub:sought", is_repeatable=dry_run
        )

    def subscription(
        self,
        type: str,
        topic: str,
        name: str,
        now_ms: int,
        *,
        members: Mapping[str, Any] | None = None,
        is_repeatable: bool = True,
    ) -> Request:
        """Look at a subscription, or change its state."""
        return self._frames.request(
            type,
            _place(topic, name) | dict(members or {}),
            now_ms,
            subject=_subject(type, _place(topic, name)),
            answer="hub:sub_info_response",
            answer_alias="hub:sub_deleted" if type == "hub:sub_delete" else None,
            is_repeatable=is_repeatable,
        )

    def list_subscriptions(
        self, topic: str | None, offset: int, limit: int, now_ms: int
    ) -> Request:
        name = None if topic is None else checked_topic(topic)
        payload = _given(topic=name, offset=offset, limit=limit)
        return self._frames.request(
            "hub:list_subs",
            payload,
            now_ms,
            answer="hub:sub_list",
            answer_alias="hub:sub_info_response",
        )

    def dead_letters(
        self, verb: DeadLetterVerb, topic: str, seqs: Sequence[int] | None, now_ms: int
    ) -> Request:
        """Put dead letters back, or throw them away."""
        payload: dict[str, Any] = {"topic": checked_topic(topic)}
        payload |= {"all": True} if seqs is None else {"seqs": list(seqs)}
        answer = {"hub:redrive": "hub:redriven", "hub:purge": "hub:purged"}[verb]
        return self._frames.request(verb, payload, now_ms, answer=answer, is_repeatable=False)

    def republish(
        self,
        job: str,
        originals: Sequence[Original],
        until: tuple[int, int],
        to: Mapping[str, str],
        now_ms: int,
    ) -> Request:
        """Send messages of a replay; the hub takes each once, so it may be repeated."""
        epoch, offset = until
        payload = {
            "job": job,
            "until": {"epoch": epoch, "offset": offset},
            "to": to,
            "messages": originals,
        }
        return self._frames.request("hub:republish", payload, now_ms, answer="hub:republished")

    def erase(
        self, actor: str | None, inbox: str | None, pseudonym: str | None, now_ms: int
    ) -> Request:
        """Take somebody's content out of the log; done twice it finds nothing the second time."""
        given = {} if actor is None else {"actor": checked_address(actor)}
        payload = given | ({} if inbox is None else {"inbox": inbox})
        payload |= {} if pseudonym is None else {"pseudonym": pseudonym}
        return self._frames.request("hub:erase", payload, now_ms, answer="hub:erased")

    def place(
        self,
        actors: Sequence[str],
        host: str | None,
        tokens: Mapping[str, int] | None,
        now_ms: int,
    ) -> Request:
        """Where durable actors live; asked twice the answer is the same."""
        payload = _given(actors=actors, host=host, tokens=tokens)
        return self._frames.request("hub:place", payload, now_ms, answer="hub:placed")

    def move(self, actor: str, token: int, to: str, now_ms: int) -> Request:
        """Give an actor to another host; the hub knows a repeat by the token."""
        payload = {"actor": actor, "token": token, "to": checked_address(to)}
        return self._frames.request("hub:move", payload, now_ms, answer="hub:moved")

    def _settlement(
        self,
        verb: Verb,
        payload: Mapping[str, Any],
        place: Mapping[str, str],
        now_ms: int,
        *,
        wait: bool,
    ) -> Request:
        return self._frames.request(
            verb.type,
            payload,
            now_ms,
            kind=Kind.EXEMPT,
            pattern=ASK if wait else TELL,
            subject=_subject(verb.type, place),
            answer=verb.answer if wait else None,
        )


def _place(topic: str, subscription: str) -> dict[str, Any]:
    return {
        "topic": checked_topic(topic),
        "subscription": checked_name(subscription, "a subscription"),
    }


def destination(
    topic: str | None = None, subscription: str | None = None, actor: str | None = None
) -> dict[str, str]:
    """Where a replay goes: a topic, one subscription of it, or the mailbox of an actor."""
    if (topic is None) is (actor is None) or (actor is not None and subscription is not None):
        raise ValueError("a replay goes to a topic, a topic and subscription, or an actor")
    if actor is not None:
        return {"actor": checked_address(actor)}
    assert topic is not None
    return {"topic": checked_topic(topic)} if subscription is None else _place(topic, subscription)


def _subject(type: str, place: Mapping[str, str]) -> str:
    """For error texts: `hub:ack for billing of topic orders`."""
    if "stream" in place:
        return f"{type} for the mailbox of {place['stream']}"
    return f"{type} for {place['subscription']} of topic {place['topic']}"


def _given(**members: Any) -> dict[str, Any]:
    """Members that were left out stay out."""
    return {name: value for name, value in members.items() if value is not None}


_MODES = get_args(Mode)
_POISONS = get_args(Poison)

_WIRE_NAMES = {
    "window": "window",
    "strict": "strict",
    "auto_ack": "autoAck",
    "ack_timeout_s": "ackTimeoutMs",
    "max_deliveries": "maxDeliveries",
    "backoff_s": "backoffMs",
    "backoff_cap_s": "backoffCapMs",
    "heartbeat_s": "heartbeatMs",
    "rate_per_s": "ratePerSecond",
    "poison": "poison",
    "dead_letter": "deadLetter",
}
_SPANS = frozenset({"ack_timeout_s", "backoff_s", "backoff_cap_s", "heartbeat_s"})
_LEAST = {
    "window": 1,
    "ack_timeout_s": 0.001,
    "max_deliveries": 1,
    "backoff_s": 0,
    "backoff_cap_s": 0,
    "heartbeat_s": 0,
    "rate_per_s": 0,
}


class Serving(TypedDict, total=False):
    """How a durable subscription is served; what is left out stays as it is, or is the hub's
    default."""

    window: int | None
    """How many messages may be with a consumer and not settled."""
    strict: bool | None
    """Send nothing new while an earlier message is not settled."""
    auto_ack: bool | None
    """Let the hub settle what it has written; then a crash of the consumer loses messages."""
    ack_timeout_s: float | None
    """A message not settled for so long comes again."""
    max_deliveries: int | None
    """After so many failures the poison policy decides."""
    backoff_s: float | None
    """The pause before the second attempt; it doubles with each."""
    backoff_cap_s: float | None
    """The longest pause between attempts."""
    heartbeat_s: float | None
    """How often the hub's watchdog looks after the subscription; 0 is never."""
    rate_per_s: float | None
    """At most so many messages per second; 0 is without limit."""
    poison: Poison | None
    """What becomes of a message that failed too often; the topic's policy otherwise."""
    dead_letter: str | None
    """The topic for dead letters; the topic's own otherwise."""


class Definition(TypedDict, total=False):
    """How a durable topic is; what is left out stays as it is, or is the hub's default."""

    retention_s: float | None
    """How long messages are kept."""
    retention_bytes: int | None
    """How much is kept."""
    poison: Poison | None
    """What becomes of a message that failed too often: `block` stops the subscription, `drop`
    forgets it, `dead_letter` puts it aside."""
    dead_letter: str | None
    """The topic for dead letters; `<name>.dlq` otherwise."""
    heartbeat_s: float | None
    """How often the hub's watchdog looks after the subscriptions; 0 is never."""


def defined(definition: Definition) -> dict[str, Any]:
    """The definition of a topic in the words of the wire."""
    others = dict(definition)
    retention = {
        "ageSeconds": others.pop("retention_s", None),
        "bytes": others.pop("retention_bytes", None),
    }
    given = {name: kept for name, kept in retention.items() if kept is not None}
    for kept in given.values():
        if not isinstance(kept, int | float) or kept <= 0:
            raise ValueError(f"a retention of {kept} would keep nothing")
    if unknown := others.keys() - Definition.__annotations__.keys():
        raise TypeError(f"there is no option {unknown.pop()!r} of a durable topic")
    return ({"retention": given} if given else {}) | served(others)


def terms(
    *, mode: Mode, start: Position, consumer: str, serving: Mapping[str, Any]
) -> dict[str, Any]:
    """How a consumer wants to be served, in the words of `hub:subscribe`."""
    if mode not in _MODES:
        raise ValueError(f"{mode!r} is no mode; there are {', '.join(_MODES)}")
    place = {"mode": mode, "from": wire_position(start)}
    return place | {"consumer": checked_name(consumer, "a consumer")} | served(serving)


def served(serving: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a subscription in the words of the wire."""
    members: dict[str, Any] = {}
    for name, value in serving.items():
        if name not in _WIRE_NAMES:
            raise TypeError(f"there is no option {name!r} of a durable subscription")
        if value is None:
            continue
        least = _LEAST.get(name)
        if least is not None and value < least:
            raise ValueError(f"{name} must be at least {least:g}")
        if name == "poison":
            value = _checked_poison(value)
        elif name == "dead_letter":
            value = checked_topic(value)
        elif name in _SPANS:
            value = round(value * 1000)
        members[_WIRE_NAMES[name]] = value
    return members


def _checked_poison(poison: str) -> str:
    if poison not in _POISONS:
        raise ValueError(f"{poison!r} is no poison policy; there are {', '.join(_POISONS)}")
    return poison
