"""Section 3: what an address looks like and how addresses are compared."""

from __future__ import annotations

import pytest

from tests.support.peer import HUB, code_of
from tests.support.stage import Stage, addresses

LONGEST = "@(" + "x" * 253 + ")"


@pytest.mark.parametrize(
    "address",
    [
        *("@(local/a)", "@(Local/Upper)", "@(a.b/c.d)", "@(several/slashes/in/it)", "@(noslash)"),
        *("@(with space/x)", "@(grüße/ß)", '@(quo"te/back\\slash)', "@(x)"),
        *("@(brackets(inside)/x)", LONGEST),
        # Scopes mean nothing to the hub.
        *("@(browser/b)", "@(seag/b)", "@(cloudflare/b)", "@(admin/b)"),
    ],
    ids=lambda address: address[:20],
)
async def test_3_1_loose_address_can_be_registered_reached_and_the_sender(
    stage: Stage, address: str
) -> None:
    target, sender = await stage.join(address), await stage.connect()

    reply = await sender.ask_actor(address, "note", 1, sender=address)

    assert (reply["type"], reply["from"], reply["to"]) == ("hub:delivery_ack", HUB, address)
    heard = await target.receive("note")
    assert (heard["from"], heard["to"], heard["metadata"]["via"]) == (address, address, HUB)
    assert await addresses(sender) == [address]


@pytest.mark.parametrize("address", [HUB, "@(unknown/unknown)", "@(hub/admin.0)"])
async def test_r51_nobody_speaks_as_the_hub_or_as_nobody(stage: Stage, address: str) -> None:
    target, sender = await stage.join("@(local/a)"), await stage.connect()

    for type, payload in (
        ("hub:send", {"to": "@(local/a)", "type": "note", "data": 1}),
        ("hub:publish", {"topic": "t", "type": "note", "data": 1}),
        ("hub:broadcast", {"type": "note", "data": 1}),
    ):
        message_id = sender.send(type, payload, sender=address)
        assert code_of(await sender.reply_to(message_id)) == "unauthorized"
    await target.nothing_more()


async def test_3_1_register_refuses_what_is_no_address(stage: Stage) -> None:
    peer = await stage.connect()

    for address in (
        *("", "word", "@()", "@(", "@(a", "(a/b)", "local://a", "@(a/b) ", " @(a/b)", "@(a/\n)"),
        *("@(x" + LONGEST[2:], HUB),
    ):
        reply = await peer.ask("hub:register", {"actorAddress": address, "capabilities": ["x"]})
        assert code_of(reply) == "internal_error", address
    assert await addresses(peer) == []


@pytest.mark.parametrize(
    "target",
    [
        *("not-a-valid-address", "runtime:fake/actor-999", "@(", "local://x", "🦉", "*", "x" * 256),
        # Addresses are compared exactly.
        *("@(local/A)", "@(LOCAL/a)", "@(local/a )", "local/a", "@(local//a)", HUB),
    ],
    ids=lambda target: target[:20],
)
async def test_3_1_odd_target_is_an_unknown_actor_and_no_reason_to_disconnect(
    stage: Stage, target: str
) -> None:
    owner, peer = await stage.join("@(local/a)"), await stage.connect()

    reply = await peer.ask_actor(target, "note")
    peer.tell(target, "note")

    assert reply["type"] == "hub:unknown_actor"
    assert reply["payload"]["actorAddress"] == target
    await peer.nothing_more()
    await owner.nothing_more()
