"""The state of rooms besides messages: proposals, and two opaque blobs per room.

Messages drive proposals: a proposal starts as pending, collects approvals, and is finished by a
rejection, a commit or its expiry. The hub does not judge votes; messages about finished or unknown
proposals are delivered but change nothing. Each blob has a version, which a writer can require.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from signalhub.core.effects import Answer, Append, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.inbox import STREAM_EPOCH, Messages, size_in_log
from signalhub.core.rooms.room import BLOB_PREFIX, Room
from signalhub.core.rooms.values import (
    APPROVAL,
    COMMIT,
    COMMITTED,
    EXPIRED,
    PENDING,
    PROPOSAL,
    REJECTED,
    REJECTION,
    Blob,
    PutBlob,
    SendToRoom,
)
from signalhub.wire.entry import (
    Entry,
    Kind,
    ProposalBody,
    RoomBlobBody,
    RoomMessageBody,
    encode_body,
)
from signalhub.wire.errors import RoomError

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.rooms.directory import RoomDirectory
    from signalhub.core.rooms.values import Times
    from signalhub.counters import RoomTally
    from signalhub.settings.model import RoomsSettings as RoomSettings
    from signalhub.wire.errors import Refusal

# A finished proposal can be looked up for this long.
_REMEMBERED_MS: Final = 7 * 86_400_000
# Estimated memory of a proposal besides its content.
_OVERHEAD_BYTES: Final = 300
_FINISHES: Final = {REJECTION: REJECTED, COMMIT: COMMITTED}
# Stale alarms that may remain before the heap is rebuilt.
_ALARMS_SPARE: Final = 1_000


class RoomStates:
    """The proposals and blobs of all rooms, within bounds."""

    def __init__(
        self,
        settings: RoomSettings,
        tally: RoomTally,
        times: Times,
        directory: RoomDirectory,
        messages: Messages,
        storage: LogState,
    ) -> None:
        self._settings = settings
        self._tally = tally
        self._times = times
        self._directory = directory
        self._messages = messages
        self._storage = storage
        # Bytes of all proposals and blobs, and the number of proposals.
        self.bytes = 0
        self.proposals_count = 0
        # A heap of (time, room, proposal): when a proposal expires or is deleted.
        self.alarms: list[tuple[int, str, str]] = []

    def fits(self, room: Room | None, size: int) -> bool:
        """Do `size` more bytes fit into the limits of the room and the hub?"""
        settings = self._settings
        if self.bytes + size > settings.state_bytes_max:
            return False
        if room is None:
            return size <= settings.room_state_bytes_max
        held = sum(map(_size, room.proposals.values()))
        held += sum(len(blob.data) for blob in room.blobs.values())
        return held + size <= settings.room_state_bytes_max

    # Proposals.

    def check(self, room: Room | None, request: SendToRoom, now: int) -> None:
        """Raise `RoomError` if a message would exceed the limits for proposals."""
        size = len(request.ciphertext) + _OVERHEAD_BYTES
        is_new = request.type == PROPOSAL
        if not is_new and request.type != APPROVAL:
            return
        if not self.fits(room, size):
            self._tally.refused += 1
            raise refusals.state_full()
        if room is None or not is_new or request.proposal in room.proposals:
            return
        pending = {one.id for one in every_proposal(room, now) if one.status == PENDING}
        pending |= room.proposals_in_flight() - room.proposals.keys()
        if len(pending) >= self._settings.proposals_max:
            self._tally.refused += 1
            raise refusals.state_full()

    def follow(self, room: Room, body: RoomMessageBody, at_ms: int) -> None:
        """Apply a committed message about a proposal; `at_ms` is the time of its entry."""
        control = body.control
        assert control is not None
        proposal = room.proposals.get(control.proposal)
        self._directory.dirty.add(room)
        if proposal is None:
            if control.type == PROPOSAL:
                self._begin(room, body, at_ms)
            return
        if _seen(proposal, at_ms).status != PENDING:
            return
        if control.type == APPROVAL:
            if len(proposal.approvals) < self._settings.proposals_max:
                proposal.approvals.append(body.ciphertext)
                self.bytes += len(body.ciphertext)
        elif control.type in _FINISHES:
            self._finish(room, proposal, _FINISHES[control.type], at_ms)

    def _begin(self, room: Room, body: RoomMessageBody, at_ms: int) -> None:
        control = body.control
        assert control is not None
        if len(room.proposals) >= self._settings.proposals_max:
            seen = ((one, _seen(one, at_ms)) for one in room.proposals.values())
            gone = next((one for one, as_seen in seen if as_seen.status != PENDING), None)
            if gone is not None:
                self.drop(room, gone)
        # On the time grid, so that every reader sees it expire at the same time.
        lasts_ms, grid_ms = int(self._settings.proposal_s * 1000), self._times.grid_ms
        expires_ms = at_ms - (-lasts_ms // grid_ms) * grid_ms
        proposal = ProposalBody(
            control.proposal, control.pseudonym, body.ciphertext, PENDING, at_ms, expires_ms
        )
        self.add(room, proposal)

    def add(self, room: Room, proposal: ProposalBody) -> None:
        """Add a proposal.

        A newer known state wins: the proposal may have been anchored while a message about it was
        still being written.
        """
        old = room.proposals.get(proposal.id)
        if old is None:
            self.proposals_count += 1
        else:
            self.bytes -= _size(old)
            if old.status != PENDING:
                proposal.status, proposal.changed_ms = old.status, old.changed_ms
            if len(old.approvals) > len(proposal.approvals):
                proposal.approvals = old.approvals
        room.proposals[proposal.id] = proposal
        self.bytes += _size(proposal)
        self._set_alarm(_due_ms(proposal), room, proposal)

    def restore(self, room: Room, proposal: ProposalBody) -> None:
        """Restore a proposal from the log; a finished one only while there is space."""
        is_full = len(room.proposals) >= self._settings.proposals_max
        if proposal.status == PENDING or proposal.id in room.proposals or not is_full:
            self.add(room, proposal)

    def drop(self, room: Room, proposal: ProposalBody) -> None:
        """Delete a proposal."""
        del room.proposals[proposal.id]
        self.proposals_count -= 1
        self.bytes -= _size(proposal)
        self._directory.dirty.add(room)

    def _finish(self, room: Room, proposal: ProposalBody, status: str, at_ms: int) -> None:
        proposal.status = status
        proposal.changed_ms = at_ms
        self._directory.dirty.add(room)
        self._set_alarm(_due_ms(proposal), room, proposal)

    # Alarms.

    def _set_alarm(self, at_ms: int, room: Room, proposal: ProposalBody) -> None:
        """Schedule the next change of a proposal."""
        heapq.heappush(self.alarms, (at_ms, room.name, proposal.id))
        if len(self.alarms) > _ALARMS_SPARE + 3 * self.proposals_count:
            # Rebuild without the stale alarms of dropped and finished proposals.
            self.alarms = [
                (_due_ms(one), room.name, one.id)
                for room in self._directory.rooms.values()
                for one in room.proposals.values()
            ]
            heapq.heapify(self.alarms)

    def tick(self, now: int) -> list[Effect]:
        """Handle due alarms: expire pending proposals, delete finished ones."""
        effects: list[Effect] = []
        while self.alarms and self.alarms[0][0] <= now:
            _, room_name, proposal_id = heapq.heappop(self.alarms)
            room = self._directory.rooms.get(room_name)
            proposal = None if room is None else room.proposals.get(proposal_id)
            if room is None or proposal is None or _due_ms(proposal) > now:
                continue
            if proposal.status == PENDING:
                effects.append(self._expire(room, proposal, now))
            else:
                self.drop(room, proposal)
                self._directory.forget_blank(room)
        return effects

    def _expire(self, room: Room, proposal: ProposalBody, now: int) -> Append:
        at_ms = self._times.floored(now)
        expired = replace(proposal, status=EXPIRED, changed_ms=at_ms)
        room.begun(proposal.id)
        return Append(
            proposal_entry(room, expired, at_ms),
            partial(self._expired, room, proposal, at_ms),
            partial(self._not_expired, room, proposal),
        )

    def _expired(
        self, room: Room, proposal: ProposalBody, at_ms: int, offset: int, now: int
    ) -> list[Effect]:
        room.settled(proposal.id)
        if proposal.status == PENDING:
            self._tally.proposals_expired += 1
            self._finish(room, proposal, EXPIRED, at_ms)
        return []

    def _not_expired(
        self, room: Room, proposal: ProposalBody, refusal: Refusal, now: int
    ) -> list[Effect]:
        room.settled(proposal.id)
        # Readers see it as expired anyway; writing that to the log is retried.
        self._set_alarm(now + 1_000, room, proposal)
        return []

    # Blobs.

    def put(self, request: PutBlob, now: int) -> list[Effect]:
        """Write a blob if its version is the one the writer expects."""
        try:
            room = self._directory.find(request.room, request.inbox)
            version = 0 if room is None else room.versions.get(request.name, 0)
            if request.if_version is not None and request.if_version != version:
                raise refusals.changed(version)
            if self._storage.fault is not None:
                raise refusals.storage()
            if self._storage.is_behind():
                raise refusals.disk_behind()
            old = None if room is None else room.blobs.get(request.name)
            grown = len(request.data) - (0 if old is None else len(old.data))
            if not self.fits(room, grown):
                raise refusals.state_full()
            if self._messages.is_disk_full:
                self._tally.disk_full += 1
                raise refusals.disk_full()
            room, effects = self._open(room, request, now)
        except RoomError as error:
            return [Answer(request.caller, error)]
        # Clients may have read versions that the log has lost: see `floor.py`.
        new_version = max(version, self._directory.floor) + 1
        room.versions[request.name] = new_version
        room.begun(BLOB_PREFIX + request.name)
        at_ms = self._times.floored(now)
        blob = RoomBlobBody(request.name, new_version, request.data, at_ms)
        self._messages.pending_bytes += size_in_log(blob.name, blob.data)
        append = Append(
            blob_entry(room, blob, at_ms),
            partial(self._written, room, blob, request),
            partial(self._not_written, room, blob, version, request),
        )
        return [*effects, *self._directory.mark_key(now), append]

    def _open(self, room: Room | None, request: PutBlob, now: int) -> tuple[Room, list[Effect]]:
        """Return the room, created if necessary, and bound if the writer names its inbox."""
        directory, name = self._directory, self._directory.names.room(request.room)
        if request.inbox is None or (room is not None and room.inbox is not None):
            return room or directory.room(name, request.requester), []
        bound, _, effects = directory.bind(
            directory.claim(request.room, request.inbox), request.requester, now
        )
        return bound, effects

    def keep(self, room: Room, blob: RoomBlobBody) -> None:
        """Store a committed blob."""
        old = room.blobs.get(blob.name)
        self.bytes += len(blob.data) - (len(old.data) if old is not None else 0)
        room.blobs[blob.name] = blob
        room.versions[blob.name] = max(blob.version, room.versions.get(blob.name, 0))
        self._directory.dirty.add(room)

    def _written(
        self, room: Room, blob: RoomBlobBody, request: PutBlob, offset: int, now: int
    ) -> list[Effect]:
        room.settled(BLOB_PREFIX + blob.name)
        size = size_in_log(blob.name, blob.data)
        self._messages.pending_bytes -= size
        self._messages.count_blob(offset, size)
        self.keep(room, blob)
        room.defined(offset)
        return [Answer(request.caller, Blob(blob.version))]

    def _not_written(
        self,
        room: Room,
        blob: RoomBlobBody,
        old_version: int,
        request: PutBlob,
        refusal: Refusal,
        now: int,
    ) -> list[Effect]:
        room.settled(BLOB_PREFIX + blob.name)
        self._messages.pending_bytes -= size_in_log(blob.name, blob.data)
        if old_version:
            room.versions[blob.name] = old_version
        else:
            room.versions.pop(blob.name, None)
        self._directory.forget_blank(room)
        return [Answer(request.caller, refusals.not_stored(refusal))]


def every_proposal(room: Room | None, now: int) -> list[ProposalBody]:
    """Return all proposals of a room, oldest first."""
    if room is None:
        return []
    # Recovery may have added them in another order.
    ordered = sorted(room.proposals.values(), key=lambda one: one.created_ms)
    return [_seen(one, now) for one in ordered]


def find_proposal(room: Room | None, proposal_id: str, now: int) -> ProposalBody:
    """Return one proposal of a room; raises `RoomError`."""
    found = None if room is None else room.proposals.get(proposal_id)
    if found is None:
        raise refusals.no_proposal()
    return _seen(found, now)


def find_blob(room: Room | None, name: str) -> Blob:
    """Return a committed blob; raises `RoomError`."""
    blob = None if room is None else room.blobs.get(name)
    if blob is None:
        raise refusals.no_blob()
    return Blob(blob.version, blob.data)


def proposal_entry(room: Room, proposal: ProposalBody, at_ms: int) -> Entry:
    """Return the log entry of a proposal."""
    body = encode_body(proposal)
    return Entry(Kind.ROOM_PROPOSAL, room.name, STREAM_EPOCH, 0, at_ms, body)


def blob_entry(room: Room, blob: RoomBlobBody, at_ms: int) -> Entry:
    """Return the log entry of a blob."""
    return Entry(Kind.ROOM_BLOB, room.name, STREAM_EPOCH, 0, at_ms, encode_body(blob))


def _seen(proposal: ProposalBody, now: int) -> ProposalBody:
    """Return the current state: expired if due, even if that is not committed yet."""
    if proposal.status == PENDING and proposal.expires_ms <= now:
        return replace(proposal, status=EXPIRED)
    return proposal


def _size(proposal: ProposalBody) -> int:
    return _OVERHEAD_BYTES + len(proposal.content) + sum(map(len, proposal.approvals))


def _due_ms(proposal: ProposalBody) -> int:
    """Return when the proposal expires or, once finished, is deleted."""
    if proposal.status == PENDING:
        return proposal.expires_ms
    return (proposal.changed_ms or proposal.expires_ms) + _REMEMBERED_MS
