"""Rooms after their log has lost entries that members have read.

Members know positions only. Whatever was lost, and however, they see every message accepted since,
and no position stands for two messages.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub.operate.backup import back_up
from signalhub.operate.restore import restore
from signalhub.testing import run_hub
from tests.faults.lost_end import cut_to
from tests.support.process.command import command
from tests.support.socket.clients import QUICK, take
from tests.support.socket.guest import knock
from tests.support.socket.http import Answer, Web
from tests.support.socket.rooms import APPEND, MESSAGE, MESSAGES, default_inbox
from tests.support.socket.stage import InProcess, run_stage

METADATA = "/v1/room/metadata"
KEPT, LOST = 5, 3
KNOWN, NEW = "known", "born-in-the-lost-part"
SAFE = 2**53

Loss = Callable[[InProcess], Awaitable[None]]


class Inboxes:
    """What a member does over HTTP."""

    def __init__(self, port: int) -> None:
        self._web = Web(port)

    async def say(self, message_id: str, room: str = KNOWN) -> int:
        body = {"messageId": message_id, "roomId": room, "ciphertext": "q83v"}
        answer = await self._web.post(MESSAGE, body)
        assert answer.status == 200, answer
        seq: int = answer.json["seq"]
        return seq

    async def deposit(self, message_id: str, room: str = KNOWN) -> int:
        inbox = {"X-Inbox-ID": default_inbox(room)}
        answer = await self._web.post(
            APPEND, {"messageId": message_id, "ciphertext": "q83v"}, inbox
        )
        assert answer.status == 202, answer
        seq: int = answer.json["seq"]
        return seq

    async def page(self, from_seq: int = 0, room: str = KNOWN, limit: int = 100) -> Any:
        path = f"{MESSAGES}?fromSeq={from_seq}&limit={limit}"
        answer = await self._web.get(path, {"X-Inbox-ID": default_inbox(room)})
        assert answer.status == 200, answer
        return answer.json

    async def ids(self, from_seq: int = 0, room: str = KNOWN, limit: int = 100) -> list[str]:
        """Everything from a position on, page by page, as any client reads it."""
        found: list[str] = []
        while (page := await self.page(from_seq, room, limit))["messages"]:
            found += [one["messageId"] for one in page["messages"]]
            assert page["nextSeq"] > from_seq
            from_seq = page["nextSeq"]
        return found

    async def write(self, data: bytes, room: str = KNOWN, **condition: str) -> Answer:
        """Write the room's metadata, on a condition if there is one."""
        headers = {name.replace("_", "-"): value for name, value in condition.items()}
        return await self._web.put(METADATA, data, {"X-Room-ID": room} | headers)

    async def look(self, room: str = KNOWN, **condition: str) -> Answer:
        """Read the room's metadata."""
        headers = {name.replace("_", "-"): value for name, value in condition.items()}
        return await self._web.get(METADATA, {"X-Room-ID": room} | headers)

    def close(self) -> None:
        self._web.close()


@asynccontextmanager
async def member(stage: InProcess) -> AsyncIterator[Inboxes]:
    one = Inboxes(stage.port)
    try:
        yield one
    finally:
        one.close()


def data_of(stage: InProcess) -> Path:
    return Path(stage.hub.settings.data)


def head_of(stage: InProcess) -> int:
    return stage.hub.app._engine.head


async def lose_the_end(stage: InProcess, tmp_path: Path) -> Loss:
    kept = head_of(stage)

    async def lose(stage: InProcess) -> None:
        cut_to(data_of(stage), kept)

    return lose


async def restore_a_backup(stage: InProcess, tmp_path: Path) -> Loss:
    back_up(stage.hub.settings, tmp_path / "backup")

    async def lose(stage: InProcess) -> None:
        shutil.rmtree(data_of(stage))
        restore(stage.hub.settings, tmp_path / "backup")

    return lose


async def delete_the_log(stage: InProcess, tmp_path: Path) -> Loss:
    async def lose(stage: InProcess) -> None:
        shutil.rmtree(data_of(stage) / "log")
        # Otherwise the hub does not start.
        done = await command("", "log", "acknowledge", "--data", str(data_of(stage)))
        assert done.code == 0

    return lose


