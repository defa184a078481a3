"""The bad disk must be exactly as bad as it says, or the tests built on it prove nothing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.log.disk import Disk, File, SystemDisk
from signalhub.testing import FaultyDisk, PowerCut
from signalhub.testing.disk import SECTOR_BYTES, Operation

SEEDS = range(200)
OLD = b"o" * SECTOR_BYTES
NEW = b"n" * SECTOR_BYTES


def written(*sectors: bytes) -> tuple[FaultyDisk, File]:
    """A disk with one durable file."""
    disk = FaultyDisk({"f": b"".join(sectors)})
    return disk, disk.open("f")


def outcomes(disk: FaultyDisk, name: str = "f") -> set[bytes | None]:
    """Everything a power cut may make of one file."""
    return {disk.crash(seed).files().get(name) for seed in SEEDS}


def test_what_was_written_is_read_back_at_once() -> None:
    disk = FaultyDisk()
    file = disk.create("f")

    file.write(b"there", 6)
    file.write(b"hello", 0)

    assert file.read(100, 0) == b"hello\0there"
    assert file.read(2, 6) == b"th"
    assert file.size() == 11


def test_synced_content_and_synced_names_survive_every_power_cut() -> None:
    disk = FaultyDisk()
    file = disk.create("f")
    file.write(NEW * 3, 0)
    file.sync()
    disk.sync()

    assert outcomes(disk) == {NEW * 3}


def test_unsynced_sectors_survive_in_any_combination() -> None:
    disk, file = written(OLD, OLD, OLD)

    file.write(NEW * 3, 0)

    assert outcomes(disk) == {a + b + c for a in (OLD, NEW) for b in (OLD, NEW) for c in (OLD, NEW)}


def test_a_sector_may_survive_as_any_of_its_versions_but_is_never_torn() -> None:
    disk, file = written(OLD)

    file.write(b"1" * 100, 0)
    file.write(b"2" * 100, 50)

    first = b"1" * 100 + OLD[100:]
    second = b"1" * 50 + b"2" * 100 + OLD[150:]
    assert outcomes(disk) == {OLD, first, second}


def test_a_later_write_may_survive_an_earlier_one() -> None:
    disk, file = written(OLD, OLD)

    file.write(b"1" * SECTOR_BYTES, 0)
    file.write(b"2" * SECTOR_BYTES, SECTOR_BYTES)

    assert OLD + b"2" * SECTOR_BYTES in outcomes(disk)


def test_an_unsynced_extension_may_leave_the_old_size_or_zeros() -> None:
    disk, file = written(OLD)

    file.write(NEW, SECTOR_BYTES)

    assert outcomes(disk) == {OLD, OLD + bytes(SECTOR_BYTES), OLD + NEW}


def test_an_unsynced_truncation_happens_as_a_whole_or_not_at_all() -> None:
    disk, file = written(OLD, OLD)

    file.truncate(10)

    assert outcomes(disk) == {OLD + OLD, OLD[:10]}


def test_what_a_surviving_truncation_removed_never_comes_back() -> None:
    disk, file = written(OLD, OLD)

    file.truncate(0)
    file.write(NEW, SECTOR_BYTES)

    grown = {one for one in outcomes(disk) if one and not one.startswith(OLD)}
    assert grown <= {bytes(2 * SECTOR_BYTES), bytes(SECTOR_BYTES) + NEW}
    assert grown


def test_a_sync_covers_truncations_too() -> None:
    disk, file = written(OLD, OLD)
    file.truncate(10)

    file.sync()

    assert outcomes(disk) == {OLD[:10]}


def test_a_created_file_may_be_missing_until_the_folder_is_synced() -> None:
    disk = FaultyDisk()
    file = disk.create("f")
    file.write(NEW, 0)
    file.sync()

    assert outcomes(disk) == {None, NEW}
    disk.sync()
    assert outcomes(disk) == {NEW}


def test_a_renamed_file_has_either_name_until_the_folder_is_synced() -> None:
    disk = FaultyDisk({"a": OLD, "b": NEW})

    disk.rename("a", "b")

    assert disk.files() == {"b": OLD}
    found = [disk.crash(seed).files() for seed in SEEDS]
    assert {"a": OLD, "b": NEW} in found
    assert {"b": OLD} in found
    assert all(one in ({"a": OLD, "b": NEW}, {"b": OLD}) for one in found)
    disk.sync()
    assert all(disk.crash(seed).files() == {"b": OLD} for seed in SEEDS)


def test_a_renaming_may_survive_without_the_content_it_was_made_for() -> None:
    disk = FaultyDisk()
    disk.create("new").write(NEW, 0)
    disk.rename("new", "f")
    disk.sync()

    assert outcomes(disk) == {b"", bytes(SECTOR_BYTES), NEW}


def test_a_removed_file_may_be_back_until_the_folder_is_synced() -> None:
    disk, _ = written(OLD)

    disk.remove("f")
    disk.remove("never there")

    assert disk.names() == []
    assert outcomes(disk) == {None, OLD}
    disk.sync()
    assert outcomes(disk) == {None}


def test_changes_of_names_survive_in_any_order() -> None:
    disk = FaultyDisk()
    disk.create("first")
    disk.create("second")

    found = {tuple(disk.crash(seed).names()) for seed in SEEDS}

    assert found == {(), ("first",), ("second",), ("first", "second")}


def test_seed_0_loses_all_and_seed_1_nothing() -> None:
    disk, file = written(OLD, OLD)
    file.write(NEW * 5, 0)
    disk.create("g")

    assert disk.crash(0).files() == {"f": OLD + OLD}
    assert disk.crash(1).files() == {"f": NEW * 5, "g": b""}


def test_the_same_seed_gives_the_same_disk_and_crashing_changes_nothing() -> None:
    disk, file = written(OLD, OLD)
    file.write(NEW * 9, 0)
    before = disk.files()

    assert all(disk.crash(seed).files() == disk.crash(seed).files() for seed in SEEDS)
    assert disk.files() == before


def test_a_killed_process_loses_nothing_and_makes_nothing_durable() -> None:
    disk, file = written(OLD)
    file.write(NEW, 0)
    disk.create("g")

    found = disk.restart()

    assert found.files() == {"f": NEW, "g": b""}
    assert outcomes(found) == {OLD, NEW}
    assert outcomes(found, "g") == {None, b""}
    found.open("f").sync()
    assert outcomes(found) == {NEW}
    assert outcomes(disk) == {OLD, NEW}, "the next process has its own disk"


@pytest.mark.parametrize("cut", range(1, 8))
def test_power_is_cut_at_the_chosen_operation_and_stays_off(cut: int) -> None:
    disk = FaultyDisk()
    disk.crash_at(cut)

    def program() -> None:
        file = disk.create("f")
        file.write(NEW, 0)
        file.truncate(100)
        file.sync()
        disk.sync()
        disk.rename("f", "g")
        disk.remove("g")

    with pytest.raises(PowerCut, match=f"operation {cut}"):
        program()
    assert disk.operations == cut
    for request in (disk.names, disk.sync, disk.free_bytes, lambda: disk.open("f")):
        with pytest.raises(PowerCut):
            request()


def test_a_sync_hit_by_the_power_cut_does_not_count_but_a_write_may() -> None:
    disk, file = written(OLD)
    disk.crash_at(2)
    file.write(NEW, 0)
    with pytest.raises(PowerCut):
        file.sync()
    assert outcomes(disk) == {OLD, NEW}

    disk, file = written(OLD)
    disk.crash_at(1)
    with pytest.raises(PowerCut):
        file.write(NEW, 0)
    assert outcomes(disk) == {OLD, NEW}


def test_reading_is_no_moment_to_cut_the_power_at() -> None:
    disk, file = written(OLD)
    disk.crash_at(1)

    file.read(10, 0)
    file.size()
    disk.open("f", read_only=True).close()

    assert disk.operations == 0


def test_the_chosen_operation_fails_once_and_leaves_nothing() -> None:
    disk, file = written(OLD)
    disk.fail("write", at=2)

    file.write(b"1", 0)
    with pytest.raises(OSError, match="f") as failure:
        file.write(b"2", 1)
    file.write(b"3", 2)

    assert failure.value.errno == errno.EIO
    assert file.read(4, 0) == b"1o3o"


def test_a_short_write_leaves_its_beginning() -> None:
    disk, file = written(OLD)
    disk.fail("write", error=errno.ENOSPC, written=3)

    with pytest.raises(OSError, match="No space"):
        file.write(b"12345", 0)

    assert file.read(6, 0) == b"123ooo"


def test_every_operation_on_names_can_fail() -> None:
    disk, _ = written(OLD)
    requests: dict[Operation, Callable[[], object]] = {
        "create": lambda: disk.create("g"),
        "open": lambda: disk.open("f"),
        "rename": lambda: disk.rename("f", "g"),
        "remove": lambda: disk.remove("f"),
        "sync_names": disk.sync,
    }

    for operation, request in requests.items():
        disk.fail(operation, error=errno.EACCES)
        with pytest.raises(PermissionError):
            request()

    assert disk.files() == {"f": OLD}


def test_every_operation_on_content_can_fail_several_times() -> None:
    disk, file = written(OLD)
    requests: dict[Operation, Callable[[], object]] = {
        "read": lambda: file.read(1, 0),
        "truncate": lambda: file.truncate(0),
        "sync": file.sync,
    }

    for operation, request in requests.items():
        disk.fail(operation, times=2)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                request()
        assert file.size() == SECTOR_BYTES
        if operation != "truncate":
            request()


def test_faults_can_be_meant_for_some_files_only() -> None:
    disk = FaultyDisk({"f.log": OLD, "head": OLD})
    disk.fail("write", name="*.log")

    disk.open("head").write(NEW, 0)
    with pytest.raises(OSError, match=r"f\.log"):
        disk.open("f.log").write(NEW, 0)


def test_an_open_file_goes_by_its_newest_name() -> None:
    disk = FaultyDisk()
    file = disk.create("f.tmp")
    disk.rename("f.tmp", "f.log")
    disk.fail("write", name="*.log")

    with pytest.raises(OSError, match=r"f\.log"):
        file.write(NEW, 0)


def test_faults_end_when_the_disk_is_healed() -> None:
    disk, file = written(OLD)
    disk.fail("sync", at=1, times=100)

    disk.heal()

    file.sync()


def test_a_second_sync_after_a_failed_one_saves_nothing() -> None:
    disk, file = written(OLD, OLD, OLD)
    disk.fail("sync")
    file.write(NEW, 0)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()

    file.sync()
    file.write(NEW, 2 * SECTOR_BYTES)
    file.sync()

    assert file.read(SECTOR_BYTES, 0) == NEW, "the operating system still shows it"
    assert outcomes(disk) == {OLD + OLD + NEW, NEW + OLD + NEW}


def test_writing_a_lost_sector_again_makes_it_durable_with_the_next_sync() -> None:
    disk, file = written(OLD)
    disk.fail("sync")
    file.write(NEW, 0)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()

    file.write(b"!", 0)
    file.sync()

    assert outcomes(disk) == {b"!" + NEW[1:]}


def test_a_failed_folder_sync_makes_no_name_durable() -> None:
    disk = FaultyDisk()
    disk.fail("sync_names")
    disk.create("f")

    with pytest.raises(OSError, match="Input/output"):
        disk.sync()

    assert outcomes(disk) == {None, b""}


def test_a_full_disk_takes_what_fits_and_refuses_the_rest() -> None:
    disk = FaultyDisk({"f": b"12345"}, capacity_bytes=8)
    file = disk.open("f")

    assert disk.free_bytes() == 3
    with pytest.raises(OSError, match="No space"):
        file.write(b"6789", 5)
    assert disk.files() == {"f": b"12345678"}
    file.write(b"abc", 2)
    disk.capacity_bytes = 9
    file.write(b"9", 8)

    assert disk.files() == {"f": b"12abc6789"}
    assert disk.free_bytes() == 0


def test_room_returns_when_files_shrink_or_go() -> None:
    disk = FaultyDisk({"f": OLD, "g": OLD}, capacity_bytes=2 * SECTOR_BYTES)

    disk.remove("g")
    disk.open("f").truncate(12)

    assert disk.free_bytes() == 2 * SECTOR_BYTES - 12


def test_files_opened_for_reading_cannot_be_changed() -> None:
    disk, _ = written(OLD)
    file = disk.open("f", read_only=True)

    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(NEW, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.truncate(0)
    assert disk.files() == {"f": OLD}


def test_closed_files_are_of_no_use_and_counted() -> None:
    disk, file = written(OLD)
    assert disk.open_files == 1

    file.close()
    file.close()

    assert disk.open_files == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)


def test_the_trace_tells_what_was_asked_for() -> None:
    disk = FaultyDisk()
    file = disk.create("f")
    file.write(b"12", 3)
    file.sync()
    disk.rename("f", "g")
    disk.sync()

    assert [str(step) for step in disk.trace] == [
        "create f",
        "write f 3+2",
        "sync f",
        "rename f",
        "sync_names",
    ]


def test_a_writer_and_a_reader_may_be_different_threads() -> None:
    disk, file = written(bytes(SECTOR_BYTES))
    rounds = 300

    def write() -> None:
        for number in range(rounds):
            file.write(bytes([number % 256]) * SECTOR_BYTES, 0)
            file.sync()

    writer = threading.Thread(target=write)
    writer.start()
    reader = disk.open("f", read_only=True)
    while writer.is_alive():
        assert len(set(reader.read(SECTOR_BYTES, 0))) == 1
        assert len(set(disk.crash(5).files()["f"])) == 1
    writer.join()

    assert disk.operations == 2 * rounds


Script = list[tuple[str, int, bytes]]
"""What to do, where or how far, with which bytes."""

VERBS = ("write", "truncate", "sync", "sync_names", "create", "rename", "remove")
scripts = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 1500), st.binary(max_size=700)), max_size=12
)


def perform(disk: Disk, script: Script) -> list[object]:
    """Everything a script is answered; it works on whichever file is there."""
    answers: list[object] = []
    for verb, position, data in script:
        name = next(iter(disk.names()), "f")
        try:
            if verb in ("write", "truncate", "sync"):
                answers.append(change(disk.open(name), verb, position, data))
            elif verb == "sync_names":
                disk.sync()
            elif verb == "rename":
                disk.rename(name, "g")
            elif verb == "create":
                disk.create("f").close()
            else:
                disk.remove(name)
        except OSError as error:
            answers.append(type(error))
        answers.append(disk.names())
    return answers


def change(file: File, verb: str, position: int, data: bytes) -> bytes:
    if verb == "write":
        file.write(data, position)
    elif verb == "truncate":
        file.truncate(position)
    else:
        file.sync()
    content = file.read(4000, 0)
    assert len(content) == file.size()
    file.close()
    return content


@given(scripts)
def test_without_faults_it_is_a_folder_like_any_other(script: Script) -> None:
    with TemporaryDirectory() as folder:
        expected = perform(SystemDisk(Path(folder)), script)

    assert perform(FaultyDisk(), script) == expected


@given(scripts, st.integers(0, 2**32))
def test_a_power_cut_only_leaves_versions_that_were_there(script: Script, seed: int) -> None:
    """Every sector of every surviving file is zeros or one of the versions some file had."""
    disk = FaultyDisk()
    known = {bytes(SECTOR_BYTES)}
    for step in script:
        perform(disk, [step])
        for content in disk.files().values():
            known |= set(in_sectors(content))
    synced = FaultyDisk(disk.files())

    found = disk.crash(seed)

    for content in found.files().values():
        whole, rest = divmod(len(content), SECTOR_BYTES)
        assert all(sector in known for sector in in_sectors(content)[:whole])
        if rest:
            last = content[whole * SECTOR_BYTES :]
            assert any(one.startswith(last) for one in known)
    assert synced.crash(seed).files() == disk.files()


def in_sectors(content: bytes) -> list[bytes]:
    return [
        content[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
        for at in range(0, len(content), SECTOR_BYTES)
    ]


def test_a_thousand_crashes_are_a_thousand_different_disks() -> None:
    disk, file = written(*[OLD] * 64)
    file.write(Random(7).randbytes(64 * SECTOR_BYTES), 0)

    found = {disk.crash(seed).files()["f"] for seed in range(1000)}

    assert len(found) > 900
