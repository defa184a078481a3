"""Who may be a host, who may command one, and who sees whom."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors.kernel import commands
from signalhub.auth.permissions import Allowance, Permissions
from signalhub.settings.model import LimitsSettings, Settings
from signalhub.wire.entry import Kind, OperatedBody, decode_body
from tests.support.memory.hosts import (
    ACTOR,
    A,
    B,
    host,
    hosted,
    move,
    place,
    places,
    register,
    send,
    two_hosts,
    unplaced,
    where,
)
from tests.support.memory.shell import HELLO, SETTLING_HELLO, MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded, token
from tests.support.memory.topics import code_of


def restrict(peer: Peer, subject: str = "somebody", **verbs: tuple[str, ...]) -> None:
    """From now on the session has a token with exactly these permissions."""
    identity = peer.session.identity or ""
    peer.session.allowance = Allowance(identity, Permissions(**verbs), subject)


def control(peer: Peer, name: str, host: str = A, **arguments: Any) -> Message:
    data = {"id": "1", "name": name, "arguments": arguments}
    return peer.ask("hub:send", {"to": host, "type": "actors:control", "data": data})


def action(reply: Message) -> tuple[str, str]:
    assert code_of(reply) == "unauthorized", reply
    details = reply["payload"]["details"]
    return details["action"], details["target"]


def test_being_a_host_needs_the_permission_for_every_kind() -> None:
    shell = MemoryShell()
    peer = shell.connect(A)
    restrict(peer, send=("*",), register=("*",), host=("order", "cart-*"))

    assert action(register(peer, "order", "stock")) == ("host", "stock")
    assert action(register(peer)) == ("host", "*")
    assert register(peer, "order", "cart-eu")["type"] == "hub:registered"


def test_a_claim_needs_the_permission_for_the_kind() -> None:
    _, _, owner = hosted()
    restrict(owner, host=("stock",))

    claim = owner.ask("hub:place", {"actors": [ACTOR], "host": A})

    assert unplaced(claim) == {ACTOR: "unauthorized"}


def test_where_an_actor_lives_is_shown_to_those_who_may_send_there() -> None:
    shell, _, second = two_hosts()
    stranger = shell.connect("@(a/stranger)")
    restrict(stranger, send=("h/b",))
    reply = stranger.ask("hub:place", {"actors": [ACTOR]})
    assert unplaced(reply) == {ACTOR: "unauthorized"}
    assert A not in str(reply["payload"])

    # Nor in a refusal.
    fenced = stranger.ask("hub:send", {"to": B, "type": "x", "fences": {ACTOR: 9}})
    for refusal in (fenced, move(stranger, token=9)):
        assert code_of(refusal) == "stale_placement"
        assert A not in str(refusal["payload"])
    assert A not in str(move(stranger)["payload"])

    # Nor to the host of another kind.
    restrict(second, host=("stock",))
    assert unplaced(second.ask("hub:place", {"actors": [ACTOR], "host": B})) == {
        ACTOR: "unauthorized"
    }

    restrict(stranger, send=("h/a",))
    assert place(stranger) == {ACTOR: (A, 1)}


def test_one_identity_places_a_bounded_number_of_actors() -> None:
    shell, caller, owner = hosted(Settings(limits=LimitsSettings(places_per_identity=2)))
    other = shell.connect("@(a/other)")
    restrict(caller, send=("*",))
    restrict(other, "somebody else", send=("*",))
    restrict(owner, "the host", host=("order",))
    actors = ["order/1", "order/2", "order/3"]

    reply = caller.ask("hub:place", {"actors": actors})

    assert places(reply) == {"order/1": (A, 1), "order/2": (A, 1)}
    (refused,) = reply["payload"]["unplaced"]
    assert refused["code"] == "limit_exceeded"
    assert "somebody has 2" in refused["message"]
    assert "signalhub actors forget" in refused["resolution"]
    assert "limits.places_per_identity" in refused["resolution"]
    assert unplaced(caller.ask("hub:place", {"actors": ["order/4"]})) != {}
    # Others have room of their own, the host included.
    assert places(owner.ask("hub:place", {"actors": ["order/5"], "host": A})) != {}
    assert place(other, "order/3") == {"order/3": (A, 1)}


def test_commands_reach_a_host_only_with_control_over_it() -> None:
    _, caller, owner = hosted()
    restrict(caller, send=("*",))

    assert action(control(caller, "actors")) == ("control", A)
    assert action(control(caller, "move", actor=ACTOR, to=B)) == ("control", A)
    assert owner.take() == []

    restrict(caller, send=("*",), control=("h/a",))
    assert control(caller, "actors")["type"] == "hub:delivery_ack"
    assert action(control(caller, "actors", host=B)) == ("control", B)
    (heard,) = owner.take()
    assert heard["type"] == "actors:control"


def test_no_command_that_changes_something_reaches_a_host_without_a_record_of_it() -> None:
    shell, caller, owner = hosted()
    restrict(caller, send=("*",), control=("*",))
    command = {"to": A, "type": "actors:control", "data": {"id": "1", "name": "redrive"}}
    shell.engine.is_full = True

    (refused,) = caller.tell("hub:send", command)

    assert code_of(refused) == "storage_full"
    assert owner.take() == []
    shell.engine.is_full = False
    caller.tell("hub:send", command)
    assert [one["type"] for one in owner.take()] == ["actors:control"]


def test_control_over_one_host_is_no_reason_to_shout_commands_to_all() -> None:
    _, caller, owner = hosted()
    restrict(caller, broadcast=("*",), control=("*",))

    reply = caller.ask("hub:broadcast", {"type": "actors:control", "data": {"name": "actors"}})

    assert code_of(reply) == "unauthorized"
    assert owner.take() == []


@pytest.mark.parametrize("type", ["actors:batch", "actors:move", "actors:mark"])
def test_what_hosts_tell_each_other_is_taken_only_from_those_who_may_be_one(type: str) -> None:
    shell, _, owner = hosted()
    # Hosts believe addresses like this one.
    thief = shell.connect("@(actors/thief)")
    restrict(thief, send=("*",), control=("*",))

    assert action(thief.ask("hub:send", {"to": A, "type": type})) == ("host", type)
    assert owner.take() == []


def part(peer: Peer, actor: str = ACTOR, host: str = A, count: int = 1) -> Message:
    """Send a part of a moving actor, or the news of its arrival."""
    data = {"v": 1, "move": "m", "actor": actor, "token": 2, "count": count, "body": ""}
    return peer.ask("hub:send", {"to": host, "type": "actors:move", "data": data})


def test_parts_of_an_actor_come_only_from_those_who_may_have_its_kind() -> None:
    shell, _, owner = hosted()
    stock = host(shell, B, "stock")
    restrict(stock, send=("*",), host=("stock",))

    assert action(part(stock)) == ("host", "order")
    assert action(part(stock, count=0)) == ("host", "order")
    # Nor does a host get parts of actors that it does not serve.
    assert code_of(part(stock, "stock/1")) == "no_host"
    assert code_of(part(stock, "stock/1", "@(h/nobody)")) == "no_host"
    broken = {"to": A, "type": "actors:move", "data": {"actor": 7}}
    assert code_of(stock.ask("hub:send", broken)) == "internal_error"
    assert owner.take() == []

    restrict(stock, send=("*",), host=("order",))
    restrict(owner, send=("*",), host=("order",))
    assert part(stock)["type"] == "hub:delivery_ack"
    assert part(owner, host=B, count=0)["type"] == "hub:delivery_ack"


def batch(peer: Peer, *ends: tuple[str | None, str], to: str = A) -> Message:
    """Send messages between actors, each from one to another; a caller outside is no actor."""
    messages = [
        {"kind": "request", "call": "c", "to": recipient, "body": {"from": "x/1", "to": "y/1"}}
        | ({} if sender is None else {"from": sender})
        for sender, recipient in ends
    ]
    data = {"v": 1, "messages": messages}
    return peer.ask("hub:send", {"to": to, "type": "actors:batch", "data": data})


def test_messages_of_actors_come_only_from_those_who_may_have_one_of_their_kinds() -> None:
    shell, _, owner = hosted()
    stock = host(shell, B, "stock")
    restrict(stock, send=("*",), host=("stock", "cart-*"))

    assert action(batch(stock, ("bill/1", ACTOR))) == ("host", "bill")
    assert action(batch(stock, ("stock/1", ACTOR), ("order/18", ACTOR))) == ("host", "order")
    assert action(batch(stock, ("@(a/caller)", ACTOR))) == ("host", "order")
    assert action(batch(stock, (None, ACTOR))) == ("host", "order")
    assert owner.take() == []

    # Its own, and those that it passes on because the recipient has moved.
    assert batch(stock, ("stock/1", ACTOR), ("cart-eu/1", ACTOR))["type"] == "hub:delivery_ack"
    passed_on = batch(stock, (ACTOR, "stock/1"), (None, "stock/2"), ("@(a/caller)", "stock/3"))
    assert passed_on["type"] == "hub:delivery_ack"
    assert batch(stock)["type"] == "hub:delivery_ack"
    assert [len(one["payload"]["messages"]) for one in owner.heard()] == [2, 3, 0]


@pytest.mark.parametrize(
    "data", [None, {}, [], {"messages": 7}, {"messages": [{}]}, {"messages": [{"to": 1}]}]
)
def test_a_batch_that_cannot_be_read_reaches_no_host(data: Any) -> None:
    shell, _, owner = hosted()
    stock = host(shell, B, "stock")
    restrict(stock, send=("*",), host=("*",))

    reply = stock.ask("hub:send", {"to": A, "type": "actors:batch", "data": data})

    assert code_of(reply) == "internal_error"
    assert owner.take() == []


def test_too_large_a_batch_is_refused_and_charged() -> None:
    shell, _, owner = hosted()
    stock = host(shell, B, "stock")
    restrict(stock, send=("*",), host=("stock",))
    message = ("stock/1", ACTOR)
    before = stock.session.bucket.tokens

    assert batch(stock, *[message] * 1_000)["type"] == "hub:delivery_ack"
    assert stock.session.bucket.tokens > before - 10
    assert code_of(batch(stock, *[message] * 1_001)) == "internal_error"
    assert stock.session.bucket.tokens < before - 100
    assert len(owner.heard()) == 1


def test_a_host_sends_marks_to_itself_alone() -> None:
    _, _, thief = two_hosts()
    restrict(thief, send=("*",), host=("order",))
    mark = {"type": "actors:mark", "data": {"move": "m"}}

    assert code_of(thief.ask("hub:send", mark | {"to": A})) == "internal_error"
    assert thief.ask("hub:send", mark | {"to": B})["type"] == "hub:delivery_ack"


def records(shell: MemoryShell) -> list[str]:
    """What the log says about operations."""
    return [
        decode_body(OperatedBody, one.body).over
        for one in shell.engine.entries
        if one.kind == Kind.OPERATED
    ]


@pytest.mark.parametrize("pattern", ["ask", "tell"])
@pytest.mark.parametrize("name", [*sorted(commands.LOOKS), "stats"])
def test_looking_at_a_host_needs_the_permission_and_leaves_no_record(
    name: str, pattern: str
) -> None:
    shell, caller, owner = hosted()
    command = {"to": A, "type": "actors:control", "data": {"id": "1", "name": name}}
    say = caller.ask if pattern == "ask" else caller.tell
    restrict(caller, send=("*",), control=("*",))

    say("hub:send", command)

    assert [one["type"] for one in owner.take()] == ["actors:control"]
    assert records(shell) == []
    restrict(caller, send=("*",), control=())
    say("hub:send", command)
    assert owner.take() == []


@pytest.mark.parametrize("name", [*sorted(set(commands.COMMANDS) - {"stats"}), "news", ""])
def test_every_other_command_is_recorded(name: str) -> None:
    shell, caller, owner = hosted()

    control(caller, name, actor=ACTOR, to=B)

    assert records(shell) == [A] * (2 if name == "purge" else 1)
    assert len(owner.take()) == 1


def test_hosts_are_looked_at_although_the_log_is_full() -> None:
    shell, caller, owner = hosted()
    shell.engine.is_full = True

    caller.tell("hub:send", {"to": A, "type": "actors:control", "data": {"name": "stats"}})
    caller.tell("hub:send", {"to": A, "type": "actors:control", "data": {"name": "redrive"}})

    assert [one["payload"] for one in owner.take()] == [{"name": "stats"}]


@pytest.mark.parametrize("is_restricted", [False, True])
def test_a_command_that_is_repeated_is_recorded_once(is_restricted: bool) -> None:
    shell, caller, owner = hosted()
    if is_restricted:
        restrict(caller, send=("*",), control=("*",))
    command = {"to": A, "type": "actors:control", "data": {"id": "1", "name": "redrive"}}

    for _ in range(2):
        reply = caller.ask("hub:send", command, id="once")
        assert reply["type"] == "hub:delivery_ack"

    assert reply["payload"]["duplicate"] is True
    assert records(shell) == [A]
    assert len(owner.take()) == 1
    again = shell.restarted()
    caller = again.connect("@(a/caller)")
    caller.ask("hub:send", command, id="once")
    assert records(again) == [A]


def test_a_command_that_reaches_nobody_is_not_recorded() -> None:
    shell, caller, _ = hosted()
    command = {"type": "actors:control", "data": {"id": "1", "name": "redrive"}}

    caller.tell("hub:send", command | {"to": "@(h/nobody)"})
    caller.ask("hub:send", command | {"to": "@(h/nobody)"})
    caller.tell("hub:send", command | {"to": A}, timestamp=shell.clock.now_ms() - 9_000, ttl=1)
    caller.tell("hub:send", command | {"to": A, "fences": {ACTOR: 9}})

    assert records(shell) == []


def test_nobody_shouts_commands_to_all_hosts_without_authentication_either() -> None:
    shell, caller, owner = hosted()

    reply = caller.ask("hub:broadcast", {"type": "actors:control", "data": {"name": "actors"}})

    assert code_of(reply) == "internal_error"
    assert "one host at a time" in reply["payload"]["message"]
    assert owner.take() == []
    assert records(shell) == []


@pytest.mark.parametrize("type", ["actors:batch", "actors:move", "actors:mark"])
def test_nobody_shouts_to_all_hosts_what_they_would_believe(type: str) -> None:
    _, caller, owner = hosted()
    restrict(caller, broadcast=("*",), host=("*",))

    reply = caller.ask("hub:broadcast", {"type": type}, metadata={"targetCapability": "actor-host"})

    assert action(reply) == ("host", type)
    assert owner.take() == []


@pytest.mark.parametrize("type", ["actors:control", "actors:move", "actors:batch", "actors:call"])
def test_no_command_reaches_a_host_as_the_copy_of_an_old_message(type: str) -> None:
    _, caller, owner = hosted()
    restrict(caller, send=("*",), admin=("republish",))
    command = {"name": "move", "arguments": {"actor": ACTOR, "to": B}}
    copy = {"epoch": 1, "offset": 1, "id": "o", "type": type, "data": command}
    job = {"job": "j", "until": {"epoch": 1, "offset": 9}, "to": {"actor": A}}

    reply = caller.ask("hub:republish", job | {"messages": [copy]})

    assert code_of(reply) == "internal_error"
    assert type in reply["payload"]["message"]
    assert owner.take() == []


def test_a_purge_on_a_host_needs_delete_as_well() -> None:
    _, caller, owner = hosted()
    restrict(caller, send=("*",), control=("*",), create=("*",))

    assert action(control(caller, "purge", actor=ACTOR, id="1")) == ("delete", A)
    assert owner.take() == []

    restrict(caller, send=("*",), control=("*",), delete=("h/*",))
    assert control(caller, "purge", actor=ACTOR, id="1")["type"] == "hub:delivery_ack"


def test_an_actor_moves_only_to_a_host_that_may_have_its_kind() -> None:
    shell, first, second = two_hosts()
    operator = shell.connect("@(a/operator)")
    restrict(operator, send=("*",), control=("*",))
    restrict(second, host=("stock",))

    assert action(control(operator, "move", actor=ACTOR, to=B)) == ("host", "order")
    assert first.take() == []
    assert action(move(first)) == ("host", "order")
    assert where(shell) == (A, 1)

    restrict(second, host=("order",))
    assert control(operator, "move", actor=ACTOR, to=B)["type"] == "hub:delivery_ack"
    assert move(first)["type"] == "hub:moved"


def test_an_actor_moves_to_no_host_that_is_away_because_nobody_knows_what_it_may() -> None:
    shell, first, second = two_hosts()
    operator = shell.connect("@(a/operator)")
    restrict(operator, send=("*",), control=("*",))
    restrict(first, host=("order",))
    second.drop()

    assert code_of(control(operator, "move", actor=ACTOR, to=B)) == "no_host"
    assert first.take() == []
    assert code_of(move(first)) == "no_host"
    again = shell.restarted()
    first = host(again)
    restrict(first, host=("order",))
    assert code_of(move(first)) == "no_host"
    assert where(again) == (A, 1)


@pytest.mark.parametrize("capabilities", [[], ["actor-host", "actor:stock"]])
@pytest.mark.parametrize("durable", [True, None, False])
def test_what_was_moved_to_a_host_arrives_only_where_its_kind_is_permitted(
    capabilities: list[str], durable: bool | None
) -> None:
    shell, first, second = two_hosts()
    assert move(first)["type"] == "hub:moved"
    assert send(first, to=B)["type"] == "hub:delivery_ack"
    second.drop()
    thief = shell.connect(B, metadata=SETTLING_HELLO)
    restrict(thief, register=("*",), host=("stock",))

    reply = thief.register(capabilities=capabilities, durable=durable)

    assert action(reply) == ("host", "order")
    assert thief.heard() == []
    restrict(thief, register=("*",), host=("order",))
    assert register(thief, "order")["payload"]["waiting"] == 1


def test_a_host_whose_new_token_forbids_a_kind_it_has_gets_nothing_more() -> None:
    shell = guarded()
    peer = admitted(shell, "h/a", {"host": ["order", "stock"]})
    assert register(peer, "order")["type"] == "hub:registered"
    assert place(peer, ACTOR, host=A) == {ACTOR: (A, 1)}
    assert register(peer, "stock")["type"] == "hub:registered"

    narrowed = token(shell, "h/a", {"host": ["stock"]})
    peer.hello(A, metadata=HELLO | {"authToken": narrowed})

    assert not peer.session.registrations


def test_an_actor_moves_to_no_address_that_is_not_a_host() -> None:
    shell, first, _ = two_hosts()
    thief = shell.connect("@(a/thief)")
    restrict(thief, send=("*",), control=("*",))

    assert code_of(control(thief, "move", actor=ACTOR, to="@(a/thief)")) == "no_host"
    assert first.take() == []


def test_a_session_sees_whom_it_may_discover_and_itself() -> None:
    shell = MemoryShell()
    shell.connect("@(shop/till)").register()
    shell.connect("@(office/desk)").register(durable=True)
    away = shell.connect("@(office/away)")
    away.register(durable=True)
    away.drop()
    me = shell.connect("@(me/me)")
    me.register()

    def seen() -> tuple[list[str], list[str], int]:
        found = me.ask("hub:discover", {"pattern": "*", "includeAway": True})["payload"]
        page = me.ask("hub:list_actors")["payload"]
        return (
            sorted(one["address"] for one in found["actors"]),
            sorted(one["actorAddress"] for one in page["actors"]),
            page["total"],
        )

    restrict(me, send=("shop/*",))
    assert seen() == (["@(me/me)", "@(shop/till)"], ["@(me/me)", "@(shop/till)"], 2)
    restrict(me, send=("shop/*",), discover=())
    assert seen() == (["@(me/me)"], ["@(me/me)"], 1)
    restrict(me, discover=("*",))
    assert len(seen()[0]) == 4
    assert seen()[2] == 3


@pytest.mark.parametrize(
    "address", ["@(cloudflare/signal-hub)", "@(unknown/unknown)", "@(hub/admin.0)"]
)
def test_the_addresses_of_the_hub_are_nobodys(address: str) -> None:
    shell = MemoryShell()
    peer = shell.connect("@(me/me)")
    restrict(peer, send=("*",), register=("*",))

    assert code_of(peer.ask("hub:register", {"actorAddress": address})) == "internal_error"
    reply = peer.ask("hub:send", {"to": "@(me/me)", "type": "x"}, **{"from": address})
    assert code_of(reply) == "unauthorized"


@pytest.mark.parametrize(
    "address", ["@(cloudflare/signal-hub)", "@(unknown/unknown)", "@(hub/admin.0)"]
)
def test_nobody_connects_as_the_hub(address: str) -> None:
    """A record of operations would name the hub as the operator."""
    peer = MemoryShell().open()

    assert code_of(peer.hello(address)) == "unauthorized"
    assert peer.session.identity is None
    assert peer.hello("@(me/me)")["type"] == "hub:connected"


def test_a_host_can_still_be_registered_without_authentication() -> None:
    shell = MemoryShell()

    assert host(shell, A).session.registrations
