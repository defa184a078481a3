"""How many patterns a single topic may meet, whatever it is called.

Patterns form a tree by their levels. For each of its nodes two numbers are known: how many patterns
below it one topic can match at most, and how many nodes a search for them can visit. Both are upper
bounds, which adding and removing keep up to date along one path: below a node, a topic follows one
plain level and the wildcard, so the largest number of the first and that of the second are added.
"""

from __future__ import annotations

from typing import Final

from signalhub.wire.names import ONE_LEVEL, SUBTREE, WILDCARD_LEVELS_MAX

# A search may visit so many nodes for each pattern that it may find.
_VISITS: Final = WILDCARD_LEVELS_MAX

Bounds = tuple[int, int]


class _Node:
    """One level of the tree."""

    __slots__ = ("below", "bounds", "ending", "subtrees", "tally")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        # Patterns that end here, and those that go on with `#`.
        self.ending = self.subtrees = 0
        # Matches and visits.
        self.bounds: Bounds = (0, 0)
        # How many plain levels below have each bound.
        self.tally: tuple[dict[int, int], dict[int, int]] = ({}, {})

    @property
    def is_empty(self) -> bool:
        return not (self.below or self.ending or self.subtrees)

    def measure(self) -> Bounds:
        """The bounds, from those of the levels below."""
        if self.is_empty:
            return 0, 0
        any_level = self.below.get(ONE_LEVEL)
        matched, visited = (0, 0) if any_level is None else any_level.bounds
        matched += max(self.tally[0], default=0)
        visited += max(self.tally[1], default=0)
        return self.subtrees + max(self.ending, matched), 1 + visited

    def note(self, old: Bounds, new: Bounds) -> None:
        """The bounds of a plain level below have changed."""
        for tally, before, after in zip(self.tally, old, new, strict=True):
            if before == after:
                continue
            if before:
                tally[before] -= 1
                if not tally[before]:
                    del tally[before]
            if after:
                tally[after] = tally.get(after, 0) + 1


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
        return self._root.bounds[0]

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
            old, node.bounds = node.bounds, node.measure()
            if not path:
                return
            above = path[-1][1]
            if node.is_empty:
                del above.below[level]
            if level != ONE_LEVEL:
                above.note(old, node.bounds)

    def has_room(self, levels: list[str], limit: int) -> bool:
        """May this pattern be added, so that no topic meets more than `limit` because of it?"""
        before = self._root.bounds
        self.add(levels)
        after = self._root.bounds
        self.add(levels, -1)
        limits = limit, limit * _VISITS
        return all(
            new <= most or new <= old for old, new, most in zip(before, after, limits, strict=True)
        )
