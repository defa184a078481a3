"""When a client tries again."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.pacing import SETTLED_S, Backoff, Reconnect, grown, spread


def waits(policy: Reconnect, count: int, draw: float = 1.0) -> list[float | None]:
    backoff = Backoff(policy, lambda: draw)
    return [backoff.next() for _ in range(count)]


def test_first_attempt_waits_a_random_part_of_thirty_seconds() -> None:
    assert Backoff(Reconnect(), lambda: 0.0).next() == 0.0
    assert Backoff(Reconnect(), lambda: 0.5).next() == 15.0


def test_later_attempts_double_from_a_tenth_of_a_second_to_thirty() -> None:
    assert waits(Reconnect(first_jitter_s=0), 12) == pytest.approx(
        [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]
    )


def test_every_later_attempt_is_jittered_over_its_upper_half() -> None:
    assert waits(Reconnect(first_jitter_s=0), 4, draw=0.0) == pytest.approx([0, 0.05, 0.1, 0.2])


def test_a_thousand_clients_do_not_return_together() -> None:
    dice = random.Random(7)
    first = sorted(Backoff(Reconnect(), dice.random).next() or 0.0 for _ in range(1000))

    assert all(later - earlier < 1.0 for earlier, later in pairwise(first))
    assert first[0] < 1.0
    assert first[-1] > 29.0


def test_attempts_end_where_the_policy_says_so() -> None:
    assert waits(Reconnect(first_jitter_s=0, attempts_max=2), 3)[2] is None
    assert waits(Reconnect(attempts_max=0), 1) == [None]


def test_success_renews_the_number_of_attempts() -> None:
    backoff = Backoff(Reconnect(attempts_max=1), lambda: 0.5)
    backoff.next()

    backoff.succeeded()

    assert backoff.next() is not None
    assert backoff.next() is None


def test_a_settled_connection_earns_a_fresh_start() -> None:
    backoff = Backoff(Reconnect(first_jitter_s=7), lambda: 1.0)
    for _ in range(5):
        backoff.next()

    backoff.lost(lived_s=SETTLED_S)

    assert backoff.next() == 7.0


def test_a_hub_that_hangs_up_at_once_is_not_hammered() -> None:
    backoff = Backoff(Reconnect(first_jitter_s=0), lambda: 1.0)
    seen = []
    for _ in range(5):
        seen.append(backoff.next())
        backoff.succeeded()
        backoff.lost(lived_s=0.01)

    assert seen == pytest.approx([0, 0.1, 0.2, 0.4, 0.8])


@given(retry_after_s=st.floats(0, 1e4), draw=st.floats(0, 1), steps=st.integers(0, 3000))
def test_no_wait_is_shorter_than_the_hub_asked_for(
    retry_after_s: float, draw: float, steps: int
) -> None:
    policy = Reconnect(first_jitter_s=30)
    backoff = Backoff(policy, lambda: draw)
    for _ in range(steps):
        backoff.next()

    wait_s = backoff.next(retry_after_s)

    assert wait_s is not None
    assert retry_after_s <= wait_s <= retry_after_s + policy.cap_s


@pytest.mark.parametrize(
    "wrong",
    [{"base_s": 0}, {"cap_s": 0.01}, {"factor": 0.5}, {"first_jitter_s": -1}, {"attempts_max": -1}],
)
def test_policies_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|counts"):
        Reconnect(**wrong)  # type: ignore[arg-type]


def test_a_pause_doubles_up_to_its_cap() -> None:
    assert [grown(1.0, 30.0, step) for step in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert grown(0.5, 30.0, 100_000) == 30.0
    assert grown(0, 30.0, 100_000) == 0
    assert grown(2.0, 1.0, 0) == 1.0


def test_a_pause_is_spread_to_both_sides() -> None:
    assert [spread(10.0, 0.2, chance) for chance in (0.0, 0.5, 1.0)] == [8.0, 10.0, 12.0]
