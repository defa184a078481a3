"""Rulings 8 and 9 for durable actors: who is away, what waits, and what coming back brings."""

from __future__ import annotations

import pytest

from tests.support.socket.mailboxes import (
    ask,
    ask_all,
    attach,
    attempts_of,
    data_of,
    delivery_of,
    join_durable,
    keep_away,
    leave,
    seqs_of,
    take,
    take_until_asked,
)
from tests.support.socket.slow_readers import block
from tests.support.socket.stage import (
    SMALL_BUFFER,
    InProcess,
    addresses,
    code_of,
    run_stage,
    until_gone,
)

A, B = "@(local/a)", "@(local/b)"


async def test_wire_registered_says_that_the_actor_is_durable(stage: InProcess) -> None:
    _, registered = await attach(stage, A)

    assert registered["durable"] is True
    assert registered["waiting"] == 0
    assert {"actorAddress", "expiresAt", "renewalToken", "version"} <= set(registered)


@pytest.mark.parametrize("how", ["disconnect", "close", "abort"])
async def test_wire_mailbox_outlives_the_session_however_it_ends(
    stage: InProcess, how: str
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    match how:
        case "disconnect":
            await target.ask("hub:disconnect")
        case "close":
            target.close()
        case _:
            target.abort()
    await until_gone(sender, A)

    ack = await ask(sender, A, "kept")

    assert ack["status"] == "queued"
    back, registered = await attach(stage, A)
    assert registered["waiting"] == 1
    assert data_of(await take(back, 1)) == ["kept"]


async def test_r9_backlog_arrives_complete_in_order_and_unmarked(stage: InProcess) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    acks = await ask_all(sender, A, range(100))

    target, registered = await attach(stage, A)

    assert registered["waiting"] == 100
    heard = await take_until_asked(target, sender)
    assert data_of(heard) == list(range(100))
    assert seqs_of(heard) == [ack["seq"] for ack in acks] == list(range(1, 101))
    assert {delivery_of(message)["epoch"] for message in heard} == {acks[0]["epoch"]}
    assert attempts_of(heard) == [1] * 100


async def test_r9_registered_comes_before_the_backlog(stage: InProcess) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    await ask_all(sender, A, range(20))
    target = await stage.connect()

    payload = {"actorAddress": A, "capabilities": [], "durable": True}
    target.send("hub:register", payload, pattern="ask")

    assert (await target.receive("hub:registered"))["payload"]["waiting"] == 20
    assert data_of(await take(target, 20)) == list(range(20))


async def test_r9_what_was_written_to_a_session_that_does_not_settle_is_settled(
    stage: InProcess,
) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    await ask_all(sender, A, range(5))
    target = await join_durable(stage, A)
    await take(target, 5)
    await ask(sender, A, 5)
    await take(target, 1)
    await leave(target)

    back, registered = await attach(stage, A)

    assert registered["waiting"] == 0
    assert await take_until_asked(back, sender) == []


async def test_r9_away_actors_are_found_only_by_those_who_ask_for_them(stage: InProcess) -> None:
    peer = await stage.join(B)
    await keep_away(stage, A)

    assert await addresses(peer) == [B]
    assert await addresses(peer, includeAway=False) == [B]
    assert sorted(await addresses(peer, includeAway=True)) == [A, B]
    assert await addresses(peer, "local/a", includeAway=True) == [A]
    assert await addresses(peer, "other/*", includeAway=True) == []


async def test_r9_broadcast_does_not_reach_who_is_away(stage: InProcess) -> None:
    sender, here = await stage.connect(), await join_durable(stage, B)
    await keep_away(stage, A)

    reply = await sender.ask("hub:broadcast", {"type": "news"})

    assert reply["payload"]["deliveredCount"] == 1
    assert reply["payload"]["failedCount"] == 0
    await here.receive("news")
    back, registered = await attach(stage, A)
    assert registered["waiting"] == 0
    await back.nothing_more()


async def test_r9_tell_to_who_is_away_vanishes(stage: InProcess) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)

    sender.tell(A, "note", "lost")
    await sender.nothing_more()

    back, registered = await attach(stage, A)
    assert registered["waiting"] == 0
    await back.nothing_more()


