"""Section 10: order, lifetimes and repeats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def timed(clock: FakeClock) -> AsyncIterator[InProcess]:
    """A hub whose clock the test turns."""
    async with run_stage(clock, message_rate=0) as stage:
        yield stage


async def test_10_messages_of_one_socket_arrive_in_the_order_sent(timed: InProcess) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join("@(local/b)")
    await target.ask("hub:subscribe", {"topic": "news"})

    for number in range(300):
        match number % 4:
            case 0:
                sender.tell("@(local/b)", "note", number)
            case 1:
                sender.tell("@(local/b)", "note", number, pattern="ask")
            case 2:
                payload = {"topic": "news", "type": "note", "data": number}
                sender.send("hub:publish", payload)
            case _:
                sender.send("hub:broadcast", {"type": "note", "data": number, "excludeSelf": True})

    assert [(await target.receive("note"))["payload"] for _ in range(300)] == list(range(300))


async def test_10_replies_come_in_the_order_of_their_requests(timed: InProcess) -> None:
    peer = await timed.join("@(local/a)")
    types = ["hub:queue_stats", "hub:nonsense", "hub:heartbeat", "hub:list_actors", "hub:metrics"]

    ids = [peer.send(type) for type in types * 10]

    assert [(await peer.receive())["correlationId"] for _ in ids] == ids


async def test_10_several_senders_keep_their_own_order(timed: InProcess) -> None:
    target = await timed.join("@(local/b)")
    senders = [await timed.connect(f"@(local/sender-{index})") for index in range(5)]

    for number in range(50):
        for sender in senders:
            sender.tell("@(local/b)", "note", number)

    heard: dict[str, list[int]] = {sender.sender: [] for sender in senders}
    for _ in range(250):
        message = await target.receive("note")
        heard[message["from"]].append(message["payload"])
    assert all(numbers == list(range(50)) for numbers in heard.values())


@pytest.mark.parametrize("late_ms", [1, 100_000])
async def test_10_expired_tell_vanishes(timed: InProcess, late_ms: int) -> None:
    sender, target = await timed.connect(), await timed.join("@(local/b)")

    sender.tell("@(local/b)", "note", ttl=5000, timestamp=timed.clock.now_ms() - 5000 - late_ms)

    await sender.nothing_more()
    await target.nothing_more()


async def test_10_expired_ask_is_told_so(timed: InProcess) -> None:
    sender, target = await timed.connect(), await timed.join("@(local/b)")

    reply = await sender.ask_actor(
        "@(local/b)", "note", ttl=5000, timestamp=timed.clock.now_ms() - 5001
    )

    assert code_of(reply) == "message_expired"
    assert reply["payload"]["retryable"] is False
    await target.nothing_more()


@pytest.mark.parametrize("age_ms", [0, 4999, 5000, -60_000])
async def test_10_message_within_its_lifetime_is_delivered(timed: InProcess, age_ms: int) -> None:
    sender, target = await timed.connect(), await timed.join("@(local/b)")

    reply = await sender.ask_actor(
        "@(local/b)", "note", ttl=5000, timestamp=timed.clock.now_ms() - age_ms
    )

    assert reply["type"] == "hub:delivery_ack"
    await target.receive("note")


async def test_10_client_whose_clock_is_behind_is_judged_by_its_own_time(timed: InProcess) -> None:
    target, sender = await timed.join("@(local/b)"), await timed.dial()
    behind = timed.clock.now_ms() - 120_000
    metadata = {"protocolVersion": "0.1.0", "capabilities": ["send"]}
    await sender.ask("hub:connect", metadata=metadata, timestamp=behind)

    fresh = await sender.ask_actor("@(local/b)", "note", ttl=5000, timestamp=behind)
    stale = await sender.ask_actor("@(local/b)", "note", ttl=5000, timestamp=behind - 5001)

    assert fresh["type"] == "hub:delivery_ack"
    assert code_of(stale) == "message_expired"
    await target.receive("note")


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:publish", {"topic": "news", "type": "note"}),
        ("hub:broadcast", {"type": "note", "excludeSelf": True}),
    ],
)
async def test_10_expired_fan_out_reaches_nobody(
    timed: InProcess, type: str, payload: dict[str, Any]
) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join("@(local/b)")
    await target.ask("hub:subscribe", {"topic": "news"})
    long_ago = timed.clock.now_ms() - 10_000

    reply = await sender.ask(type, payload, ttl=5000, timestamp=long_ago)
    sender.send(type, payload, ttl=5000, timestamp=long_ago)

    assert code_of(reply) == "message_expired"
    await sender.nothing_more()
    await target.nothing_more()


async def test_10_lifetimes_of_requests_to_the_hub_are_not_enforced(timed: InProcess) -> None:
    peer = await timed.connect()
    payload = {"actorAddress": "@(local/a)", "capabilities": []}

    reply = await peer.ask("hub:register", payload, ttl=5000, timestamp=1)

    assert reply["type"] == "hub:registered"
    assert await addresses(peer) == ["@(local/a)"]


async def ask_again(peer: Peer, message_id: str, **members: Any) -> Any:
    """An ask with a given id; the payload of its ack."""
    reply = await peer.ask_actor("@(local/b)", "note", message_id, id=message_id, **members)
    assert reply["type"] == "hub:delivery_ack", reply
    return reply["payload"]


def repeated(ack: Any) -> Any:
    """The same ack as it is given to a repeat."""
    return ack | {"duplicate": True}


async def test_10_repeated_ask_gets_the_same_ack_and_is_delivered_once(
    timed: InProcess, clock: FakeClock
) -> None:
    sender, target = await timed.connect("@(local/a)"), await timed.join("@(local/b)")

    first = await ask_again(sender, "m-1")
    clock.advance(30)
    second = await ask_again(sender, "m-1")

    assert second == repeated(first)
    await target.receive("note")
    await target.nothing_more()


async def test_10_repeat_from_another_session_is_known_too(timed: InProcess) -> None:
    first, target = await timed.connect("@(local/a)"), await timed.join("@(local/b)")
    ack = await ask_again(first, "m-1")
    first.abort()

    again = await timed.connect("@(local/a)")

    assert await ask_again(again, "m-1") == repeated(ack)
    await target.receive("note")
    await target.nothing_more()


async def test_10_same_id_of_another_sender_is_another_message(timed: InProcess) -> None:
    one, other = await timed.connect("@(local/a)"), await timed.connect("@(local/c)")
    target = await timed.join("@(local/b)")

    await ask_again(one, "m-1")
    await ask_again(other, "m-1")

    assert (await target.receive("note"))["from"] == "@(local/a)"
    assert (await target.receive("note"))["from"] == "@(local/c)"


async def test_10_repeated_tell_is_delivered_again(timed: InProcess) -> None:
    sender, target = await timed.connect(), await timed.join("@(local/b)")

    for _ in range(2):
        sender.tell("@(local/b)", "note", 1, id="m-1")

    await target.receive("note")
    await target.receive("note")


async def test_10_refused_ask_may_be_tried_again_with_the_same_id(timed: InProcess) -> None:
    sender = await timed.connect()
    refused = await sender.ask_actor("@(local/b)", "note", id="m-1")
    target = await timed.join("@(local/b)")

    served = await sender.ask_actor("@(local/b)", "note", id="m-1")

    assert refused["type"] == "hub:unknown_actor"
    assert served["type"] == "hub:delivery_ack"
    await target.receive("note")


async def test_10_repeats_are_looked_up_before_lifetimes(
    timed: InProcess, clock: FakeClock
) -> None:
    sender, target = await timed.connect("@(local/a)"), await timed.join("@(local/b)")
    sent_at = clock.now_ms()
    first = await ask_again(sender, "m-1", ttl=1000, timestamp=sent_at)
    clock.advance(60)

    second = await ask_again(sender, "m-1", ttl=1000, timestamp=sent_at)

    assert second == repeated(first)
    await target.receive("note")
    await target.nothing_more()


async def test_10_repeat_is_answered_though_the_target_has_gone(timed: InProcess) -> None:
    sender, target = await timed.connect("@(local/a)"), await timed.join("@(local/b)")
    first = await ask_again(sender, "m-1")
    await target.ask("hub:disconnect")

    assert await ask_again(sender, "m-1") == repeated(first)


async def test_10_ids_are_forgotten_after_the_window(timed: InProcess, clock: FakeClock) -> None:
    sender, target = await timed.connect("@(local/a)"), await timed.join("@(local/b)")
    await ask_again(sender, "m-1")
    clock.advance(299)
    await ask_again(sender, "m-1")
    await target.ask("hub:heartbeat")
    await target.receive("note")
    await target.nothing_more()

    clock.advance(2)
    await ask_again(sender, "m-1")

    assert (await target.receive("note"))["payload"] == "m-1"


async def test_10_broadcast_as_ask_is_repeated_with_the_same_ack_and_no_copies(
    timed: InProcess,
) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join("@(local/b)")
    payload = {"type": "news", "excludeSelf": True}

    first = await sender.ask("hub:broadcast", payload, id="b-1")
    await timed.join("@(local/c)")
    second = await sender.ask("hub:broadcast", payload, id="b-1")

    assert first["payload"] == second["payload"]
    await target.receive("news")
    await target.nothing_more()


async def test_10_window_that_runs_out_of_memory_says_so(clock: FakeClock) -> None:
    dedup = {"memory_bytes_max": 4096}
    async with run_stage(clock, message_rate=0, dedup=dedup) as stage:
        sender = await stage.join("@(local/a)")
        assert (await stage.health())["status"] == "ok"

        for _ in range(2_000):
            sender.tell("@(local/a)", "note", pattern="ask")
            clock.advance(0.01)
        for _ in range(4_000):
            await sender.receive()

        health = await stage.health()
        assert health["status"] == "degraded"
        assert "dedup_window_shortened" in health["degradations"]
        assert health["service"] == "signal-hub"