LOSSES = [lose_the_end, restore_a_backup, delete_the_log]


def forget_state(folder: Path) -> None:
    for one in folder.glob("state.db*"):
        one.unlink()


@asynccontextmanager
async def after(
    prepare: Callable[[InProcess, Path], Awaitable[Loss]],
    tmp_path: Path,
    *,
    restarts: int = 0,
    forgets: bool = False,
) -> AsyncIterator[tuple[InProcess, int]]:
    """A hub whose rooms have lost messages, and the last position that a member has read."""
    async with run_stage() as stage:
        async with member(stage) as one:
            for number in range(KEPT):
                await one.say(f"kept-{number}")
            await one.write(b"kept")
            lose = await prepare(stage, tmp_path)
            seen = [await one.say(f"lost-{number}") for number in range(LOST)][-1]
            for number in range(LOST):
                await one.say(f"lost-{number}", NEW)
            for room in (KNOWN, NEW):
                await one.write(b"lost", room)
        await stage.stop()
        await lose(stage)
        await stage.start()
        for _ in range(restarts):
            await stage.stop()
            if forgets:
                forget_state(data_of(stage))
            await stage.start()
        yield stage, seen


@pytest.mark.parametrize("prepare", LOSSES)
@pytest.mark.parametrize(("restarts", "forgets"), [(0, False), (1, False), (2, True)])
async def test_a_member_sees_every_message_that_was_accepted_after_a_loss(
    prepare: Callable[[InProcess, Path], Awaitable[Loss]],
    restarts: int,
    forgets: bool,
    tmp_path: Path,
) -> None:
    async with (
        after(prepare, tmp_path, restarts=restarts, forgets=forgets) as (stage, seen),
        member(stage) as one,
    ):
        first = await one.say("after-1")
        second = await one.deposit("after-2")
        third = await one.say("after-1", NEW)

        assert await one.ids(seen + 1) == ["after-1", "after-2"]
        assert await one.ids(LOST + 1, NEW) == ["after-1"]
        assert seen < first == second - 1
        assert third > LOST
        assert max(first, second, third) < SAFE, "every client can represent it"


@pytest.mark.parametrize("prepare", LOSSES)
@pytest.mark.parametrize(("restarts", "forgets"), [(0, False), (2, True)])
async def test_a_version_of_a_blob_never_stands_for_other_content_than_a_client_has_read(
    prepare: Callable[[InProcess, Path], Awaitable[Loss]],
    restarts: int,
    forgets: bool,
    tmp_path: Path,
) -> None:
    # What a client has read before the loss.
    read = {KNOWN: '"2"', NEW: '"1"'}
    async with (
        after(prepare, tmp_path, restarts=restarts, forgets=forgets) as (stage, _),
        member(stage) as one,
    ):
        for room, tag in read.items():
            for number in range(3):
                data = b"%d" % number
                newest = (await one.write(data, room)).header("etag") or "none"
                stale = await one.write(b"stale", room, If_Match=tag)
                found = await one.look(room, If_None_Match=tag)

                assert (stale.status, found.status, found.body) == (412, 200, data)
                assert found.header("etag") == newest
            assert (await one.write(b"fresh", room, If_Match=newest)).status == 204
            assert int(newest.strip('"')) < SAFE


@pytest.mark.parametrize("prepare", LOSSES)
async def test_positions_are_without_gaps_again_after_the_loss(
    prepare: Callable[[InProcess, Path], Awaitable[Loss]], tmp_path: Path
) -> None:
    async with after(prepare, tmp_path) as (stage, _):
        seqs: list[int] = []
        for start in range(3):
            async with member(stage) as one:
                seqs += [await one.say(f"after-{start}-{number}") for number in range(3)]
            await stage.stop()
            if start == 1:
                forget_state(data_of(stage))
            await stage.start()

        assert seqs == list(range(seqs[0], seqs[0] + 9))


