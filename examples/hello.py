"""Two actors and a hub: one asks the other for a sum, gets the result and publishes it.

Start a hub with `signalhub serve`, then run `python examples/hello.py`, with `--url URL` or
SIGNALHUB_URL for a hub that is elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import signalhub
from signalhub import Message

HUB = "ws://127.0.0.1:8787/ws"
BOSS = "@(demo/boss)"
WORKER = "@(demo/worker)"


async def main(url: str) -> None:
    async with (
        signalhub.connect(url, BOSS) as boss,
        signalhub.connect(url, WORKER, capabilities=("sums",)) as worker,
    ):

        @worker.on("sum:wanted")
        async def add(message: Message) -> None:
            await worker.tell(message.sender, "sum:done", sum(message.payload))

        await worker.subscribe("sums/#")
        (helper,) = await boss.discover(capability="sums")
        print(f"{helper.address} can do sums")

        receipt = await boss.ask(helper.address, "sum:wanted", [1, 2, 3])
        print(f"the task was {receipt.status}")

        answer = await anext(boss.messages())
        print(f"{answer.sender} says {answer.payload}")

        readers = (await boss.publish("sums/today", "sum:published", answer.payload)).subscribers
        news = await anext(worker.messages())
        print(f"{readers} reader of {news.topic} got {news.payload}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Two actors: one asks the other for a sum.")
    parser.add_argument("--url", default=os.environ.get("SIGNALHUB_URL") or HUB, help="the hub")
    try:
        asyncio.run(main(parser.parse_args().url))
    except signalhub.SignalHubError as error:
        sys.exit(f"hello.py: {error}")
