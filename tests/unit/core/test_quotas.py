"""Quotas: what one identity and one source may use of what belongs to all."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.auth.tokens import Claims
from signalhub.core import refusals
from signalhub.core.limits.degradations import DESCRIPTIONS, Degraded
from signalhub.core.limits.quotas import Resource
from signalhub.core.placement import Place
from signalhub.core.rooms.access import Requester
from signalhub.settings.model import (
    ActorsSettings,
    DispatchSettings,
    LimitsSettings,
    MailboxSettings,
    RegistrySettings,
    RoomsSettings,
    Settings,
    TopicsSettings,
)
from signalhub.wire.authority import source_of
from signalhub.wire.entry import Kind, OperatedBody, decode_body
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.hosts import A, hosted
from tests.support.memory.rooms import RoomShell, Visitor
from tests.support.memory.shell import HELLO, MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded, token
from tests.support.memory.topics import commit_all
from tests.support.socket.tokens import odd_token

ALL = ("*",)
VERBS = dict.fromkeys(("send", "subscribe", "publish", "create", "register", "host"), ALL)
THREE = Settings(
    limits=LimitsSettings(
        registrations_per_identity=3,
        mailboxes_per_identity=3,
        topics_per_identity=3,
        subscriptions_per_identity=3,
        patterns_per_identity=3,
        plain_subscriptions_per_identity=3,
    )
)


def code_of(reply: Message) -> str | None:
    """The code of a refusal; `None` if it is none."""
    return reply["payload"]["code"] if reply["type"] == "hub:error" else None


def person(shell: MemoryShell, name: str, number: int = 1) -> Peer:
    """A session of somebody who may do everything."""
    peer = shell.connect(f"@(people/{name}.{number})")
    peer.session.allowance = Allowance(peer.address, Permissions(**VERBS), name)
    return peer


def register(peer: Peer, number: int, **payload: Any) -> Message:
    return peer.register(f"@(things/{peer.session.allowance.subject}.{number})", **payload)


def register_durably(peer: Peer, number: int) -> Message:
    reply = register(peer, number, durable=True)
    # Only the mailbox stays.
    peer.drop()
    return reply


def create(peer: Peer, number: int) -> Message:
    name = f"{peer.session.allowance.subject}/{number}"
    return peer.ask("hub:topic_create", {"topic": name})


def subscribe(peer: Peer, number: int) -> Message:
    name = f"{peer.session.allowance.subject}.{number}"
    return peer.ask("hub:subscribe", {"topic": "all", "subscription": name})


def listen(peer: Peer, number: int) -> Message:
    return peer.ask("hub:subscribe", {"topic": f"news/{number}"})


def undo_listening(peer: Peer, number: int) -> None:
    assert peer.ask("hub:unsubscribe", {"topic": f"news/{number}"})["type"] == "hub:unsubscribed"


def undo_registration(peer: Peer, number: int) -> None:
    peer.ask("hub:unregister", {"actorAddress": f"@(things/eve.{number})"})


def undo_topic(peer: Peer, number: int) -> None:
    assert peer.ask("hub:topic_delete", {"topic": f"eve/{number}"})["type"] == "hub:topic_deleted"


def subscribe_to_pattern(peer: Peer, number: int) -> Message:
    name = f"{peer.session.allowance.subject}.{number}"
    return peer.ask("hub:subscribe", {"pattern": f"all/{number}/#", "subscription": name})


def undo_pattern(peer: Peer, number: int) -> None:
    payload = {"pattern": f"all/{number}/#", "subscription": f"eve.{number}"}
    assert code_of(peer.ask("hub:sub_delete", payload)) is None


def undo_subscription(peer: Peer, number: int) -> None:
    payload = {"topic": "all", "subscription": f"eve.{number}"}
    assert code_of(peer.ask("hub:sub_delete", payload)) is None


MADE = [
    (Resource.REGISTRATIONS, register, undo_registration),
    (
        Resource.MAILBOXES,
        lambda peer, number: register(peer, number, durable=True),
        undo_registration,
    ),
    (Resource.TOPICS, create, undo_topic),
    (Resource.SUBSCRIPTIONS, subscribe, undo_subscription),
    (Resource.PATTERNS, subscribe_to_pattern, undo_pattern),
    (Resource.PLAIN_SUBSCRIPTIONS, listen, undo_listening),
]


@pytest.mark.parametrize(("resource", "make", "undo"), MADE, ids=[one[0] for one in MADE])
def test_whoever_exceeds_a_quota_is_told_which_and_nobody_else_notices(
    resource: Resource, make: Any, undo: Any
) -> None:
    shell = MemoryShell(THREE)
    assert code_of(person(shell, "setup").ask("hub:topic_create", {"topic": "all"})) is None
    # Two sockets of one identity share its quota.
    eves = [person(shell, "eve", number) for number in (1, 2)]
    bob = person(shell, "bob")
    before = shell.hub.quotas.total(resource)

    replies = [make(eves[number % 2], number) for number in range(5)]

    assert [code_of(one) for one in replies] == [None, None, None, *["limit_exceeded"] * 2]
    details = replies[-1]["payload"]["details"]
    limit = "registrations" if resource is Resource.MAILBOXES else resource
    assert details["setting"] == f"limits.{limit}_per_identity"
    assert (details["resource"], details["scope"]) == (limit, "identity")
    assert (details["limit"], details["used"]) == (3, 3)
    assert code_of(make(bob, 0)) is None
    # What ends makes room.
    undo(eves[0], 0)
    assert code_of(make(eves[1], 5)) is None
    assert code_of(make(eves[1], 6)) == "limit_exceeded"
    assert shell.hub.quotas.total(resource) == before + 4


def test_a_registry_cannot_be_filled_by_two_sockets() -> None:
    """Neither by two identities nor by two strangers' addresses."""
    shell = MemoryShell(Settings(registry=RegistrySettings(limit=100)))
    flooders = [person(shell, name) for name in ("eve", "mallory")]
    strangers = [shell.open() for _ in range(2)]
    for number, peer in enumerate(strangers):
        peer.session.source = f"192.0.2.{number}"
        peer.hello(f"@(strange/{number})")

    for peer in (*flooders, *strangers):
        for number in range(100):
            peer.register(f"@({peer.session.id}/{number})")

    used = shell.hub.quotas.identities(Resource.REGISTRATIONS)
    assert sorted(used) == [("eve", 25), ("mallory", 25)]
    assert max(dict(shell.hub.quotas.sources(Resource.REGISTRATIONS)).values()) == 40
    for peer in (*flooders, strangers[0]):
        peer.drop()
    assert shell.hub.quotas.total(Resource.REGISTRATIONS) <= 40
    assert code_of(person(shell, "bob").register()) is None


