"""Hosts of durable actors and their places, through the client and the real hub."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub import Message, Reconnect, Refused
from signalhub.client.answers import Place
from signalhub.client.client import Connecting
from signalhub.client.delivery import Delivery
from signalhub.testing import run_hub

A, B, CALLER = "@(shop/host-a)", "@(shop/host-b)", "@(shop/caller)"
QUICK = Reconnect(first_jitter_s=0.02, base_s=0.02)
PATIENCE_S = 20.0
ORDERS = [f"order/{number}" for number in range(200)]


def connect(url: str, address: str, **options: Any) -> Connecting:
    return signalhub.connect(url, address, **({"reconnect": QUICK} | options))


def serve(url: str, address: str, *kinds: str, instance: str = "1") -> Connecting:
    """A host, of `order` unless said otherwise."""
    capabilities = ["actor-host", *(f"actor:{kind}" for kind in kinds or ("order",))]
    return connect(
        url,
        address,
        capabilities=capabilities,
        metadata={"instance": instance},
        durable=True,
        acknowledge=True,
    )


async def take(source: Any, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(source) for _ in range(count)]


def delivery(message: Message) -> Delivery:
    assert message.delivery is not None
    return message.delivery


async def test_actors_are_placed_once_and_for_all_callers() -> None:
    async with (
        run_hub() as hub,
        serve(hub.url, A),
        serve(hub.url, B),
        connect(hub.url, CALLER) as one,
        connect(hub.url, "@(shop/other)") as other,
    ):
        found, again = await asyncio.gather(one.place(ORDERS), other.place(ORDERS))

        assert found == again
        assert [place.actor for place in found.places] == ORDERS
        assert {place.host for place in found.places} == {A, B}
        nobody = await one.place(["stock/1", ORDERS[0]])
        assert [(each.actor, each.code) for each in nobody.unplaced] == [("stock/1", "no_host")]
        assert nobody.places == found.places[:1]


async def test_a_move_turns_fences_stale_and_the_new_place_works() -> None:
    async with (
        run_hub() as hub,
        serve(hub.url, A) as one,
        serve(hub.url, B) as other,
        connect(hub.url, CALLER) as caller,
    ):
        claimed = await one.place(["order/17"], host=A, tokens={"order/17": 4})
        assert claimed.places == (Place("order/17", A, 4),)
        before = time.time() * 1000
        await caller.ask(A, "call", 1, fences={"order/17": 4}, message_id="first")

        moved = await one.move("order/17", 4, B)

        assert moved == await one.move("order/17", 4, B) == Place("order/17", B, 5)
        with pytest.raises(Refused) as refused:
            await caller.ask(A, "call", 2, fences={"order/17": 4})
        assert refused.value.code == "stale_placement"
        assert refused.value.details == {"stale": [{"actor": "order/17", "host": B, "token": 5}]}
        with pytest.raises(Refused, match="unauthorized"):
            await one.move("order/17", 5, A)
        # What was accepted before stays accepted.
        repeated = await caller.ask(A, "call", 1, fences={"order/17": 4}, message_id="first")
        await caller.ask(B, "call", 3, fences={"order/17": 5})
        assert repeated.duplicate
        (first,), (third,) = await take(one.messages(), 1), await take(other.messages(), 1)
        assert (first.payload, third.payload) == (1, 3)
        tally = hub.app.hub.tally
        assert (tally.actors_placed, tally.actors_moved, tally.stale_fences) == (1, 1, 1)
        accepted = delivery(first).accepted_at
        assert accepted is not None
        assert before - 1_000 <= accepted <= time.time() * 1000 + 1_000


async def test_a_restart_forgets_neither_places_nor_what_waits_for_a_host() -> None:
    async with run_hub(mailbox={"limit": 5}) as hub, connect(hub.url, CALLER) as caller:
        async with serve(hub.url, A) as host:
            await host.place(ORDERS, host=A)
            async with serve(hub.url, B):
                await host.move(ORDERS[0], 1, B)
        for number in range(10):
            await caller.ask(A, "call", number, fences={ORDERS[1]: 1})

        await hub.stop()
        await hub.start()

        places = (await caller.place(ORDERS)).places
        assert places[0] == Place(ORDERS[0], B, 2)
        assert {(place.host, place.token) for place in places[1:]} == {(A, 1)}
        await caller.ask(A, "call", 10, fences={ORDERS[1]: 1})
        async with serve(hub.url, A) as host:
            messages = await take(host.messages(), 11)
            assert [message.payload for message in messages] == list(range(11))
            assert [delivery(message).seq for message in messages] == list(range(1, 12))
            await messages[0].nack()
            (again,) = await take(host.messages(), 1)
            assert (delivery(again).seq, delivery(again).attempt) == (1, 2)
            assert delivery(again).accepted_at == delivery(messages[0]).accepted_at


async def test_a_log_that_was_cut_knows_every_place(tmp_path: Path) -> None:
    log = {"segment_bytes": 2**16, "retention_bytes": 2**17, "segment_s": 1.0}
    async with (
        run_hub(data=str(tmp_path), log=log, message_rate=0.0) as hub,
        connect(hub.url, CALLER) as caller,
        serve(hub.url, A) as host,
    ):
        await host.place(ORDERS, host=A)
        async with asyncio.timeout(60):
            while hub.app._engine.first == 0:
                await asyncio.gather(
                    *(caller.publish("t", "n", "x" * 2_000, durable=True) for _ in range(20))
                )
        await hub.stop()
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        await hub.start()

        found = await caller.place(ORDERS)

        assert {(place.host, place.token) for place in found.places} == {(A, 1)}
        assert len(found.places) == len(ORDERS)
