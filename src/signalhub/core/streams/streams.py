"""Ordered sequences of durable messages: topics, and the mailboxes of actors.

A position is assigned when a message is passed to the log and is valid once it is committed: `head`
is the last committed position, and nothing beyond it is visible. If the log rejects entries, their
positions are taken back, so a stream never has gaps.

The newest messages of all streams are cached within one memory budget; older ones are read back.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.core import refusals
from signalhub.core.limits.quotas import NOBODY, Holder, Quotas, Resource
from signalhub.core.rendezvous import Node, Ring
from signalhub.ranges import Ranges
from signalhub.wire.entry import (
    Body,
    Entry,
    EntryRun,
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
    """The content was erased on request; readers settle the message without delivering it."""


def held_of(stored: StoredEntry) -> Held:
    """Decode a message read from the log."""
    message = _blank() if stored.is_erased else decode_body(MessageBody, stored.body)
    size = len(stored.body)
    return Held(stored.seq, stored.offset, stored.at_ms, message, size, stored.is_erased)


def blank(held: Held) -> None:
    """Erase the content of a message in memory."""
    held.message, held.is_erased = _blank(), True


def _blank() -> MessageBody:
    return MessageBody("", b"", "", "", b"null")


class HeldRun(msgspec.Struct, frozen=True, gc=False):
    """Committed messages with consecutive positions, which are decoded when they are read."""

    entry: EntryRun
    first_offset: int

    def held(self, seq: int) -> Held:
        """One of them."""
        entry = self.entry
        at = seq - entry.seq
        body = entry.body.body(at)
        message = decode_body(MessageBody, body)
        return Held(seq, self.first_offset + at, entry.at_ms, message, len(body))


class Recent(dict[int, Held]):
    """Messages by position; those of a run are decoded on first use."""

    def add_run(self, entry: EntryRun, offset: int) -> None:
        """Add the messages of a run."""
        run: Any = HeldRun(entry, offset)
        if entry.count == 1:
            self[entry.seq] = run
        else:
            self.update(dict.fromkeys(range(entry.seq, entry.seq + entry.count), run))

    def get(self, seq: int, default: Held | None = None) -> Held | None:  # type: ignore[override]
        found = super().get(seq, default)
        if isinstance(found, HeldRun):
            found = self[seq] = found.held(seq)
        return found

    def values(self) -> list[Held]:  # type: ignore[override]
        return [held for seq in self if (held := self.get(seq)) is not None]


class Stream:
    """What topics and mailboxes have in common."""

    __slots__ = (
        "answer_head",
        "changes",
        "copy_head",
        "defined_at",
        "epoch",
        "first",
        "head",
        "holder",
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
        # Whose quota it counts for.
        self.holder = NOBODY
        self.id = stream_id
        self.epoch = f"{log_epoch}.{stream_id}"
        # The parts that all its answers and copies have in common, as JSON.
        self.answer_head = b'{"topic":%b,"epoch":%b,"seq":' % (encode(name), encode(self.epoch))
        self.copy_head = durable_metadata(name)
        self.next_seq = 1
        self.head = 0
        # The oldest position that can still be read.
        self.first = 1
        self.recent: dict[int, Held] = {}
        # Redriven or purged positions.
        self.removed = Ranges()
        # Has it changed since the last snapshot? Then it is in `changes`, those of all streams.
        self.is_dirty = True
        self.changes: dict[Stream, None] | None = None
        # Is its definition on disk? Snapshots leave it out until then.
        self.is_made = False
        # The log from this offset on is enough to rebuild it.
        self.defined_at = 0

    def touch(self) -> None:
        """It has changed: the next snapshot must contain it."""
        self.is_dirty = True
        self.note_change()

    def note_change(self) -> None:
        """It has changed, or one of its subscriptions has."""
        if self.changes is not None:
            self.changes[self] = None

    def assign(self) -> int:
        """Assign the next position."""
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def keep_runs(self, runs: list[EntryRun], offset: int) -> None:
        """Cache the messages of runs, the first of which has this offset."""
        recent = self.recent
        if not isinstance(recent, Recent):
            recent = self.recent = Recent(recent)
        for entry in runs:
            recent.add_run(entry, offset)
            offset += entry.count

    def assign_many(self, count: int) -> int:
        """Assign the next positions; return the first."""
        seq = self.next_seq
        self.next_seq = seq + count
        return seq

    def committed(self, seq: int, count: int = 1) -> None:
        """These are on disk, as everything before them."""
        assert seq == self.head + 1, f"{self.name}: expected {self.head + 1}, got {seq}"
        self.head = seq + count - 1
        if not self.is_dirty:
            self.touch()

    def take_back(self) -> None:
        """The log rejected pending entries: take their positions back."""
        self.next_seq = self.head + 1

    def entry(self, kind: Kind, body: Body, now: int) -> Entry:
        """An entry about the stream, not one of its messages."""
        return self.entry_of(kind, encode_body(body), now)

    def entry_of(self, kind: Kind, body: bytes, now: int) -> Entry:
        """The same with an encoded body."""
        return Entry(kind, self.name, self.id, 0, now, body)

    def drop_before(self, first: int) -> None:
        """Nothing before this can be read any more."""
        self.first = max(self.first, first)
        self.removed.drop_through(self.first - 1)
        self.touch()

    def remove(self, seqs: Iterable[int]) -> None:
        """These were redriven or purged."""
        for seq in seqs:
            self.removed.add(seq)
        self.touch()

    def anchored(self, offset: int) -> None:
        """The log from this offset on is enough to rebuild it."""
        self.defined_at = offset

    def blank(self, is_meant: Callable[[MessageBody], bool]) -> None:
        """Erase the content of matching messages in memory."""
        for held in self.recent.values():
            if is_meant(held.message):
                blank(held)

    def blank_at(self, seq: int) -> None:
        """Erase the content of the message at a position."""
        held = self.recent.get(seq)
        if held is not None:
            blank(held)


class Topic(Stream):
    """A durable topic and its subscriptions."""

    __slots__ = (
        "_names",
        "bytes",
        "bytes_marks",
        "changing",
        "definition",
        "fitted",
        "is_deleting",
        "stored_definition",
        "subscriptions",
    )

    def __init__(
        self, name: str, stream_id: int, log_epoch: int, definition: StreamDefinitionBody
    ) -> None:
        super().__init__(name, stream_id, log_epoch)
        self.definition = definition
        # The definition on disk, which is the one that snapshots contain.
        self.stored_definition = definition
        # Its deletion is being written; nothing may be published any more.
        self.is_deleting = False
        # The pending entry that creates or deletes it.
        self.changing: Append | None = None
        # The version of the patterns that it was compared with.
        self.fitted = -1
        self.subscriptions: dict[str, Subscription] = {}
        # Their names in order, because sorting many takes longer than a turn of the loop may.
        self._names: list[str] = []
        # Bytes published in total and up to certain positions, for retention by size.
        self.bytes = 0
        self.bytes_marks: deque[tuple[int, int]] = deque()

    def add(self, subscription: Subscription) -> None:
        """Add a subscription."""
        if subscription.name not in self.subscriptions:
            insort(self._names, subscription.name)
        self.subscriptions[subscription.name] = subscription

    def drop(self, name: str) -> Subscription | None:
        """Remove a subscription, and return it if it was there."""
        gone = self.subscriptions.pop(name, None)
        if gone is not None:
            del self._names[bisect_left(self._names, name)]
        return gone

    def names(self) -> list[str]:
        """The names of its subscriptions, in order."""
        return list(self._names)

    def grew(self, seq: int, size: int) -> None:
        """Count the bytes of a committed message."""
        if self.bytes // _BYTES_MARK != (self.bytes + size) // _BYTES_MARK:
            self.bytes_marks.append((seq, self.bytes))
        self.bytes += size

    def grew_by(self, runs: list[EntryRun], size: int) -> None:
        """Count the bytes of committed messages, which have this size together."""
        if self.bytes // _BYTES_MARK == (self.bytes + size) // _BYTES_MARK:
            self.bytes += size
            return
        for entry in runs:
            for seq, one in enumerate(entry.body.sizes(), entry.seq):
                self.grew(seq, one)

    def first_within(self, bytes_max: int) -> int:
        """The oldest position to keep when limited to `bytes_max`, to the nearest megabyte."""
        first = self.first
        while self.bytes_marks and self.bytes - self.bytes_marks[0][1] > bytes_max:
            first = max(first, self.bytes_marks.popleft()[0])
        return first

    def readers(self) -> list[Subscription]:
        """Its subscriptions."""
        return list(self.subscriptions.values())

    @property
    def is_letters(self) -> bool:
        """Is it a dead-letter topic? Dead letters are never dead-lettered again."""
        return self.name.endswith(LETTERS_SUFFIX) or self.name == MAILBOX_LETTERS


class Mailbox(Stream):
    """Messages for one durable actor, delivered by its only subscription."""

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
        # When its owner was last attached.
        self.attached_at_ms = now_ms
        # The pending entry that creates it.
        self.making: Append | None = None
        # The capabilities of its owner when it was last attached.
        self.capabilities: tuple[str, ...] = ()
        # For a host: the kinds of durable actors it serves, now and on disk.
        self.kinds: tuple[str, ...] | None = None
        self.stored_kinds: tuple[str, ...] | None = None
        # Expiry and offset of waiting messages that expire; most do not.
        self.expiries: dict[int, tuple[float, int]] = {}
        # The same as a heap; it may contain settled messages.
        self._dues: list[tuple[float, int]] = []
        # Asks just committed; their senders are answered after the next pass.
        self.fresh: dict[int, AskReceipt] = {}

    def readers(self) -> list[Subscription]:
        """Its one subscription."""
        return [self.subscription]

    @property
    def is_host(self) -> bool:
        """Is it the mailbox of a host of durable actors?"""
        return self.kinds is not None

    def expires(self, seq: int, at_ms: float, offset: int) -> None:
        """Note when a message expires."""
        self.expiries[seq] = (at_ms, offset)
        heapq.heappush(self._dues, (at_ms, seq))
        if len(self._dues) > 2 * len(self.expiries) + _SPARE_DUES:
            self._dues = [(one[0], seq) for seq, one in self.expiries.items()]
            heapq.heapify(self._dues)

    def settled(self, seq: int) -> None:
        """Forget when a settled message expires."""
        if self.expiries.pop(seq, None) is not None:
            self.touch()

    def arrived(self, ask: AskReceipt) -> None:
        """An ask is on disk; its sender is answered after the next pass."""
        self.fresh[ask.seq] = ask

    def sent(self, seq: int) -> AskReceipt | None:
        """Take the ask at a position that the pass sent, if it has just arrived."""
        return self.fresh.pop(seq, None)

    def take_fresh(self) -> list[AskReceipt]:
        """Take the asks that the pass did not send."""
        fresh, self.fresh = self.fresh, {}
        return list(fresh.values())

    def waiting(self, now_ms: int) -> int:
        """The number of unsettled messages, after settling the expired ones."""
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

    def __init__(self, log_epoch: int, cache_bytes: int, quotas: Quotas) -> None:
        self.log_epoch = log_epoch
        self._quotas = quotas
        self.topics: dict[str, Topic] = {}
        # The names of topics in order.
        self._names: list[str] = []
        # Those that have subscriptions, because most of many topics have none.
        self._subscribed: dict[Topic, None] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        # The addresses of hosts by the kinds they serve.
        self._hosts: dict[str, Ring] = {}
        self.next_id = 1
        # Streams that have changed since the last snapshot, or whose subscriptions have; it may
        # contain others. A snapshot looks at no more, because most are quiet.
        self._changes: dict[Stream, None] = {}
        # Streams, and subscriptions of other streams, deleted since the last snapshot.
        self.forgotten: set[int] = set()
        self.deleted_subscriptions: set[tuple[int, str]] = set()
        # The oldest ones first: the stream, how many messages with consecutive positions, the
        # first of these, and their bytes.
        self._tail: deque[tuple[Stream, int, int, int]] = deque()
        self._tail_bytes = 0
        self._cache_bytes = cache_bytes
        # How many messages have been committed since the start.
        self.kept = 0

    def begin(self, log_epoch: int) -> None:
        """The log was opened in this epoch; new streams are named after it."""
        self.log_epoch = log_epoch

    def every(self) -> list[Topic | Mailbox]:
        """All topics and mailboxes."""
        return [*self.topics.values(), *self.mailboxes.values()]

    def readers(self) -> Iterator[Subscription]:
        """All subscriptions, including those of mailboxes."""
        return (one for stream in self.every() for one in stream.readers())

    def find(self, name: str) -> Topic:
        """The durable topic; raises `Refusal` if it does not exist."""
        topic = self.topics.get(name)
        if topic is None or topic.is_deleting:
            raise refusals.unknown_topic(name)
        return topic

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions of topics."""
        return [one for topic in self.subscribed() for one in topic.subscriptions.values()]

    def subscribed(self) -> list[Topic]:
        """The topics that have subscriptions."""
        return [one for one in self._subscribed if self.topics.get(one.name) is one]

    def count_subscriptions(self) -> int:
        """The number of durable subscriptions of topics."""
        return self._quotas.total(Resource.SUBSCRIPTIONS)

    def add(self, stream: Topic | Mailbox, holder: Holder = NOBODY) -> None:
        """Add a stream, replacing one with the same name."""
        known = self._known(stream).get(stream.name)
        if known is not None:
            self.drop(known)
        stream.holder = holder
        stream.changes = self._changes
        stream.note_change()
        self._quotas.take(_resource(stream), holder)
        if isinstance(stream, Topic):
            self.topics[stream.name] = stream
            insort(self._names, stream.name)
        else:
            self.mailboxes[stream.name] = stream
            self._enter(stream)
        self.next_id = max(self.next_id, stream.id + 1)

    def drop(self, stream: Topic | Mailbox) -> None:
        """Remove a stream that was replaced or never made."""
        known = self._known(stream)
        if known.get(stream.name) is not stream:
            return
        if isinstance(stream, Mailbox):
            self._leave(stream)
        del known[stream.name]
        self._quotas.release(_resource(stream), stream.holder)
        if isinstance(stream, Topic):
            del self._names[bisect_left(self._names, stream.name)]
            self._subscribed.pop(stream, None)
            for subscription in stream.subscriptions.values():
                self._quotas.release(Resource.SUBSCRIPTIONS, subscription.holder)

    def names(self) -> list[str]:
        """The names of all topics, in order."""
        return list(self._names)

    def _known(self, stream: Topic | Mailbox) -> dict[str, Topic] | dict[str, Mailbox]:
        return self.topics if isinstance(stream, Topic) else self.mailboxes

    def forget(self, stream: Topic | Mailbox) -> None:
        """Remove a deleted stream."""
        self.drop(stream)
        self.forgotten.add(stream.id)

    def add_subscription(
        self, topic: Topic, subscription: Subscription, holder: Holder = NOBODY
    ) -> None:
        """Add a durable subscription of a topic."""
        subscription.holder = holder
        self._quotas.take(Resource.SUBSCRIPTIONS, holder)
        topic.add(subscription)
        self._subscribed[topic] = None
        topic.note_change()

    def forget_subscription(self, topic: Topic, name: str) -> None:
        """Remove a deleted subscription."""
        gone = topic.drop(name)
        if not topic.subscriptions:
            self._subscribed.pop(topic, None)
        # Those of a deleted topic went with it.
        if gone is not None and self.topics.get(topic.name) is topic:
            self._quotas.release(Resource.SUBSCRIPTIONS, gone.holder)
        self.deleted_subscriptions.add((topic.id, name))

    def count_again(self) -> None:
        """The owners of all streams and subscriptions are known after a restart: count them."""
        of = (Resource.TOPICS, Resource.MAILBOXES, Resource.SUBSCRIPTIONS)
        self._quotas.begin_again(*of)
        for topic in self.topics.values():
            topic.holder = Holder(topic.definition.owner)
            self._quotas.take(Resource.TOPICS, topic.holder)
            for subscription in topic.subscriptions.values():
                subscription.holder = Holder(subscription.definition.owner)
                self._quotas.take(Resource.SUBSCRIPTIONS, subscription.holder)
        for box in self.mailboxes.values():
            self._quotas.take(Resource.MAILBOXES, box.holder)

    def take_changed(self) -> list[Topic | Mailbox]:
        """Take the streams that may have changed since the last call."""
        changes = list(self._changes)
        self._changes.clear()
        return [
            one
            for one in changes
            if isinstance(one, Topic | Mailbox) and self._known(one).get(one.name) is one
        ]

    def take_forgotten(self) -> tuple[set[int], set[tuple[int, str]]]:
        """Take the streams and subscriptions deleted since the last call."""
        taken = self.forgotten, self.deleted_subscriptions
        self.forgotten, self.deleted_subscriptions = set(), set()
        return taken

    def serve(self, box: Mailbox, kinds: tuple[str, ...] | None) -> None:
        """Set the kinds of actors a host's mailbox serves; `None` if it is not a host."""
        self._leave(box)
        box.kinds = kinds
        self._enter(box)

    def _enter(self, box: Mailbox) -> None:
        if self.mailboxes.get(box.name) is box:
            for kind in box.kinds or ():
                self._hosts.setdefault(kind, Ring()).add(box.name)

    def _leave(self, box: Mailbox) -> None:
        # Another mailbox of the same name may serve the same kinds.
        if self.mailboxes.get(box.name) is box:
            for kind in box.kinds or ():
                ring = self._hosts[kind]
                ring.remove(box.name)
                if not ring.nodes:
                    del self._hosts[kind]

    def host(self, address: str) -> Mailbox | None:
        """The mailbox of a host, whether the host is connected or not."""
        box = self.mailboxes.get(address)
        return box if box is not None and box.is_host else None

    @property
    def has_hosts(self) -> bool:
        """Does any mailbox belong to a host of durable actors?"""
        return bool(self._hosts)

    def hosts(self, kind: str) -> Sequence[Node]:
        """The hosts for this kind, in the order of their hashes."""
        ring = self._hosts.get(kind)
        return () if ring is None else ring.nodes

    def epoch_of(self, stream_id: int) -> str:
        """The epoch of a stream, which may have been deleted."""
        return f"{self.log_epoch}.{stream_id}"

    def take_id(self) -> int:
        """Take an id that no stream has ever had."""
        self.next_id += 1
        return self.next_id - 1

    def committed(self, stream: Topic | Mailbox, held: Held) -> None:
        """A message is on disk."""
        stream.committed(held.seq)
        if isinstance(stream, Topic):
            stream.grew(held.seq, held.size)
        self.keep(stream, held)

    def committed_runs(self, topic: Topic, runs: list[EntryRun], offset: int) -> None:
        """Messages of a topic are on disk, the first of them at this offset."""
        first_seq, count = runs[0].seq, sum([one.count for one in runs])
        size = sum([len(one.body) for one in runs])
        topic.committed(first_seq, count)
        topic.grew_by(runs, size)
        topic.keep_runs(runs, offset)
        self._keep(topic, count, first_seq, size)

    def keep(self, stream: Stream, held: Held) -> None:
        """Cache a committed message and evict the oldest ones beyond the budget."""
        stream.recent[held.seq] = held
        self._keep(stream, 1, held.seq, held.size)

    def _keep(self, stream: Stream, count: int, first_seq: int, size: int) -> None:
        self._tail.append((stream, count, first_seq, size))
        self.kept += count
        self._tail_bytes += size
        while self._tail_bytes > self._cache_bytes:
            oldest, count, seq, size = self._tail.popleft()
            self._tail_bytes -= size
            if count == 1:
                oldest.recent.pop(seq, None)
                continue
            for one in range(seq, seq + count):
                oldest.recent.pop(one, None)

    def newest(self) -> Iterator[tuple[Stream, int]]:
        """The messages in memory with their positions, the last committed one first."""
        for stream, count, first_seq, _ in reversed(self._tail):
            for seq in range(first_seq + count - 1, first_seq - 1, -1):
                yield stream, seq

    def take_back(self) -> None:
        """The log rejected all pending entries."""
        for stream in self.every():
            stream.take_back()


def _resource(stream: Topic | Mailbox) -> Resource:
    return Resource.TOPICS if isinstance(stream, Topic) else Resource.MAILBOXES
