"""The event loop of all synchronous clients of a process, in a thread of its own.

It begins with the first of them and ends with the last.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Generic, Self, TypeVar, cast

from signalhub.client.arrivals import Handler
from signalhub.client.message import Message
from signalhub.client.sync.message import SyncMessage

T = TypeVar("T")

SyncHandler = Callable[[SyncMessage], object]


class Background:
    """A thread with an event loop; every method that waits is called from other threads."""

    def __init__(self) -> None:
        self._users = 0
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="signalhub.sync", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for some work of the loop; whatever interrupts the wait, such as Ctrl-C, ends it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "this would wait for itself: a listener or token function must not use its client"
            )
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError("connect again after a fork: the thread of this client is not here")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


_shared: Background | None = None
_lock = threading.Lock()
# Is this thread running a handler? The loop waits for such threads when it ends.
_handling = threading.local()


def acquire() -> Background:
    """Return the shared loop, for one more user; a forked process gets another one."""
    global _shared
    with _lock:
        if _shared is None or _shared._pid != os.getpid():
            _shared = Background()
        _shared._users += 1
        return _shared


def release(background: Background) -> None:
    """One user less; the last one ends the loop."""
    global _shared
    with _lock:
        background._users -= 1
        if background._users or background._pid != os.getpid():
            return
        if _shared is background:
            _shared = None
    if getattr(_handling, "is_on", False):
        # A handler has closed the last client, and the end of the loop waits for the handler.
        threading.Thread(target=background._end, name="signalhub.sync.end", daemon=True).start()
    else:
        background._end()


_END: Any = object()


class Steps(Generic[T]):
    """An iterator over what an asynchronous one yields."""

    def __init__(self, background: Background, source: AsyncIterator[T]) -> None:
        self._background = background
        self._source = source

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        async def step() -> T:
            return cast(T, await anext(self._source, _END))

        found = self._background.run(step())
        if found is _END:
            raise StopIteration
        return found


class Messages:
    """An iterator over messages."""

    def __init__(self, background: Background, source: AsyncIterator[Message]) -> None:
        self._steps = Steps(background, source)
        self._background = background

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        return SyncMessage(next(self._steps), self._background.run)


def threaded(background: Background, handler: SyncHandler) -> Handler:
    """Return a handler that calls a plain function in a thread, where it may wait."""

    def handle(message: SyncMessage) -> object:
        _handling.is_on = True
        try:
            return handler(message)
        finally:
            _handling.is_on = False

    async def serve(message: Message) -> object:
        return await asyncio.to_thread(handle, SyncMessage(message, background.run))

    return serve


async def awaited(step: Awaitable[T]) -> T:
    """Return a coroutine for anything that can be awaited."""
    return await step
