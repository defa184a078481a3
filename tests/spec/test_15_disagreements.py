"""Section 15: where the sources disagree, the "Do" column is what the hub does.

Ruled otherwise since: D5 (the interval is 100 000 ms), D37 (lifetimes are enforced) and D38
(repeats are recognised). D30, D31 and D39 are tested with their sections.
"""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


async def test_d2_hello_is_read_from_the_metadata_alone(stage: InProcess) -> None:
    peer = await stage.dial()
    payload = {"protocolVersion": "0.1.0", "capabilities": ["send"], "version": "1.0"}

    assert (await peer.ask("hub:connect", payload))["type"] == "hub:error"


async def test_d3_additions_to_connected_take_nothing_away(stage: InProcess) -> None:
    peer = await stage.dial()

    payload = (await peer.connect())["payload"]

    assert {
        "sessionId",
        "serverVersion",
        "maxMessageSize",
        "heartbeatInterval",
        "capabilities",
    } <= set(payload)
    assert isinstance(payload["capabilities"], dict)


async def test_d7_there_is_no_idle_timeout() -> None:
    clock = FakeClock()
    async with run_stage(clock, hello_s=0.3) as stage:
        peer = await stage.connect()
        clock.advance(86_400)
        await (await stage.dial()).until_closed()

        await peer.nothing_more()


async def test_d8_goodbye_is_answered_with_disconnect(stage: InProcess) -> None:
    peer = await stage.dial()
    session_id = (await peer.connect())["payload"]["sessionId"]

    reply = await peer.ask("hub:disconnect")

    assert reply["type"] == "hub:disconnect"
    assert reply["payload"]["acknowledged"] is True
    assert reply["payload"].get("sessionId", session_id) == session_id


async def test_d9_failed_hello_keeps_the_socket_open(stage: InProcess) -> None:
    peer = await stage.dial()
    await peer.connect(capabilities=[])

    assert (await peer.connect())["type"] == "hub:connected"


async def test_d10_duplicates_are_found_on_register_and_not_on_connect(stage: InProcess) -> None:
    first, second = await stage.connect("@(local/a)"), await stage.connect("@(local/a)")
    await first.nothing_more()

    await second.register("@(local/a)")

    assert (await first.receive("hub:disconnect"))["payload"]["reason"] == "duplicate_connection"


async def test_d11_last_registration_wins(stage: InProcess) -> None:
    await stage.join("@(local/a)")

    last = await stage.join("@(local/a)")

    assert (await last.ask_actor("@(local/a)", "x"))["type"] == "hub:delivery_ack"
    await last.receive("x")


async def test_d15_only_ttl_seconds_sets_the_lease() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.connect()

        reply = await peer.register("@(local/a)", ttl=1000)

        assert reply["payload"]["expiresAt"] == clock.now_ms() + 300_000


async def test_d18_renewed_has_the_documented_members(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    reply = await peer.ask("hub:renew")

    assert {"expiresAt", "renewalToken"} <= set(reply["payload"])


async def test_d19_unregister_and_unsubscribe_are_silent_as_tells(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "news"})

    peer.send("hub:unsubscribe", {"topic": "news"})
    peer.send("hub:unregister", {"actorAddress": "@(local/a)"})

    await peer.nothing_more()


async def test_d20_d21_discovery_and_list_have_their_own_replies(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    assert (await peer.ask("hub:discover", {"pattern": "*"}))["type"] == "hub:discovered"
    listed = await peer.ask("hub:list_actors", {})
    assert listed["type"] == "hub:actor_list"
    assert "renewalToken" not in str(listed)


async def test_d22_older_form_of_send_is_a_structural_error(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    payload = {"targetAddress": "@(local/a)", "message": {"type": "x", "payload": 1}}

    assert code_of(await peer.ask("hub:send", payload)) == "internal_error"


async def test_d24_delivery_ack_has_the_documented_members(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    reply = await peer.ask_actor("@(local/a)", "x")

    assert {"messageId", "deliveredAt", "status"} <= set(reply["payload"])


async def test_d25_unknown_target_is_told_to_an_ask_and_not_to_a_tell(stage: InProcess) -> None:
    peer = await stage.connect()

    assert (await peer.ask_actor("@(no/body)", "x"))["type"] == "hub:unknown_actor"
    peer.tell("@(no/body)", "x")
    await peer.nothing_more()


async def test_d26_structural_errors_of_tells_are_returned(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.send("hub:send", {"to": "@(no/body)"})

    assert code_of(await peer.receive()) == "internal_error"


async def test_d27_require_ack_does_not_make_an_ask(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    peer.tell("@(local/a)", "x", metadata={"requireAck": True})

    await peer.receive("x")
    await peer.nothing_more()


async def test_d28_copy_of_a_broadcast_is_addressed_to_its_recipient(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    reply = await peer.ask("hub:broadcast", {"type": "x"})

    copy = await peer.receive("x")
    assert copy["to"] == "@(local/a)"
    assert "forwarded" not in copy["metadata"]
    assert reply["type"] == "hub:broadcast_ack"
    assert reply["payload"]["queuedCount"] == 0


async def test_d29_subscriber_sees_the_application_type(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "news"})

    reply = await peer.ask("hub:publish", {"topic": "news", "type": "price:new"})

    assert (await peer.receive())["type"] == "price:new"
    assert reply["type"] == "hub:published"


async def test_d33_errors_carry_resolution_and_retryable(stage: InProcess) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:nonsense")

    assert reply["payload"]["resolution"]
    assert reply["payload"]["retryable"] is False


@pytest.mark.parametrize("address", ["@(Upper/Case)", "@(a/b/c)", "@(no-slash)"])
async def test_d42_addresses_are_loose(stage: InProcess, address: str) -> None:
    await stage.join(address)

    assert await addresses(await stage.connect()) == [address]


async def test_d43_via_in_the_metadata_does_not_route(stage: InProcess) -> None:
    peer, target = await stage.connect(), await stage.join("@(local/b)")

    reply = await peer.ask(
        "chart:draw", {"points": []}, to="@(local/b)", metadata={"via": "@(cloudflare/signal-hub)"}
    )

    assert code_of(reply) == "internal_error"
    await target.nothing_more()


async def test_d46_heartbeat_renews_the_registrations() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer, other = await stage.join("@(local/a)"), await stage.connect()
        clock.advance(299)
        await peer.ask("hub:heartbeat")
        clock.advance(299)

        assert await addresses(other) == ["@(local/a)"]


async def test_d47_broadcaster_hears_itself_by_default(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    await peer.ask("hub:broadcast", {"type": "x"})

    assert (await peer.receive("x"))["from"] == "@(local/a)"
