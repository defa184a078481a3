"""A log whose end is gone although it was published."""

from __future__ import annotations

from pathlib import Path

from signalhub.log.disk import SystemDisk
from signalhub.log.segment import BATCHES_BEGIN, base_of, scan_batches


def cut_to(folder: Path, end: int) -> None:
    """The disk has lost all entries from an offset on, although it had confirmed them."""
    disk = SystemDisk(folder / "log")
    name = max(one for one in disk.names() if base_of(one) is not None)
    file = disk.open(name)
    position = BATCHES_BEGIN
    for located in scan_batches(file, BATCHES_BEGIN, file.size()):
        if located.batch.end > end:
            break
        position = located.end
    file.truncate(position)
    file.close()
