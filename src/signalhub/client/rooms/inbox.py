"""An inbox over HTTP: read in pages, appended to without announcing it to the room."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, Self, TypeVar

import msgspec

from signalhub.client.arguments import (
    checked_ciphertext,
    checked_inbox,
    checked_room_message_id,
    checked_seq,
)
from signalhub.client.protocol.events import Listener, Reports, waiting
from signalhub.client.rooms.answers import (
    InboxPage,
    Missed,
    RecentIds,
    RoomMessage,
    RoomRefusal,
    Stored,
    gaps_of,
    page_of,
    refusal_of,
    stored_of,
    unreadable,
)
from signalhub.client.transport.http import HttpAnswer, HttpClient
from signalhub.pacing import Attempts, retry_wait_s
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")

PAGE = 100
PAGE_MAX = 1000
TIMEOUT_S = 30.0
# A page may have to wait for the hub's limit of sixty per minute.
PAGE_TIMEOUT_S = 120.0
PARTIAL_S = 1.0

_ACCEPTED = (HTTPStatus.OK, HTTPStatus.ACCEPTED)


class InboxAccess:
    """One inbox. Anyone who knows its id may use all of this; the id is sent in a header only."""

    def __init__(self, http: HttpClient, inbox: str, listener: Listener | None = None) -> None:
        self._http = http
        self._report = Reports(listener)
        self._headers = {"X-Inbox-ID": checked_inbox(inbox)}

    def __repr__(self) -> str:
        return f"<InboxAccess at {self._http.origin.http_url}>"

    async def fetch(
        self,
        from_seq: int = 0,
        limit: int = PAGE,
        *,
        timeout_s: float = TIMEOUT_S,
        attempts: int | None = None,
    ) -> InboxPage:
        """Return a page of at most `limit` messages, and never more than 1000, from a position on.

        Args:
            from_seq: The first position wanted. Deleted messages are left out: see `oldest_seq`.
            timeout_s: How long to try, including waiting for a hub that is busy or limits fetches.
            attempts: How often to try a hub that cannot be reached; `None` means as often as time
                permits.

        Raises:
            Refused: With `retryable` if waiting for the hub's limit would take too long.
            Unavailable: The hub cannot be reached, or cannot read the inbox now.
        """
        checked_seq(from_seq, "from_seq")
        checked_seq(limit, "limit", least=1)
        call = _Call("GET", _page_path(from_seq, limit), page_of)
        try:
            return await self._repeat(call, timeout_s, attempts)
        except OutcomeUnknown as unknown:
            # Reading changes nothing, so an unknown outcome is just a failure.
            raise Unavailable(str(unknown)) from unknown

    async def fetch_once(self, from_seq: int, timeout_s: float) -> InboxPage | RoomRefusal:
        """Fetch a large page, one attempt only, for callers that schedule retries themselves."""
        return await self._try(_Call("GET", _page_path(from_seq, PAGE_MAX), page_of), timeout_s)

    def messages(
        self, from_seq: int = 1, *, timeout_s: float = PAGE_TIMEOUT_S, attempts: int | None = None
    ) -> InboxMessages:
        """Iterate over everything from a position on, page by page.

        What the hub cannot read now is fetched again, so that nothing is skipped.

        Args:
            timeout_s: How long each page may take, including waiting for the hub's limit.
            attempts: As for `fetch`.
        """
        return InboxMessages(self, checked_seq(from_seq, "from_seq"), timeout_s, attempts)

    async def append(
        self,
        ciphertext: bytes,
        *,
        message_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
        attempts: int | None = None,
    ) -> Stored:
        """Append a message to the inbox without announcing it to the room.

        Args:
            message_id: An id chosen by you: a repeat with the same id is stored once.
            timeout_s: How long to try, always with the same id.
            attempts: As for `fetch`.

        Raises:
            Refused: The hub refused it; with `retryable`, because of its limit for appends.
            Unavailable: It was never sent, or the hub cannot write now.
            OutcomeUnknown: It was sent, and no answer arrived.
        """
        own = checked_room_message_id(message_id)
        members = {"messageId": own, "ciphertext": encoded(checked_ciphertext(ciphertext))}
        body = msgspec.json.encode(members)
        call = _Call("POST", "/v1/inbox/append", lambda answer: stored_of(answer, own), body)
        return await self._repeat(call, timeout_s, attempts)

    async def _repeat(self, call: _Call[T], timeout_s: float, attempts_max: int | None) -> T:
        """Try until it succeeds, is refused for good, or the time is up."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        attempts = Attempts()
        while True:
            result = await self._try(call, max(0.0, deadline_s - now_s()))
            if not isinstance(result, RoomRefusal):
                return result
            attempts.failed(result.error)
            is_last = not result.is_reached and attempts.count == attempts_max
            if result.retry_after_s is None or is_last:
                raise attempts.failure("no answer arrived")
            wait_s = retry_wait_s(result.retry_after_s, attempts.count, random.random)
            if now_s() + wait_s >= deadline_s:
                raise attempts.failure("no answer arrived")
            self._report(waiting(result.error, wait_s))
            await asyncio.sleep(wait_s)

    async def _try(self, call: _Call[T], timeout_s: float) -> T | RoomRefusal:
        headers = self._headers
        if call.body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            answer = await self._http.request(
                call.method, call.path, headers=headers, body=call.body, timeout_s=timeout_s
            )
        except (Unavailable, OutcomeUnknown) as error:
            return RoomRefusal(error, 0.0, is_reached=False)
        url = self._http.origin.http_url
        if answer.status not in _ACCEPTED:
            return refusal_of(url, answer.status, answer.headers, answer.body)
        try:
            return call.read(answer)
        except (msgspec.MsgspecError, ValueError):
            return RoomRefusal(unreadable(url))


