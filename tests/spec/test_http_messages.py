"""The HTTP API for messages: publish, send, ask, read and pull without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from signalhub.core.subscriptions.consumers import Consumers
from signalhub.server.messages import pulls
from signalhub.testing import FakeClock
from tests.support.socket.disk import held_disk
from tests.support.socket.http import JSON, Answer, Web
from tests.support.socket.stage import InProcess, run_stage, spawn_stage
from tests.support.socket.tokens import AUTH, token_for
from tests.support.stage import registered

PRICES = "@(shop/prices)"
BASE = "/api/hub/v1"
ORDERS = f"{BASE}/topics/orders"
BILLING = f"{ORDERS}/subscriptions/billing"


class House:
    """A hub with one HTTP client."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.web = Web(stage.port)

    async def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        path = path if path.startswith("/") else f"{BASE}/{path}"
        return await self.web.post(path, body, headers or {})

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.web.get(path, headers or {})

    async def publish(self, data: Any = 7, **more: Any) -> Answer:
        body = {"topic": "orders", "type": "order", "data": data, "durable": True}
        return await self.post("publish", body | more)

    async def fill(self, count: int) -> None:
        for number in range(count):
            assert (await self.publish(number)).status == 200

    async def pull(self, path: str = BILLING, **body: Any) -> list[Any]:
        answer = await self.post(f"{path}/pull", body)
        assert answer.status == 200, answer.body
        messages: list[Any] = answer.json["messages"]
        return messages

    @property
    def consumers(self) -> Consumers:
        """Those of the subscription."""
        topic = self.stage.hub.app.hub.streams.topics["orders"]
        consumers: Consumers = topic.subscriptions["billing"].consumers
        return consumers

    async def until_pulled_from(self, count: int = 1) -> None:
        """Wait until so many pulls wait for messages."""
        async with asyncio.timeout(10):
            while sum(bool(one.asked) for one in self.consumers.all) < count:
                await self.stage.health()

    async def settle(self, how: str, **body: Any) -> Any:
        answer = await self.post(f"{BILLING}/{how}", body)
        assert answer.status == 200, answer.body
        return answer.json


@asynccontextmanager
async def house(clock: FakeClock | None = None, **settings: Any) -> AsyncIterator[House]:
    async with run_stage(clock, **settings) as stage:
        one = House(stage)
        try:
            yield one
        finally:
            one.web.close()


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with house() as one:
        yield one


@asynccontextmanager
async def staff(home: House) -> AsyncIterator[list[House]]:
    """Two programs more, at the same hub."""
    workers = [House(home.stage) for _ in range(2)]
    yield workers
    for one in workers:
        one.web.close()


@pytest.fixture
async def workers(home: House) -> AsyncIterator[list[House]]:
    async with staff(home) as every:
        yield every


def bearer(stage: InProcess, name: str = "eve", **permissions: list[str]) -> dict[str, str]:
    token = token_for(f"local/{name}", stage.clock, permissions=permissions)
    return {"Authorization": f"Bearer {token}"}


def refusal(answer: Answer) -> tuple[int, str]:
    body = answer.json
    assert body["error"]
    assert answer.header("Cache-Control") == "no-store"
    return answer.status, body["errorCode"]


# Publishing.


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


async def test_messages_are_pulled_and_acknowledged(home: House) -> None:
    await home.fill(3)
    first = await home.pull(max=2)
    assert [(one["seq"], one["data"], one["attempt"]) for one in first] == [(1, 0, 1), (2, 1, 1)]
    acked = await home.settle("ack", seqs=[1, 2])
    assert acked == {"floor": 2, "accepted": 2, "ignored": []}
    assert [one["seq"] for one in await home.pull()] == [3]
    assert await home.pull() == []


async def test_nothing_is_sent_that_nobody_asked_for(home: House) -> None:
    await home.fill(5)
    alice = await home.stage.join("@(demo/alice)")
    name = {"topic": "orders", "subscription": "billing"}

    async def in_flight() -> int:
        count: int = (await alice.ask("hub:sub_info", name))["payload"]["inFlight"]
        return count

    await home.pull(max=1)
    assert await in_flight() == 1
    await home.settle("ack", seq=1)
    assert await in_flight() == 0
    # The same for a consumer that comes later.
    for caller in [*home.stage.hub.app.callers._callers.values()]:
        caller.end()
    await home.pull(max=1)
    assert await in_flight() == 1


