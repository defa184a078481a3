from __future__ import annotations

from typing import Any

import pytest

from signalhub.log.errors import LogFull
from signalhub.log.footer import decode_summary, footer_name
from signalhub.log.retention import Expendable, expendable
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.log.survey import RESERVE_NAME
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from signalhub.testing.disk import PowerCut
from tests.support.memory.log import contents, do_upkeep, entry, fill_segments, open_log

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS


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


def decide(some: list[SegmentInfo], **changes: Any) -> Expendable:
    values: dict[str, Any] = {
        "age_s": 48 * 3600,
        "bytes_max": 10_000,
        "floor": 1_000,
        "archived": None,
    }
    return expendable(some, NOW_MS, **(values | changes))


def test_young_and_few_segments_stay() -> None:
    assert decide(segments(47, 20, 1, 0)) == Expendable((), 0, 0)


def test_old_segments_go() -> None:
    some = segments(72, 49, 47, 0)

    assert decide(some).segments == tuple(some[:2])


def test_the_oldest_go_when_there_is_too_much() -> None:
    some = segments(3, 2, 1, 0)

    assert decide(some, bytes_max=399).segments == tuple(some[:1])
    assert decide(some, bytes_max=200).segments == tuple(some[:2])
    assert decide(some, bytes_max=400).segments == ()


def test_the_active_segment_never_goes() -> None:
    some = segments(99, 99)

    assert decide(some, bytes_max=1).segments == tuple(some[:1])


def test_what_is_not_sealed_does_not_go_nor_anything_after_it() -> None:
    some = segments(99, 99, 99, 0, sealed=1)

    assert decide(some).segments == tuple(some[:1])


def test_a_young_segment_keeps_the_older_ones_after_it() -> None:
    """A clock that was set back makes no holes."""
    some = segments(72, 1, 72, 0)

    assert decide(some).segments == tuple(some[:1])


@pytest.mark.parametrize(("floor", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (99, 3)])
def test_nothing_somebody_has_yet_to_settle_goes(floor: int, count: int) -> None:
    some = segments(99, 99, 99, 0)

    assert decide(some, floor=floor) == Expendable(tuple(some[:count]), 10 * count, 10 * count)


@pytest.mark.parametrize(("archived", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (40, 3)])
def test_nothing_goes_before_it_is_archived(archived: int, count: int) -> None:
    some = segments(99, 99, 99, 0)

    assert decide(some, archived=archived).segments == tuple(some[:count])
    forced = decide(some, archived=archived, floor=0, keep_unsettled=False)
    assert forced.segments == tuple(some[:count])


@pytest.mark.parametrize(
    ("floor", "lost"), [(0, (0, 30)), (7, (7, 30)), (29, (29, 30)), (30, (30, 30)), (40, (30, 30))]
)
def test_policy_may_override_the_unsettled_and_counts_the_loss(
    floor: int, lost: tuple[int, int]
) -> None:
    some = segments(99, 99, 99, 0)

    found = decide(some, floor=floor, keep_unsettled=False)

    assert found.segments == tuple(some[:3])
    assert (found.lost_from, found.lost_to) == lost


def test_a_loss_does_not_count_what_went_earlier() -> None:
    some = segments(99, 99, 99, 0)[1:]

    found = decide(some, floor=3, keep_unsettled=False)

    assert (found.lost_from, found.lost_to) == (10, 30)


def test_a_deleted_segment_leaves_its_footer() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    entries = fill_segments(log, 4)
    do_upkeep(log)
    one, two, three, _ = log.segments

    log.remove([one, two])

    assert (log.first, log.segments[0]) == (three.base, three)
    assert not {one.name, two.name} & set(disk.names())
    summary = decode_summary(disk.files()[footer_name(one.base)])
    assert (summary.base, summary.end, summary.chain) == (one.base, one.end, one.chain)
    assert contents(log) == entries[three.base :]
    report = verify(disk)
    assert (report.problems, report.footers) == ((), 2)


def test_a_segment_that_is_gone_already_is_passed_over() -> None:
    log = open_log(FaultyDisk(), segment_bytes=2_000)
    fill_segments(log, 5)
    do_upkeep(log)
    segments = log.segments
    log.remove(segments[:2])

    log.remove(segments[:3])

    assert log.segments[0] == segments[3]


def test_a_log_goes_on_after_its_beginning_was_deleted() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 3)
    do_upkeep(log)
    log.remove(log.segments[:2])
    log.close()

    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 3)
    do_upkeep(log)

    assert log.state == "open"
    assert verify(disk).is_sound


def test_an_interrupted_deletion_is_survived_everywhere() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 4)
    do_upkeep(log)
    files = disk.files()
    for operation in range(1, 100):
        disk = FaultyDisk(files)
        log = open_log(disk, segment_bytes=2_000)
        disk.crash_at(operation)
        try:
            log.remove(log.segments[:1])
            break
        except PowerCut:
            pass
        for seed in range(10):
            after = disk.crash(seed)
            log = open_log(after, segment_bytes=2_000)
            assert log.state == "open"
            if log.first == 0:
                log.remove(log.segments[:1])
            assert verify(after).is_sound
    assert operation > 5


def test_a_full_disk_can_be_made_room_on() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 4)
    do_upkeep(log)
    disk.capacity_bytes = sum(map(len, disk.files().values()))
    with pytest.raises(LogFull):
        log.append([entry(99, body=bytes(1_500))])

    log.remove(log.segments[:2])
    log.append([entry(99, body=bytes(1_500))])

    assert log.state == "open"
    assert RESERVE_NAME in disk.names()
