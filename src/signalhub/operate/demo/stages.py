"""How far each order is, told from the log alone. No I/O.

Hosts send calls as messages, so every step of an order is an entry: its `checkout` arrives, and it
calls `reserve`, `charge` and `ship`. The answer to `checkout` ends it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.api.errors import RemoteError
from signalhub.actors.api.operation import decode_operation
from signalhub.actors.api.payload import PayloadError
from signalhub.wire.entry import Kind, MessageBody, StoredEntry, decode_body

NEW: Final = "new"
STAGES: Final = (NEW, "reserving", "paying", "shipping")
# What an order calls, and the stage that this begins. Undoing ends it.
_CALLED: Final = {"reserve": "reserving", "charge": "paying", "ship": "shipping"}
_UNDONE: Final = frozenset(("release", "refund"))
_ORDER: Final = "order/"
_MAIL: Final = frozenset((wire.CALL, wire.BATCH))


class Moving(msgspec.Struct):
    """An order on its way."""

    order: str
    stage: str
    since: int


class Stages:
    """The orders on their way."""

    def __init__(self) -> None:
        self._moving: dict[str, Moving] = {}
        # Requests that were seen, so that a repeat does not bring an order back.
        self._ended: dict[str, None] = {}

    def take(self, entry: StoredEntry) -> None:
        """Look at one entry of the log."""
        if entry.kind != Kind.MAIL or entry.is_erased:
            return
        body = decode_body(MessageBody, entry.body)
        if body.type not in _MAIL:
            return
        try:
            messages = [message for message, _ in wire.split(body.data)]
        except wire.NotReadable:
            return
        for message in messages:
            if message.kind == "request":
                self._called(message, entry.at_ms)

    def _called(self, message: wire.ActorMessage, at_ms: int) -> None:
        try:
            method = decode_operation(bytes(message.body)).method
        except (PayloadError, RemoteError, ValueError):
            return
        if message.to.startswith(_ORDER) and method == "checkout":
            order = message.to.removeprefix(_ORDER)
            if order not in self._moving and order not in self._ended:
                self._moving[order] = Moving(order, NEW, at_ms)
            return
        order = message.sender.removeprefix(_ORDER)
        moving = self._moving.get(order)
        if moving is None:
            return
        if method in _UNDONE:
            self.ended(order)
        elif method in _CALLED:
            moving.stage, moving.since = _CALLED[method], at_ms

    def ended(self, order: str) -> None:
        """The customer knows how it ended."""
        self._moving.pop(order, None)
        self._ended[order] = None
        while len(self._ended) > 10_000:
            del self._ended[next(iter(self._ended))]

    def counts(self) -> dict[str, int]:
        """How many orders are in each stage."""
        found = Counter(one.stage for one in self._moving.values())
        return {stage: found[stage] for stage in STAGES}

    def newest(self, limit: int) -> list[Moving]:
        """Orders on their way, the newest first."""
        return [*self._moving.values()][: -limit - 1 : -1]
