"""A log in memory: it commits when the test says so, refuses when told to, and survives crashes.

It is an `Engine`, so the real runner can use it, too. Nothing is reported before `commit`; what is
not committed is gone after a crash, except as much of it as had reached the disk unreported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from typing import cast

from msgspec.structs import replace

from signalhub.core import refusals
from signalhub.core.effects import Append, EraseEntries, Fetch, FindTime, Locate, Located, Match
from signalhub.core.hub import Hub
from signalhub.core.messages.dedup import RECORD_BYTES, Recalled, Remembered, accepted_ms, recalled
from signalhub.core.placement import Row
from signalhub.core.streams.recovery import Snapshot
from signalhub.engine.local import LocalEngine
from signalhub.engine.port import Outcomes, Unwritten
from signalhub.server.startup import recover
from signalhub.state.store import KnownIdsWindow, SnapshotRow, StateStore
from signalhub.wire.entry import Entry, EntryRun, Range, StoredEntry
from signalhub.wire.errors import Refusal


class Undamaged:
    """What a start looks at in the log itself."""

    fault = None


class MemoryEngine:
    """Entries in one total order; `entries[0]` has the offset `first`."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.first = 0
        self.entries: list[StoredEntry] = []
        # By default it commits at once.
        self.is_prompt = True
        self.is_readable = True
        self.is_full = False
        self.fault: Refusal | None = None
        self.log = Undamaged()
        # After a loss rooms skip positions.
        self.has_lost = False
        self._outcomes: Outcomes
        self.unwritten = Unwritten(2**28)
        self._taken: list[Append] = []
        self._pending: deque[Append] = deque()
        self._reads: deque[Callable[[], None]] = deque()
        self._streams: dict[tuple[str, int], list[StoredEntry]] = {}
        # How often segments were rewritten.
        self.erasures = 0

    def report_to(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    @property
    def head(self) -> int:
        return self.first + len(self.entries)

    @property
    def pending(self) -> int:
        """How many entries wait for a commit."""
        return len(self._pending) + len(self._taken)

    # Writing.

    def append(self, append: Append) -> None:
        self._taken.append(append)
        self.unwritten.add(append)

    def flush(self) -> None:
        taken, self._taken = self._taken, []
        if taken and self.fault is not None:
            self.unwritten.remove(taken)
            self._outcomes.refused(taken, self.fault, is_final=True)
        else:
            self._pending.extend(taken)

    def hasten(self) -> None:
        if self.fault is None:
            self.flush()

    def commit(self, count: int | None = None) -> bool:
        """The disk has the oldest entries, all of them or `count`; `False` if there were none."""
        self.flush()
        if not self._pending:
            return False
        if self.is_full:
            self.refuse(refusals.storage_full())
            return True
        size = len(self._pending) if count is None else min(count, len(self._pending))
        done = [self._pending.popleft() for _ in range(size)]
        first = self.head
        self.unwritten.remove(done)
        for one in done:
            self._store_all(one.entry)
        self._outcomes.committed(done, first)
        return bool(done)

    def refuse(self, refusal: Refusal, *, is_final: bool = False) -> None:
        """Nothing that is on its way gets to the disk; finally: nor will anything else."""
        lost = [*self._pending, *self._taken]
        self._pending.clear()
        self._taken = []
        if is_final:
            self.fault = refusal
        self.unwritten.remove(lost)
        self._outcomes.refused(lost, refusal, is_final=is_final)

    def _store_all(self, entry: Entry | EntryRun) -> None:
        for one in entry.entries() if isinstance(entry, EntryRun) else (entry,):
            self._store(one)

    def _store(self, entry: Entry) -> None:
        stored = StoredEntry(
            self.head,
            entry.kind,
            entry.stream,
            entry.stream_epoch,
            entry.seq,
            entry.at_ms,
            entry.body,
        )
        self.entries.append(stored)
        if entry.seq:
            stream = self._streams.setdefault((entry.stream, entry.stream_epoch), [])
            is_next = not stream or entry.seq == stream[-1].seq + 1
            assert is_next or self.has_lost, f"{entry.stream} has a hole"
            stream.append(stored)

    # Reading.

    def fetch(self, fetch: Fetch, done: Callable[[list[StoredEntry]], None]) -> None:
        self.later(lambda: done(self._found(fetch)))

    def _found(self, fetch: Fetch) -> list[StoredEntry]:
        stream = self._streams.get((fetch.stream, fetch.stream_epoch), [])
        at = bisect_left(stream, fetch.from_seq, key=lambda one: one.seq)
        found: list[StoredEntry] = []
        size = 0
        for one in stream[at : at + fetch.count_max]:
            size += len(one.body)
            if found and size > fetch.bytes_max:
                break
            found.append(one)
        return found

    def find_time(self, find: FindTime, done: Callable[[int], None]) -> None:
        def look() -> None:
            stream = self._streams.get((find.stream, find.stream_epoch), [])
            done(next((one.seq for one in stream if one.at_ms >= find.time_ms), 0))

        self.later(look)

    def locate(self, locate: Locate, done: Callable[[Located | None], None]) -> None:
        def look() -> None:
            found: list[Match] = []
            end = max(locate.from_offset, self.first)
            for one in self.scan(end):
                if one.offset >= locate.to_offset or len(found) == locate.count_max:
                    break
                match = locate.choose(one)
                found += [] if match is None else [match]
                end = one.offset + 1
            else:
                end = locate.to_offset
            done(Located(found, end))

        self.later(look)

    def erase(self, erase: EraseEntries, done: Callable[[int | Refusal], None]) -> None:
        def rewrite() -> None:
            if self.is_full:
                done(refusals.storage_full())
                return
            for body in erase.bodies:
                for offset in _offsets(body.ranges):
                    if offset >= self.first:
                        name = body.pseudonym if offset in _offsets(body.renamed) else None
                        self._take_out(offset, name)
            self.erasures += 1
            done(1)

        self.later(rewrite)

    def _take_out(self, offset: int, pseudonym: str | None) -> None:
        """The entry as a rewritten segment keeps it."""
        old = self.entries[offset - self.first]
        stream = pseudonym or old.stream
        new = replace(old, stream=stream, body=bytes(32), is_erased=True)
        self.entries[offset - self.first] = new
        if old.seq:
            self._streams[old.stream, old.stream_epoch].remove(old)
            moved = self._streams.setdefault((stream, old.stream_epoch), [])
            moved.insert(bisect_left(moved, old.seq, key=lambda one: one.seq), new)

    def later(self, work: Callable[[], None]) -> None:
        """Do this when reads are answered."""
        self._reads.append(work)

    def read(self) -> bool:
        """Answer what was asked for; `False` if nothing was."""
        reads, self._reads = self._reads, deque()
        for one in reads:
            one()
        return bool(reads)

    def scan(self, from_offset: int) -> Iterator[StoredEntry]:
        yield from self.entries[max(0, from_offset - self.first) :]

    @property
    def newest_ms(self) -> int:
        return self.entries[-1].at_ms if self.entries else 0

    def offset_at_time(self, time_ms: int) -> int:
        return next((one.offset for one in self.entries if one.at_ms >= time_ms), self.head)

    # What happens to logs.

    def cut(self, offset: int) -> None:
        """Retention has deleted everything before an offset."""
        count = max(0, offset - self.first)
        gone, self.entries = self.entries[:count], self.entries[count:]
        self.first += len(gone)
        for one in gone:
            if one.seq:
                self._streams[one.stream, one.stream_epoch].pop(0)

    def crashed(self, written: int = 0) -> MemoryEngine:
        """What a new process finds: what was committed, and `written` entries never reported."""
        found = MemoryEngine(self.epoch)
        found.first = self.first
        found.entries = list(self.entries)
        found._streams = {key: list(stream) for key, stream in self._streams.items()}
        for one in [*self._pending, *self._taken][:written]:
            found._store_all(one.entry)
        found.is_prompt, found.is_readable = self.is_prompt, self.is_readable
        found.is_full, found.has_lost = self.is_full, self.has_lost
        return found

    def close(self) -> None:
        self.commit()


def _offsets(ranges: list[Range]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


class TurningEngine(MemoryEngine):
    """A log on a loop: it commits, and answers, in the turn after the one that asked."""

    def __init__(self, call_soon: Callable[[Callable[[], object]], object]) -> None:
        super().__init__()
        self._call_soon = call_soon

    def flush(self) -> None:
        super().flush()
        if self.pending and self.is_prompt:
            self._call_soon(self.commit)

    def later(self, work: Callable[[], None]) -> None:
        super().later(work)
        self._call_soon(self.read)


class Shelf:
    """Snapshots of durable streams, as the store keeps them."""

    def __init__(self) -> None:
        self._head: tuple[int, int, int, int] | None = None
        self._streams: dict[int, bytes] = {}
        self._subscriptions: dict[tuple[int, str], bytes] = {}
        self._remembered: list[Remembered] = []
        self._rooms: dict[str, bytes] = {}
        self._room_ids: list[Remembered] = []
        self._replays: bytes | None = None
        self._placements: dict[str, Row] = {}

    def save_snapshot(self, snapshot: Snapshot, epoch: int, seen_from: int) -> None:
        self._head = (epoch, snapshot.offset, seen_from, snapshot.next_id)
        for name, state in snapshot.streams.items():
            if state is None:
                self._streams.pop(name, None)
                for key in [key for key in self._subscriptions if key[0] == name]:
                    del self._subscriptions[key]
            else:
                self._streams[name] = state
        for key, state in snapshot.subscriptions.items():
            if state is None:
                self._subscriptions.pop(key, None)
            else:
                self._subscriptions[key] = state
        if snapshot.remembered.records:
            self._remembered.append(snapshot.remembered)
        for room, state in snapshot.rooms.items():
            if state is None:
                self._rooms.pop(room, None)
            else:
                self._rooms[room] = state
        if snapshot.room_ids.records:
            self._room_ids.append(snapshot.room_ids)
        if snapshot.replays is not None:
            self._replays = snapshot.replays
        self._placements |= {row[0]: row for row in snapshot.placements}

    def load_snapshot(self, now_ms: int, window: KnownIdsWindow) -> SnapshotRow | None:
        if self._head is None:
            return None
        streams, subscriptions = [*self._streams.values()], [*self._subscriptions.values()]
        recent = [one for one in self._remembered if one.newest_ms >= now_ms - window.ids_ms]
        oldest_ms = now_ms - window.room_ids_ms
        room_ids = [one for one in self._room_ids if one.newest_ms >= oldest_ms]
        placements = sorted(self._placements.values(), key=lambda row: row[3])
        return SnapshotRow(
            *self._head,
            streams,
            subscriptions,
            recent,
            self._rooms,
            room_ids,
            self._replays,
            placements,
        )

    def recall(self, key: bytes, oldest_ms: int) -> Recalled:
        """What is known of an accepted id of a room."""
        for one in self._room_ids:
            for at in range(0, len(one.records), RECORD_BYTES):
                record = one.records[at : at + RECORD_BYTES]
                if record.startswith(key) and accepted_ms(record) >= oldest_ms:
                    return recalled(record)
        return Recalled()

    def forget_snapshot(self) -> None:
        self._head = None
        self._streams.clear()
        self._subscriptions.clear()
        self._rooms.clear()
        self._room_ids.clear()
        self._replays = None
        self._placements.clear()

    def copy(self) -> Shelf:
        """What is on it now."""
        other = Shelf()
        vars(other).update({name: copy(value) for name, value in vars(self).items()})
        return other


def restart(hub: Hub, engine: MemoryEngine, shelf: Shelf, now_ms: int) -> None:
    """Put a new hub into the state that the log and the shelf hold."""
    recover(hub, cast(LocalEngine, engine), cast(StateStore, shelf), now_ms)
