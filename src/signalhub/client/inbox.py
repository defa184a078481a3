"""Messages between the link and the application: handlers by type, a queue for the rest.

A handler serves one message at a time, in the order of arrival. What waits, for handlers and for
`messages()` together, is bounded: at the limit the link is not read any more until half of it is
worked off. An application that never asks for its messages would stop its own link that way, so
until somebody does, the oldest unasked message makes room instead, counted and logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from signalhub.client.message import Message
from signalhub.errors import GaveUp

INBOX_MAX = 10_000

Handler = Callable[[Message], Awaitable[object] | object]

log = logging.getLogger("signalhub.client")


class _Lane:
    """One handler, what waits for it and the task that serves it."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.waiting: deque[Message] = deque()
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Inbox:
    """Bounded; `reading` is told when to stop and when to go on."""

    def __init__(self, limit: int, reading: Callable[[bool], None]) -> None:
        self.limit = limit
        self.dropped = 0
        self._reading = reading
        self._is_reading = True
        self._is_asked = False
        self._is_ended = False
        self._failure = ""
        self._count = 0
        self._lanes: dict[str, _Lane] = {}
        self._unhandled: deque[Message] = deque()
        self._news = asyncio.Event()

    def put(self, message: Message) -> None:
        """A message has arrived."""
        self._count += 1
        lane = self._lanes.get(message.type)
        if lane is not None:
            lane.waiting.append(message)
            lane.wake.set()
        else:
            self._unhandled.append(message)
            self._news.set()
        if self._count >= self.limit:
            self._overflow()

    def on(self, type: str, handler: Handler) -> None:
        """Give messages of this type to the handler, those already here first."""
        if type in self._lanes:
            raise ValueError(f"{type!r} has a handler already")
        lane = self._lanes[type] = _Lane(handler)
        lane.waiting.extend(message for message in self._unhandled if message.type == type)
        self._unhandled = deque(m for m in self._unhandled if m.type != type)
        if lane.waiting:
            lane.wake.set()
        lane.task = asyncio.create_task(self._serve(lane), name=f"signalhub handler of {type}")

    async def next(self) -> Message:
        """The next message without a handler.

        Raises `StopAsyncIteration` after the last one, or why there are no more.
        """
        self._is_asked = True
        while not self._unhandled:
            if self._is_ended:
                if self._failure:
                    raise GaveUp(self._failure)
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        message = self._unhandled.popleft()
        self._took()
        return message

    def reread(self) -> None:
        """The link is lost; the next one is read until the limit is met again."""
        self._is_reading = True

    def end(self, failure: str = "") -> None:
        """No more messages will come, by choice or for a reason that `next` raises."""
        if not self._is_ended:
            self._is_ended = True
            self._failure = failure
            self._news.set()

    async def close(self) -> None:
        """End the handlers; one that is closing us itself ends when it is done."""
        self.end()
        current = asyncio.current_task()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        tasks = [task for task in tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, lane: _Lane) -> None:
        while True:
            while not lane.waiting:
                lane.wake.clear()
                await lane.wake.wait()
            message = lane.waiting.popleft()
            try:
                result = lane.handler(message)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("A handler failed", extra={"type": message.type})
            self._took()

    def _took(self) -> None:
        self._count -= 1
        if not self._is_reading and self._count <= self.limit // 2:
            self._is_reading = True
            self._reading(True)

    def _overflow(self) -> None:
        if self._unhandled and not self._is_asked:
            self._unhandled.popleft()
            self._count -= 1
            self.dropped += 1
            if self.dropped == 1:
                log.warning(
                    "Messages without a handler are dropped because nobody reads messages()",
                    extra={"limit": self.limit},
                )
        elif self._is_reading:
            self._is_reading = False
            self._reading(False)
