"""Recovery of rooms and inboxes: snapshots, the log entries after them, and anchors.

Applying an entry that the snapshot already covers is harmless. The shell loads message ids from the
snapshot; this module adds the ids of later entries.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.effects import Append, Effect
from signalhub.core.messages.dedup import fingerprint
from signalhub.core.rooms.directory import bound_entry
from signalhub.core.rooms.inbox import STREAM_EPOCH, Inbox, UnarchivedGroup, size_in_log
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.state import blob_entry, proposal_entry
from signalhub.wire.entry import (
    Body,
    Entry,
    InboxKeyBody,
    InboxStandsBody,
    Kind,
    ProposalBody,
    Range,
    RoomBlobBody,
    RoomBoundBody,
    RoomMessageBody,
    StoredEntry,
    decode_body,
    encode_body,
)
from signalhub.wire.room_ids import INBOX_PREFIX

if TYPE_CHECKING:
    from signalhub.core.rooms.rooms import Rooms

SHARED: Final = "shared"
ROOM_KINDS: Final = frozenset(
    (
        Kind.ROOM_MESSAGE,
        Kind.INBOX_STANDS,
        Kind.ROOM_BOUND,
        Kind.ROOM_BLOB,
        Kind.ROOM_PROPOSAL,
        Kind.INBOX_KEY,
    )
)


class SharedState(Body):
    """The part of a snapshot that all rooms share."""

    key: InboxKeyBody | None
    pins: list[tuple[int, int]]
    pin_sizes: tuple[int, ...] = ()
    # The same for blobs.
    blobs: tuple[tuple[int, int], ...] = ()
    blob_sizes: tuple[int, ...] = ()
    blob_end: int = 0


class InboxState(Body):
    """An inbox in a snapshot."""

    head: int
    oldest: int
    oldest_expires_ms: int
    since_ms: int
    retention_s: float | None
    retention_max_s: float
    unarchived: list[UnarchivedGroup]
    erased_to: int = 0
    skipped: list[Range] = msgspec.field(default_factory=list)


class RoomState(Body):
    """A room in a snapshot."""

    inbox: str | None
    accepts: list[int]
    blobs: list[RoomBlobBody]
    proposals: list[ProposalBody]


# Snapshots.


def take_states(rooms: Rooms, *, is_whole: bool) -> dict[str, bytes | None]:
    """Return changed states by name, or all; `None` for a removed one."""
    directory = rooms.directory
    chosen = list(directory.every()) if is_whole else list(directory.dirty)
    directory.dirty.clear()
    states: dict[str, bytes | None] = {}
    for one in chosen:
        if isinstance(one, Inbox):
            if one.head:
                states[one.name] = encode_body(_inbox_state(one))
        elif one.is_bound or one.blobs or one.proposals:
            states[one.name] = encode_body(_room_state(one, rooms.times.grid_ms))
        else:
            states[one.name] = None
    if states or is_whole or directory.is_key_dirty:
        directory.is_key_dirty = False
        pins = rooms.messages.pins
        key = directory.key_mark if directory.is_key_marked else None
        blobs = rooms.messages.blobs
        shared = SharedState(
            key,
            pins.all(),
            tuple(pins.sizes()),
            tuple(blobs.all()),
            tuple(blobs.sizes()),
            blobs.end,
        )
        states[SHARED] = encode_body(shared)
    return states


def _inbox_state(inbox: Inbox) -> InboxState:
    return InboxState(
        inbox.head,
        inbox.oldest,
        inbox.oldest_expires_ms,
        inbox.since_ms,
        inbox.retention_s,
        inbox.retention_max_s,
        list(inbox.unarchived),
        inbox.erased_to,
        inbox.skipped,
    )


def _room_state(room: Room, grid_ms: int) -> RoomState:
    return RoomState(
        room.inbox.name if room.is_bound and room.inbox is not None else None,
        room.accepts_to_save(grid_ms),
        list(room.blobs.values()),
        list(room.proposals.values()),
    )


def restore(rooms: Rooms, states: dict[str, bytes]) -> None:
    """Restore a snapshot; raises `msgspec.MsgspecError` before anything is changed."""
    shared: SharedState | None = None
    found: list[tuple[str, InboxState | RoomState]] = []
    for name, state in states.items():
        if name == SHARED:
            shared = decode_body(SharedState, state)
        elif name.startswith(INBOX_PREFIX):
            found.append((name, decode_body(InboxState, state)))
        else:
            found.append((name, decode_body(RoomState, state)))
    if shared is not None:
        if shared.key is not None:
            rooms.directory.restore_key_mark(shared.key)
        rooms.messages.pins.restore(shared.pins, shared.pin_sizes)
        # Until it is measured, as if nothing had expired meanwhile.
        rooms.messages.blobs.restore(shared.blobs, shared.blob_sizes, shared.blob_end)
        rooms.messages.disk_bytes = sum(shared.pin_sizes) + sum(shared.blob_sizes)
    for name, one in found:
        if isinstance(one, InboxState):
            _restore_inbox(rooms, name, one)
        else:
            _restore_room(rooms, name, one)
    rooms.directory.dirty.clear()


def _restore_inbox(rooms: Rooms, name: str, state: InboxState) -> None:
    inbox = rooms.directory.recovered_inbox(name)
    inbox.head = state.head
    inbox.next_seq = state.head + 1
    inbox.oldest = state.oldest
    inbox.oldest_expires_ms = state.oldest_expires_ms
    inbox.erased_to = state.erased_to
    inbox.skipped = state.skipped
    inbox.since_ms = state.since_ms
    inbox.retention_s = state.retention_s
    inbox.retention_max_s = state.retention_max_s
    rooms.messages.await_archive(inbox, state.unarchived)


def _restore_room(rooms: Rooms, name: str, state: RoomState) -> None:
    room = rooms.directory.recovered_room(name)
    room.saved_accepts = state.accepts
    if state.inbox is not None:
        room.bind(rooms.directory.recovered_inbox(state.inbox))
        room.is_bound = True
    for blob in state.blobs:
        rooms.state.keep(room, blob)
    for proposal in state.proposals:
        rooms.state.add(room, proposal)


# Entries.


def apply(rooms: Rooms, entry: StoredEntry, now: int) -> None:
    """Apply one entry of the log."""
    kind = entry.kind
    if kind == Kind.ROOM_MESSAGE:
        _apply_message(rooms, entry, now)
    elif kind == Kind.INBOX_KEY:
        rooms.directory.recover_key_mark(decode_body(InboxKeyBody, entry.body), entry.offset)
    elif kind == Kind.INBOX_STANDS:
        _apply_stand(rooms, entry)
    else:
        room = rooms.directory.recovered_room(entry.stream)
        rooms.directory.dirty.add(room)
        if kind == Kind.ROOM_BOUND:
            room.bind(rooms.directory.recovered_inbox(decode_body(RoomBoundBody, entry.body).inbox))
            room.is_bound = True
        elif kind == Kind.ROOM_BLOB:
            blob = decode_body(RoomBlobBody, entry.body)
            rooms.messages.count_blob(entry.offset, size_in_log(blob.name, blob.data))
            if blob.version >= room.versions.get(blob.name, 0):
                rooms.state.keep(room, blob)
        elif kind == Kind.ROOM_PROPOSAL:
            rooms.state.restore(room, decode_body(ProposalBody, entry.body))


def erase(rooms: Rooms, inbox: str, through: int) -> None:
    """Apply an erasure of an inbox up to a position."""
    rooms.erase(rooms.directory.recovered_inbox(inbox), through)


def finish(rooms: Rooms) -> None:
    """After the last entry: mark rooms with recovered rate windows for the next snapshot."""
    found = [
        one.room for one in rooms.directory.dirty if isinstance(one, Inbox) and one.saved_accepts
    ]
    rooms.directory.dirty.update(room for room in found if room is not None)


def _apply_message(rooms: Rooms, entry: StoredEntry, now: int) -> None:
    inbox = rooms.directory.recovered_inbox(entry.stream)
    if entry.seq <= inbox.head:
        return
    if entry.seq > inbox.head + 1:
        # Positions were skipped up to the floor. Otherwise, and if nothing else is known of the
        # inbox, earlier messages were cut from the log; they may be in the archive.
        if entry.seq != rooms.directory.floor + 1:
            inbox.head = entry.seq - 1
        inbox.oldest_expires_ms = 0
    inbox.next_seq = entry.seq + 1
    inbox.since_ms = inbox.since_ms or entry.at_ms
    if entry.is_erased:
        # Only the position is left; the rest is known only if a snapshot holds it.
        inbox.committed(entry.seq, entry.offset, 0)
        rooms.directory.dirty.add(inbox)
        return
    body = decode_body(RoomMessageBody, entry.body)
    inbox.retention_max_s = max(inbox.retention_max_s, (body.expires_ms - entry.at_ms) / 1000)
    key = fingerprint(inbox.name, body.message_id)
    rooms.messages.remember(inbox, body, key, entry.seq, entry.offset, entry.at_ms)
    if body.control is not None:
        rooms.state.follow(rooms.directory.recovered_room(body.control.room), body, entry.at_ms)
    if not body.is_appended:
        retention_s = (body.expires_ms - entry.at_ms) / 1000
        is_default = retention_s == rooms.settings.retention_s
        inbox.retention_s = None if is_default else retention_s
        # The exact arrival is unknown; assume the latest, so the rate limit is never exceeded.
        latest_ms = min(now, entry.at_ms + rooms.times.grid_ms)
        if latest_ms > now - rooms.settings.rate_window_s * 1000:
            inbox.saved_accepts.append(latest_ms)


def _apply_stand(rooms: Rooms, entry: StoredEntry) -> None:
    stands = decode_body(InboxStandsBody, entry.body)
    inbox = rooms.directory.recovered_inbox(entry.stream)
    rooms.directory.dirty.add(inbox)
    inbox.since_ms = inbox.since_ms or stands.since_ms
    inbox.retention_s = stands.retention_s
    if stands.head > inbox.head:
        inbox.head = stands.head
        inbox.next_seq = stands.head + 1
    if len(stands.skipped) >= len(inbox.skipped):
        inbox.skipped = stands.skipped
    if stands.oldest > inbox.oldest:
        inbox.advance_oldest(stands.oldest, 0)
    inbox.erase_to(stands.erased)


# Anchors, before the log is cut.


class RoomAnchors:
    """Anchors rooms and inboxes before the log is cut."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def anchored(self) -> int | None:
        """Return the offset up to which the log may be cut; `None` if no room needs it."""
        directory = self._rooms.directory
        offsets = [one.defined_at for one in directory.every() if _is_durable(one)]
        if directory.key_mark is not None:
            offsets.append(directory.key_defined_at)
        return min(offsets, default=None)

    def anchor(self, end: int, now: int) -> list[Effect]:
        """Rewrite every definition that is before `end`."""
        directory, at_ms = self._rooms.directory, self._rooms.times.floored(now)
        effects: list[Effect] = []
        if directory.key_mark is not None and directory.key_defined_at < end:
            effects.append(directory.write_key_mark(now))
        for one in directory.every():
            if one.defined_at >= end or not _is_durable(one):
                continue
            if isinstance(one, Room) and (one.in_flight or one.is_being_bound):
                # Its state is about to change; it is anchored at the next attempt.
                continue
            appends = [self._append(entry) for entry in _entries(one, at_ms)]
            # Anchored once the last of its entries is committed.
            appends[-1].follow(partial(_anchored, one, len(appends)))
            effects += appends
        return effects

    def _append(self, entry: Entry) -> Append:
        if entry.kind != Kind.ROOM_BLOB:
            return Append(entry)
        blob = decode_body(RoomBlobBody, entry.body)
        size = size_in_log(blob.name, blob.data)

        def count(offset: int, now: int) -> list[Effect]:
            self._rooms.messages.count_blob(offset, size)
            return []

        return Append(entry, count)


