"""What clients wrote down about a run, and what is wrong with it.

The only evidence are the clients' own ledgers: what producers attempted and which answers they saw,
what consumers received and which settlements were confirmed. Nothing here does I/O. Every anomaly
has one name, so that a history with one fault is flagged with one name:

* `lost_prefix`, `lost_middle`, `lost_postfix`: acknowledged, but a reader never received it; before
  the first, between, or after the last entry that reader did receive;
* `skip`: a reader passed over a seq that was never acknowledged and that nobody received;
* `divergence`: a reader never received an unacknowledged entry that another reader did receive;
* `duplicate_unmarked`: received again without the mark of a possible repeat;
* `settled_again`: received again although its settlement had been confirmed;
* `non_monotonic_poll`: an ordered reader's session went back to a seq it had not received before;
* `order_break_stream`: the same, but in a later session than the one that went too far;
* `order_break_key`: a key-shared reader received the entries of one key out of order;
* `order_break_sent`: the stream holds one producer's messages in another order than they were sent;
* `seq_reuse`: one position held two messages; `double_append`: one message held two positions;
* `phantom`: received, but never attempted; `refused_delivered`: received, though it was refused;
* `ack_without_position`: acknowledged without epoch and seq; `gap_admitted`: the hub itself told
  a resuming reader that entries are gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import msgspec

from tests.support.process.lines import (
    Acked,
    Attempted,
    Joined,
    Line,
    Mode,
    Noted,
    Received,
    Refused,
    Settled,
    Started,
)

Position = tuple[str, int]

ORDERED: frozenset[Mode] = frozenset({"exclusive", "failover", "mailbox", "replay"})
# The log stopped in the middle of it: the one refusal that does not say "it did not happen".
OUTCOME_UNKNOWN = frozenset({"storage_failed"})
EXAMPLES_MAX = 5


class Latency(msgspec.Struct, frozen=True):
    """How long acknowledgements took."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Report(msgspec.Struct, kw_only=True):
    """The verdict; `anomalies` is empty when every promise was kept.

    `fresh` counts copies that cannot be repeats: a lone consumer's first copy of a message that was
    first sent after its session began. The more of them are marked, the less it means that no
    duplicate was unmarked.
    """

    seed: int
    attempted: int
    sendings: int
    acked: int
    refused: int
    unknown: int
    readers: int
    received: int
    duplicates_marked: int
    fresh: int
    fresh_marked: int
    anomalies: dict[str, int]
    examples: dict[str, list[str]]
    unavailable_s: float
    ack_latency: Latency
    repeated_ack_latency: Latency
    notes: dict[str, int]


@dataclass(slots=True)
class _Message:
    """One message as its producer knows it."""

    first: Attempted
    sendings: int = 0
    is_open: bool = False
    was_refused: bool = False
    acked_at: float | None = None
    position: Position | None = None

    @property
    def is_refused(self) -> bool:
        return self.acked_at is None and self.was_refused and not self.is_open


@dataclass(slots=True)
class _Copies:
    """What a reader has had of one entry so far."""

    life: int
    has_unmarked: bool
    consumers: tuple[str, ...]


@dataclass(slots=True)
class _Reader:
    """One subscription, mailbox or replay, through all its sessions."""

    stream: str
    name: str
    mode: Mode
    receipts: list[tuple[int, Received]] = field(default_factory=list)
    settled: dict[Position, tuple[int, float, str]] = field(default_factory=dict)
    consumers: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    seqs: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))


def check(lines: Iterable[Line], seed: int = 0) -> Report:
    """Judge one run. Lines of one ledger come in their order; ledgers follow each other."""
    return _Check(list(lines)).report(seed)


