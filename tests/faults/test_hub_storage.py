"""A whole hub on a disk that is truly full or fails: it says so, reads on, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from signalhub.testing import HubProcess
from signalhub.testing.process import variables_of
from tests.support.process.machine import needs_namespace, needs_strace
from tests.support.socket.peer import PATIENCE_S, Envelope, Peer
from tests.support.socket.stage import Spawned, code_of
from tests.support.socket.topics import TOPIC, create, publish, stored

DISK_BYTES = 4 * 2**20
SETTINGS: dict[str, Any] = {"message_rate": 0, "log": {"segment_bytes": 2**16}}
FILLING = "x" * 2_000
PUBLISHED_MAX = 3_000


class WrappedHub(HubProcess):
    """A hub that another program starts; its process is the hub's own in the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0, variables_of(SETTINGS))
        self.wrapper: list[str] = []

    async def start(self) -> None:
        command = ("-m", "signalhub", "serve", "--port", str(self.port), "--data", str(self.data))
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*self.wrapper, sys.executable, *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=dict(os.environ) | dict(self._variables),
            )
        self.port = await self._announced_port()


class CrampedHub(WrappedHub):
    """A hub whose data lie on a small file system that only it can see."""

    def __init__(self, folder: Path, room_bytes: int) -> None:
        super().__init__(folder)
        self._disk = folder / "disk"
        self._disk.mkdir()
        self.data = self._disk / "data"
        script = (
            f"mount -t tmpfs -o size={DISK_BYTES} none {self._disk} && "
            f"head -c {DISK_BYTES - room_bytes} /dev/zero > {self._disk}/ballast && "
            'exec "$@"'
        )
        self.wrapper = ["unshare", "-Urm", "sh", "-c", script, "sh"]

    def make_room(self) -> None:
        Path(f"/proc/{self.pid}/root{self._disk}/ballast").unlink()


@asynccontextmanager
async def staged(hub: WrappedHub) -> AsyncIterator[Spawned]:
    await hub.start()
    stage = Spawned(hub)
    try:
        yield stage
    finally:
        stage.send_everybody_away()
        await hub.stop()


async def fill(peer: Peer) -> tuple[int, Envelope]:
    """Publish until the hub refuses; how many it took, and the refusal."""
    for number in range(PUBLISHED_MAX):
        reply = await peer.ask("hub:publish", message(number))
        if reply["type"] != "hub:published":
            return number, reply
        assert reply["payload"]["seq"] == number + 1
    pytest.fail("the disk was never full")


def message(number: int) -> dict[str, Any]:
    data = f"{number} {FILLING}"
    return {"topic": TOPIC, "type": "note", "data": data, "durable": True}


def numbers(payloads: list[Any]) -> list[int]:
    return [int(payload.split()[0]) for payload in payloads]


@needs_namespace
@pytest.mark.parametrize("room_bytes", [900_000, 1_234_567])
async def test_a_full_hub_refuses_reads_on_and_resumes_when_there_is_room(
    room_bytes: int, tmp_path: Path
) -> None:
    hub = CrampedHub(tmp_path, room_bytes)
    async with staged(hub) as stage:
        publisher = await stage.connect("@(local/publisher)")
        reader = await stage.join("@(local/reader)")
        await create(publisher)

        taken, refusal = await fill(publisher)

        assert taken > 0
        assert code_of(refusal) == "storage_full"
        assert refusal["payload"]["retryable"] is True
        assert (await stage.get("/health")).status == 200
        assert "storage_full" in (await stage.health())["degradations"]
        assert numbers(await stored(reader)) == [*range(taken)]
        publisher.tell("@(local/reader)", "note", "tells need no disk")
        assert (await reader.receive("note"))["payload"] == "tells need no disk"

        hub.make_room()
        await until_published(publisher, taken)
        for number in range(taken + 1, taken + 30):
            await publish(publisher, f"{number} {FILLING}")

        assert numbers(await stored(reader)) == [*range(taken + 30)]
        assert (await stage.health())["degradations"] == []


async def until_published(peer: Peer, number: int) -> None:
    """The same message again until it is taken; a refused one was never stored."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            reply = await peer.ask("hub:publish", message(number), id=f"retried-{number}")
            if reply["type"] == "hub:published":
                assert reply["payload"]["seq"] == number + 1
                return
            assert code_of(reply) == "storage_full"


@needs_strace
@pytest.mark.parametrize("call", [12, 40])
async def test_a_hub_whose_sync_fails_acknowledges_nothing_more_and_restarts_with_everything(
    call: int, tmp_path: Path
) -> None:
    hub = WrappedHub(tmp_path)
    inject = f"inject=fdatasync:error=EIO:when={call}"
    hub.wrapper = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]
    hub.wrapper += ["-e", inject]
    async with staged(hub) as stage:
        publisher = await stage.connect("@(local/publisher)")
        await create(publisher)

        taken, refusal = await fill(publisher)

        assert taken > 0
        assert code_of(refusal) == "storage_failed"
        assert refusal["payload"]["retryable"] is False
        assert (await stage.get("/health")).status == 503
        assert "storage_failed" in (await stage.health())["degradations"]
        assert numbers(await stored(publisher)) == [*range(taken)]
        for number in range(3):
            reply = await publisher.ask("hub:publish", message(number))
            assert code_of(reply) == "storage_failed"

        await hub.kill()
        hub.wrapper = []
        await hub.start()
        publisher = await stage.connect("@(local/publisher)")
        found = numbers(await stored(publisher))
        await publish(publisher, f"{len(found)} {FILLING}")

        assert found in ([*range(taken)], [*range(taken + 1)]), "one outcome was unknown"
        assert numbers(await stored(publisher)) == [*range(len(found) + 1)]
        assert (await stage.health())["degradations"] == []
