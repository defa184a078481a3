"""The archive of the hub: the lake, read on a thread of its own.

A lake may be slow, far away or gone. Whoever asks hears so within a bounded time and goes on with
what memory and log hold; the loop never waits for it.
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

SHARD: Final = 0

_INBOX: Final = "inbox"
_ENTRIES: Final = "entries"
# Only what looks like this becomes part of a query.
_STREAM: Final = re.compile(r"inbox\.(\d{1,9})\.([A-Za-z0-9_-]{22})")
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
    """The tables of one lake. Whatever it is asked, it raises `LakeUnreachable`."""

    def __init__(self, lake: Lake, *, is_needed: bool = False) -> None:
        """If it is needed, the table `inbox` cannot just not be there yet."""
        self._lake = lake
        self._seen = {_INBOX} if is_needed else set[str]()

    def reopen(self) -> None:
        """Trust nothing that is known of the tables: one may have been made again meanwhile."""
        for name in (_INBOX, _ENTRIES):
            self._lake.forget(name)

    def inbox_position(self, epoch: int) -> int:
        """The table `inbox` holds everything of this epoch of the log before this offset."""
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
        """The lowest messages of an inbox in a stretch of positions that have not expired.

        The table must hold everything of the epoch in `needed` before its offset, or it is away.
        Of the epoch in `before` only messages before its offset are wanted, so that the many small
        files with what came last need not be opened for what the log has long forgotten.

        Positions are dense, so a stretch of `count_max` mostly is the page, in one file or two;
        where messages have expired or were erased, ever wider ones are looked at.
        """
        name = _STREAM.fullmatch(stream)
        if needed is not None and self._position(_INBOX, needed[0]) < needed[1]:
            # It is being made again; what it does not hold yet is not gone.
            raise LakeUnreachable(self._lake.location(_INBOX), "it does not hold everything yet")
        older = "" if before is None else _OLDER.format(epoch=before[0], offset=before[1])
        found: dict[int, Archived] = {}
        first, width = from_seq, count_max
        while name is not None and first <= to_seq and len(found) < count_max:
            last, count = min(to_seq, first + width - 1), count_max - len(found)
            wanted = {"version": int(name[1]), "inbox": name[2], "now_ms": now_ms, "older": older}
            rows = self._page(first, last, count, wanted)
            for one in rows:
                # A log that lost entries gives their positions out again; the later epoch is first.
                found.setdefault(one.seq, one)
            # Behind the last of as many rows as were asked for nothing has been looked at.
            first = rows[-1].seq + 1 if len(rows) == count else last + 1
            width *= _WIDER
        return list(found.values())

    def holds(self, segment: SegmentInfo) -> bool | None:
        """Is every entry of the segment in `entries`, once? None: it has not come that far yet."""
        if self._position(_ENTRIES, segment.epoch) < segment.end:
            return None
        place = {"shard": SHARD, "epoch": segment.epoch, "base": segment.base, "end": segment.end}
        table = self._query(_ENTRIES, _COUNT.format(**place))
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
        """The rows of a query; None if there is no such table yet."""
        rows = self._lake.select(name, query)
        self._check_seen(name, is_there=rows is not None)
        return rows

    def _check_seen(self, name: str, *, is_there: bool) -> None:
        """A table that is not there yet is empty; one that is gone is not."""
        if is_there:
            self._seen.add(name)
        elif name in self._seen:
            raise LakeUnreachable(self._lake.location(name), "it is not there")


def _milliseconds(times: pa.ChunkedArray) -> list[Any]:
    whole = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return list(whole.cast(pa.int64()).to_pylist())


log = logging.getLogger("signalhub.lake")

ANSWER_S: Final = 10.0
_ASKED_MAX: Final = 256
_CLOSE_S: Final = 5.0
_COUNT_S: Final = 1.0
_REOPEN_MS: Final = 60_000

T = TypeVar("T")


class Sight(msgspec.Struct, frozen=True):
    """How far the lake is."""

    position: int
    """Everything before this offset of the log is in the table `inbox`."""
    landed: int
    """Every entry before this offset was counted in the table `entries`."""


class LakeArchive:
    """Answers on the loop what it finds out on its thread, one question after the other."""

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
        """`epoch` is the one the log is in: offsets of others say nothing about it.

        If it is needed, an archive that is not there is away, not empty. With `log_first`, messages
        are looked for only where the log no longer holds them; what was before `log_cut` must be
        in the archive. An archive that is ahead of
        `log_head` belongs to a newer log, so it says nothing about this one.
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
        # A question to a storage that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="signalhub-lake", daemon=True)
        self._thread.start()

    @property
    def position(self) -> int:
        """Everything before this offset of the log is archived, as far as is known."""
        return self._sight.position

    @property
    def landed(self) -> int:
        """Every entry before this offset was counted in the lake."""
        return self._sight.landed

    def consult(self, consult: Consult, done: Callable[[list[Archived] | None], None]) -> None:
        self._tally.consults += 1

        before = None if self._log_first is None else (self._epoch, self._log_first())
        needed = None if self._log_cut is None else (self._epoch, self._log_cut())

        def read() -> list[Archived]:
            now_ms = self._clock.now_ms()
            place = consult.inbox, consult.from_seq, consult.to_seq, consult.count_max
            return self._reader.page(*place, now_ms, before, needed)

        self._ask(read, done)

    def wait_for(self, segments: Sequence[SegmentInfo]) -> None:
        """These segments, oldest first, are to be deleted once the lake holds them."""
        self._wanted = segments

    @property
    def wanted(self) -> int:
        """How many segments wait for that."""
        return len(self._wanted)

    def look(self, done: Callable[[Sight | None], None]) -> None:
        """Find out how far the lake is, and how many of the segments that wait it holds."""
        wanted, landed = self._wanted, self.landed

        is_due = self._reopening.is_due(self._clock.now_ms())

        def find_out() -> Sight:
            if is_due:
                self._reader.reopen()
            position = self._reader.inbox_position(self._epoch)
            if self._log_head is not None and position > self._log_head():
                raise LakeUnreachable(
                    "inbox", "it is ahead of the log, which must be an older copy"
                )
            return Sight(position, self._landed(wanted, landed, position))

        def report(found: Sight | None) -> None:
            if found is not None:
                self._sight = found
            done(found)

        self._ask(find_out, report)

    async def first_look(self) -> int:
        """Where the archive stands; 0 if it cannot be reached now."""
        looked: asyncio.Future[Sight | None] = self._loop.create_future()
        self.look(looked.set_result)
        sight = await looked
        return 0 if sight is None else sight.position

    def close(self) -> None:
        """Answer nothing more; what hangs is left behind."""
        self._questions.put(None)
        self._thread.join(_CLOSE_S)

    def _ask(self, question: Callable[[], T], done: Callable[[T | None], None]) -> None:
        asked = _Asked(done)
        if self._asked_count >= _ASKED_MAX:
            self._loop.call_soon(self._answer, asked, None, "too many questions wait for it")
            return
        self._asked_count += 1
        late = self._loop.call_later(
            self._answer_s, self._answer, asked, None, f"no answer within {self._answer_s:g} s"
        )

        def run() -> None:
            found, reason = None, ""
            try:
                # Nobody waits any more for what was answered in another way.
                found = None if asked.is_answered else question()
            except LakeUnreachable as error:
                reason = str(error)
            except Exception as error:
                log.exception("a question to the lake failed")
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
        """The end of the last segment that is in the lake, as are all before it."""
        deadline = time.monotonic() + _COUNT_S
        for info in wanted:
            if info.end <= landed:
                continue
            if time.monotonic() > deadline:
                # The rest is counted next time; pages of inboxes do not wait for that.
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
                "the lake should hold a segment and does not; the segment stays",
                extra={"segment": info.name, "advice": "run: signalhub audit"},
            )
        return bool(holds)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            question()


class _Asked(Generic[T]):
    """A question, until it is answered, or given up."""

    __slots__ = ("done", "is_answered")

    def __init__(self, done: Callable[[T | None], None]) -> None:
        self.done = done
        self.is_answered = False
