"""Section 18: every implemented type, its answer for tell and ask, and the answer's members.

Types that only the hub sends are in test_02_envelope.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.peer import HUB
from tests.support.stage import Stage


class Row(NamedTuple):
    """One line of the table, for a session registered as `@(local/a)` that hears `news`."""

    type: str
    payload: Any
    answer: str
    members: set[str]
    is_tell_answered: bool = True


TABLE = [
    Row("hub:heartbeat", {"timestamp": 1}, "hub:heartbeat_ack", {"timestamp", "serverTime"}),
    Row("hub:refresh_token", None, "hub:token_refreshed", {"token", "expiresAt"}),
    Row("hub:renew", None, "hub:renewed", {"expiresAt", "renewalToken"}),
    Row("hub:discover", {"pattern": "*"}, "hub:discovered", {"actors", "hasMore"}),
    Row(
        "hub:list_actors",
        {"offset": 0, "limit": 10},
        "hub:actor_list",
        {"actors", "total", "offset", "limit", "hasMore"},
    ),
    Row(
        "hub:send",
        {"to": "@(local/other)", "type": "x", "data": 1},
        "hub:delivery_ack",
        {"messageId", "deliveredAt", "status"},
        is_tell_answered=False,
    ),
    Row(
        "hub:send",
        {"to": "@(no/body)", "type": "x", "data": 1},
        "hub:unknown_actor",
        {"actorAddress", "message"},
        is_tell_answered=False,
    ),
    Row(
        "hub:broadcast",
        {"type": "x", "data": 1, "excludeSelf": True},
        "hub:broadcast_ack",
        {"messageId", "deliveredCount", "failedCount"},
    ),
    Row(
        "hub:subscribe",
        {"topic": "other", "durable": False},
        "hub:subscribed",
        {"topic", "subscriptionId"},
    ),
    Row(
        "hub:unsubscribe",
        {"topic": "news"},
        "hub:unsubscribed",
        {"topic", "unsubscribedAt"},
        is_tell_answered=False,
    ),
    Row(
        "hub:publish",
        {"topic": "empty", "type": "x", "data": 1},
        "hub:published",
        {"topic", "subscriberCount"},
    ),
    Row(
        "hub:queue_stats",
        None,
        "hub:queue_stats_response",
        {"queueDepth", "processingRate", "pauseThreshold", "resumeThreshold"},
    ),
    Row(
        "hub:metrics",
        None,
        "hub:metrics_response",
        {
            *("messages_received", "messages_sent", "errors", "connections_opened"),
            *("connections_closed", "windowStart", "timestamp"),
        },
    ),
    Row(
        "hub:nonsense",
        None,
        "hub:error",
        {"code", "message", "resolution", "details", "retryable"},
    ),
    Row(
        "hub:register",
        {"actorAddress": "@(local/b)", "capabilities": ["x"], "metadata": {}, "ttlSeconds": 60},
        "hub:registered",
        {"actorAddress", "expiresAt", "renewalToken", "version"},
    ),
    Row(
        "hub:unregister",
        {"actorAddress": "@(local/a)"},
        "hub:unregistered",
        {"actorAddress", "unregisteredAt"},
        is_tell_answered=False,
    ),
    Row("hub:disconnect", None, "hub:disconnect", {"acknowledged"}),
]


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_18_request_gets_the_answer_of_the_table(stage: Stage, pattern: str) -> None:
    await stage.join("@(local/other)")
    peer = await stage.dial()
    token = (await peer.connect())["metadata"]["sessionToken"]
    await peer.register("@(local/a)")
    await peer.ask("hub:subscribe", {"topic": "news"})

    for row in TABLE:
        payload = {"token": token} if row.type == "hub:refresh_token" else row.payload
        message_id = peer.send(row.type, payload, pattern=pattern)
        if pattern == "tell" and not row.is_tell_answered:
            await peer.nothing_more()
            continue
        reply = await peer.receive(row.answer)
        assert row.members <= set(reply["payload"])
        assert reply["correlationId"] == message_id
        assert (reply["from"], reply["to"]) == (HUB, "@(local/a)")
