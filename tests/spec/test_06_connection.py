"""Sections 6.1–6.3 and 6.15: hello, heartbeat, goodbye and statistics."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Closed, code_of
from tests.support.stage import RunStage, Stage, addresses

HELLO: dict[str, Any] = {"protocolVersion": "0.1.0", "capabilities": ["send"]}


@pytest.mark.also_over_sockets
async def test_6_1_connected_says_what_the_hub_can_do(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=50.0, message_burst=70) as stage:
        peer = await stage.dial()
        reply = await peer.connect()

    assert reply["type"] == "hub:connected"
    assert reply["metadata"]["actorIdentity"] == peer.sender
    payload = reply["payload"]
    assert payload.pop("sessionId").startswith("session-")
    assert payload == {
        "serverVersion": "0.1.0",
        "serverTime": clock.now_ms(),
        "maxMessageSize": 1_048_576,
        # Ruling 7: a third of the default lease.
        "heartbeatInterval": 100_000,
        "capabilities": {
            "maxActorsPerInstance": 50_000,
            "supportsBackpressure": True,
            "supportedContentTypes": ["application/json"],
            "messageRate": 50.0,
            "messageBurst": 70,
            "durable": True,
            "durability": "fsync",
        },
    }


NO_VERSIONS: list[Any] = [0, 0.1, [], {}, True]
NO_CAPABILITIES: list[Any] = [None, [], "send", {}, 7]
BAD_HELLOS: dict[str, list[Any]] = {
    "version_mismatch": [
        {"capabilities": ["send"]},
        # The version is looked at first.
        {"protocolVersion": "2"},
        *(
            HELLO | {"protocolVersion": version}
            for version in ("1.0.0", "1", "", "00.1", "v0.1.0", " 0.1.0", None)
        ),
    ],
    "unauthorized": [
        {"protocolVersion": "0.1.0"},
        *(HELLO | {"capabilities": some} for some in NO_CAPABILITIES),
    ],
    "internal_error": [
        *(HELLO | {"protocolVersion": version} for version in NO_VERSIONS),
        *(..., None, [], "0.1.0", 7),
    ],
}


@pytest.mark.parametrize(
    ("metadata", "code"),
    [(metadata, code) for code, rows in BAD_HELLOS.items() for metadata in rows],
    ids=str,
)
async def test_6_1_bad_hello_is_refused_and_may_be_repeated_on_the_same_socket(
    stage: Stage, metadata: object, code: str
) -> None:
    peer = await stage.dial()

    refused = await peer.ask("hub:connect", HELLO, metadata=metadata)
    early = await peer.ask("hub:discover", {"pattern": "*"})
    welcome = await peer.connect()
    again = await peer.ask("hub:connect", metadata=metadata)

    assert code_of(refused) == code_of(again) == code
    if code == "version_mismatch":
        assert refused["payload"]["details"]["serverVersion"] == "0.1.0"
        assert refused["payload"]["details"]["supportedVersions"] == ["0.1.0"]
    assert code_of(early) == "unauthorized"
    assert welcome["type"] == "hub:connected"
    # A later hello that is refused takes nothing away.
    await peer.nothing_more()


GOOD_HELLOS: list[dict[str, Any]] = [
    # Only the part before the first dot is compared.
    *({"protocolVersion": version} for version in ("0", "0.9.7", "0.1.0-rc1", "0.", "0.x")),
    # The contents of capabilities are not inspected.
    *({"capabilities": some} for some in ([1], [None], ["send", {}], [""])),
    {"clientMetadata": {"userAgent": "test", "platform": "x", "origin": "y"}},
]


async def test_6_1_only_the_first_hello_of_a_socket_is_free(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=1, message_burst=1) as stage:
        peer = await stage.dial()

        replies = [await peer.ask("hub:connect", metadata=HELLO) for _ in range(3)]

        assert [one["type"] for one in replies[:2]] == ["hub:connected"] * 2
        assert replies[2]["payload"]["code"] == "rate_limited"


async def test_6_1_payload_and_pattern_of_a_hello_do_not_matter(
    run_stage: RunStage, clock: FakeClock
) -> None:
    ignored: list[Any] = [None, {}, {"version": "1.0", "jwt": "x"}, [], "text"]
    async with run_stage(clock) as stage:
        peer = await stage.dial()

        for payload in ignored:
            for pattern in ("tell", "ask"):
                reply = await peer.ask("hub:connect", payload, metadata=HELLO, pattern=pattern)
                assert reply["type"] == "hub:connected"
        for members in GOOD_HELLOS:
            assert (await peer.connect(**members))["type"] == "hub:connected", members


@pytest.mark.parametrize(
    ("payload", "echoed"),
    [
        *(
            ({"timestamp": value}, value)
            for value in (1, 0, -3.5, 1_760_000_000_000, "text", {"a": [1]}, None, True)
        ),
        *((payload, 12345) for payload in (None, {}, [], [1], "text", 7, {"other": 1}, ...)),
    ],
    ids=str,
)
async def test_6_2_heartbeat_echoes_its_timestamp_or_the_envelopes_and_gives_the_hubs_time(
    timed: Stage, clock: FakeClock, payload: object, echoed: object
) -> None:
    peer = await timed.connect()
    clock.advance(7)

    for pattern in ("tell", "ask"):
        reply = await peer.ask("hub:heartbeat", payload, timestamp=12345, pattern=pattern)
        assert reply["type"] == "hub:heartbeat_ack"
        assert reply["payload"] == {"timestamp": echoed, "serverTime": clock.now_ms()}


async def test_6_2_heartbeats_are_pushed_to_the_connected_at_the_configured_pace(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, heartbeat_push_s=150) as stage:
        peer, silent = await stage.connect(), await stage.dial()
        await (await stage.connect()).register("@(local/silent)")

        for _ in range(3):
            pushed = await peer.receive("hub:heartbeat_ack")
            assert pushed["payload"] == {
                "timestamp": clock.now_ms(),
                "serverTime": clock.now_ms(),
            }
            assert (pushed["correlationId"], pushed["to"]) == (None, peer.sender)
            clock.advance(149.999)
            await peer.nothing_more()
            clock.advance(0.001)

        # They renew no lease, and a socket without a hello gets none.
        assert await addresses(peer) == []
        assert (await silent.connect())["type"] == "hub:connected"


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("pattern", ["tell", "ask"])
@pytest.mark.parametrize("payload", [None, {"reason": "done"}, "text"])
async def test_6_3_goodbye_is_acknowledged_then_closed_and_nothing_follows(
    stage: Stage, pattern: str, payload: Any
) -> None:
    peer, other = await stage.dial(), await stage.connect()
    session_id = (await peer.connect())["payload"]["sessionId"]
    await peer.register("@(local/a)")

    # It is honoured though it has expired.
    message_id = peer.send("hub:disconnect", payload, pattern=pattern, ttl=500, timestamp=1)
    for number in range(20):
        other.tell("@(local/a)", "late", number)

    reply = await peer.receive("hub:disconnect")
    assert reply["correlationId"] == message_id
    assert reply["payload"] == {"acknowledged": True, "sessionId": session_id, "cleanedUp": True}
    # Its addresses are gone by then.
    assert await addresses(other) == []
    assert await peer.until_closed() == 1000
    with pytest.raises(Closed):
        await peer.receive()


@pytest.mark.also_over_sockets
async def test_6_3_hub_says_server_shutdown_before_a_planned_stop(stage: Stage) -> None:
    peers = [await stage.join("@(local/a)"), await stage.connect("@(local/b)")]

    await stage.restart()

    for peer in peers:
        notice = await peer.receive("hub:disconnect")
        assert notice["payload"]["reason"] == "server_shutdown"
        assert (notice["to"], notice["correlationId"]) == (peer.sender, None)
        assert await peer.until_closed() == 1001


@pytest.mark.parametrize("payload", [None, {}, [], "ignored", 7])
async def test_6_15_queue_stats_shows_an_empty_queue_and_the_thresholds(
    timed: Stage, clock: FakeClock, payload: object
) -> None:
    peer = await timed.connect()
    clock.advance(2)

    reply = await peer.ask("hub:queue_stats", payload)

    assert reply["type"] == "hub:queue_stats_response"
    assert reply["payload"] == {
        "queueDepth": 0,
        "queueBytes": 0,
        "processingRate": 0.5,
        "pauseThreshold": 1000,
        "resumeThreshold": 500,
    }


async def test_6_15_metrics_count_what_happened_since_the_minute_began(stage: Stage) -> None:
    peer, target = await stage.connect(), await stage.join("@(local/b)")
    before = (await peer.ask("hub:metrics"))["payload"]

    peer.tell("@(local/b)", "note")
    await target.receive("note")
    await peer.ask("hub:nonsense")
    await (await stage.connect()).ask("hub:disconnect")
    after = (await peer.ask("hub:metrics", "ignored"))["payload"]

    counted = {name: after[name] - count for name, count in before.items()}
    assert counted | {"windowStart": 0, "timestamp": 0} == {
        "messages_received": 5,
        "messages_sent": 5,
        "errors": 1,
        "connections_opened": 1,
        "connections_closed": 1,
        "windowStart": 0,
        "timestamp": 0,
    }
    assert after["windowStart"] <= after["timestamp"]


async def test_6_15_metrics_of_a_new_minute_begin_at_zero(timed: Stage, clock: FakeClock) -> None:
    peer = await timed.connect()
    for _ in range(10):
        await peer.ask("hub:heartbeat")

    await timed.pass_time(61)
    async for _ in peer.polls():
        payload = (await peer.ask("hub:metrics", []))["payload"]
        if payload["messages_received"] < 10:
            break

    assert payload["windowStart"] == payload["timestamp"] == clock.now_ms()
