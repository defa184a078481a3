"""`signalhub request` and `answer`: a command per request, and the reply as its output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from signalhub import Client, Message
from signalhub.cli.messages.programs import run_program
from signalhub.testing import RunningHub
from tests.support.process.command import Run, following, hub_knows, line_of, started

CLOCK = "@(demo/clock)"
# Reads what it is given and writes it back, with its length.
ECHO = "import json, sys; text = sys.stdin.read(); print(json.dumps([len(text), text]))"
# Says what is wrong.
GRUMBLE = "import sys; print('no such sku', file=sys.stderr); sys.exit(3)"


def python(program: str) -> tuple[str, ...]:
    return "--", sys.executable, "-c", program


async def test_a_command_answers_and_its_output_is_the_reply(hub: RunningHub, run: Run) -> None:
    options = ("--type", "echo", "--count", "2")
    async with following(hub.url, "answer", "demo/clock", *options, *python(ECHO)) as clock:
        await line_of(clock.stderr, "answering as @(demo/clock)")

        plain = await run("request", "demo/clock", '{"sku":7}', "--type", "echo")
        told = await run("request", "demo/clock", "hello", "--type", "echo", "--json")

        assert (plain.code, plain.out) == (0, '[9,"{\\"sku\\":7}"]\n')
        (reply,) = told.rows()
        assert (reply["from"], reply["type"]) == (CLOCK, "echo.reply")
        assert reply["payload"] == [5, "hello"]
        assert await clock.wait() == 0


async def test_an_exit_code_is_a_failure_with_what_the_command_said(
    hub: RunningHub, run: Run
) -> None:
    async with following(hub.url, "answer", "demo/clock", "--count", "1", *python(GRUMBLE)):
        await hub_knows(hub, CLOCK)

        done = await run("request", "demo/clock", "1", "--json")

    failure = json.loads(done.err)
    assert (done.code, failure["error"], failure["message"]) == (1, "exit_3", "no such sku")


async def test_exit_codes_say_why_there_is_no_reply(hub: RunningHub, run: Run, me: Client) -> None:
    unknown = await run("request", "demo/nobody", "1")
    silent = await run("request", me.address, "1", "--timeout", "0.2")
    assert (unknown.code, silent.code) == (1, 4)
    assert "no reply within 0.2 s" in silent.err


async def test_a_reply_comes_to_the_address_that_was_given(
    hub: RunningHub, run: Run, me: Client
) -> None:
    @me.answers("who")
    def who(message: Message) -> str:
        return message.sender

    done = await run("request", me.address, "null", "--type", "who", "--from", "demo/bob")

    assert (done.code, done.out) == (0, "@(demo/bob)\n")


async def test_a_command_that_cannot_run_is_refused_at_once(run: Run) -> None:
    missing = await run("answer", "demo/clock")
    unknown = await run("answer", "demo/clock", "--", "there-is-no-such-command")

    assert (missing.code, unknown.code) == (2, 2)
    assert "COMMAND is missing" in missing.err
    assert "no such command" in unknown.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_commands_end_with_the_one_that_runs_them(
    hub: RunningHub, me: Client, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    noted = tmp_path / "pid"
    program = f"echo $$ > {noted}.new; mv {noted}.new {noted}; exec sleep 600"
    async with started(hub.url, "answer", "demo/clock", "--", "sh", "-c", program) as process:
        await hub_knows(hub, CLOCK)
        await me.tell(CLOCK, "text")
        while not noted.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        process.send_signal(number)
        assert await process.wait() == code

    await ended(int(noted.read_text()))


async def ended(pid: int) -> None:
    """Wait until a process is gone: whoever inherits it collects it."""
    async with asyncio.timeout(20):
        with suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(0.02)


async def test_programs_are_limited_in_time_and_output() -> None:
    slow = await run_program([sys.executable, "-c", "input(); input()"], "x\n", limit_s=5)
    assert (slow.exit, slow.ended_by) == (1, None)
    stuck = await run_program(["sh", "-c", "sleep 60 & wait"], "", limit_s=0.3)
    assert stuck.ended_by == "time"
    endless = "while True: print('x' * 65536)"
    loud = await run_program([sys.executable, "-c", endless], "", limit_s=30)
    assert loud.ended_by == "output"


async def test_a_program_that_does_not_read_gets_no_error() -> None:
    result = await run_program([sys.executable, "-c", "print(1)"], "x" * 2**20, limit_s=20)

    assert (result.exit, result.output) == (0, "1\n")
