"""Publishes and broadcasts on their way out: in order, in turns, and not kept."""

from __future__ import annotations

import sys

import pytest

from tests.support.memory.write_path import Peer, Stage

MEGABYTE = "x" * 1_000_000
KILOBYTE = "x" * 1_000


def kept_bytes(stage: Stage) -> int:
    """The payloads the runner still holds for publishes to come."""
    batches = stage.runner._open_fans.values()
    return sum(sys.getsizeof(part) for batch in batches for copy in batch._copies for part in copy)


def readers(stage: Stage, count: int, *topics: str) -> list[Peer]:
    return [stage.join(f"@(reader/{number})", *topics) for number in range(count)]


def test_nothing_published_is_kept_once_it_is_written_or_nobody_hears_it() -> None:
    with Stage() as stage:
        a = stage.join("@(a/a)")
        for _ in range(20):
            a.publish("nobody", MEGABYTE)
            assert kept_bytes(stage) == 0
            stage.loop.run_dry()
        assert not stage.runner._open_fans
        (b,) = readers(stage, 1, "#")
        for number in range(200):
            a.publish(f"topic/{number}", KILOBYTE)
            if number % 50:
                stage.loop.run_dry()
                assert kept_bytes(stage) == 0
        assert len(b.heard()) == 200


def test_busy_topics_do_not_starve_a_third() -> None:
    with Stage(broadcast_batch=2, fanout_batch=2) as stage:
        a, q = stage.join("@(a/a)"), stage.join("@(a/q)")
        heard_by = readers(stage, 6, "one", "two")
        others = [stage.join(f"@(other/{number})", "three") for number in range(6)]
        for number in range(5):
            a.publish("one", number)
            a.publish("two", number)
            stage.loop.turn()
        q.publish("three", "at last")
        turns = 0
        while not all(peer.heard() for peer in others):
            for topic in ("one", "two"):
                a.publish(topic, turns)
            stage.loop.turn()
            turns += 1
            # Two of at most twelve waiting sockets are written per turn.
            assert turns <= 7, "the third topic does not get its turn"
        stage.loop.run_dry()
        for peer in heard_by:
            assert len(peer.heard()) == 2 * (5 + turns)


def test_every_socket_waits_for_its_turn_at_most_once() -> None:
    with Stage(broadcast_batch=2, fanout_batch=2) as stage:
        a = stage.join("@(a/a)")
        heard_by = readers(stage, 6, "one", "two")
        for number in range(100):
            a.publish("one", number)
            a.publish("two", number)
            waiting = list(stage.writer._bulk)
            assert len(waiting) == len(set(waiting)) <= 6
            if number % 3 == 0:
                stage.loop.turn()
        stage.loop.run_dry()
        assert not stage.writer._bulk
        for peer in heard_by:
            assert peer.heard() == [number for number in range(100) for _ in range(2)]


def test_publishes_of_one_tick_share_a_write() -> None:
    with Stage() as stage:
        a = stage.join("@(a/a)")
        (b,) = readers(stage, 1, "one")
        before = len(b.socket.taken._ends)
        for number in range(20):
            a.publish("one", number)
        stage.loop.run_dry()
        assert b.heard() == list(range(20))
        assert len(b.socket.taken._ends) == before + 1


def test_a_broadcast_is_written_a_hundred_per_turn_and_in_order_with_later_tells() -> None:
    with Stage() as stage:
        a = stage.join("@(a/a)")
        all_readers = readers(stage, 249)
        message_id = a.broadcast("to all")
        reached = []
        while stage.loop.ready:
            stage.loop.turn()
            reached.append(sum(bool(peer.heard()) for peer in [a, *all_readers]))
        assert reached == [100, 200, 250]
        (reply,) = a.replies(message_id)
        counts = [reply["payload"][f"{name}Count"] for name in ("delivered", "queued", "failed")]
        assert counts == [100, 150, 0]
        a.broadcast("again")
        for peer in all_readers[::10]:
            a.tell(peer.address, "to one")
        stage.loop.run_dry()
        for number, peer in enumerate(all_readers):
            told = ["to one"] if number % 10 == 0 else []
            assert peer.heard() == ["to all", "again", *told]


@pytest.mark.parametrize("blocked", [0, 3, 5])
def test_a_reader_that_catches_up_in_the_middle_of_a_batch_gets_everything_in_order(
    blocked: int,
) -> None:
    with Stage(broadcast_batch=2, fanout_batch=2) as stage:
        a = stage.join("@(a/a)")
        all_readers = readers(stage, 6, "one")
        slow = all_readers[blocked]
        slow.stall(room=10)
        a.publish("one", 0)
        stage.loop.run_dry()
        for number in range(1, 9):
            a.publish("one", number)
            if number == 4:
                slow.read()
        stage.loop.run_dry()
        for peer in all_readers:
            assert peer.heard() == list(range(9))


def test_a_copy_too_many_for_a_slow_reader_is_dropped_and_counted() -> None:
    with Stage() as stage:
        a = stage.join("@(a/a)")
        quick, slow = readers(stage, 2, "one")
        slow.stall()
        for number in range(15):
            a.publish("one", [number, MEGABYTE])
            stage.loop.run_dry()
        dropped = stage.tally.dropped_tells
        assert dropped > 0
        slow.read()
        stage.loop.run_dry()
        assert [number for number, _ in slow.heard()] == list(range(15 - dropped))
        assert len(quick.heard()) == 15


def test_broadcasts_without_pause_do_not_starve_the_queued_half_of_the_first() -> None:
    with Stage(broadcast_batch=2, message_rate=0.0) as stage:
        a = stage.join("@(a/a)")
        all_readers = readers(stage, 9)
        for number in range(20):
            a.broadcast(number)
            stage.loop.turn()
        reached = [len(peer.heard()) for peer in all_readers]
        stage.loop.run_dry()

        assert all(count > 0 for count in reached)
        assert all(peer.heard()[-1] == 19 for peer in all_readers)
