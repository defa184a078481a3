"""Which inbox a room has.

Linked: the first message, or the first socket, that names both binds them, for ever and one to one.
A message that names no inbox binds the room to the one every client can derive from its name.
Blind: there is only one name, and the hub never learns another.
"""

from __future__ import annotations

import hmac
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from signalhub.core.effects import Append, Effect
from signalhub.core.rooms import guests, refusals
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox
from signalhub.core.rooms.room import Room
from signalhub.wire.entry import Entry, Kind, RoomBound, encode_body
from signalhub.wire.errors import RoomError
from signalhub.wire.room_ids import default_inbox

if TYPE_CHECKING:
    from signalhub.core.rooms.rooms import Rooms
    from signalhub.wire.errors import Refusal


def default_inbox_id(rooms: Rooms, room_name: str) -> str:
    """The inbox a room has if nobody says otherwise."""
    is_blind = rooms.settings.mode == "blind" and ":" not in room_name
    return room_name if is_blind else default_inbox(room_name)


def check_claim(rooms: Rooms, room_name: str, inbox_id: str | None) -> str | None:
    """The inbox a caller names, as it is kept; raises `RoomError` if it may not."""
    if inbox_id is None:
        if rooms.settings.require_capability:
            raise refusals.capability_missing()
        return None
    if rooms.settings.mode == "blind" and inbox_id != default_inbox_id(rooms, room_name):
        raise refusals.not_blind()
    return rooms.names.inbox(inbox_id)


def check_fits(room: Room | None, inbox: Inbox | None, name: str | None) -> None:
    """A room and the inbox `name` are bound to each other, or neither is to anything."""
    if name is None:
        return
    if room is not None and room.inbox is not None:
        if not hmac.compare_digest(room.inbox.name, name):
            raise refusals.bound_elsewhere()
    elif inbox is not None and inbox.room is not None:
        raise refusals.bound_elsewhere()


class Claim(msgspec.Struct, gc=False):
    """What a caller asks for: names as they are kept, and what is known under them."""

    room_name: str
    inbox_name: str
    room: Room | None
    inbox: Inbox | None


def claim(rooms: Rooms, room_name: str, inbox_id: str | None) -> Claim:
    """The room and inbox of a message, found and not made; raises `RoomError`."""
    claimed = check_claim(rooms, room_name, inbox_id)
    name = rooms.names.room(room_name)
    room = rooms.rooms.get(name)
    if room is not None and room.inbox is not None:
        check_fits(room, None, claimed)
        return Claim(name, room.inbox.name, room, room.inbox)
    inbox_name = claimed or rooms.default_inbox(room_name)
    inbox = rooms.inboxes.get(inbox_name)
    check_fits(room, inbox, inbox_name)
    return Claim(name, inbox_name, room, inbox)


def find(rooms: Rooms, room_name: str, inbox_id: str | None) -> Room | None:
    """The room, if it is known, for a caller that may see it; raises `RoomError`."""
    claimed = check_claim(rooms, room_name, inbox_id)
    room = rooms.rooms.get(rooms.names.room(room_name))
    check_fits(room, None if claimed is None else rooms.inboxes.get(claimed), claimed)
    return room


def settle(rooms: Rooms, claimed: Claim, now: int) -> tuple[Room, Inbox, list[Effect]]:
    """The room and inbox of a claim, made and bound if need be; raises `RoomError`."""
    room, inbox = claimed.room, claimed.inbox
    if room is not None and inbox is not None and room.inbox is inbox:
        return room, inbox, []
    inbox = rooms.inbox(claimed.inbox_name)
    try:
        room = rooms.room(claimed.room_name)
    except RoomError:
        rooms.forget_blank(inbox)
        raise
    link(room, inbox)
    entry = bound_entry(room, inbox, rooms.floored(now))
    append = Append(entry, partial(_bound, rooms, room), partial(_not_bound, rooms, room, inbox))
    return room, inbox, [*rooms.marking(now), append]


def _bound(rooms: Rooms, room: Room, offset: int, now: int) -> list[Effect]:
    room.is_bound = True
    room.defined(offset)
    rooms.dirty.add(room)
    return guests.let_in(room, now)


def _not_bound(rooms: Rooms, room: Room, inbox: Inbox, refusal: Refusal, now: int) -> list[Effect]:
    # Whoever waited for it was refused before, so nobody was told that it holds.
    room.inbox = inbox.room = None
    effects = guests.turn_away(room)
    rooms.forget_blank(room, inbox)
    return effects


def join_inbox(
    rooms: Rooms, room_name: str, inbox_id: str | None, now: int
) -> tuple[Room, list[Effect]]:
    """The room a socket enters, bound if the socket names an inbox; raises `RoomError`."""
    claimed = claim(rooms, room_name, inbox_id)
    is_bound = claimed.room is not None and claimed.room.inbox is not None
    if inbox_id is None or is_bound:
        return rooms.room(claimed.room_name), []
    if rooms.hub.storage.fault is not None:
        raise refusals.storage()
    room, _, effects = settle(rooms, claimed, now)
    return room, effects


def link(room: Room, inbox: Inbox) -> None:
    """They belong together."""
    room.inbox = inbox
    inbox.room = room


def bound_entry(room: Room, inbox: Inbox, at_ms: int) -> Entry:
    """The binding as the log holds it."""
    body = encode_body(RoomBound(inbox.name))
    return Entry(Kind.ROOM_BOUND, room.name, STREAM_EPOCH, 0, at_ms, body)
