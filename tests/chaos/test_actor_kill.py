"""Hosts of durable actors killed at every point of the crash matrix, and their hub.

A host kills itself with SIGKILL where the test wants it to, is started again, and what its actors
have counted is looked at from outside: every call ran once, in order, and was heard of once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from signalhub import ClientError
from signalhub.actors import CallError, op, ref
from signalhub.actors.api.operation import Operation
from signalhub.actors.host.caller import ActorHub
from signalhub.testing import HostProcess, HubProcess, spawn_host, spawn_hub
from tests.support.actors.kill_points import (
    QUICK,
    Callee,
    Caller,
    NarrowCaller,
    NearCallee,
    NearCaller,
)
from tests.support.volume import volume

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = volume(2, 10)
KEYS = 3
CALLS = 3
HUB_ROUNDS = volume(3, 5)
PATIENCE_S = 100.0
HOUR_S = 3_600.0
UNLIMITED = {"message_rate": 0, "connection_rate": 0}


class Stage:
    """A hub and two hosts, shared by the tests; each has actors of its own."""

    def __init__(self, hub: HubProcess, caller: HostProcess, callee: HostProcess) -> None:
        self.hub = hub
        self.caller = caller
        self.callee = callee
        self.outside: ActorHub
        self.numbers: Iterator[int] = count()

    async def ask(self, kind: type[Any], key: str, operation: Operation) -> Any:
        return await self.outside.ask(ref(kind, key), operation, timeout=PATIENCE_S)

    def new_keys(self) -> list[str]:
        return [f"{next(self.numbers)}" for _ in range(KEYS)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Stage]:
    async with (
        spawn_hub(**UNLIMITED) as hub,
        spawn_host(Caller, url=hub.url, name="caller", config=QUICK) as caller,
        spawn_host(Callee, url=hub.url, name="callee", config=QUICK) as callee,
        ActorHub(hub.url) as outside,
    ):
        stage = Stage(hub, caller, callee)
        stage.outside = outside
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(shared: Stage) -> Stage:
    """A test that failed may have left a host dead."""
    for host in (shared.caller, shared.callee):
        if not host.is_running:
            await host.start()
    return shared


def outcomes(total: int) -> dict[int, list[int]]:
    """What is heard if everything happens once."""
    return {number: [number * 10] for number in range(total)}


async def assert_once(stage: Stage, key: str, total: int, kind: type[Caller] = Caller) -> None:
    """Every call was heard of once, with its value, and was made once, in order."""
    assert await stage.ask(kind, key, op(Caller.all_heard)) == outcomes(total)
    assert await stage.ask(kind.callee, key, op(Callee.hits)) == list(range(total))


async def revived(host: HostProcess, work: list[asyncio.Task[Any]]) -> None:
    """The host dies at its point, and the work ends when the host is back."""
    dying = asyncio.create_task(host.killed())
    while not dying.done():
        done, _ = await asyncio.wait({dying, *work}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        work = [task for task in work if task not in done]
    await host.start()
    await asyncio.gather(*work)


def asked(
    stage: Stage, keys: list[str], operation: Operation, kind: type[Caller] = Caller
) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(stage.ask(kind, key, operation)) for key in keys]


# Where the caller's host dies. What is counted varies with the round. Points of one line of the
# matrix share its rounds.
CALLER_POINTS = {
    "K1 inside the handler": "go:{n}",
    "K1 after the handler": "go:{n}>handler",
    "K1 before the commit": "go:{n}>commit",
    "K2 after the commit": "go:{n}>committed",
    "K2 before the dispatch": "go>send batch",
    "K3 before the receipt": "sent batch",
    "K7 before the outcome is stored": "go>arrived batch",
    "K8 inside the continuation": "heard:{n}",
    "K8 after the continuation": "heard:{n}>commit",
    "K8 before the outcome is settled": "heard:{n}>settle",
}
CALLEE_POINTS = {
    "K4 before it is stored": "arrived batch",
    "K4 after it is stored": "settle",
    "K5 inside the handler": "hit:{n}",
    "K5 before the commit": "hit:{n}>commit",
    "K6 before the result is sent": "hit:{n}>send batch",
    "K6 before the receipt of the result": "hit:{n}>sent batch",
}


def rounds_of(name: str) -> range:
    """Every line of the matrix has as many rounds, whatever the number of its points."""
    line = name[:3]
    points = sum(one.startswith(line) for one in [*CALLER_POINTS, *CALLEE_POINTS])
    return range(1, -(-ROUNDS // points) + 1)


@pytest.mark.parametrize("name", CALLER_POINTS)
async def test_the_host_of_the_caller_is_killed(stage: Stage, name: str) -> None:
    keys = stage.new_keys()
    for round in rounds_of(name):
        await stage.caller.arm(CALLER_POINTS[name].format(n=1 + round % KEYS))
        work = asked(stage, keys, op(Caller.go, round, CALLS))
        await revived(stage.caller, work)
        for key in keys:
            await assert_once(stage, key, round * CALLS)


@pytest.mark.parametrize("name", CALLEE_POINTS)
async def test_the_host_of_the_callee_is_killed(stage: Stage, name: str) -> None:
    keys = stage.new_keys()
    for round in rounds_of(name):
        await stage.callee.arm(CALLEE_POINTS[name].format(n=1 + round % KEYS))
        work = asked(stage, keys, op(Caller.go, round, CALLS))
        await revived(stage.callee, work)
        for key in keys:
            await assert_once(stage, key, round * CALLS)


async def test_k7_outcomes_wait_in_the_store_while_their_host_is_killed(stage: Stage) -> None:
    keys = stage.new_keys()
    narrow = QUICK | {"inbound_batch_size": 1}
    async with spawn_host(NarrowCaller, url=stage.hub.url, name="narrow", config=narrow) as host:
        for round in range(1, ROUNDS + 1):
            await host.arm(f"result stored:{1 + round % KEYS}")
            work = asked(stage, keys, op(Caller.go, round, CALLS), NarrowCaller)
            await revived(host, work)
            for key in keys:
                await assert_once(stage, key, round * CALLS, NarrowCaller)


async def test_actors_of_one_host_are_killed_together(stage: Stage) -> None:
    """Their messages go through no mailbox of the hub, so only the store can keep them."""
    points = ("go:2>commit", "go:2>committed", "go>located", "go>committed:2", "hit:2>commit")
    async with spawn_host(
        NearCaller, NearCallee, url=stage.hub.url, name="near", config=QUICK
    ) as host:
        for round in range(1, max(ROUNDS, len(points)) + 1):
            # Always new ones, because the first call finds an actor that has no place yet.
            keys = stage.new_keys()
            await host.arm(points[round % 5])
            await revived(host, asked(stage, keys, op(Caller.go, 1, CALLS), NearCaller))
            for key in keys:
                await assert_once(stage, key, CALLS, NearCaller)


@pytest.mark.parametrize("then", ["", ">commit", ">committed"])
async def test_k9_a_killed_timeout_ends_as_a_timeout_or_as_the_result(
    stage: Stage, then: str
) -> None:
    """The result is there when the host comes back; whether there is time left, the clock says."""
    keys = stage.new_keys()
    ends: list[Any] = []
    # One that is early and one that is not, at least.
    for round in range(1, max(2, -(-ROUNDS // 3)) + 1):
        is_early = bool(round % 2)
        await stage.caller.arm(f"timeout:{1 + round % KEYS}{then}")
        await asyncio.gather(*asked(stage, keys, op(Caller.go, round, CALLS, 0.2)))
        await stage.caller.killed()
        for key in keys:
            await stage.ask(Callee, key, op(Callee.release))
        await stage.caller.start(clock_s=-HOUR_S if is_early else 0.0)
        for key in keys:
            heard = await stage.ask(Caller, key, op(Caller.all_heard))
            assert set(heard) == set(range(round * CALLS))
            for number, shown in heard.items():
                assert shown in ([number * 10], ["timeout"]), heard
            ends += [shown for [shown] in list(heard.values())[-CALLS:]]
        if is_early:
            await stage.caller.restart()

    assert "timeout" in ends
    # A timeout that was committed has won, whatever the clock says afterwards.
    assert any(one != "timeout" for one in ends) or then == ">committed"


@pytest.mark.parametrize("point", ["rang:{n}", "rang:{n}>handler", "rang:{n}>commit"])
async def test_k10_alarms_of_a_killed_host_ring_once_and_in_order(stage: Stage, point: str) -> None:
    keys = stage.new_keys()
    for round in range(1, -(-ROUNDS // 3) + 1):
        await stage.caller.arm(point.format(n=1 + round % KEYS))
        work = asked(stage, keys, op(Caller.ring, round, CALLS))
        await revived(stage.caller, work)
        for key in keys:
            total = round * CALLS
            assert await stage.ask(Caller, key, op(Caller.all_heard)) == outcomes(total)
            assert await stage.ask(Caller, key, op(Caller.rung)) == list(range(total))


async def test_k11_recovery_is_killed_and_starts_over(stage: Stage) -> None:
    keys = stage.new_keys()
    points = ("recovery", "commit", "committed", "recovery:2", "committed:2")
    for round in range(1, max(ROUNDS, len(points)) + 1):
        await stage.caller.arm("go:2>committed")
        work = asked(stage, keys, op(Caller.go, round, CALLS))
        await stage.caller.killed()
        await stage.caller.start(kill_at=points[round % 2])
        await stage.caller.killed()
        await stage.caller.start(kill_at=points[round % 5])
        await revived(stage.caller, work)
        for key in keys:
            await assert_once(stage, key, round * CALLS)


async def test_k12_a_clock_that_is_set_back_with_every_start(stage: Stage) -> None:
    """Ids go on after the last one, so order holds; and nothing ends before its time."""
    keys = stage.new_keys()
    for round in range(1, ROUNDS + 1):
        await stage.caller.arm("go:3>committed")
        work = asked(stage, keys, op(Caller.go, 2 * round - 1, CALLS))
        await stage.caller.killed()
        await stage.caller.start(clock_s=-HOUR_S * round)
        await asyncio.gather(*work, *asked(stage, keys, op(Caller.go, 2 * round, CALLS)))
        for key in keys:
            await assert_once(stage, key, 2 * round * CALLS)
    await stage.caller.restart()


async def insist(url: str, kind: type[Any], key: str, operation: Operation) -> Any:
    """Ask again and again, for the hub is away now and then."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with ActorHub(url) as outside:
                    return await outside.ask(ref(kind, key), operation, timeout=1.0)
            except (CallError, ClientError):
                await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
async def test_the_hub_is_killed_under_calls() -> None:
    keys = [f"hub-{number}" for number in range(KEYS)]
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(spawn_hub(**UNLIMITED))
        for kind, name in ((Caller, "caller"), (Callee, "callee")):
            await stack.enter_async_context(spawn_host(kind, url=hub.url, name=name, config=QUICK))
        for round in range(1, HUB_ROUNDS + 1):
            work = [insist(hub.url, Caller, key, op(Caller.go, round, CALLS)) for key in keys]
            going = asyncio.gather(*work)
            # Earlier or later in the round, from before its calls to after their results.
            await asyncio.sleep(0.02 * round)
            await hub.restart()
            await going
        for key in keys:
            total = HUB_ROUNDS * CALLS
            assert await insist(hub.url, Caller, key, op(Caller.all_heard)) == outcomes(total)
            assert await insist(hub.url, Callee, key, op(Callee.hits)) == list(range(total))
