"""Where landing continues: after what the table contains, if the log still has it.

Only the table decides. If the log has lost entries that the table lacks, landing refuses to
continue, because an unreported gap would make every later proof worthless.
"""

from __future__ import annotations

from signalhub.log.disk import Disk
from signalhub.log.footer import decode_summary, footer_base
from signalhub.log.record import Unreadable
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.source.plan import LogPosition, Segments
from signalhub.pipeline.tables.tables import ENTRIES
from signalhub.wire.errors import SignalHubError


class EntriesMissing(SignalHubError):
    """The log no longer contains what the lake needs next."""

    code = "entries_missing"

    def __init__(self, epoch: int, first: int, last: int) -> None:
        super().__init__(
            f"entries {first} to {last} of epoch {epoch} are neither in the lake nor in the log;"
            " restore the lake or the log from a backup, or use --accept-gap to continue without"
            " them, which every audit will report"
        )
        self.first = first
        self.last = last


class LogBehindLake(SignalHubError):
    """The lake contains entries that the log does not: the log is an older copy."""

    code = "log_behind_lake"

    def __init__(self, epoch: int, landed: int, head: int) -> None:
        super().__init__(
            f"the lake has entries up to {landed} of epoch {epoch}, but the log ends at"
            f" {head - 1}: the log is older than its lake, and new entries would never land;"
            " restore the newer log, or move the lake away to start a new one"
        )


def resume(disk: Disk, lake: Lake, shard: int) -> LogPosition:
    """Find the next entry to land; raises `EntriesMissing`, `LogBehindLake`, `LakeUnreachable`."""
    segments = Segments(disk)
    begins = _first_offsets(disk, segments)
    if not begins:
        return LogPosition(0, 0)
    for epoch in sorted(begins, reverse=True):
        committed = lake.committed(ENTRIES.name, shard, epoch)
        if committed is not None:
            wanted = LogPosition(epoch, committed + 1)
            break
    else:
        oldest = min(begins)
        wanted = LogPosition(oldest, begins[oldest])
    head = segments.published()
    if head is None or wanted > head:
        head = segments.valid()
    if wanted.epoch == head.epoch and wanted.offset > head.offset:
        raise LogBehindLake(wanted.epoch, wanted.offset - 1, head.offset)
    first, needed = segments.first, _continued(wanted, begins)
    if needed.epoch <= first.epoch and needed.offset < first.offset:
        raise EntriesMissing(needed.epoch, needed.offset, first.offset - 1)
    return wanted


def _continued(position: LogPosition, begins: dict[int, int]) -> LogPosition:
    """Return the position, or the start of a later epoch if everything before that has landed.

    A later epoch may start below the position, because the log has lost entries.
    """
    for epoch, begin in sorted(begins.items()):
        if epoch > position.epoch:
            if begin > position.offset:
                break
            position = LogPosition(epoch, begin)
    return position


def epochs(disk: Disk) -> list[int]:
    """Return every known epoch of the log, the oldest first."""
    return sorted(_first_offsets(disk, Segments(disk)))


def _first_offsets(disk: Disk, segments: Segments) -> dict[int, int]:
    """Return the first offset of each epoch, including segments with only a footer left."""
    found = segments.epochs
    for name in disk.names():
        if footer_base(name) is None:
            continue
        file = disk.open(name, read_only=True)
        try:
            summary = decode_summary(file.read(file.size(), 0))
        except Unreadable:
            # The audit reports the entries it stood for as missing.
            continue
        finally:
            file.close()
        found[summary.epoch] = min(found.get(summary.epoch, summary.base), summary.base)
    return found
