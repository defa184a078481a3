"""Pages of an inbox: from memory, the log and the archive, and never past what was not read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from signalhub.core.effects import Fetch, FindTime
from signalhub.wire.entry import StoredEntry
from signalhub.wire.errors import RoomCode
from signalhub.wire.room_ids import default_inbox
from tests.support.memory.rooms import (
    INBOX,
    archived,
    cut_before,
    fill,
    holding,
    inbox_of,
    items,
    offset_of,
    pages,
    read,
    room_shell,
    send,
    seqs,
    with_archive,
)
from tests.support.memory.shell import MemoryShell


def erase(shell: MemoryShell, *positions: int) -> None:
    """Entries lose their bodies and keep their places."""
    stream = shell.engine._streams[inbox_of(shell).name, 1]
    for at, one in enumerate(stream):
        if one.seq in positions:
            stream[at] = msgspec.structs.replace(one, body=b"", is_erased=True)


# Pages.


def test_a_page_holds_what_a_client_reads() -> None:
    shell = room_shell()
    shell.clock.advance(7)
    send(shell, "a", b"Y2lwaGVy")

    page = read(shell).page

    assert items(page) == [
        {
            "seq": 1,
            "messageId": "a",
            "ciphertext": "Y2lwaGVy",
            "createdAt": "2025-10-09T08:53:25Z",
        }
    ]
    assert (page.next_seq, page.oldest, page.is_partial) == (2, 1, False)


@pytest.mark.parametrize(
    ("timestamps", "created_at"),
    [("exact", "2025-10-09T08:53:27.089Z"), ("coarse", "2025-10-09T08:53:25Z"), ("none", None)],
)
@pytest.mark.parametrize("buffer", [1, 500])
def test_a_page_tells_times_as_coarsely_as_asked_for(
    timestamps: str, created_at: str | None, buffer: int
) -> None:
    shell = room_shell(timestamps=timestamps, buffer=buffer)
    shell.clock.advance(7.089)
    fill(shell, 2)

    found = [one.get("createdAt") for one in items(read(shell).page)]

    assert found == [created_at, created_at]


@pytest.mark.parametrize("from_seq", [0, 1])
def test_reading_begins_at_the_first_message(from_seq: int) -> None:
    shell = room_shell()
    fill(shell, 3)

    assert seqs(read(shell, from_seq).page) == [1, 2, 3]


def test_the_cursor_is_inclusive_and_the_next_one_follows_the_page() -> None:
    shell = room_shell()
    fill(shell, 10)

    page = read(shell, 4, 3).page

    assert (seqs(page), page.next_seq) == ([4, 5, 6], 7)


@pytest.mark.parametrize("from_seq", [4, 5, 2**53 - 1])
def test_beyond_the_end_there_is_an_empty_page_and_the_same_cursor(from_seq: int) -> None:
    shell = room_shell()
    fill(shell, 3)

    page = read(shell, from_seq).page

    assert (page.messages, page.next_seq, page.oldest) == ([], from_seq, 1)


@pytest.mark.parametrize("buffer", [1, 7, 100, 500])
@pytest.mark.parametrize("limit", [1, 3, 40, 1_000])
def test_pages_join_without_gaps_wherever_memory_begins(buffer: int, limit: int) -> None:
    shell = room_shell(buffer=buffer)
    fill(shell, 120)

    assert pages(shell, limit) == list(range(1, 121))


def test_2500_messages_come_in_three_pages() -> None:
    shell = room_shell()
    fill(shell, 2_500)

    sizes, from_seq = [], 0
    for _ in range(4):
        page = read(shell, from_seq, 1_000).page
        sizes.append(len(page.messages))
        from_seq = page.next_seq

    assert (sizes, from_seq) == ([1_000, 1_000, 500, 0], 2_501)


def test_memory_answers_at_once_even_while_the_log_cannot_be_read() -> None:
    shell = room_shell(buffer=5)
    fill(shell, 10)
    shell.engine.is_readable = False

    assert seqs(read(shell, 6).page) == [6, 7, 8, 9, 10]
    assert read(shell, 5).results == []
    assert shell.tally.rooms.log_reads == 1


def test_after_a_restart_pages_come_from_the_log() -> None:
    shell = room_shell()
    fill(shell, 10)

    again = shell.restarted()
    fill(again, 2, first=11)

    assert pages(again, 4) == list(range(1, 13))
    assert again.tally.rooms.log_reads > 0


def test_a_page_ends_at_its_size_in_bytes_and_holds_one_message_at_least() -> None:
    shell = room_shell(page_bytes_max=1_000, buffer=4)
    for number in range(1, 11):
        send(shell, f"m{number}", b"A" * (2_000 if number in (3, 8) else 300))

    sizes = [len(read(shell, from_seq, 100).page.messages) for from_seq in (1, 3, 4, 7, 8, 9)]

    assert sizes == [2, 1, 2, 1, 1, 2]
    assert pages(shell, 100) == list(range(1, 11))


def test_small_messages_in_memory_do_not_follow_large_ones_in_the_log_too_soon() -> None:
    """The page has room for them, but what lies between was not read."""
    shell = room_shell(page_bytes_max=1_000, buffer=2)
    fill(shell, 2)
    send(shell, "large", b"A" * 950)
    fill(shell, 5, first=4)

    page = read(shell, 1, 100).page

    assert (seqs(page), page.next_seq) == ([1, 2], 3)
    assert pages(shell, 100) == list(range(1, 9))


# Races.


def test_a_message_that_leaves_memory_while_the_log_is_read_is_not_missed() -> None:
    shell = room_shell(buffer=3)
    fill(shell, 6)
    shell.engine.is_readable = False
    caller = read(shell, 2)
    fill(shell, 10, first=7)

    shell.engine.is_readable = True
    shell.settle()

    assert seqs(caller.page) == [2, 3, 4, 5, 6]
    assert caller.page.next_seq == 7


def test_a_message_that_leaves_memory_while_the_archive_is_asked_is_not_missed() -> None:
    shell = room_shell(buffer=3, always_query_store=True)
    fill(shell, 6)
    with_archive(shell, lambda consult: [])
    shell.engine.is_readable = False
    caller = read(shell, 4)
    fill(shell, 10, first=7)
    cut_before(shell, 15)

    shell.engine.is_readable = True
    shell.settle()

    assert (seqs(caller.page), caller.page.next_seq) == ([4, 5, 6], 7)


def test_what_is_accepted_and_archived_meanwhile_does_not_let_the_cursor_jump() -> None:
    shell = room_shell(buffer=3, always_query_store=True)
    fill(shell, 100)
    # 101 is not there yet when 102 is.
    with_archive(shell, lambda consult: [*map(archived, range(99, 101)), archived(102)])
    shell.engine.is_readable = False
    caller = read(shell, 99)
    fill(shell, 2, first=101)

    shell.engine.is_readable = True
    shell.settle()

    assert (seqs(caller.page), caller.page.next_seq) == ([99, 100], 101)
    assert seqs(read(shell, 101).page) == [101, 102]


def test_what_is_accepted_while_the_log_is_read_is_the_next_pages() -> None:
    shell = room_shell(buffer=3)
    fill(shell, 6)
    shell.engine.is_readable = False
    callers = [read(shell, 1), read(shell, 1, 4)]
    shell.engine.is_prompt = False
    send(shell, "m7")
    shell.engine.is_readable = True
    shell.engine.commit()
    shell.settle()

    assert [seqs(caller.page) for caller in callers] == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]


def test_what_expires_while_the_log_is_read_is_not_served() -> None:
    shell = room_shell(buffer=2, retention={"general": 60.0})
    fill(shell, 4)
    shell.clock.advance(10)
    fill(shell, 2, first=5)
    shell.clock.advance(45)
    shell.engine.is_readable = False
    caller = read(shell)
    shell.clock.advance(5)

    shell.engine.is_readable = True
    shell.settle()

    assert seqs(caller.page) == [5, 6]


# The log was cut, or is damaged.


def test_without_an_archive_reading_begins_where_the_log_does() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 10)
    cut_before(shell, 4)

    page = read(shell, 1, 3).page

    assert (seqs(page), page.next_seq) == ([4, 5, 6], 7)
    assert read(shell, 1, 3).page.oldest == 4
    assert pages(shell, 4) == [4, 5, 6, 7, 8, 9, 10]


def test_a_log_cut_under_the_reader_loses_only_what_was_cut() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 10)
    shell.engine.is_readable = False
    caller = read(shell, 1)
    cut_before(shell, 5)
    shell.engine.is_readable = True
    shell.settle()

    assert seqs(caller.page) == [5, 6, 7, 8, 9, 10]


def test_a_log_that_was_cut_to_nothing_leaves_what_memory_holds() -> None:
    shell = room_shell(buffer=3)
    fill(shell, 10)
    shell.engine.cut(shell.engine.head)

    assert pages(shell, 2) == [8, 9, 10]


@pytest.mark.parametrize("archive_has", [0, 3])
def test_behind_a_gap_the_log_is_read_to_its_end_before_memory(archive_has: int) -> None:
    shell = room_shell(buffer=2, page_bytes_max=1_000)
    fill(shell, 5)
    send(shell, "m6", b"A" * 970)
    fill(shell, 4, first=7)
    cut_before(shell, 4)
    if archive_has:
        with_archive(shell, holding(1, archive_has), offset_of(shell, 4))

    assert pages(shell, 100, 1) == list(range(1 if archive_has else 4, 11))


def test_erased_entries_are_passed_over() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 20)
    erase(shell, 1, 2, 3, 7, 17, 18)

    expected = [4, 5, 6, *range(8, 17), 19, 20]
    assert [pages(shell, limit) for limit in (1, 2, 3, 100)] == [expected] * 4


def test_an_inbox_of_erased_entries_has_an_end() -> None:
    shell = room_shell(buffer=1)
    fill(shell, 5)
    erase(shell, 1, 2, 3, 4, 5)

    again = shell.restarted()
    erase(again, 1, 2, 3, 4, 5)

    assert pages(again, 2) == []


def test_a_read_that_fails_is_answered_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = room_shell(buffer=2)
    fill(shell, 10)

    def fail(fetch: Fetch, done: Callable[[list[StoredEntry] | None], None]) -> None:
        shell.engine.later(lambda: done(None))

    with monkeypatch.context() as broken:
        broken.setattr(shell.engine, "fetch", fail)
        error = read(shell, 1).error
        recent = read(shell, 9).page

    assert error.code == RoomCode.UNAVAILABLE
    assert error.retry_after_ms is not None
    assert seqs(recent) == [9, 10]
    assert seqs(read(shell, 1, 2).page) == [1, 2]


@pytest.mark.parametrize("what", ["fetch", "find_time"])
def test_a_search_for_the_oldest_that_fails_gives_nothing_up(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = room_shell(buffer=1, retention_s=60.0)
    fill(shell, 3)
    shell.clock.advance(30)
    fill(shell, 3, first=4)
    shell.clock.advance(40)

    def fail(wanted: Fetch | FindTime, done: Callable[[None], None]) -> None:
        shell.engine.later(lambda: done(None))

    with monkeypatch.context() as broken:
        broken.setattr(shell.engine, what, fail)
        error = read(shell).error

    assert error.code == RoomCode.UNAVAILABLE
    assert seqs(read(shell).page) == [4, 5, 6]


def test_a_log_that_returns_less_than_asked_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged block ends a read early; behind it is more."""
    shell = room_shell(buffer=2)
    fill(shell, 20)
    found = shell.engine._found
    monkeypatch.setattr(shell.engine, "_found", lambda fetch: found(fetch)[:3])

    assert seqs(read(shell, 1, 10).page) == list(range(1, 11))
    assert pages(shell, 100) == list(range(1, 21))


def test_another_inbox_has_its_own_pages() -> None:
    shell = room_shell()
    fill(shell, 3)
    fill(shell, 1, room="another")

    assert seqs(read(shell, inbox=INBOX).page) == [1, 2, 3]
    assert seqs(read(shell, inbox=default_inbox("another")).page) == [1]
