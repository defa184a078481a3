"""Sockets that take little, late or nothing: what is written, acknowledged, counted and dropped.

At the end: publishes and broadcasts on their way out, and durable messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from picows import WSMsgType

from signalhub.wire.frames import Opcode
from tests.support.memory.write_path import Peer, Stage

HOUR_S = 3_600
STALLED_S = 10
GRACE_S = 5


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture
def a(stage: Stage) -> Peer:
    return stage.join("@(a/a)")


@pytest.fixture
def b(stage: Stage, a: Peer) -> Peer:
    return stage.join("@(a/b)", "news")


def block(a: Peer, b: Peer) -> None:
    """The socket of `b` takes ten more bytes; a first tell does not fit."""
    b.stall(room=10)
    a.tell(b.address, "first")
    a.stage.loop.run_dry()
    assert b.connection in a.stage.writer._blocked


def settle(b: Peer) -> None:
    """The peer reads on, and the loop comes to rest."""
    for _ in range(2):
        b.read()
        b.stage.loop.run_dry()


def answers(peer: Peer, message_id: str) -> list[str]:
    return [reply["type"] for reply in peer.replies(message_id)]


def close_code(peer: Peer) -> int | None:
    """The code of the hub's close frame, once it has arrived."""
    for opcode, payload, _ in peer.socket.taken.frames():
        if opcode == Opcode.CLOSE:
            return int.from_bytes(payload[:2], "big")
    return None


def found(peer: Peer) -> list[str]:
    """What discovery finds."""
    message_id = peer.request("hub:discover", {"pattern": "*"})
    peer.stage.loop.run_dry()
    (reply,) = peer.replies(message_id)
    return [actor["address"] for actor in reply["payload"]["actors"]]


def test_asks_are_acknowledged_one_by_one_as_their_last_bytes_leave(
    stage: Stage, a: Peer, b: Peer
) -> None:
    b.stall(room=10)
    asks = [a.ask("@(a/b)", number) for number in range(2)]
    stage.loop.run_dry()
    b.read(b.transport.get_write_buffer_size() - 1)
    stage.pass_time(1)
    assert [len(a.replies(ask)) for ask in asks] == [1, 0]
    b.read(1)
    stage.loop.run_dry()
    assert [answers(a, ask) for ask in asks] == [["hub:delivery_ack"]] * 2


@pytest.mark.parametrize("fault", ["between two writes", "before", "in a pong"])
def test_an_ask_to_a_socket_that_breaks_is_refused_and_no_lost_tell(
    stage: Stage, a: Peer, b: Peer, fault: str
) -> None:
    if fault == "between two writes":
        b.socket.short = 10
        b.socket.breaks_after_write = True
    else:
        b.socket.is_broken = True
    ask = a.ask("@(a/b)", 1)
    if fault == "in a pong":
        b.frame(WSMsgType.PING, b"are you there?")
    stage.loop.run_dry()
    (reply,) = a.replies(ask)
    assert (reply["type"], reply["payload"]["retryable"]) == ("hub:unknown_actor", True)
    assert b.heard() == []
    assert not stage.hub.pending
    assert stage.tally.dropped_tells == 0


def test_an_ask_costs_four_flushes_and_a_tick_flushes_once(stage: Stage, a: Peer, b: Peer) -> None:
    """To the log; to its target and the asker; its settlement to the log; which is committed."""
    flushes = stage.tally.delivery_latency
    before = flushes.count
    for number in range(10):
        ask = a.ask("@(a/b)", number)
        stage.loop.run_dry()
        assert len(a.replies(ask)) == 1
    assert flushes.count - before == 40
    before = flushes.count
    for number in range(10, 20):
        a.ask("@(a/b)", number)
        b.tell("@(a/a)", number)
    stage.loop.turn()
    assert flushes.count - before == 1
    assert a.heard() == list(range(10, 20))
    stage.loop.run_dry()
    assert flushes.count - before == 4
    assert b.heard() == list(range(20))


