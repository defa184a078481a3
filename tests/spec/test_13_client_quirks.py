"""Section 13: what the TypeScript clients send, as they send it, must work.

Q5 is in test_06_fanout.py (a topic in place of the id), Q8 in test_06_connection.py.
"""

from __future__ import annotations

import uuid

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import HUB, Envelope, Peer, code_of
from tests.support.stage import Stage, addresses, until_gone

PLANNER, CHART = "@(local/planner)", "@(browser/chart)"


async def node(stage: Stage) -> Peer:
    """A connection as the node-side client opens it."""
    peer = await stage.dial()
    peer.sender = f"@(local/client-{uuid.uuid4()})"
    metadata = {"protocolVersion": "0.1.0", "capabilities": ["send", "broadcast", "register"]}
    reply = await peer.ask("hub:connect", metadata=metadata | {"authToken": "x.y.z"}, ttl=5000)
    assert reply["type"] == "hub:connected"
    return peer


async def node_registers(peer: Peer) -> Envelope:
    payload = {"actorAddress": PLANNER, "capabilities": ["x"], "metadata": {}, "ttlSeconds": 300}
    return await peer.ask("hub:register", payload, sender=PLANNER, ttl=5000)


async def browser(stage: Stage) -> Peer:
    """The browser client after its short register, which must cause no error (Q6)."""
    peer = await stage.dial()
    peer.sender = f"@(browser/actor-{uuid.uuid4()})"
    metadata = {
        "protocolVersion": "0.1.0",
        "authToken": "x.y.z",
        "capabilities": ["send", "receive"],
        "clientMetadata": {"userAgent": "Mozilla/5.0", "platform": "web"},
    }
    await peer.ask("hub:connect", metadata=metadata, ttl=5000)
    payload = {"actorAddress": CHART, "capabilities": []}
    reply = await peer.ask("hub:register", payload, sender=CHART, ttl=5000)
    assert reply["type"] == "hub:registered"
    return peer


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("with_token", [True, False])
async def test_q1_to_q4_node_client_lives_on_null_payloads(
    timed: Stage, clock: FakeClock, with_token: bool
) -> None:
    peer, other = await node(timed), await timed.connect()

    registered = await node_registers(peer)
    for name in ("expiresAt", "renewalToken", "version"):
        assert registered["metadata"][name] == registered["payload"][name]
    # It never learns of the tokens that come later.
    metadata = {"renewalToken": registered["metadata"]["renewalToken"]} if with_token else {}
    for _ in range(10):
        clock.advance(200)
        reply = await peer.ask("hub:renew", None, pattern="tell", metadata=metadata, sender=PLANNER)
        assert reply["type"] == "hub:renewed"
    beat = await peer.ask(
        "hub:heartbeat", None, pattern="tell", sender="@(local/signal-hub-client)"
    )

    assert isinstance(beat["payload"]["timestamp"], int)
    assert await addresses(other) == [PLANNER]
    peer.send("hub:unregister", None, sender=PLANNER)
    await peer.nothing_more()
    assert await addresses(other) == []
    goodbye = await peer.ask("hub:disconnect", None, ttl=500)
    assert goodbye["payload"]["acknowledged"] is True
    assert await peer.until_closed() == 1000


async def test_q7_q17_browser_client_sends_with_priorities_and_hears_of_unknown_actors(
    stage: Stage,
) -> None:
    peer = await browser(stage)

    for priority in (1, 9, 5):
        peer.tell(CHART, "x", priority, metadata={"priority": priority}, ttl=30_000)
    unknown = await peer.ask_actor("@(browser/gone)", "x", ttl=30_000, metadata={"priority": 1})
    found = await peer.ask("hub:discover", {"pattern": "*", "limit": 50}, ttl=5000)
    # Members that are undefined in JavaScript are missing.
    broadcast = await peer.ask("hub:broadcast", {"type": "x", "data": None}, pattern="tell")

    assert [(await peer.receive("x"))["metadata"]["priority"] for _ in range(3)] == [1, 9, 5]
    assert unknown["type"] == "hub:unknown_actor"
    assert "not registered" in unknown["payload"]["message"]
    assert len(found["payload"]["actors"]) == 1
    assert broadcast["payload"]["deliveredCount"] == 1


