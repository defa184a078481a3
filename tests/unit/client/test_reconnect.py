"""When a client tries again, and how pauses grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.pacing import SETTLED_S, Backoff, Reconnect, grown, spread


def waits(policy: Reconnect, count: int, draw: float = 1.0) -> list[float | None]:
    backoff = Backoff(policy, lambda: draw)
    return [backoff.next() for _ in range(count)]


def test_the_first_attempt_waits_a_random_part_and_later_ones_double_up_to_the_cap() -> None:
    steps = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]

    assert waits(Reconnect(), 12) == pytest.approx([30, *steps])
    assert waits(Reconnect(), 4, draw=0.0) == pytest.approx([0, 0.05, 0.1, 0.2])
    assert waits(Reconnect(), 1, draw=0.5) == [15.0]


def test_attempts_end_where_the_policy_says_and_are_renewed_by_success() -> None:
    assert waits(Reconnect(attempts_max=0), 1) == [None]
    backoff = Backoff(Reconnect(first_jitter_s=0, attempts_max=2), lambda: 1.0)
    assert [backoff.next() is None for _ in range(3)] == [False, False, True]

    backoff.succeeded()

    assert [backoff.next() is None for _ in range(3)] == [False, False, True]


def test_only_a_connection_that_settled_earns_a_fresh_start() -> None:
    backoff = Backoff(Reconnect(first_jitter_s=7), lambda: 1.0)
    seen = []
    for _ in range(5):
        seen.append(backoff.next())
        backoff.succeeded()
        backoff.lost(lived_s=SETTLED_S - 0.01)
    assert seen == pytest.approx([7, 0.1, 0.2, 0.4, 0.8])

    backoff.lost(lived_s=SETTLED_S)

    assert backoff.next() == 7.0


@given(retry_after_s=st.floats(0, 1e4), draw=st.floats(0, 1), steps=st.integers(0, 3000))
def test_no_wait_is_shorter_than_the_hub_asked_for(
    retry_after_s: float, draw: float, steps: int
) -> None:
    policy = Reconnect()
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
def test_invalid_policies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|counts"):
        Reconnect(**wrong)  # type: ignore[arg-type]


def test_a_pause_doubles_up_to_its_cap_and_is_spread_to_both_sides() -> None:
    assert [grown(1.0, 30.0, step) for step in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert grown(0.5, 30.0, 100_000) == 30.0
    assert grown(0, 30.0, 100_000) == 0
    assert grown(2.0, 1.0, 0) == 1.0
    assert [spread(10.0, 0.2, chance) for chance in (0.0, 0.5, 1.0)] == [8.0, 10.0, 12.0]
