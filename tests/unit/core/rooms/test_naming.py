"""Names in the hub are keyed hashes; nothing it writes holds what clients call their rooms."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

import pytest

from signalhub.core import refusals
from signalhub.core.rooms import refusals as room_refusals
from signalhub.wire.entry import InboxKeyBody, Kind, decode_body
from signalhub.wire.room_ids import KEY_VERSION, Names, default_inbox
from tests.support.memory.rooms import (
    INBOX,
    ROOM,
    SECRET,
    deposit,
    fill,
    join,
    put_blob,
    read,
    room_shell,
    send,
    without_shelf,
)
from tests.support.memory.shell import MemoryShell

NAMES = Names(b"a key")


def test_a_name_is_the_beginning_of_a_keyed_hash_and_tells_the_version_of_the_key() -> None:
    digest = hmac.digest(b"a key", b"inbox\0" + SECRET.encode(), "sha256")
    expected = urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()

    assert NAMES.inbox(SECRET) == f"inbox.{KEY_VERSION}.{expected}"


def test_the_same_id_has_the_same_name_and_another_id_another_one() -> None:
    assert NAMES.room("a") == Names(b"a key").room("a")
    assert len({NAMES.room("a"), NAMES.room("b"), NAMES.inbox("a"), NAMES.inbox("b")}) == 4


def test_another_key_or_another_version_of_it_gives_other_names() -> None:
    others = [Names(b"another key"), Names(b"a key", version=2)]

    assert len({one.inbox(SECRET) for one in (NAMES, *others)}) == 3


def test_a_room_and_an_inbox_of_the_same_name_share_no_hash() -> None:
    room, inbox = NAMES.room("x").split(".")[2], NAMES.inbox("x").split(".")[2]

    assert room != inbox


def test_the_mark_of_a_key_says_nothing_but_whether_it_is_the_same() -> None:
    assert NAMES.mark == Names(b"a key").mark
    assert NAMES.mark != Names(b"another key").mark
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


# What is written.


def lived_in(shell: MemoryShell) -> None:
    """Every kind of entry about a room."""
    join(shell, inbox=SECRET, pseudonym="alice-the-member")
    fill(shell, 1, inbox=SECRET, pseudonym="alice-the-member")
    send(shell, "p", type="mls_proposal", proposal="x")
    deposit(shell, "d", inbox=SECRET)
    put_blob(shell, b"blob", inbox=SECRET)
    shell.save_snapshot()


def test_nothing_on_disk_holds_a_clear_name() -> None:
    shell = room_shell()
    lived_in(shell)

    written = [one.stream.encode() + one.body for one in shell.engine.entries]
    written += [name.encode() + state for name, state in shell.shelf._rooms.items()]

    assert len(written) > 8
    for clear in (ROOM, SECRET, INBOX, "alice-the-member"):
        assert not any(clear.encode() in one for one in written)


def test_no_error_names_a_room_an_inbox_or_a_member() -> None:
    shell = room_shell(rate=1)
    lived_in(shell)

    errors = [
        send(shell, "late", inbox=SECRET, pseudonym="alice-the-member").error,
        send(shell, "x", inbox="another").error,
        send(shell, "x", room="another", inbox=SECRET).error,
        put_blob(shell, b"", if_version=7).error,
        room_refusals.capability_missing(),
        room_refusals.not_blind(),
        room_refusals.storage(),
        room_refusals.unreadable(),
        room_refusals.archive_away(),
        room_refusals.over_cap(),
        room_refusals.too_many_rooms(),
        room_refusals.busy(),
        room_refusals.state_full(),
        room_refusals.no_blob(),
        room_refusals.no_proposal(),
    ]

    for error in errors:
        assert not any(clear in error.text for clear in (ROOM, SECRET, "alice-the-member"))


# The key.


def marks(shell: MemoryShell) -> list[InboxKeyBody]:
    return [
        decode_body(InboxKeyBody, one.body)
        for one in shell.engine.entries
        if one.kind == Kind.INBOX_KEY
    ]


def test_the_log_learns_the_mark_of_the_key_once() -> None:
    shell = room_shell()
    fill(shell, 1)

    again = without_shelf(shell).restarted()

    assert marks(again) == [shell.hub.rooms.directory.names.mark]
    assert again.hub.rooms.directory.key_mark == shell.hub.rooms.directory.names.mark


def test_no_message_is_on_disk_without_the_mark_of_its_key() -> None:
    """A log that was full for a moment may not make the hub forget to say which key it used."""
    shell = room_shell()
    shell.engine.is_full = True
    send(shell, "a")
    shell.engine.is_full = False
    send(shell, "a")

    again = without_shelf(shell)

    assert read(again).page.next_seq == 2
    assert marks(again) == [shell.hub.rooms.directory.names.mark]
    assert again.hub.rooms.directory.key_mark == shell.hub.rooms.directory.names.mark


def test_a_snapshot_knows_the_mark_of_the_key_as_soon_as_it_is_on_disk() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    deposit(shell, "a")
    shell.engine.commit(1)
    shell.save_snapshot()
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    deposit(shell, "a")

    again = shell.restarted()

    assert again.hub.rooms.directory.key_mark == shell.hub.rooms.directory.names.mark


def test_a_snapshot_knows_a_mark_that_was_found_in_the_log() -> None:
    shell = room_shell()
    shell.engine.is_prompt = False
    deposit(shell, "a")
    shell.engine.commit(1)
    again = without_shelf(shell)
    again.save_snapshot()
    again.engine.is_prompt = True
    deposit(again, "a")

    assert again.restarted().hub.rooms.directory.key_mark == shell.hub.rooms.directory.names.mark
