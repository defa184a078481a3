"""Tables of actors, calls, alarms and dead letters, and the merged view of one call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from signalhub.cli.actors.hosts import ConnectedHosts, Hosts, Row, name_of
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import OutputColumn, counted, shown
from signalhub.cli.terminal.quantities import shown_time

_TEXT_CHARS: Final = 80
# Members that hosts store as JSON; others may look like JSON by chance.
_STORED_AS_JSON: Final = frozenset(
    {"spec", "continuation", "then", "catch", "context", "outcome", "message"}
)
# Those that name a method and its arguments.
CONTINUATIONS: Final = frozenset({"continuation", "then", "catch"})

HOST_IF_ROOM = OutputColumn("host", style="green", spare=1)
ACTOR = OutputColumn("actor", style="cyan")
ACTORS = (
    ACTOR,
    OutputColumn("host", style="green", spare=2),
    OutputColumn("status"),
    OutputColumn("inbox", spare=3),
    OutputColumn("outbox", spare=5),
    OutputColumn("pending", title="calls", spare=1),
    OutputColumn("alarms", spare=4),
    OutputColumn("dead"),
)
CALLS = (
    OutputColumn("call", style="bold", is_whole=True),
    ACTOR,
    OutputColumn("target"),
    OutputColumn("state", style="yellow"),
    OutputColumn("made", style="dim", spare=1),
    OutputColumn("deadline", style="dim", spare=1),
    HOST_IF_ROOM,
)
FINISHED = (
    OutputColumn("ended", style="dim"),
    OutputColumn("target", style="cyan"),
    OutputColumn("outcome", style="yellow"),
    OutputColumn("caller"),
    OutputColumn("call", is_whole=True, spare=1),
    HOST_IF_ROOM,
)
ALARMS = (
    OutputColumn("due", style="bold"),
    ACTOR,
    OutputColumn("id", is_whole=True),
    OutputColumn("rhythm", title="when", spare=1),
    OutputColumn("calls"),
    OutputColumn("state", title="status", style="yellow"),
    HOST_IF_ROOM,
)
DEAD = (
    OutputColumn("died", style="dim"),
    ACTOR,
    OutputColumn("id", style="bold", is_whole=True),
    OutputColumn("origin", style="yellow", is_whole=True),
    OutputColumn("attempts", title="tries", spare=1),
    OutputColumn("error", style="red"),
    HOST_IF_ROOM,
)


def call_row(row: Row) -> Row:
    target = f"{row['target']}.{row['method']}" if row["target"] else f"(offloaded) {row['method']}"
    made, deadline = _clock(made_ms(row["call"])), _clock(row["deadlineMs"])
    return {**row, "target": target, "made": made, "deadline": deadline}


def finished_row(row: Row) -> Row:
    target = f"{row['actor']}.{row['method']}" if row["method"] else row["actor"]
    return {**row, "target": target, "caller": row["caller"] or "", "ended": _clock(row["endedMs"])}


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
        "error": _cut(row["error"] or ""),
    }


def nested(row: Row) -> Row:
    """A row for programs, with JSON text decoded."""
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
    """When a call was made, if its id contains the time; ids of calls from outside do not."""
    from signalhub.ids import is_ulid, time_of

    return time_of(call_id) if is_ulid(call_id) else None


def _clock(ms: int | None) -> str:
    """A time in a table: local, to the second."""
    if ms is None:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def operation_text(stored: str) -> str:
    """A stored continuation, shortened for a table."""
    return _cut(written_operation(stored))


def written_operation(stored: str) -> str:
    """A stored continuation as a method call."""
    try:
        found = msgspec.json.decode(stored)
        if found.keys() == {"m"}:
            return f"{found['m']}(…)"  # The arguments are withheld.
        parts = [msgspec.json.encode(one).decode() for one in found["a"]]
        parts += [f"{key}={msgspec.json.encode(one).decode()}" for key, one in found["k"].items()]
        return f"{found['m']}({', '.join(parts)})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return stored


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return shown(line if len(line) <= _TEXT_CHARS else f"{line[: _TEXT_CHARS - 1]}…")


# The states of a call on each side, in order; if two hosts know it, the later state counts.
_CALLER: Final = ("stored", "sent", "accepted", "waiting", "offloaded", "answered", "retrying")
_CALLEE: Final = ("held", "waiting", "retrying", "deferred", "answering", "executed")

_MEANINGS: Final = {
    "stored": "not sent yet",
    "sent": "sent, not yet acknowledged by the hub",
    "accepted": "received by the hub or the other host",
    "held": "waiting until its target has arrived",
    "waiting": "waiting for its turn",
    "offloaded": "running outside the actor",
    "deferred": "its target will answer later",
    "answering": "executed; the answer is not sent yet",
    "executed": "executed; the answer is sent",
    "answered": "the caller has the answer but has not processed it yet",
    "retrying": "failed; will be retried",
    "done": "executed; no queried host waits for the answer",
    "dead": "given up",
}
_PATH: Final = ("stored", "sent", "accepted", "executed", "answered", "done")
# How many of these steps a call has completed.
_REACHED: Final = {
    **{"stored": 1, "offloaded": 1, "sent": 2, "accepted": 3, "held": 3, "waiting": 3},
    **{"deferred": 3, "answering": 4, "executed": 4, "answered": 5, "done": 6},
}


def merged(call_id: str, found: Mapping[str, Any], made_ms: int | None) -> dict[str, Any]:
    """One view of a call, from the views of the hosts."""
    caller = _furthest(found, "caller", _CALLER)
    callee = _furthest(found, "callee", _CALLEE)
    dead = next(
        ({**known["dead"], "host": host} for host, known in found.items() if "dead" in known), None
    )
    state, reached = _state(caller, callee, dead)
    return {
        "call": call_id,
        "state": state,
        "meaning": _MEANINGS[state],
        "path": list(_PATH[:reached]),
        "storedMs": made_ms,
        "acceptedMs": (callee or {}).get("acceptedMs"),
        "deadlineMs": (caller or {}).get("deadlineMs"),
        "caller": caller,
        "callee": callee,
        "dead": dead,
    }


async def home_of(facts: Mapping[str, Any], source: Hosts) -> dict[str, Any] | None:
    """Where the target of a call lives, if only the caller's side is known.

    Only the target of a call that was sent surely has a place; asking must not assign one.
    """
    caller = facts["caller"]
    if facts["callee"] is not None or caller is None or not isinstance(source, ConnectedHosts):
        return None
    if caller["state"] not in ("sent", "accepted") or not caller.get("target"):
        return None
    for place in (await source.placed(caller["target"])).places:
        host = name_of(place.host)
        return {
            "actor": caller["target"],
            "host": host,
            "away": host not in source.directory.present,
        }
    return None


def unknown_call(call_id: str, source: Hosts) -> Failure:
    """The failure for a call that no queried host knows."""
    code = "unknown_call"
    if source.away:
        away = ", ".join(source.away)
        return Failure(
            Exit.FAILED,
            code,
            f"unknown call {call_id} on all connected hosts; hosts that are away: {away}",
            "start them, or read the folder of one with --data; if they do not know it either, it"
            " has ended or never existed",
            facts={"away": list(source.away)},
        )
    if not isinstance(source, ConnectedHosts):
        return Failure(
            Exit.FAILED,
            code,
            f"unknown call {call_id} on host {', '.join(source.hosts)}: it has ended, never"
            " existed, or is on another host",
            "read the folders of other hosts, or query all connected hosts with --url",
        )
    return Failure(
        Exit.FAILED,
        code,
        f"unknown call {call_id}: it has ended or never existed",
        "list open calls with `signalhub actors calls`, failed ones with `signalhub actors dead`",
    )


def _furthest(found: Mapping[str, Any], side: str, order: tuple[str, ...]) -> dict[str, Any] | None:
    known = [{**views[side], "host": host} for host, views in found.items() if side in views]
    return max(known, key=lambda view: order.index(view["state"]), default=None)


def _state(
    caller: dict[str, Any] | None, callee: dict[str, Any] | None, dead: dict[str, Any] | None
) -> tuple[str, int]:
    """The state of a call, and how many steps of its path are complete."""
    if dead is not None and caller is None:
        return "dead", 0 if callee is None else _REACHED.get(callee["state"], 3)
    if caller is not None and caller["state"] in ("answered", "retrying"):
        return caller["state"], _REACHED["answered"]
    if callee is None:
        assert caller is not None, "a host knows the call"
        return caller["state"], _REACHED[caller["state"]]
    state: str = callee["state"]
    if caller is None and state == "executed":
        return "done", _REACHED["done"]
    return state, _REACHED.get(state, _REACHED["accepted"])


def sheet_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The view for people."""
    caller, callee, dead = facts["caller"], facts["callee"], facts["dead"]
    sheet: dict[str, Any] = {
        "call": facts["call"],
        "state": f"{facts['state']}: {facts['meaning']}",
        "path": " → ".join(one if one in facts["path"] else f"({one})" for one in _PATH),
    }
    if caller is not None:
        sheet["caller"] = f"{caller['actor']} on {caller['host']}: {caller['state']}"
        if caller.get("target"):
            method = f".{caller['method']}" if caller.get("method") else ""
            sheet["target"] = f"{caller['target']}{method}"
    if callee is not None:
        sheet["callee"] = f"{callee['actor']} on {callee['host']}: {callee['state']}"
    if (home := facts.get("home")) is not None:
        away = ", which is away; the call continues when that host is back" if home["away"] else ""
        sheet["callee"] = f"{home['actor']} on {home['host']}{away}"
    times = {"stored": "storedMs", "accepted": "acceptedMs", "deadline": "deadlineMs"}
    sheet |= {name: shown_time(facts[key]) for name, key in times.items() if facts[key]}
    if dead is not None:
        sheet["given up"] = shown_time(dead["deadMs"])
        sheet["error"] = dead["error"] or "-"
        sheet["dead letter"] = f"signalhub actors dead {dead['actor']} --id {dead['id']}"
    return sheet
