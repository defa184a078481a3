"""Registrations of durable actors that overlap with asks, with each other, and with the disk."""

from __future__ import annotations

import pytest

from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Peer
from tests.support.memory.topics import ACTOR, answers, attempts, commit_all, mailbox_of, publish
from tests.support.memory.turns import TurningShell

DURABLE = {"actorAddress": ACTOR, "capabilities": [], "durable": True}
LEAVING = {
    "unregister": ("hub:unregister", {"actorAddress": ACTOR}),
    "not durable": ("hub:register", DURABLE | {"durable": False}),
}


def acks(peer: Peer) -> list[tuple[str, str]]:
    """Which asks were answered, and how."""
    return [
        (one["correlationId"], one["payload"].get("status", one["type"]))
        for one in peer.take()
        if one["type"] in ("hub:delivery_ack", "hub:unknown_actor", "hub:error")
    ]


def test_the_same_session_registering_again_keeps_what_it_has() -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    for number in range(3):
        sender.send(ACTOR, number, pattern="ask")
    actor.take()

    actor.register(capabilities=["news"])

    assert attempts(actor) == []
    assert actor.ask("hub:ack", {"stream": ACTOR, "seqs": [1, 2, 3]})["payload"]["accepted"] == 3


def test_an_ask_that_waits_for_a_socket_is_answered_though_another_session_takes_the_address() -> (
    None
):
    shell = TurningShell()
    sender = shell.connect("@(a/sender)")
    former = shell.connect(ACTOR)
    former.register(durable=True)
    former.register("@(a/other)")
    former.stall()
    sender.take()
    sender.send(ACTOR, 1, pattern="ask", id="A")
    shell.engine.is_prompt = False
    sender.send(ACTOR, 2, pattern="ask", id="B")
    heir = shell.connect("@(a/heir)")

    with shell.one_turn():
        heir.request("hub:register", DURABLE, sender=ACTOR)
        shell.engine.commit()
    shell.engine.is_prompt = True
    shell.settle()
    former.drop()

    assert sorted(name for name, _ in acks(sender)) == ["A", "B"]
    assert not shell.hub.pending
    assert [seq for seq, _ in attempts(heir)] == [1, 2]


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "on its way to the disk"])
def test_an_ask_that_meets_the_end_of_its_mailbox_is_answered(is_committed: bool, how: str) -> None:
    shell = TurningShell()
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    actor.register(durable=True)
    sender.take()
    shell.engine.is_prompt = False
    if is_committed:
        sender.send(ACTOR, 1, pattern="ask", id="A")

    with shell.one_turn():
        if is_committed:
            shell.engine.commit()
        else:
            sender.send(ACTOR, 1, pattern="ask", id="A")
        actor.request(LEAVING[how][0], LEAVING[how][1])
    commit_all(shell)
    shell.engine.is_prompt = True
    shell.settle()

    assert len(acks(sender)) == 1
    assert not shell.hub.pending
    check_tells_arrive(sender, actor)


def check_tells_arrive(sender: Peer, actor: Peer) -> None:
    """Nothing waits for an ask that is done with."""
    assert not sender.session.unsynced
    actor.register(durable=True)
    actor.take()
    sender.send(ACTOR, "tell")
    assert [one["payload"] for one in actor.heard()] == ["tell"]


@pytest.mark.parametrize("has_another_name", [True, False])
def test_a_registration_taken_over_before_its_mailbox_is_on_disk_is_answered(
    has_another_name: bool,
) -> None:
    shell = TurningShell()
    first, second = shell.connect("@(a/first)"), shell.connect("@(a/second)")
    shell.engine.is_prompt = False

    with shell.one_turn():
        first.request("hub:register", DURABLE)
        if has_another_name:
            # Then it stays when the address goes.
            first.request("hub:register", {"actorAddress": "@(a/name)", "capabilities": []})
        first.take()
        second.take()
        second.request("hub:register", DURABLE)
    commit_all(shell)

    assert answers(second) == ["hub:registered"]
    assert (first.closed is None) is has_another_name
    assert answers(first) == (["unauthorized"] if has_another_name else ["hub:disconnect"])
    assert [one.session for one in mailbox_of(shell).subscription.consumers] == [second.session]


def test_a_mailbox_dropped_before_it_is_on_disk_is_attached_to_nobody() -> None:
    shell = TurningShell()
    sender, actor = shell.connect("@(a/sender)"), shell.connect(ACTOR)
    for peer in (sender, actor):
        peer.take()
    shell.engine.is_prompt = False

    with shell.one_turn():
        actor.request("hub:register", DURABLE)
        sender.send(ACTOR, 1, pattern="ask", id="A")
        actor.request("hub:register", DURABLE | {"durable": False})
    commit_all(shell)

    assert answers(actor) == ["hub:registered", "hub:registered"]
    assert len(acks(sender)) == 1
    assert not shell.hub.pending
    assert not actor.session.consumers


# Asks to actors without a mailbox, over a restart.


def orphaned(shell: MemoryShell) -> bytes:
    """An ask was handed over, and the hub is killed before it can write that; the copy's id."""
    sender, actor = shell.connect("@(a/sender)"), shell.join(ACTOR)
    shell.engine.is_prompt = False
    sender.send(ACTOR, 1, pattern="ask", id="A")
    shell.engine.commit()
    (copy,) = actor.heard()
    copy_id: bytes = copy["id"]
    return copy_id


def again(shell: MemoryShell) -> list[dict[str, object]]:
    """The sender tries again; the copies that come of it."""
    shell.engine.is_prompt = True
    actor, sender = shell.join(ACTOR), shell.connect("@(a/sender)")
    (reply,) = sender.send(ACTOR, 1, pattern="ask", id="A")
    assert reply["payload"]["status"] == "delivered"
    return actor.heard()


def test_a_copy_that_may_be_a_repeat_keeps_its_id_and_says_so() -> None:
    shell = MemoryShell()
    first_id = orphaned(shell)

    (copy,) = again(shell.restarted())

    assert copy["id"] == first_id
    assert copy["metadata"]["delivery"] == {"attempt": 2, "redelivered": True}  # type: ignore[index]


def test_a_copy_that_may_be_a_repeat_says_so_after_two_restarts_with_snapshots() -> None:
    shell = MemoryShell()
    orphaned(shell)
    shell = shell.restarted()
    shell.engine.is_prompt = True
    writer = shell.connect("@(a/writer)")
    for _ in range(2):
        publish(writer)
        shell.save_snapshot()

    (copy,) = again(shell.restarted())

    assert copy["metadata"]["delivery"] == {"attempt": 2, "redelivered": True}  # type: ignore[index]


def test_an_ask_nobody_retries_is_given_up_with_the_dedup_window() -> None:
    shell = MemoryShell()
    orphaned(shell)
    shell = shell.restarted()
    shell.engine.is_prompt = True
    assert shell.hub.asks.orphans

    shell.pass_time(302)

    assert not shell.hub.asks.orphans
    assert not shell.restarted().hub.asks.orphans
