"""Input that is wrong in every way there is, beside two actors who must not notice."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.support import peer as peers
from tests.support.peer import Closed, code_of
from tests.support.socket import frames
from tests.support.socket.bystanders import Bystanders, bystanders
from tests.support.socket.peer import Peer, upgrade_request
from tests.support.socket.stage import InProcess, run_stage
from tests.support.stage import Stage

NESTED = 10_000
TARGET = "@(local/target)"


@pytest.fixture
async def crowd(socket_stage: InProcess) -> AsyncIterator[Bystanders]:
    """Two actors who talk while the test misbehaves."""
    async with bystanders(socket_stage) as pair:
        yield pair


@pytest.fixture
async def peer(socket_stage: InProcess, crowd: Bystanders) -> Peer:
    """The one who misbehaves, registered as `@(local/bad)`."""
    return await socket_stage.join("@(local/bad)")


async def outcome(peer: peers.Peer) -> tuple[list[str], int | None]:
    """The codes of all errors, and the close code if the socket was closed."""
    codes: list[str] = []
    marker = peer.send("hub:heartbeat") if peer.is_open else ""
    try:
        while (message := await peer.receive())["correlationId"] != marker:
            codes.append(code_of(message))
    except Closed as closed:
        return codes, closed.code
    return codes, None


# Text that is not UTF-8.

INVALID_UTF8 = (b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80")
PLACES = {
    "id": b'"ID"',
    "from": b'"@(local/FROM)"',
    "type": b'"TYPE"',
    "data": b'"DATA"',
    "key": b'"KEY"',
    "metadata": b'"METADATA"',
    "end": b"}",
}


@pytest.mark.parametrize("type", ["hub:send", "hub:publish", "hub:broadcast"])
async def test_invalid_utf8_anywhere_is_closed_and_reaches_nobody(
    socket_stage: InProcess, crowd: Bystanders, type: str
) -> None:
    target = await socket_stage.join(TARGET)
    await target.ask("hub:subscribe", {"topic": "news"})
    payload = {"to": TARGET, "topic": "news", "type": "TYPE", "data": {"KEY": "DATA"}}
    metadata = {"custom": "METADATA", "targetCapability": "none"}

    for place, mark in PLACES.items():
        for invalid in INVALID_UTF8:
            peer = await socket_stage.connect()
            message = peer.envelope(
                type, payload, id="ID", sender="@(local/FROM)", metadata=metadata
            )
            text = json.dumps(message).encode()
            at = text.rindex(mark) + 1
            opcode = frames.BINARY if invalid == b"\x80" else frames.TEXT
            peer.write(frames.masked_frame(opcode, text[:at] + invalid + text[at:]))
            assert await outcome(peer) == ([], 1007), (place, invalid)
    await target.nothing_more()


async def test_half_a_surrogate_pair_is_refused_and_the_socket_stays(stage: Stage) -> None:
    peer = await stage.connect()

    for place in ("id", "from", "type", "payload"):
        message = json.dumps(peer.envelope("hub:heartbeat", None, **{place: "@(HERE)"}))
        peer.send_text(message.replace("HERE", "\\ud800"))
        assert await outcome(peer) == (["internal_error"], None)


# JSON that is nested deeply.


@pytest.mark.parametrize("place", ["frame", "payload", "data", "metadata", "register", "extra"])
@pytest.mark.parametrize(
    ("opening", "closing"),
    [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), ("[", "")],
    ids=["arrays", "objects", "both", "unfinished"],
)
async def test_deep_nesting_is_refused(
    stage: Stage, opening: str, closing: str, place: str
) -> None:
    target, peer = await stage.join(TARGET), await stage.connect()
    to_target = {"to": TARGET, "type": "x"}
    metadata = {"via": 1, "traceId": "t", "deep": "HERE"}
    profile = {"actorAddress": "@(a/b)", "capabilities": [], "metadata": {"deep": "HERE"}}
    message = {
        "frame": "HERE",
        "payload": peer.envelope("hub:heartbeat", "HERE"),
        "data": peer.envelope("hub:send", to_target | {"data": "HERE"}),
        "metadata": peer.envelope("hub:send", to_target, metadata=metadata),
        "register": peer.envelope("hub:register", profile),
        "extra": peer.envelope("hub:heartbeat", extra="HERE"),
    }[place]

    deep = opening * NESTED + "1" + closing * NESTED
    peer.send_text(json.dumps(message).replace('"HERE"', deep))

    refusals = [(["malformed_message"], 1011), (["internal_error"], None)]
    assert await outcome(peer) in refusals
    await target.nothing_more()


@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_nesting_of_any_depth_is_delivered_or_refused_but_never_a_fault(
    stage: Stage, pattern: str
) -> None:
    payload = {"to": "@(local/bad)", "type": "x", "data": "HERE"}
    metadata = {"via": 1, "traceId": "t", "deep": "HERE"}

    # Where the interpreter gives up depends on how deep in calls the hub is.
    for depth in (50, 200, 400, 600, 800, *range(900, 1000, 3), 1100):
        peer = await stage.join("@(local/bad)")
        message = peer.envelope("hub:send", payload, metadata=metadata, pattern=pattern)
        deep = "[" * depth + "1" + "]" * depth
        peer.send_text(json.dumps(message).replace('"HERE"', deep))
        try:
            text = await peer.receive_text()
            assert '"type":"x"' in text or '"code":"' in text
        except Closed as closed:
            assert closed.code == 1011  # noqa: PT017


# Messages that pretend, and many of them.


@pytest.mark.also_over_sockets
async def test_forged_senders_and_ids_confuse_nobody(stage: Stage) -> None:
    victim, peer = await stage.join("@(local/victim)"), await stage.join("@(local/bad)")

    await peer.ask("hub:heartbeat", sender="@(local/victim)")
    peer.send("hub:unregister", None, sender="@(local/victim)")
    peer.send("hub:unsubscribe", {"topic": "news"}, sender="@(local/victim)")
    peer.send("hub:disconnect", sender="@(local/victim)", pattern="ask")

    assert (await peer.receive("hub:disconnect"))["to"] == "@(local/victim)"
    await victim.nothing_more()
    assert (await victim.ask_actor("@(local/victim)", "x"))["type"] == "hub:delivery_ack"


# Frames.

BROKEN_FRAMES = {
    "reserved bits": frames.masked_frame(frames.TEXT, b"{}", rsv=4),
    "reserved opcode": frames.masked_frame(0x3, b"{}"),
    "reserved control opcode": frames.masked_frame(0xB, b"{}"),
    "continuation of nothing": frames.masked_frame(frames.CONTINUATION, b"{}"),
    "fragmented ping": frames.masked_frame(frames.PING, b"", fin=False),
    "long ping": frames.masked_frame(frames.PING, b"x" * 126),
    "half a close code": frames.masked_frame(frames.CLOSE, b"\x03"),
    "forbidden close code": frames.masked_frame(frames.CLOSE, b"\x03\xec"),
    "unmasked": b"\x81\x02{}",
    "message inside a message": frames.masked_frame(frames.TEXT, b"{", fin=False)
    + frames.masked_frame(frames.TEXT, b"{}"),
}


async def test_broken_frames_are_closed_with_1002_or_1007(
    socket_stage: InProcess, crowd: Bystanders
) -> None:
    no_text = frames.masked_frame(frames.CLOSE, b"\x03\xe8\xff")
    wanted = dict.fromkeys(BROKEN_FRAMES, 1002) | {"reason that is no text": 1007}

    codes = {}
    for name, frame in (BROKEN_FRAMES | {"reason that is no text": no_text}).items():
        peer = await socket_stage.connect()
        peer.write(frame)
        codes[name] = await peer.until_closed()

    assert codes == wanted


async def test_endless_fragments_are_closed_with_1009(socket_stage: InProcess, peer: Peer) -> None:
    piece = frames.masked_frame(frames.CONTINUATION, b"x", fin=False) * 1000
    peer.write(frames.masked_frame(frames.TEXT, b"x", fin=False))

    for _ in range(100):
        peer.write(piece)
        await asyncio.sleep(0)

    assert await peer.until_closed() in (1009, None)
    assert (await socket_stage.health())["status"] == "ok"


async def test_half_a_frame_is_kept_and_one_that_stays_half_is_cleaned_up(
    socket_stage: InProcess, crowd: Bystanders
) -> None:
    other = await socket_stage.connect()

    for cut in (1, 2, 5, 50):
        peer = await socket_stage.join("@(local/bad)")
        message = json.dumps(peer.envelope("hub:queue_stats", None)).encode()
        frame = frames.masked_frame(frames.TEXT, message)
        peer.write(frame[:cut])
        await other.nothing_more()
        peer.write(frame[cut:])
        await peer.receive("hub:queue_stats_response")
        peer.write(frame[:cut])
        peer.hang_up()
        await peer.until_closed()
        assert (await other.ask_actor("@(local/bad)", "x"))["type"] == "hub:unknown_actor"


async def test_random_bytes_after_the_handshake_end_one_socket_only(
    socket_stage: InProcess, crowd: Bystanders
) -> None:
    for seed in range(30):
        peer = await socket_stage.connect()
        peer.write(b"".join(uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}-{n}").bytes for n in range(64)))
        peer.hang_up()
        await peer.until_closed()
    await crowd.go_on()


# Handshakes.


async def test_half_a_handshake_is_ended_at_the_deadline_and_garbage_is_refused() -> None:
    tls, breaks = b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n\r\n\r\n"
    async with run_stage(hello_s=0.3) as stage, bystanders(stage):
        for garbage in (tls, breaks, b"\xff" * 32_000, b"A" * 32_000):
            peer = await stage.call()
            peer.write(garbage + b"\r\n\r\n")
            assert 400 <= (await peer.response()).status < 500
            await peer.until_closed()
        halves = [await stage.call() for _ in range(4)]
        for half, cut in zip(halves, (1, 30, 80, -1), strict=True):
            half.write(upgrade_request()[:cut])
        for half in halves:
            assert (await half.response()).status == 408
            await half.until_closed()
