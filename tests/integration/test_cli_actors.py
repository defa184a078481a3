"""`signalhub actors run` and `call` as their users run them: real processes against a real hub."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from signalhub.actors.host.host import Host
from signalhub.auth.tokens import mint
from signalhub.cli.actors.host import host_config
from signalhub.locks import LockedFolder
from signalhub.settings.model import Key
from signalhub.testing import RunningHub, run_hub, spawn_hub
from tests.support.actors.shop import Clerk, Order, Stock
from tests.support.process.command import SECRET, cli, line_of, started, unused_url

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
    data = tmp_path / "shop"
    arguments = run_arguments(data, "Order", "Stock")
    async with started(hub.url, *arguments, "--name", "shop-1") as host:
        await line_of(
            host.stdout, f"host shop-1 serves order, stock from {data}; press Ctrl-C to stop"
        )
        await line_of(host.stdout, f"connected to {hub.url} as @(actors/shop-1)")
        first = await cli(hub.url, "actors", "call", "order/17", "checkout", '"mug"')

        host.send_signal(number)
        await line_of(host.stdout, "stopped; unfinished work continues with the next start")
        assert await host.wait() == 0
    async with started(hub.url, *arguments, "--json") as host:
        who = json.loads(await line_of(host.stdout, "shop-1"))
        assert json.loads(await line_of(host.stdout, "url")) == {"connected": True, "url": hub.url}
        second = await cli(hub.url, "actors", "call", "order/17", "checkout", '"mug"', "--json")
        host.send_signal(number)
        assert json.loads(await line_of(host.stdout, "stopped")) == {"stopped": True}

    assert (first.code, first.out, first.err) == (0, "9\n", "")
    assert second.rows() == [{"value": 8}]
    assert who["address"] == "@(actors/shop-1)"
    assert who["kinds"] == ["order", "stock"]


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


async def test_a_host_is_refused_while_another_of_its_folder_or_name_is_there(
    hub: RunningHub, shop: Host, tmp_path: Path
) -> None:
    busy = await cli(hub.url, *run_arguments(tmp_path / "shop", "Stock"))
    twin = await cli(hub.url, *run_arguments(tmp_path / "other", "Stock"), "--name", "shop")

    assert busy.code == 2
    assert "is in use by another actor host — stop it" in busy.err
    assert twin.code == 1
    assert "a host shop is already running" in twin.err
    assert "Traceback" not in twin.err


async def test_a_folder_keeps_the_name_the_hub_has_known_it_by(
    hub: RunningHub, shop: Host, tmp_path: Path
) -> None:
    refused = run_arguments(tmp_path / "other", "Stock")
    await cli(hub.url, *refused, "--name", "shop")
    async with started(hub.url, *refused, "--name", "else") as host:
        await line_of(host.stdout, "host else serves stock")
        await line_of(host.stdout, "as @(actors/else)")
        host.terminate()
        await host.wait()
    renamed = await cli(hub.url, *refused, "--name", "again")

    assert renamed.code == 2
    assert "belongs to the host else" in renamed.err
    assert "omit --name" in renamed.err


async def test_the_folder_of_a_hub_is_none_for_a_host(tmp_path: Path) -> None:
    LockedFolder(str(tmp_path / "hub")).close()

    done = await cli(unused_url(), *run_arguments(tmp_path / "hub", "Stock"))

    assert done.code == 2
    assert "is the data folder of a hub" in done.err
    assert [path.name for path in (tmp_path / "hub").iterdir()] == ["hub.lock"]


async def test_a_file_configures_a_host(hub: RunningHub, tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('call_timeout_ms = 10_000\ndurability = "process"\n')
    arguments = (*run_arguments(tmp_path / "shop", "Order", "Stock"), "--config", str(path))
    async with started(hub.url, *arguments) as host:
        await line_of(host.stdout, "serves order, stock")
        await line_of(host.stdout, "connected ")
        good = await cli(hub.url, "actors", "call", "order/1", "checkout", '"mug"')

    assert good.out == "9\n", good.err
    read = host_config(path, [Order, Stock])
    assert (read.call_timeout_ms, read.durability, read.max_args) == (10_000, "process", 100)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("call_timeout = 10", "unknown key 'call_timeout' — Did you mean 'call_timeout_ms'?"),
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
    done = await cli(unused_url(), *arguments)

    assert done.code == 2
    assert str(path) in done.err
    assert complaint in done.err
    assert not (tmp_path / "shop").exists()


async def test_the_name_of_a_lost_folder_is_taken_only_with_replace(
    hub: RunningHub, shop: Host, tmp_path: Path
) -> None:
    await shop.is_connected.wait()
    await shop.close()

    done = await cli(hub.url, *run_arguments(tmp_path / "other", "Stock"), "--name", "shop")

    assert done.code == 1
    assert "live in another folder" in done.err
    assert "--replace" in done.err


async def test_a_host_whose_token_is_no_good_says_so(tmp_path: Path) -> None:
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        done = await cli(hub.url, *run_arguments(tmp_path / "shop", "Stock"))

    assert done.code == 1
    assert "signalhub token mint" in done.err
    assert "Traceback" not in done.err


async def test_a_host_that_hangs_can_be_ended_by_asking_twice(
    hub: RunningHub, tmp_path: Path
) -> None:
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
        late = await cli(hub.url, "actors", "call", "hanging/1", "hang", "--timeout", "0.5")
        await line_of(host.stdout, "hanging")
        host.send_signal(signal.SIGINT)
        while host.returncode is None:
            # The first is taken by the loop; any after it ends the process.
            host.send_signal(signal.SIGINT)
            await asyncio.sleep(0.05)

    assert late.code == 4
    assert host.returncode == -signal.SIGINT


async def test_values_go_in_and_come_out_as_json(hub: RunningHub, shop: Host) -> None:
    call = ("actors", "call", "order/1")
    echo = await cli(hub.url, *call, "echo", "-1", "null", '{"a": [true, "ä"]}', '"--x"')
    when = await cli(hub.url, *call, "odd", '"when"')
    keys = await cli(hub.url, *call, "odd", '"keys"', "--json")
    bell = await cli(hub.url, *call, "odd", '"bell"')

    assert echo.out == '[-1,null,{"a":[true,"ä"]},"--x"]\n'
    assert when.out == '"2026-01-31T12:00:00Z"\n'
    assert keys.rows() == [{"value": {"(1, 2)": "three"}}]
    assert json.loads(bell.out) == "a\a\u202eb"
    assert bell.out.rstrip("\n").isprintable()


async def test_what_an_actor_raises_is_told_with_its_name(hub: RunningHub, shop: Host) -> None:
    told = await cli(hub.url, "actors", "call", "stock/mug", "reserve", "11")
    facts = await cli(hub.url, "actors", "call", "stock/mug", "reserve", "11", "--json")
    missing = await cli(hub.url, "actors", "call", "stock/mug", "sell")
    unreadable = await cli(hub.url, "actors", "call", "order/1", "odd", '"parcel"')

    assert told.code == facts.code == missing.code == unreadable.code == 1
    assert told.err.startswith("signalhub: stock/mug.reserve raised ValueError: none left — ")
    error = json.loads(facts.err)
    assert error["name"] == "ValueError"
    assert error["text"] == "none left"
    assert error["actor"] == "stock/mug"
    assert "in reserve" in error["traceback"]
    assert "--json shows the traceback" in told.err
    assert "--json" not in error["resolution"]
    assert "Stock has no remote method sell" in missing.err
    assert "order/1.odd was executed, but the outcome cannot be read" in unreadable.err
    assert not told.out


async def test_no_answer_in_time_may_have_happened_and_can_be_looked_up(
    hub: RunningHub, shop: Host
) -> None:
    late = await cli(hub.url, "actors", "call", "order/1", "never", "--timeout", "0.5", "--json")
    call_id = json.loads(late.err)["call"]
    looked = await cli(hub.url, "actors", "calls", "--id", call_id, "--json")
    shown = await cli(hub.url, "actors", "calls", "--id", call_id)

    assert late.code == 4
    assert json.loads(late.err)["error"] == "call_timeout"
    assert call_id in json.loads(late.err)["resolution"]
    (facts,) = looked.rows()
    assert facts["state"] == "deferred"
    assert facts["callee"]["actor"] == "order/1"
    assert facts["callee"]["host"] == "shop"
    assert facts["acceptedMs"] > 0
    assert "order/1 on shop: deferred" in shown.out


async def test_without_a_host_nothing_is_called(hub: RunningHub, shop: Host) -> None:
    done = await cli(hub.url, "actors", "call", "clerk/1", "never", "--timeout", "0.5")

    assert done.code == 1
    assert "; served kinds: order, stock; waiting up to 0.5 s for one\n" in done.err
    assert "signalhub: clerk/1 could not be reached within 0.5 s" in done.err
    assert "nothing was called; start a host" in done.err


async def test_a_call_that_waits_for_a_host_is_done_when_it_comes(
    hub: RunningHub, tmp_path: Path
) -> None:
    async with started(hub.url, "actors", "call", "stock/mug", "reserve", "3") as call:
        await line_of(call.stderr, "no kind is served now; waiting up to 30 s for one")
        async with Host(Stock, data=tmp_path / "shop", url=hub.url):
            out, _ = await call.communicate()

    assert out == b"7\n"
    assert call.returncode == 0


async def test_that_the_host_of_an_actor_is_away_is_said(hub: RunningHub, tmp_path: Path) -> None:
    async with Host(Clerk, data=tmp_path / "b", url=hub.url, name="b") as host:
        await host.is_connected.wait()
        await cli(hub.url, "actors", "call", "clerk/1", "never", "--timeout", "0.2")
    done = await cli(hub.url, "actors", "call", "clerk/1", "never", "--timeout", "0.5")

    assert done.code == 4
    assert "its host b is not connected — start that host" in done.err
    assert "signalhub actors calls --id '@(callers/" in done.err


async def test_a_hub_that_is_not_there_is_exit_code_3() -> None:
    for command in (("call", "order/1", "echo"), ("ls",), ("move", "order/1", "--to", "b")):
        done = await cli(unused_url(), "actors", *command)

        assert done.code == 3, command
        assert "signalhub serve" in done.err


async def test_the_token_must_allow_an_address_for_the_answer(tmp_path: Path) -> None:
    def token(**permissions: list[str]) -> str:
        return mint(
            Key(secret=SECRET),
            kid=None,
            subject="tests",
            actor="demo/operator",
            permissions=permissions,
            lifetime_s=60.0,
            issuer="signal-hub",
            now_s=time.time(),
        )

    async with spawn_hub(auth={"enabled": True, "secret": SECRET}) as hub:
        everything = {"SIGNALHUB_TOKEN": token(send=["*"], register=["*"])}
        narrow = {"SIGNALHUB_TOKEN": token(send=["*"])}
        mute = {"SIGNALHUB_TOKEN": token(register=["callers/*"])}
        arguments = run_arguments(tmp_path / "shop", "Stock")
        async with started(hub.url, *arguments, variables=everything) as host:
            await line_of(host.stdout, "host ")
            await line_of(host.stdout, "connected ")
            call = ("actors", "call", "stock/mug", "reserve", "1")
            good = await cli(hub.url, *call, variables=everything)
            bad = await cli(hub.url, *call, variables=narrow)
            unheard = await cli(hub.url, "actors", "ls", "--timeout", "1", variables=mute)

    assert good.out == "9\n", good.err
    assert bad.code == 1
    assert "--register 'callers/*'" in bad.err
    assert unheard.code == 1
    assert "does not permit to send to @(actors/host-" in unheard.err


@pytest.mark.parametrize("arguments", [["--url", unused_url()], [unused_url()], ["--help"]])
async def test_the_customers_of_the_example_are_told_where_the_hub_is(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "shop.py"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()

    if arguments == ["--help"]:
        assert process.returncode == 0
        assert b"--url" in out
    else:
        assert process.returncode == 1
        assert err.decode().startswith(f"no hub at {arguments[-1]}")
        assert err.count(b"\n") == 1
