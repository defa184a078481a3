"""A model of rooms, and what must hold for their members at every moment.

The watch reads the log as it grows and hears every answer and every frame; after each step it
compares what can be seen with the model. The model is the log, read once and in order: lists that
are searched from end to end, so that what they say can be believed. It never forgets anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from signalhub.core.rooms import values
from signalhub.core.rooms.values import Accepted, Blob, Guest, Page, Result, RoomWelcome
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
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import default_inbox
from tests.support.memory.rooms import Caller, RoomShell, Visitor, mono_ms

RATE, WINDOW_MS = 6, 5_000
PROPOSALS_MAX = 3
REPEAT_S, PROPOSAL_S = 150.0, 60.0
ROOMS = ["brief-a", "b", "t:c"]
BLOBS = ["metadata", "quorum"]
ENDS = {values.COMMIT: values.COMMITTED, values.REJECTION: values.REJECTED}
# What may be answered because the caller is wrong.
ALLOWED = {
    "send": RoomCode.CONFLICT,
    "deposit": RoomCode.CONFLICT,
    "join": RoomCode.CONFLICT,
    "put": RoomCode.PRECONDITION_FAILED,
}


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
    status: str = values.PENDING
    approvals: list[bytes] = field(default_factory=list)

    def status_at(self, now: int) -> str:
        return (
            values.EXPIRED
            if self.status == values.PENDING and self.expires_ms <= now
            else self.status
        )


class Model:
    """Everything committed, by the names the log uses."""

    def __init__(self, grid_ms: int) -> None:
        # How long an id is certainly known, whatever the grid of times.
        self.known_ms = REPEAT_S * 1000 - grid_ms
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
            is_known = mono_ms - one.issued.mono_ms <= self.known_ms and not one.is_lost
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
        if found is None and control.type == values.PROPOSAL:
            if len(known) >= PROPOSALS_MAX:
                over = [one.id for one in known.values() if one.status_at(at_ms) != values.PENDING]
                del known[over[0]]
            known[control.proposal] = Proposal(
                control.proposal, content, at_ms + int(PROPOSAL_S * 1000)
            )
        elif found is not None and found.status_at(at_ms) == values.PENDING:
            if control.type == values.APPROVAL and len(found.approvals) < PROPOSALS_MAX:
                found.approvals.append(content)
            elif control.type in (values.COMMIT, values.REJECTION):
                found.status = (
                    values.COMMITTED if control.type == values.COMMIT else values.REJECTED
                )

    def _proposal(self, room: str, written: ProposalBody) -> None:
        """It expired, or was written again because the log is cut."""
        found = self.proposals[room].get(written.id)
        if found is None:
            return
        if written.status == values.EXPIRED and found.status == values.PENDING:
            found.status = values.EXPIRED
        assert found.approvals[: len(written.approvals)] == written.approvals

    def shown_proposals(self, room: str, now: int) -> dict[str, tuple[str, bytes, list[bytes]]]:
        """All proposals of a room as they are to be shown, by id."""
        known = self.proposals.get(room, {}).values()
        return {one.id: (one.status_at(now), one.content, one.approvals) for one in known}

    # What must hold in the end.

    def check_rates(self) -> None:
        """No room has taken more than its rate in any window."""
        for some in self.messages.values():
            sent = [one for one in some if not (one.body.is_appended or one.is_lost)]
            times = [one.issued.mono_ms for one in sent]
            for end in times:
                count = sum(end - WINDOW_MS < at_ms <= end for at_ms in times)
                assert count <= RATE, f"{count} messages were taken in one window"

    def check_order(self) -> None:
        """Answers come in the order of the requests."""
        for some in self.messages.values():
            for one, other in pairwise(some):
                is_ordered = one.issued.number < other.issued.number
                assert is_ordered or other.issued.is_first, f"{other.seq} was asked for earlier"


class Asked(Caller):
    """A request, checked when it is answered."""

    def __init__(self, watch: Watch, what: str, **facts: Any) -> None:
        super().__init__()
        self.watch = watch
        self.what = what
        self.facts = facts
        self.issued = Issued(mono_ms(watch.shell), watch.next_number())
        self.is_gone = False

    def answer(self, result: Result, message_id: str) -> None:
        super().answer(result, message_id)
        assert not self.is_gone, "a hub that crashed has answered"
        assert len(self.answers) == 1, f"{self.what} {self.facts} was answered twice"
        self.watch.answered(self, result)


class Member(Visitor):
    """A socket that looks closely at its welcome."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.inbox = ""

    def answer(self, result: Result, message_id: str) -> None:
        super().answer(result, message_id)
        if isinstance(result, RoomWelcome):
            self.watch.welcomed(self, result)


