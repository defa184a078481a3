"""The Python client against the real hub."""

from __future__ import annotations

import asyncio
import re
import textwrap
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import signalhub
from examples import hello
from signalhub import Message, Reconnect
from signalhub.auth.tokens import mint
from signalhub.client.client import Connecting
from signalhub.client.protocol import incoming, pending
from signalhub.settings.model import Key
from signalhub.testing import ChaosProxy, run_hub, spawn_hub

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
QUICK = Reconnect(first_jitter_s=0.02, base_s=0.02)
SECRET = "a secret of reasonable length"


def connect(url: str, address: str, **options: Any) -> Connecting:
    return signalhub.connect(url, address, **({"reconnect": QUICK} | options))


async def take(client: signalhub.Client, count: int) -> list[Any]:
    """The payloads of the next messages."""
    messages = client.messages()
    async with asyncio.timeout(30):
        return [(await anext(messages)).payload for _ in range(count)]


async def test_the_example_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    async with run_hub() as hub:
        await hello.main(hub.url)

    assert capsys.readouterr().out.splitlines() == [
        "@(demo/worker) can do sums",
        "the task was delivered",
        "@(demo/worker) says 6",
        "1 reader of sums/today got 6",
    ]


async def test_a_tell_arrives_with_everything_its_sender_gave_it() -> None:
    payload: Any = {"text": "hällo", "nested": [None, True, 1.5, {"a": []}]}
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        await alice.tell(BOB, "chat:line", payload, ttl_ms=60_000, metadata={"traceId": "t"})

        message = await anext(bob.messages())

        assert (message.sender, message.to, message.type) == (ALICE, BOB, "chat:line")
        assert message.payload == payload
        assert message.metadata["traceId"] == "t"
        assert message.ttl == 60_000
        assert message.topic is None
        assert abs(message.timestamp - time.time() * 1000) < 60_000


async def test_an_ask_is_receipted_and_one_to_nobody_fails() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        receipt = await alice.ask(BOB, "task", 1)

        assert receipt.is_delivered
        assert (await anext(bob.messages())).original_id == receipt.message_id
        with pytest.raises(signalhub.UnknownActor, match="not registered"):
            await alice.ask("@(demo/nobody)", "task", 1)


async def test_a_thousand_asks_at_once_all_get_their_own_receipt() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB) as bob,
    ):
        receipts = await asyncio.gather(*(alice.ask(BOB, "task", n) for n in range(1500)))

        assert len({receipt.message_id for receipt in receipts}) == 1500
        assert await take(bob, 1500) == list(range(1500))


async def test_large_payloads_pass_and_too_large_ones_are_refused_before_sending() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.tell(ALICE, "blob", "x" * 900_000)
        assert await take(alice, 1) == ["x" * 900_000]

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
        received = [await anext(bob.messages()) for _ in range(2)]
        assert [(m.topic, m.payload) for m in received] == [("prices/oil/eur", 1), ("news/a/b", 3)]

        await prices.cancel()
        await bob.unsubscribe("news/#")
        assert (await alice.publish("prices/oil/eur", "price", 4)).subscribers == 0
        assert (await alice.publish("news/a/b", "item", 5)).subscribers == 0


async def test_broadcasts_reach_everybody_or_those_with_a_capability() -> None:
    async with (
        run_hub() as hub,
        connect(hub.url, ALICE, capabilities=("chat",)) as alice,
        connect(hub.url, BOB) as bob,
    ):
        everybody = await alice.broadcast("hi", 1)
        others = await alice.broadcast("hi", 2, exclude_self=True)
        chatters = await bob.broadcast("hi", 3, capability="chat")

        assert (everybody.delivered, others.delivered, chatters.delivered) == (2, 1, 1)
        assert await take(alice, 2) == [1, 3]
        assert await take(bob, 2) == [1, 2]


