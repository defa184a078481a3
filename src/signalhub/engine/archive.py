"""The archive of the hub: the lake, read on a separate thread.

A lake may be slow or unreachable. Every request is answered within a timeout, so that callers can
continue with memory and log; the loop never blocks on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa

from signalhub.clock import Clock
from signalhub.core.effects import Consult
from signalhub.core.rooms.values import Archived
from signalhub.counters import LakeTally
from signalhub.log.segment import SegmentInfo
from signalhub.pacing import Period
from signalhub.pipeline.lake import Lake, LakeUnreachable
from signalhub.wire.room_ids import INBOX_PREFIX

SHARD: Final = 0

_INBOX: Final = "inbox"
_ENTRIES: Final = "entries"
# Names are inserted into SQL, so only this form is accepted.
_STREAM: Final = re.compile(rf"{re.escape(INBOX_PREFIX)}(\d{{1,9}})\.([A-Za-z0-9_-]{{22}})")
# Factor by which the searched range grows.
_WIDER: Final = 8

_PAGE: Final = (
    "SELECT seq, message_id, ciphertext, created_at, expires_at FROM inbox"
    " WHERE inbox = '{inbox}' AND key_version = {version} AND seq BETWEEN {first} AND {last}"
    " AND expires_at > to_timestamp_millis({now_ms}){older} ORDER BY seq, epoch DESC LIMIT {count}"
)
_OLDER: Final = ' AND (epoch <> {epoch} OR "offset" < {offset})'
_COUNT: Final = (
    'SELECT count(*), count(DISTINCT "offset") FROM entries'
    ' WHERE shard = {shard} AND epoch = {epoch} AND "offset" >= {base} AND "offset" < {end}'
)


class LakeReader:
    """Reads the tables of one lake. All methods may raise `LakeUnreachable`."""

    def __init__(self, lake: Lake, *, is_needed: bool = False) -> None:
        """With `is_needed`, a missing table `inbox` is an error; otherwise it counts as empty."""
        self._lake = lake
        self._seen = {_INBOX} if is_needed else set[str]()

    def reopen(self) -> None:
        """Discard cached tables, in case one was recreated."""
        for name in (_INBOX, _ENTRIES):
            self._lake.forget(name)

    def inbox_position(self, epoch: int) -> int:
        """Return the offset of this epoch before which `inbox` holds everything."""
        return self._position(_INBOX, epoch)

    def page(
        self,
        stream: str,
        from_seq: int,
        to_seq: int,
        count_max: int,
        now_ms: int,
        before: tuple[int, int] | None = None,
        needed: tuple[int, int] | None = None,
    ) -> list[Archived]:
        """Return the first unexpired messages of an inbox in a range of positions.

        `needed` is an epoch and an offset before which the table must be complete, or it counts as
        unreachable. Of the epoch in `before`, only messages before its offset are read, so that the
        many small files with the newest messages need not be opened.

        Positions are dense, so a range of `count_max` usually is the page, in one or two files;
        where messages have expired or were erased, the range is widened.
        """
        name = _STREAM.fullmatch(stream)
        if needed is not None and self._position(_INBOX, needed[0]) < needed[1]:
            # The table is being rebuilt; messages it does not hold yet are not lost.
            raise LakeUnreachable(self._lake.location(_INBOX), "the table is not complete yet")
        older = "" if before is None else _OLDER.format(epoch=before[0], offset=before[1])
        found: dict[int, Archived] = {}
        first, width = from_seq, count_max
        while name is not None and first <= to_seq and len(found) < count_max:
            last, count = min(to_seq, first + width - 1), count_max - len(found)
            wanted = {"version": int(name[1]), "inbox": name[2], "now_ms": now_ms, "older": older}
            rows = self._page(first, last, count, wanted)
            for one in rows:
                # A log that lost entries reuses their positions; the later epoch comes first.
                found.setdefault(one.seq, one)
            # If the limit was reached, nothing after the last row has been examined.
            first = rows[-1].seq + 1 if len(rows) == count else last + 1
            width *= _WIDER
        return list(found.values())

    def holds(self, segment: SegmentInfo) -> bool | None:
        """Is every entry of the segment in `entries` exactly once? `None` if it has not landed."""
        if self._position(_ENTRIES, segment.epoch) < segment.end:
            return None
        bounds = {"shard": SHARD, "epoch": segment.epoch, "base": segment.base, "end": segment.end}
        table = self._query(_ENTRIES, _COUNT.format(**bounds))
        count = segment.end - segment.base
        return table is not None and [one[0].as_py() for one in table.columns] == [count, count]

    def _position(self, table: str, epoch: int) -> int:
        self._check_seen(table, is_there=self._lake.exists(table))
        committed = self._lake.committed(table, SHARD, epoch)
        return 0 if committed is None else committed + 1

    def _page(self, first: int, last: int, count: int, wanted: dict[str, object]) -> list[Archived]:
        sql = _PAGE.format(first=first, last=last, count=count, **wanted)
        table = self._query(_INBOX, sql)
        if table is None:
            return []
        seqs, ids, ciphertexts, created, expires = table.columns
        columns = (
            seqs.to_pylist(),
            ids.to_pylist(),
            ciphertexts.to_pylist(),
            _milliseconds(created),
            _milliseconds(expires),
        )
        return [Archived(*row) for row in zip(*columns, strict=True)]

    def _query(self, name: str, query: str) -> pa.Table | None:
        """Run a query; `None` if the table does not exist yet."""
        rows = self._lake.select(name, query)
        self._check_seen(name, is_there=rows is not None)
        return rows

    def _check_seen(self, name: str, *, is_there: bool) -> None:
        """Raise if a table is missing that existed before; a new one may just not exist yet."""
        if is_there:
            self._seen.add(name)
        elif name in self._seen:
            raise LakeUnreachable(self._lake.location(name), "the table is missing")


def _milliseconds(times: pa.ChunkedArray) -> list[Any]:
    whole = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return list(whole.cast(pa.int64()).to_pylist())


log = logging.getLogger("signalhub.lake")

ANSWER_S: Final = 10.0
# Limit of pending requests.
_ASKED_MAX: Final = 256
_CLOSE_S: Final = 5.0
_COUNT_S: Final = 1.0
_REOPEN_MS: Final = 60_000

T = TypeVar("T")


class Sight(msgspec.Struct, frozen=True):
    """The progress of the lake."""

    position: int
    """Everything before this offset of the log is in the table `inbox`."""
    landed: int
    """Every entry before this offset was verified in the table `entries`."""


class LakeArchive:
    """Runs requests on its thread, one after the other, and answers on the loop."""

    def __init__(
        self,
        lake: Lake,
        epoch: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        tally: LakeTally,
        *,
        is_needed: bool = False,
        log_first: Callable[[], int] | None = None,
        log_head: Callable[[], int] | None = None,
        log_cut: Callable[[], int] | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`epoch` is the current epoch of the log; offsets of other epochs do not apply to it.

        With `is_needed`, a missing archive is unreachable instead of empty. With `log_first`, only
        messages that are no longer in the log are read. Everything before `log_cut` must be in the
        archive. An archive ahead of `log_head` belongs to a newer copy of the log and is not used.
        """
        self._reader = LakeReader(lake, is_needed=is_needed)
        self._epoch = epoch
        self._clock = clock
        self._loop = loop
        self._tally = tally
        self._log_first = log_first
        self._log_head = log_head
        self._log_cut = log_cut
        self._answer_s = answer_s
        self._sight = Sight(0, 0)
        self._wanted: Sequence[SegmentInfo] = ()
        self._reopening = Period(_REOPEN_MS)
        self._doubted = -1
        self._asked_count = 0
        self._is_reachable = True
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon, so that a request to a hanging storage does not block the exit.
        self._thread = threading.Thread(target=self._work, name="signalhub-lake", daemon=True)
        self._thread.start()

    @property
    def position(self) -> int:
        """Everything before this offset of the log was archived at the last check."""
        return self._sight.position

    @property
    def landed(self) -> int:
        """Every entry before this offset was verified in the lake."""
        return self._sight.landed

    def consult(self, consult: Consult, done: Callable[[list[Archived] | None], None]) -> None:
        self._tally.consults += 1

        before = None if self._log_first is None else (self._epoch, self._log_first())
        needed = None if self._log_cut is None else (self._epoch, self._log_cut())

        def read() -> list[Archived]:
            now_ms = self._clock.now_ms()
            wanted = consult.inbox, consult.from_seq, consult.to_seq, consult.count_max
            return self._reader.page(*wanted, now_ms, before, needed)

        self._ask(read, done)

    def wait_for(self, segments: Sequence[SegmentInfo]) -> None:
        """Set the segments, oldest first, to delete once they are in the lake."""
        self._wanted = segments

    @property
    def wanted(self) -> int:
        """The number of these segments."""
        return len(self._wanted)

    def look(self, done: Callable[[Sight | None], None]) -> None:
        """Check the progress of the lake, and which of the waiting segments it holds."""
        wanted, landed = self._wanted, self.landed

        is_due = self._reopening.is_due(self._clock.now_ms())

        def find_out() -> Sight:
            if is_due:
                self._reader.reopen()
            position = self._reader.inbox_position(self._epoch)
            if self._log_head is not None and position > self._log_head():
                raise LakeUnreachable(
                    "inbox", "the table is ahead of the log, which must be an older copy"
                )
            return Sight(position, self._landed(wanted, landed, position))

        def report(found: Sight | None) -> None:
            if found is not None:
                self._sight = found
            done(found)

        self._ask(find_out, report)

    async def first_look(self) -> int:
        """Return the position of the archive; 0 if it is unreachable."""
        looked: asyncio.Future[Sight | None] = self._loop.create_future()
        self.look(looked.set_result)
        sight = await looked
        return 0 if sight is None else sight.position

    def close(self) -> None:
        """Stop the thread; a hanging request is abandoned."""
        self._questions.put(None)
        self._thread.join(_CLOSE_S)

    def _ask(self, question: Callable[[], T], done: Callable[[T | None], None]) -> None:
        asked = _Asked(done)
        if self._asked_count >= _ASKED_MAX:
            self._loop.call_soon(self._answer, asked, None, "too many pending requests")
            return
        self._asked_count += 1
        late = self._loop.call_later(
            self._answer_s, self._answer, asked, None, f"no answer within {self._answer_s:g} s"
        )

        def run() -> None:
            found, reason = None, ""
            try:
                # Skip requests that have timed out.
                found = None if asked.is_answered else question()
            except LakeUnreachable as error:
                reason = str(error)
            except Exception as error:
                log.exception("a request to the lake failed")
                reason = repr(error)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ran, asked, late, found, reason)

        self._questions.put(run)

    def _ran(
        self, asked: _Asked[T], late: asyncio.TimerHandle, found: T | None, reason: str
    ) -> None:
        self._asked_count -= 1
        late.cancel()
        self._answer(asked, found, reason)

    def _answer(self, asked: _Asked[T], found: T | None, reason: str) -> None:
        if asked.is_answered:
            return
        asked.is_answered = True
        self._note(reason)
        asked.done(found)

    def _note(self, reason: str) -> None:
        if reason:
            self._tally.failures += 1
        if bool(reason) == self._is_reachable:
            self._is_reachable = not reason
            if reason:
                log.warning("the lake cannot be read", extra={"reason": reason})
            else:
                log.info("the lake can be read again")

    def _landed(self, wanted: Sequence[SegmentInfo], landed: int, position: int) -> int:
        """Return the offset up to which all segments are in the lake."""
        deadline = time.monotonic() + _COUNT_S
        for info in wanted:
            if info.end <= landed:
                continue
            if time.monotonic() > deadline:
                # Continue at the next check, so that reads of pages do not wait.
                break
            if info.end > position or not self._holds(info):
                break
            landed = info.end
        return landed

    def _holds(self, info: SegmentInfo) -> bool:
        holds = self._reader.holds(info)
        if holds is False and self._doubted != info.base:
            self._doubted = info.base
            log.error(
                "the lake does not hold each entry of a segment exactly once; the segment is kept",
                extra={"segment": info.name, "advice": "run: signalhub audit"},
            )
        return bool(holds)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            question()


class _Asked(Generic[T]):
    """A request, until it is answered or times out."""

    __slots__ = ("done", "is_answered")

    def __init__(self, done: Callable[[T | None], None]) -> None:
        self.done = done
        self.is_answered = False
