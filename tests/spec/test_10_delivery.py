"""Section 10 and rulings 2, 3 and 6: order, lifetimes and repeats."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.socket.stage import run_stage as run_socket_stage
from tests.support.stage import Stage

B = "@(local/b)"


@pytest.mark.also_over_sockets
async def test_10_messages_of_one_socket_arrive_in_the_order_sent(timed: Stage) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join(B)
    await target.ask("hub:subscribe", {"topic": "news"})

    for number in range(200):
        match number % 4:
            case 0:
                sender.tell(B, "note", number)
            case 1:
                sender.tell(B, "note", number, pattern="ask")
            case 2:
                sender.send("hub:publish", {"topic": "news", "type": "note", "data": number})
            case _:
                sender.send("hub:broadcast", {"type": "note", "data": number, "excludeSelf": True})

    assert [(await target.receive("note"))["payload"] for _ in range(200)] == list(range(200))


@pytest.mark.also_over_sockets
async def test_10_replies_come_in_the_order_of_their_requests(timed: Stage) -> None:
    peer = await timed.join("@(local/a)")
    types = ["hub:queue_stats", "hub:nonsense", "hub:heartbeat", "hub:list_actors", "hub:metrics"]

    ids = [peer.send(type) for type in types * 10]

    assert [(await peer.receive())["correlationId"] for _ in ids] == ids


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("late_ms", [1, 100_000])
@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:send", {"to": B, "type": "note"}),
        ("hub:publish", {"topic": "news", "type": "note"}),
        ("hub:broadcast", {"type": "note", "excludeSelf": True}),
    ],
)
async def test_10_expired_tell_vanishes_and_an_expired_ask_is_told_so(
    timed: Stage, type: str, payload: dict[str, Any], late_ms: int
) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join(B)
    await target.ask("hub:subscribe", {"topic": "news"})
    sent_at = timed.clock.now_ms() - 5000 - late_ms

    sender.send(type, payload, ttl=5000, timestamp=sent_at)
    reply = await sender.ask(type, payload, ttl=5000, timestamp=sent_at)

    assert code_of(reply) == "message_expired"
    assert reply["payload"]["retryable"] is False
    await sender.nothing_more()
    await target.nothing_more()


async def test_10_lifetimes_of_requests_to_the_hub_are_not_enforced(timed: Stage) -> None:
    peer = await timed.connect()
    payload = {"actorAddress": "@(local/a)", "capabilities": []}

    reply = await peer.ask("hub:register", payload, ttl=5000, timestamp=1)

    assert reply["type"] == "hub:registered"


async def ask_again(peer: Peer, **members: Any) -> Any:
    """An ask with the id `m-1`; the payload of its ack."""
    reply = await peer.ask_actor(B, "note", "m-1", id="m-1", **members)
    assert reply["type"] == "hub:delivery_ack", reply
    return reply["payload"]


@pytest.mark.also_over_sockets
async def test_10_repeated_ask_gets_the_same_ack_and_is_delivered_once(
    timed: Stage, clock: FakeClock
) -> None:
    sender, target = await timed.connect("@(local/a)"), await timed.join(B)
    sent_at = clock.now_ms()
    first = await ask_again(sender, ttl=1000, timestamp=sent_at)
    repeated = first | {"duplicate": True}
    await target.receive("note")

    # It is looked up before its lifetime.
    clock.advance(30)
    assert await ask_again(sender, ttl=1000, timestamp=sent_at) == repeated
    sender.abort()
    again = await timed.connect("@(local/a)")
    assert await ask_again(again) == repeated
    await target.nothing_more()
    # It is answered though the target has gone.
    await target.ask("hub:disconnect")
    assert await ask_again(again) == repeated


async def test_10_refused_ask_may_be_tried_again_with_the_same_id(timed: Stage) -> None:
    sender = await timed.connect()
    refused = await sender.ask_actor(B, "note", id="m-1")
    target = await timed.join(B)

    served = await sender.ask_actor(B, "note", id="m-1")

    assert refused["type"] == "hub:unknown_actor"
    assert served["type"] == "hub:delivery_ack"
    await target.receive("note")


@pytest.mark.also_over_sockets
async def test_10_broadcast_as_ask_is_repeated_with_the_same_ack_and_no_copies(
    timed: Stage,
) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join(B)
    payload = {"type": "news", "excludeSelf": True}

    first = await sender.ask("hub:broadcast", payload, id="b-1")
    await timed.join("@(local/c)")
    second = await sender.ask("hub:broadcast", payload, id="b-1")

    assert first["payload"] == second["payload"]
    await target.receive("news")
    await target.nothing_more()


async def test_10_window_that_runs_out_of_memory_says_so(clock: FakeClock) -> None:
    async with run_socket_stage(clock, message_rate=0, dedup={"memory_bytes_max": 4096}) as stage:
        sender = await stage.join("@(local/a)")
        assert (await stage.health())["status"] == "ok"

        for _ in range(300):
            sender.tell("@(local/a)", "note", pattern="ask")
            clock.advance(0.01)
        for _ in range(600):
            await sender.receive()

        health = await stage.health()
        assert health["status"] == "degraded"
        assert "dedup_window_shortened" in health["degradations"]
