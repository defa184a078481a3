"""Promises about durable messages, checked against the wire and against what is on disk."""

from __future__ import annotations

from collections import Counter, defaultdict

from signalhub.wire.entry import Kind, Outcome, SettledBody, decode_body
from signalhub.wire.entry import MessageBody as Stored
from signalhub.wire.names import HUB_ADDRESS
from tests.simulation.events import Emitted, Exchange, Handed
from tests.support.memory.shell import MemoryShell, Message

Asked = tuple[str, str]  # Sender and id.
Position = tuple[str, int]  # A mailbox or topic, and a seq.
Delivery = tuple[str, str, int]  # A topic and subscription, or a mailbox and nothing, and a seq.


def delivery_of(message: Message) -> Delivery | None:
    """Which delivery a copy belongs to, if it comes from a mailbox or subscription."""
    delivery = message["metadata"].get("delivery")
    if delivery is None or "seq" not in delivery or "attempt" not in delivery:
        return None
    if "stream" in delivery:
        return delivery["stream"], "", delivery["seq"]
    return message["metadata"]["topic"], delivery["subscription"], delivery["seq"]


class Disk:
    """What is committed, read along as it grows; it survives every crash."""

    def __init__(self) -> None:
        self._read = 0
        self.messages: dict[Position, Stored] = {}
        self.asked: dict[Asked, Position] = {}
        self.loose: set[Asked] = set()
        self.letters: set[Delivery] = set()

    def read(self, shell: MemoryShell) -> None:
        assert len(shell.engine.entries) >= self._read, "what was committed is gone"
        for entry in shell.engine.entries[self._read :]:
            if entry.kind in (Kind.MAIL, Kind.PUBLISHED):
                self._message(entry.stream, entry.seq, decode_body(Stored, entry.body))
            elif entry.kind == Kind.SETTLED and entry.stream:
                self._settled(entry.stream, decode_body(SettledBody, entry.body))
        self._read = len(shell.engine.entries)

    def _message(self, stream: str, seq: int, message: Stored) -> None:
        asked = (message.sender, message.id)
        if message.dead is not None:
            dead = message.dead
            self.letters.add((dead.topic, dead.subscription, dead.seq))
        elif not seq:
            self.loose.add(asked)
        else:
            assert asked not in self.asked, f"{asked} was appended twice"
            self.asked[asked] = (stream, seq)
            self.messages[stream, seq] = message

    def _settled(self, stream: str, settled: SettledBody) -> None:
        for one in settled.deliveries:
            if one.outcome == Outcome.DEAD_LETTERED:
                letter = (stream, settled.subscription, one.seq)
                assert letter in self.letters, f"{letter} was settled before its letter was safe"


class Acceptance:
    """What was acknowledged is on disk, at the position that was named, and stays there."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._handed: set[Asked] = set()
        self.accepted: dict[Asked, Position] = {}
        self.repeats = 0

    def check(self, exchange: Exchange) -> None:
        self._disk.read(exchange.shell)
        for event in exchange.events:
            message = event.message if isinstance(event, Emitted | Handed) else {}
            match event, message.get("type"):
                case Handed(), "news":
                    original = message["metadata"].get("originalMessageId", "")
                    self._handed.add((message["from"], original))
                case Emitted(), "hub:delivery_ack":
                    self._acked(message)
                case Emitted(), "hub:published":
                    self._published(message)

    def _acked(self, message: Message) -> None:
        asked, payload = (message["to"], message["correlationId"]), message["payload"]
        if payload["status"] == "delivered" and not payload.get("duplicate"):
            assert asked in self._handed, f"{asked} is called delivered and was not handed over"
        if "seq" not in payload:
            assert asked in self._disk.loose, f"{asked} was acknowledged before it was on disk"
            return
        self._accept(asked, payload)

    def _published(self, message: Message) -> None:
        asked, payload = (message["to"], message["correlationId"]), message["payload"]
        assert self._accept(asked, payload) == payload["topic"]

    def _accept(self, asked: Asked, payload: Message) -> str:
        known = self._disk.asked.get(asked)
        assert known is not None, f"{asked} was acknowledged before it was on disk"
        stream, seq = known
        assert payload["seq"] == seq, f"{asked} was acknowledged with another position"
        assert payload["durability"] == "fsync"
        is_repeat = asked in self.accepted
        assert payload.get("duplicate", False) or not is_repeat, f"a repeat of {asked} looks new"
        self.repeats += is_repeat
        self.accepted[asked] = known
        return stream


class Copies:
    """Copies of one message are alike, repeats are marked, and what is settled stays settled."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._sent: Counter[Delivery] = Counter()
        self._ids: dict[Position, str] = {}
        self.heard: set[Delivery] = set()
        # What consumers said, and what they were told about it.
        self.said: set[Delivery] = set()
        self.confirmed: set[Delivery] = set()
        self.redelivered = 0

    def check(self, exchange: Exchange) -> None:
        for event in exchange.events:
            if not isinstance(event, Emitted | Handed) or event.message["from"] == HUB_ADDRESS:
                continue
            delivery = delivery_of(event.message)
            if delivery is None:
                continue
            if isinstance(event, Handed):
                self.heard.add(delivery)
            else:
                self._emitted(delivery, event.message)

    def _emitted(self, delivery: Delivery, message: Message) -> None:
        stream, _, seq = delivery
        marks = message["metadata"]["delivery"]
        assert (stream, seq) in self._disk.messages, f"{delivery} was sent before it was on disk"
        assert delivery not in self.confirmed, f"{delivery} was settled and came again"
        assert marks["redelivered"] is (marks["attempt"] > 1)
        if self._sent[delivery]:
            self.redelivered += 1
            assert marks["attempt"] > 1, f"{delivery} came again and was not marked"
        self._sent[delivery] += 1
        known = self._ids.setdefault((stream, seq), message["id"])
        assert message["id"] == known, f"{delivery} came again under another id"


