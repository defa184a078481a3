"""Who receives next."""

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
    KeyLane,
)
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.pacing import TokenBucket
from signalhub.settings.model import OutboundSettings as Bounds

NOBODYS = cast(Subscription, None)


def consumer(name: str, window: int = 10) -> Consumer:
    session = Session(name, None, TokenBucket(0, 1, 0), 0)
    return Consumer(
        f"sub-{name}",
        name,
        session,
        f"@({name})",
        NOBODYS,
        window=window,
        bytes_max=1_000,
        auto_ack=False,
    )


def group(mode: str, *names: str) -> Consumers:
    consumers = Consumers(mode)
    for name in names:
        consumers.add(consumer(name))
    return consumers


def named(consumers: Consumers, name: str) -> Consumer:
    found = consumers.named(name)
    assert found is not None
    return found


@pytest.mark.parametrize("mode", [EXCLUSIVE, FAILOVER])
def test_only_the_first_one_receives(mode: str) -> None:
    consumers = group(mode, "a", "b")

    chosen = {consumers.choose() for _ in range(5)}

    assert chosen == {named(consumers, "a")}


@pytest.mark.parametrize("mode", [EXCLUSIVE, FAILOVER])
def test_nobody_steps_in_for_a_first_one_without_room(mode: str) -> None:
    consumers = group(mode, "a", "b")
    named(consumers, "a").flights = 10

    assert consumers.choose() is None
    assert not consumers.have_room


def test_the_next_in_order_of_joining_is_promoted() -> None:
    consumers = group(FAILOVER, "a", "b", "c")

    assert consumers.remove(named(consumers, "a"))

    assert consumers.choose() is named(consumers, "b")


def test_shared_messages_go_round() -> None:
    consumers = group(SHARED, "a", "b", "c")

    turns = Counter(one.name for one in (consumers.choose() for _ in range(36)) if one)

    assert turns == {"a": 12, "b": 12, "c": 12}


def test_those_without_room_are_passed_over() -> None:
    consumers = group(SHARED, "a", "b", "c", "d")
    named(consumers, "a").flights = 10
    named(consumers, "b").bytes = 1_000
    named(consumers, "c").session.outbound = Outbound(Bounds(), 0)

    turns = {one.name for one in (consumers.choose() for _ in range(8)) if one}

    assert turns == {"d"}


def test_a_retry_goes_to_somebody_else_if_there_is_somebody() -> None:
    consumers = group(SHARED, "a", "b")
    first = named(consumers, "a")

    assert all(consumers.choose(avoid=first) is named(consumers, "b") for _ in range(5))

    consumers.remove(named(consumers, "b"))
    assert consumers.choose(avoid=first) is first


def test_the_capacity_is_what_all_receivers_take() -> None:
    assert group(SHARED, "a", "b").capacity == 20
    assert group(KEY_SHARED, "a", "b").capacity == 20
    assert group(FAILOVER, "a", "b").capacity == 10
    assert group(EXCLUSIVE).capacity == 0


def test_leaving_twice_is_harmless() -> None:
    consumers = group(SHARED, "a")
    one = named(consumers, "a")

    assert consumers.remove(one)
    assert not consumers.remove(one)
    assert consumers.choose() is None


# Keys.

KEYS = [f"key {number}" for number in range(1_000)]


def owners(consumers: Consumers) -> dict[str, str]:
    found = {}
    for key in KEYS:
        owner = consumers.owner_of(KeyLane(key, deque()))
        assert owner is not None
        found[key] = owner.name
    return found


def test_a_key_stays_with_its_owner_when_somebody_joins() -> None:
    consumers = group(KEY_SHARED, "a")
    lanes = [KeyLane(key, deque()) for key in KEYS]
    first = [consumers.owner_of(lane) for lane in lanes]

    consumers.add(consumer("b"))

    assert [consumers.owner_of(lane) for lane in lanes] == first


def test_keys_are_spread_and_few_move_when_a_third_consumer_comes() -> None:
    before = owners(group(KEY_SHARED, "a", "b"))
    after = owners(group(KEY_SHARED, "a", "b", "c"))

    moved = [key for key in KEYS if before[key] != after[key]]
    assert 0.15 <= len(moved) / len(KEYS) <= 0.55
    assert {after[key] for key in moved} == {"c"}
    assert min(Counter(after.values()).values()) > 200


def test_only_the_keys_of_a_leaver_move() -> None:
    before = owners(group(KEY_SHARED, "a", "b", "c"))
    after = owners(group(KEY_SHARED, "a", "c"))

    assert all(before[key] == "b" for key in KEYS if before[key] != after[key])


def test_who_owns_a_key_does_not_depend_on_the_order_of_joining() -> None:
    assert owners(group(KEY_SHARED, "a", "b", "c")) == owners(group(KEY_SHARED, "c", "a", "b"))
