"""Spans, sizes, moments and places, as users type them and as they are shown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.quantities import (
    byte_count,
    moment,
    position,
    position_or_none,
    seconds,
    shown_duration,
    shown_size,
    shown_time,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("0", 0),
    ],
)
def test_a_span_has_a_unit_or_is_in_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("1K", 1024), ("1.5m", 1_572_864), ("1GB", 2**30), ("2GiB", 2**31), ("10b", 10)],
)
def test_a_size_has_a_unit_or_is_in_bytes(text: str, expected: int) -> None:
    assert byte_count(text) == expected


@pytest.mark.parametrize("text", ["", "d", "-5s", "5 years", "inf", "nan", "1e3", "1" * 400])
def test_what_is_no_quantity_is_wrong_usage_and_shows_one(text: str) -> None:
    with pytest.raises(Failure, match="7d") as span:
        seconds(text)
    with pytest.raises(Failure, match="1G") as size:
        byte_count(text)

    assert span.value.exit is size.value.exit is Exit.USAGE


@pytest.mark.parametrize("text", ["2026-01-31T12:00Z", "2026-01-31 13:00:00+01:00"])
def test_a_moment_is_the_same_in_every_zone(text: str) -> None:
    assert moment(text) == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_moment_without_a_zone_is_one_of_this_machine_s() -> None:
    assert moment("2026-01-31T12:00") == datetime(2026, 1, 31, 12).astimezone()


@pytest.mark.parametrize("text", ["", "noon", "31.1.2026", "2026-13-01"])
def test_what_is_no_moment_is_wrong_usage(text: str) -> None:
    with pytest.raises(Failure, match="2026-01-31T12:00Z"):
        moment(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("seq:5", {"seq": 5}),
        ("5", {"seq": 5}),
        ("last:10", {"last": 10}),
        ("time:2026-01-31T12:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_a_position_is_an_end_a_number_or_a_time(text: str, expected: object) -> None:
    assert position(text) == expected


@pytest.mark.parametrize("text", ["", "first", "seq:0", "0", "seq:", "last:x", "-1", "demo/alice"])
def test_what_is_no_place_is_wrong_usage(text: str) -> None:
    assert position_or_none(text) is None
    with pytest.raises(Failure, match="earliest, latest, seq:5") as caught:
        position(text)
    assert caught.value.exit is Exit.USAGE


@pytest.mark.parametrize(
    ("span_s", "text"), [(None, ""), (604_800, "7d"), (90, "90s"), (5_400, "90m"), (0.25, "0.25s")]
)
def test_a_span_is_shown_in_its_largest_whole_unit(span_s: float | None, text: str) -> None:
    assert shown_duration(span_s) == text
    assert span_s is None or seconds(text) == span_s


@pytest.mark.parametrize(
    ("count", "text"), [(None, ""), (0, "0"), (1023, "1023"), (2**30, "1G"), (1_500_000, "1.43M")]
)
def test_a_size_is_shown_rounded(count: int | None, text: str) -> None:
    assert shown_size(count) == text


def test_a_moment_is_shown_with_its_zone_and_none_as_nothing() -> None:
    at_ms = 1_769_860_800_123

    assert moment(shown_time(at_ms)).timestamp() * 1000 == at_ms
    assert shown_time(None) == shown_time(0) == ""
    assert shown_time(10**30) == str(10**30)
