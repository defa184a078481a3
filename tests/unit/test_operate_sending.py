"""How a replay reaches a hub: in batches, with a report of each step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.client import Original, OriginalPosition
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.replay import Behind, HubBusy, Sender, Sending
from signalhub.operate.session import HubAccess
from signalhub.operate.target import ReplayTarget, UnknownTarget, find
from signalhub.pipeline.replay.job import Bound
from signalhub.testing import Peer, ScriptedHub
from signalhub.wire.errors import OutcomeUnknown, Refused, Unavailable
from tests.support.memory.client import conversation

TARGET = ReplayTarget(topic="again")
UNTIL = Bound(7, 900)


def originals(count: int) -> list[Original]:
    return [Original(epoch=7, offset=n, id="m", type="n", data=n) for n in range(count)]


def sender(events: list[Behind | Sending | HubBusy]) -> Sender:
    return Sender("job", UNTIL, TARGET, 0, HubAccess(timeout_s=5.0), events.append)


async def answer(peer: Peer, **facts: Any) -> dict[str, Any]:
    request = await peer.receive("hub:republish")
    peer.answer(request, "hub:republished", {"job": "job", **facts})
    return request


async def test_messages_are_sent_in_batches_and_each_is_reported() -> None:
    events: list[Behind | Sending | HubBusy] = []
    async with conversation() as (_, peer, me):
        sending = asyncio.create_task(sender(events).send(me, iter(originals(150)), 150))
        first = await answer(peer, appended=60, skipped=40)
        second = await answer(peer, appended=50)
        done = await sending

    assert [len(one["payload"]["messages"]) for one in (first, second)] == [100, 50]
    assert events == [
        Sending("job", 150),
        Sending("job", 150, 100, 60, 40),
        Sending("job", 150, 150, 110, 40),
    ]
    assert done == events[-1]


async def test_the_hub_says_where_a_job_stands() -> None:
    async with conversation() as (_, peer, me):
        asking = asyncio.create_task(sender([]).ask(me))
        request = await answer(peer, position={"shard": 0, "epoch": 7, "offset": 41})

        assert await asking == OriginalPosition(0, 7, 41)
    assert request["payload"]["until"] == {"epoch": 7, "offset": 900}


async def test_what_the_hub_refuses_for_good_is_raised() -> None:
    async with conversation() as (_, peer, me):
        sending = asyncio.create_task(sender([]).send(me, iter(originals(1)), 1))
        peer.refuse(await peer.receive("hub:republish"), "replay_conflict")

        with pytest.raises(Refused, match="replay_conflict"):
            await sending


async def test_a_plain_name_is_the_one_thing_the_hub_has_under_it() -> None:
    async with conversation() as (_, peer, me):
        finding = asyncio.create_task(find(me, "orders", HubAccess(timeout_s=5.0)))
        listing = await peer.receive("hub:list_subs")
        peer.answer(listing, "hub:sub_list", {"subscriptions": [], "hasMore": False})
        await answer(peer)
        peer.refuse(await peer.receive("hub:republish"), "no_mailbox")

        assert await finding == ReplayTarget(topic="orders")


@pytest.mark.parametrize(
    ("exist", "error"), [((True, True), InvalidArgument), ((False, False), UnknownTarget)]
)
async def test_a_name_that_means_several_things_or_nothing_is_an_error(
    exist: tuple[bool, bool], error: type[Exception]
) -> None:
    async with conversation() as (_, peer, me):
        finding = asyncio.create_task(find(me, "subscription:a:b:c", HubAccess(timeout_s=5.0)))
        for is_there in exist:
            if is_there:
                await answer(peer)
            else:
                peer.refuse(await peer.receive("hub:republish"), "unknown_subscription")

        with pytest.raises(error):
            await finding


async def test_no_answer_in_time_is_told_from_no_connection() -> None:
    async with ScriptedHub() as hub:
        access = HubAccess(url=hub.url, timeout_s=0.05)

        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
            async with access.session():
                pass
        with pytest.raises(OutcomeUnknown):
            await access.in_time(asyncio.Event().wait())
