"""Section 17 and appendix A: what the ecosystem's integration suite asks of a hub.

Items 5 and 6 are in test_04_sessions.py, 7 to 10 in test_06_send.py, test_03_addresses.py and
test_09_limits.py, 11 in test_06_registration.py, 12 to 14 in test_06_fanout.py.
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
async def test_4_1_17_2_to_17_4_sessions_are_independent_and_idle_ones_are_not_dropped(
    timed: Stage,
) -> None:
    peers = await asyncio.gather(*(timed.dial() for _ in range(10)))
    replies = await asyncio.gather(*(peer.connect() for peer in peers))
    again = await asyncio.gather(*(peer.connect() for peer in peers))

    ids = [reply["payload"]["sessionId"] for reply in replies]
    assert len(set(ids)) == 10
    assert all(one.startswith("session-") for one in ids)
    # An id stays with its socket.
    assert [reply["payload"]["sessionId"] for reply in again] == ids
    goodbye = await peers[0].ask("hub:disconnect", ttl=500)
    assert goodbye["type"] == "hub:disconnect"
    assert goodbye["payload"]["acknowledged"] is True
    assert await peers[0].until_closed() == 1000
    await timed.pass_time(26)
    for peer in peers[1:]:
        await peer.nothing_more()


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
