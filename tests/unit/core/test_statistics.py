"""What the hub says about itself: queues, metrics, tallies, pushed heartbeats."""

from __future__ import annotations

from signalhub.core.sessions.outbound import Outbound
from signalhub.counters import Histogram
from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, Message, Peer


def metrics(peer: Peer) -> Message:
    payload: Message = peer.ask("hub:metrics")["payload"]
    return payload


def test_queue_statistics_of_a_peer_that_keeps_up_show_an_empty_queue() -> None:
    shell = MemoryShell()
    peer = shell.connect()
    shell.clock.advance(2)

    reply = peer.ask("hub:queue_stats", "whatever")

    assert reply["type"] == "hub:queue_stats_response"
    assert reply["payload"] == {
        "queueDepth": 0,
        "queueBytes": 0,
        "processingRate": 0.5,
        "pauseThreshold": 1_000,
        "resumeThreshold": 500,
    }


def test_queue_statistics_of_a_blocked_peer_show_what_waits() -> None:
    shell = MemoryShell()
    peer = shell.connect()
    outbound = Outbound(shell.hub.settings.outbound, shell.now)
    outbound.queued(300)
    outbound.queued(200)
    peer.session.outbound = outbound

    payload = peer.ask("hub:queue_stats")["payload"]

    assert (payload["queueDepth"], payload["queueBytes"]) == (2, 500)


def test_metrics_count_what_happened_since_the_minute_began() -> None:
    shell = MemoryShell()
    shell.tick()
    began = shell.now
    peer = shell.connect()
    shell.connect().drop()
    peer.ask("hub:nonsense")
    shell.pass_time(5)

    payload = metrics(peer)

    assert payload == {
        "messages_received": 4,
        "messages_sent": 3,
        "errors": 1,
        "connections_opened": 2,
        "connections_closed": 1,
        "windowStart": began,
        "timestamp": shell.now,
    }


def test_a_new_minute_begins_at_zero_and_the_tally_goes_on() -> None:
    shell = MemoryShell()
    shell.tick()
    peer = shell.connect()
    for _ in range(10):
        peer.ask("hub:heartbeat")

    shell.pass_time(59)
    before = metrics(peer)
    shell.pass_time(1)
    began = shell.now
    shell.pass_time(7)
    after = metrics(peer)

    assert before["messages_received"] == 12
    assert after["messages_received"] == 1
    assert after["windowStart"] == began
    assert shell.tally.received == 13


def test_a_clock_set_back_delays_the_next_minute_by_a_minute_at_most() -> None:
    shell = MemoryShell()
    shell.tick()
    peer = shell.connect()

    shell.clock.jump(-3_600)
    shell.pass_time(60)

    assert 0 <= shell.now - metrics(peer)["windowStart"] <= 60_000


def test_errors_are_counted_by_code() -> None:
    shell = MemoryShell()
    peer = shell.open()

    peer.ask("hub:heartbeat")
    peer.hello("@(local/a)")
    peer.ask("hub:nonsense")
    peer.write(b"{}")
    peer.send("@(no/body)", pattern="ask")
    peer.write(b"nonsense")

    assert shell.tally.errors == {
        "unauthorized": 1,
        "internal_error": 2,
        "unknown_actor": 1,
        "malformed_message": 1,
    }


def test_reconnections_are_told_from_first_registrations() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    peer.register()
    repeated = shell.tally.reconnections
    shell.join("@(local/a)")
    successor = shell.restarted()
    successor.join("@(local/a)")

    assert shell.tally.registrations == 3
    assert repeated == 0
    assert shell.tally.reconnections == 1
    assert successor.tally.reconnections == 1


def test_heartbeats_are_not_pushed_unless_configured() -> None:
    shell = MemoryShell()
    peer = shell.connect()
    peer.take()

    shell.pass_time(120)

    assert peer.take() == []


def test_pushed_heartbeats_reach_the_connected_at_the_configured_pace() -> None:
    shell = MemoryShell(Settings(heartbeat_push_s=5.0))
    peer = shell.connect("@(local/a)")
    silent = shell.open()
    shell.tick()
    peer.take()

    shell.pass_time(20)

    pushed = peer.take()
    assert [one["type"] for one in pushed] == ["hub:heartbeat_ack"] * 4
    assert {one["correlationId"] for one in pushed} == {None}
    assert pushed[-1]["payload"] == {"timestamp": shell.now, "serverTime": shell.now}
    assert silent.received == []


def test_pushed_heartbeats_go_on_when_the_clock_is_set_back() -> None:
    shell = MemoryShell(Settings(heartbeat_push_s=5.0))
    peer = shell.connect("@(local/a)")
    shell.tick()
    peer.take()

    shell.clock.jump(-3_600)
    shell.pass_time(10)

    assert len(peer.take()) >= 2


def test_pushed_heartbeats_renew_no_lease() -> None:
    shell = MemoryShell(Settings(heartbeat_push_s=1.0))
    shell.join("@(local/a)", ttlSeconds=10)

    shell.pass_time(10)

    assert shell.hub.registry.find("@(local/a)", shell.now) is None


def test_a_histogram_puts_a_duration_in_the_first_bound_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0))

    for seconds in (-5.0, 0.0, 0.1, 0.100001, 1.0, 1.5):
        histogram.observe(seconds)

    assert histogram.counts == [3, 2, 1]
    assert histogram.count == 6
    assert abs(histogram.sum_s - 2.700001) < 1e-9


def test_a_shortened_dedup_window_is_a_degradation() -> None:
    shell = MemoryShell()
    assert shell.hub.degradations() == []

    shell.hub.dedup._lost_until_ms = shell.now
    shell.hub.dedup.sweep(shell.now)

    assert shell.hub.degradations() == ["dedup_window_shortened"]
