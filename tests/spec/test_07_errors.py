"""Section 7: every error the hub can say, with all five members and the request's trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from signalhub.testing import FakeClock
from signalhub.wire.errors import Code
from tests.support.peer import HUB, Envelope, Peer, code_of
from tests.support.stage import RunStage, Stage

TRACE = {"traceId": "trace-xyz-789", "spanId": "span-001"}
Provoke = Callable[[Stage, Peer], Awaitable[Envelope]]


class Case(NamedTuple):
    """How to provoke one code, and what its error must say besides."""

    code: Code
    is_retryable: bool
    details: set[str]
    provoke: Provoke
    settings: dict[str, Any]


async def mismatch(stage: Stage, peer: Peer) -> Envelope:
    metadata = {"protocolVersion": "9.9.9", "capabilities": ["send"]} | TRACE
    return await peer.ask("hub:connect", metadata=metadata)


async def unauthorized(stage: Stage, peer: Peer) -> Envelope:
    other = await stage.dial()
    return await other.ask("hub:discover", {"pattern": "*"}, metadata=TRACE)


async def internal_error(stage: Stage, peer: Peer) -> Envelope:
    return await peer.ask("hub:register", {"actorAddress": 7}, metadata=TRACE)


async def unknown_type(stage: Stage, peer: Peer) -> Envelope:
    return await peer.ask("hub:nonsense", metadata=TRACE)


async def invalid_token(stage: Stage, peer: Peer) -> Envelope:
    return await peer.ask("hub:refresh_token", {"token": "x"}, metadata=TRACE)


async def rate_limited(stage: Stage, peer: Peer) -> Envelope:
    await peer.ask("hub:queue_stats")
    return await peer.ask("hub:queue_stats", metadata=TRACE)


async def registry_full(stage: Stage, peer: Peer) -> Envelope:
    await peer.register("@(local/only)")
    payload = {"actorAddress": "@(local/too-much)", "capabilities": []}
    return await peer.ask("hub:register", payload, metadata=TRACE)


async def limit_exceeded(stage: Stage, peer: Peer) -> Envelope:
    await peer.ask("hub:subscribe", {"topic": "one"})
    return await peer.ask("hub:subscribe", {"topic": "two"}, metadata=TRACE)


async def message_expired(stage: Stage, peer: Peer) -> Envelope:
    await peer.register("@(local/a)")
    timestamp = stage.clock.now_ms() - 1000
    return await peer.ask_actor("@(local/a)", "note", metadata=TRACE, ttl=10, timestamp=timestamp)


async def actor_reconnecting(stage: Stage, peer: Peer) -> Envelope:
    await peer.register("@(local/a)")
    await stage.restart()
    other = await stage.connect()
    return await other.ask_actor("@(local/a)", "note", metadata=TRACE)


CASES = [
    Case(
        *(Code.VERSION_MISMATCH, False, {"clientVersion", "serverVersion", "supportedVersions"}),
        *(mismatch, {}),
    ),
    Case(Code.UNAUTHORIZED, False, set(), unauthorized, {}),
    Case(Code.INTERNAL_ERROR, False, set(), internal_error, {}),
    Case(Code.INTERNAL_ERROR, False, {"type"}, unknown_type, {}),
    Case(Code.INVALID_TOKEN, False, set(), invalid_token, {}),
    Case(
        *(Code.RATE_LIMITED, True, {"retryAfter", "limit", "code"}),
        *(rate_limited, {"message_rate": 1, "message_burst": 1}),
    ),
    Case(
        *(Code.REGISTRY_FULL, True, {"currentSize", "limit", "action"}),
        *(registry_full, {"registry": {"limit": 1}}),
    ),
    Case(Code.LIMIT_EXCEEDED, False, {"limit"}, limit_exceeded, {"subscriptions_max": 1}),
    Case(Code.MESSAGE_EXPIRED, False, {"ttl"}, message_expired, {}),
    Case(Code.ACTOR_RECONNECTING, True, {"actorAddress"}, actor_reconnecting, {}),
]


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("case", CASES, ids=[case.provoke.__name__ for case in CASES])
async def test_7_1_error_has_five_members_and_the_trace_of_its_request(
    run_stage: RunStage, clock: FakeClock, case: Case
) -> None:
    async with run_stage(clock, **case.settings) as stage:
        peer = await stage.connect()

        reply = await case.provoke(stage, peer)

    assert code_of(reply) == case.code
    assert reply["payload"]["retryable"] is case.is_retryable
    assert case.details <= set(reply["payload"]["details"])
    assert reply["metadata"] == TRACE
    assert reply["from"] == HUB
    assert reply["correlationId"] is not None


def test_7_1_every_code_is_provoked_by_some_test() -> None:
    # See test_02_envelope.py, test_09_limits.py, test_12_backpressure.py and test_7_2.
    elsewhere = {
        *(Code.MESSAGE_TOO_LARGE, Code.MALFORMED_MESSAGE, Code.UNKNOWN_ACTOR, Code.QUEUE_FULL),
    }
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
    ("type", "payload"),
    [
        *((f"hub:{name}", None) for name in ("connect", "register", "renew", "discover", "send")),
        *((f"hub:{name}", None) for name in ("broadcast", "publish", "subscribe", "unsubscribe")),
        *(("hub:refresh_token", None), ("hub:unregister", 5), ("hub:list_actors", [])),
    ],
)
async def test_7_1_every_bad_request_is_answered_under_its_own_id(
    stage: Stage, type: str, payload: object
) -> None:
    peer = await stage.connect()

    for pattern in ("tell", "ask"):
        reply = await peer.ask(type, payload, pattern=pattern, id="m-1", sender="@(local/b)")
        assert code_of(reply) in set(Code)
        assert (reply["to"], reply["correlationId"]) == ("@(local/b)", "m-1")
    await peer.nothing_more()


@pytest.mark.parametrize(
    ("metadata", "copied"),
    [
        *(({}, {}), ({"other": 1}, {}), ({"traceId": "t"}, {"traceId": "t"})),
        ({"spanId": '"s"', "other": 1}, {"spanId": '"s"'}),
        ({"traceId": 7, "spanId": None}, {}),
        ({"nested": {"traceId": "t"}}, {}),
        *((other, {}) for other in ([], ["traceId"], None, "traceId")),
    ],
)
async def test_7_1_only_trace_and_span_are_copied_and_only_if_they_are_text(
    stage: Stage, metadata: object, copied: dict[str, str]
) -> None:
    peer = await stage.connect()

    for reply in (
        await peer.ask("hub:nonsense", metadata=metadata),
        await peer.ask_actor("@(no/body)", "note", metadata=metadata),
    ):
        assert reply["metadata"] == copied


async def test_7_1_rate_limit_says_in_whole_seconds_when_to_try_again(
    run_stage: RunStage, clock: FakeClock
) -> None:
    async with run_stage(clock, message_rate=0.5, message_burst=1) as stage:
        peer = await stage.connect()
        await peer.ask("hub:queue_stats")

        details = (await peer.ask("hub:queue_stats"))["payload"]["details"]

    assert (details["retryAfter"], details["code"]) == (2, "RATE_LIMIT_EXCEEDED")
    assert isinstance(details["limit"], str)


async def test_7_2_unknown_actor_is_the_only_error_with_a_type_of_its_own(stage: Stage) -> None:
    peer = await stage.connect()

    reply = await peer.ask_actor("@(no/body)", "note", metadata=TRACE)

    assert reply["type"] == "hub:unknown_actor"
    assert reply["metadata"] == TRACE
    members = {"code", "message", "resolution", "details", "retryable"}
    assert set(reply["payload"]) == members | {"actorAddress"}
    assert reply["payload"]["code"] == Code.UNKNOWN_ACTOR
