"""A log at work on a bad disk, and what must be true of it whatever the disk does.

`Run` drives a log step by step and keeps the ledger of an outside observer: what was submitted,
what was acknowledged, what retention was told to remove. `survive` opens what a crash has left and
holds it against the ledger. Everything follows from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from signalhub.log.disk import Disk
from signalhub.log.errors import LogFull
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import LogRecovery, recover
from signalhub.log.verify import verify
from signalhub.settings import model
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.testing.disk import Operation
from signalhub.wire.entry import Entry, Kind, StoredEntry
from tests.support.memory.log import as_entry
from tests.support.volume import thinned

Sync = Literal["always", "interval", "os"]
Stream = tuple[str, int]

SEGMENT_BYTES = 6 * 1024
STREAMS: tuple[Stream, ...] = (("mail/alice", 1), ("orders", 1), ("orders", 2), ("preise/größe", 7))
ENDLESS = 2**30
# A new log takes its epoch from the clock.
EPOCH = FakeClock().now_ms() // 1000

# At which call an operation may fail. Names change seldom, so there are fewer moments for that.
CALLS = thinned(range(1, 51))
MOMENTS: dict[Operation, Sequence[int]] = {
    "sync": CALLS,
    "write": CALLS,
    "sync_names": range(1, 13),
    "create": range(1, 13),
    "rename": range(1, 11),
}


def log_settings(sync: Sync = "always", segment_bytes: int = SEGMENT_BYTES) -> model.LogSettings:
    """Segments far smaller than the settings file allows, so that a short run rolls often."""
    return model.LogSettings(sync=sync, segment_bytes=segment_bytes, segment_s=3_600.0)


def opened(disk: Disk, *, sync: Sync = "always", segment_bytes: int = SEGMENT_BYTES) -> Log:
    """The log in a folder, after recovery."""
    settings = log_settings(sync, segment_bytes)
    return Log(disk, settings, recover(disk, repair=True), clock=FakeClock())


@dataclass
class Ledger:
    """What an observer of the log knows; offsets are positions in `submitted`."""

    submitted: list[Entry] = field(default_factory=list)
    acked: int = 0
    removed: int = 0
    epoch: int = EPOCH

    def next_seq(self, stream: Stream) -> int:
        own = (one.seq for one in self.submitted if (one.stream, one.stream_epoch) == stream)
        return max(own, default=0) + 1

    def cut(self, head: int) -> None:
        """What the log shows after a restart is what happened."""
        del self.submitted[head:]
        self.acked = head


def copy_of(ledger: Ledger) -> Ledger:
    """The same knowledge for another course of events."""
    return replace(ledger, submitted=[*ledger.submitted])


def make_entries(rng: Random, ledger: Ledger, count: int, now_ms: int) -> list[Entry]:
    """Entries of every shape, some of which look like something else on the disk."""
    entries = []
    taken: Counter[Stream] = Counter()
    for _ in range(count):
        stream = rng.choice(STREAMS)
        is_settlement = rng.random() < 0.2
        seq = 0 if is_settlement else ledger.next_seq(stream) + taken[stream]
        taken[stream] += not is_settlement
        kind = Kind.SETTLED if is_settlement else Kind.PUBLISHED
        entries.append(Entry(kind, stream[0], stream[1], seq, now_ms, make_body(rng)))
    return entries


def make_body(rng: Random) -> bytes:
    size = rng.choice((0, 1, 30, 200, 500, 1_300))
    shape = rng.random()
    if shape < 0.1:
        return bytes(size)
    if shape < 0.2:
        # A batch inside a batch must never be taken for one of the log's own.
        entry = encode_entry(Entry(1, "forged", 1, 1, 0, bytes(size)), bytes(16))
        return encode_batch([entry], first=0, epoch=1, durable=10**6, time_ms=0)
    return rng.randbytes(size)


class Run:
    """One process: it opens the log, uses it, and may end at any moment."""

    def __init__(
        self,
        disk: FaultyDisk,
        ledger: Ledger,
        rng: Random,
        *,
        sync: Sync = "always",
        clock: FakeClock | None = None,
    ) -> None:
        self.disk = disk
        self.ledger = ledger
        self.clock = clock or FakeClock()
        self.refusals = 0
        """How often the disk was full; what was refused never happened."""
        self._rng = rng
        self._sync = sync
        self._open()

    def _open(self) -> None:
        self.recovery = recover(self.disk, repair=True)
        assert self.recovery.damage is None
        self.log = Log(self.disk, log_settings(self._sync), self.recovery, clock=self.clock)
        self._slices = self.log.upkeep()

    def append(self, count: int) -> None:
        entries = make_entries(self._rng, self.ledger, count, self.clock.now_ms())
        expected = len(self.ledger.submitted)
        self.ledger.submitted += entries
        try:
            assert self.log.append(entries) == expected
        except LogFull:
            self.refusals += 1
            del self.ledger.submitted[expected:]
            return
        if self._sync == "always":
            self.ledger.acked = len(self.ledger.submitted)

    def sync(self) -> None:
        self.log.sync()
        self.ledger.acked = len(self.ledger.submitted)

    def upkeep(self, slices: int = ENDLESS) -> None:
        """Go on with what can wait, as far as the slices reach."""
        for _ in range(slices):
            if next(self._slices, self) is self:
                if not self.log.has_upkeep:
                    break
                self._slices = self.log.upkeep()

    def retain(self) -> None:
        """Remove the oldest sealed segment, if there is one to spare."""
        oldest = next(iter(self.log.segments))
        if oldest.is_sealed:
            self.ledger.removed = oldest.end
            self.log.remove([oldest])

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.abandon()
        self.ledger.acked = len(self.ledger.submitted)

    def abandon(self) -> None:
        """Close without believing that it has worked."""
        self._slices.close()
        self.log.close()

    def live(self, steps: int) -> None:
        """Everything a log does, in an order the seed decides."""
        for _ in range(steps):
            chosen = self._rng.random()
            if chosen < 0.55:
                self.append(self._rng.choice((1, 1, 1, 2, 3, 8)))
            elif chosen < 0.75:
                self.upkeep(slices=self._rng.choice((1, 1, 3, 20)))
            elif chosen < 0.82:
                self.upkeep()
            elif chosen < 0.88:
                self.retain()
            elif chosen < 0.92:
                self.clock.advance(self._rng.choice((1.0, 4_000.0)))
            elif chosen < 0.97:
                self.sync()
            else:
                self.reopen()


def live(disk: FaultyDisk, ledger: Ledger, seed: int, steps: int, sync: Sync = "always") -> None:
    """A whole run, or as much of it as the disk allows."""
    run = Run(disk, ledger, Random(seed), sync=sync)
    run.live(steps)
    run.close()


def survive(disk: FaultyDisk, ledger: Ledger, *, sync: Sync = "always") -> LogRecovery:
    """Open what a crash has left; the ledger goes on with what was found."""
    dry = recover(disk, repair=False)
    assert disk.operations == 0, "looking changes nothing"
    published = [*Reader.of_folder(disk).scan(dry.first)]
    assert_same(published, ledger, dry.first)

    found = recover(disk, repair=True)

    assert found.damage is None
    assert (found.first, found.head) == (dry.first, dry.head)
    assert found.first <= ledger.removed
    assert ledger.acked <= found.head <= len(ledger.submitted)
    assert_idempotent(disk, found)
    log = Log(disk, log_settings(sync), found, clock=FakeClock())
    assert (log.first, log.head, log.durable_head) == (found.first, found.head, found.head)
    assert_readable(log, ledger)
    ledger.epoch = log.epoch
    log.close()
    ledger.cut(found.head)
    return found


def assert_idempotent(disk: FaultyDisk, found: LogRecovery) -> None:
    """A second recovery finds the same log, whole, and has nothing to do."""
    before = disk.files()
    again = recover(disk, repair=True)
    assert (again.epoch, again.first, again.head) == (found.epoch, found.first, found.head)
    assert again.torn is None
    assert not again.epoch_changed
    assert disk.files() == before


def assert_readable(log: Log, ledger: Ledger) -> None:
    """The log is a prefix of what was submitted, and the streams are what a scan says they are."""
    reader = Reader(log)
    stored = [*reader.scan(log.first)]
    assert len(stored) == log.head - log.first
    assert_same(stored, ledger, log.first)
    for stream in STREAMS:
        assert_stream(reader, stream, stored)
    reader.close()


def assert_stream(reader: Reader, stream: Stream, stored: list[StoredEntry]) -> None:
    """Reading a stream in pieces gives what a plain scan of the log gives."""
    expected = [one for one in stored if (one.stream, one.stream_epoch) == stream and one.seq]
    assert reader.earliest(*stream) == (expected[0].seq if expected else None)
    found: list[StoredEntry] = []
    from_seq = 1
    while piece := reader.read(*stream, from_seq, 3, ENDLESS):
        found += piece
        from_seq = piece[-1].seq + 1
    assert found == expected


def assert_same(stored: list[StoredEntry], ledger: Ledger, first: int) -> None:
    assert [one.offset for one in stored] == [*range(first, first + len(stored))]
    for one in stored:
        assert as_entry(one) == ledger.submitted[one.offset]


@contextmanager
def explained(*circumstances: object) -> Iterator[None]:
    """A failure inside says under which circumstances it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(" ".join(map(str, circumstances)))
        raise


def go_on(disk: FaultyDisk, ledger: Ledger, *, sync: Sync = "always", seed: int = 0) -> None:
    """A recovered log is a log like any other: it grows, seals, closes and verifies."""
    run = Run(disk, ledger, Random(seed), sync=sync)
    for _ in range(4):
        run.append(3)
    run.upkeep()
    run.sync()
    assert_readable(run.log, ledger)
    run.close()
    assert_sound(disk, ledger)


def assert_sound(disk: Disk, ledger: Ledger) -> None:
    report = verify(disk)
    assert report.problems == ()
    assert report.head == len(ledger.submitted)
    assert report.entries == report.head - report.first
    assert report.torn is None
