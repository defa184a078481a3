"""The same promises kept by a real process on a real file system, with faults from outside.

`strace` lets system calls fail, a tmpfs in a namespace of its own is truly full, a file size limit
cuts writes short. Each test is skipped where the machine does not offer its tool.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process.machine import needs_namespace, needs_strace
from tests.support.volume import thinned

ROOT = Path(__file__).resolve().parents[2]
SIZE = 400
COUNT = 40
SEGMENT_BYTES = 6 * 1024

# At which system call, and with how much room left on the disk.
CALLS = thinned((1, 2, 6, 15, 40), 3)
ROOMS = thinned((70_000, 100_000, 130_001, 200_000, 262_144), 3)

Events = list[list[str]]


def program(folder: Path, count: int = COUNT, segment_bytes: int = SEGMENT_BYTES) -> list[str]:
    numbers = map(str, (count, SIZE, segment_bytes))
    return [sys.executable, "-m", "tests.support.process.appender", str(folder), *numbers]


def events(command: list[str], *, file_bytes_max: int | None = None) -> Events:
    """Run a program to its end and read what it says."""

    def limit() -> None:
        if file_bytes_max is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, preexec_fn=limit
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def acked(found: Events) -> int:
    """The last acknowledged end, 0 if there was none."""
    return max((int(event[1]) for event in found if event[0] == "acked"), default=0)


def assert_failed_and_restarts(found: Events, folder: Path, before: int = 0) -> None:
    """The failure came last; the next process has everything and goes on."""
    assert found[-1] == ["storage_failed"]

    again = events(program(folder))

    event, head = again[0]
    assert event == "open"
    known = max(before, acked(found))
    assert known <= int(head) <= known + 1
    assert again[-1] == ["readable", str(COUNT), "problems", "0"]


@needs_strace
@pytest.mark.parametrize(
    ("fault", "call"),
    [
        *((fault, call) for fault in ("fdatasync", "pwrite64") for call in CALLS),
        *(("fsync", call) for call in (1, 2, 3)),
    ],
)
def test_nothing_is_acknowledged_after_a_system_call_has_failed(
    fault: str, call: int, tmp_path: Path
) -> None:
    before = acked(events(program(tmp_path, count=2)))
    inject = ["-e", f"trace={fault}", "-e", f"inject={fault}:error=EIO:when={call}"]

    found = events(["strace", "-f", "-qq", "-o", "/dev/null", *inject, *program(tmp_path)])

    assert_failed_and_restarts(found, tmp_path, before)


@pytest.mark.parametrize("file_bytes_max", [3_001, 5_000])
def test_a_write_cut_short_by_a_limit_ends_the_log(file_bytes_max: int, tmp_path: Path) -> None:
    found = events(program(tmp_path), file_bytes_max=file_bytes_max)

    assert acked(found) > 0
    assert_failed_and_restarts(found, tmp_path)


@needs_namespace
@pytest.mark.parametrize("room_bytes", ROOMS)
def test_a_truly_full_disk_refuses_reads_on_and_resumes(room_bytes: int, tmp_path: Path) -> None:
    disk_bytes, count = 4 * 2**20, 1_500
    script = (
        f"mount -t tmpfs -o size={disk_bytes} none {tmp_path} && "
        f"head -c {disk_bytes - room_bytes} /dev/zero > {tmp_path}/ballast && "
        'exec "$@"'
    )

    found = events(["unshare", "-Urm", "sh", "-c", script, "sh", *program(tmp_path, count, 2**16)])

    refusal = next(event for event in found if event[0] == "storage_full")
    before = acked(found[: found.index(refusal)])
    after = found[found.index(refusal) + 1]
    assert before > 0
    assert refusal == ["storage_full", "state", "full", "readable", str(before)]
    assert after == ["acked", str(before + 1)], "it goes on as soon as there is room"
    assert found[-1] == ["readable", str(count), "problems", "0"]


@needs_namespace
def test_a_log_on_a_truly_full_disk_opens_again_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk_bytes, count = 2**20, 5_000
    script = (
        f"mount -t tmpfs -o size={disk_bytes} none {tmp_path} && "
        f'"$@"; "$@"; mount -o remount,size={8 * disk_bytes} {tmp_path} && exec "$@"'
    )

    found = events(["unshare", "-Urm", "sh", "-c", script, "sh", *program(tmp_path, count, 2**16)])

    openings = [int(event[1]) for event in found if event[0] == "open"]
    full = [event for event in found if event[0] == "storage_full"]
    assert openings[0] == 0
    assert 0 < openings[1] == openings[2] < count
    assert len(full) == 6
    assert found[-1] == ["readable", str(count), "problems", "0"]
