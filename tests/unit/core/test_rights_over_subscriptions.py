"""What is whose: topics and subscriptions have owners, and others need a permission."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from signalhub.auth.permissions import Allowance, Permissions
from signalhub.wire.entry import (
    Body,
    Kind,
    OperatedBody,
    StreamDefinitionBody,
    SubscriptionDefinitionBody,
    decode_body,
    encode_body,
)
from tests.support.memory.shell import MemoryShell, Message, Peer, envelope
from tests.support.memory.topics import code_of, commit_all

ORDERS = "orders"
BILLING = {"topic": ORDERS, "subscription": "billing"}


def person(shell: MemoryShell, name: str, **verbs: tuple[str, ...]) -> Peer:
    """Somebody whose token has exactly these permissions."""
    peer = shell.connect(f"@(people/{name})")
    identity = peer.session.identity or ""
    peer.session.allowance = Allowance(identity, Permissions(**verbs), name)
    return peer


def settled_shop() -> tuple[MemoryShell, Peer]:
    """A topic of Ann's, with a subscription of hers."""
    shell = MemoryShell()
    ann = person(shell, "ann", create=("*",), subscribe=("*",), manage=(), delete=())
    assert ann.ask("hub:topic_create", {"topic": ORDERS})["type"] == "hub:topic_created"
    assert subscribe(ann)["type"] == "hub:subscribed"
    return shell, ann


def subscribe(peer: Peer, **payload: Any) -> Message:
    return peer.ask("hub:subscribe", BILLING | {"mode": "shared"} | payload)


def records(shell: MemoryShell) -> list[tuple[str, str, str, str]]:
    found = [one for one in shell.engine.entries if one.kind == Kind.OPERATED]
    bodies = [decode_body(OperatedBody, one.body) for one in found]
    return [(one.by, one.address, one.verb, one.over) for one in bodies]


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("hub:sub_update", {"window": 3}, "manage"),
    ("hub:sub_pause", {}, "manage"),
    ("hub:sub_resume", {}, "manage"),
    ("hub:seek", {"to": "earliest"}, "manage"),
    ("hub:sub_delete", {}, "delete"),
]


@pytest.mark.parametrize(("type", "payload", "verb"), CHANGES)
def test_others_change_a_subscription_only_with_the_verb_and_leave_a_record(
    type: str, payload: dict[str, Any], verb: str
) -> None:
    shell, _ = settled_shop()
    eve = person(shell, "eve", subscribe=("*",), publish=("*",))
    boss = person(shell, "boss", **{verb: (ORDERS,)})

    refused = eve.ask(type, BILLING | payload)

    assert code_of(refused) == "unauthorized"
    assert refused["payload"]["details"]["action"] == verb
    assert records(shell) == []
    assert boss.ask(type, BILLING | payload)["type"] in ("hub:sub_info_response", "hub:sought")
    assert records(shell) == [("boss", "@(people/boss)", verb, "orders/billing")]


@pytest.mark.parametrize(("type", "payload", "verb"), CHANGES)
def test_what_you_made_you_may_change_and_delete(
    type: str, payload: dict[str, Any], verb: str
) -> None:
    shell, ann = settled_shop()

    assert ann.ask(type, BILLING | payload)["type"] in ("hub:sub_info_response", "hub:sought")
    assert records(shell) == []


def test_a_subscription_is_consumed_by_its_owner_or_with_its_name() -> None:
    shell, _ = settled_shop()

    def join(name: str, **verbs: tuple[str, ...]) -> Message:
        return subscribe(person(shell, name, **verbs), consumer=name)

    assert code_of(join("eve", subscribe=("*",))) == "unauthorized"
    assert code_of(join("eva", consume=("orders/audit",))) == "unauthorized"
    assert join("bob", consume=("orders/billing",))["type"] == "hub:subscribed"
    assert join("boss", manage=(ORDERS,))["type"] == "hub:subscribed"
    assert join("ann", consume=())["type"] == "hub:subscribed"


def test_a_consumer_is_replaced_only_by_its_own_identity_or_with_manage() -> None:
    shell, _ = settled_shop()
    bob = person(shell, "bob", consume=("*",))
    assert subscribe(bob, consumer="one")["type"] == "hub:subscribed"
    carl = person(shell, "carl", consume=("*",))
    boss = person(shell, "boss", manage=("*",))

    assert code_of(subscribe(carl, consumer="one")) == "unauthorized"
    assert subscribe(bob, consumer="one")["type"] == "hub:subscribed"
    assert subscribe(boss, consumer="one")["type"] == "hub:subscribed"
    assert records(shell) == [("boss", "@(people/boss)", "manage", "orders/billing")]


