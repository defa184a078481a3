"""The look-up index is a convenience: whatever happens to it, everybody reads the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.index import Index
from signalhub.log.reader import Reader
from tests.faults.healthy_folder import flipped, healthy_folder
from tests.support.memory.log_workload import STREAMS, assert_stream, explained, opened
from tests.support.volume import SEEDS, volume

FLIPS = volume(SEEDS, 400)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an index of all its sealed segments."""
    for name, content in healthy_folder().files.items():
        (tmp_path / name).write_bytes(content)
    assert_reads_right(tmp_path)
    return tmp_path


def assert_reads_right(folder: Path) -> None:
    """Open the log as a hub does, bring the index up to date, read every stream through it."""
    disk = SystemDisk(folder)
    log = opened(disk)
    index = Index(disk)
    for _ in index.update(log.segments):
        pass
    reader = Reader(log, index)
    stored = [*reader.scan(log.first)]
    assert len(stored) == log.head - log.first
    for stream in STREAMS:
        assert_stream(reader, stream, stored)
    known, _ = index.find(*STREAMS[0], 1)
    assert known == {int(name[:20]) for name in healthy_folder().sealed}
    reader.close()
    index.close()
    log.close()


def replace_index(folder: Path, content: bytes | None) -> None:
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / "index.db").write_bytes(content)


@pytest.mark.parametrize(
    "hurt",
    [
        lambda whole: None,
        lambda whole: b"",
        lambda whole: whole[:100],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: bytes(len(whole)),
        lambda whole: b"no database at all",
        lambda whole: b"SQLite format 3\0" * 99,
        lambda whole: whole[:4096] + bytes(len(whole) - 4096),
        lambda whole: whole[:4096] + b"\xff" * (len(whole) - 4096),
        lambda whole: whole + Random(1).randbytes(4096),
    ],
    ids=[
        *("missing", "empty", "header", "half", "zeros"),
        *("foreign", "headers", "zeroed", "overwritten", "long"),
    ],
)
def test_a_broken_index_is_made_again(folder: Path, hurt: Callable[[bytes], bytes | None]) -> None:
    replace_index(folder, hurt((folder / "index.db").read_bytes()))

    assert_reads_right(folder)

    assert (folder / "index.db").exists()


def test_without_an_index_the_reader_asks_the_footers(folder: Path) -> None:
    reader = Reader.of_folder(SystemDisk(folder, read_only=True))
    stored = [*reader.scan(healthy_folder().first)]

    for stream in STREAMS:
        assert_stream(reader, stream, stored)


def test_no_flipped_bit_of_the_index_makes_anybody_miss_an_entry(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="signalhub.log")
    whole = (folder / "index.db").read_bytes()
    rng = Random(1)
    for _ in range(FLIPS):
        bit = rng.randrange(8 * len(whole))
        replace_index(folder, flipped(whole, bit))
        with explained("bit", bit, "of the index was flipped"):
            assert_reads_right(folder)
