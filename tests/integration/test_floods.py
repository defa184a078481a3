"""Clients that send more than anybody can use, and those who must not notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from signalhub.wire.envelope import RAW_PING
from signalhub.wire.frames import Opcode
from tests.support.socket.bystanders import bystanders
from tests.support.socket.frames import masked_frame
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, eventually, run_stage
from tests.support.volume import IS_SOAK, volume

ROUNDS = volume(20, 2_000)
HELLO = b'{"type":"hub:connect","pattern":"ask","from":"@(x/y)","id":"1","payload":{}}'


def text(payload: bytes) -> bytes:
    return masked_frame(Opcode.TEXT, payload)


FLOODS: dict[str, bytes] = {
    "pongs": masked_frame(Opcode.PONG, b""),
    "pings": masked_frame(Opcode.PING, b"x"),
    "raw pings": text(RAW_PING),
    "lists": text(b"[]"),
    "deep JSON": text(b'{"payload":' + b"[" * 2_000 + b"]" * 2_000 + b"}"),
    "hellos": text(HELLO),
}


async def flood(peer: Peer, frame: bytes, rounds: int) -> None:
    """Send as fast as the hub reads, and read nothing."""
    many = frame * max(1, 60_000 // len(frame))
    for _ in range(rounds):
        peer.write(many)
        await asyncio.sleep(0)


def frames_handled(stage: InProcess) -> Callable[[], int]:
    before = stage.hub.app.hub.tally.received
    return lambda: stage.hub.app.hub.tally.received - before


@pytest.mark.parametrize("name", FLOODS)
async def test_others_go_on_while_one_socket_floods(name: str) -> None:
    async with run_stage() as stage, bystanders(stage) as pair:
        attacker = await stage.join("@(flood/er)")
        await flood(attacker, FLOODS[name], ROUNDS)
        await pair.go_on(20)


async def test_others_go_on_while_an_anonymous_socket_in_a_room_floods() -> None:
    async with run_stage() as stage, bystanders(stage) as pair:
        attacker = await stage.dial("/room", {"X-Room-ID": "quiet", "X-Pseudonym-ID": "x"})
        await flood(attacker, FLOODS["pongs"], ROUNDS)
        await pair.go_on(20)


async def test_frames_above_the_rate_wait_and_none_is_refused() -> None:
    limits = {"frame_rate": 400.0, "frame_burst": 200, "frames_per_tick": 16}
    async with run_stage(limits=limits) as stage:
        peer = await stage.join("@(fast/one)")
        handled = frames_handled(stage)

        peer.write(text(RAW_PING) * 500)
        await asyncio.sleep(0.1)
        assert 100 < handled() < 400, "the rest is not read yet"

        await eventually(lambda: handled() == 500)


async def test_a_socket_takes_turns_with_others_within_its_burst() -> None:
    async with run_stage(limits={"frames_per_tick": 16}) as stage:
        peer = await stage.join("@(fast/one)")
        handled = frames_handled(stage)
        most = before = 0

        peer.write(text(RAW_PING) * 300)
        for _ in range(10_000):
            if handled() == 300:
                break
            await asyncio.sleep(0)
            most, before = max(most, handled() - before), handled()

        assert handled() == 300
        assert most <= 2 * 16


async def test_a_client_that_floods_all_the_time_is_closed_and_counted() -> None:
    limits = {"frame_rate": 100.0, "frame_burst": 50, "flood_s": 0.2}
    async with run_stage(limits=limits) as stage:
        peer = await stage.join("@(flood/er)")
        peer.write(FLOODS["pongs"] * 2_000)

        await eventually(lambda: stage.hub.app.hub.tally.floods_closed == 1)
        page = (await stage.get("/metrics")).body.decode()
        assert "flooding_connections_closed" in page


async def test_a_repeated_hello_counts_as_a_message() -> None:
    async with run_stage(message_rate=1.0, message_burst=3) as stage:
        peer = await stage.connect()
        peer.write(text(HELLO) * 10)

        await eventually(lambda: stage.hub.app.hub.tally.rate_limited >= 6)


CROWD = volume(3_000, 20_000)
Payloads = dict[str, dict[str, object]]
SEARCHES: Payloads = {"hub:discover": {"pattern": "*a*b*c*"}, "hub:list_actors": {"offset": CROWD}}
# As much work for the sender and the sockets, and next to nothing for the hub.
LEGAL: Payloads = {"hub:discover": {"pattern": "nobody/here"}, "hub:list_actors": {"limit": 1}}


async def crowd(stage: InProcess) -> None:
    """Many actors of one session."""
    peer = await stage.connect()
    for number in range(CROWD):
        address = f"@(crowd/{number})"
        peer.send("hub:register", {"actorAddress": address, "capabilities": []}, sender=address)
        if number % 100 == 0:
            await peer.ask("hub:metrics")


async def search(peer: Peer, payloads: Payloads) -> None:
    """Ask again and again, a few questions at a time."""
    while True:
        asked = [
            peer.send(type, payload, pattern="ask")
            for _ in range(4)
            for type, payload in payloads.items()
        ]
        for _ in asked:
            await peer.receive()


async def round_trips(stage: InProcess, count: int) -> list[float]:
    """How long asks of one actor to another take, in order of length."""
    alice, bob = await stage.join("@(quick/alice)"), await stage.join("@(quick/bob)")
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        alice.send("hub:send", {"to": "@(quick/bob)", "type": "talk"}, pattern="ask")
        await bob.receive("talk")
        await alice.receive("hub:delivery_ack")
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.002)
    return sorted(times)


async def test_others_go_on_while_somebody_searches_everybody() -> None:
    async with run_stage(message_rate=0) as stage, bystanders(stage) as pair:
        await crowd(stage)
        attacker = asyncio.create_task(search(await stage.connect(), SEARCHES))

        await pair.go_on(volume(20, 500))

        assert stage.hub.app.hub.scans.waiting
        attacker.cancel()


@pytest.mark.skipif(not IS_SOAK, reason="a measurement")
async def test_a_search_of_everybody_delays_others_no_more_than_a_busy_neighbour() -> None:
    async with run_stage(message_rate=0) as stage:
        await crowd(stage)
        slowest: list[float] = []
        for payloads in (LEGAL, SEARCHES):
            neighbour = asyncio.create_task(search(await stage.connect(), payloads))
            times = await round_trips(stage, 300)
            neighbour.cancel()
            slowest.append(times[len(times) * 99 // 100])

    assert slowest[1] <= 3 * max(slowest[0], 0.005), slowest
