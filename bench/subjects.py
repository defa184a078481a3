"""Measured figures, case by case, and their summary over several rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.figures import Spread, spread

Key = tuple[str, str]  # The names of a subject and of one of its cases.
Summaries = Mapping[Key, Mapping[str, Spread]]
Value = Callable[[Summaries], float | None]


class MeasurementFailed(Exception):
    """A figure could not be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one case in one round; the note says what makes them less reliable."""

    case: str
    figures: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, and how often."""

    rounds: int
    share: float
    order: random.Random
    say: Callable[[str], None]

    def count(self, full: int, at_least: int = 1) -> int:
        """Return this number, or a share of it."""
        return max(at_least, int(full * self.share))

    def seconds(self, full: float, at_least: float) -> float:
        return max(at_least, full * self.share)


@dataclass(frozen=True, slots=True)
class Column:
    """Return one figure as a table shows it."""

    heading: str
    figure: str
    digits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something to measure: `measure` yields its samples one by one.

    With `ours` set to one of its cases, the report divides the figures of that case by the others'.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    measure: Callable[[Plan], Iterator[Sample]]
    ours: str = ""


@dataclass(slots=True)
class Results:
    """What was measured so far."""

    seed: int
    share: float
    samples: dict[Key, list[Sample]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, subject: str, sample: Sample) -> None:
        self.samples.setdefault((subject, sample.case), []).append(sample)

    def summaries(self) -> dict[Key, dict[str, Spread]]:
        """Return medians and ranges of all figures of a case."""
        return {key: _summary(samples) for key, samples in self.samples.items()}

    def notes(self) -> list[str]:
        """Return everything that makes a figure less reliable."""
        found: list[str] = []
        if self.share < 1:
            found.append(f"only {self.share:.0%} of the load: nothing here is a figure to quote")
        for (subject, case), samples in self.samples.items():
            found += [f"{subject}, {case}: {sample.note}" for sample in samples if sample.note]
        return found + [f"failed: {failure}" for failure in self.failures]


def _summary(samples: list[Sample]) -> dict[str, Spread]:
    names = dict.fromkeys(name for sample in samples for name in sample.figures)
    return {
        name: spread(each.figures[name] for each in samples if name in each.figures)
        for name in names
    }


def median_of(subject: str, case: str, figure: str) -> Value:
    """Return the median of one figure, if it was measured."""

    def value(summaries: Summaries) -> float | None:
        found = summaries.get((subject, case), {}).get(figure)
        return None if found is None else found.median

    return value


def ratio_of(above: Value, below: Value) -> Value:
    """Return one figure divided by another, if both were measured."""

    def value(summaries: Summaries) -> float | None:
        upper, lower = above(summaries), below(summaries)
        return upper / lower if upper is not None and lower else None

    return value
