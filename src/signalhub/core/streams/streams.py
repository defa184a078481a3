"""Ordered sequences of durable messages: topics, and the mailboxes of actors.

A position is assigned when a message is handed to the log and counts once it is committed: `head`
is the last committed one, and nobody sees anything beyond it. If the log refuses, positions are
taken back, so a stream never has a hole.

The newest messages of all streams are kept in memory within one budget; older ones are read back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from signalhub.core import refusals
from signalhub.ranges import Ranges
from signalhub.wire.entry import (
    Body,
    Entry,
    Kind,
    MessageBody,
    StoredEntry,
    StreamDefinitionBody,
    decode_body,
    encode_body,
)
from signalhub.wire.envelope import durable_metadata, encode

if TYPE_CHECKING:
    from signalhub.core.effects import Append
    from signalhub.core.messages.ask import AskReceipt
    from signalhub.core.subscriptions.subscription import Subscription

MAILBOX_LETTERS = "dead.mailboxes"
LETTERS_SUFFIX = ".dlq"
_BYTES_MARK = 2**20
_SPARE_DUES = 64


class Held(msgspec.Struct, gc=False):
    """One committed message, as read from memory or the log."""

    seq: int
    offset: int
    at_ms: int
    message: MessageBody
    size: int
    is_erased: bool = False
    """Its content was taken out on purpose; it is settled wherever it is met."""


def held_of(stored: StoredEntry) -> Held:
    """A message as it was read from the log."""
    message = _blank() if stored.is_erased else decode_body(MessageBody, stored.body)
    size = len(stored.body)
    return Held(stored.seq, stored.offset, stored.at_ms, message, size, stored.is_erased)


def blank(held: Held) -> None:
    """Take out the content of a message, wherever in memory it is held."""
    held.message, held.is_erased = _blank(), True


def _blank() -> MessageBody:
    return MessageBody("", b"", "", "", b"null")


class Stream:
    """What topics and mailboxes have in common."""

    __slots__ = (
        "answer_head",
        "copy_head",
        "defined_at",
        "epoch",
        "first",
        "head",
        "id",
        "is_dirty",
        "is_made",
        "name",
        "next_seq",
        "recent",
        "removed",
    )

    def __init__(self, name: str, stream_id: int, log_epoch: int) -> None:
        self.name = name
        self.id = stream_id
        self.epoch = f"{log_epoch}.{stream_id}"
        # The parts of answers and copies that are alike for all its messages, as JSON.
        self.answer_head = b'{"topic":%b,"epoch":%b,"seq":' % (encode(name), encode(self.epoch))
        self.copy_head = durable_metadata(name)
        self.next_seq = 1
        self.head = 0
        # The oldest position that can still be read.
        self.first = 1
        self.recent: dict[int, Held] = {}
        # Positions taken away: redriven or purged.
        self.removed = Ranges()
        self.is_dirty = True
        # Is its definition on disk? Until then it is in no snapshot.
        self.is_made = False
        # An offset of the log from which on everything needed to make it again is found.
        self.defined_at = 0

    def assign(self) -> int:
        """The position of the next message."""
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def committed(self, seq: int) -> None:
        """Everything up to here is on disk."""
        assert seq == self.head + 1, f"{self.name}: expected {self.head + 1}, got {seq}"
        self.head = seq
        self.is_dirty = True

    def take_back(self) -> None:
        """The log refused what was on its way."""
        self.next_seq = self.head + 1

    def entry(self, kind: Kind, body: Body, now: int) -> Entry:
        """An entry about the stream that is none of its messages."""
        return Entry(kind, self.name, self.id, 0, now, encode_body(body))

    def drop_before(self, first: int) -> None:
        """Nothing before this can be read any more."""
        self.first = max(self.first, first)
        self.removed.drop_through(self.first - 1)
        self.is_dirty = True

    def remove(self, seqs: Iterable[int]) -> None:
        """These were redriven or purged."""
        for seq in seqs:
            self.removed.add(seq)
        self.is_dirty = True

    def anchored(self, offset: int) -> None:
        """Everything needed to make it again is in the log from here on."""
        self.defined_at = offset

    def blank(self, is_meant: Callable[[MessageBody], bool]) -> None:
        """Take the content out of messages in memory."""
        for held in self.recent.values():
            if is_meant(held.message):
                blank(held)

    def blank_at(self, seq: int) -> None:
        """The same for one position."""
        held = self.recent.get(seq)
        if held is not None:
            blank(held)


class Topic(Stream):
    """A durable topic and its subscriptions."""

    __slots__ = (
        "bytes",
        "bytes_marks",
        "definition",
        "is_deleting",
        "stored_definition",
        "subscriptions",
    )

    def __init__(
        self, name: str, stream_id: int, log_epoch: int, definition: StreamDefinitionBody
    ) -> None:
        super().__init__(name, stream_id, log_epoch)
        self.definition = definition
        # The definition that is on disk; a snapshot holds no other.
        self.stored_definition = definition
        # Its end is on the way to the log, and nothing may be published behind it.
        self.is_deleting = False
        self.subscriptions: dict[str, Subscription] = {}
        # What was ever published, and how much it was at some positions, for retention by size.
        self.bytes = 0
        self.bytes_marks: deque[tuple[int, int]] = deque()

    def add(self, subscription: Subscription) -> None:
        """One more reads it."""
        self.subscriptions[subscription.name] = subscription

    def grew(self, seq: int, size: int) -> None:
        """Count the bytes of a committed message."""
        if self.bytes // _BYTES_MARK != (self.bytes + size) // _BYTES_MARK:
            self.bytes_marks.append((seq, self.bytes))
        self.bytes += size

    def first_within(self, bytes_max: int) -> int:
        """The oldest position that retention by size keeps, to the nearest megabyte."""
        first = self.first
        while self.bytes_marks and self.bytes - self.bytes_marks[0][1] > bytes_max:
            first = max(first, self.bytes_marks.popleft()[0])
        return first

    def readers(self) -> list[Subscription]:
        """Its subscriptions."""
        return list(self.subscriptions.values())

    @property
    def is_letters(self) -> bool:
        """Is it where dead letters go? These are never themselves dead-lettered."""
        return self.name.endswith(LETTERS_SUFFIX) or self.name == MAILBOX_LETTERS


class Mailbox(Stream):
    """What waits for one durable actor; its one subscription delivers it."""

    __slots__ = (
        "_dues",
        "attached_at_ms",
        "capabilities",
        "expiries",
        "fresh",
        "kinds",
        "making",
        "stored_kinds",
        "subscription",
    )

    subscription: Subscription

    def __init__(self, name: str, stream_id: int, log_epoch: int, now_ms: int) -> None:
        super().__init__(name, stream_id, log_epoch)
        # When an owner was last there.
        self.attached_at_ms = now_ms
        # What puts it on disk for the first time, until it is there.
        self.making: Append | None = None
        # What its owner could do when it was last there.
        self.capabilities: tuple[str, ...] = ()
        # Of a host: the kinds of durable actors it serves, and what is on disk of that.
        self.kinds: tuple[str, ...] | None = None
        self.stored_kinds: tuple[str, ...] | None = None
        # When waiting messages expire, and their offsets; most have no such time.
        self.expiries: dict[int, tuple[float, int]] = {}
        # The same, the earliest first, with some that are settled.
        self._dues: list[tuple[float, int]] = []
        # Asks just committed, whose senders are told after the next pass: sent, or waiting?
        self.fresh: dict[int, AskReceipt] = {}

    def readers(self) -> list[Subscription]:
        """Its one subscription."""
        return [self.subscription]

    @property
    def is_host(self) -> bool:
        """Do durable actors live behind it?"""
        return self.kinds is not None

    def expires(self, seq: int, at_ms: float, offset: int) -> None:
        """A message is worth delivering only until then."""
        self.expiries[seq] = (at_ms, offset)
        heapq.heappush(self._dues, (at_ms, seq))
        if len(self._dues) > 2 * len(self.expiries) + _SPARE_DUES:
            self._dues = [(one[0], seq) for seq, one in self.expiries.items()]
            heapq.heapify(self._dues)

    def settled(self, seq: int) -> None:
        """It does not expire any more."""
        if self.expiries.pop(seq, None) is not None:
            self.is_dirty = True

    def arrived(self, ask: AskReceipt) -> None:
        """An ask is on disk; its sender is told what the next pass makes of it."""
        self.fresh[ask.seq] = ask

    def take_fresh(self) -> list[AskReceipt]:
        """The asks that no pass has sent."""
        fresh, self.fresh = self.fresh, {}
        return list(fresh.values())

    def waiting(self, now_ms: int) -> int:
        """Messages accepted and not settled; those whose time has passed are settled first."""
        if self.expiries:
            self._expire(now_ms)
        return self.next_seq - 1 - self.head + self.subscription.lag

    def _expire(self, now_ms: int) -> None:
        position, busy = self.subscription.position, []
        while self._dues and self._dues[0][0] < now_ms:
            due = heapq.heappop(self._dues)
            seq = due[1]
            found = self.expiries.get(seq)
            if found is None:
                continue
            if position.is_settled(seq) or self.subscription.expire(seq, found[1]):
                self.expiries.pop(seq, None)
            else:
                busy.append(due)
        for due in busy:
            heapq.heappush(self._dues, due)


class Streams:
    """Every stream of the shard."""

    def __init__(self, log_epoch: int, cache_bytes: int) -> None:
        self.log_epoch = log_epoch
        self.topics: dict[str, Topic] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        # Those of them that were hosts' when they were last defined; some may be gone.
        self._hosts: dict[str, Mailbox] = {}
        self.next_id = 1
        # Ids of streams that were deleted since the last snapshot, and subscriptions of others.
        self.forgotten: set[int] = set()
        self.deleted_subscriptions: set[tuple[int, str]] = set()
        self._tail: deque[tuple[Stream, int, int]] = deque()
        self._tail_bytes = 0
        self._cache_bytes = cache_bytes

    def every(self) -> list[Topic | Mailbox]:
        """All topics and mailboxes."""
        return [*self.topics.values(), *self.mailboxes.values()]

    def readers(self) -> Iterator[Subscription]:
        """The subscriptions of all of them."""
        return (one for stream in self.every() for one in stream.readers())

    def find(self, name: str) -> Topic:
        """The durable topic, or a refusal."""
        topic = self.topics.get(name)
        if topic is None or topic.is_deleting:
            raise refusals.unknown_topic(name)
        return topic

    def count_subscriptions(self) -> int:
        """Durable ones, mailboxes excepted."""
        return sum(len(topic.subscriptions) for topic in self.topics.values())

    def add(self, stream: Topic | Mailbox) -> None:
        """One more, which may take the place of another of its name."""
        if isinstance(stream, Topic):
            self.topics[stream.name] = stream
        else:
            self.mailboxes[stream.name] = stream
        self.next_id = max(self.next_id, stream.id + 1)

    def forget(self, stream: Topic | Mailbox) -> None:
        """It is deleted."""
        known = self.topics if isinstance(stream, Topic) else self.mailboxes
        if known.get(stream.name) is stream:
            del known[stream.name]
        self.forgotten.add(stream.id)

    def forget_subscription(self, topic: Topic, name: str) -> None:
        """It is deleted."""
        topic.subscriptions.pop(name, None)
        self.deleted_subscriptions.add((topic.id, name))

    def take_forgotten(self) -> tuple[set[int], set[tuple[int, str]]]:
        """Streams and subscriptions that were deleted since the last time."""
        taken = self.forgotten, self.deleted_subscriptions
        self.forgotten, self.deleted_subscriptions = set(), set()
        return taken

    def serve(self, box: Mailbox, kinds: tuple[str, ...] | None) -> None:
        """The mailbox is a host's for these kinds of actors, or no host's."""
        box.kinds = kinds
        if kinds is None:
            self._hosts.pop(box.name, None)
        else:
            self._hosts[box.name] = box

    def host(self, address: str) -> Mailbox | None:
        """The mailbox of a host, which may be away."""
        box = self.mailboxes.get(address)
        return box if box is not None and box.is_host else None

    def hosts(self) -> list[Mailbox]:
        """The mailboxes of all hosts."""
        gone = [name for name, box in self._hosts.items() if self.mailboxes.get(name) is not box]
        for name in gone:
            del self._hosts[name]
        return list(self._hosts.values())

    def epoch_of(self, stream_id: int) -> str:
        """The epoch of a stream, which may be gone."""
        return f"{self.log_epoch}.{stream_id}"

    def take_id(self) -> int:
        """A number no other stream has or had."""
        self.next_id += 1
        return self.next_id - 1

    def committed(self, stream: Topic | Mailbox, held: Held) -> None:
        """A message is on disk."""
        stream.committed(held.seq)
        if isinstance(stream, Topic):
            stream.grew(held.seq, held.size)
        self.keep(stream, held)

    def keep(self, stream: Stream, held: Held) -> None:
        """Remember a committed message while there is room."""
        stream.recent[held.seq] = held
        self._tail.append((stream, held.seq, held.size))
        self._tail_bytes += held.size
        while self._tail_bytes > self._cache_bytes:
            oldest, seq, size = self._tail.popleft()
            oldest.recent.pop(seq, None)
            self._tail_bytes -= size

    def take_back(self) -> None:
        """The log refused everything that was on its way."""
        for stream in self.every():
            stream.take_back()
