"""Hosts of durable actors, asked by the hub: their rows, their calls, and commands to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import HOST_CAPABILITY, Host
from signalhub.testing import RunningHub
from tests.support.actors.shop import Order, Stock
from tests.support.socket.stage import eventually
from tests.support.socket.visitors import Person, open_hub


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with open_hub() as running:
        yield running


@pytest.fixture
async def orders(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    """A host with orders, whose stock is on another one."""
    folder, foreign = tmp_path / "orders", ("stock", "clerk")
    async with Host(Order, data=folder, url=hub.url, name="orders", foreign=foreign) as running:
        await running.is_connected.wait()
        yield running


@pytest.fixture
async def stock(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(Stock, data=tmp_path / "stock", url=hub.url, name="stock") as running:
        await running.is_connected.wait()
        yield running


async def test_hosts_say_what_is_in_them(hub: RunningHub, orders: Host, stock: Host) -> None:
    person = Person(hub)
    async with ActorHub(hub.url) as outside:
        await outside.ask("order/17", "checkout", "mug")

    found = await person.get("/hosts")
    rows = {one["host"]: one for one in found["hosts"]}
    assert {name: one["state"] for name, one in rows.items()} == {
        "orders": "present",
        "stock": "present",
    }
    assert rows["orders"]["kinds"] == ["order"]
    assert rows["orders"]["counters"]
    (order,) = (await person.get("/hosts/orders/actors"))["rows"]
    assert (order["actor"], order["host"], order["status"]) == ("order/17", "orders", "here")
    (whole,) = (await person.get("/hosts/orders/actors/order%2F17"))["rows"]
    assert whole["actor"] == "order/17"
    missing = await person.ask("/hosts/orders/actors/order%2F99")
    assert missing.status == 404
    assert (await person.get("/actions?verb=control"))["rows"] == []


async def test_hosts_that_are_away_or_silent_are_named(
    hub: RunningHub, orders: Host, tmp_path: Path
) -> None:
    async with Host(Stock, data=tmp_path / "s", url=hub.url, name="stock") as other:
        await other.is_connected.wait()
    await eventually(lambda: hub.app.hub.registry.find("@(actors/stock)", now(hub)) is None)
    person = Person(hub)
    desk = hub.app.history
    assert desk is not None
    desk.hosts._answer_s = 0.3
    async with signalhub.connect(
        hub.url,
        "@(actors/mute)",
        capabilities=[HOST_CAPABILITY, "actor:clerk"],
        durable=True,
    ):
        found = await person.get("/hosts")
        alarms = await person.get("/alarms")

    states = {one["host"]: one["state"] for one in found["hosts"]}
    assert states == {"orders": "present", "stock": "away", "mute": "silent"}
    assert (alarms["silent"], alarms["away"], alarms["rows"]) == (["mute"], ["stock"], [])


def now(hub: RunningHub) -> int:
    return hub.app._clock.now_ms()


async def test_an_open_call_is_what_its_host_says(hub: RunningHub, orders: Host) -> None:
    person = Person(hub)
    async with ActorHub(hub.url) as outside:
        call_id = await outside.ask("order/17", "wait_for", "ann")

    (call,) = (await person.get("/calls"))["rows"]
    assert (call["call"], call["caller"], call["target"]) == (call_id, "order/17", "clerk/ann")
    assert (call["host"], call["method"]) == ("orders", "never")
    one = await person.get(f"/calls/{call_id}")
    assert one["known"]["orders"]["caller"]["target"] == "clerk/ann"
    assert one["steps"] == []


async def test_letters_of_a_host_are_shown_tried_again_and_deleted(
    hub: RunningHub, orders: Host, stock: Host
) -> None:
    person = Person(hub)
    letters: list[dict[str, Any]] = []
    async with ActorHub(hub.url) as outside:
        await outside.ask("order/17", "stumble", "mug")
        async with asyncio.timeout(20):
            while not letters:
                await asyncio.sleep(0.05)
                letters = (await person.get("/host-letters"))["rows"]
    (letter,) = letters
    assert (letter["actor"], letter["host"]) == ("order/17", "orders")
    assert "stumbled" in letter["error"]
    which = {"actor": "order/17", "id": letter["id"]}
    (whole,) = (await person.get(f"/host-letters/orders/{letter['id']}?actor=order%2F17"))["rows"]
    assert whole
    planned = await person.ask("/hosts/orders/purge", which | {"dryRun": True})
    assert planned.json["allowed"]

    again = await person.ask("/hosts/orders/redrive", which)
    assert again.status == 200, again.body
    assert (again.json["operation"], again.json["target"]) == ("hosts.redrive", "orders: order/17")
    letters = []
    async with asyncio.timeout(20):
        while not letters:
            await asyncio.sleep(0.05)
            letters = (await person.get("/host-letters?host=orders"))["rows"]
    purged = await person.ask("/hosts/orders/purge", {"actor": "order/17", "id": letters[0]["id"]})
    assert purged.status == 200, purged.body
    assert (await person.get("/host-letters"))["rows"] == []
    gone = await person.ask("/hosts/orders/purge", {"actor": "order/17", "id": letters[0]["id"]})
    assert gone.status == 404
    done = [one["request"] for one in (await person.get("/actions?verb=delete"))["rows"]]
    assert done[-1] == "actors:control purge"
    # Looking at the letters, again and again, is not on record.
    controlled = (await person.get("/actions?verb=control"))["rows"]
    assert {one["request"] for one in controlled} == {
        "actors:control redrive",
        "actors:control purge",
    }
    assert {one["over"] for one in controlled} == {"@(actors/orders)"}
    assert {one["address"] for one in controlled} == {"@(ui/page)"}


async def test_ended_calls_are_read_from_the_log(
    hub: RunningHub, orders: Host, stock: Host
) -> None:
    person = Person(hub)
    async with ActorHub(hub.url) as outside:
        await outside.ask("order/17", "checkout", "mug")
        ended: list[dict[str, Any]] = []
        async with asyncio.timeout(20):
            while {one["target"] for one in ended if one["endedAt"]} < {"order/17", "stock/mug"}:
                await asyncio.sleep(0.05)
                ended = (await person.get("/calls?state=ended"))["rows"]

    by_target = {one["target"]: one for one in ended}
    inner = by_target["stock/mug"]
    assert (inner["caller"], inner["state"]) == ("order/17", "returned")
    assert inner["method"]
    story = await person.get(f"/calls/{by_target['order/17']['call']}")
    whats = [(one["what"], one["target"]) for one in story["steps"]]
    assert ("requested", "order/17") in whats
    assert ("requested", "stock/mug") in whats
    assert story["steps"] == sorted(story["steps"], key=lambda one: one["at"])
    finished = await person.get("/calls?state=finished")
    assert {one["target"] for one in finished["rows"]} >= {"order/17"}


# What a host says when it is asked with the name of a command and its arguments.
Script = Callable[[str, dict[str, Any]], Any]


@asynccontextmanager
async def foreign_host(hub: RunningHub, name: str, script: Script) -> AsyncIterator[None]:
    """A program of somebody else that says it is a host."""
    capabilities = [HOST_CAPABILITY, f"actor:{name}"]
    async with signalhub.connect(
        hub.url, f"@(actors/{name})", capabilities=capabilities, durable=True
    ) as client:

        async def answer() -> None:
            async for message in client.messages():
                asked = message.payload
                told = script(asked["name"], asked["arguments"])
                reply = told if isinstance(told, Refused) else {"result": told}
                await client.tell(message.sender, "actors:answer", {"id": asked["id"]} | reply)

        task = asyncio.create_task(answer())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


class Refused(dict[str, Any]):
    """An answer as it is."""


def finished(host: str, count: int, most: int = 1_000) -> Script:
    """A host with so many ended calls, of which it shows a few at a time."""
    calls = [{"call": f"{host}-{number}", "actor": "order/1"} for number in range(count)]

    def say(name: str, arguments: dict[str, Any]) -> Any:
        if name != "finished":
            return None
        begin = arguments["offset"]
        return calls[begin : begin + min(arguments["limit"], most)]

    return say


async def leafed(person: Person, path: str, limit: int) -> list[dict[str, Any]]:
    """All rows, page by page."""
    rows: list[dict[str, Any]] = []
    while True:
        page = await person.get(f"{path}limit={limit}&offset={len(rows)}")
        assert len(page["rows"]) == limit or not page["hasMore"]
        rows += page["rows"]
        if not page["hasMore"]:
            return rows


async def test_pages_over_several_hosts_lose_no_rows(hub: RunningHub) -> None:
    person = Person(hub)
    async with AsyncExitStack() as stack:
        # One of them shortens its answers.
        for name, most in (("north", 1_000), ("south", 2)):
            await stack.enter_async_context(foreign_host(hub, name, finished(name, 5, most)))
        everything = await leafed(person, "/calls?state=finished&", 3)
        of_one = await leafed(person, "/calls?state=finished&host=south&", 3)
        beyond = await person.ask("/calls?state=finished&limit=100&offset=1950")
        far = await person.get("/calls?state=finished&host=south&limit=100&offset=1950")

    wanted = [f"{name}-{number}" for name in ("north", "south") for number in range(5)]
    assert [row["call"] for row in everything] == wanted
    assert [row["call"] for row in of_one] == wanted[5:]
    assert (beyond.status, far["rows"]) == (400, [])
    assert "host" in beyond.json["resolution"]


async def test_pages_in_one_order_take_from_every_host(hub: RunningHub) -> None:
    def alarms(times: list[Any]) -> Script:
        rows = [{"id": f"a-{at}", "dueMs": at} for at in times]
        return lambda name, given: rows[given["offset"] : given["offset"] + given["limit"]]

    person = Person(hub)
    async with AsyncExitStack() as stack:
        for name, times in (("north", [1, 4, 5]), ("south", [2, 3, 6])):
            await stack.enter_async_context(foreign_host(hub, name, alarms(times)))
        rows = await leafed(person, "/alarms?", 2)

    assert [row["dueMs"] for row in rows] == [1, 2, 3, 4, 5, 6]


NONSENSE: list[Any] = [
    *("rows", 7, None, {"call": "c"}, ["c", 7, None, [{}]], [{}], [{"call": 7}]),
    *([{"call": "c", "endedMs": "soon", "deadlineMs": {}, "dueMs": "x"}], [{"dueMs": []}]),
    Refused(error="unknown command 'finished'"),
    Refused(error="x" * 10_000),
]
LOOKED_AT = (
    *("/hosts", "/calls", "/calls?state=finished", "/alarms", "/host-letters"),
    *("/hosts/odd/actors", "/hosts/odd/actors/order%2F17", "/host-letters/odd/l-1", "/calls/c-1"),
)


async def test_a_host_that_answers_nonsense_does_not_keep_the_others(hub: RunningHub) -> None:
    said: list[Any] = [None]
    person = Person(hub)
    # It does not look how often it is asked.
    desk = hub.app.desk
    assert desk is not None
    desk.api._bucket.rate_s = desk.api._visitor_rate_s = 0
    async with (
        foreign_host(hub, "odd", lambda name, given: said[0] if not given.get("offset") else []),
        foreign_host(hub, "sound", finished("sound", 1)),
    ):
        for said[0] in NONSENSE:
            for path in LOOKED_AT:
                answer = await person.ask(path)
                assert answer.status in (200, 404, 409), (said, path, answer.body)
            page = await person.get("/calls?state=finished")
            of_sound = [row["call"] for row in page["rows"] if row["host"] == "sound"]
            assert of_sound == ["sound-0"], said
            assert [*page["failed"]] == ["odd"], said
            assert len(page["failed"]["odd"]) <= 300
        assert page["failed"]["odd"].endswith("x")


async def test_a_host_that_cannot_be_asked_does_not_keep_the_others() -> None:
    async with (
        open_hub(message_rate=1, message_burst=7) as hub,
        AsyncExitStack() as stack,
    ):
        for number in range(8):
            one = foreign_host(hub, f"h-{number}", finished(f"h-{number}", 1))
            await stack.enter_async_context(one)
        page = await Person(hub).get("/calls?state=finished")

    assert page["rows"]
    assert page["failed"]
    assert len(page["rows"]) + len(page["failed"]) == 8
