"""`signalhub demo` while its buttons are pressed: the ledger stays exact.

In `make soak` they are pressed in random order for ten minutes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import signalhub
from signalhub import Client, ClientError
from signalhub.operate.demo.proxy import ChaosProxy
from signalhub.operate.demo.supervisor import ADDRESS, BOARD, Demo
from tests.support.volume import volume

SEED = int(os.environ.get("SIGNALHUB_CHAOS_SEED", "1"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BUTTONS: list[tuple[str, dict[str, Any]]] = [
    ("demo:kill", {"what": "hub"}),
    ("demo:cut", {"seconds": 0.5}),
    ("demo:kill", {"what": "shop-1"}),
    ("demo:fail", {}),
    ("demo:kill", {"what": "shop-2"}),
]
PRESSED = volume(len(BUTTONS), 300)
PATIENCE_S = 60.0
RATE_S = 20.0
QUICK = signalhub.Reconnect(first_jitter_s=0.1, cap_s=0.5)


async def press(me: Client, button: str, facts: dict[str, Any]) -> None:
    """The supervisor reconnects, too, so it may be away for a moment."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await me.ask(ADDRESS, button, facts)
                return
            except ClientError:
                await asyncio.sleep(0.05)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():  # noqa: ASYNC110  What is waited for is a number.
            await asyncio.sleep(0.05)


async def press_all(demo: Demo, me: Client) -> None:
    random = Random(SEED)
    for number in range(PRESSED):
        button, facts = BUTTONS[number] if number < len(BUTTONS) else random.choice(BUTTONS)
        ended = demo.shoppers.ledger.confirmed
        await press(me, button, facts)
        await until(lambda ended=ended: demo.shoppers.ledger.confirmed > ended)  # type: ignore[misc]


async def play(demo: Demo, act: Callable[[Demo, Client], Awaitable[None]]) -> dict[str, Any]:
    """Run the demo, do something to it, let its orders end, and return the board."""
    ready = asyncio.Event()
    running = asyncio.create_task(demo.run(ready.set))
    try:
        await asyncio.wait(
            (running, asyncio.create_task(ready.wait())), return_when="FIRST_COMPLETED"
        )
        async with signalhub.connect(demo.url, "@(demo/tester)", reconnect=QUICK) as me:
            shown = asyncio.Event()
            me.on("demo:board", lambda message: shown.set())
            await me.subscribe(BOARD)
            await until(lambda: demo.shoppers.ledger.confirmed > 0)
            await act(demo, me)
            demo.shoppers.is_open = False
            ledger = demo.shoppers.ledger
            await until(lambda: not ledger.open and not ledger.unverified)
            await until(lambda: all(one.seen == ledger.placed for one in demo.consumers))
            await asyncio.wait_for(shown.wait(), PATIENCE_S)
        return demo.show()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_ledger_stays_exact_whatever_is_killed(tmp_path: Path) -> None:
    async with ChaosProxy(0) as free:
        port = free.port
    demo = Demo(tmp_path, port=port, rate_s=RATE_S, shop=EXAMPLES, has_pipeline=False)

    board = await play(demo, press_all)

    assert [one["name"] for one in board["ledger"] if not one["ok"]] == []
    assert (board["lost"], board["doubled"], board["open"]) == (0, 0, 0)
    assert board["placed"] == board["confirmed"] + board["cancelled"] > 0
    assert all(one["kills"] for one in board["programs"])
    assert any(one["failures"] for one in board["consumers"])
    assert not any(one.pid for one in (demo._hub, *demo._hosts)), "no process is left"
