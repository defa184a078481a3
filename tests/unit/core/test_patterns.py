"""Pattern subscriptions: every matching topic has its part, and one consumer takes them all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from signalhub.core.patterns.index import PatternIndex
from signalhub.core.patterns.pattern import Pattern
from signalhub.settings.model import LogSettings, Settings
from signalhub.wire.entry import SubscriptionDefinitionBody
from signalhub.wire.names import topic_matches
from tests.support.memory.patterns import (
    BILLING,
    ORDERS,
    ack,
    came,
    consume,
    info,
    pattern_of,
    people,
)
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import code_of, create, publish


def test_it_takes_topics_that_exist_and_those_made_later_from_their_first_message() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in ("orders", "orders/eu", "invoices"):
        publish(writer, topic=topic)
    consume(reader)
    publish(writer, topic="orders/us/east")
    publish(writer, topic="other")

    assert sorted(came(reader)) == [("orders", 1), ("orders/eu", 1), ("orders/us/east", 1)]


@pytest.mark.parametrize(("start", "first"), [("earliest", 1), ("latest", 4), ({"last": 2}, 2)])
def test_it_begins_where_it_was_asked_to_on_topics_with_messages(start: object, first: int) -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for _ in range(3):
        publish(writer, topic="orders/eu")
    consume(reader, **{"from": start})
    again = shell
    if start != {"last": 2}:
        # Wherever the hub is killed before the next message, no position moves.
        again = shell.restarted()
        writer, reader = people(again)
        consume(reader)
    publish(writer, topic="orders/eu")
    publish(writer, topic="orders/new")

    assert sorted(came(reader)) == [
        *(("orders/eu", seq) for seq in range(first, 5)),
        ("orders/new", 1),
    ]


def test_order_holds_per_topic_and_settling_names_the_topic() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consumer = consume(reader)["subscriptionId"]
    for _ in range(3):
        for topic in ("orders/a", "orders/b"):
            publish(writer, topic=topic)

    got = came(reader)
    assert [seq for topic, seq in got if topic == "orders/a"] == [1, 2, 3]
    assert ack(reader, "orders/a", 1, 2)["payload"]["accepted"] == 2
    by_id = {"subscriptionId": consumer, "topic": "orders/b", "seq": 1}
    assert reader.ask("hub:ack", by_id)["payload"]["accepted"] == 1
    assert code_of(reader.ask("hub:ack", {"subscriptionId": consumer, "seq": 2})) == (
        "internal_error"
    )
    nowhere = reader.ask("hub:ack", {"subscriptionId": consumer, "topic": "orders/c", "seq": 2})
    assert code_of(nowhere) == "not_a_consumer"
    assert (info(reader)["lag"], info(reader)["inFlight"]) == (3, 3)
    one = info(reader, topic="orders/a", subscription="billing")
    assert (one["lag"], one["floor"], one["pattern"]) == (1, 2, ORDERS)


def test_one_window_bounds_what_is_in_flight_of_all_topics() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    topics = [f"orders/{number}" for number in range(40)]
    for topic in topics:
        for _ in range(3):
            publish(writer, topic=topic)
    consume(reader, window=8)

    seen: dict[str, list[int]] = {}
    waiting = came(reader)
    assert len(waiting) == 8
    while waiting:
        topic, seq = waiting.pop(0)
        seen.setdefault(topic, []).append(seq)
        ack(reader, topic, seq)
        waiting += came(reader)
        assert len(waiting) <= 8

    assert seen == {topic: [1, 2, 3] for topic in topics}


def test_a_busy_topic_does_not_keep_the_others_waiting() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for _ in range(200):
        publish(writer, topic="orders/busy")
    consume(reader, window=8)
    for number in range(20):
        publish(writer, topic=f"orders/{number}")

    waiting = came(reader)
    taken: list[tuple[str, int]] = []
    while len({topic for topic, _ in taken}) < 21:
        topic, seq = waiting.pop(0)
        taken.append((topic, seq))
        ack(reader, topic, seq)
        waiting += came(reader)

    assert sum(topic == "orders/busy" for topic, _ in taken) < 40


def test_free_room_is_divided_among_the_topics_that_wait() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consumer = consume(reader)["subscriptionId"]
    reader.tell("hub:credit", {"subscriptionId": consumer, "messages": 0})
    for topic in ("orders/a", "orders/b"):
        for _ in range(50):
            publish(writer, topic=topic)

    reader.tell("hub:credit", {"subscriptionId": consumer, "messages": 32})

    got = [topic for topic, _ in came(reader)]
    # The last one to wait has all the room that is left.
    assert len(got) == 32
    assert min(got.count(topic) for topic in ("orders/a", "orders/b")) >= 4


def test_credit_counts_for_all_topics() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consumer = consume(reader)["subscriptionId"]
    reader.tell("hub:credit", {"subscriptionId": consumer, "messages": 0})
    for topic in ("orders/a", "orders/b", "orders/c"):
        publish(writer, topic=topic)
    assert came(reader) == []

    granted = reader.ask("hub:credit", {"subscriptionId": consumer, "messages": 2})

    assert granted["payload"]["messages"] == 2
    assert len(came(reader)) == 2
    reader.tell("hub:credit", {"subscriptionId": consumer, "messages": 3})
    assert len(came(reader)) == 1


def test_a_blocked_socket_gets_nothing_until_it_reads_on() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    reader.block()
    for topic in ("orders/a", "orders/b"):
        publish(writer, topic=topic)
    assert came(reader) == []

    reader.read_on()

    assert sorted(came(reader)) == [("orders/a", 1), ("orders/b", 1)]


def test_what_is_not_in_memory_is_read_from_the_log_in_turns() -> None:
    shell = MemoryShell(Settings(log=LogSettings(cache_bytes=0)))
    writer, reader = people(shell)
    topics = [f"orders/{number}" for number in range(50)]
    for topic in topics:
        for _ in range(5):
            publish(writer, topic=topic)
    consume(reader, window=16)

    seen: dict[str, list[int]] = {}
    ahead_max = 0
    waiting = came(reader)
    while waiting:
        topic, seq = waiting.pop(0)
        seen.setdefault(topic, []).append(seq)
        ack(reader, topic, seq)
        waiting += came(reader)
        members = pattern_of(shell).members.values()
        ahead_max = max(ahead_max, sum(len(list(part.backlog.ahead)) for part in members))

    assert seen == {topic: [1, 2, 3, 4, 5] for topic in topics}
    # Those that wait for their turn hold nothing that they have read.
    assert ahead_max < 100


# Modes.


def test_an_exclusive_pattern_has_one_consumer_and_a_name_takes_it_over() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader, consumer="one")
    publish(writer, topic="orders/a")
    other = shell.connect("@(a/other)")

    busy = other.ask("hub:subscribe", BILLING | {"consumer": "two"})
    assert code_of(busy) == "subscription_busy"
    consume(other, consumer="one")

    assert came(other) == [("orders/a", 1)]
    (told,) = [one for one in reader.take() if one["type"] == "hub:unsubscribed"]
    assert (told["payload"]["pattern"], told["payload"]["reason"]) == (ORDERS, "taken_over")


def test_no_circle_keeps_the_session_of_a_consumer_that_has_left() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    publish(writer, topic="orders/a")
    (consumer,) = reader.session.consumers.values()
    (share,) = consumer.parts()

    reader.drop()

    assert consumer.parts() == []
    assert share not in list(pattern_of(shell).members["orders/a"].consumers)
    assert pattern_of(shell).consumers == []


def test_several_share_a_pattern_and_first_messages_go_round() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    other = shell.connect("@(a/other)")
    for peer in (reader, other):
        consume(peer, mode="shared")
    for number in range(20):
        publish(writer, topic=f"orders/{number}")

    shares = [len(came(peer)) for peer in (reader, other)]
    assert shares == [10, 10]
    other.drop()
    assert len(came(reader)) == 10


def test_who_stands_by_takes_over_all_topics() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    other = shell.connect("@(a/other)")
    for peer in (reader, other):
        consume(peer, mode="failover")
    for topic in ("orders/a", "orders/b"):
        publish(writer, topic=topic)
    assert (len(came(reader)), came(other)) == (2, [])

    reader.drop()
    shell.pass_time(10)

    assert sorted(came(other)) == [("orders/a", 1), ("orders/b", 1)]


def test_a_key_keeps_its_order_on_each_topic() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader, mode="key-shared", window=4)
    for number in range(6):
        for topic in ("orders/a", "orders/b", "orders/c"):
            publish(writer, topic=topic, key=f"key {number % 2}")

    seen: dict[str, list[int]] = {}
    waiting = came(reader)
    while waiting:
        assert len(waiting) <= 4
        topic, seq = waiting.pop(0)
        seen.setdefault(topic, []).append(seq)
        ack(reader, topic, seq)
        waiting += came(reader)

    assert len(seen) == 3
    for seqs in seen.values():
        assert [seq for seq in seqs if seq % 2] == [1, 3, 5]
        assert [seq for seq in seqs if not seq % 2] == [2, 4, 6]


# Failures and dead letters.


def test_dead_letters_match_no_pattern() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader, poison="dead_letter", maxDeliveries=1)
    publish(writer, topic="orders/a")
    assert came(reader) == [("orders/a", 1)]

    reader.ask("hub:nack", {"topic": "orders/a", "subscription": "billing", "seq": 1})

    assert shell.hub.streams.topics["orders/a.dlq"].head == 1
    assert came(reader) == []
    assert info(reader)["deadLettered"] == 1
    redriven = writer.ask("hub:redrive", {"topic": "orders/a.dlq", "all": True})
    assert redriven["payload"]["count"] == 1
    assert came(reader) == [("orders/a", 2)]


def test_a_failed_message_comes_again_and_a_timeout_counts() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader, ackTimeoutMs=1_000, backoffMs=100)
    publish(writer, topic="orders/a")
    assert came(reader) == [("orders/a", 1)]

    shell.pass_time(3)

    assert came(reader)[0] == ("orders/a", 1)
    assert info(reader)["redelivered"] >= 1


# Names.


def test_a_name_belongs_to_one_subscription_or_pattern_on_every_topic() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    create(writer, "orders/a")
    create(writer, "orders/b")
    one = {"topic": "orders/a", "subscription": "audit"}
    assert writer.ask("hub:subscribe", one)["type"] == "hub:subscribed"

    taken = reader.ask("hub:subscribe", {"pattern": ORDERS, "subscription": "audit"})
    assert code_of(taken) == "subscription_conflict"
    consume(reader)
    for topic in ("orders/a", "orders/b"):
        part = writer.ask("hub:subscribe", {"topic": topic, "subscription": "billing"})
        assert code_of(part) == "subscription_conflict"
        assert part["payload"]["details"]["pattern"] == ORDERS
    overlapping = writer.ask("hub:subscribe", {"pattern": "+/a", "subscription": "billing"})
    assert code_of(overlapping) == "subscription_conflict"
    elsewhere = {"pattern": "invoices/+", "subscription": "billing"}
    assert writer.ask("hub:subscribe", elsewhere)["type"] == "hub:subscribed"


@pytest.mark.parametrize(
    "payload",
    [
        {"pattern": "orders"},
        {"pattern": "orders/#/x"},
        {"pattern": ""},
        {"pattern": "a/" * 16 + "#"},
        {"pattern": ORDERS, "subscription": None},
        {"pattern": ORDERS, "topic": "orders/a"},
        {"pattern": ORDERS, "from": {"seq": 3}},
        {"pattern": ORDERS, "from": {"time": 3}},
        {"pattern": ORDERS, "from": "middle"},
        {"pattern": ORDERS, "resume": {"seq": 3}},
        {"pattern": ORDERS, "mode": "none"},
        {"pattern": ORDERS, "consumer": ""},
        {"pattern": ORDERS, "deadLetter": "orders/bad"},
        {"pattern": ORDERS, "positions": {"orders/a": 3}},
        {"pattern": 5},
    ],
)
def test_a_request_that_cannot_be_meant_says_what_to_do(payload: dict[str, Any]) -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    publish(writer, topic="orders/a")

    reply = reader.ask("hub:subscribe", {"subscription": "billing"} | payload)

    assert code_of(reply) in ("internal_error", "limit_exceeded", "too_many_levels"), reply
    assert len(shell.hub.patterns.index) == 0


def test_patterns_overlap_exactly_if_some_topic_matches_both() -> None:
    levels = ["a", "b", "+", "#"]
    texts = [one for one in levels if one != "+"] + ["+"]
    texts += [f"{one}/{two}" for one in "ab+" for two in levels]
    texts += [f"{one}/{two}/{three}" for one in "ab+" for two in "ab+" for three in levels]
    names = ["a", "b", "c"]
    names += [f"{one}/{two}" for one in "abc" for two in "abc"]
    names += [f"{one}/{two}/{three}" for one in "abc" for two in "abc" for three in "abc"]
    matched = {text: {name for name in names if topic_matches(text, name)} for text in texts}

    for one in texts:
        index = PatternIndex()
        only = made(one)
        index.add(only)
        for two in texts:
            expected = only if matched[one] & matched[two] else None
            assert index.overlapping(two, "billing") is expected, (one, two)
            assert index.overlapping(two, "other") is None
        for name in names:
            expected = only if name in matched[one] else None
            assert index.owner_of(name, "billing") is expected, (one, name)
        index.remove(only)
        assert (len(index), list(index)) == (0, [])
        assert index.overlapping("#", "billing") is index.owner_of("a", "billing") is None


def test_however_many_patterns_have_one_name_finding_one_takes_the_same_steps() -> None:
    def steps(action: Callable[[], object]) -> int:
        count = 0

        def note(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += 1
            return note

        before = sys.gettrace()
        sys.settrace(note)
        try:
            action()
        finally:
            sys.settrace(before)
        return count

    def again() -> None:
        index.remove(last)
        index.add(last)

    index = PatternIndex()
    actions: list[Callable[[], object]] = [
        lambda: index.find(last.text, "billing"),
        lambda: index.owner_of(last.text.replace("#", "orders"), "billing"),
        lambda: index.owner_of("other/orders", "billing"),
        lambda: index.overlapping(last.text.replace("#", "+"), "billing"),
        lambda: index.overlapping("other/#", "billing"),
        again,
    ]
    costs = []
    for patterns in (range(10), range(10, 1_000)):
        for number in patterns:
            last = made(f"tenant-{number}/#")
            index.add(last)
        costs.append([steps(action) for action in actions])

    assert costs[0] == costs[1]
    found = index.find("tenant-8/#", "billing")
    assert found is not None
    assert index.owner_of("tenant-8/orders", "billing") is found
    assert index.overlapping("tenant-8/+", "billing") is found
    assert (len(index), len(list(index))) == (1_000, 1_000)


def made(text: str) -> Pattern:
    """A pattern subscription that no topic knows yet."""
    definition = SubscriptionDefinitionBody(
        name="billing",
        mode="shared",
        window=8,
        strict=False,
        ack_timeout_ms=30_000,
        max_deliveries=5,
        backoff_ms=1_000,
        backoff_cap_ms=60_000,
        heartbeat_ms=None,
        auto_ack=False,
        pattern=text,
    )
    return Pattern(1, definition, 0)