async def test_the_registry_can_be_searched_and_paged() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE, capabilities=("chat",)) as alice:
        await alice.register("@(other/second)", capabilities=("x",), metadata={"k": 1}, lease_s=60)

        assert [a.address for a in await alice.discover("demo/*")] == [ALICE]
        assert [a.address for a in await alice.discover(capability="x")] == ["@(other/second)"]
        page = await alice.actors(offset=1, limit=1)
        assert (page.total, page.has_more) == (2, False)
        assert page.actors[0].metadata == {"k": 1}

        await alice.unregister("@(other/second)")
        assert [a.address for a in await alice.discover()] == [ALICE]


async def test_discover_knows_whether_there_are_more() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB):
        part = await alice.discover("demo/*", limit=1)
        whole = await alice.discover("demo/*", limit=2)

        assert (len(part), part[0].address, part.has_more) == (1, ALICE, True)
        assert [actor.address for actor in whole] == [ALICE, BOB]
        assert not whole.has_more
        assert not await alice.discover("nobody/*")


async def test_discover_finds_those_that_are_away_if_that_is_wanted() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        async with connect(hub.url, BOB, durable=True):
            pass
        present = await alice.discover("demo/*")
        everybody = await alice.discover("demo/*", include_away=True)

    assert [(one.address, one.away) for one in present] == [(ALICE, False)]
    assert [(one.address, one.away) for one in everybody] == [(ALICE, False), (BOB, True)]


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
        received = [await anext(alice.messages()) for _ in range(2)]
        assert [(m.sender, m.payload) for m in received] == [(ALICE, 1), (ALICE, 2)]
        assert [actor.version for actor in (await voice.actors()).actors] == [1]
        assert alice.is_connected
        assert (await alice.publish("news", "item", 3)).subscribers == 1
        assert await take(voice, 1) == [3]


async def test_messages_to_a_second_address_come_with_that_address() -> None:
    second = "@(demo/second)"
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        await alice.register(second)

        await bob.ask(second, "note", 1)
        message = await anext(alice.messages())
        assert message.to == second

        await alice.tell(BOB, "note", 2, sender=second)
        assert (await anext(bob.messages())).sender == second


async def test_statistics_ping_and_token_refresh() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        assert (await alice.queue_stats()).pause_threshold == 1000
        assert (await alice.metrics())["messages_received"] > 0
        assert 0 < await alice.ping() < 10
        assert (await alice.refresh_token()).token.startswith("stkn-")


async def test_the_newest_client_of_an_address_keeps_it() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as older, connect(hub.url, ALICE) as newer:
        with pytest.raises(signalhub.GaveUp, match="duplicate_connection"):
            await older.wait_closed()

        assert (await newer.ask(ALICE, "note", 1)).is_delivered


async def test_a_cut_connection_is_restored_with_addresses_and_subscriptions() -> None:
    second = "@(demo/second)"
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(proxy.url, ALICE) as alice,
        connect(hub.url, BOB) as bob,
    ):
        await alice.register(second)
        await alice.subscribe("news/#")
        session = alice.session_id

        proxy.cut()
        await alice.ask(BOB, "note", "after the cut")

        assert alice.session_id != session
        assert (await bob.ask(second, "note", 1)).is_delivered
        assert (await bob.publish("news/x", "item", 2)).subscribers == 1
        assert await take(alice, 2) == [1, 2]


async def test_a_frame_in_a_thousand_pieces_is_a_frame() -> None:
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(proxy.url, ALICE) as alice,
    ):
        proxy.dribble(1)

        await alice.ask(ALICE, "note", "é" * 300)

        assert await take(alice, 1) == ["é" * 300]


async def test_tells_made_while_the_hub_is_away_arrive_when_it_is_back() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await hub.stop()
        telling = asyncio.gather(*(alice.tell(ALICE, "note", n) for n in range(100)))
        await asyncio.sleep(0)
        assert not telling.done()

        await hub.start()
        await telling

        assert await take(alice, 100) == list(range(100))


