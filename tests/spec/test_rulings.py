"""Rulings 2, 3, 5, 6, 12 and 17, where they say more than the sections.

The others are with their sections; ruling 8 is in test_restart.py, and ruling 18 is the client's.
Rulings 4 and 9 speak of durable actors, rulings 5 and 6 in part; what they mean for actors that
are not durable is here and, for a copy that repeats nothing, in test_06_send.py.
"""

from __future__ import annotations

import pytest

from tests.support.socket.peer import Rejected
from tests.support.socket.slow_readers import block, notes, stop_reading
from tests.support.socket.stage import InProcess, run_stage
from tests.support.stage import Stage

SLOW = "@(local/slow)"


@pytest.mark.also_over_sockets
async def test_r2_tells_and_asks_to_one_recipient_keep_their_order(timed: Stage) -> None:
    sender, target = await timed.connect(), await timed.join("@(local/b)")

    for number in range(200):
        sender.tell("@(local/b)", "note", number, pattern="ask" if number % 3 else "tell")

    assert [(await target.receive("note"))["payload"] for _ in range(200)] == list(range(200))


async def test_r2_order_holds_for_a_blocked_recipient_too() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await stage.join("@(local/a)"), await stop_reading(stage, SLOW)
        sent = await block(sender, SLOW)

        for number in range(sent, sent + 100):
            sender.tell(SLOW, "note", [number, ""], pattern="ask" if number % 2 else "tell")
        sender.tell(SLOW, "last")
        slow.resume()

        assert await notes(slow, "last") == list(range(sent + 100))


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
async def test_r3_acknowledgement_follows_the_message_on_one_socket(
    stage: Stage, is_durable: bool
) -> None:
    peer = await stage.connect()
    await peer.register("@(local/a)", durable=is_durable)

    for number in range(20):
        peer.tell("@(local/a)", "note", number, pattern="ask")

    seen = [(await peer.receive())["type"] for _ in range(40)]
    for index in range(1, 41):
        assert seen[:index].count("note") >= seen[:index].count("hub:delivery_ack")


async def test_r6_repeat_while_the_first_is_on_its_way_is_delivered_once() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await stage.join("@(local/a)"), await stop_reading(stage, SLOW)
        await block(sender, SLOW)
        other = await stage.connect()

        for peer in (sender, sender, other):
            peer.tell(SLOW, "question", id="q-1", pattern="ask", sender="@(local/a)")
        await sender.nothing_more()
        await other.nothing_more()
        slow.resume()

        for peer in (sender, other):
            assert (await peer.reply_to("q-1"))["type"] == "hub:delivery_ack"
        await notes(slow, "question")
        await slow.nothing_more()


async def test_r12_expired_tells_and_asks_are_counted(socket_stage: InProcess) -> None:
    peer = await socket_stage.join("@(local/a)")

    peer.tell("@(local/a)", "x", ttl=1, timestamp=1)
    await peer.ask_actor("@(local/a)", "x", ttl=1, timestamp=1)

    assert await socket_stage.metric("signal_hub_tells_expired_total") == 1
    assert await socket_stage.metric("signal_hub_asks_expired_total") == 1


LOOPBACK = [
    *(None, "http://localhost", "http://localhost:3000", "https://127.0.0.1:8443"),
    *("http://[::1]:8080", "http://LOCALHOST:1"),
]
FOREIGN = [
    *("https://example.org", "http://localhost.example.org", "http://127.0.0.1.example.org"),
    *("http://example.org:80", "null", "", "file://", "http://localhost@example.org"),
    *("http://user@localhost", "http://localhost/path", "ws://[::2]", "localhost"),
]


async def answer_to(stage: InProcess, origin: str | None) -> int:
    """The status an upgrade from this origin gets."""
    try:
        await stage.dial(headers={} if origin is None else {"Origin": origin})
    except Rejected as rejected:
        return rejected.response.status
    return 101


async def test_r17_empty_list_admits_loopback_and_clients_without_origin_only(
    socket_stage: InProcess,
) -> None:
    for origin in LOOPBACK:
        assert await answer_to(socket_stage, origin) == 101, origin
    for origin in FOREIGN:
        assert await answer_to(socket_stage, origin) == 403, origin
    health = await socket_stage.get("/health", headers={"Origin": "https://example.org"})
    assert health.status == 200


async def test_r17_list_admits_its_members_only() -> None:
    admitted = [None, "https://app.example.org", "https://app.example.org:443", "http://intra:8080"]
    refused = [
        *("http://app.example.org", "https://app.example.org:444"),
        *("https://evil.app.example.org", "http://localhost:3000"),
    ]
    async with run_stage(origins=["https://app.example.org", "http://intra:8080"]) as stage:
        for origin in admitted:
            assert await answer_to(stage, origin) == 101, origin
        for origin in refused:
            assert await answer_to(stage, origin) == 403, origin