def test_mailboxes_left_behind_still_count() -> None:
    """One identity opens mailbox after mailbox and goes; others still get theirs."""
    shell = MemoryShell(THREE)

    replies = [register_durably(person(shell, "eve", number), number) for number in range(5)]

    assert [code_of(one) for one in replies] == [None, None, None, *["limit_exceeded"] * 2]
    assert replies[-1]["payload"]["details"]["resource"] == "mailboxes"
    assert replies[-1]["payload"]["retryable"] is False
    assert code_of(register_durably(person(shell, "bob"), 0)) is None


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_what_survives_a_restart_still_counts_for_its_owner(has_snapshot: bool) -> None:
    shell, _, owner = hosted(THREE)
    owner.session.allowance = Allowance(A, Permissions(**VERBS), "the host")
    eve = person(shell, "eve")
    create(eve, 0)
    person(shell, "setup").ask("hub:topic_create", {"topic": "all"})
    subscribe(eve, 0)
    register(eve, 0, durable=True)
    eve.ask("hub:place", {"actors": ["order/1", "order/2"]})
    owner.ask("hub:place", {"actors": ["order/3"], "host": A})
    if has_snapshot:
        shell.save_snapshot()

    quotas = shell.restarted().hub.quotas

    of_eve = {one: quotas.of_identity(one, "eve") for one in Resource}
    assert of_eve == dict.fromkeys(Resource, 0) | {
        Resource.TOPICS: 1,
        Resource.SUBSCRIPTIONS: 1,
        Resource.MAILBOXES: 1,
        Resource.PLACES: 2,
    }
    assert quotas.of_identity(Resource.PLACES, "the host") == 1
    assert quotas.total(Resource.MAILBOXES) == shell.hub.quotas.total(Resource.MAILBOXES) == 2


