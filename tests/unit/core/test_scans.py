"""Requests that search everything: in slices, in turn, and charged."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.core.limits import scans
from signalhub.core.limits.scans import SLICE, WAITING_MAX
from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell, Peer, envelope

MANY = 4 * SLICE
# What is examined between two looks at the rest of a slice.
OVERRUN = 50


def crowded(count: int = MANY, **settings: Any) -> tuple[MemoryShell, Peer]:
    """A hub with many actors, and somebody who searches."""
    shell = MemoryShell(Settings(message_rate=0, **settings))
    crowd = shell.connect("@(crowd/it)")
    for number in range(count):
        crowd.register(f"@(crowd/{number})", capabilities=["odd"] if number % 2 else [])
    return shell, shell.connect("@(a/searcher)")


def begin(shell: MemoryShell, peer: Peer, type: str, payload: object, id: str = "s") -> None:
    """Send a request without giving the hub its turns."""
    frame = envelope(type, payload, sender=peer.address, id=id)
    for effect in shell.hub.received(peer.session, frame, shell.now):
        shell._perform_one(effect)


def turns(shell: MemoryShell) -> list[int]:
    """Give the hub its turns until nothing waits; how much each of them examined."""
    examined: list[int] = []
    while shell.hub.scans.waiting:
        effects = shell.hub.scans.turn(shell.now)
        examined.append(SLICE - shell.hub.scans._left)
        for effect in effects:
            shell._perform_one(effect)
    return examined


def answers(peer: Peer) -> list[tuple[str, str]]:
    return [(one["correlationId"], one["type"]) for one in peer.take()]


SEARCHES: list[tuple[str, dict[str, Any], str]] = [
    ("hub:discover", {"pattern": "nobody/*"}, "hub:discovered"),
    ("hub:discover", {"pattern": "*/9*9*9*9*9", "includeAway": True}, "hub:discovered"),
    ("hub:list_actors", {"offset": MANY - 5}, "hub:actor_list"),
]


@pytest.mark.parametrize(("type", "payload", "answer"), SEARCHES)
def test_a_search_examines_a_bounded_number_of_actors_per_turn(
    type: str, payload: dict[str, Any], answer: str
) -> None:
    shell, peer = crowded()
    peer.take()

    begin(shell, peer, type, payload)
    assert answers(peer) == []
    examined = turns(shell)

    assert answers(peer) == [("s", answer)]
    assert len(examined) >= MANY // SLICE - 1
    assert max(examined) <= SLICE + OVERRUN


def test_many_patterns_in_a_token_make_slices_shorter() -> None:
    shell, peer = crowded(SLICE)
    patterns = tuple(f"nobody{number}/*" for number in range(99))
    peer.session.allowance = Allowance(peer.address, Permissions(discover=patterns), "eve")
    seen: list[str] = []
    may_discover = peer.session.allowance.may_discover

    class Watched(Allowance):
        def may_discover(self, address: str) -> bool:
            seen.append(address)
            return may_discover(address)

    watched = Watched(peer.address, Permissions(discover=patterns), "eve")
    peer.session.allowance = watched
    begin(shell, peer, "hub:list_actors", {})
    shell.hub.scans.turn(shell.now)
    before = len(seen)

    shell.hub.scans.turn(shell.now)

    assert len(seen) - before <= SLICE // 100 + 1


def test_topics_and_their_subscriptions_are_listed_in_slices() -> None:
    shell = MemoryShell(Settings(message_rate=0, subscriptions_max=10_000))
    peer = shell.join("@(a/maker)")
    for number in range(2 * SLICE):
        peer.ask("hub:topic_create", {"topic": f"t{number:04}"})
    for number in range(2 * SLICE):
        peer.ask("hub:subscribe", {"topic": "t0000", "subscription": f"s{number:04}"})
    peer.take()

    begin(shell, peer, "hub:list_topics", {"offset": 2 * SLICE - 2})
    listed = turns(shell)
    (topics,) = peer.take()
    begin(shell, peer, "hub:list_subs", {"offset": 2 * SLICE - 2})
    examined = turns(shell)
    (subscriptions,) = peer.take()

    assert [one["topic"] for one in topics["payload"]["topics"]] == ["t0998", "t0999"]
    assert not topics["payload"]["hasMore"]
    names = [one["subscription"] for one in subscriptions["payload"]["subscriptions"]]
    assert names == ["s0998", "s0999"]
    assert len(listed) > 1
    assert len(examined) > 2
    assert max(*listed, *examined) <= SLICE + OVERRUN


def test_sessions_take_turns_and_a_small_question_is_answered_at_once() -> None:
    shell, greedy = crowded()
    modest = shell.connect("@(a/modest)")
    greedy.take()
    modest.take()

    for number in range(3):
        begin(shell, greedy, "hub:list_actors", {}, id=f"g{number}")
    begin(shell, modest, "hub:discover", {"pattern": "crowd/7"}, id="m")
    order: list[str] = []
    while shell.hub.scans.waiting:
        for effect in shell.hub.scans.turn(shell.now):
            shell._perform_one(effect)
        order += [id for id, _ in (*answers(greedy), *answers(modest))]

    assert order == ["g0", "m", "g1", "g2"]
    assert modest.ask("hub:discover", {"pattern": "crowd/7"})["type"] == "hub:discovered"


def test_whoever_asks_for_too_many_searches_is_told_and_those_of_the_gone_end() -> None:
    shell, peer = crowded()
    peer.take()

    for number in range(WAITING_MAX + 1):
        begin(shell, peer, "hub:list_actors", {}, id=f"s{number}")

    (refused,) = peer.take()
    assert refused["correlationId"] == f"s{WAITING_MAX}"
    assert refused["payload"]["code"] == "limit_exceeded"
    assert refused["payload"]["retryable"] is True
    shell.hub.closed(peer.session, shell.now)
    assert turns(shell) == [0]
    assert not shell.hub.scans.waiting


def test_a_long_search_is_charged_like_several_messages() -> None:
    shell, _ = crowded(MANY)
    peer = shell.connect("@(a/limited)")
    peer.session.bucket.rate_s, peer.session.bucket.burst = 5, 5
    peer.session.bucket.tokens = 5.0

    replies = [peer.ask("hub:list_actors", {})["type"] for _ in range(3)]

    # Each takes a token as a message, and another for every thousand actors.
    assert replies == ["hub:actor_list", "hub:error", "hub:error"]


def test_a_search_that_fails_is_answered_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell, peer = crowded()
    other = shell.connect("@(a/other)")
    peer.take()
    begin(shell, peer, "hub:list_actors", {})
    begin(shell, other, "hub:list_actors", {}, id="o")
    (scan,) = shell.hub.scans.waiting[peer.session]

    def broken() -> scans.Steps:
        yield 1
        raise ValueError("a fault")

    scan.steps = broken()
    notes = []
    while shell.hub.scans.waiting:
        for effect in shell.hub.scans.turn(shell.now):
            if type(effect).__name__ == "Note":
                notes.append(effect)
            else:
                shell._perform_one(effect)

    assert answers(peer) == [("s", "hub:error")]
    assert ("o", "hub:actor_list") in answers(other)
    assert len(notes) == 1


def test_what_ends_during_a_search_is_not_found() -> None:
    shell, peer = crowded()
    peer.take()

    begin(shell, peer, "hub:discover", {"pattern": f"crowd/*{MANY - 1}"})
    shell.hub.registry.remove(f"@(crowd/{MANY - 1})")
    turns(shell)

    (reply,) = peer.take()
    assert reply["payload"] == {"actors": [], "hasMore": False}


def test_few_with_a_capability_are_found_quickly_among_many() -> None:
    shell, peer = crowded()
    peer.register("@(a/rare)", capabilities=["rare", "rare"])
    peer.take()
    shell.hub.scans.turn(shell.now)

    begin(shell, peer, "hub:discover", {"pattern": "*r*e", "capability": "rare"})

    (reply,) = peer.take()
    assert [one["address"] for one in reply["payload"]["actors"]] == ["@(a/rare)"]
    registry = shell.hub.registry
    assert [one.address for one in registry.live("rare", shell.now)] == ["@(a/rare)"]
    peer.register("@(a/rare)", capabilities=["other"])
    assert registry.live("rare", shell.now) == []
    peer.ask("hub:unregister", {"actorAddress": "@(a/rare)"})
    assert registry.live("other", shell.now) == []
