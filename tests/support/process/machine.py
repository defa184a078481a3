"""What this machine offers for making real faults, and what it says about a process."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


@cache
def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False).returncode == 0


@cache
def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(
    not can_trace(), reason="strace is needed to let system calls fail"
)
needs_namespace = pytest.mark.skipif(
    not can_mount(), reason="an unprivileged namespace with a tmpfs is needed"
)


def resident_bytes(pid: int) -> int:
    """How much memory a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process has no memory")


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
