"""Connections of workers: whoever loses one is back as soon as the hub is."""

from __future__ import annotations

import asyncio
from random import Random

from signalhub.clock import SystemClock
from tests.support.socket import peer as peers
from tests.support.socket.peer import Closed, Peer, Rejected

HUB_BACK_S = 60.0
RETRY_S = 0.03

# What a worker's connection dies of when the hub does; anything else is a fault of the hub.
BROKEN = (Closed, OSError, Rejected, TimeoutError)


async def connect(port: int, address: str, random: Random, *capabilities: str) -> Peer:
    """A session that speaks as `address`, however long the hub takes to come back."""
    clock = SystemClock()
    async with asyncio.timeout(HUB_BACK_S):
        while True:
            peer: Peer | None = None
            try:
                peer = await peers.dial(port, clock.now_ms)
                await peer.upgrade()
                peer.sender = address
                reply = await peer.connect(capabilities=["send", "receive", *capabilities])
                assert reply["type"] == "hub:connected", reply
            except BROKEN:
                if peer is not None:
                    peer.abort()
                await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))
            else:
                return peer
