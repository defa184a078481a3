"""Whatever comes when, a window admits what a count of the last seconds would, and never more."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from signalhub.core.rooms.room import Room, SlidingWindow, Windows

LIMIT = 5
WINDOW_MS = 50

steps_ms = st.one_of(st.integers(0, 3), st.integers(0, 2 * WINDOW_MS))


class Against(RuleBasedStateMachine):
    """The window answers like a list of all times that is counted again every time."""

    def __init__(self) -> None:
        super().__init__()
        self.window = SlidingWindow(LIMIT, WINDOW_MS)
        self.now = 1_000
        self.accepted: list[int] = []

    def inside(self) -> list[int]:
        return [at_ms for at_ms in self.accepted if at_ms > self.now - WINDOW_MS]

    def expected_wait_ms(self) -> int:
        """The first moment at which one more would fit."""
        wait_ms = 0
        while sum(at_ms > self.now + wait_ms - WINDOW_MS for at_ms in self.accepted) >= LIMIT:
            wait_ms += 1
        return wait_ms

    @rule(step_ms=steps_ms)
    def time_passes(self, step_ms: int) -> None:
        self.now += step_ms

    @rule(count=st.integers(1, LIMIT + 2))
    def come(self, count: int) -> None:
        for _ in range(count):
            expected = self.expected_wait_ms()

            assert self.window.take(self.now) == expected
            if not expected:
                self.accepted.append(self.now)

    @rule()
    def look(self) -> None:
        assert self.window.wait_ms(self.now) == self.expected_wait_ms()

    @precondition(lambda self: bool(self.inside()))
    @rule()
    def the_newest_did_not_happen(self) -> None:
        self.window.take_back()
        self.accepted.pop()

    @invariant()
    def no_window_holds_more_than_the_limit(self) -> None:
        for end in self.accepted:
            assert sum(end - WINDOW_MS < at_ms <= end for at_ms in self.accepted) <= LIMIT


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=100, stateful_step_count=40)


@given(st.lists(st.tuples(st.sampled_from("abc"), steps_ms, st.booleans()), max_size=60))
def test_forgetting_empty_windows_changes_no_answer(steps: list[tuple[str, int, bool]]) -> None:
    windows, now = Windows(2, WINDOW_MS), 1_000
    plain = {name: SlidingWindow(2, WINDOW_MS) for name in "abc"}
    for name, step_ms, is_swept in steps:
        now += step_ms
        if is_swept:
            windows.sweep(now)

        assert windows.of(name).take(now) == plain[name].take(now)
    windows.sweep(now + WINDOW_MS)
    windows.sweep(now + WINDOW_MS)
    assert len(windows) == 0


@given(
    accepts=st.lists(steps_ms, min_size=1, max_size=20),
    down_ms=steps_ms,
    begins_ms=st.integers(-500, 500),
    back_ms=st.integers(0, 500),
)
def test_a_restored_window_admits_what_the_old_one_would_have(
    accepts: list[int], down_ms: int, begins_ms: int, back_ms: int
) -> None:
    """The monotonic clock starts again; if the wall clock was set back, less is admitted."""
    room, now, mono = Room("r"), 1_000_000, 5_000
    for step_ms in accepts:
        now, mono = now + step_ms, mono + step_ms
        room.window(LIMIT, WINDOW_MS, mono, now).take(mono)
    saved = room.accepts_to_save(grid_ms=1)
    now, mono = now + down_ms, mono + down_ms
    expected = room.window(LIMIT, WINDOW_MS, mono, now).wait_ms(mono)

    waits = []
    for at_ms in (now, now - back_ms):
        restored = Room("r")
        restored.saved_accepts = list(saved)
        window = restored.window(LIMIT, WINDOW_MS, mono + begins_ms, at_ms)
        waits.append(window.wait_ms(mono + begins_ms))

    assert waits[0] == expected
    assert expected <= waits[1] <= WINDOW_MS
