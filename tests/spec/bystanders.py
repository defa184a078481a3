"""Two innocent actors who talk all through a test and must not notice what happens around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.spec.peer import Peer
from tests.spec.stage import Stage

TURNS_MAX = 100_000
PAUSE_S = 0.002
ALICE, BOB = "@(bystander/alice)", "@(bystander/bob)"


class Bystanders:
    """Alice asks, Bob hears it and answers with a tell, Alice hears that; every turn in order."""

    def __init__(self, alice: Peer, bob: Peer) -> None:
        self._alice = alice
        self._bob = bob
        self._turned = asyncio.Event()
        self.turns = 0

    async def talk(self) -> None:
        """Turn after turn until cancelled; anything out of the ordinary is an assertion."""
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
            self.turns += 1
            self._turned.set()
            # A quick machine would have them exceed the default message rate.
            await asyncio.sleep(PAUSE_S)

    async def go_on(self, turns: int = 5) -> None:
        """Wait for so many more turns."""
        wanted = self.turns + turns
        while self.turns < wanted:
            self._turned.clear()
            await self._turned.wait()


@asynccontextmanager
async def bystanders(stage: Stage) -> AsyncIterator[Bystanders]:
    """They talk before, during and after the block; the block fails when they do."""
    pair = Bystanders(await stage.join(ALICE), await stage.join(BOB))
    async with asyncio.TaskGroup() as group:
        talking = group.create_task(pair.talk())
        await pair.go_on()
        yield pair
        await pair.go_on()
        talking.cancel()
