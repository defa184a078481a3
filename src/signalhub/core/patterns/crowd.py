"""How many patterns a single topic may meet, whatever it is called.

Patterns form a tree by their levels. For each of its nodes an upper bound is known of the patterns
below it that one topic can match, and adding and removing keep it up to date along one path: below
a node, a topic follows one plain level and the wildcard, so the largest bound of the first and that
of the second are added. What a search visits is bounded with it. It follows the same two branches,
each of which leads to a pattern, though perhaps to one that the topic does not match in the end.
"""

from __future__ import annotations

from signalhub.wire.names import ONE_LEVEL, SUBTREE


class _Node:
    """One level of the tree."""

    __slots__ = ("below", "bound", "ending", "plain", "subtrees")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        # Patterns that end here, and those that go on with `#`.
        self.ending = self.subtrees = 0
        self.bound = 0
        # How many plain levels below have each bound.
        self.plain: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.below or self.ending or self.subtrees)

    def measure(self) -> int:
        """The bound, from those of the levels below."""
        any_level = self.below.get(ONE_LEVEL)
        following = 0 if any_level is None else any_level.bound
        following += max(self.plain, default=0)
        return self.subtrees + max(self.ending, following)

    def note(self, old: int, new: int) -> None:
        """The bound of a plain level below has changed."""
        if old:
            self.plain[old] -= 1
            if not self.plain[old]:
                del self.plain[old]
        if new:
            self.plain[new] = self.plain.get(new, 0) + 1


class Crowd:
    """Some patterns, counted."""

    def __init__(self) -> None:
        self._root = _Node()

    @property
    def is_empty(self) -> bool:
        return self._root.is_empty

    @property
    def matched(self) -> int:
        """No topic matches more patterns than this."""
        return self._root.bound

    def add(self, levels: list[str], count: int = 1) -> None:
        """There is one more pattern, or with a negative count one less."""
        path = [("", self._root)]
        for level in levels:
            if level == SUBTREE:
                break
            path.append((level, path[-1][1].below.setdefault(level, _Node())))
        last = path[-1][1]
        if levels[-1] == SUBTREE:
            last.subtrees += count
        else:
            last.ending += count
        while path:
            level, node = path.pop()
            old, node.bound = node.bound, node.measure()
            if not path:
                return
            above = path[-1][1]
            if node.is_empty:
                del above.below[level]
            if level != ONE_LEVEL:
                above.note(old, node.bound)

    def has_room(self, levels: list[str], limit: int) -> bool:
        """May this pattern be added, so that no topic meets more than `limit` because of it?"""
        before = self.matched
        self.add(levels)
        after = self.matched
        self.add(levels, -1)
        return after <= max(limit, before)