def test_what_the_log_refuses_is_not_counted() -> None:
    shell, _, _ = hosted(THREE)
    eve = person(shell, "eve")
    create(eve, 9)
    before = [shell.hub.quotas.of_identity(one, "eve") for one in Resource]
    shell.engine.is_prompt = False

    eve.request("hub:topic_create", {"topic": "eve/0"})
    eve.request("hub:subscribe", {"topic": "eve/9", "subscription": "s"})
    eve.request("hub:register", {"actorAddress": "@(e/1)", "capabilities": [], "durable": True})
    eve.request("hub:place", {"actors": ["order/1", "order/2"]})
    shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    after = [shell.hub.quotas.of_identity(one, "eve") for one in Resource]
    assert after == before


def test_sessions_of_one_identity_are_limited_and_end() -> None:
    shell = guarded(limits=LimitsSettings(sessions_per_identity=2))
    hello = HELLO | {"authToken": token(shell)}
    peers = [shell.open() for _ in range(3)]

    replies = [peer.hello("@(local/alice)", metadata=hello) for peer in peers]

    assert [code_of(one) for one in replies] == [None, None, "limit_exceeded"]
    assert replies[-1]["payload"]["details"]["resource"] == "sessions"
    assert replies[-1]["payload"]["retryable"] is True
    # Saying hello again is the same session.
    assert code_of(peers[0].hello("@(local/alice)", metadata=hello)) is None
    peers[0].drop()
    assert code_of(peers[2].hello("@(local/alice)", metadata=hello)) is None
    other = HELLO | {"authToken": token(shell, "local/bob")}
    assert code_of(shell.open().hello("@(local/bob)", metadata=other)) is None


def test_a_session_counts_for_whom_its_newest_token_was_made() -> None:
    shell = guarded()
    alice = admitted(shell)
    newer = odd_token(shell.clock, sub="alice at home", actorId="local/alice")

    reply = alice.ask("hub:refresh_token", {"token": newer})

    assert reply["type"] == "hub:token_refreshed", reply
    assert dict(shell.hub.quotas.identities(Resource.SESSIONS)) == {"alice at home": 1}
    alice.drop()
    assert dict(shell.hub.quotas.identities(Resource.SESSIONS)) == {}


def test_taking_an_address_over_moves_it_to_the_quota_of_the_new_owner() -> None:
    shell = MemoryShell(THREE)
    eve, bob = person(shell, "eve"), person(shell, "bob")
    for number in range(3):
        register(eve, number)

    assert code_of(register(eve, 0)) is None
    assert code_of(bob.register("@(things/eve.1)")) is None
    assert shell.hub.quotas.of_identity(Resource.REGISTRATIONS, "bob") == 1
    assert code_of(register(eve, 3)) is None

    assert shell.hub.quotas.of_identity(Resource.REGISTRATIONS, "eve") == 3
    assert code_of(register(eve, 1)) == "limit_exceeded"


