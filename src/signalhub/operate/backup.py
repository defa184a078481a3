"""Back up a hub, its lake and the hosts of its durable actors, all of them running or stopped.

The order makes the copies fit each other. The lake comes before the end of the log, so the log has
whatever the lake lacks. The hosts are of the very moment at which the log ends: none of them can
commit while it is chosen, so the log has settled nothing that a host has not run, and a host has
dropped nothing that the log has not accepted.

A backup is a folder; `SHA256SUMS` lists every file in it and can be checked with `sha256sum -c`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import msgspec

from signalhub.actors.host.host import FILE as HOST_FILE
from signalhub.actors.store.schema import SCHEMA as HOST_SCHEMA
from signalhub.clock import SystemClock
from signalhub.log.copy import CopiedLog, LogCopy, is_log, published_head
from signalhub.log.disk import SystemDisk
from signalhub.log.head import Head
from signalhub.log.verify import verify
from signalhub.operate.arguments import InvalidArgument
from signalhub.pipeline.copy import copy_tables
from signalhub.pipeline.source.known import check_log, known_head
from signalhub.privacy import FOLDER_MODE, make_folder, opener
from signalhub.settings.model import DENIED_NAME, Settings
from signalhub.sqlite import PinnedFile, frozen
from signalhub.state import clock_offset, inbox_key, losses
from signalhub.state.schema import SCHEMA as STATE_SCHEMA
from signalhub.state.store import FILE
from signalhub.wire.errors import SignalHubError
from signalhub.wire.release import __version__

MANIFEST: Final = "manifest.json"
SUMS: Final = "SHA256SUMS"
HUB, LAKE, HOSTS = "hub", "lake", "hosts"
LOG: Final = "log"
STATE: Final = FILE
FORMAT: Final = 1
CERTIFICATES: Final = Path("pipeline", "certificates")
"""What says which erasures are complete; the rest of the pipeline's folder can be lost."""

_SMALL: Final = (inbox_key.NAME, clock_offset.NAME, losses.NAME, DENIED_NAME)
_PARTIAL: Final = ".partial"
_FREEZE_MS: Final = 30_000
"""Longer than a method of an actor should take, since its host cannot commit before it returns."""

Progress = Callable[[str], object]


class BackupFailed(SignalHubError):
    """The copy is not what it should be; nothing was kept."""

    code = "backup_failed"


class HostCopy(msgspec.Struct, frozen=True):
    """One host in a backup."""

    name: str
    folder: str
    """Where it was."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains."""

    format: int = FORMAT
    version: str
    """Of Signal Hub."""
    taken_ms: int
    log: CopiedLog
    """Everything acknowledged before its head was read is in the backup."""
    lake: dict[str, int] | None = None
    """The versions of its tables; `None` without a lake."""
    lake_left_out: str = ""
    """The location of a lake that is not a folder, and therefore not in the backup."""
    hosts: list[HostCopy] = []
    files: int = 0
    bytes: int = 0