class InboxMessages:
    """The messages of an inbox in order, without duplicates; ends with the last one.

    `next_seq` is where to continue later, `missed` the positions that were deleted before, or lost,
    `skipped` those of them that the hub has lost.
    """

    def __init__(
        self, inbox: InboxAccess, from_seq: int, timeout_s: float, attempts: int | None
    ) -> None:
        self.missed: tuple[Missed, ...] = ()
        self.skipped: tuple[Missed, ...] = ()
        self._inbox = inbox
        self._from_seq = max(1, from_seq)
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._waiting: deque[RoomMessage] = deque()
        self._ids = RecentIds()

    @property
    def next_seq(self) -> int:
        return self._waiting[0].seq if self._waiting else self._from_seq

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RoomMessage:
        while not self._waiting:
            page = await self._page()
            if not page.messages:
                raise StopAsyncIteration
            self._add(page)
        return self._waiting.popleft()

    def _add(self, page: InboxPage) -> None:
        messages = page.contiguous
        first, last = messages[0].seq, messages[-1].seq
        gaps = gaps_of(page.skipped, Missed(self._from_seq, first - 1), last)
        self.missed += tuple(Missed(gap.first, gap.last) for gap in gaps)
        self.skipped += tuple(Missed(gap.first, gap.last) for gap in gaps if gap.is_skipped)
        self._waiting.extend(one for one in messages if self._ids.is_new(one.message_id))
        self._from_seq = last + 1

    async def _page(self) -> InboxPage:
        """Fetch the next page, with a message unless it is the last one."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._timeout_s
        attempts = 0
        while True:
            page = await self._inbox.fetch(
                self._from_seq,
                PAGE_MAX,
                timeout_s=max(0.0, deadline_s - now_s()),
                attempts=self._attempts,
            )
            if not page.is_partial or page.contiguous:
                return page
            attempts += 1
            wait_s = retry_wait_s(PARTIAL_S, attempts, random.random)
            if now_s() + wait_s >= deadline_s:
                raise Unavailable("the hub cannot read the inbox now; nothing was skipped")
            await asyncio.sleep(wait_s)


@dataclass(frozen=True)
class _Call(Generic[T]):
    """A repeatable request, and how to decode its answer."""

    method: str
    path: str
    read: Callable[[HttpAnswer], T]
    body: bytes | None = None


def _page_path(from_seq: int, limit: int) -> str:
    return f"/v1/inbox/messages?fromSeq={from_seq}&limit={min(limit, PAGE_MAX)}"
