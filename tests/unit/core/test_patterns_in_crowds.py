"""Many patterns: what a topic may match is bounded, and parts count like other subscriptions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.core import refusals
from signalhub.core.limits.quotas import Resource
from signalhub.core.patterns.crowd import Crowd
from signalhub.core.patterns.patterns import SLICE
from signalhub.settings.model import DispatchSettings, LimitsSettings, Settings
from signalhub.wire.names import levels_match
from tests.support.memory.patterns import (
    BILLING,
    ORDERS,
    ack,
    asked,
    came,
    consume,
    info,
    pattern_of,
    people,
)
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.topics import code_of, commit_all, publish, subscribe

VERBS = dict.fromkeys(("subscribe", "publish", "create"), ("*",))


def person(shell: MemoryShell, name: str) -> Peer:
    peer = shell.connect(f"@(people/{name})")
    peer.session.allowance = Allowance(peer.address, Permissions(**VERBS), name)
    return peer


def add(peer: Peer, pattern: str, name: str) -> Message:
    return peer.ask("hub:subscribe", {"pattern": pattern, "subscription": name})


# What one topic may match.


def test_a_topic_matches_a_bounded_number_of_patterns_whoever_makes_them() -> None:
    shell = MemoryShell(Settings(limits=LimitsSettings(patterns_per_topic=4)))
    writer, reader = people(shell)

    answers = [add(reader, "#", f"copy.{number}") for number in range(6)]

    assert [one["type"] for one in answers] == ["hub:subscribed"] * 4 + ["hub:error"] * 2
    assert code_of(answers[-1]) == "limit_exceeded"
    assert answers[-1]["payload"]["details"] == {
        "pattern": "#",
        "limit": 4,
        "setting": "limits.patterns_per_topic",
    }
    publish(writer, topic="orders/a")
    assert len(shell.hub.streams.topics["orders/a"].subscriptions) == 4
    assert shell.hub.quotas.total(Resource.PATTERNS) == 4
    # What is deleted makes room.
    reader.ask("hub:sub_delete", {"pattern": "#", "subscription": "copy.0"})
    assert add(reader, "orders/+", "another")["type"] == "hub:subscribed"


def test_patterns_that_have_no_topic_in_common_do_not_crowd_each_other() -> None:
    shell = MemoryShell(Settings(limits=LimitsSettings(patterns_per_topic=2)))
    _, reader = people(shell)

    for number in range(50):
        assert add(reader, f"tenant-{number}/#", "billing")["type"] == "hub:subscribed"

    assert add(reader, "#", "audit")["type"] == "hub:subscribed"
    assert code_of(add(reader, "tenant-7/+", "more")) == "limit_exceeded"
    assert code_of(add(reader, "+/a/#", "more")) == "limit_exceeded"


def test_one_identity_cannot_use_up_what_a_topic_may_match() -> None:
    shell = MemoryShell(Settings(limits=LimitsSettings(patterns_per_topic=8)))
    eve, bob = person(shell, "eve"), person(shell, "bob")

    answers = [add(eve, "#", f"eve.{number}") for number in range(4)]

    assert [code_of(one) if one["type"] == "hub:error" else None for one in answers] == [
        None,
        None,
        "limit_exceeded",
        "limit_exceeded",
    ]
    assert answers[-1]["payload"]["details"]["setting"] == "limits.identity_share"
    assert add(bob, "#", "bob.1")["type"] == "hub:subscribed"


def test_a_restart_counts_the_patterns_again() -> None:
    shell = MemoryShell(Settings(limits=LimitsSettings(patterns_per_topic=8)))
    eve = person(shell, "eve")
    for number in range(2):
        add(eve, "#", f"eve.{number}")
    commit_all(shell)

    again = shell.restarted()

    assert again.hub.quotas.of_identity(Resource.PATTERNS, "eve") == 2
    assert code_of(add(person(again, "eve"), "#", "eve.2")) == "limit_exceeded"
    eve = person(again, "eve")
    for number in range(2):
        eve.ask("hub:sub_delete", {"pattern": "#", "subscription": f"eve.{number}"})
    assert again.hub.quotas.total(Resource.PATTERNS) == 0
    assert add(eve, "#", "eve.2")["type"] == "hub:subscribed"


def test_the_limit_of_all_patterns_says_which_setting_to_raise() -> None:
    shell = MemoryShell(Settings(limits=LimitsSettings(patterns_max=2)))
    _, reader = people(shell)
    answers = [add(reader, f"tenant-{number}/#", "billing") for number in range(3)]

    assert code_of(answers[-1]) == "limit_exceeded"
    assert "limits.patterns_max" in str(answers[-1]["payload"])


def test_the_bounds_hold_for_every_topic_and_return_when_patterns_go() -> None:
    random = Random(19)
    levels = ["a", "b", "c"]
    topics = [[one] for one in levels]
    for _ in range(2):
        topics += [[*topic, one] for topic in topics for one in levels]
    for _ in range(60):
        crowd = Crowd()
        patterns = [some_pattern(random) for _ in range(random.randrange(1, 40))]
        for at, pattern in enumerate(patterns):
            crowd.add(pattern)
            met = max(sum(levels_match(one, t) for one in patterns[: at + 1]) for t in topics)
            assert crowd.matched >= met
        random.shuffle(patterns)
        for pattern in patterns:
            before = crowd.matched
            assert crowd.has_room(pattern, before + 1)
            assert crowd.matched == before
            crowd.add(pattern, -1)
            assert crowd.matched <= before
        assert crowd.is_empty
        assert crowd.matched == 0


def some_pattern(random: Random) -> list[str]:
    levels = [random.choice("abc+") for _ in range(random.randrange(3))]
    return [*levels, random.choice("ab+#")]


def test_patterns_that_only_make_searches_long_are_bounded_too() -> None:
    """A topic matches few of these, but a search had to follow all of them to their ends."""
    crowd, made = Crowd(), 0
    for number in range(2**11):
        path = ["a" if number >> bit & 1 else "+" for bit in range(11)]
        pattern = [*path, f"end-{number}"]
        if crowd.has_room(pattern, 4):
            crowd.add(pattern)
            made += 1

    assert made < 64
    assert crowd.has_room(["elsewhere", "#"], 4)


# Parts count.


def few(subscriptions: int) -> MemoryShell:
    return MemoryShell(Settings(dispatch=DispatchSettings(limit=subscriptions)))


@pytest.mark.parametrize(("start", "first"), [("earliest", 1), ("latest", 3), ({"last": 1}, 2)])
def test_a_part_beyond_the_limit_waits_and_costs_the_publisher_nothing(
    start: object, first: int
) -> None:
    shell = few(4)
    writer, reader = people(shell)
    for _ in range(2):
        publish(writer, topic="orders/b")
    publish(writer, topic="elsewhere")
    for name in ("one", "two"):
        subscribe(writer, "elsewhere", name)
    writer.take()
    consume(reader, **{"from": start})
    publish(writer, topic="orders/a")
    for _ in range(2):
        publish(writer, topic="orders/b")

    shell.pass_time(3)

    shown = info(reader)
    assert shell.hub.streams.count_subscriptions() == 4
    assert shown["topics"] == 1
    assert (shown["heldUp"]["code"], shown["heldUp"]["seq"]) == ("limit_exceeded", 0)
    assert "4 durable subscriptions" in shown["heldUp"]["reason"]
    before = came(reader)
    # Nothing is lost once there is room.
    assert writer.ask("hub:sub_delete", {"topic": "elsewhere", "subscription": "one"})["type"] == (
        "hub:sub_info_response"
    )
    shell.pass_time(3)
    publish(writer, topic="orders/b")
    got = before + came(reader)
    assert sorted(got) == [("orders/a", 1), *(("orders/b", seq) for seq in range(first, 6))]
    assert info(reader)["heldUp"] is None


def test_a_restart_while_a_part_waits_loses_nothing_of_a_pattern_from_the_earliest() -> None:
    shell = few(2)
    writer, reader = people(shell)
    publish(writer, topic="elsewhere")
    subscribe(writer, "elsewhere", "one")
    consume(reader)
    publish(writer, topic="orders/a")
    commit_all(shell)

    again = shell.restarted()
    again.pass_time(2)
    writer, reader = people(again)
    consume(reader)
    assert info(reader)["heldUp"]["code"] == "limit_exceeded"
    writer.ask("hub:sub_delete", {"topic": "elsewhere", "subscription": "one"})
    again.pass_time(2)
    publish(writer, topic="orders/a")

    assert came(reader) == [("orders/a", 1), ("orders/a", 2)]


def test_parts_count_for_the_owner_of_the_pattern_and_others_go_on() -> None:
    shell = MemoryShell(Settings(limits=LimitsSettings(subscriptions_per_identity=3)))
    eve, bob = person(shell, "eve"), person(shell, "bob")
    consume(eve)

    for number in range(6):
        publish(bob, topic=f"orders/{number}")
    shell.pass_time(2)

    assert shell.hub.quotas.of_identity(Resource.SUBSCRIPTIONS, "eve") == 3
    held_up = info(eve)["heldUp"]
    assert held_up["code"] == "limit_exceeded"
    assert "eve has 3" in held_up["reason"]
    subscribe(bob, "orders/0", "bobs")
    # A topic that goes makes room for another.
    assert bob.ask("hub:topic_delete", {"topic": "orders/0"})["type"] == "hub:topic_deleted"
    shell.pass_time(2)
    assert set(pattern_of(shell).members) == {"orders/1", "orders/2"}


def test_a_topic_that_retention_emptied_while_its_part_waited_gets_it_before_the_next() -> None:
    shell = few(2)
    writer, reader = people(shell)
    publish(writer, topic="elsewhere")
    subscribe(writer, "elsewhere", "one")
    consume(reader)
    publish(writer, topic="orders/a")
    topic = shell.hub.streams.topics["orders/a"]
    shell.perform(shell.hub.retention.lose_before(topic, 2, shell.now))
    assert topic.head < topic.first
    writer.ask("hub:sub_delete", {"topic": "elsewhere", "subscription": "one"})
    shell.pass_time(2)

    publish(writer, topic="orders/a")

    assert came(reader) == [("orders/a", 2)]


def test_a_seek_moves_also_what_waits() -> None:
    shell = few(2)
    writer, reader = people(shell)
    publish(writer, topic="elsewhere")
    subscribe(writer, "elsewhere", "one")
    consume(reader)
    for _ in range(3):
        publish(writer, topic="orders/a")

    sought = asked(reader, "hub:seek", to={"last": 1})
    assert sought["topics"] == 0
    writer.ask("hub:sub_delete", {"topic": "elsewhere", "subscription": "one"})
    shell.pass_time(2)

    assert came(reader) == [("orders/a", 3)]


def test_topics_that_come_and_go_while_a_pattern_waits_leave_nothing() -> None:
    shell = few(2)
    writer, reader = people(shell)
    publish(writer, topic="elsewhere")
    subscribe(writer, "elsewhere", "one")
    consume(reader, **{"from": "latest"})

    for number in range(40):
        publish(writer, topic=f"orders/{number}")
        writer.ask("hub:topic_delete", {"topic": f"orders/{number}"})

    assert len(pattern_of(shell).waiting) < 10


# Positions of many topics.


def test_positions_of_many_topics_are_taken_in_slices() -> None:
    shell = MemoryShell(Settings(message_rate=0))
    writer, reader = people(shell)
    for number in range(500):
        for _ in range(2):
            publish(writer, topic=f"orders/{number}")
    sizes: list[int] = []
    turn = shell.hub.patterns.turn

    def counted(now: int) -> list[Any]:
        before = len(pattern_of(shell).members)
        effects = turn(now)
        sizes.append(len(pattern_of(shell).members) - before)
        return effects

    shell.hub.patterns.turn = counted  # type: ignore[method-assign]
    positions = {f"orders/{number}": {"seq": 1} for number in range(500)}
    consume(reader, window=1_000, positions=positions)

    assert sum(sizes) == 500
    assert max(sizes) <= SLICE // 5
    assert sorted(came(reader)) == sorted((f"orders/{number}", 2) for number in range(500))


def test_wherever_the_hub_dies_while_positions_are_taken_all_of_them_count_or_none() -> None:
    topics, made = [f"orders/{number}" for number in range(3)], []
    for written in range(9):
        shell = MemoryShell()
        writer, reader = people(shell)
        for topic in topics:
            for _ in range(3):
                publish(writer, topic=topic)
        shell.engine.is_prompt = False
        given = {topic: {"seq": 2} for topic in topics}
        reader.request("hub:subscribe", BILLING | {"from": "latest", "positions": given})
        # Somebody publishes before all parts are made; it must not move any of them.
        writer.request("hub:publish", {"topic": topics[2], "type": "news", "durable": True})

        again = shell.restarted(written)
        again.engine.is_prompt = True
        again.pass_time(3)
        found = again.hub.patterns.index.find(ORDERS, "billing")
        floors = [] if found is None else [one.position.floor for one in found.members.values()]
        assert floors in ([], [2, 2, 2]), written
        if found is None:
            assert again.hub.streams.count_subscriptions() == 0
        made.append(found is not None)

    # Its own entry is the last of them.
    assert made == sorted(made)
    assert set(made) == {False, True}
    assert made.index(True) > len(topics)


def test_what_was_made_for_a_pattern_that_the_log_refuses_goes_again() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in ("orders/a", "orders/b"):
        publish(writer, topic=topic)
    shell.engine.is_prompt = False
    given = {topic: {"seq": 0} for topic in ("orders/a", "orders/b")}
    reader.request("hub:subscribe", BILLING | {"positions": given})
    shell.engine.commit(1)
    shell.settle()
    shell.engine.refuse(refusals.storage_full())
    shell.settle()
    assert reader.take()[-1]["payload"]["code"] == "storage_full"
    shell.engine.is_prompt = True
    shell.pass_time(2)
    assert shell.hub.streams.count_subscriptions() == 0
    assert len(shell.hub.patterns.index) == 0

    consume(reader, positions=given)

    assert sorted(came(reader)) == [("orders/a", 1), ("orders/b", 1)]
    assert ack(reader, "orders/a", 1)["payload"]["accepted"] == 1
