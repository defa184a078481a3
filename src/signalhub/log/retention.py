"""Retention: which segments are deleted, and when.

A segment is deleted when it is too old or the log is too large, oldest first. It stays while the
snapshot does not cover it, and while a subscription has unsettled messages in it, unless the
settings say otherwise. Its footer is kept permanently, as proof of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from signalhub.log.disk import Disk
from signalhub.log.footer import encode_summary, footer_name, read_summary
from signalhub.log.segment import SegmentInfo, temporary_name


def expendable(
    segments: Sequence[SegmentInfo],
    now_ms: int,
    *,
    age_s: float,
    bytes_max: int,
    floor: int,
    saved: int,
    keep_unsettled: bool,
) -> list[SegmentInfo]:
    """The oldest sealed segments that exceed a limit and may be deleted.

    Below `floor` every subscription has settled everything; below `saved` everything is in the
    snapshot.
    """
    expired_ms = now_ms - age_s * 1000
    excess = sum(info.bytes for info in segments) - bytes_max
    chosen: list[SegmentInfo] = []
    for info in segments[:-1]:
        is_unwanted = info.max_ms < expired_ms or excess > 0
        is_unsettled = info.end > floor and keep_unsettled
        if not info.is_sealed or not is_unwanted or is_unsettled or info.end > saved:
            break
        chosen.append(info)
        excess -= info.bytes
    return chosen


def unwanted(
    segments: Sequence[SegmentInfo], now_ms: int, *, age_s: float, bytes_max: int
) -> list[SegmentInfo]:
    """The oldest sealed segments that exceed a limit, whether they may be deleted or not."""
    everything = segments[-1].end if segments else 0
    return expendable(
        segments,
        now_ms,
        age_s=age_s,
        bytes_max=bytes_max,
        floor=everything,
        saved=everything,
        keep_unsettled=False,
    )


def keep_footer(disk: Disk, info: SegmentInfo) -> None:
    """Save the footer of a sealed segment before its deletion; raises `Unreadable`."""
    file = disk.open(info.name, read_only=True)
    try:
        summary = read_summary(file)
    finally:
        file.close()
    temporary = temporary_name(info.base)
    disk.remove(temporary)
    copy = disk.create(temporary)
    try:
        copy.write(encode_summary(summary), 0)
        copy.sync()
    finally:
        copy.close()
    disk.rename(temporary, footer_name(info.base))
    disk.sync()