class Watch:
    """The records about one hub, over all processes that were it."""

    def __init__(self, shell: RoomShell, *, has_echo: bool, has_archive: bool) -> None:
        self.shell = shell
        self.has_echo = has_echo
        self.has_archive = has_archive
        self.model = Model(shell.rooms.times.grid_ms)
        self.asked: list[Asked] = []
        self.members: list[Member] = []
        # What explains an answer that would otherwise be wrong.
        self.is_refusing = False
        self.is_archive_away = False
        self.has_jumped = False
        self.restarted_mono_ms = -WINDOW_MS
        # How often what was told and what happened.
        self.counted: Counter[str] = Counter()
        self._numbers = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def ask(self, what: str, guest: Guest | None = None, **facts: Any) -> Asked:
        """Of several messages with one id the first one counts that is not refused."""
        asked = Asked(self, what, **facts)
        self.asked.append(asked)
        if "target" in facts:
            room = self.shell.rooms.directory.rooms.get(facts["target"])
            asked.issued.guest = guest
            asked.issued.is_first = what == "send" and (room is None or room.inbox is None)
            self.model.issued.setdefault((facts["target"], facts["id"]), []).append(asked.issued)
        return asked

    def restarted(self, shell: RoomShell) -> None:
        """The hub has crashed, and this is the next one."""
        self.shell = shell
        self.counted["crash"] += 1
        self.members.clear()
        for one in self.asked:
            one.is_gone = True
        self.learn()
        self.model.issued.clear()
        self.restarted_mono_ms = mono_ms(shell)

    def inbox_name(self, inbox: str) -> str:
        return self.shell.rooms.directory.names.inbox(inbox)

    def room_name(self, room: str) -> str:
        return self.shell.rooms.directory.names.room(room)

    # What is told.

    def learn(self) -> None:
        """Read on in the log."""
        self.model.expire(self.shell.now)
        self.model.learn(self.shell.engine.entries, mono_ms(self.shell))

    def welcomed(self, member: Member, welcome: RoomWelcome) -> None:
        """Nothing that can still be read is older than what it is told to be the oldest."""
        self.learn()
        member.inbox, last = self.inbox_of(member), welcome.last_seq
        assert last <= self.model.head(member.inbox), f"welcome to {last}, which is not there"
        first = next((one.seq for one in self.model.alive(member.inbox, 1, last)), last + 1)
        assert welcome.oldest_seq <= first, f"{first} is older than {welcome.oldest_seq}"

    def inbox_of(self, member: Member) -> str:
        default = self.inbox_name(default_inbox(member.room))
        return self.model.bindings.get(self.room_name(member.room), default)

    def answered(self, asked: Asked, result: Result) -> None:
        self.learn()
        self.counted[result.code if isinstance(result, RoomError) else type(result).__name__] += 1
        key = (asked.facts.get("target", ""), asked.facts.get("id", ""))
        issued = self.model.issued.get(key, [])
        if asked.issued in issued:
            # It was refused, or a repeat.
            issued.remove(asked.issued)
        match result:
            case Accepted():
                self.counted["repeat"] += result.is_repeat
                self._check_accepted(asked, result)
            case Page():
                self._check_page(asked, result)
            case Blob():
                self._check_blob(asked, result)
            case RoomError():
                self.check_refusal(asked, result)
            case _:
                raise AssertionError(result)

    def _check_accepted(self, asked: Asked, accepted: Accepted) -> None:
        facts, inbox = asked.facts, asked.facts["target"]
        if asked.what == "send":
            inbox = self.model.bindings[inbox]
        messages = self.model.messages.get(inbox, [])
        assert accepted.seq <= len(messages), f"{facts['id']} was acknowledged before its commit"
        body = messages[accepted.seq - 1].body
        assert body.message_id == facts["id"], f"{accepted.seq} is the position of another one"
        # A repeat with another text is refused.
        assert body.ciphertext == facts["text"], f"{accepted.seq} has another text"

    def _check_page(self, asked: Asked, page: Page) -> None:
        inbox, from_seq, high = (asked.facts[name] for name in ("inbox", "from_seq", "high"))
        seqs = asked.seqs
        assert seqs == sorted(set(seqs)), f"a page in no order: {seqs}"
        assert len(seqs) <= asked.facts["limit"], "a page is too long"
        for one in asked.items:
            body = self.model.messages[inbox][one["seq"] - 1].body
            is_same = (body.message_id, body.ciphertext.decode()) == (
                one["messageId"],
                one["ciphertext"],
            )
            assert is_same, f"{one['seq']} has become another message"
            assert body.expires_ms > self.shell.now, f"{one['seq']} has expired"
        if page.reason is not None:
            assert self.is_archive_away, "a partial page though the archive is there"
            assert page.next_seq == from_seq, "the cursor has passed what was not read"
            return
        assert page.next_seq == (seqs[-1] + 1 if seqs else from_seq), "the cursor is elsewhere"
        # An id that was used again long after its time is once on a page.
        alive = self.model.alive(inbox, from_seq, seqs[-1] if seqs else high)
        missing = [one.seq for one in alive if one.body.message_id not in asked.ids]
        assert not missing, f"{missing} were passed over"
        oldest = page.oldest if page.oldest is not None else high + 1
        hidden = [one.seq for one in self.model.alive(inbox, 1, oldest - 1)]
        assert not hidden, f"the oldest is said to be {page.oldest}, but there are {hidden}"

    def _check_blob(self, asked: Asked, written: Blob) -> None:
        blob = self.model.blobs[asked.facts["room"], asked.facts["name"]]
        is_met = asked.facts["condition"] in (None, written.version - 1)
        assert is_met, "the condition did not hold"
        is_last = blob.version == written.version
        assert not is_last or blob.data == asked.facts["data"], "another blob has this version"

    def check_refusal(self, asked: Asked, error: RoomError) -> None:
        if error.code == RoomCode.RATE_LIMIT_EXCEEDED:
            self._check_limited(asked)
        elif error.code == RoomCode.UNAVAILABLE:
            assert asked.what != "read", "a page was refused"
            may_be_full = self.has_archive or asked.what == "send"
            assert self.is_refusing or may_be_full, error.text
        else:
            assert error.code == ALLOWED.get(asked.what), error.text

    def _check_limited(self, asked: Asked) -> None:
        """Nobody is told to wait while there is room, unless the hub has to guess."""
        now = asked.issued.mono_ms
        if self.has_jumped or now - self.restarted_mono_ms <= 2 * WINDOW_MS:
            return
        recent = [
            one
            for one in self.asked
            if one.what == "send"
            and one.facts["room"] == asked.facts["room"]
            and one.issued.mono_ms > now - WINDOW_MS
            and (not one.answers or isinstance(one.result, Accepted))
        ]
        assert len(recent) >= RATE, f"limited by {len(recent)} messages"

    # What can be seen.

    def check_step(self) -> None:
        self.learn()
        for member in self.members:
            self._check_heard(member)
        self.check_rooms()

    def _check_heard(self, member: Member) -> None:
        """It has heard all that was sent since its welcome, once and in order, and nothing else."""
        if not member.heard:
            return
        assert member.welcome is member.heard[0], "it heard something before its welcome"
        inbox = self.inbox_of(member)
        # A room nobody has used yet may be bound to another inbox than it was thought to have.
        last = member.welcome.last_seq if inbox == member.inbox else 0
        expected = [
            one.seq
            for one in self.model.messages.get(inbox, [])[last:]
            if not one.body.is_appended and (self.has_echo or one.issued.guest is not member.guest)
        ]
        assert member.seqs == expected, f"heard {member.seqs} instead of {expected}"
        self.counted["frame"] = max(self.counted["frame"], len(expected))

    def check_rooms(self) -> None:
        """Proposals and blobs are what they should be."""
        rooms, now = self.shell.rooms, self.shell.now
        for name in ROOMS:
            room = self.room_name(name)
            found = rooms.proposals(name, None, now)
            times = [one.created_ms for one in found]
            assert times == sorted(times), "proposals are not listed oldest first"
            shown = {one.id: (one.status, one.content, one.approvals) for one in found}
            expected = self.model.shown_proposals(room, now)
            assert shown == expected, f"proposals are {shown} instead of {expected}"
            for blob in BLOBS:
                known = self.model.blobs.get((room, blob))
                try:
                    seen = rooms.blob(name, None, blob, now)
                except RoomError:
                    assert known is None, "a blob is gone"
                else:
                    assert known is not None
                    assert seen == Blob(known.version, known.data), "it is another blob"

    def check_answers(self) -> None:
        """Everybody whose hub did not crash was answered."""
        for one in self.asked:
            assert one.is_gone or len(one.answers) == 1, f"{one.what} {one.facts} has no answer"
