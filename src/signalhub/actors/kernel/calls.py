"""Calls made by actors of this host, and how they end: result, timeout, cancelled, given up.

Also a record of the newest requests that its actors have executed.
"""

from __future__ import annotations

import heapq
import logging
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, NewType

import msgspec

from signalhub.actors import wire
from signalhub.actors.api import outcome
from signalhub.actors.api.errors import CallTimeout, CallUndeliverable, RemoteError
from signalhub.actors.kernel import dead_letters
from signalhub.actors.kernel.dead_letters import Evidence
from signalhub.actors.kernel.inbox import Item
from signalhub.actors.kernel.outbox import Row
from signalhub.actors.store.store import HostStore
from signalhub.actors.wire import ActorMessage

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

CallId = NewType("CallId", str)

# With fewer deadlines it is not worth reading which of them still count.
DEADLINES_MIN: Final = 1_024
# Executed requests that are remembered, and how many more there may be until some are deleted.
FINISHED_MAX: Final = 1_000
_FINISHED_SLACK: Final = 100
_ERROR_CHARS_MAX: Final = 200

# Calls that are kept in memory, too.
_KNOWN_MAX: Final = 16_384

_COLUMNS = 'call_id, dest, method, "then", catch, errors_only, context, deadline_ms, idem_key'


class CancelOutcome(Enum):
    """The result of cancelling a call."""

    WITHDRAWN = "withdrawn"  # It was never sent and will not be executed.
    SUPPRESSED = "suppressed"  # It may be executed; its continuation will not run.
    NOT_FOUND = "not_found"  # It has already ended or was cancelled, or it never existed.


class PendingCall(msgspec.Struct, frozen=True):
    """A call whose continuation has not run."""

    id: CallId
    target: str  # Empty for offloaded work.
    method: str
    deadline_ms: int | None
    key: str | None


class WaitingCall(msgspec.Struct):
    """A row of the table `pending`."""

    call_id: str
    dest: str
    method: str
    then: bytes | None
    catch: bytes | None
    errors_only: bool
    context: bytes
    deadline_ms: int | None = None
    idem_key: str | None = None


