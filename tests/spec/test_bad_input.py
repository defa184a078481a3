"""Input that is wrong in every way there is, beside two actors who must not notice."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.support.socket import frames
from tests.support.socket.bystanders import Bystanders, bystanders
from tests.support.socket.peer import Closed, Peer, upgrade_request
from tests.support.socket.stage import InProcess, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


NESTED = 10_000
DEPTHS = [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")]


@pytest.fixture
async def crowd(stage: InProcess) -> AsyncIterator[Bystanders]:
    """Two actors who talk while the test misbehaves."""
    async with bystanders(stage) as pair:
        yield pair


@pytest.fixture
async def peer(stage: InProcess, crowd: Bystanders) -> Peer:
    """The one who misbehaves, registered as `@(local/bad)`."""
    return await stage.join("@(local/bad)")


async def outcome(peer: Peer) -> tuple[list[str], int | None]:
    """The codes of all errors, and the close code if the socket was closed."""
    codes: list[str] = []
    marker = peer.send("hub:heartbeat") if peer.is_open else ""
    try:
        while (message := await peer.receive())["correlationId"] != marker:
            codes.append(code_of(message))
    except Closed as closed:
        return codes, closed.code
    return codes, None


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "{",
        '{"id":"1"',
        '{"id":"1",}',
        '{"id":1}}',
        "undefined",
        "-",
        "01",
        '"\\x"',
        '"\n"',
        "[1 2]",
        '{"a" 1}',
        "<xml/>",
        "GET / HTTP/1.1\r\n\r\n",
        "x" * 100_000,
    ],
    ids=lambda text: repr(text)[:20],
)
async def test_what_is_not_json_is_told_so_and_closed(peer: Peer, text: str) -> None:
    peer.send_text(text)

    assert await outcome(peer) == (["malformed_message"], 1011)


@pytest.mark.parametrize("member", ["timestamp", "ttl", "payload", "metadata"])
async def test_numbers_that_are_not_json_are_told_so_and_closed(
    stage: InProcess, crowd: Bystanders, member: str
) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "+1", ".5", "1.", "0x10", "1_000"):
        peer = await stage.connect()
        message = json.dumps(peer.envelope("hub:heartbeat", None, **{member: "HERE"}))

        peer.send_text(message.replace('"HERE"', number))

        assert await outcome(peer) == (["malformed_message"], 1011), number


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
@pytest.mark.parametrize("place", PLACES)
async def test_invalid_utf8_anywhere_is_closed_and_reaches_nobody(
    stage: InProcess, crowd: Bystanders, type: str, place: str
) -> None:
    target = await stage.join("@(local/target)")
    await target.ask("hub:subscribe", {"topic": "news"})
    for invalid in INVALID_UTF8:
        peer = await stage.connect()
        message = peer.envelope(
            type,
            {
                "to": "@(local/target)",
                "topic": "news",
                "type": "TYPE",
                "data": {"KEY": "DATA"},
            },
            id="ID",
            sender="@(local/FROM)",
            metadata={"custom": "METADATA", "targetCapability": "none"},
        )
        text = json.dumps(message).encode()
        at = text.rindex(PLACES[place]) + 1

        peer.send_text(text[:at] + invalid + text[at:])

        assert await outcome(peer) == ([], 1007), invalid
    await target.nothing_more()


async def test_invalid_utf8_in_a_binary_frame_is_closed_too(stage: InProcess, peer: Peer) -> None:
    target = await stage.join("@(local/target)")
    message = json.dumps(
        peer.envelope("hub:send", {"to": "@(local/target)", "type": "x", "data": "HERE"})
    ).encode()

    peer.write(frames.masked_frame(frames.BINARY, message.replace(b"HERE", b"\xff\xfe")))

    assert await outcome(peer) == ([], 1007)
    await target.nothing_more()


async def test_character_cut_by_a_fragment_is_whole_again(peer: Peer) -> None:
    message = json.dumps(
        peer.envelope("hub:send", {"to": "@(local/bad)", "type": "x", "data": "🦉"}),
        ensure_ascii=False,
    ).encode()
    cut = message.index("🦉".encode()) + 2

    for piece in frames.fragments(message, cut, cut + 1):
        peer.write(piece)

    assert (await peer.receive("x"))["payload"] == "🦉"


async def test_half_a_surrogate_pair_is_refused_and_the_socket_stays(peer: Peer) -> None:
    for place in ("id", "from", "type", "payload"):
        message = json.dumps(peer.envelope("hub:heartbeat", None, **{place: "@(HERE)"}))
        peer.send_text(message.replace("HERE", "\\ud800"))
        assert await outcome(peer) == (["internal_error"], None)


@pytest.mark.parametrize(("opening", "closing"), DEPTHS, ids=[opening for opening, _ in DEPTHS])
@pytest.mark.parametrize("place", ["frame", "payload", "data", "metadata", "register", "extra"])
async def test_deep_nesting_is_refused(
    stage: InProcess, peer: Peer, opening: str, closing: str, place: str
) -> None:
    target = await stage.join("@(local/target)")
    deep = opening * NESTED + "1" + closing * NESTED
    message = {
        "frame": '"HERE"',
        "payload": json.dumps(peer.envelope("hub:heartbeat", "HERE")),
        "data": json.dumps(
            peer.envelope("hub:send", {"to": "@(local/target)", "type": "x", "data": "HERE"})
        ),
        "metadata": json.dumps(
            peer.envelope(
                "hub:send",
                {"to": "@(local/target)", "type": "x"},
                metadata={"via": 1, "traceId": "t", "deep": "HERE"},
            )
        ),
        "register": json.dumps(
            peer.envelope(
                "hub:register",
                {"actorAddress": "@(a/b)", "capabilities": [], "metadata": {"deep": "HERE"}},
            )
        ),
        "extra": json.dumps(peer.envelope("hub:heartbeat", extra="HERE")),
    }[place]

    peer.send_text(message.replace('"HERE"', deep))

    codes, closed = await outcome(peer)
    assert (codes, closed) in [(["malformed_message"], 1011), (["internal_error"], None)]
    await target.nothing_more()


@pytest.mark.parametrize("depth", [50, 200, 400, 600, 800, 900, 950, 1000, 1100])
async def test_nesting_of_any_depth_is_delivered_or_refused_but_never_a_fault(
    peer: Peer, depth: int
) -> None:
    deep = "[" * depth + "1" + "]" * depth
    payload = {"to": "@(local/bad)", "type": "x", "data": "HERE"}
    metadata = {"via": 1, "traceId": "t", "deep": "HERE"}
    message = json.dumps(peer.envelope("hub:send", payload, metadata=metadata))

    peer.send_text(message.replace('"HERE"', deep))

    try:
        text = await peer.receive_text()
        assert '"type":"x"' in text or '"code":"' in text
    except Closed as closed:
        assert closed.code == 1011  # noqa: PT017


@pytest.mark.parametrize("size", [1_000, 100_000])
@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:register", {"actorAddress": "NAME", "capabilities": []}),
        ("hub:register", {"actorAddress": "@(a/b)", "capabilities": ["NAME"]}),
        ("hub:register", {"actorAddress": "@(a/b)", "capabilities": [], "metadata": {"NAME": 1}}),
        ("hub:unregister", {"actorAddress": "NAME"}),
        ("hub:renew", {"renewalToken": "NAME"}),
        ("hub:refresh_token", {"token": "NAME"}),
        ("hub:discover", {"pattern": "NAME"}),
        ("hub:discover", {"pattern": "*", "capability": "NAME"}),
        ("hub:send", {"to": "NAME", "type": "x"}),
        ("hub:send", {"to": "@(local/bad)", "type": "NAME"}),
        ("hub:broadcast", {"type": "NAME"}),
        ("hub:subscribe", {"topic": "NAME"}),
        ("hub:unsubscribe", {"topic": "NAME"}),
        ("hub:unsubscribe", {"subscriptionId": "NAME"}),
        ("hub:publish", {"topic": "NAME", "type": "x"}),
        ("NAME", None),
    ],
    ids=lambda part: str(part)[:60],
)
async def test_huge_names_are_answered_and_not_multiplied(
    peer: Peer, type: str, payload: object, size: int
) -> None:
    name = "@(" + "n" * size + ")"
    given = json.loads(json.dumps(payload).replace("NAME", name))

    reply = await peer.ask(type.replace("NAME", name), given)

    assert len(json.dumps(reply)) < size + 2_000
    await peer.nothing_more()


@pytest.mark.parametrize("stars", [10, 100])
async def test_patterns_that_would_explode_do_not(peer: Peer, stars: int) -> None:
    await peer.register("@(" + "a" * 200 + "/b)")

    reply = await peer.ask("hub:discover", {"pattern": "*a" * stars + "*c"})

    assert reply["payload"]["actors"] == []


async def test_forged_senders_and_ids_confuse_nobody(stage: InProcess, peer: Peer) -> None:
    victim = await stage.join("@(local/victim)")

    await peer.ask("hub:heartbeat", sender="@(local/victim)")
    peer.send("hub:unregister", None, sender="@(local/victim)")
    peer.send("hub:unsubscribe", {"topic": "news"}, sender="@(local/victim)")
    peer.send("hub:disconnect", sender="@(local/victim)", pattern="ask")

    assert (await peer.receive("hub:disconnect"))["to"] == "@(local/victim)"
    await victim.nothing_more()
    assert (await victim.ask_actor("@(local/victim)", "x"))["type"] == "hub:delivery_ack"


async def test_unknown_types_by_the_hundred_are_all_answered(peer: Peer) -> None:
    ids = [peer.send(f"hub:unknown-{number}") for number in range(300)]

    for message_id in ids:
        reply = await peer.receive("hub:error")
        assert reply["correlationId"] == message_id


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


@pytest.mark.parametrize("name", BROKEN_FRAMES)
async def test_broken_frames_are_closed_with_1002(peer: Peer, name: str) -> None:
    peer.write(BROKEN_FRAMES[name])

    assert await peer.until_closed() == 1002


async def test_close_with_a_reason_that_is_no_text_is_closed_with_1007(peer: Peer) -> None:
    peer.write(frames.masked_frame(frames.CLOSE, b"\x03\xe8\xff"))

    assert await peer.until_closed() == 1007


async def test_fragments_interleaved_with_pings_and_dribbled_are_one_message(peer: Peer) -> None:
    message = json.dumps(peer.envelope("hub:queue_stats", None)).encode()
    pieces = frames.fragments(message, *range(1, len(message)))

    for piece in pieces[:-1]:
        peer.write(piece + frames.masked_frame(frames.PING, b"?"))
        await asyncio.sleep(0)
    peer.write(pieces[-1])

    pongs = 0
    while (frame := await peer.receive_frame()).opcode == frames.PONG:
        pongs += 1
    assert pongs == len(pieces) - 1
    assert json.loads(frame.payload)["type"] == "hub:queue_stats_response"


async def test_empty_fragments_are_harmless(peer: Peer) -> None:
    message = json.dumps(peer.envelope("hub:queue_stats", None)).encode()

    peer.write(frames.masked_frame(frames.TEXT, b"", fin=False))
    for _ in range(100):
        peer.write(frames.masked_frame(frames.CONTINUATION, b"", fin=False))
    peer.write(frames.masked_frame(frames.CONTINUATION, message))

    await peer.receive("hub:queue_stats_response")


async def test_endless_fragments_are_closed_with_1009(stage: InProcess, peer: Peer) -> None:
    piece = frames.masked_frame(frames.CONTINUATION, b"x", fin=False) * 1000
    peer.write(frames.masked_frame(frames.TEXT, b"x", fin=False))

    for _ in range(100):
        peer.write(piece)
        await asyncio.sleep(0)

    assert await peer.until_closed() in (1009, None)
    assert (await stage.health())["status"] == "ok"


@pytest.mark.parametrize("cut", [1, 30, 80, -1])
async def test_half_finished_handshake_is_ended_at_the_deadline(cut: int) -> None:
    async with run_stage(hello_s=0.3) as stage, bystanders(stage):
        peer = await stage.call()
        peer.write(upgrade_request()[:cut])

        response = await peer.response()

        assert response.status == 408
        await peer.until_closed()


async def test_half_a_frame_and_then_silence_is_kept_and_harms_nobody(
    stage: InProcess, peer: Peer
) -> None:
    message = json.dumps(peer.envelope("hub:queue_stats", None)).encode()
    frame = frames.masked_frame(frames.TEXT, message)

    peer.write(frame[:20])
    other = await stage.connect()
    await other.nothing_more()
    peer.write(frame[20:])

    await peer.receive("hub:queue_stats_response")


@pytest.mark.parametrize("cut", [1, 2, 5, 50])
async def test_socket_that_dies_inside_a_frame_is_cleaned_up(
    stage: InProcess, peer: Peer, cut: int
) -> None:
    frame = frames.masked_frame(frames.TEXT, json.dumps(peer.envelope("hub:heartbeat")).encode())

    peer.write(frame[:cut])
    peer.hang_up()
    await peer.until_closed()

    other = await stage.connect()
    reply = await other.ask_actor("@(local/bad)", "x")
    assert reply["type"] == "hub:unknown_actor"


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n\r\n\r\n", b"\xff" * 32_000, b"A" * 32_000],
    ids=["TLS", "line breaks", "bytes", "letters"],
)
async def test_garbage_instead_of_http_is_refused(garbage: bytes) -> None:
    async with run_stage(hello_s=0.3) as stage, bystanders(stage):
        peer = await stage.call()

        peer.write(garbage + b"\r\n\r\n")

        assert 400 <= (await peer.response()).status < 500
        await peer.until_closed()


async def test_random_bytes_after_the_handshake_end_one_socket_only(
    stage: InProcess, crowd: Bystanders
) -> None:
    for seed in range(30):
        peer = await stage.connect()
        peer.write(b"".join(uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}-{n}").bytes for n in range(64)))
        peer.hang_up()
        await peer.until_closed()
    await crowd.go_on()
