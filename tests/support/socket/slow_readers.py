"""Readers that do not keep up, and what it takes to notice them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.socket.peer import Envelope, Peer
from tests.support.socket.stage import SMALL_BUFFER, Stage

STEP = 50
SENT_MAX = 20_000
KILOBYTE = "x" * 1_000


async def stop_reading(stage: Stage, address: str) -> Peer:
    """A registered actor that reads nothing any more."""
    peer = await stage.join(address, receive_bytes=SMALL_BUFFER)
    peer.pause()
    return peer


async def flood(sender: Peer, address: str, until: str = "hub:pause", **members: Any) -> int:
    """Tell numbered notes to an address until the hub answers with `until`; how many were sent.

    The answer stays the next message to receive.
    """
    for sent in range(STEP, SENT_MAX, STEP):
        for number in range(sent - STEP, sent):
            sender.tell(address, "note", [number, KILOBYTE], **members)
        replies = await barrier(sender)
        if any(reply["type"] == until for reply in replies):
            sender.set_aside(replies)
            return sent
    raise AssertionError(f"no {until} after {SENT_MAX} messages")


async def block(sender: Peer, address: str) -> int:
    """Fill the kernel's buffers and the first of the hub's queue; how many notes it took."""
    sent = await flood(sender, address)
    await sender.receive("hub:pause")
    return sent


async def barrier(peer: Peer) -> list[Envelope]:
    """Everything the hub has said before it answers a heartbeat."""
    message_id = peer.send("hub:heartbeat")
    heard: list[Envelope] = []
    while (message := await peer.receive())["correlationId"] != message_id:
        heard.append(message)
    return heard


async def depth(slow: Peer, witness: Peer) -> int:
    """What waits for a peer that does not read.

    The answer waits behind everything else, so the peer has to read in the end; but it begins only
    when the witness has heard from it, which is after the hub has looked.
    """
    message_id = slow.send("hub:queue_stats")
    slow.tell(witness.sender, "looked")
    await witness.receive("looked")
    slow.resume()
    reply = await slow.reply_to(message_id)
    assert reply["type"] == "hub:queue_stats_response", reply
    return int(reply["payload"]["queueDepth"])


async def notes(peer: Peer, last: str) -> list[int]:
    """The numbers of all notes before a message of type `last`."""
    heard: list[int] = []
    async with asyncio.timeout(30):
        while (message := await peer.receive())["type"] != last:
            if message["type"] == "note":
                heard.append(message["payload"][0])
    return heard
