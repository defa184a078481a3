"""What an earlier release wrote is opened, found whole, and goes on.

Its lake is tested in `tests/pipeline`, where tests share a Spark session.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import signalhub
from signalhub.actors import ActorHub, Host, op, ref
from signalhub.testing import run_hub
from tests.upgrade.folder import MUGS, ORDERS, SETTINGS, SETTLED, Shelf, position
from tests.upgrade.unpacked import ARCHIVES, Folder


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(request.param, tmp_path)


async def test_topics_go_on_where_their_subscriptions_stood(folder: Folder) -> None:
    async with (
        run_hub(data=str(folder.data), **SETTINGS) as hub,
        signalhub.connect(hub.url, "@(shop/billing)") as billing,
    ):
        published = await billing.publish("orders", "order", {"id": "new"}, durable=True)
        async with billing.consume("orders", "billing") as orders:
            found = []
            async for message in orders:
                await message.ack()
                found.append(position(message))
                if found[-1] == published.seq:
                    break
        letters = [one async for one in billing.replay("orders.dlq", from_seq=1, to_seq=1)]

    assert (published.epoch, published.seq) == (folder.known["epoch"], ORDERS + 1)
    assert found == list(range(SETTLED + 1, ORDERS + 2))
    assert [one.payload["id"] for one in letters] == [5]


async def test_mailboxes_keep_what_waits_in_them(folder: Folder) -> None:
    async with (
        run_hub(data=str(folder.data), **SETTINGS) as hub,
        signalhub.connect(hub.url, "@(shop/carol)", acknowledge=True) as carol,
    ):
        invoice = await anext(carol.messages())
        await invoice.ack()

    assert invoice.payload == {"pay": 12}
    assert position(invoice) == folder.known["invoice"]


async def test_rooms_are_read_and_written_on(folder: Folder) -> None:
    async with (
        run_hub(data=str(folder.data), **SETTINGS) as hub,
        signalhub.hub(hub.url) as rooms,
        rooms.room("general", pseudonym="p2", since=0) as room,
    ):
        sent = await room.send(b"new")
        found = []
        async for message in room:
            found.append(message.ciphertext)
            if message.seq == sent.seq:
                break

    assert sent.seq == folder.known["room"] + 1
    assert found == [*(f"ciphertext {number}".encode() for number in range(20)), b"new"]


async def test_durable_actors_keep_their_state_and_their_place(folder: Folder) -> None:
    async with (
        run_hub(data=str(folder.data), **SETTINGS) as hub,
        Host(Shelf, data=str(folder.host), url=hub.url, name="shelves") as host,
    ):
        running = asyncio.create_task(host.run())
        await host.is_connected.wait()
        async with ActorHub(hub.url) as outside:
            count = await outside.ask(ref("shelf", "mugs"), op(Shelf.add, 1), timeout=20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert count == folder.known["mugs"] + 1 == MUGS + 1
