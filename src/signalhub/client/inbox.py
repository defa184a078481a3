"""Messages between the link and the application: handlers, consumers, and a queue for the rest.

What waits, everywhere together, is bounded: at the limit the link is not read any more until half
of it is worked off. An application that never asks for its messages would stop its own link that
way, so until somebody does, the oldest unasked message makes room instead, counted and logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator

from signalhub.client.lane import Handler, Lane
from signalhub.client.message import Message
from signalhub.errors import ClientError

INBOX_MAX = 10_000

log = logging.getLogger("signalhub.client")


class Inbox:
    """Bounded; `reading` is told when to stop and when to go on."""

    def __init__(self, limit: int, reading: Callable[[bool], None]) -> None:
        self.limit = limit
        self.dropped = 0
        self._reading = reading
        self._is_reading = True
        self._is_asked = False
        self._count = 0
        self._by_type: dict[str, Lane] = {}
        self._by_subscription: dict[tuple[str, str], Lane] = {}
        self._retired: list[Lane] = []
        self._unhandled = Lane(self._took)

    def put(self, message: Message) -> None:
        """A message has arrived."""
        lane = self._lane(message)
        if lane is None:
            return
        self._count += 1
        lane.put(message)
        if self._count >= self.limit:
            self._overflow()

    def on(self, type: str, handler: Handler) -> None:
        """Give messages of this type to the handler, those already here first."""
        if type in self._by_type:
            raise ValueError(f"{type!r} has a handler already")
        lane = self._by_type[type] = Lane(self._took)
        for message in self._unhandled.waiting:
            if message.type == type:
                lane.put(message)
        self._unhandled.waiting = deque(m for m in self._unhandled.waiting if m.type != type)
        lane.serve(handler, type)

    def open_lane(self, key: tuple[str, str]) -> Lane:
        """A line of its own for the messages of a durable subscription."""
        if key in self._by_subscription:
            raise ValueError(f"this client consumes {key[1]} of topic {key[0]} already")
        lane = self._by_subscription[key] = Lane(self._took)
        return lane

    def end_lane(self, key: tuple[str, str], failure: ClientError | None = None) -> None:
        """A durable subscription gives no more; what is not settled goes to somebody else."""
        lane = self._by_subscription.pop(key, None)
        if lane is not None:
            self._forget(lane)
            lane.end(failure)
            # Its handler may be at work, and ends with the inbox at the latest.
            self._retired = [one for one in (*self._retired, lane) if one.is_serving]

    async def next(self) -> Message:
        """The next message without a handler.

        Raises `StopAsyncIteration` after the last one, or why there are no more.
        """
        self._is_asked = True
        return await self._unhandled.next()

    def lost(self) -> None:
        """The link is lost; the next one is read until the limit is met again."""
        self._is_reading = True
        for lane in self._lanes():
            self._forget(lane)

    def end(self, failure: ClientError | None = None) -> None:
        """No more messages will come, by choice or for a reason that `next` raises."""
        for lane in self._lanes():
            lane.end(failure)

    async def close(self) -> None:
        """End, and all handlers too."""
        self.end()
        for lane in [*self._lanes(), *self._retired]:
            await lane.close()

    def _lanes(self) -> Iterator[Lane]:
        yield self._unhandled
        yield from self._by_type.values()
        yield from self._by_subscription.values()

    def _lane(self, message: Message) -> Lane | None:
        """Where a message goes; nowhere if it is for a subscription that was just left."""
        delivery = message.delivery
        if delivery is not None and delivery.subscription is not None:
            return self._by_subscription.get((message.topic or "", delivery.subscription))
        return self._by_type.get(message.type, self._unhandled)

    def _forget(self, lane: Lane) -> None:
        for _ in range(lane.discard()):
            self._took()

    def _took(self) -> None:
        self._count -= 1
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
