"""What a worker program is to do: handed to it as one line of JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from tests.support.process.lines import Mode

Settle = Literal["each", "list", "up_to"]

# Clients that are to finish give up when none of them has moved for this long.
FINISH_S = 60.0


class ProducerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Send to one topic, or ask one durable actor, so many messages a second.

    One with `rest_s` works for about `work_s` and then rests for about that long: a stream that is
    silent for whole lives of the hub is recovered in other ways than a busy one.
    """

    address: str
    stream: str
    is_mailbox: bool = False
    rate_s: float = 100.0
    keys: int = 16
    window: int = 64
    work_s: float = 0.0
    rest_s: float = 0.0


class ReaderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Read one stream and settle what arrives.

    A share of it is turned down for the first time, and a reader with `stay_s` hangs up after
    about that long to come back after about `away_s`.
    """

    consumer: str
    stream: str
    subscription: str
    mode: Mode
    settle: Settle = "list"
    is_confirmed: bool = True
    nack_share: float = 0.0
    stay_s: float = 0.0
    away_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one program does, on one ledger."""

    port: int
    ledger: str
    seed: int
    quiet_s: float = 3.0
    finish_s: float = FINISH_S
    producers: tuple[ProducerPlan, ...] = ()
    readers: tuple[ReaderPlan, ...] = ()