def _is_durable(one: Room | Inbox) -> bool:
    if isinstance(one, Inbox):
        return one.head > 0
    return bool(one.is_bound or one.blobs or one.proposals)


def _entries(one: Room | Inbox, at_ms: int) -> list[Entry]:
    if isinstance(one, Inbox):
        # Pending messages come before this entry in the log, or both are refused.
        head, retention_s = one.next_seq - 1 if one.pending else one.head, one.retention_s
        stands = InboxStandsBody(head, one.oldest, one.since_ms, retention_s, one.erased_to)
        stands.skipped = one.skipped
        body = encode_body(stands)
        return [Entry(Kind.INBOX_STANDS, one.name, STREAM_EPOCH, 0, at_ms, body)]
    entries = []
    if one.is_bound and one.inbox is not None:
        entries.append(bound_entry(one, one.inbox, at_ms))
    entries += [blob_entry(one, blob, at_ms) for blob in one.blobs.values()]
    entries += [proposal_entry(one, proposal, at_ms) for proposal in one.proposals.values()]
    return entries


def _anchored(one: Room | Inbox, count: int, offset: int, now: int) -> list[Effect]:
    """Record the new definition: `count` consecutive entries, the last one at `offset`."""
    one.defined_at = max(one.defined_at, offset - count + 1)
    return []