def test_joining_changes_no_options_of_what_others_made() -> None:
    shell, _ = settled_shop()
    bob = person(shell, "bob", consume=("*",))

    assert code_of(subscribe(bob, consumer="bob", maxDeliveries=1)) == "unauthorized"
    assert subscribe(bob, consumer="bob", window=2)["type"] == "hub:subscribed"


def test_a_topic_is_deleted_and_purged_by_its_owner_or_with_delete() -> None:
    shell, ann = settled_shop()
    eve = person(shell, "eve", create=("*",), subscribe=("*",), delete=())
    boss = person(shell, "boss", delete=(ORDERS,))
    everything = {"topic": ORDERS, "all": True}

    assert code_of(eve.ask("hub:purge", everything)) == "unauthorized"
    assert code_of(eve.ask("hub:topic_delete", {"topic": ORDERS})) == "unauthorized"
    assert ann.ask("hub:purge", everything)["type"] == "hub:purged"
    assert boss.ask("hub:purge", everything)["type"] == "hub:purged"
    assert boss.ask("hub:topic_delete", {"topic": ORDERS})["type"] == "hub:topic_deleted"
    assert records(shell) == [("boss", "@(people/boss)", "delete", ORDERS)] * 2


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_owners_survive_a_restart(has_snapshot: bool) -> None:
    shell, _ = settled_shop()
    if has_snapshot:
        shell.save_snapshot()

    again = shell.restarted()

    topic = again.hub.streams.topics[ORDERS]
    assert topic.definition.owner == "ann"
    assert topic.subscriptions["billing"].definition.owner == "ann"


def test_changing_a_definition_keeps_its_owner() -> None:
    shell, ann = settled_shop()
    boss = person(shell, "boss", create=("*",))
    boss.ask("hub:topic_update", {"topic": ORDERS, "poison": "drop"})
    boss.ask("hub:sub_update", BILLING | {"window": 3})

    topic = shell.hub.streams.topics[ORDERS]
    assert (topic.definition.poison, topic.definition.owner) == ("drop", "ann")
    assert topic.subscriptions["billing"].definition.owner == "ann"
    assert ann.ask("hub:sub_pause", BILLING)["type"] == "hub:sub_info_response"


def test_definitions_written_before_there_were_owners_have_none() -> None:
    class Old(Body):
        is_topic: bool

    old = [*(["billing", "shared", 1, False, 1, 1, 1, 1, None, False]), None, None, 0.0, 0]

    assert decode_body(StreamDefinitionBody, encode_body(Old(True))).owner == ""

    body = msgspec.msgpack.encode(old)
    assert decode_body(SubscriptionDefinitionBody, body).owner == ""


def test_without_authentication_the_same_requests_are_recorded_without_a_subject() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(people/ann)")
    peer.ask("hub:topic_create", {"topic": ORDERS})
    assert subscribe(peer)["type"] == "hub:subscribed"
    peer.ask("hub:publish", {"topic": ORDERS, "type": "note"})
    assert records(shell) == [], "nothing of this is over what others made"
    for type, payload, _ in CHANGES:
        assert peer.ask(type, BILLING | payload)["type"] in ("hub:sub_info_response", "hub:sought")
    peer.ask("hub:purge", {"topic": ORDERS, "all": True})
    peer.ask("hub:redrive", {"topic": ORDERS, "all": True})
    peer.ask("hub:topic_delete", {"topic": ORDERS})
    peer.ask("hub:erase", {"actor": "@(people/bob)"})
    peer.ask("hub:list_sessions")
    peer.ask("hub:limits")
    shell.connect("@(h/a)").ask("hub:register", {"actorAddress": "@(h/a)", "capabilities": []})
    for name in ("actors", "redrive", "purge"):
        command: dict[str, Any] = {"id": "1", "name": name, "arguments": {}}
        peer.tell("hub:send", {"to": "@(h/a)", "type": "actors:control", "data": command})

    assert [one[:2] for one in records(shell)] == [("", "@(people/ann)")] * 15
    assert [one[2:] for one in records(shell)] == [
        *((verb, "orders/billing") for _, _, verb in CHANGES),
        *(("delete", ORDERS), ("manage", ORDERS), ("delete", ORDERS)),
        *(("admin", "erase"), ("admin", "erase"), ("admin", "sessions"), ("admin", "limits")),
        *(("control", "@(h/a)"), ("control", "@(h/a)"), ("delete", "@(h/a)")),
    ]


