"""Ids in the order of their making, whatever the clock does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.ids import TIME_MAX, Ulids, is_ulid, time_of

NOW = 1_760_000_000_000
LAST = "7" + "Z" * 25


def zeros(size: int) -> bytes:
    return bytes(size)


def ones(size: int) -> bytes:
    return b"\xff" * size


def test_the_time_comes_first_and_the_chance_after_it() -> None:
    # The example of the specification: 1469918176385 ms are 01ARYZ6S41.
    assert Ulids(zeros).next(1_469_918_176_385) == "01ARYZ6S410000000000000000"
    assert Ulids(ones).next(1_469_918_176_385) == "01ARYZ6S41ZZZZZZZZZZZZZZZZ"


def test_chance_is_taken_anew_in_every_millisecond() -> None:
    chances = iter([b"\x00" * 9 + b"\x05", b"\x00" * 9 + b"\x03"])
    ids = Ulids(lambda size: next(chances))

    assert [ids.next(NOW)[-2:], ids.next(NOW)[-2:], ids.next(NOW + 1)[-2:]] == ["05", "06", "03"]


def test_within_a_millisecond_ids_are_counted() -> None:
    ids = Ulids(zeros)

    assert [ids.next(NOW)[-4:] for _ in range(34)][-3:] == ["000Z", "0010", "0011"]


def test_a_clock_that_steps_back_does_not_break_the_order() -> None:
    ids = Ulids(zeros)
    first = ids.next(NOW)

    assert first < ids.next(NOW - 3_600_000) < ids.next(NOW)
    assert time_of(ids.last) == NOW


def test_counting_carries_into_the_characters_in_front() -> None:
    ids = Ulids(zeros, last="01ARYZ6S4100000000001ZZZZZ")

    assert ids.next(0) == "01ARYZ6S410000000000200000"


def test_where_counting_ends_the_time_goes_on() -> None:
    ids = Ulids(ones)
    first = ids.next(NOW)
    second = ids.next(NOW)

    assert first < second
    assert time_of(second) == NOW + 1


def test_after_a_restart_ids_go_on_above_the_last() -> None:
    before = Ulids(ones)
    last = before.next(NOW)
    after = Ulids(zeros, last=last)

    assert after.last == last
    assert after.next(NOW - 1000) > last


def test_a_smaller_seed_changes_nothing() -> None:
    ids = Ulids(zeros, last="01ARYZ6S41ZZZZZZZZZZZZZZZZ")
    ids.seed("01ARYZ6S410000000000000000")

    assert ids.last == "01ARYZ6S41ZZZZZZZZZZZZZZZZ"


def test_time_ends_some_day() -> None:
    assert time_of(Ulids(zeros).next(TIME_MAX)) == TIME_MAX
    with pytest.raises(ValueError, match="does not fit"):
        Ulids(zeros).next(TIME_MAX + 1)
    with pytest.raises(ValueError, match="does not fit"):
        Ulids(zeros, last=LAST).next(NOW)


@given(st.lists(st.integers(0, TIME_MAX - 100), min_size=2, max_size=50), st.binary(min_size=10))
def test_ids_grow_whatever_the_clock_says(times: list[int], chance: bytes) -> None:
    ids = Ulids(lambda size: chance[:size])
    made = [ids.next(now) for now in times]

    assert made == sorted(set(made))
    assert all(map(is_ulid, made))
    assert all(time_of(one) >= now for one, now in zip(made, times, strict=True))


@given(st.integers(0, TIME_MAX))
def test_the_time_can_be_read_from_an_id(now: int) -> None:
    assert time_of(Ulids(zeros).next(now)) == now


@pytest.mark.parametrize(
    "text", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "0" * 25 + "U", "0" * 25 + "a", None, 5]
)
def test_only_the_one_spelling_is_an_id(text: str) -> None:
    assert not is_ulid(text)
    with pytest.raises(ValueError, match="is no ULID"):
        time_of(text)
    with pytest.raises(ValueError, match="is no ULID"):
        Ulids(zeros).seed(text)


def test_the_greatest_and_the_smallest_are_ids() -> None:
    assert is_ulid(LAST)
    assert is_ulid("0" * 26)
