"""Section 8: how fast a socket may send, and how fast sockets may come."""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer, Rejected, Response
from tests.support.socket.stage import InProcess, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


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


async def test_8_burst_then_refusal_then_a_steady_rate() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=2, message_burst=3) as stage:
        peer = await stage.connect()

        assert [await probe(peer) for _ in range(4)] == ["served"] * 3 + ["rate_limited"]
        clock.advance(0.5)
        assert [await probe(peer) for _ in range(2)] == ["served", "rate_limited"]
        clock.advance(60)
        assert [await probe(peer) for _ in range(4)] == ["served"] * 3 + ["rate_limited"]


async def test_8_refused_message_is_not_processed_and_the_socket_stays() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=1, message_burst=1) as stage:
        target = await stage.join("@(local/b)")
        sender = await stage.connect()
        sender.tell("@(local/b)", "note", "first")

        refused = await sender.ask_actor("@(local/b)", "note", "second", id="again")
        clock.advance(1)
        served = await sender.ask_actor("@(local/b)", "note", "third", id="again")

        assert code_of(refused) == "rate_limited"
        assert served["type"] == "hub:delivery_ack"
        heard = [(await target.receive("note"))["payload"] for _ in range(2)]
        assert heard == ["first", "third"]


async def test_8_every_socket_has_a_bucket_of_its_own() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=1) as stage:
        first, second = await stage.connect(), await stage.connect()

        assert [await probe(first), await probe(first)] == ["served", "rate_limited"]
        assert await probe(second) == "served"


async def test_8_ruling_14_heartbeat_and_renew_are_exempt() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=2) as stage:
        peer = await stage.join("@(local/a)")
        assert [await probe(peer), await probe(peer)] == ["served", "rate_limited"]

        for _ in range(20):
            assert (await peer.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"
            assert (await peer.ask("hub:renew"))["type"] == "hub:renewed"


async def test_8_goodbye_is_served_with_an_empty_bucket() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=1) as stage:
        peer = await stage.connect()
        assert [await probe(peer), await probe(peer)] == ["served", "rate_limited"]

        assert (await peer.ask("hub:disconnect"))["payload"]["acknowledged"] is True
        assert await peer.until_closed() == 1000


async def test_8_frames_that_are_no_envelopes_cost_a_token_too() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=2) as stage:
        peer = await stage.connect()

        codes = []
        for _ in range(3):
            peer.send_text("{}")
            codes.append(code_of(await peer.receive()))

        assert codes == ["internal_error", "internal_error", "rate_limited"]


async def test_8_rate_of_zero_means_no_limit() -> None:
    async with run_stage(FakeClock(), message_rate=0, message_burst=1) as stage:
        peer = await stage.connect()

        assert {await probe(peer) for _ in range(50)} == {"served"}


async def test_8_default_burst_lets_a_register_and_ten_sends_through(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    payload = {"actorAddress": "@(local/a)", "capabilities": []}
    sender.send("hub:register", payload, pattern="ask")
    for number in range(10):
        sender.tell("@(local/b)", "note", number)

    assert [(await target.receive("note"))["payload"] for _ in range(10)] == list(range(10))


async def test_8_default_capacity_is_at_least_a_hundred(stage: InProcess) -> None:
    peer = await stage.connect()

    ids = [peer.send("hub:queue_stats") for _ in range(100)]

    for message_id in ids:
        reply = await peer.receive("hub:queue_stats_response")
        assert reply["correlationId"] == message_id


async def test_8_connections_above_the_rate_are_answered_429() -> None:
    clock = FakeClock()
    async with run_stage(clock, connection_rate=0.5, connection_burst=2) as stage:
        peers = [await stage.connect() for _ in range(2)]

        refused = await rejection(stage)

        assert refused.status == 429
        assert refused.headers["retry-after"] == "2"
        assert int(refused.headers["x-ratelimit-limit"]) >= 0
        assert refused.headers["x-ratelimit-remaining"] == "0"
        assert refused.body
        for peer in peers:
            await peer.nothing_more()
        clock.advance(2)
        await stage.connect()


async def test_8_requests_that_are_no_upgrades_cost_no_connection() -> None:
    async with run_stage(FakeClock(), connection_rate=1, connection_burst=1) as stage:
        for path in ("/health", "/ws", "/nowhere"):
            await stage.get(path)
        await stage.connect()

        assert (await rejection(stage)).status == 429
        assert (await stage.get("/health")).status == 200


async def test_8_default_rate_is_a_hundred_connections_at_once() -> None:
    async with run_stage(FakeClock()) as stage:
        for _ in range(100):
            await stage.dial()

        refused = await rejection(stage)

        assert refused.status == 429
        assert refused.headers["x-ratelimit-limit"] == "100"
        assert refused.headers["retry-after"] == "1"


async def test_8_full_registry_is_answered_503_with_its_utilization() -> None:
    async with run_stage(registry={"limit": 4}) as stage:
        peer = await stage.connect()
        for number in range(4):
            await peer.register(f"@(local/{number})")

        refused = await rejection(stage)

        assert refused.status == 503
        assert refused.headers["retry-after"] == "60"
        assert float(refused.headers["x-capacity-utilization"]) == 1.0
        assert (await stage.health())["status"] == "degraded"
        await peer.ask("hub:unregister", {"actorAddress": "@(local/0)"})
        await stage.connect()
