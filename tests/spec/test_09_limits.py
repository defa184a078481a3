"""Section 9 and ruling 15: the numbers, and messages around the size limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.peer import Peer, code_of
from tests.support.socket import frames
from tests.support.socket.bystanders import bystanders
from tests.support.socket.stage import InProcess
from tests.support.socket.stage import run_stage as run_socket_stage
from tests.support.stage import Stage, addresses

MESSAGE_BYTES_MAX = 1_048_576
FORWARDED_BYTES_MAX = MESSAGE_BYTES_MAX - 1024
FRAME_BYTES_MAX = 8 * 1_048_576


def note_of(peer: Peer, to: str, size: int) -> bytes:
    """A `hub:send` whose frame has exactly `size` bytes."""
    message = peer.envelope("hub:send", {"to": to, "type": "note", "data": ""}, pattern="ask")
    empty = json.dumps(message)
    filled = empty.replace('"data": ""', '"data": "' + "x" * (size - len(empty)) + '"')
    assert len(filled) == size
    return filled.encode()


@pytest.mark.parametrize("size", [900 * 1024, FORWARDED_BYTES_MAX - 1, FORWARDED_BYTES_MAX])
async def test_9_2_message_up_to_the_limit_is_delivered(stage: Stage, size: int) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    frame = note_of(sender, "@(local/b)", size)

    sender.send_text(frame)

    heard = await target.receive("note")
    assert heard["payload"] == json.loads(frame)["payload"]["data"]
    assert len(json.dumps(heard)) <= MESSAGE_BYTES_MAX
    await sender.receive("hub:delivery_ack")


@pytest.mark.parametrize("type", ["hub:send", "hub:publish", "hub:broadcast"])
@pytest.mark.parametrize("size", [FORWARDED_BYTES_MAX + 1, MESSAGE_BYTES_MAX])
async def test_9_2_a_message_that_would_be_delivered_above_the_limit_is_refused(
    stage: Stage, type: str, size: int
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    frame = note_of(sender, "@(local/b)", size - len(type) + len("hub:send"))
    frame = frame.replace(b"hub:send", type.encode())

    sender.send_text(frame)

    reply = await sender.receive()
    assert code_of(reply) == "message_too_large"
    assert reply["payload"]["details"] == {"actualSize": size, "maxSize": FORWARDED_BYTES_MAX}
    await target.nothing_more()


@pytest.mark.parametrize(
    "size", [MESSAGE_BYTES_MAX + 1, 2 * MESSAGE_BYTES_MAX, FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX]
)
async def test_9_2_message_above_the_limit_is_refused_and_the_socket_stays(
    stage: Stage, size: int
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    frame = note_of(sender, "@(local/b)", size)

    sender.send_text(frame)

    reply = await sender.receive()
    assert code_of(reply) == "message_too_large"
    assert reply["payload"]["retryable"] is False
    assert reply["payload"]["details"] == {"actualSize": size, "maxSize": MESSAGE_BYTES_MAX}
    message = json.loads(frame)
    assert (reply["to"], reply["correlationId"]) == (message["from"], message["id"])
    await sender.nothing_more()
    await target.nothing_more()
    assert (await sender.ask("hub:disconnect"))["payload"]["acknowledged"] is True


async def test_9_2_bytes_are_counted_and_not_characters(stage: Stage) -> None:
    sender = await stage.join("@(local/a)")
    message = sender.envelope(
        "hub:send", {"to": "@(local/a)", "type": "note", "data": "ß" * 524_288}
    )

    sender.send_text(json.dumps(message, ensure_ascii=False))

    assert code_of(await sender.receive()) == "message_too_large"


async def test_9_2_frames_above_the_hard_cap_are_closed_with_1009(socket_stage: InProcess) -> None:
    target = await socket_stage.join("@(local/b)")

    async with bystanders(socket_stage):
        for size in (FRAME_BYTES_MAX + 1, 2 * FRAME_BYTES_MAX):
            sender = await socket_stage.join("@(local/a)")
            sender.send_text(note_of(sender, "@(local/b)", size))
            assert await sender.until_closed() == 1009
        in_pieces = await socket_stage.join("@(local/a)")
        frame = note_of(in_pieces, "@(local/b)", FRAME_BYTES_MAX + 1)
        for piece in frames.fragments(frame, *range(1_000_000, FRAME_BYTES_MAX, 1_000_000)):
            in_pieces.write(piece)
        assert await in_pieces.until_closed() == 1009
        # The announced length alone is enough.
        announced = await socket_stage.connect()
        announced.write(b"\x81\xff" + (2**40).to_bytes(8, "big") + frames.MASK)
        assert await announced.until_closed() == 1009

    await target.nothing_more()
    assert "@(local/a)" not in await addresses(target)


async def test_9_2_r15_fragments_count_together_and_have_no_limit_of_their_own(
    socket_stage: InProcess,
) -> None:
    sender = await socket_stage.join("@(local/a)")
    too_large = note_of(sender, "@(local/a)", MESSAGE_BYTES_MAX + 1)
    fits = note_of(sender, "@(local/a)", FORWARDED_BYTES_MAX)

    for piece in frames.fragments(too_large, 500_000, 900_000):
        sender.write(piece)
    assert code_of(await sender.receive()) == "message_too_large"
    for piece in frames.fragments(fits, *range(10_000, len(fits), 10_000)):
        sender.write(piece)

    heard = await sender.receive("note")
    assert heard["payload"] == json.loads(fits)["payload"]["data"]


async def test_9_2_before_hello_the_limit_is_smaller(socket_stage: InProcess) -> None:
    peer = await socket_stage.dial()

    peer.send_text(b" " * MESSAGE_BYTES_MAX)

    assert await peer.until_closed() == 1009


async def test_9_1_limits_are_configurable() -> None:
    async with run_socket_stage(message_bytes_max=1000, frame_bytes_max=2000) as stage:
        peer = await stage.dial()
        assert (await peer.connect())["payload"]["maxMessageSize"] == 1000

        peer.send_text(b"x" * 1001)
        assert code_of(await peer.receive()) == "message_too_large"
        peer.send_text(b"x" * 2001)
        assert await peer.until_closed() == 1009


@pytest.mark.parametrize("size", [1_000, 100_000])
@pytest.mark.parametrize(
    ("type", "payload", "is_refused"),
    [
        ("hub:register", {"actorAddress": "NAME", "capabilities": []}, True),
        ("hub:register", {"actorAddress": "@(a/b)", "capabilities": ["NAME"]}, True),
        (
            "hub:register",
            {"actorAddress": "@(a/b)", "capabilities": [], "metadata": {"NAME": "NAME" * 9}},
            True,
        ),
        ("hub:unregister", {"actorAddress": "NAME"}, False),
        ("hub:renew", {"renewalToken": "NAME"}, False),
        ("hub:refresh_token", {"token": "NAME"}, True),
        ("hub:discover", {"pattern": "NAME"}, True),
        ("hub:discover", {"pattern": "*", "capability": "NAME"}, False),
        ("hub:send", {"to": "NAME", "type": "x"}, True),
        ("hub:send", {"to": "@(local/bad)", "type": "NAME"}, True),
        ("hub:broadcast", {"type": "NAME"}, True),
        ("hub:subscribe", {"topic": "NAME"}, True),
        ("hub:unsubscribe", {"topic": "NAME"}, False),
        ("hub:unsubscribe", {"subscriptionId": "NAME"}, False),
        ("hub:publish", {"topic": "NAME", "type": "x"}, True),
        ("hub:publish", {"topic": "news", "type": "NAME"}, True),
        ("NAME", None, True),
    ],
    ids=lambda part: str(part)[:60],
)
async def test_9_1_huge_names_are_answered_and_not_multiplied(
    stage: Stage, type: str, payload: object, is_refused: bool, size: int
) -> None:
    peer = await stage.join("@(local/bad)")
    name = "@(" + "n" * size + ")"
    given: Any = json.loads(json.dumps(payload).replace("NAME", name))

    reply = await peer.ask(type.replace("NAME", name), given)

    assert (reply["type"] == "hub:error") is is_refused
    assert len(json.dumps(reply)) < size + 2_000
    await peer.nothing_more()


@pytest.mark.parametrize("stars", [10, 100])
async def test_9_1_patterns_that_would_explode_do_not(stage: Stage, stars: int) -> None:
    peer = await stage.join("@(" + "a" * 200 + "/b)")

    assert await addresses(peer, "*a" * stars + "*c") == []
