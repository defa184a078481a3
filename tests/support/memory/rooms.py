"""Rooms and inboxes on a memory shell, in few words: callers that collect answers, short requests.

What is asked is answered at once as long as the log is prompt and readable; otherwise the caller
that is returned gets its answer later. The limits are so wide that only tests about them meet them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec

from signalhub.core.effects import Consult
from signalhub.core.rooms.inbox import Inbox
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.values import (
    Accepted,
    Archived,
    Blob,
    Deposit,
    Guest,
    Page,
    PutBlob,
    Read,
    Result,
    RoomWelcome,
    SendToRoom,
)
from signalhub.settings.model import RoomsSettings, Settings
from signalhub.wire.entry import RoomMessageBody, decode_body
from signalhub.wire.errors import RoomError
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import MemoryShell, Shell

ROOM = "general"
INBOX = "Z2VuZXJhbA"  # What clients derive from the name of the room.
SECRET = "c2VjcmV0LWluYm94"
TEXT = b"aGVsbG8"
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
Archive = Callable[[Consult], list[Archived] | None]

WIDE: dict[str, Any] = {"rate": 1_000_000, "append_rate": 1_000_000, "fetch_rate": 1_000_000}


class Caller:
    """Somebody who asked something; keeps every answer, with the id it is about."""

    def __init__(self) -> None:
        self.answers: list[tuple[Result, str]] = []

    def answer(self, result: Result, message_id: str) -> None:
        self.answers.append((result, message_id))

    @property
    def results(self) -> list[Result]:
        return [result for result, _ in self.answers]

    @property
    def result(self) -> Result:
        """The only answer."""
        (result,) = self.results
        return result

    @property
    def accepted(self) -> Accepted:
        """The only answer, which must say that a message is on disk."""
        result = self.result
        assert isinstance(result, Accepted), result
        return result

    @property
    def seq(self) -> int:
        return self.accepted.seq

    @property
    def page(self) -> Page:
        """The only answer, which must be a page."""
        result = self.result
        assert isinstance(result, Page), result
        return result

    @property
    def code(self) -> str:
        """Why it was refused."""
        return self.error.code

    @property
    def error(self) -> RoomError:
        result = self.result
        assert isinstance(result, RoomError), result
        return result


class Visitor(Caller):
    """A socket in a room: hears frames, in one order with its answers, until it is closed."""

    guest: Guest
    room: str

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[dict[str, Any]] = []
        # Everything as it came: the position of a frame, or an answer.
        self.heard: list[int | Result] = []
        self.closed: tuple[int, str] | None = None

    def answer(self, result: Result, message_id: str) -> None:
        super().answer(result, message_id)
        self.heard.append(result)

    def hear(self, frame: bytes) -> None:
        if self.closed is not None:
            return
        self.frames.append(msgspec.json.decode(frame))
        self.heard.append(self.frames[-1]["seq"])

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None, "a socket is closed once"
        self.closed = (code, reason)

    @property
    def seqs(self) -> list[int]:
        """The positions of all frames."""
        return [frame["seq"] for frame in self.frames]

    @property
    def welcome(self) -> RoomWelcome:
        """The first thing it was told."""
        result = self.results[0]
        assert isinstance(result, RoomWelcome), result
        return result


def room_shell(**rooms: Any) -> MemoryShell:
    """A hub with these settings of rooms."""
    return MemoryShell(Settings(rooms=RoomsSettings(**WIDE | rooms)))


def mono_ms(shell: MemoryShell) -> int:
    """The clock that never goes back."""
    return round(shell.clock.mono_s() * 1000)


# Requests.


def send(
    shell: MemoryShell,
    message_id: str,
    ciphertext: bytes = TEXT,
    *,
    room: str = ROOM,
    inbox: str | None = None,
    caller: Caller | None = None,
    **members: Any,
) -> Caller:
    """A message for a room."""
    caller = caller or Caller()
    request = SendToRoom(caller, room, inbox, message_id, ciphertext, mono_ms(shell), **members)
    shell.perform(shell.hub.rooms.send(request, shell.now))
    return caller


def say(shell: MemoryShell, visitor: Visitor, message_id: str, **members: Any) -> None:
    """A message that comes in by a socket, to the room the socket is in."""
    guest = visitor.guest
    by_socket: dict[str, Any] = {"guest": guest, "pseudonym": guest.pseudonym}
    send(shell, message_id, room=visitor.room, caller=visitor, **by_socket | members)


def deposit(
    shell: MemoryShell,
    message_id: str,
    ciphertext: bytes = TEXT,
    *,
    inbox: str = INBOX,
    caller: Caller | None = None,
) -> Caller:
    """A message for an inbox alone."""
    caller = caller or Caller()
    request = Deposit(caller, inbox, message_id, ciphertext, mono_ms(shell))
    shell.perform(shell.hub.rooms.deposit(request, shell.now))
    return caller


def read(shell: MemoryShell, from_seq: int = 0, limit: int = 100, *, inbox: str = INBOX) -> Caller:
    """A page of an inbox."""
    caller = Caller()
    request = Read(caller, inbox, from_seq, limit, mono_ms(shell))
    shell.perform(shell.hub.rooms.read(request, shell.now))
    return caller


def join(
    shell: MemoryShell, room: str = ROOM, inbox: str | None = None, pseudonym: str = "p1"
) -> Visitor:
    """A socket enters a room; raises `RoomError`."""
    visitor = Visitor()
    visitor.room = room
    visitor.guest, effects = shell.hub.rooms.join(visitor, room, inbox, pseudonym, shell.now)
    shell.perform(effects)
    return visitor


def leave(shell: MemoryShell, visitor: Visitor) -> None:
    shell.perform(shell.hub.rooms.leave(visitor.guest, shell.now))


def put_blob(
    shell: MemoryShell,
    data: bytes,
    if_version: int | None = None,
    *,
    name: str = "metadata",
    room: str = ROOM,
    inbox: str | None = None,
) -> Caller:
    """Write a blob."""
    caller = Caller()
    request = PutBlob(caller, room, inbox, name, data, if_version)
    shell.perform(shell.hub.rooms.put_blob(request, shell.now))
    return caller


def blob(shell: MemoryShell, name: str = "metadata", room: str = ROOM) -> Blob:
    """A blob as it is; raises `RoomError`."""
    return shell.hub.rooms.blob(room, None, name, shell.now)


def fill(shell: MemoryShell, count: int, first: int = 1, **members: Any) -> None:
    """Messages m1, m2, … to a room, all of which it takes."""
    for number in range(first, first + count):
        assert send(shell, f"m{number}", **members).accepted.is_repeat is False


# What was answered, what is known.


def seqs(page: Page) -> list[int]:
    """The positions in a page."""
    return [one["seq"] for one in items(page)]


def ids(page: Page) -> list[str]:
    """The ids in a page."""
    return [one["messageId"] for one in items(page)]


def items(page: Page) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one) for one in page.messages]


def pages(shell: MemoryShell, limit: int, from_seq: int = 0, *, inbox: str = INBOX) -> list[int]:
    """All positions a client finds that pages until it gets an empty page."""
    found: list[int] = []
    while True:
        page = read(shell, from_seq, limit, inbox=inbox).page
        if not page.messages:
            assert page.next_seq == from_seq, "an empty page does not move the cursor"
            return found
        found += seqs(page)
        from_seq = page.next_seq


def inbox_of(shell: MemoryShell, inbox: str = INBOX) -> Inbox:
    rooms = shell.hub.rooms
    return rooms.directory.inboxes[rooms.directory.names.inbox(inbox)]


def room_of(shell: MemoryShell, room: str = ROOM) -> Room:
    rooms = shell.hub.rooms
    return rooms.directory.rooms[rooms.directory.names.room(room)]


def offset_of(shell: MemoryShell, seq: int) -> int:
    """Where a message of the room is in the log."""
    name = inbox_of(shell).name
    return next(one.offset for one in shell.engine.entries if (one.stream, one.seq) == (name, seq))


def cut_before(shell: MemoryShell, seq: int) -> None:
    """The log loses everything before a message."""
    shell.engine.cut(offset_of(shell, seq))


def with_archive(shell: MemoryShell, archive: Archive, up_to: int = 0) -> None:
    """The hub has a pipeline, and this is what its archive says."""
    shell.archive = archive
    shell.hub.rooms.archived_to(up_to)


def holding(first: int, last: int) -> Archive:
    """An archive that has a stretch of messages."""

    def answer(consult: Consult) -> list[Archived]:
        stretch = range(max(first, consult.from_seq), min(last, consult.to_seq) + 1)
        return [archived(seq) for seq in stretch][: consult.count_max]

    return answer


def away(consult: Consult) -> None:
    """An archive that cannot be reached."""


def archived(
    seq: int, message_id: str = "", ciphertext: bytes = TEXT, expires_ms: int = 2**62
) -> Archived:
    """A message as the archive holds it."""
    return Archived(seq, message_id or f"m{seq}", ciphertext, None, expires_ms)


def bodies(shell: MemoryShell, inbox: str = INBOX) -> list[RoomMessageBody]:
    """The messages of an inbox as the log holds them."""
    name = shell.hub.rooms.directory.names.inbox(inbox)
    return [
        decode_body(RoomMessageBody, one.body)
        for one in shell.engine.entries
        if one.stream == name and one.seq
    ]


def without_shelf(shell: Shell) -> Shell:
    """The hub after a crash that cost it the snapshot, so that it has to start from the log."""
    shell.shelf = Shelf()
    return shell.restarted()


def reconfigured(shell: MemoryShell, **rooms: Any) -> MemoryShell:
    """The hub after a crash, with other settings of rooms."""
    other = room_shell(**rooms)
    other.clock, other.engine, other.shelf = shell.clock, shell.engine, shell.shelf
    return other.restarted()


def described(shell: MemoryShell) -> dict[tuple[str, ...], object]:
    """Everything about rooms and inboxes that must survive a crash once it is on disk."""
    rooms = shell.hub.rooms
    found: dict[tuple[str, ...], object] = {}
    for inbox in rooms.directory.inboxes.values():
        if inbox.head:
            bound_to = inbox.room.name if inbox.room is not None else None
            found["inbox", inbox.name] = (inbox.head, inbox.next_seq, bound_to)
    for room in rooms.directory.rooms.values():
        if room.is_bound or room.blobs or room.proposals:
            bound_to = room.inbox.name if room.inbox is not None else None
            # Of those that were made at the same moment none is older.
            proposals = sorted(map(copy, room.proposals.values()), key=lambda one: one.id)
            found["room", room.name] = (bound_to, dict(room.blobs), room.versions, proposals)
    if found:
        found["all", "key"] = rooms.directory.key_mark
        found["all", "state"] = rooms.state.bytes
    return found


def cut(shell: MemoryShell) -> None:
    """Delete as much of the log as may be, as the hub does: a snapshot first, anchors where needed.

    Anchors that are not on disk at once let the next call cut more.
    """
    shell.save_snapshot()
    needed = shell.hub.rooms.needed_from(shell.now)
    end = shell.engine.head if needed is None else min(needed, shell.engine.head)
    if end > shell.hub.anchors.anchored():
        shell.perform(shell.hub.anchors.anchor(end, shell.now))
    shell.engine.cut(min(end, shell.hub.anchors.anchored()))
    shell.hub.rooms.messages.pins.cut(shell.engine.first)