def test_what_expires_while_it_waits_is_not_written_when_its_target_is_closed(
    stage: Stage, a: Peer, b: Peer
) -> None:
    block(a, b)
    a.tell("@(a/b)", "brief", ttl=200)
    a.tell("@(a/b)", "lasting")
    ask = a.ask("@(a/b)", "brief question", ttl=200)
    stage.loop.run_dry()
    stage.clock.advance(1)
    b.request("hub:disconnect", pattern="tell")
    settle(b)
    assert b.heard() == ["first", "lasting"]
    assert (stage.tally.expired_tells, stage.tally.expired_asks) == (1, 1)
    (reply,) = a.replies(ask)
    assert reply["payload"]["code"] == "message_expired"


def test_a_peer_that_stops_reading_and_says_close_is_gone_at_once_and_dropped_after_the_grace(
    stage: Stage, a: Peer, b: Peer
) -> None:
    block(a, b)
    b.say_close()
    assert found(a) == ["@(a/a)"]
    published = a.publish("news", 1)
    stage.loop.run_dry()
    assert a.replies(published)[0]["payload"]["subscriberCount"] == 0
    stage.pass_time(GRACE_S - 0.25)
    assert b.connection in stage.runner.connections
    stage.pass_time(0.5)
    assert b.connection not in stage.runner.connections
    assert not stage.writer._blocked
    assert not stage.writer._closing


def test_a_peer_that_says_close_and_reads_on_gets_what_was_on_its_way(
    stage: Stage, a: Peer, b: Peer
) -> None:
    block(a, b)
    b.say_close()
    settle(b)
    assert b.heard() == ["first"]
    assert close_code(b) == 1000
    assert b.connection not in stage.runner.connections


def test_a_peer_that_says_close_gets_what_was_queued_in_the_same_tick(
    stage: Stage, a: Peer, b: Peer
) -> None:
    ask = a.ask("@(a/b)", 1)
    while not b.connection.queue:
        stage.loop.turn()
    a.tell("@(a/b)", 2)
    b.say_close()
    stage.loop.run_dry()
    assert b.heard() == [1, 2]
    assert answers(a, ask) == ["hub:delivery_ack"]


def test_an_ask_to_a_peer_that_says_close_before_it_is_on_disk_is_answered_as_gone(
    stage: Stage, a: Peer, b: Peer
) -> None:
    ask = a.ask("@(a/b)", 1)
    b.say_close()
    stage.loop.run_dry()
    assert b.heard() == []
    (reply,) = a.replies(ask)
    assert (reply["type"], reply["payload"]["retryable"]) == ("hub:unknown_actor", True)


def test_asks_of_a_reader_dropped_while_closing_are_answered_by_what_it_took(
    stage: Stage, a: Peer, b: Peer
) -> None:
    b.stall(room=10)
    taken = a.ask("@(a/b)", 1)
    stage.loop.run_dry()
    missing = b.transport.get_write_buffer_size()
    left = a.ask("@(a/b)", 2)
    stage.loop.run_dry()
    b.request("hub:disconnect", pattern="tell")
    b.read(missing)
    stage.pass_time(GRACE_S - 1)
    assert (answers(a, taken), answers(a, left)) == (["hub:delivery_ack"], [])
    stage.pass_time(2)
    assert b.connection not in stage.runner.connections
    assert answers(a, left) == ["hub:unknown_actor"]


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_the_wall_clock_neither_closes_a_blocked_reader_nor_keeps_a_closing_one(
    stage: Stage, a: Peer, b: Peer, jump_s: int
) -> None:
    block(a, b)
    stage.clock.jump(jump_s)
    stage.pass_time(STALLED_S - 1)
    assert stage.tally.slow_closed == 0
    assert b.is_open
    stage.pass_time(2)
    assert stage.tally.slow_closed == 1
    a.request("hub:disconnect", pattern="tell")
    stage.loop.run_dry()
    stage.clock.jump(jump_s)
    stage.pass_time(0.75)
    assert a.connection in stage.runner.connections
    stage.pass_time(0.5)
    assert a.connection not in stage.runner.connections


