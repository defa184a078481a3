"""What needs real processes: serving, signals, pipes, a terminal, and exit codes of the shell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import signalhub
from signalhub import Client, native
from signalhub.locks import LockedFolder
from signalhub.testing import RunningHub, spawn_hub
from tests.support.process.command import (
    PATIENCE_S,
    SENDER,
    Run,
    cli,
    command,
    environment,
    fill,
    hub_knows,
    line_of,
    started,
    unused_url,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_says_where_it_listens_and_stops_when_told(
    number: signal.Signals, tmp_path: Path
) -> None:
    serve = ("serve", "--port", "0", "--data", str(tmp_path))
    async with started("", *serve) as process:
        release = f"{signalhub.__version__} (native: {native.STATUS})"
        line = await line_of(process.stdout, f"Signal Hub {release} listening on ws://127.0.0.1:")
        url = line.split()[-1]
        assert not url.endswith(":0/ws")
        assert (await command(url, "ping", "--count", "1")).code == 0

        process.send_signal(number)

        assert await process.wait() == 0


async def test_serve_says_that_its_port_or_its_data_folder_is_taken(
    hub: RunningHub, tmp_path: Path
) -> None:
    serve = ("serve", "--data", str(tmp_path), "--port")
    port = await cli("", *serve, str(hub.port))
    folder = LockedFolder(str(tmp_path))
    data = await cli("", *serve, "0")
    folder.close()

    assert (port.code, port.out) == (1, "")
    assert f"port {hub.port}" in port.err
    assert data.code == 2
    assert "probably by a running hub" in data.err
    assert "--port" in port.err
    assert "--port" in data.err


async def test_a_pipe_goes_in_and_an_exit_code_comes_out(hub: RunningHub, me: Client) -> None:
    done = await cli(hub.url, "ask", "demo/alice", "-", stdin=b"[1]\n")
    message = await anext(me.messages())
    away = await cli(unused_url(), "ls")

    assert (done.code, done.out, done.err) == (0, "delivered\n", "")
    assert message.payload == [1]
    assert away.code == 3


async def test_ctrl_c_is_exit_code_130_without_a_word_and_keeps_what_was_acknowledged(
    hub: RunningHub, run: Run, me: Client
) -> None:
    await fill(me, 3)
    subscribe = ("subscribe", "orders", "--as", "billing")
    async with started(hub.url, *subscribe) as reader:
        await line_of(reader.stderr, "consuming")
        for _ in range(3):
            await line_of(reader.stdout, "orders")
        reader.send_signal(signal.SIGINT)
        out, err = await reader.communicate()

    assert (reader.returncode, out, err) == (130, b"", b"")
    again = await run(*subscribe, "--for", "0.3", "--json")
    seqs = [row["seq"] for row in again.rows()]
    assert seqs in ([], [3]), "the last acknowledgement may have been on its way"


async def test_a_reader_that_has_enough_ends_listen_and_loses_nothing(
    hub: RunningHub, run: Run
) -> None:
    async with started(hub.url, "listen", "demo/bob", "--durable", "--ack") as bob:
        await hub_knows(hub, "@(demo/bob)")
        await line_of(bob.stderr, "listening")
        assert bob.stdout is not None
        bob.stdout._transport.close()  # type: ignore[attr-defined]

        await run("ask", "demo/bob", "1")

        assert await bob.wait() == 0
        assert bob.stderr is not None
        assert await bob.stderr.read() == b""
    again = await run("listen", "demo/bob", "--ack", "--count", "1", "--json")
    assert [(row["payload"], row["attempt"]) for row in again.rows()] == [(1, 2)]


async def test_at_a_terminal_an_answer_is_awaited(hub: RunningHub, me: Client) -> None:
    await fill(me, 2)
    typist, terminal = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "signalhub", "topic", "delete", "orders"),
            stdin=terminal,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(hub.url),
        )
        os.write(typist, b"n\n")
        _, asked = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        os.close(typist)
        os.close(terminal)

    assert process.returncode == 1
    assert b"Continue? [y/N]" in asked
    assert (await me.topic("orders")).head == 2


async def test_the_log_is_read_while_the_hub_runs_and_after_it_was_killed() -> None:
    async with spawn_hub() as hub:
        folder = ("--data", str(hub.data))
        async with signalhub.connect(hub.url, SENDER) as me:
            await fill(me, 3)
            ls = await command("", "log", "ls", *folder, "--json")
            view = ("log", "view", *folder, "--kind", "published", "--json")
            seen = await command("", *view)
            async with started("", *view, "--from", "4", "--follow", "--limit", "1") as follower:
                await me.publish("orders", "n", 4, durable=True)
                followed = json.loads(await line_of(follower.stdout, "published"))
                assert await follower.wait() == 0
            running = await command("", "log", "verify", *folder)
        await hub.kill()
        killed = await command("", "log", "verify", *folder, "--json")
        (info,) = (await command("", "log", "info", *folder, "--json")).rows()

    assert ls.rows()[0]["entries"] == 4
    assert [row["body"]["data"] for row in seen.rows()] == [1, 2, 3]
    assert (followed["seq"], followed["stream"]) == (4, "orders")
    assert (running.code, killed.code, killed.rows()[0]["sound"]) == (0, 0, True)
    assert info["durable_head"] == info["head"]
