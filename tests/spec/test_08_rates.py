"""Section 8: how fast a socket may send, and how fast sockets may come."""

from __future__ import annotations

import json

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.socket.peer import Rejected, Response
from tests.support.socket.stage import InProcess
from tests.support.socket.stage import run_stage as run_socket_stage
from tests.support.stage import RunStage, Stage


async def probe(peer: Peer) -> str:
    """Send one message that costs a token; what came of it."""
    reply = await peer.ask("hub:queue_stats")
    return code_of(reply) if reply["type"] == "hub:error" else "served"


async def rejection(stage: InProcess) -> Response:
    """An upgrade that must not succeed."""
    peer = await stage.call()
    with pytest.raises(Rejected) as rejected:
        await peer.upgrade()
    return rejected.value.response


@pytest.mark.also_over_sockets
async def test_8_burst_then_refusal_then_a_steady_rate_for_every_socket(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=2, message_burst=3) as stage:
        peer, other = await stage.connect(), await stage.connect()

        assert [await probe(peer) for _ in range(4)] == ["served"] * 3 + ["rate_limited"]
        assert [await probe(other) for _ in range(4)] == ["served"] * 3 + ["rate_limited"]
        clock.advance(0.5)
        assert [await probe(peer) for _ in range(2)] == ["served", "rate_limited"]
        clock.advance(60)
        assert [await probe(peer) for _ in range(4)] == ["served"] * 3 + ["rate_limited"]


async def test_8_refused_message_is_not_processed_and_the_socket_stays(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=1, message_burst=1) as stage:
        target, sender = await stage.join("@(local/b)"), await stage.connect()
        sender.tell("@(local/b)", "note", "first")

        refused = await sender.ask_actor("@(local/b)", "note", "second", id="again")
        clock.advance(1)
        served = await sender.ask_actor("@(local/b)", "note", "third", id="again")

        assert code_of(refused) == "rate_limited"
        assert served["type"] == "hub:delivery_ack"
        heard = [(await target.receive("note"))["payload"] for _ in range(2)]
        assert heard == ["first", "third"]


@pytest.mark.also_over_sockets
async def test_r14_heartbeat_renew_and_goodbye_are_served_with_an_empty_bucket(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=1, message_burst=2) as stage:
        peer = await stage.join("@(local/a)")
        assert [await probe(peer), await probe(peer)] == ["served", "rate_limited"]

        for _ in range(20):
            assert (await peer.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"
            assert (await peer.ask("hub:renew"))["type"] == "hub:renewed"
        assert (await peer.ask("hub:disconnect"))["payload"]["acknowledged"] is True
        assert await peer.until_closed() == 1000


@pytest.mark.parametrize("is_envelope", [True, False])
async def test_8_unknown_types_and_frames_that_are_no_envelopes_cost_a_token_too(
    run_stage: RunStage, clock: FakeClock, is_envelope: bool
) -> None:
    async with run_stage(clock, message_rate=1, message_burst=2) as stage:
        peer = await stage.connect()

        codes = []
        for _ in range(3):
            peer.send_text(json.dumps(peer.envelope("hub:nonsense")) if is_envelope else "{}")
            codes.append(code_of(await peer.receive()))

        assert codes == ["internal_error", "internal_error", "rate_limited"]


async def test_8_default_capacity_is_at_least_a_hundred(stage: Stage) -> None:
    peer = await stage.connect()

    ids = [peer.send("hub:queue_stats") for _ in range(100)]

    for message_id in ids:
        reply = await peer.receive("hub:queue_stats_response")
        assert reply["correlationId"] == message_id


async def test_8_connections_above_the_rate_are_answered_429() -> None:
    clock = FakeClock()
    async with run_socket_stage(clock, connection_rate=0.5, connection_burst=2) as stage:
        # Requests that are no upgrades cost nothing.
        for path in ("/health", "/ws", "/nowhere"):
            await stage.get(path)
        peers = [await stage.connect() for _ in range(2)]

        refused = await rejection(stage)

        assert refused.status == 429
        assert refused.headers["retry-after"] == "2"
        assert int(refused.headers["x-ratelimit-limit"]) >= 0
        assert refused.headers["x-ratelimit-remaining"] == "0"
        assert refused.body
        assert (await stage.get("/health")).status == 200
        for peer in peers:
            await peer.nothing_more()
        clock.advance(2)
        await stage.connect()


async def test_8_default_rate_is_a_hundred_connections_at_once() -> None:
    async with run_socket_stage(FakeClock()) as stage:
        for _ in range(100):
            await stage.dial()

        refused = await rejection(stage)

        assert refused.status == 429
        assert refused.headers["x-ratelimit-limit"] == "100"
        assert refused.headers["retry-after"] == "1"


async def test_8_a_full_registry_refuses_registrations_but_no_socket() -> None:
    async with run_socket_stage(registry={"limit": 4}) as stage:
        peer = await stage.connect()
        for number in range(4):
            await peer.register(f"@(local/{number})")

        late = await stage.connect()
        refused = await late.ask("hub:register", {"actorAddress": "@(l/5)", "capabilities": []})

        assert refused["payload"]["code"] == "registry_full"
        assert (await stage.health())["status"] == "degraded"
        await peer.ask("hub:unregister", {"actorAddress": "@(local/0)"})
        await stage.connect()
