"""The table of the native part holds the same records, in the same memory, as the one in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from signalhub import native
from signalhub.core.messages.dedup import (
    Dedup,
    KnownAck,
    Remembered,
    fingerprint,
    plain_fingerprint,
)

pytestmark = pytest.mark.skipif(not native.IS_ON, reason="needs the native part")

WINDOW_MS = 60_000
BEGIN_MS = 1_760_000_000_000

numbers = st.integers(0, 400)
steps_ms = st.one_of(st.integers(0, 50), st.integers(0, WINDOW_MS + 2), st.just(-700))
acks = st.tuples(
    st.sampled_from([0, 0, 1, 5_000, 2**20 - 1, 2**20, -1, -(10**9)]),
    st.sampled_from(["delivered", "queued"]),
    st.sampled_from([b"", b"", b"", b'{"deliveredCount":3}']),
    st.sampled_from([0, 7, 2**40 - 1, 2**40]),
    st.sampled_from([0, 3, 2**32 - 1, 2**32]),
)


def key_of(number: int) -> bytes:
    return fingerprint("@(local/a)", str(number))


class Lockstep(RuleBasedStateMachine):
    """Both tables get the same calls."""

    memory_bytes_max = 2**30

    def __init__(self) -> None:
        super().__init__()
        self.begin([])

    def begin(self, kept: list[Remembered]) -> None:
        ours = Dedup(WINDOW_MS, self.memory_bytes_max)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "IS_ON", False)
            theirs = Dedup(WINDOW_MS, self.memory_bytes_max)
        assert type(ours._table) is not type(theirs._table)
        self.both = (ours, theirs)
        self.now_ms = BEGIN_MS
        self.kept: list[Remembered] = []
        for one in self.both:
            one.load(kept)
            one.keep_fresh()

    def same(self, call: Any) -> Any:
        ours, theirs = map(call, self.both)
        assert ours == theirs
        return ours

    @rule(step_ms=steps_ms)
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(number=numbers, ack=acks)
    def accept(self, number: int, ack: tuple[int, Any, bytes, int, int]) -> None:
        delay_ms, status, extra, seq, stream = ack
        answer = KnownAck(self.now_ms + delay_ms, status, extra, seq, stream)
        self.same(lambda one: one.remember_by(key_of(number), self.now_ms, answer))

    @rule(
        first=numbers,
        count=st.integers(1, 70),
        age_ms=st.sampled_from([0, 0, 3, 9_999, 10_001, -5, -(2**20)]),
        seq=st.sampled_from([1, 900, 2**40 - 30]),
    )
    def accept_run(self, first: int, count: int, age_ms: int, seq: int) -> None:
        keys = [key_of(number) for number in range(first, first + count)]
        at_ms = self.now_ms - age_ms
        self.same(lambda one: one.remember_queued(list(keys), self.now_ms, at_ms, seq, 5))

    @rule(
        first=numbers,
        count=st.integers(1, 70),
        age_ms=st.sampled_from([0, 0, 3, 9_999, 10_001, -5, -(2**20)]),
        seq=st.sampled_from([1, 900, 2**40 - 30]),
        stream=st.sampled_from([0, 7, 2**32 - 30]),
    )
    def accept_each(self, first: int, count: int, age_ms: int, seq: int, stream: int) -> None:
        numbers = range(first, first + count)
        keys = [key_of(number) for number in numbers]
        streams, seqs = [stream + at for at in range(count)], [seq + at for at in range(count)]
        at_ms = self.now_ms - age_ms
        self.same(lambda one: one.remember_delivered(keys, self.now_ms, at_ms, streams, seqs))

    @rule(first=numbers, count=st.integers(1, 5))
    def look(self, first: int, count: int) -> None:
        keys = [key_of(number) for number in range(first, first + count)]
        for key in keys:
            self.same(lambda one, key=key: one.find_by(key, self.now_ms))
        self.same(lambda one: one.knows_any(list(keys), self.now_ms))

    @rule()
    def sweep(self) -> None:
        self.same(lambda one: one.sweep(self.now_ms))

    @rule()
    def snapshot(self) -> None:
        self.kept.append(self.same(Dedup.take_fresh))

    @rule()
    def restart(self) -> None:
        self.snapshot()
        kept, now_ms = self.kept, self.now_ms
        self.begin(kept)
        self.kept, self.now_ms = kept, now_ms

    @invariant()
    def both_take_the_same_room(self) -> None:
        self.same(lambda one: (one.count, one.memory_bytes, one.window_ms, one._slices))


class ScarceLockstep(Lockstep):
    """The same with so little memory that the oldest ids are forgotten."""

    memory_bytes_max = 5_000


TestLockstep = Lockstep.TestCase
TestLockstep.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestScarceLockstep = ScarceLockstep.TestCase
TestScarceLockstep.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


@given(st.integers(1, 90), st.integers(0, 2**16), st.sampled_from([5_000, 2**30]))
def test_messages_remembered_together_are_remembered_as_each_would_be(
    count: int, age_ms: int, memory_bytes_max: int
) -> None:
    keys = [key_of(number) for number in range(count)]
    together, singly = (Dedup(WINDOW_MS, memory_bytes_max) for _ in range(2))
    numbers = list(range(1, count + 1))
    together.remember_delivered(keys, BEGIN_MS, BEGIN_MS - age_ms, numbers, numbers)
    for key, number in zip(keys, numbers, strict=True):
        ack = KnownAck(BEGIN_MS - age_ms, seq=number, stream=number)
        singly.remember_by(key, BEGIN_MS, ack)

    for key in keys:
        assert together.find_by(key, BEGIN_MS) == singly.find_by(key, BEGIN_MS)
    assert together.count == singly.count


def test_a_key_has_ten_bytes() -> None:
    table: Any = Dedup(WINDOW_MS, 2**20)._table
    for call in (table.find, table.is_aside, lambda key: table.knows_any([key], 0)):
        with pytest.raises(ValueError, match="ten bytes"):
            call(b"short")


texts = st.text(st.characters(), max_size=300)


@given(texts, texts)
@example("\ud800", "a")
@example("a", "\udfff")
@example("a" * 126, "")
@example("a" * 60, "b" * 65)
def test_keys_are_the_same(sender: str, message_id: str) -> None:
    assert fingerprint is not plain_fingerprint
    assert fingerprint(sender, message_id) == plain_fingerprint(sender, message_id)
