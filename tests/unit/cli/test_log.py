"""`signalhub log` on sound, damaged and empty folders; none of the commands ever writes."""

from __future__ import annotations

import errno
import json
import os
import pwd
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from signalhub.cli.app import run
from signalhub.cli.hub.log import entry_facts
from signalhub.log.disk import SystemDisk
from signalhub.state import losses
from signalhub.testing import FaultyDisk
from signalhub.wire import entry
from signalhub.wire.bodies import kind_name
from signalhub.wire.entry import Entry, Kind, Outcome, StoredEntry, encode_body
from tests.faults.lost_end import cut_to
from tests.support.memory.log import NOW_MS, do_upkeep, erase, fill_segments, open_log
from tests.support.process.terminal import Terminal

SEGMENT_BYTES = 2_000
VERBS = ("ls", "info", "verify", "view")


class Log:
    """The commands on one data folder."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = data
        self._capsys = capsys

    @property
    def segments(self) -> list[Path]:
        return sorted((self.data / "log").glob("*.log"))

    def damage(self) -> None:
        content = bytearray(self.segments[0].read_bytes())
        content[300] ^= 0xFF
        self.segments[0].write_bytes(content)

    def damage_last(self) -> None:
        """In front of its last batch, so that it is no torn end."""
        made = open_log(SystemDisk(self.data / "log"), segment_bytes=SEGMENT_BYTES)
        for seq in range(1, 5):
            made.append([message(seq)])
            made.sync()
        made.close()
        content = bytearray(self.segments[-1].read_bytes())
        content[self.rows("ls")[-1]["bytes"] // 2] ^= 1
        self.segments[-1].write_bytes(content)

    def said(self, *words: str, code: int = 0) -> tuple[str, str]:
        assert run(["log", *words, "--data", str(self.data)]) == code
        return self._capsys.readouterr()

    def rows(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        out, _ = self.said(*words, "--json", code=code)
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Log:
    """A stopped hub's log with two sealed segments and an active one."""
    made = open_log(SystemDisk(tmp_path / "log"), segment_bytes=SEGMENT_BYTES)
    fill_segments(made, 3)
    do_upkeep(made)
    made.close()
    return Log(tmp_path, capsys)


def message(seq: int, stream: str = "orders", kind: Kind = Kind.PUBLISHED) -> Entry:
    body = entry.MessageBody(f"m-{seq}", b"c", "@(demo/a)", "text", b"%d" % seq)
    return Entry(kind, stream, 1, seq, NOW_MS + seq, encode_body(body))


def test_ls_info_and_verify_agree_about_what_is_there(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, last = log.rows("ls")
    lines = log.said("ls")[0].splitlines()
    (info,) = log.rows("info")
    sheet = dict(line.split("\t") for line in log.said("info")[0].splitlines())
    (report,) = log.rows("verify")

    assert first["base"] == 0
    assert (first["end"], second["end"]) == (second["base"], last["base"])
    assert [one["entries"] for one in (first, second)] == [
        first["end"],
        last["base"] - first["end"],
    ]
    assert [one["sealed"] for one in (first, second, last)] == [True, True, False]
    assert (len(first["chain"]), last["chain"], len(lines)) == (64, None, 3)
    assert lines[0].split("\t")[-1] == first["chain"][:12]
    assert info["entries"] == info["head"] == info["durable_head"] == int(sheet["head"])
    assert (info["first"], info["segments"], info["sealed"]) == (0, 3, 2)
    assert (info["torn"], info["damage"], info["foreign"]) == (None, [], [])
    assert info["from_ms"] <= info["to_ms"]
    assert sheet["bytes"].endswith("K")
    assert (report["sound"], report["segments"], report["problems"]) == (True, 3, [])
    text = f"sound: {report['entries']} entries in 3 segments, 2 sealed, 0 erased"
    assert log.said("verify")[0].startswith(text)
    monkeypatch.setenv("SIGNALHUB_DATA", str(log.data))
    assert run(["log", "ls"]) == run(["log", "ls", "--data", str(log.data / "log")]) == 0


def test_an_empty_log_is_in_order_and_a_folder_without_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path, capsys)
    for verb in VERBS:
        assert "--data" in log.said(verb, code=2)[1]
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "log").mkdir()

    assert log.rows("ls") == log.rows("view") == []
    assert log.rows("info")[0]["entries"] == 0
    assert log.rows("verify")[0]["sound"] is True


