"""Erasing puts another file in a segment's place while it is read in bulk: no row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.erasure import SegmentErasure
from signalhub.log.errors import LogDamaged
from signalhub.log.log import Log
from signalhub.pipeline.source.columns import read_columns
from signalhub.pipeline.source.plan import LogPosition, ReadPlan, Segments
from tests.support.memory.log import do_upkeep, drive, entry, flip_bit, open_log

COUNT = 90
CHOSEN = tuple((at, at) for at in range(0, 60, 7))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three entries to a batch, some segments, everything to be erased in sealed ones."""
    log = open_log(SystemDisk(tmp_path), segment_bytes=4_000, sync="os")
    for first in range(1, COUNT, 3):
        log.append([entry(first + number) for number in range(3)])
    log.sync()
    do_upkeep(log)
    assert log.segments[-1].base > CHOSEN[-1][1]
    return log


def planned(segments: Segments, log: Log, start: int = 0, **limits: int) -> ReadPlan:
    return segments.plan(LogPosition(log.epoch, start), LogPosition(log.epoch, log.head), **limits)


def offsets(disk: SystemDisk, plan: ReadPlan) -> list[int]:
    return [
        offset
        for one in plan.slices
        for batch in read_columns(disk, 0, one)
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_plan_made_before_is_read_after(log: Log, tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path, read_only=True)
    plan = planned(Segments(disk), log, slice_bytes=700)

    drive(log.erase([SegmentErasure(CHOSEN)]))

    assert offsets(disk, plan) == [*range(COUNT)]


def test_the_next_plan_goes_on_where_the_last_one_ended(log: Log, tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path, read_only=True)
    segments = Segments(disk)
    first = planned(segments, log, entries_max=12)
    assert first.end.offset == 12

    drive(log.erase([SegmentErasure(CHOSEN)]))
    second = planned(segments, log, 12)

    assert offsets(disk, first) + offsets(disk, second) == [*range(COUNT)]


def test_what_was_erased_has_no_body(log: Log, tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path, read_only=True)
    plan = planned(Segments(disk), log)

    drive(log.erase([SegmentErasure(CHOSEN)]))

    rows = [
        row
        for one in plan.slices
        for batch in read_columns(disk, 0, one)
        for row in batch.to_pylist()
    ]
    erased = {row["offset"] for row in rows if row["is_erased"]}
    assert erased == {first for first, _ in CHOSEN}
    assert all((row["body"] is None) == row["is_erased"] for row in rows)


def test_real_damage_is_still_damage(log: Log, tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path, read_only=True)
    plan = planned(Segments(disk), log)
    flip_bit(log.disk, log.segments[1].name, 300)

    with pytest.raises(LogDamaged):
        offsets(disk, plan)
    with pytest.raises(LogDamaged):
        planned(Segments(disk), log, log.segments[1].base)
