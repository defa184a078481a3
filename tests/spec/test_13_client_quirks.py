"""Section 13: what the TypeScript clients send, as they send it, must work.

Q5 is in test_06_fanout.py (a topic in place of the id), Q8 in test_06_connection.py; Q7, Q11, Q16
and Q17 are in test_06_send.py (the copy, the answer for unknown actors, metadata without effect).
"""

from __future__ import annotations

import uuid

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer
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

    payload = {"actorAddress": PLANNER, "capabilities": ["x"], "metadata": {}, "ttlSeconds": 300}
    registered = await peer.ask("hub:register", payload, sender=PLANNER, ttl=5000)
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


@pytest.mark.also_over_sockets
async def test_q10_goodbye_whose_answer_nobody_awaits_is_tolerated(stage: Stage) -> None:
    peer, other = await browser(stage), await stage.connect()

    peer.send("hub:disconnect", None)
    peer.abort()

    await until_gone(other, CHART)
    await other.nothing_more()


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
