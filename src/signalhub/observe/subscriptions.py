"""The series of subscriptions, as text: they are many, and a scrape must not hold up the hub.

Up to a number every subscription has series of its own, and keeps them. Those that come when the
number is reached share one set of series, which also keeps the counts of those that are deleted, so
that a counter never falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from signalhub.core.tally import SubscriptionTally
from signalhub.observe.declarations import OTHER, SUBSCRIPTION_LABELS, SUBSCRIPTIONS, Declaration

_SLICE: Final = 128


class Reading(msgspec.Struct, gc=False):
    """What can be said about a subscription at one moment."""

    topic: str
    name: str
    mode: str
    tally: SubscriptionTally
    lag: int = 0
    lag_s: float | None = 0.0
    """`None` while nobody knows."""
    unacked_s: float = 0.0
    utilization: float = 0.0
    is_blocked: int = 0
    blocked_keys: int = 0
    consumers: int = 0

    def add(self, other: Reading) -> None:
        """Stand for the other one, too: with the sum, or where there is none with the worst."""
        self.tally.add(other.tally)
        self.lag += other.lag
        self.lag_s = max(self.lag_s or 0.0, other.lag_s or 0.0)
        self.unacked_s = max(self.unacked_s, other.unacked_s)
        self.utilization = max(self.utilization, other.utilization)
        self.is_blocked += other.is_blocked
        self.blocked_keys += other.blocked_keys
        self.consumers += other.consumers


class SubscriptionSeries:
    """The lines of the page that are about subscriptions."""

    def __init__(self, named_max: int) -> None:
        self._named_max = named_max
        # By tally, which lives as long as its subscription; a name may be used again.
        self._labels: dict[SubscriptionTally, str] = {}
        self._unnamed: set[SubscriptionTally] = set()
        self._gone = SubscriptionTally()

    def pieces(self, readings: Sequence[Reading]) -> Iterator[bytes]:
        """One metric after the other; an empty piece is nothing but a pause."""
        self._forget_missing({reading.tally for reading in readings})
        others = Reading(OTHER, "", "", SubscriptionTally())
        others.tally.add(self._gone)
        rows = [(_labels(others), others)]
        for number, reading in enumerate(readings, 1):
            if self._is_named(reading):
                rows.append((self._labels[reading.tally], reading))
            else:
                others.add(reading)
            if number % _SLICE == 0:
                yield b""
        for declaration in SUBSCRIPTIONS:
            yield _family(declaration, rows)

    def _is_named(self, reading: Reading) -> bool:
        tally = reading.tally
        if tally in self._labels:
            return True
        if tally in self._unnamed or len(self._labels) >= self._named_max:
            self._unnamed.add(tally)
            return False
        self._labels[tally] = _labels(reading)
        return True

    def _forget_missing(self, present: set[SubscriptionTally]) -> None:
        for tally in self._labels.keys() - present:
            del self._labels[tally]
        for tally in self._unnamed - present:
            self._unnamed.remove(tally)
            self._gone.add(tally)


def _family(declaration: Declaration, rows: list[tuple[str, Reading]]) -> bytes:
    name, value_of = declaration.name, attrgetter(declaration.source)
    lines = [f"# HELP {name} {declaration.help}", f"# TYPE {name} {declaration.kind}"]
    for labels, reading in rows:
        value = value_of(reading)
        if value is not None:
            lines.append(f"{name}{labels} {float(value)}")
    lines.append("")
    return "\n".join(lines).encode()


def _labels(reading: Reading) -> str:
    values = (reading.topic, reading.name, reading.mode)
    pairs = zip(SUBSCRIPTION_LABELS, map(_escaped, values), strict=True)
    return "{" + ",".join(f'{label}="{value}"' for label, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
