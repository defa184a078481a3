"""The counters of the core: integers, and histograms of durations.

Counting costs one addition, so everything that is refused, repeated or dropped is counted. Counters
are never reset; compare two readings for a rate.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

DELIVERY_BOUNDS_S = (
    0.00001,
    0.000025,
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
)
ASK_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.2, 1.0, 5.0, 30.0)
# A broadcast may take minutes, and its alert fires at 120 s.
BROADCAST_BOUNDS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# From a RAM disk to a slow hard disk; the alert fires at 0.25 s.
SYNC_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)


class Histogram:
    """A histogram of durations.

    Invariant: `counts[i]` holds the durations of at most `bounds_s[i]` and above the bound before
    it; the last count holds everything longer.
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        assert all(low < high for low, high in pairwise(bounds_s))
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration; a negative one, after the clock was set back, counts as zero."""
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(self.bounds_s, seconds)] += times
        self.sum_s += seconds * times

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True, eq=False)
class SubscriptionTally:
    """What happened to the messages of one subscription since the process started.

    All mailboxes share one: there are many, and their addresses are private.
    """

    delivered: int = 0
    settled: int = 0
    redelivered: int = 0
    nacked: int = 0
    timeouts: int = 0
    exhausted: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    lost: int = 0  # Removed by retention before they were settled.
    ignored: int = 0  # Settlements of messages not in flight.

    wake_polls: int = 0
    heartbeat_polls: int = 0
    recovered_wakes: int = 0  # Heartbeat polls that found work a wake should have reported.
    empty_reads: int = 0
    restarts: int = 0
    cursors: int = 0  # Cursors that reached the log.

    def add(self, other: SubscriptionTally) -> None:
        """Add the counts of another one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class LogTally:
    """The log since it was opened; written by the commit thread."""

    batches: int = 0
    bytes: int = 0
    read_errors: int = 0
    # Found when the log was opened; at most one each.
    torn_tails: int = 0
    epoch_changes: int = 0
    sync_latency: Histogram = field(default_factory=lambda: Histogram(SYNC_BOUNDS_S))


@dataclass(slots=True)
class RoomTally:
    """Rooms and inboxes."""

    sent: int = 0  # Messages accepted for a room.
    appended: int = 0  # Messages accepted for an inbox directly.
    repeats: int = 0
    conflicts: int = 0  # Repeats with another ciphertext.
    limited: int = 0
    denied: int = 0  # Requests without a token or capability that permits them.
    refused: int = 0  # By the log, or because a limit is reached.
    over_cap: int = 0  # Of these: too many unarchived messages.
    disk_full: int = 0  # Of these: rooms take as much disk as they may.
    announced: int = 0  # Copies queued on sockets.
    slow_closed: int = 0
    joined: int = 0
    left: int = 0
    fetches: int = 0
    fetched: int = 0  # Messages in pages.
    log_reads: int = 0
    archive_reads: int = 0
    partial: int = 0
    recalls: int = 0
    proposals_expired: int = 0
    accept_latency: Histogram = field(default_factory=lambda: Histogram(ASK_BOUNDS_S))


@dataclass(slots=True)
class LakeTally:
    """The hub's requests to the lake, and the counters of the pipeline since its start."""

    consults: int = 0
    failures: int = 0  # Requests to the lake that failed.
    restarts: int = 0  # Of the pipeline started by the hub.
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    quarantined: int = 0


@dataclass(slots=True)
class ReaderTally:
    """The process that reads disk and lake for people."""

    starts: int = 0
    questions: int = 0
    failures: int = 0  # Questions without an answer, because it ended or took too long.


@dataclass(slots=True)
class Tally:
    """All counters of the core since its start."""

    received: int = 0
    sent: int = 0  # Frames handed over for delivery or as a reply.

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    reconnections: int = 0  # Connects with an address that was already known.

    logins_refused: int = 0  # By any door.

    registrations: int = 0
    registry_refused: int = 0

    broadcasts: int = 0
    broadcast_copies: int = 0
    broadcast_failed: int = 0
    published: int = 0
    audiences_cut: int = 0  # Searches for wildcards that visited too many nodes.
    deliveries: int = 0

    duplicates: int = 0
    expired_tells: int = 0
    expired_asks: int = 0
    unknown_targets: int = 0
    dropped_tells: int = 0  # The recipient reads too slowly or is gone.
    slow_closed: int = 0
    floods_closed: int = 0
    debtors_closed: int = 0  # Too much waited for all clients together, most of it for these.
    paused: int = 0
    resumed: int = 0
    rate_limited: int = 0

    queued_asks: int = 0  # Answered as queued in a mailbox.
    mailbox_full: int = 0
    mailbox_dropped: int = 0  # Messages deleted with their mailbox.
    actors_placed: int = 0  # Durable actors that got their first place.
    actors_moved: int = 0
    stale_fences: int = 0  # Messages refused because of a stale fence.
    lost: int = 0  # Removed by retention before they were settled.
    loss_events: int = 0
    appended: int = 0  # Entries committed to the log.
    append_refused: int = 0
    mailboxes: SubscriptionTally = field(default_factory=SubscriptionTally)
    rooms: RoomTally = field(default_factory=RoomTally)
    log: LogTally = field(default_factory=LogTally)
    lake: LakeTally = field(default_factory=LakeTally)
    reader: ReaderTally = field(default_factory=ReaderTally)

    errors: dict[str, int] = field(default_factory=dict)  # By code.

    # From the receipt of frames to the hand-over of the resulting frames.
    delivery_latency: Histogram = field(default_factory=lambda: Histogram(DELIVERY_BOUNDS_S))
    ask_latency: Histogram = field(default_factory=lambda: Histogram(ASK_BOUNDS_S))
    broadcast_latency: Histogram = field(default_factory=lambda: Histogram(BROADCAST_BOUNDS_S))

    def count_error(self, code: str) -> None:
        """Count one `hub:error` by its code."""
        self.errors[code] = self.errors.get(code, 0) + 1
