"""The tables of the lake as people see them: their state, newest rows, audits and the proof."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from signalhub.clock import SystemClock
from signalhub.log.disk import Disk
from signalhub.log.folder import look
from signalhub.log.footer import read_summary
from signalhub.log.record import Unreadable
from signalhub.pipeline.run.status import read_status
from signalhub.pipeline.tables.tables import TABLES, Table
from signalhub.server.history.answers import (
    Audit,
    AuditHour,
    Lake,
    LakeColumn,
    LakeRows,
    LakeTable,
    Proof,
    ProofSegment,
)
from signalhub.server.history.questions import (
    AuditQuestion,
    LakeQuestion,
    ProofQuestion,
    TableQuestion,
)
from signalhub.server.history.reader.rows import SHARD, BadQuestion
from signalhub.server.history.reader.tiers import Sources, milliseconds, sql_time
from signalhub.wire.release import __version__

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 100
AUDIT: Final = "audit"
PROOF_VERSION: Final = 1
_HOURS_MAX: Final = 2_000
_TEXT_CHARS: Final = 1_000
_HOW: Final = (
    "Each sealed segment's chain is SHA-256 over the chain before it and the digests of all its"
    " entries. `signalhub audit --check proof.json` verifies the chains of this file against a data"
    " folder, and that every hour names the chain of its last sealed segment."
)
# What messages contain; shown to those who may read everything. Sentences of audits are for all who
# see the names of streams: they name entries, topics and subscriptions, and no mailbox.
_CONTENTS: Final = frozenset(("type", "key", "headers", "payload", "payload_json", "reason"))
# Bytes that say nothing to people.
_BINARY: Final = frozenset(("body", "raw", "ciphertext"))
# Rows of rooms are shown to nobody.
_OF_ROOMS: Final = frozenset(("inbox",))
_NO_ROOMS: Final = (
    "kind NOT IN ('room_message', 'inbox_stands', 'room_bound', 'room_blob', 'room_proposal',"
    " 'inbox_key') AND stream NOT LIKE 'inbox.%'"
)
_ORDER: Final = {
    "subscriptions": "from_at DESC",
    "traffic_1m": "minute DESC",
    "audit": "at DESC, hour DESC",
}


def lake_of(sources: Sources, data: Path, question: LakeQuestion) -> Lake:
    """The state of the pipeline and of every table; what only the hub knows is filled in there."""
    status = read_status(data)
    lake = sources.lake
    epoch = sources.folder.epoch
    head = question.head
    position = 0 if status is None or status.epoch != epoch else status.position
    last = None if status is None else status.last_batch
    return Lake(
        pipeline="off",
        state="unknown" if status is None else status.state,
        reason=None if status is None else status.reason or None,
        epoch=epoch,
        position=position,
        head=head,
        behind=max(0, head - position),
        behind_ms=0,
        rows=0 if status is None else status.totals.rows,
        batches=0 if status is None else status.totals.batches,
        last_batch_rows=None if last is None else last.rows,
        last_batch_ms=None if last is None else last.ms,
        failures=0 if status is None else status.failures,
        restarts=0,
        quarantined=0 if status is None else status.totals.quarantined,
        where="" if lake is None else lake.uri,
        tables=[_table(sources, one, epoch, question) for one in TABLES.values()],
    )


def _table(sources: Sources, table: Table, epoch: int, question: LakeQuestion) -> LakeTable:
    lake, name = sources.lake, table.name
    sizes: list[int] = []
    position = None
    if lake is not None:
        sizes = sources.reading(lambda: lake.sizes(name))
        position = sources.reading(lambda: lake.committed(name, SHARD, epoch))
    return LakeTable(
        name=name,
        about=table.about,
        position=position,
        behind=None if position is None else max(0, question.head - position - 1),
        files=len(sizes),
        bytes=sum(sizes),
        kept_s=question.kept_s.get(name),
    )


def rows_of(sources: Sources, question: TableQuestion) -> LakeRows:
    """The columns of a table and its newest rows."""
    table = TABLES.get(question.name)
    if table is None:
        raise BadQuestion(f"unknown table {question.name!r:.60}; use one of {', '.join(TABLES)}")
    name, limit = table.name, max(1, min(question.limit, ROWS_MAX))
    order = _ORDER.get(name, 'epoch DESC, "offset" DESC')
    is_all = question.reach.is_all
    hidden = _BINARY if is_all else _BINARY | _CONTENTS
    shown = [one for one in table.columns if one.type != "VARIANT"]
    rows: list[dict[str, str | None]] = []
    command = f"SELECT * FROM {name} ORDER BY {order} LIMIT {limit}".replace('"', "`")  # noqa: S608
    if name not in _OF_ROOMS:
        columns = ", ".join(f'"{one.name}"' for one in shown)
        has_kind = any(one.name == "kind" for one in shown)
        where = f" WHERE {_NO_ROOMS}" if has_kind else ""
        query = f"SELECT {columns} FROM {name}{where} ORDER BY {order} LIMIT {limit}"  # noqa: S608
        rows = _listed(sources.query(name, query), hidden)
    return LakeRows(
        name=name,
        about=table.about,
        columns=[
            LakeColumn(name=one.name, type=one.type, about=one.about) for one in table.columns
        ],
        rows=rows,
        sql=f'signalhub sql "{command}"',
        withheld=not is_all and any(one.name in _CONTENTS for one in shown),
    )


def _listed(found: pa.Table | None, hidden: frozenset[str]) -> list[dict[str, str | None]]:
    if found is None:
        return []
    names = found.schema.names
    columns = [
        [None] * found.num_rows if name in hidden else column.to_pylist()
        for name, column in zip(names, found.columns, strict=True)
    ]
    return [
        dict(zip(names, map(_text, values), strict=True)) for values in zip(*columns, strict=True)
    ]


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value.astimezone(UTC)
            return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
        case bytes():
            return value[: _TEXT_CHARS // 2].hex()
        case _:
            return str(value)[:_TEXT_CHARS]


def audit_of(sources: Sources, question: AuditQuestion) -> Audit:
    """The newest finding about each hour."""
    where = ["true"]
    if question.begin is not None:
        where.append(f"hour >= {sql_time(question.begin)}")
    if question.end is not None:
        where.append(f"hour < {sql_time(question.end)}")
    found = sources.query(
        AUDIT,
        f"SELECT * FROM audit WHERE shard = {SHARD} AND {' AND '.join(where)}"  # noqa: S608
        f" ORDER BY at DESC, epoch DESC, hour DESC LIMIT {2 * _HOURS_MAX}",
    )
    hours: dict[tuple[int, int], AuditHour] = {}
    newest: dict[str, Any] = {}
    for row in _dicts(found):
        newest = newest or row
        hours.setdefault((row["epoch"], row["hour"]), _hour(row))
    own = [row for row in _dicts(found) if row["run_id"] == newest.get("run_id")]
    verdicts = {row["verdict"] for row in own}
    verdict = next((one for one in ("wrong", "behind", "proven") if one in verdicts), None)
    listed = sorted(hours.values(), key=lambda one: (one.epoch, one.hour), reverse=True)
    return Audit(
        run_id=newest.get("run_id"),
        at=newest.get("at"),
        head=newest.get("head"),
        verdict=verdict,
        hours=listed[:_HOURS_MAX],
        is_running=False,
        job=None,
    )


def _dicts(found: pa.Table | None) -> Iterator[dict[str, Any]]:
    if found is None:
        return
    names = found.schema.names
    columns = [
        milliseconds(column) if str(column.type).startswith("timestamp") else column.to_pylist()
        for column in found.columns
    ]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _hour(row: dict[str, Any]) -> AuditHour:
    names = AuditHour.__struct_fields__
    members = {name: row[name] for name in names if name != "exceptions"}
    return AuditHour(**members, exceptions=list(row["exceptions"] or []))


def proof_of(sources: Sources, question: ProofQuestion) -> Proof:
    """What the newest audit found, with the chain of the log as it is now."""
    found = audit_of(sources, AuditQuestion(reach=question.reach))
    return Proof(
        version=PROOF_VERSION,
        made_at=SystemClock().now_ms(),
        hub=question.hub,
        release=__version__,
        epoch=sources.folder.epoch,
        run_id=found.run_id,
        hours=found.hours,
        segments=list(chain_of(sources.folder.disk)),
        how=_HOW,
    )


def chain_of(disk: Disk) -> Iterator[ProofSegment]:
    """The sealed segments of a log, from their footers."""
    for info in look(disk).segments:
        if not info.is_sealed:
            continue
        file = disk.open(info.name, read_only=True)
        try:
            summary = read_summary(file)
        except Unreadable:
            continue
        finally:
            file.close()
        yield ProofSegment(
            base=info.base,
            end=info.end,
            epoch=info.epoch,
            bytes=info.bytes,
            previous_chain=summary.previous_chain.hex(),
            chain=summary.chain.hex(),
        )
