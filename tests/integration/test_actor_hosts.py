"""Hosts of durable actors and a real hub: calls, absences, restarts."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from signalhub.actors import CallTimeout, CallUndeliverable, op
from signalhub.actors.api.operation import Operation
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import Host
from signalhub.testing import RunningHub, run_hub
from signalhub.wire.errors import ClientError, Refused, SettingsError
from tests.support.actors.examples import Adder, Asker
from tests.support.actors.hosts import (
    PATIENCE_S,
    UNLIMITED,
    Shifting,
    arrived,
    ask,
    back,
    command,
    hosting,
    lost,
    stored,
    until,
)


async def test_results_and_errors_come_back_from_another_host(tmp_path: Path) -> None:
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "askers", Asker),
        hosting(hub.url, tmp_path, "adders", Adder),
        ActorHub(hub.url) as outside,
    ):
        sums = [await outside.ask("asker/a", op(Asker.ask, number)) for number in (1, 2, 3)]
        with pytest.raises(Exception, match="not today") as caught:
            await outside.ask("asker/a", op(Asker.ask_for_trouble))

        assert sums == [1, 3, 6]
        assert (caught.value.name, caught.value.attrs["limit"]) == ("Refusing", 3)  # type: ignore[attr-defined]
        assert await outside.ask("adder/a", op(Adder.seen)) == [1, 2, 3]


async def test_hosts_of_one_kind_share_its_actors_and_none_has_two_homes(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    actors = [f"adder/{number}" for number in range(60)]
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "one", Adder) as one,
        hosting(hub.url, tmp_path, "two", Adder) as two,
        hosting(hub.url, tmp_path, "three", Adder) as three,
        ActorHub(hub.url) as outside,
    ):
        for number in (1, 2):
            asks = (outside.ask(actor, op(Adder.add, number)) for actor in actors)
            assert set(await asyncio.gather(*asks)) == {sum(range(number + 1))}
        homes = [
            {each["actor"] for each in await outside.command(host.address, "actors")}
            for host in (one, two, three)
        ]

        assert sorted(actor for home in homes for actor in home) == sorted(actors)
        assert all(homes), dict(zip(names, homes, strict=True))


async def test_a_thousand_calls_at_once_end(tmp_path: Path) -> None:
    """From one actor, and from as many that wait outside; upstream hung at fifty."""
    async with (
        run_hub(**UNLIMITED, mailbox={"limit": 10_000}) as hub,
        hosting(hub.url, tmp_path, "askers", Asker),
        hosting(hub.url, tmp_path, "adders", Adder),
        ActorHub(hub.url) as outside,
    ):
        assert await outside.ask("asker/many", op(Asker.spread, 1_000), timeout=60)
        asks = [
            outside.ask(f"asker/{number % 20}", op(Asker.ask, 1), timeout=60)
            for number in range(1_000)
        ]
        sums = await asyncio.gather(*asks)

        assert sorted(sums) == sorted([*range(1, 51)] * 20)
        for number in range(50):
            assert await outside.ask(f"adder/many-{number}", op(Adder.seen)) == [1] * 20


# From outside.


async def test_whoever_asks_from_outside_hears_what_is_wrong(tmp_path: Path) -> None:
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "adders", Adder),
        ActorHub(hub.url) as outside,
    ):
        assert await outside.ask("adder/a", "add", 5) == 5
        with pytest.raises(Exception, match="not today"):
            await outside.ask("adder/a", op(Adder.refuse))
        with pytest.raises(CallTimeout, match=r"adder/a\.think did not answer within 0\.3 s"):
            await outside.ask("adder/a", op(Adder.think), timeout=0.3)
        with pytest.raises(CallUndeliverable, match="asker/a could not be reached"):
            await outside.ask("asker/a", op(Asker.ask, 1), timeout=0.3)
        with pytest.raises(Exception, match="no remote method sing"):
            await outside.ask("adder/a", "sing")
        with pytest.raises(ValueError, match="unknown command 'sing'"):
            await outside.command("@(actors/adders)", "sing")


async def test_whoever_asks_from_outside_lives_through_a_restart_of_the_hub(
    tmp_path: Path,
) -> None:
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "adders", Adder) as adders,
        ActorHub(hub.url) as outside,
    ):
        assert await outside.ask("adder/a", op(Adder.add, 1)) == 1
        await hub.stop()
        await lost(adders)
        with pytest.raises((ClientError, CallUndeliverable)):
            await outside.ask("adder/a", op(Adder.add, 2), timeout=0.3)
        await hub.start()
        await back(adders)

        async def is_back() -> bool:
            return outside.client.is_connected

        await until(is_back)
        assert await outside.ask("adder/a", op(Adder.add, 3)) == 4


async def test_whoever_commands_a_host_that_is_away_hears_which(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, ActorHub(hub.url) as outside:
        async with hosting(hub.url, tmp_path, "adders", Adder) as adders:
            pass

        with pytest.raises(TimeoutError, match=r"the host @\(actors/adders\) .* is it running"):
            await outside.command(adders.address, "stats", timeout_s=0.05)


# Who is away.


async def test_calls_for_a_host_that_is_away_wait_for_it_in_order(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "askers", Asker):
        async with hosting(hub.url, tmp_path, "adders", Adder):
            assert await ask(hub.url, "asker/a", op(Asker.ask, 0)) == 0
        for first in (1, 11, 21):
            await ask(hub.url, "asker/a", op(Asker.pass_on, first, 10))

        async with hosting(hub.url, tmp_path, "adders", Adder):

            async def all_heard() -> bool:
                return len(await ask(hub.url, "asker/a", op(Asker.heard))) == 30

            await until(all_heard)
            assert await ask(hub.url, "adder/a", op(Adder.seen)) == list(range(31))
        heard = await ask(hub.url, "asker/a", op(Asker.heard))
        assert heard == [[number, "heard"] for number in range(1, 31)]


async def test_calls_for_a_kind_nobody_serves_yet_wait_for_a_host(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "askers", Asker):
        await ask(hub.url, "asker/a", op(Asker.pass_on, 0, 20))
        async with hosting(hub.url, tmp_path, "adders", Adder):

            async def all_heard() -> bool:
                return len(await ask(hub.url, "asker/a", op(Asker.heard))) == 20

            await until(all_heard)
            assert await ask(hub.url, "adder/a", op(Adder.seen)) == list(range(20))


async def test_a_timeout_tells_whether_the_call_can_have_been_executed(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "askers", Asker):
        async with hosting(hub.url, tmp_path, "adders", Adder):
            await ask(hub.url, "asker/known", op(Asker.ask, 0))

        async def both_heard() -> bool:
            heard = [await ask(hub.url, one, op(Asker.heard)) for one in ("asker/known", "asker/b")]
            return all(heard)

        # One is in the mailbox of its host, the other never left.
        await ask(hub.url, "asker/known", op(Asker.pass_on, 1, 1, 0.3))
        await ask(hub.url, "asker/b", op(Asker.pass_on, 1, 1, 0.3))
        await until(both_heard)

        assert await ask(hub.url, "asker/known", op(Asker.heard)) == [[1, "unknown"]]
        assert await ask(hub.url, "asker/b", op(Asker.heard)) == [[1, "no"]]
        async with hosting(hub.url, tmp_path, "adders", Adder):
            assert await ask(hub.url, "adder/b", op(Adder.seen)) == []


async def test_without_a_hub_local_work_goes_on_and_the_rest_waits(tmp_path: Path) -> None:
    clock = Shifting()
    async with (
        run_hub(**UNLIMITED) as hub,
        hosting(hub.url, tmp_path, "both", Asker, Adder, clock=clock) as both,
        hosting(hub.url, tmp_path, "askers", Asker, clock=clock) as askers,
    ):
        # One asker beside its adder, one in another host than its adder.
        await move(hub, both, askers, "asker/far", op(Asker.ask, 0))
        await move(hub, askers, both, "asker/near", op(Asker.ask, 0))
        for number in range(1, 6):
            await ask(hub.url, "asker/near", op(Asker.ring, 60.0, number))
            await ask(hub.url, "asker/far", op(Asker.ring, 60.0, number))
        await hub.stop()
        await lost(both)
        await lost(askers)
        clock.advance(60.0, both, askers)

        async def all_rang() -> bool:
            near = stored(tmp_path, "both", "asker/near", "answered")
            far = stored(tmp_path, "askers", "asker/far", "rung")
            return near == 5 and far is not None and len(far) == 5

        await until(all_rang)
        assert stored(tmp_path, "both", "adder/near", "seen") == [0, 1, 2, 3, 4, 5]
        assert stored(tmp_path, "askers", "asker/far", "answered") is None

        await hub.start()

        async def all_answered() -> bool:
            return bool(stored(tmp_path, "askers", "asker/far", "answered") == 5)

        await until(all_answered)
        assert await ask(hub.url, "adder/far", op(Adder.seen)) == [0, 1, 2, 3, 4, 5]


async def move(hub: RunningHub, one: Host, other: Host, actor: str, wake: Operation) -> None:
    """Have an actor live in the second of two hosts, wherever it has been placed."""
    await ask(hub.url, actor, wake)
    here = {each["actor"] for each in await command(hub.url, one, "actors")}
    if actor in here:
        await command(hub.url, one, "move", actor=actor, to=other.address)
        await arrived(hub.url, other, actor)


# The hub's memory.


@pytest.mark.parametrize("forgets", ["nothing", "its snapshot", "everything"])
async def test_a_hub_that_is_started_again(tmp_path: Path, forgets: str) -> None:
    """Actors stay where they live, whatever the hub remembers, and calls go on."""
    data = tmp_path / "hub"
    actors = [str(number) for number in range(10)]
    async with (
        run_hub(**UNLIMITED, data=str(data)) as hub,
        hosting(hub.url, tmp_path, "askers", Asker) as askers,
        AsyncExitStack() as later,
        hosting(hub.url, tmp_path, "one", Adder) as one,
    ):
        for key in actors:
            await ask(hub.url, f"asker/{key}", op(Asker.ask, 1))
        # Half of them would be placed here, were they not at home elsewhere.
        two = await later.enter_async_context(hosting(hub.url, tmp_path, "two", Adder))
        homes = [await command(hub.url, host, "actors") for host in (one, two)]

        await hub.stop()
        for host in (askers, one, two):
            await lost(host)
        if forgets == "its snapshot":
            for path in data.glob("state.db*"):
                path.unlink()
        elif forgets == "everything":
            shutil.rmtree(data)
        await hub.start()
        for host in (askers, one, two):
            await back(host)

        for key in actors:
            assert await ask(hub.url, f"asker/{key}", op(Asker.ask, 2)) == 3
        assert [await command(hub.url, host, "actors") for host in (one, two)] == homes


# Names and folders.


async def refusal(host: Host) -> str:
    """Why a host ends that is not wanted."""
    async with host, asyncio.timeout(PATIENCE_S):
        with pytest.raises(Refused) as caught:
            await host.run()
        assert not host.is_connected.is_set()
    assert caught.value.code == "duplicate_host"
    return f"{caught.value.message}; {caught.value.resolution}"


async def test_a_name_belongs_to_one_host_and_a_folder_to_one_name(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "adders", Adder) as first:
        assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 1
        second = Host(Adder, data=tmp_path / "other", url=hub.url, name="adders")
        assert "is already running" in await refusal(second)
        with pytest.raises(SettingsError, match="in use by another actor host"):
            Host(Adder, data=tmp_path / "adders", url=hub.url)
        assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 2
        await first.close()

        with pytest.raises(ValueError, match="belongs to the host adders"):
            Host(Adder, data=tmp_path / "adders", url=hub.url, name="others")
        async with Host(Adder, data=tmp_path / "adders", url=hub.url) as again:
            assert again.name == "adders"
            assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 3


async def test_a_copy_of_a_folder_does_not_run_beside_the_original(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub, hosting(hub.url, tmp_path, "adders", Adder):
        assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 1
        shutil.copytree(tmp_path / "adders", tmp_path / "copy")

        assert "is already running" in await refusal(
            Host(Adder, data=tmp_path / "copy", url=hub.url)
        )

        assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 2


async def test_the_name_of_a_host_that_is_away_is_taken_only_on_purpose(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub:
        async with hosting(hub.url, tmp_path, "adders", Adder):
            assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 1

        other = Host(Adder, data=tmp_path / "other", url=hub.url, name="adders")
        assert "live in another folder; start that one" in await refusal(other)

        async with Host(Adder, data=tmp_path / "other", url=hub.url, name="others") as others:
            async with asyncio.timeout(PATIENCE_S):
                await others.is_connected.wait()

        folder = tmp_path / "new"
        async with Host(Adder, data=folder, url=hub.url, name="adders", replaces=True):
            assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 1


# Sleepers.


async def test_what_waits_is_taken_up_at_the_start_without_being_called(tmp_path: Path) -> None:
    """An alarm that became due, and a call that could not be sent."""
    async with run_hub(**UNLIMITED) as hub:
        async with hosting(hub.url, tmp_path, "askers", Asker) as askers:
            await ask(hub.url, "asker/a", op(Asker.ring, 60.0, 7))
            await ask(hub.url, "asker/b", op(Asker.pass_on, 0, 3))
            assert await command(hub.url, askers, "alarms")
        async with (
            hosting(hub.url, tmp_path, "adders", Adder),
            hosting(hub.url, tmp_path, "askers", Asker, clock=Shifting(60.0)),
        ):

            async def all_done() -> bool:
                heard = stored(tmp_path, "askers", "asker/b", "heard") or []
                return stored(tmp_path, "askers", "asker/a", "answered") == 1 and len(heard) == 3

            await until(all_done)
            assert stored(tmp_path, "adders", "adder/a", "seen") == [7]
            assert stored(tmp_path, "adders", "adder/b", "seen") == [0, 1, 2]


async def test_a_host_without_a_hub_takes_up_its_alarms(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub:
        async with hosting(hub.url, tmp_path, "both", Asker, Adder):
            assert await ask(hub.url, "asker/a", op(Asker.ask, 1)) == 1
            await ask(hub.url, "asker/a", op(Asker.ring, 60.0, 7))
        await hub.stop()

        late = Shifting(60.0)
        async with hosting(
            hub.url, tmp_path, "both", Asker, Adder, clock=late, is_awaited=False
        ) as both:

            async def is_done() -> bool:
                return bool(stored(tmp_path, "both", "asker/a", "answered") == 1)

            await until(is_done)
            assert stored(tmp_path, "both", "adder/a", "seen") == [1, 7]
            assert not both.is_connected.is_set()
