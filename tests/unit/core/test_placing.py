"""Where durable actors get their places, that they keep them, and what hosts may claim."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.core import placement, refusals
from signalhub.core.limits.quotas import Quotas
from signalhub.core.limits.scans import SLICE, WAITING_MAX
from signalhub.core.placement import COMING_MAX, Place, Placements
from signalhub.core.rendezvous import Ring, number_of, preferred
from signalhub.settings.model import ActorsSettings, Settings
from signalhub.wire.entry import Kind, PlacedBody, decode_body
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
    register,
    two_hosts,
    unplaced,
    where,
)
from tests.support.memory.shell import MemoryShell, Peer, envelope
from tests.support.memory.topics import code_of, commit_all

ORDERS = [f"order/{number}" for number in range(300)]


def placed_entries(shell: MemoryShell) -> list[tuple[str, str, int]]:
    found = [one for one in shell.engine.entries if one.kind == Kind.PLACED]
    bodies = [decode_body(PlacedBody, one.body) for one in found]
    return [(one.actor, one.host, one.token) for one in bodies]


def test_an_actor_gets_a_place_on_a_host_of_its_kind_and_it_is_on_disk() -> None:
    shell = MemoryShell()
    caller = shell.connect("@(a/caller)")
    host(shell, A, "order")
    host(shell, B, "stock", "cart")

    found = place(caller, "order/17", "stock/a/b c", "cart/ü")

    assert found == {"order/17": (A, 1), "stock/a/b c": (B, 1), "cart/ü": (B, 1)}
    assert placed_entries(shell) == [
        ("order/17", A, 1),
        ("stock/a/b c", B, 1),
        ("cart/ü", B, 1),
    ]


def test_first_places_are_spread_over_the_hosts_and_stay_when_hosts_come_and_go() -> None:
    shell = MemoryShell()
    caller = shell.connect("@(a/caller)")
    hosts = [host(shell, f"@(h/{number})") for number in range(3)]

    first = place(caller, *ORDERS)
    host(shell, "@(h/3)")
    hosts[0].drop()
    again = place(caller, *ORDERS)

    spread = Counter(address for address, _ in first.values())
    assert len(spread) == 3
    assert min(spread.values()) > 70
    assert again == first
    assert len(placed_entries(shell)) == len(ORDERS)


def test_where_a_host_is_missing_only_its_actors_would_choose_otherwise() -> None:
    hosts = [(number_of(name), name) for name in ("@(h/0)", "@(h/1)", "@(h/2)", "@(h/3)")]

    moved = {
        preferred(actor, hosts)
        for actor in ORDERS
        if preferred(actor, hosts) != preferred(actor, hosts[1:])
    }

    assert moved == {"@(h/0)"}
    assert preferred(ACTOR, []) is None


def test_without_a_host_that_is_there_an_actor_waits_for_one() -> None:
    shell = MemoryShell()
    caller = shell.connect("@(a/caller)")
    shell.join("@(h/plain)", capabilities=["actor-host", "actor:order"])
    shell.join("@(h/other)", capabilities=["actor:order"], durable=True)
    host(shell, B, "stock")
    host(shell, A).drop()

    (reply,) = caller.tell("hub:place", {"actors": [ACTOR, "stock/1"]})

    assert unplaced(reply) == {ACTOR: "no_host"}
    assert places(reply) == {"stock/1": (B, 1)}
    host(shell, A)
    assert place(caller) == {ACTOR: (A, 1)}


def test_a_host_whose_lease_has_ended_gets_no_new_actors_and_keeps_its_own() -> None:
    shell, caller, _ = hosted()
    place(caller)
    shell.clock.advance(3_600)

    reply = caller.ask("hub:place", {"actors": [ACTOR, "order/18"]})

    assert (places(reply), unplaced(reply)) == ({ACTOR: (A, 1)}, {"order/18": "no_host"})


def test_a_place_is_told_when_it_is_on_disk_to_everybody_who_asked_meanwhile() -> None:
    shell = MemoryShell()
    first, second = shell.connect("@(a/1)"), shell.connect("@(a/2)")
    host(shell)
    place(first, "order/old")
    first.take()
    second.take()
    shell.engine.is_prompt = False

    early = first.request("hub:place", {"actors": [ACTOR, "order/old"]}, id="p1")
    early += second.request("hub:place", {"actors": [ACTOR]}, id="p2")
    known = place(second, "order/old")
    second.take()
    commit_all(shell)

    assert (early, known) == ([], {"order/old": (A, 1)})
    assert [places(one) for one in first.take()] == [{ACTOR: (A, 1), "order/old": (A, 1)}]
    assert [places(one) for one in second.take()] == [{ACTOR: (A, 1)}]
    assert len(placed_entries(shell)) == 2
    assert shell.tally.actors_placed == 2


def test_who_asks_for_several_places_on_their_way_waits_for_the_last_of_them() -> None:
    shell = MemoryShell()
    caller, other = shell.connect("@(a/1)"), shell.connect("@(a/2)")
    host(shell)
    shell.engine.is_prompt = False
    other.request("hub:place", {"actors": ["order/2"]})
    other.request("hub:place", {"actors": ["order/1"]})
    caller.take()

    caller.request("hub:place", {"actors": ["order/1", "order/2"]})
    shell.engine.commit(1)
    half = caller.take()
    commit_all(shell)

    assert half == []
    assert [places(one) for one in caller.take()] == [{"order/1": (A, 1), "order/2": (A, 1)}]


def test_a_place_the_log_refuses_was_never_given() -> None:
    shell, caller, _ = hosted()
    shell.engine.is_prompt = False
    caller.take()

    caller.request("hub:place", {"actors": [ACTOR]})
    caller.request("hub:place", {"actors": [ACTOR]})
    shell.engine.refuse(refusals.storage_full())

    assert [code_of(one) for one in caller.take()] == ["storage_full"] * 2
    assert where(shell) is None
    shell.engine.is_prompt = True
    host(shell, B)
    assert place(caller).keys() == {ACTOR}
    assert where(shell.restarted()) == where(shell)


def test_a_log_that_has_failed_still_tells_known_places() -> None:
    shell, caller, _ = hosted()
    place(caller)
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert place(caller) == {ACTOR: (A, 1)}
    assert code_of(caller.ask("hub:place", {"actors": [ACTOR, "order/18"]})) == "storage_failed"
    assert where(shell, "order/18") is None


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_places_survive_a_restart_with_and_without_a_snapshot(has_snapshot: bool) -> None:
    shell = MemoryShell()
    caller = shell.connect("@(a/caller)")
    owner = host(shell)
    host(shell, B)
    place(owner, ACTOR, host=A)
    place(caller, *ORDERS[:50])
    if has_snapshot:
        shell.save_snapshot()
    move(owner)
    if has_snapshot:
        shell.save_snapshot()
    place(caller, *ORDERS)

    again = shell.restarted()

    assert {one: where(again, one) for one in ORDERS} == {one: where(shell, one) for one in ORDERS}
    assert where(again) == (B, 2)
    assert len(again.hub.placements) == len(shell.hub.placements) == len(ORDERS)


def test_a_snapshot_holds_no_place_that_is_not_on_disk() -> None:
    shell, caller, owner = hosted()
    host(shell, B)
    place(owner, ACTOR, host=A)
    shell.engine.is_prompt = False

    owner.request("hub:move", {"actor": ACTOR, "token": 1, "to": B})
    caller.request("hub:place", {"actors": ["order/18"]})
    shell.save_snapshot()
    again = shell.restarted()

    assert (where(again), where(again, "order/18")) == ((A, 1), None)


def test_what_had_reached_the_disk_unreported_counts_after_a_crash() -> None:
    shell, owner, _ = two_hosts()
    shell.engine.is_prompt = False
    owner.request("hub:move", {"actor": ACTOR, "token": 1, "to": B})

    again = shell.restarted(written=1)
    again.engine.is_prompt = True

    assert where(again) == (B, 2)
    assert move(host(again))["payload"] == {"actor": ACTOR, "host": B, "token": 2}


@pytest.mark.parametrize("keeps_snapshot", [True, False])
def test_places_survive_that_the_log_is_cut(keeps_snapshot: bool) -> None:
    shell = MemoryShell()
    owner = host(shell)
    host(shell, B)
    place(owner, *ORDERS[:20], host=A)
    move(owner, actor=ORDERS[3])
    if keeps_snapshot:
        shell.save_snapshot()
    first = shell.engine.head

    again = cut(shell, keeps_snapshot=keeps_snapshot)

    assert again.engine.first >= first
    found = [where(again, actor) for actor in ORDERS[:20]]
    assert found == [(B, 2) if number == 3 else (A, 1) for number in range(20)]
    assert sorted(name for _, name in again.hub.streams.hosts("order")) == [A, B]
    assert cut(again).hub.placements.find(ORDERS[0]) is not None


def test_after_a_restart_only_places_from_before_the_cut_are_written_again() -> None:
    shell, caller, _ = hosted()
    place(caller, "order/1")
    middle = shell.engine.head
    place(caller, "order/2")
    shell.save_snapshot()
    again = shell.restarted()

    again.perform(again.hub.anchors.anchor(middle, again.now))

    assert [actor for actor, _, _ in placed_entries(again)] == ["order/1", "order/2", "order/1"]


def test_many_places_are_written_again_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "ANCHORS_MAX", 7)
    shell, caller, _ = hosted()
    place(caller, *ORDERS[:20])
    end = shell.engine.head

    steps = 0
    while shell.hub.anchors.anchored() < end:
        shell.perform(shell.hub.anchors.anchor(end, shell.now))
        steps += 1

    assert steps == 3
    assert len(placed_entries(shell)) == 40


def test_a_move_behind_an_anchor_is_the_last_word() -> None:
    shell = MemoryShell()
    owner = host(shell)
    host(shell, B)
    place(owner, ACTOR, "order/18", host=A)
    shell.engine.is_prompt = False
    owner.request("hub:move", {"actor": "order/18", "token": 1, "to": B})
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    owner.request("hub:move", {"actor": ACTOR, "token": 1, "to": B})
    commit_all(shell)
    shell.engine.is_prompt = True

    assert (where(shell), where(shell, "order/18")) == ((B, 2), (B, 2))
    again = cut(shell)
    assert (where(again), where(again, "order/18")) == ((B, 2), (B, 2))


# Claims.


def test_a_host_gets_what_it_claims_unless_it_lives_elsewhere() -> None:
    shell = MemoryShell()
    caller, one, other = shell.connect("@(a/caller)"), host(shell), host(shell, B)
    theirs = next(actor for actor in ORDERS if place(caller, actor)[actor][0] == B)

    assert place(one, theirs, "order/new", host=A) == {theirs: (B, 1), "order/new": (A, 1)}
    # A token takes nothing from another host either.
    claim = {"host": B, "tokens": {"order/new": 5}}
    assert place(other, "order/new", **claim) == {"order/new": (A, 1)}


def test_a_claim_brings_back_what_a_new_hub_has_forgotten() -> None:
    shell, caller, owner = hosted()
    place(caller, "order/2")

    tokens = {"order/1": 4, "order/2": 7, "order/4": 9}
    found = place(owner, "order/1", "order/2", "order/3", host=A, tokens=tokens)

    assert found == {"order/1": (A, 4), "order/2": (A, 7), "order/3": (A, 1)}
    # What the hub knows better stays, and what was not asked for is not placed.
    assert place(owner, "order/2", host=A, tokens={"order/2": 3}) == {"order/2": (A, 7)}
    assert where(shell.restarted(), "order/2") == (A, 7)
    assert where(shell, "order/4") is None


def test_only_a_host_claims_and_only_for_itself_and_its_kinds() -> None:
    shell = MemoryShell()
    owner = host(shell)
    plain = shell.join("@(h/plain)", durable=True)
    claim = {"actors": [ACTOR], "host": A}

    assert code_of(plain.ask("hub:place", claim)) == "unauthorized"
    assert code_of(plain.ask("hub:place", claim | {"host": "@(h/plain)"})) == "internal_error"
    assert code_of(owner.ask("hub:place", {"actors": [ACTOR], "tokens": {}})) == "internal_error"
    assert unplaced(owner.ask("hub:place", claim | {"actors": ["stock/1"]})) == {
        "stock/1": "no_host"
    }


# Limits.


@pytest.mark.parametrize(
    "actors",
    [
        [],
        ["order"],
        ["order/"],
        ["/17"],
        ["Order/17"],
        ["0rder/17"],
        ["order/a\nb"],
        ["order/ab\n"],
        ["order/\x9f"],
        ["o" * 65 + "/1"],
        ["order/" + "k" * 257],
        [17],
        [f"order/{number}" for number in range(1_001)],
    ],
)
def test_what_is_no_list_of_actors_is_refused(actors: list[Any]) -> None:
    shell, caller, _ = hosted()

    assert code_of(caller.ask("hub:place", {"actors": actors})) == "internal_error"
    assert len(shell.hub.placements) == 0


def test_the_longest_names_and_lists_are_taken() -> None:
    shell = MemoryShell()
    caller = shell.connect("@(a/caller)")
    kind = "k" * 64
    host(shell, A, "order", kind)
    longest = f"{kind}/{'x' * 256}"

    assert place(caller, longest) == {longest: (A, 1)}
    assert len(place(caller, *(f"order/{number}" for number in range(1_000)))) == 1_000


@pytest.mark.parametrize("token", [0, -1, 1.5, "1", 2**53 + 1])
def test_a_token_is_a_whole_number_from_one(token: Any) -> None:
    shell = MemoryShell()
    owner = host(shell)
    claim = {"actors": [ACTOR], "host": A, "tokens": {ACTOR: token}}
    fenced = {"to": A, "type": "call", "fences": {ACTOR: token}}

    assert code_of(owner.ask("hub:place", claim)) == "internal_error"
    assert code_of(owner.ask("hub:send", fenced)) == "internal_error"


def test_the_hub_remembers_a_bounded_number_of_places() -> None:
    _, caller, owner = hosted(Settings(actors=ActorsSettings(limit=2)))
    place(caller, "order/1")

    actors = ["order/1", "order/2", "order/2", "order/3", "stock/1"]
    reply = caller.ask("hub:place", {"actors": actors})

    assert places(reply) == {"order/1": (A, 1), "order/2": (A, 1)}
    assert unplaced(reply) == {"order/3": "limit_exceeded", "stock/1": "no_host"}
    # Those that have a place may change it.
    assert place(owner, "order/1", host=A, tokens={"order/1": 2}) == {"order/1": (A, 2)}


def test_nobody_gets_a_place_where_the_asker_may_not_send() -> None:
    _, caller, owner = hosted()
    caller.session.allowance = Allowance("@(a/caller)", Permissions(send=("other/*",)))

    assert unplaced(caller.ask("hub:place", {"actors": [ACTOR]})) == {ACTOR: "unauthorized"}
    place(owner, host=A)
    assert unplaced(caller.ask("hub:place", {"actors": [ACTOR]})) == {ACTOR: "unauthorized"}


# The table itself.


def test_the_table_counts_every_actor_once_whatever_is_on_its_way() -> None:
    table = Placements(Quotas(Settings()))
    first = table.send("order/1", Place(A, 1))
    second = table.send("order/1", Place(B, 2))
    other = table.send("order/2", Place(A, 1))
    assert len(table) == 2

    table.took(first, 1)
    assert len(table) == 2
    table.refused(other)
    table.refused(second)
    assert (len(table), table.find("order/1")) == (1, Place(A, 1, 1))

    again = [table.send("order/3", Place(A, token)) for token in (1, 2)]
    for one in reversed(again):
        table.refused(one)
    assert len(table) == 1


def test_the_table_gives_what_changed_and_starts_again_from_it() -> None:
    table = Placements(Quotas(Settings()))
    assert table.defined_at is None
    table.note("order/1", Place(A, 1, 10))
    table.note("order/2", Place(A, 1, 11))
    assert (table.are_on(A), table.are_on(B)) == (True, False)
    whole = table.take_rows(is_whole=True)
    table.note("order/1", Place(B, 2, 12))
    coming = table.send("order/3", Place("@(h/c)", 1))
    assert table.are_on("@(h/c)")
    table.refused(coming)
    assert not table.are_on("@(h/c)")

    changed = table.take_rows(is_whole=False)
    again = Placements(Quotas(Settings()))
    again.restore(whole[1:] + changed)

    moved = ("order/1", B, 2, 12, "", 1)
    assert changed == [moved]
    assert table.take_rows(is_whole=False) == again.take_rows(is_whole=False) == []
    assert again.take_rows(is_whole=True) == [("order/2", A, 1, 11, "", 1), moved]
    assert (again.defined_at, again.find("order/1")) == (11, Place(B, 2, 12))


def test_placing_costs_the_same_with_many_hosts_and_spreads_actors_over_all_of_them() -> None:
    hosts = sorted((number_of(f"@(h/{number})"), f"@(h/{number})") for number in range(500))

    used = Counter(preferred(f"order/{number}", hosts) for number in range(20_000))

    assert len(used) > 450
    assert max(used.values()) < 40 * 8


def test_a_request_is_charged_by_the_actors_it_names() -> None:
    shell = MemoryShell(Settings(message_rate=10.0, message_burst=150))
    caller = shell.connect("@(a/caller)")
    host(shell, A, "order")
    many = {"actors": [f"order/{number}" for number in range(1_000)]}

    assert len(caller.ask("hub:place", many)["payload"]["places"]) == 1_000
    refused = caller.ask("hub:place", many)

    # Those without a place cost most, but never more than another full bucket.
    assert code_of(refused) == "rate_limited"
    assert refused["payload"]["details"]["retryAfterMs"] == 15_100

    shell.clock.advance(30)
    assert len(caller.ask("hub:place", many)["payload"]["places"]) == 1_000
    refused = caller.ask("hub:place", many)

    assert code_of(refused) == "rate_limited"
    assert 4_000 < refused["payload"]["details"]["retryAfterMs"] < 7_000


def test_a_request_that_names_many_actors_ends_the_turn_of_its_socket() -> None:
    shell = MemoryShell()
    caller = shell.connect("@(a/caller)")
    host(shell, A, "order")

    caller.ask("hub:place", {"actors": ["order/0"]})
    assert shell.gave_way == []
    caller.ask("hub:place", {"actors": [f"order/{number}" for number in range(1_000)]})
    assert shell.gave_way == [caller.session]


def test_kinds_without_a_host_cost_as_much_as_those_with_one_and_a_claim_costs_less() -> None:
    shell = MemoryShell(Settings(message_rate=10.0, message_burst=150))
    caller, claimer = shell.connect("@(a/caller)"), host(shell, A, "order")
    before = claimer.session.bucket.tokens

    found = caller.ask("hub:place", {"actors": [f"kind{number}/1" for number in range(100)]})
    place(claimer, *(f"order/{number}" for number in range(100)), host=A)

    assert len(found["payload"]["unplaced"]) == 100
    assert caller.session.bucket.tokens < 150 - 100
    assert before - claimer.session.bucket.tokens < 15


def test_hosts_are_looked_up_by_kind_and_leave_with_their_mailbox() -> None:
    shell = MemoryShell()
    first = host(shell, A, "order", "stock")
    host(shell, B, "order")
    streams = shell.hub.streams

    assert sorted(name for _, name in streams.hosts("order")) == [A, B]
    assert [name for _, name in streams.hosts("stock")] == [A]
    assert not streams.hosts("unheard of")

    first.ask("hub:unregister", {"actorAddress": A})
    commit_all(shell)
    assert [name for _, name in streams.hosts("order")] == [B]
    assert not streams.hosts("stock")


def test_hosts_are_in_the_order_of_their_hashes_while_they_come_and_go() -> None:
    shell = MemoryShell()
    names = [f"@(h/{number})" for number in range(40)]
    peers = [host(shell, name, "order", "stock") for name in names]

    def known(kind: str) -> list[tuple[int, str]]:
        return list(shell.hub.streams.hosts(kind))

    in_order = sorted((number_of(name), name) for name in names)
    assert known("order") == known("stock") == in_order
    # Those that serve other kinds now, or are gone for good, are not in it.
    for peer in peers[:10]:
        assert register(peer, "stock")["type"] == "hub:registered"
    for peer in peers[10:20]:
        shell.hub.streams.forget(shell.hub.streams.mailboxes[peer.address])
    assert known("order") == [one for one in in_order if one[1] in names[20:]]
    assert known("stock") == [one for one in in_order if one[1] not in names[10:20]]
    for peer in peers[20:]:
        register(peer, "stock")

    assert known("order") == []
    assert unplaced(peers[0].ask("hub:place", {"actors": [ACTOR]})) == {ACTOR: "no_host"}


def test_placing_an_actor_looks_at_a_bounded_number_of_hosts() -> None:
    ring = Ring()
    for number in range(3_000):
        ring.add(f"@(h/{number})")
    looked: list[str] = []

    def is_present(name: str) -> bool:
        looked.append(name)
        return True

    assert preferred(ACTOR, ring.nodes, is_present) is not None
    assert len(looked) == 64
    ring.add("@(h/0)")
    assert len(ring.nodes) == 3_000
    ring.remove("@(h/0)")
    ring.remove("@(h/0)")
    assert len(ring.nodes) == 2_999


def test_where_most_hosts_are_away_they_are_looked_up_once_for_many_actors() -> None:
    ring = Ring()
    for number in range(3_000):
        ring.add(f"@(h/{number})")
    looked: list[str] = []

    def is_present(now: int, name: str) -> bool:
        looked.append(name)
        return name == "@(h/7)"

    session = MemoryShell().connect("@(a/caller)").session
    search = placement._Search(session, lambda kind: ring.nodes, is_present)
    steps: list[int] = []
    for number in range(1_000):
        while (found := search.find(f"order/{number}", None, number)) is None:
            steps += search.look_up("order")
        search.go_on(number)
        assert found == Place("@(h/7)", 1)

    assert len(looked) < 10_000
    # Looking them all up takes several turns, too.
    assert sum(steps) == 3_000
    assert max(steps) <= SLICE // 10


MANY = {"actors": [f"order/{number}" for number in range(1_000)]}


def begin(shell: MemoryShell, peer: Peer, payload: object, id: str = "p") -> None:
    """Ask for places without giving the hub its turns."""
    frame = envelope("hub:place", payload, sender=peer.address, id=id)
    shell._carry_out(shell.hub.received(peer.session, frame, shell.now))


def turn(shell: MemoryShell) -> int:
    """Give the hub one turn; how many places it wrote."""
    before = shell.engine.pending
    shell._carry_out(shell.hub.placing.turn(shell.now))
    return shell.engine.pending - before


def crowd(hosts: int) -> tuple[MemoryShell, Peer]:
    """A hub with many hosts and a log that does not commit yet, and somebody who asks."""
    shell = MemoryShell(Settings(message_rate=0))
    for number in range(hosts):
        host(shell, f"@(h/{number})")
    shell.engine.is_prompt = False
    return shell, shell.connect("@(a/caller)")


@pytest.mark.parametrize(("hosts", "most"), [(1, 50), (64, 13), (500, 8)])
def test_many_actors_are_placed_in_slices_and_told_at_once_in_their_order(
    hosts: int, most: int
) -> None:
    shell, caller = crowd(hosts)
    caller.take()

    begin(shell, caller, MANY)
    written = [shell.engine.pending]
    while shell.hub.placing.waiting:
        written.append(turn(shell))
    assert caller.take() == []
    commit_all(shell)

    assert sum(written) == 1_000
    assert max(written) <= most
    (reply,) = caller.take()
    assert [one["actor"] for one in reply["payload"]["places"]] == MANY["actors"]
    assert len(placed_entries(shell)) == 1_000


def test_of_many_places_a_commit_has_a_bounded_number() -> None:
    shell, caller = crowd(1)
    caller.take()

    begin(shell, caller, MANY)
    commits: list[int] = []
    while shell.hub.placing.waiting or shell.engine.pending:
        shell.settle()
        commits.append(shell.engine.pending)
        shell.engine.commit()

    assert sum(commits) == 1_000
    assert max(commits) < 2 * COMING_MAX
    assert len(commits) < 6
    assert len(places(*caller.take())) == 1_000


def test_a_commit_has_no_more_places_because_others_have_something_to_do() -> None:
    shell, caller = crowd(1)

    begin(shell, caller, MANY)
    for _ in range(100):
        shell._carry_out(shell.hub.dispatch(shell.now))

    assert COMING_MAX <= shell.engine.pending < COMING_MAX + SLICE // 10


def test_who_asks_for_few_actors_does_not_wait_for_those_who_ask_for_many() -> None:
    shell, caller = crowd(2)
    other = shell.connect("@(a/other)")
    shell.engine.is_prompt = True
    begin(shell, caller, MANY)
    for peer in (caller, other):
        peer.take()
        begin(shell, peer, {"actors": ["order/999", "order/x"]}, id="few")
        shell.engine.commit()
        (reply,) = peer.take()
        assert reply["correlationId"] == "few"
        assert places(reply).keys() == {"order/999", "order/x"}

    shell.settle()

    # Each actor has one place, whoever asked first.
    assert Counter(actor for actor, _, _ in placed_entries(shell)).most_common(1)[0][1] == 1
    (late,) = caller.take()
    assert [one["actor"] for one in late["payload"]["places"]] == MANY["actors"]
    assert places(late)["order/999"] == where(shell, "order/999")


def test_places_that_the_log_refused_on_the_way_are_not_told() -> None:
    shell, caller = crowd(1)
    caller.take()

    begin(shell, caller, MANY)
    turn(shell)
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    shell.settle()

    assert [code_of(one) for one in caller.take()] == ["storage_full"]
    assert len(places(caller.ask("hub:place", MANY))) == 1_000
    assert len(placed_entries(shell)) == 1_000


def test_places_of_others_that_the_log_refused_on_the_way_are_not_told() -> None:
    shell, caller = crowd(1)
    other = shell.connect("@(a/other)")
    others = {"actors": MANY["actors"][:400]}
    begin(shell, other, others)
    while shell.hub.placing.waiting:
        turn(shell)
    caller.take()

    begin(shell, caller, others)
    shell.engine.refuse(refusals.storage_full())
    shell.settle()
    commit_all(shell)

    assert [code_of(one) for one in caller.take()] == ["storage_full"]
    assert placed_entries(shell) == []


def test_a_host_that_goes_meanwhile_gets_no_more_actors() -> None:
    shell, caller = crowd(0)
    shell.engine.is_prompt = True
    first, _ = host(shell), host(shell, B)
    begin(shell, caller, MANY)
    begin(shell, first, MANY | {"host": A}, id="claim")
    before = {actor for actor, address, _ in placed_entries(shell) if address == A}
    first.take()

    first.ask("hub:unregister", {"actorAddress": A})
    shell.settle()

    (refused,) = [one for one in first.take() if one["correlationId"] == "claim"]
    assert code_of(refused) == "unauthorized"
    placed = [address for _, address, _ in placed_entries(shell)]
    assert placed.count(A) <= max(len(before), 100)
    assert placed.count(B) > 850


def test_who_leaves_meanwhile_has_nothing_more_placed() -> None:
    shell, caller = crowd(1)
    begin(shell, caller, MANY)
    caller.drop()

    shell.settle()
    commit_all(shell)

    assert len(placed_entries(shell)) < 100
    assert not shell.hub.placing.waiting


def test_a_session_has_a_bounded_number_of_requests_for_many_actors_under_way() -> None:
    shell, caller = crowd(1)
    caller.take()
    for number in range(WAITING_MAX + 2):
        actors = [f"order/{number}.{other}" for other in range(1_000)]
        begin(shell, caller, {"actors": actors}, id=f"m{number}")
    begin(shell, caller, {"actors": ["order/few"]}, id="few")
    refused = [(one["correlationId"], code_of(one)) for one in caller.take()]
    assert refused == [(f"m{WAITING_MAX + more}", "limit_exceeded") for more in (0, 1)]

    shell.settle()
    commit_all(shell)

    answered = [one["correlationId"] for one in caller.take()]
    assert answered == ["few", *(f"m{number}" for number in range(WAITING_MAX))]
