"""Segments that rot: files of a log are damaged, and the log is checked, opened and read.

Invariant: whatever can be read is what was written, everything else is `LogDamaged`; a damaged log
is not changed; and what stops the hub or a reader is a problem for `verify` too. A forger who
repairs the checksums can make up entries of the last segment, but no other error.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from signalhub.log.errors import LogDamaged
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import HEADER_BYTES, batch_length
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.log.verify import verify
from signalhub.testing import FakeClock, FaultyDisk
from tests.faults.healthy_folder import Files, examine, healthy_folder, in_pieces
from tests.fuzz.mutations import Damage
from tests.support.memory.log_workload import STREAMS, log_settings

_GUARD: Final = Struct("<II")
_SECTOR: Final = 512
Case = tuple[dict[str, bytes | None], bool]


class Decay(Damage):
    """Changed files of the healthy folder, and whether their checksums are right again."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed, odd_text=[b"\0", bytes(_SECTOR), b"\xff" * 8, b"SHubSegm", bytes(40)]
        )
        self._files = healthy_folder().files
        self._names = sorted(self._files)

    def next(self) -> Case:
        name = self.pick(self._names)
        content = self._files[name]
        if self.is_likely(0.2) and name.endswith(".log"):
            return {name: self._forged(content)}, True
        changes: dict[str, bytes | None] = {name: self._decayed(content)}
        if self.is_likely(0.1):
            other = self.pick(self._names)
            changes[other] = self._decayed(self._files[other])
        return changes, False

    def _decayed(self, content: bytes) -> bytes | None:
        match self.below(12):
            case 0:
                return None
            case 1:
                return self._files[self.pick(self._names)]
            case 2:
                at = self.below(len(content) + 1) // _SECTOR * _SECTOR
                size = _SECTOR * (1 + self.below(8))
                return content[:at] + bytes(len(content[at : at + size])) + content[at + size :]
            case 3:
                # Sectors of another file, as after a mistake of the file system.
                at = self.below(len(content) + 1) // _SECTOR * _SECTOR
                other = self._files[self.pick(self._names)][at : at + _SECTOR]
                return content[:at] + other + content[at + len(other) :]
            case 4:
                return content + self.random.randbytes(self.below(100))
            case _:
                return self.damaged(content, 1.0)

    def _forged(self, content: bytes) -> bytes:
        """One batch is damaged inside, and its checksum is made right again."""
        positions, at = [], BATCHES_BEGIN
        while (length := batch_length(content, at)) >= HEADER_BYTES and at + length <= len(content):
            positions.append(at)
            at += length
        at = self.pick(positions)
        length = batch_length(content, at)
        inner = bytearray(content[at + _GUARD.size : at + length])
        for _ in range(1 + self.below(3)):
            begin = self.below(min(len(inner), 120) if self.is_likely(0.7) else len(inner))
            inner[begin : begin + 1] = self.random.randbytes(1)
        guard = _GUARD.pack(length, crc32c(bytes(inner)))
        return content[:at] + guard + bytes(inner) + content[at + length :]


def examine_damaged(case: Case) -> None:
    """The hub, its readers and `verify` look at a damaged folder."""
    changes, is_forged = case
    files = {**healthy_folder().files}
    for name, content in changes.items():
        if content is None:
            files.pop(name)
        else:
            files[name] = content
    if is_forged:
        _read_forged(files)
        return
    found = examine(files)
    problems = found.report.problems
    if found.recovery.damage is not None:
        assert any(found.recovery.damage.reason in one for one in problems), "the same words"
    for name in found.names:
        assert any(name in one for one in problems), "verify knows of it"


def _read_forged(files: Files) -> None:
    disk = FaultyDisk(files)
    verify(disk)
    recovery = recover(disk, repair=True)
    log = Log(disk, log_settings(), recovery, clock=FakeClock())
    try:
        for _ in Reader(log).scan(log.first):
            pass
    except LogDamaged:
        pass
    for stream in STREAMS:
        try:
            for _ in in_pieces(Reader(log), *stream):
                pass
        except LogDamaged:
            pass
    log.close()
