"""Replays of a part of a durable topic, against a hub that follows a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.client.answers import Lost
from signalhub.testing import Peer
from tests.support.memory.client import conversation


def answer_page(
    peer: Peer, request: dict[str, Any], positions: list[int], facts: dict[str, Any]
) -> None:
    """Answer a request for a page of a replay."""
    for seq in positions:
        delivery = {"epoch": "e1", "seq": seq, "publishedAt": 1}
        metadata = {"topic": "orders", "replay": True, "delivery": delivery}
        peer.send("order", seq, sender="@(demo/shop)", metadata=metadata)
    peer.answer(request, "hub:replayed", {"count": len(positions)} | facts)


@pytest.mark.parametrize(
    ("span", "answers", "asked", "end"),
    [
        (
            {"from_seq": 3, "to_seq": 8},
            [([3, 4], {"complete": False, "next": 5}), ([5, 8], {"complete": True, "next": 9})],
            [{"fromSeq": 3, "toSeq": 8, "limit": 500}, {"fromSeq": 5, "toSeq": 8, "limit": 500}],
            (True, 9, None),
        ),
        (
            {"limit": 2},
            [([1, 2], {"complete": False})],
            [{"fromSeq": 1, "limit": 2}],
            (False, 3, None),
        ),
        (
            {"to_seq": 4},
            [([], {"complete": False, "next": 5, "lostFrom": 1, "lostTo": 4}), ([], {"next": 5})],
            [{"fromSeq": 1, "toSeq": 4, "limit": 500}, {"fromSeq": 5, "toSeq": 4, "limit": 500}],
            (False, 5, Lost(1, 4)),
        ),
        (
            {},
            [
                ([3], {"complete": False, "next": 4, "lostFrom": 1, "lostTo": 2}),
                ([7], {"complete": True, "next": 8, "lostFrom": 4, "lostTo": 6}),
            ],
            [{"fromSeq": 1, "limit": 500}, {"fromSeq": 4, "limit": 500}],
            (False, 8, Lost(1, 6)),
        ),
        (
            {"from_seq": 5},
            [([], {"complete": False, "next": 5})],
            [{"fromSeq": 5, "limit": 500}],
            (False, 5, None),
        ),
    ],
    ids=[
        "to its end",
        "to its limit",
        "of what is lost",
        "that retention overtakes",
        "that does not get on",
    ],
)
async def test_a_replay_is_read_page_by_page(
    span: dict[str, int],
    answers: list[tuple[list[int], dict[str, Any]]],
    asked: list[dict[str, int]],
    end: tuple[bool, int, Lost | None],
) -> None:
    async with conversation() as (_, peer, client):
        replay = client.replay("orders", **span)

        async def read() -> list[int]:
            return [message.payload async for message in replay]

        reading = asyncio.ensure_future(read())
        for expected, (positions, facts) in zip(asked, answers, strict=True):
            request = await peer.receive("hub:replay")
            assert request["payload"] == {"topic": "orders"} | expected
            answer_page(peer, request, positions, facts)

        received = await reading
        assert received == [seq for positions, _ in answers for seq in positions]
        assert (replay.complete, replay.next, replay.lost) == end
        assert replay.count == len(received)


async def test_replays_wait_for_each_other_even_for_one_that_was_given_up() -> None:
    async with conversation() as (_, peer, client):
        given_up = asyncio.ensure_future(anext(client.replay("orders", 1, 1)))
        request = await peer.receive("hub:replay")
        given_up.cancel()
        reading = asyncio.gather(*(anext(client.replay("orders", seq, seq)) for seq in (2, 3)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.has_heard_nothing()
        answer_page(peer, request, [1], {"next": 2})
        for seq in (2, 3):
            answer_page(peer, await peer.receive("hub:replay"), [seq], {"next": seq + 1})

        assert [message.payload for message in await reading] == [2, 3]
