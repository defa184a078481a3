"""`hub:erase` of an inbox: its messages are gone, its positions go on."""

from __future__ import annotations

import pytest

from signalhub.wire.entry import Kind
from tests.support.memory.erasure import ADA, entries, erased
from tests.support.memory.rooms import (
    INBOX,
    SECRET,
    Caller,
    described,
    fill,
    holding,
    inbox_of,
    offset_of,
    pages,
    read,
    room_of,
    room_shell,
    send,
    with_archive,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

BUFFERS = pytest.mark.parametrize("buffer", [2, 500])


def propose(shell: MemoryShell) -> None:
    send(shell, "propose-x", type="mls_proposal", proposal="x")


def erase(shell: MemoryShell, inbox: str = INBOX) -> dict[str, object]:
    return erased(shell.connect(ADA), inbox=inbox)


@BUFFERS
def test_nothing_of_it_is_read_again_and_new_messages_follow(buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    fill(shell, 5)

    answer = erase(shell)
    fill(shell, 2, 6)

    assert (answer["entries"], answer["mailbox"], answer["segments"]) == (5, False, 1)
    assert pages(shell, 3) == [6, 7]
    assert read(shell).page.oldest == 6
    assert [one.is_erased for one in entries(shell, Kind.ROOM_MESSAGE)] == [True] * 5 + [False] * 2


@BUFFERS
def test_an_inbox_with_nothing_left_is_empty(buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    fill(shell, 5)
    erase(shell)

    page = read(shell, 2).page

    assert (page.messages, page.next_seq, page.oldest) == ([], 2, None)


def test_memory_lets_go_of_it() -> None:
    shell = room_shell()
    fill(shell, 5)

    erase(shell)

    assert shell.hub.rooms.messages.buffer.bytes == 0
    assert all(not kept.json for kept in inbox_of(shell).recent.values())


def test_other_inboxes_are_not_touched() -> None:
    shell = room_shell()
    fill(shell, 2)
    fill(shell, 2, 3, room="other", inbox=SECRET)

    assert erase(shell, SECRET)["entries"] == 2

    assert pages(shell, 9) == [1, 2]
    assert pages(shell, 9, inbox=SECRET) == []


def test_an_inbox_nobody_knows_is_erased_without_finding_anything() -> None:
    shell = room_shell()

    assert erase(shell, "bm9ib2R5")["entries"] == 0


def test_a_repeat_of_an_erased_message_is_answered_with_its_position() -> None:
    shell = room_shell()
    fill(shell, 2)
    erase(shell)

    repeat = send(shell, "m2").accepted

    assert (repeat.seq, repeat.is_repeat) == (2, True)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_page_that_is_being_read_meanwhile_holds_nothing_of_it(is_first: bool) -> None:
    shell = room_shell(buffer=1)
    fill(shell, 5)
    peer = shell.connect(ADA)
    shell.engine.is_readable = False
    caller = Caller() if is_first else read(shell)

    peer.request("hub:erase", {"inbox": INBOX})
    caller = read(shell) if is_first else caller
    shell.engine.is_readable = True
    shell.settle()

    assert caller.page.messages == []


def test_what_is_on_its_way_to_the_log_is_erased_with_it() -> None:
    shell = room_shell()
    fill(shell, 2)
    peer = shell.connect(ADA)
    shell.engine.is_prompt = False
    waiting = send(shell, "m3")
    peer.request("hub:erase", {"inbox": INBOX})
    later = send(shell, "m4")
    shell.engine.is_prompt = True
    shell.settle()

    assert (waiting.seq, later.seq) == (3, 4)
    assert pages(shell, 9) == [4]


def test_the_archive_is_not_asked_for_it_even_if_the_clock_is_set_back() -> None:
    shell = room_shell(buffer=1)
    fill(shell, 5)
    with_archive(shell, holding(1, 4), 4)
    erase(shell)
    fill(shell, 1, 6)
    shell.pass_time(1)
    shell.clock.jump(-100)
    shell.tick()

    assert pages(shell, 9) == [6]
    assert read(shell).page.oldest == 6


def test_what_the_room_made_of_its_messages_goes_too() -> None:
    shell = room_shell()
    propose(shell)
    assert room_of(shell).proposals

    erase(shell)

    assert room_of(shell).proposals == {}
    assert shell.hub.rooms.state.bytes == 0


@pytest.mark.parametrize("is_saved", [False, True])
@BUFFERS
def test_a_restart_finds_the_same(is_saved: bool, buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    fill(shell, 3)
    propose(shell)
    if is_saved:
        shell.save_snapshot()
    erase(shell)
    fill(shell, 2, 5)

    again = shell.restarted()

    assert described(again) == described(shell)
    assert inbox_of(again).erased_to == 4
    assert pages(again, 2) == [5, 6]


def test_a_snapshot_remembers_how_far_it_was_erased() -> None:
    shell = room_shell()
    fill(shell, 3)
    erase(shell)
    shell.save_snapshot()

    again = shell.restarted()
    again.hub.rooms.messages.pins.cut(again.engine.head)

    assert inbox_of(again).erased_to == 3
    assert described(without_shelf(shell)) == described(again)


def test_a_crash_before_the_segments_are_written_anew_shows_nothing() -> None:
    shell = room_shell()
    fill(shell, 3)
    peer = shell.connect(ADA)
    shell.engine.is_readable = False
    peer.request("hub:erase", {"inbox": INBOX})
    shell.engine.read()
    shell.settle()

    again = shell.restarted()
    again.engine.is_readable = True

    assert pages(again, 9) == []
    again.pass_time(1)
    assert all(one.is_erased for one in entries(again, Kind.ROOM_MESSAGE))


@BUFFERS
def test_single_messages_named_by_offset_are_absent_like_expired_ones(buffer: int) -> None:
    shell = room_shell(buffer=buffer)
    fill(shell, 6)
    offset, epoch = offset_of(shell, 3), shell.engine.epoch

    erased(shell.connect(ADA), actor=ADA, offsets=[[offset, offset]], epoch=epoch)

    assert pages(shell, 2) == [1, 2, 4, 5, 6]
    assert pages(without_shelf(shell), 2) == [1, 2, 4, 5, 6]
