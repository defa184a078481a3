"""Recovery at the start of a host, alongside new work.

All work is in rows, so little has to be recovered: ids continue after the last one, messages still
in the outbox are sent again, offloaded work is started again, actors with waiting messages are
loaded, and work that can never run is set aside with an error in the log. This happens in steps of
a hundred per turn, so that a large store does not delay new work; after a crash it starts over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from signalhub.actors.api.actor import method_of
from signalhub.actors.api.names import parse_ref
from signalhub.actors.api.operation import decode_continuation
from signalhub.actors.api.payload import PayloadError
from signalhub.actors.kernel import dead_letters
from signalhub.actors.kernel.dead_letters import Evidence
from signalhub.actors.kernel.events import Offload
from signalhub.actors.kernel.execute import NotStarted

if TYPE_CHECKING:
    from signalhub.actors.kernel.kernel import Kernel

log = logging.getLogger("signalhub.actors")

_LAST_ID: Final = "last_ulid"
_PURGE_TURNS: Final = 50
# Limits per turn: rounds, and keys or tombstones deleted in each.
_PURGE_TIMES: Final = 10
_PURGE_KEYS: Final = 1_000


class HostRecovery:
    """Startup, and the periodic cleanup of expired rows."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._to_wake: deque[str] = deque()
        self._to_check: deque[tuple[str, str]] = deque()
        self._to_offload: deque[tuple[str, str]] = deque()
        self._last_id = ""
        self._turns = 0
        self._is_purging = False

    @property
    def is_unfinished(self) -> bool:
        return bool(self._to_wake or self._to_check or self._to_offload)

    def begin(self) -> None:
        """Continue ids after the last one made here, even if the clock was set back."""
        kernel = self._kernel
        execute = kernel.store.execute
        last = kernel.store.get_meta(_LAST_ID)
        newest = [last] if last else []
        for table, column in (("outbox", "msg_id"), ("inbox", "arrival_id"), ("dead", "dead_id")):
            found = execute(f"SELECT max({column}) FROM {table}").get  # noqa: S608
            if found:
                newest.append(found)
        if newest:
            kernel.ids.seed(max(newest))
        kernel.outbox.date(kernel.time)
        self.again()

    def again(self) -> None:
        """List what to check after a start or a failed turn."""
        execute = self._kernel.store.execute
        self._to_wake = deque(
            address
            for (address,) in execute(
                "SELECT actor FROM inbox UNION SELECT actor FROM outbox"
                " UNION SELECT actor FROM pending WHERE deadline_ms <= ?",
                (self._kernel.now_ms,),
            )
        )
        self._to_check = deque(execute("SELECT actor, call_id FROM pending"))
        self._to_offload = deque(execute("SELECT actor, call_id FROM offloads"))

    def adopt(self, actor: str) -> None:
        """An actor has arrived: start its offloaded work again and load it."""
        self._to_wake.append(actor)
        rows = self._kernel.store.execute(
            "SELECT actor, call_id FROM offloads WHERE actor = ?", (actor,)
        )
        self._to_offload.extend(rows)

    def step(self, now_ms: int) -> None:
        """Process a hundred of each per turn."""
        self._kernel.reached("recovery")
        limit = self._kernel.config.inbound_batch_size
        for address in self._kernel.inbox.to_start(now_ms):
            self._wake(address)
        for _ in range(min(limit, len(self._to_wake))):
            self._wake(self._to_wake.popleft())
        for _ in range(min(limit, len(self._to_check))):
            self._check(*self._to_check.popleft())
        for _ in range(min(limit, len(self._to_offload))):
            self._offload(*self._to_offload.popleft())

    def _wake(self, address: str) -> None:
        """Load an actor with waiting work, so that `on_start` can set its alarms."""
        kernel = self._kernel
        if not kernel.places.is_here(address):
            return
        # The reason is logged, and the actor is tried again later.
        with suppress(NotStarted):
            kernel.instances.get(address)

    def _check(self, actor: str, call_id: str) -> None:
        """A call whose continuation no longer exists becomes a dead letter awaiting the outcome."""
        kernel = self._kernel
        waiting = kernel.calls.find(actor, call_id)
        cls = kernel.kinds.find(parse_ref(actor).kind)
        if waiting is None or cls is None or kernel.inbox.has(actor, "result", call_id):
            return
        for stored in (waiting.then, waiting.catch):
            if stored is None:
                continue
            try:
                name = decode_continuation(stored).method
            except PayloadError as fault:
                name, fault_text = "", str(fault)
            else:
                fault_text = f"{cls.__name__} no longer has a method {name}"
            if name and method_of(cls, name) is not None:
                continue
            log.error("%s: the continuation of %s is set aside: %s", actor, call_id, fault_text)
            evidence = dead_letters.encode(Evidence.of(waiting))
            kernel.letters.bury(actor, "continuation", call_id, evidence, fault_text, 0)
            kernel.calls.remove(actor, call_id)
            return

    def _offload(self, actor: str, call_id: str) -> None:
        if not self._kernel.places.is_here(actor):
            return  # Its current host does the work; if it comes back, it is adopted again.
        found = self._kernel.store.execute(
            "SELECT function, arguments FROM offloads WHERE actor = ? AND call_id = ?",
            (actor, call_id),
        ).fetchone()
        if found is not None:
            self._kernel.effects.append(Offload(actor, call_id, *found))

    def end_turn(self) -> None:
        """Store the newest id, and periodically delete expired rows."""
        kernel = self._kernel
        if kernel.ids.last != self._last_id:
            self._last_id = kernel.ids.last
            kernel.store.put_meta(_LAST_ID, self._last_id)
        self._turns += 1
        if self._is_purging or self._turns % _PURGE_TURNS == 0:
            tombstones = self._purge(kernel.arriving.purge)
            keys = self._purge(lambda: kernel.calls.purge_keys(kernel.now_ms, _PURGE_KEYS))
            # The rest is deleted in the next turn.
            self._is_purging = not (tombstones and keys)

    def _purge(self, purge: Callable[[], int]) -> bool:
        """Delete expired rows; returns whether nothing is left to delete."""
        return not all(purge() for _ in range(_PURGE_TIMES))