class _Check:
    def __init__(self, lines: Sequence[Line]) -> None:
        self._starts = sorted(line.at for line in lines if isinstance(line, Started))
        self._messages: dict[str, _Message] = {}
        self._sessions: dict[str, tuple[int, Joined]] = {}
        self._readers: dict[tuple[str, str], _Reader] = {}
        self._holders: dict[tuple[str, Position], str] = {}
        self._places: dict[str, Position] = {}
        self._reused: defaultdict[tuple[str, Position], set[str]] = defaultdict(set)
        self._moved: defaultdict[str, set[Position]] = defaultdict(set)
        self._timeline: list[tuple[float, int]] = []
        self._anomalies: Counter[str] = Counter()
        self._examples: defaultdict[str, list[str]] = defaultdict(list)
        self._notes: Counter[str] = Counter()
        self._marked = self._fresh = self._fresh_marked = 0
        for line in lines:
            self._take(line)
        for reader in self._readers.values():
            # A stale socket may be read after the next life has begun: the life comes first.
            reader.receipts.sort(key=lambda receipt: (receipt[0], receipt[1].at))
            self._judge_receipts(reader)
        self._judge_positions()
        self._judge_order_sent()
        for reader in self._readers.values():
            self._judge_presence(reader)

    def report(self, seed: int) -> Report:
        messages = self._messages.values()
        acked = [message for message in messages if message.acked_at is not None]
        refused = sum(message.is_refused for message in messages)
        return Report(
            seed=seed,
            attempted=len(messages),
            sendings=sum(message.sendings for message in messages),
            acked=len(acked),
            refused=refused,
            unknown=len(messages) - len(acked) - refused,
            readers=len(self._readers),
            received=sum(len(reader.receipts) for reader in self._readers.values()),
            duplicates_marked=self._marked,
            fresh=self._fresh,
            fresh_marked=self._fresh_marked,
            anomalies=dict(self._anomalies),
            examples=dict(self._examples),
            unavailable_s=_longest_wait_s(self._timeline),
            ack_latency=_latency(acked),
            repeated_ack_latency=_latency([one for one in acked if one.sendings > 1]),
            notes=dict(self._notes),
        )

    def _flag(self, name: str, example: str) -> None:
        self._anomalies[name] += 1
        if len(self._examples[name]) < EXAMPLES_MAX:
            self._examples[name].append(example)

    # Reading the ledgers.

    def _take(self, line: Line) -> None:
        match line:
            case Received():
                self._take_received(line)
            case Attempted():
                message = self._messages.setdefault(line.id, _Message(line))
                message.sendings += 1
                if not message.is_open:
                    self._timeline.append((line.at, 1))
                message.is_open = True
            case Acked():
                self._take_acked(line)
            case Refused():
                self._notes[f"refused: {line.code}"] += 1
                if line.code not in OUTCOME_UNKNOWN:
                    self._messages[line.id].was_refused = True
                    self._answered(line.id, line.at)
            case Settled():
                life, joined = self._sessions[line.session]
                reader = self._readers[joined.stream, joined.subscription]
                settled = (life, line.at, joined.consumer)
                reader.settled.setdefault((line.epoch, line.seq), settled)
            case Joined():
                self._sessions[line.session] = bisect_right(self._starts, line.at), line
                name = (line.stream, line.subscription)
                reader = self._readers.setdefault(name, _Reader(*name, line.mode))
                reader.consumers.add(line.consumer)
                if not line.is_recovered:
                    self._flag("gap_admitted", f"{line.subscription} in session {line.session}")
            case Noted():
                self._notes[line.what] += 1

    def _take_acked(self, line: Acked) -> None:
        message = self._messages[line.id]
        if message.acked_at is None:
            message.acked_at = line.at
        self._answered(line.id, line.at)
        if line.epoch is None or line.seq is None:
            self._flag("ack_without_position", line.id)
            return
        message.position = (line.epoch, line.seq)
        self._occupy(message.first.stream, message.position, line.id)

    def _take_received(self, line: Received) -> None:
        life, joined = self._sessions[line.session]
        reader = self._readers[joined.stream, joined.subscription]
        reader.receipts.append((life, line))
        reader.ids.add(line.id)
        reader.seqs[line.epoch].add(line.seq)
        self._occupy(joined.stream, (line.epoch, line.seq), line.id)

    def _occupy(self, stream: str, position: Position, message_id: str) -> None:
        if (holder := self._holders.setdefault((stream, position), message_id)) != message_id:
            self._reused[stream, position] |= {holder, message_id}
        if (place := self._places.setdefault(message_id, position)) != position:
            self._moved[message_id] |= {place, position}

    def _answered(self, message_id: str, at: float) -> None:
        if self._messages[message_id].is_open:
            self._timeline.append((at, -1))
        self._messages[message_id].is_open = False

    # Judging.

    def _judge_receipts(self, reader: _Reader) -> None:
        copies: dict[tuple[str, int, str], _Copies] = {}
        highest: dict[tuple[str, str | None], int] = {}
        reached: dict[tuple[str, str], int] = {}
        for life, receipt in reader.receipts:
            entry = (receipt.epoch, receipt.seq, receipt.id)
            consumer = self._sessions[receipt.session][1].consumer
            if (earlier := copies.get(entry)) is None:
                copies[entry] = _Copies(life, not receipt.is_marked, (consumer,))
                self._judge_origin(reader, receipt)
                self._judge_order(reader, receipt, highest, reached)
            else:
                self._judge_repeat(reader, life, receipt, earlier)
            session = (receipt.session, receipt.epoch)
            reached[session] = max(reached.get(session, 0), receipt.seq)

    def _judge_origin(self, reader: _Reader, receipt: Received) -> None:
        message = self._messages.get(receipt.id)
        if message is None or message.first.stream != reader.stream:
            self._flag("phantom", _shown(reader, receipt))
        elif message.is_refused:
            self._flag("refused_delivered", _shown(reader, receipt))
        elif len(reader.consumers) == 1 and message.first.at > self._joined_at(receipt):
            self._fresh += 1
            self._fresh_marked += receipt.is_marked

    def _joined_at(self, receipt: Received) -> float:
        return self._sessions[receipt.session][1].at

    def _judge_order(
        self,
        reader: _Reader,
        receipt: Received,
        highest: dict[tuple[str, str | None], int],
        reached: dict[tuple[str, str], int],
    ) -> None:
        key = None
        if reader.mode == "key-shared" and (message := self._messages.get(receipt.id)):
            key = message.first.key
        elif reader.mode not in ORDERED:
            return
        lane = (receipt.epoch, key)
        if receipt.seq >= highest.get(lane, 0):
            highest[lane] = receipt.seq
            return
        elif reader.mode == "key-shared":
            name = "order_break_key"
        elif reached.get((receipt.session, receipt.epoch), 0) > receipt.seq:
            name = "non_monotonic_poll"
        else:
            name = "order_break_stream"
        self._flag(name, f"{_shown(reader, receipt)} came after {highest[lane]}")

    def _judge_repeat(
        self, reader: _Reader, life: int, receipt: Received, earlier: _Copies
    ) -> None:
        consumer = self._sessions[receipt.session][1].consumer
        # Consumers of one life read independently: the marked copy may be noted before the first.
        is_later = earlier.has_unmarked or life > earlier.life or consumer in earlier.consumers
        settled = reader.settled.get((receipt.epoch, receipt.seq))
        if settled is not None and _is_after(settled, life, receipt.at, consumer):
            self._flag("settled_again", _shown(reader, receipt))
        elif not receipt.is_marked and is_later:
            self._flag("duplicate_unmarked", _shown(reader, receipt))
        else:
            self._marked += 1
        earlier.has_unmarked |= not receipt.is_marked
        if consumer not in earlier.consumers:
            earlier.consumers += (consumer,)

    def _judge_positions(self) -> None:
        for (stream, position), ids in self._reused.items():
            self._flag("seq_reuse", f"{position} of {stream} held {sorted(ids)}")
        for message_id, places in self._moved.items():
            self._flag("double_append", f"{message_id} is at {sorted(places)}")

    def _judge_order_sent(self) -> None:
        lanes: defaultdict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
        for message in self._messages.values():
            place = message.position or self._places.get(message.first.id)
            # What was refused and sent again later has lost its place in the line.
            if place is not None and not message.was_refused:
                epoch, seq = place
                lane = (message.first.producer, message.first.stream, epoch)
                lanes[lane].append((message.first.number, seq))
        for (producer, stream, _), sent in lanes.items():
            for (number, seq), (_, next_seq) in pairwise(sorted(sent)):
                if next_seq < seq:
                    self._flag(
                        "order_break_sent",
                        f"{producer}'s message {number} is {seq} in {stream}, the next {next_seq}",
                    )

    def _judge_presence(self, reader: _Reader) -> None:
        acked: set[Position] = set()
        bounds = {epoch: (min(seqs), max(seqs)) for epoch, seqs in reader.seqs.items()}
        for message_id, message in self._messages.items():
            if message.acked_at is None or message.first.stream != reader.stream:
                continue
            if message.position is not None:
                acked.add(message.position)
            if message_id not in reader.ids:
                name = _loss(message.position, bounds)
                self._flag(name, f"{message_id} at {message.position} to {reader.name}")
        known = [one for one in self._readers.values() if one.stream == reader.stream]
        for epoch in {epoch for one in known for epoch in one.seqs}:
            seen = set().union(*(one.seqs.get(epoch, ()) for one in known))
            mine = reader.seqs.get(epoch, set())
            last = max(mine, default=0)
            for seq in range(1, max(seen) + 1):
                if seq in mine or (epoch, seq) in acked:
                    continue
                if seq in seen:
                    self._flag("divergence", f"{(epoch, seq)} of {reader.stream}: {reader.name}")
                elif seq < last:
                    self._flag("skip", f"{(epoch, seq)} of {reader.stream}: {reader.name}")


