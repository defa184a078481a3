"""Section 17: what the ecosystem's integration suite asks of a hub, item by item."""

from __future__ import annotations

import asyncio
import json

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer, dial
from tests.support.socket.stage import InProcess, addresses, run_stage, until_gone
from tests.support.socket.tokens import odd_token


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


async def test_17_1_health_answers_before_the_first_socket(stage: InProcess) -> None:
    answer = await stage.get("/health")

    assert answer.status == 200
    assert json.loads(answer.body)["status"] == "ok"
    assert (await (await stage.dial("/ws")).connect())["type"] == "hub:connected"


async def test_17_2_ten_connect_at_once_as_independent_sessions(stage: InProcess) -> None:
    peers = await asyncio.gather(*(stage.dial() for _ in range(10)))
    replies = await asyncio.gather(*(peer.connect() for peer in peers))

    assert len({reply["payload"]["sessionId"] for reply in replies}) == 10
    await peers[0].ask("hub:disconnect")
    for peer in peers[1:]:
        await peer.nothing_more()


async def test_17_3_goodbye_is_acknowledged_before_the_close(stage: InProcess) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:disconnect", ttl=500)

    assert reply["type"] == "hub:disconnect"
    assert reply["payload"]["acknowledged"] is True
    assert await peer.until_closed() == 1000


async def test_17_4_idle_for_26_seconds_is_not_dropped() -> None:
    clock = FakeClock()
    async with run_stage(clock, hello_s=0.3) as stage:
        idle = await stage.join("@(local/a)")
        clock.advance(26)
        await (await stage.dial()).until_closed()

        assert (await idle.ask_actor("@(local/a)", "x"))["type"] == "hub:delivery_ack"


async def test_17_5_duplicate_is_evicted_while_messages_are_in_flight(stage: InProcess) -> None:
    third, old = await stage.join("@(local/third)"), await stage.join("@(local/a)")
    for number in range(20):
        third.tell("@(local/a)", "x", number)

    new = await stage.join("@(local/a)")
    for number in range(20):
        third.tell("@(local/a)", "x", number)

    assert await old.until_closed() == 1000
    for number in range(20):
        assert (await new.receive("x"))["payload"] == number
    await third.nothing_more()


async def test_17_6_registering_again_keeps_subscriptions(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "my-topic"})
    await peer.register("@(local/a)", "more")

    peer.send("hub:publish", {"topic": "my-topic", "type": "x", "data": 1})

    assert (await peer.receive("x"))["payload"] == 1


@pytest.mark.parametrize(
    "data",
    [
        {"a": {"b": {"c": [1, 2, {"d": None}]}}, "text": "ü"},
        None,
        {"blob": "x" * 10_240},
        {"blob": "x" * 900 * 1024},
    ],
    ids=["nested", "null", "10 KB", "900 KiB"],
)
async def test_17_7_payloads_arrive_exactly(stage: InProcess, data: object) -> None:
    sender, target = await stage.join("@(local/a)"), await stage.join("@(browser/b)")

    sender.tell("@(browser/b)", "x", data, metadata={"custom": {"kept": True}})

    heard = await target.receive("x")
    assert heard["payload"] == data
    assert (heard["from"], heard["to"]) == ("@(local/a)", "@(browser/b)")
    assert heard["metadata"]["custom"] == {"kept": True}


async def test_17_8_burst_of_ten_after_register_is_complete_and_in_order(
    stage: InProcess,
) -> None:
    target, sender = await stage.join("@(local/b)"), await stage.join("@(local/a)")

    for number in range(10):
        sender.tell("@(local/b)", "x", number)

    assert [(await target.receive("x"))["payload"] for _ in range(10)] == list(range(10))


