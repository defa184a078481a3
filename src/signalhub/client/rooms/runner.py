"""Runs a room's protocol over real sockets: performs its effects, calls `tick`, reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from ssl import SSLContext
from typing import assert_never

from signalhub.client.protocol.effects import Drop, Failed, Reported, SendFrame, Stop, Warned
from signalhub.client.protocol.events import Connected, Listener, Reports, waiting
from signalhub.client.rooms.answers import RoomMessage, RoomRefusal, Sent
from signalhub.client.rooms.inbox import InboxAccess
from signalhub.client.rooms.protocol import (
    Effect,
    FetchPage,
    Joined,
    MemberPhase,
    MessageAccepted,
    Readable,
    RoomProtocol,
)
from signalhub.client.transport.link import NotOpened, RoomLink, open_room_link
from signalhub.client.transport.reconnect import Lifeline
from signalhub.client.transport.runner import Timer
from signalhub.client.transport.token import Token, bearer, current_token
from signalhub.clock import Clock
from signalhub.pacing import Backoff
from signalhub.wire.errors import ClientError, GaveUp, Unavailable

FETCH_S = 30.0

log = logging.getLogger("signalhub.client")


class RoomRunner:
    """The tasks, timers and sockets of one member of a room."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        protocol: RoomProtocol,
        inbox: InboxAccess,
        backoff: Backoff,
        clock: Clock,
        ssl: SSLContext | None,
        token: Token = None,
        listener: Listener | None = None,
    ) -> None:
        self.url = url
        self.protocol = protocol
        self._headers = headers
        self._inbox = inbox
        self._clock = clock
        self._ssl = ssl
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._calls: dict[str, asyncio.Future[Sent]] = {}
        self._readable = asyncio.Event()
        self._link: RoomLink | None = None
        self._timer = Timer(self._tick)
        self._report = Reports(listener)
        self._lifeline = Lifeline(
            url,
            backoff,
            clock,
            open=self._open,
            reopen=self._open,
            lost=self._lost,
            give_up=self._give_up,
            report=self._report,
        )
        self._fetcher: asyncio.Task[None] | None = None

    @property
    def is_joined(self) -> bool:
        return self.protocol.phase is MemberPhase.JOINED

    async def start(self) -> None:
        """Join for the first time; raises the error if that fails."""
        try:
            await self._lifeline.start("signalhub room")
        except BaseException:
            await self.close()
            raise

    async def send(
        self, message_id: str, ciphertext: bytes, members: dict[str, str], timeout_s: float
    ) -> Sent:
        """Send a message and wait for its result."""
        if message_id in self._calls:
            raise ValueError("a message with this id is already being sent")
        future: asyncio.Future[Sent] = self._loop.create_future()
        self._calls[message_id] = future
        now_s = self._clock.mono_s()
        try:
            deadline_s = now_s + timeout_s
            self._perform(self.protocol.submit(message_id, ciphertext, members, deadline_s, now_s))
            # A caller in a tight loop would otherwise block the rest of the program.
            if self._link is not None and self._link.is_busy:
                await asyncio.sleep(0)
            return await future
        finally:
            del self._calls[message_id]
            self.protocol.forget(message_id)

    async def next(self) -> RoomMessage:
        """Return the next message; raises the error that ended the room."""
        while True:
            message, effects = self.protocol.take(self._clock.mono_s())
            self._perform(effects)
            if message is not None:
                return message
            if self._lifeline.is_stopped:
                error = self._lifeline.why_stopped
                raise GaveUp(str(error)) if isinstance(error, GaveUp) else StopAsyncIteration
            self._readable.clear()
            await self._readable.wait()

    async def close(self) -> None:
        """Leave the room and end everything. Can be called more than once."""
        self._give_up(Unavailable("the room was left"))
        self._timer.cancel()
        await self._lifeline.wait_closed(is_connected=self._link is not None)
        if self._fetcher is not None:
            await asyncio.gather(self._fetcher, return_exceptions=True)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(frame=frame):
                    if self._link is not None:
                        self._link.send(frame)
                case Readable():
                    self._readable.set()
                case FetchPage(from_seq=from_seq):
                    self._fetcher = self._loop.create_task(
                        self._fetch(from_seq), name="signalhub room page"
                    )
                case MessageAccepted(id=message_id, sent=sent):
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
                case Reported(event=event):
                    self._report(event)
                case Warned(sentence=sentence, facts=facts):
                    log.warning(sentence, extra=facts)
                case _:
                    assert_never(effect)
        wake_at_s = None if self._lifeline.is_stopped else self.protocol.wake_at_s()
        self._timer.set(wake_at_s, self._clock.mono_s())

    def _waiting(self, message_id: str) -> asyncio.Future[Sent] | None:
        future = self._calls.get(message_id)
        return None if future is None or future.done() else future

    def _became_joined(self) -> None:
        self._report(Connected(self.url))
        self._lifeline.became_ready()

    def _stop(self, error: ClientError) -> None:
        self._lifeline.stop(error)
        self._readable.set()
        if self._link is not None:
            self._link.close("goodbye")
        if self._fetcher is not None:
            self._fetcher.cancel()

    def _give_up(self, error: ClientError) -> None:
        self._perform(self.protocol.stop(error))

    def _tick(self) -> None:
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
            result = RoomRefusal(Unavailable("internal error; see the client's log"))
        now_s = self._clock.mono_s()
        self._fetcher = None
        if isinstance(result, RoomRefusal):
            if result.retry_after_s is not None:
                self._report(waiting(result.error, result.retry_after_s))
            self._perform(self.protocol.not_fetched(result.error, result.retry_after_s, now_s))
        else:
            self._perform(self.protocol.fetched(from_seq, result, now_s))

    def _lost(self, link: RoomLink, _reason: str) -> None:
        self._link = None
        self._perform(self.protocol.lost(link.close_code))

    async def _open(self) -> RoomLink:
        try:
            credentials = bearer(await current_token(self._token))
        except Exception as error:
            # The token function belongs to the caller and may raise anything.
            raise NotOpened(f"no token: {error}") from error
        return await open_room_link(
            self.url,
            {**self._headers, **credentials},
            self._ssl,
            lambda: RoomLink(self._opened, self._received, self._congested),
        )

    def _opened(self, link: RoomLink) -> None:
        if self._lifeline.is_stopped:
            # It ended during the handshake.
            link.abort("no longer needed")
            return
        self._link = link
        self._perform(self.protocol.opened(self._clock.mono_s()))