def _shown(reader: _Reader, receipt: Received) -> str:
    position = (receipt.epoch, receipt.seq)
    return f"{receipt.id} at {position} of {reader.stream}: {reader.name} in {receipt.session}"


def _is_after(settled: tuple[int, float, str], life: int, at: float, consumer: str) -> bool:
    """Only one consumer's own ledger, or a new life of the hub, orders the two for certain."""
    settled_life, settled_at, settled_by = settled
    return life > settled_life or (
        life == settled_life and consumer == settled_by and at > settled_at
    )


def _loss(position: Position | None, bounds: dict[str, tuple[int, int]]) -> str:
    epoch, seq = position or ("", 1)
    first, last = bounds.get(epoch, (0, 0))
    if seq > last:
        return "lost_postfix"
    return "lost_prefix" if seq < first else "lost_middle"


def _longest_wait_s(timeline: list[tuple[float, int]]) -> float:
    """The longest stretch in which somebody waited and nobody was answered."""
    longest = since = 0.0
    waiting = 0
    for at, change in sorted(timeline):
        if waiting:
            longest = max(longest, at - since)
        if change < 0 or not waiting:
            since = at
        waiting += change
    return round(longest, 6)


def _latency(acked: Sequence[_Message]) -> Latency:
    waits = sorted((message.acked_at or 0.0) - message.first.at for message in acked)

    def quantile_ms(share: float) -> float:
        return round(waits[ceil(share * len(waits)) - 1] * 1000, 3) if waits else 0.0

    return Latency(quantile_ms(0.5), quantile_ms(0.99), quantile_ms(1.0))