@pytest.mark.also_over_sockets
async def test_q10_goodbye_whose_answer_nobody_awaits_is_tolerated(stage: Stage) -> None:
    peer, other = await browser(stage), await stage.connect()

    peer.send("hub:disconnect", None)
    peer.abort()

    await until_gone(other, CHART)
    await other.nothing_more()


@pytest.mark.also_over_sockets
async def test_q11_q16_both_clients_talk_to_each_other_and_to_themselves(stage: Stage) -> None:
    left, right = await node(stage), await browser(stage)
    await node_registers(left)
    await right.ask("hub:subscribe", {"topic": "news"}, sender=CHART)

    left.tell(CHART, "x", 1, sender=PLANNER, metadata={"via": HUB, "mine": 7})
    left.send("hub:broadcast", {"type": "x", "excludeSelf": True}, sender=PLANNER)
    left.send("hub:publish", {"topic": "news", "type": "x"}, sender=PLANNER)
    copies = [await right.receive("x") for _ in range(3)]
    reply = await right.ask_actor(copies[0]["from"], "y", 2, sender=CHART, ttl=30_000)
    ask_id = left.tell(PLANNER, "to-myself", 1, pattern="ask", sender=PLANNER, ttl=10_000)

    assert copies[0]["metadata"]["mine"] == 7
    for copy in copies:
        assert copy["metadata"]["via"] == HUB
        assert "originalFrom" not in copy["metadata"]
    assert reply["type"] == "hub:delivery_ack"
    heard = [await left.receive() for _ in range(5)]
    answers = {"hub:broadcast_ack", "hub:published"}
    y, copy, ack = (one for one in heard if one["type"] not in answers)
    assert (y["type"], y["from"]) == ("y", CHART)
    # The id of a pending request correlates its reply only.
    assert (copy["type"], copy["correlationId"]) == ("to-myself", None)
    assert (ack["type"], ack["correlationId"]) == ("hub:delivery_ack", ask_id)


async def test_q12_queue_flushed_before_registering_again_is_accepted(stage: Stage) -> None:
    target, peer = await stage.join(CHART), await stage.dial()

    metadata = {"protocolVersion": "0.1.0", "capabilities": ["send"]}
    peer.send("hub:connect", metadata=metadata, pattern="ask", sender="@(local/client-1)")
    for number in range(5):
        peer.tell(CHART, "flushed", number, sender=PLANNER)

    for number in range(5):
        heard = await target.receive("flushed")
        assert (heard["payload"], heard["from"]) == (number, PLANNER)


async def test_q14_hub_sends_nothing_that_was_not_asked_for(stage: Stage) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")

    other.tell("@(local/a)", "note", 1)
    await other.ask("hub:subscribe", {"topic": "news"})
    await other.ask("hub:disconnect")
    await stage.pass_time(2)

    assert (await peer.receive())["type"] == "note"
    await peer.nothing_more()


async def test_13_1_reconnected_client_has_a_new_session_and_must_register_again(
    stage: Stage,
) -> None:
    first, other = await stage.dial(), await stage.connect()
    old_id = (await first.connect())["payload"]["sessionId"]
    await first.register("@(local/a)")
    await first.ask("hub:subscribe", {"topic": "news"})
    first.abort()
    await until_gone(other, "@(local/a)")

    again = await stage.dial()
    again.sender = first.sender
    refused = await again.connect(protocolVersion="2.0.0")
    new_id = (await again.connect())["payload"]["sessionId"]

    # The error for a hello is correlated.
    assert code_of(refused) == "version_mismatch"
    assert new_id != old_id
    assert await addresses(again) == []
    published = await again.ask("hub:publish", {"topic": "news", "type": "x"})
    assert published["payload"]["subscriberCount"] == 0
