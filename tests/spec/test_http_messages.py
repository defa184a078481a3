"""The HTTP API for messages: publish, send, ask, read and pull without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.disk import held_disk
from tests.support.socket.http import JSON
from tests.support.socket.message_house import BASE, BILLING, ORDERS, House, bearer, house, refusal
from tests.support.socket.stage import spawn_stage
from tests.support.socket.tokens import AUTH, token_for
from tests.support.stage import registered

PRICES = "@(shop/prices)"


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with house() as one:
        yield one


async def test_a_durable_publish_is_answered_with_its_position(home: House) -> None:
    answer = await home.publish(key="k", headers={"a": "b"})
    assert answer.status == 200
    stored = answer.json
    assert (stored["topic"], stored["seq"], stored["durability"]) == ("orders", 1, "fsync")
    assert stored["id"]
    assert stored["epoch"]


async def test_a_plain_publish_is_answered_with_the_number_of_subscribers(home: House) -> None:
    bob = await home.stage.join("@(demo/bob)")
    await bob.ask("hub:subscribe", {"topic": "news"})
    answer = await home.post("publish", {"topic": "news", "type": "flash", "data": {"a": 1}})
    assert (answer.status, answer.json["subscriberCount"]) == (202, 1)
    heard = await bob.receive("flash")
    assert (heard["from"], heard["payload"]) == ("@(http/client)", {"a": 1})


@pytest.mark.parametrize("is_header", [True, False], ids=["header", "member"])
async def test_a_repeat_of_a_publish_is_stored_once(home: House, is_header: bool) -> None:
    headers = {"Idempotency-Key": "order-1"} if is_header else {}
    body = {"topic": "orders", "type": "order", "durable": True}
    answers = [
        await home.post("publish", body if is_header else body | {"id": "order-1"}, headers)
        for _ in range(2)
    ]
    assert [one.json["seq"] for one in answers] == [1, 1]
    assert [one.header("Idempotent-Replay") for one in answers] == [None, "true"]
    assert answers[1].json["duplicate"] is True
    assert {one.json["id"] for one in answers} == {"order-1"}


async def test_two_different_ids_are_refused(home: House) -> None:
    answer = await home.post(
        "publish",
        {"topic": "a", "type": "b", "id": "one"},
        {"Idempotency-Key": "another"},
    )
    assert refusal(answer) == (400, "BAD_REQUEST")


async def test_a_kill_between_a_publish_and_its_repeat_stores_it_once() -> None:
    async with spawn_stage() as stage:
        one = House(stage)
        body = {"topic": "orders", "type": "order", "data": 1, "durable": True, "id": "once"}
        first = await one.post("publish", body)
        one.web.close()
        await stage.kill()
        await stage.start()
        second = await one.post("publish", body)
        assert (first.json["seq"], second.json["seq"]) == (1, 1)
        assert second.json["duplicate"] is True
        page = (await one.get(f"{ORDERS}/messages")).json
        assert [message["seq"] for message in page["messages"]] == [1]
        one.web.close()


async def test_a_publish_during_which_the_log_fails_is_unknown_and_later_ones_are_not_stored(
    home: House, caplog: pytest.LogCaptureFixture
) -> None:
    await home.fill(1)
    with held_disk() as disk:
        disk.hold()
        doubtful = asyncio.create_task(home.publish(1, id="doubtful"))
        await disk.wait()
        disk.break_down()
        disk.release()
        assert refusal(await doubtful) == (500, "outcome_unknown")
    later = await home.publish(2)
    assert refusal(later) == (503, "storage_failed")
    assert [one["data"] for one in (await home.get(f"{ORDERS}/messages")).json["messages"]] == [0]
    caplog.clear()


async def test_a_delayed_message_comes_when_it_is_due(home: House) -> None:
    due = home.stage.clock.now_ms() + 3_600_000
    await home.publish("late", deliverAt=due)
    await home.publish("now")
    assert [one["data"] for one in await home.pull()] == ["now"]


# Batches.


async def test_a_batch_is_stored_in_order(home: House) -> None:
    batch = [
        {"topic": "orders", "type": "order", "data": number, "durable": True}
        for number in range(120)
    ]
    answer = await home.post("publish/batch", batch)
    assert answer.status == 200
    assert answer.json["failed"] == 0
    results = answer.json["results"]
    assert [one["seq"] for one in results] == list(range(1, 121))
    assert {one["status"] for one in results} == {200}
    page = (await home.get(f"{ORDERS}/messages?limit=200")).json
    assert [one["data"] for one in page["messages"]] == list(range(120))


async def test_a_batch_may_be_lines(home: House) -> None:
    lines = b'{"topic":"news","type":"a"}\n\n{"topic":"orders","type":"b","durable":true}\n'
    headers = {"Content-Type": "application/x-ndjson"}
    answer = await home.web.request("POST", f"{BASE}/publish/batch", headers, lines)
    assert [one["status"] for one in answer.json["results"]] == [202, 200]


async def test_what_is_wrong_in_a_batch_is_said_for_each_message(home: House) -> None:
    good = {"topic": "orders", "type": "order", "durable": True}
    batch = [good, {"topic": 7}, good | {"type": "hub:x"}, good | {"topic": "a/#"}, good]
    answer = await home.post("publish/batch", batch)
    results = answer.json["results"]
    assert [one["status"] for one in results] == [200, 400, 400, 400, 200]
    assert [one.get("seq") for one in results] == [1, None, None, None, 2]
    assert results[1]["errorCode"] == "BAD_REQUEST"
    assert answer.json["failed"] == 3


async def test_a_batch_with_a_key_can_be_repeated(home: House) -> None:
    batch = [{"topic": "orders", "type": "order", "durable": True}] * 2
    for duplicate in (None, True):
        answer = await home.post("publish/batch", batch, {"Idempotency-Key": "batch-1"})
        results = answer.json["results"]
        assert [one["seq"] for one in results] == [1, 2]
        assert [one.get("duplicate") for one in results] == [duplicate] * 2


async def test_too_large_a_batch_is_refused(home: House) -> None:
    item = {"topic": "orders", "type": "order"}
    assert refusal(await home.post("publish/batch", [item] * 1_001)) == (413, "TOO_LARGE")
    long = [item | {"data": "x" * 2**20}]
    assert refusal(await home.post("publish/batch", long)) == (413, "TOO_LARGE")
    assert (await home.post("publish/batch", [])).json == {"results": [], "failed": 0}
    assert refusal(await home.post("publish/batch", b"{")) == (400, "BAD_REQUEST")


async def test_a_message_above_the_limit_is_refused(home: House) -> None:
    assert refusal(await home.publish("x" * 2**20)) == (413, "message_too_large")


# Tells, asks and requests.


async def test_a_tell_is_forwarded_or_lost(home: House) -> None:
    bob = await home.stage.join("@(demo/bob)")
    body = {"to": "@(demo/bob)", "type": "hello", "data": [1], "from": "@(demo/alice)"}
    answer = await home.post("tell", body)
    assert (answer.status, [*answer.json]) == (202, ["id"])
    heard = await bob.receive("hello")
    assert (heard["from"], heard["payload"]) == ("@(demo/alice)", [1])
    assert (await home.post("tell", body | {"to": "@(demo/nobody)"})).status == 202


async def test_an_ask_is_answered_with_the_receipt(home: House) -> None:
    bob = await home.stage.join("@(demo/bob)")
    body = {"to": "@(demo/bob)", "type": "hello", "data": 1, "id": "ask-1"}
    first = await home.post("ask", body)
    assert (first.status, first.json["status"]) == (200, "delivered")
    await bob.receive("hello")
    again = await home.post("ask", body)
    assert again.header("Idempotent-Replay") == "true"
    answer = await home.post("ask", body | {"to": "@(demo/nobody)", "id": "ask-2"})
    assert refusal(answer) == (404, "unknown_actor")


async def test_an_ask_to_an_actor_that_is_away_waits_in_its_mailbox(home: House) -> None:
    bob = await home.stage.connect()
    await bob.ask(
        "hub:register",
        {"actorAddress": "@(demo/bob)", "capabilities": ["ack"], "durable": True},
    )
    await bob.ask("hub:disconnect")
    answer = await home.post("ask", {"to": "@(demo/bob)", "type": "hello"})
    assert (answer.status, answer.json["status"]) == (200, "queued")


async def reply(peer: Any, heard: Any, data: Any, **metadata: Any) -> None:
    about = {"inReplyTo": heard["metadata"]["originalMessageId"]} | metadata
    payload = {"to": heard["from"], "type": f"{heard['type']}.reply", "data": data}
    peer.send("hub:send", payload, metadata=about)


async def test_a_request_is_answered_with_the_reply(home: House) -> None:
    shop = await home.stage.join(PRICES)
    body = {"to": PRICES, "type": "price", "data": {"sku": 7}, "timeoutMs": 5_000}
    asked = asyncio.create_task(home.post("request", body))
    heard = await shop.receive("price")
    assert heard["payload"] == {"sku": 7}
    await reply(shop, heard, {"eur": 12})
    answer = (await asked).json
    assert (answer["from"], answer["type"], answer["data"]) == (
        *(PRICES, "price.reply"),
        {"eur": 12},
    )


async def test_a_request_that_fails_says_how(home: House) -> None:
    body = {"to": PRICES, "type": "price", "timeoutMs": 50}
    assert refusal(await home.post("request", body)) == (404, "unknown_actor")
    shop = await home.stage.join(PRICES)
    assert refusal(await home.post("request", body)) == (504, "no_reply")
    await shop.receive("price")
    asked = asyncio.create_task(home.post("request", body | {"timeoutMs": 5_000}))
    failure = {"code": "not_found", "text": "no such sku"}
    await reply(shop, await shop.receive("price"), None, failure=failure)
    answer = await asked
    assert refusal(answer) == (502, "request_failed")
    assert answer.json["error"] == "no such sku"
    assert answer.json["details"]["code"] == "not_found"


async def test_two_requests_with_one_id_reach_the_actor_once(home: House) -> None:
    shop = await home.stage.join(PRICES)
    body = {"to": PRICES, "type": "price", "id": "same", "timeoutMs": 5_000}
    other = House(home.stage)
    asked = [asyncio.create_task(one.post("request", body)) for one in (home, other)]
    heard = await shop.receive("price")
    # The second one has come when something after it has been answered.
    while len(home.stage.hub.app.callers._expected[heard["from"]]) < 2:
        await home.stage.health()
    await reply(shop, heard, 1)
    assert [(await one).json["data"] for one in asked] == [1, 1]
    assert (await home.post("request", body)).json["data"] == 1
    shop.tell(PRICES, "last")
    assert (await shop.receive())["type"] == "last"
    other.web.close()


# History and discovery.


async def test_a_topic_is_read_page_by_page(home: House) -> None:
    await home.fill(5)
    first = (await home.get(f"{ORDERS}/messages?limit=2")).json
    assert [one["data"] for one in first["messages"]] == [0, 1]
    assert (first["next"], first["complete"]) == (3, False)
    rest = (await home.get(f"{ORDERS}/messages?after={first['next'] - 1}")).json
    assert [one["seq"] for one in rest["messages"]] == [3, 4, 5]
    assert rest["complete"] is True
    message = rest["messages"][0]
    assert message["from"] == "@(http/client)"
    assert message["type"] == "order"
    assert message["publishedAt"] > 0


async def test_a_page_begins_where_one_says(home: House) -> None:
    await home.fill(3)

    async def seqs(start: str) -> list[int]:
        page = await home.get(f"{ORDERS}/messages?from={start}")
        assert page.status == 200, page.body
        return [one["seq"] for one in page.json["messages"]]

    assert await seqs("earliest") == [1, 2, 3]
    assert await seqs("latest") == []
    assert await seqs("2") == [2, 3]
    assert await seqs("2020-01-01T00:00:00Z") == [1, 2, 3]
    assert await seqs("2999-01-01T00:00:00%2B01:00") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=1001",
        "limit=1&limit=2",
        "after=-1",
        "after=1&from=2",
        "from=yesterday",
        "from=2020-99-01T00:00:00Z",
    ],
)
async def test_a_bad_query_is_refused(home: House, query: str) -> None:
    await home.fill(1)
    assert refusal(await home.get(f"{ORDERS}/messages?{query}")) == (400, "BAD_REQUEST")


async def test_an_unknown_topic_has_no_history(home: House) -> None:
    for query in ("", "?from=latest"):
        answer = await home.get(f"{BASE}/topics/none/messages{query}")
        assert refusal(answer) == (404, "unknown_topic")


async def test_a_topic_with_slashes_is_spelt_with_escapes(home: House) -> None:
    await home.publish(topic="a/b c")
    page = (await home.get(f"{BASE}/topics/a%2Fb%20c/messages")).json
    assert (page["topic"], len(page["messages"])) == ("a/b c", 1)


async def test_actors_are_found_by_pattern_and_capability(home: House) -> None:
    await home.stage.join("@(demo/bob)", "prices")
    await home.stage.join("@(shop/alice)", "other")

    async def found(query: str) -> list[str]:
        answer = (await home.get(f"{BASE}/actors{query}")).json
        return [one["address"] for one in answer["actors"]]

    assert await found("") == ["@(demo/bob)", "@(shop/alice)"]
    assert await found("?pattern=demo/*") == ["@(demo/bob)"]
    assert await found("?capability=other") == ["@(shop/alice)"]
    assert (await home.get(f"{BASE}/actors?limit=1")).json["hasMore"] is True
    assert refusal(await home.get(f"{BASE}/actors?limit=101")) == (400, "BAD_REQUEST")


# Pulling.


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "text/plain"}, b"{}", 415),
        (JSON, b"{", 400),
        (JSON, b"[]", 400),
        (JSON, b'{"topic":"a","type":"b","data":"\xff"}', 400),
        (JSON, b'{"topic":"a","type":"b","data":' + b"[" * 9_000 + b"]" * 9_000 + b"}", 400),
        (JSON, b'{"topic":"","type":"b"}', 400),
        (JSON, b'{"topic":"a","type":"hub:b"}', 400),
        (JSON, b'{"topic":"a","type":"b","from":"alice"}', 400),
    ],
    ids=["text", "no JSON", "array", "no UTF-8", "deep", "no topic", "hub type", "from"],
)
async def test_bad_bodies_are_refused(
    home: House, headers: Mapping[str, str], body: bytes, status: int
) -> None:
    answer = await home.web.request("POST", f"{BASE}/publish", headers, body)
    assert refusal(answer)[0] == status
    assert (await home.publish()).status == 200


async def test_rates_are_those_of_a_socket() -> None:
    async with house(message_rate=1, message_burst=2) as home:
        await home.fill(2)
        answer = await home.publish()
        assert refusal(answer) == (429, "rate_limited")
        assert answer.header("Retry-After") == "1"
        assert 0 < answer.json["retryAfterMs"] <= 1_000
        batch = await home.post("publish/batch", [{"topic": "orders", "type": "a"}])
        assert batch.json["results"][0]["status"] == 429
        assert refusal(await home.post(f"{BILLING}/pull", {}))[0] == 429


async def test_permissions_are_those_of_a_socket() -> None:
    async with house(FakeClock(), auth=AUTH) as home:
        stage = home.stage
        body = {"topic": "orders", "type": "order", "durable": True}
        answer = await home.post("publish", body)
        assert refusal(answer) == (401, "unauthorized")
        assert answer.header("WWW-Authenticate") == "Bearer"
        writer = bearer(stage, publish=["orders"], create=["orders"])
        assert (await home.post("publish", body, writer)).status == 200
        assert refusal(await home.post("publish", body | {"topic": "x"}, writer))[0] == 403
        assert refusal(await home.post("publish", body | {"from": PRICES}, writer))[0] == 403
        assert refusal(await home.get(f"{ORDERS}/messages", writer))[0] == 403
        assert refusal(await home.post(f"{BILLING}/pull", {}, bearer(stage, "carol")))[0] == 403
        reader = bearer(stage, "bob", subscribe=["orders"])
        page = (await home.get(f"{ORDERS}/messages", reader)).json
        assert page["messages"][0]["from"] == "@(local/eve)"
        assert len(await _pulled(home, reader)) == 1
        tell = {"to": PRICES, "type": "hello"}
        assert refusal(await home.post("tell", tell, writer))[0] == 403
        token = token_for("shop/prices", stage.clock, permissions={})
        await registered(await stage.connect(PRICES, authToken=token), PRICES)
        found = (await home.get(f"{BASE}/actors", writer)).json
        assert found["actors"] == []
        found = (await home.get(f"{BASE}/actors", bearer(stage, send=["shop/*"]))).json
        assert [one["address"] for one in found["actors"]] == [PRICES]


async def _pulled(home: House, headers: dict[str, str]) -> list[Any]:
    answer = await home.post(f"{BILLING}/pull", {}, headers)
    assert answer.status == 200, answer.body
    messages: list[Any] = answer.json["messages"]
    return messages


async def test_pages_of_other_origins_are_refused_and_allowed_ones_may_read() -> None:
    page = "https://app.example.org"
    async with house(origins=[page]) as home:
        body = {"topic": "news", "type": "a"}
        foreign = await home.post("publish", body, {"Origin": "https://evil.example.org"})
        assert foreign.status == 403
        own = await home.post("publish", body, {"Origin": "http://localhost"})
        assert own.status == 202
        allowed = await home.post("publish", body, {"Origin": page})
        assert allowed.header("Access-Control-Allow-Origin") == page
        described = await home.get("/openapi.json", {"Origin": page})
        assert described.header("Access-Control-Allow-Origin") == page
        asked = await home.web.request("OPTIONS", f"{BASE}/publish", {"Origin": page})
        assert asked.status == 204
        headers = (asked.header("Access-Control-Allow-Headers") or "").split(", ")
        assert {"Authorization", "Content-Type", "Idempotency-Key"} <= set(headers)


async def test_the_document_describes_messages_with_and_without_rooms() -> None:
    for is_enabled in (True, False):
        async with house(rooms={"enabled": is_enabled}) as home:
            document = json.loads((await home.get("/openapi.json")).body)
            assert f"{BASE}/publish" in document["paths"]
            assert ("/v1/room/metadata" in document["paths"]) is is_enabled


async def test_a_misspelt_member_is_refused_because_nothing_would_be_stored(home: House) -> None:
    message = {"topic": "orders", "type": "order", "durible": True}

    answer = await home.post("publish", message)

    assert answer.status == 400
    assert "durible" in answer.json["error"]
