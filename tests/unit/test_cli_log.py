"""`signalhub log` on folders of all sorts; none of the commands ever writes."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from signalhub.cli.app import run
from signalhub.log.disk import SystemDisk
from signalhub.testing import FaultyDisk
from signalhub.wire import entry
from signalhub.wire.entry import Entry, Kind, encode_body
from tests.support.memory.log import NOW_MS, do_upkeep, erase, fill_segments, open_log

SEGMENT_BYTES = 2_000


def message(seq: int, stream: str = "orders", kind: Kind = Kind.PUBLISHED) -> Entry:
    body = entry.MessageBody(f"m-{seq}", b"c", "@(demo/a)", "text", b"%d" % seq)
    return Entry(kind, stream, 1, seq, NOW_MS + seq, encode_body(body))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a stopped hub whose log has two sealed segments and an active one."""
    log = open_log(SystemDisk(tmp_path / "log"), segment_bytes=SEGMENT_BYTES)
    fill_segments(log, 3)
    do_upkeep(log)
    log.close()
    return tmp_path


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A log of three messages to one topic, one to another, and one mail."""
    log = open_log(SystemDisk(tmp_path / "log"))
    log.append([message(1), message(2), message(1, "invoices")])
    log.append([message(1, "@(demo/bob)", Kind.MAIL), message(3)])
    log.close()
    return tmp_path


def segments(data: Path) -> list[Path]:
    return sorted((data / "log").glob("*.log"))


def damage(path: Path, position: int = 300) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def rows(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> list[dict[str, Any]]:
    assert run(["log", *command, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_ls_lists_the_segments(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, last = rows(capsys, "ls", "--data", str(data))
    assert run(["log", "ls", "--data", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert first["base"] == 0
    assert (first["end"], second["end"]) == (second["base"], last["base"])
    assert [one["entries"] for one in (first, second)] == [
        first["end"],
        last["base"] - first["end"],
    ]
    assert [one["sealed"] for one in (first, second, last)] == [True, True, False]
    assert len(first["chain"]) == 64
    assert last["chain"] is None
    assert lines[0].split("\t")[-1] == first["chain"][:12]
    assert len(lines) == 3


def test_the_folder_of_the_log_itself_will_do(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(rows(capsys, "ls", "--data", str(data / "log"))) == 3
    monkeypatch.setenv("SIGNALHUB_DATA", str(data))
    assert len(rows(capsys, "ls")) == 3


def test_info_says_how_far_the_log_reaches(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (facts,) = rows(capsys, "info", "--data", str(data))
    assert run(["log", "info", "--data", str(data)]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())

    assert (facts["first"], facts["entries"]) == (0, facts["head"])
    assert facts["durable_head"] == facts["head"]
    assert (facts["segments"], facts["sealed"]) == (3, 2)
    assert (facts["torn"], facts["damage"], facts["foreign"]) == (None, [], [])
    assert facts["from_ms"] <= facts["to_ms"]
    assert lines["head"] == str(facts["head"])
    assert lines["bytes"].endswith("K")


def test_an_empty_log_is_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").mkdir()
    folder = ("--data", str(tmp_path))

    assert rows(capsys, "ls", *folder) == []
    assert rows(capsys, "view", *folder) == []
    assert rows(capsys, "info", *folder)[0]["entries"] == 0
    assert rows(capsys, "verify", *folder)[0]["sound"] is True


def test_verify_counts_what_is_there(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (facts,) = rows(capsys, "verify", "--data", str(data))
    assert run(["log", "verify", "--data", str(data)]) == 0

    said = capsys.readouterr().out
    assert facts["sound"] is True
    assert (facts["segments"], facts["sealed"], facts["problems"]) == (3, 2, [])
    assert said.startswith(f"sound: {facts['entries']} entries in 3 segments, 2 sealed, 0 erased")


def test_verify_names_what_is_damaged_and_ends_with_1(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = segments(data)[0].name
    damage(segments(data)[0])

    assert run(["log", "verify", "--data", str(data)]) == 1
    captured = capsys.readouterr()
    (facts,) = rows(capsys, "verify", "--data", str(data), code=1)

    assert captured.out.startswith("damaged: ")
    assert f"damaged\t{name}" in captured.out
    assert name in captured.err
    assert "backup" in captured.err
    assert facts["sound"] is False
    assert name in facts["problems"][0]


def test_with_json_damage_is_an_object_on_standard_error(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(segments(data)[0])

    assert run(["log", "verify", "--data", str(data), "--json"]) == 1

    assert json.loads(capsys.readouterr().err)["error"] == "storage_damaged"


def test_a_missing_segment_is_named_by_every_command(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = segments(data)[1]
    missing.unlink()

    for verb in ("ls", "info", "verify", "view"):
        assert run(["log", verb, "--data", str(data)]) == 1
        captured = capsys.readouterr()
        assert missing.stem.lstrip("0") in captured.err
        assert captured.out, "what can be read is shown"


def test_a_torn_end_is_mentioned_and_no_damage(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = segments(data)[-1]
    (facts,) = rows(capsys, "ls", "--data", str(data))[-1:]
    with last.open("r+b") as file:
        file.seek(facts["bytes"])
        file.write(b"torn")

    assert run(["log", "verify", "--data", str(data)]) == 0
    said = capsys.readouterr().out
    (info,) = rows(capsys, "info", "--data", str(data))

    assert f"note: torn end in {last.name} at byte {facts['bytes']}" in said
    assert last.name in info["torn"]


def test_verify_counts_what_is_erased_and_view_shows_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill_segments(log, 2)
    do_upkeep(log)
    erase(disk, log.segments[0], 1)
    log.close()
    (tmp_path / "log").mkdir()
    for name, content in disk.files().items():
        (tmp_path / "log" / name).write_bytes(content)

    (report,) = rows(capsys, "verify", "--data", str(tmp_path))
    (erased,) = rows(capsys, "view", "--data", str(tmp_path), "--from", "1", "--to", "1")

    assert (report["sound"], report["erased"]) == (True, 1)
    assert erased["erased"] is True
    assert len(erased["body"]["digest"]) == 64


def test_view_decodes_every_entry(letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "view", "--data", str(letters))
    assert run(["log", "view", "--data", str(letters), "--limit", "1"]) == 0
    line = capsys.readouterr().out.rstrip("\n").split("\t")

    assert [one["offset"] for one in found] == [0, 1, 2, 3, 4]
    assert [one["kind"] for one in found] == ["published"] * 3 + ["mail", "published"]
    assert [one["body"]["data"] for one in found] == [1, 2, 1, 1, 3]
    assert (line[0], *line[2:5]) == ("0", "published", "orders", "1")
    assert json.loads(line[5])["id"] == "m-1"


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from", "1", "--to", "3"], [1, 2, 3]),
        (["--from", "4"], [4]),
        (["--from", "5"], []),
        (["--to", "0"], [0]),
        (["--stream", "orders"], [0, 1, 4]),
        (["--stream", "orders", "--limit", "2"], [0, 1]),
        (["--stream", "@(demo/bob)"], [3]),
        (["--kind", "mail"], [3]),
        (["--kind", "mail", "--kind", "published", "--from", "3"], [3, 4]),
        (["--kind", "stream-created"], []),
    ],
    ids=str,
)
def test_view_shows_the_part_that_is_asked_for(
    options: list[str], offsets: list[int], letters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(capsys, "view", "--data", str(letters), *options)

    assert [one["offset"] for one in found] == offsets


def test_view_follows_what_is_appended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(SystemDisk(tmp_path / "log"))
    log.append([message(1)])
    pauses: list[float] = []

    def append_instead_of_waiting(pause_s: float) -> None:
        pauses.append(pause_s)
        log.append([message(1 + len(pauses))])

    monkeypatch.setattr(time, "sleep", append_instead_of_waiting)
    found = rows(capsys, "view", "--data", str(tmp_path), "--follow", "--limit", "3")
    log.close()

    assert [one["seq"] for one in found] == [1, 2, 3]
    assert len(pauses) == 2


def test_view_says_from_where_on_entries_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(SystemDisk(tmp_path / "log"), segment_bytes=SEGMENT_BYTES)
    fill_segments(log, 3)
    do_upkeep(log)
    log.remove(log.segments[:1])
    first = log.first
    log.close()

    assert run(["log", "view", "--data", str(tmp_path), "--from", "0"]) == 1
    gone = capsys.readouterr().err
    found = rows(capsys, "view", "--data", str(tmp_path), "--limit", "1")

    assert f"before offset {first} were deleted" in gone
    assert found[0]["offset"] == first


def test_no_command_changes_a_byte(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def snapshot() -> dict[str, tuple[bytes, int]]:
        files = (data / "log").iterdir()
        return {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in files}

    before = snapshot()
    for verb in ("ls", "info", "verify", "view"):
        assert run(["log", verb, "--data", str(data)]) == 0
    capsys.readouterr()

    assert snapshot() == before


def test_a_folder_without_a_log_is_wrong_usage_and_stays_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("ls", "info", "verify", "view"):
        assert run(["log", verb, "--data", str(tmp_path)]) == 2
        assert "--data" in capsys.readouterr().err

    assert list(tmp_path.iterdir()) == []


def test_verify_shows_a_bar_to_people_only(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", terminal)

    assert run(["log", "verify", "--data", str(data)]) == 0
    shown = terminal.getvalue()
    terminal.seek(0)
    terminal.truncate()
    assert run(["log", "verify", "--data", str(data), "--json"]) == 0

    assert "verifying" in shown
    assert terminal.getvalue() == ""
    assert not any("rich" in thread.name.lower() for thread in threading.enumerate())
    assert capsys.readouterr().out
