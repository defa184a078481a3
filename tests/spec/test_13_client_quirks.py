"""Section 13: what the TypeScript clients send, as they send it, must work."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import HUB, Envelope, Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage, until_gone


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


NODE_CLIENT = "@(local/signal-hub-client)"


async def node(stage: InProcess) -> Peer:
    """A connection as the node-side client opens it."""
    peer = await stage.dial()
    peer.sender = f"@(local/client-{uuid.uuid4()})"
    metadata = {"protocolVersion": "0.1.0", "capabilities": ["send", "broadcast", "register"]}
    reply = await peer.ask("hub:connect", metadata=metadata | {"authToken": "x.y.z"}, ttl=5000)
    assert reply["type"] == "hub:connected"
    return peer


async def browser(stage: InProcess) -> Peer:
    """A connection as the browser client opens it."""
    peer = await stage.dial()
    peer.sender = f"@(browser/actor-{uuid.uuid4()})"
    metadata = {
        "protocolVersion": "0.1.0",
        "authToken": "x.y.z",
        "capabilities": ["send", "receive"],
        "clientMetadata": {"userAgent": "Mozilla/5.0", "platform": "web"},
    }
    reply = await peer.ask("hub:connect", metadata=metadata, ttl=5000)
    assert reply["type"] == "hub:connected"
    return peer


async def node_registers(peer: Peer, address: str) -> Envelope:
    payload = {"actorAddress": address, "capabilities": ["x"], "metadata": {}, "ttlSeconds": 300}
    return await peer.ask("hub:register", payload, sender=address, ttl=5000)


async def browser_registers(peer: Peer, address: str) -> Envelope:
    payload: dict[str, Any] = {"actorAddress": address, "capabilities": []}
    return await peer.ask("hub:register", payload, sender=address, ttl=5000)


async def test_q1_heartbeat_with_a_null_payload_is_answered(stage: InProcess) -> None:
    peer = await node(stage)

    reply = await peer.ask("hub:heartbeat", None, pattern="tell", sender=NODE_CLIENT)

    assert reply["type"] == "hub:heartbeat_ack"
    assert isinstance(reply["payload"]["timestamp"], int)


async def test_q2_registration_data_is_in_the_metadata_too(stage: InProcess) -> None:
    peer = await node(stage)

    reply = await node_registers(peer, "@(local/planner)")

    for name in ("expiresAt", "renewalToken", "version"):
        assert reply["metadata"][name] == reply["payload"][name]


@pytest.mark.parametrize("with_token", [True, False])
async def test_q3_renewal_with_a_null_payload_and_no_memory_works_for_ever(
    with_token: bool,
) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer, other = await node(stage), await stage.connect()
        token = (await node_registers(peer, "@(local/planner)"))["metadata"]["renewalToken"]
        metadata = {"renewalToken": token} if with_token else {}

        for _ in range(10):
            clock.advance(200)
            reply = await peer.ask(
                "hub:renew", None, pattern="tell", metadata=metadata, sender="@(local/planner)"
            )
            assert reply["type"] == "hub:renewed"

        assert await addresses(other) == ["@(local/planner)"]


async def test_q4_unregister_with_a_null_payload_means_the_sender(stage: InProcess) -> None:
    peer, other = await node(stage), await stage.connect()
    await node_registers(peer, "@(local/planner)")

    peer.send("hub:unregister", None, sender="@(local/planner)")

    await peer.nothing_more()
    assert await addresses(other) == []


@pytest.mark.parametrize("by_topic", [True, False])
async def test_q5_unsubscribing_by_subscription_id_or_by_topic_in_its_place(
    stage: InProcess, by_topic: bool
) -> None:
    peer = await browser(stage)
    await browser_registers(peer, "@(browser/chart)")
    sender = "@(browser/chart)"
    payload = {"topic": "prices", "durable": False}
    reply = await peer.ask("hub:subscribe", payload, sender=sender, ttl=5000)
    issued = reply["payload"]["subscriptionId"]

    peer.send(
        "hub:unsubscribe", {"subscriptionId": "prices" if by_topic else issued}, sender=sender
    )

    published = await peer.ask("hub:publish", {"topic": "prices", "type": "x"}, sender=sender)
    assert published["payload"]["subscriberCount"] == 0


async def test_q6_browsers_short_register_causes_no_error(stage: InProcess) -> None:
    peer = await browser(stage)

    assert (await browser_registers(peer, "@(browser/chart)"))["type"] == "hub:registered"


async def test_q7_unknown_actor_names_the_request_it_answers(stage: InProcess) -> None:
    peer = await browser(stage)

    reply = await peer.ask_actor("@(browser/gone)", "x", ttl=30_000, metadata={"priority": 1})

    assert reply["type"] == "hub:unknown_actor"
    assert "not registered" in json.dumps(reply["payload"])


async def test_q8_heartbeat_acks_are_pushed_when_asked_for() -> None:
    async with run_stage(heartbeat_push_s=1) as stage:
        peer = await browser(stage)

        pushed = await peer.receive("hub:heartbeat_ack")

    assert pushed["correlationId"] is None
    assert pushed["to"] == peer.sender
    assert isinstance(pushed["payload"]["serverTime"], int)
    assert pushed["payload"]["timestamp"] == pushed["payload"]["serverTime"]


async def test_q8_heartbeat_acks_are_not_pushed_by_default() -> None:
    clock = FakeClock()
    async with run_stage(clock, hello_s=1.2) as stage:
        peer = await browser(stage)
        clock.advance(60)
        # While this one waits for its deadline, the hub's timer has run at least once.
        await (await stage.dial()).until_closed()

        await peer.nothing_more()


async def test_q10_goodbye_whose_answer_nobody_awaits_is_tolerated(stage: InProcess) -> None:
    peer, other = await browser(stage), await stage.connect()
    await browser_registers(peer, "@(browser/chart)")

    peer.send("hub:disconnect", None)
    peer.abort()

    await until_gone(other, "@(browser/chart)")
    await other.nothing_more()


async def test_q11_id_of_a_pending_request_correlates_its_reply_only(stage: InProcess) -> None:
    peer = await node(stage)
    await node_registers(peer, "@(local/planner)")

    ask_id = peer.tell(
        "@(local/planner)", "to-myself", 1, pattern="ask", sender="@(local/planner)", ttl=10_000
    )

    copy = await peer.receive("to-myself")
    assert copy["correlationId"] is None
    assert (await peer.receive("hub:delivery_ack"))["correlationId"] == ask_id


async def test_q12_queue_flushed_before_registering_again_is_accepted(stage: InProcess) -> None:
    target, peer = await stage.join("@(browser/chart)"), await stage.dial()
    peer.sender = "@(local/client-1)"

    peer.send(
        "hub:connect",
        metadata={"protocolVersion": "0.1.0", "capabilities": ["send"]},
        pattern="ask",
    )
    for number in range(5):
        peer.tell("@(browser/chart)", "flushed", number, sender="@(local/planner)")

    for number in range(5):
        heard = await target.receive("flushed")
        assert (heard["payload"], heard["from"]) == (number, "@(local/planner)")


async def test_q14_hub_sends_nothing_that_was_not_asked_for(stage: InProcess) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")

    other.tell("@(local/a)", "note", 1)
    await other.ask("hub:subscribe", {"topic": "news"})
    await other.ask("hub:disconnect")

    assert (await peer.receive())["type"] == "note"
    await peer.nothing_more()


async def test_q16_via_is_always_set_and_original_from_never(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "news"})

    peer.tell("@(local/a)", "x")
    await peer.ask("hub:broadcast", {"type": "x"})
    await peer.ask("hub:publish", {"topic": "news", "type": "x"})

    for _ in range(3):
        metadata = (await peer.receive("x"))["metadata"]
        assert metadata["via"] == HUB
        assert "originalFrom" not in metadata


async def test_q17_priority_of_browsers_is_passed_on_and_ignored(stage: InProcess) -> None:
    peer = await browser(stage)
    await browser_registers(peer, "@(browser/chart)")

    for priority in (1, 9, 5):
        peer.tell("@(browser/chart)", "x", priority, metadata={"priority": priority}, ttl=30_000)

    heard = [(await peer.receive("x"))["metadata"]["priority"] for _ in range(3)]
    assert heard == [1, 9, 5]


async def test_13_3_members_that_are_undefined_in_javascript_are_missing(
    stage: InProcess,
) -> None:
    peer = await browser(stage)
    await browser_registers(peer, "@(browser/chart)")

    found = await peer.ask("hub:discover", {"pattern": "*", "limit": 50}, ttl=5000)
    broadcast = await peer.ask("hub:broadcast", {"type": "x", "data": None}, pattern="tell")

    assert len(found["payload"]["actors"]) == 1
    assert broadcast["payload"]["deliveredCount"] == 1


async def test_13_3_both_clients_talk_to_each_other(stage: InProcess) -> None:
    left, right = await node(stage), await browser(stage)
    await node_registers(left, "@(local/planner)")
    await browser_registers(right, "@(browser/chart)")

    left.tell(
        "@(browser/chart)", "x", 1, sender="@(local/planner)", metadata={"via": HUB, "mine": 7}
    )
    heard = await right.receive("x")
    reply = await right.ask_actor(heard["from"], "y", 2, sender="@(browser/chart)", ttl=30_000)

    assert heard["metadata"]["mine"] == 7
    assert reply["type"] == "hub:delivery_ack"
    assert (await left.receive("y"))["from"] == "@(browser/chart)"


async def test_13_3_nodes_goodbye_is_answered_and_closed(stage: InProcess) -> None:
    peer = await node(stage)

    reply = await peer.ask("hub:disconnect", None, ttl=500)

    assert reply["type"] == "hub:disconnect"
    assert reply["payload"]["acknowledged"] is True
    assert await peer.until_closed() == 1000


async def test_13_1_reconnected_client_has_a_new_session_and_must_register_again(
    stage: InProcess,
) -> None:
    first = await stage.dial()
    old_id = (await first.connect())["payload"]["sessionId"]
    await first.register("@(local/a)")
    await first.ask("hub:subscribe", {"topic": "news"})
    other = await stage.connect()
    first.abort()
    await until_gone(other, "@(local/a)")

    again = await stage.dial()
    again.sender = first.sender
    new_id = (await again.connect())["payload"]["sessionId"]

    assert new_id != old_id
    assert await addresses(again) == []
    published = await again.ask("hub:publish", {"topic": "news", "type": "x"})
    assert published["payload"]["subscriberCount"] == 0


async def test_13_1_error_for_a_hello_is_correlated(stage: InProcess) -> None:
    peer = await stage.dial()

    reply = await peer.connect(protocolVersion="2.0.0")

    assert code_of(reply) == "version_mismatch"
    assert reply["correlationId"]
