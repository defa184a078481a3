"""Long lists, a page at a time and a slice per turn.

A page continues after the last key of the page before, so rows that come and go in between are
neither repeated nor skipped. Keys are small tuples; a cursor is one of them as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from signalhub.wire.base64url import decoded, encoded

T = TypeVar("T")
Key = tuple[Any, ...]

# Things looked at per turn: a few hundred nanoseconds each, so less than half a millisecond.
SLICE: Final = 1_000
# Rows made per turn: a few microseconds each.
ROWS_SLICE: Final = 50


class Page(NamedTuple):
    """Things with their keys, in order, and how many there are altogether."""

    found: list[tuple[Key, Any]]
    has_more: bool
    total: int

    @property
    def next(self) -> str | None:
        """The cursor of the following page; `None` at the end."""
        return cursor_of(self.found[-1][0]) if self.has_more else None


async def slices(things: Iterable[T], size: int = SLICE) -> AsyncIterator[list[T]]:
    """Divide things into parts, with turns of the loop in between."""
    part: list[T] = []
    for thing in things:
        part.append(thing)
        if len(part) == size:
            yield part
            part = []
            await asyncio.sleep(0)
    if part:
        yield part


async def page_of(
    things: Iterable[T],
    key_of: Callable[[T], Key | None],
    after: Key | None,
    limit: int,
    *,
    size: int = SLICE,
) -> Page:
    """The things with the smallest keys above `after`; those without a key are left out."""
    kept: list[tuple[Key, T]] = []
    total = 0
    left = 0
    async for part in slices(things, size):
        for thing in part:
            key = key_of(thing)
            if key is None:
                continue
            total += 1
            if after is None or key > after:
                left += 1
                kept.append((key, thing))
        if len(kept) > 2 * limit + size:
            kept.sort(key=_first)
            del kept[limit:]
    kept.sort(key=_first)
    return Page(kept[:limit], left > limit, total)


async def rows_of(things: Iterable[T], row_of: Callable[[T], Any]) -> list[Any]:
    """Make the rows of a page, some per turn."""
    rows: list[Any] = []
    async for part in slices(things, ROWS_SLICE):
        rows += [row_of(one) for one in part]
    return rows


def cursor_of(key: Key) -> str:
    """A key as text."""
    return encoded(msgspec.json.encode(list(key)))


def key_of_cursor(text: str | None, *types: type) -> Key | None:
    """The key in a cursor, whose parts must have these types; raises `ValueError`."""
    if text is None:
        return None
    try:
        found = msgspec.json.decode(decoded(text), type=list[Any])
    except (ValueError, RecursionError):
        raise ValueError("cursor is invalid") from None
    if len(found) != len(types) or not all(map(isinstance, found, types)):
        raise ValueError("cursor is of another list")
    return tuple(found)


def _first(pair: tuple[Key, Any]) -> Key:
    return pair[0]
