"""Section 3: what an address looks like and how addresses are compared."""

from __future__ import annotations

import pytest

from tests.support.socket.peer import HUB
from tests.support.socket.stage import InProcess, addresses, code_of


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


LOOSE = [
    "@(local/a)",
    "@(Local/Upper)",
    "@(a.b/c.d)",
    "@(several/slashes/in/it)",
    "@(noslash)",
    "@(with space/x)",
    "@(grüße/ß)",
    '@(quo"te/back\\slash)',
    "@(x)",
    "@(brackets(inside)/x)",
]


@pytest.mark.parametrize("address", LOOSE)
async def test_3_1_loose_address_can_be_registered_and_reached(
    stage: InProcess, address: str
) -> None:
    target, sender = await stage.join(address), await stage.connect()

    reply = await sender.ask_actor(address, "note", 1)

    assert reply["type"] == "hub:delivery_ack"
    assert (await target.receive("note"))["to"] == address


@pytest.mark.parametrize("address", LOOSE)
async def test_3_1_loose_address_may_be_the_sender(stage: InProcess, address: str) -> None:
    target, sender = await stage.join("@(local/b)"), await stage.connect()

    sender.tell("@(local/b)", "note", 1, sender=address)

    assert (await target.receive("note"))["from"] == address


@pytest.mark.parametrize(
    "address",
    ["", "word", "@()", "@(", "@(a", "(a/b)", "local://a", "@(a/b) ", " @(a/b)", "@(a/\n)"],
)
async def test_3_1_register_refuses_what_is_no_address(stage: InProcess, address: str) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:register", {"actorAddress": address, "capabilities": ["x"]})

    assert code_of(reply) == "internal_error"
    assert await addresses(peer) == []


@pytest.mark.parametrize(
    "target", ["not-a-valid-address", "runtime:fake/actor-999", "@(", "local://x", "🦉", "*"]
)
async def test_3_1_odd_target_is_an_unknown_actor_and_no_reason_to_disconnect(
    stage: InProcess, target: str
) -> None:
    peer = await stage.connect()

    reply = await peer.ask_actor(target, "note")
    peer.tell(target, "note")

    assert reply["type"] == "hub:unknown_actor"
    assert reply["payload"]["actorAddress"] == target
    await peer.nothing_more()


async def test_3_1_addresses_are_compared_exactly(stage: InProcess) -> None:
    await stage.join("@(local/a)")
    sender = await stage.connect()

    for other in ("@(local/A)", "@(LOCAL/a)", "@(local/a )", "local/a", "@(local//a)"):
        reply = await sender.ask_actor(other, "note")
        assert reply["type"] == "hub:unknown_actor", other


async def test_3_2_hub_address_is_the_sender_of_replies_and_the_via_of_copies(
    stage: InProcess,
) -> None:
    target, sender = await stage.join("@(local/b)"), await stage.connect()

    reply = await sender.ask_actor("@(local/b)", "note")

    assert reply["from"] == HUB == "@(cloudflare/signal-hub)"
    assert (await target.receive())["metadata"]["via"] == HUB


async def test_3_2_hub_does_not_inspect_to_of_its_own_messages(stage: InProcess) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:queue_stats", to="@(anything/else)")

    assert reply["type"] == "hub:queue_stats_response"


@pytest.mark.parametrize("scope", ["browser", "local", "seag", "cloudflare", "admin", "whatever"])
async def test_3_2_scopes_mean_nothing_to_the_hub(stage: InProcess, scope: str) -> None:
    target, sender = await stage.join(f"@({scope}/b)"), await stage.connect()

    assert (await sender.ask_actor(f"@({scope}/b)", "note"))["type"] == "hub:delivery_ack"
    await target.receive("note")
