from __future__ import annotations

import pytest

from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.head import Head, encode_head, read_head
from signalhub.log.log import Log
from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import LogRecovery, recover
from signalhub.log.segment import BATCHES_BEGIN, Header, encode_header, segment_name
from signalhub.log.survey import RESERVE_NAME
from signalhub.testing import FaultyDisk
from tests.support.memory.log import contents, do_upkeep, entry, fill, fill_segments, open_log

FIRST = segment_name(0)


def a_log(entries: int = 5) -> tuple[dict[str, bytes], Log]:
    """The files of a log that was killed, and what it knew."""
    disk = FaultyDisk()
    log = open_log(disk)
    fill(log, entries)
    return disk.files(), log


def recovered(files: dict[str, bytes]) -> tuple[FaultyDisk, LogRecovery]:
    disk = FaultyDisk(files)
    return disk, recover(disk, repair=True)


def test_an_empty_folder_is_a_log_yet_to_be_made() -> None:
    disk = FaultyDisk()

    found = recover(disk, repair=True)

    assert (found.epoch, found.first, found.head, found.segments) == (0, 0, 0, ())
    assert disk.names() == []


def test_a_log_is_found_as_it_was_left() -> None:
    files, log = a_log()

    _, found = recovered(files)

    assert (found.epoch, found.first, found.head) == (log.epoch, 0, 5)
    assert found.published == 5
    assert found.segments == log.segments
    assert (found.torn, found.damage, found.foreign) == (None, None, ())
    assert not found.epoch_changed


def test_looking_without_repair_changes_nothing() -> None:
    files, _ = a_log()
    files |= {FIRST: files[FIRST] + b"torn", "next.tmp": b"", "mine.txt": b""}
    disk = FaultyDisk(files)

    found = recover(disk, repair=False)

    assert found.torn is not None
    assert found.torn.saved_as is None
    assert found.foreign == ("mine.txt",)
    assert disk.operations == 0


def test_a_torn_tail_is_saved_aside_and_cut() -> None:
    files, log = a_log()
    size = log.segments[0].bytes

    disk, found = recovered(files | {FIRST: files[FIRST][:size] + b"torn" + bytes(50)})

    assert found.torn is not None
    saved = f"00000000000000000000.{size}.torn"
    assert (found.torn.segment, found.torn.position, found.torn.bytes) == (FIRST, size, 4)
    assert found.torn.saved_as == saved
    assert disk.files()[saved] == b"torn"
    assert disk.files()[FIRST] == files[FIRST][:size]
    assert (found.head, found.epoch_changed) == (5, False)


def test_two_tears_at_the_same_place_are_both_kept() -> None:
    files, log = a_log()
    size = log.segments[0].bytes
    disk, _ = recovered(files | {FIRST: files[FIRST][:size] + b"one"})

    disk, found = recovered(disk.files() | {FIRST: files[FIRST][:size] + b"two"})

    assert found.torn is not None
    assert found.torn.saved_as == f"00000000000000000000.{size}.1.torn"
    assert disk.files()[f"00000000000000000000.{size}.torn"] == b"one"
    assert disk.files()[found.torn.saved_as] == b"two"


def test_an_interrupted_saving_is_gone_on_with() -> None:
    files, log = a_log()
    size = log.segments[0].bytes
    saved = f"00000000000000000000.{size}.torn"

    disk, found = recovered(files | {FIRST: files[FIRST][:size] + b"torn", saved: b"to"})

    assert found.torn is not None
    assert found.torn.saved_as == saved
    assert disk.files()[saved] == b"torn"


def test_prepared_space_is_not_torn() -> None:
    files, _ = a_log()

    disk, found = recovered(files | {FIRST: files[FIRST] + bytes(5_000)})

    assert (found.torn, found.head) == (None, 5)
    assert len(disk.files()[FIRST]) == len(files[FIRST]) + 5_000


def test_losing_what_was_shown_begins_a_new_epoch() -> None:
    files, log = a_log()
    cut = files[FIRST][: log.segments[0].bytes - 1]

    disk, found = recovered(files | {FIRST: cut})

    assert found.epoch_changed
    assert (found.epoch, found.head) == (log.epoch + 1, 4)
    assert (found.lost_from, found.lost_to, found.published) == (4, 5, 5)
    assert segment_name(4) in disk.names()
    assert contents(open_log(disk)) == contents(log)[:4]


def test_a_new_epoch_is_begun_once() -> None:
    files, log = a_log()
    disk, _ = recovered(files | {FIRST: files[FIRST][: log.segments[0].bytes - 1]})

    again = recover(disk, repair=True)

    assert not again.epoch_changed
    assert (again.epoch, again.head, again.published) == (log.epoch + 1, 4, 4)


def test_a_log_that_lost_everything_begins_again_in_a_new_epoch() -> None:
    files, log = a_log()

    disk, found = recovered(files | {FIRST: files[FIRST][:BATCHES_BEGIN]})

    assert (found.head, found.lost_to, found.epoch) == (0, 5, log.epoch + 1)
    assert [info.name for info in found.segments] == [FIRST]
    assert open_log(disk).epoch == log.epoch + 1


