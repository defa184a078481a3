"""Pages of long lists: equal to the sorted list, a slice per turn, whatever changes in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.server.admin.paging import (
    SLICE,
    cursor_of,
    key_of_cursor,
    page_of,
    rows_of,
)


async def turns_during(work: asyncio.Future[Any]) -> int:
    """How often somebody else has had a turn meanwhile."""
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_a_long_list_leaves_a_turn_to_others_after_each_slice() -> None:
    work = asyncio.ensure_future(page_of(range(10 * SLICE), lambda one: (one,), None, 5))
    assert await turns_during(work) >= 10
    page = await work
    assert [key for key, _ in page.found] == [(0,), (1,), (2,), (3,), (4,)]
    assert (page.has_more, page.total) == (True, 10 * SLICE)


async def test_rows_are_made_a_few_per_turn() -> None:
    work = asyncio.ensure_future(rows_of(range(500), lambda one: one * 2))
    assert await turns_during(work) >= 10
    assert await work == [2 * one for one in range(500)]


@given(st.lists(st.integers(0, 500), unique=True), st.integers(1, 9), st.sampled_from([3, 1_000]))
def test_all_pages_together_are_the_sorted_list(names: list[int], limit: int, size: int) -> None:
    async def walk() -> list[int]:
        found: list[int] = []
        after = None
        while True:
            page = await page_of(names, lambda one: (one,), after, limit, size=size)
            assert len(page.found) <= limit
            found += [one for _, one in page.found]
            if page.next is None:
                return found
            after = key_of_cursor(page.next, int)

    assert asyncio.run(walk()) == sorted(names)


@given(
    st.lists(st.integers(0, 300), unique=True, min_size=1),
    st.data(),
    st.integers(1, 7),
)
def test_what_stays_is_there_once_whatever_comes_and_goes(
    names: list[int], data: st.DataObject, limit: int
) -> None:
    async def walk() -> tuple[list[int], set[int]]:
        present, stayed, found = list(names), set(names), []
        after = None
        while True:
            page = await page_of(list(present), lambda one: (one,), after, limit)
            found += [one for _, one in page.found]
            if page.next is None:
                return found, stayed
            after = key_of_cursor(page.next, int)
            come = data.draw(st.integers(0, 300))
            if come not in present:
                present.append(come)
            gone = data.draw(st.sampled_from(present))
            present.remove(gone)
            stayed.discard(gone)

    found, stayed = asyncio.run(walk())
    assert found == sorted(set(found))
    assert stayed <= set(found)


def test_a_cursor_of_something_else_is_refused() -> None:
    assert key_of_cursor(None, int) is None
    assert key_of_cursor(cursor_of(("a", 1)), str, int) == ("a", 1)
    for text, kinds in (("!", (int,)), (cursor_of((1,)), (str,)), (cursor_of((1, 2)), (int,))):
        with pytest.raises(ValueError, match="cursor"):
            key_of_cursor(text, *kinds)
