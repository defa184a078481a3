"""The demo: a hub behind a breakable network, two hosts, customers, consumers and a room.

The supervisor starts every program, starts it again when it ends, and answers as the actor
`@(demo/supervisor)`, so that a page needs no other port to kill things. Once a second it publishes
the board to the topic `demo/board`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from signalhub.client import Client, Message, connect
from signalhub.client import hub as rooms_of
from signalhub.client.arguments import new_message_id
from signalhub.client.sealing import Sealing, new_key
from signalhub.operate.demo.board import Board, Tally, now_ms
from signalhub.operate.demo.programs import Program
from signalhub.operate.demo.proxy import ChaosProxy
from signalhub.operate.demo.shoppers import QUICKLY, TOPIC, Shoppers
from signalhub.wire.errors import ClientError

ADDRESS: Final = "@(demo/supervisor)"
BOARD: Final = "demo/board"
CUT_S: Final = 5.0
_CUT_S_MAX: Final = 60.0
_SLOW_S: Final = 0.02
_ROOM: Final = "demo-room"
_ROOM_EVERY_S: Final = 5.0
_SETTLE_S: Final = 30.0
_HUB: Final = {
    "SIGNALHUB_UI_DEMO": "true",
    "SIGNALHUB_MESSAGE_RATE": "0",
    # Everything comes from this machine.
    "SIGNALHUB_CONNECTION_RATE": "1000",
}

log = logging.getLogger("signalhub.demo")


class Demo:
    """Everything that `signalhub demo` runs, until it is cancelled."""

    def __init__(
        self, folder: Path, *, port: int, rate_s: float, shop: Path, has_pipeline: bool
    ) -> None:
        """`folder` gets all data; `shop` is the folder with the module `shop`."""
        self.folder = folder
        self.data = folder / "hub"
        self._port = port
        inner = _free_port()
        self._proxy = ChaosProxy(inner)
        self._proxy.port = port
        self._is_cut = False
        url = f"ws://127.0.0.1:{inner}/ws"
        serve = ["serve", "--port", str(inner), "--data", str(self.data)]
        self._hub = Program(
            "hub",
            [*serve, "--pipeline"] if has_pipeline else serve,
            folder,
            ready="listening on",
            variables=_HUB,
            back=self._is_back,
        )
        self._hosts = [
            Program(
                name,
                [
                    *("actors", "run", *classes, "--data", str(folder / name)),
                    *("--name", name, "--url", self.url, "--json"),
                ],
                folder,
                ready='"connected"',
                variables={"PYTHONPATH": str(shop)},
                back=self._is_back,
            )
            for name, classes in (
                ("shop-1", ["shop:Order"]),
                ("shop-2", ["shop:Stock", "shop:Payment"]),
            )
        ]
        self._has_pipeline = has_pipeline
        self._direct_url = url
        self._pipeline_kills = 0
        self.board = Board(self.data)
        self.shoppers = Shoppers(self.url, rate_s)
        self.consumers = [Tally(name) for name in ("board", "mail", "slow")]
        self._is_to_fail = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/ws"

    @property
    def page(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self._port}/ui/#/demo"

    async def run(self, ready: Callable[[], None]) -> None:
        """Run everything until cancelled; `ready` is called once the page can be opened.

        Raises `OSError` if the port cannot be used.
        """
        await self._proxy.accept()
        try:
            self._hub.start()
            for host in self._hosts:
                host.start()
            async with asyncio.timeout(60):
                await self._hub.is_ready.wait()
            ready()
            async with connect(self.url, ADDRESS, reconnect=QUICKLY) as me:
                await me.create_topic(TOPIC)
                for type, act in (
                    ("demo:kill", self._kill),
                    ("demo:cut", self._cut),
                    ("demo:fail", self._fail),
                    ("demo:prove", self._prove),
                ):
                    me.on(type, _answering(act))
                async with asyncio.TaskGroup() as together:
                    together.create_task(self.shoppers.run())
                    together.create_task(self._publish(me))
                    together.create_task(self._follow())
                    together.create_task(self._chat())
                    for tally in self.consumers:
                        together.create_task(self._consume(tally))
        finally:
            await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*[one.stop() for one in self._hosts])
        await self._hub.stop()
        await self._proxy.refuse()
        self._proxy.cut()

    # What people do to it.

    async def _kill(self, facts: dict[str, Any]) -> None:
        what = str(facts.get("what"))
        programs = {one.name: one for one in (self._hub, *self._hosts)}
        if what in programs:
            if programs[what].kill():
                self.board.note(f"{what} killed (SIGKILL)")
        elif what == "pipeline" and self._has_pipeline:
            await self._kill_pipeline()
        else:
            names = ", ".join([*programs, *(["pipeline"] if self._has_pipeline else [])])
            raise ValueError(f"nothing here is called {what!r}: choose from {names}")

    async def _kill_pipeline(self) -> None:
        """The hub starts it again; its process id is in its status."""
        try:
            status = json.loads((self.data / "pipeline" / "status.json").read_bytes())
            os.kill(int(status["pid"]), signal.SIGKILL)
        except (OSError, ValueError, KeyError):
            self.board.note("the pipeline is not running yet")
            return
        self._pipeline_kills += 1
        self.board.note("pipeline killed (SIGKILL)")

    async def _cut(self, facts: dict[str, Any]) -> None:
        seconds = facts.get("seconds", CUT_S)
        if not isinstance(seconds, int | float) or not 0 < seconds <= _CUT_S_MAX:
            raise ValueError(f"seconds must be a number above 0 and up to {_CUT_S_MAX:g}")
        if not self._is_cut:
            self._is_cut = True
            self._do(self._cut_for(float(seconds)))

    async def _cut_for(self, seconds: float) -> None:
        # Its answer is still to be written.
        await asyncio.sleep(0.1)
        self.board.note(f"network cut for {seconds:g} s: {self._proxy.connections} connections")
        await self._proxy.refuse()
        self._proxy.cut()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._proxy.accept()
            self._is_cut = False
            self.board.note("network back")

    async def _fail(self, facts: dict[str, Any]) -> None:
        self._is_to_fail = True

    async def _prove(self, facts: dict[str, Any]) -> None:
        proof = self.board.proof
        if proof is None or proof["state"] != "running":
            self.board.proof = {"state": "running", "text": "The audit runs.", "at": None}
            self._do(self._audit())

    async def _audit(self) -> None:
        """Run the audit as anybody can, in a process of its own.

        The shop takes no orders meanwhile, so that the lake can catch up with the log.
        """
        self.shoppers.is_open = False
        try:
            await self._settle()
            state, text = await self._run_audit()
        finally:
            self.shoppers.is_open = True
        self.board.proof = {"state": state, "text": text, "at": now_ms()}
        self.board.note(text)

    async def _settle(self) -> None:
        """Wait until all orders have ended, but not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                ledger = self.shoppers.ledger
                while ledger.open or ledger.unverified:  # noqa: ASYNC110  Neither is an event.
                    await asyncio.sleep(0.2)

    async def _run_audit(self) -> tuple[str, str]:
        landing = [] if self._has_pipeline else [["pipeline", "once"]]
        text, code = "", 1
        for command in (*landing, ["audit"]):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "signalhub", *command, "--data", str(self.data)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self.folder,
            )
            written, _ = await process.communicate()
            code = process.returncode or 0
            lines = written.decode(errors="replace").strip().splitlines()
            text = lines[-1] if lines else ""
            if code:
                break
        return {0: "proven", 2: "behind"}.get(code, "failed"), text

    # What goes on by itself.

    async def _consume(self, tally: Tally) -> None:
        """Take every placed order; one consumer is slow, and one fails if it is told to."""

        async def take(message: Message) -> None:
            if tally.name == "slow":
                await asyncio.sleep(_SLOW_S)
            if tally.name == "mail" and self._is_to_fail:
                self._is_to_fail = False
                tally.failures += 1
                self.board.note(f"consumer mail failed with order {message.payload['order']}")
                await message.nack(reason="told to fail by the demo")
                return
            assert message.delivery is not None
            tally.took(message.delivery.seq, now_ms())

        address = f"@(demo/{tally.name})"
        async with (
            connect(self.url, address, reconnect=QUICKLY) as me,
            me.consume(TOPIC, tally.name, consumer=tally.name, backoff_s=0.2, handler=take) as one,
        ):
            await one.wait_closed()

    async def _follow(self) -> None:
        while True:
            await self.board.follow()
            ended, self.shoppers.ended = self.shoppers.ended, []
            for order in ended:
                self.board.stages.ended(order)
            await asyncio.sleep(0.25)

    async def _publish(self, me: Client) -> None:
        while True:
            with contextlib.suppress(ClientError):
                await me.publish(BOARD, "demo:board", self.show(), timeout_s=2.0)
            await asyncio.sleep(1.0)

    def show(self) -> dict[str, Any]:
        """The whole board."""
        programs = [
            {"name": one.name, "state": one.state, "kills": one.kills}
            for one in (self._hub, *self._hosts)
        ]
        if self._has_pipeline:
            state = "running" if self._hub.is_ready.is_set() else "away"
            kills = self._pipeline_kills
            programs.append({"name": "pipeline", "state": state, "kills": kills})
        return self.board.show(
            self.shoppers.ledger,
            self.consumers,
            programs=programs,
            network="cut" if self._is_cut else "open",
        )

    async def _chat(self) -> None:
        """Something happens in an encrypted room, too."""
        sealing = Sealing(new_key(), _ROOM)
        async with (
            rooms_of(self.url) as hub,
            hub.room(_ROOM, since=None, reconnect=QUICKLY) as room,
        ):
            while True:
                await asyncio.sleep(_ROOM_EVERY_S)
                if not self.shoppers.is_open:
                    continue
                message_id = new_message_id()
                sealed = sealing.seal(message_id, b"another order")
                with contextlib.suppress(ClientError):
                    await room.send(sealed, message_id=message_id)

    def _is_back(self, program: Program, away_s: float) -> None:
        text = f"{program.name} back after {away_s:.1f} s"
        if program is self._hub and self.board.position is not None:
            text += f"; the board goes on at {self.board.position}"
        self.board.note(text)

    def _do(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _answering(
    act: Callable[[dict[str, Any]], Awaitable[None]],
) -> Callable[[Message], Awaitable[None]]:
    async def handle(message: Message) -> None:
        facts = message.payload if isinstance(message.payload, dict) else {}
        try:
            await act(facts)
        except ValueError as error:
            log.warning("a request was refused", extra={"reason": str(error)})

    return handle


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
