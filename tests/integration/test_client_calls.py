"""The Python client over HTTP: the same calls without a connection."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import signalhub
from signalhub.testing import FakeClock, run_hub, spawn_hub
from signalhub.wire.errors import NoReply, RequestFailed
from tests.support.socket.clients import run_guide
from tests.support.socket.stage import run_stage
from tests.support.socket.tokens import AUTH, token_for

PRICES = "@(shop/prices)"


async def test_every_block_of_the_guide_runs() -> None:
    async with run_hub() as running:
        await run_guide("http.md", 1, url=running.http_url, signalhub=signalhub)


async def test_publishing_and_reading() -> None:
    async with run_hub() as running, signalhub.hub(running.http_url) as hub:
        first = await hub.publish("orders", "order", {"sku": 7}, durable=True, message_id="one")
        again = await hub.publish("orders", "order", {"sku": 7}, durable=True, message_id="one")
        assert (first.seq, again.seq, again.duplicate) == (1, 1, True)
        await hub.publish("orders", "order", None, durable=True, key="k", headers={"a": "b"})
        page = await hub.messages("orders")
        assert [(one.type, one.payload) for one in page] == [
            ("order", {"sku": 7}),
            ("order", None),
        ]
        assert (page.next_seq, page.is_complete, len(page)) == (3, True, 2)
        assert (page.messages[1].key, page.messages[1].headers) == ("k", {"a": "b"})
        rest = await hub.messages("orders", after=1)
        assert [one.delivery.seq for one in rest if one.delivery is not None] == [2]
        since = await hub.messages("orders", start=datetime(2020, 1, 1, tzinfo=UTC), limit=1)
        assert (len(since), since.is_complete) == (1, False)
        plain = await hub.publish("news", "flash", 1)
        assert (plain.seq, plain.subscribers) == (None, 0)


async def test_pulling_and_settling() -> None:
    async with run_hub() as running, signalhub.hub(running.http_url) as hub:
        for number in range(5):
            await hub.publish("a/b", "order", number, durable=True)
        messages = await hub.pull("a/b", "billing", max=4)
        assert [one.payload for one in messages] == [0, 1, 2, 3]
        acked = await messages[0].ack(wait=True)
        assert acked is not None
        assert acked.floor == 1
        await messages[1].term(reason="broken")
        await messages[2].extend(60)
        await messages[3].nack(delay_s=0)
        settled = await hub.settle("ack", "a/b", "billing", [3])
        assert (settled.accepted, settled.floor) == (1, 3)
        found = await hub.pull("a/b", "billing", wait_s=10, max=2)
        while len(found) < 2:
            found += await hub.pull("a/b", "billing", wait_s=10)
        assert {one.payload for one in found} == {3, 4}
        with pytest.raises(signalhub.StaleDelivery):
            await messages[2].extend(60)


async def test_telling_asking_and_requesting() -> None:
    async with run_stage() as stage, signalhub.hub(stage.hub.http_url) as hub:
        with pytest.raises(signalhub.UnknownActor):
            await hub.ask(PRICES, "hello")
        shop = await stage.join(PRICES, "prices")
        assert [one.address for one in await hub.actors("shop/*", "prices")] == [PRICES]
        await hub.tell(PRICES, "hello", 1, sender="@(demo/alice)")
        assert (await shop.receive("hello"))["from"] == "@(demo/alice)"
        receipt = await hub.ask(PRICES, "hello", 2, message_id="ask-1")
        assert (receipt.is_delivered, receipt.message_id) == (True, "ask-1")
        assert (await hub.ask(PRICES, "hello", 2, message_id="ask-1")).duplicate
        await shop.receive("hello")

        async def answer(data: Any, **metadata: Any) -> None:
            heard = await shop.receive("price")
            about = {"inReplyTo": heard["metadata"]["originalMessageId"]} | metadata
            payload = {"to": heard["from"], "type": "price.reply", "data": data}
            shop.send("hub:send", payload, metadata=about)

        answering = asyncio.create_task(answer({"eur": 12}))
        reply = await hub.request(PRICES, "price", {"sku": 7})
        assert (reply.sender, reply.type, reply.payload) == (PRICES, "price.reply", {"eur": 12})
        await answering
        answering = asyncio.create_task(answer(None, failure={"code": "none", "text": "no sku"}))
        with pytest.raises(RequestFailed) as failure:
            await hub.request(PRICES, "price", {"sku": 8})
        assert (failure.value.code, failure.value.text) == ("none", "no sku")
        await answering
        with pytest.raises(NoReply) as silence:
            await hub.request(PRICES, "price", timeout_s=0.05)
        assert silence.value.code == "no_reply"


async def test_what_is_not_allowed_is_refused() -> None:
    clock = FakeClock()
    async with run_hub(clock, auth=AUTH) as running:
        token = token_for("local/eve", clock, permissions={"publish": ["orders"]})
        async with signalhub.hub(running.http_url, token=token) as hub:
            with pytest.raises(signalhub.Refused) as refusal:
                await hub.publish("others", "order")
            assert (refusal.value.code, refusal.value.retryable) == ("unauthorized", False)
            assert refusal.value.resolution
        async with signalhub.hub(running.http_url) as hub:
            with pytest.raises(signalhub.Refused) as refusal:
                await hub.messages("orders")
            assert refusal.value.code == "unauthorized"


async def test_a_publish_survives_a_kill_of_the_hub() -> None:
    async with spawn_hub() as running, signalhub.hub(running.http_url) as hub:
        await hub.publish("orders", "order", 1, durable=True, message_id="one")
        await running.kill()
        repeated = asyncio.create_task(
            hub.publish("orders", "order", 1, durable=True, message_id="one")
        )
        await running.start()
        published = await repeated
        assert (published.seq, published.duplicate) == (1, True)


async def test_what_is_wrong_is_said_before_anything_is_sent() -> None:
    async with signalhub.hub("http://127.0.0.1:1") as hub:
        with pytest.raises(ValueError, match="topic"):
            await hub.publish("", "order")
        with pytest.raises(ValueError, match="address"):
            await hub.tell("nobody", "hello")
        with pytest.raises(signalhub.Unavailable, match="no hub"):
            await hub.tell(PRICES, "hello", timeout_s=0.1)
