"""A backup of everything while it runs, and what is found when it is restored elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec
import pytest

import signalhub
from signalhub.actors import Actor, ActorHub, Host, op, ref, remote
from signalhub.log import copy
from signalhub.log.disk import SystemDisk
from signalhub.log.erasure import SegmentErasure, rewrite
from signalhub.log.folder import look
from signalhub.log.head import Head
from signalhub.log.retention import keep_footer
from signalhub.log.verify import verify
from signalhub.operate import backup as operation
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.backup import back_up
from signalhub.operate.restore import BackupDamaged, check, restore
from signalhub.settings.model import Settings
from signalhub.sqlite import PinnedFile
from signalhub.testing import RunningHub, run_hub
from tests.upgrade.folder import MUGS, ORDERS, Shelf
from tests.upgrade.folder import SETTINGS as EARLIER
from tests.upgrade.unpacked import ARCHIVES, Folder

T = TypeVar("T")
SMALL: dict[str, Any] = {"message_rate": 0, "log": {"segment_bytes": 2**16}, "drain_s": 0.2}


class Till(Actor):
    """Counts what it sells and tells the book, in one transaction."""

    @remote
    def sell(self) -> int:
        sold = int(self.state.get("sold", 0)) + 1
        self.state.put("sold", sold)
        self.send(ref("book", "main"), op(Book.note))
        return sold

    @remote
    def sold(self) -> int:
        return int(self.state.get("sold", 0))


class Book(Actor):
    """Counts what it is told."""

    @remote
    def note(self) -> None:
        self.state.put("noted", self.noted() + 1)

    @remote
    def noted(self) -> int:
        return int(self.state.get("noted", 0))


def settings(data: Path, **more: Any) -> Settings:
    return msgspec.convert({"data": str(data)} | SMALL | more, Settings)


@asynccontextmanager
async def running(
    hub: RunningHub, cls: type[Actor], folder: Path, name: str
) -> AsyncIterator[None]:
    other = {Till: "book", Book: "till"}.get(cls)
    foreign = [] if other is None else [other]
    async with Host(cls, data=str(folder), url=hub.url, name=name, foreign=foreign) as host:
        task = asyncio.create_task(host.run())
        await host.is_connected.wait()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def busy(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Eight of it, until the block ends."""
    tasks = [asyncio.create_task(work()) for _ in range(8)]
    try:
        yield
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def modes(folder: Path) -> set[int]:
    found = {folder.stat().st_mode & 0o777}
    for parent, folders, names in os.walk(folder):
        found |= {os.stat(os.path.join(parent, one)).st_mode & 0o777 for one in [*folders, *names]}
    return found


@pytest.mark.parametrize("sync", ["always", "os"])
async def test_a_running_hub_is_restored_with_everything_acknowledged_before(
    tmp_path: Path, sync: str
) -> None:
    data, target, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    acknowledged: list[int] = []
    is_filled = asyncio.Event()

    async def publish(me: signalhub.Client) -> None:
        while True:
            receipt = await me.publish("orders", "order", {"pad": "x" * 2_000}, durable=True)
            assert receipt.seq is not None
            acknowledged.append(receipt.seq)
            if len(acknowledged) == 200:
                is_filled.set()

    async with (
        run_hub(data=str(data), **SMALL | {"log": {"segment_bytes": 2**16, "sync": sync}}) as hub,
        signalhub.connect(hub.url, "@(shop/till)") as till,
    ):
        await till.create_topic("orders")
        (data / "denied.jsonl").write_text('{"sub":"eve"}\n')
        async with busy(lambda: publish(till)):
            await is_filled.wait()
            before = max(acknowledged)
            manifest = await asyncio.to_thread(back_up, settings(data), target)

    done = restore(settings(restored), target)
    async with (
        run_hub(data=str(restored), **SMALL) as hub,
        signalhub.connect(hub.url, "@(shop/billing)") as billing,
    ):
        health = hub.app.hub.degradations()
        topic = await billing.topic("orders")
        replayed = [one.delivery.seq async for one in billing.replay("orders", from_seq=1)]  # type: ignore[union-attr]
        receipt = await billing.publish("orders", "order", {}, durable=True)

    # Who was denied before must not be admitted by the restored hub.
    assert (restored / "denied.jsonl").read_text() == '{"sub":"eve"}\n'
    assert topic.head >= before
    assert replayed == list(range(1, topic.head + 1))
    assert receipt.seq == topic.head + 1
    assert not health
    # Another hub may have gone on with these positions, so they belong to another epoch.
    assert done.log.epoch > manifest.log.epoch
    assert str(receipt.epoch).startswith(f"{done.log.epoch}.")
    assert len(list((data / "log").glob("*.log"))) > 3, "the log was rolled"
    assert modes(target) == modes(restored) == {0o700, 0o600}


