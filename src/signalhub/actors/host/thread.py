"""The thread that owns a kernel: it runs a turn whenever there are events or something is due.

Events that arrive during a commit are collected for the next turn, so under load more work shares
one fsync.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from signalhub.actors.kernel.events import Effect, Event
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import STORAGE_ERRORS, StorageFailed
from signalhub.clock import Clock

log = logging.getLogger("signalhub.actors")

# The longest wait, because the wall clock may be changed meanwhile.
_WAIT_S_MAX: Final = 60.0
# The pause after a turn that failed because of the disk.
_FAILED_S: Final = 1.0


class Turning:
    """Runs the kernel. Only `put` and `stop` may be called from other threads."""

    def __init__(
        self, kernel: Kernel, clock: Clock, perform: Callable[[list[Effect]], None]
    ) -> None:
        """`perform` is called on the kernel's thread with the effects of a committed turn."""
        self._kernel = kernel
        self._clock = clock
        self._perform = perform
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._is_stopping = False
        # An error of the program, not of the disk: it stops the host.
        self.fault: BaseException | None = None
        self.on_fault: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="signalhub-actors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, events: Iterable[Event]) -> None:
        with self._changed:
            self._events.extend(events)
            self._changed.notify()

    def stop(self) -> None:
        """Finish the running turn and stop; unprocessed deliveries stay in the hub."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._is_wanted, self._wait_s())
                    if self._is_stopping:
                        return
                    events, self._events = self._events, []
                self._turn(events)
        except BaseException as fault:
            log.exception("the host stops because of an internal error")
            self.fault = fault
            self.on_fault()

    def _is_wanted(self) -> bool:
        return bool(self._events or self._is_stopping)

    def _wait_s(self) -> float:
        if self._events or self._is_stopping or self._kernel.has_work:
            return 0
        try:
            due_ms = self._kernel.next_due_ms()
        except STORAGE_ERRORS:
            return _FAILED_S  # The next turn reports the failure.
        if due_ms is None:
            return _WAIT_S_MAX
        return min(_WAIT_S_MAX, max(0, due_ms - self._clock.now_ms()) / 1000)

    def _turn(self, events: list[Event]) -> None:
        try:
            effects = self._kernel.turn(events, self._clock.now_ms())
        except StorageFailed as failure:
            # Rolled back. Keep the events first, so that later deliveries do not overtake them.
            log.error("%s; retrying in %.0f s", failure, _FAILED_S)
            with self._changed:
                self._events[:0] = events
                self._changed.wait_for(lambda: self._is_stopping, _FAILED_S)
            return
        if effects:
            self._perform(effects)
