"""Section 1: the HTTP surface, frames, the raw keep-alive and close codes."""

from __future__ import annotations

import json

import pytest

import signalhub
from signalhub import native
from signalhub.testing import FakeClock
from tests.support.peer import code_of
from tests.support.socket import frames
from tests.support.socket.peer import Closed, Peer, Rejected, Response
from tests.support.socket.stage import InProcess, run_stage
from tests.support.stage import RunStage, Stage

UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
PING, PONG = '{"type":"ping"}', '{"type":"pong"}'


async def rejection(stage: InProcess, **headers: str) -> Response:
    """The answer to an upgrade that must not succeed."""
    peer = await stage.call()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with pytest.raises(Rejected) as rejected:
        await peer.upgrade(headers=given)
    return rejected.value.response


async def test_1_1_health_answers_every_method_with_service_version_and_time() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        for method in ("GET", "HEAD", "POST", "DELETE"):
            answer = await stage.get("/health", method)
            assert answer.status == 200, method
            assert answer.headers["content-type"].startswith("application/json")
        health = await stage.health()

    named = {
        name: health[name]
        for name in ("status", "service", "version", "release", "native", "timestamp")
    }
    assert named == {
        "status": "ok",
        "service": "signal-hub",
        "version": "0.1.0",  # Of the protocol.
        "release": signalhub.__version__,
        "native": native.STATUS,
        "timestamp": clock.now_ms(),
    }


