"""Which inbox a room has: linked for ever by the first who names both, or one and the same."""

from __future__ import annotations

import pytest

from signalhub.core import refusals
from signalhub.core.rooms.values import RoomWelcome
from signalhub.wire.entry import Kind
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import default_inbox
from tests.support.memory.rooms import (
    INBOX,
    ROOM,
    SECRET,
    deposit,
    fill,
    ids,
    inbox_of,
    join,
    leave,
    put_blob,
    read,
    room_of,
    room_shell,
    say,
    send,
    seqs,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

CONFLICT = RoomCode.CONFLICT


def code_of_join(shell: MemoryShell, room: str = ROOM, inbox: str | None = None) -> str:
    with pytest.raises(RoomError) as caught:
        join(shell, room, inbox)
    return caught.value.code


def test_without_a_binding_the_inbox_follows_from_the_name_of_the_room() -> None:
    shell = room_shell()
    send(shell, "a")

    assert ids(read(shell, inbox=INBOX).page) == ["a"]


def test_the_first_message_that_names_both_binds_them() -> None:
    shell = room_shell()
    send(shell, "a", inbox=SECRET)
    send(shell, "b")

    assert ids(read(shell, inbox=SECRET).page) == ["a", "b"]
    assert read(shell, inbox=INBOX).page.messages == []


def test_the_first_socket_that_names_both_binds_them() -> None:
    shell = room_shell()
    join(shell, inbox=SECRET)
    send(shell, "a")

    assert ids(read(shell, inbox=SECRET).page) == ["a"]


def test_a_socket_that_names_no_inbox_binds_nothing() -> None:
    shell = room_shell()
    join(shell)

    assert send(shell, "a", inbox=SECRET).seq == 1
    assert ids(read(shell, inbox=SECRET).page) == ["a"]


def test_a_bound_room_takes_no_other_inbox() -> None:
    shell = room_shell()
    send(shell, "a", inbox=SECRET)

    assert send(shell, "b", inbox="another").code == CONFLICT
    assert send(shell, "b", inbox=INBOX).code == CONFLICT
    assert code_of_join(shell, inbox="another") == CONFLICT
    assert send(shell, "b", inbox=SECRET).seq == 2


def test_a_bound_inbox_takes_no_other_room() -> None:
    shell = room_shell()
    send(shell, "a", inbox=SECRET)

    assert send(shell, "b", room="another", inbox=SECRET).code == CONFLICT
    assert code_of_join(shell, "another", SECRET) == CONFLICT
    assert put_blob(shell, b"x", room="another", inbox=SECRET).code == CONFLICT
    assert send(shell, "b", room="another").seq == 1


def test_a_room_used_without_an_inbox_cannot_be_given_one_later() -> None:
    shell = room_shell()
    send(shell, "a")

    assert send(shell, "b", inbox=SECRET).code == CONFLICT
    assert send(shell, "b", inbox=INBOX).seq == 2


def test_a_room_whose_own_inbox_is_taken_needs_another_one() -> None:
    shell = room_shell()
    send(shell, "a", room="thief", inbox=INBOX)

    assert send(shell, "b").code == CONFLICT
    assert send(shell, "b", inbox=SECRET).seq == 1


def test_a_refused_binding_leaves_nothing_behind() -> None:
    shell = room_shell()
    send(shell, "a", inbox=SECRET)
    before = (len(shell.hub.rooms.directory.rooms), len(shell.hub.rooms.directory.inboxes))

    send(shell, "b", room="another", inbox=SECRET)
    send(shell, "b", inbox="another")
    code_of_join(shell, "another", SECRET)

    assert (len(shell.hub.rooms.directory.rooms), len(shell.hub.rooms.directory.inboxes)) == before


def test_an_inbox_that_already_holds_messages_can_still_get_its_room() -> None:
    shell = room_shell()
    deposit(shell, "d", inbox=SECRET)
    visitor = join(shell, inbox=SECRET)
    say(shell, visitor, "a")

    assert visitor.welcome == RoomWelcome(1, 1)
    assert visitor.seqs == [2]
    assert ids(read(shell, inbox=SECRET).page) == ["d", "a"]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_binding_survives_a_restart(has_snapshot: bool) -> None:
    shell = room_shell()
    join(shell, inbox=SECRET)
    if has_snapshot:
        shell.save_snapshot()

    again = shell.restarted() if has_snapshot else without_shelf(shell)

    assert send(again, "a", inbox="another").code == CONFLICT
    assert send(again, "a", room="another", inbox=SECRET).code == CONFLICT
    assert send(again, "a").seq == 1
    assert ids(read(again, inbox=SECRET).page) == ["a"]


# Bindings in flight.


def test_a_binding_on_its_way_holds_for_everybody_behind_it() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    callers = [send(shell, "a", inbox=SECRET), send(shell, "b")]
    conflict = send(shell, "c", inbox="another")
    shell.engine.commit()

    assert [caller.seq for caller in callers] == [1, 2]
    assert conflict.code == CONFLICT
    assert sum(one.kind == Kind.ROOM_BOUND for one in shell.engine.entries) == 1


def test_a_binding_the_log_refused_binds_nobody() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    callers = [send(shell, "a", inbox=SECRET), send(shell, "b")]
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True

    assert [caller.code for caller in callers] == [RoomCode.UNAVAILABLE] * 2
    assert (shell.hub.rooms.directory.rooms, shell.hub.rooms.directory.inboxes) == ({}, {})
    assert send(shell, "a", inbox="another").seq == 1
    assert send(shell, "a", room="another", inbox=SECRET).seq == 1


def test_a_binding_stays_when_only_the_message_behind_it_is_refused() -> None:
    shell = room_shell()
    send(shell, "a", room="another")
    shell.engine.is_prompt = False
    caller = send(shell, "a", inbox=SECRET)
    shell.engine.commit(1)
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True

    assert caller.code == RoomCode.UNAVAILABLE
    assert send(shell, "a", inbox="another").code == CONFLICT
    assert send(shell, "a").seq == 1
    assert (
        without_shelf(shell).hub.rooms.directory.inboxes.keys()
        == shell.hub.rooms.directory.inboxes.keys()
    )


def test_a_refused_binding_leaves_the_deposits_before_it_in_order() -> None:
    shell = room_shell()
    deposit(shell, "d1", inbox=SECRET)
    shell.engine.is_prompt = False
    callers = [deposit(shell, "d2", inbox=SECRET), send(shell, "a", inbox=SECRET)]
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True

    assert [caller.code for caller in callers] == [RoomCode.UNAVAILABLE] * 2
    assert inbox_of(shell, SECRET).room is None
    assert deposit(shell, "d2", inbox=SECRET).seq == 2


def test_a_socket_is_welcome_once_its_binding_is_on_disk() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    visitor = join(shell, inbox=SECRET)
    say(shell, visitor, "a")
    before = list(visitor.results)
    shell.engine.commit()

    assert before == []
    assert visitor.welcome == RoomWelcome(0, 1)
    assert visitor.heard[1] == 1


@pytest.mark.parametrize("inbox", [SECRET, None])
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_socket_that_comes_while_the_binding_is_on_its_way_waits_for_it_too(
    inbox: str | None, is_refused: bool
) -> None:
    shell = room_shell()
    deposit(shell, "d", inbox=SECRET)
    shell.engine.is_prompt = False
    send(shell, "a", inbox=SECRET)
    visitor = join(shell, inbox=inbox)
    before = list(visitor.results)
    if is_refused:
        shell.engine.refuse(refusals.storage_full())
    else:
        shell.engine.commit()

    assert before == []
    if is_refused:
        assert visitor.closed is not None
    else:
        assert (visitor.welcome, visitor.seqs) == (RoomWelcome(1, 1), [2])


def test_a_socket_that_left_before_its_binding_was_on_disk_is_told_nothing() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    visitors = [join(shell, inbox=SECRET), join(shell, "another", "another-inbox")]
    for visitor in visitors:
        leave(shell, visitor)
    shell.engine.commit(2)
    shell.engine.refuse(refusals.storage_full())

    assert [(visitor.results, visitor.closed) for visitor in visitors] == [([], None)] * 2
    assert len(shell.hub.rooms.directory.rooms) == 1


def test_a_socket_whose_binding_was_refused_is_sent_away_for_a_while() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    visitor = join(shell, inbox=SECRET)
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    leave(shell, visitor)

    assert visitor.code == RoomCode.UNAVAILABLE
    assert visitor.closed is not None
    assert visitor.closed[0] == 1013
    assert (shell.hub.rooms.directory.rooms, shell.hub.rooms.directory.inboxes) == ({}, {})
    assert join(shell, inbox=SECRET).welcome == RoomWelcome(0, 1)


def test_a_snapshot_holds_no_binding_that_is_not_on_disk() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    send(shell, "a", inbox=SECRET)
    shell.save_snapshot()

    again = shell.restarted()
    again.engine.is_prompt = True

    assert send(again, "a", inbox="another").seq == 1


def test_a_socket_cannot_bind_while_the_log_takes_nothing() -> None:
    shell = room_shell()
    shell.hub.storage.stop(refusals.storage_failed())

    assert code_of_join(shell, inbox=SECRET) == RoomCode.UNAVAILABLE
    assert shell.hub.rooms.directory.rooms == {}
    assert join(shell).welcome == RoomWelcome(0, 1)


# Modes.


def test_a_hub_that_wants_capabilities_is_told_the_inbox_with_everything() -> None:
    shell = room_shell(require_capability=True)

    assert send(shell, "a").code == RoomCode.BAD_REQUEST
    assert code_of_join(shell) == RoomCode.BAD_REQUEST
    assert put_blob(shell, b"x").code == RoomCode.BAD_REQUEST
    with pytest.raises(RoomError):
        shell.hub.rooms.proposals(ROOM, None, shell.now)
    assert send(shell, "a", inbox=SECRET).seq == 1
    assert shell.hub.rooms.proposals(ROOM, SECRET, shell.now) == []


def test_a_wrong_capability_sees_nothing_of_a_bound_room() -> None:
    shell = room_shell(require_capability=True)
    send(shell, "a", inbox=SECRET)
    put_blob(shell, b"x", inbox=SECRET)
    rooms, now = shell.hub.rooms, shell.now

    for look in (
        lambda: rooms.blob(ROOM, "guess", "metadata", now),
        lambda: rooms.proposals(ROOM, "guess", now),
        lambda: rooms.proposal(ROOM, "guess", "x", now),
    ):
        with pytest.raises(RoomError) as caught:
            look()
        assert caught.value.code == CONFLICT


def test_a_blind_hub_knows_one_name_only() -> None:
    shell = room_shell(mode="blind")
    send(shell, "a", room=SECRET)
    send(shell, "b", room=SECRET, inbox=SECRET)

    assert ids(read(shell, inbox=SECRET).page) == ["a", "b"]
    assert send(shell, "c", room=SECRET, inbox="another").code == CONFLICT
    assert code_of_join(shell, SECRET, "another") == CONFLICT


def test_a_blind_hub_derives_the_inbox_of_a_room_with_a_tenant() -> None:
    shell = room_shell(mode="blind")
    send(shell, "a", room="t:r")

    assert ids(read(shell, inbox=default_inbox("t:r")).page) == ["a"]


# How many there may be.


def test_there_are_no_more_rooms_and_inboxes_than_allowed() -> None:
    shell = room_shell(limit=4)
    fill(shell, 1)
    deposit(shell, "d", inbox="third")

    assert send(shell, "a", room="another").code == RoomCode.UNAVAILABLE
    assert len(shell.hub.rooms.directory.rooms) + len(shell.hub.rooms.directory.inboxes) == 3
    assert deposit(shell, "d", inbox="fourth").seq == 1
    assert deposit(shell, "d", inbox="fifth").code == RoomCode.UNAVAILABLE
    assert code_of_join(shell, "another") == RoomCode.UNAVAILABLE
    assert send(shell, "b").seq == 2


def test_a_room_everybody_has_left_is_forgotten_if_it_holds_nothing() -> None:
    shell = room_shell()
    visitor = join(shell)
    leave(shell, visitor)
    leave(shell, visitor)

    assert shell.hub.rooms.directory.rooms == {}
    assert (shell.hub.rooms.guests, shell.tally.rooms.left) == (0, 1)


def test_a_room_that_holds_something_stays_when_everybody_has_left() -> None:
    shell = room_shell()
    visitor = join(shell)
    say(shell, visitor, "a")
    leave(shell, visitor)

    assert room_of(shell).guests == {}
    assert seqs(read(shell).page) == [1]


def test_reading_an_inbox_nobody_knows_makes_none() -> None:
    shell = room_shell()

    page = read(shell, 5, inbox="unknown").page

    assert (page.messages, page.next_seq, page.oldest) == ([], 5, None)
    assert shell.hub.rooms.directory.inboxes == {}


def test_recovery_knows_no_limit() -> None:
    shell = room_shell()
    for number in range(10):
        send(shell, "a", room=f"room{number}")
    tight = room_shell(limit=2)
    tight.engine = shell.engine
    tight.shelf = shell.shelf

    again = tight.restarted()

    assert len(again.hub.rooms.directory.rooms) == 10
    assert send(again, "b", room="room3").seq == 2
    assert send(again, "a", room="another").code == RoomCode.UNAVAILABLE


def test_the_hub_sends_everybody_away_when_it_stops() -> None:
    shell = room_shell()
    visitors = [join(shell), join(shell, "another"), join(shell)]

    shell.perform(shell.hub.drain(shell.now))

    assert [visitor.closed and visitor.closed[0] for visitor in visitors] == [1012] * 3
