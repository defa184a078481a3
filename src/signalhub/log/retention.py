"""Retention: which segments are deleted, and when.

A segment is deleted when it is too old or the log is too large, oldest first. It stays while it is
not archived, and while a subscription has unsettled messages in it, unless the settings say
otherwise; then the loss is counted. Its footer is kept permanently, as proof of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from signalhub.log.disk import Disk
from signalhub.log.footer import encode_summary, footer_name, read_summary
from signalhub.log.segment import SegmentInfo


class Expendable(msgspec.Struct, frozen=True):
    """Segments to delete, oldest first, and what is lost with them."""

    segments: tuple[SegmentInfo, ...]
    lost_from: int
    lost_to: int
    """Entries `lost_from` to `lost_to - 1` are deleted unsettled, by policy; equal: none."""


def expendable(
    segments: Sequence[SegmentInfo],
    now_ms: int,
    *,
    age_s: float,
    bytes_max: int,
    floor: int,
    archived: int | None,
    keep_unsettled: bool = True,
) -> Expendable:
    """The oldest sealed segments that exceed a limit and may be deleted.

    Below `floor` every subscription has settled everything; below `archived` everything is in the
    lake, None without a lake.
    """
    expired_ms = now_ms - age_s * 1000
    excess = sum(info.bytes for info in segments) - bytes_max
    chosen: list[SegmentInfo] = []
    for info in segments[:-1]:
        is_unwanted = info.max_ms < expired_ms or excess > 0
        is_kept = info.end > floor and keep_unsettled
        is_archived = archived is None or info.end <= archived
        if not info.is_sealed or not is_unwanted or is_kept or not is_archived:
            break
        chosen.append(info)
        excess -= info.bytes
    end = chosen[-1].end if chosen else 0
    lost_from = max(floor, segments[0].base) if end > floor else end
    return Expendable(tuple(chosen), lost_from, end)


def keep_footer(disk: Disk, info: SegmentInfo) -> None:
    """Save the footer of a sealed segment before its deletion; raises `Unreadable`."""
    file = disk.open(info.name, read_only=True)
    try:
        summary = read_summary(file)
    finally:
        file.close()
    temporary = f"{info.base:020d}.tmp"
    disk.remove(temporary)
    copy = disk.create(temporary)
    try:
        copy.write(encode_summary(summary), 0)
        copy.sync()
    finally:
        copy.close()
    disk.rename(temporary, footer_name(info.base))
    disk.sync()
