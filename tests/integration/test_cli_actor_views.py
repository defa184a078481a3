"""`signalhub actors`: views of actors, repairs, and moves, against hosts in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import HOST_CAPABILITY, Host
from signalhub.cli.actors.hosts import ConnectedHosts, hosts_at
from signalhub.cli.actors.move import ActorMove
from signalhub.cli.terminal.connection import LOCAL, RefusalLog
from signalhub.cli.terminal.failures import Failure
from signalhub.testing import RunningHub, run_hub, spawn_host
from tests.support.actors.shop import Clerk, Order, Stock
from tests.support.process.command import PATIENCE_S, Done, columns, command

Actors = Callable[..., Awaitable[Done]]
ENDED = "01M7J0XH11HVJDPJH52Y9PDARE"


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
def actors(hub: RunningHub) -> Actors:
    async def run(*arguments: str) -> Done:
        return await command(hub.url, "actors", *arguments)

    return run


@pytest.fixture
async def shop(hub: RunningHub) -> AsyncIterator[ActorHub]:
    async with ActorHub(hub.url) as outside:
        yield outside


@pytest.fixture
async def a(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    """A host with orders and stock."""
    async with host(hub, tmp_path, "a", Order, Stock) as running:
        yield running


@asynccontextmanager
async def host(
    hub: RunningHub, folder: Path, name: str, *kinds: type[Any], **options: Any
) -> AsyncIterator[Host]:
    options = {"foreign": ("clerk",)} | options
    async with Host(*kinds, data=folder / name, url=hub.url, name=name, **options) as running:
        await running.is_connected.wait()
        yield running


def sheet(done: Done) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in done.out.splitlines() if "\t" in line)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(done: Done) -> list[str]:
    return [row["actor"] for row in done.rows()]


async def until(
    shop: ActorHub, host: Host, name: str, count: int = 1, **arguments: Any
) -> list[dict[str, Any]]:
    """Wait until a host has something to show, perhaps in a state."""
    state = arguments.pop("state", None)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: list[dict[str, Any]] = await shop.command(host.address, name, arguments)
            if len(found) >= count and state in (None, found[0].get("state")):
                return found
            await asyncio.sleep(0.02)


async def test_all_hosts_are_asked_for_their_actors(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    async with host(hub, tmp_path, "b", Clerk) as b:
        await shop.ask("order/17", "checkout", "mug")
        await shop.ask("order/17", "wait_for", "ann")
        await until(shop, b, "actors")
        everything = await actors("ls")
        rows = (await actors("ls", "--json")).rows()
        orders = await actors("ls", "--kind", "order", "--json")
        on_b = await actors("ls", "--host", "b", "--json")
        two = await actors("ls", "--limit", "2", "--json")
        elsewhere = await actors("ls", "--host", "c")

    assert columns(everything) == [
        ["clerk/ann", "b", "here", "0", "0", "0", "0", "0"],
        ["order/17", "a", "here", "0", "0", "1", "0", "0"],
        ["stock/mug", "a", "here", "0", "0", "0", "0", "0"],
    ]
    assert everything.err == ""
    numbers = {"token": 1, "inbox": 0, "outbox": 0, "pending": 1, "alarms": 0, "dead": 0}
    assert rows[1] == numbers | {"actor": "order/17", "status": "here", "host": "a"}
    assert (names(orders), names(on_b)) == (["order/17"], ["clerk/ann"])
    assert names(two) == ["clerk/ann", "order/17"]
    assert json.loads(two.err) == {"has_more": True}
    assert elsewhere.code == 1
    assert "unknown host c; connected hosts: a, b" in elsewhere.err


async def test_hosts_that_are_away_or_silent_are_named(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    await shop.ask("stock/mug", "reserve", 1)
    async with host(hub, tmp_path, "b", Clerk):
        pass
    away = await actors("ls")
    gone = await actors("ls", "--host", "b")
    async with signalhub.connect(
        hub.url, "@(actors/mute)", capabilities=[HOST_CAPABILITY], durable=True
    ):
        silent = await actors("ls", "--timeout", "0.5", "--json")
        unsure = await actors("show", "order/99", "--timeout", "0.5")
    known = await actors("show", "order/99")

    assert (away.code, away.err) == (0, "hosts that are away are not included: b\n")
    assert gone.code == known.code == 1
    assert "host b is not connected" in gone.err
    assert silent.code == unsure.code == 4
    assert names(silent) == ["stock/mug"]
    assert json.loads(silent.err.splitlines()[-1])["silent"] == ["mute"]
    assert "there was no answer from mute" in unsure.err
    assert "on a host that is away: b, mute" in known.err


async def test_without_a_host_there_is_nobody_to_ask(actors: Actors) -> None:
    for view in (["ls"], ["show", "order/1"], ["calls"], ["alarms"], ["dead"]):
        done = await actors(*view)
        assert done.code == 1, view
        assert "no actor host is connected to this hub — start one with" in done.err


async def test_a_call_is_followed_from_one_side_to_the_other(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    stored_id = await shop.ask("order/17", "wait_for", "bob")
    (stored,) = (await actors("calls", "--id", stored_id, "--json")).rows()
    assert (stored["state"], stored["callee"]) == ("stored", None)

    async with host(hub, tmp_path, "b", Clerk) as b:
        call_id = await shop.ask("order/18", "wait_for", "ann")
        await until(shop, b, "actors", 2)
        listed = await actors("calls", "order/18")
        (row,) = (await actors("calls", "order/18", "--json")).rows()
        view = await actors("calls", "--id", call_id)
        (facts,) = (await actors("calls", "--id", call_id, "--json")).rows()
        quiet = await actors("calls", "clerk/ann")
        unknown = await actors("calls", "order/99")
        ended = await actors("calls", "--id", ENDED)

    assert columns(listed)[0][:4] == [call_id, "order/18", "clerk/ann.never", "accepted"]
    assert row["call"] == call_id
    assert facts["state"] == "deferred"
    assert facts["path"] == ["stored", "sent", "accepted"]
    assert (facts["caller"]["host"], facts["callee"]["host"]) == ("a", "b")
    assert 0 < facts["storedMs"] <= facts["acceptedMs"] <= facts["deadlineMs"]
    assert sheet(view)["path"] == "stored → sent → accepted → (executed) → (answered) → (done)"
    assert sheet(view)["callee"] == "clerk/ann on b: deferred"
    assert (quiet.code, quiet.out) == (0, "")
    assert unknown.code == ended.code == 1
    assert "unknown call" in ended.err
    assert "it has ended or never existed" in ended.err

    call_id = await shop.ask("order/19", "wait_for", "ann")
    await until(shop, a, "calls", id=call_id, state="accepted")
    view = await actors("calls", "--id", call_id)
    (facts,) = (await actors("calls", "--id", call_id, "--json")).rows()
    unknown = await actors("calls", "--id", ENDED)
    letter = await actors("dead", "--id", "nope")

    assert sheet(view)["callee"].startswith("clerk/ann on b, which is away")
    assert view.err == "hosts that are away were not queried: b\n"
    assert facts["home"] == {"actor": "clerk/ann", "host": "b", "away": True}
    assert unknown.code == letter.code == 1
    assert "hosts that are away: b — start them, or read the folder" in unknown.err
    assert "there is no dead letter nope; hosts that are away: b" in letter.err


async def test_alarms_are_listed_and_redriven(a: Host, shop: ActorHub, actors: Actors) -> None:
    await shop.ask("order/17", "remind", 0.01)
    await until(shop, a, "alarms", status="skipped")
    every = await actors("alarms")
    (skipped,) = (await actors("alarms", "--status", "skipped", "--json")).rows()
    await shop.ask("order/17", "repair")
    again = await actors("redrive", "order/17", "tea")
    (left,) = (await actors("alarms", "order/17", "--json")).rows()
    pending = await actors("redrive", "order/17", "weekly")

    tea, weekly = columns(every)
    failure = "skipped after 1 failure: RuntimeError: no tea"
    assert tea[1:] == ["order/17", "tea", "delayed", 'reminded("tea")', failure, "a"]
    assert weekly[2:6] == ["weekly", "0 9 * * MON UTC", 'reminded("coffee")', "pending"]
    assert skipped["id"] == "tea"
    assert isinstance(skipped["dueMs"], int)
    assert skipped["continuation"] == {"m": "reminded", "a": ["tea"], "k": {}}
    assert isinstance(skipped["spec"], dict)
    assert again.out == "retrying tea of order/17 on a\n"
    assert left["id"] == "weekly"
    assert pending.code == 1
    assert "has no dead letter or skipped alarm weekly" in pending.err


async def test_dead_letters_are_shown_and_redriven(a: Host, shop: ActorHub, actors: Actors) -> None:
    calls = [await shop.ask("order/17", "stumble", "mug") for _ in range(2)]
    await shop.client.ask(a.address, "actors:batch", {"v": 99, "messages": []})
    await until(shop, a, "dead", 3)
    everybodys = await actors("dead")
    listed = await actors("dead", "order/17")
    first, second = (await actors("dead", "order/17", "--json")).rows()
    (nobodys,) = [row for row in (await actors("dead", "--json")).rows() if not row["actor"]]
    shown = await actors("dead", "--id", first["id"])
    (letter,) = (await actors("dead", "order/17", "--id", first["id"], "--json")).rows()
    view = await actors("calls", "--id", calls[0])
    unsure = await actors("purge", "order/17", second["id"])
    purged = await actors("purge", "order/17", second["id"], "--yes", "--json")
    unread = await actors("purge", "-", nobodys["id"], "--yes")
    await shop.ask("order/17", "repair")
    redriven = await actors("redrive", "order/17", first["id"], "--json")
    again = await actors("redrive", "order/17", first["id"])
    none = await actors("dead", "--id", first["id"])
    empty = await actors("dead")

    assert [row[1:] for row in columns(listed)] == [
        ["order/17", one["id"], "continuation", "1", "KeyError: 'stumbled'", "a"]
        for one in (first, second)
    ]
    assert sorted(row[1] for row in columns(everybodys)) == ["-", "order/17", "order/17"]
    assert [first["call"], second["call"]] == calls
    assert sheet(shown)["its method"] == "reserve"
    assert sheet(shown)["its then"] == "on_stumbled()"
    assert letter["contents"]["dest"] == "stock/mug"
    assert letter["contents"]["then"]["m"] == "on_stumbled"
    assert sheet(view)["state"] == "dead: given up"
    assert first["id"] in sheet(view)["dead letter"]
    assert unsure.code == 2
    assert purged.rows() == [{"actor": "order/17", "id": second["id"], "host": "a", "purged": True}]
    assert unread.out == f"deleted {nobodys['id']} of no actor\n"
    assert redriven.rows()[0]["redriven"] is True
    assert again.code == none.code == 1
    assert "list them with `signalhub actors dead`" in again.err
    assert (empty.code, empty.out) == (0, "")


@pytest.mark.parametrize("where", ["hub", "folder of a running host", "folder of a stopped host"])
async def test_an_actor_is_shown_with_all_it_has(
    hub: RunningHub, tmp_path: Path, where: str
) -> None:
    data = tmp_path / "a"
    async with host(hub, tmp_path, "a", Order, Stock) as a, ActorHub(hub.url) as shop:
        call_id = await shop.ask("order/17", "wait_for", "ann")
        await shop.ask("order/17", "stumble", "mug")
        await shop.ask("order/17", "remind", 3600)
        await until(shop, a, "dead")
        if where == "folder of a stopped host":
            await a.close()
        before = files(data)

        async def look(*arguments: str) -> Done:
            if where == "hub":
                return await command(hub.url, "actors", *arguments)
            return await command("", "actors", *arguments, "--data", str(data))

        listed = await look("ls", "--json")
        shown = await look("show", "order/17")
        (facts,) = (await look("show", "order/17", "--json")).rows()
        calls = await look("calls", "order/17", "--json")
        one = await look("calls", "--id", call_id)
        alarms = await look("alarms", "--json")
        letter = await look("dead", "--id", facts["deadLetters"][0]["id"])
        unknown = await look("show", "order/99")
        nowhere = await look("calls", "--id", ENDED)
        chosen = await look("ls", "--host", "a")
        assert files(data) == before, "no trace is left"

    assert names(listed) == ["order/17", "stock/mug"]
    assert {row["host"] for row in listed.rows()} == {"a"} == {facts["host"]}
    assert (sheet(shown)["host"], sheet(shown)["state"]) == ("a", "0 keys, 0 bytes")
    assert {"calls:", "alarms:", "dead letters:"} <= {row[0] for row in columns(shown)}
    assert 'reminded("coffee")' in shown.out
    assert (facts["actor"], facts["move"]) == ("order/17", None)
    assert [one["target"] for one in facts["calls"]] == ["clerk/ann"]
    assert [one["id"] for one in facts["alarmList"]] == ["tea", "weekly"]
    assert facts["alarmList"][0]["continuation"]["m"] == "reminded"
    assert [one["error"] for one in facts["deadLetters"]] == ["KeyError: 'stumbled'"]
    assert [row["call"] for row in calls.rows()] == [call_id]
    assert sheet(one)["caller"] == "order/17 on a: stored"
    assert [row["id"] for row in alarms.rows()] == ["tea", "weekly"]
    assert sheet(letter)["its dest"] == "stock/mug"
    assert unknown.code == nowhere.code == 1
    assert "unknown actor order/99; queried hosts: a" in unknown.err
    if where != "hub":
        assert "on host a: it has ended" in nowhere.err
        assert chosen.code == 2
        assert "omit --host, or use --url" in chosen.err


async def test_a_folder_that_is_no_hosts_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "actors.db"
    path.write_text("something else, and long enough to be read as the head of a file" * 9)
    before = path.read_bytes()
    done = await command("", "actors", "ls", "--data", str(tmp_path))

    assert done.code == 2
    assert "cannot be used" in done.err
    assert "— choose another folder with --data" in done.err
    assert path.read_bytes() == before
    assert files(tmp_path) == ["actors.db"]


async def test_more_hosts_than_a_page_are_found(hub: RunningHub, shop: ActorHub) -> None:
    async with signalhub.connect(hub.url, "@(demo/many)") as many:
        for number in range(103):
            address = f"@(actors/h{number})"
            await many.register(address, capabilities=[HOST_CAPABILITY, "actor:order"])
        found = await hosts_at(shop, LOCAL)

    assert len(found.present) == 103
    assert found.present["h102"] == {"order"}


async def test_a_forgotten_actor_starts_anew_and_its_former_host_is_fenced_off(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    await shop.ask("stock/a", "reserve", 4)
    unsure = await actors("forget", "stock/a")
    gone = await actors("forget", "stock/a", "--yes")
    again = await actors("forget", "stock/a", "--yes")
    await a.close()
    async with host(hub, tmp_path, "b", Stock, Clerk):
        left = await shop.ask("stock/a", "reserve", 1)
        shown = await actors("show", "stock/a", "--json")

    assert (unsure.code, gone.code, again.code) == (2, 0, 1)
    assert "without confirmation" in unsure.err
    assert gone.out == "stock/a lived on a; the next call places it anew\n"
    assert "stock/a has no place" in again.err
    assert left == 9, "it starts empty"
    assert shown.rows()[0]["host"] == "b"


async def test_an_actor_moves_with_its_state_and_takes_no_place_where_it_was(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    for sku in ("a", "b", "c", "d"):
        await shop.ask(f"stock/{sku}", "reserve", 4)
    async with host(hub, tmp_path, "b", Stock, Clerk):
        moved = await actors("move", "stock/a", "--to", "b")
        begun = await actors("move", "stock/b", "--to", "b", "--no-wait")
        waited = await actors("move", "stock/b", "--to", "b")
        again = await actors("move", "stock/a", "--to", "@(actors/b)", "--json")
        left = await actors("call", "stock/a", "reserve", "1")
        shown = await actors("show", "stock/a", "--json")
        three = await actors("ls", "--limit", "3", "--json")
        on_a = await actors("ls", "--host", "a", "--limit", "1", "--json")
        last = await actors("ls", "--host", "a", "--limit", "2", "--json")
        back = await actors("move", "stock/a", "--to", "a", "--json")
        ghost = await actors("move", "stock/c", "--to", "ghost")
        unknown = await actors("move", "clerk/9", "--to", "b")
        await shop.ask("order/17", "echo")
        kind = await actors("move", "order/17", "--to", "b")
    away = await actors("move", "clerk/9", "--to", "b")

    assert moved.out == "stock/a is now on b\n"
    assert begun.out.startswith("stock/b is moving from a to b; follow it with")
    assert waited.code == 0
    expected = {"actor": "stock/a", "from": None, "to": "b", "moved": False, "arrived": True}
    assert again.rows() == [expected]
    assert left.out == "5\n"
    assert shown.rows()[0]["host"] == "b"
    assert shown.rows()[0]["elsewhere"] == [{"host": "a", "status": "gone"}]
    assert names(three) == ["stock/a", "stock/b", "stock/c"]
    assert json.loads(three.err) == {"has_more": True}
    assert names(on_a) == ["stock/c"]
    assert (names(last), last.err) == (["stock/c", "stock/d"], "")
    assert (back.rows()[0]["from"], back.rows()[0]["arrived"]) == ("b", True)
    assert back.rows()[0]["seconds"] > 0
    assert {one.code for one in (ghost, kind, unknown, away)} == {1}
    assert "unknown host ghost; connected hosts: a, b — correct the name" in ghost.err
    assert "host b does not serve the kind order; it serves clerk, stock" in kind.err
    assert "unknown actor clerk/9; queried hosts: a, b" in unknown.err
    assert "host b is not connected" in away.err
    assert "--even-if-away" in away.err


async def test_an_actor_waits_for_a_host_that_is_away_if_that_is_wanted(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    await shop.ask("stock/mug", "reserve", 4)
    async with host(hub, tmp_path, "b", Stock):
        pass
    move = ("move", "stock/mug", "--to", "b", "--even-if-away")
    late = await actors(*move, "--timeout", "1", "--json")
    shown = await actors("show", "stock/mug")
    other = await actors("move", "stock/mug", "--to", "a")
    waiting = asyncio.ensure_future(actors(*move))
    async with host(hub, tmp_path, "b", Stock):
        done = await waiting
        left = await shop.ask("stock/mug", "reserve", 1)

    failure = json.loads(late.err)
    assert (late.code, failure["error"]) == (4, "host_away")
    assert failure["message"].startswith(
        "b is not connected; stock/mug waits, partly in the mailbox of b"
    )
    assert failure["resolution"] == "start b, then the move continues by itself"
    assert "moving\tto b, drained" in shown.out
    assert other.code == 1
    assert "stock/mug is already moving to b" in other.err
    assert done.out in ("stock/mug is now on b\n", "stock/mug is already on b\n")
    assert (done.code, left) == (0, 5)


async def test_what_was_lost_with_its_new_host_is_sent_again_to_whoever_replaces_it(
    hub: RunningHub, a: Host, shop: ActorHub, actors: Actors, tmp_path: Path
) -> None:
    move = ("move", "stock/mug", "--to", "b")
    await shop.ask("stock/mug", "reserve", 4)
    async with spawn_host(Stock, url=hub.url, name="b") as lost:
        early = await actors(*move, "--again")
        await lost.arm("move arrived")
        await actors(*move, "--no-wait")
        await lost.killed()
    async with host(hub, tmp_path, "b", Stock, replaces=True):
        sent = await actors(*move, "--again")
        left = await shop.ask("stock/mug", "reserve", 1)

    assert early.code == 1
    assert "stock/mug is not leaving any connected host" in early.err
    assert sent.out == "stock/mug is now on b\n"
    assert left == 5


async def test_what_the_hub_refuses_is_told_and_the_actor_stays(a: Host, shop: ActorHub) -> None:
    """A host that was there a moment ago, and is not known any more."""
    await shop.ask("stock/mug", "reserve", 4)
    source = ConnectedHosts(shop, LOCAL, await hosts_at(shop, LOCAL), RefusalLog())
    journey = ActorMove(source, "stock/mug", "ghost")
    await journey.begin()
    with pytest.raises(Failure, match="stock/mug stays on a: ") as caught:
        await journey.wait(10, 0.02)

    assert caught.value.code == "move_refused"
    assert "it continues there" in str(caught.value)
    assert await shop.ask("stock/mug", "reserve", 1) == 5
