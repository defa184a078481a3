"""What is done to all parts of a pattern at once, and who may do it."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.core.patterns.pattern import PatternConsumer
from signalhub.settings.model import DispatchSettings, Settings
from signalhub.wire.entry import Kind, OperatedBody, decode_body
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
from tests.support.memory.topics import code_of, create, publish

TOPICS = ("orders/a", "orders/b", "orders/c")


def shop(messages: int = 2, **options: Any) -> tuple[MemoryShell, Peer, Peer]:
    """Three topics with messages that were all consumed."""
    shell = MemoryShell()
    writer, reader = people(shell)
    consume(reader, **options)
    for topic in TOPICS:
        for _ in range(messages):
            publish(writer, topic=topic)
        ack(reader, topic, *range(1, messages + 1))
    came(reader)
    return shell, writer, reader


def test_info_adds_up_and_shows_each_topic() -> None:
    _, writer, reader = shop()
    publish(writer, topic="orders/a")

    found = info(reader)

    assert (found["topics"], found["lag"], found["inFlight"], found["topicsBehind"]) == (3, 1, 1, 1)
    assert [one["inFlight"] for one in found["consumers"]] == [1]
    parts = asked(reader, "hub:list_subs")["subscriptions"]
    assert [(one["topic"], one["lag"]) for one in parts] == [
        ("orders/a", 1),
        ("orders/b", 0),
        ("orders/c", 0),
    ]
    (row,) = reader.ask("hub:list_subs", {"patterns": True})["payload"]["subscriptions"]
    assert (row["topic"], row["lag"]) == (ORDERS, 1)
    (one,) = reader.ask("hub:list_subs", {"topic": "orders/b"})["payload"]["subscriptions"]
    assert one["pattern"] == ORDERS


def test_a_seek_moves_all_topics_or_one() -> None:
    shell, _, reader = shop()

    plan = asked(reader, "hub:seek", to="earliest", dryRun=True)
    assert (plan["topics"], plan["willReplay"], plan["willSkip"]) == (3, 6, 0)
    assert came(reader) == []
    assert asked(reader, "hub:seek", to="earliest")["willReplay"] == 6
    assert sorted(came(reader)) == [(topic, seq) for topic in TOPICS for seq in (1, 2)]
    assert asked(reader, "hub:seek", to="latest")["willSkip"] == 6
    one = {"topic": "orders/b", "subscription": "billing", "to": {"seq": 2}}
    assert reader.ask("hub:seek", one)["payload"]["willReplay"] == 1
    assert came(reader) == [("orders/b", 2)]
    assert asked(reader, "hub:seek", to={"last": 1})["willReplay"] == 2
    later = shell.clock.now_ms() + 10_000
    assert asked(reader, "hub:seek", to={"time": later})["topics"] == 3
    assert info(reader)["lag"] == 0


def test_a_seek_reaches_topics_that_had_no_part_yet() -> None:
    shell = MemoryShell()
    writer, reader = people(shell)
    for topic in TOPICS:
        publish(writer, topic=topic)
    consume(reader, **{"from": "latest"})
    assert info(reader)["topics"] == 0
    plan = asked(reader, "hub:seek", to="earliest", dryRun=True)
    assert (plan["topics"], plan["willReplay"]) == (3, 3)
    assert info(reader)["topics"] == 0

    assert asked(reader, "hub:seek", to="earliest")["topics"] == 3

    assert sorted(came(reader)) == [(topic, 1) for topic in TOPICS]


@pytest.mark.parametrize("to", [{"seq": 3}, {"time": 1, "last": 1}, "middle", {}])
def test_a_pattern_has_no_single_position(to: object) -> None:
    _, _, reader = shop()

    assert code_of(reader.ask("hub:seek", BILLING | {"to": to})) == "internal_error"


def test_a_pause_holds_all_topics_and_those_to_come() -> None:
    shell, writer, reader = shop()
    assert asked(reader, "hub:sub_pause")["paused"] is True
    publish(writer, topic="orders/a")
    publish(writer, topic="orders/new")
    assert came(reader) == []
    assert info(reader, topic="orders/a", subscription="billing")["paused"] is True

    again = shell.restarted()
    writer, reader = people(again)
    consume(reader)
    assert came(reader) == []
    assert asked(reader, "hub:sub_resume")["paused"] is False

    assert sorted(came(reader)) == [("orders/a", 3), ("orders/new", 1)]


def test_one_topic_is_paused_alone() -> None:
    _, writer, reader = shop()
    one = {"topic": "orders/a", "subscription": "billing"}
    reader.ask("hub:sub_pause", one)
    for topic in TOPICS[:2]:
        publish(writer, topic=topic)
    assert came(reader) == [("orders/b", 3)]
    asked(reader, "hub:sub_pause")
    asked(reader, "hub:sub_resume")
    assert came(reader) == []

    reader.ask("hub:sub_resume", one)

    assert came(reader) == [("orders/a", 3)]


def test_options_change_for_all_topics_for_one_and_for_those_to_come() -> None:
    shell, writer, reader = shop()
    one = {"topic": "orders/a", "subscription": "billing"}

    found = asked(reader, "hub:sub_update", maxDeliveries=3, window=7)
    reader.ask("hub:sub_update", one | {"maxDeliveries": 9})
    publish(writer, topic="orders/new")

    assert (found["maxDeliveries"], found["consumers"][0]["window"]) == (3, 7)
    for hub in (shell, shell.restarted()):
        members = pattern_of(hub).members
        chosen = {name: part.definition.max_deliveries for name, part in members.items()}
        assert chosen == {"orders/a": 9, "orders/b": 3, "orders/c": 3, "orders/new": 3}


def test_deleting_the_pattern_deletes_what_it_made_and_nothing_else() -> None:
    shell, writer, reader = shop()
    other = {"topic": "orders/a", "subscription": "audit", "from": "latest"}
    assert writer.ask("hub:subscribe", other)["type"] == "hub:subscribed"
    part = {"topic": "orders/a", "subscription": "billing"}
    assert code_of(reader.ask("hub:sub_delete", part)) == "subscription_conflict"
    reader.take()

    reply = asked(reader, "hub:sub_delete")

    assert (reply["deleted"], reply["topics"]) == (True, 3)
    (told,) = [one for one in reader.take() if one["type"] == "hub:unsubscribed"]
    assert told["payload"]["reason"] == "deleted"
    again = shell.restarted()
    for hub in (shell, again):
        left = {one.name: list(one.subscriptions) for one in hub.hub.streams.topics.values()}
        assert left == {"orders/a": ["audit"], "orders/b": [], "orders/c": []}
        assert len(hub.hub.patterns.index) == 0
        assert hub.hub.streams.count_subscriptions() == 1
    reader = again.connect("@(a/reader)")
    assert code_of(reader.ask("hub:sub_delete", BILLING)) == "unknown_subscription"
    assert reader.ask("hub:subscribe", part)["type"] == "hub:subscribed"


def test_a_deleted_topic_leaves_the_pattern_and_may_come_back() -> None:
    shell, writer, reader = shop()
    publish(writer, topic="orders/a")
    assert came(reader) == [("orders/a", 3)]

    writer.ask("hub:topic_delete", {"topic": "orders/a"})
    found = info(reader)
    assert (found["topics"], found["inFlight"], found["consumers"][0]["inFlight"]) == (2, 0, 0)
    assert [one["type"] for one in reader.take() if one["type"] == "hub:unsubscribed"] == []
    publish(writer, topic="orders/a")

    assert came(reader) == [("orders/a", 1)]
    assert info(shell.connect("@(a/somebody)"))["topics"] == 3


def test_a_pattern_expires_as_a_whole() -> None:
    shell = MemoryShell(Settings(dispatch=DispatchSettings(idle_expiry_s=3_600)))
    writer, reader = people(shell)
    consume(reader)
    publish(writer, topic="orders/a")
    shell.clock.advance(7_200)
    shell.pass_time(2)
    assert len(shell.hub.patterns.index) == 1
    reader.drop()
    shell.clock.advance(3_500)
    shell.pass_time(2)
    assert len(shell.hub.patterns.index) == 1

    shell.clock.advance(200)
    shell.pass_time(3)

    assert len(shell.hub.patterns.index) == 0
    assert shell.hub.streams.count_subscriptions() == 0


# Rights.


def person(shell: MemoryShell, name: str, **verbs: tuple[str, ...]) -> Peer:
    """Somebody whose token has exactly these permissions."""
    peer = shell.connect(f"@(people/{name})")
    peer.session.allowance = Allowance(peer.session.identity or "", Permissions(**verbs), name)
    return peer


@pytest.mark.parametrize(
    ("verbs", "refused"),
    [
        ({"subscribe": ("*",)}, None),
        ({"subscribe": ("orders", "orders/*")}, None),
        ({"subscribe": ("orders/*",)}, "subscribe"),
        ({"subscribe": ("orders/a", "orders/b")}, "subscribe"),
        ({"subscribe": ("*",), "consume": ()}, "consume"),
        ({"subscribe": ("*",), "consume": ("orders/*/billing",)}, "consume"),
        ({"subscribe": ("*",), "consume": ("orders/billing", "orders/*/billing")}, None),
        ({"subscribe": ("*",), "consume": ("*/audit",)}, "consume"),
        ({"subscribe": ("orders/a",), "consume": ("*",)}, "subscribe"),
        ({"subscribe": ("*",), "consume": (), "manage": ("orders/a",)}, "consume"),
        ({"subscribe": ("*",), "consume": (), "manage": ("*",)}, None),
    ],
)
def test_a_pattern_is_consumed_only_with_rights_over_all_it_may_match(
    verbs: dict[str, tuple[str, ...]], refused: str | None
) -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer, "orders/a")
    anna = person(shell, "anna", **verbs)

    reply = anna.ask("hub:subscribe", BILLING)

    if refused is None:
        assert reply["type"] == "hub:subscribed"
        publish(writer, topic="orders/a")
        assert came(anna) == [("orders/a", 1)]
        assert ack(anna, "orders/a", 1)["payload"]["accepted"] == 1
    else:
        assert code_of(reply) == "unauthorized"
        assert reply["payload"]["details"]["action"] == refused


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("hub:sub_update", {"maxDeliveries": 3}, "manage"),
    ("hub:sub_pause", {}, "manage"),
    ("hub:sub_resume", {}, "manage"),
    ("hub:seek", {"to": "earliest"}, "manage"),
    ("hub:sub_delete", {}, "delete"),
]


@pytest.mark.parametrize(("type", "payload", "verb"), CHANGES)
def test_others_change_it_only_with_the_verb_over_all_of_it_and_leave_a_record(
    type: str, payload: dict[str, Any], verb: str
) -> None:
    shell = MemoryShell()
    ann = person(shell, "ann", subscribe=("*",), manage=(), delete=())
    assert ann.ask("hub:subscribe", BILLING)["type"] == "hub:subscribed"
    publish(shell.connect("@(a/writer)"), topic="orders/a")
    one = person(shell, "eve", subscribe=("*",), **{verb: ("orders/*",)})
    boss = person(shell, "boss", **{verb: ("orders*",)})

    refused = one.ask(type, BILLING | payload)

    assert code_of(refused) == "unauthorized"
    assert refused["payload"]["details"]["action"] == verb
    assert records(shell) == []
    assert asked(boss, type, **payload).get("code") is None
    assert records(shell) == [("boss", verb, "orders/#/billing")]


@pytest.mark.parametrize(("type", "payload", "verb"), CHANGES)
def test_its_owner_may_change_it_also_after_a_restart(
    type: str, payload: dict[str, Any], verb: str
) -> None:
    shell = MemoryShell()
    ann = person(shell, "ann", subscribe=("*",), manage=(), delete=(), consume=())
    assert code_of(ann.ask("hub:subscribe", BILLING)) == "unauthorized"
    ann = person(shell, "ann", subscribe=("*",), manage=(), delete=())
    assert ann.ask("hub:subscribe", BILLING)["type"] == "hub:subscribed"

    again = shell.restarted()
    ann = person(again, "ann", subscribe=("*",), manage=(), delete=(), consume=())

    assert ann.ask("hub:subscribe", BILLING)["type"] == "hub:subscribed"
    assert asked(ann, type, **payload).get("code") is None
    assert records(again) == []


def records(shell: MemoryShell) -> list[tuple[str, str, str]]:
    found = [one for one in shell.engine.entries if one.kind == Kind.OPERATED]
    bodies = [decode_body(OperatedBody, one.body) for one in found]
    return [(one.by, one.verb, one.over) for one in bodies]


def test_a_token_that_no_longer_covers_the_pattern_ends_its_consumer() -> None:
    shell = MemoryShell()
    anna = person(shell, "anna", subscribe=("*",))
    anna.ask("hub:subscribe", BILLING)
    (consumer,) = anna.session.consumers.values()

    assert isinstance(consumer, PatternConsumer)
    for verbs, may in (
        ({"subscribe": ("orders/*",)}, False),
        ({"subscribe": ("*",), "consume": ("orders/*",)}, True),
        ({"subscribe": ("orders/*",), "consume": ("*",)}, False),
    ):
        allowance = Allowance("", Permissions(**verbs), "anna")
        assert consumer.pattern.may_be_consumed(allowance) is may


def test_refusing_publishers_by_a_backlog_needs_the_right_to_create_all_topics() -> None:
    shell = MemoryShell()
    anna = person(shell, "anna", subscribe=("*",), create=("orders/*",))

    reply = anna.ask("hub:subscribe", BILLING | {"backlogMax": 1, "backlogPolicy": "refuse"})

    assert code_of(reply) == "unauthorized"