async def test_1_1_websocket_upgrades_on_two_paths_and_takes_no_extension(
    socket_stage: InProcess,
) -> None:
    offers: list[tuple[str, dict[str, str]]] = [
        *(("/ws", {}), ("/", {}), ("/ws?token=abc&x=1", {}), ("/?actor=a", {})),
        ("/ws", {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"}),
        ("/ws", {"Connection": "keep-alive, Upgrade"}),
    ]

    for host in ("127.0.0.1", "::1"):
        for path, headers in offers:
            peer = await socket_stage.call(host)
            # `upgrade` itself checks that no extension comes back.
            await peer.upgrade(path, headers)
            assert peer.protocol is None
            assert (await peer.connect())["type"] == "hub:connected", (path, headers)


async def test_r67_the_hubs_sub_protocol_or_the_first_one_offered_is_selected(
    socket_stage: InProcess,
) -> None:
    token = "token.eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmF0dXJl"
    offers = {
        "signalhub.v1": "signalhub.v1",
        "chat, signalhub.v1": "signalhub.v1",
        "chat , superchat": "chat",
        f"{token}, signalhub.v1": "signalhub.v1",
        f"{token}, chat": "chat",
        token: None,
        "": None,
        'a b, "c", ' + "x" * 200: None,
    }

    for offer, selected in offers.items():
        peer = await socket_stage.dial(headers={"Sec-WebSocket-Protocol": offer})
        assert peer.protocol == selected, offer
        assert (await peer.connect())["type"] == "hub:connected"


async def test_1_1_other_requests_are_told_to_upgrade_or_not_found(socket_stage: InProcess) -> None:
    for path in ("/ws", "/", "/ws?a=b"):
        answer = await socket_stage.get(path)
        assert (answer.status, bool(answer.body)) == (426, True), path
    for path in ("/health/", "/ws/", "/connect", "/WS", "/favicon.ico"):
        for headers in ({}, UPGRADE):
            answer = await socket_stage.get(path, headers=headers)
            assert (answer.status, bool(answer.body)) == (404, True), path


async def test_1_1_upgrade_needs_a_key_and_the_right_version(socket_stage: InProcess) -> None:
    without_key = await rejection(socket_stage, Sec_WebSocket_Key="short")
    other_version = await rejection(socket_stage, Sec_WebSocket_Version="8")

    assert without_key.status == 400
    assert other_version.status == 426
    assert other_version.headers["sec-websocket-version"] == "13"


async def test_1_1_no_token_at_http_level_authenticates() -> None:
    secret = "a secret of more than sixteen bytes"
    headers = {"Authorization": "Bearer x", "Cookie": "token=x", "X-Auth-Token": "x"}
    async with run_stage(auth={"enabled": True, "secret": secret}) as stage:
        peer = await stage.dial("/ws?authToken=x", headers)

        assert code_of(await peer.connect()) == "unauthorized"


async def test_1_1_socket_without_hello_is_closed_at_the_deadline() -> None:
    async with run_stage(hello_s=0.2) as stage:
        connected = await stage.connect()
        silent = await stage.dial()

        assert await silent.until_closed() == 1008
        await connected.nothing_more()


def heartbeat(peer: Peer, number: int = 5) -> tuple[str, bytes]:
    """The id and the bytes of a heartbeat."""
    message = peer.envelope("hub:heartbeat", {"timestamp": number, "text": "grüße"})
    return message["id"], json.dumps(message).encode()


async def test_1_2_binary_frame_is_read_like_text_and_answered_with_text(
    socket_stage: InProcess,
) -> None:
    peer = await socket_stage.connect()
    message_id, text = heartbeat(peer)

    peer.write(frames.masked_frame(frames.BINARY, text))

    frame = await peer.receive_frame()
    assert frame.opcode == frames.TEXT
    assert json.loads(frame.payload)["correlationId"] == message_id


async def test_1_2_fragments_are_one_message_and_pings_between_them_are_answered_at_once(
    socket_stage: InProcess,
) -> None:
    peer = await socket_stage.connect()
    message_id, text = heartbeat(peer)
    *first, last = frames.fragments(text, 1, 2, 40)

    for piece in first:
        peer.write(piece + frames.masked_frame(frames.PING, b"are you there"))
        assert await peer.receive_frame() == frames.Frame(frames.PONG, b"are you there")
    peer.write(last)

    assert (await peer.receive("hub:heartbeat_ack"))["correlationId"] == message_id


async def test_1_2_several_messages_in_one_packet_are_answered_in_order(
    socket_stage: InProcess,
) -> None:
    peer = await socket_stage.connect()
    messages = [heartbeat(peer, number) for number in range(5)]

    peer.write(b"".join(frames.masked_frame(frames.TEXT, text) for _, text in messages))

    assert [(await peer.receive())["correlationId"] for _ in messages] == [
        message_id for message_id, _ in messages
    ]


@pytest.mark.also_over_sockets
async def test_1_2_raw_ping_is_answered_with_raw_pong_before_and_after_hello(stage: Stage) -> None:
    peer = await stage.dial()

    for _ in range(2):
        peer.send_text(PING)
        assert await peer.receive_text() == PONG
        await peer.connect()


@pytest.mark.parametrize(
    "text",
    ['{"type": "ping"}', ' {"type":"ping"}', '{"type":"ping"} ', '{"type":"PING"}'],
)
async def test_1_2_raw_ping_with_anything_else_is_a_malformed_envelope(
    stage: Stage, text: str
) -> None:
    peer = await stage.connect()

    peer.send_text(text)

    assert code_of(await peer.receive()) == "internal_error"
    await peer.nothing_more()


async def test_1_2_raw_ping_costs_no_token_and_renews_no_lease(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=1, message_burst=2) as stage:
        peer, other = await stage.join("@(local/a)"), await stage.connect()

        clock.advance(299)
        for _ in range(5):
            peer.send_text(PING)
            assert await peer.receive_text() == PONG
        clock.advance(1)

        reply = await other.ask_actor("@(local/a)", "note")
        assert reply["type"] == "hub:unknown_actor"
        assert (await peer.ask("hub:queue_stats"))["type"] == "hub:queue_stats_response"


async def test_1_3_close_of_a_client_is_answered_with_its_code(socket_stage: InProcess) -> None:
    peer = await socket_stage.connect()

    peer.close(1000)

    assert await peer.until_closed() == 1000


async def test_1_3_nothing_is_served_after_the_goodbye(socket_stage: InProcess) -> None:
    peer = await socket_stage.connect()
    peer.answers_close = False

    peer.send("hub:disconnect", pattern="ask")
    peer.send("hub:heartbeat")

    assert (await peer.receive())["type"] == "hub:disconnect"
    assert await peer.close_frame() == 1000
    peer.hang_up()
    with pytest.raises(Closed):
        await peer.receive()
