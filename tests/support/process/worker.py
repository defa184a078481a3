"""One program of producers and readers: `python -m tests.support.process.worker`.

The plan comes as the first line of stdin. The program says `ready` once all are connected, works
until the line `finish`, then answers, drains and ends; the end of stdin ends it at once. All of it
moves in one beat: notes are written, put on disk with one sync, and only then acted on.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec
import uvloop

from tests.support.process.ledger import Ledger
from tests.support.process.lines import Noted
from tests.support.process.plans import Plan
from tests.support.process.producer import Producer
from tests.support.process.reader import Reader, Replay

BEAT_S = 0.01


class Client(Protocol):
    """What shares the beat.

    `moved_at_s` is when it last got an answer to a message, or a message.
    """

    moved_at_s: float

    @property
    def is_ready(self) -> bool: ...
    def is_done(self, now_s: float) -> bool: ...
    def finish(self) -> None: ...
    async def run(self) -> None: ...
    def prepare(self, now_s: float) -> None: ...
    def flush(self) -> None: ...


def clients_of(plan: Plan, ledger: Ledger) -> list[Client]:
    """Everybody in the plan, each with a chance of their own."""
    clients: list[Client] = []
    for producer in plan.producers:
        random = Random(f"{plan.seed} {producer.address} {producer.stream}")
        clients.append(Producer(producer, plan.port, ledger, random))
    for reader in plan.readers:
        random = Random(f"{plan.seed} {reader.consumer}")
        if reader.mode == "replay":
            clients.append(Replay(reader, plan.port, ledger, random))
        else:
            clients.append(Reader(reader, plan.port, ledger, random, plan.quiet_s))
    return clients


class Program:
    """Works until it is told to finish, then until all are done, or nobody moves any more."""

    def __init__(self, plan: Plan) -> None:
        self._ledger = Ledger(Path(plan.ledger))
        self._clients = clients_of(plan, self._ledger)
        self._finish_s = plan.finish_s
        self._told_at_s = float("inf")

    async def work(self, commands: asyncio.StreamReader) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(client.run()) for client in self._clients]
            running.append(tasks.create_task(self._obey(commands)))
            await self._beat()
            for task in running:
                task.cancel()
        self._ledger.close()

    async def _obey(self, commands: asyncio.StreamReader) -> None:
        await self._command(commands)
        self._told_at_s = time.monotonic()
        for client in self._clients:
            client.finish()
        await self._command(commands)

    @staticmethod
    async def _command(commands: asyncio.StreamReader) -> None:
        if not await commands.readline():
            # Whoever started this program is gone.
            os._exit(1)

    async def _beat(self) -> None:
        has_said_ready = False
        while not all(client.is_done(time.monotonic()) for client in self._clients):
            now_s = time.monotonic()
            moved_at_s = max(self._told_at_s, *(client.moved_at_s for client in self._clients))
            if now_s > moved_at_s + self._finish_s:
                self._ledger.write(Noted(now_s, "gave up"))
                return
            for client in self._clients:
                client.prepare(now_s)
            self._ledger.sync()
            for client in self._clients:
                client.flush()
            if not has_said_ready and all(client.is_ready for client in self._clients):
                print("ready", flush=True)
                has_said_ready = True
            await asyncio.sleep(BEAT_S)


async def main() -> None:
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    plan = msgspec.json.decode(await commands.readline(), type=Plan)
    await Program(plan).work(commands)


if __name__ == "__main__":
    uvloop.run(main())
