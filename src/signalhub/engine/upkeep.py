"""Search and erase entries of the log, on the upkeep thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from math import inf
from typing import Final

import msgspec

from signalhub.core import refusals
from signalhub.core.effects import EraseEntries, Locate, Located, Match
from signalhub.log.commit import UpkeepThread
from signalhub.log.erasure import SegmentErasure, remove_torn
from signalhub.log.errors import EntriesGone, LogDamaged, LogFull, storage_error
from signalhub.log.footer import read_footer
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import Unreadable
from signalhub.log.segment import SegmentInfo
from signalhub.wire.entry import Kind, RoomEffect, StoredEntry, decode_body
from signalhub.wire.errors import Refusal, SignalHubError
from signalhub.wire.room_ids import INBOX_PREFIX

log_lines = logging.getLogger("signalhub.log")

# Entries per slice of work; one takes a few microseconds.
_SLICE_ENTRIES: Final = 100

Slices = Generator[None, None, None]


class SegmentEraser:
    """Performs the erasures of the core; reports on the loop."""

    def __init__(
        self,
        log: Log,
        upkeep: UpkeepThread,
        loop: asyncio.AbstractEventLoop,
        forget: Callable[[list[int], Callable[[], None]], None],
    ) -> None:
        """`forget` releases replaced segments, then calls back on the loop."""
        self._log = log
        self._upkeep = upkeep
        self._loop = loop
        self._forget = forget

    def locate(self, locate: Locate, done: Callable[[Located | None], None]) -> None:
        """Start to search the log."""
        self._upkeep.run(lambda: self._locate(locate, done))

    def erase(self, erase: EraseEntries, done: Callable[[int | Refusal], None]) -> None:
        """Start to rewrite the segments."""
        self._upkeep.run(lambda: self._erase(erase, done))

    def _locate(self, locate: Locate, done: Callable[[Located | None], None]) -> Slices:
        torn, located = 0, None
        try:
            if locate.needle:
                torn = yield from remove_torn(self._log.disk, [locate.needle])
            located = yield from self._look(locate)
            located.torn = torn
            if any(one.offset >= self._log.segments[-1].base for one in located.found):
                # Entries can be erased only from a sealed segment.
                self._log.roll_soon()
        except Exception:
            # The caller must get an answer in any case.
            log_lines.exception("the log could not be searched")
        self._loop.call_soon_threadsafe(done, located)

    def _look(self, locate: Locate) -> Generator[None, None, Located]:
        reader = Reader(self._log)
        found: list[Match] = []
        offset, end = locate.from_offset, locate.to_offset
        try:
            while offset < end and len(found) < locate.count_max:
                offset = max(offset, self._log.first)
                try:
                    for stored in reader.scan(offset, end):
                        offset = stored.offset + 1
                        match = locate.choose(stored)
                        found += [] if match is None else [match]
                        if len(found) == locate.count_max:
                            break
                        if offset % _SLICE_ENTRIES == 0:
                            yield
                except EntriesGone as gone:
                    # Retention deleted them in the meantime.
                    offset = max(offset, gone.first)
        finally:
            reader.close()
        return Located(found, min(offset, end))

    def _erase(self, erase: EraseEntries, done: Callable[[int | Refusal], None]) -> Slices:
        erasures = [
            SegmentErasure(tuple(body.ranges), body.pseudonym, tuple(body.renamed))
            for body in erase.bodies
        ]
        try:
            rewritten = yield from self._log.erase(erasures)
        except Exception as error:
            log_lines.exception("entries could not be erased; retrying later")
            self._loop.call_soon_threadsafe(done, refusal_of(error))
            return
        bases = [one.info.base for one in rewritten]
        if bases:
            facts = {"segments": len(bases), "entries": sum(one.erased for one in rewritten)}
            log_lines.info("entries were erased", extra=facts)
        self._forget(bases, lambda: done(len(bases)))


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for entries that the log could not write or erase."""
    if isinstance(error, OSError):
        error = storage_error(error)
    if isinstance(error, LogFull):
        return refusals.storage_full()
    if isinstance(error, LogDamaged):
        return refusals.storage_damaged(error.segment, error.position, error.reason)
    return refusals.storage_failed()


