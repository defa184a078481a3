"""Replays, and looking at topics and subscriptions, against a hub that follows a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.client.answers import Lost
from signalhub.testing import Peer
from tests.support.memory.client import conversation

PLACE = {"topic": "orders", "subscription": "billing"}


async def _pages(peer: Peer, *pages: tuple[list[int], bool]) -> list[dict[str, Any]]:
    """Answer requests for a replay; what was asked for."""
    asked = []
    for seqs, is_complete in pages:
        request = await peer.receive("hub:replay")
        asked.append(request["payload"])
        for seq in seqs:
            delivery = {"epoch": "e1", "seq": seq, "publishedAt": 1}
            metadata = {"topic": "orders", "replay": True, "delivery": delivery}
            peer.send("order", seq, sender="@(demo/shop)", metadata=metadata)
        facts = {"count": len(seqs), "complete": is_complete, "next": seqs[-1] + 1 if seqs else 1}
        peer.answer(request, "hub:replayed", facts)
    return asked


async def test_a_replay_is_read_page_by_page_to_its_end() -> None:
    async with conversation() as (_, peer, client):
        replay = client.replay("orders", 3, 8)
        answering = asyncio.ensure_future(_pages(peer, ([3, 4], False), ([5, 8], True)))

        received = [message.payload async for message in replay]

        assert received == [3, 4, 5, 8]
        assert (replay.count, replay.complete, replay.next) == (4, True, 9)
        assert [(one["fromSeq"], one["toSeq"]) for one in await answering] == [(3, 8), (5, 8)]


async def test_a_replay_stops_at_its_limit_and_says_where_it_would_go_on() -> None:
    async with conversation() as (_, peer, client):
        replay = client.replay("orders", limit=2)
        answering = asyncio.ensure_future(_pages(peer, ([1, 2], False)))

        received = [message.payload async for message in replay]

        assert received == [1, 2]
        assert (replay.complete, replay.next) == (False, 3)
        assert [one["limit"] for one in await answering] == [2]


async def test_replays_of_one_topic_wait_for_each_other() -> None:
    async with conversation() as (_, peer, client):
        first, second = client.replay("orders", 1, 1), client.replay("orders", 2, 2)
        reading = asyncio.gather(anext(first), anext(second))

        await _pages(peer, ([1], True))
        await _pages(peer, ([2], True))

        assert [message.payload for message in await reading] == [1, 2]


async def test_a_replay_given_up_does_not_spill_into_the_next() -> None:
    async with conversation() as (_, peer, client):
        given_up = asyncio.ensure_future(anext(client.replay("orders", 1, 1)))
        request = await peer.receive("hub:replay")
        given_up.cancel()
        reading = asyncio.ensure_future(anext(client.replay("orders", 2, 2)))
        for _ in range(10):
            await asyncio.sleep(0)
        metadata = {"topic": "orders", "replay": True, "delivery": {"epoch": "e1", "seq": 1}}
        peer.send("order", 1, sender="@(demo/shop)", metadata=metadata)
        peer.answer(request, "hub:replayed", {"count": 1, "complete": True, "next": 2})

        await _pages(peer, ([2], True))

        assert (await reading).payload == 2


async def test_a_replay_of_what_is_not_kept_any_more_says_what_is_missing() -> None:
    async with conversation() as (_, peer, client):
        replay = client.replay("orders", 1, 4)
        reading = asyncio.ensure_future(anext(replay, None))
        request = await peer.receive("hub:replay")
        facts = {"count": 0, "complete": False, "next": 5, "lostFrom": 1, "lostTo": 4}
        peer.answer(request, "hub:replayed", facts)
        await _pages(peer, ([], True))

        assert await reading is None
        assert not replay.complete
        assert replay.lost == Lost(1, 4)


async def test_a_hub_that_does_not_get_on_is_not_asked_for_ever() -> None:
    async with conversation() as (_, peer, client):
        replay = client.replay("orders", 5)
        reading = asyncio.ensure_future(anext(replay, None))
        request = await peer.receive("hub:replay")
        peer.answer(request, "hub:replayed", {"count": 0, "complete": False, "next": 5})

        assert await reading is None
        assert not replay.complete


@pytest.mark.parametrize("range_", [(0, None, None), (3, 2, None), (1, None, 0)])
async def test_a_replay_of_no_range_is_refused_at_once(
    range_: tuple[int, int | None, int | None],
) -> None:
    from_seq, to_seq, limit = range_
    async with conversation() as (_, peer, client):
        with pytest.raises(ValueError, match="replay"):
            client.replay("orders", from_seq, to_seq, limit=limit)
        assert peer.has_heard_nothing()


async def test_topics_and_subscriptions_are_looked_at_and_steered() -> None:
    info = PLACE | {"mode": "shared", "floor": 3, "lag": 2, "lagSeconds": 1.5, "paused": True}
    script: list[tuple[Any, str, str, dict[str, Any]]] = [
        (lambda me: me.create_topic("orders"), "hub:topic_create", "hub:topic_created", {}),
        (lambda me: me.topic("orders"), "hub:topic_info", "hub:topic_info_response", {}),
        (lambda me: me.topics("o*"), "hub:list_topics", "hub:topic_list", {}),
        (lambda me: me.delete_topic("orders"), "hub:topic_delete", "hub:topic_deleted", {}),
        (lambda me: me.subscription("orders", "billing"), "hub:sub_info", "", info),
        (
            lambda me: me.subscriptions("orders"),
            "hub:list_subs",
            "hub:sub_list",
            {"subscriptions": [info]},
        ),
        (lambda me: me.pause("orders", "billing"), "hub:sub_pause", "", info),
        (lambda me: me.resume("orders", "billing"), "hub:sub_resume", "", info),
        (lambda me: me.delete_subscription("orders", "billing"), "hub:sub_delete", "", info),
        (lambda me: me.seek("orders", "billing", 3, dry_run=True), "hub:seek", "hub:sought", {}),
        (lambda me: me.redrive("orders.dlq"), "hub:redrive", "hub:redriven", {"count": 4}),
        (lambda me: me.purge("orders.dlq", [2]), "hub:purge", "hub:purged", {"count": 1}),
        (
            lambda me: me.update_topic("orders", poison="drop"),
            "hub:topic_update",
            "hub:topic_info_response",
            {},
        ),
        (
            lambda me: me.update_subscription("orders", "billing", window=3),
            "hub:sub_update",
            "hub:sub_info_response",
            info,
        ),
    ]
    results: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    async with conversation() as (_, peer, client):
        for call, type, answer, facts in script:
            calling = asyncio.ensure_future(call(client))
            request = await peer.receive(type)
            asked[type] = request["payload"]
            payload = {"topic": "orders", "head": 7, "willReplay": 5} | facts
            peer.answer(request, answer or "hub:sub_info_response", payload)
            results[type] = await calling

    assert results["hub:topic_create"].name == "orders"
    assert results["hub:topic_info"].head == 7
    assert len(results["hub:list_topics"]) == 0
    assert (results["hub:sub_info"].lag, results["hub:sub_info"].lag_s) == (2, 1.5)
    assert [one.name for one in results["hub:list_subs"]] == ["billing"]
    assert results["hub:sub_pause"].paused
    assert results["hub:seek"].will_replay == 5
    assert (results["hub:redrive"], results["hub:purge"]) == (4, 1)
    assert asked["hub:topic_update"] == {"topic": "orders", "poison": "drop"}
    assert asked["hub:sub_update"] == PLACE | {"window": 3}
    assert asked["hub:seek"] == PLACE | {"to": {"seq": 3}, "dryRun": True}
    assert asked["hub:list_topics"] == {"pattern": "o*", "offset": 0, "limit": 100}
    assert asked["hub:sub_delete"] == PLACE
