"""The bounds of a member of a room; `tests/vectors/client/room_*.json` has what it does."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.effects import Drop, Failed
from signalhub.client.rooms import protocol
from signalhub.client.rooms.outbox import STALE_MIN, Outgoing, RoomOutbox
from signalhub.wire.errors import Unavailable
from tests.support.memory.room_client import Member


@pytest.fixture
def joined() -> Member:
    member = Member()
    member.join(0)
    return member


def test_one_id_is_sent_once_at_a_time_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SENDS_MAX", 1)
    member = Member()
    member.play("send a b; fails b Unavailable")

    with pytest.raises(ValueError, match="already being sent"):
        member.send("a")


def seqs(first: int, last: int) -> str:
    return " ".join(map(str, range(first, last + 1)))


@pytest.mark.parametrize(
    ("bounds", "story"),
    [
        (
            {"HELD_MAX": 3},
            f"join 2; take; fetch 1; live {seqs(3, 29)}; page 1 {seqs(1, 9)}; fetch 10"
            f"; page 10 {seqs(10, 29)}; take {seqs(1, 29)}",
        ),
        (
            {"HELD_BYTES_MAX": 3},
            f"join 2; take; fetch 1; live {seqs(3, 9)}; page 1 1 2; fetch 3"
            f"; page 3 {seqs(3, 9)}; take {seqs(1, 9)}",
        ),
        (
            {"READY_MAX": 4, "HELD_MAX": 4},
            f"join 0; live {seqs(1, 20)}; take 1 2 3 4; fetch 5; page 5 {seqs(5, 20)}"
            f"; take {seqs(5, 20)}",
        ),
        # What came after the question is not taken for gone.
        (
            {"HELD_MAX": 2},
            f"join 1; take; fetch 1; live {seqs(2, 7)}; page 1; time 1; fetch 2"
            f"; page 2 {seqs(2, 7)}; missed 1 1; take {seqs(2, 7)}",
        ),
    ],
    ids=["held messages", "held bytes", "unread messages", "a page without them"],
)
def test_what_is_kept_is_bounded_and_the_rest_is_fetched(
    bounds: dict[str, int], story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in bounds.items():
        monkeypatch.setattr(protocol, name, most)

    Member().play(story)


def test_it_wakes_for_the_welcome_and_never_after_the_end() -> None:
    member = Member()
    member.open()
    assert member.protocol.wake_at_s() == member.now_s + protocol.WELCOME_S
    member.hear("error", error="cannot write", errorCode="UNAVAILABLE", retryAfterMs=1000)
    assert [drop.reason for drop in member.of(Drop)] == ["cannot write"]

    member.stop()

    assert member.protocol.wake_at_s() is None


def test_a_hub_that_cannot_take_a_message_now_is_there(joined: Member) -> None:
    joined.play("soon 5 a; wrote a; refuse a UNAVAILABLE 9000")

    (failed,) = joined.of(Failed)
    assert isinstance(failed.error, Unavailable)
    assert failed.error.is_answered


def test_forgotten_messages_do_not_pile_up_without_a_connection() -> None:
    outbox = RoomOutbox(lambda: 0.5)
    outbox.submit(Outgoing("kept", b"{}", b"x", "mls_app", 60.0))
    for number in range(10 * STALE_MIN):
        outbox.submit(Outgoing(f"m{number}", b"{}", b"x", "mls_app", 60.0))
        outbox.forget(f"m{number}")

    assert len(outbox._waiting) <= STALE_MIN + 4
    outbox.opened()
    assert list(outbox.due(0.0)) == [b"{}"]
