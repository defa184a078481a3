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

from signalhub.actors import Actor, RemoteError, Token, remote
from signalhub.actors.store.store import StorageFailed
from signalhub.testing.local_actors import LocalActors
from tests.support.actors.offload import Fetcher, Unhurried


class Echo(Actor):
    @remote
    def echo(self, value: Any) -> Any:
        self.state.put("seen", [*self.state.get("seen", []), value])
        return value

    @remote
    def later(self) -> Token:
        return self.defer()


class Asker(Actor):
    """Its methods need room on the disk."""

    @remote
    def ask(self, value: Any) -> None:
        self.call("echo/1", "echo", value, then=self.on_done)
        self.fill()

    @remote
    def set_alarm(self) -> None:
        self.alarms.schedule(5, self.ring)

    @remote
    def ask_later(self) -> None:
        self.call("echo/1", "later", then=self.on_done, timeout=5)

    @remote
    def fill(self) -> None:
        self.state.put("filling", "x" * 100_000)

    @remote
    def fill_and_take_no_notice(self) -> str:
        said = "there was room"
        self.state.put("before", 1)
        try:
            self.fill()
        except apsw.Error:
            said = "who cares"
        try:
            self.state.put("after", 1)
        except apsw.Error:
            said = "who cares"
        return said

    def on_done(self, outcome: Any) -> None:
        self.state.put("outcomes", [*self.state.get("outcomes", []), str(outcome)])
        self.state.put("filling", "y" * 300_000)

    def ring(self) -> None:
        self.state.put("rung", self.state.get("rung", 0) + 1)
        self.state.put("filling", "z" * 100_000)


Full = Callable[[LocalActors], Any]


@contextmanager
def no_pages_left(local: LocalActors) -> Iterator[None]:
    """Statements fail that need a new page."""
    connection = local.kernel.store.connection
    before = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    try:
        yield
    finally:
        connection.pragma("max_page_count", before)


