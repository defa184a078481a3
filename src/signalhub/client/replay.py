"""Reading a range of a durable topic once, without a subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

from signalhub.client.answers import Lost, Replayed
from signalhub.client.message import Message
from signalhub.client.stream_requests import ReadTopic
from signalhub.client.transport.runner import ClientRunner

PAGE = 500


class Replay:
    """The messages of a range, in order: `async for message in replay`.

    They are fetched in pages. Afterwards, `complete` says whether that was the whole range,
    `next` where to continue, and `lost` which positions the topic no longer keeps.
    """

    def __init__(
        self, runner: ClientRunner, topic: str, from_seq: int, to_seq: int | None, limit: int | None
    ) -> None:
        if from_seq < 1 or (to_seq is not None and to_seq < from_seq):
            raise ValueError("from_seq must be at least 1, and to_seq must not be before it")
        if limit is not None and limit < 1:
            raise ValueError("limit must be at least 1")
        self.topic = topic
        self.count = 0
        self.complete = False
        self.next = from_seq
        self.lost: Lost | None = None
        self._to_seq = to_seq
        self._limit = limit
        self._runner = runner
        self._page: deque[Message] = deque()
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._page:
            if self._is_over:
                raise StopAsyncIteration
            await self._fetch()
        self.count += 1
        return self._page.popleft()

    async def _fetch(self) -> None:
        """Fetch the next page."""
        size = PAGE if self._limit is None else min(PAGE, self._limit - self.count)
        # If the caller is cancelled, this page still arrives and must not be taken for another one.
        page = asyncio.ensure_future(self._ask(size))
        page.add_done_callback(_note_failure)
        replayed, messages = await asyncio.shield(page)
        self._page.extend(messages)
        if replayed.lost_from is not None and replayed.lost_to is not None:
            # Retention may go on between two pages.
            first = replayed.lost_from if self.lost is None else self.lost.first
            self.lost = Lost(first, replayed.lost_to)
        self.complete = replayed.complete and self.lost is None
        here, self.next = self.next, replayed.next or self.next + len(messages)
        is_full = self._limit is not None and self.count + len(self._page) >= self._limit
        self._is_over = replayed.complete or is_full or self.next <= here

    async def _ask(self, size: int) -> tuple[Replayed, tuple[Message, ...]]:
        async with self._runner.replaying:
            page = ReadTopic(self.topic, self.next, self._to_seq, size)
            answered = await self._runner.call(self._runner.request(page))
        assert answered is not None
        return page.read(answered.payload, answered.attempts), answered.messages


def _note_failure(page: asyncio.Future[tuple[Replayed, tuple[Message, ...]]]) -> None:
    """Retrieve the error, so that asyncio does not log it if the caller was cancelled."""
    if not page.cancelled():
        page.exception()
