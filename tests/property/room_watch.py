"""What must hold for the members of rooms at every moment, whatever happens to the hub.

The watch reads the log as it grows and hears every answer and every frame; after each step it
compares what can be seen with what the model says (`room_model.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from signalhub.core.rooms.values import Accepted, Blob, Guest, Page, Result, RoomWelcome
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import default_inbox
from tests.property.room_model import Issued, Model
from tests.support.memory.rooms import Caller, RoomShell, Visitor, mono_ms

RATE, WINDOW_MS = 6, 5_000
PROPOSALS_MAX = 3
REPEAT_S, PROPOSAL_S = 150.0, 60.0
ROOMS = ["brief-a", "b", "t:c"]
BLOBS = ["metadata", "quorum"]
# What may be answered because the caller is wrong.
ALLOWED = {
    "send": RoomCode.CONFLICT,
    "join": RoomCode.CONFLICT,
    "put": RoomCode.PRECONDITION_FAILED,
}


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
        self.model = Model(
            grid_ms=shell.rooms.times.grid_ms,
            repeat_ms=int(REPEAT_S * 1000),
            proposal_ms=int(PROPOSAL_S * 1000),
            proposals_max=PROPOSALS_MAX,
        )
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

    def ask(self, what: str, **facts: Any) -> Asked:
        self.asked.append(Asked(self, what, **facts))
        return self.asked[-1]

    def issue(self, asked: Asked, guest: Guest | None = None) -> None:
        """Of several requests with one id the first one counts that is not refused."""
        target = asked.facts["target"]
        room = self.shell.rooms.directory.rooms.get(target)
        asked.issued.guest = guest
        asked.issued.is_first = asked.what == "send" and (room is None or room.inbox is None)
        self.model.issued.setdefault((target, asked.facts["id"]), []).append(asked.issued)

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
        if not accepted.is_repeat:
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
        if page.is_partial:
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
