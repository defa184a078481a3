"""Subscriptions to plain topics, exact and with wildcards.

A subscription belongs to an address of a session. Overlapping subscriptions of one address give one
copy. The audience of a topic is computed once and cached until a subscription changes, so a busy
topic costs one lookup per publish.
"""

from __future__ import annotations

from signalhub.core.sessions.registry import Recipient
from signalhub.core.sessions.session import Session
from signalhub.wire.names import ONE_LEVEL, SUBTREE, has_wildcard

_AUDIENCES_KEPT_MAX = 4096
_IDS_KEPT_MAX = 16


class Subscriber(Recipient):
    """One address of one session, and the topics it subscribed to."""

    __slots__ = ("topics",)

    def __init__(self, session: Session, address: str) -> None:
        super().__init__(session, address)
        # Topic or wildcard → the ids issued for it.
        self.topics: dict[str, tuple[str, ...]] = {}


class Audience:
    """The recipients of one publish; the same object until a subscription changes."""

    __slots__ = ("recipients",)

    def __init__(self, recipients: list[Recipient]) -> None:
        self.recipients = recipients


class _Level:
    """One level of the wildcard tree; a topic walks it once, however many wildcards there are."""

    __slots__ = ("below", "subscribers")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.subscribers: dict[Recipient, None] = {}

    def collect(self, levels: list[str], at: int, into: dict[Recipient, None]) -> None:
        """Add the subscribers of every wildcard that matches `levels[at:]`."""
        subtree = self.below.get(SUBTREE)
        if subtree is not None:
            into.update(subtree.subscribers)
        if at == len(levels):
            into.update(self.subscribers)
            return
        for name in (levels[at], ONE_LEVEL):
            below = self.below.get(name)
            if below is not None:
                below.collect(levels, at + 1, into)


class Topics:
    """The subscription index."""

    def __init__(self) -> None:
        # Dicts serve as ordered sets: copies go out in the order of subscription.
        self._exact: dict[str, dict[Recipient, None]] = {}
        self._wildcards = _Level()
        self._audiences: dict[str, Audience] = {}

    def is_subscribed(self, session: Session, address: str, topic: str) -> bool:
        """Is the topic subscribed already?"""
        subscriber = (session.subscriptions or {}).get(address)
        return subscriber is not None and topic in subscriber.topics

    def subscribe(self, session: Session, address: str, topic: str, subscription_id: str) -> None:
        """Subscribe; idempotent. The last few ids issued for a topic all identify it."""
        subscriber = (session.subscriptions or {}).get(address)
        if subscriber is None:
            subscriber = Subscriber(session, address)
            session.subscribed(subscriber)
        issued = subscriber.topics.get(topic, ())
        subscriber.topics[topic] = (*issued[1 - _IDS_KEPT_MAX :], subscription_id)
        if not issued:
            self._link(topic, subscriber)

    def unsubscribe(self, session: Session, address: str, topic: str) -> bool:
        """Remove one topic of one address; `False` if it was not subscribed."""
        subscriber = (session.subscriptions or {}).get(address)
        if subscriber is None or topic not in subscriber.topics:
            return False
        del subscriber.topics[topic]
        self._unlink(topic, subscriber)
        self._drop_if_idle(subscriber)
        return True

    def leave(self, session: Session, address: str | None = None) -> None:
        """Remove all topics of one address of a session, or of all its addresses."""
        for subscriber in list((session.subscriptions or {}).values()):
            if address is None or subscriber.address == address:
                for topic in subscriber.topics:
                    self._unlink(topic, subscriber)
                subscriber.topics.clear()
                self._drop_if_idle(subscriber)

    def audience(self, topic: str) -> Audience:
        """The current subscribers of `topic`, each address once."""
        kept = self._audiences.get(topic)
        if kept is not None:
            return kept
        recipients: dict[Recipient, None] = dict(self._exact.get(topic, {}))
        if self._wildcards.below:
            self._wildcards.collect(topic.split("/"), 0, recipients)
        if len(self._audiences) >= _AUDIENCES_KEPT_MAX:
            self._audiences.clear()
        audience = self._audiences[topic] = Audience(list(recipients))
        return audience

    def _link(self, topic: str, subscriber: Subscriber) -> None:
        if not has_wildcard(topic):
            self._exact.setdefault(topic, {})[subscriber] = None
            self._audiences.pop(topic, None)
            return
        level = self._wildcards
        for name in topic.split("/"):
            level = level.below.setdefault(name, _Level())
        level.subscribers[subscriber] = None
        self._audiences.clear()

    def _unlink(self, topic: str, subscriber: Subscriber) -> None:
        if not has_wildcard(topic):
            subscribers = self._exact[topic]
            del subscribers[subscriber]
            if not subscribers:
                del self._exact[topic]
            self._audiences.pop(topic, None)
            return
        path = [("", self._wildcards)]
        for name in topic.split("/"):
            path.append((name, path[-1][1].below[name]))
        del path[-1][1].subscribers[subscriber]
        while len(path) > 1 and not path[-1][1].subscribers and not path[-1][1].below:
            name, _ = path.pop()
            del path[-1][1].below[name]
        self._audiences.clear()

    @staticmethod
    def _drop_if_idle(subscriber: Subscriber) -> None:
        subscriptions = subscriber.session.subscriptions
        if not subscriber.topics and subscriptions is not None:
            subscriptions.pop(subscriber.address, None)
