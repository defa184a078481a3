"""More sockets than there are places: who is turned away, and who does not notice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import signalhub
from signalhub.wire.errors import Unavailable
from tests.support.socket.bystanders import bystanders
from tests.support.socket.peer import Rejected
from tests.support.socket.stage import Stage, eventually, run_stage, spawn_stage
from tests.support.stage import greeted
from tests.support.volume import volume

FILES_MAX = 256
IDLE = 300
HERE, THERE = "127.0.0.2", "127.0.0.3"
ROOM = {"X-Room-ID": "quiet", "X-Pseudonym-ID": "x"}


async def knock(stage: Stage, source: str | None = None, path: str = "/ws") -> int:
    """Ask for a WebSocket; the status of the answer."""
    try:
        await stage.dial(path, ROOM if path == "/room" else None, source=source)
    except Rejected as rejected:
        return rejected.response.status
    return 101


async def refused(stage: Stage, reason: str) -> float:
    return await stage.metric(f'signal_hub_sockets_refused_total{{reason="{reason}"}}')


async def test_idle_sockets_cannot_take_the_files_of_the_log() -> None:
    async with spawn_stage(files_max=FILES_MAX, log={"segment_bytes": 2**16}) as stage:
        async with bystanders(stage) as pair:
            await asyncio.gather(*(stage.call() for _ in range(IDLE)))
            # Every ask is written to the log, and its segments are small.
            await pair.go_on(100)
            health = await stage.health()
            assert health["status"] == "ok", health
            assert await refused(stage, "idle") > 0
        log = stage.hub.log()
        assert "connections are turned away" in log
        assert "Too many open files" not in log
        assert "storage" not in log
        stage.send_everybody_away()
        await stage.join("@(after/wards)")


async def test_sockets_are_refused_at_their_bound_and_others_go_on() -> None:
    async with run_stage(limits={"sockets_max": 5}) as stage, bystanders(stage) as pair:
        more = [await stage.connect() for _ in range(3)]

        with pytest.raises(Unavailable, match=r"limit is 5 \(limits.sockets_max"):
            await signalhub.connect(stage.hub.url, "@(late/comer)")
        assert await knock(stage, path="/room") == 503
        await pair.go_on()
        assert (await stage.health())["degradations"] == ["sockets_near_capacity"]
        assert await refused(stage, "full") == 2
        rows = (await more[1].ask("hub:limits"))["payload"]["resources"]
        assert rows[0] == {
            "resource": "sockets",
            "used": 5,
            "limit": 5,
            "perIdentity": None,
            "perSource": 2,
            "identities": [],
            "sources": [{"source": "127.0.0.1", "used": 5}],
        }

        more[0].abort()
        await eventually(lambda: len(stage.hub.app.runner.connections) == 4)
        assert (await stage.health())["status"] == "ok"
        assert await knock(stage) == 101


async def test_one_source_cannot_take_the_places_of_another() -> None:
    async with run_stage(limits={"sockets_per_source": 3}) as stage:
        for _ in range(3):
            await greeted(await stage.dial(source=HERE), None)

        assert await knock(stage, HERE) == 503
        assert await knock(stage, THERE) == 101
        assert await refused(stage, "source") == 1


async def test_who_has_not_said_hello_makes_room_for_who_comes_later() -> None:
    async with run_stage(limits={"sockets_max": 3}) as stage:
        silent = [await stage.dial() for _ in range(3)]

        late = await stage.connect()

        assert await silent[0].until_closed() is None
        assert silent[1].is_open
        assert silent[2].is_open
        assert (await late.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"


async def test_idle_connections_of_one_source_are_bounded_and_the_oldest_goes() -> None:
    async with run_stage(limits={"sockets_per_source": 4}) as stage:
        idle = [await stage.call(source=HERE) for _ in range(6)]
        other = await stage.call(source=THERE)

        for one in idle[:2]:
            await one.until_closed()
        assert all(one.is_open for one in (*idle[2:], other))


async def storm(stage: Stage, answers: Counter[int]) -> None:
    """Knock as fast as the hub answers, many at a time."""

    async def again_and_again() -> None:
        while True:
            peer = await stage.call(source=HERE)
            try:
                await peer.upgrade()
                answers[101] += 1
            except Rejected as rejected:
                answers[rejected.response.status] += 1
            except (OSError, AssertionError):
                pass
            peer.abort()
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(again_and_again())


async def test_a_storm_from_one_source_does_not_starve_another() -> None:
    answers: Counter[int] = Counter()
    async with run_stage(connection_rate=40, connection_burst=40) as stage:
        attack = asyncio.create_task(storm(stage, answers))
        await eventually(lambda: answers[429] > 0)

        await asyncio.sleep(0.3)
        polite = []
        for _ in range(volume(15, 300)):
            polite.append(await knock(stage, THERE))
            await asyncio.sleep(0.1)
        attack.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attack

        assert polite == [101] * len(polite)
        # Who attacks gets what others leave.
        assert answers[101] > 40
        assert answers[429] > answers[101]
