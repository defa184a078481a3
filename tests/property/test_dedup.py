"""Whatever is accepted and asked for in whatever order, the table answers like a plain dict."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from signalhub.core.messages.dedup import Dedup, KnownAck

WINDOW_MS = 60_000
BEGIN_MS = 1_760_000_000_000
MEMORY_BYTES_MAX = 4_000

senders = st.sampled_from(["@(local/a)", "@(local/ab)", "@(local/é)", "@(local/a\0)"])
message_ids = st.integers(0, 40).map(str)
steps_ms = st.one_of(st.integers(0, 50), st.integers(0, WINDOW_MS + 2))
acks = st.builds(
    lambda delay_ms, status, extra: (delay_ms, status, extra),
    st.sampled_from([0, 0, 1, 5_000, 2**20 - 1, 2**20, -1, -(10**9)]),
    st.sampled_from(["delivered", "queued"]),
    st.sampled_from([b"", b"", b"", b'{"deliveredCount":3}']),
)


class AmpleMemory(RuleBasedStateMachine):
    """With memory to spare every ack is found until the window has passed, and none after it."""

    def __init__(self) -> None:
        super().__init__()
        self.dedup = Dedup(WINDOW_MS, 2**30)
        self.now_ms = BEGIN_MS
        self.model: dict[tuple[str, str], tuple[int, KnownAck]] = {}

    def expected(self, sender: str, message_id: str) -> KnownAck | None:
        accepted_at_ms, ack = self.model.get((sender, message_id), (0, None))
        return ack if self.now_ms - accepted_at_ms <= WINDOW_MS else None

    @rule(step_ms=steps_ms)
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(sender=senders, message_id=message_ids, ack=acks)
    def accept(self, sender: str, message_id: str, ack: tuple[int, str, bytes]) -> None:
        delay_ms, status, extra = ack
        answer = KnownAck(self.now_ms + delay_ms, status, extra)  # type: ignore[arg-type]
        known = self.dedup.find(sender, message_id, self.now_ms)

        assert known == self.expected(sender, message_id)
        if known is None:
            self.dedup.remember(sender, message_id, self.now_ms, answer)
            self.model[sender, message_id] = (self.now_ms, answer)

    @rule(first=st.integers(0, 10_000), count=st.integers(1, 300))
    def accept_many(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.accept("@(local/busy)", f"many-{number}", (0, "delivered", b""))

    @rule()
    def sweep(self) -> None:
        self.dedup.sweep(self.now_ms)

    @rule()
    def everything_is_as_expected(self) -> None:
        for sender, message_id in self.model:
            found = self.dedup.find(sender, message_id, self.now_ms)
            assert found == self.expected(sender, message_id)

    @invariant()
    def the_window_is_whole(self) -> None:
        assert self.dedup.window_ms == WINDOW_MS
        assert not self.dedup.is_shortened


class ScarceMemory(RuleBasedStateMachine):
    """Memory stays bounded, and what the window promises is found, whatever the clock does."""

    def __init__(self) -> None:
        super().__init__()
        self.dedup = Dedup(WINDOW_MS, MEMORY_BYTES_MAX)
        self.now_ms = BEGIN_MS
        self.elapsed_ms = 0
        self.accepted: dict[str, tuple[int, KnownAck]] = {}
        self.number = 0

    @rule(step_ms=steps_ms)
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.elapsed_ms += step_ms
        self.dedup.sweep(self.now_ms)

    @rule(back_ms=st.sampled_from([1, 500, 3_600_000, 10**12]))
    def the_clock_jumps_back(self, back_ms: int) -> None:
        self.now_ms -= back_ms

    @rule(count=st.integers(1, 100))
    def accept(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            ack = KnownAck(self.now_ms)
            self.dedup.remember("@(local/a)", str(self.number), self.now_ms, ack)
            self.accepted[str(self.number)] = (self.elapsed_ms, ack)

    @precondition(lambda self: self.accepted)
    @rule()
    def what_is_within_the_window_is_found(self) -> None:
        self.dedup.sweep(self.now_ms)
        for message_id, (accepted_at_ms, ack) in self.accepted.items():
            found = self.dedup.find("@(local/a)", message_id, self.now_ms)
            # Jumps and jitter make the table's time run ahead by a little, never behind.
            if self.elapsed_ms - accepted_at_ms < self.dedup.window_ms - 2_000:
                assert found == ack
            assert found in (None, ack)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.dedup.memory_bytes <= MEMORY_BYTES_MAX
        assert 0 <= self.dedup.window_ms <= WINDOW_MS


TestAmpleMemory = AmpleMemory.TestCase
TestAmpleMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestScarceMemory = ScarceMemory.TestCase
TestScarceMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
