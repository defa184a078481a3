"""Subscriptions to plain topics, exact and with wildcards.

A subscription belongs to an address of a session. Overlapping subscriptions of one address give one
copy. The audience of a topic is computed once and cached until a subscription that matches it
changes, so a busy topic costs one lookup per publish, whatever others subscribe to.

Wildcards form a tree. At depth *d* at most 2**d of its nodes match a topic, because each level
matches by name or by `+`. The tree is searched level by level and `NODES_MAX` nodes at most, so
wildcards of up to eleven levels are always found; longer ones may be cut short, which is counted.
Visiting many nodes is charged like several messages: to whoever publishes to a topic that is not
cached, or to whoever changed the subscriptions so that it is searched again.
"""

from __future__ import annotations

from collections import deque

from signalhub.core import refusals
from signalhub.core.effects import Effect, GiveWay
from signalhub.core.limits.quotas import Quotas, Resource, holder_of
from signalhub.core.sessions.registry import Recipient
from signalhub.core.sessions.session import Session
from signalhub.counters import Tally
from signalhub.pacing import TokenBucket
from signalhub.wire.names import ONE_LEVEL, SUBTREE, has_wildcard, levels_match

# Sum of 2**d up to a depth of 11.
NODES_MAX = 4095
# Nodes visited for one token of a session's message rate; few cost nothing.
NODES_PER_TOKEN = 64
_AUDIENCES_KEPT_MAX = 4096
# Wildcards that were added or removed; an audience that missed more of them is computed again.
_CHANGES_KEPT_MAX = 64
_IDS_KEPT_MAX = 16


class Subscriber(Recipient):
    """One address of one session, and the topics it subscribed to."""

    __slots__ = ("holder", "topics")

    def __init__(self, session: Session, address: str) -> None:
        super().__init__(session, address)
        # Whose quota it counts for, also if another token comes.
        self.holder = holder_of(session)
        # Topic or wildcard → the ids issued for it.
        self.topics: dict[str, tuple[str, ...]] = {}


class Audience:
    """The recipients of one publish; the same object until a matching subscription changes."""

    __slots__ = ("changes", "payer", "recipients", "visited")

    def __init__(
        self,
        recipients: list[Recipient],
        changes: int = 0,
        visited: int = 0,
        payer: TokenBucket | None = None,
    ) -> None:
        self.recipients = recipients
        # Nodes that were searched for it and have not been charged to anybody.
        self.visited = visited
        # Whose change made the search necessary; if nobody's, the publisher's topic is new.
        self.payer = payer
        # The number of changed wildcards it takes into account.
        self.changes = changes


class _Outdated:
    """Stands for an audience that is not current any more, and knows by whose change."""

    __slots__ = ("payer",)

    def __init__(self, payer: TokenBucket) -> None:
        self.payer = payer


class _Node:
    """One level of the wildcard tree."""

    __slots__ = ("below", "subscribers")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.subscribers: dict[Recipient, None] = {}


