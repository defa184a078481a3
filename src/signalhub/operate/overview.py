"""What a hub shows to people, as a stream of pictures: the source of `signalhub top`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from signalhub.client.transport.live import open_feed

Facts = dict[str, Any]


class Picture(msgspec.Struct, frozen=True):
    """A hub at a moment."""

    me: Facts
    overview: Facts
    subscriptions: dict[str, Facts]
    """Those furthest behind, by `topic/name`."""


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
