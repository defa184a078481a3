"""Views of a host's store: what `signalhub actors ls`, `show`, `calls`, `alarms`, `dead` print.

Everything here only reads, so it also works on the file of a running host. Times are shown as the
wall clock reads them.
"""

from __future__ import annotations

from typing import Any, Final

from signalhub.actors.store.schema import CLOCK_AHEAD, HELD_MS, IS_OF_WALL
from signalhub.actors.store.store import HostStore

LIMIT_MAX: Final = 10_000
# Rows of each list in the view of one actor.
PART_MAX: Final = 100
# How many of the newest executed requests are searched.
SEARCHED_MAX: Final = 100_000
View = dict[str, Any]


def actors(
    store: HostStore, *, kind: str | None = None, limit: int = 1_000, offset: int = 0
) -> list[View]:
    """The actors of a host, and what waits for each."""
    rows = store.execute(
        "SELECT address, token, status FROM actors WHERE address >= ? AND address < ?"
        " ORDER BY address LIMIT ? OFFSET ?",
        (*_range(kind), *_page(limit, offset)),
    ).fetchall()
    return [
        {"actor": address, "token": token, "status": status, **_counts(store, str(address))}
        for address, token, status in rows
    ]


def actor(store: HostStore, address: str) -> View | None:
    """Everything known about one actor."""
    found = store.execute(
        "SELECT token, status FROM actors WHERE address = ?", (address,)
    ).fetchone()
    if found is None:
        return None
    keys = store.execute(
        "SELECT key, length(value) FROM state WHERE actor = ? ORDER BY key LIMIT ?",
        (address, PART_MAX),
    )
    count, size = store.execute(
        "SELECT count(*), coalesce(sum(length(value)), 0) FROM state WHERE actor = ?", (address,)
    ).fetchall()[0]
    return {
        "actor": address,
        "token": found[0],
        "status": found[1],
        **_counts(store, address),
        "stateKeys": count,
        "stateBytes": size,
        "state": {key: size for key, size in keys},
        "calls": calls(store, address=address, limit=PART_MAX),
        "alarmList": alarms(store, address=address, limit=PART_MAX),
        "deadLetters": dead(store, address=address, limit=PART_MAX),
        "move": move(store, address),
    }


def move(store: HostStore, address: str) -> View | None:
    """The state of an actor's move from or to this host; `None` if it is not moving."""
    found = store.execute(
        "SELECT direction, peer, step, token, move_id FROM moves WHERE actor = ?", (address,)
    ).fetchone()
    if found is None:
        return None
    return dict(zip(("direction", "peer", "step", "token", "move_id"), found, strict=True))


def _counts(store: HostStore, address: str) -> View:
    one = (address,)
    return {
        "inbox": store.execute("SELECT count(*) FROM inbox WHERE actor = ?", one).get,
        "outbox": store.execute("SELECT count(*) FROM outbox WHERE actor = ?", one).get,
        "pending": store.execute("SELECT count(*) FROM pending WHERE actor = ?", one).get,
        "alarms": store.execute("SELECT count(*) FROM alarms WHERE actor = ?", one).get,
        "dead": store.execute("SELECT count(*) FROM dead WHERE actor = ?", one).get,
    }


def calls(
    store: HostStore,
    *,
    address: str | None = None,
    id: str | None = None,
    limit: int = 1_000,
    offset: int = 0,
) -> list[View]:
    """Pending calls, as seen by the caller's host."""
    where, values = _where({"actor": address, "call_id": id})
    rows = store.execute(
        f"SELECT actor, call_id, dest, method, deadline_ms + ?, idem_key FROM pending {where}"  # noqa: S608
        " ORDER BY call_id LIMIT ? OFFSET ?",
        (_ahead_ms(store), *values, *_page(limit, offset)),
    ).fetchall()
    return [
        {
            "call": call_id,
            "actor": caller,
            "target": dest or None,
            "method": method,
            "deadlineMs": deadline_ms,
            "key": key,
            "state": _state_of(store, str(caller), str(dest), str(call_id)),
        }
        for caller, call_id, dest, method, deadline_ms, key in rows
    ]


