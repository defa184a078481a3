"""Section 1: the HTTP surface, frames, the raw keep-alive and close codes."""

from __future__ import annotations

import json

import pytest

from signalhub.testing import FakeClock
from tests.support.socket import frames
from tests.support.socket.peer import Closed, Rejected
from tests.support.socket.stage import InProcess, code_of, run_stage, until_gone


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
async def test_1_1_health_answers_every_method(stage: InProcess, method: str) -> None:
    answer = await stage.get("/health", method)

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")


async def test_1_1_health_names_service_version_and_time() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        health = await stage.health()

    assert health["status"] == "ok"
    assert health["service"] == "signal-hub"
    assert health["version"] == "0.1.0"
    assert health["timestamp"] == clock.now_ms()


@pytest.mark.parametrize("path", ["/ws", "/", "/ws?token=abc&x=1", "/?actor=a"])
async def test_1_1_websocket_upgrades_on_two_paths_whatever_the_query(
    stage: InProcess, path: str
) -> None:
    peer = await stage.dial(path)

    assert (await peer.connect())["type"] == "hub:connected"


@pytest.mark.parametrize("path", ["/ws", "/", "/ws?a=b"])
async def test_1_1_plain_request_on_a_websocket_path_is_told_to_upgrade(
    stage: InProcess, path: str
) -> None:
    answer = await stage.get(path)

    assert answer.status == 426
    assert answer.body


@pytest.mark.parametrize("path", ["/health/", "/ws/", "/connect", "/WS", "/favicon.ico"])
@pytest.mark.parametrize("headers", [{}, UPGRADE], ids=["plain", "upgrade"])
async def test_1_1_every_other_path_is_not_found(
    stage: InProcess, path: str, headers: dict[str, str]
) -> None:
    answer = await stage.get(path, headers=headers)

    assert answer.status == 404
    assert answer.body


async def test_1_1_no_token_at_http_level_authenticates() -> None:
    secret = "a secret of more than sixteen bytes"
    headers = {"Authorization": "Bearer x", "Cookie": "token=x", "X-Auth-Token": "x"}
    async with run_stage(auth={"enabled": True, "secret": secret}) as stage:
        peer = await stage.dial("/ws?authToken=x", headers)

        assert code_of(await peer.connect()) == "unauthorized"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-WebSocket-Protocol": "chat, superchat"},
        {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"},
        {"Connection": "keep-alive, Upgrade"},
    ],
    ids=["protocol", "compression", "keep-alive"],
)
async def test_1_1_offers_are_harmless_and_never_taken(
    stage: InProcess, headers: dict[str, str]
) -> None:
    # `dial` itself checks that neither protocol nor extension comes back.
    peer = await stage.dial("/ws", headers)

    assert (await peer.connect())["type"] == "hub:connected"


async def test_1_1_both_loopback_families_answer(stage: InProcess) -> None:
    peer = await stage.call("::1")
    await peer.upgrade()

    assert (await peer.connect())["type"] == "hub:connected"


async def test_1_2_binary_frame_is_read_like_text_and_answered_with_text(stage: InProcess) -> None:
    peer = await stage.connect()
    message = peer.envelope("hub:heartbeat", {"timestamp": 5, "text": "grüße"})

    peer.write(frames.masked_frame(frames.BINARY, json.dumps(message).encode()))

    frame = await peer.receive_frame()
    assert frame.opcode == frames.TEXT
    assert json.loads(frame.payload)["correlationId"] == message["id"]


async def test_1_2_fragmented_message_is_one_message(stage: InProcess) -> None:
    peer = await stage.connect()
    message = peer.envelope("hub:heartbeat", {"timestamp": 5})

    for piece in frames.fragments(json.dumps(message).encode(), 1, 2, 40):
        peer.write(piece)

    assert (await peer.receive("hub:heartbeat_ack"))["correlationId"] == message["id"]


