"""The sequence of connections: the first one, those after a loss, and the end.

What is sent over a connection is up to a runner; this module decides when there is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from signalhub.client.protocol.events import ConnectionLost, Disconnected, Listener, ReconnectFailed
from signalhub.client.transport.link import NotOpened
from signalhub.clock import Clock
from signalhub.pacing import Backoff
from signalhub.wire.errors import ClientError, GaveUp, Refused, Unavailable

GOODBYE_S = 2.0

log = logging.getLogger("signalhub.client")


class Closing(Protocol):
    """A connection that can end."""

    async def wait_closed(self) -> str: ...


L = TypeVar("L", bound=Closing)


class Lifeline(Generic[L]):
    """Keeps one client connected, from `start` to `stop`."""

    def __init__(
        self,
        url: str,
        backoff: Backoff,
        clock: Clock,
        *,
        open: Callable[[], Awaitable[L]],
        reopen: Callable[[], Awaitable[L]],
        lost: Callable[[L, str], None],
        give_up: Callable[[ClientError], None],
        report: Listener,
    ) -> None:
        self._url = url
        self._backoff = backoff
        self._clock = clock
        self._open = open
        self._reopen = reopen
        self._lost = lost
        self._give_up = give_up
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._ready_s: float | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[ClientError] = self._loop.create_future()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stopped.done()

    @property
    def why_stopped(self) -> ClientError:
        """The error that ended it; valid only once it has ended."""
        return self._stopped.result()

    async def start(self, name: str) -> None:
        """Make the first connection; raises the error if that fails."""
        link = await self._open()
        self._keeper = self._loop.create_task(self._keep(link), name=name)
        await asyncio.shield(self._first)

    def became_ready(self) -> None:
        """The hub accepted us over this connection."""
        self._ready_s = self._clock.mono_s()
        self._backoff.succeeded()
        if not self._first.done():
            self._first.set_result(None)

    def stop(self, error: ClientError) -> None:
        """End it: wake everyone who waits, and make no more connections."""
        if not self._first.done():
            self._first.set_exception(error)
            # No task waits for it if the caller gave up on the first connection.
            self._first.exception()
        self._stopped.set_result(error)
        if isinstance(error, GaveUp):
            log.error("Gave up", extra={"url": self._url, "reason": str(error)})
        else:
            self._report(Disconnected(self._url))

    async def wait_stopped(self) -> ClientError:
        """Wait for the end."""
        return await asyncio.shield(self._stopped)

    async def wait_closed(self, *, is_connected: bool) -> None:
        """Wait briefly for a connection that is closing, then end all tasks."""
        keeper = self._keeper
        if keeper is None or keeper is asyncio.current_task():
            return
        if is_connected:
            await asyncio.wait([keeper], timeout=GOODBYE_S)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)

    async def _keep(self, link: L) -> None:
        """Connect again and again until stopped."""
        try:
            next_link: L | None = link
            while next_link is not None:
                next_link = await self._after_loss(next_link, await next_link.wait_closed())
        except Exception:
            log.exception("The client failed")
            self._give_up(GaveUp("internal error; see the client's log"))

    async def _after_loss(self, link: L, reason: str) -> L | None:
        ready_s, self._ready_s = self._ready_s, None
        self._lost(link, reason)
        if self.is_stopped:
            return None
        if not self._first.done():
            self._give_up(Unavailable(f"{self._url}: {reason}"))
            return None
        if ready_s is not None:
            self._backoff.lost(self._clock.mono_s() - ready_s)
        return await self._try_again(reason)

    async def _try_again(self, reason: str) -> L | None:
        retry_after_s = 0.0
        self._report(ConnectionLost(self._url, reason))
        while (wait_s := self._backoff.next(retry_after_s)) is not None:
            await asyncio.sleep(wait_s)
            if self.is_stopped:
                return None
            try:
                return await self._reopen()
            except Refused as error:
                self._give_up(GaveUp(f"refused when reconnecting: {error}"))
                return None
            except NotOpened as error:
                reason, retry_after_s = str(error), error.retry_after_s
                self._report(ReconnectFailed(self._url, reason))
        attempts = self._backoff.attempts
        tried = f"after {attempts} attempts to reconnect" if attempts else "without reconnecting"
        self._give_up(GaveUp(f"gave up {tried}: {reason}"))
        return None
