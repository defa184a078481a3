from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.recovery import recover
from signalhub.log.verify import verify
from tests.support.memory.log import contents, do_upkeep, fill, fill_segments, open_log


@pytest.fixture
def disk(tmp_path: Path) -> SystemDisk:
    return SystemDisk(tmp_path / "data" / "log")


def test_a_missing_folder_is_created_unless_it_is_only_read(
    disk: SystemDisk, tmp_path: Path
) -> None:
    assert disk.path.is_dir()
    assert disk.names() == []
    with pytest.raises(FileNotFoundError):
        SystemDisk(tmp_path / "nowhere", read_only=True).names()
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_read_and_written_by_position(disk: SystemDisk) -> None:
    file = disk.create("a")
    file.write(b"world", 6)
    file.write(b"hello ", 0)
    file.sync()

    assert file.read(100, 0) == b"hello world"
    assert file.read(3, 4) == b"o w"
    assert file.read(3, 100) == b""
    file.truncate(5)
    assert (file.size(), file.read(100, 0)) == (5, b"hello")
    file.close()
    for opened in (disk.open("a", read_only=True), SystemDisk(disk.path, read_only=True).open("a")):
        with pytest.raises(OSError, match="descriptor"):
            opened.write(b"x", 0)
        opened.close()


def test_a_log_lives_on_a_real_disk(disk: SystemDisk) -> None:
    log = open_log(disk, segment_bytes=3_000)
    entries = fill_segments(log, 5)
    do_upkeep(log)
    log.remove(log.segments[:1])
    log.close()

    log = open_log(disk, segment_bytes=3_000)
    entries += fill(log, 20, first_seq=len(entries) + 1)

    assert contents(log) == entries[log.first :]
    assert verify(SystemDisk(disk.path, read_only=True)).problems == ()
    log.close()
    assert recover(disk, repair=False).head == len(entries)
