"""Which inbox a room has, under which names the hub knows both, and how many there may be."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

import pytest

from signalhub.core.rooms import refusals
from signalhub.core.rooms.values import RoomWelcome
from signalhub.wire.entry import InboxKeyBody, Kind, decode_body
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import KEY_VERSION, Names, default_inbox
from tests.support.memory.rooms import INBOX, ROOM, SECRET, Restart, RoomShell, restarts, room_shell

CONFLICT, UNAVAILABLE = RoomCode.CONFLICT, RoomCode.UNAVAILABLE


def code_of_entering(shell: RoomShell, room: str = ROOM, inbox: str | None = None) -> str:
    with pytest.raises(RoomError) as caught:
        shell.enter(room, inbox)
    return caught.value.code


def refused_everywhere(shell: RoomShell, room: str, inbox: str | None, code: RoomCode) -> None:
    """Whatever asks for a room with an inbox is refused with this code and leaves nothing."""
    before = shell.known
    assert shell.send("refused", room=room, inbox=inbox).code == code
    assert shell.put_blob(b"x", room=room, inbox=inbox).code == code
    assert code_of_entering(shell, room, inbox) == code
    rooms, now = shell.rooms, shell.now
    for look in (
        lambda: rooms.blob(room, inbox, "metadata", now),
        lambda: rooms.proposals(room, inbox, now),
        lambda: rooms.proposal(room, inbox, "x", now),
    ):
        with pytest.raises(RoomError) as caught:
            look()
        assert caught.value.code == code
    assert shell.known == before


# The first who names both binds them.


def test_without_a_binding_the_inbox_follows_from_the_name_of_the_room() -> None:
    shell = room_shell()
    shell.enter()
    shell.send("a")

    assert shell.read(inbox=INBOX).ids == ["a"]
    refused_everywhere(shell, ROOM, SECRET, CONFLICT)
    assert shell.send("b", inbox=INBOX).seq == 2


@pytest.mark.parametrize("first", ["message", "socket", "blob"])
@restarts
def test_the_first_who_names_both_binds_them_for_ever(first: str, restart: Restart) -> None:
    shell = room_shell()
    # One that names no inbox binds nothing.
    shell.enter()
    if first == "message":
        shell.send("first", inbox=SECRET)
    elif first == "socket":
        shell.enter(inbox=SECRET)
    else:
        shell.put_blob(b"blob", inbox=SECRET)
    shell.save_snapshot()
    last = 1 if first == "message" else 0

    for one in (shell, restart(shell)):
        refused_everywhere(one, ROOM, "another", CONFLICT)
        refused_everywhere(one, ROOM, INBOX, CONFLICT)
        refused_everywhere(one, "another", SECRET, CONFLICT)
        assert one.send("a").seq == last + 1
        assert one.send("b", inbox=SECRET).seq == last + 2
        assert one.read(inbox=SECRET).seqs == list(range(1, last + 3))
        assert one.read(inbox=INBOX).seqs == []
        assert one.send("a", room="another").seq == 1


def test_an_inbox_that_already_holds_messages_can_still_get_its_room() -> None:
    shell = room_shell()
    shell.deposit("d", inbox=SECRET)
    visitor = shell.enter(inbox=SECRET)
    shell.say(visitor, "a")

    assert (visitor.welcome, visitor.seqs) == (RoomWelcome(1, 1), [2])
    assert shell.read(inbox=SECRET).ids == ["d", "a"]


def test_the_inbox_that_follows_from_a_name_belongs_to_that_room_alone() -> None:
    shell = room_shell()
    refused_everywhere(shell, "thief", default_inbox("victim"), CONFLICT)
    refused_everywhere(shell, "thief", default_inbox("t:victim"), CONFLICT)

    assert shell.send("a", room="victim").seq == 1
    assert shell.send("b", room="victim", inbox=default_inbox("victim")).seq == 2
    blind = room_shell(mode="blind")
    # There it follows from names with a tenant only.
    refused_everywhere(blind, default_inbox("t:victim"), None, CONFLICT)
    assert blind.send("a", room=default_inbox("victim")).seq == 1


# Bindings in flight.


def test_a_pending_binding_holds_for_everybody_behind_it_and_is_in_no_snapshot() -> None:
    shell = room_shell()
    shell.hold()
    callers = [shell.send("a", inbox=SECRET), shell.send("b")]
    conflict = shell.send("c", inbox="another")
    shell.save_snapshot()
    again = shell.restarted()
    again.engine.is_prompt = True
    shell.commit()

    assert [caller.seq for caller in callers] == [1, 2]
    assert conflict.code == CONFLICT
    assert shell.count(Kind.ROOM_BOUND) == 1
    assert again.send("a", inbox="another").seq == 1


def test_a_binding_the_log_refused_binds_nobody() -> None:
    shell = room_shell()
    shell.deposit("d1", inbox=SECRET)
    shell.hold()
    callers = [
        shell.deposit("d2", inbox=SECRET),
        shell.send("a", inbox=SECRET),
        shell.send("b"),
    ]
    shell.refuse()

    assert [caller.code for caller in callers] == [UNAVAILABLE] * 3
    assert shell.known == (0, 1)
    assert shell.inbox(SECRET).room is None
    assert shell.deposit("d2", inbox=SECRET).seq == 2
    assert shell.send("a", inbox="another").seq == 1
    assert shell.send("a", room="another", inbox=SECRET).seq == 3


def test_a_binding_stays_when_only_the_message_behind_it_is_refused() -> None:
    shell = room_shell()
    shell.send("a", room="another")
    shell.hold()
    caller = shell.send("a", inbox=SECRET)
    shell.commit(1)
    shell.refuse()

    assert caller.code == UNAVAILABLE
    assert shell.send("a", inbox="another").code == CONFLICT
    assert shell.send("a").seq == 1
    inboxes = shell.rooms.directory.inboxes.keys()
    assert shell.restarted_from_log().rooms.directory.inboxes.keys() == inboxes


@pytest.mark.parametrize("inbox", [SECRET, None])
@pytest.mark.parametrize("is_refused", [True, False])
def test_sockets_are_welcome_once_the_binding_is_on_disk(
    inbox: str | None, is_refused: bool
) -> None:
    shell = room_shell()
    shell.deposit("d", inbox=SECRET)
    shell.hold()
    first = shell.enter(inbox=SECRET)
    shell.say(first, "a")
    visitor, left = shell.enter(inbox=inbox), shell.enter(inbox=inbox)
    shell.leave(left)
    before = list(visitor.results)
    if is_refused:
        shell.refuse()
    else:
        shell.commit()

    assert before == left.results == []
    assert left.closed is None
    for one in (first, visitor):
        if is_refused:
            refused = one.results[0]
            assert isinstance(refused, RoomError)
            assert (refused.code, one.closed and one.closed[0]) == (UNAVAILABLE, 1013)
            shell.leave(one)
        else:
            assert (one.welcome, one.heard[1]) == (RoomWelcome(1, 1), 2)
    if is_refused:
        assert shell.known == (0, 1)
        assert shell.enter(inbox=SECRET).welcome == RoomWelcome(1, 1)


def test_a_socket_cannot_bind_while_the_log_takes_nothing() -> None:
    shell = room_shell()
    shell.stop_log()

    assert code_of_entering(shell, inbox=SECRET) == UNAVAILABLE
    assert shell.known == (0, 0)
    assert shell.enter().welcome == RoomWelcome(0, 1)


# Modes.


def test_a_hub_that_requires_capabilities_is_told_the_inbox_with_everything() -> None:
    shell = room_shell(require_capability=True)

    refused_everywhere(shell, ROOM, None, RoomCode.BAD_REQUEST)
    # Whoever knows the name of the room can compute this one.
    refused_everywhere(shell, ROOM, INBOX, RoomCode.BAD_REQUEST)
    assert shell.send("a", inbox=SECRET).seq == 1
    assert shell.rooms.proposals(ROOM, SECRET, shell.now) == []
    refused_everywhere(shell, ROOM, "guess", CONFLICT)


def test_a_blind_hub_knows_one_name_only() -> None:
    shell = room_shell(mode="blind")
    shell.send("a", room=SECRET)
    shell.send("b", room=SECRET, inbox=SECRET)
    shell.send("a", room="t:r")

    assert shell.read(inbox=SECRET).ids == ["a", "b"]
    refused_everywhere(shell, SECRET, "another", CONFLICT)
    assert shell.read(inbox=default_inbox("t:r")).ids == ["a"]


# How many there may be.


def test_there_are_no_more_rooms_and_inboxes_than_allowed() -> None:
    shell = room_shell(limit=4)
    shell.fill(1)
    shell.deposit("d", inbox="third")

    assert shell.send("a", room="another").code == UNAVAILABLE
    assert shell.known == (1, 2)
    assert shell.deposit("d", inbox="fourth").seq == 1
    assert shell.deposit("d", inbox="fifth").code == UNAVAILABLE
    assert code_of_entering(shell, "another") == UNAVAILABLE
    assert shell.send("b").seq == 2


def test_recovery_knows_no_limit() -> None:
    shell = room_shell()
    for number in range(10):
        shell.send("a", room=f"room{number}")

    again = shell.reconfigured(limit=2)

    assert again.known[0] == 10
    assert again.send("b", room="room3").seq == 2
    assert again.send("a", room="another").code == UNAVAILABLE


def test_a_room_everybody_has_left_is_forgotten_if_it_holds_nothing() -> None:
    shell = room_shell()
    visitor, other = shell.enter(), shell.enter("used")
    shell.say(other, "a")
    for one in (visitor, visitor, other):
        shell.leave(one)

    assert shell.known == (1, 1)
    assert (shell.rooms.guests, shell.counts.left) == (0, 2)
    assert shell.room("used").guests == {}
    assert shell.read(inbox=default_inbox("used")).seqs == [1]


# Names are keyed hashes; nothing the hub writes holds what clients call their rooms.

NAMES = Names(b"a key")


def test_a_name_is_the_beginning_of_a_keyed_hash_and_tells_the_version_of_the_key() -> None:
    digest = hmac.digest(b"a key", b"inbox\0" + SECRET.encode(), "sha256")
    expected = urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()

    assert NAMES.inbox(SECRET) == f"inbox.{KEY_VERSION}.{expected}"
    names = {NAMES.room("a"), NAMES.room("b"), NAMES.inbox("a"), NAMES.inbox("b")}
    assert len({name.split(".")[2] for name in names}) == 4
    others = [Names(b"a key"), Names(b"another key"), Names(b"a key", version=2)]
    assert [one.inbox(SECRET) == NAMES.inbox(SECRET) for one in others] == [True, False, False]
    assert [one.mark == NAMES.mark for one in others] == [True, False, False]
    assert NAMES.mark.version == KEY_VERSION


@pytest.mark.parametrize(
    ("room", "inbox"),
    [
        ("general", "Z2VuZXJhbA"),
        ("tenant-123:room-456", "dGVuYW50LTEyMzpyb29tLTQ1Ng"),
        ("~~~", "fn5-"),
    ],
)
def test_every_client_can_derive_the_inbox_of_an_unbound_room(room: str, inbox: str) -> None:
    assert default_inbox(room) == inbox


def test_neither_disk_nor_errors_hold_a_clear_name() -> None:
    shell = room_shell(rate=2)
    member = "alice-the-member"
    shell.enter(inbox=SECRET, pseudonym=member)
    shell.fill(1, inbox=SECRET, pseudonym=member)
    shell.propose()
    shell.deposit("d", inbox=SECRET)
    shell.put_blob(b"blob", inbox=SECRET)
    shell.save_snapshot()

    written = [one.stream.encode() + one.body for one in shell.engine.entries]
    written += [name.encode() + state for name, state in shell.shelf._rooms.items()]
    errors = [
        shell.send("late", inbox=SECRET, pseudonym=member).error,
        shell.send("x", inbox="another").error,
        shell.send("x", room="another", inbox=SECRET).error,
        shell.put_blob(b"", if_version=7).error,
        *(make() for name, make in vars(refusals).items() if name in WITHOUT_FACTS),
    ]

    assert (len(written) > 8, len(errors)) == (True, 4 + len(WITHOUT_FACTS))
    for clear in (ROOM, SECRET, INBOX, member):
        assert not any(clear.encode() in one for one in written)
        assert not any(clear in error.text for error in errors)


WITHOUT_FACTS = {
    *("capability_missing", "not_blind", "storage", "broken", "unreadable", "archive_unreachable"),
    *("over_cap", "too_many_rooms", "busy", "state_full", "no_blob", "no_proposal"),
}


# The mark of the key.


def marks(shell: RoomShell) -> list[InboxKeyBody]:
    entries = [one for one in shell.engine.entries if one.kind == Kind.INBOX_KEY]
    return [decode_body(InboxKeyBody, one.body) for one in entries]


def test_the_log_learns_the_mark_of_the_key_once_and_before_the_first_message() -> None:
    shell = room_shell()
    # A log that was full for a moment may not make the hub forget to say which key it used.
    shell.engine.is_full = True
    shell.send("a")
    shell.engine.is_full = False
    shell.send("a")

    again = shell.restarted_from_log().restarted()

    mark = shell.rooms.directory.names.mark
    assert again.read().page.next_seq == 2
    assert marks(again) == [mark]
    assert again.rooms.directory.key_mark == mark


@pytest.mark.parametrize("is_from_log", [False, True])
def test_a_snapshot_knows_the_mark_as_soon_as_it_is_on_disk(is_from_log: bool) -> None:
    shell = room_shell()
    mark = shell.rooms.directory.names.mark
    shell.hold()
    shell.deposit("a")
    shell.commit(1)
    if is_from_log:
        shell = shell.restarted_from_log()
        shell.save_snapshot()
        shell.engine.is_prompt = True
    else:
        shell.save_snapshot()
        shell.refuse()
    shell.deposit("a")

    assert shell.restarted().rooms.directory.key_mark == mark
