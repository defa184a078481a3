"""Pages of an inbox: from memory, the log and the archive, and never past what was not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from signalhub.core.effects import Consult, Fetch, FindTime
from signalhub.core.refusals import storage_damaged
from signalhub.core.rooms.floor import EntriesLost
from signalhub.core.rooms.values import Archived
from signalhub.wire.entry import StoredEntry
from signalhub.wire.errors import RoomCode
from signalhub.wire.room_ids import default_inbox
from tests.support.memory.rooms import (
    INBOX,
    SECRET,
    WEEK_S,
    Caller,
    Restart,
    RoomShell,
    archived,
    holding,
    restarts,
    room_shell,
    unreachable,
)


def one_to(last: int) -> list[int]:
    return list(range(1, last + 1))


# Cursors and contents.


@pytest.mark.parametrize(
    ("timestamps", "told"),
    [
        ("exact", {"createdAt": "2025-10-09T08:53:27.089Z"}),
        ("coarse", {"createdAt": "2025-10-09T08:53:25Z"}),
        ("none", {}),
    ],
)
@pytest.mark.parametrize("buffer", [1, 500])
def test_a_page_holds_messages_and_times_as_the_setting_allows(
    timestamps: str, told: dict[str, str], buffer: int
) -> None:
    shell = room_shell(timestamps=timestamps, buffer=buffer)
    shell.clock.advance(7.089)
    shell.send("a", b"Y2lwaGVy")
    shell.fill(1)

    caller = shell.read()

    assert caller.items == [
        {"seq": 1, "messageId": "a", "ciphertext": "Y2lwaGVy"} | told,
        {"seq": 2, "messageId": "m1", "ciphertext": "aGVsbG8"} | told,
    ]
    assert (caller.page.next_seq, caller.page.oldest, caller.page.reason) == (3, 1, None)


def test_the_cursor_is_inclusive_and_beyond_the_end_it_stays() -> None:
    shell = room_shell()
    shell.fill(10)
    shell.fill(1, room="another")

    for from_seq, limit, seqs, next_seq in [
        *((0, 3, [1, 2, 3], 4), (1, 3, [1, 2, 3], 4), (4, 3, [4, 5, 6], 7)),
        *((10, 3, [10], 11), (11, 3, [], 11), (2**53 - 1, 3, [], 2**53 - 1)),
    ]:
        caller = shell.read(from_seq, limit)
        assert (caller.seqs, caller.page.next_seq, caller.page.oldest) == (seqs, next_seq, 1)
    assert shell.read(inbox=default_inbox("another")).seqs == [1]
    # Reading an unknown inbox creates none.
    page = shell.read(5, inbox="unknown").page
    assert (page.messages, page.next_seq, page.oldest) == ([], 5, None)
    assert shell.known == (2, 2)


def test_memory_answers_at_once_even_while_the_log_cannot_be_read() -> None:
    shell = room_shell(buffer=5)
    shell.fill(10)
    shell.hold_reads()

    assert shell.read(6).seqs == [6, 7, 8, 9, 10]
    assert shell.read(5).results == []
    assert shell.counts.log_reads == 1


def test_a_page_ends_at_its_size_in_bytes_and_holds_one_message_at_least() -> None:
    shell = room_shell(page_bytes_max=1_000, buffer=4)
    for number in range(1, 11):
        shell.send(f"m{number}", b"A" * (2_000 if number in (3, 8) else 300))

    sizes = [len(shell.read(from_seq).page.messages) for from_seq in (1, 3, 4, 7, 8, 9)]

    assert sizes == [2, 1, 2, 1, 1, 2]
    assert shell.pages(100) == one_to(10)


def test_small_messages_in_memory_do_not_follow_large_ones_in_the_log_too_soon() -> None:
    """The page has room for them, but what lies between was not read."""
    shell = room_shell(page_bytes_max=1_000, buffer=2)
    shell.fill(2)
    shell.send("large", b"A" * 950)
    shell.fill(5, first=4)

    caller = shell.read(1)

    assert (caller.seqs, caller.page.next_seq) == ([1, 2], 3)
    assert shell.pages(100) == one_to(8)


# Races.


def test_a_message_that_leaves_memory_while_the_log_is_read_is_not_missed() -> None:
    shell = room_shell(buffer=3)
    shell.fill(6)
    shell.hold_reads()
    callers = [shell.read(2), shell.read(1, 4)]
    shell.fill(10, first=7)
    shell.answer_reads()

    assert [caller.seqs for caller in callers] == [[2, 3, 4, 5, 6], [1, 2, 3, 4]]
    assert [caller.page.next_seq for caller in callers] == [7, 5]


def test_a_message_that_leaves_memory_while_the_archive_is_asked_is_not_missed() -> None:
    shell = room_shell(buffer=3, always_query_store=True)
    shell.fill(6)
    shell.use_archive(lambda consult: [])
    shell.hold_reads()
    caller = shell.read(4)
    shell.fill(10, first=7)
    shell.cut_before(15)
    shell.answer_reads()

    assert (caller.seqs, caller.page.next_seq) == ([4, 5, 6], 7)


def test_what_is_accepted_and_archived_meanwhile_does_not_let_the_cursor_jump() -> None:
    shell = room_shell(buffer=3, always_query_store=True)
    shell.fill(100)
    # 101 is not there yet when 102 is.
    shell.use_archive(lambda consult: [*map(archived, range(99, 101)), archived(102)])
    shell.hold_reads()
    caller = shell.read(99)
    shell.fill(2, first=101)
    shell.answer_reads()

    assert (caller.seqs, caller.page.next_seq) == ([99, 100], 101)
    assert shell.read(101).seqs == [101, 102]


# The log was cut, or is damaged.


def test_without_an_archive_reading_begins_where_the_log_does() -> None:
    shell = room_shell(buffer=2)
    shell.fill(10)
    shell.hold_reads()
    under_the_reader = shell.read(1)
    shell.cut_before(4)
    shell.answer_reads()

    caller = shell.read(1, 3)

    assert under_the_reader.seqs == [4, 5, 6, 7, 8, 9, 10]
    assert (caller.seqs, caller.page.next_seq, shell.read(1, 3).page.oldest) == ([4, 5, 6], 7, 4)
    assert shell.pages(4) == [4, 5, 6, 7, 8, 9, 10]
    shell.engine.cut(shell.engine.head)
    assert shell.pages(2) == [9, 10]


@pytest.mark.parametrize("archive_has", [0, 3])
def test_behind_a_gap_the_log_is_read_to_its_end_before_memory(archive_has: int) -> None:
    shell = room_shell(buffer=2, page_bytes_max=1_000)
    shell.fill(5)
    shell.send("m6", b"A" * 970)
    shell.fill(4, first=7)
    shell.cut_before(4)
    if archive_has:
        shell.use_archive(holding(1, archive_has), shell.offset_of(4))

    assert shell.pages(100, 1) == list(range(1 if archive_has else 4, 11))


@pytest.mark.parametrize("what", ["page", "oldest", "find_time"])
def test_a_read_that_fails_is_answered_and_can_be_repeated(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = room_shell(buffer=1, retention_s=60.0)
    shell.fill(3)
    shell.clock.advance(30)
    shell.fill(3, first=4)
    # The search for the oldest message begins when the first ones have expired.
    shell.clock.advance(0 if what == "page" else 40)

    def fail(wanted: Fetch | FindTime, done: Callable[[None], None]) -> None:
        shell.engine.later(lambda: done(None))

    with monkeypatch.context() as broken:
        broken.setattr(shell.engine, what if what == "find_time" else "fetch", fail)
        error = shell.read().error
        if what == "page":
            assert shell.read(6).seqs == [6]

    assert error.code == RoomCode.UNAVAILABLE
    assert error.retry_after_ms is not None
    assert shell.read().seqs == (one_to(6) if what == "page" else [4, 5, 6])


def damage_at(shell: RoomShell, seq: int, patch: pytest.MonkeyPatch) -> None:
    """The log cannot be read at this message; the hub knows that it is damaged."""
    stored: Callable[[Fetch], list[StoredEntry]] = shell.engine._found

    def fetch(wanted: Fetch, done: Callable[[list[StoredEntry] | None], None]) -> None:
        found = stored(wanted)
        if wanted.from_seq <= seq:
            found = [one for one in found if one.seq < seq]
        shell.engine.later(lambda: done(found or None))

    patch.setattr(shell.engine, "fetch", fetch)
    shell.hub.storage.stop(storage_damaged("00.log", 64, "its checksum is wrong"))


def test_a_page_that_meets_damage_holds_what_lies_before_it_and_says_why_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = room_shell(buffer=2)
    shell.fill(10)
    damage_at(shell, 6, monkeypatch)

    caller = shell.read(2)

    assert (caller.seqs, caller.page.next_seq) == ([2, 3, 4, 5], 6)
    assert caller.page.reason == RoomCode.STORAGE_FAILED
    assert shell.counts.partial == 1
    assert shell.read(6).code == RoomCode.STORAGE_FAILED
    assert (shell.read(7).seqs, shell.read(7).page.reason) == ([7, 8, 9, 10], None)


def test_a_page_that_ends_before_the_damage_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = room_shell(buffer=2, page_bytes_max=1_000)
    for number in range(1, 11):
        shell.send(f"m{number}", b"A" * 300)
    damage_at(shell, 6, monkeypatch)

    # Two fit into a page.
    for from_seq, limit, seqs, reason in [
        *((1, 100, [1, 2], None), (4, 2, [4, 5], None)),
        (5, 100, [5], RoomCode.STORAGE_FAILED),
    ]:
        caller = shell.read(from_seq, limit)
        assert (caller.seqs, caller.page.reason) == (seqs, reason)


def test_a_strict_hub_refuses_a_page_that_meets_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = room_shell(buffer=2, strict_store=True)
    shell.fill(10)
    damage_at(shell, 6, monkeypatch)

    assert shell.read(2).code == RoomCode.STORAGE_FAILED
    assert shell.read(2, 4).seqs == [2, 3, 4, 5]


@pytest.mark.parametrize("archive_has", [2, 0])
def test_what_the_archive_has_comes_before_what_lies_before_the_damage(
    archive_has: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = room_shell(buffer=2)
    shell.fill(10)
    shell.cut_before(3)
    shell.use_archive(holding(1, archive_has) if archive_has else unreachable, shell.offset_of(3))
    damage_at(shell, 6, monkeypatch)

    caller = shell.read(1)

    # What neither holds now is asked for first.
    expected = ([1, 2, 3, 4, 5], 6, RoomCode.STORAGE_FAILED)
    if not archive_has:
        expected = ([3, 4, 5], 1, RoomCode.UNAVAILABLE)
    assert (caller.seqs, caller.page.next_seq, caller.page.reason) == expected


@pytest.mark.parametrize("retention_s", [60.0, 1_000.0])
def test_damage_among_expired_messages_is_in_the_way_of_no_page_behind_it(
    retention_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for the oldest message meets it, whether by time or message by message."""
    shell = room_shell(buffer=2, retention={"general": 60.0, INBOX: retention_s})
    shell.deposit("first")
    shell.fill(3, first=2)
    shell.clock.advance(30)
    shell.fill(6, first=5)
    shell.clock.advance(40)
    damage_at(shell, 3, monkeypatch)
    if retention_s == 60.0:
        monkeypatch.setattr(shell.engine, "find_time", lambda find, done: done(None))

    first = shell.read(2)

    assert (first.code, shell.read(3).code) == (RoomCode.STORAGE_FAILED,) * 2
    assert shell.read(4).seqs == [5, 6, 7, 8, 9, 10]
    assert shell.read(9).seqs == [9, 10]


