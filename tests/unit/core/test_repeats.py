"""Asks sent again with the same id: one delivery, one answer."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core.messages.ask import AskReceipt
from tests.support.memory.shell import MemoryShell, Message, Peer

WINDOW_S = 300


def pair() -> tuple[MemoryShell, Peer, Peer]:
    shell = MemoryShell()
    return shell, shell.join("@(local/alice)"), shell.join("@(local/bob)", ttlSeconds=3_600)


def ask(peer: Peer, data: object = "x", **members: Any) -> list[Message]:
    members = {"pattern": "ask", "id": "a1", "sender": "@(local/alice)"} | members
    return peer.send("@(local/bob)", data, **members)


def test_a_repeated_ask_gets_the_same_ack_and_is_delivered_once() -> None:
    shell, alice, bob = pair()

    (first,) = ask(alice)
    shell.clock.advance(30)
    (second,) = ask(alice)

    assert second["payload"] == first["payload"] | {"duplicate": True}
    assert "duplicate" not in first["payload"]
    assert len(bob.heard()) == 1
    assert shell.tally.duplicates == 1


def test_the_window_reaches_back_exactly_five_minutes() -> None:
    shell, alice, bob = pair()
    ask(alice)

    shell.clock.advance(WINDOW_S)
    ask(alice)
    within = len(bob.heard())
    shell.clock.advance(0.001)
    ask(alice)

    assert within == 1
    assert len(bob.heard()) == 1


def test_a_repeat_is_recognised_before_its_ttl_is_looked_at() -> None:
    shell, alice, bob = pair()
    sent_at = shell.now
    (first,) = ask(alice, ttl=1_000, timestamp=sent_at)

    shell.clock.advance(60)
    (second,) = ask(alice, ttl=1_000, timestamp=sent_at)

    assert second["type"] == "hub:delivery_ack"
    assert second["payload"] == first["payload"] | {"duplicate": True}
    assert len(bob.heard()) == 1


def test_a_repeat_is_acknowledged_though_the_target_has_left() -> None:
    _, alice, bob = pair()
    ask(alice)
    bob.drop()

    (again,) = ask(alice)

    assert again["type"] == "hub:delivery_ack"


def test_the_same_id_from_another_sender_is_another_message() -> None:
    shell, alice, bob = pair()
    carol = shell.join("@(local/carol)")

    ask(alice)
    ask(carol, sender="@(local/carol)")

    assert len(bob.heard()) == 2


def test_tells_are_not_remembered() -> None:
    shell, alice, bob = pair()

    ask(alice, pattern="tell")
    ask(alice, pattern="tell")
    ask(alice)

    assert len(bob.heard()) == 3
    assert shell.tally.duplicates == 0


@pytest.mark.parametrize("reason", ["unknown", "expired", "refused", "lost", "overflowed"])
def test_a_refused_ask_may_be_retried_with_the_same_id(reason: str) -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    if reason == "unknown":
        (refused,) = ask(alice)
        bob = shell.join("@(local/bob)")
    else:
        bob = shell.join("@(local/bob)")
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
            (refused,) = alice.take()

    (ack,) = ask(alice)

    assert refused["type"] in ("hub:error", "hub:unknown_actor")
    assert ack["type"] == "hub:delivery_ack"
    assert len(bob.heard()) == 1


def test_a_repeat_waits_with_the_first_copy_and_is_answered_once() -> None:
    shell, alice, bob = pair()
    bob.stall()

    first, second = ask(alice), ask(alice)
    bob.read_on()

    assert first == second == []
    assert [one["type"] for one in alice.take()] == ["hub:delivery_ack"]
    assert len(bob.heard()) == 1
    assert shell.tally.duplicates == 1


def test_an_asker_that_reconnects_meanwhile_gets_its_answer_on_the_new_socket() -> None:
    shell, alice, bob = pair()
    bob.stall()
    ask(alice)
    alice.drop()
    back = shell.join("@(local/alice)")

    ask(back)
    bob.read_on()

    assert [one["type"] for one in back.take()] == ["hub:delivery_ack"]
    assert len(bob.heard()) == 1


def test_an_asker_that_reconnects_meanwhile_also_learns_of_a_loss() -> None:
    shell, alice, bob = pair()
    bob.stall()
    ask(alice)
    back = shell.join("@(local/alice)")
    ask(back)

    bob.drop()

    assert alice.closed == (1000, "duplicate_connection")
    assert [one["type"] for one in back.take()] == ["hub:unknown_actor"]


def test_a_repeat_from_a_reconnected_asker_gets_the_first_ack() -> None:
    shell, alice, bob = pair()
    (first,) = ask(alice)
    alice.drop()
    shell.clock.advance(10)
    back = shell.join("@(local/alice)")

    (again,) = ask(back)

    assert again["payload"] == first["payload"] | {"duplicate": True}
    assert len(bob.heard()) == 1


def test_a_broadcast_as_ask_is_repeated_to_nobody() -> None:
    shell, alice, bob = pair()

    first = alice.ask("hub:broadcast", {"type": "t"}, id="b1")
    shell.join("@(local/carol)")
    second = alice.ask("hub:broadcast", {"type": "t"}, id="b1")

    assert first["payload"] == second["payload"]
    assert first["payload"]["deliveredCount"] == 2
    assert len(bob.heard()) == 1


def test_a_broadcast_as_tell_is_sent_each_time() -> None:
    _, alice, bob = pair()

    alice.tell("hub:broadcast", {"type": "t"}, id="b1")
    alice.tell("hub:broadcast", {"type": "t"}, id="b1")

    assert len(bob.heard()) == 2


def test_ids_are_known_across_a_clock_set_back() -> None:
    shell, alice, bob = pair()
    (first,) = ask(alice)

    shell.clock.jump(-3_600)
    bob.tell("hub:heartbeat")
    (second,) = ask(alice)

    assert second["payload"] == first["payload"] | {"duplicate": True}
    assert len(bob.heard()) == 1