def finished(
    store: HostStore, *, address: str | None = None, limit: int = 1_000, offset: int = 0
) -> list[View]:
    """The newest requests that were executed here, the last one first."""
    if not store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'finished'").get:
        return []  # No host has opened this file since there is such a table.
    where, values = _where({"actor": address})
    rows = store.execute(
        "SELECT call_id, actor, caller, method, error, ended_ms"  # noqa: S608
        f" FROM finished {where} ORDER BY row_id DESC LIMIT ? OFFSET ?",
        (*values, *_page(limit, offset)),
    )
    return [
        {
            "call": call_id,
            "actor": actor,
            "caller": caller or None,
            "method": method,
            "outcome": "deferred" if ended_ms is None else error or "returned",
            "endedMs": ended_ms,
        }
        for call_id, actor, caller, method, error, ended_ms in rows
    ]


def _state_of(store: HostStore, caller: str, dest: str, call_id: str) -> str:
    """The progress of a call: stored, sent, accepted, executing here, or outcome received."""
    result = store.execute(
        "SELECT attempts FROM inbox WHERE actor = ? AND kind = 'result' AND call_id = ?",
        (caller, call_id),
    ).fetchone()
    if result is not None:
        return "retrying" if result[0] else "answered"
    if not dest:
        return "offloaded"
    row = store.execute(
        "SELECT host, is_ordered, attempts FROM outbox WHERE actor = ? AND dest = ? AND msg_id = ?",
        (caller, dest, call_id),
    ).fetchone()
    if row is None:
        is_here = store.execute(
            "SELECT 1 FROM inbox WHERE actor = ? AND kind = 'request' AND call_id = ?",
            (dest, call_id),
        ).get
        return "waiting" if is_here else "accepted"
    sent_to = store.execute(
        "SELECT sent_to FROM lanes WHERE host = ? AND is_ordered = ?", row[:2]
    ).get
    return "sent" if row[2] or (sent_to is not None and call_id <= str(sent_to)) else "stored"


def call(store: HostStore, call_id: str) -> View | None:
    """What this host knows about one call, as caller or target; `None` if nothing."""
    known: View = {}
    caller = next(iter(calls(store, id=call_id, limit=1)), None) or _sent(store, call_id)
    target = None
    if caller is not None:
        known["caller"] = caller
        target = caller["target"]
    arrived = store.execute(
        "SELECT actor, attempts, not_before_ms FROM inbox WHERE kind = 'request' AND call_id = ?",
        (call_id,),
    ).fetchone()
    if arrived is not None:
        is_held = arrived[2] == HELD_MS or arrived[2] < 0
        state = "held" if is_held else "retrying" if arrived[1] else "waiting"
        known["callee"] = {"actor": arrived[0], "state": state}
    elif (ran := _executed(store, call_id, target)) is not None:
        known["callee"] = ran
    if "callee" in known:
        accepted_ms = store.execute(
            "SELECT accepted_ms FROM done WHERE actor = ? AND call_id = ?",
            (known["callee"]["actor"], call_id),
        ).get
        if accepted_ms is not None:
            known["callee"]["acceptedMs"] = accepted_ms
    buried = store.execute(
        "SELECT actor, dead_id, error, dead_ms FROM dead WHERE call_id = ?", (call_id,)
    ).fetchone()
    if buried is not None:
        names = ("actor", "id", "error", "deadMs")
        known["dead"] = dict(zip(names, buried, strict=True))
    return known or None


def _sent(store: HostStore, call_id: str) -> View | None:
    """A call without a continuation is known only until it was sent."""
    found = store.execute(
        "SELECT actor, dest FROM outbox WHERE kind = 'request' AND call_id = ?", (call_id,)
    ).fetchone()
    if found is None:
        return None
    caller, dest = map(str, found)
    state = _state_of(store, caller, dest, call_id)
    return {"call": call_id, "actor": caller, "target": dest, "state": state}


