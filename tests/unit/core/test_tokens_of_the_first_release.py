"""Tokens of 0.1.0, which know none of the younger verbs, keep working where nobody is harmed."""

from __future__ import annotations

from signalhub.auth.permissions import EVERYTHING, Allowance, Permissions
from signalhub.wire.entry import Kind, OperatedBody, decode_body
from tests.support.memory.hosts import ACTOR, A, place, register
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded
from tests.support.memory.topics import code_of

ORDERS = "orders"
BILLING: Message = {"topic": ORDERS, "subscription": "billing"}
# All verbs of 0.1.0, without and with the permission to make topics.
WORKER = {verb: ["*"] for verb in ("send", "broadcast", "publish", "subscribe", "register")}
MAKER = WORKER | {"create": ["*"]}


def upgraded() -> MemoryShell:
    """A hub whose topic and subscription are from before there were owners; one dead letter."""
    shell = guarded()
    before = admitted(shell, "people/before")
    before.session.allowance = EVERYTHING
    before.ask("hub:topic_create", {"topic": ORDERS, "poison": "dead_letter"})
    before.ask("hub:subscribe", BILLING | {"mode": "shared"})
    before.ask("hub:publish", {"topic": ORDERS, "type": "note", "durable": True})
    before.ask("hub:term", BILLING | {"seq": 1})
    before.drop()
    assert shell.hub.streams.topics[ORDERS].subscriptions["billing"].definition.owner == ""
    return shell


def done(peer: Peer, request: str, **payload: object) -> str:
    reply = peer.ask(request, {"topic": ORDERS, **payload})
    assert reply["type"] != "hub:error", reply
    return str(reply["type"])


def test_an_old_token_goes_on_consuming_settling_and_redriving() -> None:
    shell = upgraded()
    worker = admitted(shell, "people/worker", WORKER)

    done(worker, "hub:subscribe", subscription="billing")
    done(worker, "hub:ack", subscription="billing", seq=1)
    assert worker.ask("hub:redrive", {"topic": "orders.dlq", "all": True})["payload"] == {
        "count": 1
    }
    # What it makes from now on is its own.
    done(worker, "hub:subscribe", subscription="own")
    for request in ("hub:sub_pause", "hub:sub_resume", "hub:sub_update", "hub:sub_delete"):
        done(worker, request, subscription="own")


def test_an_old_consumer_with_other_options_is_served_with_those_that_hold_and_told() -> None:
    shell = upgraded()
    worker = admitted(shell, "people/worker", WORKER)
    billing = shell.hub.streams.topics[ORDERS].subscriptions["billing"]
    before = billing.definition
    options = {"maxDeliveries": 9, "ratePerSecond": 5.0, "strict": False, "window": 7}

    reply = worker.ask("hub:subscribe", BILLING | options)

    assert reply["type"] == "hub:subscribed"
    # The window is the consumer's own.
    assert reply["payload"]["kept"] == ["maxDeliveries", "ratePerSecond"]
    assert billing.definition == before
    (consumer,) = billing.consumers
    assert consumer.window == 7
    # As before, those who may create topics change what nobody owns. It is on record.
    maker = admitted(shell, "people/maker", MAKER)
    reply = maker.ask("hub:subscribe", BILLING | {"maxDeliveries": 9, "consumer": "m"})
    assert "kept" not in reply["payload"]
    assert billing.definition.max_deliveries == 9
    (record,) = [one for one in shell.engine.entries if one.kind == Kind.OPERATED]
    body = decode_body(OperatedBody, record.body)
    assert (body.request, body.verb, body.over) == ("hub:subscribe", "manage", "orders/billing")


def test_without_authentication_whoever_joins_changes_the_options_as_before() -> None:
    shell = MemoryShell()
    peer = shell.connect()
    peer.ask("hub:topic_create", {"topic": ORDERS})
    peer.ask("hub:subscribe", BILLING | {"mode": "shared"})

    reply = shell.connect("@(a/b)").ask("hub:subscribe", BILLING | {"maxDeliveries": 9})

    assert "kept" not in reply["payload"]
    assert shell.hub.streams.topics[ORDERS].subscriptions["billing"].definition.max_deliveries == 9
    assert not [one for one in shell.engine.entries if one.kind == Kind.OPERATED]


def test_an_old_token_that_may_create_goes_on_managing_and_deleting() -> None:
    maker = admitted(upgraded(), "people/maker", MAKER)

    for request in ("hub:sub_pause", "hub:sub_resume", "hub:sub_update", "hub:sub_delete"):
        done(maker, request, subscription="billing")
    done(maker, "hub:topic_update", poison="drop")
    done(maker, "hub:purge", all=True)
    assert done(maker, "hub:topic_delete") == "hub:topic_deleted"


def test_an_old_token_neither_hosts_nor_controls_nor_takes_what_others_made() -> None:
    shell = upgraded()
    ann = admitted(shell, "people/ann", WORKER)
    ann.ask("hub:subscribe", BILLING | {"subscription": "anns", "mode": "shared"})
    owner = admitted(shell, "h/a", WORKER | {"host": ["order"]})
    assert register(owner, "order")["type"] == "hub:registered"
    assert place(owner, ACTOR, host=A) == {ACTOR: (A, 1)}
    old = admitted(shell, "people/old", WORKER)

    assert code_of(register(old, "order")) == "unauthorized"
    command = {"id": "1", "name": "actors", "arguments": {}}
    control = {"to": A, "type": "actors:control", "data": command}
    assert code_of(old.ask("hub:send", control)) == "unauthorized"
    assert code_of(old.ask("hub:forget_place", {"actor": ACTOR})) == "unauthorized"
    anns = {"topic": ORDERS, "subscription": "anns"}
    for request in ("hub:subscribe", "hub:sub_pause", "hub:seek", "hub:sub_delete"):
        assert code_of(old.ask(request, anns | {"to": "latest"})) == "unauthorized", request
    few = Allowance("@(people/old)", Permissions(send=("people/*",)), "old")
    old.session.allowance = few
    found = old.ask("hub:discover", {"pattern": "*"})["payload"]["actors"]
    assert found == []