def test_damage_is_named_and_fails(log: Log) -> None:
    name = log.segments[0].name
    log.damage()

    out, err = log.said("verify", code=1)
    (facts,) = log.rows("verify", code=1)
    failure = json.loads(log.said("verify", "--json", code=1)[1])

    assert out.startswith("damaged: ")
    assert f"damaged\t{name}" in out
    assert name in err
    assert "backup" in err
    assert facts["sound"] is False
    assert name in facts["problems"][0]
    assert failure["error"] == "storage_damaged"


def test_a_missing_segment_is_named_by_every_command(log: Log) -> None:
    missing = log.segments[1]
    missing.unlink()

    for verb in VERBS:
        out, err = log.said(verb, code=1)
        assert missing.stem.lstrip("0") in err
        assert out, "what can be read is shown"


def test_a_torn_end_is_mentioned_and_no_damage(log: Log) -> None:
    last, size = log.segments[-1], log.rows("ls")[-1]["bytes"]
    with last.open("r+b") as file:
        file.seek(size)
        file.write(b"torn")

    assert f"note: torn end in {last.name} at byte {size}" in log.said("verify")[0]
    assert last.name in log.rows("info")[0]["torn"]


def test_damage_of_the_last_segment_is_not_called_a_torn_end(log: Log) -> None:
    log.damage_last()

    out, _ = log.said("verify", code=1)
    (info,) = log.rows("info", code=1)

    assert out.startswith("damaged: ")
    assert "torn" not in out
    assert info["torn"] is None
    assert log.segments[-1].name in info["damage"][0]


def test_no_command_shows_a_damaged_log_as_a_shorter_one(log: Log) -> None:
    log.damage_last()

    for verb in VERBS:
        out, err = log.said(verb, code=1)
        assert log.segments[-1].name in err
        assert out, "what can be read is shown"


def test_no_command_shows_a_log_that_has_lost_its_end_as_a_shorter_one(log: Log) -> None:
    head = log.rows("info")[0]["head"]
    with log.segments[-1].open("r+b") as file:
        file.truncate(log.rows("ls")[-1]["bytes"] - 1)

    for verb in VERBS:
        out, err = log.said(verb, code=1)
        assert f"{head - 1} existed and is lost" in err
        assert "new epoch" in err
        assert "read-only" not in err
        assert out, "what can be read is shown"


def test_a_lost_end_is_no_damage_and_verify_says_what_a_hub_does_about_it(log: Log) -> None:
    head = log.rows("verify")[0]["head"]
    cut_to(log.data, head - 1)

    out, err = log.said("verify", code=1)
    (facts,) = log.rows("verify", code=1)

    assert out.startswith("incomplete: ")
    assert f"lost\tentry {head - 1} existed and is lost" in out
    assert "read-only" not in err
    assert "in a new epoch" in err
    assert facts["loss"] == f"entry {head - 1} existed and is lost"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_an_end_that_cannot_be_checked_is_no_damage_and_not_called_sound(
    log: Log, spoil: Callable[[Path], object]
) -> None:
    spoil(log.data / "log" / "head")

    out, err = log.said("verify", code=1)

    assert out.startswith("unproven: ")
    assert "unproven\thead: it is " in out
    assert "would not be noticed" in err
    assert "backup" not in err


def test_a_loss_that_nobody_has_acknowledged_is_mentioned(log: Log) -> None:
    loss = losses.Loss(epoch=7, first=3, last=4, found_ms=NOW_MS)
    assert log.rows("verify")[0]["open_losses"] == log.rows("info")[0]["open_losses"] == []
    losses.add(log.data, loss)

    assert "note: entries 3 to 4 of epoch 7" in log.said("verify")[0]
    assert "entries 3 to 4 of epoch 7" in log.said("info")[0]
    for verb in ("verify", "info"):
        (facts,) = log.rows(verb)
        (found,) = facts["open_losses"]
        assert (found["first"], found["last"]) == (3, 4)
    losses.acknowledge(log.data, NOW_MS, "me")
    assert log.rows("verify")[0]["open_losses"] == []


def test_no_command_changes_a_byte(log: Log) -> None:
    def snapshot() -> dict[str, tuple[bytes, int]]:
        files = (log.data / "log").iterdir()
        return {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in files}

    before = snapshot()
    for verb in VERBS:
        log.said(verb)

    assert snapshot() == before


