from __future__ import annotations

import pytest

from signalhub.pacing import SharedBucket, TokenBucket

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


def test_what_is_owed_delays_what_comes_next_but_not_for_ever() -> None:
    bucket = TokenBucket(10.0, 20, 0)

    bucket.owe(25, 0)
    assert not bucket.take(0)
    assert bucket.retry_after_ms(0) == 600
    assert bucket.take(600)

    bucket.owe(1_000, 600)
    assert bucket.retry_after_ms(600) == 2_100
    assert bucket.take_many(5, 2_600) > 0
    assert bucket.take(2_700)


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


def taken_by(bucket: SharedBucket, asked: list[tuple[int, str]]) -> dict[str, list[bool]]:
    """Ask for a token at each time for each source, in order."""
    answers: dict[str, list[bool]] = {}
    for at_ms, source in sorted(asked):
        answers.setdefault(source, []).append(bucket.take(source, at_ms))
    return answers


def every(period_ms: float, source: str, from_ms: int, to_ms: int) -> list[tuple[int, str]]:
    count = int((to_ms - from_ms) / period_ms)
    return [(from_ms + int(number * period_ms), source) for number in range(count)]


def test_a_source_alone_may_use_all_of_a_shared_bucket() -> None:
    bucket = SharedBucket(100.0, 100, 0)

    assert all(bucket.take("a", 0) for _ in range(100))
    assert not bucket.take("a", 0)
    later = taken_by(bucket, every(1000 / 350, "a", 1, 10_000))["a"]
    # The rate, but for a reserve that is set aside once.
    assert 980 <= sum(later) <= 1_000


@pytest.mark.parametrize("attackers", [1, 10])
def test_who_asks_for_less_than_a_share_gets_it_whatever_others_ask_for(attackers: int) -> None:
    bucket = SharedBucket(100.0, 100, 0)
    asked = every(200, "polite", 2_000, 12_000)
    for number in range(attackers):
        asked += every(1000 / 350, f"attacker {number}", 0, 12_000)

    answers = taken_by(bucket, asked)

    assert all(answers["polite"])
    assert sum(map(sum, answers.values())) >= 100 * 12


def test_sources_that_ask_for_too_much_share_the_rate() -> None:
    bucket = SharedBucket(100.0, 100, 0)
    asked = every(1000 / 350, "a", 0, 20_000) + every(1000 / 60, "b", 0, 20_000)

    answers = taken_by(bucket, asked)

    # Half of the rate would be 1 000 in 20 s.
    assert sum(answers["b"]) > 600
    assert sum(answers["a"]) > 800


def test_a_shared_bucket_forgets_sources() -> None:
    bucket = SharedBucket(100.0, 100, 0)
    for number in range(10_000):
        bucket.take(str(number), number // 100)

    assert len(bucket._shares) <= 4_097
    bucket.take("late", 10_000)
    assert len(bucket._shares) == 1
