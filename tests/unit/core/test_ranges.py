"""Sets of positions as disjoint ranges."""

from __future__ import annotations

import pytest

from signalhub.ranges import Ranges


def test_a_position_is_added_once_and_a_row_of_them_is_one_range() -> None:
    ranges = Ranges()

    for position in range(1, 1_001):
        assert ranges.add(position)
        assert not ranges.add(position)

    assert list(ranges) == [(1, 1_000)]
    assert ranges.count == 1_000


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (2, [(2, 5), (7, 9)]),
        (6, [(3, 9)]),
        (10, [(3, 5), (7, 10)]),
        (12, [(3, 5), (7, 9), (12, 12)]),
        (1, [(1, 1), (3, 5), (7, 9)]),
    ],
)
def test_neighbours_are_joined(position: int, expected: list[tuple[int, int]]) -> None:
    ranges = Ranges([(3, 5), (7, 9)])

    assert ranges.add(position)

    assert list(ranges) == expected
    assert ranges.count == 7


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (4, 8, [(3, 9)]),
        (1, 20, [(1, 20)]),
        (6, 6, [(3, 9)]),
        (11, 12, [(3, 5), (7, 9), (11, 12)]),
        (10, 12, [(3, 5), (7, 12)]),
        (1, 1, [(1, 1), (3, 5), (7, 9)]),
        (1, 2, [(1, 5), (7, 9)]),
    ],
)
def test_a_whole_range_is_joined_with_what_it_touches(
    first: int, last: int, expected: list[tuple[int, int]]
) -> None:
    ranges = Ranges([(3, 5), (7, 9)])

    ranges.add_range(first, last)

    assert list(ranges) == expected
    assert ranges.count == sum(high - low + 1 for low, high in expected)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (2, [(3, 5), (7, 9)]),
        (3, [(4, 5), (7, 9)]),
        (5, [(7, 9)]),
        (6, [(7, 9)]),
        (9, []),
        (99, []),
    ],
)
def test_what_is_below_is_forgotten(position: int, expected: list[tuple[int, int]]) -> None:
    ranges = Ranges([(3, 5), (7, 9)])

    ranges.drop_through(position)

    assert list(ranges) == expected
    assert ranges.count == sum(high - low + 1 for low, high in expected)
    assert bool(ranges) is bool(expected)


@pytest.mark.parametrize(("position", "end"), [(2, 1), (3, 5), (5, 5), (6, 5), (8, 9), (11, 10)])
def test_the_end_of_a_range_is_found_from_within(position: int, end: int) -> None:
    assert Ranges([(3, 5), (7, 9)]).end_from(position) == end