def test_verify_counts_what_is_erased_and_view_shows_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FaultyDisk()
    made = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill_segments(made, 2)
    do_upkeep(made)
    erase(disk, made.segments[0], 1)
    made.close()
    (tmp_path / "log").mkdir()
    for name, content in disk.files().items():
        (tmp_path / "log" / name).write_bytes(content)
    log = Log(tmp_path, capsys)

    (report,) = log.rows("verify")
    (erased,) = log.rows("view", "--from", "1", "--to", "1")

    assert (report["sound"], report["erased"]) == (True, 1)
    assert (erased["erased"], len(erased["body"]["digest"])) == (True, 64)


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("--from 1 --to 3", [1, 2, 3]),
        ("--from 4", [4]),
        ("--from 5", []),
        ("--to 0", [0]),
        ("--stream orders", [0, 1, 4]),
        ("--stream orders --limit 2", [0, 1]),
        ("--stream @(demo/bob)", [3]),
        ("--kind mail", [3]),
        ("--kind mail --kind published --from 3", [3, 4]),
        ("--kind stream-created", []),
    ],
)
def test_view_shows_the_part_that_is_asked_for(
    options: str, offsets: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = open_log(SystemDisk(tmp_path / "log"))
    made.append([message(1), message(2), message(1, "invoices")])
    made.append([message(1, "@(demo/bob)", Kind.MAIL), message(3)])
    made.close()
    log = Log(tmp_path, capsys)

    found = log.rows("view", *options.split())
    line = log.said("view", "--limit", "1")[0].rstrip("\n").split("\t")

    assert [one["offset"] for one in found] == offsets
    assert [one["body"]["data"] for one in found] == [[1, 2, 1, 1, 3][at] for at in offsets]
    assert (line[0], *line[2:5]) == ("0", "published", "orders", "1")
    assert json.loads(line[5])["id"] == "m-1"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_not_a_fault_of_the_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)

        _, err = log.said("view", code=1)

    assert err == "signalhub: cannot write output: no space left\n"


def test_view_follows_what_is_appended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_log(SystemDisk(tmp_path / "log"))
    made.append([message(1)])
    pauses: list[float] = []

    def append_instead_of_waiting(pause_s: float) -> None:
        pauses.append(pause_s)
        made.append([message(1 + len(pauses))])

    # Not in the module `time` itself: other threads of the tests sleep, too.
    monkeypatch.setattr("signalhub.cli.hub.log.sleep", append_instead_of_waiting)
    found = Log(tmp_path, capsys).rows("view", "--follow", "--limit", "3")
    made.close()

    assert [one["seq"] for one in found] == [1, 2, 3]
    assert len(pauses) == 2


def test_view_says_from_where_on_entries_are_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = open_log(SystemDisk(tmp_path / "log"), segment_bytes=SEGMENT_BYTES)
    fill_segments(made, 3)
    do_upkeep(made)
    made.remove(made.segments[:1])
    first = made.first
    made.close()
    log = Log(tmp_path, capsys)

    assert f"before offset {first} were deleted" in log.said("view", "--from", "0", code=1)[1]
    assert log.rows("view", "--limit", "1")[0]["offset"] == first