class Topics:
    """The subscription index."""

    def __init__(self, quotas: Quotas, tally: Tally) -> None:
        self._quotas = quotas
        self._tally = tally
        # Dicts serve as ordered sets: copies go out in the order of subscription.
        self._exact: dict[str, dict[Recipient, None]] = {}
        self._wildcards = _Node()
        self._audiences: dict[str, Audience | _Outdated] = {}
        # What changed, and who is charged for searches that follow.
        self._changes: deque[tuple[list[str], TokenBucket]] = deque(maxlen=_CHANGES_KEPT_MAX)
        self._changed = 0

    def is_subscribed(self, session: Session, address: str, topic: str) -> bool:
        """Is the topic subscribed already?"""
        subscriber = (session.subscriptions or {}).get(address)
        return subscriber is not None and topic in subscriber.topics

    def check(self, session: Session) -> None:
        """Refuse a further subscription if there are too many."""
        limit = self._quotas.limits[Resource.PLAIN_SUBSCRIPTIONS].total
        if self._quotas.total(Resource.PLAIN_SUBSCRIPTIONS) >= limit:
            raise refusals.too_many_plain_subscriptions(limit)
        self._quotas.check(Resource.PLAIN_SUBSCRIPTIONS, holder_of(session))

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
        payer: TokenBucket | None = None
        if isinstance(kept, _Outdated):
            payer = kept.payer
        elif kept is not None:
            payer = self._outdated_by(kept, topic) if kept.changes != self._changed else None
            if payer is None:
                return kept
        recipients: dict[Recipient, None] = dict(self._exact.get(topic, {}))
        visited = 0
        if self._wildcards.below:
            visited = self._collect(topic.split("/"), recipients)
        if len(self._audiences) >= _AUDIENCES_KEPT_MAX:
            self._audiences.clear()
        audience = Audience(list(recipients), self._changed, visited, payer)
        self._audiences[topic] = audience
        return audience

    def charged(self, session: Session, topic: str, now: int) -> tuple[Audience, list[Effect]]:
        """The audience of a topic that this session publishes to; a long search is charged."""
        audience = self.audience(topic)
        if not audience.visited:
            return audience, []
        visited, audience.visited = audience.visited, 0
        payer, audience.payer = audience.payer, None
        if visited < NODES_PER_TOKEN:
            return audience, []
        (payer or session.bucket).owe(visited // NODES_PER_TOKEN, now)
        return audience, [GiveWay(session)]

    def _outdated_by(self, kept: Audience, topic: str) -> TokenBucket | None:
        """Whose wildcard has changed since then and matches the topic? `None` if nobody's."""
        missed = self._changed - kept.changes
        if missed > len(self._changes):
            return self._changes[-1][1]
        levels = topic.split("/")
        for back in range(1, missed + 1):
            changed, payer = self._changes[-back]
            if levels_match(changed, levels):
                return payer
        kept.changes = self._changed
        return None

    def _collect(self, levels: list[str], into: dict[Recipient, None]) -> int:
        """Add the subscribers of every wildcard that matches; return how many nodes it visited."""
        nodes, visited = [self._wildcards], 0
        for level in (*levels, None):
            visited += len(nodes)
            if visited > NODES_MAX:
                self._tally.audiences_cut += 1
                return visited
            following: list[_Node] = []
            for node in nodes:
                below = node.below
                subtree = below.get(SUBTREE)
                if subtree is not None:
                    into.update(subtree.subscribers)
                if level is None:
                    into.update(node.subscribers)
                    continue
                for name in (level, ONE_LEVEL):
                    found = below.get(name)
                    if found is not None:
                        following.append(found)
            nodes = following
            if not nodes:
                break
        return visited

    def _link(self, topic: str, subscriber: Subscriber) -> None:
        self._quotas.take(Resource.PLAIN_SUBSCRIPTIONS, subscriber.holder)
        if not has_wildcard(topic):
            self._exact.setdefault(topic, {})[subscriber] = None
            self._outdate(topic, subscriber)
            return
        levels = topic.split("/")
        node = self._wildcards
        for name in levels:
            node = node.below.setdefault(name, _Node())
        node.subscribers[subscriber] = None
        self._note_change(levels, subscriber)

    def _unlink(self, topic: str, subscriber: Subscriber) -> None:
        self._quotas.release(Resource.PLAIN_SUBSCRIPTIONS, subscriber.holder)
        if not has_wildcard(topic):
            subscribers = self._exact[topic]
            del subscribers[subscriber]
            if not subscribers:
                del self._exact[topic]
            self._outdate(topic, subscriber)
            return
        levels = topic.split("/")
        path = [("", self._wildcards)]
        for name in levels:
            path.append((name, path[-1][1].below[name]))
        del path[-1][1].subscribers[subscriber]
        while len(path) > 1 and not path[-1][1].subscribers and not path[-1][1].below:
            name, _ = path.pop()
            del path[-1][1].below[name]
        self._note_change(levels, subscriber)

    def _outdate(self, topic: str, subscriber: Subscriber) -> None:
        if topic in self._audiences:
            self._audiences[topic] = _Outdated(subscriber.session.bucket)

    def _note_change(self, levels: list[str], subscriber: Subscriber) -> None:
        self._changes.append((levels, subscriber.session.bucket))
        self._changed += 1
        # Audiences that would be computed again anyway must not keep sessions in memory.
        if not self._wildcards.below:
            self._audiences.clear()
        elif self._changed % _CHANGES_KEPT_MAX == 0:
            oldest = self._changed - _CHANGES_KEPT_MAX
            for topic, kept in self._audiences.items():
                if isinstance(kept, Audience) and kept.changes < oldest:
                    self._audiences[topic] = _Outdated(subscriber.session.bucket)

    @staticmethod
    def _drop_if_idle(subscriber: Subscriber) -> None:
        subscriptions = subscriber.session.subscriptions
        if not subscriber.topics and subscriptions is not None:
            subscriptions.pop(subscriber.address, None)
