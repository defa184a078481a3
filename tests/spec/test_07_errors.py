"""Section 7: every error the hub can say, with all five members and the request's trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from signalhub.testing import FakeClock
from signalhub.wire.errors import Code
from tests.support.socket.peer import HUB, Envelope, Peer
from tests.support.socket.stage import SMALL_BUFFER, InProcess, code_of, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


TRACE = {"traceId": "trace-xyz-789", "spanId": "span-001"}
Provoke = Callable[[InProcess, Peer], Awaitable[Envelope]]


class Case(NamedTuple):
    """How to provoke one code, and what its error must say besides."""

    code: Code
    is_retryable: bool
    details: set[str]
    provoke: Provoke
    settings: dict[str, Any]


async def mismatch(stage: InProcess, peer: Peer) -> Envelope:
    metadata = {"protocolVersion": "9.9.9", "capabilities": ["send"]} | TRACE
    return await peer.ask("hub:connect", metadata=metadata)


async def unauthorized(stage: InProcess, peer: Peer) -> Envelope:
    other = await stage.dial()
    return await other.ask("hub:discover", {"pattern": "*"}, metadata=TRACE)


async def internal_error(stage: InProcess, peer: Peer) -> Envelope:
    return await peer.ask("hub:register", {"actorAddress": 7}, metadata=TRACE)


async def unknown_type(stage: InProcess, peer: Peer) -> Envelope:
    return await peer.ask("hub:nonsense", metadata=TRACE)


async def invalid_token(stage: InProcess, peer: Peer) -> Envelope:
    return await peer.ask("hub:refresh_token", {"token": "x"}, metadata=TRACE)


async def rate_limited(stage: InProcess, peer: Peer) -> Envelope:
    await peer.ask("hub:queue_stats")
    return await peer.ask("hub:queue_stats", metadata=TRACE)


async def registry_full(stage: InProcess, peer: Peer) -> Envelope:
    await peer.register("@(local/only)")
    payload = {"actorAddress": "@(local/too-much)", "capabilities": []}
    return await peer.ask("hub:register", payload, metadata=TRACE)


async def limit_exceeded(stage: InProcess, peer: Peer) -> Envelope:
    await peer.ask("hub:subscribe", {"topic": "one"})
    return await peer.ask("hub:subscribe", {"topic": "two"}, metadata=TRACE)


async def message_expired(stage: InProcess, peer: Peer) -> Envelope:
    await peer.register("@(local/a)")
    timestamp = stage.clock.now_ms() - 1000
    return await peer.ask_actor("@(local/a)", "note", metadata=TRACE, ttl=10, timestamp=timestamp)


async def actor_reconnecting(stage: InProcess, peer: Peer) -> Envelope:
    await peer.register("@(local/a)")
    await stage.hub.stop()
    await stage.hub.start()
    other = await stage.connect()
    return await other.ask_actor("@(local/a)", "note", metadata=TRACE)


async def queue_full(stage: InProcess, peer: Peer) -> Envelope:
    slow = await stage.join("@(local/slow)", receive_bytes=SMALL_BUFFER)
    slow.pause()
    async with asyncio.timeout(20):
        while True:
            for _ in range(50):
                peer.tell("@(local/slow)", "note", "x" * 20_000)
            message_id = peer.tell("@(local/slow)", "note", "x" * 20_000, metadata=TRACE)
            peer.send(
                "hub:send",
                {"to": "@(local/slow)", "type": "note", "data": "x" * 20_000},
                pattern="ask",
                id=f"ask-{message_id}",
                metadata=TRACE,
            )
            barrier = peer.send("hub:heartbeat")
            while (reply := await peer.receive())["correlationId"] != barrier:
                if reply["type"] == "hub:error":
                    return reply


CASES = [
    Case(
        Code.VERSION_MISMATCH,
        False,
        {"clientVersion", "serverVersion", "supportedVersions"},
        mismatch,
        {},
    ),
    Case(Code.UNAUTHORIZED, False, set(), unauthorized, {}),
    Case(Code.INTERNAL_ERROR, False, set(), internal_error, {}),
    Case(Code.INTERNAL_ERROR, False, {"type"}, unknown_type, {}),
    Case(Code.INVALID_TOKEN, False, set(), invalid_token, {}),
    Case(
        Code.RATE_LIMITED,
        True,
        {"retryAfter", "limit", "code"},
        rate_limited,
        {"message_rate": 1, "message_burst": 1},
    ),
    Case(
        Code.REGISTRY_FULL,
        True,
        {"currentSize", "limit", "action"},
        registry_full,
        {"registry": {"limit": 1}},
    ),
    Case(Code.LIMIT_EXCEEDED, False, {"limit"}, limit_exceeded, {"subscriptions_max": 1}),
    Case(Code.MESSAGE_EXPIRED, False, {"ttl"}, message_expired, {}),
    Case(Code.ACTOR_RECONNECTING, True, {"actorAddress"}, actor_reconnecting, {}),
    Case(
        Code.QUEUE_FULL,
        True,
        {"limit"},
        queue_full,
        {"message_rate": 0, "outbound": {"bytes_max": 200_000}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.provoke.__name__ for case in CASES])
async def test_7_1_error_has_five_members_and_the_trace_of_its_request(case: Case) -> None:
    async with run_stage(FakeClock(), **case.settings) as stage:
        peer = await stage.connect()

        reply = await case.provoke(stage, peer)

    assert code_of(reply) == case.code
    assert reply["payload"]["retryable"] is case.is_retryable
    assert case.details <= set(reply["payload"]["details"])
    assert reply["metadata"] == TRACE
    assert reply["from"] == HUB
    assert reply["correlationId"] is not None


async def test_7_1_error_for_a_message_too_large_names_both_sizes(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.send_text(b"x" * 1_048_577)

    reply = await peer.receive()
    assert code_of(reply) == Code.MESSAGE_TOO_LARGE
    assert reply["payload"]["retryable"] is False
    assert reply["payload"]["details"] == {"actualSize": 1_048_577, "maxSize": 1_048_576}
    await peer.nothing_more()


async def test_7_1_error_for_what_is_not_json_is_complete_too(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.send_text("not JSON")

    reply = await peer.receive()
    assert code_of(reply) == Code.MALFORMED_MESSAGE
    assert reply["payload"]["retryable"] is False


def test_7_1_every_code_is_provoked_by_some_test_here() -> None:
    elsewhere = {Code.MESSAGE_TOO_LARGE, Code.MALFORMED_MESSAGE, Code.UNKNOWN_ACTOR}
    # Of durable messaging: see test_durable_*.py, and tests/faults for the storage.
    elsewhere |= {
        Code.NO_MAILBOX,
        Code.NOT_A_CONSUMER,
        Code.REPLAY_CONFLICT,
        Code.REPLAY_FORGOTTEN,
        Code.STORAGE_FAILED,
        Code.STORAGE_FULL,
        Code.SUBSCRIPTION_BUSY,
        Code.SUBSCRIPTION_CONFLICT,
        Code.TOPIC_CONFLICT,
        Code.UNKNOWN_SUBSCRIPTION,
        Code.UNKNOWN_TOPIC,
        Code.WRONG_EPOCH,
    }
    # Of durable actors: see tests/unit/core/test_placing.py and those beside it.
    elsewhere |= {Code.DUPLICATE_HOST, Code.NO_HOST, Code.STALE_PLACEMENT}

    assert {case.code for case in CASES} | elsewhere == set(Code)


@pytest.mark.parametrize(
    ("metadata", "copied"),
    [
        ({}, {}),
        ({"other": 1}, {}),
        ({"traceId": "t"}, {"traceId": "t"}),
        ({"spanId": "s", "other": 1}, {"spanId": "s"}),
        ({"traceId": 7, "spanId": None}, {}),
        ({"nested": {"traceId": "t"}}, {}),
        ([], {}),
        (None, {}),
        ("traceId", {}),
    ],
)
async def test_7_1_only_trace_and_span_are_copied_and_only_if_they_are_text(
    stage: InProcess, metadata: object, copied: dict[str, str]
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:nonsense", metadata=metadata)

    assert code_of(reply) == "internal_error"
    assert reply["metadata"] == copied


async def test_7_1_rate_limit_says_in_whole_seconds_when_to_try_again() -> None:
    async with run_stage(FakeClock(), message_rate=0.5, message_burst=1) as stage:
        peer = await stage.connect()
        await peer.ask("hub:queue_stats")

        reply = await peer.ask("hub:queue_stats")

    details = reply["payload"]["details"]
    assert details["retryAfter"] == 2
    assert details["code"] == "RATE_LIMIT_EXCEEDED"
    assert isinstance(details["limit"], str)


async def test_7_2_unknown_actor_is_the_only_error_with_a_type_of_its_own(
    stage: InProcess,
) -> None:
    peer = await stage.connect()

    reply = await peer.ask_actor("@(no/body)", "note", metadata=TRACE)

    assert reply["type"] == "hub:unknown_actor"
    assert reply["metadata"] == TRACE
    assert set(reply["payload"]) == {
        "actorAddress",
        "code",
        "message",
        "resolution",
        "details",
        "retryable",
    }
    assert reply["payload"]["code"] == Code.UNKNOWN_ACTOR