def test_a_log_that_returns_less_than_asked_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged block ends a read early; behind it is more."""
    shell = room_shell(buffer=2)
    shell.fill(20)
    found: Callable[[Fetch], list[StoredEntry]] = shell.engine._found
    monkeypatch.setattr(shell.engine, "_found", lambda fetch: found(fetch)[:3])

    assert shell.read(1, 10).seqs == one_to(10)
    assert shell.pages(100) == one_to(20)


# Expiry.


def kept_s(shell: RoomShell, inbox: str = INBOX) -> list[float]:
    """How long the messages of an inbox are kept from now on."""
    return [(body.expires_ms - shell.now) / 1000 for body in shell.bodies(inbox)]


@pytest.mark.parametrize(("timestamps", "less_s"), [("exact", 0), ("coarse", 2), ("none", 3_202)])
@pytest.mark.parametrize("buffer", [1, 500])
def test_a_message_can_be_read_for_a_week_to_the_millisecond(
    timestamps: str, less_s: int, buffer: int
) -> None:
    shell = room_shell(timestamps=timestamps, buffer=buffer)
    shell.clock.advance(2)
    shell.fill(2)
    shell.clock.advance(WEEK_S - less_s - 0.001)
    before = shell.read()
    shell.clock.advance(0.001)
    after = shell.read()

    assert (before.seqs, before.page.oldest) == ([1, 2], 1)
    assert (after.seqs, after.page.next_seq, after.page.oldest) == ([], 0, None)


@pytest.mark.parametrize("buffer", [1, 10, 2_000])
def test_a_long_stretch_of_expired_messages_is_not_the_end(buffer: int) -> None:
    shell = room_shell(buffer=buffer, retention={"general": 60.0, INBOX: 1_000.0})
    shell.deposit("first")
    shell.fill(1_200)
    for number in range(3):
        shell.deposit(f"last{number}")
    shell.clock.advance(61)

    for limit in (1, 7, 1_000):
        assert shell.pages(limit) == [1, 1_202, 1_203, 1_204]
        assert shell.pages(limit, 2) == [1_202, 1_203, 1_204]
    assert shell.read(2).page.oldest == 1


def test_what_expires_before_or_while_the_log_is_read_is_not_served() -> None:
    shell = room_shell(buffer=2, retention_s=100.0)
    for number in range(1, 11):
        shell.send(f"m{number}")
        shell.clock.advance(20)

    caller = shell.read(1, 3)

    assert (caller.seqs, caller.page.oldest) == ([7, 8, 9], 7)
    shell.hold_reads()
    caller = shell.read()
    shell.clock.advance(20)
    shell.answer_reads()
    assert caller.seqs == shell.read().seqs == [8, 9, 10]


def test_the_longest_prefix_of_room_or_inbox_says_how_long() -> None:
    rules = {"gen": 100.0, "general": 200.0, "g": 300.0, "x": 400.0, SECRET: 50.0, "dep": 60.0}
    shell = room_shell(retention=rules, retention_s=500.0)
    rooms = {"general-1": 200.0, "gentle": 100.0, "great": 300.0, "another": 500.0}
    for room in rooms:
        shell.send("a", room=room)
    shell.send("a", room="gen", inbox=SECRET)
    shell.deposit("d", inbox="deposits")

    assert {room: kept_s(shell, default_inbox(room)) for room in rooms} == {
        room: [lasts_s] for room, lasts_s in rooms.items()
    }
    assert (kept_s(shell, SECRET), kept_s(shell, "deposits")) == ([50.0], [60.0])


@restarts
def test_what_is_deposited_is_kept_as_long_as_what_is_sent(restart: Restart) -> None:
    shell = room_shell(retention={"general": 100.0})
    shell.send("a", inbox=SECRET)
    shell.deposit("d", inbox=SECRET)
    shell.save_snapshot()
    shell = restart(shell)
    shell.deposit("e", inbox=SECRET)

    assert kept_s(shell, SECRET) == [100.0, 100.0, 100.0]


@pytest.mark.parametrize("has_snapshot", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"retention_s": 1_000.0}, {"retention_s": 50.0}),
        ({"retention_s": 1_000.0, "retention": {"gen": 200.0}}, {"retention_s": 50.0}),
        ({"retention": {"gen": 200.0}}, {"retention": {"gen": 50.0}}),
    ],
)
def test_other_settings_hold_for_whatever_comes_next(
    has_snapshot: bool, before: dict[str, Any], after: dict[str, Any]
) -> None:
    shell = room_shell(**before)
    shell.fill(1)
    if has_snapshot:
        shell.save_snapshot()
    again = shell.reconfigured(**after)
    again.fill(1, first=2)
    again.deposit("d")

    assert kept_s(again)[0] == kept_s(shell)[0]
    assert kept_s(again)[1:] == [50.0, 50.0]


# The archive.


def test_what_the_log_has_lost_comes_from_the_archive() -> None:
    shell = room_shell(buffer=2)
    shell.fill(30)
    shell.cut_before(12)
    asked: list[Consult] = []

    def archive(consult: Consult) -> list[Archived] | None:
        asked.append(consult)
        return holding(1, 20)(consult)

    shell.use_archive(archive, shell.offset_of(12))

    # It is asked for the missing stretch only.
    assert shell.pages(5, 12) == list(range(12, 31))
    assert asked == []
    shell.read(5, 10)
    assert [(one.from_seq, one.to_seq, one.count_max) for one in asked] == [(5, 11, 10)]
    for limit in (1, 4, 11, 12, 100):
        assert shell.pages(limit, 1) == one_to(30)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([archived(2, "m2", b"YXJjaGl2ZWQ")], [(1, "m1"), (2, "m2"), (3, "m3"), (4, "m4")]),
        ([archived(2, "m4")], [(1, "m1"), (2, "m4"), (3, "m3")]),
        (
            [archived(4, "m2"), archived(2, "m2"), archived(3, "m2")],
            [(1, "m1"), (2, "m2"), (3, "m3"), (4, "m4")],
        ),
    ],
    ids=["its ciphertext counts", "its position counts", "of two the lower position counts"],
)
def test_the_archive_decides(stored: list[Archived], expected: list[tuple[int, str]]) -> None:
    shell = room_shell(always_query_store=True)
    shell.fill(4)
    shell.use_archive(lambda consult: stored)

    found = shell.read()

    assert list(zip(found.seqs, found.ids, strict=True)) == expected
    assert found.items[1]["ciphertext"] == stored[0].ciphertext.decode()


def test_archived_messages_come_in_any_order_and_expired_ones_are_not_served() -> None:
    shell = room_shell(buffer=1)
    shell.fill(10)
    shell.cut_before(10)
    lasts_ms = [0 if seq == 5 else 1 for seq in range(10)]
    stored = [archived(seq, expires_ms=shell.now + lasts_ms[seq]) for seq in range(9, 0, -1)]
    shell.use_archive(lambda consult: stored, shell.offset_of(10))

    assert shell.read(1).seqs == [1, 2, 3, 4, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("is_strict", [False, True])
def test_an_unreachable_archive_makes_a_page_partial_and_the_cursor_stays(is_strict: bool) -> None:
    shell = room_shell(buffer=2, strict_store=is_strict)
    shell.fill(10)
    shell.cut_before(6)
    shell.use_archive(unreachable, shell.offset_of(6))

    caller = shell.read(3)

    if is_strict:
        assert (caller.code, caller.error.retry_after_ms) == (RoomCode.UNAVAILABLE, 5_000)
    else:
        assert (caller.seqs, caller.page.next_seq) == ([6, 7, 8, 9, 10], 3)
        assert caller.page.reason == RoomCode.UNAVAILABLE
    assert shell.counts.partial == 1
    assert (shell.read(6).seqs, shell.read(6).page.reason) == ([6, 7, 8, 9, 10], None)
    shell.use_archive(holding(1, 5), shell.offset_of(6))
    assert shell.pages(3, 3) == [3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("page_bytes_max", [300, 2**20])
def test_a_page_that_is_held_in_full_does_not_need_the_archive_it_asked(
    is_strict: bool, page_bytes_max: int
) -> None:
    shell = room_shell(
        buffer=1, always_query_store=True, strict_store=is_strict, page_bytes_max=page_bytes_max
    )
    shell.fill(20)
    shell.use_archive(unreachable)

    assert shell.pages(3) == shell.pages(100) == one_to(20)


def test_an_archive_that_is_always_asked_is_asked_once_for_every_page_with_messages() -> None:
    shell = room_shell(buffer=5, always_query_store=True)
    shell.fill(10)
    shell.use_archive(holding(1, 10))

    assert shell.pages(5) == one_to(10)
    assert shell.counts.archive_reads == 2
    # One that is behind the log hides nothing.
    shell.use_archive(holding(1, 4))
    for limit in (1, 2, 5, 100):
        assert shell.pages(limit) == one_to(10)


@restarts
def test_archived_messages_are_found_after_a_restart_from_a_log_that_was_cut(
    restart: Restart,
) -> None:
    shell = room_shell(buffer=1)
    shell.fill(10)
    archived_to = shell.offset_of(6)
    shell.rooms.archived_to(archived_to)
    shell.save_snapshot()
    shell.engine.cut(archived_to)

    again = restart(shell)
    again.use_archive(holding(1, 5), archived_to)

    assert again.pages(3) == one_to(10)
    assert again.read().page.oldest == 1


def test_the_oldest_message_may_be_in_the_archive() -> None:
    shell = room_shell(buffer=1, retention={"general": 60.0})
    began_ms = shell.now
    for number in range(1, 11):
        shell.send(f"m{number}")
        shell.clock.advance(10)
    shell.cut_before(9)

    def archive(consult: Consult) -> list[Archived]:
        stretch = range(consult.from_seq, min(8, consult.to_seq) + 1)
        found = [archived(seq, expires_ms=began_ms + seq * 10_000 + 50_000) for seq in stretch]
        return [one for one in found if one.expires_ms > shell.now][: consult.count_max]

    shell.use_archive(archive, shell.offset_of(9))

    caller = shell.read()
    assert (caller.seqs, caller.page.oldest) == ([6, 7, 8, 9, 10], 6)


def test_an_unreachable_archive_hides_nothing_from_the_search_for_the_oldest() -> None:
    shell = room_shell(buffer=1, retention={"general": 60.0})
    shell.fill(3)
    shell.clock.advance(30)
    shell.fill(5, first=4)
    shell.clock.advance(40)
    shell.cut_before(7)
    shell.use_archive(unreachable, shell.offset_of(7))
    partial = shell.read().page
    shell.use_archive(holding(4, 8), shell.offset_of(7))

    assert (partial.reason, partial.next_seq) == (RoomCode.UNAVAILABLE, 0)
    assert shell.pages(2) == [4, 5, 6, 7, 8]


def test_a_log_cut_under_the_search_for_the_oldest_hides_nothing() -> None:
    shell = room_shell(buffer=2, retention={"general": 60.0})
    shell.fill(1)
    shell.clock.advance(61)
    shell.fill(7, first=2)
    shell.hold_reads()
    shell.use_archive(holding(2, 8), shell.engine.head)
    caller = shell.read(0, 3)
    while not caller.answers:
        shell.engine.cut(shell.engine.head)
        shell.engine.read()

    assert caller.seqs == [2, 3, 4]
    shell.engine.is_readable = True
    assert shell.pages(3) == [2, 3, 4, 5, 6, 7, 8]


# Too much waits for the archive.


def capped(shell: RoomShell) -> list[Caller]:
    return [shell.send("new"), shell.deposit("new")]


@pytest.mark.parametrize("bounds", [{"unarchived_max": 5}, {"unarchived_bytes_max": 5 * 7}])
def test_an_inbox_that_waits_for_the_archive_takes_no_more(bounds: dict[str, int]) -> None:
    # Without a pipeline nothing waits.
    room_shell(**bounds).fill(10)
    shell = room_shell(**bounds)
    shell.use_archive(holding(1, 0), shell.engine.head)
    begun = shell.engine.head
    shell.fill(3)
    shell.save_snapshot()
    shell.fill(2, first=4)

    refused = capped(shell)

    assert [caller.code for caller in refused] == [RoomCode.UNAVAILABLE] * 2
    assert refused[0].error.retry_after_ms == 5_000
    assert shell.counts.over_cap == 2
    assert shell.send("m3").seq == 3
    assert shell.send("a", room="another").seq == 1
    for one in (shell.restarted(), shell):
        one.rooms.archived_to(begun)
        assert one.send("new").code == RoomCode.UNAVAILABLE
        one.rooms.archived_to(one.engine.head)
        assert [caller.seq for caller in capped(one)] == [6, 6]


def test_the_count_of_what_waits_goes_down_in_time() -> None:
    shell = room_shell(unarchived_max=250)
    shell.use_archive(holding(1, 0), shell.engine.head)
    shell.fill(250)

    shell.rooms.archived_to(shell.offset_of(201))

    inbox = shell.inbox()
    assert 50 <= inbox.unarchived_count <= 149
    assert inbox.unarchived_bytes == 7 * inbox.unarchived_count
    shell.rooms.archived_to(shell.engine.head)
    assert (inbox.unarchived_count, inbox.unarchived_bytes) == (0, 0)


def test_only_inboxes_of_which_something_was_archived_are_saved_again() -> None:
    shell = room_shell()
    shell.rooms.archived_to(0)
    first, second = "first", "second"
    for inbox in (first, second):
        shell.deposit(inbox, inbox=inbox)
    shell.rooms.directory.dirty.clear()

    shell.rooms.archived_to(shell.inbox(first).defined_at + 1)

    assert shell.rooms.directory.dirty == {shell.inbox(first)}


# Positions that were skipped after a loss.


def after_a_loss(kept: int = 5, lost: int = 3, **rooms: Any) -> tuple[RoomShell, int]:
    """A room that continues above what may have been read; and the floor."""
    shell = room_shell(**rooms)
    shell.fill(kept)
    # A loss is found at the start.
    shell = shell.restarted()
    shell.engine.has_lost = True
    shell.perform(shell.rooms.enter_epoch(2, EntriesLost(lost), shell.now))
    return shell, shell.rooms.directory.floor


@restarts
def test_skipped_positions_are_reported_once_passed_and_survive_a_restart(restart: Restart) -> None:
    shell, floor = after_a_loss()
    shell = restart(shell)
    pending = shell.read(4)
    first = shell.send("after").accepted.seq
    shell = restart(shell)

    assert first == floor + 1
    assert (pending.seqs, pending.page.skipped) == ([4, 5], [(6, floor)])
    assert list(shell.read(1, 5).page.skipped) == []
    assert shell.read(1, 6).page.skipped == [(6, floor)]
    assert shell.read(6).page.skipped == [(6, floor)]
    assert list(shell.read(first).page.skipped) == []
    assert shell.pages(2) == [1, 2, 3, 4, 5, first]


def test_an_archive_may_have_what_the_log_has_lost() -> None:
    shell, floor = after_a_loss(buffer=1)
    shell.hub.rooms.archived_to(0)
    shell.send("after")
    shell.archive = holding(6, 7)
    found = shell.read(4)
    shell.archive = unreachable
    partial = shell.read(4)

    assert found.seqs == [4, 5, 6, 7, floor + 1]
    assert (partial.page.reason, partial.page.next_seq) == (RoomCode.UNAVAILABLE, 4)
    assert list(partial.page.skipped) == []


def test_a_refused_message_takes_no_position_and_leaves_no_room_behind() -> None:
    shell, floor = after_a_loss()
    shell.engine.is_full = True
    shell.send("a", room="another")
    known = shell.known
    shell.engine.is_full = False

    assert shell.send("a", room="another").accepted.seq == floor + 1
    assert shell.send("b", room="another").accepted.seq == floor + 2
    assert known == (1, 1)
