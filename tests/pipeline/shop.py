"""A data folder that a real hub has written, and its lake: a shop with some orders and notes."""

from __future__ import annotations

from pathlib import Path

import signalhub
from signalhub.testing import run_hub

ADA = "@(people/ada)"
BOB = "@(people/bob)"
ORDERS = 30
SECRET = "theanalyticalengineweaves"
PLAIN = "ploughmen-homeward-plod"


async def open_shop(data: Path) -> None:
    """Bob publishes orders and a note. So does Ada, who has a mailbox."""
    async with run_hub(data=str(data)) as hub, signalhub.connect(hub.url, BOB) as bob:
        await bob.create_topic("orders")
        for n in range(ORDERS):
            key = f"k-{n % 7}"
            await bob.publish("orders", "order:new", {"n": n}, durable=True, key=key)
        await bob.create_topic("notes")
        async with signalhub.connect(hub.url, ADA, durable=True) as ada:
            await ada.publish("notes", "note", SECRET, durable=True)
        await bob.publish("notes", "note", PLAIN, durable=True)
