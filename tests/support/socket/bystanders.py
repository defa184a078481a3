"""Two actors who talk during a whole test and must not be disturbed by it.

`Bystanders` talk and notice losses. A `Watch` also notices delays: it compares how long asks take
beside an attack with how long they take beside a legal neighbour that keeps the hub as busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple

from tests.support.socket.neighbours import Neighbour
from tests.support.socket.peer import PATIENCE_S, Peer
from tests.support.socket.stage import Stage
from tests.support.stage import registered
from tests.support.volume import volume

TURNS_MAX = 100_000
# Half of what the default rate limit lets either of them send.
TURN_S = 0.002
ALICE, BOB = "@(bystander/alice)", "@(bystander/bob)"

# How often a watch goes around, and what is asked each time beside each neighbour. The percentile
# leaves out a dozen asks at least, in `make test` as in `make soak`.
ROUNDS = volume(2, 5)
ASKS = volume(60, 500)
ASK_S = volume(25, 40) / 10_000
PERCENTILE = volume(90, 99)
# In `make test` other tests run meanwhile. Without its defences a hub is ten times slower.
RATIO_MAX = volume(5, 3)
# What an idle machine needs at most; less is not worth a ratio.
DELAY_MIN_S = 0.005
# A machine that is busy with something else may slow down any of them, an unfair hub always the
# same one, and by far.
ATTEMPTS = 5
_LOOKS_MAX = 30

Busy = Callable[[], AbstractContextManager[Neighbour]]


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


class Watched(NamedTuple):
    """The slowest asks beside a legal neighbour and beside an attack, in seconds."""

    legal_s: float
    attack_s: float

    @property
    def ratio(self) -> float:
        return self.attack_s / max(self.legal_s, DELAY_MIN_S)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.attack_s * 1000:.1f} ms, {self.legal_s * 1000:.1f} ms)"


class Watch:
    """Alice asks Bob at a steady rate, however long the answers take."""

    def __init__(self, alice: Peer, bob: Peer) -> None:
        self._alice = alice
        self._bob = bob

    async def compare(self, legal: Busy, attacks: Mapping[str, Busy]) -> dict[str, Watched]:
        """Measure beside all of them by turns; what is too slow is measured again."""
        found: dict[str, Watched] = {}
        left = attacks
        for _ in range(ATTEMPTS):
            found |= await self._measure(legal, left)
            left = {name: attacks[name] for name in left if found[name].ratio > RATIO_MAX}
            if not left:
                break
        return found

    async def _measure(self, legal: Busy, attacks: Mapping[str, Busy]) -> dict[str, Watched]:
        fair: list[float] = []
        slow: dict[str, list[float]] = {name: [] for name in attacks}
        for _ in range(ROUNDS):
            fair += await self._beside(legal)
            for name, attack in attacks.items():
                slow[name] += await self._beside(attack)
        return {name: Watched(_slowest(fair), _slowest(slow[name])) for name in attacks}

    async def _beside(self, busy: Busy) -> list[float]:
        with busy() as neighbour:
            async with asyncio.timeout(PATIENCE_S):
                while not neighbour.is_busy:
                    await self.asks(5)
            delays = await self.asks(ASKS)
        await self._calm_down()
        return delays

    async def _calm_down(self) -> None:
        """Wait until the hub has done what it was given, so that it delays nobody else's turn."""
        for _ in range(_LOOKS_MAX):
            if max(await self.asks(3)) < DELAY_MIN_S:
                return

    async def asks(self, count: int) -> list[float]:
        """How long asks take until Bob has them and Alice knows; every one arrives, once."""
        sent: dict[str, float] = {}
        heard: list[float] = []
        acked: dict[str, float] = {}

        async def send() -> None:
            begun = time.perf_counter()
            for number in range(count):
                await asyncio.sleep(begun + number * ASK_S - time.perf_counter())
                ask = {"to": BOB, "type": "talk", "data": number}
                sent[self._alice.send("hub:send", ask, pattern="ask")] = time.perf_counter()

        async def hear() -> None:
            for number in range(count):
                assert (await self._bob.receive("talk"))["payload"] == number
                heard.append(time.perf_counter())

        async def learn() -> None:
            for _ in range(count):
                ack = await self._alice.receive("hub:delivery_ack")
                acked[str(ack["correlationId"])] = time.perf_counter()

        async with asyncio.timeout(count * ASK_S + PATIENCE_S), asyncio.TaskGroup() as group:
            for one in (send(), hear(), learn()):
                group.create_task(one)
        assert acked.keys() == sent.keys()
        return [max(acked[id], at) - sent[id] for id, at in zip(sent, heard, strict=True)]


def _slowest(delays: list[float]) -> float:
    return sorted(delays)[len(delays) * PERCENTILE // 100]


async def watch(stage: Stage, **metadata: Any) -> Watch:
    """A pair that can be watched; `metadata` holds what a hello needs."""
    pair = [await registered(await stage.connect(one, **metadata), one) for one in (ALICE, BOB)]
    return Watch(*pair)
