"""The state of a log folder, and the repair of what a crash may have left.

A crash can tear the end of the last segment, or leave a sealing or a new segment unfinished. All of
that is repaired. Anything else is damage: it is reported, the log opens read-only, and nothing in
the folder is changed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from signalhub.log.disk import Disk
from signalhub.log.errors import storage_error
from signalhub.log.footer import footer_base
from signalhub.log.head import HEAD_NAME, Head
from signalhub.log.repair import cut, rewrite, save_aside, with_reserve
from signalhub.log.segment import Header, SegmentInfo, base_of, create_segment, new_segment
from signalhub.log.survey import Damage, LogSurvey, Tail, survey


class TornTail(msgspec.Struct, frozen=True):
    """Bytes after the last valid batch of the last segment."""

    segment: str
    position: int
    bytes: int
    reason: str
    saved_as: str | None = None
    """The file `{base}.{position}.torn` they were copied to; None without repair."""


class LogRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `first` to `head - 1` is readable if there is no damage."""

    epoch: int
    """0 for a log that does not exist yet."""
    first: int
    head: int
    published: int
    """The highest head a reader may have seen; above `head` only if something was lost."""
    segments: tuple[SegmentInfo, ...]
    previous_chain: bytes
    """The chain of the segment before the first."""
    torn: TornTail | None = None
    damage: Damage | None = None
    is_cut: bool = False
    """There is damage, and it is unknown what followed `head`."""
    hole: Damage | None = None
    """Damage before `first`: what is missing there was perhaps not removed by retention."""
    epoch_changed: bool = False
    lost_from: int = 0
    lost_to: int = 0
    """Entries `lost_from` to `lost_to - 1` may have been read and are lost; equal: none."""
    latest_epoch: int = 0
    """The latest epoch that is known to have begun; lost entries belonged to it."""
    is_replaced: bool = False
    """The latest epoch is lost as a whole; with which entry it began is unknown."""
    head_fault: str = ""
    """Why it is unknown which head was published, although there are entries."""
    foreign: tuple[str, ...] = ()
    """Files that do not belong to the log; ignored."""
    is_repaired: bool = False

    @property
    def loss(self) -> str:
        """Which entries existed and are lost, in words; empty if none are."""
        if self.lost_to <= self.lost_from:
            return ""
        if self.is_replaced:
            last = self.lost_to - 1
            return f"epoch {self.latest_epoch} is lost, with its entries up to {last}"
        return lost_entries(self.lost_from, self.lost_to - 1)

    @property
    def problem(self) -> str:
        """Why not everything that was stored can be read, in words; empty if it can."""
        if (found := self.damage) is not None:
            return f"{found.segment}, byte {found.position}: {found.reason}"
        return self.loss

    @property
    def unknown_end(self) -> str:
        """That a lost end could not be noticed, and why; empty if it could."""
        if not self.head_fault:
            return ""
        return f"{HEAD_NAME}: {self.head_fault}, so a lost end of the log would not be noticed"


def lost_entries(first: int, last: int) -> str:
    """That entries existed and are lost, in words."""
    if first == last:
        return f"entry {first} existed and is lost"
    return f"entries {first} to {last} existed and are lost"


def recover(
    disk: Disk,
    *,
    repair: bool,
    known: Head | None = None,
    on_loss: Callable[[LogRecovery], object] = lambda found: None,
) -> LogRecovery:
    """Examine the log; with `repair` make it ready for `Log`.

    Only the last segment may end in a torn batch: its bytes are saved in a file, then cut. That
    keeps the epoch unless entries were lost that may have been read. Any other fault is `damage`,
    and then nothing is written even with `repair`. An empty folder is a new log. `known` is a head
    that is known from elsewhere, beside the published one. `on_loss` is called before a repair
    after which the log no longer says that entries were lost. Raises
    `LogFull` or `LogFailed` if the disk cannot be read or repaired.
    """
    try:
        found = survey(disk)
        recovery = judge(found, known)
        if repair and recovery.damage is None:
            if recovery.epoch_changed:
                on_loss(recovery)
            recovery = _repair(disk, found, recovery)
    except OSError as error:
        raise storage_error(error) from error
    return recovery


