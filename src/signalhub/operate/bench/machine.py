"""The machine of a load, and what a hub on it costs."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from signalhub.wire.release import __version__

_PROC: Final = Path("/proc")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_LISTENING: Final = "0A"


def machine_facts() -> dict[str, Any]:
    """What a figure depends on: processor, system, versions, and what else was running."""
    cpuinfo = ""
    with suppress(OSError):
        cpuinfo = (_PROC / "cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "signalhub": __version__,
        "load_average": round(os.getloadavg()[0], 2),
    }


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class HubProcess:
    """The process of a hub on this machine, and the CPU it uses; its children are not counted."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of all its threads so far; `None` if it has ended."""
        folder = _PROC / str(self.pid)
        try:
            # Nanoseconds, where the kernel counts them; else ticks of some milliseconds.
            spent_ns = sum(_spent_ns(task) for task in (folder / "task").iterdir())
            if spent_ns:
                return spent_ns / 1e9
            # What comes before may contain spaces: the name of the program.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _spent_ns(task: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((task / "schedstat").read_text().split()[0])
    return 0


def hub_process(url: str) -> HubProcess | None:
    """Find the process that listens on the port of a URL; `None` if it is not to be seen here."""
    parts = urlsplit(url)
    if parts.hostname not in _LOOPBACK:
        return None
    port = parts.port or (443 if parts.scheme in ("wss", "https") else 80)
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return None
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and sockets & set(_open_files(folder)):
            return HubProcess(int(folder.name))
    return None


def _listening(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _open_files(process: Path) -> Iterator[str]:
    # Processes of others cannot be looked into, and any may end meanwhile.
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                yield str(entry.readlink())
