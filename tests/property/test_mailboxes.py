"""Asks and tells to durable actors, whatever happens to sockets, the disk and the process.

* An ask that was acknowledged is delivered, marked if it may be a repeat, until it is settled.
* What one session sends to one actor arrives in the order sent, tells and asks mixed; only copies
  marked as redelivered, and what waited in the mailbox, come later.
* Asked again with the same id, the hub gives the same answer, across restarts too.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from signalhub.settings.model import DispatchSettings, LogSettings, MailboxSettings, Settings
from tests.support.memory.shell import HELLO, SETTLING_HELLO, MemoryShell, Message, Peer
from tests.support.volume import SEEDS, volume

GROUPS = 4
LIVES = volume(SEEDS, 1_600)
STEPS_MIN, STEPS_MAX = 10, 50
ACTOR = "@(a/actor)"
LIMIT = 12
ROUNDS_MAX = 40

OPS = {
    "ask": 22,
    "tell": 12,
    "ask_again": 8,
    "settle": 14,
    "reject": 3,
    "attach": 10,
    "drop": 6,
    "stall": 4,
    "block": 2,
    "read_on": 7,
    "moment": 8,
    "hold": 5,
    "commit": 10,
    "release": 6,
    "fill": 2,
    "empty": 4,
    "snapshot": 2,
    "crash": 5,
}


class Run:
    """One actor's life, and that of those who write to it."""

    def __init__(self, dice: random.Random) -> None:
        pick = dice.choice
        self.settles = pick([True, False])
        self.can_expire = pick([True, False, False])
        mailbox = MailboxSettings(
            limit=LIMIT,
            window=pick([1, 3, 256]),
            ack_timeout_ms=pick([200, 30_000]),
            max_deliveries=pick([2, 6]),
            backoff_ms=50,
            backoff_cap_ms=400,
        )
        settings = Settings(
            message_rate=0.0,
            mailbox=mailbox,
            dispatch=DispatchSettings(cursor_ms=200, heartbeat_ms=50),
            log=LogSettings(cache_bytes=pick([1, 2**20])),
        )
        self.shell = MemoryShell(settings)
        self.actor: Peer | None = None
        self.senders: list[Peer] = []
        self.serial = 0
        self.asked: dict[str, int] = {}
        self.expiring: set[int] = set()
        self.answers: dict[str, Message] = {}
        self.firsts: set[str] = set()
        self.heard: Counter[int] = Counter()
        self.accepted: set[int] = set()
        self.settled: set[int] = set()
        self.crashes = 0
        self.transmissions = 0
        self.newest: dict[str, int] = {}
        self.newest_tell: dict[str, int] = {}
        self.overtaken: set[int] = set()
        self.held: set[int] = set()
        self.welcome_senders()
        self.do_attach(0)

    def welcome_senders(self) -> None:
        self.senders = [self.shell.connect(f"@(a/sender{number})") for number in range(2)]

    def play(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            getattr(self, f"do_{name}")(number)
            self.listen()
        self.wind_down()

    # Steps.

    def sender(self, number: int) -> Peer:
        return self.senders[number % 2]

    def do_ask(self, number: int) -> None:
        self.serial += 1
        ttl = 300 if self.can_expire and number % 7 == 0 else None
        if ttl is not None:
            self.expiring.add(self.serial)
        message_id = f"a{self.serial}"
        self.asked[message_id] = self.serial
        self.transmit(number, self.serial, message_id, ttl=ttl)

    def transmit(
        self, number: int, serial: int, message_id: str, *, ttl: int | None = None
    ) -> None:
        sender = self.sender(number)
        data = self.data(serial, sender)
        sender.send(ACTOR, data, pattern="ask", id=message_id, sender="@(a/s)", ttl=ttl)

    def data(self, serial: int, sender: Peer) -> list[object]:
        """What it is, and the how manyth thing its session has sent."""
        self.transmissions += 1
        return [serial, self.transmissions, sender.session.id]

    def do_tell(self, number: int) -> None:
        self.serial += 1
        sender = self.sender(number)
        sender.send(ACTOR, self.data(self.serial, sender))

    def do_ask_again(self, number: int) -> None:
        if self.asked:
            message_id = list(self.asked)[-1 - number % min(5, len(self.asked))]
            self.transmit(number, self.asked[message_id], message_id)

    def do_settle(self, number: int) -> None:
        if seqs := self.in_flight():
            self.settle("hub:ack", seqs[: 1 + number % 3])

    def do_reject(self, number: int) -> None:
        if seqs := self.in_flight():
            self.settle("hub:nack", seqs[:1])

    def settle(self, type: str, seqs: list[int]) -> None:
        assert self.actor is not None
        self.actor.tell(type, {"stream": ACTOR, "seqs": seqs})

    def in_flight(self) -> list[int]:
        """Positions of what the actor has read and not settled."""
        if not self.settles or self.actor is None or not self.actor.can_be_written:
            return []
        box = self.shell.hub.streams.mailboxes.get(ACTOR)
        return [] if box is None else sorted(self.held & box.subscription.window.flights.keys())

    def do_attach(self, number: int) -> None:
        if self.actor is not None and self.actor.can_be_written:
            return
        metadata = SETTLING_HELLO if self.settles else HELLO
        self.actor = self.shell.connect(ACTOR, metadata=metadata)
        payload = {"actorAddress": ACTOR, "capabilities": [], "durable": True}
        self.actor.request("hub:register", payload)

    def do_drop(self, number: int) -> None:
        if self.actor is not None and self.actor.can_be_written:
            self.actor.drop()

    def do_stall(self, number: int) -> None:
        if self.actor is not None and self.actor.can_be_written:
            self.actor.stall()

    def do_block(self, number: int) -> None:
        if self.actor is not None and self.actor.can_be_written:
            self.actor.block()

    def do_read_on(self, number: int) -> None:
        if self.actor is not None and self.actor.can_be_written:
            self.actor.read_on()

    def do_moment(self, number: int) -> None:
        self.shell.advance(1 + number)

    def do_hold(self, number: int) -> None:
        self.shell.engine.is_prompt = False

    def do_commit(self, number: int) -> None:
        if not self.shell.engine.is_prompt:
            self.shell.engine.commit(1 + number % 4)
            self.shell.settle()

    def do_release(self, number: int) -> None:
        self.shell.engine.is_prompt = True
        self.shell.settle()

    def do_fill(self, number: int) -> None:
        self.shell.engine.is_full = True

    def do_empty(self, number: int) -> None:
        self.shell.engine.is_full = False

    def do_snapshot(self, number: int) -> None:
        self.shell.save_snapshot()

    def do_crash(self, number: int) -> None:
        self.crashes += 1
        self.shell = self.shell.restarted(number % (self.shell.engine.pending + 1))
        self.actor = None
        self.welcome_senders()

    # What is heard.

    def listen(self) -> None:
        fresh = [message for peer in self.shell.peers for message in peer.take()]
        for message in fresh:
            if message["type"] == "news":
                self.hear(message)
        for message in fresh:
            if message["type"] == "hub:delivery_ack":
                self.note_answer(message)
            elif message["type"] == "hub:error":
                code = message["payload"]["code"]
                assert code in ("storage_full", "queue_full", "message_expired"), code

    def hear(self, message: Message) -> None:
        assert message["to"] == ACTOR
        serial, transmission, session = message["payload"]
        delivery = message["metadata"].get("delivery")
        is_marked = delivery is not None and delivery["attempt"] > 1
        if delivery is not None:
            assert delivery["redelivered"] is is_marked
        assert is_marked or not self.heard[serial], f"{serial} came again and was not marked"
        self.heard[serial] += 1
        if delivery is None:
            self.newest_tell[session] = transmission
        else:
            self.held.add(delivery["seq"])
            if is_marked:
                return
            if transmission < self.newest_tell.get(session, 0):
                self.overtaken.add(serial)
        assert transmission > self.newest.get(session, 0), f"{serial} was overtaken"
        if delivery is not None:
            self.newest[session] = transmission

    def note_answer(self, message: Message) -> None:
        message_id, payload = message["correlationId"], dict(message["payload"])
        serial = self.asked[message_id]
        is_repeat = payload.pop("duplicate", False)
        if not is_repeat:
            assert message_id not in self.firsts, "a repeat is not called one"
            self.firsts.add(message_id)
        assert payload["durability"] == "fsync"
        assert payload["seq"] >= 1
        if payload["status"] == "delivered" and serial not in self.accepted:
            assert self.heard[serial], f"{serial} is called delivered and was not"
            assert serial not in self.overtaken, f"a tell overtook {serial}, which did not wait"
        known = self.answers.setdefault(message_id, payload)
        assert payload["seq"] == known["seq"], "another position than the first time"
        assert payload["epoch"] == known["epoch"]
        self.accepted.add(serial)

    # The end.

    def wind_down(self) -> None:
        engine = self.shell.engine
        engine.is_prompt, engine.is_full = True, False
        self.shell.advance(2_000)
        self.do_attach(0)
        assert self.actor is not None
        for _ in range(ROUNDS_MAX):
            self.do_read_on(0)
            self.listen()
            self.do_settle(2)
            self.shell.advance(700)
        self.listen()
        box = self.shell.hub.streams.mailboxes[ACTOR]
        assert box.waiting(self.shell.now) == 0, "something was never delivered"
        dead = self.shell.hub.streams.topics.get("dead.mailboxes")
        for serial in self.accepted - self.expiring:
            assert self.heard[serial] or dead is not None, f"{serial} was accepted and never came"
        assert not self.shell.hub.pending
        assert not box.fresh
        assert not any(sender.session.unsynced for sender in self.senders)


def failure_of(seed: int, cut: int | None = None) -> Exception | None:
    """What is wrong with a life, or with its beginning."""
    dice = random.Random(seed)
    run = Run(dice)
    length = dice.randint(STEPS_MIN, STEPS_MAX)
    names = dice.choices(list(OPS), list(OPS.values()), k=length)
    steps = [(name, dice.randrange(1_000)) for name in names]
    try:
        run.play(steps[:cut])
    except Exception as failure:
        return failure
    return None


@pytest.fixture(autouse=True)
def narrow_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that no short life would reach."""
    monkeypatch.setattr("signalhub.core.subscriptions.progress.RESERVE", 8)
    monkeypatch.setattr("signalhub.core.subscriptions.dispatcher.FETCH_MESSAGES", 3)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_life_of_a_mailbox_keeps_the_promises(group: int) -> None:
    for seed in range(group, LIVES, GROUPS):
        failure = failure_of(seed)
        if failure is not None:
            failure.add_note(f"seed {seed}")
            raise failure
