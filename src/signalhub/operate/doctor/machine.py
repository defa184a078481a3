"""Checks of this machine and of the hub's files; a running hub is not disturbed."""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from signalhub import native
from signalhub.operate.doctor.finding import Finding, fail, ok, warn
from signalhub.wire.authority import is_loopback
from signalhub.wire.errors import SignalHubError
from signalhub.wire.release import __version__

if TYPE_CHECKING:
    from signalhub.settings.model import Settings

FSYNCS: Final = 200
FSYNC_BYTES: Final = 4_096
SLOW_FSYNC_MS: Final = 30.0
FREE_BYTES_MIN: Final = 2**30
FREE_BYTES_LEAST: Final = 2**27
DESCRIPTORS_MIN: Final = 8_192
LAG_S_MAX: Final = 300.0
# File systems that promise less than a log needs, or that forget.
_DOUBTFUL: Final = frozenset({"cifs", "fuse.sshfs", "nfs", "nfs4", "smb3", "9p"})
_FORGETFUL: Final = frozenset({"ramfs", "tmpfs"})


def machine_findings(settings: Settings, *, is_full: bool) -> Iterator[Finding]:
    """All checks that need no connection, each with the name of its subject."""
    data = Path(settings.data)
    yield _versions()
    yield _exposure(settings)
    yield _port(settings)
    yield _descriptors(settings)
    if not data.is_dir():
        yield warn("data", f"there is no data folder {data}", "the first start of a hub creates it")
        return
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("disk", lambda: _disk(data)),
        ("fsync", lambda: _fsync(data)),
        ("log", lambda: _log(data, is_full=is_full)),
        ("index", lambda: _index(data)),
        ("lake", lambda: _lake(settings)),
    ]
    for name, check in checks:
        try:
            yield from check()
        except SignalHubError as error:
            text, _, advice = str(error).partition("; ")
            yield fail(name, text, advice or f"see `signalhub error {error.code}`")
        except OSError as error:
            yield fail(
                name, f"{error.filename or data}: {error.strerror}", "correct its permissions"
            )
    yield _java(settings)


def _versions() -> Finding:
    python = platform.python_version()
    return ok("versions", f"signalhub {__version__}, Python {python}, native: {native.STATUS}")


def _exposure(settings: Settings) -> Finding:
    """Who can reach the hub, and by which names."""
    where = f"listens on {settings.host}"
    if is_loopback(settings.host):
        return ok("auth", f"{where}: this machine only")
    if not settings.auth.enabled:
        return fail("auth", f"{where} without authentication", "set auth.enabled and a key")
    if not settings.hosts:
        return warn(
            "auth",
            f"{where}, and hosts is empty: only loopback names and the address are served",
            "set hosts to the names that clients use",
        )
    if not settings.origins:
        return warn(
            "auth",
            f"{where}, and origins is empty: only loopback and its own pages may connect",
            "set origins, if pages of other sites use the hub",
        )
    return ok("auth", f"{where} with authentication, as {', '.join(settings.hosts)}")


def _port(settings: Settings) -> Finding:
    address = f"{settings.host}:{settings.port}"
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return ok("port", f"a program listens on {address}")
            return fail("port", f"{address}: {error.strerror}", "choose another host or port")
    return ok("port", f"{address} is free; no hub is running there")


def _descriptors(settings: Settings) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = resource.RLIM_INFINITY if resource.RLIM_INFINITY in (soft, hard) else max(soft, hard)
    wanted = max(DESCRIPTORS_MIN, settings.limits.sockets_max or 0)
    if most == resource.RLIM_INFINITY or most >= wanted:
        return ok("limits", f"{'unlimited' if most < 0 else most} open files")
    return warn(
        "limits",
        f"{most} open files bound the number of sockets",
        f"raise the limit to {wanted}: LimitNOFILE in systemd, ulimit -n in a shell",
    )


def _disk(data: Path) -> Iterator[Finding]:
    usage, kind = shutil.disk_usage(data), _file_system(data)
    free = f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f} GiB, {kind}"
    advice = "make room, or set log.retention_bytes and log.retention_s"
    if usage.free < FREE_BYTES_LEAST:
        yield fail("disk", free, advice)
    elif usage.free < FREE_BYTES_MIN:
        yield warn("disk", free, advice)
    else:
        yield ok("disk", free)
    if kind in _FORGETFUL:
        yield warn(
            "disk", f"{kind} forgets everything at a restart", "use a disk for the data folder"
        )
    elif kind in _DOUBTFUL:
        yield warn("disk", f"{kind} may not keep what was synced", "use a local disk")