class Calls:
    """The table `pending`, and the deadlines in it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._store = kernel.store
        self._execute = kernel.store.execute
        # Some of the rows, so that most need not be read again.
        self._known: dict[tuple[str, str], WaitingCall] = {}
        # Deadlines of calls, some of which may have ended; the table is authoritative.
        self._deadlines: list[tuple[int, str, str]] = []
        self._deadlines_max = DEADLINES_MIN

    def forget_known(self) -> None:
        """Rows were changed, or changes were rolled back: look into the table."""
        self._known.clear()

    def load(self) -> None:
        self.forget_known()
        self._load_deadlines()

    def _load_deadlines(self) -> None:
        self._deadlines = list(
            self._execute(
                "SELECT deadline_ms, call_id, actor FROM pending WHERE deadline_ms IS NOT NULL"
            )
        )
        heapq.heapify(self._deadlines)
        self._deadlines_max = max(DEADLINES_MIN, 2 * len(self._deadlines))

    def put(self, actor: str, waiting: WaitingCall) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self.forget_known()
        self._known[actor, waiting.call_id] = waiting
        self._store.add_later(
            "INSERT INTO pending VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                actor,
                waiting.call_id,
                waiting.dest,
                waiting.method,
                waiting.then,
                waiting.catch,
                waiting.errors_only,
                waiting.context,
                waiting.deadline_ms,
                waiting.idem_key,
            ),
        )
        if waiting.deadline_ms is not None:
            heapq.heappush(self._deadlines, (waiting.deadline_ms, waiting.call_id, actor))

    def find(self, actor: str, call_id: str) -> WaitingCall | None:
        if (known := self._known.get((actor, call_id))) is not None:
            return known
        row = self._execute(
            f"SELECT {_COLUMNS} FROM pending WHERE actor = ? AND call_id = ?",  # noqa: S608
            (actor, call_id),
        ).fetchone()
        if row is None:
            return None
        waiting = WaitingCall(*row)
        # SQLite has no booleans, and a dead letter with a number in this field cannot be decoded.
        waiting.errors_only = bool(waiting.errors_only)
        return waiting

    def remove(self, actor: str, call_id: str) -> None:
        self._known.pop((actor, call_id), None)
        self._store.delete_later(
            "DELETE FROM pending WHERE actor = ? AND call_id = ?", (actor, call_id)
        )

    def of(self, actor: str) -> list[PendingCall]:
        rows = self._execute(
            "SELECT call_id, dest, method, deadline_ms, idem_key FROM pending"
            " WHERE actor = ? ORDER BY call_id",
            (actor,),
        )
        shown = self._kernel.time.shown
        return [
            PendingCall(call_id, dest, method, at and shown(at), key)
            for call_id, dest, method, at, key in rows
        ]

    # Idempotency keys.

    def made_before(self, actor: str, key: str, now_ms: int) -> CallId | None:
        """The recent call that was made with this key."""
        found = self._execute(
            "SELECT call_id, until_ms FROM keys WHERE actor = ? AND idem_key = ?", (actor, key)
        ).fetchone()
        if found is None:
            return None
        call_id, until_ms = found
        if until_ms > now_ms or self.find(actor, call_id) is not None:
            return CallId(call_id)
        return None

    def remember_key(self, actor: str, key: str, call_id: str, until_ms: int) -> None:
        self._execute(
            "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)", (actor, key, call_id, until_ms)
        )

    def purge_keys(self, now_ms: int, limit: int) -> int:
        self._execute(
            "DELETE FROM keys WHERE (actor, idem_key) IN"
            " (SELECT actor, idem_key FROM keys WHERE until_ms < ? AND NOT EXISTS"
            " (SELECT 1 FROM pending WHERE actor = keys.actor AND call_id = keys.call_id) LIMIT ?)",
            (now_ms, limit),
        )
        return self._kernel.store.connection.changes()

    # Calls that end without a result.

    def cancel(self, actor: str, call_id: str) -> CancelOutcome:
        waiting = self.find(actor, call_id)
        if waiting is None:
            return CancelOutcome.NOT_FOUND
        self.remove(actor, call_id)
        if waiting.idem_key is not None:
            self._execute(
                "DELETE FROM keys WHERE actor = ? AND idem_key = ?", (actor, waiting.idem_key)
            )
        if self.withdraw(actor, waiting):
            return CancelOutcome.WITHDRAWN
        # An outcome that has arrived is no longer delivered.
        self._kernel.inbox.withdraw(actor, "result", call_id)
        return CancelOutcome.SUPPRESSED

    def withdraw(self, actor: str, waiting: WaitingCall) -> bool:
        """Withdraw the request; returns whether it certainly was not executed."""
        if not waiting.dest:
            self._execute(
                "DELETE FROM offloads WHERE actor = ? AND call_id = ?", (actor, waiting.call_id)
            )
            return False
        was_unsent = self._kernel.outbox.withdraw(actor, waiting.dest, waiting.call_id)
        if was_unsent is None:
            return self._kernel.take_back(waiting.dest, waiting.call_id)
        return was_unsent

    def expire(self, now_ms: int) -> None:
        """End the calls that have timed out, in the order of their deadlines."""
        # Here, outside the runs of handlers: what they removed may be rolled back.
        if len(self._deadlines) > self._deadlines_max:
            self._load_deadlines()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, call_id, actor = heapq.heappop(self._deadlines)
            waiting = self.find(actor, call_id)
            if waiting is None or waiting.deadline_ms is None:
                continue
            if waiting.deadline_ms > now_ms:
                heapq.heappush(self._deadlines, (waiting.deadline_ms, call_id, actor))
                continue
            if not self._kernel.places.is_here(actor):
                continue  # Its new host has the deadline.
            self._kernel.reached("timeout")
            self._time_out(actor, waiting)

    def _time_out(self, actor: str, waiting: WaitingCall) -> None:
        self._known.pop((actor, waiting.call_id), None)
        self._execute(
            "UPDATE pending SET deadline_ms = NULL WHERE actor = ? AND call_id = ?",
            (actor, waiting.call_id),
        )
        if self._kernel.inbox.has(actor, "result", waiting.call_id):
            return  # The result arrived first and waits in the inbox.
        executed: Literal["no", "unknown"] = "no" if self.withdraw(actor, waiting) else "unknown"
        self._kernel.counters.timeouts += 1
        error = CallTimeout(
            f"{waiting.method} of {waiting.dest or 'offloaded work'} timed out",
            executed=executed,
        )
        self.end(actor, waiting.call_id, error)

    def end(self, actor: str, call_id: str, error: BaseException) -> None:
        """End the call on this side; its continuation gets the error like any result."""
        self.ended(actor, call_id, outcome.of_error(error))

    def ended(self, actor: str, call_id: str, body: bytes) -> None:
        self._kernel.inbox.put(_result(actor, call_id, body))

    def undeliverable(self, row: Row, reason: str) -> None:
        """A request could not be delivered; end its call, or store it as a dead letter."""
        kernel = self._kernel
        kernel.outbox.remove([row])
        if self.find(row.actor, row.call_id) is not None:
            error = CallUndeliverable(f"{row.dest} could not be reached: {reason}")
            self.end(row.actor, row.call_id, error)
            return
        self._bury(row, reason)

    def too_large(self, row: Row) -> None:
        """The hub refused a message because of its size."""
        kernel = self._kernel
        if row.kind == "request":
            self.undeliverable(row, "the message is larger than the hub accepts")
            return
        kernel.outbox.remove([row])
        log.error("a result of %s for %s is larger than the hub accepts", row.actor, row.dest)
        error = RemoteError("TooLarge", "the result is larger than the hub accepts")
        # An outside caller knows the id without the address prefixed to it here.
        call_id = row.call_id.removeprefix(f"{row.dest}#")
        message = ActorMessage(
            "result", call_id, row.dest, msgspec.Raw(outcome.of_error(error)), row.actor
        )
        kernel.post(
            row.actor, row.dest, kernel.new_id(), "result", row.call_id, wire.encode(message)
        )

    def _bury(self, row: Row, reason: str) -> None:
        kernel = self._kernel
        log.error("%s gave up a request to %s: %s", row.actor, row.dest, reason)
        evidence = dead_letters.encode(dead_letters.UnsentMessage(row.dest, row.kind, row.payload))
        kernel.letters.bury(row.actor, "send", row.call_id, evidence, reason, row.attempts)

    def restore(self, actor: str, call_id: str, evidence: Evidence) -> Item | None:
        """Retry a dead letter: deliver its outcome, or wait for it again if it has none."""
        waiting = WaitingCall(
            call_id,
            evidence.dest,
            evidence.method,
            evidence.then,
            evidence.catch,
            evidence.errors_only,
            evidence.context,
        )
        self.remove(actor, call_id)
        self._store.settle()
        self.put(actor, waiting)
        if evidence.outcome is None:
            return None
        return _result(actor, call_id, evidence.outcome)

    def next_due_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None


class FinishedCalls:
    """The table `finished`: what was executed lately, for people; written at the end of a turn."""

    def __init__(self, store: HostStore) -> None:
        self._execute = store.execute
        self._executemany = store.executemany
        self._new: list[tuple[str | int | None, ...]] = []
        # The first one deletes what earlier processes left, however briefly each of them ran.
        self._added = _FINISHED_SLACK

    def load(self) -> None:
        """The turn was rolled back."""
        self._new.clear()

    def add(
        self, call_id: str, actor: str, caller: str, method: str, error: str | None, ended_ms: int
    ) -> None:
        error = error and error[:_ERROR_CHARS_MAX]
        self._new.append((call_id, actor, caller, method, error, ended_ms))

    def add_deferred(self, call_id: str, actor: str, caller: str, method: str) -> None:
        """It was executed, and is answered later, perhaps by the next run."""
        self._new.append((call_id, actor, caller, method, None, None))
        self.write()

    def answered(self, call_id: str, actor: str, error: str | None, now_ms: int) -> None:
        """The deferred answer was given."""
        self._execute(
            "UPDATE finished SET error = ?, ended_ms = ?"
            " WHERE call_id = ? AND actor = ? AND ended_ms IS NULL",
            (error and error[:_ERROR_CHARS_MAX], now_ms, call_id, actor),
        )

    def write(self) -> None:
        """Write what was added."""
        if not self._new:
            return
        new, self._new = self._new, []
        self._executemany(
            "INSERT INTO finished (call_id, actor, caller, method, error, ended_ms)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            new[-FINISHED_MAX:],
        )
        self._added += len(new)
        if self._added >= _FINISHED_SLACK:
            self._added = 0
            self._execute(
                "DELETE FROM finished WHERE row_id <= (SELECT max(row_id) FROM finished) - ?",
                (FINISHED_MAX,),
            )


def _result(actor: str, call_id: str, body: bytes) -> Item:
    message = ActorMessage("result", call_id, actor, msgspec.Raw(body))
    return Item(actor, "result", call_id, "", wire.encode(message))