def test_consumers_are_limited_per_session_whether_they_create_or_join() -> None:
    shell = MemoryShell(Settings(subscriptions_max=2))
    maker, peer = shell.join("@(a/maker)"), shell.join("@(a/peer)")
    names = ["one", "two", "three"]
    maker.ask("hub:topic_create", {"topic": "t"})
    for name in names:
        payload = {"topic": "t", "subscription": name, "mode": "shared"}
        maker.ask("hub:subscribe", payload)
        maker.ask("hub:unsubscribe", {"topic": "t", "subscription": name})

    joins = [peer.ask("hub:subscribe", {"topic": "t", "subscription": name}) for name in names]

    assert [code_of(one) for one in joins] == [None, None, "limit_exceeded"]
    # To join once more in the same place is no further consumer.
    assert code_of(peer.ask("hub:subscribe", {"topic": "t", "subscription": "one"})) is None
    peer.ask("hub:unsubscribe", {"topic": "t", "subscription": "one"})
    assert code_of(peer.ask("hub:subscribe", {"topic": "t", "subscription": "three"})) is None


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket of the system", "a socket of the system"),
    ],
)
def test_a_source_is_an_address_or_the_network_of_a_household(address: str, source: str) -> None:
    assert source_of(address) == source


def test_loopback_without_authentication_is_exempt() -> None:
    shell = MemoryShell(Settings(registry=RegistrySettings(limit=100)))
    peer = shell.open()
    peer.session.source = "127.0.0.1"
    peer.hello("@(local/load)")

    replies = [peer.register(f"@(load/{number})") for number in range(90)]

    assert {code_of(one) for one in replies} == {None}
    assert dict(shell.hub.quotas.sources(Resource.REGISTRATIONS)) == {"127.0.0.1": 90}


def test_rooms_of_one_identity_and_of_one_source_are_limited_and_others_have_theirs() -> None:
    limits = LimitsSettings(rooms_per_identity=4, source_share=0.3)
    shell = RoomShell(Settings(limits=limits, rooms=RoomsSettings(limit=20)))
    claims = Claims("eve", "@(a/eve)", (), Permissions(), 0, 9e9, None)
    eve, stranger = Requester("198.51.100.7", claims), Requester("192.0.2.1")

    def make(requester: Requester, count: int) -> list[str]:
        # Each room has an inbox.
        names = [f"{requester.key} {number}" for number in range(count)]
        results = [shell.send(f"m-{name}", room=name, requester=requester) for name in names]
        return [one.code if isinstance(one.result, RoomError) else "" for one in results]

    assert make(eve, 3) == ["", "", RoomCode.FORBIDDEN]
    assert make(stranger, 4) == ["", "", "", RoomCode.FORBIDDEN]
    assert make(Requester("192.0.2.2"), 1) == [""]
    assert make(eve, 2) == ["", ""]
    assert shell.hub.quotas.total(Resource.ROOMS) == 12
    refused = shell.send("m", room="another", requester=eve)
    assert "limits.rooms_per_identity" in refused.error.text
    assert "eve" not in refused.error.text


def test_a_room_that_holds_nothing_any_more_makes_room() -> None:
    shell = RoomShell(Settings(rooms=RoomsSettings(limit=20)))
    requester = Requester("192.0.2.1")
    guest, effects = shell.rooms.join(Visitor(), "a room", None, "", shell.now, requester)
    shell.perform(effects)
    assert dict(shell.hub.quotas.sources(Resource.ROOMS)) == {"192.0.2.1": 1}

    shell.perform(shell.rooms.leave(guest, shell.now))

    assert dict(shell.hub.quotas.sources(Resource.ROOMS)) == {}
    assert shell.hub.quotas.total(Resource.ROOMS) == 0


# Who uses what.


def limits_of(peer: Peer, **payload: Any) -> dict[str, dict[str, Any]]:
    reply = peer.ask("hub:limits", payload or None)
    assert reply["type"] == "hub:limits_response", reply
    return {one.pop("resource"): one for one in reply["payload"]["resources"]}


