"""Section 6.10: one message from one actor to another."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import HUB, code_of
from tests.support.stage import Stage

# Everything a codec that decodes and encodes again would change.
RAW = (
    '{ "b":1.0,"a" : 1e2, "big":123456789012345678901234567890,"neg":-0.0,"dup":1,"dup":2,'
    '"huge":1e999,"esc":"\\u0041\\/\\ud83e\\udd89","deep":[[[[ ]]]] }'
)


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("pattern", ["tell", "ask"])
@pytest.mark.parametrize("correlation_id", [None, "an-earlier-id"])
async def test_6_10_copy_is_flat_and_complete(
    timed: Stage, clock: FakeClock, pattern: str, correlation_id: str | None
) -> None:
    sender, target = await timed.join("@(local/a)"), await timed.join("@(local/b)")
    clock.advance(2)

    message_id = sender.tell(
        "@(local/b)",
        "chart:draw",
        {"points": [3, 5]},
        metadata={"traceId": "t-9"},
        ttl=10_000,
        pattern=pattern,
        correlationId=correlation_id,
        signature="c2lnbmF0dXJl",
    )

    heard = dict(await target.receive())
    copy_id = str(heard.pop("id"))
    assert uuid.UUID(copy_id).version == 4
    assert copy_id != message_id
    assert heard == {
        "from": "@(local/a)",
        "to": "@(local/b)",
        "type": "chart:draw",
        "payload": {"points": [3, 5]},
        "pattern": "tell",
        "correlationId": None,
        "timestamp": clock.now_ms(),
        "metadata": {
            "traceId": "t-9",
            "forwarded": True,
            "via": HUB,
            "originalMessageId": message_id,
        },
        "ttl": 10_000,
        "signature": None,
    }


DATA: list[Any] = [
    *(None, True, False, 0, 1.0, -1.5, "", "text", 'grüße 🦉 \u2028 " \\ \n', [], {}),
    [1, [2, [3, None]]],
    {"nested": {"a": [1, {"b": None}], "": "empty key"}},
    {"to": "x", "type": "hub:send", "data": {"type": "ping"}},
    "x" * 10_240,
]


async def test_6_10_data_arrives_as_it_was(stage: Stage) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    for data in DATA:
        sender.tell("@(local/b)", "note", data)
        assert repr((await target.receive("note"))["payload"]) == repr(data)
    sender.send("hub:send", {"to": "@(local/b)", "type": "note"})
    assert (await target.receive("note"))["payload"] is None
    # Types that only look like the hub's are forwarded too.
    for type in ("hubble", "HUB:x", "Hub:x", " hub:x", "x:hub:y"):
        sender.tell("@(local/b)", type, 1)
        assert (await target.receive())["type"] == type


@pytest.mark.also_over_sockets
@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:send", '{"to":"@(local/b)","type":"x","data":RAW}'),
        ("hub:publish", '{"topic":"news","type":"x","data":RAW}'),
        ("hub:broadcast", '{"type":"x","excludeSelf":true,"data":RAW}'),
    ],
)
async def test_r1_data_and_metadata_are_passed_through_byte_by_byte(
    stage: Stage, type: str, payload: str
) -> None:
    sender, target = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await target.ask("hub:subscribe", {"topic": "news"})
    message = json.dumps(sender.envelope(type, "PAYLOAD", metadata="METADATA"))
    message = message.replace('"METADATA"', RAW).replace('"PAYLOAD"', payload)

    sender.send_text(message.replace("RAW", RAW))

    copy = await target.receive_text()
    assert f'"payload":{RAW},' in copy
    # Only a send passes metadata on.
    assert copy.count(RAW.strip("{ }")) == (2 if type == "hub:send" else 1)


async def test_6_10_lifetime_of_zero_is_none(stage: Stage) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    for ttl, seen in ((None, None), (0, None), (5_000, 5_000), (1_000.5, 1_000.5)):
        sender.tell("@(local/b)", "note", 1, ttl=ttl)
        assert (await target.receive("note"))["ttl"] == seen


@pytest.mark.parametrize(
    "written",
    [
        '{"via":"@(evil/hub)","forwarded":false,"originalMessageId":"evil"}',
        '{"\\u0076ia":"@(odd/hub)","forwarde\\u0064":false}',
        '{"via":1,"n":1.5,"nested":{"via":"mine","a":[1]},"grüße":"🦉","none":null}',
        '{"via":1,"huge":1e999}',
        '{"priority":1,"n":null}',
    ],
    ids=["all three", "escapes", "others too", "number out of range", "only others"],
)
async def test_6_10_custom_metadata_survives_and_the_hubs_overrides(
    stage: Stage, written: str
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    message = sender.envelope("hub:send", {"to": "@(local/b)", "type": "note"}, metadata="HERE")
    hubs = {"forwarded": True, "via": HUB, "originalMessageId": message["id"]}

    sender.send_text(json.dumps(message).replace('"HERE"', written))

    text = await target.receive_text()
    assert json.loads(text)["metadata"] == json.loads(written) | hubs
    assert ("1e999" in text) is ("1e999" in written)
    # Readers that take the first of two equal names must not be deceived either.
    assert "evil" not in text


async def test_6_10_target_is_that_of_the_payload_or_else_the_envelopes(stage: Stage) -> None:
    sender = await stage.connect()
    target, other = await stage.join("@(local/b)"), await stage.join("@(local/c)")

    for payload in ({}, {"to": ""}, {"to": None}):
        sender.send("hub:send", {"type": "note"} | payload, to="@(local/b)")
        assert (await target.receive("note"))["to"] == "@(local/b)"
    sender.tell("@(local/b)", "note", 1, to="@(local/c)")

    await target.receive("note")
    await other.nothing_more()


@pytest.mark.also_over_sockets
async def test_6_10_ask_is_acknowledged_behind_its_copy_and_a_tell_is_not(
    timed: Stage, clock: FakeClock
) -> None:
    peer = await timed.join("@(local/a)")

    peer.tell("@(local/a)", "note", 1, metadata={"requireAck": True, "priority": 9})
    peer.tell("@(local/a)", "question", 1, id="ask-1", pattern="ask")

    assert (await peer.receive("note"))["metadata"]["requireAck"] is True
    await peer.receive("question")
    ack = await peer.receive("hub:delivery_ack")
    assert (ack["correlationId"], ack["metadata"]) == ("ask-1", {})
    # Ruling 5: without a mailbox there is no position.
    assert ack["payload"] == {
        "messageId": "ask-1",
        "deliveredAt": clock.now_ms(),
        "status": "delivered",
        "durability": "fsync",
    }
    await peer.nothing_more()


@pytest.mark.also_over_sockets
async def test_6_10_unknown_target_is_told_to_an_ask_and_not_to_a_tell(stage: Stage) -> None:
    sender, other = await stage.connect(), await stage.connect("@(local/only-connected)")

    for target in ("@(browser/gone)", "@(local/only-connected)"):
        sender.tell(target, "note")
        reply = await sender.ask_actor(target, "note")
        assert reply["type"] == "hub:unknown_actor"
        payload = reply["payload"]
        assert payload["actorAddress"] == target
        assert "not registered" in payload["message"]
        assert (payload["code"], payload["retryable"]) == ("unknown_actor", False)
        assert payload["resolution"]
    await sender.nothing_more()
    await other.nothing_more()


# Everything that says of a copy where it comes from, some of it in another spelling.
DISGUISE = (
    '{"topic":"orders","publication":true,"replay":true,"broadcast":true,"key":"k",'
    '"deli\\u0076ery":{"subscription":"billing","epoch":"1.1","seq":5,"id":"1.1.5.1"},'
    '"deadLetter":{"topic":"orders"},"origina\\u006c":{"job":"j"},"redriven":{"seq":5}}'
)


@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_a_message_to_an_actor_never_passes_for_one_of_a_topic(
    stage: Stage, pattern: str
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    written = {"to": "@(local/b)", "type": "note", "data": 1}

    message = sender.envelope("hub:send", written, pattern=pattern, metadata="DISGUISE")
    sender.send_text(json.dumps(message).replace('"DISGUISE"', DISGUISE))

    heard = await target.receive("note")
    assert heard["metadata"] == {
        "topic": "orders",
        "key": "k",
        "forwarded": True,
        "via": HUB,
        "originalMessageId": message["id"],
    }


TO_B: dict[str, Any] = {"to": "@(local/b)"}


async def test_6_10_structural_errors_are_answered_for_both_patterns(timed: Stage) -> None:
    sender, target = await timed.connect(), await timed.join("@(local/b)")
    bad: list[Any] = [
        *(None, [], "text", 7, {}, TO_B, TO_B | {"data": 1}),
        *(TO_B | {"type": type} for type in (None, 7, "", "x" * 257, "x" * 1000)),
        # The hub's own types cannot be forged.
        *(TO_B | {"type": f"hub:{name}"} for name in ("disconnect", "connected", "", "anything")),
        {"to": 7, "type": "note"},
        {"to": ["@(local/b)"], "type": "note"},
        # D22: the older form.
        {"targetAddress": "@(local/b)", "message": {"type": "x", "payload": 1}},
    ]

    for payload in bad:
        for pattern in ("tell", "ask"):
            reply = await sender.ask("hub:send", payload, pattern=pattern)
            assert code_of(reply) == "internal_error", payload
    await target.nothing_more()