@contextmanager
def no_room_left(local: LocalActors) -> Iterator[None]:
    """Files cannot grow, so it is the commit that fails."""
    size = os.path.getsize(f"{local.kernel.store.path}-wal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


points: list[str] = []
both = pytest.mark.parametrize("full", [no_pages_left, no_room_left])


@pytest.fixture
def local(tmp_path: Path) -> LocalActors:
    local = LocalActors(Asker, Echo, path=tmp_path / "a.db", reached=points.append)
    local.call("echo/1", "echo", "here")
    local.call("asker/1", "set_alarm")
    points.clear()
    return local


def fail(local: LocalActors, full: Full) -> None:
    """A turn for which there is no room."""
    with full(local), pytest.raises(StorageFailed):
        local.run()
    assert local.kernel.counters.failed_turns == 1
    assert not local.kernel.store.connection.in_transaction


@both
def test_a_request_has_not_happened_and_is_done_once_there_is_room(
    local: LocalActors, full: Full
) -> None:
    asked = local.begin("asker/1", "ask", 7)
    fail(local, full)
    assert local.state("asker/1").list() == {}
    assert local.state("echo/1").get("seen") == ["here"]
    local.run()

    assert local.outcome(asked) is None
    assert local.state("echo/1").get("seen") == ["here", 7]
    assert local.state("asker/1").get("outcomes") == ["7"]


def test_a_failure_of_the_commit_itself_is_one_of_the_whole_turn(local: LocalActors) -> None:
    local.begin("asker/1", "ask", 7)
    fail(local, no_room_left)

    assert points[-1] == "commit"


@both
def test_an_alarm_has_not_rung_and_rings_once_there_is_room(local: LocalActors, full: Full) -> None:
    local.clock.advance(5)
    fail(local, full)
    assert local.state("asker/1").get("rung") is None
    local.run()

    assert local.state("asker/1").get("rung") == 1
    assert local.kernel.store.execute("SELECT count(*) FROM alarms").get == 0


@both
def test_a_timeout_is_delivered_once_there_is_room(local: LocalActors, full: Full) -> None:
    local.call("asker/1", "ask_later")
    local.kernel.counters.failed_turns = 0
    local.clock.advance(5)
    fail(local, full)
    assert local.state("asker/1").get("outcomes") is None
    local.run()

    assert len(local.state("asker/1").get("outcomes")) == 1
    assert local.kernel.store.execute("SELECT count(*) FROM pending").get == 0


@both
def test_a_stored_outcome_is_not_lost_with_the_turn_that_ran_its_continuation(
    tmp_path: Path, full: Full
) -> None:
    class Trying(Asker):
        def on_done(self, outcome: Any) -> None:
            tries.append(outcome)
            if len(tries) == 1:
                raise ValueError("so that it is stored")
            super().on_done(outcome)

    tries: list[Any] = []
    local = LocalActors(Trying, Echo, path=tmp_path / "a.db")
    local.call("trying/1", "ask", 7)
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 1
    local.clock.advance(2)
    fail(local, full)
    # Something else is done first, so that what the failed turn left in memory would show.
    local.call("echo/1", "echo", "else")
    local.run()

    assert local.state("trying/1").get("outcomes") == ["7"]
    assert local.kernel.store.execute("SELECT count(*) FROM pending").get == 0
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 0


def test_a_handler_that_takes_no_notice_of_a_full_disk_has_not_happened_either(
    local: LocalActors,
) -> None:
    asked = local.begin("asker/1", "fill_and_take_no_notice")
    fail(local, no_pages_left)
    assert local.state("asker/1").list() == {}
    local.run()

    assert local.outcome(asked) == "there was room"


@pytest.mark.parametrize("what", ["writes", "raises", "returns"])
def test_a_transaction_that_sqlite_rolled_back_ends_the_turn_whatever_the_handler_does(
    tmp_path: Path, what: str
) -> None:
    class Unlucky(Actor):
        @remote
        def work(self) -> str:
            self.state.put("before", 1)
            if not is_repaired:
                # What SQLite does by itself upon some failures.
                local.kernel.store.execute("ROLLBACK")
            if what == "writes":
                self.state.put("after", 1)
            if what == "raises" and not is_repaired:
                raise ValueError("it was not me")
            return "done"

    is_repaired: list[bool] = []
    local = LocalActors(Unlucky, path=tmp_path / "a.db")
    asked = local.begin("unlucky/1", "work")
    local.turn()
    with pytest.raises(StorageFailed, match="the transaction was rolled back"):
        local.turn()
    assert local.state("unlucky/1").list() == {}
    is_repaired.append(True)
    local.run()

    assert local.outcome(asked) == "done"
    assert local.kernel.counters.requests == 1


def test_a_transaction_that_was_rolled_back_while_an_actor_started_ends_the_turn(
    tmp_path: Path,
) -> None:
    class Unlucky(Actor):
        def on_start(self) -> None:
            if not is_repaired:
                local.kernel.store.execute("ROLLBACK")

        @remote
        def work(self) -> str:
            return "done"

    is_repaired: list[bool] = []
    local = LocalActors(Unlucky, path=tmp_path / "a.db")
    asked = local.begin("unlucky/1", "work")
    with pytest.raises(StorageFailed, match="the transaction was rolled back"):
        local.run()
    is_repaired.append(True)
    local.run()

    assert local.outcome(asked) == "done"


def test_a_file_that_somebody_else_is_writing_is_a_failure_of_the_turn(
    local: LocalActors,
) -> None:
    local.kernel.store.connection.set_busy_timeout(1)
    other = apsw.Connection(local.kernel.store.path)
    other.execute("BEGIN IMMEDIATE")
    asked = local.begin("echo/1", "echo", 7)
    with pytest.raises(StorageFailed, match="locked"):
        local.run()
    other.execute("ROLLBACK")
    other.close()
    local.run()

    assert local.outcome(asked) == 7


@pytest.mark.parametrize("how", ["request", "continuation", "alarm", "start"])
@pytest.mark.parametrize("what", ["put", "sql"])
def test_a_failure_of_the_hosts_file_ends_the_turn_even_if_the_transaction_is_still_there(
    how: str, what: str
) -> None:
    class Unlucky(Actor):
        def on_start(self) -> None:
            if how == "start":
                self.work()

        @remote
        def begin(self) -> None:
            if how == "request":
                self.work()
            elif how == "continuation":
                self.call("echo/1", "echo", 7, then=self.work)
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
    local = LocalActors(Unlucky, Echo)
    asked = local.begin("unlucky/1", "begin")
    with pytest.raises(StorageFailed, match="readonly"):
        local.run()
    is_repaired.append(True)
    local.run()

    assert local.outcome(asked) is None
    assert local.kernel.counters.failed_turns == 1
    assert local.state("unlucky/1").get("worked", False) is (what == "put")


class Librarian(Actor):
    """Has a database of its own that cannot be used."""

    @remote
    def read(self, path: str) -> None:
        self.state.put("read", path)
        apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)

    @remote
    def write(self, path: str) -> None:
        self.state.put("written", path)
        apsw.Connection(path).execute("CREATE TABLE books (title)")

    @remote
    def ask(self, path: str) -> None:
        self.call("echo/1", "echo", path, then=self.write)

    @remote
    def set_alarm(self, path: str) -> None:
        self.alarms.schedule(5, self.write, path)


