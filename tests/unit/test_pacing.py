from __future__ import annotations

import pytest

from signalhub.pacing import TokenBucket

NOW_MS = 1_760_000_000_000
HOUR_MS = 3_600_000


def taken(bucket: TokenBucket, attempts: int, now_ms: int) -> int:
    return sum(bucket.take(now_ms) for _ in range(attempts))


def test_a_burst_goes_through_and_tokens_come_back_at_the_rate() -> None:
    bucket = TokenBucket(rate_s=10, burst=5, now_ms=NOW_MS)

    assert bucket.retry_after_ms(NOW_MS) == 0
    assert taken(bucket, 20, NOW_MS) == 5
    assert [taken(bucket, 2, NOW_MS + ms) for ms in (99, 100, 199, 200)] == [0, 1, 0, 1]
    assert taken(bucket, 20, NOW_MS + HOUR_MS) == 5, "a long rest gives one burst only"


def test_fractions_of_a_token_are_not_lost() -> None:
    bucket = TokenBucket(rate_s=1, burst=1, now_ms=NOW_MS)
    bucket.take(NOW_MS)

    assert [bucket.take(NOW_MS + ms) for ms in range(1, 2_001)].count(True) == 2


def test_a_rate_of_zero_never_refuses() -> None:
    bucket = TokenBucket(rate_s=0, burst=1, now_ms=NOW_MS)

    assert taken(bucket, 100, NOW_MS) == 100
    assert bucket.retry_after_ms(NOW_MS) == 0


@pytest.mark.parametrize(("rate_s", "wait_ms"), [(1, 1_000), (3, 334), (100, 10), (0.5, 2_000)])
def test_waiting_as_told_is_long_enough_and_not_longer(rate_s: float, wait_ms: int) -> None:
    bucket = TokenBucket(rate_s=rate_s, burst=1, now_ms=NOW_MS)
    bucket.take(NOW_MS)

    assert bucket.retry_after_ms(NOW_MS) == wait_ms
    assert not bucket.take(NOW_MS + wait_ms - 1)
    assert bucket.take(NOW_MS + wait_ms)


def test_a_clock_that_jumps_back_neither_gives_nor_takes() -> None:
    bucket = TokenBucket(rate_s=10, burst=5, now_ms=NOW_MS)
    taken(bucket, 2, NOW_MS)

    assert taken(bucket, 20, NOW_MS - HOUR_MS) == 3
    assert bucket.take(NOW_MS - HOUR_MS + 100)
