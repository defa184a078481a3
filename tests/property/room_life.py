"""A hub's life in rooms as a list of steps: what members do, and what disks, clocks and crashes do.

The same seed gives the same life. After every step what members were told, heard and can see is
compared with what is true (`room_watch.py`); in the end the log takes everything, and everything
that has not expired must be there, before and after a restart, with the snapshot and without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from signalhub.core import refusals
from signalhub.core.effects import Consult
from signalhub.core.messages.dedup import Dedup
from signalhub.core.rooms.values import Archived, Deposit, PutBlob, Read, SendToRoom
from signalhub.counters import RoomTally
from signalhub.settings.model import RoomsSettings, Settings
from signalhub.wire.errors import RoomError
from signalhub.wire.room_ids import default_inbox
from tests.property.request_life import Numbers, Picture, differences
from tests.property.room_watch import (
    BLOBS,
    CASES_MAX,
    PROPOSAL_S,
    RATE,
    REPEAT_S,
    ROOMS,
    WINDOW_MS,
    Asked,
    Member,
    Watch,
)
from tests.support.memory.engine import Shelf
from tests.support.memory.rooms import cut, described, mono_ms
from tests.support.memory.shell import MemoryShell

STEPS_MIN, STEPS_MAX = 40, 120
NUMBERS = 10_000
# Room for about fifty ids, and enough of them to fill it.
SCARCE_BYTES = 1_500
CROWD = 60
PAGES_MAX = 200

Step = tuple[str, int]

# The inbox each room may be given by name.
CAPABILITIES: dict[str, str | None] = {"brief-a": None, "b": "cap-b", "t:c": "cap-c"}
INBOXES = ["lone", "cap-b", "cap-c", default_inbox("brief-a"), default_inbox("t:c")]
CASES = ["x", "y", "z", "w"]
TEXTS = [b"aGVsbG8", b"A" * 200]

OPS = {
    "send": 20,
    "send_again": 8,
    "rush": 3,
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
    "archive_all": 3,
    "lose_archive": 4,
    "crowd": 1,
}


def drawn(seed: int) -> list[Step]:
    """What happens in the life of a seed."""
    dice = random.Random(seed)
    names = dice.choices(list(OPS), list(OPS.values()), k=dice.randint(STEPS_MIN, STEPS_MAX))
    return [(name, dice.randrange(NUMBERS)) for name in names]


def settings_of(seed: int) -> RoomsSettings:
    """Everything is small, so that it runs out; the seed says which kind of hub it is."""
    timestamps: Literal["exact", "coarse"] = "exact" if seed % 2 else "coarse"
    return RoomsSettings(
        rate=RATE,
        timestamps=timestamps,
        retention_s=100.0,
        retention={"brief": 20.0, "cap-c": 300.0},
        repeat_s=REPEAT_S,
        buffer=3,
        page_bytes_max=400,
        proposal_s=PROPOSAL_S,
        proposals_max=CASES_MAX,
        append_rate=100_000,
        fetch_rate=100_000,
        unarchived_max=15,
        always_query_store=seed % 15 == 1,
        echo_to_sender=seed % 7 != 0,
    )


class Life:
    """One hub and its members."""

    def __init__(self, seed: int) -> None:
        rooms = settings_of(seed)
        has_archive = seed % 3 == 1
        self.is_scarce = seed % 4 == 2
        self.shell = MemoryShell(Settings(rooms=rooms))
        self.shell.engine.is_prompt = self.shell.engine.is_readable = False
        self.watch = Watch(self.shell, has_echo=rooms.echo_to_sender, has_archive=has_archive)
        # Everything before this offset is in the archive.
        self.archived_to = 0
        self._tallies: list[RoomTally] = []
        self._serve()

    def _serve(self) -> None:
        """Whatever hub is running now is given its archive."""
        self.shell.archive = self._consult
        self._tallies.append(self.shell.tally.rooms)
        if self.watch.has_archive:
            self.shell.hub.rooms.archived_to(self.archived_to)

    def play(self, steps: list[Step]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if self.is_scarce:
                patch.setattr(
                    "signalhub.core.rooms.inbox.Dedup",
                    lambda window_ms, size: Dedup(window_ms, SCARCE_BYTES),
                )
                self.restart(written=0)
            for name, number in steps:
                do: Callable[[Numbers], None] = getattr(self, f"do_{name}")
                do(Numbers(number))
                self.watch.check_step()
            self.wind_down()
            self.check_end()

    def tallied(self, what: str) -> int:
        """What all hubs of this life have counted."""
        return sum(getattr(one, what) for one in self._tallies)

    # Messages.

    def send(self, numbers: Numbers, room: str, message_id: str, **members: Any) -> None:
        capability = CAPABILITIES[room]
        inbox = numbers.of([capability, capability, capability, None, None, "cap-b"])
        text = numbers.of(TEXTS)
        guests = [one.guest for one in self.watch.members if one.room == room]
        guest = numbers.of(guests) if guests and numbers.below(0.5) else None
        target = self.watch.room_name(room)
        caller = self.watch.ask("send", target=target, room=room, id=message_id, text=text)
        self.watch.issue(caller, guest)
        mono = mono_ms(self.shell)
        request = SendToRoom(caller, room, inbox, message_id, text, mono, guest=guest, **members)
        self.shell.perform(self.shell.hub.rooms.send(request, self.shell.now))

    def do_send(self, numbers: Numbers) -> None:
        self.send(numbers, numbers.of(ROOMS), self.fresh_id())

    def do_rush(self, numbers: Numbers) -> None:
        room = numbers.of(ROOMS)
        for _ in range(numbers.of([3, 6])):
            self.send(numbers, room, self.fresh_id())

    def fresh_id(self) -> str:
        return f"m{self.watch.next_number()}"

    def do_send_again(self, numbers: Numbers) -> None:
        sent = [one for one in self.watch.asked if one.what == "send"]
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
        self.send(numbers, room, self.fresh_id(), type=type, proposal=case)

    def deposit(self, numbers: Numbers, inbox: str, message_id: str) -> None:
        text = numbers.of(TEXTS)
        target = self.watch.inbox_name(inbox)
        caller = self.watch.ask("deposit", target=target, inbox=inbox, id=message_id, text=text)
        self.watch.issue(caller)
        request = Deposit(caller, inbox, message_id, text, mono_ms(self.shell))
        self.shell.perform(self.shell.hub.rooms.deposit(request, self.shell.now))

    def do_deposit(self, numbers: Numbers) -> None:
        self.deposit(numbers, numbers.of(INBOXES), self.fresh_id())

    def do_deposit_again(self, numbers: Numbers) -> None:
        sent = [one for one in self.watch.asked if one.what == "deposit"]
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
            self.deposit(numbers, "crowd", self.fresh_id())
            if number % 10 == 0:
                self.shell.clock.advance(1)
                self.do_commit_all(numbers)
        self.do_commit_all(numbers)
        self.do_snapshot(numbers)

    # Readers, sockets, blobs.

    def do_read(self, numbers: Numbers) -> None:
        inbox = numbers.of(INBOXES)
        high = self.watch.truth.head(self.watch.inbox_name(inbox))
        from_seq = numbers.of([0, 1, max(0, high - 2), high, high + 1, *range(high)])
        self.read(inbox, from_seq, numbers.of([1, 2, 5, 100]))

    def read(self, inbox: str, from_seq: int, limit: int) -> Asked:
        name = self.watch.inbox_name(inbox)
        high = self.watch.truth.head(name)
        caller = self.watch.ask("read", inbox=name, from_seq=from_seq, limit=limit, high=high)
        request = Read(caller, inbox, from_seq, limit, mono_ms(self.shell))
        self.shell.perform(self.shell.hub.rooms.read(request, self.shell.now))
        return caller

    def do_join(self, numbers: Numbers) -> None:
        room = numbers.of(ROOMS)
        inbox = numbers.of([CAPABILITIES[room], None])
        member = Member(self.watch, room)
        rooms, now = self.shell.hub.rooms, self.shell.now
        try:
            member.guest, effects = rooms.join(member, room, inbox, "p", now)
        except RoomError as error:
            self.watch.check_refusal(Asked(self.watch, "join"), error)
            return
        self.watch.members.append(member)
        self.shell.perform(effects)

    def do_leave(self, numbers: Numbers) -> None:
        if self.watch.members:
            self._leave(numbers.of(self.watch.members))

    def _leave(self, member: Member) -> None:
        self.watch.members.remove(member)
        self.shell.perform(self.shell.hub.rooms.leave(member.guest, self.shell.now))

    def do_put_blob(self, numbers: Numbers) -> None:
        room, name = numbers.of(ROOMS), numbers.of(BLOBS)
        data = b"%d" % self.watch.next_number()
        target = self.watch.room_name(room)
        known = self.watch.truth.blobs.get((target, name))
        version = 0 if known is None else known.version
        condition = numbers.of([None, version, version, version + 1, max(0, version - 1)])
        facts = {"room": target, "name": name, "data": data, "condition": condition}
        caller = self.watch.ask("put", **facts)
        request = PutBlob(caller, room, None, name, data, condition)
        self.shell.perform(self.shell.hub.rooms.put_blob(request, self.shell.now))

    # The disk and time.

    def do_commit(self, numbers: Numbers) -> None:
        self.shell.engine.commit(numbers.of([1, 2]))

    def do_commit_all(self, numbers: Numbers) -> None:
        self.shell.engine.commit()
        self.watch.learn()

    def do_answer_reads(self, numbers: Numbers) -> None:
        for _ in range(numbers.of([1, 1, 5])):
            self.shell.engine.read()

    def do_refuse(self, numbers: Numbers) -> None:
        self.watch.is_refusing = True
        self.shell.engine.refuse(refusals.storage_full())
        self.watch.is_refusing = False
        for member in [one for one in self.watch.members if one.closed is not None]:
            self._leave(member)

    def do_moment(self, numbers: Numbers) -> None:
        self.shell.clock.advance(numbers.of([0.001, 0.5, 3.0]))

    def do_while_(self, numbers: Numbers) -> None:
        self.shell.clock.advance(numbers.of([10.0, 30.0, 80.0]))

    def do_jump(self, numbers: Numbers) -> None:
        self.watch.has_jumped = True
        self.shell.clock.jump(numbers.of([-2, -7, -40]))

    def do_tick(self, numbers: Numbers) -> None:
        self.shell.tick()

    def do_snapshot(self, numbers: Numbers) -> None:
        self.shell.save_snapshot()

    def do_cut(self, numbers: Numbers) -> None:
        self.watch.learn()
        before = self.shell.engine.first
        cut(self.shell)
        self.watch.counted["cut"] += self.shell.engine.first > before

    # The archive.

    def do_archive(self, numbers: Numbers) -> None:
        if self.watch.has_archive:
            self.watch.is_archive_away = False
            head = self.shell.engine.head
            self.archived_to = max(self.archived_to, numbers.of([head, head, (head * 2) // 3]))
            self.shell.hub.rooms.archived_to(self.archived_to)

    def do_archive_all(self, numbers: Numbers) -> None:
        """The archive takes everything, and the log lets go of it; then it may go away."""
        if self.watch.has_archive:
            self.do_commit_all(numbers)
            self.do_archive(Numbers(0))
            for _ in range(2):
                self.do_cut(numbers)
                self.do_commit_all(numbers)
            self.watch.is_archive_away = numbers.below(0.5)

    def do_lose_archive(self, numbers: Numbers) -> None:
        self.watch.is_archive_away = True

    def _consult(self, consult: Consult) -> list[Archived] | None:
        if self.watch.is_archive_away:
            return None
        known = self.watch.truth.messages.get(consult.inbox, [])
        return [
            Archived(one.seq, one.message_id, one.text, None, one.expires_ms)
            for one in known[consult.from_seq - 1 : consult.to_seq]
            if one.offset < self.archived_to and one.expires_ms > self.shell.now
        ][: consult.count_max]

    # Crashes.

    def do_crash(self, numbers: Numbers) -> None:
        self.restart(numbers.of([0, 0, 1, 2, self.shell.engine.pending]))

    def do_crash_without_shelf(self, numbers: Numbers) -> None:
        self.lose_shelf()
        self.restart(numbers.of([0, 1, self.shell.engine.pending]))

    def lose_shelf(self) -> None:
        self.shell.shelf = Shelf()
        self.watch.truth.lose(self.shell.engine.first)

    def restart(self, written: int) -> None:
        """A crash; `written` entries nobody was told of are on disk."""
        self.shell = self.shell.restarted(written)
        self.watch.restarted(self.shell)
        if self.is_scarce:
            # Ids that memory could not hold must be on the shelf before anybody is served.
            self.shell.save_snapshot()
        self._serve()

    # The end.

    def wind_down(self) -> None:
        """The log takes everything, and the archive can be reached."""
        self.watch.is_archive_away = False
        engine = self.shell.engine
        engine.is_prompt = engine.is_readable = True
        self.shell.settle()
        self.watch.check_step()

    def check_end(self) -> None:
        self.watch.check_answers()
        self.watch.truth.check_rates(RATE, WINDOW_MS)
        self.watch.truth.check_order()
        self.check_pages()
        before = described(self.shell)
        self.restart(written=0)
        self.check_restart(before, "snapshot and log")
        self.lose_shelf()
        self.restart(written=0)
        self.check_restart(before, "the log alone")

    def check_restart(self, before: Picture, what: str) -> None:
        found = described(self.shell)
        assert found == before, f"{what}: {differences(before, found)}"
        self.watch.check_rooms()
        self.check_pages()

    def check_pages(self) -> None:
        """Whoever pages from the beginning finds all that has not expired."""
        truth = self.watch.truth
        for inbox in INBOXES:
            name, from_seq = self.watch.inbox_name(inbox), 0
            found: set[str] = set()
            for _ in range(PAGES_MAX):
                page = self.read(inbox, from_seq, 7).page
                if not page.messages:
                    break
                found |= {msgspec.json.decode(one)["messageId"] for one in page.messages}
                from_seq = page.next_seq
            alive = truth.alive(name, 1, truth.head(name))
            gone = [one.seq for one in alive if one.message_id not in found]
            assert not gone, f"{gone} are gone"
