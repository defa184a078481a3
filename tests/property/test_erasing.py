"""Whatever happens to a hub, what was erased is never seen again, and nothing else is missing.

* From the request on no copy of what the actor had sent or was waiting for it is delivered.
* Once it is answered, no byte of it is in the log, through any number of crashes.
* Everybody else's messages keep their positions and are delivered.
* A start from the log alone finds what a start from the snapshot finds.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from signalhub.core.rooms.values import Accepted
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.settings.model import LogSettings, RoomsSettings, Settings
from tests.support.memory.engine import Shelf
from tests.support.memory.rooms import INBOX, WIDE, Caller, pages, send
from tests.support.memory.rooms import described as rooms_described
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.volume import SEEDS, volume

GROUPS = 4
LIVES = volume(SEEDS, 600)
STEPS_MIN, STEPS_MAX = 15, 60
PEOPLE = ["@(p/ada)", "@(p/bob)", "@(p/carl)"]
TOPIC = "t"

OPS = {
    "publish": 22,
    "write": 12,
    "read": 8,
    "ack": 8,
    "leave": 5,
    "settle_in": 6,
    "erase": 7,
    "say": 10,
    "wipe": 3,
    "moment": 8,
    "hold": 4,
    "release": 8,
    "blind": 4,
    "snapshot": 5,
    "crash": 6,
    "fill": 1,
    "empty": 4,
}


class Text:
    """One message: whose it is, where it went, and whether it was accepted."""

    def __init__(self, number: int, sender: str, to: str) -> None:
        self.name = f"text-{number}."
        self.sender = sender
        self.to = to
        self.seq = 0
        self.is_seen = False

    def concerns(self, actor: str) -> bool:
        return actor in (self.sender, self.to)


class Life:
    """A topic, three people with mailboxes, and somebody who erases them now and then."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        cache_bytes = self.dice.choice([1, 2_000, 2**20])
        rooms = RoomsSettings(**WIDE | {"buffer": self.dice.choice([1, 4, 500])})
        self.settings = Settings(
            log=LogSettings(cache_bytes=cache_bytes), message_rate=0, rooms=rooms
        )
        self.shell = MemoryShell(self.settings)
        self.texts: dict[str, Text] = {}
        # Nothing of these is ever shown again; of those in `doubtful` nobody knows after a crash.
        self.hidden: set[str] = set()
        self.gone: set[str] = set()
        self.doubtful: set[str] = set()
        self.waiting: list[tuple[str, set[str]]] = []
        self.unanswered: dict[str, Text] = {}
        # Of the inbox: what was said, and what may be there no more.
        self.said: list[Caller] = []
        self.wiped = 0
        self.maybe_wiped = 0
        self.enter()
        self.peer.ask("hub:topic_create", {"topic": TOPIC, "durable": True})
        self.shell.settle()

    def enter(self) -> None:
        """Everybody comes, for the first time or after a crash."""
        self.peer = self.shell.connect("@(p/keeper)")
        self.people = {one: self.shell.connect(one) for one in PEOPLE}
        self.reader: Peer | None = None
        self.consumer = ""

    def play(self) -> None:
        steps = self.dice.randint(STEPS_MIN, STEPS_MAX)
        for step in self.dice.choices(list(OPS), list(OPS.values()), k=steps):
            getattr(self, step)()
            self.look()
        self.end()

    # What people do.

    def publish(self) -> None:
        sender = self.dice.choice(PEOPLE)
        text = self.new_text(sender, TOPIC)
        payload = {"topic": TOPIC, "type": "news", "data": text.name, "durable": True}
        self.send(self.people[sender], "hub:publish", payload, text)

    def write(self) -> None:
        sender, to = self.dice.sample(PEOPLE, 2)
        if to not in self.shell.hub.streams.mailboxes:
            return
        text = self.new_text(sender, to)
        self.send(
            self.people[sender], "hub:send", {"to": to, "type": "news", "data": text.name}, text
        )

    def new_text(self, sender: str, to: str) -> Text:
        text = Text(len(self.texts) + 1, sender, to)
        self.texts[text.name] = text
        return text

    def send(self, peer: Peer, type: str, payload: dict[str, Any], text: Text) -> None:
        message_id = self.shell.next_id()
        self.unanswered[message_id] = text
        peer.request(type, payload, id=message_id)

    def read(self) -> None:
        if self.reader is None:
            self.reader = self.shell.connect("@(p/reader)")
            given = {"topic": TOPIC, "subscription": "s", "from": "earliest", "consumer": "c"}
            for reply in self.reader.request("hub:subscribe", given):
                self.consumer = reply["payload"].get("subscriptionId", "")

    def ack(self) -> None:
        if self.reader is not None and self.consumer:
            head = self.shell.hub.streams.topics[TOPIC].head
            some = self.dice.sample(range(1, head + 1), min(head, 3))
            given = {"subscriptionId": self.consumer, "seqs": some}
            if some:
                self.reader.request("hub:ack", given)

    def leave(self) -> None:
        if self.reader is not None:
            self.reader.drop()
            self.reader = None

    def settle_in(self) -> None:
        """Somebody gets a mailbox, or takes what is in it and leaves."""
        person = self.dice.choice(PEOPLE)
        owner = self.shell.connect(person)
        owner.request("hub:register", {"actorAddress": person, "capabilities": [], "durable": True})
        if self.dice.random() < 0.8:
            owner.drop()

    def erase(self) -> None:
        actor = self.dice.choice(PEOPLE)
        message_id = self.shell.next_id()
        self.look()
        mine = [one for one in self.texts.values() if one.concerns(actor)]
        meant = {one.name for one in mine if one.seq}
        # What is on its way to the log goes with it, but may be delivered meanwhile.
        self.doubtful |= {one.name for one in mine if not one.seq}
        self.hidden |= meant
        self.waiting.append((message_id, meant))
        self.peer.request("hub:erase", {"actor": actor}, id=message_id)

    def say(self) -> None:
        """Something for a room, whose inbox is erased at times."""
        self.said.append(send(self.shell, f"m{len(self.said)}"))

    def wipe(self) -> None:
        """Erase the inbox of the room: everything that was given a position so far."""
        inbox = self.shell.hub.rooms.directory.inboxes.get(
            self.shell.hub.rooms.directory.names.inbox(INBOX)
        )
        self.maybe_wiped = inbox.next_seq - 1 if inbox is not None else 0
        for reply in self.peer.request("hub:erase", {"inbox": INBOX}):
            if reply["type"] == "hub:erased":
                self.wiped = self.maybe_wiped

    # What happens around them.

    def moment(self) -> None:
        self.shell.advance(self.dice.choice([1, 500, 40_000]))
        self.shell.tick()

    def hold(self) -> None:
        self.shell.engine.is_prompt = False

    def blind(self) -> None:
        self.shell.engine.is_readable = False

    def release(self) -> None:
        self.shell.engine.is_prompt = self.shell.engine.is_readable = True
        self.shell.settle()

    def fill(self) -> None:
        self.shell.engine.is_full = True

    def empty(self) -> None:
        self.shell.engine.is_full = False
        self.release()

    def snapshot(self) -> None:
        self.shell.save_snapshot()

    def crash(self) -> None:
        self.look()
        written = self.dice.randint(0, self.shell.engine.pending)
        self.shell = self.shell.restarted(written)
        self.unanswered.clear()
        for _, meant in self.waiting:
            self.doubtful |= meant - self.gone
        self.hidden = set(self.gone)
        self.waiting.clear()
        self.enter()
        self.empty()

    # What must be true.

    def look(self) -> None:
        """Everything anybody heard since the last look."""
        for peer in self.shell.peers:
            for message in peer.take():
                self.hear(message)

    def hear(self, message: Message) -> None:
        data, answered = message["payload"], message["correlationId"]
        if isinstance(data, str) and data in self.texts:
            assert data not in self.hidden, f"{data} was shown after it was erased"
            self.texts[data].is_seen = True
        elif message["type"] in ("hub:published", "hub:delivery_ack"):
            text = self.unanswered.pop(answered, None)
            if text is not None:
                text.seq = data["seq"]
        elif message["type"] in ("hub:erased", "hub:error"):
            for meant in [meant for one, meant in self.waiting if one == answered]:
                self.answered(meant, is_done=message["type"] == "hub:erased")
            self.waiting = [one for one in self.waiting if one[0] != answered]

    def answered(self, meant: set[str], *, is_done: bool) -> None:
        if is_done:
            self.gone |= meant
            self.check_bytes()
        else:
            self.doubtful |= meant
            self.hidden -= meant - self.gone

    def check_bytes(self) -> None:
        log = b"".join(one.body for one in self.shell.engine.entries)
        assert not [name for name in self.gone if name.encode() in log]

    def check_inbox(self) -> None:
        """The pages hold what was said since the inbox was erased last, in its place."""
        told = [one for caller in self.said for one in caller.results]
        accepted = [one.seq for one in told if isinstance(one, Accepted)]
        found = pages(self.shell, 7)
        assert found == sorted(found)
        assert not [seq for seq in found if seq <= self.wiped], "it was shown after it was erased"
        missing = {seq for seq in accepted if seq > self.maybe_wiped} - set(found)
        assert not missing, f"{missing} are missing from the inbox"

    def end(self) -> None:
        """Everything comes to rest; then everything is counted, before and after a restart."""
        self.empty()
        self.shell.pass_time(130)
        self.look()
        assert not self.waiting, "every request is answered"
        self.check_bytes()
        self.count("first")
        self.check_inbox()
        saved, alone = self.shell.restarted(), self.from_log()
        check_same(saved, alone)
        assert rooms_described(saved) == rooms_described(alone)
        self.shell = saved
        self.enter()
        self.count("again")
        self.check_inbox()
        self.check_bytes()

    def from_log(self) -> MemoryShell:
        shelf, self.shell.shelf = self.shell.shelf, Shelf()
        try:
            return self.shell.restarted()
        finally:
            self.shell.shelf = shelf

    def count(self, name: str) -> None:
        """A new subscription gets everything that was accepted and not erased, in its place."""
        reader = self.shell.connect("@(p/counter)")
        given = {"topic": TOPIC, "subscription": name, "from": "earliest", "window": 10_000}
        reader.request("hub:subscribe", given)
        found = {
            one["payload"]: one["metadata"]["delivery"]["seq"]
            for one in reader.received
            if isinstance(one["payload"], str) and one["payload"] in self.texts
        }
        self.look()
        for text in self.texts.values():
            if text.to != TOPIC or not text.seq or text.name in self.doubtful | self.hidden:
                continue
            assert found.get(text.name) == text.seq, f"{text.name} is missing or moved"