@pytest.mark.parametrize("prepare", [lose_the_end, restore_a_backup])
@pytest.mark.parametrize("restarts", [0, 1])
async def test_pages_go_on_behind_a_gap_and_report_it(
    prepare: Callable[[InProcess, Path], Awaitable[Loss]], restarts: int, tmp_path: Path
) -> None:
    kept = [f"kept-{number}" for number in range(KEPT)]
    async with after(prepare, tmp_path) as (stage, seen):
        async with member(stage) as one:
            ahead = await one.page(seen + 1)
            first = await one.say("after-0")
            later = [f"after-{number}" for number in range(4)]
            for message_id in later[1:]:
                await one.say(message_id)
        for _ in range(restarts):
            await stage.stop()
            await stage.start()
        async with member(stage) as one:
            gap = [{"fromSeq": KEPT + 1, "toSeq": first - 1}]

            assert (ahead["messages"], ahead["nextSeq"], ahead["skipped"]) == ([], seen + 1, gap)
            for limit in (1, 2, 3, 100):
                assert await one.ids(0, limit=limit) == kept + later
            whole, before = await one.page(0), await one.page(0, limit=KEPT)
            across, behind = await one.page(seen + 1, limit=2), await one.page(first)
            assert (whole["skipped"], across["skipped"]) == (gap, gap)
            assert "skipped" not in before
            assert "skipped" not in behind


async def test_a_second_loss_takes_nothing_from_those_who_saw_the_first(tmp_path: Path) -> None:
    async with after(restore_a_backup, tmp_path) as (stage, _):
        async with member(stage) as one:
            await one.say("after-0")
            seen = await one.say("after-1")
        await stage.stop()
        shutil.rmtree(data_of(stage))
        # Epochs are times in seconds, and the first restore was perhaps one ahead.
        await asyncio.sleep(2.0)
        restore(stage.hub.settings, tmp_path / "backup")
        await stage.start()

        async with member(stage) as one:
            assert await one.say("again") > seen
            assert await one.ids(seen + 1) == ["again"]


async def test_nothing_is_skipped_if_nothing_was_lost(tmp_path: Path) -> None:
    async with run_stage() as stage:
        async with member(stage) as one:
            await one.say("a")
        back_up(stage.hub.settings, tmp_path / "backup")
        await stage.stop()
        shutil.rmtree(data_of(stage))
        restore(stage.hub.settings, tmp_path / "backup", keeps_epoch=True)
        forget_state(data_of(stage))
        await stage.start()

        async with member(stage) as one:
            assert await one.say("b") == 2
            assert "skipped" not in await one.page()


async def test_a_socket_is_told_where_positions_continue(tmp_path: Path) -> None:
    async with after(lose_the_end, tmp_path) as (stage, seen):
        guest = await knock(stage.port, headers={"X-Room-ID": KNOWN, "X-Pseudonym-ID": "p1"})
        welcome = guest.welcome
        seq = await guest.accepted("after-1")

        assert welcome["lastSeq"] == KEPT
        assert welcome["nextSeq"] == seq > seen
        guest.abort()


async def test_the_client_hears_what_follows_the_loss_and_nothing_twice(tmp_path: Path) -> None:
    async with (
        run_hub() as running,
        signalhub.hub(running.http_url) as hub,
        hub.room(KNOWN, reconnect=QUICK, since=0) as room,
    ):
        for number in range(KEPT):
            await room.send(b"%d" % number)
        kept = running.app._engine.head
        for number in range(KEPT, KEPT + LOST):
            await room.send(b"%d" % number)
        heard = await take(room, KEPT + LOST)
        await running.stop()
        cut_to(Path(running.settings.data), kept)
        await running.start()
        sent = await room.send(b"after")
        (after_loss,) = await take(room, 1)

        assert [one.ciphertext for one in heard] == [b"%d" % n for n in range(KEPT + LOST)]
        assert (after_loss.ciphertext, after_loss.seq) == (b"after", sent.seq)
        assert [(one.first, one.last) for one in room.missed] == [(KEPT + LOST + 1, sent.seq - 1)]
