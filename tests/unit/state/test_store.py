from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from signalhub.state import schema
from signalhub.state.store import RegistrationRow, StateStore
from signalhub.wire.errors import SettingsError

NOW_MS = 1_760_000_000_000


def row(address: str, registered_at: int = NOW_MS, **changes: int) -> RegistrationRow:
    return RegistrationRow(
        address=address,
        capabilities=["plan", "größe"],
        metadata_json='{"zone":"é","n":[1,null]}'.encode(),
        registered_at=registered_at,
        expires_at=changes.get("expires_at", registered_at + 300_000),
        lease_ms=300_000,
        version=changes.get("version", 1),
    )


def addresses(rows: list[RegistrationRow]) -> list[str]:
    return [one.address for one in rows]


def reopened(path: Path, now_ms: int = NOW_MS) -> list[RegistrationRow]:
    store = StateStore(path)
    try:
        return store.load(now_ms)
    finally:
        store.close()


def execute(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


def test_what_was_persisted_is_loaded_in_the_order_of_registration(
    store: StateStore, path: Path
) -> None:
    assert store.load(NOW_MS) == []
    rows = [row("@(c)"), row("@(a)", NOW_MS + 1, version=7), row("@(b)", NOW_MS + 2)]
    for one in rows:
        store.persist(one)
    assert store.load(NOW_MS) == rows
    store.close()
    store.close()

    assert reopened(path) == rows
    with pytest.raises(AssertionError):
        store.persist(row("@(a)"))


@pytest.mark.parametrize("is_written", [False, True])
def test_the_newest_note_about_an_address_wins(store: StateStore, is_written: bool) -> None:
    store.persist(row("@(kept)", version=1))
    store.persist(row("@(gone)"))
    if is_written:
        store.flush()
    store.persist(row("@(kept)", version=2, expires_at=NOW_MS + 1))
    store.forget(["@(gone)", "@(never there)"])
    store.forget(["@(back)"])
    store.persist(row("@(back)"))

    assert {one.address: one for one in store.load(NOW_MS)} == {
        "@(kept)": row("@(kept)", version=2, expires_at=NOW_MS + 1),
        "@(back)": row("@(back)"),
    }


@pytest.mark.parametrize("way", ["loading", "cleaning"])
def test_what_has_expired_is_deleted(store: StateStore, path: Path, way: str) -> None:
    store.persist(row("@(old)", expires_at=NOW_MS))
    store.persist(row("@(young)", expires_at=NOW_MS + 1))

    if way == "loading":
        assert addresses(store.load(NOW_MS)) == ["@(young)"]
    else:
        store.clean(NOW_MS)
    store.close()

    assert addresses(reopened(path, now_ms=0)) == ["@(young)"]


def test_notes_are_written_without_anybody_waiting(store: StateStore, path: Path) -> None:
    store.persist(row("@(a)"))
    reader = apsw.Connection(str(path))
    reader.set_busy_timeout(5_000)

    written = (reader.execute("SELECT count(*) FROM registration").get for _ in range(1_000_000))

    assert next(count for count in written if count) == 1
    reader.close()


def test_the_size_is_that_of_the_files(store: StateStore, path: Path) -> None:
    empty_bytes = store.size_bytes()
    fill(store)
    store.flush()

    on_disk = path.stat().st_size + path.with_name("state.db-wal").stat().st_size
    assert store.size_bytes() == on_disk > empty_bytes


def test_a_failed_write_is_logged_and_counted_and_the_store_goes_on(
    store: StateStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    execute(path, "ALTER TABLE registration RENAME TO hidden")
    store.persist(row("@(lost)"))
    store.flush()
    assert store.errors == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]

    execute(path, "ALTER TABLE hidden RENAME TO registration")
    store.persist(row("@(kept)"))
    assert addresses(store.load(NOW_MS)) == ["@(kept)"]
    assert store.errors == 1


def test_a_failed_batch_leaves_nothing_half_done(store: StateStore) -> None:
    store.persist(row("@(before)"))
    store.flush()
    store.persist(row("@(good)"))
    store.forget(["@(before)"])
    store.persist(row("@(bad)", version=2**70))
    store.flush()

    assert store.errors == 1
    assert addresses(store.load(NOW_MS)) == ["@(before)"]


def fill(store: StateStore) -> None:
    for number in range(1_000, 3_000):
        store.persist(row(f"@(local/{number})"))


def change(path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path.write_bytes(spoil(path.read_bytes()))


def overwritten(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + b"\xff" * 4_096 + content[middle + 4_096 :]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(b"somebody's notes\n" * 100), "not a database"),
        (lambda path: execute(path, f"PRAGMA user_version = {schema.VERSION + 1}"), "version is"),
        (lambda path: change(path, overwritten), "state.db"),
        (lambda path: change(path, lambda old: old[: len(old) // 2]), "state.db"),
        (lambda path: change(path, lambda old: old.replace(b"/1050)", b"/9999)")), "damaged"),
        (
            lambda path: execute(path, "UPDATE registration SET capabilities = 'x'"),
            "cannot be used",
        ),
    ],
    ids=["no database", "newer", "overwritten", "truncated", "readable damage", "bad row"],
)
def test_a_file_that_cannot_be_trusted_is_refused_and_left_alone(
    store: StateStore, path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    fill(store)
    store.close()
    spoil(path)
    before = path.read_bytes()

    with pytest.raises(SettingsError, match=reason) as caught:
        reopened(path)

    assert path.read_bytes() == before
    assert str(path) in str(caught.value)


def test_a_database_of_another_program_and_a_folder_are_refused(tmp_path: Path) -> None:
    foreign, folder, file = tmp_path / "foreign.db", tmp_path / "folder", tmp_path / "file"
    execute(foreign, "CREATE TABLE registration (address)")
    folder.mkdir()
    file.write_text("")

    for path, reason in (
        (foreign, "another program"),
        (folder, "cannot be used"),
        (file / "state.db", "cannot be used"),
    ):
        with pytest.raises(SettingsError, match=reason):
            StateStore(path)


# Persists rows for ever; prints the number up to which everything was flushed.
WRITER = f"""
import itertools, sys
from signalhub.state.store import RegistrationRow, StateStore

store = StateStore(sys.argv[1])
for number in itertools.count():
    store.persist(
        RegistrationRow(f"@(local/{{number}})", ["a"], b"{{}}", {NOW_MS}, {NOW_MS} * 2, 1, number)
    )
    if number % 100 == 99:
        store.flush()
        print(number, flush=True)
"""


@pytest.mark.parametrize("flushes", [1, 10])
def test_what_was_flushed_survives_a_kill(flushes: int, path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        flushed = [int(writer.stdout.readline()) for _ in range(flushes)][-1]
    finally:
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=30)
    flushed = max([flushed, *map(int, rest.splitlines())])

    loaded = {one.version: one.address for one in reopened(path)}

    assert loaded.keys() >= set(range(flushed + 1))
    assert all(address == f"@(local/{number})" for number, address in loaded.items())
