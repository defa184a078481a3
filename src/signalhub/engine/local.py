"""The engine with a log on the local disk.

The entries of one tick are submitted together, and group commit puts those of several ticks under
one sync. A separate thread reads from the disk, so the loop never blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from signalhub.clock import Clock
from signalhub.core.effects import Append, EraseEntries, Fetch, FindTime, Locate, Located
from signalhub.engine.port import Outcomes, Unwritten
from signalhub.engine.upkeep import Expirer, SegmentEraser, refusal_of
from signalhub.log.commit import Committed, GroupCommit, NotCommitted, Outcome, UpkeepThread
from signalhub.log.disk import Disk, SystemDisk
from signalhub.log.errors import LogDamaged, LogFull
from signalhub.log.head import Head
from signalhub.log.index import Index
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.recovery import LogRecovery, recover
from signalhub.log.retention import expendable, unwanted
from signalhub.log.segment import SegmentInfo
from signalhub.settings import model
from signalhub.wire.entry import StoredEntry
from signalhub.wire.errors import Refusal, SettingsError, SignalHubError

log_lines = logging.getLogger("signalhub.log")

# Delay of the report of a failed read.
_RETRY_S = 1.0
# Subscriptions and mailboxes that are named when they hold up retention.
_HELD_SHOWN_MAX = 10

T = TypeVar("T")


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What must not be deleted by retention."""

    unsettled: list[tuple[str, int, int, str]]
    """The oldest unsettled positions: stream, epoch of the stream, seq, and whose it is: the name
    of a subscription, empty for a mailbox."""
    needed: int | None
    """Messages of rooms that can still be fetched start at this offset; `None` if none can."""
    saved: int
    """Entries from this offset on are in no snapshot, and are never deleted."""
    landed: int | None
    """Every entry before this offset is in the lake, where messages of rooms can be read;
    `None` without a lake."""
    anchored: int
    """The oldest offset with a definition that is in use."""
    streams: list[tuple[str, int]]
    """All streams with their epochs."""


class Pin(msgspec.Struct, frozen=True):
    """The oldest entry that a subscription or a mailbox needs; a mailbox has no `subscription`."""

    offset: int
    stream: str
    subscription: str = ""


class HeldUp(msgspec.Struct, frozen=True):
    """Segments that exceed `log.retention_s` or `retention_bytes`, and who still needs them."""

    by: list[str] = []
    bytes: int = 0
    oldest: list[Pin] = []
    """The first of the subscriptions and mailboxes that hold them."""
    count: int = 0