def test_verify_shows_a_bar_to_people_only(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    people, programs = Terminal(), Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", people)
    log.said("verify")
    monkeypatch.setattr(sys, "stderr", programs)
    log.said("verify", "--json")

    assert "verifying" in people.getvalue()
    assert programs.getvalue() == ""
    assert not any("rich" in thread.name.lower() for thread in threading.enumerate())


def stored(kind: int, body: bytes, *, is_erased: bool = False) -> StoredEntry:
    return StoredEntry(9, kind, "orders", 1, 3, 1000, body, is_erased)


def body_of(kind: int, body: entry.Body) -> Any:
    return entry_facts(stored(kind, encode_body(body)))["body"]


def test_an_entry_is_one_object_with_the_name_of_its_kind() -> None:
    body = encode_body(entry.LostBody("billing", 1, 5))

    assert entry_facts(stored(Kind.LOST, body)) == {
        "offset": 9,
        "kind": "lost",
        "stream": "orders",
        "stream_epoch": 1,
        "seq": 3,
        "at_ms": 1000,
        "erased": False,
        "body": {"subscription": "billing", "first": 1, "last": 5},
    }
    for kind in Kind:
        assert entry_facts(stored(kind, b""))["kind"] == kind_name(kind)
        assert not kind_name(kind).isdigit()
    newer = entry_facts(stored(200, body))
    assert (newer["kind"], newer["body"]) == ("200", ["billing", 1, 5])


def test_bodies_are_shown_as_json_and_words() -> None:
    dead = entry.DeadLetterOrigin("orders", "billing", "1.1", 7, 6, "bad", 1, 2, ["a"])
    letter = entry.MessageBody("m-1", b"c-1", "@(demo/a)", "text", b'{"n":[1]}', b'{"x":1}')
    letter = replace(letter, headers={"a": "b"}, dead=dead)
    settlements = [entry.Settlement(1, 0, Outcome.DEAD_LETTERED), entry.Settlement(2, 1, 250)]

    body = body_of(Kind.PUBLISHED, letter)
    settled = body_of(Kind.SETTLED, entry.SettledBody("billing", 1, settlements))

    assert (body["id"], body["copy_id"], body["data"]) == ("m-1", "c-1", {"n": [1]})
    assert (body["metadata"], body["headers"]) == ({"x": 1}, {"a": "b"})
    assert (body["dead"]["reason"], body["dead"]["consumers"]) == ("bad", ["a"])
    assert [one["outcome"] for one in settled["deliveries"]] == ["dead-lettered", "250"]


@pytest.mark.parametrize(
    ("kind", "body", "member", "value"),
    [
        (Kind.MAIL, entry.MessageBody("m", b"c", "@(a)", "t", b"no json"), "data", "no json"),
        (Kind.BROADCAST, entry.BroadcastBody("b", "@(a)", b'{"n":1}'), "ack", {"n": 1}),
        (Kind.CURSOR, entry.CursorBody("b", 1, 5, 9, [(7, 8)], {6: 99}, {}), "above", [[7, 8]]),
        (Kind.STREAM_CREATED, entry.StreamDefinitionBody(True, 60.0), "retention_s", 60.0),
        (Kind.REMOVED, entry.RemovedBody([(1, 2)], "purged"), "ranges", [[1, 2]]),
    ],
)
def test_every_kind_has_its_body(kind: Kind, body: entry.Body, member: str, value: object) -> None:
    assert body_of(kind, body)[member] == value


@pytest.mark.parametrize(
    ("kind", "content", "is_erased", "body"),
    [
        (Kind.STREAM_DELETED, b"", False, None),
        (Kind.PUBLISHED, b"\xab\xcd", True, {"digest": "abcd"}),
        (Kind.PUBLISHED, b"\xc1", False, {"unreadable": "c1"}),
        (Kind.STREAM_DELETED, b"\xc1", False, {"unreadable": "c1"}),
        (200, b"\xc1", False, {"unreadable": "c1"}),
    ],
)
def test_a_body_that_is_missing_erased_or_unknown_is_shown_as_it_is(
    kind: int, content: bytes, is_erased: bool, body: object
) -> None:
    facts = entry_facts(stored(kind, content, is_erased=is_erased))

    assert (facts["erased"], facts["body"]) == (is_erased, body)
    assert body_of(Kind.STREAM_DELETED, entry.Body()) == []


def test_a_user_without_a_name_acknowledges_a_loss_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, which runs as a user that no file lists."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    (tmp_path / "log").mkdir()
    losses.add(tmp_path, losses.Loss(epoch=1, first=7, last=9, found_ms=NOW_MS))

    assert run(["log", "acknowledge", "--data", str(tmp_path)]) == 0
    assert "acknowledged the loss of entries 7 to 9" in capsys.readouterr().out
    assert [one.by for one in losses.read(tmp_path)] == [f"uid {os.getuid()}"]


def test_a_log_whose_folder_may_not_be_listed_is_no_lost_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listdir = tmp_path / "log", os.listdir

    def denied(path: Path) -> list[str]:
        if path == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", denied)
    folder.mkdir()
    for verb in (*VERBS, "acknowledge"):
        assert run(["log", verb, "--data", str(tmp_path)]) == 1
        assert f"cannot read {folder}: Permission denied" in capsys.readouterr().err
