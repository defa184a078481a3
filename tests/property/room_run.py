"""A run of a hub with rooms as a list of steps: of members, disks, clocks and crashes.

The same seed gives the same run. After every step what members were told, heard and can see is
compared with a model (`room_watch.py`); in the end the log takes everything, and everything that
has not expired must be there, before and after a restart, with the snapshot and without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import pytest

from signalhub.core import refusals
from signalhub.core.effects import Consult
from signalhub.core.rooms.values import Archived
from signalhub.counters import RoomTally
from signalhub.settings.model import RoomsSettings, Settings
from signalhub.wire.errors import RoomError
from signalhub.wire.room_ids import default_inbox
from tests.property.request_life import Numbers, differences
from tests.property.room_watch import (
    BLOBS,
    PROPOSAL_S,
    PROPOSALS_MAX,
    RATE,
    REPEAT_S,
    ROOMS,
    Asked,
    Member,
    Watch,
)
from tests.support.memory.engine import Shelf
from tests.support.memory.rooms import RoomShell, cut, described, scarce_ids

STEPS_MIN, STEPS_MAX = 40, 120
NUMBERS = 10_000
# Enough ids to fill a scarce memory.
CROWD = 60
PAGES_MAX = 200

Step = tuple[str, int]

# The inbox each room may be given by name.
CAPABILITIES: dict[str, str | None] = {"brief-a": None, "b": "cap-b", "t:c": "cap-c"}
INBOXES = ["lone", "cap-b", "cap-c", default_inbox("brief-a"), default_inbox("t:c")]
PROPOSALS = ["x", "y", "z", "w"]
ENDS = ["mls_commit", "mls_rejection"]
TEXTS = [b"aGVsbG8", b"A" * 200]


def drawn(seed: int) -> list[Step]:
    """What happens in the run of a seed."""
    dice = random.Random(seed)
    weights = [weight for weight, _ in STEPS.values()]
    names = dice.choices(list(STEPS), weights, k=dice.randint(STEPS_MIN, STEPS_MAX))
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
        proposals_max=PROPOSALS_MAX,
        append_rate=100_000,
        fetch_rate=100_000,
        unarchived_max=15,
        always_query_store=seed % 15 == 1,
        echo_to_sender=seed % 7 != 0,
    )


def text_of(numbers: Numbers, message_id: str) -> bytes:
    """The text of a message; now and then a repeat brings another one."""
    is_other = numbers.below(0.15)
    return TEXTS[(len(message_id) + ord(message_id[-1]) + is_other) % len(TEXTS)]


class Run:
    """One hub and its members."""

    def __init__(self, seed: int) -> None:
        rooms = settings_of(seed)
        self.is_scarce = seed % 4 == 2
        self.shell = RoomShell(Settings(rooms=rooms))
        self.shell.engine.is_prompt = self.shell.engine.is_readable = False
        has_archive = seed % 3 == 1
        self.watch = Watch(self.shell, has_echo=rooms.echo_to_sender, has_archive=has_archive)
        # Everything before this offset is in the archive.
        self.archived_to = 0
        self._tallies: list[RoomTally] = []
        self._serve()

    def _serve(self) -> None:
        """Whatever hub is running now is given its archive."""
        self.shell.archive = self._consult
        self._tallies.append(self.shell.counts)
        if self.watch.has_archive:
            self.shell.rooms.archived_to(self.archived_to)

    def play(self, steps: list[Step]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if self.is_scarce:
                scarce_ids(patch)
                self.restart(written=0)
            for name, number in steps:
                STEPS[name][1](self, Numbers(number))
                self.watch.check_step()
            self.check_end()

    @property
    def pending(self) -> int:
        return self.shell.engine.pending

    def tallied(self, what: str) -> int:
        """What all hubs of this run have counted."""
        return sum(getattr(one, what) for one in self._tallies)

    # Messages.

    def fresh_id(self) -> str:
        return f"m{self.watch.next_number()}"

    def send(self, numbers: Numbers, room: str, message_id: str, **members: Any) -> None:
        capability = CAPABILITIES[room]
        inbox = numbers.of([capability, capability, capability, None, None, "cap-b"])
        text = text_of(numbers, message_id)
        guests = [one.guest for one in self.watch.members if one.room == room]
        guest = numbers.of(guests) if guests and numbers.below(0.5) else None
        target = self.watch.room_name(room)
        facts = {"target": target, "room": room, "id": message_id, "text": text}
        caller = self.watch.ask("send", guest, **facts)
        self.shell.send(
            message_id, text, room=room, inbox=inbox, caller=caller, guest=guest, **members
        )

    def rush(self, numbers: Numbers) -> None:
        room = numbers.of(ROOMS)
        for _ in range(numbers.of([3, 6])):
            self.send(numbers, room, self.fresh_id())

    def send_again(self, numbers: Numbers) -> None:
        sent = [one for one in self.watch.asked if one.what == "send"]
        if sent:
            again = numbers.of(sent[-20:] if numbers.below(0.7) else sent)
            self.send(numbers, again.facts["room"], again.facts["id"])

    def about(self, numbers: Numbers, type: str) -> None:
        room, proposal = numbers.of(ROOMS[:2]), numbers.of(PROPOSALS)
        self.send(numbers, room, self.fresh_id(), type=type, proposal=proposal)

    def deposit(self, numbers: Numbers, inbox: str, message_id: str) -> None:
        text = text_of(numbers, message_id)
        target = self.watch.inbox_name(inbox)
        caller = self.watch.ask("deposit", target=target, inbox=inbox, id=message_id, text=text)
        self.shell.deposit(message_id, text, inbox=inbox, caller=caller)

    def deposit_again(self, numbers: Numbers) -> None:
        sent = [one for one in self.watch.asked if one.what == "deposit"]
        if sent:
            again = numbers.of(sent[-10:])
            self.deposit(numbers, again.facts["inbox"], again.facts["id"])

    def crowd(self, numbers: Numbers) -> None:
        """Enough ids that a small memory gives up the older ones, which are on the shelf."""
        if not self.is_scarce:
            return
        self.commit_all(numbers)
        self.shell.save_snapshot()
        for number in range(CROWD):
            self.deposit(numbers, "crowd", self.fresh_id())
            if number % 10 == 0:
                self.shell.clock.advance(1)
                self.commit_all(numbers)
        self.commit_all(numbers)
        self.shell.save_snapshot()

    # Readers, sockets, blobs.

    def read_some(self, numbers: Numbers) -> None:
        inbox = numbers.of(INBOXES)
        high = self.watch.model.head(self.watch.inbox_name(inbox))
        from_seq = numbers.of([0, 1, max(0, high - 2), high, high + 1, *range(high)])
        self.read(inbox, from_seq, numbers.of([1, 2, 5, 100]))

    def read(self, inbox: str, from_seq: int, limit: int) -> Asked:
        name = self.watch.inbox_name(inbox)
        high = self.watch.model.head(name)
        caller = self.watch.ask("read", inbox=name, from_seq=from_seq, limit=limit, high=high)
        self.shell.read(from_seq, limit, inbox=inbox, caller=caller)
        return caller

    def join(self, numbers: Numbers) -> None:
        room = numbers.of(ROOMS)
        inbox = numbers.of([CAPABILITIES[room], None])
        member = Member(self.watch)
        self.watch.members.append(member)
        try:
            self.shell.enter(room, inbox, "p", member)
        except RoomError as error:
            self.watch.members.remove(member)
            self.watch.check_refusal(Asked(self.watch, "join"), error)

    def leave(self, numbers: Numbers) -> None:
        if self.watch.members:
            self._leave(numbers.of(self.watch.members))

    def _leave(self, member: Member) -> None:
        self.watch.members.remove(member)
        self.shell.leave(member)

    def put_blob(self, numbers: Numbers) -> None:
        room, name = numbers.of(ROOMS), numbers.of(BLOBS)
        data = b"%d" % self.watch.next_number()
        target = self.watch.room_name(room)
        known = self.watch.model.blobs.get((target, name))
        version = 0 if known is None else known.version
        condition = numbers.of([None, version, version, version + 1, max(0, version - 1)])
        caller = self.watch.ask("put", room=target, name=name, data=data, condition=condition)
        self.shell.put_blob(data, condition, name=name, room=room, caller=caller)

    # The disk and time.

    def commit_all(self, numbers: Numbers) -> None:
        self.shell.commit()
        self.watch.learn()

    def refuse(self, numbers: Numbers) -> None:
        self.watch.is_refusing = True
        self.shell.engine.refuse(refusals.storage_full())
        self.watch.is_refusing = False
        for member in [one for one in self.watch.members if one.closed is not None]:
            self._leave(member)

    def jump(self, numbers: Numbers) -> None:
        self.watch.has_jumped = True
        self.shell.clock.jump(numbers.of([-2, -7, -40]))

    def cut_log(self, numbers: Numbers) -> None:
        self.watch.learn()
        before = self.shell.engine.first
        cut(self.shell)
        self.watch.counted["cut"] += self.shell.engine.first > before

    # The archive.

    def take_archive(self, numbers: Numbers) -> None:
        if self.watch.has_archive:
            self.watch.is_archive_away = False
            head = self.shell.engine.head
            self.archived_to = max(self.archived_to, numbers.of([head, head, (head * 2) // 3]))
            self.shell.rooms.archived_to(self.archived_to)

    def archive_all(self, numbers: Numbers) -> None:
        """The archive takes everything, and the log lets go of it; then it may go away."""
        if self.watch.has_archive:
            self.commit_all(numbers)
            self.take_archive(Numbers(0))
            for _ in range(2):
                self.cut_log(numbers)
                self.commit_all(numbers)
            self.watch.is_archive_away = numbers.below(0.5)

    def _consult(self, consult: Consult) -> list[Archived] | None:
        if self.watch.is_archive_away:
            return None
        known = self.watch.model.messages.get(consult.inbox, [])
        return [
            Archived(one.seq, one.body.message_id, one.body.ciphertext, None, one.body.expires_ms)
            for one in known[consult.from_seq - 1 : consult.to_seq]
            if one.offset < self.archived_to and one.body.expires_ms > self.shell.now
        ][: consult.count_max]

    # Crashes.

    def crash_without_shelf(self, numbers: Numbers) -> None:
        self.lose_shelf()
        self.restart(numbers.of([0, 1, self.pending]))

    def lose_shelf(self) -> None:
        self.shell.shelf = Shelf()
        self.watch.model.lose(self.shell.engine.first)

    def restart(self, written: int) -> None:
        """A crash; `written` entries nobody was told of are on disk."""
        self.shell = self.shell.restarted(written)
        self.watch.restarted(self.shell)
        if self.is_scarce:
            # Ids that memory could not hold must be on the shelf before anybody is served.
            self.shell.save_snapshot()
        self._serve()

    # The end: the log takes everything, and the archive can be reached.

    def check_end(self) -> None:
        self.watch.is_archive_away = False
        self.shell.engine.is_prompt = self.shell.engine.is_readable = True
        self.shell.settle()
        self.watch.check_step()
        self.watch.check_answers()
        self.watch.model.check_rates()
        self.watch.model.check_order()
        self.check_pages()
        before = described(self.shell)
        for is_lost in (False, True):
            if is_lost:
                self.lose_shelf()
            self.restart(written=0)
            found = described(self.shell)
            what = "the log alone" if is_lost else "snapshot and log"
            assert found == before, f"{what}: {differences(before, found)}"
            self.watch.check_rooms()
            self.check_pages()

    def check_pages(self) -> None:
        """A client that reads all pages finds everything that has not expired."""
        for inbox in INBOXES:
            found: set[str] = set()
            from_seq = 0
            for _ in range(PAGES_MAX):
                caller = self.read(inbox, from_seq, 7)
                if not caller.page.messages:
                    break
                found |= set(caller.ids)
                from_seq = caller.page.next_seq
            name = self.watch.inbox_name(inbox)
            alive = self.watch.model.alive(name, 1, self.watch.model.head(name))
            gone = [one.seq for one in alive if one.body.message_id not in found]
            assert not gone, f"{gone} are gone"


def lose_archive(run: Run, numbers: Numbers) -> None:
    run.watch.is_archive_away = True


# How often each step comes, and what it does.
STEPS: dict[str, tuple[int, Callable[[Run, Numbers], object]]] = {
    "send": (20, lambda run, numbers: run.send(numbers, numbers.of(ROOMS), run.fresh_id())),
    "send_again": (8, Run.send_again),
    "rush": (3, Run.rush),
    "deposit": (6, lambda run, numbers: run.deposit(numbers, numbers.of(INBOXES), run.fresh_id())),
    "deposit_again": (2, Run.deposit_again),
    "read": (12, Run.read_some),
    "join": (4, Run.join),
    "leave": (3, Run.leave),
    "put_blob": (5, Run.put_blob),
    "propose": (5, lambda run, numbers: run.about(numbers, "mls_proposal")),
    "approve": (4, lambda run, numbers: run.about(numbers, "mls_approval")),
    "finish": (3, lambda run, numbers: run.about(numbers, numbers.of(ENDS))),
    "commit": (18, lambda run, numbers: run.shell.commit(numbers.of([1, 2]))),
    "commit_all": (14, Run.commit_all),
    "answer_reads": (
        14,
        lambda run, numbers: [run.shell.engine.read() for _ in range(numbers.of([1, 1, 5]))],
    ),
    "refuse": (3, Run.refuse),
    "moment": (10, lambda run, numbers: run.shell.clock.advance(numbers.of([0.001, 0.5, 3.0]))),
    "while": (4, lambda run, numbers: run.shell.clock.advance(numbers.of([10.0, 30.0, 80.0]))),
    "jump": (1, Run.jump),
    "tick": (6, lambda run, numbers: run.shell.tick()),
    "snapshot": (5, lambda run, numbers: run.shell.save_snapshot()),
    "crash": (3, lambda run, numbers: run.restart(numbers.of([0, 0, 1, 2, run.pending]))),
    "crash_without_shelf": (2, Run.crash_without_shelf),
    "cut": (6, Run.cut_log),
    "archive": (3, Run.take_archive),
    "archive_all": (3, Run.archive_all),
    "lose_archive": (4, lose_archive),
    "crowd": (1, Run.crowd),
}
