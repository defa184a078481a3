"""Rulings 2, 3 and 21: order while the disk is slow, nothing acknowledged before it is done.

The disk is stopped and released by the tests, so that "slow" is as long as they need.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.peer import Peer, code_of
from tests.support.socket import stage as sockets
from tests.support.socket.disk import held_disk
from tests.support.socket.mailboxes import (
    ask,
    ask_all,
    data_of,
    join_durable,
    keep_away,
    leave,
    seqs_of,
    settled,
    settling_pair,
    take,
    take_until_asked,
)
from tests.support.stage import RunStage, Stage, addresses, until_gone

A, B, C = "@(local/a)", "@(local/b)", "@(local/c)"
KINDS = pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "plain"])


async def join(stage: Stage, address: str, is_durable: bool) -> Peer:
    return await (join_durable(stage, address) if is_durable else stage.join(address))


@pytest.mark.also_over_sockets
@KINDS
async def test_r2_tell_waits_behind_an_ask_that_is_not_on_disk_and_nobody_else_does(
    stage: Stage, is_durable: bool
) -> None:
    sender, target = await stage.connect(), await join(stage, A, is_durable)
    others = [await join(stage, B, is_durable), await stage.join(C)]
    with stage.held_disk() as disk:
        disk.hold()
        asked = sender.tell(A, "note", 0, pattern="ask")
        sender.tell(A, "note", 1)
        await disk.wait()
        sender.tell(B, "note", 2)
        sender.tell(C, "note", 3)

        assert [data_of(await take(other, 1)) for other in others] == [[2], [3]]
        # Requests to the hub are answered meanwhile.
        assert await addresses(sender) == [A, B, C]
        assert (await sender.ask("hub:queue_stats"))["type"] == "hub:queue_stats_response"
        await sender.nothing_more()
        await target.nothing_more()

        disk.release()
        assert data_of(await take(target, 2)) == [0, 1]
        assert (await sender.reply_to(asked))["type"] == "hub:delivery_ack"


@KINDS
async def test_r2_mixed_tells_and_asks_keep_their_order_through_a_disk_that_stutters(
    run_stage: RunStage, is_durable: bool
) -> None:
    async with run_stage(message_rate=0) as stage:
        target = await join(stage, A, is_durable)
        senders = [await stage.connect(f"@(local/sender-{index})") for index in range(4)]
        with stage.held_disk() as disk:
            for start in range(0, 100, 10):
                disk.hold()
                for number in range(start, start + 10):
                    for sender in senders:
                        sender.tell(A, "note", number, pattern="tell" if number % 3 else "ask")
                await disk.wait()
                disk.release()
            heard = await take(target, 400)

        for sender in senders:
            mine = [message for message in heard if message["from"] == sender.sender]
            assert data_of(mine) == list(range(100))
        if is_durable:
            asked = [message for message in heard if message["payload"] % 3 == 0]
            assert seqs_of(asked) == list(range(1, len(asked) + 1))


@pytest.mark.also_over_sockets
async def test_r3_nothing_is_delivered_or_acknowledged_before_it_is_on_disk(stage: Stage) -> None:
    sender, here = await stage.connect(), await join_durable(stage, A)
    await leave(await join_durable(stage, B))
    with stage.held_disk() as disk:
        disk.hold()
        asked = [sender.tell(address, "note", pattern="ask") for address in (A, B)]
        await disk.wait()

        await sender.nothing_more()
        await here.nothing_more()

        disk.release()
        acks = [(await sender.reply_to(each))["payload"] for each in asked]
        assert [ack["status"] for ack in acks] == ["delivered", "queued"]
        await here.receive("note")


async def test_wire_settling_as_an_ask_is_answered_once_it_is_on_disk(stage: Stage) -> None:
    sender, target = await settling_pair(stage)
    await ask(sender, A)
    await target.receive("note")
    with stage.held_disk() as disk:
        disk.hold()
        asked = target.send("hub:ack", {"stream": A, "seq": 1}, pattern="ask")
        await disk.wait()

        await target.nothing_more()

        disk.release()
        assert settled(await target.reply_to(asked))["floor"] == 1


@pytest.mark.also_over_sockets
async def test_r5_plain_target_that_goes_while_the_disk_is_slow_is_unknown_and_retryable(
    stage: Stage,
) -> None:
    sender, target = await stage.connect(), await stage.join(A)
    with stage.held_disk() as disk:
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
    assert (again["status"], "duplicate" in again) == ("delivered", False)
    assert data_of(await take(back, 1)) == ["again"]


@pytest.mark.parametrize("is_back_early", [False, True], ids=["after", "meanwhile"])
async def test_r5_durable_target_that_goes_while_the_disk_is_slow_finds_it_once_and_in_order(
    stage: Stage, is_back_early: bool
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    with stage.held_disk() as disk:
        disk.hold()
        asked = [sender.tell(A, "note", number, pattern="ask") for number in range(3)]
        await disk.wait()
        target.abort()
        await until_gone(sender, A)
        if is_back_early:
            returning = asyncio.create_task(join_durable(stage, A))
            await sender.nothing_more()
        disk.release()
        if not is_back_early:
            acks = [(await sender.reply_to(each))["payload"] for each in asked]
            assert [(ack["status"], ack["seq"]) for ack in acks] == [
                ("queued", seq) for seq in (1, 2, 3)
            ]
        back = await returning if is_back_early else await join_durable(stage, A)

    heard = await take_until_asked(back, sender)
    assert data_of(heard) == [0, 1, 2]
    assert seqs_of(heard) == [1, 2, 3]


async def test_r2_order_holds_from_the_backlog_into_live_traffic(run_stage: RunStage) -> None:
    async with run_stage(message_rate=0) as stage:
        sender = await stage.connect()
        await leave(await join_durable(stage, A))
        await ask_all(sender, A, range(80))
        with stage.held_disk() as disk:
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

        assert data_of(heard) == list(range(120))
        assert seqs_of(heard) == list(range(1, 121))


async def test_r21_failed_disk_acknowledges_nothing_until_a_restart_has_looked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sockets.run_stage() as stage:
        plain, sender = await stage.join("@(local/plain)"), await stage.connect("@(local/sender)")
        await keep_away(stage, A)
        await ask(sender, A, "stored")
        with held_disk() as disk:
            disk.hold()
            asked = sender.tell(A, "note", "unknown", pattern="ask")
            await disk.wait()
            disk.break_down()
            disk.release()
            reply = await sender.reply_to(asked)
        assert code_of(reply) == "storage_failed"
        assert reply["payload"]["retryable"] is False

        # Though the disk would work again, the hub does not trust it; everything else goes on.
        for _ in range(3):
            assert code_of(await sender.ask_actor(A, "note", "later")) == "storage_failed"
        response = await stage.get("/health")
        assert response.status == 503
        assert json.loads(response.body)["service"] == "signal-hub"
        sender.tell("@(local/plain)", "note", "still here")
        assert (await plain.receive("note"))["payload"] == "still here"
        assert await addresses(sender) == ["@(local/plain)"]

        await stage.restart()
        sender = await stage.connect("@(local/sender)")
        assert (await ask(sender, A, "unknown", id=asked))["seq"] == 2
        target = await join_durable(stage, A)
        assert data_of(await take_until_asked(target, sender)) == ["stored", "unknown"]
    # It has said so in its log.
    assert any("refused" in one.getMessage() for one in caplog.get_records("call"))
    caplog.get_records("call").clear()
