"""How far the wall clock was ahead is found by the next process."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from signalhub.state.clock_offset import NAME, ClockOffset


def test_a_change_is_kept_and_a_small_one_is_not_written(tmp_path: Path) -> None:
    offset = ClockOffset(tmp_path)
    assert offset.saved_ms == 0
    offset.save(999)
    assert not (tmp_path / NAME).exists()

    offset.save(-3_600_000)

    assert ClockOffset(tmp_path).saved_ms == -3_600_000
    assert os.stat(tmp_path / NAME).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"\xff", b"soon"])
def test_a_file_that_cannot_be_read_costs_a_line_in_the_log(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)

    with caplog.at_level(logging.WARNING):
        assert ClockOffset(tmp_path).saved_ms == 0

    assert len(caplog.records) == 1


def test_a_full_disk_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offset = ClockOffset(tmp_path / "missing")

    offset.save(5_000)
    (tmp_path / "missing").mkdir()
    offset.save(5_000)

    assert offset.saved_ms == ClockOffset(tmp_path / "missing").saved_ms == 5_000
    assert len(caplog.records) == 1
