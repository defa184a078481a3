"""`hub:erase` of an inbox: its messages are gone, its positions go on."""

from __future__ import annotations

import pytest

from signalhub.wire.entry import Kind
from tests.support.memory.erasure import ADA, entries, erased
from tests.support.memory.rooms import (
    INBOX,
    SECRET,
    Caller,
    RoomShell,
    described,
    holding,
    room_shell,
)

BUFFERS = pytest.mark.parametrize("buffer", [2, 500])


def erase(shell: RoomShell, inbox: str = INBOX) -> dict[str, object]:
    return erased(shell.connect(ADA), inbox=inbox)


@BUFFERS
def test_nothing_of_it_is_read_again_and_new_messages_follow(buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    shell.fill(4)
    shell.propose()
    shell.fill(2, 6, room="other", inbox=SECRET)

    answer = erase(shell)

    assert (answer["entries"], answer["mailbox"], answer["segments"]) == (5, False, 1)
    page = shell.read(2).page
    assert (page.messages, page.next_seq, page.oldest) == ([], 2, None)
    # What the room made of its messages goes too, and repeats are still known.
    assert (shell.room().proposals, shell.rooms.state.bytes) == ({}, 0)
    other = shell.inbox(SECRET).recent.values()
    assert all(not kept.json for kept in shell.inbox().recent.values())
    assert shell.rooms.messages.buffer.bytes == sum(len(kept.json) for kept in other)
    assert shell.send("m2").told == [("m2", 2, True)]
    shell.fill(2, 6)
    assert (shell.pages(3), shell.read().page.oldest) == ([6, 7], 6)
    of_inbox = [
        one.is_erased
        for one in entries(shell, Kind.ROOM_MESSAGE)
        if one.stream == shell.inbox().name
    ]
    assert of_inbox == [True] * 5 + [False] * 2
    assert shell.pages(9, inbox=SECRET) == [1, 2]
    assert erase(shell, SECRET)["entries"] == 2
    assert shell.pages(9, inbox=SECRET) == []
    assert erase(shell, "bm9ib2R5")["entries"] == 0


@pytest.mark.parametrize("is_first", [False, True])
def test_a_page_that_is_being_read_meanwhile_holds_nothing_of_it(is_first: bool) -> None:
    shell = room_shell(buffer=1)
    shell.fill(5)
    peer = shell.connect(ADA)
    shell.hold_reads()
    caller = Caller() if is_first else shell.read()

    peer.request("hub:erase", {"inbox": INBOX})
    caller = shell.read() if is_first else caller
    shell.answer_reads()

    assert caller.page.messages == []


def test_what_is_on_its_way_to_the_log_is_erased_with_it() -> None:
    shell = room_shell()
    shell.fill(2)
    peer = shell.connect(ADA)
    shell.hold()
    waiting = shell.send("m3")
    peer.request("hub:erase", {"inbox": INBOX})
    later = shell.send("m4")
    shell.engine.is_prompt = True
    shell.settle()

    assert (waiting.seq, later.seq) == (3, 4)
    assert shell.pages(9) == [4]


def test_the_archive_is_not_asked_for_it_even_if_the_clock_is_set_back() -> None:
    shell = room_shell(buffer=1)
    shell.fill(5)
    shell.use_archive(holding(1, 4), 4)
    erase(shell)
    shell.fill(1, 6)
    shell.pass_time(1)
    shell.clock.jump(-100)
    shell.tick()

    assert (shell.pages(9), shell.read().page.oldest) == ([6], 6)


@pytest.mark.parametrize("saved_after", [0, 1, 2])
@BUFFERS
def test_a_restart_finds_the_same(saved_after: int, buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    shell.fill(3)
    shell.propose()
    for step in range(3):
        if step == 1:
            erase(shell)
        if step == 2:
            shell.fill(2, 5)
        if step == saved_after:
            shell.save_snapshot()

    for again in (shell.restarted(), shell.restarted_from_log()):
        assert described(again) == described(shell)
        assert again.inbox().erased_to == 4
        assert again.pages(2) == [5, 6]


def test_a_crash_before_the_segments_are_rewritten_shows_nothing() -> None:
    shell = room_shell()
    shell.fill(3)
    peer = shell.connect(ADA)
    shell.hold_reads()
    peer.request("hub:erase", {"inbox": INBOX})
    shell.engine.read()
    shell.settle()

    again = shell.restarted()
    again.engine.is_readable = True

    assert again.pages(9) == []
    again.pass_time(1)
    assert all(one.is_erased for one in entries(again, Kind.ROOM_MESSAGE))


@BUFFERS
def test_single_messages_named_by_offset_are_absent_like_expired_ones(buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    shell.fill(6)
    offset = shell.offset_of(3)

    erased(shell.connect(ADA), actor=ADA, offsets=[[offset, offset]], epoch=shell.engine.epoch)

    for one in (shell, shell.restarted_from_log()):
        assert one.pages(2) == [1, 2, 4, 5, 6]
