"""The example shop while its hosts and the hub are killed: goods and money always add up.

There is a fifth of the kills of the other loop; `SIGNALHUB_CHAOS_SEED` is the same.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from examples.shop import DECLINED_CARD, GOOD_CARD, SILENT_CARD, Payment, Stock
from signalhub import ClientError
from signalhub.actors import CallError, op
from signalhub.actors.api.operation import Operation
from signalhub.actors.host.caller import ActorHub
from signalhub.testing import HostProcess, HubProcess, spawn_host, spawn_hub
from tests.support.actors.hasty_shop import Order
from tests.support.actors.kill_points import QUICK
from tests.support.volume import KILLS

CYCLES = max(1, KILLS // 5)
SEED = int(os.environ.get("SIGNALHUB_CHAOS_SEED", "1"))
CUSTOMERS = 6
SKUS = ("mug", "pot", "cup")
CARDS = (GOOD_CARD, GOOD_CARD, GOOD_CARD, DECLINED_CARD, SILENT_CARD, None)
DELIVERED = 15
PRICE = 995
KILL_AFTER_S = (0.0, 0.4)
PATIENCE_S = 60.0
PAUSE_S = 0.05


class Shop:
    """What the customers have asked for, and whether the shop is still open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_open = True
        # Order to what it is about.
        self.orders: dict[str, tuple[str, int, str | None]] = {}
        self.ended: dict[str, dict[str, Any]] = {}
        self.has_ended_one = asyncio.Event()

    async def insist(self, target: str, operation: Operation) -> Any:
        """Ask until there is an answer; everything asked here may be asked again."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    async with ActorHub(self._url) as outside:
                        return await outside.ask(target, operation, timeout=2.5)
                except (CallError, ClientError):
                    await asyncio.sleep(PAUSE_S)

    async def be_a_customer(self, number: int) -> None:
        random = Random(f"{SEED} {number}")
        turn = 0
        while self.is_open:
            turn += 1
            order = f"{number}-{turn}"
            sku, count, card = random.choice(SKUS), random.randint(1, 2), random.choice(CARDS)
            self.orders[order] = sku, count, card
            checkout = op(Order.checkout, sku, count, PRICE * count, card)
            self.ended[order] = await self.insist(f"order/{order}", checkout)
            self.has_ended_one.set()


def expected(card: str | None) -> set[tuple[str, str]]:
    """How an order may end, and why."""
    # A bank that was dead for too long is silent, too.
    ends = {("cancelled", "it is sold out"), ("cancelled", "the bank is silent")}
    if card == GOOD_CARD:
        ends.add(("confirmed", ""))
    elif card == DECLINED_CARD:
        ends |= {("cancelled", f"the bank declines {PRICE * n / 100:.2f}") for n in (1, 2)}
    elif card is None:
        ends.add(("cancelled", "it was not paid"))
    return ends


async def kill_all_around(
    shop: Shop, hub: HubProcess, hosts: list[HostProcess], random: Random
) -> None:
    """Kill somebody, see that the shop goes on, and kill somebody again."""
    victims: list[HubProcess | HostProcess] = [hub, *hosts]
    for _ in range(CYCLES):
        await asyncio.sleep(random.uniform(*KILL_AFTER_S))
        await random.choice(victims).restart()
        shop.has_ended_one.clear()
        async with asyncio.timeout(PATIENCE_S):
            await shop.has_ended_one.wait()


@pytest.mark.timeout(900)
async def test_goods_and_money_add_up_whoever_is_killed() -> None:
    random = Random(SEED)
    async with (
        spawn_hub(message_rate=0, connection_rate=0) as hub,
        spawn_host(Order, url=hub.url, name="orders", config=QUICK) as orders,
        spawn_host(Stock, Payment, url=hub.url, name="goods", config=QUICK) as goods,
    ):
        shop = Shop(hub.url)
        for sku in SKUS:
            # Delivered once, before anything is killed: a delivery is not idempotent.
            async with ActorHub(hub.url) as outside:
                await outside.ask(f"stock/{sku}", op(Stock.deliver, DELIVERED))
        customers = [asyncio.create_task(shop.be_a_customer(n)) for n in range(CUSTOMERS)]
        try:
            await kill_all_around(shop, hub, [orders, goods], random)
        finally:
            shop.is_open = False
            await asyncio.gather(*customers)
        async with ActorHub(hub.url) as outside:
            await assert_ended(outside, shop)
            await assert_balanced(outside, shop)
        assert "Traceback" not in orders.log() + goods.log(), orders.log() + goods.log()


async def assert_ended(outside: ActorHub, shop: Shop) -> None:
    """Every order has ended, as its customer was told, and nobody has to look after it."""
    for order, ended in shop.ended.items():
        assert await outside.ask(f"order/{order}", op(Order.status)) == ended
        assert await outside.ask(f"order/{order}", op(Order.troubles)) == []
        assert (ended["status"], ended["why"]) in expected(shop.orders[order][2]), ended
    assert set(shop.ended) == set(shop.orders)


async def assert_balanced(outside: ActorHub, shop: Shop) -> None:
    """Compensations may still be on their way: wait for them, then nothing may be missing."""
    confirmed = {key for key, ended in shop.ended.items() if ended["status"] == "confirmed"}
    sold = Counter[str]()
    for order in confirmed:
        sku, count, card = shop.orders[order]
        assert card == GOOD_CARD
        sold[sku] += count
    for sku in SKUS:
        goods = {"free": DELIVERED - sold[sku], "held": 0, "sold": sold[sku]}
        assert await settled(outside, f"stock/{sku}", op(Stock.count), goods) == goods
    for card in (GOOD_CARD, SILENT_CARD):
        paid = {key: PRICE * shop.orders[key][1] for key in confirmed if card == GOOD_CARD}
        target = f"payment/{card}"
        assert await settled(outside, target, op(Payment.paid), paid) == paid
        charges = await outside.ask(target, op(Payment.charges))
        assert set(charges.values()) <= {1}, "an order was charged twice"
    assert confirmed


async def settled(outside: ActorHub, target: str, operation: Operation, wanted: object) -> object:
    """An answer once it is the one wanted, or, after a while, as it is."""
    for _ in range(100):
        if await outside.ask(target, operation) == wanted:
            break
        await asyncio.sleep(PAUSE_S)
    return await outside.ask(target, operation)
