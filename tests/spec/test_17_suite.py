"""Section 17 and appendix A: what the ecosystem's integration suite asks of a hub.

Items 5 and 6 are in test_04_sessions.py, item 11 in test_06_registration.py, 12 to 14 in
test_06_fanout.py.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import dial
from tests.support.socket.stage import InProcess
from tests.support.socket.tokens import odd_token
from tests.support.stage import Stage, addresses

A, B = "@(local/a)", "@(browser/b)"


async def test_17_1_17_15_health_answers_before_the_first_socket_and_nothing_after_the_stop(
    socket_stage: InProcess,
) -> None:
    answer = await socket_stage.get("/health")
    assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")
    assert (await (await socket_stage.dial("/ws")).connect())["type"] == "hub:connected"

    await socket_stage.hub.stop()

    with pytest.raises(ConnectionRefusedError):
        await dial(socket_stage.port, socket_stage.clock.now_ms)


@pytest.mark.also_over_sockets
async def test_17_2_to_17_4_sessions_are_independent_and_idle_ones_are_not_dropped(
    timed: Stage,
) -> None:
    peers = await asyncio.gather(*(timed.dial() for _ in range(10)))
    replies = await asyncio.gather(*(peer.connect() for peer in peers))

    assert len({reply["payload"]["sessionId"] for reply in replies}) == 10
    goodbye = await peers[0].ask("hub:disconnect", ttl=500)
    assert goodbye["type"] == "hub:disconnect"
    assert goodbye["payload"]["acknowledged"] is True
    assert await peers[0].until_closed() == 1000
    await timed.pass_time(26)
    for peer in peers[1:]:
        await peer.nothing_more()


@pytest.mark.also_over_sockets
async def test_17_7_to_17_10_sends_arrive_exactly_and_nothing_wedges_the_connection(
    stage: Stage,
) -> None:
    target, sender = await stage.join(B), await stage.join(A)
    burst = [
        {"a": {"b": {"c": [1, 2, {"d": None}]}}, "text": "ü"},
        None,
        {"blob": "x" * 10_240},
        {"blob": "x" * 900 * 1024},
        *range(6),
    ]

    for data in burst:
        sender.tell(B, "x", data, metadata={"custom": {"kept": True}})
    heard = [await target.receive("x") for _ in burst]
    known = await sender.ask_actor(B, "y")
    unknown = await sender.ask_actor("@(no/body)", "x")
    for odd in ("@(no/body)", "not-a-valid-address", "runtime:fake/actor-999"):
        sender.tell(odd, "x")
    sender.tell(B, "x", "x" * 2 * 1024 * 1024)

    assert [message["payload"] for message in heard] == burst
    for message in heard:
        assert (message["from"], message["to"]) == (A, B)
        assert message["metadata"]["custom"] == {"kept": True}
    assert known["type"] == "hub:delivery_ack"
    assert "not registered" in unknown["payload"]["message"]
    await sender.receive("hub:error")
    assert (await sender.ask("hub:disconnect"))["payload"]["acknowledged"] is True


@pytest.mark.also_over_sockets
async def test_appendix_a_runs_as_written(timed: Stage, clock: FakeClock) -> None:
    a, b = await timed.dial(), await timed.join("@(browser/chart)")
    # Item 15: without authentication any token connects.
    a.sender = "@(local/client-77)"
    await a.connect(authToken=odd_token(clock, exp=1))
    await a.register("@(local/planner)", "plan", metadata={}, ttlSeconds=300)

    drawing = ("@(browser/chart)", "chart:draw", {"points": [3, 5]})
    ack = await a.ask_actor(*drawing, id="a3", metadata={"traceId": "t-9"}, ttl=10_000)
    drawn = await b.receive("chart:draw")
    assert drawn["metadata"]["originalMessageId"] == ack["payload"]["messageId"] == "a3"

    await b.ask("hub:subscribe", {"topic": "prices", "durable": False})
    a.send("hub:publish", {"topic": "prices", "type": "price:new", "data": {"v": 12}}, id="a6")
    assert (await b.receive("price:new"))["correlationId"] == "a6"
    published = await a.receive("hub:published")
    assert published["payload"] == {"topic": "prices", "subscriberCount": 1}

    gone = await a.ask_actor("@(browser/gone)", "x", 1, id="a9")
    assert gone["type"] == "hub:unknown_actor"
    await a.ask("hub:disconnect", None, ttl=500)
    assert await a.until_closed() == 1000
    assert await addresses(b) == ["@(browser/chart)"]
