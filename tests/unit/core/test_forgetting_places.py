"""Forgetting the place of a durable actor, so that it can be placed anew."""

from __future__ import annotations

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.core.limits.quotas import Resource
from signalhub.settings.model import ActorsSettings, LimitsSettings, Settings
from signalhub.wire.entry import Kind, OperatedBody, PlacedBody, decode_body
from tests.support.memory.hosts import (
    ACTOR,
    A,
    B,
    cut,
    host,
    hosted,
    move,
    place,
    places,
    send,
    stale,
    two_hosts,
    unplaced,
    where,
)
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded
from tests.support.memory.topics import code_of

NOWHERE = [{"actor": ACTOR, "host": None, "token": None}]


def forget(peer: Peer, actor: str = ACTOR) -> Message:
    return peer.ask("hub:forget_place", {"actor": actor})


def permit(peer: Peer, **verbs: tuple[str, ...]) -> None:
    """From now on the session has a token with exactly these permissions."""
    peer.session.allowance = Allowance(peer.address, Permissions(**verbs), "somebody")


def forgotten() -> tuple[MemoryShell, Peer, Peer]:
    """Two hosts, and the actor's place on the first is forgotten."""
    shell, first, second = two_hosts()
    operator = shell.connect("@(a/operator)")
    assert forget(operator)["type"] == "hub:place_forgotten"
    return shell, first, second


def test_a_forgotten_actor_keeps_its_token_and_is_placed_anew_with_a_higher_one() -> None:
    shell, _, second = two_hosts()
    operator = shell.connect("@(a/operator)")

    reply = forget(operator)

    assert reply["payload"] == {"actor": ACTOR, "host": A, "token": 1}
    last = [one for one in shell.engine.entries if one.kind == Kind.PLACED][-1]
    assert decode_body(PlacedBody, last.body) == PlacedBody(ACTOR, "", 1)
    assert (len(shell.hub.placements), shell.hub.placements.are_on(A)) == (0, False)
    found = second.ask("hub:place", {"actors": [ACTOR], "host": B})
    assert found["payload"]["places"] == [{"actor": ACTOR, "host": B, "token": 2, "fresh": True}]
    assert move(second, token=2, to=A)["payload"] == {"actor": ACTOR, "host": A, "token": 3}
    assert (shell.tally.actors_placed, shell.tally.actors_moved) == (2, 1)


def test_what_the_former_host_has_of_a_forgotten_actor_is_fenced_off() -> None:
    shell, first, second = forgotten()

    assert stale(send(first, to=B, fences={ACTOR: 1})) == NOWHERE
    assert stale(move(first)) == NOWHERE
    claim = first.ask("hub:place", {"actors": [ACTOR], "host": A, "tokens": {ACTOR: 1}})
    assert unplaced(claim) == {ACTOR: "stale_placement"}

    assert place(second, host=B) == {ACTOR: (B, 2)}
    assert places(first.ask("hub:place", {"actors": [ACTOR], "host": A, "tokens": {ACTOR: 1}})) == {
        ACTOR: (B, 2)
    }
    assert stale(send(first, to=B, fences={ACTOR: 1})) == [
        {"actor": ACTOR, "host": B, "token": 2, "fresh": True}
    ]
    assert where(shell) == (B, 2)


@pytest.mark.parametrize("way", ["log", "snapshot", "cut"])
def test_a_forgotten_place_survives_a_restart(way: str) -> None:
    shell, _, _ = forgotten()
    if way == "snapshot":
        shell.save_snapshot()

    again = cut(shell) if way == "cut" else shell.restarted()

    assert len(again.hub.placements) == 0
    caller = again.connect("@(a/caller)")
    assert stale(send(caller, fences={ACTOR: 1})) == NOWHERE
    assert place(host(again), host=A) == {ACTOR: (A, 2)}
    assert where(cut(again)) == (A, 2)


def test_a_place_is_forgotten_only_by_those_who_control_its_host_and_leaves_a_record() -> None:
    shell = guarded()
    owner = admitted(shell, "h/a", {"host": ["order"], "send": ["*"]})
    owner.register(capabilities=["actor-host", "actor:order"], durable=True)
    assert place(owner, host=A) == {ACTOR: (A, 1)}
    stranger = admitted(shell, "a/eve", {"send": ["*"], "admin": ["*"], "control": ["h/b"]})
    operator = admitted(shell, "a/boss", {"control": ["h/*"]})

    assert code_of(forget(stranger)) == "unauthorized"
    assert where(shell) == (A, 1)
    assert forget(operator)["type"] == "hub:place_forgotten"
    record, placed = shell.engine.entries[-2:]
    assert (record.kind, placed.kind) == (Kind.OPERATED, Kind.PLACED)
    said = decode_body(OperatedBody, record.body)
    assert (said.address, said.verb, said.over) == ("@(a/boss)", "control", A)
    assert code_of(forget(operator)) == "stale_placement"


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_the_places_of_one_identity_are_counted_across_restarts(has_snapshot: bool) -> None:
    settings = Settings(limits=LimitsSettings(places_per_identity=2))
    shell, caller, _ = hosted(settings)
    permit(caller, send=("*",))
    assert len(place(caller, "order/1", "order/2", "order/3")) == 2
    if has_snapshot:
        shell.save_snapshot()

    again = shell.restarted()
    host(again)
    caller, operator = again.connect("@(a/caller)"), again.connect("@(a/operator)")
    permit(caller, send=("*",))

    assert unplaced(caller.ask("hub:place", {"actors": ["order/3"]})) == {
        "order/3": "limit_exceeded"
    }
    assert forget(operator, "order/1")["type"] == "hub:place_forgotten"
    assert place(caller, "order/3") == {"order/3": (A, 1)}


def test_a_forgotten_place_makes_room_and_can_always_be_given_anew() -> None:
    shell, first, second = two_hosts(Settings(actors=ActorsSettings(limit=3)))
    operator = shell.connect("@(a/operator)")

    def new(actor: str) -> str:
        """What becomes of an actor that has never had a place."""
        reply = first.ask("hub:place", {"actors": [actor], "host": A})
        return unplaced(reply).get(actor, "placed")

    assert [new(f"order/{number}") for number in (1, 2, 3)] == [
        "placed",
        "placed",
        "limit_exceeded",
    ]
    forget(operator)
    assert [new(f"order/{number}") for number in (3, 4)] == ["placed", "limit_exceeded"]
    assert shell.hub.quotas.total(Resource.PLACES) == 3
    # With forgotten ones there are at most twice as many.
    for number in (1, 2):
        forget(operator, f"order/{number}")
        assert new(f"order/{number + 4}") == "placed"
    forget(operator, "order/3")
    reply = first.ask("hub:place", {"actors": ["order/7"], "host": A})
    assert unplaced(reply) == {"order/7": "limit_exceeded"}
    # To forget another one would be of no use.
    assert "6 durable actors have a place or had one" in reply["payload"]["unplaced"][0]["message"]
    assert shell.hub.placements.recorded == 6

    assert place(second, host=B) == {ACTOR: (B, 2)}
    again = shell.restarted()
    assert (again.hub.placements.recorded, len(again.hub.placements)) == (6, 3)
    assert again.hub.quotas.total(Resource.PLACES) == 3
