"""Which pattern subscriptions there are, and which of them match a topic.

Patterns form a tree by their levels. A topic is compared with it once for each change of the
patterns, when somebody publishes to it. Those of one name form a tree of their own, since many
tenants may call theirs the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from signalhub.core.patterns.crowd import Crowd
from signalhub.wire.names import ONE_LEVEL, SUBTREE

if TYPE_CHECKING:
    from signalhub.core.patterns.pattern import Pattern
    from signalhub.core.streams.streams import Topic


class _Node:
    """One level of a tree."""

    __slots__ = ("below", "patterns")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        # By the names of the subscriptions.
        self.patterns: dict[str, Pattern] = {}

    def add(self, pattern: Pattern) -> None:
        node = self
        for level in pattern.levels:
            node = node.below.setdefault(level, _Node())
        node.patterns[pattern.name] = pattern

    def remove(self, pattern: Pattern) -> None:
        path = [("", self)]
        for level in pattern.levels:
            path.append((level, path[-1][1].below[level]))
        del path[-1][1].patterns[pattern.name]
        while len(path) > 1 and not path[-1][1].patterns and not path[-1][1].below:
            level, _ = path.pop()
            del path[-1][1].below[level]

    def any(self) -> Pattern | None:
        """A pattern that ends here or below; there is one, unless the tree is empty."""
        node = self
        while not node.patterns:
            if not node.below:
                return None
            node = next(iter(node.below.values()))
        return next(iter(node.patterns.values()))

    def matching(self, levels: list[str]) -> Iterator[Pattern]:
        """The patterns that match a topic."""
        nodes = [self]
        for level in (*levels, None):
            following: list[_Node] = []
            for node in nodes:
                subtree = node.below.get(SUBTREE)
                if subtree is not None:
                    yield from subtree.patterns.values()
                if level is None:
                    yield from node.patterns.values()
                    continue
                for name in (level, ONE_LEVEL) if level != ONE_LEVEL else (level,):
                    below = node.below.get(name)
                    if below is not None:
                        following.append(below)
            nodes = following

    def overlapping(self, levels: list[str]) -> Pattern | None:
        """A pattern that may match a topic that another pattern matches, too."""
        nodes = [self]
        for level in levels:
            following: list[_Node] = []
            for node in nodes:
                if level == SUBTREE or SUBTREE in node.below:
                    return node.any() if level == SUBTREE else node.below[SUBTREE].any()
                if level == ONE_LEVEL:
                    following += node.below.values()
                    continue
                for name in (level, ONE_LEVEL):
                    below = node.below.get(name)
                    if below is not None:
                        following.append(below)
            nodes = following
        for node in nodes:
            if node.patterns:
                return next(iter(node.patterns.values()))
            if SUBTREE in node.below:
                return node.below[SUBTREE].any()
        return None


class _Namesakes:
    """The patterns of one name."""

    __slots__ = ("by_text", "tree")

    def __init__(self) -> None:
        self.by_text: dict[str, Pattern] = {}
        self.tree = _Node()


class PatternIndex:
    """All pattern subscriptions."""

    def __init__(self) -> None:
        # Grows with every pattern, so that topics know whether they were compared with all.
        self.version = 0
        self._root = _Node()
        self._by_name: dict[str, _Namesakes] = {}
        self._count = 0
        # Those of each owner, and under the empty name all.
        self._crowds: dict[str, Crowd] = {"": Crowd()}

    def __iter__(self) -> Iterator[Pattern]:
        return (one for some in list(self._by_name.values()) for one in list(some.by_text.values()))

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: Pattern) -> None:
        self._root.add(pattern)
        some = self._by_name.setdefault(pattern.name, _Namesakes())
        some.by_text[pattern.text] = pattern
        some.tree.add(pattern)
        self._count += 1
        for whose in {"", pattern.owner}:
            self._crowds.setdefault(whose, Crowd()).add(pattern.levels)
        self.version += 1

    def remove(self, pattern: Pattern) -> None:
        self._root.remove(pattern)
        some = self._by_name[pattern.name]
        del some.by_text[pattern.text]
        some.tree.remove(pattern)
        self._count -= 1
        if not some.by_text:
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
        some = self._by_name.get(name)
        return None if some is None else some.by_text.get(text)

    def owner_of(self, topic: str, name: str) -> Pattern | None:
        """The pattern that a name belongs to on a topic."""
        some = self._by_name.get(name)
        return None if some is None else next(some.tree.matching(topic.split("/")), None)

    def overlapping(self, text: str, name: str) -> Pattern | None:
        """Another pattern of this name that may match the same topics."""
        some = self._by_name.get(name)
        return None if some is None else some.tree.overlapping(text.split("/"))

    def matching(self, topic: Topic) -> list[Pattern]:
        """The patterns that match a topic; topics of dead letters match none."""
        if topic.is_letters or not self._by_name:
            return []
        return list(self._root.matching(topic.name.split("/")))
