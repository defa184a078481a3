"""Durable topics: create, update, list and delete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.core.limits.quotas import Holder, Quotas, Resource, holder_of
from signalhub.core.limits.scans import Scans, Steps, steps_of
from signalhub.core.operations import operated_unless_owned
from signalhub.core.sessions.session import Session
from signalhub.core.streams.streams import LETTERS_SUFFIX, Topic
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Body, Kind, StreamDefinitionBody
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import TOPIC_CHARS_MAX, Pattern, has_wildcard, is_topic

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.settings.model import TopicsSettings

PAGE_MAX = 100


class Catalog:
    """Manages durable topics."""

    def __init__(
        self,
        streams: Streams,
        subscriptions: Subscriptions,
        dispatcher: Dispatcher,
        storage: LogState,
        replies: Replies,
        quotas: Quotas,
        scans: Scans,
        settings: TopicsSettings,
    ) -> None:
        self._streams = streams
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._storage = storage
        self._replies = replies
        self._quotas = quotas
        self._scans = scans
        self._settings = settings

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:topic_create": self.create,
            "hub:topic_update": self.update,
            "hub:topic_info": self.info,
            "hub:topic_delete": self.delete,
            "hub:list_topics": self.list_topics,
        }

    def open(
        self,
        name: str,
        definition: StreamDefinitionBody,
        holder: Holder,
        now: int,
        *,
        is_letters: bool = False,
    ) -> tuple[Topic, Append]:
        """Create a topic; it can be used at once and is permanent once its entry is on disk.

        The limits do not apply to dead-letter topics, because dead letters must go somewhere.
        """
        if not is_letters:
            if len(self._streams.topics) >= self._settings.limit:
                raise refusals.too_many_topics(self._settings.limit)
            self._quotas.check(Resource.TOPICS, holder)
        topic = Topic(name, self._streams.take_id(), self._streams.log_epoch, definition)
        self._streams.add(topic, holder)
        entry = topic.entry(Kind.STREAM_CREATED, definition, now)
        append = Append(entry, partial(self._opened, topic), partial(self._not_opened, topic))
        topic.changing = append
        return topic, append

    def _opened(self, topic: Topic, offset: int, now: int) -> list[Effect]:
        topic.is_made = True
        topic.touch()
        if not topic.is_deleting:
            topic.changing = None
        return []

    def _not_opened(self, topic: Topic, refusal: Refusal, now: int) -> list[Effect]:
        topic.changing = None
        self._streams.drop(topic)
        return []

    def auto_create(self, session: Session, name: str, now: int) -> tuple[Topic, Append]:
        """Create a topic for a durable publish to it."""
        if not self._settings.auto_create:
            raise refusals.unknown_topic(name)
        check_may_create(session, name)
        check_name(name)
        definition = StreamDefinitionBody(True, owner=session.allowance.subject)
        return self.open(name, definition, holder_of(session), now)

    def create(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:topic_create`: repeating a definition is a no-op, a different one is refused."""
        request = requests.parse(requests.TopicCreateRequest, message.payload)
        name = request.topic
        check_name(name)
        check_may_create(session, name)
        if request.durable is False:
            raise refusals.structural("payload.durable must be true; plain topics are not created")
        definition = _definition(name, request)
        definition.owner = session.allowance.subject
        topic = self._streams.topics.get(name)
        _check_letters(session, name, topic, request.dead_letter)
        if topic is not None and topic.changing is not None:
            # Whether it exists is known once that entry is on disk.
            return self._replies.after(topic.changing, self.create, session, message)
        if topic is not None:
            if _members(topic.definition) != _members(definition):
                raise refusals.topic_conflict(name, describe_definition(topic.definition))
            payload: dict[str, object] = {"topic": name, "epoch": topic.epoch, "head": topic.head}
            encoded = wire.encode(payload)
            return [self._replies.reply(session, message, "hub:topic_created", encoded, now)]
        self._storage.check()
        topic, append = self.open(name, definition, holder_of(session), now)
        payload = {"topic": name, "epoch": topic.epoch, "head": 0}
        answer = self._replies.answer(session, message, "hub:topic_created", payload)
        append.follow(answer.committed, answer.refused)
        return [append]

    def update(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:topic_update`: replace the given members of the definition."""
        request = requests.parse(requests.TopicOptionsRequest, message.payload)
        check_may_create(session, request.topic)
        topic = self._streams.find(request.topic)
        _check_letters(session, topic.name, topic, request.dead_letter)
        self._storage.check()
        given, old = _definition(topic.name, request), topic.definition
        definition = StreamDefinitionBody(
            True,
            *(
                new if new is not None else known
                for new, known in zip(_members(given), _members(old), strict=True)
            ),
        )
        definition.owner = old.owner
        self._redefine(topic, definition, now)
        entry = topic.entry(Kind.STREAM_CREATED, definition, now)

        def done(offset: int, later: int) -> list[Effect]:
            topic.stored_definition = definition
            topic.touch()
            return []

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            self._redefine(topic, old, later)
            return []

        answer = self._replies.answer(session, message, "hub:topic_info_response", describe(topic))
        append = Append(entry, done, undo)
        append.follow(answer.committed, answer.refused)
        return [append]

    def _redefine(self, topic: Topic, definition: StreamDefinitionBody, now: int) -> None:
        topic.definition = definition
        topic.touch()
        for subscription in topic.subscriptions.values():
            subscription.policy_changed()
            self._dispatcher.watch(subscription, now)

    def info(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:topic_info`."""
        request = requests.parse(requests.TopicNameRequest, message.payload)
        check_may_read(session, request.topic)
        payload = wire.encode(describe(self._streams.find(request.topic)))
        return [self._replies.reply(session, message, "hub:topic_info_response", payload, now)]

    def list_topics(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:list_topics`: a page of the topics this session may see, by name."""
        request = requests.parse_or_empty(requests.ListTopicsRequest, message.payload)
        limit = requests.page(request.limit, PAGE_MAX)
        offset = max(0, int(request.offset or 0))
        pattern = Pattern(request.pattern or "*", is_plain=True)
        steps = self._list(session, pattern, offset, limit)
        size = len(self._streams.topics)
        return self._scans.run(session, message, steps, now, size=size)

    def _list(self, session: Session, pattern: Pattern, offset: int, limit: int) -> Steps:
        topics = self._streams.topics
        found: list[Topic] = []
        before = 0
        for part, examined in steps_of(self._streams.names(), session.allowance.subscribe_cost):
            seen = [
                topics[name]
                for name in part
                if name in topics
                and pattern.matches(name)
                and (session.allowance is EVERYTHING or session.allowance.may_subscribe(name))
            ]
            found += seen[max(0, offset - before) :]
            before += len(seen)
            yield examined
            if len(found) > limit:
                break
        return "hub:topic_list", {
            "topics": [describe(topic) for topic in found[:limit]],
            "offset": offset,
            "limit": limit,
            "hasMore": len(found) > limit,
        }

    def delete(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:topic_delete`: delete the topic, its subscriptions and its messages."""
        request = requests.parse(requests.TopicNameRequest, message.payload)
        known = self._streams.topics.get(request.topic)
        owner = "" if known is None else known.definition.owner
        check_may_delete(session, request.topic, owner)
        if known is not None and known.is_deleting and known.changing is not None:
            # Whether it is gone is known once that entry is on disk.
            return self._replies.after(known.changing, self.delete, session, message)
        topic = self._streams.find(request.topic)
        self._storage.check()
        payload: dict[str, object] = {"topic": topic.name, "epoch": topic.epoch, "head": topic.head}
        entry = topic.entry(Kind.STREAM_DELETED, Body(), now)
        topic.is_deleting = True

        def done(offset: int, later: int) -> list[Effect]:
            # The collector does not look into an append: a circle through it would stay for ever.
            topic.changing = None
            return self.remove(topic, later)

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            topic.is_deleting = False
            topic.changing = None
            return []

        answer = self._replies.answer(session, message, "hub:topic_deleted", payload)
        append = Append(entry, done, undo)
        append.follow(answer.committed, answer.refused)
        topic.changing = append
        return [
            *operated_unless_owned(session, message.type, "delete", topic.name, owner, now),
            append,
        ]

    def remove(self, topic: Topic, now: int) -> list[Effect]:
        """Remove a topic and tell its consumers."""
        self._streams.forget(topic)
        effects: list[Effect] = []
        for subscription in list(topic.subscriptions.values()):
            effects += self._subscriptions.remove(subscription, "topic_deleted", now)
        return effects


def check_may_create(session: Session, name: str) -> None:
    """Check the permission to create and update a topic."""
    if session.allowance is not EVERYTHING and not session.allowance.may_create(name):
        raise refusals.unauthorized("create", name)


def check_may_bury(session: Session, name: str) -> None:
    """Check the permission to choose where dead letters go: whoever settles decides what does."""
    allowance = session.allowance
    if not allowance.may_publish(name) or not allowance.may_create(name):
        raise refusals.unauthorized("create", name)


def _check_letters(session: Session, name: str, topic: Topic | None, letters: str | None) -> None:
    """The same, unless they go there anyway."""
    known = None if topic is None else topic.definition.dead_letter
    if letters not in (None, known, name + LETTERS_SUFFIX):
        check_may_bury(session, letters)


def check_may_delete(session: Session, topic: str, owner: str = "") -> None:
    """Check the permission to delete a topic, or something of it that others made."""
    if session.allowance is not EVERYTHING and not session.allowance.may_delete(topic, owner):
        raise refusals.unauthorized("delete", topic)


def check_may_read(session: Session, topic: str) -> None:
    """Check the permission to read a topic."""
    if session.allowance is not EVERYTHING and not session.allowance.may_subscribe(topic):
        raise refusals.unauthorized("subscribe", topic)


def check_name(name: str, member: str = "topic") -> None:
    """Refuse a name that a durable topic cannot have."""
    if not is_topic(name) or has_wildcard(name) or not name.isprintable():
        raise refusals.structural(
            f"payload.{member} must have 1 to {TOPIC_CHARS_MAX} printable characters and no"
            " wildcard"
        )


def _definition(name: str, request: requests.TopicOptionsRequest) -> StreamDefinitionBody:
    retention = request.retention or requests.RetentionLimits()
    letters = request.dead_letter
    if letters is not None:
        check_name(letters, "deadLetter")
        if letters == name:
            raise refusals.structural("payload.deadLetter must be another topic")
        if name.endswith(LETTERS_SUFFIX):
            raise refusals.structural("dead letters have no dead letters of their own")
    return StreamDefinitionBody(
        True,
        retention.age_seconds,
        None if retention.bytes is None else int(retention.bytes),
        request.poison,
        letters,
        None if request.heartbeat_ms is None else int(request.heartbeat_ms),
    )


def _members(definition: StreamDefinitionBody) -> tuple[Any, ...]:
    return (
        definition.retention_s,
        definition.retention_bytes,
        definition.poison,
        definition.dead_letter,
        definition.heartbeat_ms,
    )


def describe_definition(definition: StreamDefinitionBody) -> dict[str, object]:
    """The definition that a request describes."""
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
        "subscriptions": topic.names(),
    } | describe_definition(topic.definition)
