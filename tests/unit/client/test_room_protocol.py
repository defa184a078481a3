"""A member of a room: joining, sending until answered, reading in order, signs of life.

Most of it is told as stories; their steps are the methods of `Member`.
"""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Drop, Failed, Warned
from signalhub.client.rooms import protocol
from signalhub.client.rooms.answers import InboxPage, RoomMessage
from signalhub.client.rooms.outbox import STALE_MIN, Outgoing, RoomOutbox
from signalhub.client.rooms.protocol import Joined, MessageAccepted
from signalhub.wire.errors import Refused, Unavailable
from tests.support.memory.room_client import LIMITED, Member

SENDING = {
    "after a loss messages are repeated under their ids in order": """
        join 0; send a b c; wrote a b c; ack b 2
        lose; send d; wrote; join 2; wrote a c d
    """,
    "what was never written did not happen, the rest may have": """
        soon 5 unsent; time 5; fails unsent Unavailable
        join 0; soon 5 written; time 5; fails written OutcomeUnknown
    """,
    # A hub looks for the id before it counts, so a limited room does not have the message.
    "a lost answer leaves a doubt that only a limit dispels": f"""
        join 0; soon 5 busy limited; lose; join 0
        refuse busy UNAVAILABLE 9000; fails busy OutcomeUnknown
        limit limited 9000; fails limited Refused {LIMITED}
    """,
    "a limited message is repeated after the wait": """
        join 0; send a; wrote a; limit a 1847; time 1.8; wrote; time 0.1; wrote a
    """,
    "so is one that a busy hub did not take": """
        join 0; send a; wrote a; refuse a UNAVAILABLE 1847; time 1.8; wrote; time 0.1; wrote a
    """,
    "so is one at which the hub failed": """
        join 0; send a; wrote a; refuse a INTERNAL_ERROR 1847; time 1.8; wrote; time 0.1; wrote a
    """,
    "one refusal holds the others back and keeps the order": """
        join 0; send a b c; wrote a b c; ack a 1
        limit c 500; limit b 500; send d; wrote; time 0.6; wrote b c d
    """,
    "a message without time to wait is tried at once": """
        join 0; send a; wrote a; limit a 60000; soon 30 b; soon 90 c; wrote b
        duplicate b 1; accepted b
    """,
    "a message held back for too long hears why": f"""
        join 0; soon 200 a b; limit a 10000; soon 15 c; limit b 100000
        time 15; fails c Refused {LIMITED}
    """,
    "other refusals are final": """
        join 0; send a b c; refuse a BAD_ENVELOPE; fails a Refused BAD_ENVELOPE
        refuse b TOO_LARGE; fails b Refused TOO_LARGE; refuse c NEW 5; fails c Refused NEW
    """,
    "a frame on which the hub hung up is not sent again": """
        join 0; send small; large 999 large; send other; wrote small large other
        lose 1009; join 0; fails large Refused TOO_LARGE; wrote small other
        large 9999 larger; fails larger Refused TOO_LARGE; wrote
    """,
    "a congested socket is not written to": "join 0; congest; send a; wrote; clear; wrote a",
    "a forgotten message is not repeated and its id is free": """
        join 0; soon 5 a; wrote a; forget a; lose; soon 50 a; join 0; time 6; wrote a; failed
    """,
    "at the end the doubtful and the unsent are told apart": """
        join 0; send doubtful; lose; send unsent; stop; stop again; send late
        fails doubtful OutcomeUnknown; fails unsent GaveUp; fails late GaveUp
        live 1; take; stopped GaveUp
    """,
}
READING = {
    "live messages are read at once, each once": """
        join 0; take; live 1 2 1 2; echo m1 3; take 1 2; position 3; fetch
    """,
    "what was missed comes first, page by page, and live messages wait": """
        join 5; take; fetch 1; live 6 7; take
        page 1 1 2; fetch 3; page 3 3 4; fetch 5; page 5 5 6 7 8; live 8 9
        take 1 2 3 4 5 6 7 8 9; fetch
    """,
    "whoever only sends fetches nothing": "join 50; send a; time 1; fetch",
    "gaps between live messages are fetched with pauses between them": f"""
        join 0; take; live 1 3; take 1; fetch 2; page 2 2 3; take 2 3
        live 5; fetch; time {protocol.PAUSE_S}; fetch 4
    """,
    "after a loss the gap is read and nothing is read again": """
        join 0; live 1; take 1; lose; join 3; live 4; fetch 2; page 2 2 3 4; live 5; take 2 3 4 5
    """,
    "a page that arrives after the loss still counts": f"""
        join 2; take; fetch 1; lose; page 1 1 2; join 3; time {protocol.PAUSE_S}
        take 1 2; fetch 3
    """,
    "a partial page is asked for again and not used": f"""
        join 3; take; fetch 1; partial 1 2 3; take; fetch; time {protocol.PARTIAL_S}
        fetch 1; page 1 1 2 3; take 1 2 3; missed
    """,
    "what lies before damage is read, and the rest after the repair": """
        join 6; take; fetch 1; ends 4 1 2 3; take 2 3; missed 1 1; fetch 4
        busy 10; time 9; fetch; time 2; fetch 4; page 4 4 5 6; take 4 5 6; missed 1 1
    """,
    "a limited fetch waits as long as the hub says": """
        join 1; take; fetch 1; busy 17; time 16.9; fetch; time 0.2; fetch 1
    """,
    "an inbox that is refused for good ends it": "join 1; take; forbidden; stopped GaveUp",
    "what is gone is told and passed over": """
        join 9; take; fetch 1; page 1 7 8 9; take 7 8 9; missed 1 6; warned 1 6
    """,
    "everything may be gone": """
        join 9; take; fetch 1; page 1; live 10; take 10; missed 1 9; warned 1 9
    """,
    "neighbouring losses are one, and each is told once": f"""
        join 3; take; fetch 1; page 1; lose; join 5; time {protocol.PAUSE_S}; fetch 4; page 4
        missed 1 5; warned 1 3 4 5
    """,
    "positions that are skipped within a page are told": """
        join 1001; take; fetch 1; skips 3 999 1 1 2 1000 1001; take 1 2 1000 1001
        missed 3 999; warned 3 999; skipped 3 999
    """,
    "what is deleted is told apart from what the hub has lost": """
        join 30; take; fetch 1; skips 8 19 1 6 7 20 30; take 6 7 20 30
        missed 1 5 8 19; warned 1 5 8 19; skipped 8 19
    """,
    "a gap at the start may be both": """
        join 30; take; fetch 1; skips 8 19 1 25 30; take 25 30
        missed 1 24; warned 1 7 8 19 20 24; skipped 8 19
    """,
    "of a range only what is above the position is told": """
        join 2; take; fetch 1; page 1 1 2; take 1 2; lose; join 12; time 1; fetch 3
        skips 1 9 3 10 12; take 10 12; missed 3 9; skipped 3 9
    """,
    "a page asked for before the hub lost what we read is not used": """
        join 5; take; fetch 1; page 1 1 2 3 4; take 1 2 3 4; fetch 5
        lose; join 1; page 5 5; take; fetch 1
    """,
    "own messages are read once with an echo": """
        join 0; take; live 1; send a; echo a 2; ack a 2; live 3; take 1 2 3; fetch
    """,
    "own messages are read once without an echo": """
        join 0; take; live 1; send a; ack a 2; live 3; take 1 2 3; fetch
    """,
}
JOINING = {
    "a busy hub is left, and a refusal instead of a welcome is why it ends": """
        open; refuse - UNAVAILABLE 1000; dropped 1; stopped; refuse - CONFLICT; stopped Refused
    """,
    "refused after it was in before, it gives up": """
        join 0; lose; open; refuse - CONFLICT; stopped GaveUp
    """,
    "a hub that does not welcome is left": f"open; time {protocol.WELCOME_S}; dropped 1",
}


