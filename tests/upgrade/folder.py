"""A data folder, the folder of a host and a lake as one release writes them.

Run in a checkout of that release, with its own `signalhub` on the path:

    python tests/upgrade/folder.py tests/upgrade/0.1.0.tar.xz

Only public names and commands are used, so the same file describes every release.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import signalhub
from signalhub.actors import Actor, ActorHub, Host, op, ref, remote
from signalhub.testing import run_hub

YEARS_S = 50 * 365 * 86_400.0
# Nothing in the folder may be too old when it is opened years later.
SETTINGS: dict[str, Any] = {
    "drain_s": 0.2,
    "log": {"segment_bytes": 2**16, "retention_s": YEARS_S},
    "mailbox": {"idle_s": YEARS_S},
    "rooms": {"retention_s": YEARS_S, "secret": "a secret of at least thirty-two bytes"},
}
ORDERS = 300
SETTLED = 120
MUGS = 7


class Shelf(Actor):
    """Counts what it is given."""

    @remote
    def add(self, count: int) -> int:
        total = int(self.state.get("count", 0)) + count
        self.state.put("count", total)
        return total


async def fill(data: Path, host: Path) -> dict[str, Any]:
    """Use everything that leaves something behind; returns what has to be found again."""
    async with run_hub(data=str(data), **SETTINGS) as hub:
        async with signalhub.connect(hub.url, "@(shop/till)") as till:
            known = await _fill_topics(hub.url, till)
            known |= await _fill_mailbox(hub.url, till)
        known |= await _fill_room(hub.url)
        known |= await _fill_host(hub.url, host)
    return known


async def _fill_topics(url: str, till: signalhub.Client) -> dict[str, Any]:
    topic = await till.create_topic("orders", retention_s=YEARS_S, poison="dead_letter")
    await till.create_topic("orders.dlq", retention_s=YEARS_S)
    async with (
        signalhub.connect(url, "@(shop/billing)") as billing,
        billing.consume("orders", "billing", max_deliveries=1) as orders,
    ):
        for number in range(1, ORDERS + 1):
            await till.publish("orders", "order", {"id": number, "pad": "x" * 400}, durable=True)
        async for message in orders:
            seq = position(message)
            if seq == 5:
                await message.nack(reason="no such customer")
            else:
                await message.ack()
            if seq == SETTLED:
                break
    return {"epoch": topic.epoch}


async def _fill_mailbox(url: str, till: signalhub.Client) -> dict[str, Any]:
    async with signalhub.connect(url, "@(shop/carol)", durable=True):
        pass
    receipt = await till.ask("@(shop/carol)", "invoice", {"pay": 12})
    return {"invoice": receipt.seq}


async def _fill_room(url: str) -> dict[str, Any]:
    async with signalhub.hub(url) as hub, hub.room("general", pseudonym="p1") as room:
        sent = [await room.send(f"ciphertext {number}".encode()) for number in range(20)]
    return {"room": sent[-1].seq}


async def _fill_host(url: str, folder: Path) -> dict[str, Any]:
    async with Host(Shelf, data=str(folder), url=url, name="shelves") as host:
        running = asyncio.create_task(host.run())
        await host.is_connected.wait()
        async with ActorHub(url) as hub:
            count = await hub.ask(ref("shelf", "mugs"), op(Shelf.add, MUGS), timeout=20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return {"mugs": count}


def position(message: signalhub.Message) -> int:
    """Its number in the stream it was read from."""
    assert message.delivery is not None
    return message.delivery.seq


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`signalhub` as it is installed beside this program."""
    return subprocess.run(
        [sys.executable, "-m", "signalhub", *words], capture_output=True, text=True, check=False
    )


def main(target: str) -> None:
    with TemporaryDirectory() as folder:
        data, host = Path(folder) / "data", Path(folder) / "host"
        known = asyncio.run(fill(data, host))
        landed = command("pipeline", "once", "--data", str(data))
        assert landed.returncode == 0, landed.stderr
        (Path(folder) / "known.json").write_text(json.dumps(known))
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for name in ("data", "host", "known.json"):
                archive.add(os.path.join(folder, name), name)
    print(f"{os.path.getsize(target)} bytes, {known}")


if __name__ == "__main__":
    main(sys.argv[1])