async def test_hosts_are_of_the_same_moment_as_their_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_head = copy.published_head

    def slow_head(log: Path) -> Head | None:
        time.sleep(0.1)
        found = read_head(log)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(operation, "published_head", slow_head)
    data, target = tmp_path / "data", tmp_path / "backup"
    folders = {"tills": tmp_path / "tills", "books": tmp_path / "books"}
    sold = 0
    is_filled = asyncio.Event()

    async with (
        run_hub(data=str(data), **SMALL) as hub,
        running(hub, Till, folders["tills"], "tills"),
        ActorHub(hub.url) as outside,
    ):
        # The book is away, so that what it is told is in the hub alone.
        async with running(hub, Book, folders["books"], "books"):
            await outside.ask(ref("book", "main"), op(Book.note), timeout=20)

        async def sell() -> None:
            nonlocal sold
            while True:
                sold = await outside.ask(ref("till", "1"), op(Till.sell), timeout=20)
                if sold >= 100:
                    is_filled.set()

        async with busy(sell):
            await is_filled.wait()
            before = sold
            hosts = list(folders.values())
            await asyncio.to_thread(back_up, settings(data), target, hosts=hosts)

    restored = {name: tmp_path / f"restored-{name}" for name in folders}
    restore(settings(tmp_path / "restored"), target, hosts=restored)
    async with (
        run_hub(data=str(tmp_path / "restored"), **SMALL) as hub,
        running(hub, Till, restored["tills"], "tills"),
        running(hub, Book, restored["books"], "books"),
        ActorHub(hub.url) as outside,
    ):
        # One more, so that everything before it has arrived.
        total = await outside.ask(ref("till", "1"), op(Till.sell), timeout=20)
        noted = 0
        async with asyncio.timeout(20):
            while noted < total + 1:
                await asyncio.sleep(0.05)
                noted = await outside.ask(ref("book", "main"), op(Book.noted), timeout=20)

    assert total > before
    assert noted == total + 1


async def test_a_folder_of_an_earlier_release_is_backed_up_and_continued(tmp_path: Path) -> None:
    folder = Folder(ARCHIVES[0], tmp_path / "old")
    data, host = tmp_path / "data", tmp_path / "host"

    (folder.data / "denied.jsonl").write_text("")
    (folder.data / "inbox.key").write_text("0" * 64)

    manifest = back_up(settings(folder.data), tmp_path / "backup", hosts=[folder.host])
    restore(settings(data), tmp_path / "backup", hosts={"shelves": host}, keeps_epoch=True)

    assert (data / "inbox.key").read_text() == "0" * 64
    assert {"log", "lake", "state.db", "denied.jsonl"} < set(os.listdir(data))
    assert manifest.lake is not None
    assert "entries" in manifest.lake
    async with (
        run_hub(data=str(data), **EARLIER) as hub,
        running(hub, Shelf, host, "shelves"),
        ActorHub(hub.url) as outside,
        signalhub.connect(hub.url, "@(shop/billing)") as billing,
    ):
        assert await outside.ask(ref("shelf", "mugs"), op(Shelf.add, 1), timeout=20) == MUGS + 1
        topic = await billing.topic("orders")

    assert (topic.epoch, topic.head) == (folder.known["epoch"], ORDERS)


