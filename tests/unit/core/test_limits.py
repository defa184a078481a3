"""The token bucket and the period: the two clocks of the core."""

from __future__ import annotations

from signalhub.clock import Ids
from signalhub.pacing import Period, TokenBucket


def test_a_bucket_starts_full_and_refills_continuously() -> None:
    bucket = TokenBucket(rate_s=2.0, burst=3, now_ms=0)

    taken = [bucket.take(0) for _ in range(4)]

    assert taken == [True, True, True, False]
    assert bucket.retry_after_ms(0) == 500
    assert bucket.take(499) is False
    assert bucket.take(500) is True
    assert bucket.take(500) is False


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(rate_s=100.0, burst=3, now_ms=0)

    bucket.take(0)
    bucket.take(3_600_000)

    assert bucket.tokens == 2.0
    assert bucket.retry_after_ms(3_600_000) == 0


def test_a_bucket_gives_no_tokens_for_time_that_ran_backwards() -> None:
    bucket = TokenBucket(rate_s=1.0, burst=1, now_ms=10_000)
    bucket.take(10_000)

    assert bucket.take(5_000) is False
    assert bucket.take(5_999) is False
    assert bucket.take(6_000) is True


def test_a_rate_of_zero_always_gives() -> None:
    bucket = TokenBucket(rate_s=0.0, burst=1, now_ms=0)

    assert all(bucket.take(0) for _ in range(100))
    assert bucket.retry_after_ms(0) == 0


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
    assert all(
        [len(part) for part in one.split("-")] == [8, 4, 4, 4, 12]
        and one[14] == "4"
        and one[19] == "a"
        for one in made
    )
    assert ids.secret() != ids.secret()
    assert Ids().next() != Ids().next()
