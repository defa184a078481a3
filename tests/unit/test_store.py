from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[StateStore]:
    store = StateStore(path)
    yield store
    store.close()


def reopened(path: Path, now_ms: int = NOW_MS) -> list[RegistrationRow]:
    store = StateStore(path)
    try:
        return store.load(now_ms)
    finally:
        store.close()


def test_a_new_store_is_empty(store: StateStore) -> None:
    assert store.load(NOW_MS) == []


def test_what_was_persisted_is_loaded_after_a_restart(store: StateStore, path: Path) -> None:
    rows = [row("@(local/b)", NOW_MS), row("@(local/a)", NOW_MS + 1, version=7)]
    for one in rows:
        store.persist(one)
    store.close()

    assert reopened(path) == rows


def test_rows_come_in_the_order_of_registration(store: StateStore) -> None:
    for number, address in enumerate(["@(c)", "@(a)", "@(b)"]):
        store.persist(row(address, NOW_MS + number))

    assert [one.address for one in store.load(NOW_MS)] == ["@(c)", "@(a)", "@(b)"]


def test_the_newest_note_about_an_address_wins(store: StateStore) -> None:
    store.persist(row("@(kept)", version=1))
    store.persist(row("@(kept)", version=2))
    store.persist(row("@(gone)"))
    store.forget(["@(gone)", "@(never there)"])
    store.forget(["@(back)"])
    store.persist(row("@(back)"))

    loaded = {one.address: one.version for one in store.load(NOW_MS)}

    assert loaded == {"@(kept)": 2, "@(back)": 1}


def test_a_written_row_can_be_updated_and_forgotten(store: StateStore) -> None:
    store.persist(row("@(a)", version=1))
    store.persist(row("@(b)", version=1))
    store.flush()
    store.persist(row("@(a)", version=2, expires_at=NOW_MS + 1))
    store.forget(["@(b)"])

    assert store.load(NOW_MS) == [row("@(a)", version=2, expires_at=NOW_MS + 1)]


def test_loading_deletes_what_has_expired(store: StateStore, path: Path) -> None:
    store.persist(row("@(old)", expires_at=NOW_MS))
    store.persist(row("@(young)", expires_at=NOW_MS + 1))

    assert [one.address for one in store.load(NOW_MS)] == ["@(young)"]
    store.close()
    assert [one.address for one in reopened(path, now_ms=0)] == ["@(young)"]


def test_cleaning_deletes_what_has_expired(store: StateStore) -> None:
    store.persist(row("@(old)", expires_at=NOW_MS))
    store.persist(row("@(young)", expires_at=NOW_MS + 1))

    store.clean(NOW_MS)
    store.flush()

    assert [one.address for one in store.load(0)] == ["@(young)"]


def test_notes_are_written_without_anybody_waiting(store: StateStore, path: Path) -> None:
    store.persist(row("@(a)"))
    reader = apsw.Connection(str(path))
    reader.set_busy_timeout(5_000)

    written = (reader.execute("SELECT count(*) FROM registration").get for _ in range(1_000_000))

    assert next(count for count in written if count) == 1
    reader.close()


def test_a_closed_store_can_be_closed_again_but_not_used(store: StateStore) -> None:
    store.close()
    store.close()

    with pytest.raises(AssertionError):
        store.persist(row("@(a)"))


def test_the_size_is_that_of_the_files(store: StateStore, path: Path) -> None:
    empty_bytes = store.size_bytes()
    for number in range(1_000):
        store.persist(row(f"@(local/{number})"))
    store.flush()

    on_disk = path.stat().st_size + path.with_name("state.db-wal").stat().st_size
    assert store.size_bytes() == on_disk > empty_bytes


def test_a_failed_write_is_logged_and_counted_and_the_store_goes_on(
    store: StateStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    breaker = apsw.Connection(str(path))
    breaker.execute("ALTER TABLE registration RENAME TO hidden")

    store.persist(row("@(lost)"))
    store.flush()
    assert store.errors == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]

    breaker.execute("ALTER TABLE hidden RENAME TO registration")
    breaker.close()
    store.persist(row("@(kept)"))
    assert [one.address for one in store.load(NOW_MS)] == ["@(kept)"]
    assert store.errors == 1


def test_a_failed_batch_leaves_nothing_half_done(store: StateStore, path: Path) -> None:
    store.persist(row("@(before)"))
    store.flush()
    store.persist(row("@(good)"))
    store.forget(["@(before)"])
    store.persist(row("@(bad)", version=2**70))
    store.flush()

    assert store.errors == 1
    assert [one.address for one in store.load(NOW_MS)] == ["@(before)"]


def refusal_of(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(SettingsError) as caught:
        reopened(path)
    assert path.read_bytes() == before, "a refused file must be left alone"
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"these are somebody's notes\n" * 100)

    assert "not a database" in refusal_of(path)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    foreign = apsw.Connection(str(path))
    foreign.execute("CREATE TABLE registration (address)")
    foreign.close()

    assert "another program" in refusal_of(path)


def test_a_newer_schema_is_refused(store: StateStore, path: Path) -> None:
    store.close()
    newer = apsw.Connection(str(path))
    newer.pragma("user_version", schema.VERSION + 1)
    newer.close()

    assert f"version is {schema.VERSION + 1}" in refusal_of(path)


def test_a_damaged_file_is_refused(store: StateStore, path: Path) -> None:
    for number in range(2_000):
        store.persist(row(f"@(local/{number})"))
    store.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4_096] = b"\xff" * 4_096
    path.write_bytes(content)

    refusal_of(path)


def test_damage_that_can_still_be_read_is_refused(store: StateStore, path: Path) -> None:
    for number in range(1_000, 1_100):
        store.persist(row(f"@(local/{number})"))
    store.close()
    content = path.read_bytes()
    assert content.count(b"@(local/1050)") == 1
    path.write_bytes(content.replace(b"@(local/1050)", b"@(local/9999)"))

    assert "damaged" in refusal_of(path)


def test_a_truncated_file_is_refused(store: StateStore, path: Path) -> None:
    for number in range(2_000):
        store.persist(row(f"@(local/{number})"))
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    refusal_of(path)


def test_a_row_that_cannot_be_read_is_refused(store: StateStore, path: Path) -> None:
    store.persist(row("@(a)"))
    store.close()
    vandal = apsw.Connection(str(path))
    vandal.execute("UPDATE registration SET capabilities = 'plan'")
    vandal.close()

    assert "cannot be used" in refusal_of(path)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        StateStore(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    with pytest.raises(SettingsError, match="cannot be used"):
        StateStore(tmp_path / "data" / "state.db")


# Persists rows for ever; says after which number everything so far was flushed.
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


@pytest.mark.parametrize("flushes", [1, 3, 10])
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
