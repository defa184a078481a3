"""Hosts of durable actors and a real hub: calls, absences, restarts, and moves."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import apsw
import pytest

from signalhub.actors import Actor, CallTimeout, CallUndeliverable, DurableConfig, op, payload
from signalhub.actors import message as wire
from signalhub.actors.events import Arrived, Commanded, Receipted
from signalhub.actors.host import FILE, Host
from signalhub.actors.moving import PART_BYTES
from signalhub.actors.operation import Operation
from signalhub.actors.outbox import FROZEN
from signalhub.actors.outside import ActorHub
from signalhub.clock import Clock, SystemClock
from signalhub.errors import ClientError, Refused, SettingsError
from signalhub.testing import HostProcess, RunningHub, run_hub, spawn_host
from signalhub.testing.local_actors import request_body
from tests.integration import host_actors
from tests.integration.host_actors import QUICK, Adder, Asker, Feeder, Mover

PATIENCE_S = 20.0
PAUSE_S = 0.02
# So much of an actor takes three parts to move.
BALLAST_CHARS = 2 * PART_BYTES + 1
UNLIMITED: dict[str, Any] = {"message_rate": 0.0, "connection_rate": 0.0}


class Shifting(SystemClock):
    """A clock that can be set."""

    def __init__(self, shift_s: float = 0.0) -> None:
        self.shift_ms = round(shift_s * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def advance(self, seconds: float, *hosts: Host) -> None:
        """Time passes for those who have this clock; any event makes them look at it."""
        self.shift_ms += round(seconds * 1000)
        for host in hosts:
            host.kernel_events([Receipted("a batch nobody knows")])


@asynccontextmanager
async def hosting(
    url: str,
    folder: Path,
    name: str,
    *classes: type[Actor],
    clock: Clock | None = None,
    is_awaited: bool = True,
    **config: Any,
) -> AsyncIterator[Host]:
    """A host that retries quickly, once the hub knows it."""
    chosen = DurableConfig(**(QUICK | config))
    async with Host(
        *classes, data=folder / name, url=url, name=name, config=chosen, clock=clock
    ) as host:
        if is_awaited:
            async with asyncio.timeout(PATIENCE_S):
                await host.is_connected.wait()
        yield host


async def ask(url: str, target: str, operation: Operation, timeout_s: float = PATIENCE_S) -> Any:
    async with ActorHub(url) as outside:
        return await outside.ask(target, operation, timeout=timeout_s)


async def command(url: str, host: Host | HostProcess, name: str, **arguments: Any) -> Any:
    async with ActorHub(url) as outside:
        return await outside.command(host.address, name, arguments)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  What happens elsewhere has no event here.
            await asyncio.sleep(PAUSE_S)


def stored(folder: Path, name: str, actor: str, key: str) -> Any:
    """A value of an actor's state, read beside its host."""
    connection = apsw.Connection(str(folder / name / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(
        "SELECT value FROM state WHERE actor = ? AND key = ?", (actor, key)
    ).get
    connection.close()
    return None if found is None else payload.decode(found)


def rows_of(folder: Path, name: str, query: str) -> list[Any]:
    """What a host's store says, read beside it; the first column."""
    connection = apsw.Connection(str(folder / name / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    rows = [row[0] for row in connection.execute(query)]
    connection.close()
    return rows


# Whoever sends something without the hub.
NOBODY = SimpleNamespace(sender="@(test/nobody)", payload={}, is_settleable=False)


def called(actor: str, operation: Operation) -> Arrived:
    """A call as if the hub had delivered it."""
    data = request_body(uuid4().hex, actor, operation)
    return Arrived(wire.CALL, data, NOBODY.sender, time.time_ns() // 1_000_000, NOBODY)


async def lost(host: Host) -> None:
    """Wait until the host has noticed that there is no hub."""
    client = host._client
    assert client is not None

    async def is_lost() -> bool:
        return not client.is_connected

    await until(is_lost)


async def back(host: Host) -> None:
    """Wait until the host is connected again."""
    client = host._client
    assert client is not None

    async def is_back() -> bool:
        return client.is_connected

    await until(is_back)


# Calls.


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
        with pytest.raises(ValueError, match="no command 'sing'"):
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


async def arrived(url: str, host: Host | HostProcess, actor: str) -> None:
    async def is_here() -> bool:
        found = await command(url, host, "actor", actor=actor)
        return found is not None and found["status"] == "here" and found["move"] is None

    await until(is_here)


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
        assert "is running" in await refusal(second)
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

        assert "is running" in await refusal(Host(Adder, data=tmp_path / "copy", url=hub.url))

        assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 2


async def test_the_name_of_a_host_that_is_away_is_taken_only_on_purpose(tmp_path: Path) -> None:
    async with run_hub(**UNLIMITED) as hub:
        async with hosting(hub.url, tmp_path, "adders", Adder):
            assert await ask(hub.url, "adder/a", op(Adder.add, 1)) == 1

        other = Host(Adder, data=tmp_path / "other", url=hub.url, name="adders")
        assert "live in another folder; start that one" in await refusal(other)

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


# Moves.


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

        async def is_sent() -> bool:
            moves = (await command(hub.url, one, "stats"))["moves"]
            return [each["step"] for each in moves] == ["drained"]

        await until(is_sent)
        async with ActorHub(hub.url) as outside:
            asked = asyncio.create_task(outside.ask("mover/a", op(Mover.note, 1)))
            with pytest.raises(ValueError, match="on its way already"):
                await outside.command(one.address, "move", {"actor": "mover/a", "to": "@(x/y)"})
            assert not asked.done()

            async with hosting(hub.url, tmp_path, "two", Mover) as two:
                assert await asked == 1
                await arrived(hub.url, two, "mover/a")
                shown = await outside.ask("mover/a", op(Mover.show))
                assert shown["seen"] == [0, 1]


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
        with pytest.raises(ValueError, match=r"lives in .* already"):
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

        async def is_sent() -> bool:
            moves = (await command(hub.url, one, "stats"))["moves"]
            return [each["step"] for each in moves] == ["drained"]

        await until(is_sent)
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
