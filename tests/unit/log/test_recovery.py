from __future__ import annotations

import errno

import pytest

from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.head import Head, encode_head
from signalhub.log.log import Log
from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import LogRecovery, recover
from signalhub.log.segment import BATCHES_BEGIN, Header, encode_header, segment_name
from signalhub.log.survey import RESERVE_NAME
from signalhub.settings import model
from signalhub.testing import FakeClock, FaultyDisk
from tests.support.memory.log import contents, entry, fill, open_log, sealed_log, used_bytes

FIRST = segment_name(0)
COUNT = 5


class Scene:
    """The files of a log of five entries that was killed, and what it knew."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.log: Log = open_log(self.disk)
        fill(self.log, COUNT)
        self.epoch = self.log.epoch
        self.size = self.log.segments[0].bytes
        self.torn = f"00000000000000000000.{self.size}.torn"

    def recover(self, changes: dict[str, bytes]) -> LogRecovery:
        """Repair a folder in which some files are different."""
        self.disk = FaultyDisk(self.disk.files() | changes)
        return recover(self.disk, repair=True)

    def with_tail(self, tail: bytes) -> dict[str, bytes]:
        """The segment up to its last batch, and something after it."""
        return {FIRST: self.disk.files()[FIRST][: self.size] + tail}

    def batch(self, first: int, *seqs: int) -> bytes:
        entries = [encode_entry(entry(seq), bytes(16)) for seq in seqs]
        return encode_batch(entries, first=first, epoch=self.epoch, durable=first, time_ms=0)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_empty_folder_is_a_new_log() -> None:
    disk = FaultyDisk()

    found = recover(disk, repair=True)

    assert (found.epoch, found.first, found.head, found.segments) == (0, 0, 0, ())
    assert disk.names() == []


def test_a_log_is_found_as_it_was_left(scene: Scene) -> None:
    found = scene.recover({})

    assert (found.epoch, found.first, found.head) == (scene.epoch, 0, COUNT)
    assert (found.published, found.segments) == (COUNT, scene.log.segments)
    assert (found.torn, found.damage, found.foreign) == (None, None, ())
    assert not found.epoch_changed


def test_looking_without_repair_changes_nothing(scene: Scene) -> None:
    leftovers = {"next.tmp": b"", "mine.txt": b""}
    disk = FaultyDisk(scene.disk.files() | scene.with_tail(b"torn") | leftovers)

    found = recover(disk, repair=False)

    assert found.torn is not None
    assert found.torn.saved_as is None
    assert found.foreign == ("mine.txt",)
    assert disk.operations == 0


def test_torn_tails_are_saved_aside_and_cut(scene: Scene) -> None:
    whole = scene.disk.files()[FIRST]
    # The first attempt to save it was interrupted.
    found = scene.recover(scene.with_tail(b"torn" + bytes(50)) | {scene.torn: b"to"})

    assert found.torn is not None
    assert (found.torn.segment, found.torn.position, found.torn.bytes) == (FIRST, scene.size, 4)
    assert found.torn.saved_as == scene.torn
    assert scene.disk.files()[scene.torn] == b"torn"
    assert scene.disk.files()[FIRST] == whole[: scene.size]
    assert (found.head, found.epoch_changed) == (COUNT, False)

    again = scene.recover(scene.with_tail(b"more")).torn

    assert again is not None
    assert again.saved_as == f"00000000000000000000.{scene.size}.1.torn"
    assert scene.disk.files()[scene.torn] == b"torn"
    assert scene.disk.files()[again.saved_as] == b"more"


def test_prepared_space_is_not_torn(scene: Scene) -> None:
    found = scene.recover(scene.with_tail(bytes(5_000)))

    assert (found.torn, found.head) == (None, COUNT)
    assert len(scene.disk.files()[FIRST]) == scene.size + 5_000


@pytest.mark.parametrize("lost", [1, COUNT])
def test_losing_what_was_shown_begins_one_new_epoch(scene: Scene, lost: int) -> None:
    content = scene.disk.files()[FIRST]
    before, left = contents(scene.log), COUNT - lost

    found = scene.recover({FIRST: content[: scene.size - 1 if left else BATCHES_BEGIN]})

    assert found.epoch_changed
    assert (found.epoch, found.head) == (scene.epoch + 1, left)
    assert (found.lost_from, found.lost_to, found.published) == (left, COUNT, COUNT)
    assert segment_name(left) in scene.disk.names()
    again = scene.recover({})
    assert not again.epoch_changed
    assert (again.epoch, again.head, again.published) == (scene.epoch + 1, left, left)
    log = open_log(scene.disk)
    assert (log.epoch, contents(log)) == (scene.epoch + 1, before[:left])


def test_what_is_known_from_elsewhere_tells_of_a_lost_end_without_the_head_file(
    scene: Scene,
) -> None:
    scene.disk.remove("head")
    known = Head(scene.epoch, COUNT + 2, COUNT + 2)

    found = recover(scene.disk, repair=True, known=known)

    assert (found.lost_from, found.lost_to, found.latest_epoch) == (COUNT, COUNT + 2, scene.epoch)
    assert (found.epoch, found.epoch_changed) == (scene.epoch + 1, True)


def test_an_older_copy_with_more_entries_than_the_lost_epoch_is_known_as_such(
    scene: Scene,
) -> None:
    known = Head(scene.epoch + 7, COUNT - 2, COUNT - 2)

    found = recover(scene.disk, repair=True, known=known)

    lost = f"epoch {scene.epoch + 7} is lost, with its entries up to {COUNT - 3}"
    assert (found.loss, found.epoch_changed) == (lost, True)
    assert (found.head, found.segments[-1].epoch) == (COUNT, scene.epoch + 8)
    assert recover(scene.disk, repair=False, known=known).loss == ""


def test_a_new_log_begins_after_the_latest_epoch_even_if_the_clock_is_behind() -> None:
    disk = FaultyDisk()

    found = recover(disk, repair=True, known=Head(2**31, 0, 0))
    log = Log(disk, model.LogSettings(), found, clock=FakeClock())

    assert (found.epoch_changed, log.epoch) == (False, 2**31 + 1)


@pytest.mark.parametrize("content", [None, b"", bytes(32)])
def test_a_head_file_that_cannot_be_read_is_named_until_the_log_is_opened(
    scene: Scene, content: bytes | None
) -> None:
    files = {name: data for name, data in scene.disk.files().items() if name != "head"}
    disk = FaultyDisk(files if content is None else files | {"head": content})

    found = recover(disk, repair=True)
    open_log(disk)

    assert (found.damage, found.head, found.epoch_changed) == (None, COUNT, False)
    assert found.unknown_end.startswith("head: it is ")
    assert recover(disk, repair=False).unknown_end == ""


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_head_file_that_is_lost_in_use_is_there_again_with_the_next_commit(
    scene: Scene, is_removed: bool
) -> None:
    if is_removed:
        scene.disk.remove("head")
    else:
        scene.disk.open("head").write(b"x" * 20, 0)
    assert recover(scene.disk, repair=False).unknown_end

    fill(scene.log, 1, first_seq=COUNT + 1)

    assert recover(scene.disk, repair=False).unknown_end == ""


def test_a_head_file_that_cannot_be_made_again_is_made_with_a_later_commit(scene: Scene) -> None:
    scene.disk.remove("head")
    scene.disk.fail("create", error=errno.EMFILE, name="head")

    fill(scene.log, 2, first_seq=COUNT + 1)

    assert (recover(scene.disk, repair=False).unknown_end, scene.log.state) == ("", "open")


def test_a_log_without_entries_needs_no_head_file() -> None:
    disk = FaultyDisk()
    open_log(disk)
    disk.remove("head")

    assert recover(disk, repair=False).unknown_end == ""


def test_a_head_file_of_an_older_epoch_says_nothing(scene: Scene) -> None:
    found = scene.recover({"head": encode_head(Head(scene.epoch - 1, 99, 99))})

    assert (found.epoch_changed, found.head) == (False, COUNT)


def test_what_is_readable_but_not_known_to_be_synced_is_written_again(scene: Scene) -> None:
    last = scene.batch(COUNT, 6)
    changed = scene.with_tail(last) | {"head": encode_head(Head(scene.epoch, 3, 3))}

    scene.recover(changed)

    writes = [step for step in scene.disk.trace if step.operation == "write"]
    assert [(step.name, step.position, step.size) for step in writes] == [
        (FIRST, scene.size, len(last))
    ]
    assert scene.disk.files()[FIRST] == changed[FIRST]


def test_leftovers_of_an_unborn_segment_are_removed(scene: Scene) -> None:
    leftovers = {"next.tmp": bytes(100), "00000000000000000005.tmp": b"half"}

    assert scene.recover(leftovers).foreign == ()
    assert not leftovers.keys() & set(scene.disk.names())


@pytest.mark.parametrize("content", [b"", bytes(10), bytes(5_000), b"SHubSegm" + bytes(10)])
def test_a_segment_that_never_got_its_header_is_created_again(scene: Scene, content: bytes) -> None:
    found = scene.recover({segment_name(COUNT): content})
    log = open_log(scene.disk)
    fill(log, 1, first_seq=6)

    assert (found.damage, found.head, found.epoch_changed) == (None, COUNT, False)
    assert log.segments[-1].base == COUNT
    assert log.segments[-1].epoch == log.epoch == found.epoch
    assert len(contents(log)) == COUNT + 1


def test_what_no_crash_explains_is_damage_and_left_alone(scene: Scene) -> None:
    header = {base: Header(scene.epoch, base, 0) for base in (3, 6, 7)}
    rotten = bytearray(scene.disk.files()[FIRST])
    rotten[BATCHES_BEGIN + 60] ^= 1
    for changes, damaged, reason in (
        # Even without the head file: a later batch says what was durable when it was written.
        ({FIRST: bytes(rotten), "head": b""}, 0, "were on disk"),
        ({segment_name(5): b"a letter to my mother"}, 5, "truncated"),
        ({segment_name(7): encode_header(header[7])}, 5, "missing"),
        (
            scene.with_tail(scene.batch(5, 6, 7)) | {segment_name(6): encode_header(header[6])},
            *(6, "should start at 7"),
        ),
        ({segment_name(5): encode_header(Header(scene.epoch - 1, 5, 0))}, 5, "epoch"),
    ):
        before = scene.disk.files() | changes
        disk = FaultyDisk(before)

        found = recover(disk, repair=True).damage

        assert found is not None
        assert (found.segment, disk.files()) == (segment_name(damaged), before)
        assert reason in found.reason


def test_the_first_of_several_faults_is_reported() -> None:
    disk, log = sealed_log(5)
    names = [info.name for info in log.segments]
    disk.remove(names[3])
    disk.remove(names[1])

    found = recover(disk, repair=True).damage

    assert found is not None
    assert found.segment == names[1]


def test_a_full_disk_without_a_reserve_is_reported_as_such(scene: Scene) -> None:
    scene.disk.remove(RESERVE_NAME)
    disk = FaultyDisk(scene.disk.files() | scene.with_tail(b"torn"))
    disk.capacity_bytes = used_bytes(disk)
    before = disk.files()[FIRST]

    with pytest.raises(LogFull):
        recover(disk, repair=True)

    assert disk.files()[FIRST] == before
    disk.fail("read")
    with pytest.raises(LogFailed):
        recover(disk, repair=True)