class LocalEngine:
    """A log in a folder, with its threads."""

    def __init__(
        self,
        path: Path,
        log_settings: model.LogSettings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        disk: Disk | None = None,
        known: Head | None = None,
        on_loss: Callable[[LogRecovery], object] = lambda found: None,
    ) -> None:
        """Recover and open the log; raises `SettingsError` if its folder cannot be used.

        `known` is a head that is known from elsewhere. `on_loss` is called before a repair if
        entries that had been visible are lost.
        """
        self._loop = loop
        self._clock = clock
        self._settings = log_settings
        try:
            self.disk: Disk = disk or SystemDisk(path)
            self.recovery = recover(self.disk, repair=True, known=known, on_loss=on_loss)
            self.log = Log(self.disk, log_settings, self.recovery, clock=clock)
        except (OSError, SignalHubError) as error:
            raise SettingsError(f"the log in {path} cannot be opened: {error}") from error
        _report(self.recovery)
        self._outcomes: Outcomes
        # All commits before this offset have been reported.
        self.reported = self.log.head
        # What retention could not delete when it last ran.
        self.held = HeldUp()
        self.unwritten = Unwritten(log_settings.waiting_bytes_max)
        self._taken: list[Append] = []
        self._pending: deque[Append] = deque()
        index = Index(self.disk) if isinstance(self.disk, SystemDisk) else None
        self._index = index
        self._reader = Reader(self.log, index)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="signalhub-read")
        self._commit = GroupCommit(self.log, self._reported)
        self._upkeep = UpkeepThread(self.log)
        self._eraser = SegmentEraser(self.log, self._upkeep, loop, self._forget)
        self._expirer = Expirer(self.log, self._upkeep, self._forget)
        self._is_written = asyncio.Event()
        self._is_closed = False

    def report_to(self, outcomes: Outcomes) -> None:
        """Set the receiver of outcomes; call this before the first append."""
        self._outcomes = outcomes

    @property
    def epoch(self) -> int:
        return self.log.epoch

    @property
    def head(self) -> int:
        return self.log.head

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.log.segments)

    @property
    def first(self) -> int:
        return self.log.first

    @property
    def epoch_first(self) -> int:
        """The oldest readable offset of this epoch."""
        bases = (info.base for info in self.log.segments if info.epoch == self.epoch)
        return next(bases, self.log.head)

    def scan(self, from_offset: int) -> Iterator[StoredEntry]:
        return self._reader.scan(max(from_offset, self.log.first))

    @property
    def newest_ms(self) -> int:
        """A time that the log has reached; 0 if it is new."""
        return max((info.max_ms for info in self.recovery.segments[-1:]), default=0)

    def offset_at_time(self, time_ms: int) -> int:
        for info in self.log.segments:
            if not info.is_sealed or info.max_ms >= time_ms:
                return info.base
        return self.log.head

    # Writing.

    def append(self, append: Append) -> None:
        self._taken.append(append)
        self.unwritten.add(append)

    def flush(self) -> None:
        if not self._taken or self._is_closed:
            return
        taken, self._taken = self._taken, []
        fault = self.log.fault
        if fault is not None:
            self.unwritten.remove(taken)
            self._outcomes.refused(taken, refusal_of(fault), is_final=True)
            self._is_written.set()
            return
        self._pending.extend(taken)
        self._commit.submit([one.entry for one in taken])

    def hasten(self) -> None:
        if self._taken and self.log.fault is None:
            self.flush()

    def _reported(self, outcome: Outcome) -> None:
        """Forward an outcome to the loop; called on the commit thread."""
        self._loop.call_soon_threadsafe(self._heard, outcome)

    def _heard(self, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            pending = self._pending
            self.reported = outcome.end
            done = []
            left = outcome.end - outcome.first
            while left > 0:
                done.append(one := pending.popleft())
                left -= one.entry.count
            self.unwritten.remove(done)
            self._outcomes.committed(done, outcome.first)
            self._is_written.set()
            return
        assert isinstance(outcome, NotCommitted)
        # Entries added since then have later positions, so they are refused as well.
        lost = [*self._pending, *self._taken]
        self._pending.clear()
        self._taken = []
        self.unwritten.remove(lost)
        is_full = isinstance(outcome.error, LogFull)
        unknown = outcome.attempted - outcome.first
        facts = {"reason": str(outcome.error), "entries": _count(lost), "unknown": unknown}
        log_lines.error("the log refused entries", extra=facts)
        refusal = refusal_of(outcome.error)
        try:
            self._outcomes.refused(lost, refusal, is_final=not is_full, unknown=unknown)
        finally:
            # Without this, later entries would be dropped and never be reported.
            self._commit.resume()
            self._is_written.set()

    @property
    def waiting(self) -> int:
        """The number of entries that are not committed yet."""
        return _count(self._pending) + _count(self._taken)

    async def wait_until_written(self) -> None:
        """Wait until all entries are committed or refused."""
        while self._pending or self._taken:
            self._is_written.clear()
            await self._is_written.wait()

    # Reading.

    def fetch(self, fetch: Fetch, done: Callable[[list[StoredEntry] | None], None]) -> None:
        def read() -> list[StoredEntry]:
            return self._reader.read(
                fetch.stream, fetch.stream_epoch, fetch.from_seq, fetch.count_max, fetch.bytes_max
            )

        self._in_thread(read, done)

    def find_time(self, find: FindTime, done: Callable[[int | None], None]) -> None:
        def look() -> int:
            time_ms = int(find.time_ms)
            return self._reader.seq_at_time(find.stream, find.stream_epoch, time_ms) or 0

        self._in_thread(look, done)

    def _in_thread(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        def run() -> None:
            try:
                found = work()
            except Exception as error:
                self._loop.call_soon_threadsafe(self._failed, error, done)
            else:
                self._loop.call_soon_threadsafe(done, found)

        self._threads.submit(run)

    def _failed(self, error: Exception, done: Callable[[T | None], None]) -> None:
        """Report a failed read after a delay, so that a broken disk is not read in a busy loop."""
        self.log.tally.read_errors += 1
        if isinstance(error, LogDamaged) and isinstance(self.log.fault, LogDamaged):
            # Damage that is known: what is wrong, not where the hub has met it again.
            where = {"segment": error.segment, "position": error.position, "reason": error.reason}
            log_lines.error("the log could not be read", extra=where)
        else:
            log_lines.error("the log could not be read", exc_info=error)
        if isinstance(error, LogDamaged):
            self.log.found_damaged(error)
            self._outcomes.damaged(refusal_of(error))
        self._loop.call_later(_RETRY_S, done, None)

    # Erasing.

    def locate(self, locate: Locate, done: Callable[[Located | None], None]) -> None:
        self._eraser.locate(locate, done)

    def erase(self, erase: EraseEntries, done: Callable[[int | Refusal], None]) -> None:
        self._eraser.erase(erase, done)

    def expire(self) -> None:
        """Start to erase expired messages from a segment."""
        self._expirer.look(self._clock.now_ms())

    def _forget(self, bases: list[int], done: Callable[[], None]) -> None:
        """Forget replaced segments and index them again, on the reading thread."""

        def forget() -> None:
            # An open file would keep the erased content on the disk.
            self._reader.close()
            if self._index is not None:
                self._index.forget(bases)
                list(self._index.update(self.log.segments))

        self._in_thread(forget, lambda _: done())

    # Upkeep.

    def retain(
        self,
        needs: Needs,
        cut: Callable[[dict[int, int]], None],
        anchor: Callable[[int], None],
        wait: Callable[[list[SegmentInfo]], None],
    ) -> None:
        """Start to delete segments that are no longer needed.

        `anchor` gets the offset before which definitions must be written again first. After a
        deletion, `cut` gets the oldest remaining position of each stream (0 if none), by the
        stream's epoch. `wait` gets the segments that are kept only because they have not landed.
        """
        self._threads.submit(self._retain, needs, cut, anchor, wait)

    def _retain(
        self,
        needs: Needs,
        cut: Callable[[dict[int, int]], None],
        anchor: Callable[[int], None],
        wait: Callable[[list[SegmentInfo]], None],
    ) -> None:
        if isinstance(self.log.fault, LogDamaged):
            # What lies behind the damage may need older entries.
            return
        landed = self.log.head if needs.landed is None else needs.landed
        rooms = self.log.head if needs.needed is None else needs.needed
        try:
            pins = self._pins(needs)
            floor = min([self.log.head, rooms, *(pin.offset for pin in pins)])
            chosen = self._expendable(floor, needs.saved)
            self.held = self._held_up(pins, rooms, landed)
        except Exception:
            log_lines.exception("retention failed")
            return
        self._loop.call_soon_threadsafe(wait, [info for info in chosen if info.end > landed])
        chosen = [info for info in chosen if info.end <= landed]
        if chosen and chosen[-1].end > needs.anchored:
            self._loop.call_soon_threadsafe(anchor, chosen[-1].end)
        free = [info for info in chosen if info.end <= needs.anchored]
        if free:
            self._upkeep.run(lambda: self._delete(free, needs.streams, cut))
        elif self._index is not None:
            index = self._index
            self._threads.submit(lambda: list(index.update(self.log.segments)))

    def _pins(self, needs: Needs) -> list[Pin]:
        """Return from which offsets on subscriptions and mailboxes need the log, oldest first."""
        pins = [
            Pin(one.offset, stream, subscription)
            for stream, epoch, seq, subscription in needs.unsettled
            for one in self._reader.read(stream, epoch, seq, 1, 0)
        ]
        return sorted(pins, key=lambda pin: pin.offset)

    def _held_up(self, pins: list[Pin], rooms: int, landed: int) -> HeldUp:
        """Find out who needs a segment that exceeds a limit.

        Rooms keep their messages for a time of their own, so only the size counts for them.
        """
        settings, segments, now_ms = self._settings, self.log.segments, self._clock.now_ms()
        bytes_max = settings.retention_bytes
        large = unwanted(segments, now_ms, age_s=math.inf, bytes_max=bytes_max)
        old = unwanted(segments, now_ms, age_s=settings.retention_s, bytes_max=bytes_max)
        if not old:
            return HeldUp()
        if not settings.keep_unsettled:
            pins, rooms = [], self.log.head
        held = [pin for pin in pins if pin.offset < old[-1].end]
        by = [
            *(["subscriptions"] if any(pin.subscription for pin in held) else []),
            *(["mailboxes"] if any(not pin.subscription for pin in held) else []),
            *(["rooms"] if large and rooms < large[-1].end else []),
            *(["pipeline"] if landed < old[-1].end else []),
        ]
        return HeldUp(by, sum(info.bytes for info in old), held[:_HELD_SHOWN_MAX], len(held))

    def _expendable(self, floor: int, saved: int) -> list[SegmentInfo]:
        return expendable(
            self.log.segments,
            self._clock.now_ms(),
            age_s=self._settings.retention_s,
            bytes_max=self._settings.retention_bytes,
            floor=floor,
            saved=saved,
            keep_unsettled=self._settings.keep_unsettled,
        )

    def _delete(
        self,
        free: list[SegmentInfo],
        streams: list[tuple[str, int]],
        cut: Callable[[dict[int, int]], None],
    ) -> None:
        self.log.remove(free)
        self._in_thread(lambda: self._earliest(streams), lambda firsts: cut(firsts or {}))
        names = [info.name for info in free]
        log_lines.info("old segments were deleted", extra={"segments": names})

    def _earliest(self, streams: list[tuple[str, int]]) -> dict[int, int]:
        """Return the oldest position of each stream after a deletion."""
        # An open file would keep the space of a deleted segment.
        self._reader.close()
        return {epoch: self._reader.earliest(name, epoch) or 0 for name, epoch in streams}

    def close(self) -> None:
        self.flush()
        self._is_closed = True
        with contextlib.ExitStack() as rest:
            # Close all of them, even if one raises.
            rest.callback(self.log.close)
            if self._index is not None:
                rest.callback(self._index.close)
            rest.callback(self._reader.close)
            rest.callback(self._threads.shutdown, wait=True)
            rest.callback(self._upkeep.close)
            rest.callback(self._commit.close)


def _count(appends: Iterable[Append]) -> int:
    return sum(one.entry.count for one in appends)


def _report(recovery: LogRecovery) -> None:
    torn = recovery.torn
    if torn is not None and torn.saved_as is not None:
        log_lines.warning(
            "a torn end of the log was cut and saved",
            extra={"segment": torn.segment, "bytes": torn.bytes, "saved_as": torn.saved_as},
        )
    if (damage := recovery.damage) is not None:
        fault = LogDamaged(damage.segment, damage.position, damage.reason)
        log_lines.error("the log is damaged and opened read-only", extra={"reason": str(fault)})
    if recovery.epoch_changed:
        log_lines.error(
            "entries that had been visible are lost; the log has a new epoch",
            extra={"from": recovery.lost_from, "to": recovery.lost_to},
        )
    if recovery.unknown_end:
        log_lines.warning(
            "the end of the log cannot be checked: lost entries would not be noticed",
            extra={"reason": recovery.unknown_end},
        )
    if recovery.foreign:
        log_lines.warning(
            "unknown files in the log folder were ignored", extra={"files": recovery.foreign}
        )
