"""What the log has lost comes from the archive, and what the archive has not yet is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from signalhub.core.effects import Consult
from signalhub.core.rooms.values import Archived
from signalhub.wire.errors import RoomCode
from tests.support.memory.rooms import (
    Caller,
    archived,
    away,
    cut_before,
    deposit,
    fill,
    holding,
    ids,
    inbox_of,
    items,
    offset_of,
    pages,
    read,
    room_shell,
    send,
    seqs,
    with_archive,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell


def test_a_page_that_memory_and_log_hold_asks_no_archive() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 10)
    asked: list[Consult] = []
    with_archive(shell, lambda consult: asked.append(consult))

    assert pages(shell, 3) == list(range(1, 11))
    assert asked == []


def test_what_the_log_has_lost_comes_from_the_archive() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 30)
    cut_before(shell, 12)
    with_archive(shell, holding(1, 20), offset_of(shell, 12))

    for limit in (1, 4, 11, 12, 100):
        assert pages(shell, limit, 1) == list(range(1, 31))


def test_the_archive_is_asked_for_the_missing_stretch_only() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 30)
    cut_before(shell, 12)
    asked: list[Consult] = []

    def archive(consult: Consult) -> list[Archived]:
        asked.append(consult)
        return [archived(seq) for seq in range(consult.from_seq, consult.to_seq + 1)]

    with_archive(shell, archive, offset_of(shell, 12))
    read(shell, 5, 10)

    (consult,) = asked
    assert (consult.from_seq, consult.to_seq, consult.count_max) == (5, 11, 10)


def test_the_word_of_the_archive_counts() -> None:
    shell = room_shell(always_query_store=True)
    fill(shell, 3)
    with_archive(shell, lambda consult: [archived(2, "m2", b"YXJjaGl2ZWQ")])

    texts = [one["ciphertext"] for one in items(read(shell).page)]

    assert texts == ["aGVsbG8", "YXJjaGl2ZWQ", "aGVsbG8"]


def test_a_message_with_two_positions_keeps_the_one_the_archive_says() -> None:
    shell = room_shell(always_query_store=True)
    fill(shell, 4)
    with_archive(shell, lambda consult: [archived(2, "m4")])

    page = read(shell).page

    assert list(zip(seqs(page), ids(page), strict=True)) == [(1, "m1"), (2, "m4"), (3, "m3")]


def test_of_two_archived_copies_the_lower_position_counts() -> None:
    shell = room_shell(always_query_store=True)
    fill(shell, 4)
    with_archive(shell, lambda consult: [archived(4, "m2"), archived(2, "m2"), archived(3, "m2")])

    page = read(shell).page

    assert list(zip(seqs(page), ids(page), strict=True)) == [
        *((1, "m1"), (2, "m2"), (3, "m3")),
        (4, "m4"),
    ]


def test_archived_messages_come_in_any_order_and_expired_ones_are_not_served() -> None:
    shell = room_shell(buffer=1)
    fill(shell, 10)
    cut_before(shell, 10)
    stored = [
        archived(seq, expires_ms=shell.now + (0 if seq == 5 else 1)) for seq in range(9, 0, -1)
    ]
    with_archive(shell, lambda consult: stored, offset_of(shell, 10))

    assert seqs(read(shell, 1).page) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_an_archive_that_is_away_makes_a_page_partial_and_the_cursor_stays() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 10)
    cut_before(shell, 6)
    with_archive(shell, away, offset_of(shell, 6))

    page = read(shell, 3).page

    assert (seqs(page), page.next_seq, page.is_partial) == ([6, 7, 8, 9, 10], 3, True)
    assert shell.tally.rooms.partial == 1
    assert seqs(read(shell, 6).page) == [6, 7, 8, 9, 10]
    assert not read(shell, 6).page.is_partial


def test_an_archive_that_comes_back_lets_the_reader_go_on() -> None:
    shell = room_shell(buffer=2)
    fill(shell, 10)
    cut_before(shell, 6)
    with_archive(shell, away, offset_of(shell, 6))
    partial = read(shell, 0).page
    with_archive(shell, holding(1, 5), offset_of(shell, 6))

    assert partial.next_seq == 0
    assert pages(shell, 3, partial.next_seq) == list(range(1, 11))


def test_a_strict_hub_would_rather_say_nothing_than_half() -> None:
    shell = room_shell(buffer=2, strict_store=True)
    fill(shell, 10)
    cut_before(shell, 6)
    with_archive(shell, away, offset_of(shell, 6))

    error = read(shell, 3).error

    assert (error.code, error.retry_after_ms) == (RoomCode.UNAVAILABLE, 5_000)
    assert seqs(read(shell, 6).page) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("strict_store", [True, False])
def test_a_page_that_is_held_in_full_does_not_need_the_archive_it_asked(
    strict_store: bool,
) -> None:
    shell = room_shell(buffer=2, always_query_store=True, strict_store=strict_store)
    fill(shell, 10)
    with_archive(shell, away)

    assert pages(shell, 3) == list(range(1, 11))


def test_a_page_cut_by_its_size_does_not_need_the_archive_it_asked() -> None:
    shell = room_shell(buffer=1, always_query_store=True, page_bytes_max=300)
    fill(shell, 20)
    with_archive(shell, away)

    assert pages(shell, 100) == list(range(1, 21))


def test_an_archive_that_is_always_asked_is_asked_for_every_page_with_messages() -> None:
    shell = room_shell(buffer=5, always_query_store=True)
    fill(shell, 10)
    with_archive(shell, holding(1, 10))

    assert pages(shell, 5) == list(range(1, 11))
    assert shell.tally.rooms.archive_reads == 2


def test_an_archive_behind_the_log_hides_nothing() -> None:
    shell = room_shell(buffer=3, always_query_store=True)
    fill(shell, 10)
    with_archive(shell, holding(1, 4))

    for limit in (1, 2, 5, 100):
        assert pages(shell, limit) == list(range(1, 11))


# Too much waits for the archive.


def capped(shell: MemoryShell) -> list[Caller]:
    return [send(shell, "fresh"), deposit(shell, "fresh")]


@pytest.mark.parametrize("bounds", [{"unarchived_max": 5}, {"unarchived_bytes_max": 5 * 7}])
def test_an_inbox_that_waits_for_the_archive_takes_no_more(bounds: dict[str, int]) -> None:
    shell = room_shell(**bounds)
    with_archive(shell, holding(1, 0), shell.engine.head)
    fill(shell, 5)

    refused = capped(shell)

    assert [caller.code for caller in refused] == [RoomCode.UNAVAILABLE] * 2
    assert refused[0].error.retry_after_ms == 5_000
    assert shell.tally.rooms.over_cap == 2
    assert send(shell, "m3").seq == 3
    assert send(shell, "a", room="another").seq == 1
    shell.hub.rooms.archived_to(shell.engine.head)
    assert [caller.seq for caller in capped(shell)] == [6, 6]


def test_without_a_pipeline_nothing_waits_for_it() -> None:
    shell = room_shell(unarchived_max=1)

    fill(shell, 10)


def test_what_was_not_archived_before_a_restart_still_waits() -> None:
    shell = room_shell(unarchived_max=5)
    with_archive(shell, holding(1, 0), shell.engine.head)
    begun = shell.engine.head
    fill(shell, 3)
    shell.save_snapshot()
    fill(shell, 2, first=4)

    again = shell.restarted()
    again.hub.rooms.archived_to(begun)

    assert send(again, "fresh").code == RoomCode.UNAVAILABLE
    again.hub.rooms.archived_to(again.engine.head)
    assert send(again, "fresh").seq == 6


def test_the_count_of_what_waits_is_given_back_in_time() -> None:
    shell = room_shell(unarchived_max=250)
    with_archive(shell, holding(1, 0), shell.engine.head)
    fill(shell, 250)

    shell.hub.rooms.archived_to(offset_of(shell, 201))

    inbox = inbox_of(shell)
    assert 50 <= inbox.unarchived_count <= 149
    assert inbox.unarchived_bytes == 7 * inbox.unarchived_count
    shell.hub.rooms.archived_to(shell.engine.head)
    assert (inbox.unarchived_count, inbox.unarchived_bytes) == (0, 0)


# What an archive changes.


@pytest.mark.parametrize("restart", [MemoryShell.restarted, without_shelf])
def test_archived_messages_are_found_after_a_restart_from_a_log_that_was_cut(
    restart: Callable[[MemoryShell], MemoryShell],
) -> None:
    shell = room_shell(buffer=1)
    fill(shell, 10)
    archived_to = offset_of(shell, 6)
    shell.hub.rooms.archived_to(archived_to)
    shell.save_snapshot()
    shell.engine.cut(archived_to)

    again = restart(shell)
    with_archive(again, holding(1, 5), archived_to)

    assert pages(again, 3) == list(range(1, 11))
    assert read(again).page.oldest == 1


def test_the_oldest_message_may_be_in_the_archive() -> None:
    shell = room_shell(buffer=1, retention={"general": 60.0})
    began_ms = shell.now
    for number in range(1, 11):
        send(shell, f"m{number}")
        shell.clock.advance(10)
    cut_before(shell, 9)

    def archive(consult: Consult) -> list[Archived]:
        stretch = range(consult.from_seq, min(8, consult.to_seq) + 1)
        found = [archived(seq, expires_ms=began_ms + seq * 10_000 + 50_000) for seq in stretch]
        return [one for one in found if one.expires_ms > shell.now][: consult.count_max]

    with_archive(shell, archive, offset_of(shell, 9))

    page = read(shell).page
    assert (seqs(page), page.oldest) == ([6, 7, 8, 9, 10], 6)


def test_an_archive_that_is_away_hides_nothing_from_the_search_for_the_oldest() -> None:
    shell = room_shell(buffer=1, retention={"general": 60.0})
    fill(shell, 3)
    shell.clock.advance(30)
    fill(shell, 5, first=4)
    shell.clock.advance(40)
    cut_before(shell, 7)
    with_archive(shell, away, offset_of(shell, 7))
    partial = read(shell).page
    with_archive(shell, holding(4, 8), offset_of(shell, 7))

    assert (partial.is_partial, partial.next_seq) == (True, 0)
    assert pages(shell, 2) == [4, 5, 6, 7, 8]


def test_a_log_cut_under_the_search_for_the_oldest_hides_nothing() -> None:
    shell = room_shell(buffer=2, retention={"general": 60.0})
    fill(shell, 1)
    shell.clock.advance(61)
    fill(shell, 7, first=2)
    shell.engine.is_readable = False
    with_archive(shell, holding(2, 8), shell.engine.head)
    caller = read(shell, 0, 3)
    while not caller.answers:
        shell.engine.cut(shell.engine.head)
        shell.engine.read()

    assert seqs(caller.page) == [2, 3, 4]
    shell.engine.is_readable = True
    assert pages(shell, 3) == [2, 3, 4, 5, 6, 7, 8]
