"""Queues and buckets: the counts are right and the bounds hold, whatever is done to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from signalhub.core.sessions.outbound import Outbound
from signalhub.core.sessions.session import Session
from signalhub.pacing import TokenBucket
from signalhub.settings.model import OutboundSettings as Bounds

BOUNDS = Bounds(pause_messages=5, resume_messages=2, messages_max=8, bytes_max=500, stalled_s=10.0)
SENDERS = [Session(f"session-{number}", None, TokenBucket(0, 1, 0), 0) for number in range(3)]
ADDRESSES = ["@(a/1)", "@(a/2)"]


class OutboundModel(RuleBasedStateMachine):
    """Every sender is told to hold once, and every held sender is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.outbound = Outbound(BOUNDS, self.now)
        self.queue: deque[int] = deque()
        self.moved_at = 0
        self.held: list[tuple[Session, str]] = []

    @rule(size=st.integers(1, 200))
    def a_tell_arrives(self, size: int) -> None:
        admitted = self.outbound.admits(size)
        assert admitted is (len(self.queue) < 8 and sum(self.queue) + size <= 500)
        if admitted:
            self.outbound.queued(size)
            self.queue.append(size)

    @rule(size=st.integers(1, 900))
    def a_reply_arrives_and_is_never_refused(self, size: int) -> None:
        self.outbound.queued(size)
        self.queue.append(size)
        assert self.outbound.is_overrun is (sum(self.queue) > 1_000)

    @rule(sender=st.sampled_from(SENDERS), address=st.sampled_from(ADDRESSES))
    def a_sender_asks_whether_to_hold(self, sender: Session, address: str) -> None:
        is_long = len(self.queue) >= 5 or sum(self.queue) >= 250
        is_news = (sender, address) not in self.held
        assert self.outbound.pause(sender, address) is (is_long and is_news)
        if is_long and is_news:
            self.held.append((sender, address))

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def some_frames_leave(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.queue)))
        size = sum(self.queue.popleft() for _ in range(count))
        self.outbound.drained(count, size, self.now)
        self.moved_at = self.now

    @rule()
    def the_shell_looks_for_whom_to_release(self) -> None:
        released = self.outbound.release()
        if len(self.queue) <= 2 and sum(self.queue) <= 125:
            assert released == self.held
            self.held = []
        else:
            assert released == []

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1000

    @invariant()
    def the_counts_are_those_of_the_queue(self) -> None:
        assert self.outbound.messages == len(self.queue)
        assert self.outbound.bytes == sum(self.queue)
        assert self.outbound.is_stalled(self.now) is (self.now - self.moved_at >= 10_000)


OutboundTest = OutboundModel.TestCase
OutboundTest.settings = settings(max_examples=100, deadline=None)

rates = st.sampled_from([0.5, 1.0, 3.0, 100.0, 1_000.0])
bursts = st.integers(1, 20)
# Steps of a wall clock: mostly forwards, sometimes set by an hour.
steps = st.lists(
    st.one_of(st.integers(0, 3_000), st.sampled_from([-3_600_000, 3_600_000])), max_size=60
)


def moments(start_ms: int, deltas: Iterable[int]) -> Iterable[int]:
    now = start_ms
    for delta in deltas:
        now += delta
        yield now


@given(rates, bursts, steps)
def test_a_bucket_stays_between_empty_and_full_whatever_the_clock_does(
    rate: float, burst: int, deltas: list[int]
) -> None:
    bucket = TokenBucket(rate, burst, 10**12)

    for now in moments(10**12, deltas):
        bucket.take(now)
        assert 0 <= bucket.tokens <= burst


@given(rates, bursts, st.lists(st.integers(0, 500), max_size=80))
def test_no_stretch_of_time_gets_more_than_a_burst_and_its_rate(
    rate: float, burst: int, deltas: list[int]
) -> None:
    bucket = TokenBucket(rate, burst, 0)

    granted = [now for now in moments(0, deltas) if bucket.take(now)]

    for first, began in enumerate(granted):
        for last in range(first, len(granted)):
            allowed = burst + rate * (granted[last] - began) / 1000
            assert last - first + 1 <= allowed + 1e-6


@given(rates, bursts, st.lists(st.integers(0, 500), max_size=40), st.booleans())
def test_who_waits_as_long_as_told_gets_a_token_and_hardly_sooner(
    rate: float, burst: int, deltas: list[int], is_patient: bool
) -> None:
    bucket = TokenBucket(rate, burst, 0)
    for now in moments(0, deltas):
        bucket.take(now)
    last = sum(deltas)
    while bucket.take(last):
        pass

    wait_ms = bucket.retry_after_ms(last)

    assert wait_ms > 0
    if is_patient:
        assert bucket.take(last + wait_ms)
    else:
        # Rounding may cost or save a millisecond.
        assert not bucket.take(last + wait_ms - 2)
        assert bucket.take(last + wait_ms + 1)
