"""Requests and replies between real clients through the real hub."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import signalhub
from signalhub import Message, Reconnect
from signalhub.client import Failure
from signalhub.testing import run_hub, spawn_hub
from tests.support.socket.clients import ALICE, BOB, connect, take
from tests.support.socket.stage import eventually
from tests.support.volume import volume

SECOND = "@(demo/second)"
SOON = Reconnect(first_jitter_s=0.02, base_s=0.02, cap_s=0.1)
PRICES = {7: 12.5}


async def test_a_handler_answers_with_its_result_or_its_error() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:

        @bob.answers("price:get")
        async def price(message: Message) -> dict[str, float]:
            sku = message.payload["sku"]
            if sku not in PRICES:
                raise signalhub.RequestFailed("no such sku", code="not_found")
            return {"eur": PRICES[sku]}

        @bob.answers("divide")
        def divide(message: Message) -> float:
            return float(1 / message.payload)

        @bob.answers("odd")
        def odd(_message: Message) -> object:
            return object()

        reply = await alice.request(BOB, "price:get", {"sku": 7}, timeout_s=30)
        assert (reply.payload, reply.sender, reply.type) == ({"eur": 12.5}, BOB, "price:get.reply")
        with pytest.raises(signalhub.RequestFailed, match="no such sku") as caught:
            await alice.request(BOB, "price:get", {"sku": 8}, timeout_s=30)
        assert (caught.value.code, caught.value.text) == ("not_found", "no such sku")
        assert (await alice.request(BOB, "divide", 4, timeout_s=30)).payload == 0.25
        with pytest.raises(signalhub.RequestFailed, match="ZeroDivisionError"):
            await alice.request(BOB, "divide", 0, timeout_s=30)
        with pytest.raises(signalhub.RequestFailed) as caught:
            await alice.request(BOB, "odd", timeout_s=30)
        assert caught.value.code == "invalid_reply"


async def test_a_program_answers_what_it_reads() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        asking = asyncio.gather(
            *(alice.request(BOB, "add", n, timeout_s=30) for n in range(3)), return_exceptions=True
        )
        first, second, third = await take(bob, 3)
        await third.reply(third.payload + 1)
        await first.reply()
        await second.fail("no ones", code="odd")
        with pytest.raises(RuntimeError, match="answered before"):
            await first.fail("changed my mind")

        replies: list[Any] = await asking
        assert [replies[0].payload, replies[2].payload] == [None, 3]
        assert replies[1].code == "odd"
        await alice.tell(BOB, "add", 1)
        (told,) = await take(bob, 1)
        assert not told.expects_reply
        with pytest.raises(RuntimeError, match="expects no reply"):
            await told.reply(1)


async def test_requests_are_answered_side_by_side_or_in_order() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        busy: Counter[str] = Counter()
        most: Counter[str] = Counter()
        may_end = asyncio.Event()

        async def work(message: Message) -> int:
            busy[message.type] += 1
            most[message.type] = max(most[message.type], busy[message.type])
            if message.type == "beside":
                if busy["beside"] == 4:
                    may_end.set()
                await may_end.wait()
            else:
                await asyncio.sleep(0)
            busy[message.type] -= 1
            return int(message.payload)

        bob.answers("beside", work, at_once=4)
        bob.answers("in:order", work, at_once=1)
        for type in ("beside", "in:order"):
            asked = (alice.request(BOB, type, n, timeout_s=30) for n in range(8))
            assert [reply.payload for reply in await asyncio.gather(*asked)] == [*range(8)]

        assert most == {"beside": 4, "in:order": 1}


async def test_nobody_waits_for_those_who_cannot_answer() -> None:
    async with run_hub(mailbox={"limit": 3}) as hub, connect(hub.url, ALICE) as alice:
        with pytest.raises(signalhub.UnknownActor):
            await alice.request(BOB, "price:get", timeout_s=60)

        async with connect(hub.url, BOB) as bob:
            asking = asyncio.create_task(alice.request(BOB, "price:get", timeout_s=60))
            await take(bob, 1)
        with pytest.raises(signalhub.NoReply, match="has left") as caught:
            await asyncio.wait_for(asking, 10)
        assert caught.value.code == "recipient_left"

        async with connect(hub.url, BOB, durable=True):
            pass
        for _ in range(hub.settings.mailbox.limit):
            await alice.ask(BOB, "task")
        with pytest.raises(signalhub.Refused) as refused:
            await alice.request(BOB, "price:get", timeout_s=60)
        assert refused.value.code == "queue_full"


async def test_a_reply_that_is_late_is_counted_and_dropped() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        with pytest.raises(signalhub.NoReply, match=r"no reply within 0\.05 s"):
            await alice.request(BOB, "price:get", timeout_s=0.05)

        (message,) = await take(bob, 1)
        await message.reply(1)

        await eventually(lambda: alice.late_replies == 1)
        await alice.tell(ALICE, "note", "the next")
        assert [one.payload for one in await take(alice, 1)] == ["the next"]


async def test_a_request_that_has_expired_is_not_executed() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        started, may_end, seen = asyncio.Event(), asyncio.Event(), list[int]()

        @bob.answers("work", at_once=1)
        async def work(message: Message) -> None:
            seen.append(message.payload)
            started.set()
            await may_end.wait()

        first = asyncio.create_task(alice.request(BOB, "work", 0, timeout_s=30))
        await started.wait()
        for number in (1, 2):
            with pytest.raises((signalhub.NoReply, signalhub.Refused)):
                await alice.request(BOB, "work", number, timeout_s=0.1)
        # For whoever was asked, time began a little later.
        await asyncio.sleep(0.15)
        may_end.set()
        await first
        await alice.request(BOB, "work", 3, timeout_s=30)

        assert seen == [0, 3]


async def test_a_request_sent_twice_with_one_id_is_executed_once() -> None:
    async with run_hub() as hub, connect(hub.url, BOB) as bob:
        count = 0

        @bob.answers("work")
        def work(_message: Message) -> int:
            nonlocal count
            count += 1
            return count

        async with connect(hub.url, ALICE) as alice:
            await alice.request(BOB, "work", message_id="w-1", timeout_s=30)
            with pytest.raises(signalhub.NoReply):
                await alice.request(BOB, "work", message_id="w-1", timeout_s=0.1)

        assert count == 1


async def test_many_are_asked_through_a_topic_or_by_what_they_can() -> None:
    async with (
        run_hub() as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB, capabilities=("prices",)) as bob,
        connect(hub.url, SECOND, capabilities=("prices",)) as second,
    ):
        bob.answers("price:get", lambda message: 1)

        @second.answers("price:get")
        def refuse(_message: Message) -> None:
            raise signalhub.RequestFailed("closed", code="closed")

        await bob.subscribe("prices")
        await second.subscribe("prices")
        places: list[dict[str, Any]] = [{"capability": "prices"}, {"topic": "prices"}, {}]
        for where in places:
            replies = {
                reply.sender: reply.failure or reply.payload
                async for reply in alice.request_many("price:get", timeout_s=30, **where)
            }
            assert replies == {BOB: 1, SECOND: Failure("closed", "closed")}
        first = [one async for one in alice.request_many("price:get", max=1, timeout_s=30)]
        assert len(first) == 1
        nobody = [one async for one in alice.request_many("price:get", topic="x", timeout_s=60)]
        assert nobody == []


async def test_the_reader_of_a_durable_topic_answers_as_well() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        await alice.create_topic("jobs")

        async def work(message: Message) -> None:
            await message.reply(message.payload * 2)

        async with bob.consume("jobs", "workers", handler=work):
            replies = [
                reply.payload
                async for reply in alice.request_many("job", 21, topic="jobs", max=1, timeout_s=30)
            ]

        assert replies == [42]


async def test_a_mailbox_keeps_requests_and_replies_of_those_that_are_away() -> None:
    async with run_hub() as hub:
        async with connect(hub.url, BOB, durable=True):
            pass
        async with connect(hub.url, ALICE, durable=True) as alice:
            asking = asyncio.create_task(alice.request(BOB, "work", 1, timeout_s=60))
            await eventually(lambda: bool(hub.app.hub.streams.mailboxes[BOB].head))
            asking.cancel()
        async with connect(hub.url, BOB, acknowledge=True) as bob:
            done = asyncio.Event()

            @bob.answers("work")
            def work(message: Message) -> int:
                done.set()
                return int(message.payload) + 1

            await done.wait()
            await eventually(lambda: bool(hub.app.hub.streams.mailboxes[ALICE].head))
        async with connect(hub.url, ALICE) as alice:
            (reply,) = await take(alice, 1)

        assert (reply.payload, reply.type) == (2, "work.reply")
        assert reply.in_reply_to is not None


async def test_replies_from_a_mailbox_are_settled_by_the_client() -> None:
    async with (
        run_hub() as hub,
        connect(hub.url, ALICE, durable=True, acknowledge=True) as alice,
        connect(hub.url, BOB, durable=True, acknowledge=True) as bob,
    ):
        bob.answers("work", lambda message: message.payload)

        for number in range(3):
            assert (await alice.request(BOB, "work", number, timeout_s=30)).payload == number

        boxes = hub.app.hub.streams.mailboxes
        for address in (ALICE, BOB):
            await eventually(
                lambda box=boxes[address]: (  # type: ignore[misc]
                    box.head == 3 and box.subscription.position.floor == 3
                )
            )


async def test_a_client_without_an_address_cannot_ask() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE, register=False) as script:
        with pytest.raises(ValueError, match="not registered by this client"):
            await script.request(BOB, "work")
        with pytest.raises(ValueError, match="not to both"):
            await anext(script.request_many("work", topic="t", capability="c"))


@pytest.mark.timeout(volume(60, 1_800))
async def test_requests_end_once_while_the_hub_is_killed() -> None:
    executed: Counter[int] = Counter()
    ends: Counter[str] = Counter()
    async with (
        spawn_hub(message_rate=0) as hub,
        connect(hub.url, ALICE, reconnect=SOON) as alice,
        connect(hub.url, BOB, reconnect=SOON) as bob,
    ):

        @bob.answers("work")
        async def work(message: Message) -> int:
            executed[message.payload] += 1
            await asyncio.sleep(0.001)
            return -int(message.payload)

        async def ask(number: int) -> None:
            try:
                reply = await alice.request(BOB, "work", number, timeout_s=1)
            except signalhub.ClientError as error:
                ends[error.code] += 1
            else:
                assert reply.payload == -number
                ends["value"] += 1

        numbers = iter(range(1, 1_000_000))
        for _ in range(volume(1, 100)):
            asking = [asyncio.create_task(ask(next(numbers))) for _ in range(20)]
            await asyncio.sleep(0.005)
            await hub.kill()
            asking += [asyncio.create_task(ask(next(numbers))) for _ in range(20)]
            await hub.start()
            await asyncio.gather(*asking)
            await eventually(lambda: alice.is_connected and bob.is_connected)
        asked = next(numbers) - 1
        assert (await alice.request(BOB, "work", 0, timeout_s=10)).payload == 0

    assert sum(ends.values()) == asked
    assert ends.keys() <= {
        *("value", "no_reply", "unknown_actor", "actor_reconnecting"),
        *("outcome_unknown", "unavailable"),
    }
    assert max(executed.values()) == 1
