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
    two_hosts,
    where,
)
from tests.support.memory.topics import answers, code_of, commit_all

MOVE = {"actor": ACTOR, "token": 1, "to": B}


# Moving.


def test_a_move_gives_the_actor_to_the_other_host_with_the_next_token() -> None:
    shell, one, other = two_hosts()

    reply = move(one)

    assert (reply["type"], reply["payload"]) == (
        "hub:moved",
        {"actor": ACTOR, "host": B, "token": 2},
    )
    assert place(one) == {ACTOR: (B, 2)}
    assert move(other, token=2, to=A)["payload"]["token"] == 3
    assert (where(shell), where(shell.restarted())) == ((A, 3), (A, 3))
    assert shell.tally.actors_moved == 2


def test_a_repeated_move_happens_once_and_both_are_answered_when_it_is_on_disk() -> None:
    shell, one, _ = two_hosts()
    shell.engine.is_prompt = False

    early = one.request("hub:move", MOVE) + one.request("hub:move", MOVE)
    commit_all(shell)
    first, second = one.take()

    assert early == []
    assert (first["type"], first["payload"]) == ("hub:moved", second["payload"])
    assert where(shell) == (B, 2)
    assert sum(entry.kind == Kind.PLACED for entry in shell.engine.entries) == 2


@pytest.mark.parametrize("token", [2, 7])
def test_a_move_with_another_token_is_stale_and_says_where_the_actor_is(token: int) -> None:
    shell, one, _ = two_hosts()

    assert stale(move(one, token)) == [{"actor": ACTOR, "host": A, "token": 1}]
    assert stale(move(one, actor="order/none")) == [
        {"actor": "order/none", "host": None, "token": None}
    ]
    assert where(shell) == (A, 1)


def test_of_two_moves_from_the_same_token_the_first_wins() -> None:
    shell, one, _ = two_hosts()
    host(shell, "@(h/c)")
    shell.engine.is_prompt = False

    one.request("hub:move", MOVE)
    late = move(one, to="@(h/c)")
    commit_all(shell)

    assert stale(late) == [{"actor": ACTOR, "host": B, "token": 2}]
    assert where(shell) == (B, 2)


def test_only_whoever_has_the_host_moves_its_actors() -> None:
    shell, _, other = two_hosts()
    stranger = shell.connect("@(a/stranger)")

    assert code_of(move(other)) == "unauthorized"
    # The sender's name alone is nothing.
    assert code_of(stranger.ask("hub:move", MOVE, sender=A)) == "unauthorized"
    assert where(shell) == (A, 1)


def test_an_actor_moves_only_to_a_host_of_its_kind_which_may_be_away() -> None:
    shell, one, other = two_hosts()
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
    _, one, _ = two_hosts()

    assert code_of(one.ask("hub:move", MOVE | changed)) == "internal_error"


def test_a_move_the_log_refuses_is_taken_back() -> None:
    shell, one, _ = two_hosts()
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


@pytest.mark.parametrize("committed", [0, 1])
def test_of_two_moves_on_their_way_what_is_on_disk_stays(committed: int) -> None:
    shell, one, other = two_hosts()
    shell.engine.is_prompt = False
    one.request("hub:move", MOVE)
    other.request("hub:move", {"actor": ACTOR, "token": 2, "to": A})

    if committed:
        shell.engine.commit(committed)
    assert where(shell) == (A, 3)
    shell.engine.refuse(refusals.storage_full())

    kept = (B, 2) if committed else (A, 1)
    assert answers(one) == (["hub:moved"] if committed else ["storage_full"])
    assert answers(other) == ["storage_full"]
    assert (where(shell), where(shell.restarted())) == (kept, kept)


def test_a_log_that_has_failed_moves_nobody() -> None:
    shell, one, _ = two_hosts()
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert code_of(move(one)) == "storage_failed"
    assert where(shell) == (A, 1)


# Fences.


def test_a_message_with_the_present_tokens_is_accepted() -> None:
    shell, one, other = two_hosts()
    place(other, "order/18", host=B)
    caller = shell.connect("@(a/caller)")
    fences = {ACTOR: 1, "order/18": 1}

    assert send(caller, fences=fences)["type"] == "hub:delivery_ack"
    assert caller.tell("hub:send", {"to": A, "type": "tell", "fences": fences}) == []
    assert send(caller, fences={})["type"] == "hub:delivery_ack"
    assert [message["type"] for message in one.heard()] == ["call", "tell", "call"]


@pytest.mark.parametrize("pattern", ["ask", "tell"])
def test_a_message_with_another_token_is_refused_and_says_what_is_stale(pattern: str) -> None:
    shell, one, other = two_hosts()
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
    shell, one, _ = two_hosts()
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
    shell, one, _ = two_hosts()
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
    shell, one, _ = two_hosts()
    caller = shell.connect("@(a/caller)")
    caller.take()
    shell.engine.is_prompt = False
    payload = {"to": A, "type": "call", "fences": {ACTOR: 1}}

    caller.request("hub:send", payload, id="same")
    one.request("hub:move", MOVE)
    assert caller.request("hub:send", payload, id="same") == []
    commit_all(shell)

    assert answers(caller) == ["hub:delivery_ack"]


def test_a_refused_message_may_be_sent_again_under_its_id_with_new_fences() -> None:
    shell, one, _ = two_hosts()
    caller = shell.connect("@(a/caller)")
    move(one)
    # What has expired is expired whatever its fences.
    late = send(caller, fences={ACTOR: 9}, ttl=1, timestamp=shell.now - 1_000_000)
    assert code_of(late) == "message_expired"
    assert shell.tally.stale_fences == 0

    assert code_of(send(caller, fences={ACTOR: 1}, id="same")) == "stale_placement"
    assert send(caller, B, fences={ACTOR: 2}, id="same")["type"] == "hub:delivery_ack"


def test_a_message_has_a_bounded_number_of_fences() -> None:
    shell, one, _ = two_hosts(Settings(message_rate=0.0))
    caller = shell.connect("@(a/caller)")
    actors = [f"order/f{number}" for number in range(2_000)]
    for at in (0, 1_000):
        place(one, *actors[at : at + 1_000], host=A)
    fences = dict.fromkeys(actors, 1)

    assert send(caller, fences=fences)["type"] == "hub:delivery_ack"
    assert code_of(send(caller, fences=fences | {ACTOR: 1})) == "internal_error"


def test_fences_hold_after_a_restart_and_before_any_host_is_back() -> None:
    shell, one, _ = two_hosts()
    move(one)
    shell.save_snapshot()

    again = shell.restarted()
    caller = again.connect("@(a/caller)")

    assert code_of(send(caller, A, fences={ACTOR: 1})) == "stale_placement"
    assert send(caller, B, fences={ACTOR: 2})["payload"]["status"] == "queued"


def test_a_host_that_registers_other_kinds_keeps_its_actors_and_gets_no_more() -> None:
    shell, one, other = two_hosts()
    other.drop()
    caller = shell.connect("@(a/caller)")
    register(one, "stock")

    assert send(caller, fences={ACTOR: 1})["payload"]["status"] == "delivered"
    assert place(caller, ACTOR, "stock/1") == {ACTOR: (A, 1), "stock/1": (A, 1)}
    reply = caller.ask("hub:place", {"actors": ["order/18"]})
    assert reply["payload"]["unplaced"][0]["code"] == "no_host"
