"""A model of rooms: the log, read once and in order, and what plainly follows from it.

No cleverness here: lists that are searched from end to end, so that what they say can be believed.
Nothing is ever forgotten, whatever becomes of the log afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from signalhub.core.rooms.values import (
    APPROVAL,
    COMMIT,
    COMMITTED,
    EXPIRED,
    PENDING,
    PROPOSAL,
    REJECTED,
    REJECTION,
)
from signalhub.wire.entry import (
    Kind,
    ProposalBody,
    RoomBlobBody,
    RoomBoundBody,
    RoomEffect,
    RoomMessageBody,
    StoredEntry,
    decode_body,
)


@dataclass
class Issued:
    """A request on its way: when it was made, its number among all requests, by which socket."""

    mono_ms: int
    number: int
    guest: object = None
    # Its room had no inbox yet, so what came after it may have chosen one first.
    is_first: bool = False


@dataclass
class Written:
    """A message that is on disk."""

    seq: int
    offset: int
    body: RoomMessageBody
    issued: Issued
    # It has expired at least once, whatever the clock says now.
    is_dead: bool = False
    # Log and snapshot have lost it, so its id may be unknown.
    is_lost: bool = False


@dataclass
class Proposal:
    id: str
    content: bytes
    expires_ms: int
    status: str = PENDING
    approvals: list[bytes] = field(default_factory=list)

    def status_at(self, now: int) -> str:
        return EXPIRED if self.status == PENDING and self.expires_ms <= now else self.status


class Model:
    """Everything committed, by the names the log uses."""

    def __init__(
        self, *, grid_ms: int, repeat_ms: int, proposal_ms: int, proposals_max: int
    ) -> None:
        self.young_ms = repeat_ms - grid_ms
        self.proposal_ms = proposal_ms
        self.proposals_max = proposals_max
        self.messages: dict[str, list[Written]] = {}
        self.bindings: dict[str, str] = {}
        self.blobs: dict[tuple[str, str], RoomBlobBody] = {}
        self.proposals: dict[str, dict[str, Proposal]] = {}
        # Requests that may yet be written, by room or inbox and by id, in their order.
        self.issued: dict[tuple[str, str], list[Issued]] = {}
        self._next_offset = 0

    @property
    def everything(self) -> list[Written]:
        return [one for some in self.messages.values() for one in some]

    def head(self, inbox: str) -> int:
        return len(self.messages.get(inbox, []))

    def alive(self, inbox: str, first: int, last: int) -> list[Written]:
        """What must be served of a stretch of positions."""
        some = self.messages.get(inbox, [])[max(first, 1) - 1 : last]
        return [one for one in some if not one.is_dead]

    def expire(self, now: int) -> None:
        """What has expired stays so, even if the clock is set back."""
        for one in self.everything:
            one.is_dead |= one.body.expires_ms <= now

    def lose(self, first_offset: int) -> None:
        """The snapshot is gone, and before this offset so is the log."""
        for one in self.everything:
            one.is_lost |= one.offset < first_offset

    def learn(self, entries: list[StoredEntry], mono_ms: int) -> None:
        """Read on in the log."""
        for entry in entries:
            if entry.offset < self._next_offset:
                continue
            self._next_offset = entry.offset + 1
            if entry.kind == Kind.ROOM_MESSAGE:
                self._message(entry, mono_ms)
            elif entry.kind == Kind.ROOM_BOUND:
                inbox = decode_body(RoomBoundBody, entry.body).inbox
                known = self.bindings.setdefault(entry.stream, inbox)
                assert known == inbox, "a room was bound to another inbox"
                bound = list(self.bindings.values())
                assert len(bound) == len(set(bound)), "an inbox was bound to another room"
            elif entry.kind == Kind.ROOM_BLOB:
                self._blob(entry.stream, decode_body(RoomBlobBody, entry.body))
            elif entry.kind == Kind.ROOM_PROPOSAL:
                self._proposal(entry.stream, decode_body(ProposalBody, entry.body))

    def _message(self, entry: StoredEntry, mono_ms: int) -> None:
        body = decode_body(RoomMessageBody, entry.body)
        known = self.messages.setdefault(entry.stream, [])
        assert entry.seq == len(known) + 1, f"position {entry.seq} follows {len(known)}"
        rooms = [room for room, inbox in self.bindings.items() if inbox == entry.stream]
        assert body.is_appended or rooms, "a message came before the binding of its room"
        target = entry.stream if body.is_appended else rooms[0]
        issued = self.issued.pop((target, body.message_id))[0]
        for one in known:
            is_known = mono_ms - one.issued.mono_ms <= self.young_ms and not one.is_lost
            is_repeat = is_known and one.body.message_id == body.message_id
            assert not is_repeat, f"{body.message_id} was accepted twice"
        known.append(Written(entry.seq, entry.offset, body, issued))
        if body.control is not None:
            self._follow(body.control, body.ciphertext, entry.at_ms)

    def _blob(self, room: str, blob: RoomBlobBody) -> None:
        """The next version, or the last one written again."""
        known = self.blobs.get((room, blob.name))
        version = 0 if known is None else known.version
        if known is not None and blob.version == version:
            assert known.data == blob.data, "a blob was written again with other contents"
            return
        assert blob.version == version + 1, f"version {blob.version} follows {version}"
        self.blobs[room, blob.name] = blob

    def _follow(self, control: RoomEffect, content: bytes, at_ms: int) -> None:
        """A message about a proposal."""
        known = self.proposals.setdefault(control.room, {})
        found = known.get(control.proposal)
        if found is None and control.type == PROPOSAL:
            if len(known) >= self.proposals_max:
                over = [one.id for one in known.values() if one.status_at(at_ms) != PENDING]
                del known[over[0]]
            known[control.proposal] = Proposal(control.proposal, content, at_ms + self.proposal_ms)
        elif found is not None and found.status_at(at_ms) == PENDING:
            if control.type == APPROVAL and len(found.approvals) < self.proposals_max:
                found.approvals.append(content)
            elif control.type in (COMMIT, REJECTION):
                found.status = COMMITTED if control.type == COMMIT else REJECTED

    def _proposal(self, room: str, written: ProposalBody) -> None:
        """It expired, or was written again because the log is cut."""
        found = self.proposals[room].get(written.id)
        if found is None:
            return
        if written.status == EXPIRED and found.status == PENDING:
            found.status = EXPIRED
        assert found.approvals[: len(written.approvals)] == written.approvals

    def shown_proposals(self, room: str, now: int) -> dict[str, tuple[str, bytes, list[bytes]]]:
        """All proposals of a room as they are to be shown, by id."""
        known = self.proposals.get(room, {}).values()
        return {one.id: (one.status_at(now), one.content, one.approvals) for one in known}

    # What must hold in the end.

    def check_rates(self, limit: int, window_ms: int) -> None:
        """No room has taken more than its rate in any window."""
        for some in self.messages.values():
            sent = [one for one in some if not (one.body.is_appended or one.is_lost)]
            times = [one.issued.mono_ms for one in sent]
            for end in times:
                count = sum(end - window_ms < at_ms <= end for at_ms in times)
                assert count <= limit, f"{count} messages were taken in one window"

    def check_order(self) -> None:
        """Whoever asked first is first."""
        for some in self.messages.values():
            for one, other in pairwise(some):
                is_ordered = one.issued.number < other.issued.number
                assert is_ordered or other.issued.is_first, f"{other.seq} was asked for earlier"