def back_up(
    settings: Settings,
    target: Path,
    *,
    hosts: Sequence[Path] = (),
    progress: Progress = lambda step: None,
) -> Manifest:
    """Write a backup into a new folder; `hosts` are the data folders of hosts of durable actors.

    Raises `InvalidArgument`, `BackupFailed`, `SettingsError`, and the errors of log and lake. The
    folder appears when everything in it is written, synced and verified.
    """
    data = Path(settings.data)
    check_log(data)
    if not is_log(data / LOG):
        raise InvalidArgument(
            f"there is no log in {data}", "give the data folder of a hub with --data"
        )
    for folder in hosts:
        if not (folder / HOST_FILE).is_file():
            raise InvalidArgument(
                f"there is no {HOST_FILE} in {folder}",
                "give the data folder of a host with --host-data",
            )
    work = _work_folder(target)
    try:
        manifest = _written(settings, data, work, hosts, progress)
        os.rename(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    sync_folder(target.parent)
    return manifest


def files_in(folder: Path) -> Iterator[Path]:
    """Every file below a folder, in order, relative to it; links are not followed."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name).relative_to(folder) for name in sorted(names))


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _work_folder(target: Path) -> Path:
    if target.resolve() == Path.cwd():
        raise InvalidArgument(
            f"{target} is the current folder", "name a folder that does not exist yet"
        )
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    if target.exists():
        raise InvalidArgument(f"{target} exists", "name a folder that does not exist yet")
    work = target.with_name(target.name + _PARTIAL)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir(FOLDER_MODE)
    except FileExistsError:
        raise InvalidArgument(
            f"{work} is left from a backup that was interrupted, or belongs to one that is running",
            "delete it if no backup is running",
        ) from None
    except OSError as error:
        raise InvalidArgument(
            f"{target} cannot be created: {error.strerror}", "name another folder"
        ) from error
    return work


def _written(
    settings: Settings, data: Path, work: Path, hosts: Sequence[Path], progress: Progress
) -> Manifest:
    hub = work / HUB
    make_folder(hub)
    progress("sealed segments")
    log = LogCopy(data / LOG, hub / LOG)
    log.copy_sealed()
    tables, left_out = _copy_lake(settings, data, work / LAKE, progress)
    progress("state and hosts")
    with ExitStack() as pinned:
        state, open_hosts, published = _pin(data, hosts, pinned)
        if state is not None:
            state.copy_to(hub / STATE)
        copied_hosts = _copy_hosts(work / HOSTS, open_hosts)
    progress("the end of the log")
    copied = log.copy_rest(published)
    _copy_rest(data, hub)
    progress("verification")
    report = verify(SystemDisk(hub / LOG, read_only=True), known_head(hub))
    if not report.is_sound:
        raise BackupFailed(
            f"the log is damaged: {report.problems[0]}; see `signalhub log verify --data {data}`"
        )
    listed = list(files_in(work))
    manifest = Manifest(
        version=__version__,
        taken_ms=SystemClock().now_ms(),
        log=copied,
        lake=tables,
        lake_left_out=left_out,
        hosts=copied_hosts,
        files=len(listed),
        bytes=sum((work / one).stat().st_size for one in listed),
    )
    _write(work / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    sums = [f"{digest_of(work / one)}  {one.as_posix()}\n" for one in [*listed, Path(MANIFEST)]]
    _write(work / SUMS, "".join(sums).encode())
    sync_folders(work)
    return manifest


def _copy_lake(
    settings: Settings, data: Path, target: Path, progress: Progress
) -> tuple[dict[str, int] | None, str]:
    where = settings.pipeline.lake
    if "://" in where:
        return None, where
    lake = Path(where) if where else data / LAKE
    if not lake.is_dir():
        return None, ""
    progress("lake")
    return copy_tables(data, lake, target), ""


def _pin(
    data: Path, hosts: Sequence[Path], pinned: ExitStack
) -> tuple[PinnedFile | None, list[PinnedFile], Head | None]:
    """Choose the moment of the backup: the state, then the head of the log, then the hosts.

    The snapshot in the state must not be ahead of the log.
    """
    path = data / STATE
    state = _pinned(path, STATE_SCHEMA.application_id, pinned) if path.is_file() else None
    with ExitStack() as held:
        for folder in hosts:
            held.enter_context(frozen(folder / HOST_FILE, _FREEZE_MS))
        published = published_head(data / LOG)
        found = [
            _pinned(folder / HOST_FILE, HOST_SCHEMA.application_id, pinned) for folder in hosts
        ]
    return state, found, published


def _pinned(path: Path, application_id: int, pinned: ExitStack) -> PinnedFile:
    return pinned.enter_context(closing(PinnedFile(path, application_id)))


def _copy_hosts(target: Path, hosts: Sequence[PinnedFile]) -> list[HostCopy]:
    copied: list[HostCopy] = []
    for host in hosts:
        name = str(host.get("SELECT value FROM meta WHERE key = 'host'"))
        if not is_host_name(name):
            raise BackupFailed(f"{host.path} has no usable name: start its host once")
        if name in (one.name for one in copied):
            raise InvalidArgument(f"two hosts are called {name}", "name every folder once")
        make_folder(target / name)
        host.copy_to(target / name / HOST_FILE)
        copied.append(HostCopy(name, str(Path(host.path).parent.absolute())))
    return copied


def is_host_name(name: str) -> bool:
    """Whether a name can be the name of a folder."""
    return name == Path(name).name and name not in ("", ".", "..", "None")


def _copy_rest(data: Path, hub: Path) -> None:
    """Copy small files of the hub and the certificates of erasures; locks and caches stay."""
    for name in _SMALL:
        if (data / name).is_file():
            _write(hub / name, (data / name).read_bytes())
    for certificate in (data / CERTIFICATES).glob("*.json"):
        make_folder(hub / CERTIFICATES)
        _write(hub / CERTIFICATES / certificate.name, certificate.read_bytes())


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folders(root: Path) -> None:
    """Sync the names in a folder and in all folders below it; their files are synced already."""
    for folder, _, _ in os.walk(root):
        sync_folder(Path(folder))


def sync_folder(path: Path) -> None:
    """Sync the names in one folder."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
