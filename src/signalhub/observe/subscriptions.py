"""Metrics per subscription.

Topics and subscriptions are the only labels without a fixed set of values. Operators name them, and
a setting limits their number. Actors and addresses are never labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from signalhub.counters import SubscriptionTally
from signalhub.observe.exposition import OTHER, Declaration, counter, gauge

LABELS: Final = ("topic", "subscription", "mode")
_SLICE: Final = 128


class SubscriptionReading(msgspec.Struct, gc=False):
    """The current values of a subscription."""

    topic: str
    name: str
    mode: str
    tally: SubscriptionTally
    lag: int = 0
    lag_s: float | None = 0.0
    """`None` while unknown."""
    unacked_s: float = 0.0
    utilization: float = 0.0
    is_blocked: int = 0
    blocked_keys: int = 0
    consumers: int = 0
    is_held_up: int = 0

    def add(self, other: SubscriptionReading) -> None:
        """Merge another one: sum the counts, take the maximum of times and utilization."""
        self.tally.add(other.tally)
        self.lag += other.lag
        self.lag_s = max(self.lag_s or 0.0, other.lag_s or 0.0)
        self.unacked_s = max(self.unacked_s, other.unacked_s)
        self.utilization = max(self.utilization, other.utilization)
        self.is_blocked += other.is_blocked
        self.blocked_keys += other.blocked_keys
        self.consumers += other.consumers
        self.is_held_up += other.is_held_up


Counted = tuple[str, Callable[[SubscriptionTally], int], str]

# Counted per subscription, and for all mailboxes together.
DELIVERY: Final[tuple[Counted, ...]] = (
    ("delivered", lambda tally: tally.delivered, "Deliveries, including redeliveries."),
    ("settled", lambda tally: tally.settled, "Messages settled, with any outcome."),
    ("redelivered", lambda tally: tally.redelivered, "Redeliveries."),
    ("nacks", lambda tally: tally.nacked, "Attempts rejected by a consumer (nack)."),
    ("ack_timeouts", lambda tally: tally.timeouts, "Attempts not acknowledged in time."),
    ("exhausted", lambda tally: tally.exhausted, "Messages that failed too often."),
    ("dead_lettered", lambda tally: tally.dead_lettered, "Messages moved to the dead letters."),
    (
        "dropped",
        lambda tally: tally.dropped,
        "Messages dropped by the poison policy or terminated by a consumer.",
    ),
    (
        "expired",
        lambda tally: tally.expired,
        "Messages whose ttl ended before they were delivered.",
    ),
    ("lost", lambda tally: tally.lost, "Messages removed by retention before they were settled."),
    ("ignored_settlements", lambda tally: tally.ignored, "Settlements of messages not in flight."),
    ("cursors", lambda tally: tally.cursors, "Cursors written to the log."),
)
DISPATCH: Final[tuple[Counted, ...]] = (
    (
        "notifier_polls",
        lambda tally: tally.wake_polls,
        "Dispatch passes started by a wake or a deadline.",
    ),
    (
        "heartbeat_polls",
        lambda tally: tally.heartbeat_polls,
        "Dispatch passes started by the watchdog.",
    ),
    (
        "recovered_wakes",
        lambda tally: tally.recovered_wakes,
        "Passes of the watchdog that found work a wake should have reported.",
    ),
    (
        "restarts",
        lambda tally: tally.restarts,
        "Dispatch passes that failed and were restarted.",
    ),
    (
        "empty_reads",
        lambda tally: tally.empty_reads,
        "Reads below the head that found nothing.",
    ),
)


def _reading(
    name: str, measure: Callable[[SubscriptionReading], float | None], text: str
) -> Declaration[SubscriptionReading]:
    return gauge(f"subscription_{name}", measure, text, *LABELS)


def _count(prefix: str, counted: Counted) -> Declaration[SubscriptionReading]:
    name, measure, text = counted

    def of_reading(reading: SubscriptionReading) -> int:
        return measure(reading.tally)

    return counter(f"{prefix}_{name}", of_reading, text, *LABELS)


SUBSCRIPTIONS: Final = (
    _reading("lag_messages", lambda one: one.lag, "Messages neither settled nor delayed."),
    _reading("lag_seconds", lambda one: one.lag_s, "Age of the oldest of these."),
    _reading(
        "oldest_unacked_seconds",
        lambda one: one.unacked_s,
        "Time since the oldest unacknowledged message was first sent.",
    ),
    _reading(
        "window_utilization", lambda one: one.utilization, "Share of the window in use, 0 to 1."
    ),
    _reading(
        "blocked",
        lambda one: one.is_blocked,
        "1 if a message that failed too often blocks the subscription.",
    ),
    _reading("blocked_keys", lambda one: one.blocked_keys, "Keys blocked by such a message."),
    _reading("consumers", lambda one: one.consumers, "Connected consumers."),
    _reading(
        "held_up",
        lambda one: one.is_held_up,
        "1 if damage of the log, or its failed disk, keeps it from delivering more.",
    ),
    *(_count("subscription", one) for one in DELIVERY),
    *(_count("dispatcher", one) for one in DISPATCH),
)


class SubscriptionSeries:
    """Generates the part of the page about subscriptions."""

    def __init__(self, named_max: int) -> None:
        self._named_max = named_max
        # By tally, which identifies a subscription; its name may be reused by another one.
        self._labels: dict[SubscriptionTally, str] = {}
        self._unnamed: set[SubscriptionTally] = set()
        self._gone = SubscriptionTally()

    def pieces(self, readings: Sequence[SubscriptionReading]) -> Iterator[bytes]:
        """Yield one metric after the other; an empty piece only yields control."""
        self._forget_missing({reading.tally for reading in readings})
        others = SubscriptionReading(OTHER, "", "", SubscriptionTally())
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

    def _is_named(self, reading: SubscriptionReading) -> bool:
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


def _family(
    declaration: Declaration[SubscriptionReading], rows: list[tuple[str, SubscriptionReading]]
) -> bytes:
    name, measure = declaration.name, declaration.measure
    lines = [f"# HELP {name} {declaration.help}", f"# TYPE {name} {declaration.kind}"]
    for labels, reading in rows:
        value = measure(reading)
        if isinstance(value, int | float):
            lines.append(f"{name}{labels} {float(value)}")
    lines.append("")
    return "\n".join(lines).encode()


def _labels(reading: SubscriptionReading) -> str:
    values = (reading.topic, reading.name, reading.mode)
    pairs = zip(LABELS, map(_escaped, values), strict=True)
    return "{" + ",".join(f'{label}="{value}"' for label, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
