from __future__ import annotations

from typing import Any

import pytest

from signalhub.log.errors import LogFull
from signalhub.log.footer import decode_summary, footer_name
from signalhub.log.retention import expendable
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.log.survey import RESERVE_NAME
from signalhub.log.verify import verify
from tests.support.memory.log import (
    contents,
    do_upkeep,
    entry,
    fill_segments,
    open_log,
    sealed_log,
    used_bytes,
)

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
OLD = (99, 99, 99, 0)


def segments(*ages_h: int, sealed: int | None = None) -> list[SegmentInfo]:
    """Segments of ten entries and a hundred bytes, the last of them active."""
    sealed = len(ages_h) - 1 if sealed is None else sealed
    return [
        SegmentInfo(
            name=segment_name(10 * number),
            base=10 * number,
            end=10 * number + 10,
            bytes=100,
            epoch=1,
            created_ms=0,
            is_sealed=number < sealed,
            max_ms=NOW_MS - age_h * HOUR_MS,
        )
        for number, age_h in enumerate(ages_h)
    ]


def decide(some: list[SegmentInfo], **changes: Any) -> list[SegmentInfo]:
    values: dict[str, Any] = {"age_s": 48 * 3600, "bytes_max": 10_000, "floor": 1_000}
    return expendable(some, NOW_MS, **(values | {"saved": 1_000, "keep_unsettled": True} | changes))


@pytest.mark.parametrize(
    ("some", "changes", "count"),
    [
        pytest.param(segments(47, 20, 1, 0), {}, 0, id="young and few"),
        pytest.param(segments(72, 49, 47, 0), {}, 2, id="old"),
        pytest.param(segments(3, 2, 1, 0), {"bytes_max": 400}, 0, id="just few enough"),
        pytest.param(segments(3, 2, 1, 0), {"bytes_max": 399}, 1, id="one too many"),
        pytest.param(segments(3, 2, 1, 0), {"bytes_max": 200}, 2, id="two too many"),
        pytest.param(segments(99, 99), {"bytes_max": 1}, 1, id="never the active one"),
        pytest.param(segments(*OLD, sealed=1), {}, 1, id="nothing after an unsealed one"),
        pytest.param(segments(72, 1, 72, 0), {}, 1, id="a clock set back makes no hole"),
    ],
)
def test_the_oldest_go_by_age_and_size(
    some: list[SegmentInfo], changes: dict[str, Any], count: int
) -> None:
    assert decide(some, **changes) == some[:count]


@pytest.mark.parametrize(("floor", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (99, 3)])
def test_nothing_goes_that_is_yet_to_be_settled(floor: int, count: int) -> None:
    some = segments(*OLD)

    assert decide(some, floor=floor) == some[:count]


@pytest.mark.parametrize(("saved", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (40, 3)])
def test_nothing_goes_before_it_is_in_the_snapshot(saved: int, count: int) -> None:
    some = segments(*OLD)

    for forced in ({}, {"floor": 0, "keep_unsettled": False}):
        assert decide(some, saved=saved, **forced) == some[:count]


@pytest.mark.parametrize("floor", [0, 7, 29, 30, 40])
def test_the_settings_may_allow_the_deletion_of_unsettled_messages(floor: int) -> None:
    some = segments(*OLD)

    assert decide(some, floor=floor, keep_unsettled=False) == some[:-1]


def test_a_deleted_segment_leaves_its_footer_and_the_log_goes_on() -> None:
    disk, log = sealed_log(4)
    one, two, three, _ = log.segments
    before = contents(log)

    log.remove([one, two])
    log.remove([one, two])

    assert (log.first, log.segments[0]) == (three.base, three)
    assert not {one.name, two.name} & set(disk.names())
    summary = decode_summary(disk.files()[footer_name(one.base)])
    assert (summary.base, summary.end, summary.chain) == (one.base, one.end, one.chain)
    assert contents(log) == before[three.base :]
    log.remove([one, two, three])
    log.close()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 3)
    do_upkeep(log)
    report = verify(disk)
    assert (log.state, report.problems, report.footers) == ("open", (), 3)


def test_deleting_segments_makes_room_on_a_full_disk() -> None:
    disk, log = sealed_log(4)
    disk.capacity_bytes = used_bytes(disk)
    with pytest.raises(LogFull):
        log.append([entry(99, body=bytes(1_500))])

    log.remove(log.segments[:2])
    log.append([entry(99, body=bytes(1_500))])

    assert log.state == "open"
    assert RESERVE_NAME in disk.names()