def _file_system(folder: Path) -> str:
    """The type of the file system that holds a folder."""
    best, kind = "", "unknown file system"
    where = str(folder.resolve())
    with suppress(OSError), open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, place, found, *_ = line.split()
            place = place.replace("\\040", " ")
            is_above = where == place or where.startswith(place.rstrip("/") + "/")
            if is_above and len(place) >= len(best):
                best, kind = place, found
    return kind


def _fsync(data: Path) -> Iterator[Finding]:
    """How long the disk takes to sync a small write."""
    taken: list[float] = []
    block = bytes(FSYNC_BYTES)
    with tempfile.TemporaryFile(dir=data) as file:
        for _ in range(FSYNCS):
            began = time.perf_counter()
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    taken.sort()
    p99 = taken[len(taken) * 99 // 100]
    text = (
        f"99 of 100 syncs take at most {p99:.1f} ms, half of them {taken[len(taken) // 2]:.1f} ms"
    )
    if p99 > SLOW_FSYNC_MS:
        yield warn("fsync", text, "every ask and durable publish waits for that: use a faster disk")
    else:
        yield ok("fsync", text)


def _log(data: Path, *, is_full: bool) -> Iterator[Finding]:
    from signalhub.log.disk import SystemDisk
    from signalhub.log.folder import examine
    from signalhub.log.verify import verify
    from signalhub.pipeline.source import known

    folder = data / "log"
    known.check_log(data)
    if not folder.is_dir():
        yield warn("log", f"there is no log in {data}", "the first start of a hub creates it")
        return
    disk = SystemDisk(folder, read_only=True)
    advice = "stop the hub and see `signalhub log verify`"
    if is_full:
        report = verify(disk, known.known_head(data))
        problems = list(report.problems)
        text = f"{report.entries} entries in {report.segments} segments are as they were written"
    else:
        found, recovery = examine(disk, known.known_head(data))
        damages = found.damages or ([recovery.damage] if recovery.damage else [])
        problems = [f"{one.segment}, byte {one.position}: {one.reason}" for one in damages]
        if recovery.loss:
            problems.append(recovery.loss)
        text = f"footers and the end of the log are sound, {len(found.segments)} segments before it"
    for problem in problems:
        yield fail("log", problem, advice)
    if not problems:
        yield ok("log", text)


def _index(data: Path) -> Iterator[Finding]:
    from signalhub.state.store import saved_position

    path = data / "state.db"
    if not path.exists():
        yield ok("index", "no state.db yet; the next start reads the whole log")
        return
    position = saved_position(path)
    if position is None:
        yield ok("index", "no snapshot yet; the next start reads the whole log")
        return
    yield ok("index", f"the snapshot is at offset {position[1]} of epoch {position[0]}")


def _lake(settings: Settings) -> Iterator[Finding]:
    try:
        from signalhub.pipeline.run.progress import standing

        found = standing(Path(settings.data), settings.pipeline.lake)
    except ImportError:
        yield ok("lake", "the extra `pipeline` is not installed")
        return
    behind = max(0, found.head - found.position)
    text = f"the pipeline is {found.state}, {behind} entries behind"
    if found.failures:
        yield warn("lake", f"{text}: {found.reason}", "see `signalhub pipeline status`")
    elif found.lag_s is not None and found.lag_s > LAG_S_MAX:
        yield warn("lake", f"{text}, the oldest for {found.lag_s:.0f} s", "start the pipeline")
    else:
        yield ok("lake", text)


def _java(settings: Settings) -> Finding:
    from signalhub.pipeline import packages

    needs = "needed for the pipeline, audit, replay and erase"
    try:
        from signalhub.pipeline.run.java import executable, problem

        found = problem()
    except ModuleNotFoundError as error:
        if not packages.is_missing(error):
            raise
        return ok("java", f"the extra `pipeline` is not installed; {needs}")
    if found is None:
        return ok("java", f"Java is {executable()}")
    text, _, advice = found.partition(": ")
    if settings.pipeline.run == "off":
        return ok("java", f"{text}; {needs}")
    return fail("java", text, advice or "install Java 17")
