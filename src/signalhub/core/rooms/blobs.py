"""Two opaque blobs per room, each with a version that a writer can insist on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from signalhub.core.effects import Answer, Append, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.bind import claim, find, settle
from signalhub.core.rooms.inbox import STREAM_EPOCH
from signalhub.core.rooms.proposals import fits
from signalhub.core.rooms.room import BLOB_PREFIX, Room
from signalhub.core.rooms.values import Blob, PutBlob
from signalhub.wire.entry import Entry, Kind, RoomBlob, encode_body
from signalhub.wire.errors import RoomError

if TYPE_CHECKING:
    from signalhub.core.rooms.rooms import Rooms
    from signalhub.wire.errors import Refusal


def get(room: Room | None, name: str) -> Blob:
    """A blob as it is on disk; raises `RoomError`."""
    blob = None if room is None else room.blobs.get(name)
    if blob is None:
        raise refusals.no_blob()
    return Blob(blob.version, blob.data)


def put(rooms: Rooms, request: PutBlob, now: int) -> list[Effect]:
    """Write a blob, if it is the one the writer knows."""
    try:
        room = find(rooms, request.room, request.inbox)
        version = 0 if room is None else room.versions.get(request.name, 0)
        if request.if_version is not None and request.if_version != version:
            raise refusals.changed(version)
        if rooms.hub.storage.fault is not None:
            raise refusals.storage()
        old = None if room is None else room.blobs.get(request.name)
        grown = len(request.data) - (0 if old is None else len(old.data))
        if not fits(rooms, room, grown):
            raise refusals.state_full()
        room, effects = _room(rooms, request, room, now)
    except RoomError as error:
        return [Answer(request.caller, error)]
    room.versions[request.name] = version + 1
    room.begun(_in_flight(request.name))
    at_ms = rooms.floored(now)
    blob = RoomBlob(request.name, version + 1, request.data, at_ms)
    append = Append(
        entry(room, blob, at_ms),
        partial(_written, rooms, room, blob, request),
        partial(_not_written, rooms, room, blob, request),
    )
    return [*effects, *rooms.marking(now), append]


def _room(rooms: Rooms, request: PutBlob, room: Room | None, now: int) -> tuple[Room, list[Effect]]:
    """The room that remembers; a writer who names its inbox binds the two, as a message does."""
    if request.inbox is None or (room is not None and room.inbox is not None):
        return room or rooms.room(rooms.names.room(request.room)), []
    bound, _, effects = settle(rooms, claim(rooms, request.room, request.inbox), now)
    return bound, effects


def _in_flight(name: str) -> str:
    """What a blob on its way is called."""
    return BLOB_PREFIX + name


def keep(rooms: Rooms, room: Room, blob: RoomBlob) -> None:
    """A blob is on disk."""
    old = room.blobs.get(blob.name)
    rooms.state_bytes += len(blob.data) - (len(old.data) if old is not None else 0)
    room.blobs[blob.name] = blob
    room.versions[blob.name] = max(blob.version, room.versions.get(blob.name, 0))
    rooms.dirty.add(room)


def entry(room: Room, blob: RoomBlob, at_ms: int) -> Entry:
    """A blob as the log holds it."""
    return Entry(Kind.ROOM_BLOB, room.name, STREAM_EPOCH, 0, at_ms, encode_body(blob))


def _written(
    rooms: Rooms, room: Room, blob: RoomBlob, request: PutBlob, offset: int, now: int
) -> list[Effect]:
    room.settled(_in_flight(blob.name))
    keep(rooms, room, blob)
    room.defined(offset)
    return [Answer(request.caller, Blob(blob.version))]


def _not_written(
    rooms: Rooms, room: Room, blob: RoomBlob, request: PutBlob, refusal: Refusal, now: int
) -> list[Effect]:
    room.settled(_in_flight(blob.name))
    if blob.version == 1:
        room.versions.pop(blob.name, None)
    else:
        room.versions[blob.name] = blob.version - 1
    rooms.forget_blank(room)
    return [Answer(request.caller, refusals.storage())]
