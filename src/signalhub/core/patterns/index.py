"""Which pattern subscriptions there are, and which of them match a topic.

Patterns form a tree by their levels. A topic is compared with it once for each change of the
patterns, when somebody publishes to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from signalhub.core.patterns.crowd import Crowd
from signalhub.wire.names import ONE_LEVEL, SUBTREE, levels_match

if TYPE_CHECKING:
    from signalhub.core.patterns.pattern import Pattern
    from signalhub.core.streams.streams import Topic


class _Node:
    """One level of the tree."""

    __slots__ = ("below", "patterns")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        # By the names of the subscriptions.
        self.patterns: dict[str, Pattern] = {}


class PatternIndex:
    """All pattern subscriptions."""

    def __init__(self) -> None:
        # Grows with every pattern, so that topics know whether they were compared with all.
        self.version = 0
        self._root = _Node()
        self._by_name: dict[str, list[Pattern]] = {}
        # Those of each owner, and under the empty name all.
        self._crowds: dict[str, Crowd] = {"": Crowd()}

    def __iter__(self) -> Iterator[Pattern]:
        return (one for some in list(self._by_name.values()) for one in list(some))

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def add(self, pattern: Pattern) -> None:
        node = self._root
        for level in pattern.levels:
            node = node.below.setdefault(level, _Node())
        node.patterns[pattern.name] = pattern
        self._by_name.setdefault(pattern.name, []).append(pattern)
        for whose in {"", pattern.owner}:
            self._crowds.setdefault(whose, Crowd()).add(pattern.levels)
        self.version += 1

    def remove(self, pattern: Pattern) -> None:
        path = [("", self._root)]
        for level in pattern.levels:
            path.append((level, path[-1][1].below[level]))
        del path[-1][1].patterns[pattern.name]
        while len(path) > 1 and not path[-1][1].patterns and not path[-1][1].below:
            level, _ = path.pop()
            del path[-1][1].below[level]
        some = self._by_name[pattern.name]
        some.remove(pattern)
        if not some:
            del self._by_name[pattern.name]
        for whose in {"", pattern.owner}:
            crowd = self._crowds[whose]
            crowd.add(pattern.levels, -1)
            if whose and crowd.is_empty:
                del self._crowds[whose]

    def has_room(self, text: str, limit: int, owner: str = "") -> bool:
        """May this pattern be added to those of an owner, or to all, for what topics then match?"""
        crowd = self._crowds.get(owner) or Crowd()
        return crowd.has_room(text.split("/"), limit)

    def find(self, text: str, name: str) -> Pattern | None:
        """The pattern subscription with this pattern and name."""
        return next((one for one in self._by_name.get(name, ()) if one.text == text), None)

    def owner_of(self, topic: str, name: str) -> Pattern | None:
        """The pattern that a name belongs to on a topic."""
        levels = topic.split("/")
        for one in self._by_name.get(name, ()):
            if levels_match(one.levels, levels):
                return one
        return None

    def overlapping(self, text: str, name: str) -> Pattern | None:
        """Another pattern of this name that may match the same topics."""
        levels = text.split("/")
        return next(
            (one for one in self._by_name.get(name, ()) if overlap(one.levels, levels)), None
        )

    def matching(self, topic: Topic) -> list[Pattern]:
        """The patterns that match a topic; topics of dead letters match none."""
        if topic.is_letters or not self._by_name:
            return []
        found: list[Pattern] = []
        nodes = [self._root]
        for level in (*topic.name.split("/"), None):
            following: list[_Node] = []
            for node in nodes:
                subtree = node.below.get(SUBTREE)
                if subtree is not None:
                    found += subtree.patterns.values()
                if level is None:
                    found += node.patterns.values()
                    continue
                for name in (level, ONE_LEVEL) if level != ONE_LEVEL else (level,):
                    below = node.below.get(name)
                    if below is not None:
                        following.append(below)
            nodes = following
        return found


def overlap(one: list[str], other: list[str]) -> bool:
    """May two patterns, split into levels, match the same topic?"""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if SUBTREE in (left, right):
            return True
        if ONE_LEVEL not in (left, right) and left != right:
            return False
        if at + 1 == len(one) or at + 1 == len(other):
            break
    longer = one if len(one) > len(other) else other
    shorter = min(len(one), len(other))
    return len(one) == len(other) or longer[shorter] == SUBTREE
