"""The replies to one request, as its caller takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

from signalhub.client.message import Message
from signalhub.wire.errors import ClientError


class Conversation:
    """Replies in the order they arrive; iterating ends after the last, or raises what failed."""

    def __init__(self) -> None:
        self._replies: deque[Message] = deque()
        self._is_over = False
        self._failure: ClientError | None = None
        self._news = asyncio.Event()

    def replied(self, message: Message, *, is_last: bool) -> None:
        self._replies.append(message)
        self._is_over |= is_last
        self._news.set()

    def end(self, failure: ClientError | None = None) -> None:
        """Nothing follows."""
        self._is_over = True
        self._failure = failure
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._replies:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._replies.popleft()