async def test_1_2_ping_is_answered_with_its_payload(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.write(frames.masked_frame(frames.PING, b"are you there"))

    assert await peer.receive_frame() == frames.Frame(frames.PONG, b"are you there")


async def test_1_2_ping_between_fragments_is_answered_at_once(stage: InProcess) -> None:
    peer = await stage.connect()
    message = peer.envelope("hub:heartbeat", {"timestamp": 5})
    first, second = frames.fragments(json.dumps(message).encode(), 20)

    peer.write(first + frames.masked_frame(frames.PING, b"between"))

    assert await peer.receive_frame() == frames.Frame(frames.PONG, b"between")
    peer.write(second)
    await peer.receive("hub:heartbeat_ack")


async def test_1_2_several_messages_in_one_packet_are_answered_in_order(stage: InProcess) -> None:
    peer = await stage.connect()
    messages = [peer.envelope("hub:heartbeat", {"timestamp": number}) for number in range(5)]

    peer.write(
        b"".join(
            frames.masked_frame(frames.TEXT, json.dumps(message).encode()) for message in messages
        )
    )

    for message in messages:
        assert (await peer.receive())["correlationId"] == message["id"]


async def test_1_2_raw_ping_is_answered_with_raw_pong_before_and_after_hello(
    stage: InProcess,
) -> None:
    peer = await stage.dial()

    peer.send_text('{"type":"ping"}')
    assert await peer.receive_text() == '{"type":"pong"}'

    await peer.connect()
    peer.send_text('{"type":"ping"}')
    assert await peer.receive_text() == '{"type":"pong"}'


@pytest.mark.parametrize(
    "text", ['{"type": "ping"}', ' {"type":"ping"}', '{"type":"ping"} ', '{"type":"PING"}']
)
async def test_1_2_raw_ping_with_anything_else_is_a_malformed_envelope(
    stage: InProcess, text: str
) -> None:
    peer = await stage.connect()

    peer.send_text(text)

    assert code_of(await peer.receive()) == "internal_error"
    await peer.nothing_more()


async def test_1_2_raw_ping_costs_no_token_of_the_rate_limit() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=1) as stage:
        peer = await stage.connect()

        for _ in range(5):
            peer.send_text('{"type":"ping"}')
            assert await peer.receive_text() == '{"type":"pong"}'

        assert (await peer.ask("hub:discover", {"pattern": "*"}))["type"] == "hub:discovered"


async def test_1_2_raw_ping_is_no_sign_of_life_for_the_lease() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.join("@(local/a)")
        other = await stage.connect()

        clock.advance(299)
        peer.send_text('{"type":"ping"}')
        assert await peer.receive_text() == '{"type":"pong"}'
        clock.advance(2)

        reply = await other.ask_actor("@(local/a)", "note")
        assert reply["type"] == "hub:unknown_actor"


async def test_1_3_disconnect_is_closed_with_1000(stage: InProcess) -> None:
    peer = await stage.connect()

    await peer.ask("hub:disconnect")

    assert await peer.until_closed() == 1000


async def test_1_3_evicted_session_is_closed_with_1000(stage: InProcess) -> None:
    old = await stage.join("@(local/a)")

    await stage.join("@(local/a)")

    assert await old.until_closed() == 1000


async def test_1_3_close_of_a_client_is_answered_with_its_code(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.close(1000)

    assert await peer.until_closed() == 1000


async def test_1_3_client_that_hangs_up_without_closing_is_cleaned_up(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    other = await stage.connect()

    peer.abort()
    await peer.until_closed()

    await until_gone(other, "@(local/a)")


async def test_1_1_socket_without_hello_is_closed_at_the_deadline() -> None:
    async with run_stage(hello_s=0.2) as stage:
        connected = await stage.connect()
        silent = await stage.dial()

        assert await silent.until_closed() == 1008
        await connected.nothing_more()


async def test_1_1_upgrade_without_a_key_is_refused(stage: InProcess) -> None:
    peer = await stage.call()

    with pytest.raises(Rejected) as rejected:
        await peer.upgrade(headers={"Sec-WebSocket-Key": "short"})

    assert rejected.value.response.status == 400


async def test_1_1_other_websocket_version_is_told_the_right_one(stage: InProcess) -> None:
    peer = await stage.call()

    with pytest.raises(Rejected) as rejected:
        await peer.upgrade(headers={"Sec-WebSocket-Version": "8"})

    assert rejected.value.response.status == 426
    assert rejected.value.response.headers["sec-websocket-version"] == "13"


async def test_1_3_nothing_is_served_after_the_goodbye(stage: InProcess) -> None:
    peer = await stage.connect()
    peer.answers_close = False

    peer.send("hub:disconnect", pattern="ask")
    peer.send("hub:heartbeat")

    assert (await peer.receive())["type"] == "hub:disconnect"
    assert await peer.close_frame() == 1000
    peer.hang_up()
    with pytest.raises(Closed):
        await peer.receive()
