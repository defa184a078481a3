"""Moving durable actors between hosts, and messages that must not reach the wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.settings.model import Settings
from signalhub.wire.entry import Kind
from tests.support.memory.hosts import (
    ACTOR,
    A,
    B,
    host,
    move,
    place,
    register,
    send,
    stale,
    where,
)
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import answers, code_of, commit_all

MOVE = {"actor": ACTOR, "token": 1, "to": B}


def two_hosts(shell: MemoryShell) -> tuple[Peer, Peer]:
    """Two hosts, and the actor on the first."""
    hosts = host(shell), host(shell, B)
    assert place(hosts[0], ACTOR, host=A) == {ACTOR: (A, 1)}
    for one in hosts:
        one.take()
    return hosts


# Moving.


def test_a_move_gives_the_actor_to_the_other_host_with_the_next_token() -> None:
    shell = MemoryShell()
    one, other = two_hosts(shell)

    reply = move(one)

    assert (reply["type"], reply["payload"]) == (
        "hub:moved",
        {"actor": ACTOR, "host": B, "token": 2},
    )
    assert place(one) == {ACTOR: (B, 2)}
    assert move(other, token=2, to=A)["payload"]["token"] == 3
    assert (where(shell), where(shell.restarted())) == ((A, 3), (A, 3))
    assert shell.tally.actors_moved == 2


def test_a_repeated_move_is_answered_the_same_and_happens_once() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)

    first, second = move(one), move(one)

    assert first["payload"] == second["payload"]
    assert where(shell) == (B, 2)
    assert sum(entry.kind == Kind.PLACED for entry in shell.engine.entries) == 2


def test_a_move_is_answered_when_it_is_on_disk_and_so_is_its_repeat() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    shell.engine.is_prompt = False

    early = one.request("hub:move", MOVE) + one.request("hub:move", MOVE)
    commit_all(shell)

    assert early == []
    assert answers(one) == ["hub:moved", "hub:moved"]


@pytest.mark.parametrize("token", [2, 7])
def test_a_move_with_another_token_is_stale_and_says_where_the_actor_is(token: int) -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)

    assert stale(move(one, token)) == [{"actor": ACTOR, "host": A, "token": 1}]
    assert stale(move(one, actor="order/none")) == [
        {"actor": "order/none", "host": None, "token": None}
    ]
    assert where(shell) == (A, 1)


def test_of_two_moves_from_the_same_token_the_first_wins() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    host(shell, "@(h/c)")
    shell.engine.is_prompt = False

    one.request("hub:move", MOVE)
    late = move(one, to="@(h/c)")
    commit_all(shell)

    assert stale(late) == [{"actor": ACTOR, "host": B, "token": 2}]
    assert where(shell) == (B, 2)


def test_only_whoever_has_the_host_moves_its_actors() -> None:
    shell = MemoryShell()
    _, other = two_hosts(shell)
    stranger = shell.connect("@(a/stranger)")

    assert code_of(move(other)) == "unauthorized"
    # The sender's name alone is nothing.
    assert code_of(stranger.ask("hub:move", MOVE, sender=A)) == "unauthorized"
    assert where(shell) == (A, 1)


def test_an_actor_moves_only_to_a_host_of_its_kind_which_may_be_away() -> None:
    shell = MemoryShell()
    one, other = two_hosts(shell)
    shell.join("@(h/plain)", durable=True)
    host(shell, "@(h/stock)", "stock")

    for nowhere in ("@(h/plain)", "@(h/stock)", "@(h/nobody)"):
        assert code_of(move(one, to=nowhere)) == "no_host"
    other.drop()
    again = shell.restarted()
    assert move(host(again))["type"] == "hub:moved"


@pytest.mark.parametrize(
    "changed",
    [{"actor": "order"}, {"token": 0}, {"token": "1"}, {"to": None}, {"actor": None}],
)
def test_a_move_that_does_not_fit_is_refused(changed: dict[str, Any]) -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)

    assert code_of(one.ask("hub:move", MOVE | changed)) == "internal_error"


def test_a_move_the_log_refuses_is_taken_back() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    caller = shell.connect("@(a/caller)")
    shell.engine.is_prompt = False
    one.request("hub:move", MOVE)
    meanwhile = stale(send(caller, fences={ACTOR: 1}))

    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True

    assert meanwhile == [{"actor": ACTOR, "host": B, "token": 2}]
    assert answers(one) == ["storage_full"]
    assert where(shell) == (A, 1)
    assert send(caller, fences={ACTOR: 1})["type"] == "hub:delivery_ack"
    assert move(one)["payload"]["token"] == 2


def test_two_moves_on_their_way_are_both_taken_back() -> None:
    shell = MemoryShell()
    one, other = two_hosts(shell)
    shell.engine.is_prompt = False
    one.request("hub:move", MOVE)
    other.request("hub:move", {"actor": ACTOR, "token": 2, "to": A})
    assert where(shell) == (A, 3)

    shell.engine.refuse(refusals.storage_full())

    assert where(shell) == (A, 1)


def test_of_two_moves_on_their_way_the_one_on_disk_stays() -> None:
    shell = MemoryShell()
    one, other = two_hosts(shell)
    shell.engine.is_prompt = False
    one.request("hub:move", MOVE)
    other.request("hub:move", {"actor": ACTOR, "token": 2, "to": A})

    shell.engine.commit(1)
    assert where(shell) == (A, 3)
    shell.engine.refuse(refusals.storage_full())

    assert (answers(one), answers(other)) == (["hub:moved"], ["storage_full"])
    assert (where(shell), where(shell.restarted())) == ((B, 2), (B, 2))


def test_a_log_that_has_failed_moves_nobody() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert code_of(move(one)) == "storage_failed"
    assert where(shell) == (A, 1)


# Fences.


def test_a_message_with_the_present_tokens_is_accepted() -> None:
    shell = MemoryShell()
    one, other = two_hosts(shell)
    place(other, "order/18", host=B)
    caller = shell.connect("@(a/caller)")
    fences = {ACTOR: 1, "order/18": 1}

    assert send(caller, fences=fences)["type"] == "hub:delivery_ack"
    assert caller.tell("hub:send", {"to": A, "type": "tell", "fences": fences}) == []
    assert send(caller, fences={})["type"] == "hub:delivery_ack"
    assert [message["type"] for message in one.heard()] == ["call", "tell", "call"]


@pytest.mark.parametrize("pattern", ["ask", "tell"])
def test_a_message_with_another_token_is_refused_and_says_what_is_stale(pattern: str) -> None:
    shell = MemoryShell()
    one, other = two_hosts(shell)
    place(other, "order/18", host=B)
    move(one)
    caller = shell.connect("@(a/caller)")

    reply = send(caller, fences={ACTOR: 1, "order/18": 1, "order/no": 1}, pattern=pattern)

    assert stale(reply) == [
        {"actor": ACTOR, "host": B, "token": 2},
        {"actor": "order/no", "host": None, "token": None},
    ]
    assert one.heard() == []
    assert shell.tally.stale_fences == 1


def test_a_move_counts_for_fences_from_the_moment_it_goes_to_the_log() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    caller = shell.connect("@(a/caller)")
    caller.take()
    shell.engine.is_prompt = False

    send_payload = {"to": A, "type": "call", "fences": {ACTOR: 1}}
    caller.request("hub:send", send_payload)
    one.request("hub:move", MOVE)
    late = send(caller, fences={ACTOR: 1})
    caller.request("hub:send", send_payload | {"to": B, "fences": {ACTOR: 2}})
    commit_all(shell)

    assert code_of(late) == "stale_placement"
    assert answers(caller) == ["stale_placement", "hub:delivery_ack", "hub:delivery_ack"]
    kinds = [Kind(entry.kind) for entry in shell.engine.entries]
    assert [kind for kind in kinds if kind in (Kind.MAIL, Kind.PLACED)] == [
        Kind.PLACED,
        Kind.MAIL,
        Kind.PLACED,
        Kind.MAIL,
    ]


def test_a_repeat_gets_its_first_answer_although_its_fences_are_stale_by_now() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    caller = shell.connect("@(a/caller)")
    first = send(caller, fences={ACTOR: 1}, id="same")
    move(one)

    again = send(caller, fences={ACTOR: 1}, id="same")
    after_restart = shell.restarted()
    late = send(after_restart.connect("@(a/caller)"), fences={ACTOR: 1}, id="same")

    assert again["payload"] == first["payload"] | {"duplicate": True}
    assert late["payload"]["duplicate"] is True
    assert [message["metadata"]["originalMessageId"] for message in one.heard()] == ["same"]


def test_a_repeat_is_silent_while_the_first_is_on_its_way_behind_which_the_actor_moved() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    caller = shell.connect("@(a/caller)")
    caller.take()
    shell.engine.is_prompt = False
    payload = {"to": A, "type": "call", "fences": {ACTOR: 1}}

    caller.request("hub:send", payload, id="same")
    one.request("hub:move", MOVE)
    repeated = caller.request("hub:send", payload, id="same")
    commit_all(shell)

    assert repeated == []
    assert answers(caller) == ["hub:delivery_ack"]


def test_a_refused_message_may_be_sent_again_under_its_id_with_new_fences() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    caller = shell.connect("@(a/caller)")
    move(one)

    assert code_of(send(caller, fences={ACTOR: 1}, id="same")) == "stale_placement"
    assert send(caller, B, fences={ACTOR: 2}, id="same")["type"] == "hub:delivery_ack"


def test_an_expired_message_is_expired_whatever_its_fences() -> None:
    shell = MemoryShell()
    two_hosts(shell)
    caller = shell.connect("@(a/caller)")

    reply = send(caller, fences={ACTOR: 9}, ttl=1, timestamp=shell.now - 1_000_000)

    assert code_of(reply) == "message_expired"
    assert shell.tally.stale_fences == 0


def test_a_message_has_only_so_many_fences() -> None:
    shell = MemoryShell(Settings(message_rate=0.0))
    one, _ = two_hosts(shell)
    caller = shell.connect("@(a/caller)")
    actors = [f"order/f{number}" for number in range(2_000)]
    for at in (0, 1_000):
        place(one, *actors[at : at + 1_000], host=A)
    fences = dict.fromkeys(actors, 1)

    assert send(caller, fences=fences)["type"] == "hub:delivery_ack"
    assert code_of(send(caller, fences=fences | {ACTOR: 1})) == "internal_error"


def test_fences_hold_after_a_restart_and_before_any_host_is_back() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    move(one)
    shell.save_snapshot()

    again = shell.restarted()
    caller = again.connect("@(a/caller)")

    assert code_of(send(caller, A, fences={ACTOR: 1})) == "stale_placement"
    assert send(caller, B, fences={ACTOR: 2})["payload"]["status"] == "queued"


def test_a_host_that_registers_other_kinds_can_still_be_reached_for_its_actors() -> None:
    shell = MemoryShell()
    one, _ = two_hosts(shell)
    register(one, "stock")

    reply = send(shell.connect("@(a/caller)"), fences={ACTOR: 1})

    assert reply["payload"]["status"] == "delivered"
