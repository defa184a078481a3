"""One cursor over log and lake: pages of entries, older or newer than a position.

A page works for two seconds at most and then says how far it has looked. Nothing is passed over in
silence: what is damaged or missing is a gap of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.server.history.answers import Gap, History, HistoryRow, Place, Removed
from signalhub.server.history.questions import ScrollQuestion
from signalhub.server.history.reader.outcomes import Outcomes
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.rows import (
    KINDS,
    MESSAGES,
    SHARD,
    BadQuestion,
    Match,
    Print,
    Sight,
    kind_name,
    parse_position,
    position_text,
)
from signalhub.server.history.reader.tiers import (
    ENTRIES,
    LakeFailed,
    Sources,
    Stretch,
    milliseconds,
    sql_text,
)
from signalhub.server.history.reader.tiers import MESSAGES as MESSAGE_TABLE
from signalhub.wire.entry import Kind, StoredEntry

LIMIT_MAX: Final = 500
ANSWER_BYTES_MAX: Final = 768 * 2**10

# After so many entries of the log the search looks at the clock.
_STEP: Final = 500
# How many offsets of the lake are searched at first, and by what factor that grows.
_WINDOW: Final = 8_192
_WIDER: Final = 8
_QUICK_S: Final = 0.25
_CHUNK: Final = 2_000
# There are few; more would mean that the log changes under the search.
_STRETCHES_MAX: Final = 1_000

_MESSAGE_KINDS: Final = MESSAGES | {Kind.ROOM_MESSAGE}
_COLUMNS: Final = (
    '"offset", kind, stream, stream_epoch, seq, id, accepted_at, type, sender, key, bytes,'
    " substr(payload_json, 1, {chars}) AS payload"
)


class Page:
    """One page while it is being made."""

    def __init__(self, sources: Sources, question: ScrollQuestion, pace: Pace) -> None:
        if sum(one is not None for one in (question.before, question.after, question.at)) > 1:
            raise BadQuestion("give one of before, after and at")
        self._sources = sources
        self._pace = pace
        self._limit = max(1, min(question.limit, LIMIT_MAX))
        self.sight = Sight(question.reach, question.hidden)
        self._filter = question.filter
        self._match = Match(question.filter, self.sight)
        self.printer = Print(self.sight, question.payload_bytes)
        self._payload_bytes = question.payload_bytes
        self.is_down = question.after is None
        # Are entries chosen by more than a query can compare?
        self.chooses = self._match.needs_body
        # Are bodies needed that the table of messages does not have?
        self.reads_bodies = False
        self._question = question
        self._rows: list[HistoryRow] = []
        self._size = 0
        self._gaps: list[Gap] = []
        self._scanned = 0
        # The last entry that was looked at, and when it was accepted.
        self._done: tuple[int, int] | None = None
        self._at_ms: int | None = None
        self._is_out_of_time = False

    def make(self) -> History:
        """The page."""
        start = self._start()
        self._done = start
        reason, is_complete = None, True
        try:
            for _ in range(_STRETCHES_MAX):
                stretch = self._following(self._done)
                if stretch is None:
                    break
                if not self._read(stretch):
                    is_complete = False
                    break
        except LakeFailed as error:
            reason, is_complete = str(error), False
        if not is_complete and reason is None:
            if self._is_out_of_time:
                reason = "time"
            elif len(self._rows) < self._limit:
                reason = "size"
        rows = self._rows if self.is_down else self._rows[::-1]
        rows = Outcomes(self._sources, self._pace).added(rows)
        following = None if self._done is None else position_text(*self._done)
        return History(
            rows=rows,
            next=following,
            complete=is_complete,
            searched_to=None
            if self._done in (None, start) or self._done is None or following is None
            else Place(
                position=following, epoch=self._done[0], offset=self._done[1], at=self._at_ms
            ),
            scanned=self._scanned,
            reason=reason,
            gaps=self._gaps,
            log_first=self._log_first(),
        )

    def _log_first(self) -> str | None:
        kept = [one for one in self._sources.stretches() if one.tier == "log"]
        return position_text(kept[-1].epoch, kept[-1].first) if kept else None

    def _start(self) -> tuple[int, int] | None:
        question = self._question
        if question.before is not None:
            return parse_position(question.before)
        if question.after is not None:
            return parse_position(question.after)
        if question.at is not None:
            # Before a time at which nothing was there yet is nothing.
            return self._sources.position_at(question.at) or (0, 0)
        return None

    def _following(self, done: tuple[int, int] | None) -> Stretch | None:
        stretches = self._sources.stretches()
        if self.is_down:
            for one in stretches:
                if done is None or (one.epoch, one.first) < done:
                    is_cut = done is not None and one.epoch == done[0]
                    end = min(one.end, done[1]) if is_cut and done is not None else one.end
                    if one.first < end:
                        return one._replace(end=end)
            return None
        for one in reversed(stretches):
            if done is None or (one.epoch, one.end - 1) > done:
                is_cut = done is not None and one.epoch == done[0]
                first = max(one.first, done[1] + 1) if is_cut and done is not None else one.first
                if first < one.end:
                    return one._replace(first=first)
        return None

    def _read(self, stretch: Stretch) -> bool:
        """Read a stretch; returns whether the page goes on after it."""
        if stretch.tier == "lake":
            return self._read_lake(stretch)
        return self._read_log(stretch)

    def _note(self, epoch: int, offset: int, at_ms: int | None = None) -> None:
        """Everything up to this entry was looked at."""
        self._done = (epoch, offset)
        self._at_ms = self._at_ms if at_ms is None else at_ms

    def add(self, row: HistoryRow) -> bool:
        """Add a row; returns whether there is room for another."""
        self._rows.append(row)
        self._size += 300 + len(row.payload or "") * 2
        return len(self._rows) < self._limit and self._size < ANSWER_BYTES_MAX

    # The log.

    def _read_log(self, stretch: Stretch) -> bool:
        low, high = stretch.first, stretch.end
        while low < high:
            try:
                for stored in (
                    self._sources.log.scan_back(high, low)
                    if self.is_down
                    else self._sources.log.scan(low, high)
                ):
                    if self.is_down:
                        high = stored.offset
                    else:
                        low = stored.offset + 1
                    if not self._take(stretch.epoch, stored):
                        return False
            except EntriesGone:
                # Retention has just deleted them: what is left of this stretch is in the lake.
                self._sources.look_again()
                return True
            except LogDamaged as error:
                low, high = self._skip(stretch.epoch, low, high, error)
            else:
                break
        self._note(stretch.epoch, stretch.first if self.is_down else stretch.end - 1)
        return True

    def _skip(self, epoch: int, low: int, high: int, error: LogDamaged) -> tuple[int, int]:
        """Note what is damaged; returns the rest of the stretch."""
        log = self._sources.log
        reason = f"segment {error.segment} is damaged at byte {error.position}: {error.reason}"
        if self.is_down:
            below = max(low, log.readable_before(high - 1))
            self._gaps.append(Gap(epoch=epoch, first=below, last=high - 1, reason=reason))
            self._note(epoch, below)
            return low, below
        above = min(high, log.readable_after(low))
        self._gaps.append(Gap(epoch=epoch, first=low, last=above - 1, reason=reason))
        self._note(epoch, above - 1)
        return above, high

    def _take(self, epoch: int, stored: StoredEntry) -> bool:
        self._scanned += 1
        self._note(epoch, stored.offset, stored.at_ms)
        if self.is_wanted(epoch, stored) and not self.add(self.printer.row(epoch, stored, "log")):
            return False
        return self._scanned % _STEP != 0 or self._has_time()

    def is_wanted(self, epoch: int, stored: StoredEntry) -> bool:
        """Does the page show this entry?"""
        return self._match(epoch, stored)

    def _has_time(self) -> bool:
        self._is_out_of_time = not self._pace.go_on()
        return not self._is_out_of_time

    # The lake.

    def _read_lake(self, stretch: Stretch) -> bool:
        """Window by window, so that each query opens few files."""
        low, high, width = stretch.first, stretch.end, _WINDOW
        while low < high:
            if self.is_down:
                first, end = max(low, high - width), high
            else:
                first, end = low, min(high, low + width)
            before_s = self._pace.left_s
            rows, edge = self._window(stretch.epoch, first, end)
            is_full = False
            for row in rows:
                self._note(stretch.epoch, row.offset, row.at)
                if not self.add(row):
                    is_full = True
                    edge = row.offset if self.is_down else row.offset + 1
                    break
            self._scanned += end - edge if self.is_down else edge - first
            if not is_full:
                at = rows[-1].at if rows else None
                self._note(stretch.epoch, edge if self.is_down else edge - 1, at)
            low, high = (low, edge) if self.is_down else (edge, high)
            if is_full or not self._has_time():
                return False
            if before_s - self._pace.left_s < _QUICK_S:
                width *= _WIDER
        return True

    def _window(self, epoch: int, first: int, end: int) -> tuple[list[HistoryRow], int]:
        """Wanted rows in the direction of the page, and how far that has looked."""
        kinds = self._match.kinds
        is_of_messages = kinds is not None and kinds <= _MESSAGE_KINDS
        if is_of_messages and not self.reads_bodies:
            landed = self._sources.landed(MESSAGE_TABLE, epoch)
            # While that table is rebuilt, the rest is in `entries` all the same.
            if first < landed < end:
                first, end = (landed, end) if self.is_down else (first, landed)
            if end <= landed:
                return self._messages(epoch, first, end)
        return self._entries(epoch, first, end)

    def _bounds(self, epoch: int, first: int, end: int) -> str:
        kinds = self._match.kinds
        where = f'"offset" >= {first} AND "offset" < {end}'
        if kinds is not None:
            listed = ", ".join(sql_text(kind_name(one)) for one in sorted(kinds))
            where += f" AND kind IN ({listed})"
        if self._filter.stream is not None:
            where += f" AND stream = {sql_text(self._filter.stream)}"
        return where

    def _edge(self, offsets: Sequence[int], count: int, first: int, end: int) -> int:
        """How far a query has looked that was limited to `count` rows."""
        if len(offsets) == count:
            return offsets[-1] if self.is_down else offsets[-1] + 1
        return first if self.is_down else end

    def _entries(self, epoch: int, first: int, end: int) -> tuple[list[HistoryRow], int]:
        count = _CHUNK if self.chooses else self._limit - len(self._rows)
        where = self._bounds(epoch, first, end)
        found = list(self._sources.entries(epoch, where, count, newest_first=self.is_down))
        rows = [
            self.printer.row(epoch, one.stored, "lake", removal(one.removed))
            for one in found
            if self.is_wanted(epoch, one.stored)
        ]
        return rows, self._edge([one.stored.offset for one in found], count, first, end)

    def _messages(self, epoch: int, first: int, end: int) -> tuple[list[HistoryRow], int]:
        wanted, count = self._filter, self._limit - len(self._rows)
        where = self._bounds(epoch, first, end)
        for column, value in (("key", wanted.key), ("type", wanted.type)):
            if value is not None:
                where += f" AND {column} = {sql_text(value)}"
        if wanted.sender is not None:
            where += f" AND sender = {sql_text(wanted.sender)}"
        if wanted.text is not None:
            where += f" AND strpos(payload_json, {sql_text(wanted.text)}) > 0"
        order = "DESC" if self.is_down else "ASC"
        columns = _COLUMNS.format(chars=self._payload_bytes + 1)
        found = self._sources.query(
            MESSAGE_TABLE,
            f"SELECT {columns} FROM messages WHERE shard = {SHARD} AND epoch = {epoch}"  # noqa: S608
            f' AND {where} ORDER BY "offset" {order} LIMIT {count}',
        )
        if found is None:
            return [], first if self.is_down else end
        rows: list[HistoryRow] = []
        offsets: list[int] = []
        columns_of = [
            milliseconds(column) if name == "accepted_at" else column.to_pylist()
            for name, column in zip(found.schema.names, found.columns, strict=True)
        ]
        for values in zip(*columns_of, strict=True):
            offsets.append(values[0])
            row = self._message(epoch, *values)
            if row is not None:
                rows.append(row)
        return self._reasoned(epoch, rows), self._edge(offsets, count, first, end)

    def _message(
        self,
        epoch: int,
        offset: int,
        kind: str,
        stream: str,
        stream_epoch: int,
        seq: int,
        id: str | None,
        at_ms: int,
        type: str | None,
        sender: str | None,
        key: str | None,
        size: int | None,
        payload: str | None,
    ) -> HistoryRow | None:
        """A row of the table `messages`; `None` if it must not be found."""
        row = HistoryRow(
            at=at_ms,
            position=position_text(epoch, offset),
            epoch=epoch,
            shard=SHARD,
            offset=offset,
            kind=kind,
            tier="lake",
            bytes=size or 0,
        )
        is_gone = size is None if KINDS.get(kind) != Kind.BROADCAST else sender is None
        if self.sight.hides(epoch, offset) or (
            sender is not None and self.sight.hides_sender(sender, epoch, offset)
        ):
            is_gone = True
        if KINDS.get(kind) == Kind.ROOM_MESSAGE:
            return msgspec.structs.replace(row, removed="erased" if is_gone else None)
        may_read = self.sight.may_read(stream)
        if self._match.needs_contents and (is_gone or not may_read):
            return None
        row = msgspec.structs.replace(row, stream=stream, stream_epoch=stream_epoch, seq=seq)
        if is_gone:
            return msgspec.structs.replace(row, removed="erased", bytes=0)
        row = msgspec.structs.replace(row, id=id, sender=sender)
        if not may_read and row.kind != "broadcast":
            return msgspec.structs.replace(row, withheld=True)
        text, is_cut = payload, False
        if payload is not None:
            text, is_cut, _ = self.printer.cut(payload.encode())
        return msgspec.structs.replace(row, type=type, key=key, payload=text, cut=is_cut)

    def _reasoned(self, epoch: int, rows: list[HistoryRow]) -> list[HistoryRow]:
        """Rows whose content is gone, with the reason that `entries` has."""
        gone = [row.offset for row in rows if row.removed is not None]
        if not gone:
            return rows
        listed = ", ".join(map(str, gone))
        found = self._sources.query(
            ENTRIES,
            f'SELECT "offset", removed_reason FROM entries WHERE shard = {SHARD}'  # noqa: S608
            f' AND epoch = {epoch} AND "offset" IN ({listed})',
        )
        reasons: dict[int, Any] = {}
        if found is not None:
            reasons = dict(
                zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True)
            )
        return [
            row
            if row.removed is None
            else msgspec.structs.replace(row, removed=removal(reasons.get(row.offset)) or "erased")
            for row in rows
        ]


def removal(reason: str | None) -> Removed | None:
    """Why content is gone, as the lake says it."""
    if reason in ("erased", "expired", "retention"):
        return reason  # type: ignore[return-value]
    return None if reason is None else "erased"
