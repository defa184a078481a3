"""Cutting a schedule that fails down to the steps that make it fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Step = TypeVar("Step")


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
