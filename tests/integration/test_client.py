"""The Python client against the real hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

import signalhub
from signalhub import Message
from signalhub.auth.tokens import mint
from signalhub.client.protocol import incoming, pending
from signalhub.settings.model import Key
from signalhub.testing import ChaosProxy, run_hub
from tests.support.socket.clients import ALICE, BOB, connect, payloads, run_guide, take

SECOND = "@(demo/second)"
SECRET = "a secret of reasonable length"


@pytest.mark.parametrize(
    ("name", "count_min"), [("python.md", 6), ("durable.md", 1), ("requests.md", 5)]
)
async def test_every_block_of_the_guide_runs(name: str, count_min: int) -> None:
    async with run_hub() as hub, connect(hub.url, "@(demo/me)") as me, connect(hub.url, BOB):
        await run_guide(name, count_min, me=me, url=hub.url, signalhub=signalhub)


async def test_messages_arrive_with_everything_and_asks_are_receipted() -> None:
    payload: Any = {"text": "hällo", "nested": [None, True, 1.5, {"a": []}]}
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        await alice.tell(BOB, "chat:line", payload, ttl_ms=60_000, metadata={"traceId": "t"})
        (message,) = await take(bob, 1)
        assert (message.sender, message.to, message.type) == (ALICE, BOB, "chat:line")
        assert (message.payload, message.ttl, message.topic) == (payload, 60_000, None)
        assert message.metadata["traceId"] == "t"
        assert abs(message.timestamp - time.time() * 1000) < 60_000

        await alice.register(SECOND)
        receipt = await bob.ask(SECOND, "task", 1)
        (task,) = await take(alice, 1)
        assert receipt.is_delivered
        assert (task.original_id, task.to) == (receipt.message_id, SECOND)
        await alice.tell(BOB, "note", 2, sender=SECOND)
        assert (await take(bob, 1))[0].sender == SECOND
        with pytest.raises(signalhub.UnknownActor, match="not registered"):
            await alice.ask("@(demo/nobody)", "task", 1)


async def test_large_payloads_pass_and_too_large_ones_are_refused_before_sending() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(proxy.url, ALICE) as alice,
    ):
        await alice.tell(ALICE, "blob", "x" * 900_000)
        assert await payloads(alice, 1) == ["x" * 900_000]
        proxy.dribble(1)
        await alice.tell(ALICE, "note", "é" * 300)
        assert await payloads(alice, 1) == ["é" * 300], "a frame in many pieces is a frame"

        with pytest.raises(signalhub.Refused) as caught:
            await alice.ask(ALICE, "blob", "x" * 2**20)

        assert caught.value.code == "message_too_large"
        assert alice.is_connected


async def test_topics_with_wildcards_until_cancelled() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        prices = await bob.subscribe("prices/+/eur")
        await bob.subscribe("news/#")

        assert (await alice.publish("prices/oil/eur", "price", 1)).subscribers == 1
        assert (await alice.publish("prices/oil/usd", "price", 2)).subscribers == 0
        assert (await alice.publish("news/a/b", "item", 3)).subscribers == 1
        received = [(message.topic, message.payload) for message in await take(bob, 2)]
        assert received == [("prices/oil/eur", 1), ("news/a/b", 3)]

        await prices.cancel()
        await bob.unsubscribe("news/#")
        assert (await alice.publish("prices/oil/eur", "price", 4)).subscribers == 0
        assert (await alice.publish("news/a/b", "item", 5)).subscribers == 0


async def test_others_are_found_and_reached_by_broadcast() -> None:
    async with (
        run_hub() as hub,
        connect(hub.url, ALICE, capabilities=("chat",)) as alice,
        connect(hub.url, BOB, durable=True) as bob,
    ):
        everybody = await alice.broadcast("hi", 1)
        others = await alice.broadcast("hi", 2, exclude_self=True)
        chatters = await bob.broadcast("hi", 3, capability="chat")
        assert (everybody.delivered, others.delivered, chatters.delivered) == (2, 1, 1)
        assert await payloads(alice, 2) == [1, 3]
        assert await payloads(bob, 2) == [1, 2]

        part = await alice.discover("demo/*", limit=1)
        assert (len(part), part[0].address, part.has_more) == (1, ALICE, True)
        assert [actor.address for actor in await alice.discover(capability="chat")] == [ALICE]
        assert not await alice.discover("nobody/*")
        await alice.register("@(other/second)", metadata={"k": 1}, lease_s=60)
        page = await alice.actors(offset=2, limit=1)
        assert (page.total, page.has_more, page.actors[0].metadata) == (3, False, {"k": 1})
        await alice.unregister("@(other/second)")
        await bob.close()
        everybody_known = await alice.discover(include_away=True)
        assert [(one.address, one.away) for one in everybody_known] == [(ALICE, False), (BOB, True)]
        assert [one.address for one in await alice.discover()] == [ALICE]

        assert (await alice.queue_stats()).pause_threshold == 1000
        assert (await alice.metrics())["messages_received"] > 0
        assert 0 < await alice.ping() < 10
        assert (await alice.refresh_token()).token.startswith("stkn-")


async def test_a_client_that_does_not_register_speaks_as_an_address_and_leaves_it_alone() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(hub.url, ALICE) as alice,
        connect(proxy.url, ALICE, register=False) as voice,
    ):
        await voice.subscribe("news")
        session = voice.session_id
        await voice.ask(ALICE, "note", 1)

        proxy.cut()
        await voice.ask(ALICE, "note", 2)

        assert voice.session_id != session
        assert [(m.sender, m.payload) for m in await take(alice, 2)] == [(ALICE, 1), (ALICE, 2)]
        assert [actor.version for actor in (await voice.actors()).actors] == [1]
        assert alice.is_connected
        assert (await alice.publish("news", "item", 3)).subscribers == 1
        assert await payloads(voice, 1) == [3]


async def test_the_newest_client_of_an_address_keeps_it() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as older, connect(hub.url, ALICE) as newer:
        with pytest.raises(signalhub.GaveUp, match="duplicate_connection"):
            await older.wait_closed()

        assert (await newer.ask(ALICE, "note", 1)).is_delivered


async def test_a_cut_connection_is_restored_with_addresses_and_subscriptions() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(proxy.url, ALICE) as alice,
        connect(hub.url, BOB) as bob,
    ):
        await alice.register(SECOND)
        await alice.subscribe("news/#")
        session = alice.session_id

        proxy.cut()
        await alice.ask(BOB, "note", "after the cut")

        assert alice.session_id != session
        assert (await bob.ask(SECOND, "note", 1)).is_delivered
        assert (await bob.publish("news/x", "item", 2)).subscribers == 1
        assert await payloads(alice, 2) == [1, 2]


async def test_tells_made_while_the_hub_is_away_arrive_when_it_is_back() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await hub.stop()
        telling = asyncio.gather(*(alice.tell(ALICE, "note", n) for n in range(100)))
        await asyncio.sleep(0)
        assert not telling.done()

        await hub.start()
        await telling

        assert await payloads(alice, 100) == list(range(100))


async def test_an_ask_waits_for_a_recipient_that_is_slow_to_return() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(hub.url, ALICE) as alice,
        connect(proxy.url, BOB) as bob,
    ):
        await hub.stop()
        await proxy.refuse()
        await hub.start()

        asking = asyncio.create_task(alice.ask(BOB, "task", 1))
        async with asyncio.timeout(10):
            while not hub.app.hub.tally.errors.get("actor_reconnecting"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await proxy.accept()

        assert (await asking).is_delivered
        assert await payloads(bob, 1) == [1]


async def test_a_link_that_went_silent_is_found_dead_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incoming, "ANSWER_S", 0.2)
    async with (
        run_hub(heartbeat_ms=100) as hub,
        ChaosProxy(hub.port) as proxy,
        connect(proxy.url, ALICE) as alice,
    ):
        session = alice.session_id
        proxy.stall()
        async with asyncio.timeout(10):
            while alice.is_connected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        proxy.cut()
        proxy.resume()

        await alice.ping()

        assert alice.session_id != session


async def test_tells_refused_for_their_rate_are_sent_again_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "HEADROOM", 20.0)
    monkeypatch.setattr(pending, "HUB_LAG_S", -10.0)
    async with (
        run_hub(message_rate=500, message_burst=50) as hub,
        connect(hub.url, ALICE) as alice,
    ):
        await asyncio.gather(*(alice.tell(ALICE, "note", n) for n in range(400)))

        assert sorted(await payloads(alice, 400)) == list(range(400))
        assert hub.app.hub.tally.rate_limited > 0


async def test_a_slow_reader_slows_its_sender_and_loses_nothing() -> None:
    # Several times what the kernel holds between the two ends of a connection.
    count, body = 6_000, "x" * 8_000
    async with (
        run_hub(message_rate=0) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB, inbox_max=100) as bob,
    ):
        first = asyncio.create_task(take(bob, 1))

        async def send() -> None:
            for n in range(count):
                await alice.tell(BOB, "note", [n, body])

        sending = asyncio.create_task(send())
        await first
        async with asyncio.timeout(10):
            while not hub.app.hub.tally.paused:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not sending.done()

        received = [n for n, _ in await payloads(bob, count - 1)]

        await sending
        assert received == list(range(1, count))
        assert hub.app.hub.tally.dropped_tells == 0


async def test_handlers_answer_while_the_client_asks() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:

        @bob.on("question")
        async def reply(message: Message) -> None:
            await bob.ask(message.sender, "answer", message.payload * 2)

        for n in range(10):
            await alice.ask(BOB, "question", n)

        assert await payloads(alice, 10) == [n * 2 for n in range(10)]


async def test_a_hub_with_authentication_wants_a_good_token() -> None:
    everything = {verb: ["*"] for verb in ("send", "broadcast", "publish", "subscribe", "register")}
    good = mint(
        Key(secret=SECRET),
        kid=None,
        subject="tests",
        actor="demo/alice",
        permissions=everything,
        lifetime_s=60.0,
        issuer="signal-hub",
        now_s=time.time(),
    )
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        for token in (None, "nonsense", good[:-4] + "AAAA"):
            with pytest.raises(signalhub.Refused) as caught:
                await connect(hub.url, ALICE, token=token)
            assert caught.value.code == "unauthorized"

        async with connect(hub.url, ALICE, token=lambda: good) as alice:
            assert (await alice.ask(ALICE, "note", 1)).is_delivered
        async with connect(hub.url, ALICE, token=good) as alice:
            assert (await alice.refresh_token()).expires_at is not None


@pytest.mark.parametrize(
    "scenario",
    [
        test_large_payloads_pass_and_too_large_ones_are_refused_before_sending,
        test_a_cut_connection_is_restored_with_addresses_and_subscriptions,
        test_tells_made_while_the_hub_is_away_arrive_when_it_is_back,
        test_a_slow_reader_slows_its_sender_and_loses_nothing,
        test_handlers_answer_while_the_client_asks,
    ],
)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())
