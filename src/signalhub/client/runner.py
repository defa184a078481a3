"""Runs the protocol over real links: performs its effects, keeps its time, reconnects."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import assert_never

from signalhub.client.backoff import Backoff
from signalhub.client.effects import (
    Answered,
    Arrived,
    Drop,
    Effect,
    Ended,
    Failed,
    Instant,
    Ready,
    Send,
    Stop,
    Warned,
)
from signalhub.client.frame import Request
from signalhub.client.inbox import Inbox
from signalhub.client.link import Link, NotOpened, open_link
from signalhub.client.protocol import Phase, Protocol
from signalhub.client.seat import Seat
from signalhub.client.settling import Settlers
from signalhub.client.stream_requests import StreamComposer
from signalhub.clock import Clock
from signalhub.errors import ClientError, GaveUp, Unavailable

GOODBYE_S = 2.0

Token = str | Callable[[], str | Awaitable[str]] | None

log = logging.getLogger("signalhub.client")


class Runner:
    """Everything asynchronous about one client."""

    def __init__(
        self,
        url: str,
        protocol: Protocol,
        backoff: Backoff,
        clock: Clock,
        *,
        token: Token,
        ssl: SSLContext | None,
        inbox_max: int,
    ) -> None:
        self.url = url
        self.protocol = protocol
        self.token = token
        self.inbox = Inbox(inbox_max, self._reading)
        self.settlers = Settlers(self, acknowledges=protocol.compose.acknowledges)
        self._backoff = backoff
        self._clock = clock
        self._ssl = ssl
        self._loop = asyncio.get_running_loop()
        self.replaying = asyncio.Lock()
        self._calls: dict[str, asyncio.Future[Answered]] = {}
        self._link: Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._ready_s: float | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[ClientError] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Is it connected, registered and subscribed right now?"""
        return self.protocol.phase is Phase.READY

    @property
    def is_over(self) -> bool:
        """Has it left the hub, or given it up?"""
        return self.protocol.phase in (Phase.LEAVING, Phase.STOPPED)

    @property
    def streams(self) -> StreamComposer:
        return self.protocol.compose.streams

    def now(self) -> Instant:
        return Instant.of(self._clock)

    async def start(self) -> None:
        """Make the first connection, or raise why there is none."""
        try:
            link = await self._open()
            self._task = self._loop.create_task(self._keep(link), name="signalhub client")
            await asyncio.shield(self._first)
        except BaseException:
            await self.close()
            raise

    def post(self, request: Request) -> None:
        """Send a request that needs no answer, as soon as that is possible."""
        self._perform(self.protocol.submit(request, self.now()))

    async def call(
        self,
        request: Request,
        then: Callable[[], None] | None = None,
        seat: Seat | None = None,
    ) -> Answered | None:
        """Send a request and wait for its end; `None` for one that needs no answer."""
        self._perform(self.protocol.submit(request, self.now(), then, seat))
        if not self.protocol.is_pending(request.id):
            # A caller in a loop would otherwise never let the rest of the program run.
            if self._link is not None and self._link.is_busy:
                await asyncio.sleep(0)
            return None
        future: asyncio.Future[Answered] = self._loop.create_future()
        self._calls[request.id] = future
        try:
            return await future
        finally:
            del self._calls[request.id]
            self.protocol.forget(request.id)

    async def wait_stopped(self) -> ClientError:
        """Wait for the end, whatever brings it."""
        return await asyncio.shield(self._stopped)

    async def close(self) -> None:
        """Leave the hub and end everything; harmless when repeated."""
        self.settlers.flush()
        self._perform(self.protocol.leave(self.now()))
        await asyncio.wait([self._stopped], timeout=GOODBYE_S)
        self._perform(self.protocol.stop(Unavailable("the client was closed")))
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            if self._link is not None:
                self._link.close("goodbye")
                await asyncio.wait([self._task], timeout=GOODBYE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.inbox.close()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(frame=frame):
                    if self._link is not None:
                        self._link.send(frame)
                case Arrived(message=message):
                    self.inbox.put(self.settlers.bound(message))
                case Ended(key=key, error=error):
                    self.settlers.remove(key)
                    self.inbox.end_lane(key, error)
                    log.warning("A consumer has ended", extra={"reason": str(error)})
                case Answered(id=message_id):
                    if (future := self._waiting(message_id)) is not None:
                        future.set_result(effect)
                case Failed(id=message_id, error=error):
                    if (future := self._waiting(message_id)) is not None:
                        future.set_exception(error)
                case Ready(session_id=session_id):
                    self._became_ready(session_id)
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

    def _waiting(self, message_id: str) -> asyncio.Future[Answered] | None:
        future = self._calls.get(message_id)
        return None if future is None or future.done() else future

    def _became_ready(self, session_id: str) -> None:
        self._ready_s = self._clock.mono_s()
        self._backoff.succeeded()
        log.info("Connected", extra={"url": self.url, "session": session_id})
        self._loop.call_soon(self.settlers.flush)
        if not self._first.done():
            self._first.set_result(None)

    def _stop(self, error: ClientError) -> None:
        if not self._first.done():
            self._first.set_exception(error)
            # Nobody waits for it when the first connection was given up by its caller.
            self._first.exception()
        self._stopped.set_result(error)
        if isinstance(error, GaveUp):
            self.inbox.end(error)
            log.error("Gave up", extra={"url": self.url, "reason": str(error)})
        else:
            self.inbox.end()
            log.info("Disconnected", extra={"url": self.url})
        if self._link is not None:
            self._link.close("goodbye")

    def _set_timer(self) -> None:
        now = self.now()
        wake_at_s = None if self._stopped.done() else self.protocol.wake_at_s(now)
        if wake_at_s is None or (self._timer is not None and self._timer_at_s <= wake_at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = wake_at_s
        self._timer = self._loop.call_later(max(0.0, wake_at_s - now.mono_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self.protocol.tick(self.now()))

    def _received(self, frame: bytes) -> None:
        self._perform(self.protocol.received(frame, self.now()))

    def _congested(self, is_congested: bool) -> None:
        self._perform(self.protocol.congested(is_congested, self.now()))

    def _reading(self, is_reading: bool) -> None:
        self.protocol.reading(is_reading, self.now())
        if self._link is None:
            return
        if is_reading:
            self._link.resume_reading()
        else:
            self._link.pause_reading()

    async def _keep(self, link: Link) -> None:
        """Stay connected until told otherwise."""
        try:
            next_link: Link | None = link
            while next_link is not None:
                reason = await next_link.wait_closed()
                self._link = None
                self.settlers.lost()
                self.inbox.lost()
                next_link = await self._after_loss(reason)
        except Exception:
            log.exception("The client failed")
            self._perform(self.protocol.stop(GaveUp("the client failed; its log says how")))

    async def _after_loss(self, reason: str) -> Link | None:
        ready_s, self._ready_s = self._ready_s, None
        self._perform(self.protocol.lost(reason, self.now()))
        if self._stopped.done():
            return None
        if not self._first.done():
            self._perform(self.protocol.stop(Unavailable(f"{self.url}: {reason}")))
            return None
        if ready_s is not None:
            self._backoff.lost(self._clock.mono_s() - ready_s)
        return await self._reopen(reason)

    async def _reopen(self, reason: str) -> Link | None:
        retry_after_s = 0.0
        log.info("The connection is lost", extra={"url": self.url, "reason": reason})
        while (wait_s := self._backoff.next(retry_after_s)) is not None:
            await asyncio.sleep(wait_s)
            try:
                return await self._open()
            except NotOpened as error:
                reason, retry_after_s = str(error), error.retry_after_s
                log.info("Reconnecting failed", extra={"url": self.url, "reason": reason})
            except Exception as error:
                # The caller's own function for tokens may fail like any other service.
                log.exception("No token for the next connection")
                reason, retry_after_s = f"no token: {error}", 0.0
        attempts = self._backoff.attempts
        tried = f"after {attempts} attempts to reconnect" if attempts else "without reconnecting"
        self._perform(self.protocol.stop(GaveUp(f"gave up {tried}: {reason}")))
        return None

    async def _open(self) -> Link:
        token = self.token() if callable(self.token) else self.token
        if inspect.isawaitable(token):
            token = await token
        link = await open_link(self.url, self._ssl, self._received, self._congested)
        self._link = link
        self._perform(self.protocol.opened(token, self.now()))
        return link
