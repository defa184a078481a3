"""How commands that run Spark are stopped by SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """The command was stopped by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stopping:
    """What a signal does: it interrupts the work, or asks it to end first."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._ask: Callable[[], object] | None = None

    def gently(self, ask: Callable[[], object]) -> None:
        """From now on the first signal calls `ask`, and only the second one interrupts."""
        self._ask = ask
        if self.number is not None:
            ask()

    def handle(self, number: int, frame: FrameType | None) -> None:
        is_first, self.number = self.number is None, number
        if self._ask is None or not is_first:
            raise Stopped(number)
        self._ask()


@contextmanager
def stoppable() -> Iterator[Stopping]:
    """Handle SIGTERM and SIGINT while the block runs; errors after a signal are its consequence.

    Raises `Stopped`. Only the main thread can handle signals; elsewhere nothing is changed.
    """
    stopping = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, stopping.handle) for number in _SIGNALS}
    try:
        yield stopping
    except Exception as error:
        if stopping.number is None:
            raise
        raise Stopped(stopping.number) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
