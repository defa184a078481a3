"""Section 9: the numbers, and messages around the size limit."""

from __future__ import annotations

import json

import pytest

from tests.support.socket import frames
from tests.support.socket.bystanders import bystanders
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


MESSAGE_BYTES_MAX = 1_048_576
FRAME_BYTES_MAX = 8 * 1_048_576


def note_of(peer: Peer, to: str, size: int) -> bytes:
    """A `hub:send` whose frame has exactly `size` bytes."""
    message = peer.envelope("hub:send", {"to": to, "type": "note", "data": ""}, pattern="ask")
    empty = json.dumps(message)
    filled = empty.replace('"data": ""', '"data": "' + "x" * (size - len(empty)) + '"')
    assert len(filled) == size
    return filled.encode()


@pytest.mark.parametrize("size", [900 * 1024, MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX])
async def test_9_2_message_up_to_the_limit_is_delivered(stage: InProcess, size: int) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    frame = note_of(sender, "@(local/b)", size)

    sender.send_text(frame)

    heard = await target.receive("note")
    assert heard["payload"] == json.loads(frame)["payload"]["data"]
    await sender.receive("hub:delivery_ack")


@pytest.mark.parametrize(
    "size", [MESSAGE_BYTES_MAX + 1, 2 * MESSAGE_BYTES_MAX, FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX]
)
async def test_9_2_message_above_the_limit_is_refused_and_the_socket_stays(
    stage: InProcess, size: int
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    async with bystanders(stage):
        sender.send_text(note_of(sender, "@(local/b)", size))
        reply = await sender.receive()

    assert code_of(reply) == "message_too_large"
    assert reply["payload"]["details"] == {"actualSize": size, "maxSize": MESSAGE_BYTES_MAX}
    await sender.nothing_more()
    await target.nothing_more()
    assert (await sender.ask("hub:disconnect"))["payload"]["acknowledged"] is True


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 2 * FRAME_BYTES_MAX])
async def test_9_2_frame_above_the_hard_cap_is_closed_with_1009(
    stage: InProcess, size: int
) -> None:
    sender, target = await stage.join("@(local/a)"), await stage.join("@(local/b)")

    async with bystanders(stage):
        sender.send_text(note_of(sender, "@(local/b)", size))
        assert await sender.until_closed() == 1009

    await target.nothing_more()
    assert "@(local/a)" not in await addresses(target)


async def test_9_2_bytes_are_counted_and_not_characters(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")
    message = sender.envelope(
        "hub:send", {"to": "@(local/a)", "type": "note", "data": "ß" * 524_288}
    )

    sender.send_text(json.dumps(message, ensure_ascii=False))

    assert code_of(await sender.receive()) == "message_too_large"


async def test_9_2_fragments_count_together(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")
    frame = note_of(sender, "@(local/a)", MESSAGE_BYTES_MAX + 1)

    for piece in frames.fragments(frame, 500_000, 900_000):
        sender.write(piece)

    assert code_of(await sender.receive()) == "message_too_large"
    await sender.nothing_more()


async def test_9_2_fragments_above_the_hard_cap_are_closed_with_1009(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")
    frame = note_of(sender, "@(local/a)", FRAME_BYTES_MAX + 1)

    async with bystanders(stage):
        for piece in frames.fragments(frame, *range(1_000_000, FRAME_BYTES_MAX, 1_000_000)):
            sender.write(piece)
        assert await sender.until_closed() == 1009


async def test_9_2_announced_length_alone_is_enough_to_be_closed(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.write(b"\x81\xff" + (2**40).to_bytes(8, "big") + frames.MASK)

    assert await peer.until_closed() == 1009


async def test_9_2_before_hello_the_limit_is_smaller(stage: InProcess) -> None:
    peer = await stage.dial()

    peer.send_text(b" " * MESSAGE_BYTES_MAX)

    assert await peer.until_closed() == 1009


async def test_9_1_limits_are_configurable() -> None:
    async with run_stage(message_bytes_max=1000, frame_bytes_max=2000) as stage:
        peer = await stage.dial()
        assert (await peer.connect())["payload"]["maxMessageSize"] == 1000

        peer.send_text(b"x" * 1001)
        assert code_of(await peer.receive()) == "message_too_large"
        peer.send_text(b"x" * 2001)
        assert await peer.until_closed() == 1009


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:register", {"actorAddress": "@(" + "x" * 100_000 + ")", "capabilities": []}),
        ("hub:register", {"actorAddress": "@(a/b)", "capabilities": ["x" * 100_000]}),
        ("hub:subscribe", {"topic": "x" * 100_000}),
        ("hub:publish", {"topic": "x" * 100_000, "type": "note"}),
        ("hub:publish", {"topic": "news", "type": "x" * 100_000}),
        ("hub:send", {"to": "@(local/a)", "type": "x" * 100_000}),
        ("hub:discover", {"pattern": "*a" * 50_000}),
    ],
    ids=lambda part: str(part)[:40],
)
async def test_9_1_huge_names_are_refused(stage: InProcess, type: str, payload: object) -> None:
    peer = await stage.join("@(local/a)")

    reply = await peer.ask(type, payload)

    assert code_of(reply) == "internal_error"
    assert len(str(reply)) < 10_000
    await peer.nothing_more()


@pytest.mark.parametrize("member", ["id", "from", "to", "type"])
async def test_9_1_huge_members_of_the_envelope_are_refused(stage: InProcess, member: str) -> None:
    peer = await stage.connect()

    peer.send("hub:queue_stats", None, **{member: "@(" + "x" * 100_000 + ")"})

    reply = await peer.receive()
    assert code_of(reply) == "internal_error"
    assert len(str(reply)) < 10_000
    await peer.nothing_more()


async def test_9_1_huge_unknown_target_is_answered_briefly(stage: InProcess) -> None:
    peer = await stage.connect()

    reply = await peer.ask_actor("@(" + "x" * 100_000 + ")", "note")

    assert len(str(reply)) < 10_000
    await peer.nothing_more()


async def test_9_1_subscriptions_of_a_session_are_limited() -> None:
    async with run_stage(subscriptions_max=3) as stage:
        peer = await stage.join("@(local/a)")
        for topic in ("a", "b", "c"):
            await peer.ask("hub:subscribe", {"topic": topic})

        assert code_of(await peer.ask("hub:subscribe", {"topic": "d"})) == "limit_exceeded"
        assert (await peer.ask("hub:subscribe", {"topic": "a"}))["type"] == "hub:subscribed"
        await peer.ask("hub:unsubscribe", {"topic": "a"})
        assert (await peer.ask("hub:subscribe", {"topic": "d"}))["type"] == "hub:subscribed"