def test_an_operation_is_recorded_in_the_batch_of_what_it_changes() -> None:
    shell, _ = settled_shop()
    boss = person(shell, "boss", create=("*",), subscribe=("*",), publish=("*",))
    for _ in range(3):
        boss.ask("hub:publish", {"topic": ORDERS, "type": "note"})
    for type, change in (
        ("hub:purge", Kind.REMOVED),
        ("hub:topic_delete", Kind.STREAM_DELETED),
    ):
        shell.engine.is_prompt = False
        boss.request(type, {"topic": ORDERS, "all": True})
        before = len(shell.engine.entries)
        shell.engine.commit()
        kinds = [one.kind for one in shell.engine.entries[before:]]
        assert kinds[:2] == [Kind.OPERATED, change]
        assert kinds.count(Kind.OPERATED) == 1
        shell.engine.is_prompt = True
        commit_all(shell)


def test_nothing_is_recorded_before_it_is_known_which_letters_are_removed() -> None:
    shell, _ = settled_shop()
    boss = person(shell, "boss", create=("*",), publish=("*",))
    boss.ask("hub:publish", {"topic": ORDERS, "type": "note"})
    for name in ("hub:purge", "hub:redrive"):
        frame = envelope(name, {"topic": ORDERS, "all": True}, sender=boss.address)
        effects = shell.hub.received(boss.session, frame, shell.now)
        assert [type(effect).__name__ for effect in effects] == ["Fetch"]


def test_using_what_others_made_by_means_of_manage_is_recorded_when_joining() -> None:
    shell, ann = settled_shop()
    bob = person(shell, "bob", consume=("*",), manage=("*",))
    boss = person(shell, "boss", manage=(ORDERS,), consume=())

    # What the name permits needs no `manage`.
    assert subscribe(bob, consumer="bob")["type"] == "hub:subscribed"
    assert subscribe(ann, consumer="ann", maxDeliveries=7)["type"] == "hub:subscribed"
    assert records(shell) == []
    assert subscribe(bob, consumer="bob", maxDeliveries=8)["type"] == "hub:subscribed"
    assert subscribe(boss, consumer="boss")["type"] == "hub:subscribed"
    assert subscribe(boss, consumer="bob", maxDeliveries=9)["type"] == "hub:subscribed"
    who = [one[0] for one in records(shell)]
    assert who == ["bob", "boss", "boss"]
    assert {one[2:] for one in records(shell)} == {("manage", "orders/billing")}


def test_an_owner_redrives_without_manage_and_without_a_record() -> None:
    shell, ann = settled_shop()
    eve = person(shell, "eve", publish=("*",))

    assert code_of(eve.ask("hub:redrive", {"topic": ORDERS, "all": True})) == "unauthorized"
    ann.session.allowance = Allowance("@(people/ann)", Permissions(manage=()), "ann")
    assert ann.ask("hub:redrive", {"topic": ORDERS, "all": True})["type"] == "hub:redriven"
    assert records(shell) == []


def test_the_jobs_of_an_administrator_are_recorded_when_they_begin_and_end() -> None:
    shell, _ = settled_shop()
    boss = person(shell, "boss", admin=("*",), publish=("*",))
    job = {"job": "j", "until": {"epoch": 1, "offset": 9}, "to": {"topic": ORDERS}}
    copies = [{"epoch": 1, "offset": n, "id": f"o{n}", "type": "note"} for n in (1, 2)]

    boss.ask("hub:republish", job | {"messages": copies[:1]})
    boss.ask("hub:republish", job | {"messages": copies[1:]})
    boss.ask("hub:republish", job | {"ended": True})
    boss.ask("hub:erase", {"actor": "@(people/bob)"})

    found = [one for one in shell.engine.entries if one.kind == Kind.OPERATED]
    bodies = [decode_body(OperatedBody, one.body) for one in found]
    assert [(one.over, one.phase) for one in bodies] == [
        *(("republish", "begin"), ("republish", "end")),
        *(("erase", "begin"), ("erase", "end")),
    ]
    assert {one.by for one in bodies} == {"boss"}
    assert [one.job for one in bodies[:2]] == ["j", "j"]
    assert bodies[2].job == bodies[3].job != ""


