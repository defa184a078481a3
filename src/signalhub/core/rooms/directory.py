"""The rooms and inboxes of the hub, their names, and which room is bound to which inbox.

Linked mode: the first message or socket that names both binds them, one to one and permanently.
A message without an inbox binds the room to the inbox that every client can derive from its name.
Blind mode: room and inbox share one id.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from signalhub.core.effects import Append, Effect
from signalhub.core.limits.quotas import NOBODY, Holder, Quotas, Resource
from signalhub.core.rooms import refusals
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox
from signalhub.core.rooms.room import Room
from signalhub.wire.authority import source_of
from signalhub.wire.entry import Entry, InboxKeyBody, Kind, RoomBoundBody, encode_body
from signalhub.wire.errors import RoomError
from signalhub.wire.room_ids import Names, default_inbox, name_behind

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.rooms.access import Requester
    from signalhub.core.rooms.values import Times
    from signalhub.settings.model import RoomsSettings as RoomSettings
    from signalhub.wire.errors import Refusal


class Claim(msgspec.Struct, gc=False):
    """The room and inbox of a request: their hashed names, and the objects if they exist."""

    room_name: str
    inbox_name: str
    room: Room | None
    inbox: Inbox | None


class RoomDirectory:
    """Rooms and inboxes by hashed name, and the key that hashes the names."""

    def __init__(
        self, settings: RoomSettings, times: Times, storage: LogState, quotas: Quotas
    ) -> None:
        self._settings = settings
        self._is_blind = settings.mode == "blind"
        self._times = times
        self._storage = storage
        self._quotas = quotas
        # A placeholder; no request is served before the key is set.
        self.names = Names(b"")
        self.rooms: dict[str, Room] = {}
        self.inboxes: dict[str, Inbox] = {}
        # Changed since the last snapshot.
        self.dirty: set[Room | Inbox] = set()
        # The key mark, whether it is committed, and its offset.
        self.key_mark: InboxKeyBody | None = None
        self.is_key_marked = False
        self.is_key_dirty = False
        self.key_defined_at = 0
        # The epoch of the log, and the floor of positions in it; the key mark holds both.
        self.epoch = 0
        self.floor = 0
        self._is_mark_owed = False

    # Rooms and inboxes.

    def every(self) -> Iterator[Room | Inbox]:
        """Iterate over all rooms and inboxes."""
        yield from self.rooms.values()
        yield from self.inboxes.values()

    def room(self, name: str, requester: Requester) -> Room:
        """Return the room with this hashed name; create it if necessary."""
        room = self.rooms.get(name)
        if room is None:
            holder = self._checked_holder(requester)
            room = self.rooms[name] = Room(name)
            self._count(room, holder)
        return room

    def inbox(self, name: str, requester: Requester) -> Inbox:
        """Return the inbox with this hashed name; create it if necessary."""
        inbox = self.inboxes.get(name)
        if inbox is None:
            holder = self._checked_holder(requester)
            inbox = self.inboxes[name] = Inbox(name)
            self._count(inbox, holder)
        return inbox

    def _checked_holder(self, requester: Requester) -> Holder:
        """Return whose quota a new room or inbox counts for; raises `RoomError` if it is full.

        Who made a room is not stored, so what was made before a restart counts for nobody.
        """
        if len(self.rooms) + len(self.inboxes) >= self._settings.limit:
            raise refusals.too_many_rooms()
        claims = requester.claims
        holder = Holder("" if claims is None else claims.subject, source_of(requester.source))
        refusal = self._quotas.refusal(Resource.ROOMS, holder)
        if refusal is not None:
            raise refusals.quota(**refusal.details)
        return holder

    def _count(self, one: Room | Inbox, holder: Holder = NOBODY) -> None:
        one.holder = holder
        self._quotas.take(Resource.ROOMS, holder)

    def recovered_room(self, name: str) -> Room:
        """Like `room`, for recovery: the limit does not apply to what was accepted before."""
        room = self.rooms.get(name)
        if room is None:
            room = self.rooms[name] = Room(name)
            self._count(room)
            # Unknown, so assume the beginning of the log.
            room.defined_at = 0
        return room

    def recovered_inbox(self, name: str) -> Inbox:
        """Like `inbox`, for recovery."""
        inbox = self.inboxes.get(name)
        if inbox is None:
            inbox = self.inboxes[name] = Inbox(name)
            self._count(inbox)
        return inbox

    def forget_blank(self, *ones: Room | Inbox) -> None:
        """Remove rooms and inboxes that hold no state."""
        for one in ones:
            if not one.is_blank:
                continue
            known: dict[str, Room] | dict[str, Inbox]
            known = self.rooms if isinstance(one, Room) else self.inboxes
            if known.get(one.name) is one:
                del known[one.name]
                self._quotas.release(Resource.ROOMS, one.holder)
            self.dirty.discard(one)

    # Bindings.

    def default_inbox(self, room_name: str) -> str:
        """Return the hashed name of the inbox a room has by default."""
        return self.names.inbox(self._default_inbox_id(room_name))

    def owner_of(self, inbox_id: str) -> str | None:
        """Return the room that has this inbox by default; `None` if the id follows from no name."""
        name = name_behind(inbox_id)
        return name if name is not None and self._default_inbox_id(name) == inbox_id else None

    def _check_owner(self, room_name: str, inbox_id: str | None) -> None:
        """Raise unless an unbound room may have the inbox.

        The default inbox of another room is what those will use who know only its name. Its own is
        no capability.
        """
        chosen = inbox_id or self._default_inbox_id(room_name)
        owner = self.owner_of(chosen)
        if owner not in (None, room_name):
            raise refusals.owned_by_name()
        if owner is not None and self._settings.require_capability and not self._is_blind:
            raise refusals.capability_missing()

    def claim(self, room_name: str, inbox_id: str | None) -> Claim:
        """Find the room and inbox of a message without creating them; raises `RoomError`."""
        is_given = inbox_id is not None or self._settings.require_capability
        claimed = self._checked(room_name, inbox_id) if is_given else None
        name = self.names.room(room_name)
        room = self.rooms.get(name)
        if room is not None and (inbox := room.inbox) is not None:
            if claimed is not None:
                _check_fits(room, None, claimed)
            return Claim(name, inbox.name, room, inbox)
        self._check_owner(room_name, inbox_id)
        inbox_name = claimed or self.default_inbox(room_name)
        inbox = self.inboxes.get(inbox_name)
        _check_fits(room, inbox, inbox_name)
        return Claim(name, inbox_name, room, inbox)

    def find(self, room_name: str, inbox_id: str | None) -> Room | None:
        """Return the room if it exists; raises `RoomError` if the inbox id does not match."""
        claimed = self._checked(room_name, inbox_id)
        room = self.rooms.get(self.names.room(room_name))
        if room is None or room.inbox is None:
            self._check_owner(room_name, inbox_id)
        _check_fits(room, None if claimed is None else self.inboxes.get(claimed), claimed)
        return room

    def bind(
        self, claimed: Claim, requester: Requester, now: int
    ) -> tuple[Room, Inbox, list[Effect]]:
        """Return the claimed room and inbox, created and bound if necessary; raises `RoomError`."""
        room, inbox = claimed.room, claimed.inbox
        if room is not None and inbox is not None and room.inbox is inbox:
            return room, inbox, []
        inbox = self.inbox(claimed.inbox_name, requester)
        try:
            room = self.room(claimed.room_name, requester)
        except RoomError:
            self.forget_blank(inbox)
            raise
        room.bind(inbox)
        append = Append(
            bound_entry(room, inbox, self._times.floored(now)),
            partial(self._bound, room),
            partial(self._not_bound, room, inbox),
        )
        return room, inbox, [*self.mark_key(now), append]

    def open(
        self, room_name: str, inbox_id: str | None, requester: Requester, now: int
    ) -> tuple[Room, list[Effect]]:
        """Return the room for a socket, bound if the socket names an inbox; raises `RoomError`."""
        claimed = self.claim(room_name, inbox_id)
        is_bound = claimed.room is not None and claimed.room.inbox is not None
        if inbox_id is None or is_bound:
            return self.room(claimed.room_name, requester), []
        if self._storage.fault is not None:
            raise refusals.storage()
        if self._storage.is_behind():
            raise refusals.disk_behind()
        room, _, effects = self.bind(claimed, requester, now)
        return room, effects

    def _default_inbox_id(self, room_name: str) -> str:
        return room_name if self._is_blind and ":" not in room_name else default_inbox(room_name)

    def _checked(self, room_name: str, inbox_id: str | None) -> str | None:
        """Return the hashed name of the given inbox; raises `RoomError` if the mode forbids it."""
        if inbox_id is None:
            if self._settings.require_capability:
                raise refusals.capability_missing()
            return None
        if self._is_blind and inbox_id != self._default_inbox_id(room_name):
            raise refusals.not_blind()
        return self.names.inbox(inbox_id)

    def _bound(self, room: Room, offset: int, now: int) -> list[Effect]:
        room.is_bound = True
        room.defined(offset)
        self.dirty.add(room)
        return room.let_in(self.floor, now)

    def _not_bound(self, room: Room, inbox: Inbox, refusal: Refusal, now: int) -> list[Effect]:
        # Nothing that relies on the binding is acknowledged before it is committed.
        room.unbind()
        effects = room.turn_away(refusals.not_stored(refusal))
        self.forget_blank(room, inbox)
        return effects

    # The key, and where positions continue.

    def enter_epoch(self, epoch: int, floor: int, now: int) -> list[Effect]:
        """Continue in this epoch of the log, with positions above the floor.

        A floor that has risen is written before any message that is above it.
        """
        has_risen = floor > self.floor
        self.epoch, self.floor = epoch, max(floor, self.floor)
        if self.key_mark is not None:
            self.key_mark = self._mark()
            self.is_key_dirty = True
        return [self._rewrite_mark(now)] if has_risen else []

    def tick(self, now: int) -> list[Effect]:
        """Write the key mark again if the log had no room for it."""
        return [self._rewrite_mark(now)] if self._is_mark_owed else []

    def mark_key(self, now: int) -> list[Effect]:
        """Write the key mark before the first entry about rooms, unless it was written."""
        return [] if self.key_mark is not None else [self._rewrite_mark(now)]

    def _mark(self) -> InboxKeyBody:
        mark = self.names.mark
        mark.epoch, mark.floor = self.epoch, self.floor
        return mark

    def _rewrite_mark(self, now: int) -> Append:
        self._is_mark_owed = False
        self.key_mark = self._mark()
        return self.write_key_mark(now)

    def write_key_mark(self, now: int) -> Append:
        """Return the effect that writes the key mark."""
        assert self.key_mark is not None
        entry = Entry(Kind.INBOX_KEY, "", 0, 0, now, encode_body(self.key_mark))
        return Append(entry, self._key_marked, self._key_refused)

    def recover_key_mark(self, mark: InboxKeyBody, offset: int) -> None:
        """Restore the key mark from the log."""
        self.restore_key_mark(mark)
        self.is_key_dirty = True
        self.key_defined_at = offset

    def restore_key_mark(self, mark: InboxKeyBody) -> None:
        """Restore the key mark from a snapshot."""
        self.key_mark = mark
        self.is_key_marked = True
        self.epoch, self.floor = mark.epoch, max(mark.floor, self.floor)

    def _key_marked(self, offset: int, now: int) -> list[Effect]:
        """The key mark is committed; entries that depend on it come later in the log."""
        self.is_key_marked = self.is_key_dirty = True
        self.key_defined_at = offset
        return []

    def _key_refused(self, refusal: Refusal, now: int) -> list[Effect]:
        self._is_mark_owed = self.floor > 0 and refusal.retryable
        if not self.is_key_marked:
            self.key_mark = None
        return []


def _check_fits(room: Room | None, inbox: Inbox | None, name: str | None) -> None:
    """Raise unless the room and the inbox `name` are bound to each other, or both unbound."""
    if name is None:
        return
    if room is not None and room.inbox is not None:
        if not hmac.compare_digest(room.inbox.name, name):
            raise refusals.bound_elsewhere()
    elif inbox is not None and inbox.room is not None:
        raise refusals.bound_elsewhere()


def bound_entry(room: Room, inbox: Inbox, at_ms: int) -> Entry:
    """Return the log entry of a binding."""
    body = encode_body(RoomBoundBody(inbox.name))
    return Entry(Kind.ROOM_BOUND, room.name, STREAM_EPOCH, 0, at_ms, body)
