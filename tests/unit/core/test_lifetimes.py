"""Lifetimes of messages to the millisecond, and what is counted of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory.shell import MemoryShell, Message, Peer

BOB = "@(local/bob)"


def pair(clock_behind_ms: int = 0) -> tuple[MemoryShell, Peer, Peer]:
    """Alice's clock is behind the hub's, or ahead if the difference is negative."""
    shell = MemoryShell()
    bob = shell.join(BOB, ttlSeconds=3_600)
    alice = shell.connect("@(local/alice)", timestamp=shell.now - clock_behind_ms)
    return shell, alice, bob


def send(peer: Peer, timestamp: float, ttl: float | None, pattern: str = "ask") -> list[Message]:
    return peer.send(BOB, timestamp=timestamp, ttl=ttl, pattern=pattern)


@pytest.mark.parametrize(
    ("clock_behind_ms", "sent_ago_ms", "ttl", "is_delivered"),
    [
        (0, 1_000, 1_000, True),
        (0, 1_001, 1_000, False),
        (0, 1_000_000_000, None, True),
        (0, 1_000_000_000, 0, True),
        # A clock that was behind at the hello is allowed for.
        (60_000, 61_000, 1_000, True),
        (60_000, 61_001, 1_000, False),
        (300_000, 300_500, 1_000, True),
        # Further behind than that it is not believed.
        (300_001, 300_001, 1_000, False),
        # A clock ahead of ours is not corrected: the message lasts a little longer.
        (-60_000, -60_000, 1_000, True),
        (-60_000, 0, 1_000, True),
        (-60_000, 1_001, 1_000, False),
    ],
)
def test_a_message_lives_exactly_as_long_as_its_ttl(
    clock_behind_ms: int, sent_ago_ms: int, ttl: int | None, is_delivered: bool
) -> None:
    shell, alice, bob = pair(clock_behind_ms)

    (reply,) = send(alice, shell.now - sent_ago_ms, ttl)
    send(alice, shell.now - sent_ago_ms, ttl, pattern="tell")

    assert len(bob.heard()) == 2 * is_delivered
    if not is_delivered:
        assert reply["payload"]["code"] == "message_expired"
        assert reply["payload"]["details"] == {"ttl": 1_000}
        assert (shell.tally.expired_asks, shell.tally.expired_tells) == (1, 1)


def test_a_new_hello_sets_the_clock_again() -> None:
    shell, alice, bob = pair(clock_behind_ms=60_000)

    alice.hello("@(local/alice)", timestamp=shell.now)
    send(alice, shell.now - 60_000, 1_000)

    assert bob.heard() == []


def test_the_lifetime_is_looked_at_before_the_target_and_for_fan_outs_too() -> None:
    shell, alice, bob = pair()
    members: dict[str, Any] = {"ttl": 1, "timestamp": shell.now - 60_000}

    (reply,) = alice.send("@(no/body)", pattern="ask", **members)
    fanned = alice.ask("hub:broadcast", {"type": "news"}, **members)

    assert reply["payload"]["code"] == fanned["payload"]["code"] == "message_expired"
    assert bob.take() == []


def test_an_ask_that_expires_while_it_waits_is_told_so() -> None:
    shell, alice, bob = pair()
    bob.stall()
    send(alice, shell.now, 1_000)
    shell.clock.advance(2)
    alice.take()

    bob.drop()

    (reply,) = alice.take()
    assert reply["payload"]["code"] == "message_expired"
    assert shell.tally.expired_asks == 1
    assert shell.hub.pending == {}


def test_the_time_from_ask_to_ack_is_measured() -> None:
    shell, alice, bob = pair()
    bob.stall()
    send(alice, shell.now, None)
    shell.clock.advance(2)

    bob.read_on()

    assert (shell.tally.ask_latency.count, shell.tally.ask_latency.sum_s) == (1, 2.0)
