"""Time to live: judged on the sender's clock as far as the hub knows it."""

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


@pytest.mark.parametrize(("age_ms", "is_delivered"), [(0, True), (1_000, True), (1_001, False)])
def test_a_message_lives_exactly_as_long_as_its_ttl(age_ms: int, is_delivered: bool) -> None:
    shell, alice, bob = pair()

    (reply,) = send(alice, shell.now - age_ms, 1_000)

    assert (len(bob.heard()) == 1) is is_delivered
    if not is_delivered:
        assert reply["payload"]["code"] == "message_expired"
        assert reply["payload"]["details"] == {"ttl": 1_000}
        assert shell.tally.expired_asks == 1


def test_an_expired_tell_vanishes_and_is_counted() -> None:
    shell, alice, bob = pair()

    replies = send(alice, shell.now - 2_000, 1_000, pattern="tell")

    assert replies == []
    assert bob.take() == []
    assert shell.tally.expired_tells == 1


@pytest.mark.parametrize("ttl", [None, 0])
def test_a_message_without_a_lifetime_never_expires(ttl: int | None) -> None:
    _, alice, bob = pair()

    (reply,) = send(alice, 0, ttl)

    assert reply["type"] == "hub:delivery_ack"
    assert len(bob.heard()) == 1


@pytest.mark.parametrize(
    ("clock_behind_ms", "sent_ago_ms", "is_delivered"),
    [
        (60_000, 60_000, True),
        (60_000, 61_000, True),
        (60_000, 61_001, False),
        (300_000, 300_500, True),
        # Further behind than that it is not believed.
        (300_001, 300_001, False),
        (3_600_000, 3_600_000, False),
        # A clock ahead of ours is taken as it is: the message lives a little longer.
        (-60_000, -60_000, True),
        (-60_000, 0, True),
        (-60_000, 1_001, False),
    ],
)
def test_a_clock_that_was_behind_at_the_hello_is_allowed_for(
    clock_behind_ms: int, sent_ago_ms: int, is_delivered: bool
) -> None:
    shell, alice, bob = pair(clock_behind_ms)

    send(alice, shell.now - sent_ago_ms, 1_000)

    assert (len(bob.heard()) == 1) is is_delivered


def test_a_new_hello_sets_the_clock_again() -> None:
    shell, alice, bob = pair(clock_behind_ms=60_000)

    alice.hello("@(local/alice)", timestamp=shell.now)
    send(alice, shell.now - 60_000, 1_000)

    assert bob.heard() == []


def test_the_lifetime_is_looked_at_before_the_target() -> None:
    shell, alice, _ = pair()

    (reply,) = alice.send("@(no/body)", pattern="ask", ttl=1, timestamp=shell.now - 60_000)

    assert reply["payload"]["code"] == "message_expired"


def test_an_ask_that_expires_while_it_waits_is_told_so() -> None:
    shell, alice, bob = pair()
    bob.stall()
    send(alice, shell.now, 1_000)
    shell.clock.advance(2)
    alice.take()

    bob.drop()

    (reply,) = alice.take()
    assert reply["payload"]["code"] == "message_expired"
    assert reply["payload"]["details"] == {"ttl": 1_000}
    assert shell.tally.expired_asks == 1
    assert shell.hub.pending == {}


def test_the_time_from_ask_to_ack_is_measured() -> None:
    shell, alice, bob = pair()
    bob.stall()
    send(alice, shell.now, None)
    shell.clock.advance(2)

    bob.read_on()

    assert shell.tally.ask_latency.count == 1
    assert shell.tally.ask_latency.sum_s == 2.0


@pytest.mark.parametrize("type", ["hub:publish", "hub:broadcast"])
def test_expired_fan_outs_reach_nobody(type: str) -> None:
    shell, alice, bob = pair()
    bob.ask("hub:subscribe", {"topic": "t"})
    bob.take()
    members: dict[str, Any] = {"ttl": 1_000, "timestamp": shell.now - 1_001}

    asked = alice.ask(type, {"topic": "t", "type": "news"}, **members)
    told = alice.tell(type, {"topic": "t", "type": "news"}, **members)

    assert asked["payload"]["code"] == "message_expired"
    assert told == []
    assert bob.take() == []
    assert (shell.tally.expired_asks, shell.tally.expired_tells) == (1, 1)


@pytest.mark.parametrize("type", ["hub:disconnect", "hub:heartbeat", "hub:register"])
def test_requests_to_the_hub_itself_do_not_expire(type: str) -> None:
    shell, alice, _ = pair()
    payload = {"actorAddress": "@(local/alice)", "capabilities": []}

    reply = alice.ask(type, payload, ttl=500, timestamp=shell.now - 60_000)

    assert reply["type"] != "hub:error"
