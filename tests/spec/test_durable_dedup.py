"""Ruling 6 with a log: the same id gets the same answer and is appended once, restarts included.

What one life of the hub does with repeats to plain actors is in test_10_delivery.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.mailboxes import (
    ENDINGS,
    Payload,
    ask,
    ask_all,
    attach,
    data_of,
    held_disk,
    join_durable,
    keep_away,
    leave,
    restart,
    seqs_of,
    take,
    take_until_asked,
)
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, code_of, run_stage, spawn_stage

A, B, BARRIER = "@(local/a)", "@(local/b)", "@(local/barrier)"
SENDER = "@(local/sender)"


async def test_r6_repeat_gets_the_same_answer_and_says_that_it_is_one(stage: InProcess) -> None:
    sender, target = await stage.connect(SENDER), await join_durable(stage, A)

    first = await ask(sender, A, "once", id="m-1")
    again = [await ask(sender, A, "once", id="m-1") for _ in range(3)]

    assert "duplicate" not in first
    assert again == [first | {"duplicate": True}] * 3
    assert data_of(await take_until_asked(target, sender)) == ["once"]


async def test_r6_repeat_of_a_queued_ask_is_appended_once(stage: InProcess) -> None:
    sender = await stage.connect(SENDER)
    await keep_away(stage, A)

    first = await ask(sender, A, "once", id="m-1")
    again = await ask(sender, A, "once", id="m-1")
    other = await ask(sender, A, "other", id="m-2")

    assert first["status"] == "queued"
    assert again == first | {"duplicate": True}
    assert other["seq"] == first["seq"] + 1
    target, registered = await attach(stage, A)
    assert registered["waiting"] == 2
    assert data_of(await take_until_asked(target, sender)) == ["once", "other"]


async def test_r6_repeat_of_a_queued_ask_says_queued_though_it_was_delivered_since(
    stage: InProcess,
) -> None:
    sender = await stage.connect(SENDER)
    await keep_away(stage, A)
    first = await ask(sender, A, id="m-1")
    target = await join_durable(stage, A)
    await target.receive("note")

    again = await ask(sender, A, id="m-1")

    assert again == first | {"duplicate": True}
    await target.nothing_more()


async def test_r6_repeats_do_not_fill_the_mailbox() -> None:
    async with run_stage(mailbox={"limit": 2}) as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, A)

        for _ in range(5):
            await ask(sender, A, id="m-1")
        for _ in range(5):
            await ask(sender, A, id="m-2")

        assert code_of(await sender.ask_actor(A, "note", id="m-3")) == "queue_full"
        assert (await ask(sender, A, id="m-2"))["duplicate"] is True


async def test_r6_refused_ask_may_be_repeated_with_the_same_id() -> None:
    async with run_stage(mailbox={"limit": 1}) as stage:
        sender = await stage.connect(SENDER)
        unknown = await sender.ask_actor(A, "note", "early", id="m-1")
        await keep_away(stage, A)
        late = await sender.ask_actor(A, "note", "late", id="m-1", ttl=1, timestamp=1)
        await ask(sender, A, "first", id="m-0")
        full = await sender.ask_actor(A, "note", "full", id="m-1")
        target = await join_durable(stage, A)

        served = await ask(sender, A, "served", id="m-1")

        assert unknown["type"] == "hub:unknown_actor"
        assert code_of(late) == "message_expired"
        assert code_of(full) == "queue_full"
        assert "duplicate" not in served
        assert data_of(await take(target, 2)) == ["first", "served"]


async def test_r6_repeats_are_looked_up_before_lifetimes() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, A)
        members: dict[str, Any] = {"id": "m-1", "ttl": 1000, "timestamp": clock.now_ms()}
        first = await ask(sender, A, **members)
        clock.advance(60)

        assert await ask(sender, A, **members) == first | {"duplicate": True}
        assert code_of(await sender.ask_actor(A, "note", **members | {"id": "m-2"})) == (
            "message_expired"
        )


async def test_r6_repeat_is_known_though_the_mailbox_is_gone(stage: InProcess) -> None:
    sender, target = await stage.connect(SENDER), await join_durable(stage, A)
    first = await ask(sender, A, id="m-1")
    await target.ask("hub:unregister", {"actorAddress": A})

    assert await ask(sender, A, id="m-1") == first | {"duplicate": True}
    assert (await sender.ask_actor(A, "note", id="m-2"))["type"] == "hub:unknown_actor"


async def test_r6_key_is_sender_and_id_whatever_else_the_repeat_says(stage: InProcess) -> None:
    sender = await stage.connect(SENDER)
    await keep_away(stage, A, B)

    first = await ask(sender, A, "first", id="m-1")
    elsewhere = await ask(sender, B, "second", id="m-1")
    stranger = await ask(sender, A, "third", id="m-1", sender="@(local/stranger)")

    assert elsewhere == first | {"duplicate": True}
    assert stranger["seq"] == 2
    assert "duplicate" not in stranger
    _, registered = await attach(stage, B)
    assert registered["waiting"] == 0


async def test_r6_repeats_while_the_first_is_on_its_way_to_the_disk_are_appended_once(
    stage: InProcess,
) -> None:
    sender, other = await stage.connect(SENDER), await stage.connect(SENDER)
    await keep_away(stage, A)
    with held_disk() as disk:
        disk.hold()
        for peer in (sender, sender, other):
            peer.tell(A, "note", "once", id="m-1", pattern="ask")
        await disk.wait()
        await other.nothing_more()
        await sender.nothing_more()
        disk.release()
        replies = [await peer.reply_to("m-1") for peer in (sender, other)]

    acks = [reply["payload"] for reply in replies]
    for ack in acks:
        ack.pop("duplicate", None)
    assert acks[0]["status"] == "queued"
    assert acks[0] == acks[1]
    assert (await ask(sender, A, "next"))["seq"] == 2
    target = await join_durable(stage, A)
    assert data_of(await take(target, 2)) == ["once", "next"]


async def test_r6_repeated_tell_to_a_durable_actor_is_delivered_again(stage: InProcess) -> None:
    sender, target = await stage.connect(SENDER), await join_durable(stage, A)

    for _ in range(2):
        sender.tell(A, "note", "twice", id="m-1")

    assert data_of(await take(target, 2)) == ["twice", "twice"]


async def all_kinds_of_asks(sender: Peer) -> dict[str, Payload]:
    """One ask to each kind of target and one broadcast, ids by kind; their answers."""
    answers = {
        "durable": await ask(sender, A, "durable", id="durable"),
        "away": await ask(sender, B, "away", id="away"),
        "plain": await ask(sender, "@(local/plain)", "plain", id="plain"),
        "broadcast": (await sender.ask("hub:broadcast", {"type": "news"}, id="broadcast"))[
            "payload"
        ],
    }
    # Its own ack says that everything before it is on disk too.
    await ask(sender, BARRIER)
    return answers


@pytest.mark.parametrize("how", ENDINGS)
async def test_r6_repeat_gets_the_same_answer_after_a_restart(how: str) -> None:
    async with spawn_stage() as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, B, BARRIER)
        target, plain = await join_durable(stage, A), await stage.join("@(local/plain)")
        before = await all_kinds_of_asks(sender)
        await target.receive("note")
        await plain.receive("note")

        await restart(stage, how)
        sender = await stage.connect(SENDER)
        after = await all_kinds_of_asks(sender)

        assert before["durable"]["status"] == before["plain"]["status"] == "delivered"
        assert before["away"]["status"] == "queued"
        for kind in ("durable", "away", "plain"):
            assert after[kind] == before[kind] | {"duplicate": True}
        after["broadcast"].pop("duplicate", None)
        assert after["broadcast"] == before["broadcast"]
        target, plain = await join_durable(stage, A), await stage.join("@(local/plain)")
        back = await join_durable(stage, B)
        assert data_of(await take_until_asked(back, sender)) == ["away"]
        assert await take_until_asked(target, sender) == []
        assert await take_until_asked(plain, sender) == []


@pytest.mark.parametrize("how", ENDINGS)
async def test_r6_unanswered_asks_repeated_after_a_restart_are_appended_once(how: str) -> None:
    async with spawn_stage(message_rate=0, mailbox={"limit": 1000}) as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, A)
        ids = [f"m-{number}" for number in range(400)]
        for message_id in ids:
            sender.tell(A, "note", message_id, id=message_id, pattern="ask")
        # The hub ends while most of them are somewhere between the socket and the disk.
        answered = await sender.reply_to(ids[20])
        assert answered["type"] == "hub:delivery_ack"

        await restart(stage, how)
        sender = await stage.connect(SENDER)
        acks = {each: await ask(sender, A, each, id=each) for each in ids}

        known = acks[ids[20]]
        assert known["duplicate"] is True
        for name in ("messageId", "status", "epoch", "seq", "durability"):
            assert known[name] == answered["payload"][name]
        assert [ack["seq"] for ack in acks.values()] == list(range(1, 401))
        assert len({ack["epoch"] for ack in acks.values()}) == 1
        target = await join_durable(stage, A)
        heard = await take_until_asked(target, sender)
        assert data_of(heard) == ids
        assert seqs_of(heard) == list(range(1, 401))


async def test_r6_window_is_counted_from_the_first_answer_across_a_restart() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        await keep_away(stage, A)
        first = await ask(await stage.connect(SENDER), A, id="m-1")
        clock.advance(200)
        await stage.hub.stop()
        clock.advance(50)
        await stage.hub.start()
        sender = await stage.connect(SENDER)

        clock.advance(49)
        assert await ask(sender, A, id="m-1") == first | {"duplicate": True}
        clock.advance(2)
        forgotten = await ask(sender, A, id="m-1")

        assert "duplicate" not in forgotten
        assert forgotten["seq"] == first["seq"] + 1


async def test_r6_refusals_are_not_remembered_across_a_restart() -> None:
    async with run_stage(mailbox={"limit": 1}) as stage:
        sender = await stage.connect(SENDER)
        await keep_away(stage, A)
        await ask(sender, A, "first", id="m-0")
        assert code_of(await sender.ask_actor(A, "note", id="m-1")) == "queue_full"
        await stage.hub.stop()
        await stage.hub.start()
        target, sender = await join_durable(stage, A), await stage.connect(SENDER)
        assert data_of(await take(target, 1)) == ["first"]

        served = await ask(sender, A, "second", id="m-1")

        assert "duplicate" not in served
        assert data_of(await take(target, 1)) == ["second"]


async def test_r6_answers_survive_several_restarts() -> None:
    async with run_stage() as stage:
        await keep_away(stage, A)
        sender = await stage.connect(SENDER)
        ids = [f"m-{number}" for number in range(10)]
        first = {each: await ask(sender, A, each, id=each) for each in ids}

        for _ in range(3):
            await stage.hub.stop()
            await stage.hub.start()
            sender = await stage.connect(SENDER)
            for each in ids:
                assert await ask(sender, A, each, id=each) == first[each] | {"duplicate": True}

        acks = await ask_all(sender, A, ["new"])
        assert acks[0]["seq"] == len(ids) + 1
        target = await join_durable(stage, A)
        assert data_of(await take(target, len(ids) + 1)) == [*ids, "new"]
        await leave(target)
