"""Periods and ids; the token bucket is in tests/unit/test_limits.py."""

from __future__ import annotations

from signalhub.clock import Ids
from signalhub.pacing import Period


def test_a_period_is_due_at_once_and_then_once_per_period() -> None:
    period = Period(1_000)

    due = [now for now in range(5_000, 9_000, 100) if period.is_due(now)]

    assert due == [5_000, 6_000, 7_000, 8_000]


def test_a_period_is_due_again_within_one_period_of_a_clock_set_back() -> None:
    period = Period(1_000)
    period.is_due(1_000_000)

    due = [now for now in range(500_000, 502_001, 500) if period.is_due(now)]

    assert due == [500_000, 501_000, 502_000]


def test_ids_look_like_uuids_and_never_repeat() -> None:
    ids = Ids()

    made = [ids.next().decode() for _ in range(1_000)]

    assert len(set(made)) == 1_000
    for one in made:
        assert [len(part) for part in one.split("-")] == [8, 4, 4, 4, 12]
        assert (one[14], one[19]) == ("4", "a")
    assert ids.secret() != ids.secret()
    assert Ids().next() != Ids().next()
