"""An append-only file in which one program writes down what it did and saw.

`sync` is called at the points that matter: an attempt is on disk before it is sent, a receipt
before it is settled. What was written in between may be lost with the program, never with the hub.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tests.support.process.lines import Line

_DECODER = msgspec.json.Decoder(Line)


class Ledger:
    """Belongs to one program; `close` syncs what is left."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._encoder = msgspec.json.Encoder()
        self._waiting = bytearray()

    def write(self, line: Line) -> None:
        """Note it; it is on disk after the next `sync`."""
        self._waiting += self._encoder.encode(line)
        self._waiting += b"\n"

    def sync(self) -> None:
        """Put everything noted so far on disk."""
        if not self._waiting:
            return
        rest = memoryview(bytes(self._waiting))
        self._waiting.clear()
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fdatasync(self._file)

    def close(self) -> None:
        self.sync()
        os.close(self._file)


def read_ledger(path: Path) -> list[Line]:
    """All lines; one that its writer did not live to finish is left out."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [_DECODER.decode(line) for line in whole.split(b"\n") if line]
