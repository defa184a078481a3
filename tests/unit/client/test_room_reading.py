"""Reading a room: in order, nothing twice, nothing left out, within bounds."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.effects import Stop, Warned
from signalhub.client.rooms import protocol
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage
from signalhub.client.rooms.protocol import FetchPage, MemberPhase
from signalhub.wire.errors import GaveUp, Refused
from tests.support.memory.room_client import Member


def joined(last_seq: int = 0, since: int | None = 0) -> Member:
    """A member whose reader waits."""
    member = Member(since)
    member.join(last_seq)
    assert member.take() == []
    return member


def test_live_messages_are_read_at_once_and_each_once() -> None:
    member = joined()
    member.live(1, 2, 1, 2)
    member.live(3, message_id="m1")

    assert member.take() == [1, 2]
    assert member.protocol.reading.last_seq == 3
    assert member.of(FetchPage) == []


def test_what_was_missed_comes_first_page_by_page_and_live_messages_wait() -> None:
    member = joined(last_seq=5)
    assert member.fetch() == 1
    member.live(6, 7)
    assert member.take() == []

    member.page(1, 1, 2)
    assert member.fetch() == 3
    member.page(3, 3, 4)
    assert member.fetch() == 5
    member.page(5, 5, 6, 7, 8)
    member.live(8, 9)

    assert member.take() == list(range(1, 10))
    assert member.fresh(FetchPage) == []


def test_reading_begins_after_a_position_or_with_what_is_new() -> None:
    back = joined(last_seq=9, since=7)
    back.page(back.fetch(), 8, 9)
    late = joined(last_seq=9, since=None)
    late.live(10)

    assert back.take() == [8, 9]
    assert late.take() == [10]
    assert late.of(FetchPage) == []


def test_whoever_only_sends_fetches_nothing() -> None:
    member = Member()
    member.join(last_seq=50)
    member.send("a")
    member.pass_time(1)

    assert member.of(FetchPage) == []


def test_gaps_between_live_messages_are_fetched_with_pauses_between_them() -> None:
    member = joined()
    member.live(1, 3)
    assert member.take() == [1]
    member.page(member.fetch(), 2, 3)
    assert member.take() == [2, 3]

    member.live(5)
    assert member.fresh(FetchPage) == []
    member.pass_time(protocol.PAUSE_S)

    assert member.fetch() == 4


def test_after_a_loss_the_gap_is_read_and_nothing_is_read_again() -> None:
    member = joined()
    member.live(1)
    assert member.take() == [1]

    member.lose()
    member.join(last_seq=3)
    member.live(4)
    member.page(member.fetch(), 2, 3, 4)
    member.live(5)

    assert member.take() == [2, 3, 4, 5]


def test_a_page_that_arrives_after_the_loss_still_counts() -> None:
    member = joined(last_seq=2)
    asked = member.fetch()

    member.lose()
    member.page(asked, 1, 2)
    member.join(last_seq=3)
    member.pass_time(protocol.PAUSE_S)

    assert member.take() == [1, 2]
    assert member.fetch() == 3


def test_a_partial_page_is_asked_for_again_and_not_used() -> None:
    member = joined(last_seq=9)

    member.page(member.fetch(), 8, 9, partial=True)
    assert member.take() == []
    assert member.fresh(FetchPage) == []
    member.pass_time(protocol.PARTIAL_S)
    assert member.fetch() == 1
    member.page(1, *range(1, 10))

    assert member.take() == list(range(1, 10))
    assert not member.protocol.reading.missed


def test_a_limited_fetch_waits_as_long_as_the_hub_says() -> None:
    member = joined(last_seq=1)
    member.fetch()

    member.no_page(17.0)
    member.pass_time(16.9)
    assert member.fresh(FetchPage) == []
    member.pass_time(0.2)

    assert member.fetch() == 1


def test_a_hub_that_cannot_be_fetched_from_is_asked_ever_more_seldom() -> None:
    member = joined(last_seq=1)
    waits = []
    for _ in range(12):
        member.fetch()
        member.no_page(0.0)
        wake_at_s = member.protocol.reading.wake_at_s
        assert wake_at_s is not None
        waits.append(round(wake_at_s - member.now_s, 6))
        member.pass_time(waits[-1] + 0.001)

    assert waits == sorted(waits)
    assert waits[0] <= 0.2
    assert waits[-1] == 5.0


def test_an_inbox_that_is_refused_for_good_ends_it() -> None:
    member = joined(last_seq=1)

    member.no_page(None, Refused("BAD_REQUEST", "no"))

    (stop,) = member.of(Stop)
    assert isinstance(stop.error, GaveUp)
    assert member.protocol.phase is MemberPhase.STOPPED


@pytest.mark.parametrize(
    ("kept", "missed"), [((7, 8, 9), Missed(1, 6)), ((), Missed(1, 9))], ids=["some", "all"]
)
def test_what_is_gone_is_told_and_passed_over(kept: tuple[int, ...], missed: Missed) -> None:
    member = joined(last_seq=9)

    member.page(member.fetch(), *kept)
    member.live(10)

    assert member.take() == [*kept, 10]
    assert list(member.protocol.reading.missed) == [missed]
    assert [one.facts for one in member.of(Warned)] == [missed._asdict()]


def test_what_came_after_the_question_is_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "HELD_MAX", 2)
    member = joined(last_seq=1)
    asked = member.fetch()
    member.live(*range(2, 8))

    member.page(asked)
    member.pass_time(protocol.PAUSE_S)
    member.page(member.fetch(), *range(2, 8))

    assert list(member.protocol.reading.missed) == [Missed(1, 1)]
    assert member.take() == list(range(2, 8))


def test_neighbouring_losses_are_one_and_each_is_told_once() -> None:
    member = joined(last_seq=3)
    member.page(member.fetch())
    member.lose()
    member.join(last_seq=5)
    member.pass_time(protocol.PAUSE_S)

    member.page(member.fetch())

    assert list(member.protocol.reading.missed) == [Missed(1, 5)]
    assert member.of(Warned)[-1].facts == {"first": 4, "last": 5}


def test_a_hub_that_lost_what_we_read_is_read_from_its_beginning() -> None:
    member = joined()
    member.live(1, 2, 3)
    assert member.take() == [1, 2, 3]

    member.lose()
    member.join(last_seq=2)
    assert member.fetch() == 1
    known = RoomMessage(seq=1, message_id="m1", ciphertext=b"x")
    fresh = RoomMessage(seq=2, message_id="another", ciphertext=b"x")
    page = InboxPage(messages=(known, fresh), next_seq=3, oldest_seq=1)
    member.effects += member.protocol.fetched(1, page, member.now_s)

    assert member.take() == [2]
    assert member.protocol.reading.rewound == 1


def test_a_page_asked_for_before_a_rewind_is_not_used() -> None:
    member = joined(last_seq=5)
    member.page(member.fetch(), 1, 2, 3, 4)
    assert member.take() == [1, 2, 3, 4]
    asked = member.fetch()

    member.lose()
    member.join(last_seq=1)
    member.page(asked, 5)

    assert member.take() == []
    assert member.fetch() == 1


@pytest.mark.parametrize(
    ("bound", "most"), [("HELD_MAX", 3), ("HELD_BYTES_MAX", 100)], ids=["messages", "bytes"]
)
def test_held_messages_beyond_the_bound_are_fetched_instead(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, bound, most)
    member = joined(last_seq=2)
    asked = member.fetch()
    for seq in range(3, 30):
        member.live(seq, data=b"y" * 30)

    member.page(asked, *range(1, 10))
    member.page(member.fetch(), *range(10, 30))

    assert member.take() == list(range(1, 30))


def test_unread_messages_are_bounded_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "READY_MAX", 4)
    monkeypatch.setattr(protocol, "HELD_MAX", 4)
    member = Member()
    member.join()
    member.live(*range(1, 21))

    first = member.take()
    asked = member.fetch()
    member.page(asked, *range(asked, 21))

    assert len(first) <= 8
    assert first + member.take() == list(range(1, 21))


def test_a_slow_reader_is_not_given_the_next_page_before_it_needs_it() -> None:
    member = joined(last_seq=2_500)
    member.page(member.fetch(), *range(1, 1_001))
    assert member.fresh(FetchPage) == []

    for _ in range(501):
        _, effects = member.protocol.take(member.now_s)
        member.effects += effects

    assert member.fetch() == 1_001