@pytest.mark.parametrize("name", [*SENDING, *READING, *JOINING])
def test_a_member_of_a_room(name: str) -> None:
    Member().play((SENDING | READING | JOINING)[name])


@pytest.mark.parametrize(
    ("since", "story"),
    [
        (7, "join 9; take; fetch 8; page 8 8 9; take 8 9"),
        (None, "join 9; take; live 10; take 10; fetch"),
    ],
)
def test_reading_begins_after_a_position_or_with_what_is_new(since: int | None, story: str) -> None:
    Member(since).play(story)


@pytest.fixture
def joined() -> Member:
    member = Member()
    member.join(0)
    return member


def test_a_message_waits_for_the_welcome_and_its_answer_tells_the_position() -> None:
    member = Member()
    member.play("send a b; open; wrote; welcome 0")

    first, _ = member.written()
    member.play("duplicate b 4; ack a 5")

    assert first == {"action": "send", "messageId": "a", "ciphertext": "eA", "type": "mls_app"}
    sent = [one.sent for one in member.of(MessageAccepted)]
    expected = [("b", 4, True), ("a", 5, False)]
    assert [(one.message_id, one.seq, one.is_repeat) for one in sent] == expected


def test_a_refusal_says_what_the_hub_said(joined: Member) -> None:
    joined.play(f"soon 5 a; limit a 9000; fails a Refused {LIMITED}")

    error = joined.error("a")
    assert isinstance(error, Refused)
    assert (error.message, error.retryable, error.details) == ("x", True, {"retryAfterMs": 9000})


