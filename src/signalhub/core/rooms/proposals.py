"""What a room remembers of proposals: opaque contents, a state, an alarm.

States follow the messages: a proposal begins pending, an approval is added to it, a rejection or a
commit finishes it, and so does its alarm. What members agreed on is theirs to know; messages about
finished or unknown proposals pass through and change nothing.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from signalhub.core.effects import Append, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.inbox import STREAM_EPOCH
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.values import (
    APPROVAL,
    COMMIT,
    COMMITTED,
    EXPIRED,
    PENDING,
    PROPOSAL,
    REJECTED,
    REJECTION,
    Send,
)
from signalhub.wire.entry import Entry, Kind, Proposal, RoomMessage, encode_body

if TYPE_CHECKING:
    from signalhub.core.rooms.rooms import Rooms
    from signalhub.wire.errors import Refusal

# A finished one can be looked up for so long.
_REMEMBERED_MS = 7 * 86_400_000
_OVERHEAD_BYTES = 300
_FINISHES = {REJECTION: REJECTED, COMMIT: COMMITTED}


def every(room: Room | None, now: int) -> list[Proposal]:
    """All of a room, oldest first."""
    if room is None:
        return []
    # A restart may have found them in another order.
    ordered = sorted(room.proposals.values(), key=lambda one: one.created_ms)
    return [_seen(one, now) for one in ordered]


def one(room: Room | None, proposal_id: str, now: int) -> Proposal:
    """One of a room; raises `RoomError`."""
    found = None if room is None else room.proposals.get(proposal_id)
    if found is None:
        raise refusals.no_proposal()
    return _seen(found, now)


def _seen(proposal: Proposal, now: int) -> Proposal:
    """As it is at this moment: its alarm may be due and not yet on disk."""
    if proposal.status == PENDING and proposal.expires_ms <= now:
        return replace(proposal, status=EXPIRED)
    return proposal


def check(rooms: Rooms, room: Room | None, request: Send, now: int) -> None:
    """Is there room to remember what this message says? Raises `RoomError`."""
    size = len(request.ciphertext) + _OVERHEAD_BYTES
    is_new = request.type == PROPOSAL
    if not is_new and request.type != APPROVAL:
        return
    if not fits(rooms, room, size):
        rooms.tally.refused += 1
        raise refusals.state_full()
    if room is None or not is_new or request.proposal in room.proposals:
        return
    pending = {one.id for one in every(room, now) if one.status == PENDING}
    pending |= room.proposals_in_flight() - room.proposals.keys()
    if len(pending) >= rooms.settings.proposals_max:
        rooms.tally.refused += 1
        raise refusals.state_full()


def fits(rooms: Rooms, room: Room | None, size: int) -> bool:
    """May a room remember so many bytes more?"""
    settings = rooms.settings
    if rooms.state_bytes + size > settings.state_bytes_max:
        return False
    if room is None:
        return size <= settings.room_state_bytes_max
    held = sum(map(_size, room.proposals.values()))
    held += sum(len(blob.data) for blob in room.blobs.values())
    return held + size <= settings.room_state_bytes_max


def follow(rooms: Rooms, room: Room, body: RoomMessage, at_ms: int) -> None:
    """A message about a proposal is on disk; the time is its entry's, now and after a restart."""
    control = body.control
    assert control is not None
    proposal = room.proposals.get(control.proposal)
    rooms.dirty.add(room)
    if proposal is None:
        if control.type == PROPOSAL:
            _begin(rooms, room, body, at_ms)
        return
    if _seen(proposal, at_ms).status != PENDING:
        return
    if control.type == APPROVAL:
        if len(proposal.approvals) < rooms.settings.proposals_max:
            proposal.approvals.append(body.ciphertext)
            rooms.state_bytes += len(body.ciphertext)
    elif control.type in _FINISHES:
        _finish(rooms, room, proposal, _FINISHES[control.type], at_ms)


