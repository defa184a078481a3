"""What a hub shows to people, once a second: the live socket of its admin API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext, create_default_context
from typing import Any, Final

import msgspec

from signalhub.client.transport.http import Origin
from signalhub.client.transport.link import Link, open_link
from signalhub.wire.errors import Refused, Unavailable

PATH: Final = "/api/admin/v1/live"
ANSWER_S: Final = 10.0

Facts = dict[str, Any]


class Picture(msgspec.Struct, frozen=True):
    """A hub at a moment."""

    me: Facts
    overview: Facts
    subscriptions: dict[str, Facts]
    """Those furthest behind, by `topic/name`."""


class LiveFeed:
    """One live socket. What is watched is kept complete in `shown`, by the name of the watch."""

    def __init__(self) -> None:
        self.me: Facts = {}
        self.shown: dict[str, Facts] = {}
        self._names: dict[int, str] = {}
        self._frames: asyncio.Queue[Facts | None] = asyncio.Queue()
        self._link: Link

    def watch(self, name: str, what: str, **members: Any) -> None:
        """Begin to watch something; its first frame comes with `changes`."""
        number = len(self._names) + 1
        self._names[number] = name
        self._say(op="watch", id=number, what=what, **members)

    def stop(self, name: str) -> None:
        """Stop a watch."""
        for number, known in self._names.items():
            if known == name:
                self._say(op="stop", id=number)
                self._names[number] = ""
        self.shown.pop(name, None)

    async def changes(self) -> AsyncIterator[str]:
        """Yield the name of each watch that has changed; raises `Unavailable` at the end."""
        while True:
            frame = await self._next()
            name = self._names.get(frame.get("id", 0), "")
            if not name:
                continue
            if "error" in frame:
                error = frame["error"]
                raise Refused(error["errorCode"], error["error"], resolution=error["resolution"])
            if "full" in frame:
                self.shown[name] = frame["full"]
            else:
                self.shown[name] = self.shown.get(name, {}) | frame.get("change", {})
            yield name

    async def hello(self, token: str | None) -> None:
        """Say who looks; raises `Refused` if the hub does not let them."""
        self._say(op="hello", **({} if token is None else {"token": token}))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._next()
        except TimeoutError:
            raise Unavailable("the hub does not answer on its live socket") from None
        if "error" in answer:
            error = answer["error"]
            details = error.get("details", {})
            raise Refused(
                error["errorCode"], error["error"], resolution=error["resolution"], details=details
            )
        self.me = answer

    def attach(self, link: Link) -> None:
        """Use an open link."""
        self._link = link

    def received(self, payload: bytes) -> None:
        """A frame has come."""
        self._frames.put_nowait(json.loads(payload))

    def ended(self) -> None:
        """No more frames come."""
        self._frames.put_nowait(None)

    async def _next(self) -> Facts:
        frame = await self._frames.get()
        if frame is None:
            raise Unavailable("the hub closed the live socket")
        return frame

    def _say(self, **members: Any) -> None:
        self._link.send(json.dumps(members).encode())


@asynccontextmanager
async def open_feed(
    url: str, token: str | None = None, ssl: SSLContext | None = None
) -> AsyncIterator[LiveFeed]:
    """Open the live socket of a hub; raises `Unavailable` or `Refused`."""
    origin = Origin.of(url)
    feed = LiveFeed()
    context = (ssl or create_default_context()) if origin.is_secure else None
    link = await open_link(f"{origin.socket_url}{PATH}", context, feed.received, lambda _: None)
    feed.attach(link)
    watching = asyncio.ensure_future(_until_closed(link, feed))
    try:
        await feed.hello(token)
        yield feed
    finally:
        link.close("done")
        await watching


async def pictures(url: str, token: str | None = None) -> AsyncIterator[Picture]:
    """Yield a picture whenever something has changed, the first one at once.

    Raises `Unavailable` when the hub cannot be reached (any more), and `Refused` without the
    permission `admin: view`.
    """
    async with open_feed(url, token) as feed:
        feed.watch("overview", "overview")
        feed.watch("subscriptions", "subscriptions")
        async for _ in feed.changes():
            if len(feed.shown) == 2:
                rows = {name: row for name, row in feed.shown["subscriptions"].items() if row}
                yield Picture(feed.me, feed.shown["overview"], rows)


async def _until_closed(link: Link, feed: LiveFeed) -> None:
    await link.wait_closed()
    feed.ended()
