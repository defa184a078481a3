"""A run from beginning to end: workers in processes of their own, and the verdict on their ledgers.

The hub is somebody else's business: whoever kills and starts it says so with `hub_starts`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from tests.support.process import workload as workloads
from tests.support.process.history import Report, check
from tests.support.process.ledger import read_ledger
from tests.support.process.lines import Line, Started
from tests.support.process.link import connect
from tests.support.process.plans import FINISH_S, Plan, ProducerPlan, ReaderPlan
from tests.support.process.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
READY_S = 30.0


class Worker:
    """One program of clients and the ledger it keeps."""

    def __init__(self, process: asyncio.subprocess.Process, ledger: Path, log: Path) -> None:
        self.ledger = ledger
        self._process = process
        self._log = log

    async def ready(self) -> None:
        """Wait until all its clients are connected."""
        assert self._process.stdout is not None
        async with asyncio.timeout(READY_S):
            line = await self._process.stdout.readline()
        assert line == b"ready\n", self._log.read_text()

    async def finish(self) -> None:
        """Let it answer and drain, and wait for its end."""
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self._process.stdin.write(b"finish\n")
        code = await self._process.wait()
        assert code == 0, self._log.read_text()

    async def end(self) -> None:
        """End it, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


class Campaign:
    """Workers at a hub on `port`; everything they write is in `folder`.

    `answered_at_s` is when the last producer had its last answer.
    """

    def __init__(self, port: int, seed: int, folder: Path, quiet_s: float, finish_s: float) -> None:
        self._port = port
        self._seed = seed
        self.folder = folder
        self._quiet_s = quiet_s
        self._finish_s = finish_s
        self._lines: list[Line] = []
        self._workers: list[Worker] = []
        self._readers: list[Worker] = []
        self._producers: list[Worker] = []
        self._workload: Workload
        self.answered_at_s = 0.0

    def hub_starts(self) -> None:
        """Note that a life of the hub is about to begin."""
        self._lines.append(Started(time.monotonic()))

    async def begin(self, workload: Workload) -> None:
        """Start everybody; producers come last, and by then every mailbox has its owner."""
        self._workload = workload
        await self._create_topics(workload.topics)
        self._readers = [await self._spawn(readers=program) for program in workload.readers]
        for worker in self._readers:
            await worker.ready()
        self._producers = [await self._spawn(producers=program) for program in workload.producers]
        for worker in self._producers:
            await worker.ready()

    async def finish(self) -> Report:
        """Let everything be answered and read, read it all once more, and judge."""
        await asyncio.gather(*(worker.finish() for worker in self._producers))
        self.answered_at_s = time.monotonic()
        await asyncio.gather(*(worker.finish() for worker in self._readers))
        replay = await self._spawn(readers=workloads.replays(self._workload))
        await replay.ready()
        await replay.finish()
        lines = list(self._lines)
        for worker in self._workers:
            lines += read_ledger(worker.ledger)
        return await asyncio.to_thread(check, lines, self._seed)

    async def end(self) -> None:
        for worker in self._workers:
            await worker.end()

    async def _create_topics(self, topics: tuple[str, ...]) -> None:
        peer = await connect(self._port, "@(chaos/founder)", Random(self._seed))
        for topic in topics:
            reply = await peer.ask("hub:topic_create", {"topic": topic, "durable": True})
            assert reply["type"] == "hub:topic_created", reply
        peer.abort()

    async def _spawn(
        self,
        *,
        producers: tuple[ProducerPlan, ...] = (),
        readers: tuple[ReaderPlan, ...] = (),
    ) -> Worker:
        number = len(self._workers)
        ledger, log = (self.folder / f"worker-{number}.{end}" for end in ("ledger", "log"))
        plan = Plan(
            port=self._port,
            ledger=str(ledger),
            seed=self._seed,
            quiet_s=self._quiet_s,
            finish_s=self._finish_s,
            producers=producers,
            readers=readers,
        )
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.support.process.worker"),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plan) + b"\n")
        self._workers.append(Worker(process, ledger, log))
        return self._workers[-1]


@asynccontextmanager
async def campaign(
    port: int,
    seed: int,
    workload: Workload,
    *,
    quiet_s: float = 3.0,
    finish_s: float = FINISH_S,
) -> AsyncIterator[Campaign]:
    """A campaign under way; the block ends it."""
    with TemporaryDirectory(prefix="signalhub-chaos-") as folder:
        run = Campaign(port, seed, Path(folder), quiet_s, finish_s)
        try:
            run.hub_starts()
            await run.begin(workload)
            yield run
        finally:
            await run.end()