def test_a_fault_of_ours_on_one_connection_does_not_stop_the_others(
    stage: Stage, a: Peer, b: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    c = stage.join("@(a/c)")
    b.connection.queue.append(cast(bytes, "no bytes"))
    a.tell(b.address, 1)
    a.tell(c.address, 2)
    stage.loop.run_dry()
    a.tell(c.address, 3)
    stage.loop.run_dry()
    assert c.heard() == [2, 3]
    assert not b.is_open
    assert [record.message for record in caplog.records] == ["a connection could not be written to"]


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


def test_on_a_busy_topic_each_socket_gets_a_whole_round_in_one_write() -> None:
    with Stage(broadcast_batch=2, fanout_batch=2) as stage:
        a = stage.join("@(a/a)")
        heard_by = readers(stage, 6, "one")
        a.publish("one", 0)
        stage.loop.turn()
        before = [len(peer.socket.taken._ends) for peer in heard_by]
        for number in range(1, 31):
            a.publish("one", number)
            stage.loop.turn()
        stage.loop.run_dry()
        for peer, writes in zip(heard_by, before, strict=True):
            assert peer.heard() == list(range(31))
            # It is its turn every third time.
            assert len(peer.socket.taken._ends) - writes <= 12


def test_a_busy_topic_keeps_only_what_somebody_waits_for() -> None:
    with Stage(broadcast_batch=2, fanout_batch=2) as stage:
        a = stage.join("@(a/a)")
        heard_by = readers(stage, 6, "one")
        batches: set[int] = set()
        for number in range(200):
            a.publish("one", KILOBYTE)
            batches.update(map(id, stage.runner._open_fans.values()))
            assert kept_bytes(stage) < 6 * 2 * len(KILOBYTE)
            if number % 4:
                stage.loop.turn()
        assert len(batches) == 1, "the batch was closed although there was room in it"
        stage.loop.run_dry()
        for peer in heard_by:
            assert len(peer.heard()) == 200


def test_who_was_blocked_shares_writes_again_on_a_busy_topic() -> None:
    with Stage(broadcast_batch=2, fanout_batch=2) as stage:
        a = stage.join("@(a/a)")
        slow, *_ = heard_by = readers(stage, 6, "one")
        slow.stall()
        for number in range(12):
            a.publish("one", number)
            stage.loop.turn()
        (batch,) = stage.runner._open_fans.values()
        assert [one.session for one in batch.blocked] == [slow.connection.session]
        slow.read()
        before = len(slow.socket.taken._ends)
        for number in range(12, 30):
            a.publish("one", number)
            stage.loop.turn()
        assert list(stage.runner._open_fans.values()) == [batch]
        assert not batch.blocked
        stage.loop.run_dry()
        assert len(slow.socket.taken._ends) - before <= 8
        for peer in heard_by:
            assert peer.heard() == list(range(30))


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


def subscribe(peer: Peer, mode: str = "shared", **options: Any) -> None:
    payload = {"topic": "orders", "subscription": "s", "mode": mode, "from": "earliest"}
    peer.request("hub:subscribe", payload | options)
    peer.stage.loop.run_dry()


def publish(peer: Peer, count: int) -> None:
    for number in range(count):
        payload = {"topic": "orders", "type": "news", "data": number, "durable": True}
        peer.request("hub:publish", payload)
    peer.stage.loop.run_dry()


def test_a_consumer_that_does_not_read_gets_no_more_until_it_does(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    publish(a, 1)
    subscribe(b, mode="exclusive")
    b.stall()

    publish(a, 50)
    waiting = stage.writer.depth()
    publish(a, 50)

    assert stage.writer.depth() == waiting
    b.read()
    stage.loop.run_dry()
    assert len(b.heard()) == 101


def test_a_short_write_settles_nothing_that_did_not_leave(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    publish(a, 1)
    b.stall(room=600)
    subscribe(b, mode="exclusive", autoAck=True)
    publish(a, 5)

    whole = len(b.heard())
    b.reset()
    stage.loop.run_dry()
    c = stage.join("@(a/c)")
    subscribe(c, mode="exclusive", autoAck=True)

    assert whole < 6
    assert len(c.heard()) == 6 - whole
