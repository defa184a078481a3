"""The synchronous owner of the log: one batch, one write, one sync, then publish.

`append`, `sync` and `close` belong to one thread, `upkeep`, `erase` and `remove` to one thread, the
same or another; everything else may be called from any thread. Shared values are only replaced as a
whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from secrets import token_bytes
from threading import Lock
from typing import Final, Literal

from signalhub.clock import Clock
from signalhub.counters import LogTally
from signalhub.log.active import Active
from signalhub.log.disk import Disk, File
from signalhub.log.erasure import Rewritten, SegmentErasure, rewrite
from signalhub.log.errors import LogDamaged, LogFailed, LogFull, storage_error
from signalhub.log.head import Head, encode_head, open_head
from signalhub.log.positions import LatePositions, Lookup
from signalhub.log.record import (
    HEADER_BYTES,
    SALT_BYTES,
    Unreadable,
    encode_batch,
    encode_entries,
)
from signalhub.log.recovery import LogRecovery
from signalhub.log.repair import keep_reserve, with_reserve
from signalhub.log.retention import keep_footer
from signalhub.log.seal import previous_chain_of, seal
from signalhub.log.segment import (
    PREPARED_NAME,
    Header,
    SegmentInfo,
    create_segment,
    new_segment,
    prepare_segment,
)
from signalhub.log.survey import Damage
from signalhub.settings import model
from signalhub.wire.entry import Entry, EntryRun

State = Literal["open", "full", "failed", "damaged"]
Slices = Generator[None, None, None]

_RESERVE_BYTES_MAX: Final = 2 * 2**20
_DOOMED_SLICE: Final = 500


def _damaged(found: Damage | None) -> LogDamaged | None:
    return None if found is None else LogDamaged(found.segment, found.position, found.reason)


class Log:
    """The log of one shard, as `recover` found and repaired it.

    A damaged log can be read but not appended to; so can a failed one, until the next start.
    """

    def __init__(
        self, disk: Disk, log_settings: model.LogSettings, recovery: LogRecovery, *, clock: Clock
    ) -> None:
        """Open or create the log; raises `LogFull` or `LogFailed`."""
        self.disk: Final = disk
        self.head = recovery.head
        """The offset after the last entry committed as the setting `log.sync` requires."""
        self.durable_head = recovery.head
        """Everything below is synced; equal to `head` with `sync = "always"`."""
        self.attempted = recovery.head
        """Entries from `head` up to here may be on disk although their batch failed."""
        self.epoch = recovery.epoch
        self.on_upkeep: Callable[[], None] = lambda: None
        """Called by `append` when there is something new for `upkeep`."""
        self.tally: Final = LogTally(
            torn_tails=int(recovery.torn is not None),
            epoch_changes=int(recovery.epoch_changed),
        )
        self.is_cut: Final = recovery.is_cut
        """There is damage, and it is unknown what followed `head`."""
        self.hole: Final = _damaged(recovery.hole)
        """What is missing before `first` was perhaps not removed by retention."""
        self._settings = log_settings
        self._reserve_bytes = min(_RESERVE_BYTES_MAX, log_settings.segment_bytes // 4)
        self._clock = clock
        self._fault: LogFailed | LogDamaged | None = None
        self._is_full = False
        self._previous_chain = recovery.previous_chain
        self._segments = {info.base: info for info in recovery.segments}
        self._lookups: dict[int, tuple[Lookup, ...]] = {
            info.base: (LatePositions(disk, info),)
            for info in recovery.segments
            if not info.is_sealed
        }
        # Held while a file replaces another, until the list of segments is updated.
        self._replacing = Lock()
        self._active: Active | None = None
        self._prepared: File | None = None
        if recovery.damage:
            self._fault = _damaged(recovery.damage)
            return
        assert recovery.is_repaired, "a log must be repaired before it is opened"
        try:
            self._open(recovery.latest_epoch)
        except OSError as error:
            raise storage_error(error) from error

    @property
    def state(self) -> State:
        """Whether the log accepts entries: `open`, or why not."""
        match self._fault:
            case LogDamaged():
                return "damaged"
            case LogFailed():
                return "failed"
        return "full" if self._is_full else "open"

    @property
    def fault(self) -> LogFailed | LogDamaged | None:
        """The error that prevents writing until the next start."""
        return self._fault

    @property
    def interval_s(self) -> float | None:
        """The interval between two syncs; None if they are not periodic."""
        is_timed = self._settings.sync == "interval"
        return self._settings.interval_ms / 1000 if is_timed else None

    @property
    def first(self) -> int:
        """The oldest offset that can still be read."""
        bases = list(self._segments)
        return bases[0] if bases else self.head

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The present segments, oldest first."""
        active, known = self._active, tuple(self._segments.values())
        if active is None:
            return known
        return tuple(active.info if info.base == active.base else info for info in known)

    def refresh(self) -> None:
        """Nothing to do but wait for a change in progress: this process knows its own log."""
        with self._replacing:
            pass

    def lookups(self, base: int) -> tuple[Lookup, ...]:
        """The look-ups of an unsealed segment; none for others."""
        return self._lookups.get(base, ())

    def append(self, entries: Sequence[Entry | EntryRun]) -> int:
        """Commit one batch and return its first offset; `head` is the offset after its last.

        Raises `LogFull` if it did not happen, or, permanently, `LogFailed` if that is unknown.
        """
        assert entries, "a batch has entries"
        if self._fault:
            raise self._fault
        count = sum([one.count for one in entries])
        records = encode_entries(list(entries), token_bytes(SALT_BYTES * count))
        data = records.data
        active = self._room_for(HEADER_BYTES + len(data))
        first, time_ms = self.head, self._clock.now_ms()
        self.attempted = end = first + count
        self._write(
            active,
            encode_batch(
                (data,),
                first=first,
                epoch=self.epoch,
                durable=self.durable_head,
                time_ms=time_ms,
                count=count,
            ),
        )
        durable = end if self._settings.sync == "always" else self.durable_head
        self._publish(durable, end)
        active.keep(records, time_ms)
        self.head, self.durable_head = end, durable
        self._is_full = False
        self._ask_for_next(active)
        return first

    def sync(self) -> None:
        """Make everything appended durable and publish it; raises `LogFailed`, permanently."""
        if self._fault:
            raise self._fault
        active = self._active
        if active is None or self.durable_head == self.head:
            return
        try:
            self._sync(active)
        except OSError as error:
            # Some of it was reported as committed, so even a full disk is a permanent failure.
            raise self._fail(error) from error
        self.durable_head = self.head
        self._publish(self.head, self.head)

    def roll_soon(self) -> None:
        """Start a new segment with the next entry; may be called from any thread."""
        active = self._active
        if active is not None:
            active.rolls_at_s = -inf

    def found_damaged(self, damage: LogDamaged) -> None:
        """A reader found damage: the log becomes read-only."""
        self._fault = self._fault or damage

    def fail(self, reason: str) -> LogFailed:
        """Accept no more entries until the next start."""
        failure = LogFailed(reason)
        self._fault = self._fault or failure
        return failure

    def close(self) -> None:
        """Sync the rest and close the files."""
        if self._active is None:
            return
        try:
            if not self._fault:
                self.sync()
        finally:
            self._active.close()
            self._published.close()
            if self._prepared:
                self._prepared.close()
                if not self._fault:
                    with contextlib.suppress(OSError):
                        self.disk.remove(PREPARED_NAME)

    def _open(self, latest_epoch: int) -> None:
        now_ms = self._clock.now_ms()
        if self._segments:
            info = next(reversed(self._segments.values()))
            file = self.disk.open(info.name)
        else:
            # A new log must not be mistaken for an older one, so epochs start from the time, also
            # if the clock is behind.
            self.epoch = max(now_ms // 1000, latest_epoch + 1)
            header = Header(self.epoch, 0, now_ms)
            info, file = new_segment(header), create_segment(self.disk, header)
        self._activate(file, info, age_s=max(0, now_ms - info.created_ms) / 1000)
        self._published = open_head(self.disk)
        self._publish(self.head, self.head)
        self._keep_head()
        keep_reserve(self.disk, self._reserve_bytes)

    def _activate(self, file: File, info: SegmentInfo, *, age_s: float = 0.0) -> Active:
        rolls_in_s = max(0.0, self._settings.segment_s - age_s)
        active = Active(self.disk, file, info, rolls_at_s=self._clock.mono_s() + rolls_in_s)
        self._lookups[info.base] = active.lookups
        self._segments[info.base] = info
        self._active = active
        return active

    def _room_for(self, batch_bytes: int) -> Active:
        active = self._active
        assert active is not None, "a log without a fault has an active segment"
        is_too_large = active.size + batch_bytes > self._settings.segment_bytes
        is_too_old = self._clock.mono_s() >= active.rolls_at_s
        if active.is_empty or not (is_too_large or is_too_old):
            return active
        # Only the last segment may have a torn end, so finish this one before the next.
        self.sync()
        # In this order, so that `upkeep` does not prepare another one meanwhile.
        active.has_asked_for_next = False
        prepared, self._prepared = self._prepared, None
        header = Header(self.epoch, self.head, self._clock.now_ms())
        try:
            file = create_segment(self.disk, header, prepared=prepared)
        except OSError as error:
            # The next segment may already have its name; then this one must not grow past it.
            active.rolls_at_s = -inf
            raise self._refuse(error) from error
        self._segments[active.base] = active.info
        active.close()
        following = self._activate(file, new_segment(header))
        self.on_upkeep()
        return following

    def _write(self, active: Active, batch: bytes) -> None:
        is_written = False
        try:
            active.write(batch)
            is_written = True
            if self._settings.sync == "always":
                self._sync(active)
        except OSError as error:
            refusal = self._refuse(error)
            if isinstance(refusal, LogFull):
                self._cut_back(active, is_written=is_written)
            raise refusal from error
        self.tally.batches += 1
        self.tally.bytes += len(batch)

    def _sync(self, active: Active) -> None:
        began_s = self._clock.mono_s()
        active.sync()
        self.tally.sync_latency.observe(self._clock.mono_s() - began_s)

    def _cut_back(self, active: Active, *, is_written: bool) -> None:
        try:
            active.cut_back()
            if is_written:
                # The whole batch may be on disk; refusing it promises that it is not.
                active.sync()
        except OSError as error:
            raise self._fail(error) from error
        self.attempted = self.head

    def _refuse(self, error: OSError) -> LogFull | LogFailed:
        refusal = storage_error(error)
        if isinstance(refusal, LogFailed):
            return self._fail(error)
        self._is_full = True
        return refusal

    def _fail(self, error: OSError) -> LogFailed:
        return self.fail(error.strerror or str(error))

    def _publish(self, durable: int, shown: int) -> None:
        try:
            if self._published.is_removed():
                # If that fails, the old one stays open: its number must not become another file's.
                removed, self._published = self._published, open_head(self.disk)
                removed.close()
            self._published.write(encode_head(Head(self.epoch, durable, shown)), 0)
        except OSError as error:
            # If there is no space for these few bytes, readers go on with the older head.
            if isinstance(storage_error(error), LogFailed):
                raise self._fail(error) from error

    def _keep_head(self) -> None:
        """Let the file of the heads, which may be new, survive a power cut."""
        try:
            self._published.sync()
            self.disk.sync()
        except OSError as error:
            if isinstance(storage_error(error), LogFailed):
                raise

    def _ask_for_next(self, active: Active) -> None:
        if active.size * 2 >= self._settings.segment_bytes and not active.has_asked_for_next:
            active.has_asked_for_next = True
            self.on_upkeep()

    @property
    def has_upkeep(self) -> bool:
        """Whether `upkeep` has something to do."""
        return not self._fault and (self._wants_next or self._unsealed() is not None)

    def upkeep(self) -> Slices:
        """Background work: prepare the next segment, seal the old ones.

        Run it with `for _ in log.upkeep(): pause`; nothing between two pauses takes much more than
        half a millisecond. A full disk ends it early. Segments that roll meanwhile are left to the
        next call, so that a busy log does not keep the caller forever.
        """
        try:
            slices = self._chores()
            while not self._fault and next(slices, self) is not self:
                yield
        except LogDamaged as damage:
            self._fault = damage
        except OSError as error:
            if isinstance(storage_error(error), LogFailed):
                self._fail(error)

    def _chores(self) -> Slices:
        if self._wants_next:
            yield from self._prepare()
        end = self.segments[-1].base
        while (found := self._unsealed()) and found[0].base < end:
            yield from self._seal(*found)

    def remove(self, segments: Sequence[SegmentInfo]) -> None:
        """Delete the oldest segments, keeping their footers; raises `LogFull`, `LogFailed`.

        Segments that are already deleted are skipped.
        """
        for info in segments:
            if info.base < self.first:
                continue
            assert info.is_sealed, "only a sealed segment can be proven after its deletion"
            assert info.base == self.first, "segments are deleted in order"
            try:
                with_reserve(self.disk, partial(keep_footer, self.disk, info))
                # Readers must find every listed segment, so unlist it before the deletion.
                self._previous_chain = info.chain
                del self._segments[info.base]
                self.disk.remove(info.name)
                self.disk.sync()
                keep_reserve(self.disk, self._reserve_bytes)
            except OSError as error:
                raise self._refuse(error) from error
            except Unreadable as error:
                self._fault = LogDamaged(info.name, info.bytes, str(error))
                raise self._fault from error

    def erase(self, erasures: Sequence[SegmentErasure]) -> Generator[None, None, list[Rewritten]]:
        """Remove the content of entries from their segments, in slices.

        They must not be in the last segment: see `roll_soon`. Deleted or erased ones are skipped,
        so this may be repeated. Raises `LogFull`, `LogFailed` or `LogDamaged`.
        """
        done: list[Rewritten] = []
        yield from self.upkeep()
        for base in list(self._segments):
            info = self._segments.get(base)
            if info is None or not any(one.concerns(info) for one in erasures):
                continue
            if self._fault:
                raise self._fault
            if not info.is_sealed:
                # There was no space for its footer.
                raise LogFull
            try:
                rewritten = yield from rewrite(self.disk, info, erasures)
                if rewritten:
                    self._replace(rewritten)
                    done.append(rewritten)
            except LogDamaged as damage:
                self.found_damaged(damage)
                raise
            except OSError as error:
                refusal = storage_error(error)
                raise self._fail(error) if isinstance(refusal, LogFailed) else refusal from error
        return done

    def _replace(self, rewritten: Rewritten) -> None:
        info = rewritten.info
        with self._replacing:
            self.disk.rename(rewritten.temporary, info.name)
            self._segments[info.base] = info
        self.disk.sync()

    @property
    def _wants_next(self) -> bool:
        # Check for a prepared one first: see where it is used.
        active = self._active if self._prepared is None else None
        return active is not None and active.has_asked_for_next

    def _prepare(self) -> Slices:
        try:
            self._prepared = yield from prepare_segment(self.disk, self._settings.segment_bytes)
        except OSError as error:
            if isinstance(storage_error(error), LogFailed):
                raise

    def _unsealed(self) -> tuple[SegmentInfo, bytes, SegmentInfo] | None:
        """The first segment to seal, the chain before it, and the segment after it."""
        chain = self._previous_chain
        for info, following in pairwise(tuple(self._segments.values())):
            if not info.is_sealed:
                return info, chain, following
            chain = info.chain
        return None

    def _seal(self, info: SegmentInfo, chain: bytes, following: SegmentInfo) -> Slices:
        expected = previous_chain_of(self.disk, following) if following.is_sealed else None
        self._segments[info.base] = yield from seal(self.disk, info, chain, expected)
        # Freeing all of it at once would take too long.
        known = self._lookups.pop(info.base, ())
        doomed = [part for lookup in known for part in lookup.parts()]
        del known
        while doomed:
            del doomed[-_DOOMED_SLICE:]
            yield
