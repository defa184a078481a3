"""ViewOptions at actors from the command line, and mending what they gave up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import HOST_CAPABILITY, Host
from signalhub.cli.actors.hosts import hosts_at
from signalhub.cli.terminal.connection import LOCAL
from signalhub.testing import RunningHub, run_hub
from tests.support.actors.shop import Clerk, Order, Stock
from tests.support.process.command import PATIENCE_S, Done, cli

KINDS = ("clerk",)


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def a(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    """A host with orders and stock."""
    host = Host(Order, Stock, data=tmp_path / "a", url=hub.url, name="a", foreign=KINDS)
    async with host:
        await host.is_connected.wait()
        yield host


@pytest.fixture
async def b(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    """A host with clerks."""
    async with Host(Clerk, data=tmp_path / "b", url=hub.url, name="b") as host:
        await host.is_connected.wait()
        yield host


@pytest.fixture
async def shop(hub: RunningHub) -> AsyncIterator[ActorHub]:
    async with ActorHub(hub.url) as outside:
        yield outside


def columns(done: Done) -> list[list[str]]:
    return [line.split("\t") for line in done.out.splitlines()]


def sheet(done: Done) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in done.out.splitlines() if "\t" in line)


async def until(shop: ActorHub, host: Host, name: str, **arguments: Any) -> list[dict[str, Any]]:
    """Wait until a host has something to show."""
    return await until_there_are(1, shop, host, name, **arguments)


async def until_there_are(
    count: int, shop: ActorHub, host: Host, name: str, **arguments: Any
) -> list[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: list[dict[str, Any]] = await shop.command(host.address, name, arguments)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


async def test_all_hosts_are_asked_for_their_actors(
    hub: RunningHub, a: Host, b: Host, shop: ActorHub
) -> None:
    await shop.ask("order/17", "checkout", "mug")
    await shop.ask("order/17", "wait_for", "ann")
    await until(shop, b, "actors")

    everything = await cli(hub.url, "actors", "ls")
    rows = (await cli(hub.url, "actors", "ls", "--json")).rows()
    orders = await cli(hub.url, "actors", "ls", "--kind", "order", "--json")
    on_b = await cli(hub.url, "actors", "ls", "--host", "b", "--json")
    two = await cli(hub.url, "actors", "ls", "--limit", "2", "--json")
    elsewhere = await cli(hub.url, "actors", "ls", "--host", "c")

    assert columns(everything) == [
        ["clerk/ann", "b", "here", "0", "0", "0", "0", "0"],
        ["order/17", "a", "here", "0", "0", "1", "0", "0"],
        ["stock/mug", "a", "here", "0", "0", "0", "0", "0"],
    ]
    assert everything.err == ""
    assert rows[1] == {
        "actor": "order/17",
        "token": 1,
        "status": "here",
        "inbox": 0,
        "outbox": 0,
        "pending": 1,
        "alarms": 0,
        "dead": 0,
        "host": "a",
    }
    assert [row["actor"] for row in orders.rows()] == ["order/17"]
    assert [row["actor"] for row in on_b.rows()] == ["clerk/ann"]
    assert [row["actor"] for row in two.rows()] == ["clerk/ann", "order/17"]
    assert json.loads(two.err) == {"has_more": True}
    assert elsewhere.code == 1
    assert "unknown host c; connected hosts: a, b" in elsewhere.err


async def test_hosts_that_are_away_or_silent_are_named(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    await shop.ask("stock/mug", "reserve", 1)
    async with Host(Clerk, data=tmp_path / "b", url=hub.url, name="b") as host:
        await host.is_connected.wait()
    away = await cli(hub.url, "actors", "ls")
    gone = await cli(hub.url, "actors", "ls", "--host", "b")
    async with signalhub.connect(
        hub.url, "@(actors/mute)", capabilities=[HOST_CAPABILITY], durable=True
    ):
        silent = await cli(hub.url, "actors", "ls", "--timeout", "0.5", "--json")
        unsure = await cli(hub.url, "actors", "show", "order/99", "--timeout", "0.5")
    known = await cli(hub.url, "actors", "show", "order/99")

    assert away.code == 0
    assert away.err == "hosts that are away are not included: b\n"
    assert gone.code == 1
    assert "host b is not connected" in gone.err
    assert silent.code == 4
    assert [row["actor"] for row in silent.rows()] == ["stock/mug"]
    assert json.loads(silent.err.splitlines()[-1])["silent"] == ["mute"]
    assert unsure.code == 4
    assert "there was no answer from mute" in unsure.err
    assert known.code == 1
    assert "on a host that is away: b, mute" in known.err


async def test_without_a_host_there_is_nobody_to_ask(hub: RunningHub) -> None:
    for command in (["ls"], ["show", "order/1"], ["calls"], ["alarms"], ["dead"]):
        done = await cli(hub.url, "actors", *command)

        assert done.code == 1, command
        assert "no actor host is connected to this hub — start one with" in done.err


async def test_one_actor_is_shown_with_all_it_has(
    hub: RunningHub, a: Host, b: Host, shop: ActorHub
) -> None:
    await shop.ask("order/17", "wait_for", "ann")
    await shop.ask("order/17", "stumble", "mug")
    await shop.ask("order/17", "remind", 3600)
    await until(shop, a, "dead")

    done = await cli(hub.url, "actors", "show", "order/17")
    (facts,) = (await cli(hub.url, "actors", "show", "order/17", "--json")).rows()
    unknown = await cli(hub.url, "actors", "show", "order/99")

    assert sheet(done)["host"] == "a"
    assert sheet(done)["state"] == "0 keys, 0 bytes"
    assert {"calls:", "alarms:", "dead letters:"} <= {row[0] for row in columns(done)}
    assert 'reminded("coffee")' in done.out
    assert facts["actor"] == "order/17"
    assert facts["host"] == "a"
    assert [one["target"] for one in facts["calls"]] == ["clerk/ann"]
    assert [one["id"] for one in facts["alarmList"]] == ["tea", "weekly"]
    assert facts["alarmList"][0]["continuation"]["m"] == "reminded"
    assert [one["error"] for one in facts["deadLetters"]] == ["KeyError: 'stumbled'"]
    assert facts["move"] is None
    assert unknown.code == 1
    assert "unknown actor order/99; queried hosts: a, b — it was never called" in unknown.err


async def test_a_call_is_followed_from_one_side_to_the_other(
    hub: RunningHub, a: Host, b: Host, shop: ActorHub
) -> None:
    call_id = await shop.ask("order/17", "wait_for", "ann")
    await until(shop, b, "actors")

    listed = await cli(hub.url, "actors", "calls", "order/17")
    (row,) = (await cli(hub.url, "actors", "calls", "--json")).rows()
    view = await cli(hub.url, "actors", "calls", "--id", call_id)
    (facts,) = (await cli(hub.url, "actors", "calls", "--id", call_id, "--json")).rows()
    quiet = await cli(hub.url, "actors", "calls", "clerk/ann")
    unknown = await cli(hub.url, "actors", "calls", "order/99")
    ended = await cli(hub.url, "actors", "calls", "--id", "01M7J0XH11HVJDPJH52Y9PDARE")

    assert columns(listed)[0][:4] == [call_id, "order/17", "clerk/ann.never", "accepted"]
    assert row["call"] == call_id
    assert row["deadlineMs"] > 0
    assert facts["state"] == "deferred"
    assert facts["path"] == ["stored", "sent", "accepted"]
    assert facts["caller"]["host"] == "a"
    assert facts["callee"]["host"] == "b"
    assert facts["storedMs"] <= facts["acceptedMs"] <= facts["deadlineMs"]
    assert sheet(view)["path"] == "stored → sent → accepted → (executed) → (answered) → (done)"
    assert sheet(view)["callee"] == "clerk/ann on b: deferred"
    assert (quiet.code, quiet.out) == (0, "")
    assert unknown.code == 1
    assert ended.code == 1
    assert "unknown call" in ended.err
    assert "it has ended or never existed" in ended.err


async def test_a_call_is_stored_while_nobody_serves_its_target(
    hub: RunningHub, a: Host, shop: ActorHub
) -> None:
    call_id = await shop.ask("order/17", "wait_for", "ann")

    (facts,) = (await cli(hub.url, "actors", "calls", "--id", call_id, "--json")).rows()

    assert facts["state"] == "stored"
    assert facts["callee"] is None


async def test_a_call_to_a_host_that_is_away_says_where_its_target_lives(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    async with Host(Clerk, data=tmp_path / "b", url=hub.url, name="b") as b:
        await b.is_connected.wait()
        await shop.ask("order/1", "wait_for", "ann")
        await until(shop, b, "actors")
    call_id = await shop.ask("order/17", "wait_for", "ann")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (row,) = await shop.command(a.address, "calls", {"id": call_id})
            if row["state"] == "accepted":
                break
            await asyncio.sleep(0.02)

    view = await cli(hub.url, "actors", "calls", "--id", call_id)
    (facts,) = (await cli(hub.url, "actors", "calls", "--id", call_id, "--json")).rows()
    unknown = await cli(hub.url, "actors", "calls", "--id", "01M7J0XH11HVJDPJH52Y9PDARE")
    letter = await cli(hub.url, "actors", "dead", "--id", "nope")

    assert sheet(view)["callee"].startswith("clerk/ann on b, which is away")
    assert view.err == "hosts that are away were not queried: b\n"
    assert facts["home"] == {"actor": "clerk/ann", "host": "b", "away": True}
    assert unknown.code == letter.code == 1
    assert "unknown call" in unknown.err
    assert "hosts that are away: b — start them, or read the folder" in unknown.err
    assert "there is no dead letter nope; hosts that are away: b" in letter.err


async def test_actors_that_have_left_take_no_place_in_the_list(
    hub: RunningHub, a: Host, shop: ActorHub, tmp_path: Path
) -> None:
    for sku in ("a", "b", "c", "d"):
        await shop.ask(f"stock/{sku}", "reserve", 1)
    async with Host(Stock, data=tmp_path / "b", url=hub.url, name="b") as host:
        await host.is_connected.wait()
        for sku in ("a", "b"):
            moved = await cli(hub.url, "actors", "move", f"stock/{sku}", "--to", "b")
            assert moved.code == 0, moved.err
        three = await cli(hub.url, "actors", "ls", "--limit", "3", "--json")
        on_a = await cli(hub.url, "actors", "ls", "--host", "a", "--limit", "1", "--json")
        last = await cli(hub.url, "actors", "ls", "--host", "a", "--limit", "2", "--json")

    assert [row["actor"] for row in three.rows()] == ["stock/a", "stock/b", "stock/c"]
    assert json.loads(three.err) == {"has_more": True}
    assert [row["actor"] for row in on_a.rows()] == ["stock/c"]
    assert [row["actor"] for row in last.rows()] == ["stock/c", "stock/d"]
    assert last.err == ""


async def test_alarms_are_listed_and_tried_again(hub: RunningHub, a: Host, shop: ActorHub) -> None:
    await shop.ask("order/17", "remind", 0.01)
    await until(shop, a, "alarms", status="skipped")

    every = await cli(hub.url, "actors", "alarms")
    (skipped,) = (await cli(hub.url, "actors", "alarms", "--status", "skipped", "--json")).rows()
    await shop.ask("order/17", "mend")
    again = await cli(hub.url, "actors", "redrive", "order/17", "tea")
    (left,) = (await cli(hub.url, "actors", "alarms", "order/17", "--json")).rows()
    pending = await cli(hub.url, "actors", "redrive", "order/17", "weekly")

    tea, weekly = columns(every)
    assert tea[1:] == [
        "order/17",
        "tea",
        "delayed",
        'reminded("tea")',
        "skipped after 1 failure: RuntimeError: no tea",
        "a",
    ]
    assert weekly[2:6] == ["weekly", "0 9 * * MON UTC", 'reminded("coffee")', "pending"]
    assert skipped["id"] == "tea"
    assert isinstance(skipped["dueMs"], int)
    assert skipped["continuation"] == {"m": "reminded", "a": ["tea"], "k": {}}
    assert isinstance(skipped["spec"], dict)
    assert again.out == "retrying tea of order/17 on a\n"
    assert left["id"] == "weekly"
    assert pending.code == 1
    assert "has no dead letter or skipped alarm weekly" in pending.err


async def test_dead_letters_are_shown_tried_again_and_thrown_away(
    hub: RunningHub, a: Host, shop: ActorHub
) -> None:
    calls = [await shop.ask("order/17", "stumble", "mug") for _ in range(2)]
    await until_there_are(2, shop, a, "dead")

    listed = await cli(hub.url, "actors", "dead", "order/17")
    first, second = (await cli(hub.url, "actors", "dead", "--json")).rows()
    shown = await cli(hub.url, "actors", "dead", "--id", first["id"])
    (letter,) = (
        await cli(hub.url, "actors", "dead", "order/17", "--id", first["id"], "--json")
    ).rows()
    view = await cli(hub.url, "actors", "calls", "--id", calls[0])
    unsure = await cli(hub.url, "actors", "purge", "order/17", second["id"])
    purged = await cli(hub.url, "actors", "purge", "order/17", second["id"], "--yes", "--json")
    await shop.ask("order/17", "mend")
    redriven = await cli(hub.url, "actors", "redrive", "order/17", first["id"], "--json")
    again = await cli(hub.url, "actors", "redrive", "order/17", first["id"])
    none = await cli(hub.url, "actors", "dead", "--id", first["id"])
    empty = await cli(hub.url, "actors", "dead")

    assert [row[1:] for row in columns(listed)] == [
        ["order/17", one["id"], "continuation", "1", "KeyError: 'stumbled'", "a"]
        for one in (first, second)
    ]
    assert [first["call"], second["call"]] == calls
    assert sheet(shown)["its method"] == "reserve"
    assert letter["contents"]["dest"] == "stock/mug"
    assert letter["contents"]["then"]["m"] == "on_stumbled"
    assert sheet(shown)["its then"] == "on_stumbled()"
    assert sheet(view)["state"] == "dead: given up"
    assert first["id"] in sheet(view)["dead letter"]
    assert unsure.code == 2
    assert purged.rows() == [{"actor": "order/17", "id": second["id"], "host": "a", "purged": True}]
    assert redriven.rows()[0]["redriven"] is True
    assert again.code == none.code == 1
    assert "list them with `signalhub actors dead`" in again.err
    assert (empty.code, empty.out) == (0, "")


async def test_what_a_host_could_not_read_belongs_to_nobody_and_can_be_thrown_away(
    hub: RunningHub, a: Host, shop: ActorHub
) -> None:
    await shop.client.ask(a.address, "actors:batch", {"v": 99, "messages": []})
    (letter,) = await until(shop, a, "dead")

    listed = await cli(hub.url, "actors", "dead")
    purged = await cli(hub.url, "actors", "purge", "-", letter["id"], "--yes")

    assert columns(listed)[0][1] == "-"
    assert purged.out == f"deleted {letter['id']} of no actor\n"


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_folder_is_looked_into_without_a_trace(
    hub: RunningHub, tmp_path: Path, is_running: bool
) -> None:
    data = tmp_path / "a b"
    host = Host(Order, Stock, data=data, url=hub.url, name="a", foreign=KINDS)
    async with host, ActorHub(hub.url) as shop:
        await host.is_connected.wait()
        call_id = await shop.ask("order/17", "wait_for", "ann")
        await shop.ask("order/17", "remind", 3600)
        await shop.ask("order/17", "stumble", "mug")
        await until(shop, host, "dead")
        if not is_running:
            await host.close()
        before = names_in(data)

        async def looked(*arguments: str) -> Done:
            return await cli("ws://127.0.0.1:9/ws", "actors", *arguments, "--data", str(data))

        actors = await looked("ls", "--json")
        shown = await looked("show", "order/17")
        calls = await looked("calls", "order/17", "--json")
        one = await looked("calls", "--id", call_id)
        alarms = await looked("alarms", "--json")
        dead = await looked("dead", "--json")
        letter = await looked("dead", "--id", dead.rows()[0]["id"])
        unknown = await looked("show", "order/99")
        nowhere = await looked("calls", "--id", "01M7J0XH11HVJDPJH52Y9PDARE")
        chosen = await looked("ls", "--host", "a")

        assert names_in(data) == before

    assert [row["actor"] for row in actors.rows()] == ["order/17", "stock/mug"]
    assert {row["host"] for row in actors.rows()} == {"a"}
    assert sheet(shown)["host"] == "a"
    assert [row["call"] for row in calls.rows()] == [call_id]
    assert sheet(one)["caller"] == "order/17 on a: stored"
    assert [row["id"] for row in alarms.rows()] == ["tea", "weekly"]
    assert sheet(letter)["its dest"] == "stock/mug"
    assert unknown.code == 1
    assert "unknown actor order/99; queried hosts: a" in unknown.err
    assert "on host a: it has ended" in nowhere.err
    assert chosen.code == 2
    assert "omit --host, or use --url" in chosen.err


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_folder_that_is_no_host_s_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "actors.db"
    path.write_text("something else, and long enough to be read as the head of a file" * 9)
    before = path.read_bytes()

    done = await cli("", "actors", "ls", "--data", str(tmp_path))

    assert done.code == 2
    assert "cannot be used" in done.err
    assert "— choose another folder with --data" in done.err
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["actors.db"]


async def test_more_hosts_than_a_page_are_found(hub: RunningHub) -> None:
    async with signalhub.connect(hub.url, "@(demo/many)") as many, ActorHub(hub.url) as shop:
        for number in range(103):
            address = f"@(actors/h{number})"
            await many.register(address, capabilities=[HOST_CAPABILITY, "actor:order"])
        found = await hosts_at(shop, LOCAL)

    assert len(found.present) == 103
    assert found.present["h102"] == {"order"}
