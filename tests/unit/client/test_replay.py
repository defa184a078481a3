"""A replay that its reader gives up."""

from __future__ import annotations

import asyncio
from typing import Any

from signalhub.testing import Peer
from tests.support.memory.client import conversation


def answer_page(
    peer: Peer, request: dict[str, Any], positions: list[int], facts: dict[str, Any]
) -> None:
    """Answer a request for a page of a replay."""
    for seq in positions:
        delivery = {"epoch": "e1", "seq": seq, "publishedAt": 1}
        metadata = {"topic": "orders", "replay": True, "delivery": delivery}
        peer.send("order", seq, sender="@(demo/shop)", metadata=metadata)
    peer.answer(request, "hub:replayed", {"count": len(positions)} | facts)


async def test_replays_wait_for_each_other_even_for_one_that_was_given_up() -> None:
    async with conversation() as (_, peer, client):
        given_up = asyncio.ensure_future(anext(client.replay("orders", 1, 1)))
        request = await peer.receive("hub:replay")
        given_up.cancel()
        reading = asyncio.gather(*(anext(client.replay("orders", seq, seq)) for seq in (2, 3)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.has_heard_nothing()
        answer_page(peer, request, [1], {"next": 2})
        for seq in (2, 3):
            answer_page(peer, await peer.receive("hub:replay"), [seq], {"next": seq + 1})

        assert [message.payload for message in await reading] == [2, 3]
