"""Durable actors that move from host to host, through a real hub."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from signalhub.actors import op
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.kernel.events import Commanded
from signalhub.actors.kernel.outbox import FROZEN
from signalhub.testing import HostProcess, run_hub, spawn_host
from signalhub.wire.errors import ClientError
from tests.support.actors import examples as host_actors
from tests.support.actors.examples import QUICK, Adder, Asker, Feeder, Mover
from tests.support.actors.hosts import (
    BALLAST_CHARS,
    NOBODY,
    PATIENCE_S,
    UNLIMITED,
    Shifting,
    arrived,
    ask,
    back,
    called,
    command,
    hosting,
    lost,
    packed,
    rows_of,
    stored,
    until,
)


async def test_an_actor_moves_with_all_it_has_and_back(tmp_path: Path) -> None:
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "one", Mover) as one,
        hosting(hub.url, tmp_path, "adders", Adder),
    ):
        for number in range(3):
            await ask(hub.url, "mover/a", op(Mover.note, number))
        await ask(hub.url, "mover/a", op(Mover.ring, 60.0))
        await ask(hub.url, "mover/a", op(Mover.consult))
        clock = Shifting()
        async with hosting(hub.url, tmp_path, "two", Mover, clock=clock) as two:
            await command(hub.url, one, "move", actor="mover/a", to=two.address)
            await arrived(hub.url, two, "mover/a")
            clock.advance(60.0, two)
            await ask(hub.url, "adder/a", op(Adder.decide, "stay"))
            await ask(hub.url, "mover/a", op(Mover.note, 3))

            expected = {
                "seen": [0, 1, 2, 3],
                "entries": [[number, f"word {number}"] for number in range(4)],
                "rung": 1,
                "advice": ["stay"],
                "pending": 0,
                "alarms": 0,
                "ballast": 0,
            }

            async def is_whole() -> bool:
                return bool(await ask(hub.url, "mover/a", op(Mover.show)) == expected)

            await until(is_whole)
            assert stored(tmp_path, "one", "mover/a", "seen") is None

            await command(hub.url, two, "move", actor="mover/a", to=one.address)
            await arrived(hub.url, one, "mover/a")
            await until(is_whole)
            assert await ask(hub.url, "mover/a", op(Mover.note, 4)) == 4
        assert stored(tmp_path, "one", "mover/a", "seen") == [0, 1, 2, 3, 4]


async def test_order_holds_while_an_actor_moves_to_and_fro_under_load(tmp_path: Path) -> None:
    total = 300
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "one", Mover) as one,
        hosting(hub.url, tmp_path, "feeders", Feeder, outbound_batch_size=5),
        ActorHub(hub.url) as outside,
    ):
        await outside.ask("mover/a", op(Mover.show))
        async with hosting(hub.url, tmp_path, "two", Mover) as two:
            fed = asyncio.create_task(
                outside.ask("feeder/a", op(Feeder.feed, 0, total), timeout=PATIENCE_S)
            )
            for here, there in ((one, two), (two, one), (one, two)):
                await outside.command(
                    here.address, "move", {"actor": "mover/a", "to": there.address}
                )
                await arrived(hub.url, there, "mover/a")

            assert sorted(await fed) == list(range(total))
            shown = await outside.ask("mover/a", op(Mover.show))
            assert shown["seen"] == list(range(total))
            assert len(shown["entries"]) == total


async def test_a_move_waits_for_a_host_that_is_away(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "one", Mover) as one:
        await ask(hub.url, "mover/a", op(Mover.note, 0))
        async with hosting(hub.url, tmp_path, "two", Mover) as two:
            pass
        await command(hub.url, one, "move", actor="mover/a", to=two.address)
        await packed(hub.url, one)
        async with ActorHub(hub.url) as outside:
            asked = asyncio.create_task(outside.ask("mover/a", op(Mover.note, 1)))
            with pytest.raises(ValueError, match="already moving"):
                await outside.command(one.address, "move", {"actor": "mover/a", "to": "@(x/y)"})
            assert not asked.done()

            async with hosting(hub.url, tmp_path, "two", Mover) as two:
                assert await asked == 1
                await arrived(hub.url, two, "mover/a")
                shown = await outside.ask("mover/a", op(Mover.show))
                assert shown["seen"] == [0, 1]


async def test_a_move_fits_a_hub_that_takes_only_small_messages(tmp_path: Path) -> None:
    async with (
        run_hub(**UNLIMITED, message_bytes_max=50_000) as hub,
        hosting(hub.url, tmp_path, "one", Mover) as one,
    ):
        await ask(hub.url, "mover/a", op(Mover.fill, BALLAST_CHARS))
        async with hosting(hub.url, tmp_path, "two", Mover) as two:
            await command(hub.url, one, "move", actor="mover/a", to=two.address)
            await arrived(hub.url, two, "mover/a")

            assert (await ask(hub.url, "mover/a", op(Mover.show)))["ballast"] == BALLAST_CHARS


async def test_who_replaces_a_lost_host_gets_the_actors_that_were_on_their_way_to_it(
    tmp_path: Path,
) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "one", Mover) as one:
        await ask(hub.url, "mover/a", op(Mover.note, 0))
        async with hosting(hub.url, tmp_path, "two", Mover) as two:
            pass
        await command(hub.url, one, "move", actor="mover/a", to=two.address)
        shutil.rmtree(tmp_path / "two")
        async with hosting(hub.url, tmp_path, "two", Mover, replaces=True) as new:
            await arrived(hub.url, new, "mover/a")

            await command(hub.url, new, "move", actor="mover/a", to=one.address)
            await arrived(hub.url, one, "mover/a")

            assert await ask(hub.url, "mover/a", op(Mover.note, 1)) == 1
            assert (await ask(hub.url, "mover/a", op(Mover.show)))["seen"] == [0, 1]


async def test_an_actor_that_was_lost_at_its_arrival_is_sent_again_on_demand(
    tmp_path: Path,
) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "one", Mover) as one:
        await ask(hub.url, "mover/a", op(Mover.note, 0))
        async with spawn_host(Mover, url=hub.url, name="two", config=QUICK) as lost_host:
            with pytest.raises(ValueError, match="nothing to send again"):
                await command(
                    hub.url, one, "move", actor="mover/a", to=lost_host.address, again=True
                )
            await lost_host.arm("move arrived")
            await command(hub.url, one, "move", actor="mover/a", to=lost_host.address)
            await lost_host.killed()

        async with hosting(hub.url, tmp_path, "two", Mover, replaces=True) as new:
            await command(hub.url, one, "move", actor="mover/a", to=new.address, again=True)
            await arrived(hub.url, new, "mover/a")
            assert (await ask(hub.url, "mover/a", op(Mover.show)))["seen"] == [0]


async def test_a_move_nobody_can_take_leaves_the_actor_as_it_was(tmp_path: Path) -> None:
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "one", Mover) as one,
        hosting(hub.url, tmp_path, "adders", Adder) as adders,
    ):
        await ask(hub.url, "mover/a", op(Mover.note, 0))
        await command(hub.url, one, "move", actor="mover/a", to=adders.address)

        async def has_stayed() -> bool:
            return bool((await command(hub.url, one, "actor", actor="mover/a"))["moveFailed"])

        await until(has_stayed)
        assert await ask(hub.url, "mover/a", op(Mover.note, 1)) == 1
        with pytest.raises(ValueError, match="does not live in"):
            await command(hub.url, one, "move", actor="mover/b", to=adders.address)
        with pytest.raises(ValueError, match="already lives in"):
            await command(hub.url, one, "move", actor="mover/a", to=one.address)


async def test_work_that_ends_while_its_actor_moves_is_heard_of_once(tmp_path: Path) -> None:
    """It is done again in the new host, so the old one must not act on its end."""
    host_actors.work_may_end = asyncio.Event()
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "one", Mover) as one,
        hosting(hub.url, tmp_path, "adders", Adder),
    ):
        await ask(hub.url, "mover/a", op(Mover.delegate))
        async with hosting(hub.url, tmp_path, "two", Mover) as two:
            pass
        await command(hub.url, one, "move", actor="mover/a", to=two.address)
        await packed(hub.url, one)
        host_actors.work_may_end.set()
        # By the time it has answered, it has heard of the end of the work.
        await command(hub.url, one, "stats")

        async with hosting(hub.url, tmp_path, "two", Mover) as two:

            async def is_told() -> bool:
                return bool((await ask(hub.url, "mover/a", op(Mover.show)))["advice"])

            await until(is_told)
            await arrived(hub.url, two, "mover/a")
            shown = await ask(hub.url, "mover/a", op(Mover.show))
            assert (shown["advice"], shown["pending"]) == (["work"], 0)

            async def is_added() -> bool:
                return bool(await ask(hub.url, "adder/a", op(Adder.seen)))

            await until(is_added)
            assert await ask(hub.url, "adder/a", op(Adder.seen)) == [1]


async def test_work_that_ends_while_a_move_is_refused_is_not_forgotten(tmp_path: Path) -> None:
    host_actors.work_may_end = asyncio.Event()
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "one", Mover) as one:
        await ask(hub.url, "mover/a", op(Mover.delegate))
        await command(hub.url, one, "stats")
        # No answer to the move, so the actor stands still; then the hub refuses it.
        await hub.stop()
        await lost(one)
        one.kernel_events([Commanded("move", {"actor": "mover/a", "to": "@(x/y)"}, NOBODY)])

        async def is_leaving() -> bool:
            return rows_of(tmp_path, "one", "SELECT step FROM moves") == ["asked"]

        await until(is_leaving)
        host_actors.work_may_end.set()
        await hub.start()

        async def is_told() -> bool:
            return bool((await ask(hub.url, "mover/a", op(Mover.show)))["advice"] == ["work"])

        await until(is_told)


async def test_what_comes_in_the_turn_of_a_move_does_not_overtake_what_waits(
    tmp_path: Path,
) -> None:
    """Calls that waited go with the actor; one made after them must not leave before."""
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "one", Asker, outbound_timeout_ms=100) as one,
        hosting(hub.url, tmp_path, "adders", Adder),
    ):
        await ask(hub.url, "asker/a", op(Asker.ask, 0))
        async with hosting(hub.url, tmp_path, "two", Asker) as two:
            await hub.stop()
            await lost(one)
            one.kernel_events([called("asker/a", op(Asker.pass_on, 1, 1))])

            async def is_waiting() -> bool:
                return len(rows_of(tmp_path, "one", "SELECT msg_id FROM outbox")) > 0

            await until(is_waiting)
            one.kernel_events(
                [
                    called("asker/a", op(Asker.pass_on, 2, 1)),
                    Commanded("move", {"actor": "asker/a", "to": two.address}, NOBODY),
                ]
            )

            async def is_leaving() -> bool:
                return rows_of(tmp_path, "one", "SELECT step FROM moves") == ["asked"]

            await until(is_leaving)
            assert set(rows_of(tmp_path, "one", "SELECT host FROM outbox")) == {FROZEN}
            await hub.start()
            await back(two)
            await arrived(hub.url, two, "asker/a")

            async def all_heard() -> bool:
                return len(await ask(hub.url, "asker/a", op(Asker.heard))) == 2

            await until(all_heard)
            assert await ask(hub.url, "adder/a", op(Adder.seen)) == [0, 1, 2]


SOURCE_POINTS = (
    "move asked",
    "give away",
    "gave away",
    "move placed",
    "send mark",
    "sent mark",
    "arrived mark",
    "move drained",
    "send move",
    "sent move",
    "sent move:2",
    "arrived move",
    "arrived move>settle",
)
TARGET_POINTS = (
    "arrived move",
    "arrived move:2",
    "move parts:2",
    "move parts",
    "move parts>settle",
    "move parts>located",
    "move arrived",
    "send move",
    "sent move",
)


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_hosts_are_killed_at_every_step_of_a_move(victim: str) -> None:
    points = SOURCE_POINTS if victim == "source" else TARGET_POINTS
    async with (
        run_hub(**UNLIMITED) as hub,
        spawn_host(Mover, url=hub.url, name="source", config=QUICK) as source,
        spawn_host(Feeder, url=hub.url, name="feeders", config=QUICK),
        ActorHub(hub.url) as outside,
    ):
        for number, _ in enumerate(points):
            await outside.ask(f"feeder/{number}", op(Feeder.feed, 0, 5))
            await outside.ask(f"mover/{number}", op(Mover.ring, 0.5))
            await outside.ask(f"mover/{number}", op(Mover.fill, BALLAST_CHARS))
        async with spawn_host(Mover, url=hub.url, name="target", config=QUICK) as target:
            doomed = source if victim == "source" else target
            for number, point in enumerate(points):
                await doomed.arm(point)
                actor = f"mover/{number}"
                fed = asyncio.create_task(
                    outside.ask(f"feeder/{number}", op(Feeder.feed, 5, 20), timeout=PATIENCE_S)
                )
                await begin_move(outside, source, target, actor)
                await doomed.killed()
                await doomed.start()
                await arrived(hub.url, target, actor)
                assert await fed == list(range(25)), point

            for number, _ in enumerate(points):

                async def is_whole(actor: str = f"mover/{number}") -> bool:
                    shown = await outside.ask(actor, op(Mover.show))
                    assert shown["rung"] <= 1
                    assert shown["seen"] == list(range(25))
                    assert len(shown["entries"]) == 25
                    assert shown["ballast"] == BALLAST_CHARS
                    return bool(shown["rung"] == 1)

                await until(is_whole)
            assert (await command(hub.url, source, "stats"))["moves"] == []
            assert (await command(hub.url, target, "stats"))["moves"] == []


async def begin_move(
    outside: ActorHub, source: HostProcess, target: HostProcess, actor: str
) -> None:
    """Whoever is killed at the first step may not have answered the command."""
    try:
        arguments = {"actor": actor, "to": target.address}
        await outside.command(source.address, "move", arguments, timeout_s=0.3)
    except (TimeoutError, ClientError):
        pass
