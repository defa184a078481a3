"""What became of messages: from the lake as far as it goes, and from settlements in the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.server.history.answers import Delivery, HistoryRow, Outcome
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.rows import KIND_NAMES, SHARD, position_text
from signalhub.server.history.reader.tiers import LakeFailed, Sources, milliseconds
from signalhub.wire.entry import Kind, SettledBody, Settlement, StoredEntry, decode_body
from signalhub.wire.entry import Outcome as Ending

DELIVERIES: Final = "deliveries"

# After a page so many entries of the log are searched for settlements; most come soon.
_FORWARD_MAX: Final = 20_000
_STEP: Final = 500
_WITH_DELIVERIES: Final = frozenset(KIND_NAMES[one] for one in (Kind.MAIL, Kind.PUBLISHED))
_ENDINGS: Final = {one.value: one.name.lower() for one in Ending}
_COLUMNS: Final = (
    '"offset", recipient_kind, recipient, generation, outcome, attempts, consumer,'
    " first_sent_at, last_sent_at, settled_at, settle_offset, reason"
)


class Outcomes:
    """Looks up deliveries."""

    def __init__(self, sources: Sources, pace: Pace) -> None:
        self._sources = sources
        self._pace = pace

    def added(self, rows: list[HistoryRow]) -> list[HistoryRow]:
        """The rows with the outcomes that are on record."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for row in rows:
            if row.kind in _WITH_DELIVERIES and row.removed is None:
                wanted[row.epoch].add(row.offset)
        known: dict[tuple[int, int], list[Outcome] | None] = {}
        for epoch, offsets in wanted.items():
            found, through = self.of(epoch, offsets, forward_max=_FORWARD_MAX)
            for offset in offsets:
                some = [
                    Outcome(recipient=one.recipient, outcome=one.outcome)
                    for one in found.get(offset, {}).values()
                ]
                # Without any on record it is open only if everything was looked at.
                is_known = bool(some) or through is None
                known[epoch, offset] = some if is_known else None
        return [
            msgspec.structs.replace(row, became=known.get((row.epoch, row.offset))) for row in rows
        ]

    def of(
        self, epoch: int, offsets: set[int], *, forward_max: int
    ) -> tuple[dict[int, dict[str, Delivery]], int | None]:
        """Deliveries by offset and recipient.

        Also returned is how far the log was searched for them; `None` for all of it.
        """
        found: dict[int, dict[str, Delivery]] = defaultdict(dict)
        begin = min(offsets) + 1
        try:
            landed = self._sources.landed(DELIVERIES, epoch)
            for offset, one in self._of_lake(epoch, [at for at in offsets if at < landed]):
                found[offset][one.recipient] = one
            # What has landed tells of everything before it.
            begin = max(begin, landed)
        except LakeFailed:
            pass
        through = self._of_log(epoch, offsets, begin, forward_max, found)
        return found, through

    def _of_lake(self, epoch: int, offsets: Iterable[int]) -> Iterator[tuple[int, Delivery]]:
        listed = ", ".join(map(str, offsets))
        if not listed:
            return
        rows = self._sources.query(
            DELIVERIES,
            f"SELECT {_COLUMNS} FROM deliveries WHERE shard = {SHARD}"  # noqa: S608
            f' AND epoch = {epoch} AND "offset" IN ({listed}) ORDER BY generation',
        )
        if rows is None:
            return
        columns = [
            milliseconds(column) if name.endswith("_at") else column.to_pylist()
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            offset, kind, recipient, generation, outcome, attempts, consumer, *rest = values
            first_ms, last_ms, settled_ms, settled, reason = rest
            yield (
                offset,
                Delivery(
                    recipient=recipient,
                    recipient_kind=kind,
                    outcome=outcome,
                    attempts=attempts or 0,
                    generation=generation,
                    consumer=consumer,
                    first_sent_at=first_ms,
                    last_sent_at=last_ms,
                    settled_at=settled_ms,
                    settled=None if settled is None else position_text(epoch, settled),
                    reason=reason,
                ),
            )

    def _of_log(
        self,
        epoch: int,
        offsets: set[int],
        begin: int,
        forward_max: int,
        found: dict[int, dict[str, Delivery]],
    ) -> int | None:
        """Add what settlements in the log say; returns the last entry searched."""
        stretch = next(
            (
                one
                for one in self._sources.stretches()
                if one.tier == "log" and one.epoch == epoch and one.end > begin
            ),
            None,
        )
        if stretch is None:
            return None
        begin = max(begin, stretch.first)
        last = begin
        try:
            for stored in self._sources.log.scan(begin, min(stretch.end, begin + forward_max)):
                last = stored.offset
                if stored.kind == Kind.SETTLED and not stored.is_erased:
                    for offset, one in _settled(epoch, stored, offsets):
                        found[offset][one.recipient] = _joined(
                            found[offset].get(one.recipient), one
                        )
                if (last - begin) % _STEP == 0 and not self._pace.go_on():
                    return last
        except (LogDamaged, EntriesGone):
            return last
        return None if last + 1 >= stretch.end else last


def _settled(epoch: int, stored: StoredEntry, offsets: set[int]) -> Iterator[tuple[int, Delivery]]:
    try:
        body = decode_body(SettledBody, stored.body)
    except (msgspec.MsgspecError, ValueError):
        return
    for one in body.deliveries:
        if one.offset in offsets:
            yield one.offset, _delivery(epoch, stored, body, one)


def _delivery(epoch: int, stored: StoredEntry, body: SettledBody, one: Settlement) -> Delivery:
    name = body.subscription
    is_end = one.outcome not in (Ending.FAILED, Ending.HANDED_OVER)
    return Delivery(
        recipient=f"{stored.stream}/{name}" if name else stored.stream,
        recipient_kind="subscription" if name else "mailbox",
        outcome=_ENDINGS.get(one.outcome, f"outcome_{one.outcome}"),
        attempts=one.attempts,
        generation=body.generation,
        consumer=one.consumer or None,
        first_sent_at=one.first_sent or None,
        last_sent_at=one.last_sent or None,
        settled_at=stored.at_ms if is_end else None,
        settled=position_text(epoch, stored.offset) if is_end else None,
        reason=one.reason or None,
    )


def _joined(before: Delivery | None, after: Delivery) -> Delivery:
    """The first end counts; before it, what was said last."""
    if before is None or before.settled is None:
        return after
    return before


def readable(deliveries: Sequence[Delivery], *, may_read: bool) -> list[Delivery]:
    """Deliveries, without reasons unless contents may be read."""
    if may_read:
        return list(deliveries)
    return [msgspec.structs.replace(one, reason=None) for one in deliveries]
