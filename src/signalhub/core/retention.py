"""How long topics keep their messages, and what keeps the log from being cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.core import letters
from signalhub.core.effects import Effect, FindTime
from signalhub.core.streams import Topic
from signalhub.core.subscribing import first_unsettled

if TYPE_CHECKING:
    from signalhub.core.hub import Hub


def expire_topics(hub: Hub, now: int) -> list[Effect]:
    """Give up what is older, or more, than a topic keeps."""
    effects: list[Effect] = []
    for topic in list(hub.streams.topics.values()):
        definition = topic.definition
        if definition.retention_bytes is not None:
            first = topic.first_within(definition.retention_bytes)
            if first > topic.first:
                effects += letters.lose_before(hub, topic, first, now)
        if definition.retention_s is not None and topic.head >= topic.first:
            effects.append(_find_expired(hub, topic, now - definition.retention_s * 1000))
    return effects


def _find_expired(hub: Hub, topic: Topic, oldest_ms: float) -> FindTime:
    def then(seq: int, now: int) -> list[Effect]:
        first = seq or topic.head + 1
        return letters.lose_before(hub, topic, first, now) if first > topic.first else []

    return FindTime(topic.name, topic.id, oldest_ms, then)


def cut(hub: Hub, firsts: dict[str, int], now: int) -> list[Effect]:
    """Old segments are gone: these are the oldest positions left, 0 where none is."""
    effects: list[Effect] = []
    for name, first in firsts.items():
        topic = hub.streams.topics.get(name)
        if topic is not None:
            first = first or topic.head + 1
            if first > topic.first:
                effects += letters.lose_before(hub, topic, first, now)
    return effects


def unsettled(hub: Hub) -> list[tuple[str, int, int]]:
    """The oldest position each subscription and mailbox still needs: stream, its epoch, seq."""
    needed: list[tuple[str, int, int]] = []
    for topic in hub.streams.topics.values():
        oldest = [
            min([first_unsettled(one), *one.position.parked])
            for one in topic.subscriptions.values()
            if one.lag or one.position.parked
        ]
        if oldest:
            needed.append((topic.name, topic.id, min(oldest)))
    needed.extend(
        (box.name, box.id, first_unsettled(box.subscription))
        for box in hub.streams.mailboxes.values()
        if box.subscription.lag
    )
    return needed