async def test_r9_hundred_wait_for_an_actor_and_the_next_is_refused(stage: InProcess) -> None:
    sender = await stage.connect()
    await keep_away(stage, A, B)
    await ask_all(sender, A, range(100))

    refused = await sender.ask_actor(A, "note", "too many", id="m-1")

    assert code_of(refused) == "queue_full"
    assert refused["payload"]["retryable"] is True
    assert refused["payload"]["details"]["limit"] == 100
    assert refused["payload"]["details"]["waiting"] == 100
    assert (await ask(sender, B))["status"] == "queued"
    target = await join_durable(stage, A)
    assert (await ask(sender, A, 100, id="m-1"))["seq"] == 101
    assert data_of(await take(target, 101)) == list(range(101))


async def test_r9_limit_counts_only_while_no_session_is_attached() -> None:
    async with run_stage(mailbox={"limit": 3}) as stage:
        sender, target = await stage.connect(), await join_durable(stage, A, settles=True)
        await ask_all(sender, A, range(10))
        assert data_of(await take(target, 10)) == list(range(10))
        await leave(target)

        refused = await sender.ask_actor(A, "note")

        assert code_of(refused) == "queue_full"
        assert refused["payload"]["details"]["limit"] == 3
        assert refused["payload"]["details"]["waiting"] == 10
        back, registered = await attach(stage, A, settles=True)
        assert registered["waiting"] == 10
        assert (await ask(sender, A, 10))["seq"] == 11
        assert data_of(await take(back, 11)) == list(range(11))


async def test_r9_emptied_mailbox_has_room_again() -> None:
    async with run_stage(mailbox={"limit": 2}) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        for start in (0, 2, 4):
            await ask_all(sender, A, range(start, start + 2))
            assert code_of(await sender.ask_actor(A, "note")) == "queue_full"

            target = await join_durable(stage, A)

            assert data_of(await take_until_asked(target, sender)) == [start, start + 1]
            await leave(target)


async def test_r9_mailbox_survives_being_taken_over_by_another_session(stage: InProcess) -> None:
    sender, first = await stage.connect(), await join_durable(stage, A)
    await ask(sender, A, 0)
    second = await stage.connect()

    registered = await second.register(A)

    assert registered["payload"]["durable"] is True
    assert (await first.receive("note"))["payload"] == 0
    notice = await first.receive("hub:disconnect")
    assert notice["payload"]["reason"] == "duplicate_connection"
    ack = await ask(sender, A, 1)
    assert (ack["status"], ack["seq"]) == ("delivered", 2)
    assert data_of(await take(second, 1)) == [1]


async def test_r9_new_asks_queue_behind_the_backlog_and_tells_do_not() -> None:
    async with run_stage(mailbox={"window": 2}) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask_all(sender, A, range(5))
        target = await join_durable(stage, A, settles=True)
        assert seqs_of(await take(target, 2)) == [1, 2]

        ack = await ask(sender, A, 5)
        sender.tell(A, "urgent")

        assert ack["status"] == "queued"
        assert ack["seq"] == 6
        await target.receive("urgent")
        await target.nothing_more()
        rest = []
        for seq in range(1, 5):
            target.send("hub:ack", {"stream": A, "seq": seq})
            rest += await take(target, 1)
        assert data_of(rest) == [2, 3, 4, 5]


async def test_r8_durable_actor_is_queued_for_after_a_restart() -> None:
    async with run_stage() as stage:
        await join_durable(stage, A)
        await stage.join(B)
        await stage.hub.stop()
        await stage.hub.start()
        sender = await stage.connect()

        ack = await ask(sender, A, "kept")

        assert ack["status"] == "queued"
        assert code_of(await sender.ask_actor(B, "note")) == "actor_reconnecting"
        assert await addresses(sender) == []
        assert await addresses(sender, includeAway=True) == [A]
        back = await join_durable(stage, A)
        assert data_of(await take(back, 1)) == ["kept"]


async def test_r5_ask_to_a_durable_reader_that_dies_before_its_bytes_leave_is_queued() -> None:
    async with run_stage(message_rate=0) as stage:
        sender = await stage.join("@(local/sender)")
        slow = await stage.connect(receive_bytes=SMALL_BUFFER)
        await slow.register(A, durable=True)
        slow.pause()
        await block(sender, A)
        asked = sender.tell(A, "question", "kept", pattern="ask")

        slow.abort()

        ack = await sender.reply_to(asked)
        assert ack["type"] == "hub:delivery_ack"
        assert ack["payload"]["status"] == "queued"
        back = await join_durable(stage, A)
        copy = await back.receive("question")
        assert copy["payload"] == "kept"
        assert copy["metadata"]["originalMessageId"] == asked
