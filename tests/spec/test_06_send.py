"""Section 6.10: one message from one actor to another."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import HUB, read_envelope
from tests.support.socket.stage import InProcess, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


DATA: list[Any] = [
    None,
    True,
    0,
    -1.5,
    "",
    "text",
    "grüße 🦉 \u2028",
    [],
    {},
    [1, [2, [3, None]]],
    {"nested": {"a": [1, {"b": None}], "": "empty key"}},
    {"to": "x", "type": "hub:send", "data": {"type": "ping"}},
]


async def test_6_10_copy_is_flat_and_complete() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        sender, target = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        clock.advance(2)

        message_id = sender.tell(
            "@(local/b)", "chart:draw", {"points": [3, 5]}, metadata={"traceId": "t-9"}, ttl=10_000
        )
        heard = await target.receive()

    assert uuid.UUID(heard["id"]).version == 4
    assert heard["id"] != message_id
    assert heard["from"] == "@(local/a)"
    assert heard["to"] == "@(local/b)"
    assert heard["type"] == "chart:draw"
    assert heard["payload"] == {"points": [3, 5]}
    assert heard["pattern"] == "tell"
    assert heard["correlationId"] is None
    assert heard["timestamp"] == clock.now_ms()
    assert heard["metadata"] == {
        "traceId": "t-9",
        "forwarded": True,
        "via": HUB,
        "originalMessageId": message_id,
    }
    assert heard["ttl"] == 10_000
    assert heard["signature"] is None


@pytest.mark.parametrize("pattern", ["tell", "ask"])
@pytest.mark.parametrize("correlation_id", [None, "an-earlier-id"])
async def test_6_10_copy_of_either_pattern_is_a_tell_without_correlation(
    stage: InProcess, pattern: str, correlation_id: str | None
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", 1, pattern=pattern, correlationId=correlation_id)

    heard = await target.receive("note")
    assert heard["pattern"] == "tell"
    assert heard["correlationId"] is None


@pytest.mark.parametrize("data", DATA, ids=json.dumps)
async def test_6_10_data_arrives_as_it_was(stage: InProcess, data: Any) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", data)

    heard = await target.receive("note")
    assert heard["payload"] == data
    assert type(heard["payload"]) is type(data)


async def test_6_10_missing_data_becomes_null(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.send("hub:send", {"to": "@(local/b)", "type": "note"})

    assert (await target.receive("note"))["payload"] is None


@pytest.mark.parametrize("ttl", [None, 0])
async def test_6_10_lifetime_of_zero_is_none(stage: InProcess, ttl: int | None) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", 1, ttl=ttl, timestamp=stage.clock.now_ms() - 50)

    assert (await target.receive("note"))["ttl"] is None


async def test_6_10_signature_is_not_passed_on(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", 1, signature="c2lnbmF0dXJl")

    # The peer itself checks that every signature from the hub is null.
    await target.receive("note")


async def test_6_10_custom_metadata_survives_and_the_hubs_overrides(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    custom = {"priority": 1, "nested": {"via": "mine", "a": [1]}, "grüße": "🦉", "n": None}
    forged = {"via": "@(evil/hub)", "forwarded": False, "originalMessageId": "other"}

    message_id = sender.tell("@(local/b)", "note", 1, metadata=custom | forged)

    text = await target.receive_text()
    assert read_envelope(text)["metadata"] == custom | {
        "forwarded": True,
        "via": HUB,
        "originalMessageId": message_id,
    }
    # Readers that take the first of two equal names must not be deceived either.
    assert "evil" not in text


async def test_6_10_hubs_metadata_wins_over_members_spelled_with_escapes(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    message = sender.envelope("hub:send", {"to": "@(local/b)", "type": "note"}, metadata="HERE")
    forged = '{"\\u0076ia":"@(evil/hub)","forwarde\\u0064":false}'

    sender.send_text(json.dumps(message).replace('"HERE"', forged))

    heard = await target.receive("note")
    assert heard["metadata"]["via"] == HUB
    assert heard["metadata"]["forwarded"] is True


@pytest.mark.parametrize("to", [..., "", None])
async def test_6_10_target_falls_back_to_the_envelopes_to(stage: InProcess, to: Any) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    payload = {"type": "note", "data": 1} | ({} if to is ... else {"to": to})

    sender.send("hub:send", payload, to="@(local/b)")

    assert (await target.receive("note"))["to"] == "@(local/b)"


async def test_6_10_target_in_the_payload_wins_over_the_envelopes_to(stage: InProcess) -> None:
    sender = await stage.connect()
    target, other = await stage.join("@(local/b)"), await stage.join("@(local/c)")

    sender.tell("@(local/b)", "note", 1, to="@(local/c)")

    await target.receive("note")
    await other.nothing_more()


async def test_6_10_ask_is_acknowledged_with_id_time_and_status() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        sender, target = await stage.connect(), await stage.join("@(local/b)")

        reply = await sender.ask_actor("@(local/b)", "note", 1, id="ask-1")

        assert reply["type"] == "hub:delivery_ack"
        assert reply["payload"] == {
            "messageId": "ask-1",
            "deliveredAt": clock.now_ms(),
            "status": "delivered",
            "durability": "fsync",
        }
        assert reply["metadata"] == {}
        await target.receive("note")


async def test_6_10_tell_is_answered_with_silence(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", 1)

    await target.receive("note")
    await sender.nothing_more()


async def test_6_10_message_to_oneself_comes_before_its_acknowledgement(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    message_id = peer.tell("@(local/a)", "note", 1, pattern="ask")

    assert (await peer.receive())["type"] == "note"
    ack = await peer.receive("hub:delivery_ack")
    assert ack["correlationId"] == message_id


async def test_6_10_ask_to_an_unknown_actor_says_not_registered(stage: InProcess) -> None:
    sender = await stage.connect()

    reply = await sender.ask_actor("@(browser/gone)", "note", 1)

    assert reply["type"] == "hub:unknown_actor"
    assert reply["payload"]["actorAddress"] == "@(browser/gone)"
    assert "not registered" in reply["payload"]["message"]
    assert reply["payload"]["code"] == "unknown_actor"
    assert reply["payload"]["retryable"] is False
    assert reply["payload"]["resolution"]


async def test_6_10_tell_to_an_unknown_actor_is_answered_with_silence(stage: InProcess) -> None:
    sender = await stage.connect()

    sender.tell("@(browser/gone)", "note", 1)

    await sender.nothing_more()


async def test_6_10_identity_without_a_registration_is_no_target(stage: InProcess) -> None:
    sender, other = await stage.connect(), await stage.connect("@(local/only-connected)")

    reply = await sender.ask_actor("@(local/only-connected)", "note")

    assert reply["type"] == "hub:unknown_actor"
    await other.nothing_more()


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "text",
        7,
        {},
        {"to": "@(local/b)"},
        {"to": "@(local/b)", "data": 1},
        {"to": "@(local/b)", "type": None},
        {"to": "@(local/b)", "type": 7},
        {"to": "@(local/b)", "type": ""},
        {"to": "@(local/b)", "type": "x" * 1000},
        {"to": 7, "type": "note"},
        {"to": ["@(local/b)"], "type": "note"},
    ],
    ids=lambda payload: json.dumps(payload)[:40],
)
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_6_10_structural_error_is_answered_for_both_patterns(
    stage: InProcess, payload: object, pattern: str
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    reply = await sender.ask("hub:send", payload, pattern=pattern)

    assert code_of(reply) == "internal_error"
    await target.nothing_more()


@pytest.mark.parametrize("type", ["hub:disconnect", "hub:connected", "hub:", "hub:anything"])
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_6_10_types_of_the_hub_cannot_be_forged(
    stage: InProcess, type: str, pattern: str
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    payload = {"to": "@(local/b)", "type": type, "data": {"reason": "forged"}}

    assert code_of(await sender.ask("hub:send", payload, pattern=pattern)) == "internal_error"

    await target.nothing_more()


@pytest.mark.parametrize("type", ["hubble", "HUB:x", "Hub:x", " hub:x", "x:hub:y"])
async def test_6_10_types_that_only_look_like_the_hubs_are_forwarded(
    stage: InProcess, type: str
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", type, 1)

    assert (await target.receive())["type"] == type


async def test_6_10_application_answers_are_sends_the_other_way(stage: InProcess) -> None:
    client, server = await stage.join("@(local/client)"), await stage.join("@(local/server)")

    client.tell("@(local/server)", "sum:ask", [1, 2])
    question = await server.receive("sum:ask")
    server.tell(question["from"], "sum:answer", sum(question["payload"]))

    assert (await client.receive("sum:answer"))["payload"] == 3


async def test_6_10_metadata_without_effect_has_none(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", 1, metadata={"requireAck": True, "priority": 9})

    heard = await target.receive("note")
    assert heard["metadata"]["requireAck"] is True
    await sender.nothing_more()