def _begin(rooms: Rooms, room: Room, body: RoomMessage, at_ms: int) -> None:
    control = body.control
    assert control is not None
    if len(room.proposals) >= rooms.settings.proposals_max:
        seen = ((one, _seen(one, at_ms)) for one in room.proposals.values())
        gone = next((one for one, as_seen in seen if as_seen.status != PENDING), None)
        if gone is not None:
            drop(rooms, room, gone)
    # On the grid of times, so that everybody who looks sees it end at the same moment.
    lasts_ms = int(rooms.settings.proposal_s * 1000)
    expires_ms = at_ms - (-lasts_ms // rooms.grid_ms) * rooms.grid_ms
    proposal = Proposal(
        control.proposal, control.pseudonym, body.ciphertext, PENDING, at_ms, expires_ms
    )
    add(rooms, room, proposal)


def add(rooms: Rooms, room: Room, proposal: Proposal) -> None:
    """Remember a proposal.

    What is known of it already stays: it may have been written again while a message about it was
    still on its way.
    """
    old = room.proposals.get(proposal.id)
    if old is None:
        rooms.proposals_count += 1
    else:
        rooms.state_bytes -= _size(old)
        if old.status != PENDING:
            proposal.status, proposal.changed_ms = old.status, old.changed_ms
        if len(old.approvals) > len(proposal.approvals):
            proposal.approvals = old.approvals
    room.proposals[proposal.id] = proposal
    rooms.state_bytes += _size(proposal)
    rooms.set_alarm(_due_ms(proposal), room, proposal)


def restore(rooms: Rooms, room: Room, proposal: Proposal) -> None:
    """A proposal was found in the log; a finished one may have made room for others since."""
    is_full = len(room.proposals) >= rooms.settings.proposals_max
    if proposal.status == PENDING or proposal.id in room.proposals or not is_full:
        add(rooms, room, proposal)


def drop(rooms: Rooms, room: Room, proposal: Proposal) -> None:
    """Forget a proposal."""
    del room.proposals[proposal.id]
    rooms.proposals_count -= 1
    rooms.state_bytes -= _size(proposal)
    rooms.dirty.add(room)


def _finish(rooms: Rooms, room: Room, proposal: Proposal, status: str, at_ms: int) -> None:
    proposal.status = status
    proposal.changed_ms = at_ms
    rooms.dirty.add(room)
    rooms.set_alarm(_due_ms(proposal), room, proposal)


def _size(proposal: Proposal) -> int:
    return _OVERHEAD_BYTES + len(proposal.content) + sum(map(len, proposal.approvals))


def _due_ms(proposal: Proposal) -> int:
    """When something happens to it next."""
    if proposal.status == PENDING:
        return proposal.expires_ms
    return (proposal.changed_ms or proposal.expires_ms) + _REMEMBERED_MS


def set_alarms(rooms: Rooms) -> None:
    """One alarm for each proposal there is."""
    rooms.alarms = [
        (_due_ms(one), room.name, one.id)
        for room in rooms.rooms.values()
        for one in room.proposals.values()
    ]
    heapq.heapify(rooms.alarms)


def due(rooms: Rooms, now: int) -> list[Effect]:
    """The alarms that have gone off: what is pending expires, what is finished is forgotten."""
    effects: list[Effect] = []
    while rooms.alarms and rooms.alarms[0][0] <= now:
        _, room_name, proposal_id = heapq.heappop(rooms.alarms)
        room = rooms.rooms.get(room_name)
        proposal = None if room is None else room.proposals.get(proposal_id)
        if room is None or proposal is None or _due_ms(proposal) > now:
            continue
        if proposal.status == PENDING:
            effects.append(_expire(rooms, room, proposal, now))
        else:
            drop(rooms, room, proposal)
            rooms.forget_blank(room)
    return effects


def _expire(rooms: Rooms, room: Room, proposal: Proposal, now: int) -> Append:
    expired = replace(proposal, status=EXPIRED, changed_ms=rooms.floored(now))
    room.begun(proposal.id)
    at_ms = rooms.floored(now)
    return Append(
        entry(room, expired, at_ms),
        partial(_expired, rooms, room, proposal, at_ms),
        partial(_not_expired, rooms, room, proposal),
    )


def _expired(
    rooms: Rooms, room: Room, proposal: Proposal, at_ms: int, offset: int, now: int
) -> list[Effect]:
    room.settled(proposal.id)
    if proposal.status == PENDING:
        rooms.tally.proposals_expired += 1
        _finish(rooms, room, proposal, EXPIRED, at_ms)
    return []


def _not_expired(
    rooms: Rooms, room: Room, proposal: Proposal, refusal: Refusal, now: int
) -> list[Effect]:
    room.settled(proposal.id)
    # To everybody who looks it has expired all the same; the log hears of it later.
    rooms.set_alarm(now + 1_000, room, proposal)
    return []


def entry(room: Room, proposal: Proposal, at_ms: int) -> Entry:
    """A proposal as the log holds it."""
    body = encode_body(proposal)
    return Entry(Kind.ROOM_PROPOSAL, room.name, STREAM_EPOCH, 0, at_ms, body)
