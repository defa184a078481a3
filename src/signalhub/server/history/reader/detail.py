"""One entry with what belongs to it: deliveries, copies, letters, and what it is a copy of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.server.history.answers import DeadLetter, HistoryEntry, HistoryRow, Relation
from signalhub.server.history.questions import EntryQuestion
from signalhub.server.history.reader.outcomes import Outcomes, readable
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.rows import (
    SHARD,
    BadQuestion,
    Print,
    Sight,
    decoded,
    is_of_rooms,
    position_text,
)
from signalhub.server.history.reader.scroll import removal
from signalhub.server.history.reader.tiers import LakeFailed, Sources, milliseconds, sql_text
from signalhub.wire.entry import Kind, MessageBody, StoredEntry

# As text within JSON it may take twice as much, and an answer has at most one mebibyte.
PAYLOAD_BYTES_MAX: Final = 448 * 2**10
# So many later entries of the log are searched for deliveries and copies.
_FORWARD_MAX: Final = 100_000
_STEP: Final = 500
_RELATED_MAX: Final = 100
_SENT: Final = (Kind.MAIL, Kind.PUBLISHED)


class NotThere(BadQuestion):
    """There is no such entry."""


def entry_of(sources: Sources, question: EntryQuestion, pace: Pace) -> HistoryEntry:
    """The whole entry; raises `NotThere`."""
    epoch, offset = question.epoch, question.offset
    if question.shard != SHARD:
        raise NotThere(f"unknown shard {question.shard}")
    found = sources.find(epoch, offset)
    if found is None:
        raise NotThere(f"there is no entry {position_text(epoch, offset)} in the log or the lake")
    stored, tier, reason = found
    sight = Sight(question.reach, question.hidden)
    printed = Print(sight, PAYLOAD_BYTES_MAX)
    row = printed.row(epoch, stored, tier, removal(reason))
    message = decoded(MessageBody, stored) if stored.kind in _SENT and not row.removed else None
    if is_of_rooms(stored) or stored.kind not in _SENT:
        return _entry(row)
    may_read = sight.may_read(stored.stream)
    deliveries, through = Outcomes(sources, pace).of(epoch, {offset}, forward_max=_FORWARD_MAX)
    whole = _entry(
        row,
        deliveries=readable([*deliveries.get(offset, {}).values()], may_read=may_read),
        looked_through=None if through is None else position_text(epoch, through),
    )
    if message is None:
        return whole
    related = [
        *_origins(message),
        *_copies(sources, pace, epoch, stored, message, may_read=may_read),
    ]
    whole = msgspec.structs.replace(
        whole,
        ttl=message.ttl,
        expires_at=None if message.expires_at is None else int(message.expires_at),
        deliver_at=message.deliver_at,
        only_for=message.only_for,
        dead=_dead(message, may_read=may_read),
        related=related[:_RELATED_MAX],
    )
    if not may_read:
        return whole
    return msgspec.structs.replace(
        whole,
        headers=message.headers,
        metadata=message.metadata.decode(errors="replace") or None,
    )


def _entry(row: HistoryRow, **members: Any) -> HistoryEntry:
    return HistoryEntry(**msgspec.structs.asdict(row), **members)


def _dead(message: MessageBody, *, may_read: bool) -> DeadLetter | None:
    dead = message.dead
    if dead is None:
        return None
    return DeadLetter(
        stream=dead.topic,
        subscription=dead.subscription,
        epoch=dead.epoch,
        seq=dead.seq,
        attempts=dead.attempts,
        reason=dead.reason if may_read else None,
        first_failure=dead.first_failure or None,
        last_failure=dead.last_failure or None,
        consumers=dead.consumers,
    )


def _origins(message: MessageBody) -> Iterator[Relation]:
    """What the message is a copy of."""
    if (dead := message.dead) is not None:
        yield Relation(position=None, at=None, kind="original", stream=dead.topic, seq=dead.seq)
    if (origin := message.replay) is not None:
        yield Relation(
            position=position_text(origin.epoch, origin.offset, origin.shard),
            at=None,
            kind="original",
            detail=f"sent again by {origin.job}",
        )
    if (redriven := message.redriven) is not None:
        yield Relation(
            position=None,
            at=None,
            kind="lifetime",
            seq=redriven.seq,
            detail="put back with changes" if redriven.is_edited else "put back",
        )


def _copies(
    sources: Sources,
    pace: Pace,
    epoch: int,
    stored: StoredEntry,
    message: MessageBody,
    *,
    may_read: bool,
) -> Iterator[Relation]:
    """Later entries that are copies of this one, or letters of it."""
    seen: set[str] = set()
    for one in (
        *_letters_in_lake(sources, stored, may_read=may_read),
        *_copies_in_log(sources, pace, epoch, stored, message, may_read=may_read),
    ):
        assert one.position is not None
        if one.position not in seen:
            seen.add(one.position)
            yield one


def _letters_in_lake(
    sources: Sources, stored: StoredEntry, *, may_read: bool
) -> Iterator[Relation]:
    try:
        rows = sources.query(
            "dead_letters",
            'SELECT epoch, "offset", last_failure, reason, redriven_at FROM dead_letters'  # noqa: S608
            f" WHERE shard = {SHARD} AND topic = {sql_text(stored.stream)}"
            f' AND original_seq = {stored.seq} ORDER BY epoch, "offset" LIMIT {_RELATED_MAX}',
        )
    except LakeFailed:
        return
    if rows is None:
        return
    epochs, offsets, failed, reasons, redriven = rows.columns
    for epoch, offset, at_ms, reason, redriven_ms in zip(
        epochs.to_pylist(),
        offsets.to_pylist(),
        milliseconds(failed),
        reasons.to_pylist(),
        milliseconds(redriven),
        strict=True,
    ):
        state = "" if redriven_ms is None else "put back since; "
        yield Relation(
            position=position_text(epoch, offset),
            at=at_ms,
            kind="letter",
            detail=state + (reason or "" if may_read else ""),
        )


def _copies_in_log(
    sources: Sources,
    pace: Pace,
    epoch: int,
    stored: StoredEntry,
    message: MessageBody,
    *,
    may_read: bool,
) -> Iterator[Relation]:
    stretch = next(
        (one for one in sources.stretches() if one.tier == "log" and one.epoch == epoch), None
    )
    if stretch is None:
        return
    begin = max(stretch.first, stored.offset + 1)
    try:
        for later in sources.log.scan(begin, min(stretch.end, begin + _FORWARD_MAX)):
            if later.kind in _SENT and not later.is_erased:
                relation = _relation(epoch, stored, message, later, may_read=may_read)
                if relation is not None:
                    yield relation
            if (later.offset - begin) % _STEP == 0 and not pace.go_on():
                return
    except (LogDamaged, EntriesGone):
        return


def _relation(
    epoch: int,
    stored: StoredEntry,
    message: MessageBody,
    later: StoredEntry,
    *,
    may_read: bool,
) -> Relation | None:
    if message.id.encode() not in later.body:
        # Copies keep the id of the original, or name it.
        return None
    copy = decoded(MessageBody, later)
    if copy is None:
        return None
    position, detail = position_text(epoch, later.offset), ""
    dead, replay, redriven = copy.dead, copy.replay, copy.redriven
    if dead is not None and (dead.topic, dead.seq) == (stored.stream, stored.seq):
        kind: Any = "letter"
        detail = dead.reason if may_read else ""
    elif replay is not None and (replay.epoch, replay.offset) == (epoch, stored.offset):
        kind, detail = "replay", replay.job
    elif redriven is not None and (redriven.id, redriven.seq) == (message.id, stored.seq):
        kind = "redriven"
    else:
        return None
    return Relation(
        position=position,
        at=later.at_ms,
        kind=kind,
        stream=later.stream,
        seq=later.seq,
        detail=detail,
    )