def test_a_room_that_refuses_is_written_to_with_ever_fewer_at_a_time(joined: Member) -> None:
    names = [f"n{number}" for number in range(40)]
    joined.send(*names)
    joined.wrote(*names)
    for name in names:
        joined.limit(name, 100)

    joined.play("time 20; wrote n0; ack n0 1; wrote n1 n2")


def test_one_id_is_sent_once_at_a_time_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SENDS_MAX", 1)
    member = Member()
    member.play("send a b; fails b Unavailable")

    with pytest.raises(ValueError, match="already being sent"):
        member.send("a")


def test_an_ack_behind_a_later_message_fills_the_gap_with_what_was_sent(joined: Member) -> None:
    joined.take()
    joined.send("a", data=b"mine")
    joined.play("live 2; take; ack a 1")

    own, _ = joined.protocol.take(joined.now_s)

    assert own == RoomMessage(
        seq=1, message_id="a", ciphertext=b"mine", type="mls_app", pseudonym="p1"
    )
    joined.take(2)


def test_a_hub_that_cannot_be_fetched_from_is_asked_ever_more_seldom() -> None:
    member = Member()
    member.play("join 1; take")
    waits = []
    for _ in range(12):
        member.play("fetch 1; busy 0")
        wake_at_s = member.protocol.reading.wake_at_s
        assert wake_at_s is not None
        waits.append(round(wake_at_s - member.now_s, 6))
        member.time(waits[-1] + 0.001)

    assert waits == sorted(waits)
    assert waits[0] <= 0.2
    assert waits[-1] == 5.0


def test_a_hub_that_lost_what_we_read_is_read_from_its_beginning(joined: Member) -> None:
    joined.play("live 1 2 3; take 1 2 3; lose; join 2; fetch 1")
    known = RoomMessage(seq=1, message_id="m1", ciphertext=b"x")
    fresh = RoomMessage(seq=2, message_id="another", ciphertext=b"x")

    page = InboxPage(messages=(known, fresh), next_seq=3)
    joined.effects += joined.protocol.fetched(1, page, joined.now_s)

    joined.take(2)
    assert joined.protocol.reading.rewound == 1


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


def test_a_slow_reader_is_not_given_the_next_page_before_it_needs_it() -> None:
    member = Member()
    member.play(f"join 2500; take; fetch 1; page 1 {seqs(1, 1_000)}; fetch")

    for _ in range(501):
        _, effects = member.protocol.take(member.now_s)
        member.effects += effects

    member.fetch(1_001)


def test_a_silent_hub_is_pinged_and_left_without_an_answer(joined: Member) -> None:
    joined.time(protocol.HEARTBEAT_S)
    assert joined.written() == [{"action": "ping", "t": 1}]
    joined.hear("pong", t=1)
    joined.play("time 10; dropped 0")

    joined.time(protocol.HEARTBEAT_S - 10)
    assert joined.written() == [{"action": "ping", "t": 2}]
    joined.play("time 10; dropped 1")


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
    joined.play("welcome 9; live 1; take 1; fetch")

    (warned,) = joined.of(Warned)
    assert warned.facts == ({"code": "BAD_FRAME"} if b"BAD_FRAME" in text else {})
    assert len(joined.of(Joined)) == 1


def test_forgotten_messages_do_not_pile_up_without_a_connection() -> None:
    outbox = RoomOutbox(lambda: 0.5)
    outbox.submit(Outgoing("kept", b"{}", b"x", "mls_app", 60.0))
    for number in range(10 * STALE_MIN):
        outbox.submit(Outgoing(f"m{number}", b"{}", b"x", "mls_app", 60.0))
        outbox.forget(f"m{number}")

    assert len(outbox._waiting) <= STALE_MIN + 4
    outbox.opened()
    assert list(outbox.due(0.0)) == [b"{}"]
