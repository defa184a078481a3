"""Frames on their way: pieces that were read, and what waits to be written."""

from __future__ import annotations

import msgspec

from signalhub.core.messages.ask import AskReceipt
from signalhub.core.subscriptions.window import Attempt


class WaitingFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame for a blocked connection, in pieces that it may share with others."""

    pieces: tuple[bytes, ...]
    expires_at: float | None = None
    receipt: AskReceipt | Attempt | None = None
    is_tell: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A frame that is not a whole text: a fragment, a control frame, or an invalid one."""

    opcode: int
    is_final: bool
    rsv: bool
    payload: bytes


# Receipts, each with the number of pieces up to the end of its message.
Marks = list[tuple[int, AskReceipt | Attempt]]


class Draft(msgspec.Struct):
    """The waiting frames for one write; expired ones are removed but not written."""

    pieces: list[bytes] = []
    marks: Marks = []
    expired: list[WaitingFrame] = []
    tells: int = 0
    messages: int = 0
    count: int = 0
    bytes: int = 0
