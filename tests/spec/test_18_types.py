"""Section 18: every implemented type, its answer for tell and ask, and the answer's members."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.socket.peer import HUB, Peer
from tests.support.socket.stage import InProcess


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


NONE = "nothing"


class Row(NamedTuple):
    """One line of the table, for a session registered as `@(local/a)` that hears `news`."""

    type: str
    payload: Any
    tell: str
    ask: str
    members: set[str]


TABLE = [
    Row(
        "hub:heartbeat",
        {"timestamp": 1},
        "hub:heartbeat_ack",
        "hub:heartbeat_ack",
        {"timestamp", "serverTime"},
    ),
    Row("hub:disconnect", None, "hub:disconnect", "hub:disconnect", {"acknowledged"}),
    Row(
        "hub:refresh_token",
        {"token": "TOKEN"},
        "hub:token_refreshed",
        "hub:token_refreshed",
        {"token", "expiresAt"},
    ),
    Row(
        "hub:register",
        {"actorAddress": "@(local/b)", "capabilities": ["x"], "metadata": {}, "ttlSeconds": 60},
        "hub:registered",
        "hub:registered",
        {"actorAddress", "expiresAt", "renewalToken", "version"},
    ),
    Row(
        "hub:unregister",
        {"actorAddress": "@(local/a)"},
        NONE,
        "hub:unregistered",
        {"actorAddress", "unregisteredAt"},
    ),
    Row("hub:renew", None, "hub:renewed", "hub:renewed", {"expiresAt", "renewalToken"}),
    Row(
        "hub:discover", {"pattern": "*"}, "hub:discovered", "hub:discovered", {"actors", "hasMore"}
    ),
    Row(
        "hub:list_actors",
        {"offset": 0, "limit": 10},
        "hub:actor_list",
        "hub:actor_list",
        {"actors", "total", "offset", "limit", "hasMore"},
    ),
    Row(
        "hub:send",
        {"to": "@(local/other)", "type": "x", "data": 1},
        NONE,
        "hub:delivery_ack",
        {"messageId", "deliveredAt", "status"},
    ),
    Row(
        "hub:send",
        {"to": "@(no/body)", "type": "x", "data": 1},
        NONE,
        "hub:unknown_actor",
        {"actorAddress", "message"},
    ),
    Row(
        "hub:broadcast",
        {"type": "x", "data": 1, "excludeSelf": True},
        "hub:broadcast_ack",
        "hub:broadcast_ack",
        {"messageId", "deliveredCount", "failedCount"},
    ),
    Row(
        "hub:subscribe",
        {"topic": "other", "durable": False},
        "hub:subscribed",
        "hub:subscribed",
        {"topic", "subscriptionId"},
    ),
    Row(
        "hub:unsubscribe",
        {"topic": "news"},
        NONE,
        "hub:unsubscribed",
        {"topic", "unsubscribedAt"},
    ),
    Row(
        "hub:publish",
        {"topic": "empty", "type": "x", "data": 1},
        "hub:published",
        "hub:published",
        {"topic", "subscriberCount"},
    ),
    Row(
        "hub:queue_stats",
        None,
        "hub:queue_stats_response",
        "hub:queue_stats_response",
        {"queueDepth", "processingRate", "pauseThreshold", "resumeThreshold"},
    ),
    Row(
        "hub:metrics",
        None,
        "hub:metrics_response",
        "hub:metrics_response",
        {
            "messages_received",
            "messages_sent",
            "errors",
            "connections_opened",
            "connections_closed",
            "windowStart",
            "timestamp",
        },
    ),
    Row(
        "hub:nonsense",
        None,
        "hub:error",
        "hub:error",
        {"code", "message", "resolution", "details", "retryable"},
    ),
]


async def prepare(stage: InProcess) -> tuple[Peer, str]:
    """The session the table speaks of, and its token."""
    await stage.join("@(local/other)")
    peer = await stage.dial()
    token = (await peer.connect())["metadata"]["sessionToken"]
    await peer.register("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "news"})
    return peer, token


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.type} → {row.ask}")
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_18_request_gets_the_answer_of_the_table(
    stage: InProcess, row: Row, pattern: str
) -> None:
    peer, token = await prepare(stage)
    payload = {"token": token} if row.type == "hub:refresh_token" else row.payload
    expected = row.tell if pattern == "tell" else row.ask

    message_id = peer.send(row.type, payload, pattern=pattern)

    if expected == NONE:
        await peer.nothing_more()
        return
    reply = await peer.receive(expected)
    assert row.members <= set(reply["payload"])
    assert reply["correlationId"] == message_id
    assert reply["from"] == HUB
    assert reply["to"] == "@(local/a)"


@pytest.mark.parametrize(
    "type",
    [
        "hub:connected",
        "hub:heartbeat_ack",
        "hub:disconnect_ack",
        "hub:token_refreshed",
        "hub:registered",
        "hub:unregistered",
        "hub:renewed",
        "hub:discovered",
        "hub:discovery_result",
        "hub:actor_list",
        "hub:delivery_ack",
        "hub:broadcast_ack",
        "hub:subscribed",
        "hub:unsubscribed",
        "hub:published",
        "hub:topic_message",
        "hub:queue_stats_response",
        "hub:metrics_response",
        "hub:error",
        "hub:unknown_actor",
        "hub:unauthorized",
        "hub:rate_limited",
        "hub:version_mismatch",
        "hub:message_too_large",
        "hub:secret_issued",
        "hub:secret_rotated",
    ],
)
async def test_18_types_that_only_the_hub_sends_are_unknown_requests(
    stage: InProcess, type: str
) -> None:
    peer = await stage.connect()

    reply = await peer.ask(type, {"acknowledged": True})

    assert reply["type"] == "hub:error"
    assert reply["payload"]["details"] == {"type": type}
