"""Section 2: the eleven members, how replies are built, and what malformed input gets."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import HUB
from tests.support.socket.stage import InProcess, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


MEMBERS = (
    "id",
    "from",
    "to",
    "type",
    "payload",
    "pattern",
    "correlationId",
    "timestamp",
    "metadata",
    "ttl",
    "signature",
)
NOT_A_STRING: list[Any] = [None, 7, 1.5, True, [], {}]
NOT_A_NUMBER: list[Any] = [None, "7", True, [], {}]

WRONG: dict[str, list[Any]] = {
    "id": NOT_A_STRING,
    "from": [*NOT_A_STRING, "", "someone", "(a/b)", "@a/b", " @(a/b)"],
    "to": [*NOT_A_STRING, "", "hub", "@[a/b]"],
    "type": NOT_A_STRING,
    "pattern": ["", "shout", "TELL", None, 1, []],
    "timestamp": NOT_A_NUMBER,
    "correlationId": [7, True, [], {}],
    "ttl": ["7", True, [], {}],
    "signature": [7, True, [], {}],
}
REQUIRED = [name for name in MEMBERS if name not in ("payload", "metadata")]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in WRONG.items() for value in values],
    ids=json.dumps,
)
async def test_2_member_of_the_wrong_type_is_refused_and_the_socket_stays(
    stage: InProcess, name: str, value: object
) -> None:
    peer = await stage.connect()

    peer.send("hub:heartbeat", {"timestamp": 1}, **{name: value})

    assert code_of(await peer.receive()) == "internal_error"
    await peer.nothing_more()


@pytest.mark.parametrize("name", REQUIRED)
async def test_2_required_member_must_be_present(stage: InProcess, name: str) -> None:
    peer = await stage.connect()

    peer.send("hub:heartbeat", {"timestamp": 1}, **{name: ...})

    assert code_of(await peer.receive()) == "internal_error"
    await peer.nothing_more()


@pytest.mark.parametrize("name", ["payload", "metadata"])
async def test_2_payload_and_metadata_are_not_part_of_the_basic_check(
    stage: InProcess, name: str
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:queue_stats", **{name: ...})

    assert reply["type"] == "hub:queue_stats_response"


@pytest.mark.parametrize("metadata", [None, [], [1, 2], "text", 7], ids=json.dumps)
async def test_2_metadata_that_is_no_object_is_ignored_and_replaced_in_the_copy(
    stage: InProcess, metadata: object
) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    message_id = sender.tell("@(local/b)", "note", 1, metadata=metadata)

    heard = await target.receive("note")
    assert heard["metadata"] == {"forwarded": True, "via": HUB, "originalMessageId": message_id}


async def test_2_unknown_extra_members_are_ignored(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    sender.tell("@(local/b)", "note", 1, color="red", nested={"a": [1]})

    # The peer itself checks that exactly the eleven members arrive.
    assert (await target.receive("note"))["payload"] == 1


@pytest.mark.parametrize("timestamp", [0, -1, 1.5, 2**53])
async def test_2_any_number_is_a_timestamp(stage: InProcess, timestamp: float) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:queue_stats", timestamp=timestamp)

    assert reply["type"] == "hub:queue_stats_response"


@pytest.mark.parametrize("name", ["timestamp", "ttl"])
@pytest.mark.parametrize("number", [2**53 + 2, 1e300, -1e300, 10**40])
async def test_2_number_that_arithmetic_would_round_is_refused(
    stage: InProcess, name: str, number: float
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:queue_stats", **{name: number})

    assert code_of(reply) == "internal_error"
    await peer.nothing_more()


@pytest.mark.parametrize("message_id", ["", "1", "not a uuid", "ünï¢ode", 'quo"te\\', "x" * 256])
async def test_2_any_string_is_an_id_and_comes_back_as_it_was(
    stage: InProcess, message_id: str
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:queue_stats", id=message_id)

    assert reply["type"] == "hub:queue_stats_response"
    assert reply["correlationId"] == message_id


async def test_2_1_reply_is_built_as_the_specification_says() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.connect()
        clock.advance(3)

        reply = await peer.ask("hub:queue_stats", sender="@(never/registered)", id="my-id")

    assert uuid.UUID(reply["id"]).version == 4
    assert reply["from"] == HUB
    assert reply["to"] == "@(never/registered)"
    assert reply["pattern"] == "tell"
    assert reply["correlationId"] == "my-id"
    assert reply["timestamp"] == clock.now_ms()
    assert reply["metadata"] == {}
    assert reply["ttl"] is None
    assert reply["signature"] is None


@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_2_1_reply_is_a_tell_whatever_the_pattern(stage: InProcess, pattern: str) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:discover", {"pattern": "*"}, pattern=pattern)

    assert reply["type"] == "hub:discovered"
    assert reply["pattern"] == "tell"


async def test_2_1_reply_goes_to_the_socket_the_request_came_from(stage: InProcess) -> None:
    owner, other = await stage.join("@(local/a)"), await stage.connect()

    reply = await other.ask("hub:queue_stats", sender="@(local/a)")

    assert reply["to"] == "@(local/a)"
    await owner.nothing_more()


async def test_2_1_every_reply_has_an_id_of_its_own(stage: InProcess) -> None:
    peer = await stage.connect()

    replies = [await peer.ask("hub:queue_stats") for _ in range(20)]

    assert len({reply["id"] for reply in replies}) == 20


@pytest.mark.parametrize(
    "text",
    ["", " ", "hello", "{", '{"id":', "[1,", "{'id':1}", "NaN", "Infinity", "{} {}"],
)
async def test_2_2_frame_that_is_not_json_is_told_so_and_closed_with_1011(
    stage: InProcess, text: str
) -> None:
    peer = await stage.connect()

    peer.send_text(text)

    reply = await peer.receive()
    assert code_of(reply) == "malformed_message"
    assert reply["correlationId"] is None
    assert reply["to"] == peer.sender
    assert await peer.until_closed() == 1011


@pytest.mark.parametrize("text", ["null", "7", "1.5", "true", '"text"', "[]", "[{}]", "{}"])
async def test_2_2_json_that_is_no_envelope_is_refused_and_the_socket_stays(
    stage: InProcess, text: str
) -> None:
    peer = await stage.connect()

    peer.send_text(text)

    reply = await peer.receive()
    assert code_of(reply) == "internal_error"
    assert reply["correlationId"] is None
    await peer.nothing_more()


async def test_2_2_refusal_copies_sender_and_id_of_the_bad_frame(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.send_text('{"id":"bad-1","from":"@(odd/one)","type":7}')

    reply = await peer.receive()
    assert code_of(reply) == "internal_error"
    assert reply["to"] == "@(odd/one)"
    assert reply["correlationId"] == "bad-1"


async def test_2_2_refusal_without_a_sender_goes_to_the_identity(stage: InProcess) -> None:
    peer = await stage.connect("@(local/me)")

    peer.send_text('{"type":7}')

    assert (await peer.receive())["to"] == "@(local/me)"


async def test_2_2_refusal_before_hello_is_a_complete_envelope_all_the_same(
    stage: InProcess,
) -> None:
    peer = await stage.dial()

    peer.send_text('{"type":7}')

    reply = await peer.receive()
    assert code_of(reply) == "internal_error"
    assert reply["to"].startswith("@(")


@pytest.mark.parametrize("type", ["hub:nonsense", "hub:", "note", "", "hub:pause", "hub:connected"])
async def test_2_2_unknown_type_is_refused_and_the_socket_stays(
    stage: InProcess, type: str
) -> None:
    peer = await stage.connect()

    for pattern in ("tell", "ask"):
        message_id = peer.send(type, pattern=pattern)
        reply = await peer.receive()
        assert code_of(reply) == "internal_error"
        assert reply["correlationId"] == message_id
    await peer.nothing_more()


async def test_2_2_unknown_type_costs_a_token() -> None:
    async with run_stage(FakeClock(), message_rate=1, message_burst=2) as stage:
        peer = await stage.connect()

        codes = [code_of(await peer.ask("hub:nonsense")) for _ in range(3)]

    assert codes == ["internal_error", "internal_error", "rate_limited"]
