"""Answers to settlements come when these are on disk, also those of messages that are given up."""

from __future__ import annotations

import pytest

from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Peer
from tests.support.memory.topics import (
    ACTOR,
    NAMED,
    answers,
    commit_all,
    mailbox_of,
    position_of,
    seqs,
    subscribe,
    topic_of,
    working,
)
from tests.support.memory.turns import TurningShell

LETTERS = "t.dlq"


def reading(shell: MemoryShell, messages: int = 1) -> Peer:
    """A reader with some messages, and a disk that takes entries only when told to."""
    _, reader = working(shell, messages, definition={"poison": "dead_letter"})
    shell.engine.is_prompt = False
    return reader


def commit_until_answered(shell: MemoryShell, peer: Peer) -> list[str]:
    """One entry after the other; what the peer is told then."""
    while not (told := answers(peer)):
        assert shell.engine.commit(1), "the log has everything, and there is no answer"
        shell.settle()
    return told


def test_who_is_told_that_a_message_was_given_up_never_gets_it_again() -> None:
    shell = MemoryShell()
    reader = reading(shell)

    reader.request("hub:term", NAMED | {"seq": 1})

    assert commit_until_answered(shell, reader) == ["hub:termed"]
    again = shell.restarted()
    assert topic_of(again, LETTERS).head == 1
    assert position_of(again).floor == 1
    back = again.connect("@(a/reader)")
    subscribe(back)
    assert seqs(back) == []


def owning(shell: MemoryShell, messages: int) -> Peer:
    """The same for the owner of a mailbox."""
    owner = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    owner.register(durable=True)
    writer = shell.connect("@(a/writer)")
    for _ in range(messages):
        writer.send(ACTOR, "bad", pattern="ask")
    shell.settle()
    owner.take()
    shell.engine.is_prompt = False
    return owner


def test_the_owner_of_a_mailbox_is_told_when_its_settlement_is_on_disk() -> None:
    shell = MemoryShell()
    owner = owning(shell, messages=3)

    for seq in (1, 2, 3):
        owner.request("hub:term", {"stream": ACTOR, "seq": seq})
        assert commit_until_answered(shell, owner) == ["hub:termed"]

    assert mailbox_of(shell.restarted()).subscription.position.floor == 3


def test_a_mailbox_that_is_dropped_meanwhile_leaves_nobody_waiting() -> None:
    shell = MemoryShell()
    owner = owning(shell, messages=1)

    owner.request("hub:term", {"stream": ACTOR, "seq": 1})
    owner.request("hub:unregister", {"actorAddress": ACTOR})
    commit_all(shell)

    assert answers(owner).count("hub:termed") == 1


@pytest.mark.parametrize("type", ["hub:ack", "hub:nack", "hub:term"])
def test_settling_in_the_turn_in_which_a_mailbox_is_dropped_is_answered(type: str) -> None:
    shell = TurningShell()
    owner = owning(shell, messages=1)

    with shell.one_turn():
        owner.request(type, {"stream": ACTOR, "seq": 1})
        owner.request("hub:unregister", {"actorAddress": ACTOR})
    commit_all(shell)

    assert sorted(answers(owner)) == ["hub:unregistered", "not_a_consumer"]


def test_an_ack_beside_it_is_answered_too() -> None:
    shell = MemoryShell()
    reader = reading(shell, messages=2)

    reader.request("hub:term", NAMED | {"seq": 1})
    reader.request("hub:ack", NAMED | {"seq": 2})
    commit_all(shell)

    assert sorted(answers(reader)) == ["hub:acked", "hub:termed"]
    assert position_of(shell.restarted()).floor == 2


@pytest.mark.parametrize("has_letter", [False, True], ids=["at once", "after the letter"])
def test_a_full_disk_is_told(has_letter: bool) -> None:
    shell = MemoryShell()
    reader = reading(shell)
    reader.request("hub:term", NAMED | {"seq": 1})
    while has_letter and not (
        LETTERS in shell.hub.streams.topics and topic_of(shell, LETTERS).head
    ):
        assert shell.engine.commit(1)
        shell.settle()
    assert answers(reader) == []
    shell.engine.is_full = True

    shell.engine.commit()
    shell.settle()

    assert answers(reader) == ["storage_full"]


def test_a_subscription_that_is_deleted_meanwhile_leaves_nobody_waiting() -> None:
    shell = MemoryShell()
    reader = reading(shell)

    reader.request("hub:term", NAMED | {"seq": 1})
    reader.request("hub:sub_delete", NAMED)
    commit_all(shell)

    assert answers(reader).count("unknown_subscription") == 1


def test_an_ack_of_what_was_acked_before_is_answered_when_that_is_on_disk() -> None:
    shell = MemoryShell()
    reader = reading(shell)
    reader.request("hub:ack", NAMED | {"seq": 1}, pattern="tell")
    assert answers(reader) == []

    reader.request("hub:ack", NAMED | {"seq": 1})

    assert commit_until_answered(shell, reader) == ["hub:acked"]
    assert position_of(shell.restarted()).floor == 1


def test_an_ack_of_what_is_settled_on_disk_costs_no_entry() -> None:
    shell = MemoryShell()
    reader = reading(shell)
    reader.request("hub:ack", NAMED | {"seq": 1})
    commit_all(shell)
    reader.take()
    head = shell.engine.head

    reader.request("hub:ack", NAMED | {"seq": 1})

    assert answers(reader) == ["hub:acked"]
    commit_all(shell)
    assert shell.engine.head == head


def test_an_answer_names_the_floor_that_is_on_disk_and_no_later_one() -> None:
    shell = MemoryShell()
    reader = reading(shell, messages=3)
    reader.request("hub:ack", NAMED | {"seq": 1})
    shell.settle()
    reader.request("hub:ack", NAMED | {"seq": 2}, pattern="tell")

    assert shell.engine.commit(1)

    (answer,) = [one for one in reader.take() if one["type"] == "hub:acked"]
    assert answer["payload"]["floor"] == position_of(shell.restarted()).floor == 1