def test_an_operator_sees_who_uses_what_and_is_recorded() -> None:
    shell = MemoryShell(THREE)
    eve, bob = person(shell, "eve"), person(shell, "bob")
    for number in range(3):
        register(eve, number)
    register(bob, 0)
    bob.block()
    assert bob.session.outbound is not None
    bob.session.outbound.queued(777)
    boss = person(shell, "boss")
    assert code_of(boss.ask("hub:limits")) == "unauthorized"
    permissions = Permissions(admin=("limits",))
    boss.session.allowance = Allowance(boss.address, permissions, "boss")

    found = limits_of(boss)
    top = limits_of(boss, limit=1)
    of_bob = limits_of(boss, identity="bob")

    used = [{"identity": "eve", "used": 3}, {"identity": "bob", "used": 1}]
    assert found["registrations"] == {
        "used": 4,
        "limit": 50_000,
        "perIdentity": 3,
        "perSource": 20_000,
        "identities": used,
        "sources": [],
    }
    assert found["waiting_bytes"]["identities"] == [{"identity": "bob", "used": 777}]
    assert top["registrations"]["identities"] == used[:1]
    assert of_bob["registrations"]["identities"] == used[1:]
    assert of_bob["topics"]["identities"] == [{"identity": "bob", "used": 0}]
    assert found.keys() == {*Resource, "waiting_bytes"}
    records = [one for one in shell.engine.entries if one.kind == Kind.OPERATED]
    bodies = [decode_body(OperatedBody, one.body) for one in records]
    assert [(one.by, one.verb, one.over) for one in bodies] == [("boss", "admin", "limits")] * 3
    # A log that has failed is a reason to look.
    shell.hub.storage.stop(refusals.storage_failed())
    assert limits_of(boss) == found


# What operators are warned of.


def test_every_degradation_is_described_with_what_to_do() -> None:
    assert DESCRIPTIONS.keys() == set(Degraded)
    for one in DESCRIPTIONS.values():
        assert one.meaning.endswith(".")
        assert one.remedy.endswith(".")


def fill_mailboxes(shell: MemoryShell, number: int) -> None:
    register_durably(person(shell, "a", number), number)


def fill_topics(shell: MemoryShell, number: int) -> None:
    create(person(shell, "a"), number)


def fill_subscriptions(shell: MemoryShell, number: int) -> None:
    peer = person(shell, "a")
    peer.ask("hub:topic_create", {"topic": "all"})
    subscribe(peer, number)


def fill_rooms(shell: MemoryShell, number: int) -> None:
    shell.hub.rooms.directory.inbox(f"inbox {number}", Requester())


def fill_places(shell: MemoryShell, number: int) -> None:
    shell.hub.placements.note(f"order/{number}", Place(A, 1, number))


TEN = Settings(
    limits=LimitsSettings(identity_share=1.0),
    mailbox=MailboxSettings(count_max=10),
    topics=TopicsSettings(limit=10),
    dispatch=DispatchSettings(limit=10),
    rooms=RoomsSettings(limit=10),
    actors=ActorsSettings(limit=10),
)


@pytest.mark.parametrize(
    ("fill", "warned"),
    [
        (fill_mailboxes, Degraded.MAILBOXES_NEAR_CAPACITY),
        (fill_topics, Degraded.TOPICS_NEAR_CAPACITY),
        (fill_subscriptions, Degraded.SUBSCRIPTIONS_NEAR_CAPACITY),
        (fill_rooms, Degraded.ROOMS_NEAR_CAPACITY),
        (fill_places, Degraded.PLACES_NEAR_CAPACITY),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_operators_are_warned_before_a_total_is_used_up(fill: Any, warned: Degraded) -> None:
    shell = MemoryShell(TEN)

    for number in range(9):
        fill(shell, number)
    before = shell.hub.degradations()
    fill(shell, 9)

    assert (before, shell.hub.degradations()) == ([], [warned])


def test_operators_are_warned_before_the_state_of_rooms_uses_up_its_memory() -> None:
    shell = MemoryShell(Settings(rooms=RoomsSettings(state_bytes_max=100)))

    shell.hub.rooms.state.bytes = 91

    assert shell.hub.degradations() == [Degraded.ROOM_STATE_NEAR_CAPACITY]