# Expired messages of a segment are erased together, up to this much later.
LINGER_MS: Final = 3_600_000
# Recovery rebuilds proposals from their messages, until a week after the proposals are finished.
CONTROL_LINGER_MS: Final = 9 * 86_400_000

_SLICE_RUNS: Final = 100


class _Ends(msgspec.Struct, array_like=True, gc=False):
    """The part of `RoomMessageBody` that determines when it expires."""

    message_id: msgspec.Raw
    ciphertext: msgspec.Raw
    created_ms: msgspec.Raw
    expires_ms: int
    is_appended: msgspec.Raw = msgspec.Raw()
    control: RoomEffect | None = None


class Expirer:
    """Erases expired messages of rooms, one segment at a time, on the upkeep thread."""

    def __init__(
        self,
        log: Log,
        upkeep: UpkeepThread,
        forget: Callable[[list[int], Callable[[], None]], None],
    ) -> None:
        """`forget` releases replaced segments."""
        self._log = log
        self._upkeep = upkeep
        self._forget = forget
        # When to examine each segment; a missing one has not been examined yet.
        self._due_ms: dict[int, float] = {}
        self._is_busy = False

    def look(self, now_ms: int) -> None:
        """Start to rewrite at most one segment."""
        if not self._is_busy and self._log.fault is None:
            self._is_busy = True
            self._upkeep.run(lambda: self._look(now_ms))

    def _look(self, now_ms: int) -> Slices:
        tried = -1
        try:
            sealed = [info for info in self._log.segments if info.is_sealed]
            known = {info.base for info in sealed}
            self._due_ms = {base: due for base, due in self._due_ms.items() if base in known}
            for info in sealed:
                if self._due_ms.get(info.base, 0) > now_ms:
                    continue
                # Postponed first, so that a segment that fails does not block later ones.
                tried = info.base
                self._due_ms[tried] = now_ms + LINGER_MS
                if (yield from self._has_rooms(info)):
                    yield from self._take_out(info, now_ms)
                    return
                self._due_ms[info.base] = inf
        except LogFull:
            # Rewriting other segments would fail as well.
            self._due_ms.pop(tried, None)
            log_lines.warning("expired messages remain in the log: the disk is full")
        except (SignalHubError, OSError, msgspec.MsgspecError):
            log_lines.exception("expired messages could not be erased from the log")
        finally:
            self._is_busy = False

    def _has_rooms(self, info: SegmentInfo) -> Generator[None, None, bool]:
        file = self._log.disk.open(info.name, read_only=True)
        try:
            for streams in read_footer(file).last_seqs(_SLICE_RUNS):
                if any(name.startswith(INBOX_PREFIX) for name, _, _ in streams):
                    return True
                yield
        except Unreadable:
            # The scan will report the damage.
            return True
        finally:
            file.close()
        return False

    def _take_out(self, info: SegmentInfo, now_ms: int) -> Slices:
        expired: list[int] = []
        oldest_ms = next_ms = inf
        reader = Reader(self._log)
        try:
            for stored in reader.scan(info.base, info.end):
                ends_ms = _ends_ms(stored)
                if ends_ms > now_ms:
                    next_ms = min(next_ms, ends_ms)
                else:
                    expired.append(stored.offset)
                    oldest_ms = min(oldest_ms, ends_ms)
                if stored.offset % _SLICE_ENTRIES == 0:
                    yield
        finally:
            reader.close()
        is_due = next_ms == inf or oldest_ms + LINGER_MS <= now_ms
        if expired and is_due:
            erasure = SegmentErasure(tuple((offset, offset) for offset in expired))
            rewritten = yield from self._log.erase([erasure])
            self._forget([one.info.base for one in rewritten], lambda: None)
            facts = {"segment": info.name, "entries": len(expired)}
            log_lines.info("expired messages were erased from the log", extra=facts)
        elif expired:
            next_ms = min(next_ms, oldest_ms)
        self._due_ms[info.base] = next_ms + LINGER_MS


def _ends_ms(stored: StoredEntry) -> float:
    """Return when the content of an entry must be erased; infinity for most entries."""
    if stored.kind != Kind.ROOM_MESSAGE or stored.is_erased:
        return inf
    ends = decode_body(_Ends, stored.body)
    return ends.expires_ms + (0 if ends.control is None else CONTROL_LINGER_MS)
