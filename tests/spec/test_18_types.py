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
    members: str
    is_tell_answered: bool = True


REGISTRATION = {"actorAddress": "@(local/b)", "capabilities": ["x"], "metadata": {}}
TO_OTHER = {"to": "@(local/other)", "type": "x", "data": 1}
TO_NOBODY = {"to": "@(no/body)", "type": "x", "data": 1}
TO_ALL = {"type": "x", "data": 1, "excludeSelf": True}
QUEUE = "queueDepth processingRate pauseThreshold resumeThreshold"
COUNTERS = "messages_received messages_sent errors connections_opened connections_closed"
LEFT = "actorAddress unregisteredAt"
TABLE = [
    Row("heartbeat", {"timestamp": 1}, "heartbeat_ack", "timestamp serverTime"),
    Row("refresh_token", None, "token_refreshed", "token expiresAt"),
    Row("renew", None, "renewed", "expiresAt renewalToken"),
    Row("discover", {"pattern": "*"}, "discovered", "actors hasMore"),
    Row("list_actors", {"limit": 10}, "actor_list", "actors total offset limit hasMore"),
    Row("send", TO_OTHER, "delivery_ack", "messageId deliveredAt status", False),
    Row("send", TO_NOBODY, "unknown_actor", "actorAddress message", False),
    Row("broadcast", TO_ALL, "broadcast_ack", "messageId deliveredCount failedCount"),
    Row("subscribe", {"topic": "other", "durable": False}, "subscribed", "topic subscriptionId"),
    Row("unsubscribe", {"topic": "news"}, "unsubscribed", "topic unsubscribedAt", False),
    Row("publish", {"topic": "empty", "type": "x"}, "published", "topic subscriberCount"),
    Row("queue_stats", None, "queue_stats_response", QUEUE),
    Row("metrics", None, "metrics_response", COUNTERS + " windowStart timestamp"),
    Row("nonsense", None, "error", "code message resolution details retryable"),
    Row("register", REGISTRATION, "registered", "actorAddress expiresAt renewalToken version"),
    Row("unregister", {"actorAddress": "@(local/a)"}, "unregistered", LEFT, False),
    Row("disconnect", None, "disconnect", "acknowledged"),
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
        payload = {"token": token} if row.type == "refresh_token" else row.payload
        message_id = peer.send(f"hub:{row.type}", payload, pattern=pattern)
        if pattern == "tell" and not row.is_tell_answered:
            await peer.nothing_more()
            continue
        reply = await peer.receive(f"hub:{row.answer}")
        assert set(row.members.split()) <= set(reply["payload"])
        assert reply["correlationId"] == message_id
        assert (reply["from"], reply["to"]) == (HUB, "@(local/a)")