def judge(found: LogSurvey, known: Head | None = None) -> LogRecovery:
    """The result of a survey, before any repair."""
    segments, tail, published = found.segments, found.tail, _latest(found.published, known)
    head = segments[-1].end if segments else 0
    epoch = segments[-1].epoch if segments else 0
    shown = max(head, tail.proven if tail else 0)
    if published and published.epoch >= epoch:
        shown = max(shown, published.shown)
    first = segments[0].base if segments else 0
    rot = _rot(tail, head)
    damage = found.damages[0] if found.damages else rot
    latest_epoch = max(epoch, published.epoch) if published else epoch
    # An older copy was put back. It may have more entries than the latest epoch had.
    later = published.shown if published and latest_epoch > epoch else 0
    has_lost = damage is None and (shown > head or later > 0)
    return LogRecovery(
        epoch=epoch,
        first=first,
        head=head,
        published=shown,
        segments=tuple(segments),
        previous_chain=found.previous_chain,
        # Nothing of a damaged log is cut.
        torn=_torn(tail) if tail and tail.torn_bytes and damage is None else None,
        damage=damage,
        is_cut=damage is not None and (shown > head or _hides_end(found, rot, head)),
        hole=next((one for one in found.damages if not segments or _base(one) < first), None),
        epoch_changed=has_lost,
        lost_from=head if has_lost and not later else 0,
        lost_to=(later or shown) if has_lost else 0,
        latest_epoch=latest_epoch,
        is_replaced=has_lost and later > 0,
        head_fault=found.head_fault,
        foreign=tuple(found.foreign),
    )


def _latest(published: Head | None, known: Head | None) -> Head | None:
    """The head that was published last, as far as is known."""
    if published is None or known is None:
        return published or known
    return max(published, known, key=lambda one: (one.epoch, one.shown))


def _hides_end(found: LogSurvey, rot: Damage | None, head: int) -> bool:
    return rot is not None or any(_base(one) >= head for one in found.damages)


def _base(damage: Damage) -> int:
    """The offset from which on entries may be missing."""
    base = base_of(damage.segment)
    return (footer_base(damage.segment) or 0) if base is None else base


def _rot(tail: Tail | None, head: int) -> Damage | None:
    """An invalid batch before valid ones written after its sync: damage, not a torn end."""
    if tail is None or tail.known_beyond <= head:
        return None
    text = f"entries from {head} on were on disk and cannot be read: {tail.torn_reason}"
    return Damage(tail.info.name, tail.info.bytes, text)


def _torn(tail: Tail) -> TornTail:
    return TornTail(tail.info.name, tail.info.bytes, tail.torn_bytes, tail.torn_reason)


def _repair(disk: Disk, found: LogSurvey, recovery: LogRecovery) -> LogRecovery:
    for name in found.leftovers:
        disk.remove(name)
    # The previous process may have ended between naming a segment and syncing its name.
    disk.sync()
    tail = found.tail
    if tail is None:
        return msgspec.structs.replace(recovery, is_repaired=True)
    torn, info, segments = recovery.torn, tail.info, recovery.segments
    file = disk.open(info.name)
    try:
        if torn:
            size = torn.bytes
            saved_as = with_reserve(
                disk, lambda: save_aside(disk, file, info.base, info.bytes, size)
            )
            torn = msgspec.structs.replace(torn, saved_as=saved_as)
        rewrite(file, tail.unproven_begin, info.bytes)
        if recovery.epoch_changed:
            # The torn bytes stay until the segment is sealed: they prove that something was lost if
            # the process ends before the next line.
            segments = _begin_epoch(disk, recovery)
        elif tail.is_unborn:
            header = Header(info.epoch, info.base, info.created_ms)
            with_reserve(disk, lambda: create_segment(disk, header)).close()
        elif torn:
            cut(file, info.bytes)
    finally:
        file.close()
    return msgspec.structs.replace(
        recovery, epoch=segments[-1].epoch, segments=segments, torn=torn, is_repaired=True
    )


def _begin_epoch(disk: Disk, recovery: LogRecovery) -> tuple[SegmentInfo, ...]:
    last = recovery.segments[-1]
    header = Header(recovery.latest_epoch + 1, recovery.head, last.max_ms)
    with_reserve(disk, lambda: create_segment(disk, header)).close()
    kept = recovery.segments if last.end > last.base else recovery.segments[:-1]
    return (*kept, new_segment(header))
