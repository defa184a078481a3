"""Rooms and inboxes on a memory shell: short requests, and callers that keep their answers.

A request is answered at once as long as the log is prompt and readable; otherwise the caller that
is returned gets its answer later. The limits are so high that only tests about them reach them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, cast

import msgspec
import pytest

from signalhub.core import refusals
from signalhub.core.effects import Consult
from signalhub.core.messages.dedup import Dedup
from signalhub.core.rooms.inbox import Inbox
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.rooms import Rooms
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
from signalhub.counters import RoomTally
from signalhub.settings.model import RoomsSettings, Settings
from signalhub.wire.entry import Kind, ProposalBody, RoomMessageBody, decode_body
from signalhub.wire.errors import RoomError
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import MemoryShell

ROOM = "general"
INBOX = "Z2VuZXJhbA"  # What clients derive from the name of the room.
SECRET = "c2VjcmV0LWluYm94Kg"
TEXT = b"aGVsbG8"
DAY_S, WEEK_S = 86_400, 7 * 86_400
# Room for about fifty ids.
SCARCE_BYTES = 1_500
Archive = Callable[[Consult], list[Archived] | None]

WIDE: dict[str, Any] = {"rate": 1_000_000, "append_rate": 1_000_000, "fetch_rate": 1_000_000}


class Caller:
    """The sender of a request; keeps every answer, with the id it is about."""

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
    def told(self) -> list[tuple[str, int, bool]]:
        """What was accepted, in the order of the answers: id, position, was it a repeat?"""
        found = [one for one in self.results if isinstance(one, Accepted)]
        return [(one.message_id, one.seq, one.is_repeat) for one in found]

    @property
    def page(self) -> Page:
        """The only answer, which must be a page."""
        result = self.result
        assert isinstance(result, Page), result
        return result

    @property
    def items(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(one) for one in self.page.messages]

    @property
    def seqs(self) -> list[int]:
        """The positions in the page."""
        return [one["seq"] for one in self.items]

    @property
    def ids(self) -> list[str]:
        """The ids in the page."""
        return [one["messageId"] for one in self.items]

    @property
    def error(self) -> RoomError:
        result = self.result
        assert isinstance(result, RoomError), result
        return result

    @property
    def code(self) -> str:
        """Why it was refused."""
        return self.error.code


class Visitor(Caller):
    """A socket in a room: hears frames, in one order with its answers, until it is closed."""

    guest: Guest
    room: str

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[dict[str, Any]] = []
        # Everything in its order: the position of a frame, or an answer.
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


class RoomShell(MemoryShell):
    """A hub with rooms."""

    @property
    def rooms(self) -> Rooms:
        return self.hub.rooms

    @property
    def counts(self) -> RoomTally:
        return self.tally.rooms

    # Requests.

    def send(
        self,
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
        request = SendToRoom(caller, room, inbox, message_id, ciphertext, mono_ms(self), **members)
        self.perform(self.hub.rooms.send(request, self.now))
        return caller

    def say(self, visitor: Visitor, message_id: str, **members: Any) -> None:
        """A message that comes in by a socket, to the room the socket is in."""
        guest = visitor.guest
        by_socket: dict[str, Any] = {"guest": guest, "pseudonym": guest.pseudonym}
        self.send(message_id, room=visitor.room, caller=visitor, **by_socket | members)

    def deposit(
        self,
        message_id: str,
        ciphertext: bytes = TEXT,
        *,
        inbox: str = INBOX,
        caller: Caller | None = None,
    ) -> Caller:
        """A message for an inbox alone."""
        caller = caller or Caller()
        request = Deposit(caller, inbox, message_id, ciphertext, mono_ms(self))
        self.perform(self.rooms.deposit(request, self.now))
        return caller

    def read(
        self,
        from_seq: int = 0,
        limit: int = 100,
        *,
        inbox: str = INBOX,
        caller: Caller | None = None,
    ) -> Caller:
        """A page of an inbox."""
        caller = caller or Caller()
        request = Read(caller, inbox, from_seq, limit, mono_ms(self))
        self.perform(self.hub.rooms.read(request, self.now))
        return caller

    def pages(self, limit: int, from_seq: int = 0, *, inbox: str = INBOX) -> list[int]:
        """All positions a client finds that pages until it gets an empty page."""
        found: list[int] = []
        while True:
            caller = RoomShell.read(self, from_seq, limit, inbox=inbox)
            if not caller.page.messages:
                assert caller.page.next_seq == from_seq, "an empty page does not move the cursor"
                return found
            found += caller.seqs
            from_seq = caller.page.next_seq

    def enter(
        self,
        room: str = ROOM,
        inbox: str | None = None,
        pseudonym: str = "p1",
        visitor: Visitor | None = None,
    ) -> Visitor:
        """A socket enters a room; raises `RoomError`."""
        visitor = visitor or Visitor()
        visitor.room = room
        visitor.guest, effects = self.rooms.join(visitor, room, inbox, pseudonym, self.now)
        self.perform(effects)
        return visitor

    def leave(self, visitor: Visitor) -> None:
        self.perform(self.rooms.leave(visitor.guest, self.now))

    def put_blob(
        self,
        data: bytes,
        if_version: int | None = None,
        *,
        name: str = "metadata",
        room: str = ROOM,
        inbox: str | None = None,
        caller: Caller | None = None,
    ) -> Caller:
        """Write a blob."""
        caller = caller or Caller()
        request = PutBlob(caller, room, inbox, name, data, if_version)
        self.perform(self.rooms.put_blob(request, self.now))
        return caller

    def blob(self, name: str = "metadata", room: str = ROOM) -> Blob:
        """A blob as it is; raises `RoomError`."""
        return self.rooms.blob(room, None, name, self.now)

    def propose(
        self, name: str = "x", ciphertext: bytes = TEXT, *, room: str = ROOM, pseudonym: str = ""
    ) -> Caller:
        """A proposal; the message is called after it."""
        members: dict[str, Any] = {"type": "mls_proposal", "proposal": name, "pseudonym": pseudonym}
        return self.send(f"propose-{name}", ciphertext, room=room, **members)

    def about(self, type: str, name: str = "x", ciphertext: bytes = TEXT) -> Caller:
        """Another message about a proposal."""
        message_id = f"{type}-{name}-{len(self.engine.entries)}-{self.engine.pending}"
        return self.send(message_id, ciphertext, type=type, proposal=name)

    def proposals(self) -> list[ProposalBody]:
        return self.rooms.proposals(ROOM, None, self.now)

    def fill(self, count: int, first: int = 1, **members: Any) -> None:
        """Messages m1, m2, … to a room, all of which it accepts."""
        for number in range(first, first + count):
            assert self.send(f"m{number}", **members).accepted.is_repeat is False

    # The disk.

    def hold(self) -> None:
        """Nothing is committed until `commit` or `refuse`."""
        self.engine.is_prompt = False

    def commit(self, count: int | None = None) -> None:
        """What was held is on disk, or the first `count` entries of it."""
        self.engine.commit(count)

    def refuse(self) -> None:
        """The log has no space for what was held; what comes next it takes again."""
        self.engine.refuse(refusals.storage_full())
        self.engine.is_prompt = True

    def stop_log(self) -> None:
        """The log takes nothing any more."""
        self.hub.storage.stop(refusals.storage_failed())

    def hold_reads(self) -> None:
        """Nothing is read from disk until `answer_reads`."""
        self.engine.is_readable = False

    def answer_reads(self) -> None:
        self.engine.is_readable = True
        self.settle()

    def offset_of(self, seq: int) -> int:
        """Where a message of the room is in the log."""
        name = self.inbox().name
        entries = self.engine.entries
        return next(one.offset for one in entries if (one.stream, one.seq) == (name, seq))

    def cut_before(self, seq: int) -> None:
        """The log loses everything before a message."""
        self.engine.cut(self.offset_of(seq))

    def use_archive(self, archive: Archive, up_to: int = 0) -> None:
        """The hub has a pipeline; this archive holds everything before the offset `up_to`."""
        self.archive = archive
        self.rooms.archived_to(up_to)

    def restarted_from_log(self) -> RoomShell:
        """The hub after a crash that cost it the snapshot."""
        self.shelf = Shelf()
        return self.restarted()

    def reconfigured(self, **rooms: Any) -> RoomShell:
        """The hub after a crash, with other settings of rooms."""
        other = room_shell(**rooms)
        other.clock, other.engine, other.shelf = self.clock, self.engine, self.shelf
        return other.restarted()

    # What is known.

    def inbox(self, inbox: str = INBOX) -> Inbox:
        return self.rooms.directory.inboxes[self.rooms.directory.names.inbox(inbox)]

    def room(self, room: str = ROOM) -> Room:
        return self.rooms.directory.rooms[self.rooms.directory.names.room(room)]

    @property
    def known(self) -> tuple[int, int]:
        """How many rooms and inboxes there are."""
        return len(self.rooms.directory.rooms), len(self.rooms.directory.inboxes)

    def bodies(self, inbox: str = INBOX) -> list[RoomMessageBody]:
        """The messages of an inbox in the log."""
        name = self.rooms.directory.names.inbox(inbox)
        entries = [one for one in self.engine.entries if one.stream == name and one.seq]
        return [decode_body(RoomMessageBody, one.body) for one in entries]

    def count(self, kind: Kind) -> int:
        """How many entries of a kind are in the log."""
        return sum(one.kind == kind for one in self.engine.entries)


restarts = pytest.mark.parametrize(
    "restart", [RoomShell.restarted, RoomShell.restarted_from_log], ids=["snapshot", "log"]
)
Restart = Callable[[RoomShell], RoomShell]


def room_shell(**rooms: Any) -> RoomShell:
    """A hub with these settings of rooms."""
    return RoomShell(Settings(rooms=RoomsSettings(**WIDE | rooms)))


def mono_ms(shell: MemoryShell) -> int:
    """The clock that never goes back."""
    return round(shell.clock.mono_s() * 1000)


def send(shell: MemoryShell, message_id: str) -> Caller:
    """A message for a room of any shell."""
    return RoomShell.send(cast(RoomShell, shell), message_id)


def pages(shell: MemoryShell, limit: int) -> list[int]:
    """The positions in the inbox of the room, on any shell."""
    return RoomShell.pages(cast(RoomShell, shell), limit)


def scarce_ids(patch: pytest.MonkeyPatch) -> None:
    """Hubs have next to no memory for ids."""
    patch.setattr(
        "signalhub.core.rooms.inbox.Dedup", lambda window_ms, size: Dedup(window_ms, SCARCE_BYTES)
    )


def holding(first: int, last: int) -> Archive:
    """An archive that has a stretch of messages."""

    def answer(consult: Consult) -> list[Archived]:
        stretch = range(max(first, consult.from_seq), min(last, consult.to_seq) + 1)
        return [archived(seq) for seq in stretch][: consult.count_max]

    return answer


def unreachable(consult: Consult) -> None:
    """An archive that cannot be reached."""


def archived(
    seq: int, message_id: str = "", ciphertext: bytes = TEXT, expires_ms: int = 2**62
) -> Archived:
    """A message in the archive."""
    return Archived(seq, message_id or f"m{seq}", ciphertext, None, expires_ms)


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
    """Delete as much of the log as may be: a snapshot first, anchors where needed.

    Anchors that are not on disk at once let the next call cut more.
    """
    shell.save_snapshot()
    needed = shell.hub.rooms.needed_from(shell.now)
    end = shell.engine.head if needed is None else min(needed, shell.engine.head)
    if end > shell.hub.anchors.anchored():
        shell.perform(shell.hub.anchors.anchor(end, shell.now))
    shell.engine.cut(min(end, shell.hub.anchors.anchored()))
    shell.hub.rooms.messages.pins.cut(shell.engine.first)
