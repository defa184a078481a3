"""A whole herd returns to a restarted hub.

The real reconnect schedule of ten thousand clients meets the real connection limit of one hub, in
simulated time.
"""

from __future__ import annotations

import heapq
import random

import pytest

from signalhub.pacing import Backoff, Reconnect, TokenBucket

CLIENTS = 10_000
RATE_S = 100


def seconds_until_all_are_back(seed: int, policy: Reconnect) -> tuple[float, int]:
    """When the last client is admitted, and how many attempts were refused on the way."""
    chance = random.Random(seed)
    bucket = TokenBucket(RATE_S, RATE_S, now_ms=0)
    attempts: list[tuple[float, int, Backoff]] = []
    for number in range(CLIENTS):
        backoff = Backoff(policy, chance.random)
        attempts.append((backoff.next() or 0.0, number, backoff))
    heapq.heapify(attempts)
    refused, at_s = 0, 0.0
    while attempts:
        at_s, number, backoff = heapq.heappop(attempts)
        now_ms = int(at_s * 1000)
        if not bucket.take(now_ms):
            refused += 1
            retry_after_s = max(1, -(-bucket.retry_after_ms(now_ms) // 1000))
            wait_s = backoff.next(retry_after_s)
            assert wait_s is not None
            heapq.heappush(attempts, (at_s + wait_s, number, backoff))
    return at_s, refused


@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_clients_are_back_within_their_share_and_a_minute(seed: int) -> None:
    last_s, refused = seconds_until_all_are_back(seed, Reconnect())

    assert last_s <= CLIENTS / RATE_S + 60
    assert refused < CLIENTS * 10
