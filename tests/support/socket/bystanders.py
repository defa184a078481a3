"""Two actors who talk during a whole test and must not be disturbed by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.socket.peer import Peer
from tests.support.socket.stage import Stage

TURNS_MAX = 100_000
# Half of what the default rate limit lets either of them send.
TURN_S = 0.002
ALICE, BOB = "@(bystander/alice)", "@(bystander/bob)"


class Bystanders:
    """Alice asks, Bob hears it and answers with a tell, Alice hears that; every turn in order."""

    def __init__(self, alice: Peer, bob: Peer) -> None:
        self._alice = alice
        self._bob = bob
        self._turns = 0
        self._turned = asyncio.Condition()
        self._talking = asyncio.create_task(self._talk())

    async def _talk(self) -> None:
        """Turn after turn until cancelled; anything unexpected fails."""
        for turn in range(TURNS_MAX):
            ask_id = self._alice.send(
                "hub:send", {"to": BOB, "type": "talk:ask", "data": turn}, pattern="ask"
            )
            heard = await self._bob.receive("talk:ask")
            assert heard["payload"] == turn
            assert heard["metadata"]["originalMessageId"] == ask_id
            self._bob.tell(ALICE, "talk:answer", turn)
            ack = await self._alice.receive("hub:delivery_ack")
            assert ack["correlationId"] == ask_id
            answer = await self._alice.receive("talk:answer")
            assert answer["payload"] == turn
            async with self._turned:
                self._turns += 1
                self._turned.notify_all()
            await asyncio.sleep(TURN_S)

    async def go_on(self, turns: int = 5) -> None:
        """Wait for this many more turns, or for what ended the talk."""
        more = asyncio.create_task(self._wait_until(self._turns + turns))
        await asyncio.wait((more, self._talking), return_when=asyncio.FIRST_COMPLETED)
        more.cancel()
        if self._talking.done():
            self._talking.result()

    async def _wait_until(self, turns: int) -> None:
        async with self._turned:
            await self._turned.wait_for(lambda: self._turns >= turns)

    async def stop(self) -> None:
        """End the talk."""
        self._talking.cancel()
        with suppress(asyncio.CancelledError):
            await self._talking


@asynccontextmanager
async def bystanders(stage: Stage) -> AsyncIterator[Bystanders]:
    """They talk before, during and after the block; the block fails when they cannot."""
    pair = Bystanders(await stage.join(ALICE), await stage.join(BOB))
    try:
        await pair.go_on()
        yield pair
        await pair.go_on()
    finally:
        await pair.stop()