def test_records_cannot_be_erased_by_their_offsets() -> None:
    shell, _ = settled_shop()
    boss = person(shell, "boss", delete=("*",), admin=("erase",))
    boss.ask("hub:purge", {"topic": ORDERS, "all": True})
    before = len(records(shell))
    everything = {"offsets": [[0, shell.engine.head]], "epoch": shell.hub.streams.log_epoch}

    reply = boss.ask("hub:erase", {"actor": "@(people/bob)"} | everything)

    assert reply["type"] == "hub:erased", reply
    assert len([one for one in records(shell) if one[0] == "boss"]) == before + 2


def test_erasing_an_actor_erases_the_records_that_name_it() -> None:
    shell, _ = settled_shop()
    boss = person(shell, "boss", delete=("*",), admin=("erase",))
    boss.ask("hub:purge", {"topic": ORDERS, "all": True})
    assert records(shell)

    reply = boss.ask("hub:erase", {"actor": "@(people/boss)"})

    assert reply["type"] == "hub:erased", reply
    left = [
        one for one in shell.engine.entries if one.kind == Kind.OPERATED and b"boss" in one.body
    ]
    assert left == []


def test_letters_are_chosen_by_their_contents_only_by_those_who_may_read_them() -> None:
    shell, _ = settled_shop()
    everything = ("*",)
    blind = person(
        shell, "blind", subscribe=everything, publish=everything, manage=everything, read=()
    )
    asked = {"topic": ORDERS, "dryRun": True}

    for contents in ({"reason": "busy"}, {"type": "note"}):
        refused = blind.ask("hub:redrive", asked | {"filter": contents})
        assert refused["payload"]["code"] == "unauthorized"
    allowed = blind.ask("hub:redrive", asked | {"filter": {"subscription": "billing"}})
    assert allowed["type"] == "hub:redriven"


LETTERS = "letters"
OF_EVE: dict[str, tuple[str, ...]] = {"create": (LETTERS, "eve"), "publish": (LETTERS, "eve")}


def test_nobody_publishes_by_naming_a_topic_for_dead_letters() -> None:
    shell, _ = settled_shop()
    eve = person(shell, "eve", **OF_EVE)

    refused = eve.ask("hub:topic_create", {"topic": "eve", "deadLetter": ORDERS})

    assert code_of(refused) == "unauthorized"
    # Where letters go anyway may be said, and what one may write to.
    for letters in ("eve.dlq", LETTERS, LETTERS):
        request = "hub:topic_create" if letters == "eve.dlq" else "hub:topic_update"
        reply = eve.ask(request, {"topic": "eve", "deadLetter": letters})
        assert reply["type"] != "hub:error", reply
    refused = eve.ask("hub:topic_update", {"topic": "eve", "deadLetter": ORDERS})
    assert code_of(refused) == "unauthorized"


def test_what_a_topic_says_of_its_dead_letters_may_be_said_again() -> None:
    shell, _ = settled_shop()
    definition = {"topic": "new", "deadLetter": LETTERS}
    ann = person(shell, "ann", create=("*",), publish=(LETTERS,))
    assert ann.ask("hub:topic_create", definition)["type"] == "hub:topic_created"
    bob = person(shell, "bob", create=("new",))

    assert bob.ask("hub:topic_create", definition)["type"] == "hub:topic_created"


@pytest.mark.parametrize(
    ("verbs", "count"), [({}, 0), ({"manage": (LETTERS, ORDERS)}, 1), ({"publish": ("*",)}, 1)]
)
def test_a_letter_whose_subscription_is_gone_goes_to_all_only_from_those_who_may(
    verbs: dict[str, tuple[str, ...]], count: int
) -> None:
    shell, _ = settled_shop()
    writer = person(shell, "writer", publish=("*",))
    writer.ask("hub:publish", {"topic": ORDERS, "type": "pay"})
    eve = person(shell, "eve", **OF_EVE | {"subscribe": (ORDERS, LETTERS)} | verbs)
    mine = {"topic": ORDERS, "subscription": "eves"}
    eve.ask("hub:subscribe", mine | {"poison": "dead_letter", "deadLetter": LETTERS})
    eve.ask("hub:term", mine | {"seq": 1})
    eve.ask("hub:sub_delete", mine)

    redriven = eve.ask("hub:redrive", {"topic": LETTERS, "all": True})

    assert redriven["payload"]["count"] == count
    assert shell.hub.streams.topics[ORDERS].head == 1 + count