def described(shell: MemoryShell) -> dict[str, tuple[object, set[int]]]:
    """What streams and readers are, and which positions these have settled."""
    streams = shell.hub.streams
    used = [one.stream_epoch for one in shell.engine.entries]
    assert streams.next_id > max(used), "ids are never used twice"
    found: dict[str, tuple[object, set[int]]] = {}
    for topic in streams.topics.values():
        found[topic.name] = (topic.id, topic.head, topic.first), set()
        for one in topic.subscriptions.values():
            found[f"{topic.name} {one.name}"] = one.position.generation, settled(one)
    for box in streams.mailboxes.values():
        found[box.name] = (box.id, box.head), settled(box.subscription)
    return found


def settled(subscription: Subscription) -> set[int]:
    position = subscription.position
    return {seq for seq in range(1, subscription.stream.head + 1) if position.is_settled(seq)}


def check_same(saved: MemoryShell, alone: MemoryShell) -> None:
    """A start from the snapshot and one from the log alone come to the same.

    What the log had no room for before a crash only a snapshot may know: settlements, and that a
    mailbox was dropped.
    """
    known, told = described(saved), described(alone)
    assert [told[name][0] for name in known] == [state for state, _ in known.values()]
    assert not [name for name in known if told[name][1] - known[name][1]]
    assert not [name for name in told if name not in known and name not in PEOPLE]


@pytest.mark.parametrize("group", range(GROUPS))
def test_lives_with_erasures_and_crashes(group: int) -> None:
    for seed in range(group, LIVES, GROUPS):
        try:
            Life(seed).play()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