@contextmanager
def locked_file(tmp_path: Path) -> Iterator[str]:
    path = os.fspath(tmp_path / "library.db")
    other = apsw.Connection(path)
    other.execute("BEGIN EXCLUSIVE")
    yield path
    other.close()


def test_a_failure_of_a_file_that_is_not_the_hosts_is_an_error_of_the_handler(
    tmp_path: Path,
) -> None:
    local = LocalActors(Librarian, Echo)
    with pytest.raises(RemoteError, match="unable to open"):
        local.call("librarian/1", "read", os.fspath(tmp_path / "absent.db"))
    with locked_file(tmp_path) as path, pytest.raises(RemoteError, match="database is locked"):
        local.call("librarian/1", "write", path)

    assert local.state("librarian/1").list() == {}
    assert local.kernel.counters.failed_turns == 0


def test_a_continuation_and_an_alarm_whose_own_file_fails_are_tried_again_alone(
    tmp_path: Path,
) -> None:
    local = LocalActors(Librarian, Echo)
    with locked_file(tmp_path) as path:
        local.call("librarian/1", "ask", path)
        local.call("librarian/2", "set_alarm", path)
        local.advance(5)
        assert local.call("echo/2", "echo", 7) == 7
    local.advance(60)

    assert local.kernel.counters.failed_turns == 0
    assert local.state("librarian/1").get("written") == path


def test_an_actor_whose_own_file_fails_at_its_start_is_not_started(tmp_path: Path) -> None:
    class Starting(Librarian):
        def on_start(self) -> None:
            self.read(os.fspath(tmp_path / "absent.db"))

    local = LocalActors(Starting, Echo)
    local.begin("starting/1", "set_alarm", "")

    assert local.call("echo/1", "echo", 7) == 7
    assert local.kernel.counters.unstarted == 1


class Greedy(Actor):
    @remote
    def want(self, size: int) -> None:
        self.state.put("wanted", size)
        self.state.sql("SELECT length(randomblob(?))", [size])


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
def test_a_statement_that_wants_too_much_memory_is_an_error_of_the_handler(
    size: int, error: str
) -> None:
    local = LocalActors(Greedy)
    with little_memory(), pytest.raises(RemoteError, match=error):
        local.call("greedy/1", "want", size)

    assert local.state("greedy/1").list() == {}
    assert local.kernel.counters.failed_turns == 0


def test_what_ended_during_a_failed_turn_is_asked_for_again(tmp_path: Path) -> None:
    local = Unhurried(Fetcher, path=tmp_path / "a.db")
    local.call("fetcher/1", "fetch", 1)
    other = apsw.Connection(local.kernel.store.path)
    local.kernel.store.connection.set_busy_timeout(1)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageFailed):
        local.end(local.begun[0])
    other.execute("ROLLBACK")
    other.close()
    local.run()

    assert len(local.begun) == 2
    local.end(local.begun[1])
    assert local.state("fetcher/1").get("got") == "ended"
