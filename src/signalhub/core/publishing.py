"""Durable topics: making and removing them, publishing to them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from signalhub import envelope as wire
from signalhub.core import copies, journal, refusals, requests
from signalhub.core.dedup import Ack
from signalhub.core.effects import Append, Effect, FanOut, Reply
from signalhub.core.policy import EVERYTHING
from signalhub.core.receipts import FanReceipt, PublishReceipt
from signalhub.core.session import Session, State
from signalhub.core.streams import LETTERS_SUFFIX, Held, Topic
from signalhub.entry import Body, Entry, Kind, Message, StreamDefinition, encode_body
from signalhub.envelope import Envelope
from signalhub.errors import Refusal
from signalhub.names import TOPIC_CHARS_MAX, Pattern, has_wildcard, is_topic

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

PAGE_MAX = 100
KEY_CHARS_MAX = 256
HEADERS_MAX = 64
HEADER_CHARS_MAX = 1_024


# Publishing.


def publish(
    hub: Hub,
    session: Session,
    message: Envelope,
    request: requests.Publish,
    topic: Topic,
    expires_at: float | None,
    now: int,
) -> list[Effect]:
    """Append a message to a topic; its sender is told when it is on disk."""
    hub.check_storage()
    _check_headers(request)
    deliver_at = request.deliver_at
    stored = Message(
        message.id,
        hub.ids.next(),
        message.sender,
        request.type,
        bytes(request.data),
        b"",
        message.ttl or None,
        expires_at,
        request.key,
        request.headers,
        None if deliver_at is None else int(deliver_at),
    )
    hub.tally.published += 1
    return [append(hub, topic, stored, now, message, session)]


def append(
    hub: Hub,
    topic: Topic,
    stored: Message,
    now: int,
    message: Envelope | None = None,
    session: Session | None = None,
) -> Append:
    """The next message of a topic, on its way to the log; `message` is the request behind it."""
    seq = hub.streams.position(topic)
    body = encode_body(stored)
    receipt = PublishReceipt(
        message, [] if session is None else [session], topic, seq, stored, now, len(body)
    )
    if message is not None:
        hub.asks[message.sender, message.id] = receipt
    return Append(Entry(Kind.PUBLISHED, topic.name, topic.id, seq, now, body), receipt)


def _check_headers(request: requests.Publish) -> None:
    if request.key is not None and len(request.key) > KEY_CHARS_MAX:
        raise refusals.structural(f"payload.key is longer than {KEY_CHARS_MAX} characters")
    headers = request.headers
    if headers is None:
        return
    if len(headers) > HEADERS_MAX:
        raise refusals.structural(f"payload.headers has more than {HEADERS_MAX} members")
    if any(len(name) + len(value) > HEADER_CHARS_MAX for name, value in headers.items()):
        raise refusals.structural(f"a header is longer than {HEADER_CHARS_MAX} characters")


def committed(hub: Hub, receipt: PublishReceipt, offset: int, now: int) -> list[Effect]:
    """It is on disk: wake the subscriptions, send it to those who only listen, tell the sender."""
    topic, stored = receipt.topic, receipt.stored
    held = Held(receipt.seq, offset, receipt.at_ms, stored, receipt.size)
    topic.committed(receipt.seq)
    topic.grew(receipt.seq, receipt.size)
    hub.streams.keep(topic, held)
    for subscription in topic.subscriptions.values():
        hub.dispatcher.published(subscription)
    message = receipt.message
    answer: dict[str, object] | None = None
    if message is not None:
        hub.asks.pop((message.sender, message.id), None)
        ack = Ack(receipt.at_ms, "queued", seq=receipt.seq, stream=topic.id)
        hub.dedup.remember(message.sender, message.id, now, ack)
        answer = position(hub, topic, receipt.seq)
    audience = hub.topics.audience(topic.name)
    is_live = stored.deliver_at is None or stored.deliver_at <= now
    if audience.recipients and is_live:
        head, tail = copies.live(topic, held, now)
        fan = FanReceipt(None, message, topic.name, now, stored.expires_at, receipt.askers, answer)
        return [FanOut(audience, head, tail, hub.settings.fanout_batch, fan)]
    if message is None or answer is None:
        return []
    return answers(hub, receipt.askers, message, answer, 0, now)


def position(hub: Hub, topic: Topic, seq: int) -> dict[str, object]:
    """What a publisher is told about where its message went."""
    return {
        "topic": topic.name,
        "subscriberCount": len(topic.subscriptions),
        "epoch": topic.epoch,
        "seq": seq,
        "durability": hub.durability,
    }


def answers(
    hub: Hub,
    askers: list[Session],
    message: Envelope,
    answer: dict[str, object],
    listeners: int,
    now: int,
) -> list[Effect]:
    """Tell everybody who published this message; who did so again is told that, too."""
    count = answer["subscriberCount"]
    assert isinstance(count, int)
    first = answer | {"subscriberCount": count + listeners}
    return [
        hub.reply(
            asker,
            message,
            "hub:published",
            wire.encode(first if index == 0 else first | {"duplicate": True}),
            now,
        )
        for index, asker in enumerate(askers)
        if asker.state is State.CONNECTED
    ]


def published_before(hub: Hub, session: Session, message: Envelope, ack: Ack, now: int) -> Reply:
    """The original answer again."""
    name = requests.parse(requests.Publish, message.payload).topic
    topic = hub.streams.topics.get(name)
    answer = {
        "topic": name,
        "subscriberCount": 0 if topic is None else len(topic.subscriptions),
        "epoch": hub.streams.epoch_of(ack.stream),
        "seq": ack.seq,
        "durability": hub.durability,
        "duplicate": True,
    }
    return hub.reply(session, message, "hub:published", wire.encode(answer), now)


def refused(hub: Hub, receipt: PublishReceipt, refusal: Refusal, now: int) -> list[Effect]:
    """The log did not take it."""
    message = receipt.message
    if message is None:
        return []
    hub.asks.pop((message.sender, message.id), None)
    return [
        hub.refuse(asker, message, refusal, now)
        for asker in receipt.askers
        if asker.state is State.CONNECTED
    ]


# Topics.


def find(hub: Hub, name: str) -> Topic:
    """The durable topic, or a refusal."""
    topic = hub.streams.topics.get(name)
    if topic is None or topic.is_deleting:
        raise refusals.unknown_topic(name)
    return topic


def open_topic(hub: Hub, name: str, definition: StreamDefinition, now: int) -> Append:
    """Make a topic; it can be used at once, and exists for good once the entry is on disk."""
    if len(hub.streams.topics) >= hub.settings.topics.limit:
        raise refusals.too_many_topics(hub.settings.topics.limit)
    topic = Topic(name, hub.streams.take_id(), hub.streams.log_epoch, definition)
    hub.streams.topics[name] = topic
    return Append(journal.entry(Kind.STREAM_CREATED, topic, definition, now), Opened(topic))


class Opened:
    """A topic on its way to the log."""

    __slots__ = ("topic",)

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        if hub.streams.topics.get(self.topic.name) is self.topic:
            del hub.streams.topics[self.topic.name]
        return []


def auto_create(hub: Hub, session: Session, name: str, now: int) -> Append:
    """A durable publish to a topic that does not exist."""
    if not hub.settings.topics.auto_create:
        raise refusals.unknown_topic(name)
    _check_may_create(session, name)
    _check_name(name)
    return open_topic(hub, name, StreamDefinition(True), now)


def _check_may_create(session: Session, name: str) -> None:
    if session.allowance is not EVERYTHING and not session.allowance.may_create(name):
        raise refusals.unauthorized("create", name)


def _check_name(name: str) -> None:
    if not is_topic(name) or has_wildcard(name) or not name.isprintable():
        raise refusals.structural(
            f"payload.topic must have 1 to {TOPIC_CHARS_MAX} printable characters and no wildcard"
        )


class Then:
    """Answer a request once its entry is on disk, or say why it is not."""

    __slots__ = ("_message", "_payload", "_session", "_type")

    def __init__(self, session: Session, message: Envelope, type: str, payload: object) -> None:
        self._session = session
        self._message = message
        self._type = type
        self._payload = payload

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        if self._session.state is not State.CONNECTED:
            return []
        payload = self._payload() if callable(self._payload) else self._payload
        return [hub.reply(self._session, self._message, self._type, wire.encode(payload), now)]

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        if self._session.state is not State.CONNECTED:
            return []
        return [hub.refuse(self._session, self._message, refusal, now)]


def create(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:topic_create`: the same definition again is a no-op, another one is refused."""
    request = requests.parse(requests.TopicCreate, message.payload)
    name = request.topic
    _check_name(name)
    _check_may_create(session, name)
    if request.durable is False:
        raise refusals.structural("payload.durable must be true; plain topics are not created")
    definition = _definition(hub, name, request)
    topic = hub.streams.topics.get(name)
    if topic is not None:
        if topic.definition != definition:
            raise refusals.topic_conflict(name, describe_definition(topic.definition))
        payload = {"topic": name, "epoch": topic.epoch, "head": topic.head}
        return [hub.reply(session, message, "hub:topic_created", wire.encode(payload), now)]
    hub.check_storage()
    append = open_topic(hub, name, definition, now)
    topic = hub.streams.topics[name]
    payload = {"topic": name, "epoch": topic.epoch, "head": 0}
    answer = Then(session, message, "hub:topic_created", payload)
    append.receipt = journal.Waited(append.receipt, [answer])
    return [append]


