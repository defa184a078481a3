"""Playing schedules; one that fails is cut down to the steps that make it fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Step = TypeVar("Step")
Play = Callable[[list[Step]], object]


def check(seed: int, steps: list[Step], play: Play[Step]) -> None:
    """Play the schedule of a seed; a failure shows the shortest schedule that fails alike."""
    failure = failure_of(play, steps)
    if failure is None:
        return

    def fails(shorter: list[Step]) -> bool:
        found = failure_of(play, shorter)
        return type(found) is type(failure) and str(found)[:20] == str(failure)[:20]

    steps = cut_down(steps, fails)
    lines = "\n".join(map(repr, steps))
    raise AssertionError(f"seed {seed}, cut down to\n{lines}\n{failure_of(play, steps)!r}")


def failure_of(play: Play[Step], steps: list[Step]) -> Exception | None:
    """What goes wrong in a schedule."""
    try:
        play(steps)
    except Exception as failure:
        return failure
    return None


def cut_down(steps: list[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """A schedule that still fails, and from which no step can be left out."""
    size = max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(steps):
            shorter = steps[:at] + steps[at + size :]
            if fails(shorter):
                steps = shorter
            else:
                at += size
        size //= 2
    return steps
