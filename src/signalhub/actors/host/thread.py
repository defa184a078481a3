"""The thread that owns a kernel: it runs a turn whenever there are events or something is due.

Events that arrive during a commit are collected for the next turn, so under load more work shares
one fsync.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from signalhub.actors.kernel.events import (
    BatchRefused,
    Commanded,
    DeliveryArrived,
    Effect,
    Event,
    OffloadEnded,
    PlacingFailed,
    Receipted,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import STORAGE_ERRORS, StorageFailed
from signalhub.clock import SteadyClock

log = logging.getLogger("signalhub.actors")

# How often to look at the wall clock, and to take a turn in any case.
_LOOK_S: Final = 1.0
_TURN_S_MAX: Final = 60.0
# The pause after a turn that failed because of the disk.
_FAILED_S: Final = 1.0
# How long the event loop gets, in a turn, to hand over receipts.
_LATE_S: Final = 0.000_05
# What people and the event loop wait for; it has no order with deliveries.
_URGENT: Final = (Commanded, OffloadEnded, BatchRefused, PlacingFailed)


class Turning:
    """Runs the kernel. Only `put` and `stop` may be called from other threads."""

    def __init__(
        self, kernel: Kernel, clock: SteadyClock, perform: Callable[[list[Effect]], None]
    ) -> None:
        """`perform` is called on the kernel's thread with the effects of a committed turn."""
        self._kernel = kernel
        self._clock = clock
        self._perform = perform
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._looked_s = self._turned_s = clock.mono_s()
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
                    events = self._taken()
                self._look()
                if events or self._is_due():
                    self._turn(events)
        except BaseException as fault:
            log.exception("the host stops because of an internal error")
            self.fault = fault
            self.on_fault()

    def _taken(self) -> list[Event]:
        """Return the events for one turn.

        Deliveries with more messages than it runs wait here: it would have to write them, and the
        next turn to read and delete them again.
        """
        events, left = self._events, self._kernel.config.inbound_batch_size
        for at, event in enumerate(events):
            if isinstance(event, DeliveryArrived):
                if left <= 0:
                    self._events = events[at:]
                    return events[:at] + self._taken_if(self._need_not_wait)
                left -= event.count
        self._events = []
        return events

    def _taken_if(self, is_taken: Callable[[Event], bool]) -> list[Event]:
        """Return some of the waiting events."""
        taken = [event for event in self._events if is_taken(event)]
        if taken:
            self._events = [event for event in self._events if not is_taken(event)]
        return taken

    def _is_receipt(self, event: Event) -> bool:
        """Is it the receipt of a lane batch, with which the lane goes on, whatever else waits?"""
        return isinstance(event, Receipted) and self._kernel.dispatch.is_under_way(event.batch)

    def _need_not_wait(self, event: Event) -> bool:
        """Has it no order with deliveries, and does somebody wait for it?"""
        return isinstance(event, _URGENT) or self._is_receipt(event)

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
            return _LOOK_S
        return min(_LOOK_S, max(0, due_ms - self._clock.now_ms()) / 1000)

    def _is_due(self) -> bool:
        """Is there anything to do without an event?"""
        if self._kernel.has_work or self._kernel.time.is_unsaved(self._clock.ahead_ms):
            return True
        try:
            due_ms = self._kernel.next_due_ms()
        except STORAGE_ERRORS:
            return True
        if due_ms is not None and due_ms <= self._clock.now_ms():
            return True
        return self._clock.mono_s() - self._turned_s >= _TURN_S_MAX

    def _look(self) -> None:
        """Follow the wall clock slowly, and say so when it was set."""
        clock = self._clock
        # At once after a jump: if the machine was suspended, the turn must see that time passed.
        if clock.mono_s() - self._looked_s < _LOOK_S and not clock.has_jumped:
            return
        self._looked_s = clock.mono_s()
        if set_ms := clock.follow():
            log.warning(
                "the wall clock was set by %.0f s; only alarms for a time of day follow it at once",
                set_ms / 1000,
            )

    def _turn(self, events: list[Event]) -> None:
        self._turned_s = self._clock.mono_s()

        def late() -> list[Event]:
            # A thread that computes gives way only after milliseconds, unless it sleeps.
            time.sleep(_LATE_S)
            with self._changed:
                receipts = self._taken_if(self._is_receipt)
            events.extend(receipts)
            return receipts

        try:
            effects = self._kernel.turn(events, self._clock.now_ms(), self._clock.ahead_ms, late)
        except StorageFailed as failure:
            # Rolled back. Keep the events first, so that later deliveries do not overtake them.
            log.error("%s; retrying in %.0f s", failure, _FAILED_S)
            with self._changed:
                self._events[:0] = events
                self._changed.wait_for(lambda: self._is_stopping, _FAILED_S)
            return
        if effects:
            self._perform(effects)
