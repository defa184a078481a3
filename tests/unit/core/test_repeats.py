"""Repeated ids where the specification is silent: while the first is on its way, over restarts."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core.messages.ask import AskReceipt
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Message, Peer
from tests.support.memory.topics import ACTOR, answers, commit_all, topic_of

WINDOW_S = 300


def pair() -> tuple[MemoryShell, Peer, Peer]:
    shell = MemoryShell()
    return shell, shell.join("@(local/alice)"), shell.join("@(local/bob)", ttlSeconds=3_600)


def ask(peer: Peer, data: object = "x", **members: Any) -> list[Message]:
    members = {"pattern": "ask", "id": "a1", "sender": "@(local/alice)"} | members
    return peer.send("@(local/bob)", data, **members)


def test_the_window_reaches_back_exactly_five_minutes_and_tells_are_outside_it() -> None:
    shell, alice, bob = pair()
    ask(alice, pattern="tell")
    ask(alice)

    shell.clock.advance(WINDOW_S)
    ask(alice)
    within = len(bob.heard())
    shell.clock.advance(0.001)
    ask(alice)

    assert (within, len(bob.heard())) == (2, 1)
    assert shell.tally.duplicates == 1


@pytest.mark.parametrize("reason", ["expired", "refused", "lost", "overflowed"])
def test_a_refused_ask_may_be_retried_with_the_same_id(reason: str) -> None:
    shell, alice, bob = pair()
    if reason == "expired":
        (refused,) = ask(alice, ttl=1, timestamp=shell.now - 1_000)
    elif reason == "refused":
        (refused,) = alice.request("hub:send", {"to": "@(local/bob)"}, id="a1")
    else:
        bob.stall()
        ask(alice)
        if reason == "lost":
            bob.drop()
            bob = shell.join("@(local/bob)")
        else:
            (receipt,) = shell.hub.pending.values()
            assert isinstance(receipt, AskReceipt)
            bob.waiting.clear()
            bob.read_on()
            shell.perform(shell.hub.overflowed(receipt, 1, shell.now))
        refused = alice.take()[-1]

    (ack,) = ask(alice)

    assert refused["type"] in ("hub:error", "hub:unknown_actor")
    assert ack["type"] == "hub:delivery_ack"
    assert len(bob.heard()) == 1


@pytest.mark.parametrize("is_back", [False, True], ids=["same socket", "new socket"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["delivered", "lost"])
def test_a_repeat_waits_with_the_first_copy_and_is_answered_once(
    is_back: bool, is_lost: bool
) -> None:
    shell, alice, bob = pair()
    bob.stall()
    first = ask(alice)
    if is_back:
        alice = shell.join("@(local/alice)")
    alice.take()

    second = ask(alice)
    if is_lost:
        bob.drop()
    else:
        bob.read_on()

    assert first == second == []
    answer = "hub:unknown_actor" if is_lost else "hub:delivery_ack"
    assert [one["type"] for one in alice.take()] == [answer]
    assert len(bob.heard()) == (not is_lost)
    assert shell.tally.duplicates == 1


def test_a_broadcast_that_waits_behind_an_ask_is_sent_and_answered_once() -> None:
    shell, alice, bob = pair()
    shell.engine.is_prompt = False
    ask(alice)

    for _ in range(2):
        alice.request("hub:broadcast", {"type": "t"}, id="b1")
    commit_all(shell)

    assert [one["type"] for one in bob.heard()] == ["news", "t"]
    assert answers(alice) == ["hub:delivery_ack", "hub:broadcast_ack"]
    assert not shell.hub.pending


def test_a_broadcast_as_tell_is_sent_each_time() -> None:
    _, alice, bob = pair()

    for _ in range(2):
        alice.tell("hub:broadcast", {"type": "t"}, id="b1")

    assert len(bob.heard()) == 2


# Over restarts.


def publish(shell: MemoryShell, message_id: str) -> tuple[int, bool]:
    """Publish under an id; the position, and whether it is a repeat."""
    given = {"topic": "t", "type": "news", "data": 1, "durable": True}
    reply = shell.connect("@(a/writer)").ask("hub:publish", given, id=message_id)
    return reply["payload"]["seq"], reply["payload"].get("duplicate", False)


@pytest.mark.parametrize("lives", [1, 2, 5])
@pytest.mark.parametrize("is_over", [False, True], ids=["within", "after"])
def test_an_id_is_known_for_the_whole_window_however_often_the_hub_restarts(
    lives: int, is_over: bool
) -> None:
    shell = MemoryShell()
    publish(shell, "p")
    for _ in range(lives):
        shell.save_snapshot()
        shell.clock.advance(WINDOW_S / lives + (1 if is_over else -1))
        shell = shell.restarted()

    assert publish(shell, "p") == ((2, False) if is_over else (1, True))
    assert topic_of(shell).head == 1 + is_over


def test_an_id_is_known_for_the_whole_window_though_older_entries_are_read_again() -> None:
    """An ask that is under way keeps the start reading from before the snapshot."""
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    publish(shell, "p")
    shell.save_snapshot()
    actor.stall()
    writer.send(ACTOR, 1, pattern="ask", id="a")
    shell.pass_time(30)
    publish(shell, "q")
    for _ in range(3):
        shell.save_snapshot()

    again = shell.restarted()
    again.pass_time(WINDOW_S - 40)

    assert publish(again, "p") == (1, True)
    (reply,) = again.connect("@(a/writer)").send(ACTOR, 1, pattern="ask", id="a")
    assert (reply["payload"]["seq"], reply["payload"]["duplicate"]) == (1, True)
    assert again.hub.streams.mailboxes[ACTOR].head == 1


def test_a_message_on_disk_that_nobody_was_told_about_is_kept_and_another_is_not() -> None:
    shell = MemoryShell()
    publish(shell, "p1")
    shell.engine.is_prompt = False
    writer = shell.connect("@(a/writer)")
    for message_id in ("p2", "p3"):
        writer.request("hub:publish", {"topic": "t", "type": "news", "data": 1}, id=message_id)

    again = shell.restarted(written=1)
    again.engine.is_prompt = True

    assert publish(again, "p2") == (2, True)
    assert publish(again, "p3") == (3, False)