async def test_an_ask_survives_a_hub_that_is_killed() -> None:
    async with spawn_hub() as hub, connect(hub.url, ALICE) as alice:
        for n in range(2):
            asking = asyncio.create_task(alice.ask(ALICE, "task", n))
            await asyncio.sleep(0)
            await hub.restart()

            assert (await asking).is_delivered

        # A message may come twice: once from each life of the hub.
        messages = alice.messages()
        while (await anext(messages)).payload != 1:
            pass


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
        assert await take(bob, 1) == [1]


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


async def test_heartbeats_keep_a_short_lease() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE, lease_s=1.0) as alice:
        await asyncio.sleep(1.5)

        async with connect(hub.url, BOB) as bob:
            assert [actor.address for actor in await bob.discover("demo/alice")] == [ALICE]
        assert alice.is_connected


async def test_the_client_keeps_to_the_rate_the_hub_advertises() -> None:
    async with (
        spawn_hub(message_rate=200, message_burst=50) as hub,
        connect(hub.url, ALICE) as alice,
    ):
        await asyncio.gather(*(alice.tell(ALICE, "note", n) for n in range(200)))

        assert await take(alice, 200) == list(range(200))
        assert (await alice.metrics())["errors"] == 0


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

        assert sorted(await take(alice, 400)) == list(range(400))
        assert hub.app.hub.tally.rate_limited > 0


async def test_a_slow_reader_slows_its_sender_and_loses_nothing() -> None:
    count, body = 6_000, "x" * 2_000
    async with (
        run_hub(message_rate=0) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB, inbox_max=100) as bob,
    ):
        messages = bob.messages()
        first = asyncio.create_task(anext(messages, None))

        async def send() -> None:
            for n in range(count):
                await alice.tell(BOB, "note", [n, body])

        sending = asyncio.create_task(send())
        assert (await first) is not None
        async with asyncio.timeout(10):
            while not hub.app.hub.tally.paused:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not sending.done()

        received = [payload[0] for payload in await take(bob, count - 1)]

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

        assert await take(alice, 10) == [n * 2 for n in range(10)]


async def test_a_hub_with_authentication_wants_a_good_token() -> None:
    auth = {"enabled": True, "secret": SECRET}
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
    async with run_hub(auth=auth) as hub:
        for token in (None, "nonsense", good[:-4] + "AAAA"):
            with pytest.raises(signalhub.Refused) as caught:
                await connect(hub.url, ALICE, token=token)
            assert caught.value.code == "unauthorized"

        async with connect(hub.url, ALICE, token=lambda: good) as alice:
            assert (await alice.ask(ALICE, "note", 1)).is_delivered
        async with connect(hub.url, ALICE, token=good) as alice:
            assert (await alice.refresh_token()).expires_at is not None


@pytest.mark.parametrize(("name", "count_min"), [("python.md", 6), ("durable.md", 1)])
async def test_every_block_of_the_guide_runs(name: str, count_min: int) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / name
    blocks = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= count_min
    body = textwrap.indent("\n".join(blocks), "    ")
    names: dict[str, Any] = {}
    exec(f"async def run(me, url, signalhub):\n{body}", names)

    async with run_hub() as hub, connect(hub.url, "@(demo/me)") as me, connect(hub.url, BOB):
        await names["run"](me, hub.url, signalhub)


@pytest.mark.parametrize(
    "scenario",
    [
        test_a_thousand_asks_at_once_all_get_their_own_receipt,
        test_large_payloads_pass_and_too_large_ones_are_refused_before_sending,
        test_a_cut_connection_is_restored_with_addresses_and_subscriptions,
        test_tells_made_while_the_hub_is_away_arrive_when_it_is_back,
        test_a_slow_reader_slows_its_sender_and_loses_nothing,
        test_handlers_answer_while_the_client_asks,
    ],
)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())
