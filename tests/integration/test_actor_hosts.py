"""Hosts of durable actors and a real hub: calls, absences, restarts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import apsw
import pytest

from signalhub.actors import CallTimeout, CallUndeliverable, op
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import Host
from signalhub.testing import run_hub
from signalhub.wire.errors import ClientError, Refused, SettingsError
from tests.support.actors.examples import Adder, Asker
from tests.support.actors.hosts import PATIENCE_S, UNLIMITED, Shifting, World, until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    data = str(tmp_path / "hub")
    async with run_hub(**UNLIMITED, data=data, mailbox={"limit": 10_000}) as hub:
        yield World(hub, tmp_path)


async def test_results_and_errors_come_back_from_another_host(world: World) -> None:
    async with (
        world.host("askers", Asker),
        world.host("adders", Adder) as adders,
        ActorHub(world.hub.url) as outside,
    ):
        sums = [await outside.ask("asker/a", op(Asker.ask, number)) for number in (1, 2, 3)]
        assert sums == [1, 3, 6]
        with pytest.raises(Exception, match="not today") as caught:
            await outside.ask("asker/a", op(Asker.ask_for_trouble))
        assert (caught.value.name, caught.value.attrs["limit"]) == ("Refusing", 3)  # type: ignore[attr-defined]
        assert await outside.ask("adder/a", "seen") == [1, 2, 3]
        with pytest.raises(Exception, match="not today"):
            await outside.ask("adder/a", op(Adder.refuse))
        with pytest.raises(CallTimeout, match=r"adder/a\.think did not answer within 0\.3 s"):
            await outside.ask("adder/a", op(Adder.think), timeout=0.3)
        with pytest.raises(CallUndeliverable, match="clerk/a could not be reached"):
            await outside.ask("clerk/a", "work", timeout=0.3)
        with pytest.raises(Exception, match="no remote method sing"):
            await outside.ask("adder/a", "sing")
        with pytest.raises(ValueError, match="unknown command 'sing'"):
            await outside.command("@(actors/adders)", "sing")
        await adders.close()
        with pytest.raises(TimeoutError, match=r"the host @\(actors/adders\) .* is it running"):
            await outside.command(adders.address, "stats", timeout_s=0.05)


async def test_hosts_of_one_kind_share_its_actors_and_none_has_two_homes(world: World) -> None:
    actors = [f"adder/{number}" for number in range(60)]
    async with (
        world.host("one", Adder) as one,
        world.host("two", Adder) as two,
        world.host("three", Adder) as three,
        ActorHub(world.hub.url) as outside,
    ):
        for number in (1, 2):
            asks = (outside.ask(actor, op(Adder.add, number)) for actor in actors)
            assert set(await asyncio.gather(*asks)) == {sum(range(number + 1))}
        homes = [
            {each["actor"] for each in await outside.command(host.address, "actors")}
            for host in (one, two, three)
        ]

    assert sorted(actor for home in homes for actor in home) == sorted(actors)
    assert all(homes), homes


async def test_a_thousand_calls_at_once_end(world: World) -> None:
    """From one actor, and from as many that wait outside; upstream hung at fifty."""
    async with (
        world.host("askers", Asker),
        world.host("adders", Adder),
        ActorHub(world.hub.url) as outside,
    ):
        assert await outside.ask("asker/many", op(Asker.spread, 1_000), timeout=60)
        asks = [
            outside.ask(f"asker/{number % 20}", op(Asker.ask, 1), timeout=60)
            for number in range(1_000)
        ]
        assert sorted(await asyncio.gather(*asks)) == sorted([*range(1, 51)] * 20)
        for number in range(50):
            assert await outside.ask(f"adder/many-{number}", op(Adder.seen)) == [1] * 20


async def test_whoever_asks_from_outside_continues_after_a_restart_of_the_hub(world: World) -> None:
    async with world.host("adders", Adder) as adders, ActorHub(world.hub.url) as outside:
        assert await outside.ask("adder/a", op(Adder.add, 1)) == 1
        await world.stop_hub(adders)
        with pytest.raises((ClientError, CallUndeliverable)):
            await outside.ask("adder/a", op(Adder.add, 2), timeout=0.3)
        await world.start_hub(adders)
        await until(lambda: outside.client.is_connected)
        assert await outside.ask("adder/a", op(Adder.add, 3)) == 4


@pytest.mark.parametrize("is_known", [True, False])
async def test_calls_wait_in_order_for_a_host_that_is_away(world: World, is_known: bool) -> None:
    async with world.host("askers", Asker):
        if is_known:
            async with world.host("adders", Adder):
                assert await world.ask("asker/a", op(Asker.ask, 0)) == 0
        for first in (1, 11, 21):
            await world.ask("asker/a", op(Asker.pass_on, first, 10))
        async with world.host("adders", Adder):
            heard = [[number, "heard"] for number in range(1, 31)]
            await until(lambda: world.ask("asker/a", op(Asker.heard)), heard)
            assert await world.ask("adder/a", op(Adder.seen)) == list(range(not is_known, 31))


async def test_a_timeout_tells_whether_the_call_can_have_been_executed(world: World) -> None:
    async with world.host("askers", Asker):
        async with world.host("adders", Adder):
            await world.ask("asker/known", op(Asker.ask, 0))
        # One is in the mailbox of its host, the other never left.
        for asker, executed in (("asker/known", "unknown"), ("asker/b", "no")):
            await world.ask(asker, op(Asker.pass_on, 1, 1, 0.3))
            await until(partial(world.ask, asker, op(Asker.heard)), [[1, executed]])
        async with world.host("adders", Adder):
            assert await world.ask("adder/b", op(Adder.seen)) == []


async def test_without_a_hub_local_work_goes_on_and_the_rest_waits(world: World) -> None:
    async def live_in(one: Host, other: Host, actor: str) -> None:
        """Have an actor live in the second of two hosts, wherever it has been placed."""
        await world.ask(actor, op(Asker.ask, 0))
        if actor in {each["actor"] for each in await world.command(one, "actors")}:
            await world.move(actor, one, other)

    clock = Shifting()
    async with (
        world.host("both", Asker, Adder, clock=clock) as both,
        world.host("askers", Asker, clock=clock) as askers,
    ):
        # One asker beside its adder, one in another host than its adder.
        await live_in(both, askers, "asker/far")
        await live_in(askers, both, "asker/near")
        for number in range(1, 6):
            await world.ask("asker/near", op(Asker.ring, 60.0, number))
            await world.ask("asker/far", op(Asker.ring, 60.0, number))
        await world.stop_hub(both, askers)
        clock.advance(60.0, both, askers)
        await until(lambda: world.stored("both", "asker/near", "answered"), 5)
        await until(lambda: world.stored("askers", "asker/far", "rung"), [1, 2, 3, 4, 5])
        assert world.stored("both", "adder/near", "seen") == [0, 1, 2, 3, 4, 5]
        assert world.stored("askers", "asker/far", "answered") is None

        await world.start_hub()
        await until(lambda: world.stored("askers", "asker/far", "answered"), 5)
        assert await world.ask("adder/far", op(Adder.seen)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("forgets", ["nothing", "its snapshot", "everything"])
async def test_actors_stay_where_they_live_when_the_hub_restarts(
    world: World, forgets: str
) -> None:
    data = world.folder / "hub"
    actors = [str(number) for number in range(10)]
    async with world.host("askers", Asker) as askers, world.host("one", Adder) as one:
        for key in actors:
            await world.ask(f"asker/{key}", op(Asker.ask, 1))
        # Half of them would be placed here, were they not at home elsewhere.
        async with world.host("two", Adder) as two:
            homes = [await world.command(host, "actors") for host in (one, two)]
            await world.stop_hub(askers, one, two)
            if forgets == "its snapshot":
                for path in data.glob("state.db*"):
                    path.unlink()
            elif forgets == "everything":
                shutil.rmtree(data)
            await world.start_hub(askers, one, two)
            for key in actors:
                assert await world.ask(f"asker/{key}", op(Asker.ask, 2)) == 3
            assert [await world.command(host, "actors") for host in (one, two)] == homes


async def refusal(host: Host) -> str:
    """Why a host ends that is not wanted."""
    async with host, asyncio.timeout(PATIENCE_S):
        with pytest.raises(Refused) as caught:
            await host.run()
        assert not host.is_connected.is_set()
    assert caught.value.code == "duplicate_host"
    return f"{caught.value.message}; {caught.value.resolution}"


async def test_a_name_belongs_to_one_host_and_a_folder_to_one_name(world: World) -> None:
    def host(folder: str, name: str | None = None) -> Host:
        return Host(Adder, data=world.folder / folder, url=world.hub.url, name=name)

    async def add() -> int:
        total: int = await world.ask("adder/a", op(Adder.add, 1))
        return total

    async with world.host("adders", Adder) as first:
        assert await add() == 1
        assert "is already running" in await refusal(host("other", "adders"))
        shutil.copytree(world.folder / "adders", world.folder / "copy")
        assert "is already running" in await refusal(host("copy"))
        with pytest.raises(SettingsError, match="in use by another actor host"):
            host("adders")
        assert await add() == 2
        await first.close()

        with pytest.raises(ValueError, match="belongs to the host adders"):
            host("adders", "others")
        async with host("adders") as again:
            assert again.name == "adders"
            assert await add() == 3
    # The name of a host that is away is taken only on purpose.
    expected = "live in another folder; start that one"
    assert expected in await refusal(host("another", "adders"))
    async with world.host("another", Adder) as another:
        assert another.name == "another"
    async with Host(
        Adder, data=world.folder / "new", url=world.hub.url, name="adders", replaces=True
    ):
        assert await add() == 1


async def test_a_command_waits_no_longer_than_it_may_without_a_hub(world: World) -> None:
    async with ActorHub(world.hub.url) as outside:
        await world.stop_hub()
        with pytest.raises(TimeoutError, match=r"did not answer within 0\.1 s"):
            async with asyncio.timeout(5):
                await outside.command("@(actors/adders)", "stats", timeout_s=0.1)


async def test_a_host_that_cannot_start_releases_its_folder(world: World) -> None:
    def host() -> Host:
        return Host(Adder, data=world.folder / "adders", url=world.hub.url)

    broken = host()
    broken.kernel.store.execute("ALTER TABLE moves RENAME TO lost")
    with pytest.raises(apsw.SQLError, match="no such table"):
        await broken.__aenter__()

    await host().close()


async def test_what_waits_is_taken_up_at_the_start_without_being_called(world: World) -> None:
    """An alarm that became due, and a call that could not be sent."""
    async with world.host("askers", Asker) as askers:
        await world.ask("asker/a", op(Asker.ring, 60.0, 7))
        await world.ask("asker/b", op(Asker.pass_on, 0, 3))
        assert await world.command(askers, "alarms")
    late = Shifting(60.0)
    async with world.host("adders", Adder), world.host("askers", Asker, clock=late):
        await until(lambda: world.stored("askers", "asker/a", "answered"), 1)
        await until(lambda: len(world.stored("askers", "asker/b", "heard") or []), 3)
        assert world.stored("adders", "adder/a", "seen") == [7]
        assert world.stored("adders", "adder/b", "seen") == [0, 1, 2]


async def test_a_host_without_a_hub_takes_up_its_alarms(world: World) -> None:
    async with world.host("both", Asker, Adder):
        assert await world.ask("asker/a", op(Asker.ask, 1)) == 1
        await world.ask("asker/a", op(Asker.ring, 60.0, 7))
    await world.stop_hub()
    late = Shifting(60.0)
    async with world.host("both", Asker, Adder, clock=late, is_awaited=False) as both:
        await until(lambda: world.stored("both", "asker/a", "answered"), 1)
        assert world.stored("both", "adder/a", "seen") == [1, 7]
        assert not both.is_connected.is_set()
