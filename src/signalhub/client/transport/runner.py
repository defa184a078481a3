"""Runs the protocol over real links: performs its effects, calls `tick`, reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any, Unpack, assert_never

import msgspec

from signalhub.client.arrivals import Arrivals
from signalhub.client.protocol.effects import (
    Answered,
    Arrived,
    Concluded,
    ConsumerEnded,
    Dismissed,
    Drop,
    Effect,
    Failed,
    Instant,
    Ready,
    Replied,
    Reported,
    SendFrame,
    Stop,
    Warned,
)
from signalhub.client.protocol.events import Connected, Listener, Reports
from signalhub.client.protocol.frame import Payload, Request, RequestOptions
from signalhub.client.protocol.protocol import LinkPhase, Protocol
from signalhub.client.protocol.restore import Seat
from signalhub.client.replies.conversation import Conversation
from signalhub.client.replies.responder import Responder
from signalhub.client.settle import Settlers
from signalhub.client.transport.link import Link, NotOpened, open_link
from signalhub.client.transport.reconnect import GOODBYE_S, Lifeline
from signalhub.client.transport.token import Token, current_token
from signalhub.clock import Clock
from signalhub.pacing import Backoff
from signalhub.wire.errors import ClientError, GaveUp, Unavailable


class Timer:
    """A timer. Ticking too early is harmless, so it is only replaced by an earlier one."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0

    def set(self, at_s: float | None, now_s: float) -> None:
        """Tick at this time at the latest; `None` does nothing."""
        if at_s is None or (self._timer is not None and self._at_s <= at_s):
            return
        self.cancel()
        self._at_s = at_s
        self._timer = self._loop.call_later(max(0.0, at_s - now_s), self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._tick()


log = logging.getLogger("signalhub.client")


class ClientRunner:
    """The tasks, timers and links of one client."""

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
        listener: Listener | None = None,
    ) -> None:
        self.url = url
        self.protocol = protocol
        self.token = token
        self.listener = listener
        self.arrivals = Arrivals(inbox_max, self._reading)
        self.settlers = Settlers(self, acknowledges=protocol.membership.acknowledges)
        self._clock = clock
        self._ssl = ssl
        self._loop = asyncio.get_running_loop()
        self.replaying = asyncio.Lock()
        self.responder = Responder(self, protocol.replies, self.now)
        self._calls: dict[str, asyncio.Future[Answered]] = {}
        self._conversations: dict[str, Conversation] = {}
        self._link: Link | None = None
        self._timer = Timer(self._tick)
        self._report = Reports(listener)
        self._lifeline = Lifeline(
            url,
            backoff,
            clock,
            open=self._open,
            reopen=self._reopen,
            lost=self._lost,
            give_up=self._give_up,
            report=self._report,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it is connected, registered and subscribed right now."""
        return self.protocol.phase is LinkPhase.READY

    @property
    def is_over(self) -> bool:
        """Whether it has left the hub or given up."""
        return self.protocol.phase in (LinkPhase.LEAVING, LinkPhase.STOPPED)

    def now(self) -> Instant:
        return Instant.of(self._clock)

    def request(self, payload: Payload[Any], **options: Unpack[RequestOptions]) -> Request:
        """Create a request without sending it."""
        return self.protocol.frames.request(payload, self._clock.now_ms(), **options)

    async def start(self) -> None:
        """Make the first connection; raises the error if that fails."""
        try:
            await self._lifeline.start("signalhub client")
        except BaseException:
            await self.close()
            raise

    def post(self, request: Request) -> None:
        """Send a request that needs no answer, as soon as possible."""
        self._perform(self.protocol.submit(request, self.now()))

    async def call(
        self,
        request: Request,
        then: Callable[[], None] | None = None,
        seat: Seat | None = None,
    ) -> Answered | None:
        """Send a request and return its answer; `None` for one that needs no answer."""
        self._perform(self.protocol.submit(request, self.now(), then, seat))
        if not self.protocol.is_pending(request.id):
            # A caller in a tight loop would otherwise block the rest of the program.
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

    @contextmanager
    def conversation(
        self, request: Request, to: str, replies_max: int, timeout_s: float
    ) -> Iterator[Conversation]:
        """Send a request to an actor, or to many without one, and collect replies meanwhile."""
        conversation = Conversation()
        effects = self.protocol.submit_request(request, to, replies_max, timeout_s, self.now())
        self._conversations[request.id] = conversation
        try:
            self._perform(effects)
            yield conversation
        finally:
            del self._conversations[request.id]
            self.protocol.forget(request.id)

    async def wait_stopped(self) -> ClientError:
        """Wait for the end."""
        return await self._lifeline.wait_stopped()

    async def close(self) -> None:
        """Leave the hub and end everything. Can be called more than once."""
        self.settlers.flush()
        self._perform(self.protocol.leave(self.now()))
        try:
            await asyncio.wait_for(self.wait_stopped(), GOODBYE_S)
        except TimeoutError:
            self._give_up(Unavailable("the client was closed"))
        self._timer.cancel()
        await self._lifeline.wait_closed(is_connected=self._link is not None)
        await self.arrivals.close()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(frame=frame):
                    if self._link is not None:
                        self._link.send(frame)
                case Arrived(message=message):
                    if (bound := self.settlers.bound(message)) is not None:
                        if bound.expects_reply:
                            bound = msgspec.structs.replace(bound, _responder=self.responder)
                        self.arrivals.put(bound)
                case Replied(id=message_id, message=message, is_last=is_last):
                    self.settlers.accept(message)
                    if (conversation := self._conversations.get(message_id)) is not None:
                        conversation.replied(message, is_last=is_last)
                case Concluded(id=message_id):
                    if (conversation := self._conversations.get(message_id)) is not None:
                        conversation.end()
                case Dismissed(message=message):
                    self.settlers.accept(message)
                case ConsumerEnded(key=key, error=error):
                    self.settlers.remove(key)
                    self.arrivals.end_queue(key, error)
                    log.warning("A consumer has ended", extra={"reason": str(error)})
                case Answered(id=message_id):
                    if (future := self._waiting(message_id)) is not None:
                        future.set_result(effect)
                case Failed(id=message_id, error=error):
                    if (conversation := self._conversations.get(message_id)) is not None:
                        conversation.end(error)
                    elif (future := self._waiting(message_id)) is not None:
                        future.set_exception(error)
                case Ready(session_id=session_id):
                    self._became_ready(session_id)
                case Drop(reason=reason):
                    if self._link is not None:
                        self._link.abort(reason)
                case Stop(error=error):
                    self._stop(error)
                case Reported(event=event):
                    self._report(event)
                case Warned(sentence=sentence, facts=facts):
                    log.warning(sentence, extra=facts)
                case _:
                    assert_never(effect)
        now_s = self._clock.mono_s()
        wake_at_s = None if self._lifeline.is_stopped else self.protocol.wake_at_s(now_s)
        self._timer.set(wake_at_s, now_s)

    def _waiting(self, message_id: str) -> asyncio.Future[Answered] | None:
        future = self._calls.get(message_id)
        return None if future is None or future.done() else future

    def _became_ready(self, session_id: str) -> None:
        self._report(Connected(self.url, session_id))
        self._loop.call_soon(self.settlers.flush)
        self._lifeline.became_ready()

    def _stop(self, error: ClientError) -> None:
        self._lifeline.stop(error)
        self.arrivals.end(error if isinstance(error, GaveUp) else None)
        if self._link is not None:
            self._link.close("goodbye")

    def _give_up(self, error: ClientError) -> None:
        self._perform(self.protocol.stop(error))

    def _tick(self) -> None:
        self._perform(self.protocol.tick(self.now()))

    def _received(self, frame: bytes) -> None:
        self._perform(self.protocol.received(frame, self.now()))

    def _congested(self, is_congested: bool) -> None:
        self._perform(self.protocol.congested(is_congested, self.now()))

    def _reading(self, is_reading: bool) -> None:
        effects = self.protocol.reading(is_reading, self.now())
        if self._link is not None:
            if is_reading:
                self._link.resume_reading()
            else:
                self._link.pause_reading()
        self._perform(effects)

    def _lost(self, _link: Link, reason: str) -> None:
        self._link = None
        self.settlers.lost()
        self.arrivals.lost()
        self._perform(self.protocol.lost(reason, self.now()))

    async def _reopen(self) -> Link:
        try:
            return await self._open()
        except NotOpened:
            raise
        except Exception as error:
            # The token function belongs to the caller and may raise anything.
            log.exception("No token for the next connection")
            raise NotOpened(f"no token: {error}") from error

    async def _open(self) -> Link:
        token = await current_token(self.token)
        link = await open_link(self.url, self._ssl, self._received, self._congested)
        self._link = link
        self._perform(self.protocol.opened(token, self.now()))
        return link
