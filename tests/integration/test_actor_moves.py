"""Durable actors that move from host to host, through a real hub."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signalhub.actors import op
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import Host
from signalhub.actors.kernel.events import Commanded
from signalhub.actors.kernel.outbox import FROZEN
from signalhub.testing import HostProcess, run_hub, spawn_host
from signalhub.wire.errors import ClientError
from tests.support.actors import examples
from tests.support.actors.examples import QUICK, Adder, Asker, Feeder, Mover
from tests.support.actors.hosts import (
    BALLAST_CHARS,
    NOBODY,
    PATIENCE_S,
    UNLIMITED,
    Shifting,
    World,
    called,
    until,
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with run_hub(**UNLIMITED) as hub:
        yield World(hub, tmp_path)


async def test_an_actor_moves_with_all_it_has_and_back(world: World) -> None:
    async with world.host("one", Mover) as one, world.host("adders", Adder):
        for number in range(3):
            await world.ask("mover/a", op(Mover.note, number))
        await world.ask("mover/a", op(Mover.ring, 60.0))
        await world.ask("mover/a", op(Mover.consult))
        clock = Shifting()
        async with world.host("two", Mover, clock=clock) as two:
            await world.move("mover/a", one, two)
            clock.advance(60.0, two)
            await world.ask("adder/a", op(Adder.decide, "stay"))
            await world.ask("mover/a", op(Mover.note, 3))
            expected = {
                "seen": [0, 1, 2, 3],
                "entries": [[number, f"word {number}"] for number in range(4)],
                "rung": 1,
                "advice": ["stay"],
                **{"pending": 0, "alarms": 0, "ballast": 0},
            }
            await until(lambda: world.ask("mover/a", op(Mover.show)), expected)
            assert world.stored("one", "mover/a", "seen") is None

            await world.move("mover/a", two, one)
            await until(lambda: world.ask("mover/a", op(Mover.show)), expected)
            assert await world.ask("mover/a", op(Mover.note, 4)) == 4
        assert world.stored("one", "mover/a", "seen") == [0, 1, 2, 3, 4]


async def test_a_move_ends_visibly_if_the_actor_is_forgotten_meanwhile(world: World) -> None:
    async def moves(host: Host) -> Any:
        return (await world.command(host, "stats"))["moves"]

    clock = Shifting()
    async with world.host("one", Mover, clock=clock) as one:
        await world.ask("mover/a", op(Mover.note, 0))
        async with world.host("two", Mover):
            pass
        two = SimpleNamespace(address="@(actors/two)")
        await world.begin_move("mover/a", one, two)
        await world.packed(one)
        async with ActorHub(world.hub.url) as operator:
            await operator.client.forget_place("mover/a")
        # The old host finds out by itself.
        await until(lambda: "mover/a" in one.kernel.moving._sent)
        clock.advance(31.0, one)
        await until(lambda: moves(one), [])
        (letter,) = await world.command(one, "dead", address="mover/a")
        assert letter["origin"] == "stranded"
        assert "forgotten during its move to @(actors/two)" in letter["error"]
        async with world.host("two", Mover) as new:
            await until(lambda: moves(new), [])
            shown = await world.ask("mover/a", op(Mover.show))
            assert shown["seen"] == [], "it starts anew"


async def test_order_holds_while_an_actor_moves_to_and_fro_under_load(world: World) -> None:
    total = 300
    async with (
        world.host("one", Mover) as one,
        world.host("feeders", Feeder, outbound_batch_size=5),
        ActorHub(world.hub.url) as outside,
    ):
        await outside.ask("mover/a", op(Mover.show))
        async with world.host("two", Mover) as two:
            feed = outside.ask("feeder/a", op(Feeder.feed, 0, total), timeout=PATIENCE_S)
            fed = asyncio.create_task(feed)
            for here, there in ((one, two), (two, one), (one, two)):
                await world.move("mover/a", here, there)
            assert sorted(await fed) == list(range(total))
            shown = await outside.ask("mover/a", op(Mover.show))
            assert shown["seen"] == list(range(total))
            assert len(shown["entries"]) == total


async def test_a_move_waits_for_a_host_that_is_away(world: World) -> None:
    async with world.host("one", Mover) as one, ActorHub(world.hub.url) as outside:
        await world.ask("mover/a", op(Mover.note, 0))
        async with world.host("two", Mover) as two:
            pass
        await world.begin_move("mover/a", one, two)
        await world.packed(one)
        asked = asyncio.create_task(outside.ask("mover/a", op(Mover.note, 1)))
        with pytest.raises(ValueError, match="already moving"):
            await world.command(one, "move", actor="mover/a", to="@(x/y)")
        assert not asked.done()
        async with world.host("two", Mover) as two:
            assert await asked == 1
            await world.arrived("mover/a", two)
            assert (await world.ask("mover/a", op(Mover.show)))["seen"] == [0, 1]


async def test_a_move_fits_a_hub_that_takes_only_small_messages(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED, message_bytes_max=50_000) as hub:
        world = World(hub, tmp_path)
        async with world.host("one", Mover) as one:
            await world.ask("mover/a", op(Mover.fill, BALLAST_CHARS))
            async with world.host("two", Mover) as two:
                await world.move("mover/a", one, two)
                shown = await world.ask("mover/a", op(Mover.show))
                assert shown["ballast"] == BALLAST_CHARS


async def test_who_replaces_a_lost_host_gets_the_actors_on_their_way_to_it(world: World) -> None:
    async with world.host("one", Mover) as one:
        await world.ask("mover/a", op(Mover.note, 0))
        async with world.host("two", Mover) as two:
            pass
        await world.begin_move("mover/a", one, two)
        shutil.rmtree(world.folder / "two")
        async with world.host("two", Mover, replaces=True) as new:
            await world.arrived("mover/a", new)
            await world.move("mover/a", new, one)
            assert await world.ask("mover/a", op(Mover.note, 1)) == 1
            assert (await world.ask("mover/a", op(Mover.show)))["seen"] == [0, 1]


async def test_an_actor_that_was_lost_at_its_arrival_is_sent_again_on_demand(world: World) -> None:
    async with world.host("one", Mover) as one:
        await world.ask("mover/a", op(Mover.note, 0))
        async with spawn_host(Mover, url=world.hub.url, name="two", config=QUICK) as lost:
            with pytest.raises(ValueError, match="nothing to send again"):
                await world.begin_move("mover/a", one, lost, again=True)
            await lost.arm("move arrived")
            await world.begin_move("mover/a", one, lost)
            await lost.killed()
        async with world.host("two", Mover, replaces=True) as new:
            await world.move("mover/a", one, new, again=True)
            assert (await world.ask("mover/a", op(Mover.show)))["seen"] == [0]


async def test_a_move_nobody_can_take_leaves_the_actor_as_it_was(world: World) -> None:
    async with world.host("one", Mover) as one, world.host("adders", Adder) as adders:
        await world.ask("mover/a", op(Mover.note, 0))
        await world.begin_move("mover/a", one, adders)

        async def has_stayed() -> bool:
            return bool((await world.command(one, "actor", actor="mover/a"))["moveFailed"])

        await until(has_stayed)
        assert await world.ask("mover/a", op(Mover.note, 1)) == 1
        with pytest.raises(ValueError, match="does not live in"):
            await world.begin_move("mover/b", one, adders)
        with pytest.raises(ValueError, match="already lives in"):
            await world.begin_move("mover/a", one, one)


async def test_work_that_ends_while_its_actor_moves_is_heard_of_once(world: World) -> None:
    """It is done again in the new host, so the old one must not act on its end."""
    examples.work_may_end = asyncio.Event()
    async with world.host("one", Mover) as one, world.host("adders", Adder):
        await world.ask("mover/a", op(Mover.delegate))
        async with world.host("two", Mover) as two:
            pass
        await world.begin_move("mover/a", one, two)
        await world.packed(one)
        examples.work_may_end.set()
        # By the time it has answered, it has heard of the end of the work.
        await world.command(one, "stats")

        async with world.host("two", Mover) as two:
            await world.arrived("mover/a", two)
            await until(lambda: world.ask("adder/a", op(Adder.seen)), [1])
            shown = await world.ask("mover/a", op(Mover.show))
            assert (shown["advice"], shown["pending"]) == (["work"], 0)


async def test_work_that_ends_while_a_move_is_refused_is_not_forgotten(world: World) -> None:
    examples.work_may_end = asyncio.Event()
    async with world.host("one", Mover) as one:
        await world.ask("mover/a", op(Mover.delegate))
        await world.command(one, "stats")
        # No answer to the move, so the actor stands still; then the hub refuses it.
        await world.stop_hub(one)
        one.kernel_events([Commanded("move", {"actor": "mover/a", "to": "@(x/y)"}, NOBODY)])
        await until(lambda: world.rows("one", "SELECT step FROM moves"), ["asked"])
        examples.work_may_end.set()
        await world.start_hub()

        async def advice() -> object:
            return (await world.ask("mover/a", op(Mover.show)))["advice"]

        await until(advice, ["work"])


async def test_what_comes_in_the_turn_of_a_move_does_not_overtake_what_waits(world: World) -> None:
    """Calls that waited go with the actor; one made after them must not leave before."""
    async with (
        world.host("one", Asker, outbound_timeout_ms=100) as one,
        world.host("adders", Adder),
    ):
        await world.ask("asker/a", op(Asker.ask, 0))
        async with world.host("two", Asker) as two:
            await world.stop_hub(one)
            one.kernel_events([called("asker/a", op(Asker.pass_on, 1, 1))])
            await until(lambda: len(world.rows("one", "SELECT msg_id FROM outbox")) > 0)
            command = Commanded("move", {"actor": "asker/a", "to": two.address}, NOBODY)
            one.kernel_events([called("asker/a", op(Asker.pass_on, 2, 1)), command])
            await until(lambda: world.rows("one", "SELECT step FROM moves"), ["asked"])
            assert set(world.rows("one", "SELECT host FROM outbox")) == {FROZEN}
            await world.start_hub(two)
            await world.arrived("asker/a", two)
            heard = [[1, "heard"], [2, "heard"]]
            await until(lambda: world.ask("asker/a", op(Asker.heard)), heard)
            assert await world.ask("adder/a", op(Adder.seen)) == [0, 1, 2]


POINTS = {
    "source": (
        *("move asked", "give away", "gave away", "move placed", "send mark", "sent mark"),
        *("arrived mark", "move drained", "send move", "sent move", "sent move:2"),
        *("arrived move", "arrived move>settle"),
    ),
    "target": (
        *("arrived move", "arrived move:2", "move parts:2", "move parts", "move parts>settle"),
        *("move parts>located", "move arrived", "send move", "sent move"),
    ),
}


async def move(outside: ActorHub, actor: str, source: HostProcess, target: HostProcess) -> None:
    """Order a move until cancelled: a host may not be known yet, or die before it answers."""
    while True:
        with suppress(TimeoutError, ClientError, ValueError):
            arguments = {"actor": actor, "to": target.address}
            await outside.command(source.address, "move", arguments, timeout_s=1.0)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("victim", POINTS)
async def test_hosts_are_killed_at_every_step_of_a_move(world: World, victim: str) -> None:
    url, points = world.hub.url, POINTS[victim]
    async with (
        spawn_host(Mover, url=url, name="source", config=QUICK) as source,
        spawn_host(Feeder, url=url, name="feeders", config=QUICK),
        ActorHub(url) as outside,
    ):
        for number, _ in enumerate(points):
            await outside.ask(f"feeder/{number}", op(Feeder.feed, 0, 5))
            await outside.ask(f"mover/{number}", op(Mover.ring, 0.5))
            await outside.ask(f"mover/{number}", op(Mover.fill, BALLAST_CHARS))
        async with spawn_host(Mover, url=url, name="target", config=QUICK) as target:
            doomed = source if victim == "source" else target
            for number, point in enumerate(points):
                await doomed.arm(point)
                feed = outside.ask(f"feeder/{number}", op(Feeder.feed, 5, 20), timeout=PATIENCE_S)
                fed = asyncio.create_task(feed)
                moving = asyncio.create_task(move(outside, f"mover/{number}", source, target))
                await doomed.killed()
                moving.cancel()
                await doomed.start()
                await world.arrived(f"mover/{number}", target)
                assert await fed == list(range(25)), point

            for number, _ in enumerate(points):

                async def rung(actor: str = f"mover/{number}") -> object:
                    shown = await outside.ask(actor, op(Mover.show))
                    assert shown["seen"] == list(range(25))
                    assert len(shown["entries"]) == 25
                    assert shown["ballast"] == BALLAST_CHARS
                    return shown["rung"]

                await until(rung, 1)
                assert await rung() == 1
            for host in (source, target):
                assert (await world.command(host, "stats"))["moves"] == []