def _executed(store: HostStore, call_id: str, target: str | None) -> View | None:
    """A request that has run. For one from the same host only its answer is known."""
    for state, query in (
        ("deferred", "SELECT actor FROM deferred WHERE call_id = ?"),
        ("answering", "SELECT actor FROM outbox WHERE kind = 'result' AND call_id = ?"),
    ):
        actor = store.execute(query, (call_id,)).get
        if actor is not None:
            return {"actor": actor, "state": state}
    if target is not None:
        query = "SELECT actor FROM done WHERE actor = ? AND call_id = ?"
        actor = store.execute(query, (target, call_id)).get
    else:
        # There may be millions, indexed by actor only, and the host is blocked meanwhile.
        query = (
            "SELECT actor FROM done"
            " WHERE row_id > (SELECT max(row_id) FROM done) - ? AND call_id = ?"
        )
        actor = store.execute(query, (SEARCHED_MAX, call_id)).get
    return None if actor is None else {"actor": actor, "state": "executed"}


def alarms(
    store: HostStore,
    *,
    address: str | None = None,
    id: str | None = None,
    status: str | None = None,
    limit: int = 1_000,
    offset: int = 0,
) -> list[View]:
    where, values = _where({"actor": address, "id": id, "status": status})
    rows = store.execute(
        f"SELECT actor, id, type, due_ms + iif({IS_OF_WALL}, 0, ?) AS shown_ms, spec, continuation,"  # noqa: S608
        f" attempts, status, last_error FROM alarms {where}"
        " ORDER BY shown_ms, id, actor LIMIT ? OFFSET ?",
        (_ahead_ms(store), *values, *_page(limit, offset)),
    )
    return [
        {
            "actor": owner,
            "id": alarm_id,
            "type": type,
            "dueMs": due_ms,
            "spec": spec,
            "continuation": bytes(continuation).decode(),
            "attempts": attempts,
            "status": state,
            "lastError": error,
        }
        for owner, alarm_id, type, due_ms, spec, continuation, attempts, state, error in rows
    ]


def dead(
    store: HostStore,
    *,
    address: str | None = None,
    id: str | None = None,
    limit: int = 1_000,
    offset: int = 0,
) -> list[View]:
    where, values = _where({"actor": address, "dead_id": id})
    rows = store.execute(
        f"SELECT actor, dead_id, origin, call_id, error, attempts, dead_ms FROM dead {where}"  # noqa: S608
        " ORDER BY dead_id LIMIT ? OFFSET ?",
        (*values, *_page(limit, offset)),
    )
    return [
        {
            "actor": owner,
            "id": dead_id,
            "origin": origin,
            "call": call_id,
            "error": error,
            "attempts": attempts,
            "deadMs": dead_ms,
        }
        for owner, dead_id, origin, call_id, error, attempts, dead_ms in rows
    ]


def _where(wanted: dict[str, str | None]) -> tuple[str, list[str]]:
    """A condition that compares the given columns; their names are trusted."""
    given = {column: value for column, value in wanted.items() if value is not None}
    text = " AND ".join(f"{column} = ?" for column in given)
    return f"WHERE {text}" if text else "", list(given.values())


def _ahead_ms(store: HostStore) -> int:
    """How far the wall clock was ahead of the host's own time when it last ran."""
    return store.get_meta(CLOCK_AHEAD) or 0


def _range(kind: str | None) -> tuple[str, str]:
    """The range of all addresses of a kind; it ends at the character after the slash."""
    return ("", "\U0010ffff") if kind is None else (f"{kind}/", f"{kind}0")


def _page(limit: int, offset: int) -> tuple[int, int]:
    return max(0, min(limit, LIMIT_MAX)), max(0, min(offset, 2**62))
