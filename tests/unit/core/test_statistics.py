"""What the hub counts, and what it tells operators about itself."""

from __future__ import annotations

import pytest

from signalhub.core.sessions.outbound import Outbound
from signalhub.counters import Histogram
from signalhub.settings.model import RegistrySettings, Settings
from tests.support.memory.shell import MemoryShell


def test_queue_statistics_of_a_blocked_peer_show_what_waits() -> None:
    shell = MemoryShell()
    peer = shell.connect()
    outbound = Outbound(shell.hub.settings.outbound, shell.now)
    outbound.queued(300)
    outbound.queued(200)
    peer.session.outbound = outbound

    payload = peer.ask("hub:queue_stats")["payload"]

    assert (payload["queueDepth"], payload["queueBytes"]) == (2, 500)


def test_metrics_before_the_first_tick_begin_now() -> None:
    shell = MemoryShell()

    payload = shell.connect().ask("hub:metrics")["payload"]

    assert payload["windowStart"] == payload["timestamp"] == shell.now


def test_errors_are_counted_by_code_and_messages_by_their_fate() -> None:
    shell = MemoryShell()
    peer = shell.open()

    peer.ask("hub:heartbeat")
    peer.hello("@(local/a)")
    peer.ask("hub:nonsense")
    peer.write(b"{}")
    peer.send("@(no/body)", pattern="ask")
    peer.send("@(no/body)")
    peer.ask("hub:publish", {"topic": "t", "type": "t"})
    peer.ask("hub:publish", {"topic": "t/#", "type": "t"})
    peer.write(b"nonsense")

    assert shell.tally.errors == {
        "unauthorized": 1,
        "internal_error": 3,
        "unknown_actor": 1,
        "malformed_message": 1,
    }
    assert (shell.tally.unknown_targets, shell.tally.published) == (2, 1)
    assert shell.tally.received == 9


def test_reconnections_are_told_from_first_registrations() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    peer.register()
    repeated = shell.tally.reconnections
    shell.join("@(local/a)")
    successor = shell.restarted()
    successor.join("@(local/a)")

    assert shell.tally.registrations == 3
    assert (repeated, shell.tally.reconnections, successor.tally.reconnections) == (0, 1, 1)


@pytest.mark.parametrize(("count", "warned"), [(18, []), (19, ["registry_near_capacity"])])
def test_operators_are_warned_above_90_percent_of_the_registry(
    count: int, warned: list[str]
) -> None:
    shell = MemoryShell(Settings(registry=RegistrySettings(limit=20)))
    host = shell.connect()

    for number in range(count):
        host.register(f"@(local/{number})")

    assert shell.hub.degradations() == warned


def test_the_registry_never_grows_beyond_its_limit_and_refusals_are_counted() -> None:
    registry = RegistrySettings(limit=10, refuse_above=1.0, warn_above=1.0)
    shell = MemoryShell(Settings(registry=registry))
    host = shell.connect()

    for number in range(20):
        host.register(f"@(local/{number})")

    assert len(shell.hub.registry) == 10
    assert shell.tally.registry_refused == 10


def test_a_histogram_puts_a_duration_in_the_first_bound_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0))

    for seconds in (-5.0, 0.0, 0.1, 0.100001, 1.0, 1.5):
        histogram.observe(seconds)

    assert histogram.counts == [3, 2, 1]
    assert histogram.count == 6
    assert abs(histogram.sum_s - 2.700001) < 1e-9
