"""Section 7: every error the hub can say, with all five members and the request's trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from signalhub.testing import FakeClock
from signalhub.wire.errors import Code
from tests.support.peer import HUB, Envelope, code_of
from tests.support.stage import RunStage, Stage

TRACE = {"traceId": "trace-xyz-789", "spanId": "span-001"}
TAKEN = {"actorAddress": "@(local/a)", "capabilities": []}


@dataclass(frozen=True)
class Case:
    """The last of these requests is refused with this code, and this is what it says besides."""

    code: Code
    is_retryable: bool
    details: str
    requests: list[tuple[str, Any]]
    members: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case(
        Code.VERSION_MISMATCH,
        False,
        "clientVersion serverVersion supportedVersions",
        [("hub:connect", None)],
        {"metadata": {"protocolVersion": "9.9.9", "capabilities": ["send"]} | TRACE},
    ),
    Case(Code.UNAUTHORIZED, False, "", [("hub:renew", {"renewalToken": "x"})]),
    Case(Code.INTERNAL_ERROR, False, "", [("hub:register", {"actorAddress": 7})]),
    Case(Code.INTERNAL_ERROR, False, "type", [("hub:nonsense", None)]),
    Case(Code.INVALID_TOKEN, False, "", [("hub:refresh_token", {"token": "x"})]),
    Case(
        Code.RATE_LIMITED,
        True,
        "retryAfter limit code",
        [("hub:metrics", None)] * 2,
        settings={"message_rate": 1, "message_burst": 1},
    ),
    Case(
        Code.REGISTRY_FULL,
        True,
        "currentSize limit action",
        [("hub:register", TAKEN), ("hub:register", TAKEN | {"actorAddress": "@(local/b)"})],
        settings={"registry": {"limit": 1}},
    ),
    Case(
        Code.LIMIT_EXCEEDED,
        False,
        "limit",
        [("hub:subscribe", {"topic": "one"}), ("hub:subscribe", {"topic": "two"})],
        settings={"subscriptions_max": 1},
    ),
    Case(
        Code.MESSAGE_EXPIRED,
        False,
        "ttl",
        [("hub:register", TAKEN), ("hub:send", {"to": "@(local/a)", "type": "x"})],
        {"ttl": 10, "timestamp": 1},
    ),
]


def check_error(reply: Envelope, code: Code, is_retryable: bool, details: str) -> None:
    assert code_of(reply) == code
    assert reply["payload"]["retryable"] is is_retryable
    assert set(details.split()) <= set(reply["payload"]["details"])
    assert reply["metadata"] == TRACE
    assert reply["from"] == HUB


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("case", CASES, ids=[case.code for case in CASES])
async def test_7_1_error_has_five_members_and_the_trace_of_its_request(
    run_stage: RunStage, clock: FakeClock, case: Case
) -> None:
    async with run_stage(clock, **case.settings) as stage:
        peer = await stage.connect()

        for type, payload in case.requests:
            reply = await peer.ask(type, payload, **{"metadata": TRACE} | case.members)

    check_error(reply, case.code, case.is_retryable, case.details)


async def test_7_1_actor_that_is_expected_back_is_named(stage: Stage) -> None:
    await stage.join("@(local/a)")
    await stage.restart()

    reply = await (await stage.connect()).ask_actor("@(local/a)", "note", metadata=TRACE)

    check_error(reply, Code.ACTOR_RECONNECTING, True, "actorAddress")


def test_7_1_every_code_is_provoked_by_some_test() -> None:
    # See test_02_envelope.py, test_09_limits.py, test_12_backpressure.py and test_7_2.
    elsewhere = {Code.MESSAGE_TOO_LARGE, Code.MALFORMED_MESSAGE, Code.UNKNOWN_ACTOR}
    elsewhere |= {Code.QUEUE_FULL, Code.ACTOR_RECONNECTING}
    # Of durable messaging: see test_durable_*.py, and tests/faults for the storage.
    elsewhere |= {
        *(Code.NO_MAILBOX, Code.NOT_A_CONSUMER, Code.REPLAY_CONFLICT, Code.REPLAY_FORGOTTEN),
        *(Code.STORAGE_FAILED, Code.STORAGE_FULL, Code.SUBSCRIPTION_BUSY, Code.WRONG_EPOCH),
        *(Code.SUBSCRIPTION_CONFLICT, Code.TOPIC_CONFLICT, Code.UNKNOWN_SUBSCRIPTION),
        Code.UNKNOWN_TOPIC,
    }
    # Of operators: see tests/unit/core/test_operators.py.
    elsewhere |= {Code.UNKNOWN_SESSION}
    # Of durable actors: see tests/unit/core/test_placing.py and those beside it.
    elsewhere |= {Code.DUPLICATE_HOST, Code.NO_HOST, Code.STALE_PLACEMENT}

    assert {case.code for case in CASES} | elsewhere == set(Code)


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


async def test_7_2_unknown_actor_is_the_only_error_with_a_type_of_its_own(stage: Stage) -> None:
    peer = await stage.connect()

    reply = await peer.ask_actor("@(no/body)", "note", metadata=TRACE)

    assert reply["type"] == "hub:unknown_actor"
    assert reply["metadata"] == TRACE
    members = {"code", "message", "resolution", "details", "retryable"}
    assert set(reply["payload"]) == members | {"actorAddress"}
    assert reply["payload"]["code"] == Code.UNKNOWN_ACTOR
