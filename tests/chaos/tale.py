"""Histories of an honest hub that is killed now and then, and the means to tell them dishonestly.

A tale has one topic with an exclusive, a shared and a key-shared subscription and a replay at the
end, and one mailbox. Producers repeat what was not answered, and some of it is appended and never
acknowledged; consumers get what they had not settled again, marked. Everything follows from the
seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from msgspec.structs import replace

from tests.support.process.lines import (
    Acked,
    Attempted,
    Joined,
    Line,
    Mode,
    Received,
    Refused,
    Settled,
    Started,
)

TOPIC, MAILBOX = "orders", "@(local/billing)"
EPOCH = "e1"
LIVES = 3
KEYS = 3
READERS: dict[str, tuple[str, Mode, int]] = {
    "ledger": (TOPIC, "exclusive", 1),
    "workers": (TOPIC, "shared", 2),
    "routes": (TOPIC, "key-shared", 2),
    "box": (MAILBOX, "mailbox", 1),
}
TOPIC_READERS = ("ledger", "workers", "routes", "replay")


class Tale:
    """One history; `lines` are in the order of time, times are all different."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lines: list[Line] = []
        self.log: dict[str, list[str]] = {TOPIC: [], MAILBOX: []}
        self.key_of: dict[str, str] = {}
        self.acked: set[str] = set()
        self._at = 100.0
        self._numbers: dict[str, int] = {}
        self._open: list[Attempted] = []
        self._settled: dict[str, set[str]] = {name: set() for name in READERS}
        self._delivered: dict[str, set[str]] = {name: set() for name in READERS}
        for life in range(LIVES):
            self._live(life)
        self._replay()

    # The honest part.

    def _now(self) -> float:
        self._at += self.random.uniform(0.001, 0.02)
        return self._at

    def _live(self, life: int) -> None:
        is_last = life == LIVES - 1
        self.lines.append(Started(self._now()))
        for name, (stream, mode, consumers) in READERS.items():
            for consumer in range(consumers):
                session, who = f"{name}-{consumer}#{life}", f"{name}-{consumer}"
                self.lines.append(Joined(self._now(), session, who, stream, name, mode))
        for message in self._open:
            self._attempt(message)
        for _ in range(10):
            for producer in ("north", "south"):
                self._attempt(self._new(producer, TOPIC))
            self._attempt(self._new("east", MAILBOX))
        if life == 1:
            self._leave_unknown()
        self._refuse_some()
        # A kill cuts both the appended and the answered off somewhere, the latter not later.
        appended = len(self._open) - (0 if is_last else self.random.randint(0, 6))
        answered = appended - (0 if is_last else self.random.randint(0, 6))
        for message in self._open[:appended]:
            if message.id not in self.log[message.stream]:
                self.log[message.stream].append(message.id)
        for message in self._open[:answered]:
            self._ack(message)
        self._open = self._open[answered:]
        for name in READERS:
            self._deliver(name, life, is_last)

    def _new(self, producer: str, stream: str) -> Attempted:
        number = self._numbers[producer] = self._numbers.get(producer, 0) + 1
        message_id = f"{producer}-{number}"
        self.key_of[message_id] = f"key-{number % KEYS}"
        message = Attempted(0.0, producer, stream, message_id, number, self.key_of[message_id])
        self._open.append(message)
        return message

    def _attempt(self, message: Attempted) -> None:
        self.lines.append(replace(message, at=self._now()))

    def _ack(self, message: Attempted) -> None:
        seq = self.seq_of(message.id)
        self.lines.append(Acked(self._now(), message.id, EPOCH, seq))
        self.acked.add(message.id)

    def _leave_unknown(self) -> None:
        """One producer gives up: one of its messages was appended, the other was not."""
        for is_appended in (True, False):
            message = self._new("west", TOPIC)
            self._open.remove(message)
            self._attempt(message)
            if is_appended:
                self.log[TOPIC].append(message.id)

    def _refuse_some(self) -> None:
        """One is refused for good, and another one only the first time."""
        final, later = self._new("south", TOPIC), self._new("east", MAILBOX)
        self._open.remove(final)
        for message in (final, later):
            self._attempt(message)
            self.lines.append(Refused(self._now(), message.id, "queue_full"))
        self._attempt(later)

    def _deliver(self, name: str, life: int, is_last: bool) -> None:
        stream, _, consumers = READERS[name]
        due = [one for one in self.log[stream] if one not in self._settled[name]]
        received = due if is_last else due[: len(due) - self.random.randint(0, 4)]
        received = [one for one in received if one in self.acked or one.startswith("west")]
        settled = len(received) - (0 if is_last else self.random.randint(1, 4))
        for index, message_id in enumerate(received):
            # One owner per key, as key-shared wants it; shared does not mind.
            owner = int(self.key_of[message_id][-1]) % consumers
            session, seq = f"{name}-{owner}#{life}", self.seq_of(message_id)
            is_marked = message_id in self._delivered[name]
            self.lines.append(
                Received(self._now(), session, EPOCH, seq, message_id, is_marked),
            )
            self._delivered[name].add(message_id)
            if index < settled:
                self.lines.append(Settled(self._now(), session, EPOCH, seq))
                self._settled[name].add(message_id)

    def _replay(self) -> None:
        joined = Joined(self._now(), "replay#0", "replay", TOPIC, "replay", "replay")
        self.lines.append(joined)
        for seq, message_id in enumerate(self.log[TOPIC], start=1):
            self.lines.append(Received(self._now(), "replay#0", EPOCH, seq, message_id))

    # For those who tell it otherwise.

    def seq_of(self, message_id: str) -> int:
        (stream,) = (name for name, ids in self.log.items() if message_id in ids)
        return self.log[stream].index(message_id) + 1

    def unknown(self) -> str:
        """What was appended and never acknowledged."""
        (message_id,) = set(self.log[TOPIC]) - self.acked
        return message_id

    def certain(self, stream: str) -> list[str]:
        """What was acknowledged, in the order of the log."""
        return [one for one in self.log[stream] if one in self.acked]

    def receipts(self, reader: str) -> list[Received]:
        """All copies a reader got."""
        return [
            line
            for line in self.lines
            if isinstance(line, Received) and line.session.startswith(reader)
        ]

    def firsts(self, reader: str) -> list[Received]:
        """The first copy of every entry a reader got."""
        found: dict[str, Received] = {}
        for line in self.receipts(reader):
            found.setdefault(line.id, line)
        return list(found.values())

    def forget(self, reader: str, ids: Iterable[str]) -> None:
        """Let a reader never have received these."""
        stream = TOPIC if reader == "replay" else READERS[reader][0]
        seqs = {self.log[stream].index(one) + 1 for one in ids}
        self.lines = [
            line
            for line in self.lines
            if not isinstance(line, Received | Settled)
            or not line.session.startswith(reader)
            or line.seq not in seqs
        ]

    def change(self, change: Callable[[Line], Line]) -> None:
        """Rewrite every line."""
        self.lines = [change(line) for line in self.lines]

    def put(self, line: Received, after: Line) -> None:
        """One more copy, directly after a line."""
        at = self.lines.index(after)
        self.lines.insert(at + 1, replace(line, at=after.at + 1e-9))

    def swap(self, first: Received, second: Received) -> None:
        """Let two copies have arrived the other way round."""
        here, there = self.lines.index(first), self.lines.index(second)
        self.lines[here] = replace(second, at=first.at)
        self.lines[there] = replace(first, at=second.at)

    def append(self, message_id: str, seq: int | None = None) -> None:
        """One more entry of the topic, at its end unless said otherwise, received by all."""
        if seq is None:
            self.log[TOPIC].append(message_id)
            seq = len(self.log[TOPIC])
        for reader in TOPIC_READERS:
            near = [line for line in self.receipts(reader) if line.seq <= seq]
            last = max(near, key=lambda line: (line.seq, -line.at))
            self.put(replace(last, seq=seq, id=message_id, is_marked=False), last)
