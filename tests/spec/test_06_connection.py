"""Sections 6.1–6.3: hello, heartbeat and goodbye."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Closed
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


async def test_6_1_connected_says_what_the_hub_can_do() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.dial()
        reply = await peer.connect()

    payload = reply["payload"]
    assert reply["type"] == "hub:connected"
    assert reply["metadata"]["actorIdentity"] == peer.sender
    assert payload["sessionId"].startswith("session-")
    assert payload["serverVersion"] == "0.1.0"
    assert payload["serverTime"] == clock.now_ms()
    assert payload["maxMessageSize"] == 1_048_576
    assert payload["heartbeatInterval"] == 100_000
    assert payload["capabilities"]["maxActorsPerInstance"] == 50_000
    assert payload["capabilities"]["supportsBackpressure"] is True
    assert payload["capabilities"]["supportedContentTypes"] == ["application/json"]


@pytest.mark.parametrize("version", ["0", "0.1.0", "0.9.7", "0.1.0-rc1", "0."])
async def test_6_1_only_the_part_before_the_first_dot_is_compared(
    stage: InProcess, version: str
) -> None:
    peer = await stage.dial()

    assert (await peer.connect(protocolVersion=version))["type"] == "hub:connected"


@pytest.mark.parametrize("version", ["1.0.0", "1", "", "00.1", "v0.1.0", " 0.1.0", None])
async def test_6_1_other_major_version_is_refused(stage: InProcess, version: str | None) -> None:
    peer = await stage.dial()

    reply = await peer.connect(protocolVersion=version)

    assert code_of(reply) == "version_mismatch"
    assert reply["payload"]["details"]["serverVersion"] == "0.1.0"


async def test_6_1_missing_version_is_refused(stage: InProcess) -> None:
    peer = await stage.dial()

    reply = await peer.ask("hub:connect", metadata={"capabilities": ["send"]})

    assert code_of(reply) == "version_mismatch"


@pytest.mark.parametrize("version", [0, 0.1, [], {}, True])
async def test_6_1_version_that_is_no_string_is_refused(stage: InProcess, version: object) -> None:
    peer = await stage.dial()

    assert code_of(await peer.connect(protocolVersion=version)) == "internal_error"


@pytest.mark.parametrize("capabilities", [None, [], "send", {}, 7])
async def test_6_1_capabilities_must_be_a_filled_array(
    stage: InProcess, capabilities: object
) -> None:
    peer = await stage.dial()

    assert code_of(await peer.connect(capabilities=capabilities)) == "unauthorized"


@pytest.mark.parametrize("capabilities", [[1], [None], ["send", {}], [""]])
async def test_6_1_contents_of_capabilities_are_not_inspected(
    stage: InProcess, capabilities: list[object]
) -> None:
    peer = await stage.dial()

    assert (await peer.connect(capabilities=capabilities))["type"] == "hub:connected"


@pytest.mark.parametrize("metadata", [..., None, [], "text", 7])
async def test_6_1_hello_without_metadata_is_refused(stage: InProcess, metadata: object) -> None:
    peer = await stage.dial()

    assert code_of(await peer.ask("hub:connect", metadata=metadata)) == "internal_error"
    assert (await peer.connect())["type"] == "hub:connected"


@pytest.mark.parametrize("payload", [None, {}, {"version": "1.0", "jwt": "x"}, [], "text"])
async def test_6_1_payload_of_the_hello_is_ignored(stage: InProcess, payload: object) -> None:
    peer = await stage.dial()

    reply = await peer.ask(
        "hub:connect",
        payload,
        metadata={
            "protocolVersion": "0.1.0",
            "capabilities": ["send"],
            "clientMetadata": {"userAgent": "test", "platform": "x", "origin": "y"},
        },
    )

    assert reply["type"] == "hub:connected"


async def test_6_1_hello_is_answered_for_both_patterns(stage: InProcess) -> None:
    for pattern in ("tell", "ask"):
        peer = await stage.dial()
        reply = await peer.ask(
            "hub:connect",
            metadata={"protocolVersion": "0.1.0", "capabilities": ["send"]},
            pattern=pattern,
        )
        assert reply["type"] == "hub:connected"


async def test_6_1_hello_is_not_rate_limited() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=1) as stage:
        peer = await stage.dial()

        for _ in range(5):
            assert (await peer.connect())["type"] == "hub:connected"


@pytest.mark.parametrize("echoed", [1, 0, -3.5, 1_760_000_000_000, "text", {"a": [1]}, None, True])
async def test_6_2_heartbeat_echoes_the_timestamp_and_gives_the_hubs_time(
    echoed: object,
) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.connect()
        clock.advance(7)

        reply = await peer.ask("hub:heartbeat", {"timestamp": echoed}, pattern="tell")

    assert reply["type"] == "hub:heartbeat_ack"
    assert reply["payload"] == {"timestamp": echoed, "serverTime": clock.now_ms()}


@pytest.mark.parametrize("payload", [None, {}, [], "text", 7, {"other": 1}, ...])
async def test_6_2_heartbeat_without_a_timestamp_echoes_the_envelopes(
    stage: InProcess, payload: object
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:heartbeat", payload, timestamp=12345)

    assert reply["type"] == "hub:heartbeat_ack"
    assert reply["payload"]["timestamp"] == 12345


async def test_6_2_heartbeat_extends_every_registration_of_its_session() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer, other = await stage.connect(), await stage.connect()
        await peer.register("@(local/a)")
        await peer.register("@(local/b)")

        for _ in range(5):
            clock.advance(250)
            await peer.ask("hub:heartbeat", sender="@(local/signal-hub-client)")

        assert await addresses(other) == ["@(local/a)", "@(local/b)"]


@pytest.mark.parametrize("pattern", ["tell", "ask"])
@pytest.mark.parametrize("payload", [None, {}, {"reason": "done"}, "text"])
async def test_6_3_goodbye_is_acknowledged_then_closed_and_nothing_follows(
    stage: InProcess, pattern: str, payload: Any
) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.connect()

    message_id = peer.send("hub:disconnect", payload, pattern=pattern)
    for number in range(20):
        other.tell("@(local/a)", "late", number)

    reply = await peer.receive("hub:disconnect")
    assert reply["correlationId"] == message_id
    assert reply["payload"]["acknowledged"] is True
    assert await peer.until_closed() == 1000
    with pytest.raises(Closed):
        await peer.receive()


async def test_6_3_goodbye_that_has_expired_is_honoured(stage: InProcess) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:disconnect", ttl=500, timestamp=1)

    assert reply["payload"]["acknowledged"] is True
    assert await peer.until_closed() == 1000


async def test_6_3_addresses_are_gone_when_the_goodbye_is_acknowledged(stage: InProcess) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.connect()

    await peer.ask("hub:disconnect")

    assert await addresses(other) == []


async def test_6_3_hub_says_server_shutdown_before_a_planned_stop() -> None:
    async with run_stage() as stage:
        peer = await stage.join("@(local/a)")

        await stage.hub.stop()

        notice = await peer.receive("hub:disconnect")
        assert notice["payload"]["reason"] == "server_shutdown"
        assert notice["correlationId"] is None
        assert notice["to"] == "@(local/a)"
        assert await peer.until_closed() == 1001
