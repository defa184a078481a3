"""Whatever happens between a room and its reader, the reader misses nothing that can be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from signalhub.client.rooms import protocol
from signalhub.client.rooms.answers import InboxPage, RoomMessage
from signalhub.client.rooms.protocol import CatchUp

LONG_S = 1_000.0


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> Iterator[None]:
    """Bounds so small that every run meets them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "READY_MAX", 4)
        patch.setattr(protocol, "HELD_MAX", 3)
        yield


class ReaderOfARoom(RuleBasedStateMachine):
    """What is taken is ascending; with what was gone, it is everything up to `last_seq`."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = CatchUp(0, random=lambda: 0.5)
        self.now_s = 0.0
        self.head = 0
        self.oldest = 1
        self.is_open = False
        self.asked: tuple[int, int] | None = None  # From where, and the head at that moment.
        self.taken: list[int] = []

    def message(self, seq: int) -> RoomMessage:
        return RoomMessage(seq=seq, message_id=f"m{seq}", ciphertext=b"x")

    @rule(count=st.integers(1, 6))
    def somebody_sends(self, count: int) -> None:
        for _ in range(count):
            self.head += 1
            if self.is_open:
                self.reading.heard(self.message(self.head))

    @rule()
    def somebody_appends(self) -> None:
        self.head += 1

    @rule()
    def a_frame_comes_again(self) -> None:
        if self.is_open and self.head:
            self.reading.heard(self.message(self.head))

    @rule(count=st.integers(1, 3))
    def old_messages_expire(self, count: int) -> None:
        self.oldest = min(self.head + 1, self.oldest + count)

    @precondition(lambda self: not self.is_open)
    @rule()
    def the_socket_opens(self) -> None:
        self.is_open = True
        assert self.reading.welcomed(self.head)

    @precondition(lambda self: self.is_open)
    @rule()
    def the_socket_breaks(self) -> None:
        self.is_open = False
        self.reading.lost()

    @rule(count=st.integers(1, 5))
    def the_reader_takes(self, count: int) -> None:
        for _ in range(count):
            if (message := self.reading.take()) is not None:
                self.taken.append(message.seq)

    @precondition(lambda self: self.asked is None)
    @rule()
    def time_passes(self) -> None:
        self.now_s += LONG_S
        from_seq = self.reading.next_fetch(self.now_s)
        if from_seq is not None:
            self.asked = (from_seq, self.head)

    @precondition(lambda self: self.asked is not None)
    @rule(limit=st.integers(1, 7), is_late=st.booleans())
    def a_page_comes(self, limit: int, is_late: bool) -> None:
        """It may show what was there when it was asked for, or when it was answered."""
        assert self.asked is not None
        (from_seq, head), self.asked = self.asked, None
        first = max(from_seq, self.oldest)
        seqs = range(first, (self.head if is_late else head) + 1)[:limit]
        page = InboxPage(messages=tuple(map(self.message, seqs)), oldest_seq=self.oldest)
        self.reading.fetched(from_seq, page, self.now_s)

    @precondition(lambda self: self.asked is not None)
    @rule(count=st.integers(1, 7))
    def a_page_ends_early(self, count: int) -> None:
        """The hub cannot read on, but shows what lies behind."""
        assert self.asked is not None
        (from_seq, head), self.asked = self.asked, None
        seqs = range(max(from_seq, self.oldest), head + 1)
        page = InboxPage(
            messages=tuple(map(self.message, (*seqs[:count], *seqs[count + 1 :]))),
            next_seq=(seqs[count - 1] if len(seqs) >= count else head) + 1,
            is_partial=True,
        )
        self.reading.fetched(from_seq, page, self.now_s)

    @precondition(lambda self: self.asked is not None)
    @rule(is_partial=st.booleans())
    def a_page_does_not_come(self, is_partial: bool) -> None:
        assert self.asked is not None
        (from_seq, _), self.asked = self.asked, None
        if is_partial:
            newest = (self.message(self.head),)
            self.reading.fetched(from_seq, InboxPage(messages=newest, is_partial=True), self.now_s)
        else:
            self.reading.not_fetched(1.0, self.now_s)

    @invariant()
    def nothing_is_skipped_or_read_twice(self) -> None:
        gone = {seq for one in self.reading.missed for seq in range(one.first, one.last + 1)}
        handed_out = set(self.taken) | {seq for seq in gone if seq <= self.reading.last_seq}

        assert self.taken == sorted(set(self.taken))
        assert gone <= set(range(1, self.oldest))
        assert not gone & set(self.taken)
        assert handed_out == set(range(1, self.reading.last_seq + 1))

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.reading._held) <= protocol.HELD_MAX
        assert len(self.reading._ready) <= protocol.READY_MAX + 7 + protocol.HELD_MAX

    def teardown(self) -> None:
        """Left alone with a working hub, the reader gets to the end."""
        if not self.is_open:
            self.the_socket_opens()
        self.somebody_sends(1)
        for _ in range(10 * self.head + 10):
            self.the_reader_takes(5)
            if self.asked is None:
                self.time_passes()
            if self.asked is not None:
                self.a_page_comes(7, is_late=True)
        self.nothing_is_skipped_or_read_twice()
        assert self.reading.last_seq == self.head


ReaderOfARoom.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestReaderOfARoom = ReaderOfARoom.TestCase
