"""Sessions without sockets: the requests of the wire protocol for those who come by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from signalhub.server import callers
from signalhub.server.callers import Answer, Caller, CallRefused
from signalhub.server.port.http import HttpRequest
from signalhub.testing import FakeClock
from tests.support.peer import code_of
from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.tokens import AUTH, token_for
from tests.support.stage import registered

PRICES = "@(shop/prices)"


def request(token: str = "", source: str = "127.0.0.1") -> HttpRequest:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return HttpRequest("POST", "/", "", headers, b"", "1.1", True, "localhost", source, "127.0.0.1")


def caller_of(stage: InProcess, token: str = "", **options: Any) -> Caller:
    every = stage.hub.app.callers
    return every.caller(every.principal(request(token)), **options)


def read(answer: Answer) -> Any:
    return msgspec.json.decode(answer.payload)


def publish(topic: str = "orders", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "type": "order", "data": 7, "durable": True} | more


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[InProcess]:
    async with run_stage(FakeClock(), auth=AUTH, **settings) as stage:
        yield stage


def eve(stage: InProcess, lifetime_s: float = 3600, **permissions: list[str]) -> str:
    return token_for("local/eve", stage.clock, permissions=permissions, lifetime_s=lifetime_s)


async def test_a_publish_is_answered_with_its_position() -> None:
    async with run_stage() as stage:
        caller = caller_of(stage)
        answer = await caller.call("hub:publish", publish(), message_id="one")
        assert answer.type == "hub:published"
        assert answer.correlation_id == "one"
        assert read(answer)["seq"] == 1


async def test_many_requests_at_once_get_each_its_own_answer() -> None:
    async with run_stage() as stage:
        caller = caller_of(stage)
        await caller.call("hub:topic_create", {"topic": "orders"})
        answers = await asyncio.gather(
            *(caller.call("hub:publish", publish(), message_id=str(n)) for n in range(100))
        )
        assert [one.correlation_id for one in answers] == [str(n) for n in range(100)]
        assert [read(one)["seq"] for one in answers] == list(range(1, 101))


async def test_a_repeat_gets_the_answer_of_the_first_even_if_that_is_on_its_way() -> None:
    async with run_stage() as stage:
        caller = caller_of(stage)
        first, second = await asyncio.gather(
            *(caller.call("hub:publish", publish(), message_id="same") for _ in range(2))
        )
        assert read(first)["seq"] == read(second)["seq"] == 1
        assert read(second)["duplicate"] is True


async def test_what_the_hub_refuses_is_raised_with_a_status() -> None:
    async with run_stage() as stage:
        caller = caller_of(stage)
        with pytest.raises(CallRefused) as refusal:
            await caller.call("hub:topic_info", {"topic": "none"})
        assert (refusal.value.status, refusal.value.code) == (404, "unknown_topic")
        with pytest.raises(CallRefused) as refusal:
            await caller.call("hub:publish", {"topic": 7})
        assert (refusal.value.status, refusal.value.code) == (400, "BAD_REQUEST")
        with pytest.raises(CallRefused) as refusal:
            await caller.call("hub:send", {"to": PRICES, "type": "ask", "data": None})
        assert (refusal.value.status, refusal.value.code) == (404, "unknown_actor")


async def test_too_deep_a_payload_is_refused_and_the_session_stays() -> None:
    async with run_stage() as stage:
        caller = caller_of(stage)
        deep = msgspec.Raw(b"[" * 5_000 + b"]" * 5_000)
        with pytest.raises(CallRefused) as refusal:
            await caller.call("hub:publish", publish(data=deep))
        assert refusal.value.status == 400
        assert caller_of(stage) is caller


async def test_a_caller_is_in_no_list_and_no_count() -> None:
    async with run_stage() as stage:
        tally = stage.hub.app.hub.tally
        caller = caller_of(stage)
        assert caller.reply_address.startswith("@(http/")
        alice = await stage.join("@(demo/alice)", "tell")
        sessions = (await alice.ask("hub:list_sessions"))["payload"]
        assert [one["identity"] for one in sessions["sessions"]] == ["@(demo/alice)"]
        assert sessions["total"] == 1
        found = (await alice.ask("hub:discover", {"pattern": "*"}))["payload"]["actors"]
        assert [one["address"] for one in found] == ["@(demo/alice)"]
        assert tally.connections_opened == 1
        caller.end()
        assert tally.connections_closed == 0


async def test_a_request_returns_the_reply() -> None:
    async with run_stage() as stage:
        shop = await stage.join(PRICES, "tell")
        caller = caller_of(stage)
        asked = asyncio.create_task(caller.request(PRICES, "get", {"sku": 7}, timeout_s=5))
        heard = await shop.receive("get")
        assert heard["metadata"]["expectsReply"] is True
        for stranger in ("another", heard["metadata"]["originalMessageId"]):
            shop.send(
                "hub:send",
                {"to": heard["from"], "type": "get.reply", "data": {"eur": 12}},
                metadata={"inReplyTo": stranger},
            )
        assert read(await asked) == {"eur": 12}


async def test_a_request_to_nobody_ends_at_once_and_one_to_somebody_silent_in_time() -> None:
    async with run_stage() as stage:
        caller = caller_of(stage)
        with pytest.raises(CallRefused) as refusal:
            await caller.request(PRICES, "get", None, timeout_s=60)
        assert refusal.value.status == 404
        await stage.join(PRICES, "tell")
        with pytest.raises(CallRefused) as refusal:
            await caller.request(PRICES, "get", None, timeout_s=0.05)
        assert refusal.value.status == 504


async def test_a_request_ends_when_whoever_has_it_disconnects() -> None:
    async with run_stage() as stage:
        shop = await stage.join(PRICES, "tell")
        asked = asyncio.create_task(caller_of(stage).request(PRICES, "get", None, timeout_s=60))
        await shop.receive("get")
        shop.abort()
        with pytest.raises(CallRefused) as refusal:
            await asked
        assert refusal.value.status == 502


async def test_with_authentication_only_who_is_asked_may_answer() -> None:
    async with guarded() as stage:
        caller = caller_of(stage, eve(stage, send=["shop/*"]))
        token = token_for("shop/prices", stage.clock, permissions={"send": []})
        shop = await registered(await stage.connect(PRICES, authToken=token), PRICES)
        address = caller.reply_address
        send = {"to": address, "type": "get.reply", "data": 1}
        refusal = await shop.ask("hub:send", send, expect="hub:error")
        assert code_of(refusal) == "unauthorized"
        asked = asyncio.create_task(caller.request(PRICES, "get", None, timeout_s=5))
        heard = await shop.receive("get")
        assert heard["from"] == address
        reply = {"inReplyTo": heard["metadata"]["originalMessageId"]}
        shop.send("hub:send", send, metadata=reply)
        assert read(await asked) == 1
        refusal = await shop.ask("hub:send", send, expect="hub:error")
        assert code_of(refusal) == "unauthorized"


async def test_nobody_can_register_the_address_of_a_caller() -> None:
    async with run_stage() as stage:
        address = caller_of(stage).reply_address
        alice = await stage.connect()
        request = {"actorAddress": address, "capabilities": ["tell"]}
        refusal = await alice.ask("hub:register", request, expect="hub:error")
        assert code_of(refusal) == "unauthorized"


async def test_callers_share_an_internal_address_and_each_gets_its_own_answers() -> None:
    async with run_stage() as stage:
        every = stage.hub.app.callers
        first, second = (
            every.caller(every.principal(request(source=source)), address="@(hub/admin.0)")
            for source in ("127.0.0.1", "127.0.0.2")
        )
        assert first is not second
        host = await stage.join("@(actors/host)", "tell")

        def fits(number: int) -> Any:
            return lambda answer: read(answer) == number

        expected = "@(actors/host)"
        with first.expects(expected, fits(1)) as one, second.expects(expected, fits(2)) as two:
            first.tell(expected, "look", 1)
            assert (await host.receive("look"))["from"] == "@(hub/admin.0)"
            for number in (2, 1):
                host.tell("@(hub/admin.0)", "seen", number)
            assert read(await one) == 1
            assert read(await two) == 2


async def test_from_an_address_of_the_hub_commands_to_hosts_need_control_only() -> None:
    async with guarded() as stage:
        host = "@(actors/shop)"
        token = token_for("actors/shop", stage.clock, permissions={"host": ["*"]})
        peer = await registered(await stage.connect(host, authToken=token), host)
        command = {"id": "1", "name": "stats", "arguments": {}}
        operator = eve(stage, control=["actors/*"], send=[])
        caller_of(stage, operator, address="@(hub/admin.0)").tell(host, "actors:control", command)
        assert (await peer.receive("actors:control"))["from"] == "@(hub/admin.0)"
        for address, grants, type in (
            ("@(hub/admin.0)", {"send": []}, "actors:control"),
            ("@(hub/admin.0)", {"control": ["*"], "send": []}, "hello"),
            ("", {"control": ["*"], "send": []}, "actors:control"),
        ):
            caller = caller_of(stage, eve(stage, **grants), address=address)
            with pytest.raises(CallRefused) as refusal:
                caller.tell(host, type, command)
            assert refusal.value.status == 403


async def test_tells_to_somebody_slow_are_refused_until_the_hub_says_so() -> None:
    async with run_stage() as stage:
        bob = await stage.join("@(demo/bob)", "tell")
        caller = caller_of(stage)
        app = stage.hub.app
        app.runner.run(lambda now: app.hub.hold(caller.session, "@(demo/bob)", now))
        with pytest.raises(CallRefused) as refusal:
            caller.tell("@(demo/bob)", "hello", 1)
        assert (refusal.value.status, refusal.value.retryable) == (429, True)
        app.runner.run(lambda now: app.hub.resume([(caller.session, "@(demo/bob)")], now))
        caller.tell("@(demo/bob)", "hello", 2)
        assert (await bob.receive("hello"))["payload"] == 2


async def test_requests_need_a_valid_token_and_what_it_allows() -> None:
    async with guarded() as stage:
        every = stage.hub.app.callers
        for token in ("", "nonsense"):
            with pytest.raises(CallRefused) as refusal:
                every.principal(request(token))
            assert (refusal.value.status, refusal.value.code) == (401, "unauthorized")
        caller = caller_of(stage, eve(stage, publish=["orders"], create=["orders"]))
        await caller.call("hub:publish", publish())
        with pytest.raises(CallRefused) as refusal:
            await caller.call("hub:publish", publish("others"))
        assert (refusal.value.status, refusal.value.code) == (403, "unauthorized")


async def test_a_socket_with_the_same_identity_is_not_disturbed() -> None:
    async with guarded() as stage:
        token = eve(stage, send=["*"])
        caller = caller_of(stage, token)
        peer = await stage.connect("@(local/eve)", authToken=token)
        await registered(peer, "@(local/eve)")
        assert not caller.is_over
        caller.tell("@(local/eve)", "hello", 1)
        assert (await peer.receive("hello"))["from"] == "@(local/eve)"


async def test_the_session_ends_with_its_token_and_the_next_request_needs_another() -> None:
    async with guarded() as stage:
        token = eve(stage, lifetime_s=60, send=["*"])
        caller = caller_of(stage, token)
        app = stage.hub.app
        assert isinstance(stage.clock, FakeClock)
        stage.clock.advance(61)
        # So that the next request begins another tick.
        await stage.health()
        now = stage.clock.now_ms()
        app.runner.perform(app.hub.tick(now), now)
        assert caller.is_over
        assert len(app.callers) == 0
        with pytest.raises(CallRefused) as refusal:
            caller_of(stage, token)
        assert refusal.value.status == 401
        assert caller_of(stage, eve(stage, send=["*"])) is not caller


async def test_messages_above_the_rate_are_refused_with_the_time_to_wait() -> None:
    async with run_stage(message_rate=1, message_burst=2) as stage:
        caller = caller_of(stage)
        for _ in range(2):
            await caller.call("hub:publish", publish())
        with pytest.raises(CallRefused) as refusal:
            await caller.call("hub:publish", publish())
        assert (refusal.value.status, refusal.value.code) == (429, "rate_limited")
        assert 0 < (refusal.value.retry_after_ms or 0) <= 1_000


async def test_sessions_count_for_the_quota_of_the_identity_and_idle_ones_make_room() -> None:
    async with guarded(limits={"sessions_per_identity": 1}) as stage:
        first = caller_of(stage, eve(stage, publish=["*"]))
        second = caller_of(stage, eve(stage, publish=["*"], send=["*"]))
        assert first.is_over
        with second.in_use(), pytest.raises(CallRefused) as refusal:
            caller_of(stage, eve(stage, send=["*"]))
        assert (refusal.value.status, refusal.value.code) == (429, "limit_exceeded")


async def test_there_are_only_so_many_and_who_is_idle_longest_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callers, "CALLERS_MAX", 2)
    async with run_stage() as stage:
        every = stage.hub.app.callers

        def come(number: int) -> Caller:
            return every.caller(every.principal(request(source=f"127.0.0.{number}")))

        first, second = come(1), come(2)
        come(1)
        third = come(3)
        assert (first.is_over, second.is_over, third.is_over) == (False, True, False)
        with first.in_use(), third.in_use(), pytest.raises(CallRefused) as refusal:
            come(4)
        assert (refusal.value.status, refusal.value.retryable) == (503, True)
        assert len(every) == 2


async def test_who_is_idle_for_a_minute_ends_unless_something_waits_for_it() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        every = stage.hub.app.callers
        caller = caller_of(stage)
        clock.advance(callers.IDLE_S - 1)
        every.tick()
        assert not caller.is_over
        clock.advance(2)
        with caller.in_use():
            every.tick()
            assert not caller.is_over
        clock.advance(callers.IDLE_S + 1)
        every.tick()
        assert caller.is_over
        assert len(stage.hub.app.hub.sessions) == 0
        assert list(stage.hub.app.hub.sessions) == []


def test_replies_are_remembered_in_bounded_memory() -> None:
    replies = callers.Replies(bytes_max=10_000)
    answer = Answer("id", PRICES, "get.reply", payload=msgspec.Raw(b"1" * 3_000))
    for number in range(5):
        replies.remember("@(http/a)", str(number), answer)
        replies.remember("@(http/a)", str(number), answer)
    known = [number for number in range(5) if replies.find("@(http/a)", str(number))]
    assert known == [3, 4]
    assert replies.find("@(http/b)", "4") is None


async def test_a_stop_ends_what_waits() -> None:
    async with run_stage() as stage:
        shop = await stage.join(PRICES, "tell")
        asked = asyncio.create_task(caller_of(stage).request(PRICES, "get", None, timeout_s=60))
        await shop.receive("get")
        with stage.held_disk():
            published = asyncio.create_task(caller_of(stage).call("hub:publish", publish()))
            await asyncio.sleep(0)
            app = stage.hub.app
            app.runner.run(app.hub.drain)
            with pytest.raises(CallRefused) as refusal:
                await published
        assert (refusal.value.status, refusal.value.retryable) == (503, True)
        with pytest.raises(CallRefused) as refusal:
            await asked
        assert refusal.value.status == 503
        with pytest.raises(CallRefused) as refusal:
            caller_of(stage)
        assert refusal.value.status == 503