async def test_17_9_ask_and_tell_to_known_and_unknown(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")

    known = await sender.ask_actor("@(local/a)", "x")
    unknown = await sender.ask_actor("@(no/body)", "x")
    sender.tell("@(no/body)", "x")

    assert known["type"] == "hub:delivery_ack"
    assert "not registered" in unknown["payload"]["message"]
    await sender.receive("x")
    await sender.nothing_more()


async def test_17_10_odd_targets_and_a_frame_of_2_mib_do_not_wedge_the_connection(
    stage: InProcess,
) -> None:
    peer = await stage.join("@(local/a)")

    for target in ("not-a-valid-address", "runtime:fake/actor-999"):
        peer.tell(target, "x")
    peer.tell("@(local/a)", "x", "x" * 2 * 1024 * 1024)
    await peer.receive("hub:error")

    assert (await peer.ask("hub:disconnect"))["payload"]["acknowledged"] is True


async def test_17_11_discovery_with_and_without_a_capability(stage: InProcess) -> None:
    peer, leaves = await stage.join("@(local/a)", "x"), await stage.join("@(local/b)", "y")

    everybody = await peer.ask("hub:discover", {"pattern": "*"})
    only_y = await peer.ask("hub:discover", {"pattern": "*", "capability": "y"})
    leaves.hang_up()

    assert everybody["payload"]["actors"] == [
        {"address": "@(local/a)", "capabilities": ["x"]},
        {"address": "@(local/b)", "capabilities": ["y"]},
    ]
    assert [actor["address"] for actor in only_y["payload"]["actors"]] == ["@(local/b)"]
    await until_gone(peer, "@(local/b)")


async def test_17_12_broadcast_reaches_both_kinds_and_does_not_fail_alone(
    stage: InProcess,
) -> None:
    alone = await stage.connect()
    assert (await alone.ask("hub:broadcast", {"type": "x"}))["type"] == "hub:broadcast_ack"
    peers = [await stage.join("@(local/a)"), await stage.join("@(browser/b)")]

    await alone.ask("hub:broadcast", {"type": "x", "data": 1})

    for peer in peers:
        assert (await peer.receive("x"))["payload"] == 1


async def test_17_13_publish_reaches_the_current_subscribers(stage: InProcess) -> None:
    publisher, other = await stage.join("@(local/a)"), await stage.join("@(browser/b)")
    for peer in (publisher, other):
        await peer.ask("hub:subscribe", {"topic": "my-topic"})

    publisher.send("hub:publish", {"topic": "my-topic", "type": "x", "data": 1})

    for peer in (publisher, other):
        heard = await peer.receive("x")
        assert heard["metadata"]["topic"] == "my-topic"
        assert heard["to"] == peer.sender


async def test_17_14_unsubscribe_with_the_topic_name_in_the_id(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "my-topic"})

    peer.send("hub:unsubscribe", {"subscriptionId": "my-topic"})
    peer.send("hub:publish", {"topic": "my-topic", "type": "x", "data": 1})

    reply = await peer.receive("hub:published")
    assert reply["payload"]["subscriberCount"] == 0


@pytest.mark.parametrize("kind", ["expired", "malformed"])
async def test_17_15_bad_tokens_connect_without_authentication(stage: InProcess, kind: str) -> None:
    peer = await stage.dial()
    token = odd_token(stage.clock, exp=1) if kind == "expired" else "malformed"

    assert (await peer.connect(authToken=token))["type"] == "hub:connected"


async def test_17_15_stopped_hub_is_unreachable() -> None:
    async with run_stage() as stage:
        port = stage.port
        await stage.hub.stop()

        with pytest.raises(ConnectionRefusedError):
            await dial(port, stage.clock.now_ms)


async def test_appendix_a_runs_as_written() -> None:
    """One complete exchange, frame by frame."""
    clock = FakeClock()
    async with run_stage(clock) as stage:
        a, b = await stage.connect("@(local/client-77)"), await stage.join("@(browser/chart)")
        await a.register("@(local/planner)", "plan", metadata={}, ttlSeconds=300)

        ack = await a.ask_actor(
            "@(browser/chart)",
            "chart:draw",
            {"points": [3, 5]},
            id="a3",
            metadata={"traceId": "t-9"},
            ttl=10_000,
        )
        drawn = await b.receive("chart:draw")
        assert drawn["metadata"]["originalMessageId"] == ack["payload"]["messageId"] == "a3"

        await b.ask("hub:subscribe", {"topic": "prices", "durable": False})
        a.send("hub:publish", {"topic": "prices", "type": "price:new", "data": {"v": 12}}, id="a6")
        price = await b.receive("price:new")
        assert price["correlationId"] == "a6"
        published = await a.receive("hub:published")
        assert published["payload"] == {"topic": "prices", "subscriberCount": 1}

        gone = await a.ask_actor("@(browser/gone)", "x", 1, id="a9")
        assert gone["type"] == "hub:unknown_actor"
        assert await leave(a) == 1000
        assert await addresses(b) == ["@(browser/chart)"]


async def leave(peer: Peer) -> int | None:
    await peer.ask("hub:disconnect", None, ttl=500)
    return await peer.until_closed()
