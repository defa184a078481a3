"""How pauses grow, whatever the numbers; `reconnecting.json` of the vectors has examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.pacing import Backoff, Reconnect, grown, spread


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
