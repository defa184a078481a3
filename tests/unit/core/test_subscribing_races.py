"""Subscriptions made, joined and deleted while other requests about them are on their way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import (
    NAMED,
    answers,
    commit_all,
    create,
    seqs,
    subscribe,
    topic_of,
    working,
)
from tests.support.memory.turns import TurningShell

DELETIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "subscription": ("hub:sub_delete", NAMED),
    "topic": ("hub:topic_delete", {"topic": "t"}),
}


def in_flight(shell: MemoryShell) -> tuple[Peer, Peer]:
    """Writer and reader of a topic with three messages in flight; the disk waits to be told."""
    writer, reader = working(shell, 3)
    shell.engine.is_prompt = False
    return writer, reader


def test_a_deleted_subscription_cannot_be_joined_with_other_options_behind_its_end() -> None:
    shell = MemoryShell()
    writer, reader = in_flight(shell)

    writer.request("hub:sub_delete", NAMED)
    writer.request("hub:subscribe", NAMED | {"ackTimeoutMs": 1_000})
    commit_all(shell)

    assert answers(writer) == ["unknown_subscription", "hub:sub_info_response"]
    assert answers(reader) == ["hub:unsubscribed"]
    assert not topic_of(shell.restarted()).subscriptions


@pytest.mark.parametrize("type", ["hub:subscribe", "hub:sub_update"])
def test_a_subscription_deleted_before_it_is_on_disk_does_not_come_back(type: str) -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    shell.engine.is_prompt = False

    reader.request("hub:subscribe", NAMED | {"mode": "shared", "ackTimeoutMs": 1_000})
    writer.request(type, NAMED | {"ackTimeoutMs": 2_000})
    writer.request("hub:sub_delete", NAMED)
    commit_all(shell)

    assert not topic_of(shell).subscriptions
    assert not topic_of(shell.restarted()).subscriptions


@pytest.mark.parametrize("what", DELETIONS)
def test_what_is_being_deleted_is_not_anchored_behind_its_end(what: str) -> None:
    shell = MemoryShell()
    writer, _ = in_flight(shell)

    writer.request(*DELETIONS[what])
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    commit_all(shell)

    again = shell.restarted().hub.streams.topics
    assert "t" not in again if what == "topic" else not again["t"].subscriptions


@pytest.mark.parametrize("type", ["hub:ack", "hub:nack", "hub:term"])
@pytest.mark.parametrize("what", DELETIONS)
def test_settling_in_the_turn_of_a_deletion_is_answered(what: str, type: str) -> None:
    shell = TurningShell()
    writer, reader = in_flight(shell)
    writer.request(*DELETIONS[what])
    consumer = next(iter(reader.session.consumers))

    with shell.one_turn():
        reader.request(type, {"subscriptionId": consumer, "seq": 1})
        shell.engine.commit()
    commit_all(shell)

    assert answers(reader).count("unknown_subscription") == 1


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_deleted_while_a_start_is_looked_up_is_unknown(is_made_again: bool) -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    reader.take()
    shell.engine.is_readable = False
    reader.request("hub:subscribe", NAMED | {"from": {"time": 1}})

    writer.ask("hub:topic_delete", {"topic": "t"})
    if is_made_again:
        create(writer)
    shell.engine.is_readable = True
    shell.settle()

    assert answers(reader) == ["unknown_topic"]
    assert not is_made_again or not topic_of(shell).subscriptions


@pytest.mark.parametrize("what", DELETIONS)
def test_a_seek_whose_subscription_is_deleted_while_a_time_is_looked_up_is_refused(
    what: str,
) -> None:
    shell = MemoryShell()
    writer, reader = working(shell, 3)
    shell.engine.is_readable = False
    reader.request("hub:seek", NAMED | {"to": {"time": 1}})

    writer.ask(*DELETIONS[what])
    head = shell.engine.head
    shell.engine.is_readable = True
    shell.settle()

    assert answers(reader) == ["hub:unsubscribed", "unknown_subscription"]
    assert shell.engine.head == head


def test_a_topic_deleted_while_a_subscription_is_on_its_way_takes_it_along() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    reader.take()
    shell.engine.is_prompt = False

    reader.request("hub:subscribe", NAMED)
    writer.request("hub:topic_delete", {"topic": "t"})
    commit_all(shell)

    assert answers(reader) == ["hub:subscribed", "hub:unsubscribed"]
    assert not reader.session.consumers
    assert not shell.restarted().hub.streams.topics


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_topic_that_two_create_is_confirmed_to_both_when_it_is_on_disk(is_refused: bool) -> None:
    shell = MemoryShell()
    first, second = shell.connect("@(a/first)"), shell.connect("@(a/second)")
    for peer in (first, second):
        peer.take()
    shell.engine.is_prompt = False

    for peer in (first, second):
        peer.request("hub:topic_create", {"topic": "t"})
    early = answers(first) + answers(second)
    shell.engine.is_full = is_refused
    commit_all(shell)

    assert early == []
    expected = "storage_full" if is_refused else "hub:topic_created"
    assert (answers(first), answers(second)) == ([expected], [expected])
    assert ("t" in shell.restarted().hub.streams.topics) is not is_refused


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_topic_created_while_it_is_deleted_exists_afterwards(is_refused: bool) -> None:
    shell = MemoryShell()
    writer, reader = in_flight(shell)
    former = topic_of(shell)

    writer.request("hub:topic_delete", {"topic": "t"})
    reader.request("hub:topic_create", {"topic": "t"})
    shell.engine.is_full = is_refused
    shell.engine.commit()
    shell.engine.is_full = False
    commit_all(shell)

    told = answers(reader)
    assert told[-1] == ("storage_full" if is_refused else "hub:topic_created")
    assert (topic_of(shell) is former) is is_refused
    assert topic_of(shell.restarted()).head == (3 if is_refused else 0)


def test_a_subscription_deleted_and_made_again_starts_afresh() -> None:
    shell = MemoryShell()
    writer, reader = in_flight(shell)
    reader.request("hub:ack", NAMED | {"upTo": 3})
    commit_all(shell)

    writer.request("hub:sub_delete", NAMED)
    commit_all(shell)
    shell.engine.is_prompt = True
    subscribe(reader)

    assert seqs(reader) == [1, 2, 3]
    position = topic_of(shell.restarted()).subscriptions["s"].position
    assert (position.floor, position.generation) == (0, 1)
