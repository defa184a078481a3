"""Restore a backup into empty folders.

Everything is checked against `SHA256SUMS` while it is copied, beside its final place, and the log
is verified there; only then it is moved. A folder in which that was interrupted is used by nobody.

The hub may have gone on after the backup, so the restored log begins a new epoch: positions that
clients have seen since then are refused, not mistaken for others.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from signalhub.actors.host.host import LOCK_NAME as HOST_LOCK
from signalhub.clock import SystemClock
from signalhub.locks import HUB_LOCK, UNFINISHED, LockedFolder
from signalhub.log.copy import CopiedLog, begin_epoch
from signalhub.log.disk import SystemDisk
from signalhub.log.verify import verify
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.backup import (
    FORMAT,
    HOSTS,
    HUB,
    LAKE,
    LOG,
    MANIFEST,
    STATE,
    SUMS,
    Manifest,
    files_in,
    is_host_name,
    sync_folder,
    sync_folders,
)
from signalhub.privacy import make_folder, opener
from signalhub.settings.model import Settings
from signalhub.state import restored
from signalhub.state.store import move_to_epoch
from signalhub.wire.errors import SignalHubError

_PIECE_BYTES: Final = 2**20
_DIGEST_CHARS: Final = 64

Progress = Callable[[int, int], object]
"""Called with the bytes done and their total."""


class BackupDamaged(SignalHubError):
    """A backup is not what was written; nothing was restored."""

    code = "backup_damaged"

    def __init__(self, backup: Path, reason: str) -> None:
        super().__init__(
            f"the backup {backup} is damaged: {reason}; use another backup, nothing was restored"
        )


class Restored(msgspec.Struct, frozen=True):
    """What was restored, and what was not because no folder was given for it."""

    manifest: Manifest
    log: CopiedLog
    hosts: list[str]
    left_out: list[str]


def check(backup: Path, *, progress: Progress = lambda done, total: None) -> Manifest:
    """Read a whole backup and compare every file; raises `InvalidArgument`, `BackupDamaged`."""
    content = _Backup(backup, progress)
    for name in content.sums:
        content.read(name, None)
    return content.manifest()


def restore(
    settings: Settings,
    backup: Path,
    *,
    hosts: Mapping[str, Path] | None = None,
    keeps_epoch: bool = False,
    progress: Progress = lambda done, total: None,
) -> Restored:
    """Restore hub and lake into the folders of the settings, and hosts by name into others.

    `keeps_epoch` is for a hub that accepted nothing after the backup. Raises `InvalidArgument` if a
    folder is not empty, `BackupDamaged`, and `SettingsError` if a folder is in use.
    """
    content = _Backup(backup, progress)
    manifest = content.manifest()
    data = Path(settings.data)
    wanted = dict(hosts or {})
    known = [one.name for one in manifest.hosts]
    for name in wanted:
        if name not in known:
            raise InvalidArgument(
                f"the backup has no host {name!r}", f"it has: {', '.join(known) or 'none'}"
            )
    with ExitStack() as stack:
        places = [
            _Place(stack, data, HUB_LOCK, "hub", f"{HUB}/"),
            *(
                _Place(stack, folder, HOST_LOCK, "actor host", f"{HOSTS}/{name}/")
                for name, folder in wanted.items()
            ),
        ]
        if manifest.lake is not None:
            lake = _lake_of(settings, data)
            work = places[0].work / LAKE if lake is None else None
            places.append(_Place(stack, lake or data, "", "", f"{LAKE}/", work=work))
        _fill(content, places)
        log = _settle_log(places[0].work, manifest, backup, keeps_epoch=keeps_epoch)
        for place in places:
            sync_folders(place.work)
        for place in places:
            place.move()
    return Restored(manifest, log, list(wanted), [one for one in known if one not in wanted])


class _Backup:
    """The files of a backup and what they must contain."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = folder
        try:
            self.sums = dict(self._listed((folder / SUMS).read_text("utf-8")))
        except FileNotFoundError:
            raise InvalidArgument(
                f"{folder} is not a backup: it has no {SUMS}",
                "give a folder that `signalhub backup` has written",
            ) from None
        except (OSError, ValueError) as error:
            raise BackupDamaged(folder, f"{SUMS} cannot be read ({error})") from error
        present = {one.as_posix() for one in files_in(folder)} - {SUMS}
        if missing := sorted(set(self.sums) - present):
            raise BackupDamaged(folder, f"{missing[0]} is missing")
        if foreign := sorted(present - set(self.sums)):
            raise BackupDamaged(folder, f"{foreign[0]} does not belong to it")
        self._progress = progress
        self._done = 0
        self._total = sum((folder / one).lstat().st_size for one in self.sums)

    def _listed(self, text: str) -> Iterator[tuple[str, str]]:
        for line in text.splitlines():
            digest, _, name = line.partition("  ")
            path = PurePosixPath(name)
            if len(digest) != _DIGEST_CHARS or path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the line {line[:100]!r} is invalid")
            yield name, digest

    def manifest(self) -> Manifest:
        """What the backup says about itself."""
        if MANIFEST not in self.sums:
            raise BackupDamaged(self.folder, f"{MANIFEST} is missing")
        content = self.read(MANIFEST, None)
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(self.folder, f"{MANIFEST} cannot be read: {error}") from error
        if manifest.format != FORMAT:
            raise InvalidArgument(
                f"the backup has format {manifest.format}, but this program supports {FORMAT}",
                f"restore it with Signal Hub {manifest.version}",
            )
        if not all(is_host_name(one.name) for one in manifest.hosts):
            raise BackupDamaged(self.folder, "the name of a host is invalid")
        return manifest

    def read(self, name: str, target: Path | None) -> bytes:
        """Check a file, and copy it to a new one; returns the content of a small one."""
        digest = hashlib.sha256()
        kept = b""
        try:
            source = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(source, "rb") as old, ExitStack() as stack:
                if not stat.S_ISREG(os.fstat(source).st_mode):
                    raise BackupDamaged(self.folder, f"{name} is not a file")
                new = None
                if target is not None:
                    new = stack.enter_context(open(target, "xb", opener=opener))
                while piece := old.read(_PIECE_BYTES):
                    digest.update(piece)
                    kept = kept or piece
                    if new is not None:
                        new.write(piece)
                    self._done += len(piece)
                    self._progress(min(self._done, self._total), self._total)
                if new is not None:
                    new.flush()
                    os.fsync(new.fileno())
        except OSError as error:
            raise BackupDamaged(self.folder, f"{name}: {error.strerror}") from error
        if digest.hexdigest() != self.sums[name]:
            raise BackupDamaged(self.folder, f"{name} does not match its SHA-256")
        return kept


