"""Sockets that take little, late or nothing: what is written, acknowledged, counted and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from picows import WSMsgType

from signalhub.settings.model import OutboundSettings
from signalhub.wire.frames import Opcode
from tests.support.memory.write_path import Peer, Stage

HOUR_S = 3_600
STALLED_S = 10
GRACE_S = 5


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


def block(stage: Stage, sender: Peer, target: Peer) -> None:
    """The target's socket takes ten more bytes; a first tell does not fit."""
    target.stall(room=10)
    sender.tell(target.address, "first")
    stage.loop.run_dry()
    assert target.connection in stage.writer._blocked


def settle(stage: Stage, *peers: Peer) -> None:
    """These peers read on, and the loop comes to rest."""
    for peer in peers:
        peer.read()
    stage.loop.run_dry()
    for peer in peers:
        peer.read()
    stage.loop.run_dry()


def types(peer: Peer) -> list[str]:
    return [message["type"] for message in peer.messages()]


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


# Partial writes.


@pytest.mark.parametrize("short", [0, 1, 10, 200])
def test_room_that_appears_during_a_short_write_leaves_nobody_blocked(
    stage: Stage, short: int
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.socket.short = short
    ask = a.ask("@(a/b)", 1)
    stage.loop.run_dry()
    assert b.connection.session.outbound is None
    assert not stage.writer._blocked
    a.tell("@(a/b)", 2)
    stage.loop.run_dry()
    assert b.heard() == [1, 2]
    assert [reply["type"] for reply in a.replies(ask)] == ["hub:delivery_ack"]
    stage.pass_time(STALLED_S + 1)
    assert close_code(b) is None


def test_an_ask_is_acknowledged_when_its_last_byte_has_left(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.stall(room=10)
    ask = a.ask("@(a/b)", 1)
    stage.loop.run_dry()
    missing = b.transport.get_write_buffer_size()
    b.read(missing - 1)
    stage.pass_time(1)
    assert a.replies(ask) == []
    b.read(1)
    stage.loop.run_dry()
    assert [reply["type"] for reply in a.replies(ask)] == ["hub:delivery_ack"]


def test_asks_of_one_write_are_acknowledged_one_by_one_as_their_bytes_leave(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.stall(room=10)
    asks = [a.ask("@(a/b)", number) for number in range(2)]
    stage.loop.run_dry()
    b.read(b.transport.get_write_buffer_size() - 1)
    stage.pass_time(0.25)
    assert [len(a.replies(ask)) for ask in asks] == [1, 0]
    b.read(1)
    stage.loop.run_dry()
    assert [len(a.replies(ask)) for ask in asks] == [1, 1]


def test_an_ask_is_not_acknowledged_when_the_socket_breaks_between_the_two_writes(
    stage: Stage,
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.socket.short = 10
    b.socket.breaks_after_write = True
    ask = a.ask("@(a/b)", 1)
    stage.loop.run_dry()
    assert b.heard() == []
    assert [reply["type"] for reply in a.replies(ask)] == ["hub:unknown_actor"]


def test_an_ask_to_a_socket_that_cannot_be_written_is_refused(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.socket.is_broken = True
    ask = a.ask("@(a/b)", 1)
    stage.loop.run_dry()
    (reply,) = a.replies(ask)
    assert reply["type"] == "hub:unknown_actor"
    assert reply["payload"]["retryable"] is True
    assert not stage.hub.pending


def test_an_ask_lost_with_a_half_closed_reader_is_answered_whatever_follows(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)", "news")
    block(stage, a, b)
    b.hang_up()
    ask = a.ask("@(a/b)", 1)
    b.read()
    a.publish("news", 2)
    stage.writer.sweep()
    stage.loop.run_dry()
    assert [reply["type"] for reply in a.replies(ask)] == ["hub:unknown_actor"]
    assert not stage.hub.pending


def test_a_pong_that_does_not_fit_lets_nothing_overtake_what_is_queued(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.stall(room=1)
    a.tell("@(a/b)", 1)
    b.frame(WSMsgType.PING, b"are you there?")
    a.tell("@(a/b)", 2)
    b.read()
    stage.loop.run_dry()
    assert b.heard() == [1, 2]


def test_an_ask_behind_a_pong_that_breaks_the_socket_is_answered(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.socket.is_broken = True
    ask = a.ask("@(a/b)", 1)
    b.frame(WSMsgType.PING, b"are you there?")
    stage.loop.run_dry()
    assert [reply["type"] for reply in a.replies(ask)] == ["hub:unknown_actor"]
    assert not stage.hub.pending


# Asks and ticks.


def test_an_ask_costs_four_flushes(stage: Stage) -> None:
    """To the log; to its target and the asker; its settlement to the log; which is committed."""
    a = stage.join("@(a/a)")
    stage.join("@(a/b)")
    before = stage.tally.delivery_latency.count
    for number in range(10):
        ask = a.ask("@(a/b)", number)
        stage.loop.run_dry()
        assert len(a.replies(ask)) == 1
    assert stage.tally.delivery_latency.count - before == 40


def test_whatever_happens_in_one_tick_is_flushed_together(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    before = stage.tally.delivery_latency.count
    for number in range(10):
        a.ask("@(a/b)", number)
        b.tell("@(a/a)", number)
    stage.loop.turn()
    assert stage.tally.delivery_latency.count - before == 1
    assert a.heard() == list(range(10))
    stage.loop.run_dry()
    assert stage.tally.delivery_latency.count - before == 4
    assert b.heard() == list(range(10))


# Readers that do not keep up.


def test_waiting_tells_of_a_slow_reader_that_is_closed_are_counted_as_dropped(
    stage: Stage,
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    for number in range(7):
        a.tell("@(a/b)", number)
    assert stage.writer.depth() == 7
    stage.pass_time(STALLED_S + 1)
    assert stage.tally.slow_closed == 1
    assert stage.tally.dropped_tells == 7
    assert stage.writer.depth() == 0


def test_tells_queued_for_a_socket_that_dies_are_counted_as_dropped(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)", "news")
    b.reset()
    a.tell("@(a/b)", 1)
    a.publish("news", 2)
    stage.loop.run_dry()
    assert b.heard() == []
    assert stage.tally.dropped_tells == 2


def test_an_ask_that_is_lost_is_not_counted_among_the_tells(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.socket.is_broken = True
    a.ask("@(a/b)", 1)
    a.tell("@(a/b)", 2)
    stage.loop.run_dry()
    assert stage.tally.dropped_tells == 1


def test_who_was_told_to_wait_for_a_reader_that_is_closed_is_told_to_go_on() -> None:
    with Stage(outbound=OutboundSettings(pause_messages=3, resume_messages=1)) as stage:
        a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
        block(stage, a, b)
        for number in range(5):
            a.tell("@(a/b)", number)
        stage.loop.run_dry()
        assert types(a)[-1] == "hub:pause"
        b.reset()
        stage.loop.run_dry()
        assert types(a)[-1] == "hub:resume"


def test_replies_that_die_with_a_socket_are_no_dropped_tells(stage: Stage) -> None:
    b = stage.arrive("@(a/b)")
    b.reset()
    stage.loop.run_dry()
    assert stage.tally.dropped_tells == 0


def test_waiting_tells_of_a_reader_that_hangs_up_are_counted_as_dropped(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    b.hang_up()
    for number in range(7):
        a.tell("@(a/b)", number)
    settle(stage, b)
    assert b.heard() == ["first"]
    assert stage.tally.dropped_tells == 7


def test_messages_sent_counts_what_waited(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    before = stage.tally.sent
    block(stage, a, b)
    for number in range(7):
        a.tell("@(a/b)", number)
    settle(stage, b)
    assert b.heard() == ["first", *range(7)]
    assert stage.tally.sent - before == 8
    assert b.connection.session.sent == len(b.messages())


def test_messages_sent_counts_what_waited_for_a_reader_that_is_closed(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    for number in range(7):
        a.tell("@(a/b)", number)
    b.request("hub:disconnect", pattern="tell")
    settle(stage, b)
    assert b.heard() == ["first", *range(7)]
    assert close_code(b) is not None
    assert stage.tally.sent == len(a.messages()) + len(b.messages())


def test_a_tell_whose_lifetime_ends_while_it_waits_is_not_written_when_its_target_is_closed(
    stage: Stage,
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    a.tell("@(a/b)", "brief", ttl=200)
    a.tell("@(a/b)", "lasting")
    ask = a.ask("@(a/b)", "brief question", ttl=200)
    stage.loop.run_dry()
    stage.clock.advance(1)
    b.request("hub:disconnect", pattern="tell")
    settle(stage, b)
    assert b.heard() == ["first", "lasting"]
    assert stage.tally.expired_tells == 1
    assert stage.tally.expired_asks == 1
    (reply,) = a.replies(ask)
    assert reply["payload"]["code"] == "message_expired"


# Peers that leave.


def test_a_peer_that_stops_reading_and_says_close_is_gone_from_discovery_at_once(
    stage: Stage,
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)", "news")
    block(stage, a, b)
    b.say_close()
    assert found(a) == ["@(a/a)"]
    published = a.publish("news", 1)
    stage.loop.run_dry()
    assert a.replies(published)[0]["payload"]["subscriberCount"] == 0


def test_a_peer_that_stops_reading_and_says_close_is_dropped_after_the_grace(
    stage: Stage,
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    b.say_close()
    stage.pass_time(GRACE_S - 0.25)
    assert b.connection in stage.runner.connections
    stage.pass_time(0.5)
    assert b.connection not in stage.runner.connections
    assert not stage.writer._blocked
    assert not stage.writer._closing


def test_a_peer_that_says_close_and_reads_on_gets_what_was_on_its_way(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    b.say_close()
    settle(stage, b)
    assert b.heard() == ["first"]
    assert close_code(b) == 1000
    assert b.connection not in stage.runner.connections


def test_a_peer_that_says_close_gets_what_was_queued_in_the_same_tick(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    ask = a.ask("@(a/b)", 1)
    while not b.connection.queue:
        stage.loop.turn()
    a.tell("@(a/b)", 2)
    b.say_close()
    stage.loop.run_dry()
    assert b.heard() == [1, 2]
    assert [reply["type"] for reply in a.replies(ask)] == ["hub:delivery_ack"]


def test_an_ask_to_a_peer_that_says_close_before_it_is_on_disk_is_answered_as_gone(
    stage: Stage,
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    ask = a.ask("@(a/b)", 1)
    b.say_close()
    stage.loop.run_dry()
    assert b.heard() == []
    (reply,) = a.replies(ask)
    assert reply["type"] == "hub:unknown_actor"
    assert reply["payload"]["retryable"] is True


def test_a_peer_that_vanishes_is_gone_from_discovery(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.reset()
    stage.loop.run_dry()
    assert found(a) == ["@(a/a)"]


def test_asks_of_a_reader_dropped_while_closing_are_answered_by_what_it_took(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    b.stall(room=10)
    taken = a.ask("@(a/b)", 1)
    stage.loop.run_dry()
    missing = b.transport.get_write_buffer_size()
    left = a.ask("@(a/b)", 2)
    stage.loop.run_dry()
    b.request("hub:disconnect", pattern="tell")
    b.read(missing)
    stage.pass_time(GRACE_S - 1)
    assert [reply["type"] for reply in a.replies(taken)] == ["hub:delivery_ack"]
    assert a.replies(left) == []
    stage.pass_time(2)
    assert b.connection not in stage.runner.connections
    assert [reply["type"] for reply in a.replies(left)] == ["hub:unknown_actor"]


def test_a_close_that_is_answered_in_the_same_moment_closes_the_socket(stage: Stage) -> None:
    b = stage.join("@(a/b)")
    b.request("hub:disconnect", pattern="tell")
    b.say_close()
    stage.loop.run_dry()
    assert b.connection not in stage.runner.connections
    stage.pass_time(GRACE_S + 1)
    assert not stage.writer._closing


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_the_wall_clock_does_not_close_a_blocked_reader(
    stage: Stage, jump_s: int
) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    block(stage, a, b)
    stage.clock.jump(jump_s)
    stage.pass_time(STALLED_S - 1)
    assert stage.tally.slow_closed == 0
    assert b.is_open
    stage.pass_time(2)
    assert stage.tally.slow_closed == 1


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_the_wall_clock_neither_keeps_nor_hurries_a_closing_socket(
    stage: Stage, jump_s: int
) -> None:
    b = stage.join("@(a/b)")
    b.request("hub:disconnect", pattern="tell")
    stage.loop.run_dry()
    stage.clock.jump(jump_s)
    stage.pass_time(0.75)
    assert b.connection in stage.runner.connections
    stage.pass_time(0.5)
    assert b.connection not in stage.runner.connections


def test_a_fault_of_ours_on_one_connection_does_not_stop_the_others(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = (stage.join(f"@(a/{name})") for name in "abc")
    b.connection.queue.append(cast(bytes, "no bytes"))

    a.tell(b.address, 1)
    a.tell(c.address, 2)
    stage.loop.run_dry()
    a.tell(c.address, 3)
    stage.loop.run_dry()

    assert c.heard() == [2, 3]
    assert not b.is_open
    assert [record.message for record in caplog.records] == ["a connection could not be written"]
