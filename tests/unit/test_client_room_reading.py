"""Reading a room: in order, nothing twice, nothing left out, within bounds."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.effects import Stop, Warned
from signalhub.client.rooms import protocol
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage
from signalhub.client.rooms.protocol import FetchPage, MemberPhase
from signalhub.wire.errors import GaveUp, Refused
from tests.support.memory.room_client import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestReading:
    """In order, nothing twice, nothing left out."""

    def test_nothing_was_missed_so_live_messages_are_read_at_once(self, scene: Scene) -> None:
        scene.join(last_seq=0)

        assert scene.take() == []
        scene.live(1)
        scene.live(2)

        assert scene.take() == [1, 2]
        assert scene.of(FetchPage) == []
        assert scene.protocol.reading.last_seq == 2

    def test_what_was_missed_comes_first_and_live_messages_wait(self, scene: Scene) -> None:
        scene.join(last_seq=3)
        assert scene.take() == []
        assert scene.fetch() == 1

        scene.live(4)
        assert scene.take() == []
        scene.page(1, 1, 2, 3)

        assert scene.take() == [1, 2, 3, 4]

    def test_a_page_may_already_hold_what_came_live(self, scene: Scene) -> None:
        scene.join(last_seq=2)
        scene.take()
        scene.live(3)
        scene.live(4)

        scene.page(scene.fetch(), 1, 2, 3, 4, 5)
        scene.live(5)
        scene.live(6)

        assert scene.take() == [1, 2, 3, 4, 5, 6]

    def test_pages_follow_until_the_welcome_is_passed(self, scene: Scene) -> None:
        scene.join(last_seq=5)
        scene.take()

        scene.page(scene.fetch(), 1, 2)
        assert scene.fetch() == 3
        scene.page(3, 3, 4)
        assert scene.fetch() == 5
        scene.page(5, 5)

        assert scene.take() == [1, 2, 3, 4, 5]
        assert scene.fresh(FetchPage) == []

    def test_reading_goes_on_after_the_position_it_was_given(self) -> None:
        scene = Scene(since=7)
        scene.join(last_seq=9)
        scene.take()

        scene.page(scene.fetch(), 8, 9)

        assert scene.take() == [8, 9]

    def test_without_a_position_only_what_is_new_is_read(self) -> None:
        scene = Scene(since=None)
        scene.join(last_seq=9)
        assert scene.take() == []

        scene.live(10)

        assert scene.take() == [10]
        assert scene.of(FetchPage) == []

    def test_whoever_only_sends_fetches_nothing(self, scene: Scene) -> None:
        scene.join(last_seq=50)
        scene.send()
        scene.pass_time(1)

        assert scene.of(FetchPage) == []

    def test_a_gap_between_live_messages_is_fetched(self, scene: Scene) -> None:
        scene.join()
        scene.take()
        scene.live(1)

        scene.live(3)
        assert scene.take() == [1]
        scene.page(scene.fetch(), 2, 3)

        assert scene.take() == [2, 3]

    def test_gaps_are_fetched_with_pauses_between_them(self, scene: Scene) -> None:
        scene.join()
        scene.take()
        scene.live(2)
        scene.page(scene.fetch(), 1, 2)

        scene.live(4)
        assert scene.fresh(FetchPage) == []
        scene.pass_time(protocol.PAUSE_S)

        assert scene.fetch() == 3

    def test_a_message_sent_twice_under_one_id_is_read_once(self, scene: Scene) -> None:
        scene.join()
        scene.live(1, "same")
        scene.live(2, "other")
        scene.live(3, "same")

        assert scene.take() == [1, 2]
        assert scene.protocol.reading.last_seq == 3

    def test_live_messages_seen_before_are_ignored(self, scene: Scene) -> None:
        scene.join()
        for seq in (1, 2, 1, 2, 3):
            scene.live(seq)

        assert scene.take() == [1, 2, 3]

    def test_after_a_loss_the_gap_is_read_and_nothing_is_read_again(self, scene: Scene) -> None:
        scene.join()
        scene.live(1)
        assert scene.take() == [1]

        scene.lose()
        scene.join(last_seq=3)
        scene.live(4)
        scene.page(scene.fetch(), 2, 3, 4)
        scene.live(5)

        assert scene.take() == [2, 3, 4, 5]

    def test_a_page_that_arrives_after_the_loss_still_counts(self, scene: Scene) -> None:
        scene.join(last_seq=2)
        scene.take()
        asked = scene.fetch()

        scene.lose()
        scene.page(asked, 1, 2)
        scene.join(last_seq=3)
        scene.pass_time(protocol.PAUSE_S)

        assert scene.take() == [1, 2]
        assert scene.fetch() == 3

    def test_a_partial_page_is_asked_for_again_and_not_used(self, scene: Scene) -> None:
        scene.join(last_seq=9)
        scene.take()

        scene.page(scene.fetch(), 8, 9, oldest=8, partial=True)
        assert scene.take() == []
        assert scene.fresh(FetchPage) == []
        scene.pass_time(protocol.PARTIAL_S)
        assert scene.fetch() == 1
        scene.page(1, *range(1, 10))

        assert scene.take() == list(range(1, 10))
        assert not scene.protocol.reading.missed

    def test_a_limited_fetch_waits_as_long_as_the_hub_says(self, scene: Scene) -> None:
        scene.join(last_seq=1)
        scene.take()
        scene.fetch()

        scene.no_page(17.0)
        scene.pass_time(16.9)
        assert scene.fresh(FetchPage) == []
        scene.pass_time(0.2)

        assert scene.fetch() == 1

    def test_a_hub_that_cannot_be_fetched_from_is_asked_ever_more_seldom(
        self, scene: Scene
    ) -> None:
        scene.join(last_seq=1)
        scene.take()
        waits = []
        for _ in range(12):
            scene.fetch()
            scene.no_page(0.0)
            wake_at_s = scene.protocol.reading.wake_at_s
            assert wake_at_s is not None
            waits.append(round(wake_at_s - scene.now_s, 6))
            scene.pass_time(waits[-1] + 0.001)

        assert waits == sorted(waits)
        assert waits[0] <= 0.2
        assert waits[-1] == 5.0

    def test_an_inbox_that_is_refused_for_good_ends_it(self, scene: Scene) -> None:
        scene.join(last_seq=1)
        scene.take()

        scene.no_page(None, Refused("BAD_REQUEST", "no"))

        (stop,) = scene.of(Stop)
        assert isinstance(stop.error, GaveUp)
        assert scene.protocol.phase is MemberPhase.STOPPED

    def test_what_is_gone_is_told_and_passed_over(self, scene: Scene) -> None:
        scene.join(last_seq=9)
        scene.take()

        scene.page(scene.fetch(), 7, 8, 9)

        assert scene.take() == [7, 8, 9]
        assert list(scene.protocol.reading.missed) == [Missed(1, 6)]
        assert [one.facts for one in scene.of(Warned)] == [{"first": 1, "last": 6}]

    def test_everything_may_be_gone(self, scene: Scene) -> None:
        scene.join(last_seq=9)
        scene.take()

        scene.page(scene.fetch())
        scene.live(10)

        assert scene.take() == [10]
        assert list(scene.protocol.reading.missed) == [Missed(1, 9)]

    def test_what_came_after_the_question_is_not_taken_for_gone(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "HELD_MAX", 2)
        scene.join(last_seq=1)
        scene.take()
        asked = scene.fetch()
        for seq in range(2, 8):
            scene.live(seq)

        scene.page(asked)
        scene.pass_time(protocol.PAUSE_S)
        scene.page(scene.fetch(), *range(2, 8))

        assert list(scene.protocol.reading.missed) == [Missed(1, 1)]
        assert scene.take() == list(range(2, 8))

    def test_neighbouring_losses_are_one(self, scene: Scene) -> None:
        scene.join(last_seq=3)
        scene.take()
        scene.page(scene.fetch())
        scene.lose()
        scene.join(last_seq=5)
        scene.pass_time(protocol.PAUSE_S)

        scene.page(scene.fetch())

        assert list(scene.protocol.reading.missed) == [Missed(1, 5)]
        assert scene.of(Warned)[-1].facts == {"first": 4, "last": 5}, "each is told once"

    def test_a_hub_that_lost_what_we_read_is_read_from_its_beginning(self, scene: Scene) -> None:
        scene.join()
        for seq in (1, 2, 3):
            scene.live(seq)
        assert scene.take() == [1, 2, 3]

        scene.lose()
        scene.join(last_seq=2)
        assert scene.fetch() == 1
        fresh = RoomMessage(seq=2, message_id="another", ciphertext=b"x")
        known = RoomMessage(seq=1, message_id="m1", ciphertext=b"x")
        page = InboxPage(messages=(known, fresh), next_seq=3, oldest_seq=1)
        scene.effects += scene.protocol.fetched(1, page, scene.now_s)

        assert scene.take() == [2]
        assert scene.protocol.reading.rewound == 1

    def test_a_page_asked_for_before_a_rewind_is_not_used(self, scene: Scene) -> None:
        scene.join(last_seq=5)
        scene.take()
        scene.page(scene.fetch(), 1, 2, 3, 4)
        assert scene.take() == [1, 2, 3, 4]
        asked = scene.fetch()

        scene.lose()
        scene.join(last_seq=1)
        scene.page(asked, 5)

        assert scene.take() == []
        assert scene.fetch() == 1


class TestBounds:
    """Nobody who reads slowly, or not at all, fills the memory."""

    def test_held_messages_beyond_the_bound_are_fetched_instead(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "HELD_MAX", 3)
        scene.join(last_seq=2)
        scene.take()
        for seq in range(3, 30):
            scene.live(seq)

        scene.page(scene.fetch(), *range(1, 10))
        scene.page(scene.fetch(), *range(10, 30))

        assert scene.take() == list(range(1, 30))

    def test_held_bytes_are_bounded_too(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "HELD_BYTES_MAX", 100)
        scene.join(last_seq=1)
        scene.take()
        asked = scene.fetch()
        scene.live(2, data=b"y" * 60)
        scene.live(3, data=b"y" * 60)

        scene.page(asked, 1)

        assert scene.fetch() == 2

    def test_unread_messages_are_bounded_and_none_is_lost(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "READY_MAX", 4)
        monkeypatch.setattr(protocol, "HELD_MAX", 4)
        scene.join()
        for seq in range(1, 21):
            scene.live(seq)

        first = scene.take()
        asked = scene.fetch()
        scene.page(asked, *range(asked, 21))

        assert len(first) <= 8
        assert first + scene.take() == list(range(1, 21))

    def test_a_slow_reader_is_not_given_the_next_page_before_it_needs_it(
        self, scene: Scene
    ) -> None:
        scene.join(last_seq=2_500)
        scene.take()
        scene.page(scene.fetch(), *range(1, 1_001))
        assert scene.fresh(FetchPage) == []

        for _ in range(501):
            _, effects = scene.protocol.take(scene.now_s)
            scene.effects += effects

        assert scene.fetch() == 1_001
