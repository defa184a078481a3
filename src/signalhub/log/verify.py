"""A full check of a log: every batch, every entry, every footer and the whole chain.

Nothing is written. The log may be in use: what its hub appends or deletes meanwhile is not a fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from signalhub.log.disk import Disk, File
from signalhub.log.errors import LogDamaged, storage_error
from signalhub.log.folder import examine
from signalhub.log.footer import (
    GENESIS,
    decode_summary,
    footer_base,
    has_trailer,
    read_footer,
    read_summary,
    sealed_segment,
)
from signalhub.log.head import Head
from signalhub.log.record import Unreadable
from signalhub.log.recovery import TornTail
from signalhub.log.seal import SegmentSealing
from signalhub.log.segment import SegmentInfo, segment_name


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify`; `problems` is empty for an intact log."""

    epoch: int
    first: int
    head: int
    entries: int
    erased: int
    """How many of the entries are erased."""
    segments: int
    sealed: int
    footers: int
    """Deleted segments whose footers continue the chain."""
    torn: TornTail | None
    """An unfinished batch at the end, which the next start cuts; not a problem."""
    foreign: tuple[str, ...]
    loss: str
    """The entries that existed and are lost, in words: one of the problems, or empty."""
    unknown_end: str
    """That a lost end would not be noticed, and why: one of the problems, or empty."""
    problems: tuple[str, ...]
    """One sentence per fault, each naming the file."""

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def is_only_short(self) -> bool:
        """Has it lost its end, and no other fault? A hub starts on it, and says what is lost."""
        return bool(self.loss) and set(self.problems) <= {self.loss, self.unknown_end}

    @property
    def is_only_unproven(self) -> bool:
        """Is the only fault that its end is unknown? A hub ends that with its next commit."""
        return self.problems == (self.unknown_end,)


def verify(disk: Disk, known: Head | None = None) -> Report:
    """Check everything; raises `LogFailed` if the folder cannot be read.

    `known` is a head that was known from elsewhere before.
    """
    found, recovery = examine(disk, known)
    audit = _Audit(disk)
    damages = found.damages or ([recovery.damage] if recovery.damage else [])
    audit.problems += [f"{one.segment}, byte {one.position}: {one.reason}" for one in damages]
    if recovery.loss:
        audit.problems.append(recovery.loss)
    if recovery.unknown_end:
        audit.problems.append(recovery.unknown_end)
    try:
        audit.check_footers()
        for info in recovery.segments:
            audit.check_segment(info)
        audit.check_seals(recovery.segments)
    except OSError as error:
        raise storage_error(error) from error
    return Report(
        epoch=recovery.epoch,
        first=recovery.first,
        head=recovery.head,
        entries=audit.entries,
        erased=audit.erased,
        segments=len(recovery.segments),
        sealed=sum(info.is_sealed for info in recovery.segments),
        footers=audit.footers,
        torn=recovery.torn,
        foreign=recovery.foreign,
        loss=recovery.loss,
        unknown_end=recovery.unknown_end,
        problems=tuple(dict.fromkeys(audit.problems)),
    )


class _Audit:
    """Follows the chain from the first footer to the last segment."""

    def __init__(self, disk: Disk) -> None:
        self.entries = self.erased = self.footers = 0
        self.problems: list[str] = []
        self._disk = disk
        self._chain: bytes | None = GENESIS
        self._end = 0

    def check_footers(self) -> None:
        """The footers of deleted segments must continue each other."""
        names = self._disk.names()
        segments = set(names)
        for name in names:
            base = footer_base(name)
            if base is None or segment_name(base) in segments:
                continue
            file = self._disk.open(name, read_only=True)
            try:
                summary = decode_summary(file.read(file.size(), 0))
            except Unreadable as error:
                self._break(name, str(error))
                continue
            finally:
                file.close()
            if base != summary.base or base != self._end:
                self.problems.append(f"{name}: it should start at {self._end}")
            elif self._chain not in (None, summary.previous_chain):
                self.problems.append(f"{name}: it does not continue the chain before it")
            self._chain, self._end = summary.chain, summary.end
            self.footers += 1

    def check_segment(self, info: SegmentInfo) -> None:
        """Its batches, its entries, and its footer if it is sealed."""
        try:
            file = self._disk.open(info.name, read_only=True)
        except FileNotFoundError:
            if info.name in self._disk.names():
                raise
            # Retention has just deleted it.
            self._chain = None
            return
        try:
            self._check_content(file, info)
        except LogDamaged as damage:
            self._break(f"{info.name}, byte {damage.position}", damage.reason)
        except Unreadable as error:
            self._break(info.name, str(error))
        finally:
            file.close()

    def _check_content(self, file: File, info: SegmentInfo) -> None:
        footer = read_footer(file) if info.is_sealed else None
        if footer:
            # Erasing may have replaced its file since the survey.
            info = sealed_segment(footer.summary)
        previous = footer.summary.previous_chain if footer else self._chain
        if self._chain not in (None, previous):
            self.problems.append(f"{info.name}: it does not continue the chain before it")
        sealing = SegmentSealing(info, previous or b"")
        for _ in sealing.read(file):
            pass
        self.entries += info.end - info.base
        self.erased += sealing.erased
        self._chain = sealing.chain if previous is not None else None
        if footer and footer.data != _made_again(sealing):
            self.problems.append(f"{info.name}: its footer does not match its entries")

    def check_seals(self, segments: Sequence[SegmentInfo]) -> None:
        """Segments must be sealed in order, and every started footer finished."""
        is_later_sealed = False
        for info in reversed(segments):
            is_later_sealed |= info.is_sealed
            if info is segments[-1] or info.is_sealed:
                continue
            if is_later_sealed or self._has_bad_footer(info):
                self.problems.append(f"{info.name}: its footer is damaged, but not its entries")

    def _has_bad_footer(self, info: SegmentInfo) -> bool:
        file = self._disk.open(info.name, read_only=True)
        try:
            read_summary(file)
        except Unreadable:
            return has_trailer(file)
        finally:
            file.close()
        return False

    def _break(self, where: str, reason: str) -> None:
        self.problems.append(f"{where}: {reason}")
        self._chain = None


def _made_again(sealing: SegmentSealing) -> bytes:
    slices = sealing.footer()
    while True:
        try:
            next(slices)
        except StopIteration as end:
            _, pieces = end.value
            return b"".join(pieces)
