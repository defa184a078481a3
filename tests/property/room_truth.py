"""What is true of rooms: the log, read once and in order, and what plainly follows from it.

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
    """A request on its way: when it was made, as the how manieth, by which socket."""

    mono_ms: int
    number: int
    guest: object = None
    # Its room had no inbox yet, so what came after it may have chosen one first.
    is_first: bool = False


@dataclass
class Written:
    """A message that is on disk."""

    seq: int
    message_id: str
    text: bytes
    at_ms: int
    expires_ms: int
    offset: int
    is_appended: bool
    issued: Issued
    # Its time has come at least once, whatever the clock says now.
    is_dead: bool = False
    # Log and snapshot have lost it, so its id may be unknown.
    is_lost: bool = False


@dataclass
class Case:
    """A proposal."""

    id: str
    content: bytes
    expires_ms: int
    status: str = PENDING
    approvals: list[bytes] = field(default_factory=list)

    def status_at(self, now: int) -> str:
        return EXPIRED if self.status == PENDING and self.expires_ms <= now else self.status


class Truth:
    """Everything committed, by the names the log uses."""

    def __init__(self, *, grid_ms: int, repeat_ms: int, proposal_ms: int, cases_max: int) -> None:
        self.grid_ms = grid_ms
        self.repeat_ms = repeat_ms
        self.proposal_ms = proposal_ms
        self.cases_max = cases_max
        self.messages: dict[str, list[Written]] = {}
        self.bindings: dict[str, str] = {}
        self.blobs: dict[tuple[str, str], RoomBlobBody] = {}
        self.cases: dict[str, dict[str, Case]] = {}
        # Requests that may yet be written, by room or inbox and by id, in their order.
        self.issued: dict[tuple[str, str], list[Issued]] = {}
        self._next_offset = 0

    def head(self, inbox: str) -> int:
        return len(self.messages.get(inbox, []))

    def alive(self, inbox: str, first: int, last: int) -> list[Written]:
        """What must be served of a stretch of positions."""
        some = self.messages.get(inbox, [])[max(first, 1) - 1 : last]
        return [one for one in some if not one.is_dead]

    def room_of(self, inbox: str) -> str | None:
        return next((room for room, bound in self.bindings.items() if bound == inbox), None)

    def bury(self, now: int) -> None:
        """What has expired stays so, even if the clock is set back."""
        for some in self.messages.values():
            for one in some:
                one.is_dead |= one.expires_ms <= now

    def lose(self, first_offset: int) -> None:
        """The snapshot is gone, and before this offset so is the log."""
        for some in self.messages.values():
            for one in some:
                one.is_lost |= one.offset < first_offset

    def learn(self, entries: list[StoredEntry], mono_ms: int) -> None:
        """Read on."""
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
                rooms = [room for room, bound in self.bindings.items() if bound == inbox]
                assert len(rooms) == 1, "an inbox was bound to another room"
            elif entry.kind == Kind.ROOM_BLOB:
                self._blob(entry.stream, decode_body(RoomBlobBody, entry.body))
            elif entry.kind == Kind.ROOM_PROPOSAL:
                self._case_written(entry.stream, decode_body(ProposalBody, entry.body))

    def _message(self, entry: StoredEntry, mono_ms: int) -> None:
        body = decode_body(RoomMessageBody, entry.body)
        known = self.messages.setdefault(entry.stream, [])
        assert entry.seq == len(known) + 1, f"position {entry.seq} follows {len(known)}"
        target = entry.stream if body.is_appended else self.room_of(entry.stream)
        assert target is not None, "a message came before the binding of its room"
        issued = self.issued.pop((target, body.message_id))[0]
        written = Written(
            entry.seq,
            body.message_id,
            body.ciphertext,
            entry.at_ms,
            body.expires_ms,
            entry.offset,
            body.is_appended,
            issued,
        )
        for one in known:
            is_young = mono_ms - one.issued.mono_ms <= self.repeat_ms - self.grid_ms
            if one.message_id == body.message_id and is_young and not one.is_lost:
                raise AssertionError(f"{body.message_id} was accepted twice")
        known.append(written)
        if body.control is not None:
            self._follow(body.control, body.ciphertext, entry.at_ms)

    def _blob(self, room: str, blob: RoomBlobBody) -> None:
        """The next version, or the last one written again."""
        known = self.blobs.get((room, blob.name))
        version = 0 if known is None else known.version
        if blob.version == version:
            assert known is not None
            assert known.data == blob.data, "a blob was written again with other contents"
            return
        assert blob.version == version + 1, f"version {blob.version} follows {version}"
        self.blobs[room, blob.name] = blob

    # Proposals.

    def _follow(self, control: RoomEffect, text: bytes, at_ms: int) -> None:
        cases = self.cases.setdefault(control.room, {})
        case = cases.get(control.proposal)
        if case is None:
            if control.type == PROPOSAL:
                if len(cases) >= self.cases_max:
                    over = [one.id for one in cases.values() if one.status_at(at_ms) != PENDING]
                    del cases[over[0]]
                cases[control.proposal] = Case(control.proposal, text, at_ms + self.proposal_ms)
        elif case.status_at(at_ms) == PENDING:
            if control.type == APPROVAL and len(case.approvals) < self.cases_max:
                case.approvals.append(text)
            elif control.type in (COMMIT, REJECTION):
                case.status = COMMITTED if control.type == COMMIT else REJECTED

    def _case_written(self, room: str, proposal: ProposalBody) -> None:
        """It expired, or was written again for the sake of a cut."""
        case = self.cases[room].get(proposal.id)
        if case is None:
            return
        if proposal.status == EXPIRED and case.status == PENDING:
            case.status = EXPIRED
        assert case.approvals[: len(proposal.approvals)] == proposal.approvals

    def seen_cases(self, room: str, now: int) -> dict[str, tuple[str, bytes, list[bytes]]]:
        """All proposals of a room as they are to be shown, by id."""
        cases = self.cases.get(room, {}).values()
        return {one.id: (one.status_at(now), one.content, one.approvals) for one in cases}

    # What must hold in the end.

    def check_rates(self, limit: int, window_ms: int) -> None:
        """No room has taken more than its rate in any window."""
        for some in self.messages.values():
            times = [one.issued.mono_ms for one in some if not one.is_appended and not one.is_lost]
            for end in times:
                count = sum(end - window_ms < at_ms <= end for at_ms in times)
                assert count <= limit, f"{count} messages were taken in one window"

    def check_order(self) -> None:
        """Whoever asked first is first."""
        for some in self.messages.values():
            for one, other in pairwise(some):
                is_ordered = one.issued.number < other.issued.number
                assert is_ordered or other.issued.is_first, f"{other.seq} was asked for earlier"
