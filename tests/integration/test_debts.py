"""Clients that do not read: what they cost the hub, and who has to go when it is too much."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from signalhub import native
from signalhub.server.sockets.picows import Intake
from signalhub.wire.envelope import RAW_PING
from signalhub.wire.frames import Opcode
from tests.support.process.machine import resident_bytes
from tests.support.socket.bystanders import bystanders
from tests.support.socket.frames import masked_frame
from tests.support.socket.peer import Peer
from tests.support.socket.slow_readers import stop_reading
from tests.support.socket.stage import (
    SMALL_BUFFER,
    InProcess,
    Stage,
    eventually,
    run_stage,
    spawn_stage,
)
from tests.support.volume import volume

SILENT = volume(100, 1_000)
LARGE = "x" * 1_000_000
TENTH = "x" * 100_000
PUBLISHED = 4
# The messages themselves, what each transport holds, and what allocators keep.
GROWTH_MAX = 60_000_000 + SILENT * 100_000
ROOM = {"X-Room-ID": "quiet", "X-Pseudonym-ID": "x"}
SEALED = base64.urlsafe_b64encode(b"x" * 40_000).decode().rstrip("=")
POSTED = 100


async def silent_sockets(stage: Stage, count: int, path: str = "/ws") -> list[Peer]:
    """Sockets that read nothing any more."""
    peers = []
    for number in range(count):
        if path == "/ws":
            peer = await stage.join(f"@(silent/{number})", receive_bytes=SMALL_BUFFER)
            await peer.ask("hub:subscribe", {"topic": "news"})
        else:
            peer = await stage.dial(path, ROOM, receive_bytes=SMALL_BUFFER)
        peer.pause()
        peers.append(peer)
    return peers


async def test_what_silent_subscribers_wait_for_is_kept_once() -> None:
    async with spawn_stage(connection_rate=0, message_rate=0) as stage:
        sender = await stage.join("@(news/desk)")
        async with bystanders(stage) as pair:
            await silent_sockets(stage, SILENT)
            before = resident_bytes(stage.hub.pid)
            for _ in range(PUBLISHED):
                await sender.ask(
                    "hub:publish", {"topic": "news", "type": "news", "data": LARGE}, pattern="ask"
                )
                await pair.go_on(20)

            assert resident_bytes(stage.hub.pid) - before < GROWTH_MAX
            waiting = await stage.metric("signal_hub_outbound_bytes")
            assert len(LARGE) <= waiting < 2 * PUBLISHED * len(LARGE) + SILENT * 40_000
            assert await stage.metric("signal_hub_outbound_closed_total") == 0


async def test_what_silent_sockets_of_a_room_wait_for_is_kept_once() -> None:
    async with spawn_stage(connection_rate=0) as stage:
        speaker = await stage.dial("/room", ROOM)
        async with bystanders(stage) as pair:
            await silent_sockets(stage, SILENT, "/room")
            before = resident_bytes(stage.hub.pid)
            for number in range(POSTED):
                message = {"action": "send", "messageId": f"m{number}", "ciphertext": SEALED}
                speaker.send_text(json.dumps(message))
                while json.loads(await speaker.receive_text())["action"] != "ack":
                    pass
            await pair.go_on(20)

            assert resident_bytes(stage.hub.pid) - before < GROWTH_MAX
            assert await stage.metric("signal_hub_outbound_closed_total") == 0


async def test_who_owes_most_is_closed_first_when_too_much_waits() -> None:
    outbound = {"total_bytes_max": 4_000_000, "stalled_s": 60}
    async with run_stage(outbound=outbound, message_rate=0) as stage, bystanders(stage) as pair:
        sender = await stage.join("@(news/desk)")
        small = await stop_reading(stage, "@(silent/small)")
        large = await stop_reading(stage, "@(silent/large)")
        writer, tally = stage.hub.app.runner.writer, stage.hub.app.hub.tally

        # The kernel takes the first few.
        for _ in range(30):
            sender.tell("@(silent/small)", "note", TENTH)
        for _ in range(80):
            sender.tell("@(silent/large)", "note", TENTH)
            await asyncio.sleep(0)
        await eventually(lambda: tally.debtors_closed == 1)
        await pair.go_on(20)

        large.resume()
        assert await large.until_closed() is None
        assert writer.waiting_bytes <= outbound["total_bytes_max"]
        small.resume()
        for _ in range(30):
            assert (await small.receive("note"))["payload"] == TENTH
        await eventually(lambda: writer.waiting_bytes < 100_000)
        assert tally.debtors_closed == 1


def read_buffer(stage: InProcess) -> int:
    """The free part of the largest read buffer of picows."""
    connections = stage.hub.app.runner.connections
    protocols: list[Any] = [one._transport.get_protocol() for one in connections]
    parsers = [one.parser if isinstance(one, Intake) else one for one in protocols]
    return max(len(parser.get_buffer(-1)) for parser in parsers)


@pytest.mark.usefixtures("picows_reads")
async def test_a_read_buffer_shrinks_after_a_large_message_and_nothing_is_lost() -> None:
    async with run_stage() as stage:
        hearer = await stage.join("@(some/body)")
        peer = await stage.join("@(large/one)")
        note = {"to": "@(some/body)", "type": "note", "data": LARGE}
        small = read_buffer(stage)

        for _ in range(2):
            peer.send("hub:send", note, pattern="tell")
            assert (await hearer.receive("note"))["payload"] == LARGE
            assert read_buffer(stage) > 100 * small
            await eventually(lambda: read_buffer(stage) == small)
            assert (await peer.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"

        # A frame that stops in the middle keeps the buffer.
        ping = masked_frame(Opcode.TEXT, RAW_PING)
        peer.send("hub:send", note, pattern="tell")
        peer.write(ping * 3 + ping[:-3])
        await hearer.receive("note")
        await asyncio.sleep(1.5)
        assert read_buffer(stage) > 100 * small
        peer.write(ping[-3:])
        await eventually(lambda: read_buffer(stage) == small)
        assert [await peer.receive_text() for _ in range(4)] == ['{"type":"pong"}'] * 4


@pytest.mark.usefixtures("picows_reads")
async def test_a_read_buffer_shrinks_also_after_many_small_messages() -> None:
    async with run_stage() as stage:
        hearer = await stage.join("@(some/body)")
        peer = await stage.join("@(busy/one)")
        small = read_buffer(stage)

        for _ in range(200):
            peer.tell("@(some/body)", "note", "")
            await hearer.receive("note")
        peer.tell("@(some/body)", "note", "x" * 200_000)
        await hearer.receive("note")
        assert read_buffer(stage) > 50 * small

        await eventually(lambda: read_buffer(stage) == small)


@pytest.mark.skipif(not native.IS_ON, reason="needs the native part")
async def test_the_native_part_keeps_no_memory_of_a_large_message() -> None:
    async with run_stage() as stage:
        hearer = await stage.join("@(some/body)")
        peer = await stage.join("@(large/one)")
        readers: list[Any] = [
            one._reader  # type: ignore[attr-defined]
            for one in stage.hub.app.runner.connections
        ]

        note = {"to": "@(some/body)", "type": "note", "data": LARGE}
        peer.send("hub:send", note, pattern="tell")
        peer.write(masked_frame(Opcode.TEXT, RAW_PING)[:-3])
        assert (await hearer.receive("note"))["payload"] == LARGE

        assert len(readers) == 2
        assert max(reader.held_bytes for reader in readers) < 10_000


def begun_frame(number: int) -> bytes:
    """Each takes 8 or 16 MiB, and the hub does not see what it would say."""
    return masked_frame(Opcode.TEXT, b"x" * 7_500_000)[: 2_000_000 + 1_000_000 * number]


def begun_fragments(number: int) -> bytes:
    """The last fragment never comes."""
    fragment = masked_frame(Opcode.CONTINUATION, b"x" * 50_000, fin=False)
    return masked_frame(Opcode.TEXT, fin=False) + fragment * 100


@pytest.mark.parametrize("begun", [begun_frame, begun_fragments])
async def test_large_messages_that_are_never_finished_are_a_debt(
    begun: Callable[[int], bytes],
) -> None:
    outbound = {"total_bytes_max": 16 * 2**20}
    async with run_stage(outbound=outbound, message_rate=0) as stage, bystanders(stage) as pair:
        writer, tally = stage.hub.app.runner.writer, stage.hub.app.hub.tally
        honest = await stage.join("@(an/honest)")
        peers = [await stage.join(f"@(large/{number})") for number in range(6)]

        for number, peer in enumerate(peers):
            peer.write(begun(number))
            await pair.go_on(5)
        await eventually(lambda: tally.debtors_closed >= 3)
        await eventually(lambda: writer.waiting_bytes <= outbound["total_bytes_max"])

        assert (await honest.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"
        assert tally.debtors_closed < len(peers)
        for peer in peers:
            peer.abort()
        await eventually(lambda: writer.waiting_bytes < 100_000)
