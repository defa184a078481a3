"""Rulings 2 and 3 with a disk: order while it is slow, and nothing acknowledged before it is done.

The disk is stopped and released by the tests, so that "slow" is as long as they need.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.socket.mailboxes import (
    ask,
    ask_all,
    data_of,
    held_disk,
    join_durable,
    leave,
    seqs_of,
    settled,
    take,
    take_until_asked,
)
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, addresses, run_stage, until_gone

A, B, C = "@(local/a)", "@(local/b)", "@(local/c)"
KINDS = pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "plain"])


async def join(stage: InProcess, address: str, is_durable: bool) -> Peer:
    return await (join_durable(stage, address) if is_durable else stage.join(address))


@KINDS
async def test_r2_tell_waits_behind_an_ask_that_is_not_on_disk(
    stage: InProcess, is_durable: bool
) -> None:
    sender, target = await stage.connect(), await join(stage, A, is_durable)
    with held_disk() as disk:
        disk.hold()
        sender.tell(A, "note", 0, pattern="ask")
        sender.tell(A, "note", 1)
        await disk.wait()
        await sender.nothing_more()
        await target.nothing_more()

        disk.release()

        assert data_of(await take(target, 2)) == [0, 1]


@KINDS
async def test_r2_other_recipients_do_not_wait_for_the_disk(
    stage: InProcess, is_durable: bool
) -> None:
    sender, target = await stage.connect(), await join(stage, A, is_durable)
    others = [await join(stage, B, is_durable), await stage.join(C)]
    with held_disk() as disk:
        disk.hold()
        sender.tell(A, "note", 0, pattern="ask")
        await disk.wait()

        sender.tell(B, "note", 1)
        sender.tell(C, "note", 2)

        assert [data_of(await take(other, 1)) for other in others] == [[1], [2]]
        await target.nothing_more()
        disk.release()
        assert data_of(await take(target, 1)) == [0]


async def test_r2_requests_to_the_hub_are_answered_while_the_disk_is_slow(
    stage: InProcess,
) -> None:
    sender, _ = await stage.connect(), await join_durable(stage, A)
    with held_disk() as disk:
        disk.hold()
        asked = sender.tell(A, "note", pattern="ask")
        await disk.wait()

        assert await addresses(sender) == [A]
        assert (await sender.ask("hub:queue_stats"))["type"] == "hub:queue_stats_response"
        assert (await stage.health())["service"] == "signal-hub"

        disk.release()
        assert (await sender.reply_to(asked))["type"] == "hub:delivery_ack"


@KINDS
async def test_r2_mixed_tells_and_asks_keep_their_order_through_a_disk_that_stutters(
    is_durable: bool,
) -> None:
    async with run_stage(message_rate=0) as stage:
        sender, target = await stage.connect(), await join(stage, A, is_durable)
        with held_disk() as disk:
            for burst in range(10):
                disk.hold()
                for number in range(20 * burst, 20 * burst + 20):
                    sender.tell(A, "note", number, pattern="ask" if number % 3 == 0 else "tell")
                await disk.wait()
                disk.release()

            assert data_of(await take(target, 200)) == list(range(200))


async def test_r2_several_senders_keep_their_own_order_through_a_slow_disk() -> None:
    async with run_stage(message_rate=0) as stage:
        target = await join_durable(stage, A)
        senders = [await stage.connect(f"@(local/sender-{index})") for index in range(4)]
        with held_disk() as disk:
            disk.hold()
            for number in range(50):
                for sender in senders:
                    sender.tell(A, "note", number, pattern="tell" if number % 2 else "ask")
            await disk.wait()
            disk.release()
            heard = await take(target, 200)

        for sender in senders:
            mine = [message for message in heard if message["from"] == sender.sender]
            assert data_of(mine) == list(range(50))
        positions = seqs_of(message for message in heard if message["payload"] % 2 == 0)
        assert positions == list(range(1, 101))


async def test_r3_nothing_is_delivered_or_acknowledged_before_it_is_on_disk(
    stage: InProcess,
) -> None:
    sender, here = await stage.connect(), await join_durable(stage, A)
    await leave(await join_durable(stage, B))
    with held_disk() as disk:
        disk.hold()
        asked = [sender.tell(address, "note", pattern="ask") for address in (A, B)]
        await disk.wait()

        await sender.nothing_more()
        await here.nothing_more()

        disk.release()
        acks = [(await sender.reply_to(each))["payload"] for each in asked]
        assert [ack["status"] for ack in acks] == ["delivered", "queued"]
        await here.receive("note")


async def test_r3_acknowledgement_follows_the_copy_on_one_socket(stage: InProcess) -> None:
    peer = await join_durable(stage, A)

    for number in range(30):
        peer.tell(A, "note", number, pattern="ask")

    seen = [(await peer.receive())["type"] for _ in range(60)]
    for index in range(1, 61):
        assert seen[:index].count("note") >= seen[:index].count("hub:delivery_ack")


async def test_wire_settling_as_an_ask_is_answered_once_it_is_on_disk(stage: InProcess) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A, settles=True)
    await ask(sender, A)
    await target.receive("note")
    with held_disk() as disk:
        disk.hold()
        asked = target.send("hub:ack", {"stream": A, "seq": 1}, pattern="ask")
        await disk.wait()

        await target.nothing_more()

        disk.release()
        assert settled(await target.reply_to(asked))["floor"] == 1


async def test_r5_durable_target_that_goes_while_the_disk_is_slow_finds_the_message_later(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    with held_disk() as disk:
        disk.hold()
        asked = sender.tell(A, "note", "kept", pattern="ask")
        await disk.wait()
        target.abort()
        await until_gone(sender, A)
        disk.release()
        ack = await sender.reply_to(asked)

    assert ack["type"] == "hub:delivery_ack"
    assert ack["payload"]["status"] == "queued"
    assert ack["payload"]["seq"] == 1
    back = await join_durable(stage, A)
    assert data_of(await take(back, 1)) == ["kept"]


async def test_r5_plain_target_that_goes_while_the_disk_is_slow_is_unknown_and_retryable(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await stage.join(A)
    with held_disk() as disk:
        disk.hold()
        asked = sender.tell(A, "note", "lost", pattern="ask")
        await disk.wait()
        target.abort()
        await until_gone(sender, A)
        disk.release()
        refused = await sender.reply_to(asked)

    assert refused["type"] == "hub:unknown_actor"
    assert refused["payload"]["retryable"] is True
    back = await stage.join(A)
    await back.nothing_more()
    again = await ask(sender, A, "again", id=asked)
    assert again["status"] == "delivered"
    assert "duplicate" not in again
    assert data_of(await take(back, 1)) == ["again"]


async def test_r5_target_that_returns_while_the_disk_is_slow_gets_it_once_and_in_order(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    with held_disk() as disk:
        disk.hold()
        for number in range(3):
            sender.tell(A, "note", number, pattern="ask")
        await disk.wait()
        target.abort()
        await until_gone(sender, A)
        returning = asyncio.create_task(join_durable(stage, A))
        await sender.nothing_more()
        disk.release()
        back = await returning

    heard = await take_until_asked(back, sender)
    assert data_of(heard) == [0, 1, 2]
    assert seqs_of(heard) == [1, 2, 3]


async def test_r2_order_holds_from_the_backlog_into_live_traffic() -> None:
    async with run_stage(message_rate=0) as stage:
        sender = await stage.connect()
        await leave(await join_durable(stage, A))
        acks = await ask_all(sender, A, range(80))
        with held_disk() as disk:
            disk.hold()
            for number in range(80, 100):
                sender.tell(A, "note", number, pattern="ask")
            await disk.wait()
            returning = asyncio.create_task(join_durable(stage, A))
            await sender.nothing_more()
            disk.release()
            target = await returning
        for number in range(100, 120):
            sender.tell(A, "note", number, pattern="ask")

        heard = await take(target, 120)

        assert [ack["seq"] for ack in acks] == list(range(1, 81))
        assert data_of(heard) == list(range(120))
        assert seqs_of(heard) == list(range(1, 121))
