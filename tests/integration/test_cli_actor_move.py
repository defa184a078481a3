"""`signalhub actors move` against real hosts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import Host
from signalhub.cli.actors.hosts import ConnectedHosts, hosts_at
from signalhub.cli.actors.move import ActorMove
from signalhub.cli.terminal.connection import LOCAL, RefusalLog
from signalhub.cli.terminal.failures import Failure
from signalhub.testing import RunningHub, run_hub, spawn_host
from tests.support.actors.shop import Clerk, Order, Stock
from tests.support.process.command import cli, started


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def shop(hub: RunningHub) -> AsyncIterator[ActorHub]:
    async with ActorHub(hub.url) as outside:
        yield outside


@asynccontextmanager
async def host(hub: RunningHub, tmp_path: Path, name: str, *kinds: type) -> AsyncIterator[Host]:
    async with Host(*kinds, data=tmp_path / name, url=hub.url, name=name) as running:
        await running.is_connected.wait()
        yield running


@pytest.fixture
async def a(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    async with host(hub, tmp_path, "a", Order, Stock) as running:
        yield running


async def test_an_actor_moves_with_its_state_and_can_be_asked_for_again(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    await shop.ask("stock/mug", "reserve", 4)
    async with host(hub, tmp_path, "b", Stock):
        moved = await cli(hub.url, "actors", "move", "stock/mug", "--to", "b")
        again = await cli(hub.url, "actors", "move", "stock/mug", "--to", "@(actors/b)", "--json")
        left = await cli(hub.url, "actors", "call", "stock/mug", "reserve", "1")
        shown = await cli(hub.url, "actors", "show", "stock/mug", "--json")
        listed = await cli(hub.url, "actors", "ls", "--json")
        back = await cli(hub.url, "actors", "move", "stock/mug", "--to", "a", "--json")

    assert moved.out == "stock/mug is now on b\n"
    assert again.rows() == [
        {"actor": "stock/mug", "from": None, "to": "b", "moved": False, "arrived": True}
    ]
    assert left.out == "5\n"
    assert shown.rows()[0]["host"] == "b"
    assert shown.rows()[0]["elsewhere"] == [{"host": "a", "status": "gone"}]
    assert [(row["actor"], row["host"]) for row in listed.rows()] == [("stock/mug", "b")]
    assert back.rows()[0]["from"] == "b"
    assert back.rows()[0]["arrived"] is True
    assert back.rows()[0]["seconds"] > 0


async def test_a_move_can_be_left_to_itself(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    await shop.ask("stock/mug", "reserve", 4)
    async with host(hub, tmp_path, "b", Stock):
        begun = await cli(hub.url, "actors", "move", "stock/mug", "--to", "b", "--no-wait")
        done = await cli(hub.url, "actors", "move", "stock/mug", "--to", "b")

    assert begun.out.startswith("stock/mug is moving from a to b; follow it with")
    assert done.code == 0


async def test_what_cannot_be_moved_is_refused_before_anything_happens(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    await shop.ask("order/17", "echo")
    await shop.ask("stock/mug", "reserve", 4)
    async with host(hub, tmp_path, "b", Clerk):
        ghost = await cli(hub.url, "actors", "move", "order/17", "--to", "ghost")
        kind = await cli(hub.url, "actors", "move", "order/17", "--to", "b")
        unknown = await cli(hub.url, "actors", "move", "clerk/9", "--to", "b")
    away = await cli(hub.url, "actors", "move", "clerk/9", "--to", "b")
    shown = await cli(hub.url, "actors", "show", "order/17", "--json")

    assert {one.code for one in (ghost, kind, unknown, away)} == {1}
    assert "unknown host ghost; connected hosts: a, b — correct the name" in ghost.err
    assert "host b does not serve the kind order; it serves clerk" in kind.err
    assert "unknown actor clerk/9; queried hosts: a, b" in unknown.err
    assert "host b is not connected" in away.err
    assert "--even-if-away" in away.err
    assert shown.rows()[0]["status"] == "here"


async def test_an_actor_waits_for_a_host_that_is_away_if_that_is_wanted(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    await shop.ask("stock/mug", "reserve", 4)
    async with host(hub, tmp_path, "b", Stock):
        pass
    move = ("actors", "move", "stock/mug", "--to", "b", "--even-if-away")
    late = await cli(hub.url, *move, "--timeout", "2", "--json")
    shown = await cli(hub.url, "actors", "show", "stock/mug")
    other = await cli(hub.url, "actors", "move", "stock/mug", "--to", "a")
    async with started(hub.url, *move) as process, host(hub, tmp_path, "b", Stock):
        out, _ = await process.communicate()
        left = await shop.ask("stock/mug", "reserve", 1)

    failure = json.loads(late.err)
    assert late.code == 4
    assert failure["error"] == "host_away"
    assert failure["message"].startswith(
        "b is not connected; stock/mug waits, partly in the mailbox of b"
    )
    assert failure["resolution"] == "start b, then the move continues by itself"
    assert "moving\tto b, drained" in shown.out
    assert other.code == 1
    assert "stock/mug is already moving to b" in other.err
    assert process.returncode == 0
    assert out.decode() in ("stock/mug is now on b\n", "stock/mug is already on b\n")
    assert left == 5


async def test_what_was_lost_with_its_new_host_is_sent_again_to_whoever_replaces_it(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    move = ("actors", "move", "stock/mug", "--to", "b")
    await shop.ask("stock/mug", "reserve", 4)
    async with spawn_host(Stock, url=hub.url, name="b") as lost:
        early = await cli(hub.url, *move, "--again")
        await lost.arm("move arrived")
        await cli(hub.url, *move, "--no-wait")
        await lost.killed()
    async with Host(Stock, data=tmp_path / "b", url=hub.url, name="b", replaces=True) as new:
        await new.is_connected.wait()
        sent = await cli(hub.url, *move, "--again")
        left = await shop.ask("stock/mug", "reserve", 1)

    assert early.code == 1
    assert "stock/mug is not leaving any connected host" in early.err
    assert sent.out == "stock/mug is now on b\n"
    assert left == 5


async def test_what_the_hub_refuses_is_told_and_the_actor_stays(
    hub: RunningHub, a: Host, shop: ActorHub
) -> None:
    """A host that has been there a moment ago, and is not known any more."""
    await shop.ask("stock/mug", "reserve", 4)
    source = ConnectedHosts(shop, LOCAL, await hosts_at(shop, LOCAL), RefusalLog())
    journey = ActorMove(source, "stock/mug", "ghost")
    await journey.begin()

    with pytest.raises(Failure, match="stock/mug stays on a: ") as caught:
        await journey.wait(10, 0.02)

    assert caught.value.code == "move_refused"
    assert "it continues there" in str(caught.value)
    assert await shop.ask("stock/mug", "reserve", 1) == 5
