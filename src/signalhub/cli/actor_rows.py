"""How actors, their calls, alarms and dead letters look in tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from signalhub.cli.hosts import Row
from signalhub.cli.output import Column, counted, shown

_TEXT_CHARS: Final = 80
# Members whose texts are made by hosts; others may look like JSON by chance.
_STORED_AS_JSON: Final = frozenset(
    {"spec", "continuation", "then", "catch", "context", "outcome", "message"}
)
# Those that name a method and its arguments.
CONTINUATIONS: Final = frozenset({"continuation", "then", "catch"})

HOST = Column("host", style="green")
HOST_IF_ROOM = Column("host", style="green", is_spare=True)
ACTOR = Column("actor", style="cyan")
ACTORS = (
    ACTOR,
    HOST,
    Column("status"),
    *(Column(name) for name in ("inbox", "outbox")),
    Column("pending", title="calls"),
    *(Column(name) for name in ("alarms", "dead")),
)
CALLS = (
    Column("call", style="bold", is_whole=True),
    ACTOR,
    Column("target"),
    Column("state", style="yellow"),
    Column("made", style="dim", is_spare=True),
    Column("deadline", style="dim", is_spare=True),
    HOST_IF_ROOM,
)
ALARMS = (
    Column("due", style="bold"),
    ACTOR,
    Column("id", is_whole=True),
    Column("rhythm", title="when", is_spare=True),
    Column("calls"),
    Column("state", title="status", style="yellow"),
    HOST_IF_ROOM,
)
DEAD = (
    Column("died", style="dim"),
    ACTOR,
    Column("id", style="bold", is_whole=True),
    Column("origin", style="yellow", is_whole=True),
    Column("attempts", title="tries", is_spare=True),
    Column("error", style="red"),
    HOST_IF_ROOM,
)


def call_row(row: Row) -> Row:
    target = f"{row['target']}.{row['method']}" if row["target"] else f"(offloaded) {row['method']}"
    made, deadline = _clock(made_ms(row["call"])), _clock(row["deadlineMs"])
    return {**row, "target": target, "made": made, "deadline": deadline}


def alarm_row(row: Row) -> Row:
    spec = msgspec.json.decode(row["spec"])
    rhythm = row["type"]
    if "cron" in spec:
        rhythm = f"{spec['cron']} {spec['tz']}"
    elif "every_ms" in spec:
        rhythm = f"every {spec['every_ms'] / 1000:g} s"
    return {
        **row,
        "due": _clock(row["dueMs"]),
        "rhythm": rhythm,
        "calls": operation_text(row["continuation"]),
        "state": _alarm_state(row),
    }


def _alarm_state(row: Row) -> str:
    status: str = row["status"]
    if row["lastError"] is None:
        return status
    return _cut(f"{status} after {counted(row['attempts'], 'failure')}: {row['lastError']}")


def dead_row(row: Row) -> Row:
    return {
        **row,
        "actor": row["actor"] or "-",
        "died": _clock(row["deadMs"]),
        "error": _cut(row["error"]),
    }


def nested(row: Row) -> Row:
    """A row for programs: what is stored as the text of a JSON object is one."""
    return {
        name: _object(value) if name in _STORED_AS_JSON else value for name, value in row.items()
    }


def _object(value: Any) -> Any:
    try:
        found = msgspec.json.decode(value)
    except (ValueError, TypeError, RecursionError):
        return value
    return found if isinstance(found, dict) else value


def made_ms(call_id: str) -> int | None:
    """Calls of actors have ids that tell when they were made; those from outside do not."""
    from signalhub.actors.ulid import is_ulid, time_of

    return time_of(call_id) if is_ulid(call_id) else None


def _clock(ms: int | None) -> str:
    """A moment in a table: this machine's time, to the second."""
    if ms is None:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def operation_text(stored: str) -> str:
    """A stored continuation, short enough for a table."""
    return _cut(written_operation(stored))


def written_operation(stored: str) -> str:
    """A stored continuation as one would write it."""
    try:
        found = msgspec.json.decode(stored)
        parts = [msgspec.json.encode(one).decode() for one in found["a"]]
        parts += [f"{key}={msgspec.json.encode(one).decode()}" for key, one in found["k"].items()]
        return f"{found['m']}({', '.join(parts)})"
    except (ValueError, KeyError, TypeError):
        return stored


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return shown(line if len(line) <= _TEXT_CHARS else f"{line[: _TEXT_CHARS - 1]}…")
