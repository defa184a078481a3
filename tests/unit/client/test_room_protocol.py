"""A member of a room: joining, sending until answered, own messages, signs of life."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Drop, Failed, Stop, Warned
from signalhub.client.rooms import protocol
from signalhub.client.rooms.answers import RoomMessage
from signalhub.client.rooms.protocol import FetchPage, Joined, MessageAccepted
from signalhub.wire.errors import GaveUp, OutcomeUnknown, Refused, Unavailable
from tests.support.memory.room_client import LIMITED, Member


@pytest.fixture
def member() -> Member:
    """Who is not in the room yet."""
    return Member()


@pytest.fixture
def joined() -> Member:
    member = Member()
    member.join()
    return member


def test_a_message_waits_for_the_welcome_and_its_answer_tells_the_position(member: Member) -> None:
    member.send("a", "b")
    member.open()
    assert member.written() == []
    member.hear("welcome", lastSeq=0)

    first, _ = member.written()
    assert first == {"action": "send", "messageId": "a", "ciphertext": "eA", "type": "mls_app"}
    member.accept("b", 4, duplicate=True)
    member.accept("a", 5)
    sent = [one.sent for one in member.of(MessageAccepted)]
    assert [(one.message_id, one.seq, one.is_repeat) for one in sent] == [
        ("b", 4, True), ("a", 5, False),
    ]  # fmt: skip


def test_after_a_loss_messages_are_repeated_under_their_ids_in_order(joined: Member) -> None:
    joined.send("a", "b", "c")
    joined.accept("b", 2)
    joined.written()

    joined.lose()
    joined.send("d")
    joined.join(last_seq=2)

    assert joined.ids() == ["a", "c", "d"]


def test_what_was_never_written_did_not_happen_and_the_rest_may_have(member: Member) -> None:
    member.send("unsent", timeout_s=5)
    member.pass_time(5)
    member.join()
    member.send("written", timeout_s=5)
    member.pass_time(5)

    assert isinstance(member.failure("unsent"), Unavailable)
    assert isinstance(member.failure("written"), OutcomeUnknown)


def test_a_lost_answer_leaves_a_doubt_that_only_a_limit_dispels(joined: Member) -> None:
    # A hub looks for the id before it counts, so a limited room does not have the message.
    joined.send("busy", "limited", timeout_s=5)
    joined.lose()
    joined.join()

    joined.refuse("busy", "UNAVAILABLE", retry_after_ms=9_000)
    joined.refuse("limited", LIMITED, retry_after_ms=9_000)

    assert isinstance(joined.failure("busy"), OutcomeUnknown)
    error = joined.failure("limited")
    assert isinstance(error, Refused)
    assert (error.code, error.retryable) == (LIMITED, True)


@pytest.mark.parametrize("code", [LIMITED, "UNAVAILABLE", "INTERNAL_ERROR"])
def test_a_temporary_refusal_is_repeated_after_the_wait(joined: Member, code: str) -> None:
    joined.send("a")
    joined.written()

    joined.refuse("a", code, retry_after_ms=1847)
    joined.pass_time(1.8)
    assert joined.written() == []
    joined.pass_time(0.1)

    assert joined.ids() == ["a"]


def test_one_refusal_holds_the_others_back_and_keeps_the_order(joined: Member) -> None:
    joined.send("a", "b", "c")
    joined.accept("a", 1)
    for name in "cb":
        joined.refuse(name, retry_after_ms=500)
    joined.send("d")
    joined.written()

    joined.pass_time(0.6)

    assert joined.ids() == ["b", "c", "d"]


def test_a_room_that_refuses_is_written_to_with_ever_fewer_at_a_time(joined: Member) -> None:
    names = [f"n{number}" for number in range(40)]
    joined.send(*names)
    for name in names:
        joined.refuse(name, retry_after_ms=100)
    joined.written()

    joined.pass_time(20)
    assert joined.ids() == ["n0"]
    joined.accept("n0", 1)

    assert joined.ids() == ["n1", "n2"]


def test_a_message_without_time_to_wait_is_tried_at_once(joined: Member) -> None:
    joined.send("a")
    joined.refuse("a", retry_after_ms=60_000)
    joined.written()

    joined.send("b", timeout_s=30)
    joined.send("c", timeout_s=90)

    assert joined.ids() == ["b"]
    joined.accept("b", 1, duplicate=True)
    assert len(joined.of(MessageAccepted)) == 1


def test_a_message_held_back_for_too_long_hears_why(joined: Member) -> None:
    joined.send("a", "b", timeout_s=200)
    joined.refuse("a", retry_after_ms=10_000)
    joined.send("c", timeout_s=15)
    joined.refuse("b", retry_after_ms=100_000)

    joined.pass_time(15)

    error = joined.failure("c")
    assert isinstance(error, Refused)
    assert error.code == LIMITED


@pytest.mark.parametrize("code", ["BAD_ENVELOPE", "TOO_LARGE", "SOMETHING_NEW"])
def test_other_refusals_are_final(joined: Member, code: str) -> None:
    joined.send("a")

    joined.refuse("a", code)

    error = joined.failure()
    assert isinstance(error, Refused)
    assert (error.code, error.message, error.retryable) == (code, "x", False)


def test_a_frame_on_which_the_hub_hung_up_is_not_sent_again(joined: Member) -> None:
    joined.send("small")
    joined.send("large", data=b"x" * 999)
    joined.send("other")
    joined.written()

    joined.lose(1009)
    joined.join()

    error = joined.failure("large")
    assert isinstance(error, Refused)
    assert error.code == "TOO_LARGE"
    assert joined.ids() == ["small", "other"]
    joined.send("larger", data=b"x" * 9_999)
    assert isinstance(joined.failure("larger"), Refused)
    assert joined.written() == []


def test_a_congested_socket_is_not_written_to(joined: Member) -> None:
    joined.effects += joined.protocol.congested(True, joined.now_s)
    joined.send("a")
    assert joined.written() == []

    joined.effects += joined.protocol.congested(False, joined.now_s)

    assert joined.ids() == ["a"]


def test_one_id_is_sent_once_at_a_time_and_free_again_when_forgotten(joined: Member) -> None:
    joined.send("a", timeout_s=5)
    with pytest.raises(ValueError, match="on its way"):
        joined.send("a")
    joined.protocol.forget("a")
    joined.written()
    joined.lose()
    joined.send("a", timeout_s=50)
    joined.join()
    joined.pass_time(6)

    assert joined.ids() == ["a"]
    assert joined.of(Failed) == []


def test_too_many_at_once_are_unavailable(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SENDS_MAX", 1)
    member.send("a", "b")

    assert isinstance(member.failure("b"), Unavailable)


def test_at_the_end_the_doubtful_and_the_unsent_are_told_apart(joined: Member) -> None:
    joined.send("doubtful")
    joined.lose()
    joined.send("unsent")

    joined.stop(GaveUp("enough"))
    joined.stop(GaveUp("again"))
    joined.send("late")
    joined.live(1)

    assert isinstance(joined.failure("doubtful"), OutcomeUnknown)
    assert isinstance(joined.failure("unsent"), GaveUp)
    assert isinstance(joined.failure("late"), GaveUp)
    assert joined.take() == []
    assert len(joined.of(Stop)) == 1
    assert joined.protocol.wake_at_s() is None


@pytest.mark.parametrize("has_echo", [True, False])
def test_own_messages_are_read_once_whether_the_hub_echoes_them_or_not(
    joined: Member, has_echo: bool
) -> None:
    joined.take()
    joined.live(1)
    joined.send("a", data=b"mine")
    if has_echo:
        joined.live(2, message_id="a")
    joined.accept("a", 2)
    joined.live(3)

    assert joined.take() == [1, 2, 3]
    assert joined.of(FetchPage) == []


def test_an_ack_behind_a_later_message_fills_the_gap_with_what_was_sent(joined: Member) -> None:
    joined.take()
    joined.send("a", data=b"mine")
    joined.live(2)
    assert joined.take() == []

    joined.accept("a", 1)

    own, _ = joined.protocol.take(joined.now_s)
    assert own == RoomMessage(
        seq=1, message_id="a", ciphertext=b"mine", type="mls_app", pseudonym="p1"
    )
    assert joined.take() == [2]


@pytest.mark.parametrize("was_joined", [False, True])
def test_a_refusal_instead_of_a_welcome_is_why_it_ends(member: Member, was_joined: bool) -> None:
    if was_joined:
        member.join()
        member.lose()
    member.open()
    member.hear("error", error="cannot write", errorCode="UNAVAILABLE", retryAfterMs=1000)
    assert [drop.reason for drop in member.of(Drop)] == ["cannot write"]
    assert member.of(Stop) == []

    member.hear("error", error="bound to another", errorCode="CONFLICT")

    (stop,) = member.of(Stop)
    assert isinstance(stop.error, GaveUp if was_joined else Refused)
    assert "CONFLICT: bound to another" in str(stop.error)


def test_a_hub_that_does_not_welcome_is_left(member: Member) -> None:
    member.open()
    assert member.protocol.wake_at_s() == member.now_s + protocol.WELCOME_S

    member.pass_time(protocol.WELCOME_S)

    assert len(member.of(Drop)) == 1
    assert member.of(Joined) == []


def test_a_silent_hub_is_pinged_and_left_without_an_answer(joined: Member) -> None:
    joined.pass_time(protocol.HEARTBEAT_S)
    assert joined.written() == [{"action": "ping", "t": 1}]
    joined.hear("pong", t=1)
    joined.pass_time(10)
    assert joined.of(Drop) == []

    joined.pass_time(protocol.HEARTBEAT_S - 10)
    assert joined.written() == [{"action": "ping", "t": 2}]
    joined.pass_time(10)

    assert len(joined.of(Drop)) == 1


@pytest.mark.parametrize("members", [{"t": {"a": [1]}}, {"t": None}, {}])
def test_a_ping_is_answered_with_what_it_held(joined: Member, members: dict[str, Any]) -> None:
    joined.hear("ping", **members)

    assert joined.written() == [{"action": "pong", **members}]


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense",
        b"[]",
        b'{"seq":1}',
        b'{"action":"message","seq":"one"}',
        b'{"action":"message","seq":1,"messageId":"a","ciphertext":"not base64"}',
        b'{"action":"message","seq":0,"messageId":"a","ciphertext":"eA"}',
        b'{"action":"error","error":"words","errorCode":"BAD_FRAME"}',
    ],
)
def test_what_cannot_be_read_is_told_once_and_harms_nothing(joined: Member, text: bytes) -> None:
    for _ in range(2):
        joined.effects += joined.protocol.received(text, joined.now_s)
    joined.hear("farewell", reason="a word of a newer hub")
    joined.hear("welcome", lastSeq=9)
    joined.live(1)

    (warned,) = joined.of(Warned)
    assert warned.facts == ({"code": "BAD_FRAME"} if b"BAD_FRAME" in text else {})
    assert len(joined.of(Joined)) == 1
    assert joined.take() == [1]
