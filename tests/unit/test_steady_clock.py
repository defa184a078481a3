"""The hub's own clock: it does not jump, and follows the wall clock slowly."""

from __future__ import annotations

import pytest

from signalhub.clock import SteadyClock, boot_s
from signalhub.testing import FakeClock

HOUR_S, HOUR_MS = 3_600, 3_600_000


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_is_no_time_that_passes(jump_s: int) -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    began_ms = steady.now_ms()

    clock.jump(jump_s)
    clock.advance(1.234)

    assert steady.now_ms() - began_ms == 1_234
    assert steady.ahead_ms == jump_s * 1000
    assert steady.wall_ms() == clock.now_ms()


@pytest.mark.parametrize(("jump_s", "change_ms"), [(HOUR_S, 6_000), (-HOUR_S, -6_000)])
def test_it_follows_by_a_hundredth_of_the_time_and_never_runs_back(
    jump_s: int, change_ms: int
) -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    began_ms = steady.now_ms()
    clock.jump(jump_s)
    seen = []
    for _ in range(600):
        steady.follow()
        seen.append(steady.now_ms())
        clock.advance(1)

    assert seen == sorted(seen)
    assert steady.now_ms() - began_ms == 600_000 + change_ms


@pytest.mark.parametrize("drift_s", [0.05, -0.05])
def test_a_small_difference_is_made_up_for_and_not_exceeded(drift_s: float) -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    clock.jump(drift_s)
    for _ in range(20):
        steady.follow()
        clock.advance(1)

    assert abs(steady.ahead_ms) <= 1


def test_it_goes_on_where_an_earlier_process_was() -> None:
    clock = FakeClock()
    first = SteadyClock(clock)
    clock.jump(HOUR_S)
    ahead_ms = first.ahead_ms
    clock.advance(5)

    second = SteadyClock(clock)
    second.resume(ahead_ms=ahead_ms, newest_ms=first.now_ms() - 1)

    assert second.now_ms() == first.now_ms()


def test_it_does_not_go_back_though_the_wall_clock_was_set_back_meanwhile() -> None:
    clock = FakeClock()
    newest_ms = clock.now_ms()
    clock.jump(-HOUR_S)

    steady = SteadyClock(clock)
    steady.resume(newest_ms=newest_ms)
    clock.advance(2)

    assert steady.now_ms() == newest_ms + 2_000


def test_time_in_which_the_machine_was_suspended_has_passed() -> None:
    clock, asleep_s = FakeClock(), 0.0
    steady = SteadyClock(clock, lambda: clock.mono_s() + asleep_s)
    began_ms = steady.now_ms()

    asleep_s = HOUR_S
    clock.jump(asleep_s)
    for _ in range(2):
        clock.advance(1)
        steady.follow()

    assert steady.now_ms() - began_ms == HOUR_MS + 2_000
    assert steady.ahead_ms == 0
    assert boot_s() <= boot_s()
