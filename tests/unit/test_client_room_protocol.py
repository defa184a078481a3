"""A member of a room: sending until answered, own messages, signs of life."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Drop, Failed, Stop, Warned
from signalhub.client.rooms import protocol
from signalhub.client.rooms.answers import RoomMessage
from signalhub.client.rooms.protocol import FetchPage, Joined, MessageAccepted
from signalhub.wire.errors import GaveUp, OutcomeUnknown, Refused, Unavailable
from tests.support.memory.room_client import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestSending:
    """Until answered, refused for good, or too late."""

    def test_a_message_waits_for_the_welcome(self, scene: Scene) -> None:
        scene.send("a")
        scene.effects += scene.protocol.opened(scene.now_s)
        assert scene.written() == []

        scene.hear("welcome", lastSeq=0)

        (frame,) = scene.written()
        assert frame == {
            "action": "send",
            "messageId": "a",
            "ciphertext": "eA",
            "type": "mls_app",
        }

    def test_the_answer_tells_the_position_and_whether_it_is_a_repeat(self, scene: Scene) -> None:
        scene.join()
        scene.send("a")
        scene.send("b")

        scene.hear("ack", messageId="b", seq=4, duplicate=True)
        scene.hear("ack", messageId="a", seq=5)

        answers = [
            (one.sent.message_id, one.sent.seq, one.sent.is_repeat)
            for one in scene.of(MessageAccepted)
        ]
        assert answers == [("b", 4, True), ("a", 5, False)]

    def test_after_a_loss_it_is_repeated_under_its_id_in_order(self, scene: Scene) -> None:
        scene.join()
        for name in "abc":
            scene.send(name)
        scene.hear("ack", messageId="b", seq=2)
        scene.written()

        scene.lose()
        scene.send("d")
        scene.join(last_seq=2)

        assert [frame["messageId"] for frame in scene.written()] == ["a", "c", "d"]

    def test_what_was_never_written_did_not_happen(self, scene: Scene) -> None:
        scene.send("a", timeout_s=5)

        scene.pass_time(5)

        assert isinstance(scene.failure(), Unavailable)

    def test_what_was_written_and_not_answered_may_have_happened(self, scene: Scene) -> None:
        scene.join()
        scene.send("a", timeout_s=5)

        scene.pass_time(5)

        assert isinstance(scene.failure(), OutcomeUnknown)

    def test_a_lost_answer_leaves_a_doubt_that_a_busy_hub_does_not_dispel(
        self, scene: Scene
    ) -> None:
        scene.join()
        scene.send("a", timeout_s=5)
        scene.lose()
        scene.join()

        scene.hear("error", messageId="a", error="x", errorCode="UNAVAILABLE", retryAfterMs=9000)

        assert isinstance(scene.failure(), OutcomeUnknown)

    def test_a_limited_room_would_know_the_message_if_it_had_it(self, scene: Scene) -> None:
        scene.join()
        scene.send("a", timeout_s=5)
        scene.lose()
        scene.join()

        code = "RATE_LIMIT_EXCEEDED"
        scene.hear("error", messageId="a", error="x", errorCode=code, retryAfterMs=9000)

        error = scene.failure()
        assert isinstance(error, Refused)
        assert (error.code, error.retryable) == (code, True)

    @pytest.mark.parametrize("code", ["RATE_LIMIT_EXCEEDED", "UNAVAILABLE", "INTERNAL_ERROR"])
    def test_a_temporary_refusal_is_repeated_after_the_wait(self, scene: Scene, code: str) -> None:
        scene.join()
        scene.send("a")
        scene.written()

        scene.hear("error", messageId="a", error="x", errorCode=code, retryAfterMs=1847)
        scene.pass_time(1.8)
        assert scene.written() == []
        scene.pass_time(0.1)

        assert [frame["messageId"] for frame in scene.written()] == ["a"]

    def test_one_refusal_holds_the_others_back_and_keeps_the_order(self, scene: Scene) -> None:
        scene.join()
        for name in "abc":
            scene.send(name)
        code = "RATE_LIMIT_EXCEEDED"
        scene.hear("ack", messageId="a", seq=1)
        for name in "cb":
            scene.hear("error", messageId=name, error="x", errorCode=code, retryAfterMs=500)
        scene.send("d")
        scene.written()

        scene.pass_time(0.6)

        assert [frame["messageId"] for frame in scene.written()] == ["b", "c", "d"]

    def test_a_room_that_refuses_is_written_to_with_ever_fewer_at_a_time(
        self, scene: Scene
    ) -> None:
        scene.join()
        names = [f"n{number}" for number in range(40)]
        for name in names:
            scene.send(name)
        code = "RATE_LIMIT_EXCEEDED"
        for name in names:
            scene.hear("error", messageId=name, error="x", errorCode=code, retryAfterMs=100)
        scene.written()

        scene.pass_time(20)
        assert [frame["messageId"] for frame in scene.written()] == ["n0"]
        scene.hear("ack", messageId="n0", seq=1)

        assert [frame["messageId"] for frame in scene.written()] == ["n1", "n2"]

    def test_a_message_without_time_to_wait_is_tried_at_once(self, scene: Scene) -> None:
        scene.join()
        scene.send("a")
        code = "RATE_LIMIT_EXCEEDED"
        scene.hear("error", messageId="a", error="x", errorCode=code, retryAfterMs=60_000)
        scene.written()

        scene.send("b", timeout_s=30)
        scene.send("c", timeout_s=90)

        assert [frame["messageId"] for frame in scene.written()] == ["b"]
        scene.hear("ack", messageId="b", seq=1, duplicate=True)
        assert len(scene.of(MessageAccepted)) == 1

    def test_a_message_held_back_for_too_long_hears_why(self, scene: Scene) -> None:
        scene.join()
        for name in ("a", "b"):
            scene.send(name, timeout_s=200)
        code = "RATE_LIMIT_EXCEEDED"
        scene.hear("error", messageId="a", error="x", errorCode=code, retryAfterMs=10_000)
        scene.send("c", timeout_s=15)
        scene.hear("error", messageId="b", error="x", errorCode=code, retryAfterMs=100_000)

        scene.pass_time(15)

        error = scene.failure("c")
        assert isinstance(error, Refused)
        assert error.code == code

    @pytest.mark.parametrize("code", ["BAD_ENVELOPE", "TOO_LARGE", "SOMETHING_NEW"])
    def test_other_refusals_are_final(self, scene: Scene, code: str) -> None:
        scene.join()
        scene.send("a")

        scene.hear("error", messageId="a", error="no good", errorCode=code)

        error = scene.failure()
        assert isinstance(error, Refused)
        assert (error.code, error.message, error.retryable) == (code, "no good", False)

    def test_a_hub_that_hangs_up_on_too_large_a_frame_does_not_get_it_again(
        self, scene: Scene
    ) -> None:
        scene.join()
        scene.send("small")
        scene.send("large", data=b"x" * 999)
        scene.send("other")
        scene.written()

        scene.lose(1009)
        scene.join()

        error = scene.failure("large")
        assert isinstance(error, Refused)
        assert error.code == "TOO_LARGE"
        assert [frame["messageId"] for frame in scene.written()] == ["small", "other"]
        scene.send("larger", data=b"x" * 9_999)
        assert isinstance(scene.failure("larger"), Refused)
        assert scene.written() == []

    def test_a_congested_socket_is_not_written_to(self, scene: Scene) -> None:
        scene.join()
        scene.effects += scene.protocol.congested(True, scene.now_s)
        scene.send("a")
        assert scene.written() == []

        scene.effects += scene.protocol.congested(False, scene.now_s)

        assert [frame["messageId"] for frame in scene.written()] == ["a"]

    def test_a_forgotten_message_is_not_repeated_and_its_id_is_free(self, scene: Scene) -> None:
        scene.join()
        scene.send("a", timeout_s=5)
        scene.protocol.forget("a")
        scene.written()
        scene.lose()
        scene.send("a", timeout_s=50)
        scene.join()
        scene.pass_time(6)

        assert [frame["messageId"] for frame in scene.written()] == ["a"]
        assert scene.of(Failed) == []

    def test_one_id_is_not_sent_twice_at_a_time(self, scene: Scene) -> None:
        scene.send("a")

        with pytest.raises(ValueError, match="on its way"):
            scene.send("a")

    def test_too_many_at_once_are_unavailable(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "SENDS_MAX", 1)
        scene.send("a")
        scene.send("b")

        assert isinstance(scene.failure("b"), Unavailable)

    def test_at_the_end_the_doubtful_and_the_unsent_are_told_apart(self, scene: Scene) -> None:
        scene.join()
        scene.send("written")
        scene.lose()
        scene.send("unsent")

        scene.effects += scene.protocol.stop(GaveUp("enough"))
        scene.send("late")

        assert isinstance(scene.failure("written"), OutcomeUnknown)
        assert isinstance(scene.failure("unsent"), GaveUp)
        assert isinstance(scene.failure("late"), GaveUp)


class TestOwnMessages:
    """A hub may echo them, or not; the reader sees them once."""

    def test_with_an_echo(self, scene: Scene) -> None:
        scene.join()
        scene.send("a")
        scene.live(1, "a")
        scene.hear("ack", messageId="a", seq=1)

        assert scene.take() == [1]

    def test_without_an_echo_there_is_no_gap_to_fetch(self, scene: Scene) -> None:
        scene.join()
        assert scene.take() == []
        scene.live(1)
        scene.send("a", b"mine")
        scene.hear("ack", messageId="a", seq=2)
        scene.live(3)

        assert scene.take() == [1, 2, 3]
        assert scene.of(FetchPage) == []

    def test_an_ack_behind_a_later_message_fills_the_gap(self, scene: Scene) -> None:
        scene.join()
        scene.take()
        scene.send("a", b"mine")
        scene.live(2)
        assert scene.take() == []

        scene.hear("ack", messageId="a", seq=1)

        assert scene.take() == [1, 2]

    def test_own_words_are_as_they_were_sent(self, scene: Scene) -> None:
        scene.join()
        scene.send("a", b"mine")
        scene.hear("ack", messageId="a", seq=1)

        message, _ = scene.protocol.take(scene.now_s)

        assert message == RoomMessage(
            seq=1, message_id="a", ciphertext=b"mine", type="mls_app", pseudonym="p1"
        )


class TestJoining:
    """A hub may find out late that it cannot let a member in."""

    def test_a_refusal_instead_of_a_welcome_is_why_it_ends(self, scene: Scene) -> None:
        scene.effects += scene.protocol.opened(scene.now_s)

        scene.hear("error", error="bound to another", errorCode="CONFLICT")

        (stop,) = scene.of(Stop)
        assert isinstance(stop.error, Refused)
        assert stop.error.code == "CONFLICT"

    def test_one_who_was_in_before_gives_up(self, scene: Scene) -> None:
        scene.join()
        scene.lose()
        scene.effects += scene.protocol.opened(scene.now_s)

        scene.hear("error", error="bound to another", errorCode="CONFLICT")

        (stop,) = scene.of(Stop)
        assert isinstance(stop.error, GaveUp)

    def test_a_busy_hub_is_left_to_be_tried_again(self, scene: Scene) -> None:
        scene.effects += scene.protocol.opened(scene.now_s)

        scene.hear("error", error="cannot write", errorCode="UNAVAILABLE", retryAfterMs=1000)

        assert [drop.reason for drop in scene.of(Drop)] == ["cannot write"]
        assert scene.of(Stop) == []


class TestLiveness:
    """A hub that has gone silent is noticed."""

    def test_a_hub_without_a_welcome_is_left(self, scene: Scene) -> None:
        scene.effects += scene.protocol.opened(scene.now_s)
        assert scene.protocol.wake_at_s() == scene.now_s + protocol.WELCOME_S

        scene.pass_time(protocol.WELCOME_S)

        assert len(scene.of(Drop)) == 1
        assert scene.of(Joined) == []

    def test_a_silent_hub_is_pinged_and_then_left(self, scene: Scene) -> None:
        scene.join()

        scene.pass_time(protocol.HEARTBEAT_S)
        assert scene.written() == [{"action": "ping", "t": 1}]
        scene.pass_time(10)

        assert len(scene.of(Drop)) == 1

    def test_an_answered_ping_keeps_the_link(self, scene: Scene) -> None:
        scene.join()
        scene.pass_time(protocol.HEARTBEAT_S)

        scene.hear("pong", t=1)
        scene.pass_time(10)

        assert scene.of(Drop) == []

    @pytest.mark.parametrize("members", [{"t": {"a": [1]}}, {"t": None}, {}])
    def test_a_ping_is_answered_with_what_it_held(
        self, scene: Scene, members: dict[str, Any]
    ) -> None:
        scene.join()

        scene.hear("ping", **members)

        assert scene.written() == [{"action": "pong", **members}]

    @pytest.mark.parametrize(
        "text",
        [
            b"nonsense",
            b"[]",
            b'{"seq":1}',
            b'{"action":"message","seq":"one"}',
            b'{"action":"message","seq":1,"messageId":"a","ciphertext":"not base64"}',
            b'{"action":"message","seq":0,"messageId":"a","ciphertext":"eA"}',
        ],
    )
    def test_what_cannot_be_read_is_told_once_and_harms_nothing(
        self, scene: Scene, text: bytes
    ) -> None:
        scene.join()
        for _ in range(2):
            scene.effects += scene.protocol.received(text, scene.now_s)
        scene.live(1)

        assert len(scene.of(Warned)) == 1
        assert scene.take() == [1]

    def test_words_of_a_newer_hub_are_ignored(self, scene: Scene) -> None:
        scene.join()
        scene.hear("farewell", reason="later")
        scene.hear("welcome", lastSeq=9)

        assert scene.of(Warned) == []
        assert len(scene.of(Joined)) == 1

    def test_a_refused_frame_without_a_message_is_told_by_its_code_alone(
        self, scene: Scene
    ) -> None:
        scene.join()
        scene.hear("error", error="words", errorCode="BAD_FRAME")

        (warned,) = scene.of(Warned)
        assert warned.facts == {"code": "BAD_FRAME"}

    def test_nothing_is_heard_after_the_end(self, scene: Scene) -> None:
        scene.join()
        scene.effects += scene.protocol.stop(GaveUp("enough"))
        scene.effects += scene.protocol.stop(GaveUp("again"))
        scene.live(1)
        scene.lose()

        assert scene.take() == []
        assert len(scene.of(Stop)) == 1
        assert scene.protocol.wake_at_s() is None
