"""All rooms and inboxes of the shard: the face the server uses, and what they share.

A message goes one way: `accepting` gives it a position and hands it to the log; once it is
committed it is kept in memory, handed to the sockets of its room, and its sender is told. `reading`
serves pages from memory, the log and the archive, in this order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Answer, Append, Dismiss, Effect
from signalhub.core.rooms import accept, blobs, guests, proposals, read, refusals, values
from signalhub.core.rooms.bind import default_inbox_id, find, join_inbox
from signalhub.core.rooms.inbox import Buffer, Inbox, Kept, KnownIds, Pins
from signalhub.core.rooms.room import Room, Windows
from signalhub.core.rooms.values import Blob, Deposit, Guest, PutBlob, Read, Send
from signalhub.wire.entry import (
    Entry,
    InboxKey,
    Kind,
    Proposal,
    RoomMessage,
    Stored,
    decode_body,
    encode_body,
)
from signalhub.wire.room_ids import Names

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.wire.errors import Refusal

_MINUTE_MS: Final = 60_000
RESTARTING: Final = 1012
_SET_BACK_MS: Final = 5_000
_ALARMS_SPARE: Final = 1_000


class Rooms:
    """Everything about rooms and inboxes. Not thread-safe; the hub's loop owns it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.settings = settings = hub.settings.rooms
        self.tally = hub.tally.rooms
        # Until the key is known, nobody is served.
        self.names = Names(b"")
        self.rooms: dict[str, Room] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.fetches = Windows(settings.fetch_rate, _MINUTE_MS)
        self.looks = Windows(settings.state_rate, _MINUTE_MS)
        self.appends = Windows(settings.append_rate, _MINUTE_MS)
        self._grid_ms = values.GRID_MS[settings.timestamps]
        repeat_ms = int(settings.repeat_s * 1000)
        self.ids = KnownIds(repeat_ms, settings.repeat_memory_bytes, self._grid_ms)
        self.buffer = Buffer(settings.buffer, settings.buffer_bytes)
        self.pins = Pins()
        # Proposals by the time something happens to them: time, room, id.
        self.alarms: list[tuple[int, str, str]] = []
        # Rooms with something in their windows, the longest silent first, and when they last spoke.
        self.busy: dict[Room, int] = {}
        # Bytes of all proposals and blobs, and how many proposals there are.
        self.state_bytes = 0
        self.proposals_count = 0
        self.guests = 0
        # Everything before this offset is in the archive; `None` without a pipeline.
        self.archived: int | None = None
        # What changed since the last snapshot.
        self.dirty: set[Room | Inbox] = set()
        # Inboxes with messages that the archive does not have yet.
        self.waiting: set[Inbox] = set()
        # What the log knows of the key, and from where on.
        self.key_mark: InboxKey | None = None
        self.is_key_marked = False
        self.is_shared_dirty = False
        self.key_defined_at = 0
        self._is_exact = settings.timestamps == "exact"
        self._mono_ms = 0
        self._ticked_ms = 0

    # Events.

    def send(self, request: Send, now: int) -> list[Effect]:
        """A message for a room."""
        return accept.send(self, request, now)

    def deposit(self, request: Deposit, now: int) -> list[Effect]:
        """A message for an inbox alone."""
        return accept.deposit(self, request, now)

    def read(self, request: Read, now: int) -> list[Effect]:
        """A page of an inbox."""
        return read.read(self, request, now)

    def put_blob(self, request: PutBlob, now: int) -> list[Effect]:
        """A new version of a blob."""
        return blobs.put(self, request, now)

    def look(self, room: str, mono_ms: int) -> None:
        """Somebody asks what a room remembers; raises `RoomError` if that is too often."""
        self.saw(mono_ms)
        wait_ms = self.looks.of(self.names.room(room)).take(mono_ms)
        if wait_ms:
            self.tally.limited += 1
            raise refusals.limited(wait_ms)

    def blob(self, room: str, inbox: str | None, name: str, now: int) -> Blob:
        """A blob as it is; raises `RoomError`."""
        return blobs.get(find(self, room, inbox), name)

    def proposals(self, room: str, inbox: str | None, now: int) -> list[Proposal]:
        """What a room remembers of proposals, oldest first; raises `RoomError`."""
        return proposals.every(find(self, room, inbox), now)

    def proposal(self, room: str, inbox: str | None, proposal_id: str, now: int) -> Proposal:
        """One of them; raises `RoomError`."""
        return proposals.one(find(self, room, inbox), proposal_id, now)

    def join(
        self, link: object, room_name: str, inbox_id: str | None, pseudonym: str, now: int
    ) -> tuple[Guest, list[Effect]]:
        """A socket enters a room and is welcomed; raises `RoomError`, and then it has not."""
        room, effects = join_inbox(self, room_name, inbox_id, now)
        guest = Guest(link, room, pseudonym)
        room.guests[guest] = None
        self.guests += 1
        self.tally.joined += 1
        if room.is_being_bound:
            # It is welcome when the binding is on disk.
            room.unwelcomed.append(guest)
            return guest, effects
        inbox = room.inbox or self.inboxes.get(self.default_inbox(room_name))
        return guest, [Answer(link, guests.welcome(inbox, now))]

    def leave(self, guest: Guest, now: int) -> list[Effect]:
        """A socket is gone. Harmless when repeated."""
        if guest in guest.room.guests:
            del guest.room.guests[guest]
            self.guests -= 1
            self.tally.left += 1
            self.forget_blank(guest.room)
        return []

    def tick(self, now: int) -> list[Effect]:
        """Once a second: alarms, and letting go of what nobody will ask for."""
        if now < self._ticked_ms - _SET_BACK_MS:
            self._clock_was_set_back()
        self._ticked_ms = now
        self.ids.sweep(now)
        self.fetches.sweep(self._mono_ms)
        self.looks.sweep(self._mono_ms)
        self.appends.sweep(self._mono_ms)
        self.buffer.expire(now)
        self._calm_down()
        return proposals.due(self, now)

    def _clock_was_set_back(self) -> None:
        """What seemed to have expired may not have: each inbox looks for its oldest again."""
        for inbox in self.inboxes.values():
            inbox.oldest, inbox.oldest_expires_ms = inbox.erased_to + 1, 0
            self.dirty.add(inbox)

    def _calm_down(self) -> None:
        """A room that was silent for its whole window need not remember when it spoke."""
        silent_ms = self._mono_ms - int(self.settings.rate_window_s * 1000)
        while self.busy:
            room, spoke_ms = next(iter(self.busy.items()))
            if spoke_ms > silent_ms:
                return
            del self.busy[room]
            if room.inbox is not None and room.inbox.queue is not None:
                # Messages of it wait for the disk, so it is not silent.
                self.busy[room] = self._mono_ms
                continue
            room.calm_down()
            if self.rooms.get(room.name) is room:
                self.dirty.add(room)

    def drain(self) -> list[Effect]:
        """The hub stops: everybody is told to come back."""
        return [
            Dismiss(guest, RESTARTING, "the hub is restarting")
            for room in self.rooms.values()
            for guest in room.guests
        ]

    def archived_to(self, offset: int) -> None:
        """The archive has everything before this offset."""
        self.archived = offset
        for inbox in list(self.waiting):
            inbox.archived(offset)
            self.dirty.add(inbox)
            if not inbox.unarchived:
                self.waiting.discard(inbox)

    @property
    def unarchived(self) -> int:
        """The messages that wait for the archive in the inbox where most do."""
        if self.archived is None:
            return 0
        return max((one.unarchived_count for one in self.waiting), default=0)

    # The key.

    def use(self, names: Names) -> None:
        """Serve with this key from now on."""
        self.names = names

    def marking(self, now: int) -> list[Effect]:
        """Before the first entry about rooms: the log remembers which key they were hashed with."""
        if self.key_mark is not None:
            return []
        self.key_mark = self.names.mark
        return [self.write_key_mark(now)]

    def write_key_mark(self, now: int) -> Append:
        """The mark of the key as an entry."""
        assert self.key_mark is not None
        entry = Entry(Kind.INBOX_KEY, "", 0, 0, now, encode_body(self.key_mark))
        return Append(entry, self._key_marked, self._key_refused)

    def _key_marked(self, offset: int, now: int) -> list[Effect]:
        """The mark of the key is on disk; whatever needs it comes behind it."""
        self.is_key_marked = self.is_shared_dirty = True
        self.key_defined_at = offset
        return []

    def _key_refused(self, refusal: Refusal, now: int) -> list[Effect]:
        if not self.is_key_marked:
            self.key_mark = None
        return []

    # What the parts share.

    def default_inbox(self, room_name: str) -> str:
        """The name of the inbox a room has if nobody says otherwise."""
        return self.names.inbox(default_inbox_id(self, room_name))

    def room(self, name: str) -> Room:
        """The room kept under this name, made if need be."""
        room = self.rooms.get(name)
        if room is None:
            self._check_limit()
            room = self.rooms[name] = Room(name)
        return room

    def inbox(self, name: str) -> Inbox:
        """The inbox kept under this name, made if need be."""
        inbox = self.inboxes.get(name)
        if inbox is None:
            self._check_limit()
            inbox = self.inboxes[name] = Inbox(name)
        return inbox

    def forget_blank(self, *ones: Room | Inbox | None) -> None:
        """Let go of what nothing is known about."""
        for one in ones:
            if isinstance(one, Room) and one.is_blank:
                self.rooms.pop(one.name, None)
                self.busy.pop(one, None)
                self.dirty.discard(one)
            elif isinstance(one, Inbox) and one.is_blank:
                self.inboxes.pop(one.name, None)
                self.waiting.discard(one)
                self.dirty.discard(one)

    def floored(self, now: int) -> int:
        """The time as it may be remembered."""
        return now - now % self._grid_ms

    def shown(self, at_ms: int) -> int | None:
        """The time as it may be told."""
        return None if self.settings.timestamps == "none" else self.floored(at_ms)

    @property
    def grid_ms(self) -> int:
        return self._grid_ms

    @property
    def is_exact(self) -> bool:
        """Are times told to the millisecond?"""
        return self._is_exact

    def saw(self, mono_ms: int) -> None:
        """The clock that never goes back, as the last request brought it."""
        self._mono_ms = mono_ms

    def set_alarm(self, at_ms: int, room: Room, proposal: Proposal) -> None:
        """Something happens to a proposal then."""
        heapq.heappush(self.alarms, (at_ms, room.name, proposal.id))
        if len(self.alarms) > _ALARMS_SPARE + 3 * self.proposals_count:
            # Proposals that were dropped or finished have left theirs behind.
            proposals.set_alarms(self)

    def erase(self, inbox: Inbox, through: int) -> None:
        """Nothing of an inbox up to a position is read again, nor what its room made of it."""
        inbox.erase_to(through)
        self.dirty.add(inbox)
        for seq in inbox.recent:
            if seq <= through:
                self.buffer.blank(inbox, seq)
        room = inbox.room
        if room is not None:
            for proposal in list(room.proposals.values()):
                proposals.drop(self, room, proposal)

    def kept_of(self, stored: Stored) -> Kept | None:
        """A message as it was read from the log; `None` if it was erased."""
        if stored.is_erased or self.hub.erasures.hides(stored.offset):
            return None
        body = decode_body(RoomMessage, stored.body)
        item = self.page_item(stored.seq, body.message_id, body.ciphertext, body.created_ms)
        return Kept(stored.seq, body.message_id, body.expires_ms, item)

    def page_item(
        self, seq: int, message_id: str, ciphertext: bytes, created_ms: int | None
    ) -> bytes:
        """A message as a page holds it."""
        alike = values.members(seq, message_id, ciphertext)
        return values.page_item(alike, created_ms, is_exact=self._is_exact)

    def _check_limit(self) -> None:
        if len(self.rooms) + len(self.inboxes) >= self.settings.limit:
            raise refusals.too_many_rooms()

    def every(self) -> Iterator[Room | Inbox]:
        """Everything that is defined somewhere in the log."""
        yield from self.rooms.values()
        yield from self.inboxes.values()
