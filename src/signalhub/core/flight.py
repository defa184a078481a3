"""A message on its way through one subscription: read, sent, waiting for its settlement.

    ready ──► sent ──► settled
      ▲        │
      └─ waiting ◄┘ (failed)        exhausted: failed too often, the poison policy decides

A message that comes back unsettled, because its consumer left, is ready again at once and no
failure is counted.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.streams import Held
from signalhub.entry import SubscriptionDefinition

if TYPE_CHECKING:
    from signalhub.core.consumers import Consumer, Lane
    from signalhub.core.receipts import Receipt
    from signalhub.core.subscription import Subscription


_JITTER: Final = 0.2


class Phase(Enum):
    """Where a message is."""

    READY = "ready"
    SENT = "sent"
    WAITING = "waiting"
    EXHAUSTED = "exhausted"
    SETTLED = "settled"


READY, SENT, WAITING = Phase.READY, Phase.SENT, Phase.WAITING
EXHAUSTED, SETTLED = Phase.EXHAUSTED, Phase.SETTLED


class Flight:
    """One unsettled message of a subscription. Every flight of a window is in one phase."""

    __slots__ = (
        "consumer",
        "consumers",
        "deadline_ms",
        "deliveries",
        "failures",
        "first_failure",
        "first_sent",
        "held",
        "is_burying",
        "lane",
        "last_failure",
        "last_sent",
        "phase",
        "reason",
        "receipt",
        "seq",
    )

    def __init__(self, seq: int, held: Held | None, failures: int, is_doubtful: bool) -> None:
        self.seq = seq
        # Not read yet when a parked message has just become due.
        self.held = held
        self.phase = READY
        self.consumer: Consumer | None = None
        self.lane: Lane | None = None
        # What may have been sent before a restart counts as sent.
        self.deliveries = max(failures, 1) if is_doubtful else failures
        self.failures = failures
        self.deadline_ms = 0
        self.first_sent = 0
        self.last_sent = 0
        self.first_failure = 0
        self.last_failure = 0
        self.reason = ""
        # Its dead letter is on the way to the log.
        self.is_burying = False
        self.consumers: list[str] = []
        self.receipt: Receipt | None = None


def pause_ms(definition: SubscriptionDefinition, flight: Flight, delay_ms: float = 0) -> float:
    """How long to wait before the next attempt: twice as long each time, up to the cap."""
    policy = definition.backoff_ms * 2.0 ** min(flight.failures - 1, 40)
    # Spread by up to a fifth either way, so that what failed together is not tried together.
    share = (flight.seq * 2_654_435_761 + flight.failures * 40_503 & 0xFFFF) / 0xFFFF
    policy *= 1 - _JITTER + 2 * _JITTER * share
    return min(max(policy, delay_ms), definition.backoff_cap_ms)


class Attempt(msgspec.Struct, eq=False):
    """A delivery whose hand-over somebody waits for: it settles the message, or answers an ask."""

    subscription: Subscription
    flight: Flight
    deliveries: int
    generation: int
