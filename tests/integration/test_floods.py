"""How frames of one socket are metered; `test_fairness.py` has what others notice of floods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from signalhub.server.sockets.meter import GRANT_BYTES, UNIT_BYTES
from signalhub.wire.envelope import RAW_PING
from signalhub.wire.frames import Opcode
from tests.support.socket.frames import masked_frame
from tests.support.socket.neighbours import SENDER, request, text
from tests.support.socket.stage import InProcess, eventually, run_stage

HELLO = b'{"type":"hub:connect","pattern":"ask","from":"@(x/y)","id":"1","payload":{}}'


def frames_handled(stage: InProcess) -> Callable[[], int]:
    before = stage.hub.app.hub.tally.received
    return lambda: stage.hub.app.hub.tally.received - before


async def test_frames_above_the_rate_wait_and_none_is_refused() -> None:
    limits = {"frame_rate": 400.0, "frame_burst": 200, "frames_per_tick": 16}
    async with run_stage(limits=limits) as stage:
        peer = await stage.join("@(fast/one)")
        handled = frames_handled(stage)

        peer.write(text(RAW_PING) * 500)
        await asyncio.sleep(0.1)
        assert 100 < handled() < 400, "the rest is not read yet"

        await eventually(lambda: handled() == 500)


@pytest.mark.parametrize("units", [1, 10])
async def test_bytes_above_the_rate_wait_and_a_frame_counts_in_steps(units: int) -> None:
    limits = {"byte_rate": 400.0 * UNIT_BYTES, "byte_burst": 200 * UNIT_BYTES}
    async with run_stage(limits=limits) as stage:
        peer = await stage.join("@(fast/one)")
        handled = frames_handled(stage)
        padding = "x" * (units - 1) * UNIT_BYTES

        peer.write(request("hub:heartbeat", {"padding": padding}) * (500 // units))
        await asyncio.sleep(0.1)
        assert 100 < handled() * units < 400, "the rest is not read yet"

        await eventually(lambda: handled() * units == 500)


async def test_a_large_frame_is_one_frame() -> None:
    async with run_stage(limits={"frame_rate": 1.0, "frame_burst": 100}) as stage:
        peer = await stage.join("@(fast/one)")
        handled = frames_handled(stage)

        peer.write(request("hub:heartbeat", {"padding": "x" * 9 * UNIT_BYTES}) * 50)

        await eventually(lambda: handled() == 50)


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


async def test_messages_that_take_long_end_the_turn_of_their_socket() -> None:
    async with run_stage(message_rate=0) as stage:
        peer = await stage.join(SENDER)
        handled = frames_handled(stage)
        costly = [
            request("hub:place", {"actors": [f"kind/{part}-{number}" for number in range(400)]})
            for part in range(8)
        ]
        assert sum(map(len, costly)) < GRANT_BYTES, "a grant covers all of them"
        most = before = 0

        peer.write(b"".join(costly))
        for _ in range(10_000):
            if handled() == 8:
                break
            await asyncio.sleep(0)
            most, before = max(most, handled() - before), handled()

        assert handled() == 8
        # How many a turn has depends on the machine.
        assert most < 8


async def test_a_client_that_floods_all_the_time_is_closed_and_counted() -> None:
    limits = {"frame_rate": 100.0, "frame_burst": 50, "flood_s": 0.2}
    async with run_stage(limits=limits) as stage:
        peer = await stage.join("@(flood/er)")
        peer.write(masked_frame(Opcode.PONG) * 2_000)

        await eventually(lambda: stage.hub.app.hub.tally.floods_closed == 1)
        page = (await stage.get("/metrics")).body.decode()
        assert "flooding_connections_closed" in page


async def test_a_repeated_hello_counts_as_a_message() -> None:
    async with run_stage(message_rate=1.0, message_burst=3) as stage:
        peer = await stage.connect()
        peer.write(text(HELLO) * 10)

        await eventually(lambda: stage.hub.app.hub.tally.rate_limited >= 6)
