"""A disk that takes nothing more: the turn has not happened, and the host goes on afterwards."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from signalhub.actors import RemoteError
from signalhub.actors.store.store import StorageFailed
from tests.support.actors.offload import Fetcher, Unhurried
from tests.support.actors.scripted import Scripted, Stage, Target, calling, stored


class Caller(Scripted):
    """Its methods need room on the disk."""

    def note_and_fill(self, value: Any) -> None:
        self.note(value)
        self.state.put("filling", "x" * 300_000)


def call_and_fill(self: Caller, value: Any) -> None:
    self.call("target/1", "note", value, then=self.note_and_fill)
    self.state.put("filling", "y" * 100_000)


Full = Callable[[Stage], Any]


@contextmanager
def no_pages_left(local: Stage) -> Iterator[None]:
    """Statements fail that need a new page."""
    connection = local.kernel.store.connection
    before = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    try:
        yield
    finally:
        connection.pragma("max_page_count", before)


@contextmanager
def no_room_left(local: Stage) -> Iterator[None]:
    """Files cannot grow, so it is the commit that fails."""
    size = os.path.getsize(f"{local.kernel.store.path}-wal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(path: str, how: str) -> Iterator[None]:
    """Somebody else is writing the file."""
    other = apsw.Connection(path)
    other.execute(f"BEGIN {how}")
    try:
        yield
    finally:
        other.close()


points: list[str] = []


@pytest.fixture
def local(tmp_path: Path) -> Stage:
    local = stored(tmp_path, Caller, Target, reached=points.append)
    local.call("target/1", "note", "here")
    local.do("caller/1", lambda self: None)
    return local


def fail(local: Stage, full: Full) -> None:
    """A turn for which there is no room; nothing has happened."""
    points.clear()
    with full(local), pytest.raises(StorageFailed):
        local.run()
    assert local.kernel.counters.failed_turns == 1
    assert not local.kernel.store.connection.in_transaction
    assert local.state("caller/1").list() == {}
    assert (points[-1] == "commit") == (full is no_room_left)


def make_request(local: Stage) -> None:
    local.start("caller/1", call_and_fill, 7)


def make_alarm(local: Stage) -> None:
    local.do("caller/1", lambda self: self.alarms.schedule(5, self.note_and_fill, 7).id)
    local.clock.advance(5)


def make_timeout(local: Stage) -> None:
    local.do("caller/1", calling("later", then="note_and_fill", timeout=5))
    local.clock.advance(5)


def make_stored_outcome(local: Stage) -> None:
    def fail_first(self: Caller, outcome: Any) -> None:
        if not tries:
            tries.append(outcome)
            raise ValueError("so that it is stored")
        self.note_and_fill(outcome)

    tries: list[Any] = []
    local.do("caller/1", lambda self: calling("note", 7, then=self.script(fail_first))(self))
    assert local.count("inbox") == 1
    local.clock.advance(2)


@pytest.mark.parametrize("full", [no_pages_left, no_room_left])
@pytest.mark.parametrize("make", [make_request, make_alarm, make_timeout, make_stored_outcome])
def test_what_finds_no_room_has_not_happened_and_is_done_once_there_is(
    local: Stage, make: Callable[[Stage], None], full: Full
) -> None:
    make(local)
    fail(local, full)
    # Something else is done first, so that what the failed turn left in memory would show.
    local.call("target/2", "note", "else")
    local.run()

    is_timeout = make is make_timeout
    assert local.notes() == [["timeout", "unknown"] if is_timeout else 7]
    has_called = make in (make_request, make_stored_outcome)
    assert local.notes("target/1") == (["here", 7] if has_called else ["here"])
    assert local.count("pending", "inbox", "alarms") == 0


@pytest.mark.parametrize("full", [no_pages_left, no_room_left])
def test_requests_are_listed_once_although_their_turn_failed(local: Stage, full: Full) -> None:
    before = local.count("finished")
    local.begin("target/1", "note", "first")
    local.start("caller/1", call_and_fill, 7)

    fail(local, full)
    local.run()

    # Both, and the request that the second one made.
    assert local.count("finished") == before + 3


def test_a_handler_that_ignores_a_full_disk_has_not_happened_either(local: Stage) -> None:
    def fill_and_ignore(self: Caller) -> str:
        said = "there was room"
        self.state.put("before", 1)
        for key, value in (("filling", "x" * 100_000), ("after", "y")):
            try:
                self.state.put(key, value)
            except apsw.Error:
                said = "who cares"
        return said

    asked = local.start("caller/1", fill_and_ignore)
    fail(local, no_pages_left)
    local.run()

    assert local.outcome(asked) == "there was room"


@pytest.mark.parametrize("what", ["writes", "raises", "returns", "starts"])
def test_a_transaction_that_sqlite_rolled_back_ends_the_turn(tmp_path: Path, what: str) -> None:
    class Unlucky(Scripted):
        def on_start(self) -> None:
            if what == "starts":
                self.work()

        def work(self) -> None:
            self.state.put("before", 1)
            if not is_repaired:
                # What SQLite does by itself upon some failures.
                local.kernel.store.execute("ROLLBACK")
            if what == "writes":
                self.state.put("after", 1)
            if what == "raises" and not is_repaired:
                raise ValueError("it was not me")

    is_repaired: list[bool] = []
    local = stored(tmp_path, Unlucky)
    asked = local.start("unlucky/1", Unlucky.work)
    with pytest.raises(StorageFailed, match="the transaction was rolled back"):
        local.run()
    assert local.state("unlucky/1").list() == {}
    is_repaired.append(True)
    local.run()

    assert local.outcome(asked) is None
    assert local.kernel.counters.requests == 1


def test_a_file_that_somebody_else_is_writing_is_a_failure_of_the_turn(local: Stage) -> None:
    local.kernel.store.connection.set_busy_timeout(1)
    asked = local.begin("target/1", "note", 7)
    with (
        locked(local.kernel.store.path, "IMMEDIATE"),
        pytest.raises(StorageFailed, match="locked"),
    ):
        local.run()
    local.run()

    assert local.outcome(asked) == 7


def test_what_ended_during_a_failed_turn_is_asked_for_again(tmp_path: Path) -> None:
    local = Unhurried(Fetcher, path=tmp_path / "a.db")
    local.call("fetcher/1", "fetch", 1)
    local.kernel.store.connection.set_busy_timeout(1)
    with locked(local.kernel.store.path, "IMMEDIATE"), pytest.raises(StorageFailed):
        local.end(local.begun[0])
    local.run()

    assert len(local.begun) == 2
    local.end(local.begun[1])
    assert local.state("fetcher/1").get("got") == "ended"


@pytest.mark.parametrize("how", ["request", "continuation", "alarm", "start"])
@pytest.mark.parametrize("what", ["put", "sql"])
def test_a_failure_of_the_hosts_file_ends_the_turn_at_once(how: str, what: str) -> None:
    class Unlucky(Scripted):
        def on_start(self) -> None:
            if how == "start":
                self.work()

        def begin(self) -> None:
            if how == "request":
                self.work()
            elif how == "continuation":
                self.call("target/1", "note", 7, then=self.work)
            elif how == "alarm":
                self.alarms.schedule(0, self.work)

        def work(self, *_: Any) -> None:
            # Only for a moment, so that nothing else fails after it.
            set_pragma = local.kernel.store.connection.pragma
            set_pragma("query_only", not is_repaired)
            try:
                if what == "put":
                    self.state.put("worked", True)
                else:
                    self.state.sql("CREATE TABLE {items} (name)")
            finally:
                set_pragma("query_only", False)

    is_repaired: list[bool] = []
    local = Stage(Unlucky, Target)
    asked = local.start("unlucky/1", Unlucky.begin)
    with pytest.raises(StorageFailed, match="readonly"):
        local.run()
    is_repaired.append(True)
    local.run()

    assert local.outcome(asked) is None
    assert local.kernel.counters.failed_turns == 1
    assert local.state("unlucky/1").get("worked", False) is (what == "put")


def read_own(self: Scripted, path: str) -> None:
    """Use a database of its own that cannot be used."""
    self.note(path)
    apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)


def write_own(self: Scripted, path: str, *_: Any) -> None:
    self.note(path)
    apsw.Connection(path).execute("CREATE TABLE books (title)")


def test_a_failure_of_a_file_of_its_own_concerns_only_the_actor(tmp_path: Path) -> None:
    class Starting(Caller):
        def on_start(self) -> None:
            read_own(self, os.fspath(tmp_path / "absent.db"))

    def go(self: Caller) -> None:
        calling("note", then=self.script(write_own, path))(self)
        self.alarms.schedule(5, self.script(write_own, path))

    local = Stage(Caller, Starting, Target)
    path = os.fspath(tmp_path / "library.db")
    with pytest.raises(RemoteError, match="unable to open"):
        local.do("caller/1", read_own, os.fspath(tmp_path / "absent.db"))
    local.start("starting/1", lambda self: None)
    with locked(path, "EXCLUSIVE"):
        with pytest.raises(RemoteError, match="database is locked"):
            local.do("caller/1", write_own, path)
        assert local.notes() == []
        local.do("caller/1", go)
        local.advance(5)
        assert local.call("target/2", "note", 7) == 7
    local.advance(1)
    assert local.kernel.counters.unstarted == 1
    local.advance(60)

    # The second of them finds the table of the first.
    assert local.notes() == [path]
    assert local.kernel.counters.failed_turns == 0


@contextmanager
def little_memory() -> Iterator[None]:
    before = apsw.hard_heap_limit(apsw.memory_used() + 10_000_000)
    try:
        yield
    finally:
        apsw.hard_heap_limit(before)


@pytest.mark.parametrize(
    ("size", "error"), [(50_000_000, "not enough memory for the statement"), (3 * 10**9, "too big")]
)
def test_a_statement_may_want_too_much_memory(local: Stage, size: int, error: str) -> None:
    def want(self: Caller) -> None:
        self.note(size)
        self.state.sql("SELECT length(randomblob(?))", [size])

    with little_memory(), pytest.raises(RemoteError, match=error):
        local.do("caller/1", want)

    assert local.notes() == []
    assert local.kernel.counters.failed_turns == 0
