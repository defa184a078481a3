"""A message on its way through one subscription: read, sent, waiting for its settlement.

    ready ──► sent ──► settled
      ▲        │
      └─ waiting ◄┘ (failed)        exhausted: failed too often, the poison policy decides

A message that comes back unsettled, because its consumer left, is ready again at once and no
failure is counted.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from signalhub.core.streams import Held

if TYPE_CHECKING:
    from signalhub.core.consumers import Consumer, Lane
    from signalhub.core.receipts import Receipt
    from signalhub.core.subscription import Subscription


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


class Attempt(msgspec.Struct, eq=False):
    """A delivery whose hand-over somebody waits for: it settles the message, or answers an ask."""

    subscription: Subscription
    flight: Flight
    deliveries: int
    generation: int
