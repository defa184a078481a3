"""The series of subscriptions, as text: they are many, and a scrape must not hold up the hub.

Up to a number every subscription has series of its own, and keeps them. Those that come when the
number is reached share one set of series, which also keeps the counts of those that are deleted, so
that a counter never falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec

from signalhub.core.tally import SubscriptionTally
from signalhub.observe.declarations import OTHER, SUBSCRIPTION_LABELS, SUBSCRIPTIONS, Declaration


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
    is_blocked: bool = False
    blocked_keys: int = 0
    consumers: int = 0


class SubscriptionSeries:
    """The lines of the page that are about subscriptions."""

    def __init__(self, named_max: int) -> None:
        self._named_max = named_max
        # By tally, which lives as long as its subscription; a name may be used again.
        self._labels: dict[SubscriptionTally, str] = {}
        self._unnamed: dict[SubscriptionTally, None] = {}
        self._gone = Reading(OTHER, "", "", SubscriptionTally())

    def pieces(self, readings: Sequence[Reading]) -> Iterator[bytes]:
        """One metric after the other."""
        self._forget_missing({reading.tally for reading in readings})
        named = [(self._labels[one.tally], one) for one in readings if self._is_named(one)]
        unnamed = [one for one in readings if one.tally in self._unnamed]
        for declaration in SUBSCRIPTIONS:
            yield self._family(declaration, named, unnamed)

    def _is_named(self, reading: Reading) -> bool:
        tally = reading.tally
        if tally in self._labels:
            return True
        if tally in self._unnamed or len(self._labels) >= self._named_max:
            self._unnamed[tally] = None
            return False
        self._labels[tally] = _labels(reading)
        return True

    def _forget_missing(self, present: set[SubscriptionTally]) -> None:
        for tally in [one for one in self._labels if one not in present]:
            del self._labels[tally]
        for tally in [one for one in self._unnamed if one not in present]:
            del self._unnamed[tally]
            self._gone.tally.add(tally)

    def _family(
        self,
        declaration: Declaration,
        named: list[tuple[str, Reading]],
        unnamed: list[Reading],
    ) -> bytes:
        name, value_of = declaration.name, attrgetter(declaration.source)
        lines = [f"# HELP {name} {declaration.help}", f"# TYPE {name} {declaration.kind}"]
        for labels, reading in named:
            value = value_of(reading)
            if value is not None:
                lines.append(f"{name}{labels} {float(value)}")
        values = [value_of(self._gone), *map(value_of, unnamed)]
        fold = sum if declaration.fold == "sum" else max
        total = float(fold(value for value in values if value is not None))
        lines.append(f"{name}{_labels(self._gone)} {total}\n")
        return "\n".join(lines).encode()


def _labels(reading: Reading) -> str:
    values = (reading.topic, reading.name, reading.mode)
    pairs = zip(SUBSCRIPTION_LABELS, map(_escaped, values), strict=True)
    return "{" + ",".join(f'{label}="{value}"' for label, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
