"""Messages that have arrived for the actors of this host.

A message that runs in the turn it arrives in is never written: it waits in `fresh`. Messages left
when the turn ends are written to the table, in order, and so is every message for an actor that
already has rows there. Nothing is settled before the turn is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from signalhub.actors.store.schema import HELD_MS
from signalhub.actors.store.store import HostStore
from signalhub.actors.wire import ActorMessage

# How many retried messages may run before the others in one turn.
_DELAYED_MAX = 20
# Rows of actors that could not be started. They become ready together when the actor starts.
_UNSTARTED_MS = HELD_MS + 1


class Item(msgspec.Struct, gc=False):
    """One message for one actor; not in the table if it has no `arrival_id`."""

    actor: str
    kind: str
    call_id: str
    sender: str
    payload: bytes
    arrival_id: str = ""
    attempts: int = 0
    # `payload`, if it was decoded already.
    message: ActorMessage | None = None


class HostInbox:
    """The mailbox of all actors of a host."""

    def __init__(self, store: HostStore, new_id: Callable[[], str]) -> None:
        self._store = store
        self._execute = store.execute
        self._new_id = new_id
        self.fresh: deque[Item] = deque()
        # Ready rows per actor, so that nothing overtakes them.
        self._ready: dict[str, int] = {}
        # `fresh` as it was before the running handler withdrew something.
        self._before: list[Item] | None = None
        self._is_running = False
        # Actors that could not be started, and when to try again.
        self._refusing: dict[str, int] = {}
        self._withdrawals = 0

    def load(self) -> None:
        """Drop messages that are not in the table."""
        self.fresh.clear()
        self._before, self._is_running = None, False
        self._refusing.clear()
        self.reread()

    def reread(self) -> None:
        """Read from the table which actors could not be started, and what is ready."""
        for (actor,) in self._execute(
            "SELECT DISTINCT actor FROM inbox WHERE not_before_ms = ?", (_UNSTARTED_MS,)
        ):
            self._refusing.setdefault(actor, 0)
        self.recount()

    def begin(self) -> None:
        """A handler starts, which may fail."""
        self._is_running = True

    def keep(self) -> None:
        """Keep what the running handler withdrew."""
        self._before, self._is_running = None, False

    def undo(self) -> None:
        """Undo what the running handler withdrew."""
        self._is_running = False
        if self._before is not None:
            self.fresh, self._before = deque(self._before), None
            self.recount()

    def recount(self) -> None:
        self._ready = dict(
            self._execute(
                "SELECT actor, count(*) FROM inbox WHERE not_before_ms = 0 GROUP BY actor"
            )
        )

    @property
    def is_ready(self) -> bool:
        return bool(self.fresh or self._ready)

    def put(self, item: Item) -> None:
        """Add a message; it runs in this turn if nothing waits for the same actor."""
        if item.actor in self._refusing:
            self.store(item, _UNSTARTED_MS)
        elif self._ready.get(item.actor):
            self.store(item)
        else:
            self.fresh.append(item)

    def flush(self) -> None:
        """Write the messages that did not run in this turn."""
        while self.fresh:
            item = self.fresh.popleft()
            self.store(item, _UNSTARTED_MS if item.actor in self._refusing else 0)

    def store(self, item: Item, not_before_ms: int = 0) -> bool:
        """Append a row; `False` if the message is already in the table."""
        self._execute(
            "INSERT OR IGNORE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                item.actor,
                self._new_id(),
                item.kind,
                item.call_id,
                item.sender,
                item.payload,
                item.attempts,
                not_before_ms,
            ),
        )
        is_new = bool(self._store.connection.changes())
        if is_new and not not_before_ms:
            self._ready[item.actor] = self._ready.get(item.actor, 0) + 1
        return is_new

    def take(self, now_ms: int, limit: int) -> Iterator[Item]:
        """The next rows to run, in order, except those withdrawn meanwhile."""
        rows: list[Item] = []
        if limit > 0:
            rows += self._select(
                "not_before_ms > 0 AND not_before_ms <= ?", now_ms, min(limit, _DELAYED_MAX)
            )
        if self._ready and len(rows) < limit:
            rows += self._select("not_before_ms = ?", 0, limit - len(rows))
        before = self._withdrawals
        for item in rows:
            if self._withdrawals == before or self.has(item.actor, item.kind, item.call_id):
                yield item

    def _select(self, condition: str, value: int, limit: int) -> list[Item]:
        return [
            Item(actor, kind, call_id, sender, bytes(payload), arrival_id, attempts)
            for actor, arrival_id, kind, call_id, sender, payload, attempts in self._execute(
                "SELECT actor, arrival_id, kind, call_id, sender, payload, attempts"  # noqa: S608
                f" FROM inbox WHERE {condition} ORDER BY not_before_ms, arrival_id LIMIT ?",
                (value, limit),
            )
        ]

    def done(self, item: Item) -> None:
        """Remove a message that has run."""
        if not item.arrival_id:
            return
        found = self._execute(
            "DELETE FROM inbox WHERE actor = ? AND arrival_id = ? RETURNING not_before_ms",
            (item.actor, item.arrival_id),
        ).fetchone()
        if found is not None and found[0] == 0:
            self._count_down(item.actor)

    def later(self, item: Item, not_before_ms: int, *, is_attempt: bool = True) -> None:
        """Retry a message later; others need not wait for it."""
        item.attempts += is_attempt
        if not item.arrival_id:
            self.store(item, not_before_ms)
            return
        before = self._execute(
            "SELECT not_before_ms FROM inbox WHERE actor = ? AND arrival_id = ?",
            (item.actor, item.arrival_id),
        ).get
        self._execute(
            "UPDATE inbox SET attempts = ?, not_before_ms = ? WHERE actor = ? AND arrival_id = ?",
            (item.attempts, not_before_ms, item.actor, item.arrival_id),
        )
        if before == 0:
            self._count_down(item.actor)

    def not_started(self, actor: str, until_ms: int) -> None:
        """The actor could not be started; its messages wait in order."""
        self._refusing[actor] = until_ms

    def refuse(self, item: Item) -> None:
        """Let a message wait until its actor has started."""
        self.later(item, _UNSTARTED_MS, is_attempt=False)

    def refused_until_ms(self, actor: str) -> int:
        """When to start the actor again; 0 if it does not wait for that."""
        return self._refusing.get(actor, 0)

    def to_start(self, now_ms: int) -> list[str]:
        """Actors that are due to be started again."""
        return [actor for actor, until_ms in self._refusing.items() if until_ms <= now_ms]

    def started(self, actor: str) -> None:
        """The actor has started: its messages are ready, in the order of arrival."""
        if self._refusing.pop(actor, None) is not None:
            self._make_ready(actor, _UNSTARTED_MS)

    def hold(self, actor: str) -> None:
        """Run nothing of this actor for now; keep order and pauses."""
        self._execute(
            "UPDATE inbox SET not_before_ms ="
            " iif(not_before_ms > 0 AND not_before_ms < ?, -not_before_ms, ?)"
            " WHERE actor = ? AND not_before_ms >= 0",
            (HELD_MS, HELD_MS, actor),
        )
        self._ready.pop(actor, None)
        self._refusing.pop(actor, None)

    def release(self, actor: str) -> None:
        """Held messages are ready, in the order of arrival, or when their pause ends."""
        self._execute(
            "UPDATE inbox SET not_before_ms = -not_before_ms WHERE actor = ? AND not_before_ms < 0",
            (actor,),
        )
        self._make_ready(actor, HELD_MS)

    def _make_ready(self, actor: str, not_before_ms: int) -> None:
        self._execute(
            "UPDATE inbox SET not_before_ms = 0 WHERE actor = ? AND not_before_ms = ?",
            (actor, not_before_ms),
        )
        count = self._execute(
            "SELECT count(*) FROM inbox WHERE actor = ? AND not_before_ms = 0", (actor,)
        ).get
        if count:
            self._ready[actor] = count

    def withdraw(self, actor: str, kind: str, call_id: str) -> bool:
        """Withdraw a message that has not run; `False` if it is not here or was tried."""
        if self._is_running and self._before is None:
            self._before = list(self.fresh)
        for item in self.fresh:
            if (item.call_id, item.actor, item.kind) == (call_id, actor, kind):
                self.fresh.remove(item)
                return True
        found = self._execute(
            "DELETE FROM inbox WHERE actor = ? AND kind = ? AND call_id = ?"
            " RETURNING not_before_ms, attempts",
            (actor, kind, call_id),
        ).fetchone()
        if found is None:
            return False
        not_before_ms, attempts = found
        self._withdrawals += 1
        if not_before_ms == 0:
            self._count_down(actor)
        return not attempts

    def has(self, actor: str, kind: str, call_id: str) -> bool:
        wanted = (call_id, actor, kind)
        if any((item.call_id, item.actor, item.kind) == wanted for item in self.fresh):
            return True
        return (
            self._execute(
                "SELECT 1 FROM inbox WHERE actor = ? AND kind = ? AND call_id = ?",
                (actor, kind, call_id),
            ).get
            is not None
        )

    def next_due_ms(self) -> int | None:
        """When to retry the next delayed message or actor that could not be started."""
        found: int | None = self._execute(
            "SELECT min(not_before_ms) FROM inbox WHERE not_before_ms > 0 AND not_before_ms < ?",
            (HELD_MS,),
        ).get
        times = [*self._refusing.values()] if found is None else [found, *self._refusing.values()]
        return min(times, default=None)

    def _count_down(self, actor: str) -> None:
        left = self._ready.get(actor, 0) - 1
        if left > 0:
            self._ready[actor] = left
        else:
            self._ready.pop(actor, None)
