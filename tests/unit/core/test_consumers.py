"""Who gets the next message of a subscription, and who owns a key."""

from __future__ import annotations

from collections import Counter, deque
from typing import cast

import pytest

from signalhub.core.sessions.outbound import Outbound
from signalhub.core.sessions.session import Session
from signalhub.core.subscriptions.consumers import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Consumer,
    Consumers,
    KeyQueue,
)
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.pacing import TokenBucket
from signalhub.settings.model import OutboundSettings as Bounds

KEYS = [f"key {number}" for number in range(1_000)]


def group(mode: str, *names: str) -> tuple[Consumers, list[Consumer]]:
    consumers = Consumers(mode)
    nobodys = cast(Subscription, None)
    members = []
    for name in names:
        session = Session(name, None, TokenBucket(0, 1, 0), 0)
        one = Consumer(
            f"sub-{name}",
            name,
            session,
            f"@({name})",
            nobodys,
            window=10,
            bytes_max=1_000,
            auto_ack=False,
        )
        consumers.add(one)
        members.append(one)
    return consumers, members


@pytest.mark.parametrize("mode", [EXCLUSIVE, FAILOVER])
def test_only_the_first_receives_and_nobody_steps_in_while_it_has_no_room(mode: str) -> None:
    consumers, (first, second) = group(mode, "a", "b")

    assert {consumers.choose() for _ in range(5)} == {first}
    first.flights = 10
    assert consumers.choose() is None
    assert not consumers.have_room
    assert consumers.remove(first)
    assert consumers.choose() is second
    # Leaving twice is harmless.
    assert not consumers.remove(first)


def test_shared_messages_go_round_and_pass_over_those_without_room() -> None:
    consumers, (a, b, c, d) = group(SHARED, "a", "b", "c", "d")

    turns = Counter(one.name for one in (consumers.choose() for _ in range(36)) if one)
    assert set(turns.values()) == {9}
    a.flights = 10
    b.bytes = 1_000
    c.session.outbound = Outbound(Bounds(), 0)

    assert {consumers.choose() for _ in range(8)} == {d}


def test_the_capacity_is_what_all_receivers_take() -> None:
    found = {mode: group(mode, "a", "b")[0].capacity for mode in (SHARED, KEY_SHARED, FAILOVER)}

    assert found == {SHARED: 20, KEY_SHARED: 20, FAILOVER: 10}
    assert group(EXCLUSIVE)[0].capacity == 0


# Keys.


def owners(*names: str) -> dict[str, str]:
    consumers, _ = group(KEY_SHARED, *names)
    found = {}
    for key in KEYS:
        owner = consumers.owner_of(KeyQueue(key, deque()))
        assert owner is not None
        found[key] = owner.name
    return found


def test_keys_are_spread_and_only_those_of_who_comes_or_goes_move() -> None:
    two, three = owners("a", "b"), owners("a", "b", "c")

    moved = [key for key in KEYS if two[key] != three[key]]
    assert 0.15 <= len(moved) / len(KEYS) <= 0.55
    assert {three[key] for key in moved} == {"c"}
    assert min(Counter(three.values()).values()) > 200
    without = owners("a", "c")
    assert all(three[key] == "b" for key in KEYS if three[key] != without[key])
    assert owners("c", "a", "b") == three
