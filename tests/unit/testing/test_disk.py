"""The bad disk must be exactly as bad as it says, or the tests built on it prove nothing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
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
ZEROS = bytes(SECTOR_BYTES)


def written(*sectors: bytes) -> tuple[FaultyDisk, File]:
    """A disk with one durable file."""
    disk = FaultyDisk({"f": b"".join(sectors)})
    return disk, disk.open("f")


def outcomes(disk: FaultyDisk, name: str = "f") -> set[bytes | None]:
    """Everything a power cut may make of one file."""
    return {disk.crash(seed).files().get(name) for seed in SEEDS}


def write_twice(file: File) -> None:
    file.write(b"1" * 100, 0)
    file.write(b"2" * 100, 50)


@pytest.mark.parametrize(
    ("sectors", "change", "left"),
    [
        pytest.param(
            3,
            lambda file: file.write(NEW * 3, 0),
            {a + b + c for a in (OLD, NEW) for b in (OLD, NEW) for c in (OLD, NEW)},
            id="sectors in any combination",
        ),
        pytest.param(
            1,
            write_twice,
            {OLD, b"1" * 100 + OLD[100:], b"1" * 50 + b"2" * 100 + OLD[150:]},
            id="any version of a sector, never torn",
        ),
        pytest.param(
            1,
            lambda file: file.write(NEW, SECTOR_BYTES),
            {OLD, OLD + ZEROS, OLD + NEW},
            id="an extension, or zeros, or the old size",
        ),
        pytest.param(
            2, lambda file: file.truncate(10), {OLD + OLD, OLD[:10]}, id="a truncation or not"
        ),
    ],
)
def test_what_is_not_synced_may_survive(
    sectors: int, change: Callable[[File], None], left: set[bytes]
) -> None:
    disk, file = written(*[OLD] * sectors)

    change(file)
    assert outcomes(disk) == left

    file.sync()
    assert outcomes(disk) == {disk.files()["f"]}


def test_what_a_surviving_truncation_removed_never_comes_back() -> None:
    disk, file = written(OLD, OLD)

    file.truncate(0)
    file.write(NEW, SECTOR_BYTES)

    grown = {one for one in outcomes(disk) if one and not one.startswith(OLD)}
    assert grown <= {ZEROS + ZEROS, ZEROS + NEW}
    assert grown


def test_names_survive_in_any_combination_until_the_folder_is_synced() -> None:
    disk = FaultyDisk({"gone": OLD})
    file = disk.create("f")
    file.write(NEW, 0)
    file.sync()
    disk.create("g")
    disk.remove("gone")
    disk.remove("never there")

    assert disk.names() == ["f", "g"]
    assert outcomes(disk) == {None, NEW}
    assert outcomes(disk, "gone") == {None, OLD}
    found = {tuple(sorted({"f", "g"} & {*disk.crash(seed).names()})) for seed in SEEDS}
    assert found == {(), ("f",), ("g",), ("f", "g")}
    disk.sync()
    assert (outcomes(disk), outcomes(disk, "gone")) == ({NEW}, {None})


def test_a_renamed_file_has_either_name_until_the_folder_is_synced() -> None:
    disk = FaultyDisk({"a": OLD, "b": NEW})

    disk.rename("a", "b")

    assert disk.files() == {"b": OLD}
    found = [disk.crash(seed).files() for seed in SEEDS]
    assert all(one in found for one in ({"a": OLD, "b": NEW}, {"b": OLD}))
    assert all(one in ({"a": OLD, "b": NEW}, {"b": OLD}) for one in found)
    disk.sync()
    assert all(disk.crash(seed).files() == {"b": OLD} for seed in SEEDS)


def test_a_renaming_may_survive_without_the_content_it_was_made_for() -> None:
    disk = FaultyDisk()
    disk.create("new").write(NEW, 0)
    disk.rename("new", "f")
    disk.sync()

    assert outcomes(disk) == {b"", ZEROS, NEW}


def test_a_crash_follows_from_its_seed_and_changes_nothing() -> None:
    disk, file = written(*[OLD] * 64)
    file.write(Random(7).randbytes(64 * SECTOR_BYTES), 0)
    disk.create("g")
    before = disk.files()

    assert disk.crash(0).files() == {"f": OLD * 64}
    assert disk.crash(1).files() == before
    assert all(disk.crash(seed).files() == disk.crash(seed).files() for seed in SEEDS)
    assert len(outcomes(disk)) > 180
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


def test_a_sync_hit_by_the_power_cut_does_not_count_but_a_write_may_and_a_read_never() -> None:
    for cut in (1, 2):
        disk, file = written(OLD)
        disk.crash_at(cut)
        file.read(10, 0)
        file.size()
        disk.open("f", read_only=True).close()
        assert disk.operations == 0
        with suppress(PowerCut):
            file.write(NEW, 0)
            file.sync()
        assert disk.operations == cut
        assert outcomes(disk) == {OLD, NEW}


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


def test_every_operation_can_fail_several_times_until_the_disk_is_healed() -> None:
    disk, file = written(OLD)
    requests: dict[Operation, Callable[[], object]] = {
        "create": lambda: disk.create("g"),
        "open": lambda: disk.open("f"),
        "rename": lambda: disk.rename("f", "g"),
        "remove": lambda: disk.remove("f"),
        "sync_names": disk.sync,
        "read": lambda: file.read(1, 0),
        "truncate": lambda: file.truncate(0),
        "sync": file.sync,
    }

    for operation, request in requests.items():
        disk.fail(operation, error=errno.EACCES, times=2)
        for _ in range(2):
            with pytest.raises(PermissionError):
                request()
        assert disk.files() == {"f": OLD}
    disk.fail("sync", at=1, times=100)
    disk.heal()
    file.sync()


def test_faults_can_be_meant_for_some_files_only_by_their_newest_names() -> None:
    disk = FaultyDisk({"f.tmp": OLD, "head": OLD})
    file = disk.open("f.tmp")
    disk.fail("write", name="*.log")

    disk.open("head").write(NEW, 0)
    file.write(NEW, 0)
    disk.rename("f.tmp", "f.log")
    with pytest.raises(OSError, match=r"f\.log"):
        file.write(NEW, 0)


def test_a_second_sync_after_a_failed_one_saves_nothing_until_it_is_written_again() -> None:
    disk, file = written(OLD, OLD, OLD)
    disk.fail("sync")
    file.truncate(3 * SECTOR_BYTES)
    file.write(NEW, 0)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()

    file.sync()
    file.write(NEW, 2 * SECTOR_BYTES)
    file.sync()

    assert file.read(SECTOR_BYTES, 0) == NEW, "the operating system still shows it"
    assert outcomes(disk) == {OLD + OLD + NEW, NEW + OLD + NEW}
    file.write(b"!", 0)
    file.sync()
    assert outcomes(disk) == {b"!" + NEW[1:] + OLD + NEW}


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
    assert (disk.files(), disk.free_bytes()) == ({"f": b"12abc6789"}, 0)
    file.truncate(4)
    assert disk.free_bytes() == 5
    disk.remove("f")
    assert disk.free_bytes() == 9


def test_files_that_are_closed_or_only_read_cannot_be_changed() -> None:
    disk, file = written(OLD)
    only_read = disk.open("f", read_only=True)
    assert disk.open_files == 2
    file.close()
    file.close()
    assert disk.open_files == 1

    for request in (
        lambda: only_read.write(NEW, 0),
        lambda: only_read.truncate(0),
        lambda: file.read(1, 0),
    ):
        with pytest.raises(OSError, match="Bad file descriptor"):
            request()
    assert disk.files() == {"f": OLD}


def test_the_trace_tells_what_was_asked_for() -> None:
    disk = FaultyDisk()
    file = disk.create("f")
    file.write(b"12", 3)
    file.sync()
    disk.rename("f", "g")
    disk.sync()

    steps = [str(step) for step in disk.trace]
    assert steps == ["create f", "write f 3+2", "sync f", "rename f", "sync_names"]


def test_a_writer_and_a_reader_may_be_different_threads() -> None:
    disk, file = written(ZEROS)
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
    known = {ZEROS}
    for step in script:
        perform(disk, [step])
        for content in disk.files().values():
            known |= set(in_sectors(content))

    for content in disk.crash(seed).files().values():
        whole, rest = divmod(len(content), SECTOR_BYTES)
        assert all(sector in known for sector in in_sectors(content)[:whole])
        last = content[whole * SECTOR_BYTES :]
        assert not rest or any(one.startswith(last) for one in known)
    assert FaultyDisk(disk.files()).crash(seed).files() == disk.files()


def in_sectors(content: bytes) -> list[bytes]:
    pieces = (content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES))
    return [piece.ljust(SECTOR_BYTES, b"\0") for piece in pieces]
