"""A small program that appends to a log on a real disk and says what was acknowledged.

    python -m tests.support.process.appender FOLDER COUNT BYTES [SEGMENT_BYTES]

Every line is an event: `open HEAD`, `acked END`, the code of an error, `closed HEAD`, and at the
end how many entries were read back and how many problems a full check has found. When the disk is
full it reads everything back, removes the file `ballast` beside the log if there is one, and tries
again; it gives up when that does not help.
"""

from __future__ import annotations

import sys
from pathlib import Path

from signalhub.clock import SystemClock
from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.recovery import recover
from signalhub.log.verify import verify
from signalhub.wire.entry import Entry
from tests.support.memory.log_workload import log_settings

REFUSALS_MAX = 3


def say(*words: object) -> None:
    print(*words, flush=True)


def body(offset: int, size: int) -> bytes:
    """What entry `offset` holds, so that anybody can check it."""
    return f"{offset:08d}".encode() * (size // 8)


def readable(log: Log, size: int) -> int:
    """How many entries there are, all of them right."""
    count = 0
    for stored in Reader(log).scan(0):
        assert stored.body == body(stored.offset, size)
        count += 1
    return count


def append_all(log: Log, count: int, size: int, ballast: Path) -> None:
    refusals = 0
    while log.head < count and refusals < REFUSALS_MAX:
        offset = log.head
        try:
            log.append([Entry(2, "orders", 1, offset + 1, 0, body(offset, size))])
            say("acked", log.head)
        except LogFull as error:
            refusals += 1
            say(error.code, "state", log.state, "readable", readable(log, size))
            ballast.unlink(missing_ok=True)
        for _ in log.upkeep():
            pass


def run(folder: Path, count: int, size: int, segment_bytes: int) -> None:
    disk = SystemDisk(folder / "log")
    log = Log(
        disk,
        log_settings(segment_bytes=segment_bytes),
        recover(disk, repair=True),
        clock=SystemClock(),
    )
    say("open", log.head)
    append_all(log, count, size, folder / "ballast")
    log.close()
    say("closed", log.head)
    say("readable", readable(log, size), "problems", len(verify(disk).problems))


def main() -> None:
    folder, *numbers = sys.argv[1:]
    count, size, segment_bytes = (*map(int, numbers), 2**16)[:3]
    try:
        run(Path(folder), count, size, segment_bytes)
    except LogFailed as error:
        say(error.code)


if __name__ == "__main__":
    main()
