"""Section 2 and ruling 10: the eleven members, how replies are built, and malformed input."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import HUB, Envelope, Peer, code_of
from tests.support.stage import Stage

NOT_A_STRING: list[Any] = [None, 7, 1.5, True, [], {}]
NOT_A_NUMBER: list[Any] = ["7", True, [], {}]
NOT_EXACT = [2**53 + 2, 1e300, -1e300, 10**40]
LONG = "@(" + "x" * 300 + ")"
HUGE = "@(" + "x" * 100_000 + ")"
WRONG: dict[str, list[Any]] = {
    "id": [..., *NOT_A_STRING, "x" * 257, HUGE],
    "from": [..., *NOT_A_STRING, "", "someone", "(a/b)", "@a/b", " @(a/b)", LONG, HUGE],
    "to": [..., *NOT_A_STRING, "", "hub", "@[a/b]", LONG, HUGE],
    "type": [..., *NOT_A_STRING, "x" * 257, HUGE],
    "pattern": [..., "", "shout", "TELL", None, 1, []],
    "timestamp": [..., None, *NOT_A_NUMBER, *NOT_EXACT],
    "correlationId": [..., 7, True, [], {}],
    "ttl": [..., *NOT_A_NUMBER, *NOT_EXACT],
    "signature": [..., 7, True, [], {}],
}


@pytest.mark.parametrize("name", WRONG)
async def test_2_member_that_is_missing_or_of_the_wrong_type_is_refused_and_the_socket_stays(
    timed: Stage, name: str
) -> None:
    peer = await timed.connect()

    for value in WRONG[name]:
        peer.send("hub:heartbeat", {"timestamp": 1}, **{name: value})
        reply = await peer.receive()
        assert code_of(reply) == "internal_error", value
        assert reply["payload"]["retryable"] is False
        assert name in reply["payload"]["message"]
        assert len(json.dumps(reply)) < 2_000
    await peer.nothing_more()


@pytest.mark.parametrize(
    "members",
    [
        {"payload": ...},
        {"metadata": ...},
        {"color": "red", "nested": {"a": [1]}},
        *({"timestamp": number} for number in (0, -1, 1.5, 2**53)),
        *({"id": text} for text in ("", "1", "not a uuid", "ünï¢ode", 'quo"te\\', "x" * 256)),
        {"to": "@(anything/else)"},
    ],
    ids=lambda members: str(members)[:30],
)
async def test_2_everything_else_is_accepted(stage: Stage, members: dict[str, Any]) -> None:
    peer = await stage.connect()

    message_id = peer.send("hub:queue_stats", **members)

    # The peer itself checks that exactly the eleven members arrive.
    assert (await peer.receive("hub:queue_stats_response"))["correlationId"] == message_id


@pytest.mark.parametrize("metadata", [None, [], [1, {"via": 1}], "text", 7], ids=json.dumps)
async def test_2_metadata_that_is_no_object_is_ignored_and_replaced_in_the_copy(
    stage: Stage, metadata: object
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    message_id = sender.tell("@(local/b)", "note", 1, metadata=metadata)

    heard = await target.receive("note")
    assert heard["metadata"] == {"forwarded": True, "via": HUB, "originalMessageId": message_id}


@pytest.mark.also_over_sockets
async def test_2_1_reply_is_built_as_the_specification_says(timed: Stage, clock: FakeClock) -> None:
    owner, peer = await timed.join("@(local/a)"), await timed.connect()
    clock.advance(3)

    replies = [
        await peer.ask("hub:queue_stats", sender="@(local/a)", id=f"my-{pattern}", pattern=pattern)
        for pattern in ("tell", "ask")
    ]

    for pattern, reply in zip(("tell", "ask"), replies, strict=True):
        assert uuid.UUID(reply["id"]).version == 4
        assert reply | {"id": "", "payload": None} == {
            "id": "",
            "from": HUB,
            "to": "@(local/a)",
            "type": "hub:queue_stats_response",
            "payload": None,
            "pattern": "tell",
            "correlationId": f"my-{pattern}",
            "timestamp": clock.now_ms(),
            "metadata": {},
            "ttl": None,
            "signature": None,
        }
    assert replies[0]["id"] != replies[1]["id"]
    # It goes to the socket of the request, even if another session owns the address.
    await owner.nothing_more()


async def answer_to(peer: Peer, text: str) -> Envelope:
    peer.send_text(text)
    return await peer.receive()


NOT_JSON = [
    *("", " ", "hello", "{", '{"id":', "[1,", "[1,]", "[1 2]", "{'id':1}", "{} {}", '{"a" 1}'),
    *('{"id":"1"', '{"id":"1",}', '{"id":1}}', "NaN", "Infinity", '{"x":-Infinity}', "undefined"),
    *("-", "01", "+1", ".5", "1.", "0x10", "1_000", '"\\x"', '"\n"', "\x00", "<xml/>"),
    *("GET / HTTP/1.1\r\n\r\n", "x" * 100_000),
]


@pytest.mark.parametrize("text", NOT_JSON, ids=lambda text: repr(text)[:20])
async def test_2_2_frame_that_is_not_json_is_told_so_and_closed_with_1011(
    stage: Stage, text: str
) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.connect()

    reply = await answer_to(peer, text)

    assert code_of(reply) == "malformed_message"
    assert reply["payload"]["retryable"] is False
    assert (reply["to"], reply["correlationId"]) == ("@(local/a)", None)
    assert await peer.until_closed() == 1011
    assert peer.close_reason == "not JSON"
    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"


@pytest.mark.parametrize("member", ["timestamp", "ttl", "payload", "metadata"])
async def test_2_2_numbers_that_are_not_json_are_told_so_and_closed(
    stage: Stage, member: str
) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "+1", ".5", "1.", "0x10", "1_000"):
        peer = await stage.connect()
        message = json.dumps(peer.envelope("hub:heartbeat", None, **{member: "HERE"}))

        reply = await answer_to(peer, message.replace('"HERE"', number))

        assert code_of(reply) == "malformed_message", number
        assert await peer.until_closed() == 1011


@pytest.mark.parametrize(
    "text", ["null", "7", "1.5", "true", '"text"', "[]", "[{}]", "{}", '{"id":5,"from":[]}']
)
async def test_2_2_json_that_is_no_envelope_is_refused_and_the_socket_stays(
    stage: Stage, text: str
) -> None:
    peer = await stage.join("@(local/a)")

    reply = await answer_to(peer, text)

    assert code_of(reply) == "internal_error"
    assert (reply["to"], reply["correlationId"]) == ("@(local/a)", None)
    await peer.nothing_more()


async def test_2_2_refusal_names_sender_and_message_as_far_as_they_can_be_read(
    stage: Stage,
) -> None:
    peer = await stage.dial()

    before_hello = await answer_to(peer, '{"type":7}')
    both = await answer_to(peer, '{"id":"bad-1","from":"@(odd/one)","type":7}')

    assert code_of(before_hello) == code_of(both) == "internal_error"
    assert before_hello["to"].startswith("@(")
    assert (both["to"], both["correlationId"]) == ("@(odd/one)", "bad-1")


@pytest.mark.parametrize(
    ("members", "is_refused"),
    [
        ('"timestamp":1e999,"ttl":null', True),
        ('"timestamp":0,"ttl":-1e999', True),
        ('"timestamp":' + "9" * 5_000 + ',"ttl":null', True),
        ('"timestamp":' + "9" * 400 + ',"ttl":0.5', True),
        ('"timestamp":-' + "9" * 400 + ',"ttl":0.5', True),
        ('"timestamp":1e308,"ttl":1e308', True),
        ('"timestamp":0,"ttl":null,"payload":[1e999]', False),
        ('"timestamp":0,"ttl":null,"payload":[' + "9" * 5_000 + "]", False),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_2_2_number_out_of_range_is_json_and_keeps_the_socket(
    stage: Stage, members: str, is_refused: bool
) -> None:
    peer = await stage.connect()

    for type in ("hub:heartbeat", "hub:send", "hub:publish", "hub:broadcast"):
        message = peer.envelope(type, ..., timestamp=..., ttl=..., pattern="ask")
        reply = await answer_to(peer, json.dumps(message)[:-1] + f",{members}}}")

        assert reply["correlationId"] == message["id"]
        assert reply["type"] == "hub:error" or not is_refused
    await peer.nothing_more()


UNKNOWN = [
    *("hub:nonsense", "hub:", "note", "", "app:hello", "hub:pause", "hub:resume"),
    *("hub:connected", "hub:heartbeat_ack", "hub:disconnect_ack", "hub:token_refreshed"),
    *("hub:registered", "hub:unregistered", "hub:renewed", "hub:discovered", "hub:actor_list"),
    *("hub:discovery_result", "hub:delivery_ack", "hub:broadcast_ack", "hub:subscribed"),
    *("hub:unsubscribed", "hub:published", "hub:topic_message", "hub:queue_stats_response"),
    *("hub:metrics_response", "hub:error", "hub:unknown_actor", "hub:unauthorized"),
    *("hub:rate_limited", "hub:version_mismatch", "hub:message_too_large"),
    *("hub:secret_issued", "hub:secret_rotated"),
]


async def test_2_2_unknown_types_and_types_only_the_hub_sends_are_refused(timed: Stage) -> None:
    peer, target = await timed.connect(), await timed.join("@(local/b)")
    # D43: `via` does not route either.
    routed: dict[str, Any] = {"to": "@(local/b)", "metadata": {"via": HUB}}

    for type in UNKNOWN:
        for pattern in ("tell", "ask"):
            reply = await peer.ask(type, {"acknowledged": True}, pattern=pattern, **routed)
            assert code_of(reply) == "internal_error"
            assert reply["payload"]["details"] == {"type": type}
    await peer.nothing_more()
    await target.nothing_more()