class _Place:
    """A folder to restore into, filled beside its final content first."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        lock: str,
        owner: str,
        prefix: str,
        *,
        work: Path | None = None,
    ) -> None:
        """`work` is given for what belongs into the folder of another place."""
        self.prefix = prefix
        self.work = work or folder / UNFINISHED
        self._folder = folder
        self._is_inner = work is not None
        self._is_moving = False
        self._locked: LockedFolder | None = None
        if self._is_inner:
            return
        if folder.exists() and any(one.name != lock for one in folder.iterdir()):
            if (folder / UNFINISHED).exists():
                raise InvalidArgument(
                    f"restoring into {folder} was interrupted", "delete it and restore again"
                )
            raise InvalidArgument(f"{folder} is not empty", "restore into a new folder")
        self._is_new = not folder.exists()
        if lock:
            locked = LockedFolder(str(folder), lock_name=lock, owner=owner)
            self._locked = stack.enter_context(closing(locked))
        else:
            make_folder(folder)
        make_folder(self.work)
        stack.callback(self._clean)

    def target(self, name: str) -> Path:
        """Where a file of the backup is written, in folders that only their owner can read."""
        inner = Path(name.removeprefix(self.prefix))
        for parent in reversed(inner.parents):
            make_folder(self.work / parent)
        return self.work / inner

    def move(self) -> None:
        """Move everything to its place; until nothing is left, the folder is not used."""
        if self._is_inner:
            return
        self._is_moving = True
        for one in sorted(self.work.iterdir()):
            os.rename(one, self._folder / one.name)
        sync_folder(self.work)
        sync_folder(self._folder)
        sync_folder(self._folder.absolute().parent)

    def _clean(self) -> None:
        """Remove what was copied; if only a part of it was moved, the rest stays as a sign."""
        if self._is_moving:
            with suppress(OSError):
                self.work.rmdir()
        else:
            shutil.rmtree(self.work, ignore_errors=True)
            if self._locked is not None:
                self._locked.abandon()
            elif self._is_new:
                with suppress(OSError):
                    self._folder.rmdir()


def _lake_of(settings: Settings, data: Path) -> Path | None:
    """The folder of the lake; `None` if it is in the data folder."""
    where = settings.pipeline.lake
    if "://" in where:
        raise InvalidArgument(
            f"the lake of the backup cannot be restored to {where}",
            "restore it into a folder with --lake, and copy it from there",
        )
    if not where or Path(where).absolute() == (data / LAKE).absolute():
        return None
    return Path(where)


def _fill(content: _Backup, places: list[_Place]) -> None:
    for name in content.sums:
        place = next((one for one in places if name.startswith(one.prefix)), None)
        content.read(name, None if place is None else place.target(name))


def _settle_log(work: Path, manifest: Manifest, backup: Path, *, keeps_epoch: bool) -> CopiedLog:
    log = manifest.log
    report = verify(SystemDisk(work / LOG, read_only=True))
    found = CopiedLog(report.epoch, report.first, report.head)
    if not report.is_sound or found != log:
        reason = report.problems[0] if report.problems else f"its log is {found}, not {log}"
        raise BackupDamaged(backup, reason)
    if keeps_epoch:
        return log
    # Epochs begin with the time, so that no earlier life of this log has used this one.
    epoch = max(log.epoch + 1, SystemClock().now_ms() // 1000)
    log = begin_epoch(work / LOG, epoch)
    if (work / STATE).exists():
        move_to_epoch(work / STATE, epoch)
    restored.note(work, epoch)
    return log
