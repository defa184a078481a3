"""Patterns survive what subscriptions do: crashes, refusals, retention, snapshots, erasures."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.core.patterns.patterns import SLICE
from signalhub.core.streams.recovery import take_snapshot
from signalhub.settings.model import Settings
from signalhub.wire.entry import Kind, SubscriptionDefinitionBody, decode_body, encode_body
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
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import commit_all, publish

TOPICS = tuple(f"orders/{number}" for number in range(5))


def positions(shell: MemoryShell) -> dict[str, int]:
    members = pattern_of(shell).members
    return {name: part.position.floor for name, part in members.items()}


@pytest.mark.parametrize("is_saved", [False, True])
def test_positions_of_every_topic_survive_a_crash(is_saved: bool) -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    for topic in TOPICS:
        for _ in range(2):
            publish(writer, topic=topic)
        ack(reader, topic, 1)
    if is_saved:
        shell.save_snapshot()
        publish(writer, topic="orders/late")

    again = shell.restarted()

    assert {name: floor for name, floor in positions(again).items() if name in TOPICS} == (
        dict.fromkeys(TOPICS, 1)
    )
    writer, reader = people(again)
    consume(reader)
    late = [("orders/late", 1)] if is_saved else []
    assert sorted(came(reader)) == late + [(topic, 2) for topic in TOPICS] or is_saved
    publish(writer, topic="orders/after")
    assert ("orders/after", 1) in came(reader)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_wherever_the_hub_dies_while_a_pattern_is_made_no_message_is_missed(start: str) -> None:
    for written in range(12):
        shell = MemoryShell()
        writer, reader = people(shell)
        for topic in TOPICS:
            publish(writer, topic=topic)
        shell.engine.is_prompt = False
        reader.request("hub:subscribe", BILLING | {"from": start})
        for topic in (*TOPICS, "orders/new"):
            payload = {"topic": topic, "type": "news", "data": 2, "durable": True}
            writer.request("hub:publish", payload)

        again = shell.restarted(written)
        again.engine.is_prompt = True
        writer, reader = people(again)
        is_made = again.hub.patterns.index.find(ORDERS, "billing") is not None
        stored = {topic: again.hub.streams.topics[topic].head for topic in TOPICS}
        consume(reader, **{"from": start})
        again.pass_time(2)
        for topic in TOPICS:
            publish(writer, topic=topic)

        got = came(reader)
        for topic in TOPICS:
            mine = [seq for name, seq in got if name == topic]
            first = 1 if start == "earliest" else (2 if is_made else stored[topic] + 1)
            assert mine == list(range(first, stored[topic] + 2)), (written, topic)


def test_wherever_the_hub_dies_while_a_pattern_is_deleted_its_parts_go() -> None:
    for written in range(8):
        shell = MemoryShell()
        writer, reader = people(shell)
        consume(reader)
        for topic in TOPICS:
            publish(writer, topic=topic)
        reader.drop()
        commit_all(shell)
        before = shell.engine.head
        shell.engine.is_prompt = False
        reader = shell.connect("@(a/reader)")
        assert reader.request("hub:sub_delete", BILLING) == []
        # The record, and the end of the pattern; what follows is in slices.
        shell.engine.commit(2)
        shell.settle()
        while written > shell.engine.head - before - 2 and shell.engine.commit(1):
            shell.settle()

        again = shell.restarted()
        again.engine.is_prompt = True
        again.pass_time(3)

        assert len(again.hub.patterns.index) == 0
        assert again.hub.streams.count_subscriptions() == 0
        final = again.restarted()
        assert not any(one.subscriptions for one in final.hub.streams.topics.values())


def test_what_the_log_refuses_is_undone_and_tried_again() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in TOPICS:
        publish(writer, topic=topic)
    shell.engine.is_full = True
    refused = reader.ask("hub:subscribe", BILLING)
    assert refused["payload"]["code"] == "storage_full"
    assert len(shell.hub.patterns.index) == 0
    assert shell.hub.streams.count_subscriptions() == 0

    shell.engine.is_full = False
    consume(reader)

    assert sorted(came(reader)) == [(topic, 1) for topic in TOPICS]


def test_parts_that_the_log_refused_are_made_later() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in TOPICS:
        publish(writer, topic=topic)
    shell.engine.is_prompt = False
    reader.request("hub:subscribe", BILLING | {"from": "earliest"})
    shell.engine.commit(1)
    shell.settle()
    shell.engine.refuse(refusals.storage_full())
    shell.settle()
    shell.engine.is_prompt = True

    shell.pass_time(3)

    assert sorted(came(reader)) == [(topic, 1) for topic in TOPICS]


def test_a_refused_first_message_takes_its_parts_back() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    shell.engine.is_full = True
    payload = {"topic": "orders/a", "type": "news", "data": 1, "durable": True}
    assert writer.ask("hub:publish", payload)["type"] == "hub:error"
    assert "orders/a" not in pattern_of(shell).members
    shell.engine.is_full = False

    publish(writer, topic="orders/a")

    assert came(reader) == [("orders/a", 1)]


def test_a_part_that_was_refused_with_its_message_is_made_with_the_next_one() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    publish(writer, topic="orders/a")
    consume(reader, **{"from": "latest"})
    shell.engine.is_prompt = False
    payload = {"topic": "orders/a", "type": "news", "data": 1, "durable": True}
    writer.request("hub:publish", payload)
    assert "orders/a" in pattern_of(shell).members
    shell.engine.refuse(refusals.storage_full())
    shell.settle()
    assert "orders/a" not in pattern_of(shell).members
    shell.engine.is_prompt = True

    publish(writer, topic="orders/a")

    assert came(reader) == [("orders/a", 2)]


def test_a_message_is_never_on_disk_before_the_part_that_gets_it() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    for topic in TOPICS:
        publish(writer, topic=topic)

    for topic in TOPICS:
        kinds = [one.kind for one in shell.engine.entries if one.stream == topic]
        assert kinds[:3] == [Kind.STREAM_CREATED, Kind.SUBSCRIPTION_CREATED, Kind.PUBLISHED]
    (definition,) = [one for one in shell.engine.entries if one.stream == ORDERS]
    body = decode_body(SubscriptionDefinitionBody, definition.body)
    assert (definition.kind, body.pattern, body.name) == (
        Kind.SUBSCRIPTION_CREATED,
        ORDERS,
        "billing",
    )


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_log_may_be_cut_below_its_definitions(is_paused: bool) -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader, maxDeliveries=3)
    for topic in TOPICS:
        publish(writer, topic=topic)
        ack(reader, topic, 1)
    if is_paused:
        asked(reader, "hub:sub_pause")
    reader.drop()
    commit_all(shell)
    shell.pass_time(2)
    end = shell.engine.head
    assert shell.hub.anchors.anchored() < end
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    assert shell.hub.anchors.anchored() >= end
    shell.engine.cut(end)

    again = shell.restarted()

    assert positions(again) == dict.fromkeys(TOPICS, 1)
    assert pattern_of(again).is_paused is is_paused
    assert pattern_of(again).definition.max_deliveries == 3
    writer, reader = people(again)
    consume(reader)
    publish(writer, topic="orders/new")
    publish(writer, topic=TOPICS[0])
    assert sorted(came(reader)) == ([] if is_paused else [(TOPICS[0], 2), ("orders/new", 1)])


def test_an_older_hub_keeps_the_parts_and_ignores_the_pattern() -> None:
    """Version 0.1 knows no pattern: it skips entries of streams that it does not know."""
    definition = SubscriptionDefinitionBody(
        "billing", "exclusive", 8, False, 1, 1, 1, 1, None, False, pattern=ORDERS, last=0
    )
    old = encode_body(definition)
    # Members are only added at the end, with a default.
    assert decode_body(SubscriptionDefinitionBody, old).pattern == ORDERS
    plain = SubscriptionDefinitionBody("a", "shared", 8, False, 1, 1, 1, 1, None, False)
    assert (plain.pattern, plain.last) == ("", None)


def test_a_snapshot_has_what_changed_and_a_whole_one_everything() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    publish(writer, topic="orders/a")
    pattern = pattern_of(shell)
    key = (pattern.id, "billing")
    shell.save_snapshot()

    assert key not in take_snapshot(shell.hub.parts, shell.engine.head).subscriptions
    assert key in take_snapshot(shell.hub.parts, shell.engine.head, is_whole=True).subscriptions
    asked(reader, "hub:sub_delete")
    assert take_snapshot(shell.hub.parts, shell.engine.head).subscriptions[key] is None


def test_erasing_its_owner_leaves_the_pattern() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    publish(writer, topic="orders/a")
    ack(reader, "orders/a", 1)

    erased = writer.ask("hub:erase", {"actor": "@(a/reader)"})
    assert erased["type"] == "hub:erased", erased
    again = shell.restarted()

    writer, reader = people(again)
    consume(reader)
    publish(writer, topic="orders/b")
    assert came(reader) == [("orders/b", 1)]
    assert positions(again) == {"orders/a": 1, "orders/b": 0}


def test_what_is_erased_is_settled_on_every_topic() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    other = shell.connect("@(a/other)")
    for topic in TOPICS:
        publish(other, topic=topic)
        publish(writer, topic=topic)

    erased = writer.ask("hub:erase", {"actor": "@(a/other)"})
    assert erased["type"] == "hub:erased", erased
    consume(reader)

    assert sorted(came(reader)) == [(topic, 2) for topic in TOPICS]


def test_a_client_that_lost_its_hub_goes_on_where_it_was() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in TOPICS[:2]:
        for _ in range(3):
            publish(writer, topic=topic)
    epoch = shell.hub.streams.topics[TOPICS[0]].epoch

    consume(
        reader,
        positions={
            TOPICS[0]: {"seq": 2, "epoch": epoch},
            TOPICS[1]: {"seq": 2, "epoch": "another"},
            "orders/unknown": {"seq": 7},
            "elsewhere": {"seq": 7},
        },
    )

    assert sorted(came(reader)) == [(TOPICS[0], 3), *((TOPICS[1], seq) for seq in (1, 2, 3))]


def test_who_comes_back_is_told_what_retention_has_removed() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    for _ in range(5):
        publish(writer, topic="orders/a")
    topic = shell.hub.streams.topics["orders/a"]
    shell.perform(shell.hub.retention.lose_before(topic, 4, shell.now))

    answer = consume(reader, positions={"orders/a": {"seq": 1, "epoch": topic.epoch}})

    assert answer["recovered"] is False
    assert answer["lost"] == [{"topic": "orders/a", "lostFrom": 2, "lostTo": 3}]


# Many topics.


def many(shell: MemoryShell, writer: Peer, count: int) -> None:
    for number in range(count):
        publish(writer, topic=f"orders/{number}")


def test_many_topics_are_taken_in_slices_and_quiet_ones_cost_nothing_per_turn() -> None:
    shell = MemoryShell(Settings(message_rate=0))
    writer, reader = people(shell)
    many(shell, writer, 1_000)
    made: list[int] = []
    turn = shell.hub.patterns.turn

    def counted(now: int) -> list[Any]:
        before = len(pattern_of(shell).members)
        effects = turn(now)
        made.append(len(pattern_of(shell).members) - before)
        return effects

    shell.hub.patterns.turn = counted  # type: ignore[method-assign]
    consume(reader, window=64)

    assert len(made) > 5
    assert max(made) <= SLICE // 5
    seen: set[tuple[str, int]] = set()
    waiting = came(reader)
    while waiting:
        assert len(waiting) <= 64
        seen.update(waiting)
        for topic, seq in waiting:
            ack(reader, topic, seq)
        waiting = came(reader)
    assert len(seen) == 1_000
    # With everything settled, a message wakes one part, and nothing else is due.
    passes = pass_counts(shell)
    publish(writer, topic="orders/7")
    assert came(reader) == [("orders/7", 2)]
    ack(reader, "orders/7", 2)
    woken = {
        name: count - passes[name]
        for name, count in pass_counts(shell).items()
        if count != passes[name]
    }
    assert set(woken) == {"orders/7"}
    assert shell.hub.dispatcher.woken == {}
    assert shell.hub.has_woken is False


def pass_counts(shell: MemoryShell) -> dict[str, int]:
    members = pattern_of(shell).members
    return {name: part.stats.wake_polls for name, part in members.items()}


def test_topics_without_messages_have_no_part() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in TOPICS:
        writer.ask("hub:topic_create", {"topic": topic, "durable": True})
    consume(reader)

    assert info(reader)["topics"] == 0


def test_a_lost_wake_is_found() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader)
    shell.hub.dispatcher._wakes = False
    publish(writer, topic="orders/a")
    publish(writer, topic="orders/a")
    came(reader)

    shell.pass_time(3)

    assert info(reader)["inFlight"] == 2
