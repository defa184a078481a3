"""What has arrived for the actors of this host.

A message that can be done in the turn it arrives in is never written: it stands in `fresh` until
then. What is left when the turn ends goes into the table, in order, and so does everything for an
actor that has rows there already. Nothing is settled with its sender before the turn is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from signalhub.actors.store.schema import HELD_MS
from signalhub.actors.store.store import Store
from signalhub.ids import Ulids

# So many messages that come again after a failure may go before the others of a turn.
_DELAYED_MAX = 20
# Rows of actors that could not be started. They become ready, all at once, when theirs is.
_UNSTARTED_MS = HELD_MS + 1


class Item(msgspec.Struct, gc=False):
    """One message for one actor; without an `arrival_id` it is not in the table."""

    actor: str
    kind: str
    call_id: str
    sender: str
    payload: bytes
    arrival_id: str = ""
    attempts: int = 0


class Inbox:
    """The mailbox of all actors of a host."""

    def __init__(self, store: Store, ids: Ulids) -> None:
        self._store = store
        self._execute = store.execute
        self._ids = ids
        self.fresh: deque[Item] = deque()
        # How many rows of an actor are ready, so that nothing overtakes them.
        self._ready: dict[str, int] = {}
        # What stood in `fresh` before the running handler took something back.
        self._before: list[Item] | None = None
        self._is_running = False
        # Actors that refuse work, and when they are to be started again.
        self._refusing: dict[str, int] = {}
        self._withdrawals = 0

    def load(self) -> None:
        """Forget what is not in the table."""
        self.fresh.clear()
        self._before, self._is_running = None, False
        self._refusing.clear()
        self.reread()

    def reread(self) -> None:
        """Which actors refuse work, and what is ready, as the table has it."""
        for (actor,) in self._execute(
            "SELECT DISTINCT actor FROM inbox WHERE not_before_ms = ?", (_UNSTARTED_MS,)
        ):
            self._refusing.setdefault(actor, 0)
        self.recount()

    def begin(self) -> None:
        """A handler runs from now on, which may fail."""
        self._is_running = True

    def keep(self) -> None:
        """What the running handler took back stays away."""
        self._before, self._is_running = None, False

    def undo(self) -> None:
        """The running handler's changes are rolled back, also here."""
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

    def put(self, item: Item, now_ms: int) -> None:
        """It is done in this turn if nothing of its actor waits before it."""
        if item.actor in self._refusing:
            self.store(item, now_ms, _UNSTARTED_MS)
        elif self._ready.get(item.actor):
            self.store(item, now_ms)
        else:
            self.fresh.append(item)

    def flush(self, now_ms: int) -> None:
        """What the turn did not get to is kept for the next."""
        while self.fresh:
            item = self.fresh.popleft()
            self.store(item, now_ms, _UNSTARTED_MS if item.actor in self._refusing else 0)

    def store(self, item: Item, now_ms: int, not_before_ms: int = 0) -> bool:
        """Write it behind everything that has arrived; `False` if it is there already."""
        self._execute(
            "INSERT OR IGNORE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                item.actor,
                self._ids.next(now_ms),
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
        """The next rows to be done, in order, without what is taken back meanwhile."""
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
        """It has been dealt with."""
        if not item.arrival_id:
            return
        found = self._execute(
            "DELETE FROM inbox WHERE actor = ? AND arrival_id = ? RETURNING not_before_ms",
            (item.actor, item.arrival_id),
        ).fetchone()
        if found is not None and found[0] == 0:
            self._count_down(item.actor)

    def later(
        self, item: Item, now_ms: int, not_before_ms: int, *, is_attempt: bool = True
    ) -> None:
        """It could not be done now; others need not wait for it."""
        item.attempts += is_attempt
        if not item.arrival_id:
            self.store(item, now_ms, not_before_ms)
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
        """The actor refuses work; what comes for it waits behind what is there."""
        self._refusing[actor] = until_ms

    def refuse(self, item: Item, now_ms: int) -> None:
        """It waits until its actor could be started."""
        self.later(item, now_ms, _UNSTARTED_MS, is_attempt=False)

    def refused_until_ms(self, actor: str) -> int:
        """When the actor is to be started again; 0 if it does not refuse work."""
        return self._refusing.get(actor, 0)

    def to_start(self, now_ms: int) -> list[str]:
        """Actors that refused work and are to be tried again."""
        return [actor for actor, until_ms in self._refusing.items() if until_ms <= now_ms]

    def started(self, actor: str) -> None:
        """What has come while the actor refused work is ready, in the order it came in."""
        if self._refusing.pop(actor, None) is not None:
            self._make_ready(actor, _UNSTARTED_MS)

    def hold(self, actor: str) -> None:
        """Nothing of this actor is to be done for now; order and pauses stay."""
        self._execute(
            "UPDATE inbox SET not_before_ms ="
            " iif(not_before_ms > 0 AND not_before_ms < ?, -not_before_ms, ?)"
            " WHERE actor = ? AND not_before_ms >= 0",
            (HELD_MS, HELD_MS, actor),
        )
        self._ready.pop(actor, None)
        self._refusing.pop(actor, None)

    def release(self, actor: str) -> None:
        """What was held is ready, in the order it arrived in, or when its pause ends."""
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
        """Take back what has not been done; `False` if it is not here, or has been tried."""
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
        """When the next delayed message, or an actor that refused work, is to be tried again."""
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
