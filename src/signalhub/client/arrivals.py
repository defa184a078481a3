"""Queues of received messages, read by the program or by a handler.

A handler processes one message at a time, in order, unless it is for several at once. A message
that needs to be settled is settled by how its handler ends: returning acknowledges it, `Reject`
terminates it, any other error has it redelivered, unless the handler has already settled it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from signalhub.client.delivery import reader_of
from signalhub.client.message import Message
from signalhub.wire.errors import ClientError, Reject

REASON_CHARS_MAX = 500

Handler = Callable[[Message], Awaitable[object] | object]

log = logging.getLogger("signalhub.client")


class MessageQueue:
    """Messages in order; `took` is told how many were returned, handled or discarded."""

    def __init__(self, took: Callable[[int], None]) -> None:
        self.waiting: deque[Message] = deque()
        self.ended = asyncio.Event()
        self.failure: ClientError | None = None
        self._took = took
        self._is_released = False
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_serving(self) -> bool:
        """Return whether a handler takes the messages."""
        return any(not task.done() for task in self._tasks)

    def put(self, message: Message) -> None:
        self.waiting.append(message)
        self._news.set()

    async def next(self) -> Message:
        """Wait for the next message.

        Raises `StopAsyncIteration` after the last one, or the error that ended the queue.
        """
        while True:
            message = await self._first()
            if message is None:
                if self.failure is not None:
                    raise self.failure.with_traceback(None)
                raise StopAsyncIteration
            if not self._is_released:
                self._took(1)
            if message.is_open:
                return message

    def serve(self, handler: Handler, name: str, at_once: int = 1) -> None:
        """Give all messages to a handler from now on, so many at once."""
        self._tasks = [
            asyncio.create_task(self._serve(handler), name=f"signalhub handler of {name}")
            for _ in range(at_once)
        ]

    def discard(self) -> None:
        """Drop unsettled messages, which the hub will redeliver."""
        kept = [message for message in self.waiting if not message.is_settleable]
        count = len(self.waiting) - len(kept)
        if count:
            self.waiting = deque(kept)
            self._took(count)

    def release(self) -> None:
        """Count all messages as taken, because perhaps nobody reads them after the end."""
        self._took(len(self.waiting))
        self._is_released = True

    def end(self, failure: ClientError | None = None) -> None:
        """End the queue; then `next` raises `failure`, if given."""
        if not self.ended.is_set():
            self.failure = failure
            self.ended.set()
            self._news.set()

    async def close(self) -> None:
        """End the queue and its handler; a handler that calls this itself ends when it returns."""
        self.end()
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _first(self) -> Message | None:
        while not self.waiting:
            if self.ended.is_set():
                return None
            self._news.clear()
            await self._news.wait()
        return self.waiting.popleft()

    async def _serve(self, handler: Handler) -> None:
        while (message := await self._first()) is not None:
            is_counted = not self._is_released
            try:
                if message.is_open:
                    await _handle(handler, message)
            finally:
                if is_counted:
                    self._took(1)


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


INBOX_MAX = 10_000


class Arrivals:
    """The queues of one client, limited together.

    `reading` is called to stop and resume reading from the link.
    """

    def __init__(self, limit: int, reading: Callable[[bool], None]) -> None:
        self.limit = limit
        self.dropped = 0
        self._reading = reading
        self._is_reading = True
        self._is_asked = False
        self._count = 0
        self._by_type: dict[str, MessageQueue] = {}
        self._by_subscription: dict[tuple[str, str], MessageQueue] = {}
        self._retired: list[MessageQueue] = []
        self._unhandled = MessageQueue(self._took)

    def put(self, message: Message) -> None:
        """Queue a message that has arrived."""
        queue = self._queue_for(message)
        if queue is None:
            return
        self._count += 1
        queue.put(message)
        if self._count >= self.limit:
            self._overflow()

    def on(self, type: str, handler: Handler, at_once: int = 1) -> None:
        """Give messages of this type to a handler, those already queued first."""
        if type in self._by_type:
            raise ValueError(f"{type!r} already has a handler")
        queue = self._by_type[type] = MessageQueue(self._took)
        for message in self._unhandled.waiting:
            if message.type == type:
                queue.put(message)
        self._unhandled.waiting = deque(m for m in self._unhandled.waiting if m.type != type)
        queue.serve(handler, type, at_once)

    def open_queue(self, key: tuple[str, str]) -> MessageQueue:
        """Create a separate queue for a durable subscription."""
        if key in self._by_subscription:
            raise ValueError(f"this client already consumes {key[1]} of topic {key[0]}")
        queue = self._by_subscription[key] = MessageQueue(self._took)
        return queue

    def end_queue(self, key: tuple[str, str], failure: ClientError | None = None) -> None:
        """End the queue of a durable subscription; the hub redelivers what is not settled."""
        queue = self._by_subscription.pop(key, None)
        if queue is not None:
            queue.discard()
            queue.release()
            queue.end(failure)
            # Its handler may still be running; it ends with the client at the latest.
            self._retired = [one for one in (*self._retired, queue) if one.is_serving]

    async def next(self) -> Message:
        """Wait for the next message without a handler.

        Raises `StopAsyncIteration` after the last one, or the error that ended the client.
        """
        self._is_asked = True
        return await self._unhandled.next()

    def lost(self) -> None:
        """Drop unsettled messages after the link is lost; the next link is read again."""
        self._is_reading = True
        for queue in self._queues():
            queue.discard()

    def end(self, failure: ClientError | None = None) -> None:
        """End all queues; then `next` raises `failure`, if given."""
        for queue in self._queues():
            queue.end(failure)

    async def close(self) -> None:
        """End all queues and handlers."""
        self.end()
        for queue in [*self._queues(), *self._retired]:
            await queue.close()

    def _queues(self) -> Iterator[MessageQueue]:
        yield self._unhandled
        yield from self._by_type.values()
        yield from self._by_subscription.values()

    def _queue_for(self, message: Message) -> MessageQueue | None:
        """Return the queue for a message; `None` if its subscription was just left."""
        delivery = message.delivery
        if delivery is not None and delivery.subscription is not None:
            return reader_of(self._by_subscription, message.topic or "", delivery.subscription)
        return self._by_type.get(message.type, self._unhandled)

    def _took(self, count: int) -> None:
        self._count -= count
        if not self._is_reading and self._count <= self.limit // 2:
            self._is_reading = True
            self._reading(True)

    def _overflow(self) -> None:
        if self._unhandled.waiting and not self._is_asked:
            self._unhandled.waiting.popleft()
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