def test_a_bad_batch_before_good_ones_is_damage_and_no_torn_tail() -> None:
    """Even without the head file: a later batch says what was durable when it was written."""
    files, _ = a_log()
    del files["head"]
    content = bytearray(files[FIRST])
    content[BATCHES_BEGIN + 60] ^= 1

    disk, found = recovered(files | {FIRST: bytes(content)})

    assert found.damage is not None
    assert found.damage.segment == FIRST
    assert disk.files() == files | {FIRST: bytes(content)}


def test_a_head_file_of_an_older_epoch_says_nothing() -> None:
    files, log = a_log()

    _, found = recovered(files | {"head": encode_head(Head(log.epoch - 1, 99, 99))})

    assert not found.epoch_changed
    assert found.head == 5


def test_what_is_readable_but_not_known_to_be_synced_is_written_again() -> None:
    files, log = a_log()
    head = encode_head(Head(log.epoch, 3, 3))
    last = encode_batch(
        [encode_entry(entry(6), bytes(16))], first=5, epoch=log.epoch, durable=5, time_ms=0
    )
    disk = FaultyDisk(files | {"head": head, FIRST: files[FIRST] + last})

    recover(disk, repair=True)

    writes = [step for step in disk.trace if step.operation == "write"]
    assert [(step.name, step.position, step.size) for step in writes] == [
        (FIRST, len(files[FIRST]), len(last))
    ]
    assert disk.files()[FIRST] == files[FIRST] + last


def test_leftovers_of_an_unborn_segment_are_removed() -> None:
    files, _ = a_log()
    leftovers = {"next.tmp": bytes(100), "00000000000000000005.tmp": b"half"}

    disk, found = recovered(files | leftovers)

    assert not leftovers.keys() & set(disk.names())
    assert found.foreign == ()


@pytest.mark.parametrize("content", [b"", bytes(10), bytes(5_000), b"SHubSegm" + bytes(10)])
def test_a_segment_that_never_got_its_header_is_born_again(content: bytes) -> None:
    files, log = a_log()

    disk, found = recovered(files | {segment_name(5): content})
    log = open_log(disk)
    fill(log, 1, first_seq=6)

    assert (found.damage, found.head, found.epoch_changed) == (None, 5, False)
    assert log.segments[-1].base == 5
    assert log.segments[-1].epoch == log.epoch == found.epoch
    assert len(contents(log)) == 6


def test_a_foreign_file_with_the_name_of_a_segment_is_damage() -> None:
    files, _ = a_log()

    disk, found = recovered(files | {segment_name(5): b"a letter to my mother"})

    assert found.damage is not None
    assert found.damage.segment == segment_name(5)
    assert disk.files()[segment_name(5)] == b"a letter to my mother"


def test_a_hole_between_segments_is_damage() -> None:
    files, log = a_log()
    following = encode_header(Header(log.epoch, 7, 0))

    _, found = recovered(files | {segment_name(7): following})

    assert found.damage is not None
    assert found.damage.segment == segment_name(5)
    assert "missing" in found.damage.reason


def test_overlapping_segments_are_damage() -> None:
    files, log = a_log()
    following = encode_header(Header(log.epoch, 3, 0))
    two = [encode_entry(entry(seq), bytes(16)) for seq in (6, 7)]
    batch = encode_batch(two, first=5, epoch=log.epoch, durable=5, time_ms=0)

    _, found = recovered(files | {FIRST: files[FIRST] + batch, segment_name(6): following})

    assert found.damage is not None
    assert found.damage.segment == segment_name(6)


def test_an_epoch_that_goes_backwards_is_damage() -> None:
    files, log = a_log()

    _, found = recovered(files | {segment_name(5): encode_header(Header(log.epoch - 1, 5, 0))})

    assert found.damage is not None
    assert "epoch" in found.damage.reason


def test_the_first_of_several_faults_is_reported() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 5)
    do_upkeep(log)
    names = [info.name for info in log.segments]
    files = {name: data for name, data in disk.files().items() if name not in (names[1], names[3])}

    _, found = recovered(files)

    assert found.damage is not None
    assert found.damage.segment == names[1]


def test_a_full_disk_without_a_reserve_is_reported_as_such() -> None:
    files, log = a_log()
    files = {name: data for name, data in files.items() if name != RESERVE_NAME}
    files[FIRST] = files[FIRST][: log.segments[0].bytes] + b"torn"
    disk = FaultyDisk(files, capacity_bytes=sum(map(len, files.values())))

    with pytest.raises(LogFull):
        recover(disk, repair=True)

    assert disk.files()[FIRST] == files[FIRST]


def test_a_disk_that_cannot_be_read_is_reported_as_failed() -> None:
    files, _ = a_log()
    disk = FaultyDisk(files)
    disk.fail("read")

    with pytest.raises(LogFailed):
        recover(disk, repair=True)


def test_the_head_file_is_believed_only_if_it_is_whole() -> None:
    files, log = a_log()
    head = files["head"]
    assert read_head(FaultyDisk({"head": head})) == Head(log.epoch, 5, 5)

    for bad in (b"", head[:-1], head[1:] + b"\0", bytes(32)):
        assert read_head(FaultyDisk({"head": bad})) is None
    assert read_head(FaultyDisk()) is None