async def test_a_pull_waits_for_the_first_message(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    waiting = asyncio.create_task(home.pull(waitMs=20_000))
    other = House(home.stage)
    await home.until_pulled_from()
    await other.publish("next")
    assert [one["data"] for one in await waiting] == ["next"]
    other.web.close()


async def test_pulls_of_one_token_wait_at_the_same_time_and_share_the_messages(
    home: House, workers: list[House]
) -> None:
    await home.publish("first")
    assert len(await home.pull()) == 1
    waiting = [asyncio.create_task(one.pull(max=1, waitMs=20_000)) for one in workers]
    await home.until_pulled_from(2)
    # Neither waits for the other, nor do those who do not wait.
    assert await home.pull() == []
    for data in ("one", "two"):
        await home.publish(data)
    taken = [message for one in waiting for message in await one]
    assert sorted(one["data"] for one in taken) == ["one", "two"]
    for one in taken:
        extended = await home.settle("extend", seq=one["seq"], ms=60_000, id=one["deliveryId"])
        assert extended["accepted"] == 1
    assert (await home.settle("ack", seqs=[1, 2, 3]))["floor"] == 3


async def test_only_so_many_pulls_of_one_token_wait(
    home: House, workers: list[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "PULLS_MAX", 2)
    await home.fill(1)
    await home.pull()
    waiting = [asyncio.create_task(one.pull(max=1, waitMs=20_000)) for one in workers]
    await home.until_pulled_from(2)
    answer = await home.post(f"{BILLING}/pull", {"waitMs": 20_000})
    assert refusal(answer) == (429, "limit_exceeded")
    assert answer.header("Retry-After") == "1"
    for number in range(2):
        await home.publish(number)
    assert [len(await one) for one in waiting] == [1, 1]
    assert await home.pull() == []


@pytest.mark.parametrize("mode", ["exclusive", "failover"])
async def test_where_only_one_consumer_gets_messages_pulls_take_turns(
    home: House, workers: list[House], mode: str
) -> None:
    await home.fill(1)
    await home.pull(mode=mode)
    first = asyncio.create_task(workers[0].pull(waitMs=20_000))
    await home.until_pulled_from()
    for wait_ms in (0, 20):
        answer = await home.post(f"{BILLING}/pull", {"waitMs": wait_ms})
        assert refusal(answer) == (409, "subscription_busy")
    second = asyncio.create_task(workers[1].pull(waitMs=20_000))
    await home.publish("one")
    assert [one["data"] for one in await first] == ["one"]
    await home.until_pulled_from()
    await home.publish("two")
    assert [one["data"] for one in await second] == ["two"]


async def test_consumers_of_pulls_that_are_over_are_used_again_and_leave() -> None:
    clock = FakeClock()
    async with house(clock) as home, staff(home) as workers:
        await home.fill(1)
        await home.pull()
        consumers = home.consumers
        for _ in range(2):
            waiting = [asyncio.create_task(one.pull(max=1, waitMs=20_000)) for one in workers]
            await home.until_pulled_from(2)
            for number in range(2):
                await home.publish(number)
            seqs = [message["seq"] for one in waiting for message in await one]
            await home.settle("ack", seqs=seqs)
            assert len(consumers.all) == 2
        await home.settle("ack", seq=1)
        clock.advance(61)
        await home.pull()
        assert len(consumers.all) == 1


async def test_no_key_waits_for_the_consumer_of_a_pull_that_is_over(
    home: House, workers: list[House]
) -> None:
    await home.publish(key="k-0")
    assert len(await home.pull(mode="key-shared")) == 1
    await home.settle("ack", seq=1)
    waiting = [asyncio.create_task(one.pull(waitMs=20_000)) for one in workers]
    await home.until_pulled_from(2)
    for number in range(16):
        await home.publish(key=f"k-{number}")
    taken = [message["seq"] for one in waiting for message in await one]
    while taken:
        await home.settle("ack", seqs=taken)
        taken = [message["seq"] for message in await home.pull()]
    for number in range(16):
        await home.publish(key=f"k-{number}")
    assert len(await home.pull()) == 16


async def test_a_pull_gets_no_more_than_it_asked_for_whatever_is_settled_meanwhile(
    home: House, workers: list[House]
) -> None:
    await home.fill(4)
    assert len(await home.pull()) == 4
    waiting = asyncio.create_task(workers[0].pull(max=1, waitMs=20_000))
    await home.until_pulled_from()
    await home.settle("ack", seqs=[1, 2, 3, 4])
    batch = [{"topic": "orders", "type": "order", "durable": True}] * 5
    await home.post("publish/batch", batch)
    assert [one["seq"] for one in await waiting] == [5]


async def test_what_waits_for_another_attempt_keeps_nothing_else_waiting(home: House) -> None:
    await home.fill(3)
    await home.pull(max=1)
    await home.settle("nack", seq=1, delayMs=60_000)
    assert [one["seq"] for one in await home.pull(max=1)] == [2]


async def test_a_pull_whose_place_is_taken_at_once_is_refused(home: House) -> None:
    await home.fill(1)
    alice = await home.stage.join("@(demo/alice)")
    (caller,) = home.stage.hub.app.callers._callers.values()
    name = f"http-{caller.session.id[-12:]}"
    with home.stage.held_disk():
        pulled = asyncio.create_task(home.post(f"{BILLING}/pull", {"waitMs": 20_000}))
        while "billing" not in home.stage.hub.app.hub.streams.topics["orders"].subscriptions:
            await home.stage.health()
        # Answered in the same step as the pull's own.
        place = {"topic": "orders", "subscription": "billing", "consumer": name}
        alice.send("hub:subscribe", place)
        await alice.ask("hub:discover", {"pattern": "*"})
    assert refusal(await pulled) == (409, "not_a_consumer")


async def test_what_is_not_acknowledged_comes_again_after_the_timeout() -> None:
    clock = FakeClock()
    dispatch = {"ack_timeout_ms": 1_000, "backoff_ms": 1}
    async with house(clock, dispatch=dispatch) as home:
        await home.fill(2)
        assert len(await home.pull()) == 2
        await home.settle("ack", seq=1)
        assert await home.pull() == []
        # First the timeout, then the pause after it.
        for _ in range(2):
            await home.stage.pass_time(2)
        (again,) = await home.pull(waitMs=5_000)
        assert (again["seq"], again["attempt"], again["redelivered"]) == (2, 2, True)


async def test_a_nack_brings_it_again_and_a_term_ends_it(home: House) -> None:
    await home.fill(2)
    first, second = await home.pull()
    nacked = await home.settle("nack", seq=first["seq"], attempt=1, delayMs=0, reason="busy")
    assert nacked["accepted"] == 1
    termed = await home.settle("term", seq=second["seq"], reason="broken")
    assert termed["accepted"] == 1
    (again,) = await home.pull(waitMs=10_000)
    assert (again["seq"], again["attempt"]) == (1, 2)
    extended = await home.settle("extend", seq=1, ms=60_000, id=again["deliveryId"])
    assert extended["accepted"] == 1
    assert (await home.settle("extend", seq=2, ms=60_000))["ignored"] == [2]


async def test_a_window_bounds_what_is_unsettled(home: House) -> None:
    await home.fill(3)
    assert len(await home.pull(window=2)) == 2
    assert await home.pull(window=2) == []
    await home.settle("ack", seq=1)
    assert len(await home.pull(window=2)) == 1


async def test_who_pulls_shares_a_subscription_with_sockets() -> None:
    async with house() as home:
        await home.fill(1)
        await home.pull()
        alice = await home.stage.join("@(demo/alice)")
        name = {"topic": "orders", "subscription": "billing"}
        welcome = (await alice.ask("hub:subscribe", name))["payload"]
        assert welcome["mode"] == "shared"
        answer = await home.post(f"{BILLING}/pull", {"mode": "exclusive"})
        assert answer.status == 200
        other = f"{ORDERS}/subscriptions/other"
        await alice.ask("hub:subscribe", name | {"subscription": "other"})
        answer = await home.post(f"{other}/pull", {})
        assert refusal(answer) == (409, "subscription_busy")


async def test_a_subscription_and_its_unsettled_messages_survive_a_restart() -> None:
    async with house() as home:
        await home.fill(2)
        await home.pull()
        await home.settle("ack", seq=1)
        home.web.close()
        await home.stage.stop()
        await home.stage.start()
        assert (await home.settle("ack", seq=1))["floor"] == 1
        (again,) = await home.pull(waitMs=5_000)
        assert again["seq"] == 2
        assert (await home.settle("ack", seq=2))["floor"] == 2


async def test_what_ends_a_subscription_ends_the_pull(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    waiting = asyncio.create_task(home.post(f"{BILLING}/pull", {"waitMs": 20_000}))
    alice = await home.stage.join("@(demo/alice)")
    await home.until_pulled_from()
    await alice.ask("hub:sub_delete", {"topic": "orders", "subscription": "billing"})
    assert refusal(await waiting) == (409, "not_a_consumer")


async def test_who_disconnects_while_waiting_takes_nothing(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    other = House(home.stage)
    waiting = asyncio.create_task(other.post(f"{BILLING}/pull", {"waitMs": 20_000}))
    await home.until_pulled_from()
    waiting.cancel()
    other.web.close()
    # Long before it would have ended by itself.
    async with asyncio.timeout(10):
        while home.consumers.all[0].asked:
            await home.stage.health()
    await home.publish("next")
    (message,) = await home.pull(waitMs=5_000)
    assert (message["data"], message["attempt"]) == ("next", 1)


async def test_a_stop_ends_a_pull_that_waits(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    waiting = asyncio.create_task(home.post(f"{BILLING}/pull", {"waitMs": 20_000}))
    await home.until_pulled_from()
    app = home.stage.hub.app
    app.runner.run(app.hub.drain)
    assert refusal(await waiting) == (503, "UNAVAILABLE")


async def test_pulling_from_what_does_not_exist_is_refused(home: House) -> None:
    answer = await home.post(f"{BASE}/topics/none/subscriptions/billing/pull", {})
    assert refusal(answer) == (404, "unknown_topic")
    await home.fill(1)
    answer = await home.post(f"{BILLING}/ack", {"seq": 1})
    assert refusal(answer) == (404, "unknown_subscription")
    for body in ({}, {"seq": 1, "seqs": [1]}):
        assert refusal(await home.post(f"{BILLING}/ack", body)) == (400, "BAD_REQUEST")


# What holds for all.


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
