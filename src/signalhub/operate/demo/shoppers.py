"""Customers, who order and insist until they know how it ended, and the books they keep.

An order is first published to a durable topic, then checked out. Both may be repeated: the hub
stores an order once, and an order that is checked out again continues.
"""

from __future__ import annotations

import asyncio
import secrets
from random import Random
from typing import Any, Final

from signalhub.actors import ActorHub, CallError, op
from signalhub.client import Client, Reconnect, connect
from signalhub.operate.demo.ledger import Ledger
from signalhub.wire.errors import ClientError

TOPIC: Final = "demo/placed"
SKUS: Final = ("blue-mug", "teapot", "saucer")
CENTS: Final = 995
STOCK: Final = 1_000_000
# Most cards pay, some are declined, and a few are silent, which takes the shop three seconds.
CARDS: Final = ("4000000000000077",) * 17 + ("4000000000000002",) * 2 + ("4000000000000119",)
# Nobody waits longer for one attempt; then the customer asks again.
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.2
_OPEN_MAX: Final = 2_000
_LOOKS_MAX: Final = 16
QUICKLY: Final = Reconnect(first_jitter_s=0.3, cap_s=1.0)


class Shoppers:
    """All customers of the demo."""

    def __init__(self, url: str, rate_s: float, seed: int | None = None) -> None:
        self.ledger = Ledger(CENTS)
        # Does it take orders?
        self.is_open = True
        # Orders whose end the customers were told since the last look.
        self.ended: list[str] = []
        self._url = url
        self._rate_s = rate_s
        # Actors keep their state for good, so every run has names of its own.
        self._run = secrets.token_hex(2)
        self._random = Random(seed)  # noqa: S311  It chooses goods and cards.
        self._serial = 0
        self._actors: ActorHub
        self._me: Client
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Fill the shelves, then order until cancelled."""
        address = f"@(demo/customers-{self._run})"
        async with (
            ActorHub(self._url) as self._actors,
            connect(self._url, address, reconnect=QUICKLY) as self._me,
        ):
            try:
                await self._fill_shelves()
                async with asyncio.TaskGroup() as together:
                    together.create_task(self._order())
                    together.create_task(self._audit())
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fill_shelves(self) -> None:
        for sku in SKUS:
            # `deliver` adds, so it must not be repeated blindly: the stock says whether it arrived.
            while not sum((await self._insist(f"stock/{self._named(sku)}", "count")).values()):
                try:
                    await self._actors.ask(f"stock/{self._named(sku)}", "deliver", STOCK)
                except (CallError, ClientError):
                    await asyncio.sleep(_PATIENCE_S)
            self.ledger.delivered += STOCK

    async def _order(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + 1 / self._rate_s, loop.time() - 1.0)
            await asyncio.sleep(due_s - loop.time())
            if self.is_open and len(self._tasks) < _OPEN_MAX:
                self._serial += 1
                task = asyncio.create_task(self._shop(self._serial))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _shop(self, serial: int) -> None:
        order = f"{self._run}-{serial}"
        sku = self._named(self._random.choice(SKUS))
        card = f"{order}-{self._random.choice(CARDS)}"
        await self._place(order, {"order": order, "sku": sku, "count": 1, "cents": CENTS})
        self.ledger.order_placed(order, card)
        ended = await self._insist(f"order/{order}", "checkout", sku, 1, CENTS, card)
        self.ledger.order_ended(order, ended["status"])
        self.ended.append(order)

    async def _place(self, order: str, facts: dict[str, Any]) -> None:
        while True:
            try:
                await self._me.publish(
                    TOPIC, "order:placed", facts, durable=True, key=order, message_id=order
                )
                return
            except ClientError:
                await asyncio.sleep(_PAUSE_S)

    async def _insist(self, target: str, method: str, *arguments: Any) -> Any:
        """Ask until there is an answer; for what may be asked twice."""
        while True:
            try:
                return await self._actors.ask(target, op(method, *arguments), timeout=_PATIENCE_S)
            except (CallError, ClientError):
                await asyncio.sleep(_PAUSE_S)

    async def _audit(self) -> None:
        """Look at the cards of orders that have ended, and at the stock."""
        while True:
            await asyncio.sleep(1.0)
            if not self.is_open and not self.ledger.open and not self.ledger.unverified:
                continue
            found = [*self.ledger.unverified.items()]
            for at in range(0, len(found), _LOOKS_MAX):
                looks = [self._look(order, card) for order, card in found[at : at + _LOOKS_MAX]]
                await asyncio.gather(*looks)
            totals = {"free": 0, "held": 0, "sold": 0}
            for sku in SKUS:
                counted = await self._insist(f"stock/{self._named(sku)}", "count")
                totals = {name: totals[name] + counted[name] for name in totals}
            self.ledger.stock_shown(**totals)

    async def _look(self, order: str, card: str) -> None:
        charges, paid = await asyncio.gather(
            self._insist(f"payment/{card}", "charges"), self._insist(f"payment/{card}", "paid")
        )
        self.ledger.card_shown(order, charges.get(order, 0), paid.get(order, 0))

    def _named(self, sku: str) -> str:
        return f"{sku}-{self._run}"