async def fill(data: Path, **more: Any) -> None:
    async with (
        run_hub(data=str(data), **(SMALL | more)) as hub,
        signalhub.connect(hub.url, "@(shop/till)") as till,
    ):
        await till.create_topic("orders")
        for _ in range(60):
            await till.publish("orders", "order", {"pad": "x" * 4_000}, durable=True)


async def test_a_damaged_backup_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    await fill(tmp_path / "data")
    whole = tmp_path / "backup"
    back_up(settings(tmp_path / "data"), whole)
    names = [one.relative_to(whole) for one in sorted(whole.rglob("*")) if one.is_file()]
    log = next(one for one in names if one.suffix == ".log")
    state = Path("hub", "state.db")

    def flipped(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def linked(path: Path) -> None:
        path.unlink()
        path.symlink_to(whole / path.name)

    cases: list[tuple[Path, Callable[[Path], None]]] = [
        *((one, flipped) for one in (log, state, Path("manifest.json"), Path("SHA256SUMS"))),
        (log, Path.unlink),
        (Path("hub", "log", "extra"), Path.touch),
        (Path("manifest.json"), linked),
    ]
    for name, change in cases:
        damaged, target = tmp_path / "damaged", tmp_path / "target"
        shutil.copytree(whole, damaged)
        change(damaged / name)

        with pytest.raises(BackupDamaged):
            check(damaged)
        with pytest.raises(BackupDamaged):
            restore(settings(target), damaged)

        assert not target.exists()
        target.mkdir()
        with pytest.raises(BackupDamaged):
            restore(settings(target), damaged)
        assert list(target.iterdir()) == [], "what was there stays, and nothing else"
        target.rmdir()
        shutil.rmtree(damaged)


async def test_a_restored_hub_does_not_say_that_it_has_lost_entries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path / "data")
    back_up(settings(tmp_path / "data"), tmp_path / "backup")
    restore(settings(tmp_path / "target"), tmp_path / "backup")
    caplog.set_level("INFO")

    for starts in range(2):
        caplog.clear()
        async with run_hub(data=str(tmp_path / "target"), **SMALL):
            pass
        assert "has lost entries" not in caplog.text
        assert ("the hub was restored from a backup" in caplog.text) == (starts == 0)


async def test_a_list_of_files_leads_out_of_no_folder(tmp_path: Path) -> None:
    await fill(tmp_path / "data")
    back_up(settings(tmp_path / "data"), tmp_path / "backup")
    sums = tmp_path / "backup" / "SHA256SUMS"
    lines = sums.read_text().splitlines(keepends=True)

    for name in ("../outside", "/outside"):
        sums.write_text("".join([*lines, f"{'0' * 64}  {name}\n"]))
        with pytest.raises(BackupDamaged):
            check(tmp_path / "backup")


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    await fill(tmp_path / "data")
    back_up(settings(tmp_path / "data"), tmp_path / "backup")

    with pytest.raises(InvalidArgument, match="not empty"):
        restore(settings(tmp_path / "data"), tmp_path / "backup")
    with pytest.raises(InvalidArgument, match="exists"):
        back_up(settings(tmp_path / "data"), tmp_path / "backup")
    with pytest.raises(InvalidArgument, match="no log"):
        back_up(settings(tmp_path / "nothing"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


async def test_the_current_folder_is_not_replaced_by_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path / "data")
    here = tmp_path / "empty"
    here.mkdir()
    monkeypatch.chdir(here)

    for target in (".", "../empty", str(here)):
        with pytest.raises(InvalidArgument, match=r"current folder.*does not exist yet"):
            back_up(settings(tmp_path / "data"), Path(target))
    assert here.is_dir()


async def test_a_restore_that_was_interrupted_is_used_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path / "data")
    back_up(settings(tmp_path / "data"), tmp_path / "backup")
    target = tmp_path / "target"
    rename = os.rename

    def failing(source: Path, goal: Path) -> None:
        if (target / "inbox.key").exists() or (target / "log").exists():
            raise KeyboardInterrupt
        rename(source, goal)

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", failing)
        with pytest.raises(KeyboardInterrupt):
            restore(settings(target), tmp_path / "backup")

    with pytest.raises(InvalidArgument, match="interrupted"):
        restore(settings(target), tmp_path / "backup")
    with pytest.raises(signalhub.SignalHubError, match="was interrupted"):
        async with run_hub(data=str(target), **SMALL):
            pass
    shutil.rmtree(target)
    restore(settings(target), tmp_path / "backup")
    assert not (target / ".restore").exists()