def _definition(hub: Hub, name: str, request: requests.TopicOptions) -> StreamDefinition:
    retention = request.retention or requests.Retention()
    letters = request.dead_letter
    if letters is not None:
        _check_name(letters)
        if letters == name:
            raise refusals.structural("payload.deadLetter must be another topic")
        if name.endswith(LETTERS_SUFFIX):
            raise refusals.structural("dead letters have no dead letters of their own")
    return StreamDefinition(
        True,
        retention.age_seconds,
        None if retention.bytes is None else int(retention.bytes),
        request.poison,
        letters,
        None if request.heartbeat_ms is None else int(request.heartbeat_ms),
    )


def update(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:topic_update`: members that are given replace those of the definition, at once."""
    request = requests.parse(requests.TopicOptions, message.payload)
    _check_may_create(session, request.topic)
    topic = find(hub, request.topic)
    hub.check_storage()
    given, old = _definition(hub, topic.name, request), topic.definition
    topic.definition = StreamDefinition(
        True,
        *(
            new if new is not None else known
            for new, known in zip(_members(given), _members(old), strict=True)
        ),
    )
    _redefined(hub, topic, now)
    entry = journal.entry(Kind.STREAM_CREATED, topic, topic.definition, now)

    def undo(later: int) -> None:
        topic.definition = old
        _redefined(hub, topic, later)

    answer = Then(session, message, "hub:topic_info_response", describe(topic))
    return [Append(entry, journal.Waited(journal.Once(refused=undo), [answer]))]


def _redefined(hub: Hub, topic: Topic, now: int) -> None:
    topic.is_dirty = True
    for subscription in topic.subscriptions.values():
        subscription.policy_changed()
        hub.dispatcher.watch(subscription, now)


def _members(definition: StreamDefinition) -> tuple[Any, ...]:
    return (
        definition.retention_s,
        definition.retention_bytes,
        definition.poison,
        definition.dead_letter,
        definition.heartbeat_ms,
    )


def describe_definition(definition: StreamDefinition) -> dict[str, object]:
    """A definition as it was asked for."""
    return {
        "durable": True,
        "retention": {"ageSeconds": definition.retention_s, "bytes": definition.retention_bytes},
        "poison": definition.poison or "block",
        "deadLetter": definition.dead_letter,
        "heartbeatMs": definition.heartbeat_ms,
    }


def describe(topic: Topic) -> dict[str, object]:
    """What `hub:topic_info` shows."""
    return {
        "topic": topic.name,
        "epoch": topic.epoch,
        "head": topic.head,
        "first": topic.first,
        "bytes": topic.bytes,
        "removed": topic.removed.count,
        "subscriptions": sorted(topic.subscriptions),
    } | describe_definition(topic.definition)


def info(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:topic_info`."""
    request = requests.parse(requests.TopicName, message.payload)
    check_may_read(session, request.topic)
    payload = wire.encode(describe(find(hub, request.topic)))
    return [hub.reply(session, message, "hub:topic_info_response", payload, now)]


def check_may_read(session: Session, topic: str) -> None:
    """Is this session allowed to see what is published here?"""
    if session.allowance is not EVERYTHING and not session.allowance.may_subscribe(topic):
        raise refusals.unauthorized("subscribe", topic)


def list_topics(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:list_topics`: a page of the topics this session may see, by name."""
    request = requests.parse_or_empty(requests.ListTopics, message.payload)
    limit = requests.page(request.limit, PAGE_MAX)
    offset = max(0, int(request.offset or 0))
    pattern = Pattern(request.pattern or "*", is_plain=True)
    found = (
        topic
        for name, topic in sorted(hub.streams.topics.items())
        if pattern.matches(name)
        and (session.allowance is EVERYTHING or session.allowance.may_subscribe(name))
    )
    shown = list(islice(found, offset, offset + limit + 1))
    payload = {
        "topics": [describe(topic) for topic in shown[:limit]],
        "offset": offset,
        "limit": limit,
        "hasMore": len(shown) > limit,
    }
    return [hub.reply(session, message, "hub:topic_list", wire.encode(payload), now)]


def delete(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:topic_delete`: the topic, its subscriptions and what was published are gone."""
    request = requests.parse(requests.TopicName, message.payload)
    _check_may_create(session, request.topic)
    topic = find(hub, request.topic)
    hub.check_storage()
    payload = {"topic": topic.name, "epoch": topic.epoch, "head": topic.head}
    entry = journal.entry(Kind.STREAM_DELETED, topic, Body(), now)
    topic.is_deleting = True

    def kept(later: int) -> None:
        topic.is_deleting = False

    once = journal.Once(lambda later: remove(hub, topic, later), refused=kept)
    answer = Then(session, message, "hub:topic_deleted", payload)
    return [Append(entry, journal.Waited(once, [answer]))]


def remove(hub: Hub, topic: Topic, now: int) -> list[Effect]:
    """Forget a topic; its consumers are told."""
    from signalhub.core import subscribing

    hub.streams.topics.pop(topic.name, None)
    hub.streams.forgotten.add(topic.name)
    effects: list[Effect] = []
    for subscription in list(topic.subscriptions.values()):
        effects += subscribing.remove(hub, subscription, "topic_deleted", now)
    return effects