class Order:
    """What one session sends to one actor arrives in order, tells and asks mixed.

    Copies that may be repeats come when they come, and so does what waited in a mailbox.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._newest_tell: dict[tuple[str, str], int] = {}
        self._overtaken: set[Asked] = set()

    def check(self, exchange: Exchange) -> None:
        for event in exchange.events:
            if isinstance(event, Handed) and "originalMessageId" in event.message["metadata"]:
                self._handed(event.message)
        for event in exchange.events:
            if isinstance(event, Emitted) and event.message["type"] == "hub:delivery_ack":
                self._acked(event.message)

    def _handed(self, message: Message) -> None:
        data, delivery = message["payload"], message["metadata"].get("delivery", {})
        route, serial = (data["session"], message["to"]), data["serial"]
        if delivery.get("attempt", 1) > 1:
            return
        if not data["isAsk"]:
            self._newest_tell[route] = serial
        elif serial < self._newest_tell.get(route, 0):
            self._overtaken.add((message["from"], message["metadata"]["originalMessageId"]))
        assert serial > self._newest.get(route, 0), "overtaken by a later message"
        if data["isAsk"]:
            self._newest[route] = serial

    def _acked(self, message: Message) -> None:
        payload = message["payload"]
        if payload["status"] == "delivered" and not payload.get("duplicate"):
            asked = (message["to"], message["correlationId"])
            assert asked not in self._overtaken, "overtaken by a later tell"


class Keys:
    """In a key-shared subscription the next message of a key waits for the one before it.

    A crash may bring back what was settled, so each process is looked at on its own.
    """

    def __init__(self, disk: Disk, copies: Copies, subscriptions: set[tuple[str, str]]) -> None:
        self._disk = disk
        self._copies = copies
        self._subscriptions = subscriptions
        self._sent: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        self._shell: MemoryShell | None = None

    def check(self, exchange: Exchange) -> None:
        if exchange.shell is not self._shell:
            self._shell = exchange.shell
            self._sent.clear()
        for event in exchange.events:
            delivery = delivery_of(event.message) if isinstance(event, Emitted) else None
            if delivery is not None and delivery[:2] in self._subscriptions:
                self._emitted(delivery)

    def _emitted(self, delivery: Delivery) -> None:
        topic, name, seq = delivery
        key = self._disk.messages[topic, seq].key or ""
        sent = self._sent[topic, name, key]
        for other in sent:
            is_over = self._is_over((topic, name, other))
            assert other == seq or is_over, f"{delivery} overtook {other}, which has the same key"
        assert not sent or seq >= max(sent), f"{delivery} came behind {max(sent)} of its key"
        sent.append(seq)

    def _is_over(self, delivery: Delivery) -> bool:
        return delivery in self._copies.said or delivery in self._disk.letters
