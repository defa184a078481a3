"""Every request of a client: what goes out, what comes back, and what the caller gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from signalhub import Client, OutcomeUnknown
from signalhub.client import answers
from signalhub.client.delivery import Delivery
from signalhub.client.protocol.frame import FrameWriter, HeldBy, Payload, Request
from signalhub.client.requests import Ask
from signalhub.client.stream_requests import Ack, Nack, Source
from signalhub.clock import Ids
from tests.support.memory.client import ALICE, BOB, conversation, exchange, reconnected

HOST = "@(h/a)"
SECOND = "@(demo/second)"
BILLING = {"topic": "orders", "subscription": "billing"}
SHOWN = BILLING | {"mode": "shared", "floor": 3, "lag": 2, "lagSeconds": 1.5, "paused": True}
INFO = answers.SubscriptionInfo(
    topic="orders", name="billing", mode="shared", floor=3, lag=2, lag_s=1.5, paused=True
)
OLD = answers.Original(epoch=7, offset=3, id="m", type="order", sender=BOB, data={"n": 1})
UNTIL = {"epoch": 7, "offset": 900}


class Row(NamedTuple):
    """One request and its answer."""

    call: Callable[[Client], Awaitable[object]]
    sent: dict[str, Any]
    answer: str
    facts: dict[str, Any]
    result: object


# Each is named after its type, with a word more if there are several.
ROWS = {
    "hub:send": Row(
        lambda me: me.ask(BOB, "task", {"n": 1}),
        {"to": BOB, "type": "task", "data": {"n": 1}},
        "hub:delivery_ack",
        {"messageId": "m"},
        answers.Receipt(message_id="m"),
    ),
    "hub:send fenced": Row(
        lambda me: me.ask(HOST, "call", fences={"order/1": 3}),
        {"to": HOST, "type": "call", "data": None, "fences": {"order/1": 3}},
        "hub:delivery_ack",
        {"messageId": "m", "status": "queued", "epoch": "1.4", "seq": 9, "durability": "fsync"},
        answers.Receipt(message_id="m", status="queued", epoch="1.4", seq=9, durability="fsync"),
    ),
    "hub:publish": Row(
        lambda me: me.publish("news", "item", 1),
        {"topic": "news", "type": "item", "data": 1},
        "hub:published",
        {"topic": "news", "subscriberCount": 4},
        answers.Published(topic="news", subscribers=4),
    ),
    "hub:publish durable": Row(
        lambda me: me.publish("orders", "order", 1, durable=True, headers={"a": "b"}),
        {"topic": "orders", "type": "order", "data": 1, "durable": True, "headers": {"a": "b"}},
        "hub:published",
        {"topic": "orders", "epoch": "e", "seq": 7, "duplicate": True},
        answers.Published(topic="orders", epoch="e", seq=7, duplicate=True),
    ),
    "hub:publish later": Row(
        lambda me: me.publish("t", "x", key="k", deliver_at=datetime(2026, 1, 2, tzinfo=UTC)),
        {"topic": "t", "type": "x", "data": None, "key": "k", "deliverAt": 1767312000000},
        "hub:published",
        {},
        answers.Published(),
    ),
    "hub:broadcast": Row(
        lambda me: me.broadcast("hi", 1, exclude_self=True),
        {"type": "hi", "data": 1, "excludeSelf": True},
        "hub:broadcast_ack",
        {"messageId": "m", "deliveredCount": 2, "failedCount": 1, "queuedCount": 3},
        answers.BroadcastResult(message_id="m", delivered=2, failed=1, queued=3),
    ),
    "hub:register": Row(
        lambda me: me.register(SECOND, capabilities=("x",), metadata={"k": 1}, lease_s=60),
        {"actorAddress": SECOND, "capabilities": ["x"], "metadata": {"k": 1}, "ttlSeconds": 60},
        "hub:registered",
        {"actorAddress": SECOND, "expiresAt": 9, "version": 2},
        answers.Registration(address=SECOND, expires_at=9, version=2),
    ),
    "hub:register durable": Row(
        lambda me: me.register(SECOND, durable=True),
        {"actorAddress": SECOND, "capabilities": [], "metadata": {}, "durable": True},
        "hub:registered",
        {"actorAddress": SECOND, "durable": True, "waiting": 3},
        answers.Registration(address=SECOND, durable=True, waiting=3),
    ),
    "hub:unregister": Row(
        lambda me: me.unregister(SECOND), {"actorAddress": SECOND}, "hub:unregistered", {}, None
    ),
    "hub:unsubscribe": Row(
        lambda me: me.unsubscribe("news/#"), {"topic": "news/#"}, "hub:unsubscribed", {}, None
    ),
    "hub:discover": Row(
        lambda me: me.discover("demo/*", capability="chat", include_away=True),
        {"pattern": "demo/*", "limit": 50, "capability": "chat", "includeAway": True},
        "hub:discovered",
        {"actors": [{"address": BOB, "away": True}], "hasMore": True},
        answers.Found(actors=(answers.Actor(address=BOB, away=True),), has_more=True),
    ),
    "hub:list_actors": Row(
        lambda me: me.actors(offset=1),
        {"offset": 1, "limit": 100},
        "hub:actor_list",
        {"actors": [{"actorAddress": BOB}], "total": 2},
        answers.ActorPage(actors=(answers.ListedActor(address=BOB),), total=2),
    ),
    "hub:queue_stats": Row(
        lambda me: me.queue_stats(),
        {},
        "hub:queue_stats_response",
        {"queueDepth": 3, "pauseThreshold": 1000},
        answers.QueueStats(queue_depth=3, pause_threshold=1000),
    ),
    "hub:metrics": Row(lambda me: me.metrics(), {}, "hub:metrics_response", {"a": 1}, {"a": 1}),
    "hub:limits": Row(
        lambda me: me.limits("ann", top=5),
        {"limit": 5, "identity": "ann"},
        "hub:limits_response",
        {"resources": [{"resource": "topics", "identities": [{"identity": "ann", "used": 2}]}]},
        answers.LimitUsage(
            resources=(
                answers.ResourceUsage(
                    resource="topics", identities=(answers.UsedBy(identity="ann", used=2),)
                ),
            )
        ),
    ),
    "hub:refresh_token": Row(
        lambda me: me.refresh_token("old"),
        {"token": "old"},
        "hub:token_refreshed",
        {"token": "new", "expiresAt": 9},
        answers.RefreshedToken(token="new", expires_at=9),
    ),
    "hub:topic_create": Row(
        lambda me: me.create_topic("orders", poison="dead_letter", dead_letter="bad"),
        {"topic": "orders", "durable": True, "poison": "dead_letter", "deadLetter": "bad"},
        "hub:topic_created",
        {"topic": "orders", "epoch": "e"},
        answers.Topic(name="orders", epoch="e"),
    ),
    "hub:topic_update": Row(
        lambda me: me.update_topic("orders", retention_s=60, retention_bytes=9, heartbeat_s=0.5),
        {"topic": "orders", "retention": {"ageSeconds": 60, "bytes": 9}, "heartbeatMs": 500},
        "hub:topic_info_response",
        {"topic": "orders", "retention": {"ageSeconds": 60}, "heartbeatMs": 500},
        answers.Topic(name="orders", retention=answers.Retention(age_s=60), heartbeat_ms=500),
    ),
    "hub:topic_info": Row(
        lambda me: me.topic("orders"),
        {"topic": "orders"},
        "hub:topic_info_response",
        {"topic": "orders", "head": 7, "subscriptions": ["billing"]},
        answers.Topic(name="orders", head=7, subscriptions=("billing",)),
    ),
    "hub:list_topics": Row(
        lambda me: me.topics("o*"),
        {"pattern": "o*", "offset": 0, "limit": 100},
        "hub:topic_list",
        {"topics": [{"topic": "orders"}], "hasMore": True},
        answers.TopicPage(topics=(answers.Topic(name="orders"),), has_more=True),
    ),
    "hub:topic_delete": Row(
        lambda me: me.delete_topic("orders"), {"topic": "orders"}, "hub:topic_deleted", {}, None
    ),
    "hub:sub_info": Row(
        lambda me: me.subscription("orders", "billing"),
        BILLING,
        "hub:sub_info_response",
        SHOWN,
        INFO,
    ),
    "hub:sub_update": Row(
        lambda me: me.update_subscription("orders", "billing", window=3),
        BILLING | {"window": 3},
        "hub:sub_info_response",
        SHOWN,
        INFO,
    ),
    "hub:sub_pause": Row(
        lambda me: me.pause("orders", "billing"), BILLING, "hub:sub_info_response", SHOWN, INFO
    ),
    "hub:sub_resume": Row(
        lambda me: me.resume("orders", "billing"), BILLING, "hub:sub_info_response", SHOWN, INFO
    ),
    "hub:sub_delete": Row(
        lambda me: me.delete_subscription("orders", "billing"),
        BILLING,
        "hub:sub_info_response",
        SHOWN,
        None,
    ),
    "hub:sub_delete elsewhere": Row(
        lambda me: me.delete_subscription("orders", "b"),
        {"topic": "orders", "subscription": "b"},
        "hub:sub_deleted",
        {},
        None,
    ),
    "hub:list_subs": Row(
        lambda me: me.subscriptions("orders"),
        {"topic": "orders", "offset": 0, "limit": 100},
        "hub:sub_list",
        {"subscriptions": [SHOWN]},
        answers.SubscriptionPage(subscriptions=(INFO,)),
    ),
    "hub:seek": Row(
        lambda me: me.seek("orders", "billing", 3),
        BILLING | {"to": {"seq": 3}},
        "hub:sought",
        {"epoch": "e", "next": 3, "willSkip": 2},
        answers.Sought(epoch="e", next=3, will_skip=2),
    ),
    "hub:seek planned": Row(
        lambda me: me.seek("orders", "billing", "earliest", dry_run=True),
        BILLING | {"to": "earliest", "dryRun": True},
        "hub:sought",
        {"next": 1, "willReplay": 5},
        answers.Sought(next=1, will_replay=5),
    ),
    "hub:redrive": Row(
        lambda me: me.redrive("t.dlq"),
        {"topic": "t.dlq", "all": True},
        "hub:redriven",
        {"count": 4},
        4,
    ),
    "hub:redrive chosen": Row(
        lambda me: me.redrive(
            "t.dlq", [3], reason="busy", died_to=1_760_000_000_000, edits={3: {"data": 1}}
        ),
        {
            "topic": "t.dlq",
            "filter": {"reason": "busy", "to": 1_760_000_000_000, "seqs": [3]},
            "edits": {"3": {"data": 1}},
        },
        "hub:redriven",
        {"count": 1},
        1,
    ),
    "hub:redrive planned": Row(
        lambda me: me.preview_redrive("t.dlq", through=7, epoch="e"),
        {"topic": "t.dlq", "filter": {}, "through": 7, "epoch": "e", "dryRun": True},
        "hub:redriven",
        {
            "count": 1,
            "through": 7,
            "byReason": [{"reason": "a", "count": 1}],
            "first": [{"seq": 1, "type": None}],
        },
        answers.LettersPreview(
            count=1,
            through=7,
            by_reason=(answers.ReasonCount(reason="a", count=1),),
            first=(answers.ChosenLetter(seq=1),),
        ),
    ),
    "hub:list_jobs": Row(
        lambda me: me.jobs(),
        {"limit": 100},
        "hub:job_list",
        {"jobs": [{"job": "j", "state": "done", "beganAt": 5}], "total": 1},
        answers.JobPage(jobs=(answers.Job(job="j", state="done", began_at=5),), total=1),
    ),
    "hub:purge": Row(
        lambda me: me.purge("t.dlq", [1, 3]),
        {"topic": "t.dlq", "seqs": [1, 3]},
        "hub:purged",
        {"count": 2},
        2,
    ),
    "hub:republish": Row(
        lambda me: me.republish("j", [OLD], until=(7, 900), topic="orders", subscription="billing"),
        {"job": "j", "until": UNTIL, "to": BILLING, "messages": [msgspec.to_builtins(OLD)]},
        "hub:republished",
        {"job": "j", "position": {"shard": 0, "epoch": 7, "offset": 3}, "appended": 1},
        answers.Republished(job="j", position=answers.OriginalPosition(0, 7, 3), appended=1),
    ),
    "hub:republish to an actor": Row(
        lambda me: me.republish("j", until=(7, 900), actor=BOB, ended=True),
        {"job": "j", "until": UNTIL, "to": {"actor": BOB}, "messages": [], "ended": True},
        "hub:republished",
        {},
        answers.Republished(),
    ),
    "hub:erase": Row(
        lambda me: me.erase(actor=BOB),
        {"actor": BOB},
        "hub:erased",
        {"entries": 3, "mailbox": True},
        answers.Erased(entries=3, mailbox=True),
    ),
    "hub:place": Row(
        lambda me: me.place(["order/1", "stock/1"], host=HOST, tokens={"order/1": 4}),
        {"actors": ["order/1", "stock/1"], "host": HOST, "tokens": {"order/1": 4}},
        "hub:placed",
        {
            "places": [{"actor": "order/1", "host": HOST, "token": 5, "since": 5}],
            "unplaced": [{"actor": "stock/1", "code": "no_host", "message": "nobody"}],
        },
        answers.Placements(
            (answers.Place("order/1", HOST, 5),),
            (answers.Unplaced("stock/1", "no_host", "nobody"),),
        ),
    ),
    "hub:move": Row(
        lambda me: me.move("order/1", 3, HOST),
        {"actor": "order/1", "token": 3, "to": HOST},
        "hub:moved",
        {"actor": "order/1", "host": HOST, "token": 4},
        answers.Place("order/1", HOST, 4),
    ),
    "hub:forget_place": Row(
        lambda me: me.forget_place("order/1"),
        {"actor": "order/1"},
        "hub:place_forgotten",
        {"actor": "order/1", "host": HOST, "token": 4},
        answers.Place("order/1", HOST, 4),
    ),
}
# Done twice they would not be what they are when done once.
ONCE = {
    *("hub:publish", "hub:publish later", "hub:topic_delete", "hub:sub_delete"),
    *("hub:sub_delete elsewhere", "hub:seek", "hub:redrive", "hub:purge", "hub:forget_place"),
    "hub:redrive chosen",
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_request_says_what_was_asked_for_and_its_answer_is_read(name: str) -> None:
    row = ROWS[name]
    async with conversation() as (_, peer, me):
        request, result = await exchange(row.call(me), peer, name.split()[0], row.answer, row.facts)

    assert (request["payload"], request["pattern"]) == (row.sent, "ask")
    assert result == row.result


@pytest.mark.parametrize("name", ROWS)
async def test_a_request_without_an_answer_is_sent_again_unless_twice_is_wrong(name: str) -> None:
    row = ROWS[name]
    async with conversation() as (hub, peer, me):
        calling = asyncio.ensure_future(row.call(me))
        request = await peer.receive(name.split()[0])
        peer.abort()
        peer = await reconnected(hub)
        if name in ONCE:
            with pytest.raises(OutcomeUnknown, match="lost before the hub answered"):
                await calling
            return
        assert await peer.receive() == request
        peer.answer(request, row.answer, row.facts)
        await calling


async def test_answers_are_counted_listed_and_iterated() -> None:
    found = ROWS["hub:discover"].result
    topics = ROWS["hub:list_topics"].result
    subscriptions = ROWS["hub:list_subs"].result
    assert isinstance(found, answers.Found)
    assert isinstance(topics, answers.TopicPage)
    assert isinstance(subscriptions, answers.SubscriptionPage)

    assert (len(found), list(found), found[0].address) == (1, [found[0]], BOB)
    assert (len(topics), [topic.name for topic in topics]) == (1, ["orders"])
    assert (len(subscriptions), list(subscriptions)) == (1, [INFO])
    assert answers.Receipt(message_id="m").is_delivered
    assert not answers.Receipt(message_id="m", status="queued").is_delivered


async def test_a_capability_narrows_a_broadcast_through_its_metadata() -> None:
    async with conversation() as (_, peer, me):
        broadcast = me.broadcast("hi", capability="chat")
        request, _ = await exchange(broadcast, peer, "hub:broadcast", "hub:broadcast_ack", {})

    assert request["metadata"] == {"targetCapability": "chat"}


async def test_a_token_that_is_exchanged_is_used_from_then_on() -> None:
    async with conversation(token="old") as (hub, peer, me):
        facts = {"token": "new"}
        request, _ = await exchange(
            me.refresh_token(), peer, "hub:refresh_token", "hub:token_refreshed", facts
        )
        peer.abort()
        peer = await hub.accept()
        hello = await peer.receive("hub:connect")

    assert request["payload"] == {"token": "old"}
    assert hello["metadata"]["authToken"] == "new"


async def test_an_invalid_call_is_refused_before_anything_is_sent() -> None:
    mode: Any = "all"
    start: Any = "now"
    attempts: list[tuple[Callable[[Client], Any], str]] = [
        (lambda me: me.refresh_token(), "no token to exchange"),
        (lambda me: me.register(SECOND, capabilities="chat"), "list of words"),
        (lambda me: me.consume("orders", ""), "subscription"),
        (lambda me: me.consume("orders", "billing", mode=mode), "mode"),
        (lambda me: me.consume("orders", "billing", start=start), "'earliest'"),
        (lambda me: me.consume("orders", "billing", window=0), "at least 1"),
        (lambda me: me.consume("orders", "billing", consumer="x" * 300), "consumer"),
        (lambda me: me.replay("orders", 0), "from_seq must be"),
        (lambda me: me.replay("orders", 3, 2), "to_seq must not"),
        (lambda me: me.replay("orders", limit=0), "limit must be"),
    ]
    async with conversation() as (_, peer, me):
        for attempt, complaint in attempts:
            with pytest.raises(ValueError, match=complaint):
                await attempt(me)
        assert peer.has_heard_nothing()


def written(payload: Payload[Any], **options: Any) -> Request:
    return FrameWriter(ALICE, Ids()).request(payload, 77, **options)


def test_the_members_of_a_frame_are_where_the_hub_looks_for_them() -> None:
    options: dict[str, Any] = {"ttl_ms": 500, "metadata": {"traceId": "t"}, "message_id": "mine"}
    request = written(Ask(BOB, "task", {"n": 1}), timeout_s=5, attempts=4, **options)

    assert json.loads(request.frame) == {
        "id": "mine",
        "from": ALICE,
        "to": "@(cloudflare/signal-hub)",
        "type": "hub:send",
        "payload": {"to": BOB, "type": "task", "data": {"n": 1}},
        "pattern": "ask",
        "correlationId": None,
        "timestamp": 77,
        "metadata": {"traceId": "t"},
        "ttl": 500,
        "signature": None,
    }
    assert (request.id, request.timeout_s, request.attempts) == ("mine", 5, 4)


def test_settlements_name_one_attempt_or_several() -> None:
    source = Source(topic="orders", subscription="billing")
    named = [Delivery(epoch="e", seq=seq, id=f"1.{seq}.1") for seq in (1, 2)]
    nameless = [Delivery(epoch="e", seq=seq) for seq in (1, 2)]
    rows: list[tuple[Payload[Any], dict[str, Any]]] = [
        (Nack.of(source, named[:1], reason="busy"), {"seq": 1, "id": "1.1.1", "reason": "busy"}),
        (Ack.of(source, named), {"seqs": [1, 2], "ids": ["1.1.1", "1.2.1"]}),
        (Ack.of(source, nameless), {"seqs": [1, 2]}),
    ]

    for settlement, members in rows:
        told, asked = written(settlement, wait=False), written(settlement)
        frame = json.loads(told.frame)
        assert frame["payload"] == BILLING | {"epoch": "e"} | members
        assert (frame["pattern"], told.answer, told.kind) == ("tell", None, HeldBy.EXEMPT)
        assert (json.loads(asked.frame)["pattern"], asked.answer) == ("ask", settlement.ANSWER)