async def test_a_damaged_log_is_not_backed_up(tmp_path: Path) -> None:
    await fill(tmp_path / "data")
    segment = min((tmp_path / "data" / "log").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)

    with pytest.raises(signalhub.SignalHubError, match="damaged"):
        back_up(settings(tmp_path / "data"), tmp_path / "backup")

    assert os.listdir(tmp_path) == ["data"]


async def test_segments_that_retention_deletes_meanwhile_are_in_the_backup(tmp_path: Path) -> None:
    """The lake is copied between the sealed segments and the rest, which can take hours."""
    source = SystemDisk(tmp_path / "data" / "log")
    await fill(tmp_path / "data")
    log = copy.LogCopy(source.path, tmp_path / "copy")

    log.copy_sealed()
    for info in look(source).segments[:2]:
        keep_footer(source, info)
        source.remove(info.name)
    copied = log.copy_rest(copy.published_head(source.path))

    assert look(source).segments[0].base > 0
    assert copied.first == 0
    assert verify(SystemDisk(tmp_path / "copy", read_only=True)).is_sound


def result_of(slices: Generator[None, None, T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            value: T = end.value
            return value


async def test_a_segment_that_is_erased_meanwhile_is_copied_again(tmp_path: Path) -> None:
    source = SystemDisk(tmp_path / "data" / "log")
    await fill(tmp_path / "data")
    log = copy.LogCopy(source.path, tmp_path / "copy")
    info = look(source).segments[0]

    log.copy_sealed()
    rewritten = result_of(rewrite(source, info, [SegmentErasure(((5, 10),))]))
    assert rewritten is not None
    source.rename(rewritten.temporary, info.name)
    log.copy_rest(copy.published_head(source.path))

    report = verify(SystemDisk(tmp_path / "copy", read_only=True))
    assert report.is_sound
    assert report.erased > 0


async def test_the_copy_ends_at_the_head_it_was_given(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await fill(data)
    whole = copy.published_head(data / "log")
    assert whole is not None
    segments = sorted(int(one.stem) for one in (data / "log").glob("*.log"))

    for end in {*range(whole.shown - 25, whole.shown + 1), *segments}:
        target = tmp_path / str(end)
        log = copy.LogCopy(data / "log", target)
        copied = log.copy_rest(msgspec.structs.replace(whole, durable=end, shown=end))
        report = verify(SystemDisk(target, read_only=True))

        assert copied.head == report.head
        assert copied.head >= end
        assert report.is_sound, report.problems
        assert report.torn is None


def test_a_pinned_file_is_copied_as_it_was(tmp_path: Path) -> None:
    source = apsw.Connection(str(tmp_path / "a.db"))
    source.execute(
        "PRAGMA journal_mode = WAL; PRAGMA application_id = 7; CREATE TABLE t (x)"
    ).fetchall()
    source.execute("INSERT INTO t VALUES (1)")
    pinned = PinnedFile(tmp_path / "a.db", 7)
    source.execute("INSERT INTO t VALUES (2)")

    pinned.copy_to(tmp_path / "b.db")
    pinned.close()
    source.close()

    assert apsw.Connection(str(tmp_path / "b.db")).execute("SELECT x FROM t").fetchall() == [(1,)]
