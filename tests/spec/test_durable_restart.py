"""Hubs that are killed: what was acknowledged is there, in order; what may be a repeat says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.socket.mailboxes import (
    DEAD_MAILBOXES,
    ENDINGS,
    ask,
    ask_all,
    attach,
    attempts_of,
    data_of,
    dead_letter_of,
    delivery_of,
    join_durable,
    keep_away,
    leave,
    restart,
    seqs_of,
    settle,
    settled,
    take,
    take_until_asked,
)
from tests.support.socket.peer import Closed, Envelope, Peer
from tests.support.socket.stage import Spawned, addresses, code_of, spawn_stage

A, B, BARRIER = "@(local/a)", "@(local/b)", "@(local/barrier)"
SENDER = "@(local/sender)"
QUICK: dict[str, Any] = {"backoff_ms": 10, "backoff_cap_ms": 1000}


# The registry is written behind the hub's back, within 50 ms.
REGISTRY_S = 0.15


async def settle_down(stage: Spawned, sender: Peer) -> None:
    """Everything the hub has done so far is on disk: its log, and its registry a little later."""
    await keep_away(stage, BARRIER)
    await ask(sender, BARRIER)
    await asyncio.sleep(REGISTRY_S)


async def rest_of(peer: Peer) -> list[Envelope]:
    """What a peer received before the hub went away."""
    heard: list[Envelope] = []
    try:
        while True:
            heard.append(await peer.receive())
    except Closed:
        return heard


@pytest.mark.parametrize("how", ENDINGS)
async def test_r8_everything_queued_is_delivered_after_a_restart_in_order(how: str) -> None:
    async with spawn_stage() as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, A)
        data = [{"n": number, "text": "🦉" * number} for number in range(100)]
        acks = await ask_all(sender, A, data, metadata={"mine": 7})

        await restart(stage, how)
        target, registered = await attach(stage, A)

        assert registered["waiting"] == 100
        heard = await take_until_asked(target, await stage.connect())
        assert data_of(heard) == data
        assert seqs_of(heard) == [ack["seq"] for ack in acks]
        assert {delivery_of(message)["epoch"] for message in heard} == {acks[0]["epoch"]}
        assert {message["from"] for message in heard} == {SENDER}
        assert {message["metadata"]["mine"] for message in heard} == {7}
        assert [message["metadata"]["originalMessageId"] for message in heard] == [
            ack["messageId"] for ack in acks
        ]


@pytest.mark.parametrize("how", ENDINGS)
async def test_r19_restart_keeps_the_epoch_and_the_count(how: str) -> None:
    async with spawn_stage() as stage:
        await keep_away(stage, A)
        before = await ask_all(await stage.connect(SENDER), A, range(5))

        await restart(stage, how)
        after = await ask_all(await stage.connect(SENDER), A, range(5))

        assert {ack["epoch"] for ack in after} == {ack["epoch"] for ack in before}
        assert [ack["seq"] for ack in before + after] == list(range(1, 11))


@pytest.mark.parametrize("how", ENDINGS)
async def test_r4_unsettled_copies_come_again_marked_after_a_restart(how: str) -> None:
    async with spawn_stage() as stage:
        sender, target = await stage.connect(SENDER), await join_durable(stage, A, settles=True)
        acks = await ask_all(sender, A, range(6))
        first = await take(target, 6)
        for index in (0, 1, 3):
            assert (await settle(target, "hub:ack", first[index]))["accepted"] == 1

        await restart(stage, how)
        back, registered = await attach(stage, A, settles=True)

        assert {ack["status"] for ack in acks} == {"delivered"}
        assert registered["waiting"] == 3
        sender = await stage.connect(SENDER)
        again = await take_until_asked(back, sender)
        assert data_of(again) == [2, 4, 5]
        assert seqs_of(again) == [3, 5, 6]
        assert min(attempts_of(again)) >= 2
        assert [message["id"] for message in again] == [first[n]["id"] for n in (2, 4, 5)]
        reply = settled(await back.ask("hub:ack", {"stream": A, "seqs": [3, 5, 6]}))
        assert reply["floor"] == 6


@pytest.mark.parametrize("how", ENDINGS)
async def test_wire_session_that_does_not_settle_is_not_sent_what_was_settled_on_disk(
    how: str,
) -> None:
    async with spawn_stage() as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, A)
        await ask_all(sender, A, range(10))
        target = await join_durable(stage, A)
        acks = await ask_all(sender, A, range(10, 20))
        assert data_of(await take(target, 20)) == list(range(20))
        await settle_down(stage, sender)

        await restart(stage, how)
        sender = await stage.connect(SENDER)
        back, registered = await attach(stage, A)

        assert {ack["status"] for ack in acks} == {"delivered"}
        assert registered["waiting"] == 0
        assert await take_until_asked(back, sender) == []


async def test_r4_whatever_the_kill_interrupts_nothing_comes_twice_unmarked() -> None:
    async with spawn_stage(message_rate=0) as stage:
        sender, target = await stage.connect(SENDER), await join_durable(stage, A)
        for number in range(2000):
            sender.tell(A, "note", number, pattern="ask")
        heard = await take(target, 500)

        await stage.hub.kill()
        heard += await rest_of(target)
        answered = [m["payload"] for m in await rest_of(sender) if m["type"] == "hub:delivery_ack"]
        await stage.hub.start()

        back = await join_durable(stage, A)
        later = await take_until_asked(back, await stage.connect(SENDER))
        assert data_of(heard) == list(range(len(heard)))
        assert seqs_of(later) == sorted(seqs_of(later))
        known = set(seqs_of(heard))
        for message in later:
            if delivery_of(message)["seq"] in known:
                assert delivery_of(message)["attempt"] >= 2
        known |= set(seqs_of(later))
        assert {ack["seq"] for ack in answered} <= known
        assert known == set(range(1, len(known) + 1))


@pytest.mark.parametrize("answered", [1, 50, 150])
async def test_r3_kill_amid_a_stream_of_asks_loses_nothing_that_was_acknowledged(
    answered: int,
) -> None:
    async with spawn_stage(message_rate=0, mailbox={"limit": 100_000}) as stage:
        await keep_away(stage, A, B)
        senders = [await stage.connect(f"@(local/sender-{n})") for n in range(4)]
        for number in range(500):
            for sender in senders:
                target = A if number % 2 else B
                sender.tell(target, "note", [sender.sender, number], pattern="ask")
        acks = [await senders[0].receive("hub:delivery_ack") for _ in range(answered)]

        await stage.hub.kill()
        for sender in senders:
            acks += await rest_of(sender)
        await stage.hub.start()

        witness = await stage.connect(SENDER)
        found = set()
        for address, parity in ((A, 1), (B, 0)):
            heard = await take_until_asked(await join_durable(stage, address), witness)
            assert seqs_of(heard) == list(range(1, len(heard) + 1))
            for sender in senders:
                mine = [n for name, n in data_of(heard) if name == sender.sender]
                assert mine == list(range(parity, 2 * len(mine), 2))
            found |= {message["metadata"]["originalMessageId"] for message in heard}
        assert {ack["payload"]["status"] for ack in acks} == {"queued"}
        assert {ack["payload"]["messageId"] for ack in acks} <= found


@pytest.mark.parametrize("how", ENDINGS)
async def test_r9_durable_registration_is_on_disk_when_it_is_confirmed(how: str) -> None:
    async with spawn_stage() as stage:
        await join_durable(stage, A)

        await restart(stage, how)

        sender = await stage.connect(SENDER)
        assert await addresses(sender) == []
        assert await addresses(sender, includeAway=True) == [A]
        assert (await ask(sender, A, "kept"))["status"] == "queued"
        back = await join_durable(stage, A)
        assert data_of(await take(back, 1)) == ["kept"]


@pytest.mark.parametrize("how", ENDINGS)
async def test_r9_dropped_mailbox_stays_dropped(how: str) -> None:
    async with spawn_stage() as stage:
        sender = await stage.connect(SENDER)
        gone, changed = await join_durable(stage, A), await join_durable(stage, B)
        first = await ask(sender, A)
        await ask(sender, B)
        await gone.ask("hub:unregister", {"actorAddress": A})
        await changed.register(B, durable=False)
        await settle_down(stage, sender)

        await restart(stage, how)

        sender = await stage.connect(SENDER)
        assert await addresses(sender, includeAway=True) == [BARRIER]
        assert (await sender.ask_actor(A, "note"))["type"] == "hub:unknown_actor"
        back, registered = await attach(stage, A)
        assert registered["waiting"] == 0
        again = await ask(sender, A)
        assert again["epoch"] != first["epoch"]
        assert again["seq"] == 1
        assert seqs_of(await take(back, 1)) == [1]


@pytest.mark.parametrize("how", ENDINGS)
async def test_r9_full_mailbox_is_full_after_a_restart(how: str) -> None:
    async with spawn_stage(mailbox={"limit": 3}) as stage:
        await keep_away(stage, A)
        await ask_all(await stage.connect(SENDER), A, range(3))

        await restart(stage, how)

        sender = await stage.connect(SENDER)
        refused = await sender.ask_actor(A, "note")
        assert code_of(refused) == "queue_full"
        assert refused["payload"]["details"]["waiting"] == 3
        target = await join_durable(stage, A)
        assert data_of(await take(target, 3)) == [0, 1, 2]


async def test_rd_s7_failures_are_remembered_across_a_kill() -> None:
    async with spawn_stage(mailbox=QUICK | {"max_deliveries": 3}) as stage:
        sender, target = await stage.connect(SENDER), await join_durable(stage, A, settles=True)
        ack = await ask(sender, A, "poison")
        for _ in range(2):
            [copy] = await take(target, 1)
            await settle(target, "hub:nack", copy, reason="no")

        await stage.hub.restart()
        target = await join_durable(stage, A, settles=True)
        letters = await stage.connect()
        await letters.ask("hub:subscribe", {"topic": DEAD_MAILBOXES})
        [copy] = await take(target, 1)
        await settle(target, "hub:nack", copy, reason="never")

        letter = await letters.receive("note")
        assert letter["payload"] == "poison"
        facts = dead_letter_of(letter)
        assert (facts["epoch"], facts["seq"]) == (ack["epoch"], ack["seq"])
        assert "never" in facts["reason"]
        assert delivery_of(copy)["attempt"] >= 3


@pytest.mark.parametrize("how", ENDINGS)
async def test_r22_dead_letters_of_mailboxes_survive_a_restart(how: str) -> None:
    async with spawn_stage() as stage:
        sender, target = await stage.connect(SENDER), await join_durable(stage, A, settles=True)
        await ask_all(sender, A, range(3))
        for copy in await take(target, 3):
            assert (await settle(target, "hub:term", copy, reason="bad"))["accepted"] == 1

        await restart(stage, how)

        auditor = await stage.join("@(local/auditor)")
        reply = await auditor.ask(
            "hub:subscribe",
            {
                "topic": DEAD_MAILBOXES,
                "subscription": "audit",
                "mode": "exclusive",
                "from": "earliest",
            },
        )
        assert reply["type"] == "hub:subscribed", reply
        letters = await take(auditor, 3)
        assert data_of(letters) == [0, 1, 2]
        assert [dead_letter_of(letter)["seq"] for letter in letters] == [1, 2, 3]
        _, registered = await attach(stage, A)
        assert registered["waiting"] == 0


async def test_r4_several_kills_in_a_row_keep_every_mailbox() -> None:
    async with spawn_stage() as stage:
        names = [f"@(local/box-{number})" for number in range(5)]
        await keep_away(stage, *names)
        sent: dict[str, list[int]] = {name: [] for name in names}
        for life in range(4):
            sender = await stage.connect(SENDER)
            for index, name in enumerate(names):
                await ask_all(sender, name, [life * 10 + index])
                sent[name].append(life * 10 + index)
            await stage.hub.restart()

        sender = await stage.connect(SENDER)
        for name in names:
            target = await join_durable(stage, name)
            assert data_of(await take_until_asked(target, sender)) == sent[name]
            await leave(target)


async def test_r8_durable_actor_and_plain_actor_come_back_side_by_side() -> None:
    async with spawn_stage() as stage:
        await join_durable(stage, A)
        await stage.join(B)
        await settle_down(stage, await stage.connect(SENDER))

        await stage.hub.restart()

        sender = await stage.connect(SENDER)
        assert (await ask(sender, A, "kept"))["status"] == "queued"
        assert code_of(await sender.ask_actor(B, "note")) == "actor_reconnecting"
        target, plain = await join_durable(stage, A), await stage.join(B)
        assert data_of(await take(target, 1)) == ["kept"]
        await ask(sender, B, "now")
        assert data_of(await take(plain, 1)) == ["now"]


async def test_wire_other_level_of_durability_survives_a_planned_stop() -> None:
    for sync in ("interval", "os"):
        async with spawn_stage(log={"sync": sync}) as stage:
            await keep_away(stage, A)
            await ask_all(await stage.connect(SENDER), A, range(50))

            assert await stage.hub.stop() == 0
            await stage.hub.start()

            target = await join_durable(stage, A)
            assert data_of(await take(target, 50)) == list(range(50))


async def test_r8_hub_that_was_killed_complains_of_nothing() -> None:
    async with spawn_stage() as stage:
        await keep_away(stage, A)
        for _ in range(3):
            await ask_all(await stage.connect(SENDER), A, range(10))
            await stage.hub.restart()

        assert "Traceback" not in stage.hub.log()
        assert (await stage.health())["status"] == "ok"
