"""Looking into a host's store: what `signalhub actors ls`, `show`, `calls`, `alarms`, `dead` print.

Everything here only reads, so it works on the file of a host that is running, too.
"""

from __future__ import annotations

from typing import Any, Final

from signalhub.actors.schema import HELD_MS
from signalhub.actors.store import Store

LIMIT_MAX: Final = 10_000
View = dict[str, Any]


def actors(store: Store, *, kind: str | None = None, limit: int = 1_000) -> list[View]:
    """The actors of a host, and what waits for each."""
    rows = store.execute(
        "SELECT address, token, status FROM actors WHERE address >= ? AND address < ?"
        " ORDER BY address LIMIT ?",
        (*_range(kind), _limited(limit)),
    ).fetchall()
    return [
        {"actor": address, "token": token, "status": status, **_counts(store, str(address))}
        for address, token, status in rows
    ]


def actor(store: Store, address: str) -> View | None:
    """One actor with everything that is known about it."""
    found = store.execute(
        "SELECT token, status FROM actors WHERE address = ?", (address,)
    ).fetchone()
    if found is None:
        return None
    keys = store.execute("SELECT key, length(value) FROM state WHERE actor = ?", (address,))
    return {
        "actor": address,
        "token": found[0],
        "status": found[1],
        **_counts(store, address),
        "state": {key: size for key, size in keys},
        "calls": calls(store, address=address),
        "alarmList": alarms(store, address=address),
        "deadLetters": dead(store, address=address),
    }


def _counts(store: Store, address: str) -> View:
    one = (address,)
    return {
        "inbox": store.execute("SELECT count(*) FROM inbox WHERE actor = ?", one).get,
        "outbox": store.execute("SELECT count(*) FROM outbox WHERE actor = ?", one).get,
        "pending": store.execute("SELECT count(*) FROM pending WHERE actor = ?", one).get,
        "alarms": store.execute("SELECT count(*) FROM alarms WHERE actor = ?", one).get,
        "dead": store.execute("SELECT count(*) FROM dead WHERE actor = ?", one).get,
    }


def calls(store: Store, *, address: str | None = None, limit: int = 1_000) -> list[View]:
    """Calls that have not ended, as their caller's host sees them."""
    where, values = _of(address)
    rows = store.execute(
        f"SELECT actor, call_id, dest, method, deadline_ms, idem_key FROM pending {where}"  # noqa: S608
        " ORDER BY call_id LIMIT ?",
        (*values, _limited(limit)),
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


def _state_of(store: Store, caller: str, dest: str, call_id: str) -> str:
    """How far a call has come: stored, sent, accepted, executing here, or its outcome is here."""
    result = store.execute(
        "SELECT not_before_ms, attempts FROM inbox"
        " WHERE actor = ? AND kind = 'result' AND call_id = ?",
        (caller, call_id),
    ).fetchone()
    if result is not None:
        return "retrying" if result[1] else "answered"
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


def call(store: Store, call_id: str) -> View | None:
    """What this host knows about one call, on either side of it; `None` if nothing."""
    known: View = {}
    mine = store.execute("SELECT actor FROM pending WHERE call_id = ?", (call_id,)).fetchone()
    if mine is not None:
        known["caller"] = next(
            one
            for one in calls(store, address=str(mine[0]), limit=LIMIT_MAX)
            if one["call"] == call_id
        )
    arrived = store.execute(
        "SELECT actor, attempts, not_before_ms FROM inbox WHERE kind = 'request' AND call_id = ?",
        (call_id,),
    ).fetchone()
    if arrived is not None:
        state = "held" if arrived[2] == HELD_MS else "retrying" if arrived[1] else "waiting"
        known["callee"] = {"actor": arrived[0], "state": state}
    else:
        done = store.execute("SELECT actor FROM done WHERE call_id = ?", (call_id,)).fetchone()
        if done is not None:
            known["callee"] = {"actor": done[0], "state": _executed(store, call_id)}
    buried = store.execute(
        "SELECT actor, dead_id, error FROM dead WHERE call_id = ?", (call_id,)
    ).fetchone()
    if buried is not None:
        known["dead"] = {"actor": buried[0], "id": buried[1], "error": buried[2]}
    return known or None


def _executed(store: Store, call_id: str) -> str:
    if store.execute("SELECT 1 FROM deferred WHERE call_id = ?", (call_id,)).get:
        return "deferred"
    waits = store.execute(
        "SELECT 1 FROM outbox WHERE kind = 'result' AND call_id = ?", (call_id,)
    ).get
    return "answering" if waits else "executed"


def alarms(
    store: Store, *, address: str | None = None, status: str | None = None, limit: int = 1_000
) -> list[View]:
    where, values = _of(address)
    if status is not None:
        where = f"{where} {'AND' if where else 'WHERE'} status = ?"
        values = (*values, status)
    rows = store.execute(
        "SELECT actor, id, type, due_ms, spec, continuation, attempts, status, last_error"  # noqa: S608
        f" FROM alarms {where} ORDER BY due_ms, id LIMIT ?",
        (*values, _limited(limit)),
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


def dead(store: Store, *, address: str | None = None, limit: int = 1_000) -> list[View]:
    where, values = _of(address)
    rows = store.execute(
        f"SELECT actor, dead_id, origin, call_id, error, attempts, dead_ms FROM dead {where}"  # noqa: S608
        " ORDER BY dead_id LIMIT ?",
        (*values, _limited(limit)),
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


def _of(address: str | None) -> tuple[str, tuple[Any, ...]]:
    return ("", ()) if address is None else ("WHERE actor = ?", (address,))


def _range(kind: str | None) -> tuple[str, str]:
    """All addresses of a kind; the character after the slash ends them."""
    return ("", "\U0010ffff") if kind is None else (f"{kind}/", f"{kind}0")


def _limited(limit: int) -> int:
    return max(0, min(limit, LIMIT_MAX))
