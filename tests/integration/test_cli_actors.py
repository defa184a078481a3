"""`signalhub actors run` as a process, and `signalhub actors call` against a host in this one."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from signalhub.actors import ActorHub
from signalhub.actors.host.host import Host
from signalhub.auth.tokens import mint
from signalhub.cli.actors.host import host_config
from signalhub.locks import LockedFolder
from signalhub.settings.model import Key
from signalhub.testing import RunningHub, run_hub, spawn_hub
from signalhub.wire.errors import Refused
from tests.support.actors.shop import Clerk, Order, Stock
from tests.support.process.command import SECRET, cli, command, line_of, started, unused_url

MODULE = "tests.support.actors.shop"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are looked for in the current folder."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def shop(hub: RunningHub, tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(Order, Stock, data=tmp_path / "shop", url=hub.url, name="shop") as host:
        await host.is_connected.wait()
        yield host


def run_arguments(data: Path, *classes: str) -> tuple[str, ...]:
    return ("actors", "run", *(f"{MODULE}:{one}" for one in classes), "--data", str(data))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_host_runs_until_it_is_told_to_stop_and_goes_on_with_the_next_start(
    hub: RunningHub, tmp_path: Path, number: signal.Signals
) -> None:
    data, path = tmp_path / "shop", tmp_path / "shop.toml"
    path.write_text('call_timeout_ms = 10_000\ndurability = "process"\n')
    arguments = (*run_arguments(data, "Order", "Stock"), "--config", str(path))
    checkout = ("actors", "call", "order/17", "checkout", '"mug"')
    async with started(hub.url, *arguments, "--name", "shop-1") as host:
        served = f"host shop-1 serves order, stock from {data}; press Ctrl-C to stop"
        await line_of(host.stdout, served)
        await line_of(host.stdout, f"connected to {hub.url} as @(actors/shop-1)")
        first = await command(hub.url, *checkout)
        host.send_signal(number)
        await line_of(host.stdout, "stopped; unfinished work continues with the next start")
        assert await host.wait() == 0
    async with started(hub.url, *arguments, "--json") as host:
        who = json.loads(await line_of(host.stdout, "shop-1"))
        assert json.loads(await line_of(host.stdout, "url")) == {"connected": True, "url": hub.url}
        second = await command(hub.url, *checkout, "--json")
        host.send_signal(number)
        assert json.loads(await line_of(host.stdout, "stopped")) == {"stopped": True}

    assert (first.code, first.out, first.err) == (0, "9\n", "")
    assert second.rows() == [{"value": 8}]
    assert (who["address"], who["kinds"]) == ("@(actors/shop-1)", ["order", "stock"])
    read = host_config(path, [Order, Stock])
    assert (read.call_timeout_ms, read.durability, read.max_args) == (10_000, "process", 100)


async def test_a_host_that_is_there_before_the_hub_says_so_once(tmp_path: Path) -> None:
    url = unused_url()
    port = int(url.split(":")[-1].removesuffix("/ws"))
    async with started(url, *run_arguments(tmp_path / "shop", "Stock")) as host:
        await line_of(host.stdout, "host host-")
        said = await line_of(host.stderr, "no hub yet: ")
        async with spawn_hub(port=port):
            await line_of(host.stdout, "connected to ")
            host.terminate()
            _, rest = await host.communicate()

    assert host.returncode == 0
    assert "retrying until it is available" in said
    assert b"no hub" not in rest


async def test_folders_and_names_that_belong_to_another_host_are_refused(
    hub: RunningHub, shop: Host, tmp_path: Path
) -> None:
    other = run_arguments(tmp_path / "other", "Stock")
    busy = await cli(hub.url, *run_arguments(tmp_path / "shop", "Stock"))
    twin = await cli(hub.url, *other, "--name", "shop")
    # The folder of a host that was refused can be used under another name.
    async with started(hub.url, *other, "--name", "else") as host:
        await line_of(host.stdout, "host else serves stock")
        await line_of(host.stdout, "as @(actors/else)")
        host.terminate()
        await host.wait()
    renamed = await cli(hub.url, *other, "--name", "again")
    await shop.close()
    gone = await cli(hub.url, *run_arguments(tmp_path / "new", "Stock"), "--name", "shop")

    assert (busy.code, renamed.code) == (2, 2)
    assert "is in use by another actor host — stop it" in busy.err
    assert "belongs to the host else" in renamed.err
    assert "omit --name" in renamed.err
    assert (twin.code, gone.code) == (1, 1)
    assert "a host shop is already running" in twin.err
    assert "Traceback" not in twin.err
    assert "live in another folder" in gone.err
    assert "--replace" in gone.err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("call_timeout = 10", "unknown key 'call_timeout' — did you mean 'call_timeout_ms'?"),
        ("call_timeout_ms = 1.5", "call_timeout_ms must be an int, not float"),
        ("tombstone_ttl_ms = 5", "tombstone_ttl_ms = 5 must exceed call_timeout_ms = 30000"),
        ("[host", "invalid TOML"),
        (None, "No such file"),
    ],
)
async def test_a_file_that_does_not_configure_a_host_is_exit_code_2(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    path = tmp_path / "shop.toml"
    if text is not None:
        path.write_text(text)
    arguments = (*run_arguments(tmp_path / "shop", "Stock"), "--config", str(path))
    done = await command(unused_url(), *arguments)

    assert done.code == 2
    assert str(path) in done.err
    assert complaint in done.err
    assert not (tmp_path / "shop").exists()


async def test_the_folder_of_a_hub_is_none_for_a_host(tmp_path: Path) -> None:
    LockedFolder(str(tmp_path / "hub")).close()
    done = await command(unused_url(), *run_arguments(tmp_path / "hub", "Stock"))

    assert done.code == 2
    assert "is the data folder of a hub" in done.err
    assert [path.name for path in (tmp_path / "hub").iterdir()] == ["hub.lock"]


async def test_a_host_that_hangs_ends_when_asked_twice(hub: RunningHub, tmp_path: Path) -> None:
    module = tmp_path / "hanging_shop.py"
    module.write_text(
        "import threading\n"
        "from signalhub.actors import Actor, remote\n"
        "class Hanging(Actor):\n"
        "    @remote\n"
        "    def hang(self):\n"
        "        print('hanging', flush=True)\n"
        "        threading.Event().wait()\n"
    )
    arguments = ("actors", "run", "hanging_shop:Hanging", "--data", str(tmp_path / "shop"))
    async with started(hub.url, *arguments, variables={"PYTHONPATH": str(tmp_path)}) as host:
        await line_of(host.stdout, "serves hanging")
        await line_of(host.stdout, "connected")
        hanging = asyncio.create_task(line_of(host.stdout, "hanging"))
        # On a busy machine a call may be given up before it has come to its actor.
        while not hanging.done():
            late = await command(hub.url, "actors", "call", "hanging/1", "hang", "--timeout", "0.5")
        await hanging
        host.send_signal(signal.SIGINT)
        while host.returncode is None:
            # The first is taken by the loop; any after it ends the process.
            host.send_signal(signal.SIGINT)
            await asyncio.sleep(0.05)

    assert late.code == 4
    assert host.returncode == -signal.SIGINT


async def test_values_go_in_and_come_out_as_json(hub: RunningHub, shop: Host) -> None:
    call = ("actors", "call", "order/1")
    echo = await command(hub.url, *call, "echo", "-1", "null", '{"a": [true, "ä"]}', '"--x"')
    when = await command(hub.url, *call, "odd", '"when"')
    keys = await command(hub.url, *call, "odd", '"keys"', "--json")
    bell = await command(hub.url, *call, "odd", '"bell"')

    assert echo.out == '[-1,null,{"a":[true,"ä"]},"--x"]\n'
    assert when.out == '"2026-01-31T12:00:00Z"\n'
    assert keys.rows() == [{"value": {"(1, 2)": "three"}}]
    assert json.loads(bell.out) == "a\a\u202eb"
    assert bell.out.rstrip("\n").isprintable()


async def test_what_an_actor_raises_is_told_with_its_name(hub: RunningHub, shop: Host) -> None:
    reserve = ("actors", "call", "stock/mug", "reserve", "11")
    told = await command(hub.url, *reserve)
    facts = await command(hub.url, *reserve, "--json")
    missing = await command(hub.url, "actors", "call", "stock/mug", "sell")

    assert told.code == facts.code == missing.code == 1
    assert told.err.startswith("signalhub: stock/mug.reserve raised ValueError: none left — ")
    error = json.loads(facts.err)
    assert (error["name"], error["text"]) == ("ValueError", "none left")
    assert error["actor"] == "stock/mug"
    assert "in reserve" in error["traceback"]
    assert "--json shows the traceback" in told.err
    assert "--json" not in error["resolution"]
    assert "Stock has no remote method sell" in missing.err
    assert not told.out


async def test_an_outcome_of_an_unknown_class_cannot_be_read(hub: RunningHub, shop: Host) -> None:
    # In a process, because this one knows the class.
    unreadable = await cli(hub.url, "actors", "call", "order/1", "odd", '"parcel"')

    assert unreadable.code == 1
    assert "order/1.odd was executed, but the outcome cannot be read" in unreadable.err


async def test_a_call_without_an_answer_can_be_looked_up(hub: RunningHub, shop: Host) -> None:
    never = ("actors", "call", "order/1", "never", "--timeout", "0.5", "--json")
    late = await command(hub.url, *never)
    call_id = json.loads(late.err)["call"]
    looked = await command(hub.url, "actors", "calls", "--id", call_id, "--json")
    shown = await command(hub.url, "actors", "calls", "--id", call_id)

    assert late.code == 4
    assert json.loads(late.err)["error"] == "call_timeout"
    assert call_id in json.loads(late.err)["resolution"]
    (facts,) = looked.rows()
    assert facts["state"] == "deferred"
    assert (facts["callee"]["actor"], facts["callee"]["host"]) == ("order/1", "shop")
    assert facts["acceptedMs"] > 0
    assert "order/1 on shop: deferred" in shown.out


async def test_calls_that_have_ended_can_be_listed(hub: RunningHub, shop: Host) -> None:
    await command(hub.url, "actors", "call", "stock/mug", "reserve", "3")
    await command(hub.url, "actors", "call", "stock/mug", "reserve", "11")
    await command(hub.url, "actors", "call", "order/1", "never", "--timeout", "0.5")

    listed = await command(hub.url, "actors", "calls", "--finished", "--json")
    one = await command(hub.url, "actors", "calls", "stock/mug", "--finished")

    assert [(row["actor"], row["method"], row["outcome"]) for row in listed.rows()] == [
        ("order/1", "never", "deferred"),
        ("stock/mug", "reserve", "ValueError: none left"),
        ("stock/mug", "reserve", "returned"),
    ]
    assert [row["endedMs"] is None for row in listed.rows()] == [True, False, False]
    assert len(one.out.splitlines()) == 2


async def test_that_nobody_serves_an_actor_or_its_host_is_away_is_said(
    hub: RunningHub, shop: Host, tmp_path: Path
) -> None:
    never = ("actors", "call", "clerk/1", "never", "--timeout", "0.5")
    at_once = await command(hub.url, *never)
    nobody = await command(hub.url, *never, "--wait")
    async with Host(Clerk, data=tmp_path / "b", url=hub.url, name="b") as host:
        await host.is_connected.wait()
        await command(hub.url, *never)
    away = await command(hub.url, *never)

    assert at_once.code == 1
    assert "; served kinds: order, stock — nothing was called; start a host" in at_once.err
    assert "or wait for one with --wait" in at_once.err
    assert nobody.code == 1
    assert "; served kinds: order, stock; waiting up to 0.5 s for one\n" in nobody.err
    assert "signalhub: clerk/1 could not be reached within 0.5 s" in nobody.err
    assert "nothing was called; start a host" in nobody.err
    assert away.code == 4
    assert "its host b is not connected — start that host" in away.err
    assert "signalhub actors calls --id '@(callers/" in away.err


async def test_a_call_without_a_place_for_the_actor_is_refused_at_once(tmp_path: Path) -> None:
    async with run_hub(actors={"limit": 1}) as hub, Host(Stock, data=tmp_path, url=hub.url) as host:
        await host.is_connected.wait()
        await command(hub.url, "actors", "call", "stock/a", "reserve", "1")
        done = await command(hub.url, "actors", "call", "stock/b", "reserve", "1", "--wait")
        async with ActorHub(hub.url) as caller:
            with pytest.raises(Refused, match="which is the limit"):
                await caller.ask("stock/b", "reserve", 1, timeout=60)

    assert done.code == 1
    assert "stock/b was not called: 1 durable actors have a place" in done.err
    assert "(`signalhub actors forget`), or raise actors.limit" in done.err


async def test_a_call_that_waits_for_a_host_is_done(hub: RunningHub, tmp_path: Path) -> None:
    async with started(hub.url, "actors", "call", "stock/mug", "reserve", "3", "--wait") as call:
        await line_of(call.stderr, "no kind is served now; waiting up to 30 s for one")
        async with Host(Stock, data=tmp_path / "shop", url=hub.url):
            out, _ = await call.communicate()

    assert (call.returncode, out) == (0, b"7\n")


async def test_a_hub_that_is_not_there_is_exit_code_3() -> None:
    for arguments in (("call", "order/1", "echo"), ("ls",), ("move", "order/1", "--to", "b")):
        done = await command(unused_url(), "actors", *arguments)
        assert done.code == 3, arguments
        assert "signalhub serve" in done.err


async def test_the_token_must_allow_an_address_for_the_answer(tmp_path: Path) -> None:
    def token(**permissions: list[str]) -> dict[str, str]:
        made = mint(
            Key(secret=SECRET),
            kid=None,
            subject="tests",
            actor="demo/operator",
            permissions=permissions,
            lifetime_s=60.0,
            issuer="signal-hub",
            now_s=time.time(),
        )
        return {"SIGNALHUB_TOKEN": made}

    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        everything = token(send=["*"], register=["*"], host=["*"])
        arguments = run_arguments(tmp_path / "shop", "Stock")
        refused = await cli(hub.url, *arguments)
        async with started(hub.url, *arguments, variables=everything) as host:
            await line_of(host.stdout, "host ")
            await line_of(host.stdout, "connected ")
            call = ("actors", "call", "stock/mug", "reserve", "1")
            good = await command(hub.url, *call, variables=everything)
            bad = await command(hub.url, *call, variables=token(send=["*"]))
            mute = token(register=["callers/*"], discover=["*"])
            unheard = await command(hub.url, "actors", "ls", "--timeout", "1", variables=mute)

    assert refused.code == bad.code == unheard.code == 1
    assert "signalhub token mint" in refused.err
    assert "Traceback" not in refused.err
    assert good.out == "9\n", good.err
    assert "--register 'callers/*'" in bad.err
    assert "has no permission to send to @(actors/host-" in unheard.err
