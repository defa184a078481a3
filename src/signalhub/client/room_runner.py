"""Runs a room's protocol over real sockets: performs its effects, keeps its time, reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from ssl import SSLContext
from typing import assert_never

from signalhub.client.backoff import Backoff
from signalhub.client.effects import Drop, Failed, Send, Stop, Warned
from signalhub.client.inbox_access import InboxAccess
from signalhub.client.link import NotOpened
from signalhub.client.retrying import log_wait
from signalhub.client.room_answers import Refusal
from signalhub.client.room_link import RoomLink, open_room_link
from signalhub.client.room_message import RoomMessage, Sent
from signalhub.client.room_protocol import (
    Accepted,
    Effect,
    Fetch,
    Joined,
    Phase,
    Readable,
    RoomProtocol,
)
from signalhub.clock import Clock
from signalhub.errors import ClientError, GaveUp, Refused, Unavailable

FETCH_S = 30.0
GOODBYE_S = 2.0

log = logging.getLogger("signalhub.client")


class RoomRunner:
    """Everything asynchronous about one member of a room."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        protocol: RoomProtocol,
        inbox: InboxAccess,
        backoff: Backoff,
        clock: Clock,
        ssl: SSLContext | None,
    ) -> None:
        self.url = url
        self.protocol = protocol
        self._headers = headers
        self._inbox = inbox
        self._backoff = backoff
        self._clock = clock
        self._ssl = ssl
        self._loop = asyncio.get_running_loop()
        self._calls: dict[str, asyncio.Future[Sent]] = {}
        self._readable = asyncio.Event()
        self._link: RoomLink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._joined_s: float | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[ClientError] = self._loop.create_future()
        self._keeper: asyncio.Task[None] | None = None
        self._fetcher: asyncio.Task[None] | None = None

    @property
    def is_joined(self) -> bool:
        return self.protocol.phase is Phase.JOINED

    async def start(self) -> None:
        """Join for the first time, or raise why that is not possible."""
        try:
            link = await self._open()
            self._keeper = self._loop.create_task(self._keep(link), name="signalhub room")
            await asyncio.shield(self._first)
        except BaseException:
            await self.close()
            raise

    async def send(
        self, message_id: str, ciphertext: bytes, members: dict[str, str], timeout_s: float
    ) -> Sent:
        """Send a message and wait for its end."""
        if message_id in self._calls:
            raise ValueError("a message with this id is on its way already")
        future: asyncio.Future[Sent] = self._loop.create_future()
        self._calls[message_id] = future
        now_s = self._clock.mono_s()
        try:
            deadline_s = now_s + timeout_s
            self._perform(self.protocol.submit(message_id, ciphertext, members, deadline_s, now_s))
            # A caller in a loop would otherwise never let the rest of the program run.
            if self._link is not None and self._link.is_busy:
                await asyncio.sleep(0)
            return await future
        finally:
            del self._calls[message_id]
            self.protocol.forget(message_id)

    async def next(self) -> RoomMessage:
        """The next message; raises why there is none any more."""
        while True:
            message, effects = self.protocol.take(self._clock.mono_s())
            self._perform(effects)
            if message is not None:
                return message
            if self._stopped.done():
                error = self._stopped.result()
                raise GaveUp(str(error)) if isinstance(error, GaveUp) else StopAsyncIteration
            self._readable.clear()
            await self._readable.wait()

    async def close(self) -> None:
        """Leave the room and end everything; harmless when repeated."""
        self._perform(self.protocol.stop(Unavailable("the room was left")))
        if self._timer is not None:
            self._timer.cancel()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            if self._link is not None:
                await asyncio.wait([keeper], timeout=GOODBYE_S)
            keeper.cancel()
        tasks = [task for task in (keeper, self._fetcher) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(frame=frame):
                    if self._link is not None:
                        self._link.send(frame)
                case Readable():
                    self._readable.set()
                case Fetch(from_seq=from_seq):
                    self._fetcher = self._loop.create_task(
                        self._fetch(from_seq), name="signalhub room page"
                    )
                case Accepted(id=message_id, sent=sent):
                    if (future := self._waiting(message_id)) is not None:
                        future.set_result(sent)
                case Failed(id=message_id, error=error):
                    if (future := self._waiting(message_id)) is not None:
                        future.set_exception(error)
                case Joined():
                    self._became_joined()
                case Drop(reason=reason):
                    if self._link is not None:
                        self._link.abort(reason)
                case Stop(error=error):
                    self._stop(error)
                case Warned(sentence=sentence, facts=facts):
                    log.warning(sentence, extra=facts)
                case _:
                    assert_never(effect)
        self._set_timer()

    def _waiting(self, message_id: str) -> asyncio.Future[Sent] | None:
        future = self._calls.get(message_id)
        return None if future is None or future.done() else future

    def _became_joined(self) -> None:
        self._joined_s = self._clock.mono_s()
        self._backoff.succeeded()
        log.info("Connected", extra={"url": self.url})
        if not self._first.done():
            self._first.set_result(None)

    def _stop(self, error: ClientError) -> None:
        if not self._first.done():
            self._first.set_exception(error)
            # Nobody waits for it when the first connection was given up by its caller.
            self._first.exception()
        self._stopped.set_result(error)
        self._readable.set()
        if isinstance(error, GaveUp):
            log.error("Gave up", extra={"url": self.url, "reason": str(error)})
        else:
            log.info("Disconnected", extra={"url": self.url})
        if self._link is not None:
            self._link.close("goodbye")
        if self._fetcher is not None:
            self._fetcher.cancel()

    def _set_timer(self) -> None:
        """Ticking too early is harmless, so a timer is only replaced by an earlier one."""
        wake_at_s = None if self._stopped.done() else self.protocol.wake_at_s()
        if wake_at_s is None or (self._timer is not None and self._timer_at_s <= wake_at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = wake_at_s
        wait_s = max(0.0, wake_at_s - self._clock.mono_s())
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self.protocol.tick(self._clock.mono_s()))

    def _received(self, frame: bytes) -> None:
        self._perform(self.protocol.received(frame, self._clock.mono_s()))

    def _congested(self, is_congested: bool) -> None:
        self._perform(self.protocol.congested(is_congested, self._clock.mono_s()))

    async def _fetch(self, from_seq: int) -> None:
        try:
            result = await self._inbox.fetch_once(from_seq, FETCH_S)
        except Exception:
            log.exception("The client failed")
            result = Refusal(Unavailable("the client failed; its log says how"))
        now_s = self._clock.mono_s()
        self._fetcher = None
        if isinstance(result, Refusal):
            if result.retry_after_s is not None:
                log_wait(result.error, result.retry_after_s)
            self._perform(self.protocol.not_fetched(result.error, result.retry_after_s, now_s))
        else:
            self._perform(self.protocol.fetched(from_seq, result, now_s))

    async def _keep(self, link: RoomLink) -> None:
        """Stay in the room until told otherwise."""
        try:
            next_link: RoomLink | None = link
            while next_link is not None:
                reason = await next_link.wait_closed()
                self._link = None
                next_link = await self._after_loss(reason, next_link.close_code)
        except Exception:
            log.exception("The client failed")
            self._perform(self.protocol.stop(GaveUp("the client failed; its log says how")))

    async def _after_loss(self, reason: str, close_code: int | None) -> RoomLink | None:
        joined_s, self._joined_s = self._joined_s, None
        self._perform(self.protocol.lost(close_code))
        if self._stopped.done():
            return None
        if not self._first.done():
            self._perform(self.protocol.stop(Unavailable(f"{self.url}: {reason}")))
            return None
        if joined_s is not None:
            self._backoff.lost(self._clock.mono_s() - joined_s)
        return await self._reopen(reason)

    async def _reopen(self, reason: str) -> RoomLink | None:
        retry_after_s = 0.0
        log.info("The connection is lost", extra={"url": self.url, "reason": reason})
        while (wait_s := self._backoff.next(retry_after_s)) is not None:
            await asyncio.sleep(wait_s)
            if self._stopped.done():
                return None
            try:
                return await self._open()
            except Refused as error:
                self._perform(self.protocol.stop(GaveUp(f"not let in again: {error}")))
                return None
            except NotOpened as error:
                reason, retry_after_s = str(error), error.retry_after_s
                log.info("Reconnecting failed", extra={"url": self.url, "reason": reason})
        attempts = self._backoff.attempts
        tried = f"after {attempts} attempts to reconnect" if attempts else "without reconnecting"
        self._perform(self.protocol.stop(GaveUp(f"gave up {tried}: {reason}")))
        return None

    async def _open(self) -> RoomLink:
        return await open_room_link(
            self.url,
            self._headers,
            self._ssl,
            lambda: RoomLink(self._opened, self._received, self._congested),
        )

    def _opened(self, link: RoomLink) -> None:
        if self._stopped.done():
            # It ended during the handshake.
            link.abort("not wanted any more")
            return
        self._link = link
        self._perform(self.protocol.opened(self._clock.mono_s()))
