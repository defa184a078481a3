"""A hub's life in rooms as a list of steps: what members do, and what disks, clocks and crashes do.

The same seed gives the same life. After every step what members were told, heard and can see is
compared with `room_truth.py`; in the end the log takes everything, and everything that has not
expired must be there, before and after a restart, with the snapshot and without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from signalhub.core import refusals
from signalhub.core.dedup import Dedup
from signalhub.core.effects import Consult
from signalhub.core.rooms.naming import default_inbox
from signalhub.core.rooms.requests import (
    Accepted,
    Archived,
    Blob,
    Deposit,
    Page,
    PutBlob,
    Read,
    Result,
    Send,
    Welcome,
)
from signalhub.core.tally import RoomTally
from signalhub.errors import RoomCode, RoomError
from signalhub.settings import Rooms, Settings
from tests.memory_engine import Shelf
from tests.memory_rooms import Caller, Visitor, cut, described, mono_ms
from tests.memory_shell import MemoryShell
from tests.property.request_life import Numbers, Picture, differences
from tests.property.room_truth import Issued, Truth, Written

STEPS_MIN, STEPS_MAX = 40, 120
NUMBERS = 10_000
RATE, WINDOW_MS = 8, 5_000
CASES_MAX = 3
REPEAT_S = 150.0
SCARCE_BYTES = 1_500
CROWD = 60
PAGES_MAX = 200

Step = tuple[str, int]

# Rooms, and the inbox each of them may be given by name.
CAPABILITIES: dict[str, str | None] = {"brief-a": None, "b": "cap-b", "t:c": "cap-c"}
ROOMS = list(CAPABILITIES)
INBOXES = ["lone", "cap-b", "cap-c", default_inbox("brief-a"), default_inbox("t:c")]
BLOBS = ["metadata", "quorum"]
CASES = ["x", "y", "z", "w"]
# What may be answered because the caller is wrong.
ALLOWED = {
    "send": RoomCode.CONFLICT,
    "join": RoomCode.CONFLICT,
    "put": RoomCode.PRECONDITION_FAILED,
}

OPS = {
    "send": 20,
    "send_again": 8,
    "deposit": 6,
    "deposit_again": 2,
    "read": 12,
    "join": 4,
    "leave": 3,
    "put_blob": 5,
    "propose": 5,
    "approve": 4,
    "finish": 3,
    "commit": 18,
    "commit_all": 14,
    "answer_reads": 14,
    "refuse": 3,
    "moment": 10,
    "while_": 4,
    "jump": 1,
    "tick": 6,
    "snapshot": 5,
    "crash": 3,
    "crash_without_shelf": 2,
    "cut": 6,
    "archive": 3,
    "lose_archive": 2,
    "crowd": 1,
}


def drawn(seed: int) -> list[Step]:
    """What happens in the life of a seed; the first step says what kind of hub it is."""
    dice = random.Random(seed)
    names = dice.choices(list(OPS), list(OPS.values()), k=dice.randint(STEPS_MIN, STEPS_MAX))
    return [(name, dice.randrange(NUMBERS)) for name in names]


class Asked(Caller):
    """A request, checked when it is answered."""

    def __init__(self, life: Life, what: str, **facts: Any) -> None:
        super().__init__()
        self.life = life
        self.what = what
        self.facts = facts
        self.issued = Issued(mono_ms(life.shell), life.next_number())
        self.is_gone = False

    def answer(self, result: Result, message_id: str) -> None:
        super().answer(result, message_id)
        assert not self.is_gone, "a hub that crashed has answered"
        assert len(self.answers) == 1, f"{self.what} {self.facts} was answered twice"
        self.life.answered(self, result)


class Member(Visitor):
    """A socket that looks closely at its welcome."""

    def __init__(self, life: Life, room: str) -> None:
        super().__init__()
        self.life = life
        self.room = room
        self.inbox = ""

    def answer(self, result: Result, message_id: str) -> None:
        super().answer(result, message_id)
        if isinstance(result, Welcome):
            self.life.welcomed(self, result)


class Life:
    """One hub, its members, and the truth."""

    def __init__(self, seed: int = 0) -> None:
        self.has_archive = seed % 3 == 1
        self.is_scarce = seed % 4 == 2
        self.has_echo = seed % 7 != 0
        timestamps = "exact" if seed % 2 else "coarse"
        rooms = Rooms(
            rate=RATE,
            timestamps=timestamps,  # type: ignore[arg-type]
            retention_s=100.0,
            retention={"brief": 20.0, "cap-c": 300.0},
            repeat_s=REPEAT_S,
            buffer=3,
            page_bytes_max=400,
            proposal_s=60.0,
            proposals_max=CASES_MAX,
            append_rate=100_000,
            fetch_rate=100_000,
            unarchived_max=15,
            always_query_store=self.has_archive and seed % 5 == 0,
            echo_to_sender=self.has_echo,
        )
        self.shell = MemoryShell(Settings(rooms=rooms))
        self.shell.engine.is_prompt = self.shell.engine.is_readable = False
        self.truth = Truth(
            grid_ms=self.shell.hub.rooms.grid_ms,
            repeat_ms=int(REPEAT_S * 1000),
            proposal_ms=60_000,
            cases_max=CASES_MAX,
        )
        self.asked: list[Asked] = []
        self.members: list[Member] = []
        self.restarted_mono_ms = -WINDOW_MS
        self.is_refusing = False
        self.has_jumped = False
        # What the archive holds, by inbox, and up to where; `None` while it cannot be reached.
        self.archived_to = 0
        self.is_archive_away = False
        # How often what was told and what happened.
        self.told: dict[str, int] = {}
        self.counted = dict.fromkeys(("repeat", "frame", "crash", "cut", "unread"), 0)
        self._tallies: list[RoomTally] = []
        self._numbers = 0
        self._serve()

    def _serve(self) -> None:
        """Whatever hub is running now is given its archive."""
        self.shell.archive = self._consult
        self._tallies.append(self.shell.tally.rooms)
        if self.has_archive:
            self.shell.hub.rooms.archived_to(self.archived_to)

    def play(self, steps: list[Step]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if self.is_scarce:
                patch.setattr(
                    "signalhub.core.rooms.rooms.Dedup",
                    lambda window_ms, size: Dedup(window_ms, SCARCE_BYTES),
                )
                self.restart(written=0)
            for name, number in steps:
                do: Callable[[Numbers], None] = getattr(self, f"do_{name}")
                do(Numbers(number))
                self.check_step()
            self.wind_down()
            self.check_end()

    def tallied(self, what: str) -> int:
        """What all hubs of this life have counted."""
        return sum(getattr(one, what) for one in self._tallies)

    # Names.

    def inbox_name(self, inbox: str) -> str:
        return self.shell.hub.rooms.names.inbox(inbox)

    def room_name(self, room: str) -> str:
        return self.shell.hub.rooms.names.room(room)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # Members.

    def ask(self, what: str, **facts: Any) -> Asked:
        self.asked.append(Asked(self, what, **facts))
        return self.asked[-1]

    def send(self, numbers: Numbers, room: str, message_id: str, **members: Any) -> None:
        capability = CAPABILITIES[room]
        inbox = numbers.of([capability, capability, capability, None, None, "cap-b"])
        name = self.room_name(room)
        text = numbers.of([b"aGVsbG8", b"A" * 200])
        caller = self.ask("send", target=name, room=room, id=message_id, text=text)
        self._issue(caller)
        guests = [one.guest for one in self.members if one.room == room]
        guest = numbers.of(guests) if guests and numbers.below(0.5) else None
        caller.issued.guest = guest
        mono = mono_ms(self.shell)
        request = Send(caller, room, inbox, message_id, text, mono, guest=guest, **members)
        self.shell.perform(self.shell.hub.rooms.send(request, self.shell.now))

    def _issue(self, asked: Asked) -> None:
        """Of several requests with one id the first one counts that is not refused."""
        key = (asked.facts["target"], asked.facts["id"])
        self.truth.issued.setdefault(key, []).append(asked.issued)

    def do_send(self, numbers: Numbers) -> None:
        self.send(numbers, numbers.of(ROOMS), f"m{self.next_number()}")

    def do_send_again(self, numbers: Numbers) -> None:
        sent = [one for one in self.asked if one.what == "send"]
        if sent:
            again = numbers.of(sent[-20:] if numbers.below(0.7) else sent)
            self.send(numbers, again.facts["room"], again.facts["id"])

    def do_propose(self, numbers: Numbers) -> None:
        self._about(numbers, "mls_proposal")

    def do_approve(self, numbers: Numbers) -> None:
        self._about(numbers, "mls_approval")

    def do_finish(self, numbers: Numbers) -> None:
        self._about(numbers, numbers.of(["mls_commit", "mls_rejection"]))

    def _about(self, numbers: Numbers, type: str) -> None:
        room, case = numbers.of(ROOMS[:2]), numbers.of(CASES)
        self.send(numbers, room, f"m{self.next_number()}", type=type, proposal=case)

    def deposit(self, numbers: Numbers, inbox: str, message_id: str) -> None:
        name = self.inbox_name(inbox)
        text = numbers.of([b"aGVsbG8", b"A" * 200])
        caller = self.ask("deposit", target=name, inbox=inbox, id=message_id, text=text)
        self._issue(caller)
        request = Deposit(caller, inbox, message_id, text, mono_ms(self.shell))
        self.shell.perform(self.shell.hub.rooms.deposit(request, self.shell.now))

    def do_deposit(self, numbers: Numbers) -> None:
        self.deposit(numbers, numbers.of(INBOXES), f"m{self.next_number()}")

    def do_deposit_again(self, numbers: Numbers) -> None:
        sent = [one for one in self.asked if one.what == "deposit"]
        if sent:
            again = numbers.of(sent[-10:])
            self.deposit(numbers, again.facts["inbox"], again.facts["id"])

    def do_crowd(self, numbers: Numbers) -> None:
        """So many ids that a small memory gives up the older ones, which are on the shelf."""
        if not self.is_scarce:
            return
        self.do_commit_all(numbers)
        self.do_snapshot(numbers)
        for number in range(CROWD):
            self.deposit(numbers, "crowd", f"crowd{self.next_number()}")
            if number % 10 == 0:
                self.shell.clock.advance(1)
                self.do_commit_all(numbers)
        self.do_commit_all(numbers)
        self.do_snapshot(numbers)

    def do_read(self, numbers: Numbers) -> None:
        inbox = numbers.of(INBOXES)
        name = self.inbox_name(inbox)
        high = self.truth.head(name)
        from_seq = numbers.of([0, 1, max(0, high - 2), high, high + 1, *range(high)])
        self.read(inbox, from_seq, numbers.of([1, 2, 5, 100]))

    def read(self, inbox: str, from_seq: int, limit: int) -> Asked:
        name = self.inbox_name(inbox)
        high = self.truth.head(name)
        caller = self.ask("read", inbox=name, from_seq=from_seq, limit=limit, high=high)
        request = Read(caller, inbox, from_seq, limit, mono_ms(self.shell))
        self.shell.perform(self.shell.hub.rooms.read(request, self.shell.now))
        return caller

    def do_join(self, numbers: Numbers) -> None:
        room = numbers.of(ROOMS)
        inbox = numbers.of([CAPABILITIES[room], None])
        member = Member(self, room)
        rooms, now = self.shell.hub.rooms, self.shell.now
        try:
            member.guest, effects = rooms.join(member, room, inbox, "p", now)
        except RoomError as error:
            self._check_refusal(Asked(self, "join"), error)
            return
        self.members.append(member)
        self.shell.perform(effects)

    def do_leave(self, numbers: Numbers) -> None:
        if self.members:
            self._leave(numbers.of(self.members))

    def _leave(self, member: Member) -> None:
        self.members.remove(member)
        self.shell.perform(self.shell.hub.rooms.leave(member.guest, self.shell.now))

    def do_put_blob(self, numbers: Numbers) -> None:
        room, name = numbers.of(ROOMS), numbers.of(BLOBS)
        data = b"%d" % self.next_number()
        known = self.truth.blobs.get((self.room_name(room), name))
        version = 0 if known is None else known.version
        condition = numbers.of([None, version, version, version + 1, max(0, version - 1)])
        caller = self.ask("put", room=self.room_name(room), name=name, data=data, if_=condition)
        request = PutBlob(caller, room, None, name, data, condition)
        self.shell.perform(self.shell.hub.rooms.put_blob(request, self.shell.now))

    # Disks, clocks, crashes.

    def do_commit(self, numbers: Numbers) -> None:
        self.shell.engine.commit(numbers.of([1, 2]))

    def do_commit_all(self, numbers: Numbers) -> None:
        self.shell.engine.commit()
        self.learn()

    def do_answer_reads(self, numbers: Numbers) -> None:
        for _ in range(numbers.of([1, 1, 5])):
            self.shell.engine.read()

    def do_refuse(self, numbers: Numbers) -> None:
        self.is_refusing = True
        self.shell.engine.refuse(refusals.storage_full())
        self.is_refusing = False
        for member in [one for one in self.members if one.closed is not None]:
            self._leave(member)

    def do_moment(self, numbers: Numbers) -> None:
        self.shell.clock.advance(numbers.of([0.001, 0.5, 3.0]))

    def do_while_(self, numbers: Numbers) -> None:
        self.shell.clock.advance(numbers.of([10.0, 30.0, 80.0]))

    def do_jump(self, numbers: Numbers) -> None:
        self.has_jumped = True
        self.shell.clock.jump(numbers.of([-2, -7, -40]))

    def do_tick(self, numbers: Numbers) -> None:
        self.shell.tick()

    def do_snapshot(self, numbers: Numbers) -> None:
        self.shell.save_snapshot()

    def do_cut(self, numbers: Numbers) -> None:
        self.learn()
        before = self.shell.engine.first
        cut(self.shell)
        self.counted["cut"] += self.shell.engine.first > before

    def do_archive(self, numbers: Numbers) -> None:
        if self.has_archive:
            self.is_archive_away = False
            head = self.shell.engine.head
            self.archived_to = max(self.archived_to, numbers.of([head, (head * 2) // 3]))
            self.shell.hub.rooms.archived_to(self.archived_to)

    def do_lose_archive(self, numbers: Numbers) -> None:
        self.is_archive_away = True

    def _consult(self, consult: Consult) -> list[Archived] | None:
        if self.is_archive_away:
            return None
        some = self.truth.messages.get(consult.inbox, [])[consult.from_seq - 1 : consult.to_seq]
        return [
            Archived(one.seq, one.message_id, one.text, None, one.expires_ms)
            for one in some
            if one.offset < self.archived_to and one.expires_ms > self.shell.now
        ][: consult.count_max]

    def do_crash(self, numbers: Numbers) -> None:
        self.restart(numbers.of([0, 0, 1, 2, self.shell.engine.pending]))

    def do_crash_without_shelf(self, numbers: Numbers) -> None:
        self.shell.shelf = Shelf()
        self.truth.lose(self.shell.engine.first)
        self.restart(numbers.of([0, 1, self.shell.engine.pending]))

    def restart(self, written: int) -> None:
        """A crash; `written` entries nobody was told of are on disk."""
        self.members.clear()
        self.counted["crash"] += 1
        for one in self.asked:
            one.is_gone = True
        self.shell = self.shell.restarted(written)
        self.learn()
        self.truth.issued.clear()
        self.restarted_mono_ms = mono_ms(self.shell)
        if self.is_scarce:
            # Ids that memory could not hold must be on the shelf before anybody is served.
            self.shell.save_snapshot()
        self._serve()

    # What is told.

    def learn(self) -> None:
        """Read on in the log."""
        self.truth.bury(self.shell.now)
        self.truth.learn(self.shell.engine.entries, mono_ms(self.shell))

    def welcomed(self, member: Member, welcome: Welcome) -> None:
        """Nothing that can still be read is older than what it is told to be the oldest."""
        self.learn()
        inbox, last = self.inbox_of(member), welcome.last_seq
        member.inbox = inbox
        assert last <= self.truth.head(inbox), f"welcome to {last}, which is not there"
        first = next((one.seq for one in self.truth.alive(inbox, 1, last)), last + 1)
        assert welcome.oldest_seq <= first, f"{first} is older than {welcome.oldest_seq}"

    def inbox_of(self, member: Member) -> str:
        default = self.inbox_name(default_inbox(member.room))
        return self.truth.bindings.get(self.room_name(member.room), default)

    def answered(self, asked: Asked, result: Result) -> None:
        self.learn()
        kind = result.code if isinstance(result, RoomError) else type(result).__name__
        self.told[kind] = self.told.get(kind, 0) + 1
        issued = self.truth.issued.get(
            (asked.facts.get("target", ""), asked.facts.get("id", "")), []
        )
        if asked.issued in issued:
            # It was refused, or a repeat.
            issued.remove(asked.issued)
        if isinstance(result, Accepted):
            self.counted["repeat"] += result.is_repeat
            self._check_accepted(asked, result)
        elif isinstance(result, Page):
            self._check_page(asked, result)
        elif isinstance(result, Blob):
            blob = self.truth.blobs[asked.facts["room"], asked.facts["name"]]
            assert asked.facts["if_"] in (None, result.version - 1), "the condition did not hold"
            if blob.version == result.version:
                assert blob.data == asked.facts["data"], "another blob has this version"
        else:
            assert isinstance(result, RoomError), result
            self._check_refusal(asked, result)

    def _check_accepted(self, asked: Asked, accepted: Accepted) -> None:
        facts = asked.facts
        inbox = facts["target"]
        if asked.what == "send":
            inbox = self.truth.bindings[inbox]
        messages = self.truth.messages.get(inbox, [])
        assert accepted.seq <= len(messages), f"{facts['id']} was acknowledged before its commit"
        written: Written = messages[accepted.seq - 1]
        assert written.message_id == facts["id"], f"{accepted.seq} is the position of another one"
        if not accepted.is_repeat:
            assert written.text == facts["text"], f"{accepted.seq} has another text"

    def _check_page(self, asked: Asked, page: Page) -> None:
        inbox, from_seq = asked.facts["inbox"], asked.facts["from_seq"]
        found = [msgspec.json.decode(one) for one in page.messages]
        seqs = [one["seq"] for one in found]
        assert seqs == sorted(set(seqs)), f"a page in no order: {seqs}"
        assert len(seqs) <= asked.facts["limit"], "a page is too long"
        for one in found:
            written = self.truth.messages[inbox][one["seq"] - 1]
            assert (written.message_id, written.text.decode()) == (
                one["messageId"],
                one["ciphertext"],
            ), f"{one['seq']} has become another message"
            assert written.expires_ms > self.shell.now, f"{one['seq']} has expired"
        if page.is_partial:
            self.counted["unread"] += 1
            assert self.is_archive_away, "a partial page though the archive is there"
            assert page.next_seq == from_seq, "the cursor has passed what was not read"
            return
        assert page.next_seq == (seqs[-1] + 1 if seqs else from_seq), "the cursor is elsewhere"
        last = seqs[-1] if seqs else asked.facts["high"]
        # An id that was used again long after its time is once on a page.
        there = {one["messageId"] for one in found}
        alive = self.truth.alive(inbox, from_seq, last)
        missing = [one.seq for one in alive if one.message_id not in there]
        assert not missing, f"{missing} were passed over"
        oldest = page.oldest if page.oldest is not None else asked.facts["high"] + 1
        hidden = [one.seq for one in self.truth.alive(inbox, 1, oldest - 1)]
        assert not hidden, f"the oldest is said to be {page.oldest}, but there are {hidden}"

    def _check_refusal(self, asked: Asked, error: RoomError) -> None:
        facts = asked.facts
        if error.code == RoomCode.RATE_LIMIT_EXCEEDED:
            self._check_limited(asked)
        elif error.code == RoomCode.UNAVAILABLE:
            is_full = asked.what == "send" and not facts["id"].startswith("crowd")
            assert asked.what != "read", "a page was refused"
            assert self.is_refusing or self.has_archive or is_full, error.text
        else:
            assert error.code == ALLOWED.get(asked.what), error.text

    def _check_limited(self, asked: Asked) -> None:
        """Nobody is told to wait while there is room, unless the hub has to guess."""
        now = mono_ms(self.shell)
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
        self.check_rooms(self.shell)

    def _check_heard(self, member: Member) -> None:
        """It has heard all that was sent since its welcome, once and in order, and nothing else."""
        if not member.heard:
            return
        assert member.welcome is member.heard[0], "it heard something before its welcome"
        inbox = self.inbox_of(member)
        # A room nobody has used yet may be bound to another inbox than it was thought to have.
        last = member.welcome.last_seq if inbox == member.inbox else 0
        sent = [one for one in self.truth.messages.get(inbox, [])[last:] if not one.is_appended]
        if not self.has_echo:
            sent = [one for one in sent if one.issued.guest is not member.guest]
        expected = [one.seq for one in sent]
        assert member.seqs == expected, f"heard {member.seqs} instead of {expected}"
        self.counted["frame"] = max(self.counted["frame"], len(expected))

    def check_rooms(self, shell: MemoryShell) -> None:
        rooms, now = shell.hub.rooms, shell.now
        for name in ROOMS:
            room = self.room_name(name)
            found = rooms.proposals(name, None, now)
            times = [one.created_ms for one in found]
            assert times == sorted(times), "proposals are not listed oldest first"
            shown = {one.id: (one.status, one.content, one.approvals) for one in found}
            expected = self.truth.seen_cases(room, now)
            assert shown == expected, f"proposals are {shown} instead of {expected}"
            for blob in BLOBS:
                known = self.truth.blobs.get((room, blob))
                try:
                    seen = rooms.blob(name, None, blob, now)
                except RoomError:
                    assert known is None, "a blob is gone"
                else:
                    assert known is not None
                    assert seen == Blob(known.version, known.data), "it is another blob"

    # The end.

    def wind_down(self) -> None:
        """The log takes everything, and the archive can be reached."""
        self.is_archive_away = False
        engine = self.shell.engine
        engine.is_prompt = engine.is_readable = True
        self.shell.settle()
        self.check_step()

    def check_end(self) -> None:
        for one in self.asked:
            assert one.is_gone or len(one.answers) == 1, f"{one.what} {one.facts} has no answer"
        self.truth.check_rates(RATE, WINDOW_MS)
        self.truth.check_order()
        self.check_pages()
        before = described(self.shell)
        self.restart(written=0)
        self.check_restart(before, "snapshot and log")
        self.shell.shelf = Shelf()
        self.truth.lose(self.shell.engine.first)
        self.restart(written=0)
        self.check_restart(before, "the log alone")

    def check_restart(self, before: Picture, what: str) -> None:
        found = described(self.shell)
        assert found == before, f"{what}: {differences(before, found)}"
        self.check_rooms(self.shell)
        self.check_pages()

    def check_pages(self) -> None:
        """Whoever pages from the beginning finds all that has not expired."""
        for inbox in INBOXES:
            name, from_seq = self.inbox_name(inbox), 0
            found: set[str] = set()
            for _ in range(PAGES_MAX):
                page = self.read(inbox, from_seq, 7).page
                if not page.messages:
                    break
                found |= {msgspec.json.decode(one)["messageId"] for one in page.messages}
                from_seq = page.next_seq
            alive = self.truth.alive(name, 1, self.truth.head(name))
            gone = [one.seq for one in alive if one.message_id not in found]
            assert not gone, f"{gone} are gone"
