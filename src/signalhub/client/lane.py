"""One line of received messages and whoever takes them: a reader, or a handler.

A handler serves one message at a time, in order. A message that is to be settled is settled by how
its handler ends: returning acknowledges, `Reject` gives it up, any other error lets it come again;
unless the handler has settled it itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from signalhub.client.message import Message
from signalhub.errors import ClientError, Reject

REASON_CHARS_MAX = 500

Handler = Callable[[Message], Awaitable[object] | object]

log = logging.getLogger("signalhub.client")


class Lane:
    """In order; `took` is told of every message that has left."""

    def __init__(self, took: Callable[[], None]) -> None:
        self.waiting: deque[Message] = deque()
        self.ended = asyncio.Event()
        self.failure: ClientError | None = None
        self._took = took
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Does a handler take the messages?"""
        return self._task is not None and not self._task.done()

    def put(self, message: Message) -> None:
        self.waiting.append(message)
        self._news.set()

    async def next(self) -> Message:
        """The next message, as soon as there is one.

        Raises `StopAsyncIteration` after the last one, or why there are no more.
        """
        while True:
            message = await self._first()
            if message is None:
                if self.failure is not None:
                    raise self.failure.with_traceback(None)
                raise StopAsyncIteration
            self._took()
            if message.is_open:
                return message

    def serve(self, handler: Handler, name: str) -> None:
        """Give every message to a handler from now on."""
        self._task = asyncio.create_task(self._serve(handler), name=f"signalhub handler of {name}")

    def discard(self) -> int:
        """Forget what will come again, since the hub knows that it is not settled; how many."""
        kept = [message for message in self.waiting if not message.is_settleable]
        count = len(self.waiting) - len(kept)
        if count:
            self.waiting = deque(kept)
        return count

    def end(self, failure: ClientError | None = None) -> None:
        """No more messages will come, by choice or for a reason that `next` raises."""
        if not self.ended.is_set():
            self.failure = failure
            self.ended.set()
            self._news.set()

    async def close(self) -> None:
        """End, and the handler too; one that is closing us itself ends when it is done."""
        self.end()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _first(self) -> Message | None:
        while not self.waiting:
            if self.ended.is_set():
                return None
            self._news.clear()
            await self._news.wait()
        return self.waiting.popleft()

    async def _serve(self, handler: Handler) -> None:
        while (message := await self._first()) is not None:
            if message.is_open:
                await _handle(handler, message)
            self._took()


async def _handle(handler: Handler, message: Message) -> None:
    failure: Exception | None = None
    try:
        result = handler(message)
        if inspect.isawaitable(result):
            await result
    except Reject as rejection:
        failure = rejection
        log.warning("A handler rejected a message", extra={"type": message.type})
    except Exception as error:
        failure = error
        log.exception("A handler failed", extra={"type": message.type})
    if message.is_settleable and message.is_open:
        await _settle(message, failure)


async def _settle(message: Message, failure: Exception | None) -> None:
    try:
        match failure:
            case None:
                await message.ack()
            case Reject():
                await message.term(reason=str(failure)[:REASON_CHARS_MAX])
            case _:
                reason = f"{type(failure).__name__}: {failure}"
                await message.nack(reason=reason[:REASON_CHARS_MAX])
    except ClientError as error:
        log.info("A message was not settled", extra={"type": message.type, "reason": str(error)})
