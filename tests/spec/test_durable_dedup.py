"""Ruling 6 with a log: the same id gets the same answer and is appended once, restarts included.

What one life of the hub does with repeats to plain actors is in test_10_delivery.py.
"""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.socket.mailboxes import (
    Payload,
    ask,
    attach,
    data_of,
    join_durable,
    keep_away,
    seqs_of,
    take,
    take_until_asked,
)
from tests.support.socket.stage import spawn_stage
from tests.support.stage import RunStage, Stage

A, B, BARRIER = "@(local/a)", "@(local/b)", "@(local/barrier)"
SENDER = "@(local/sender)"


@pytest.mark.parametrize("is_away", [False, True], ids=["live", "away"])
async def test_r6_repeat_gets_the_same_answer_and_says_that_it_is_one(
    stage: Stage, is_away: bool
) -> None:
    sender = await stage.connect(SENDER)
    if is_away:
        await keep_away(stage, A)
    else:
        target = await join_durable(stage, A)

    first = await ask(sender, A, "once", id="m-1")
    again = [await ask(sender, A, "once", id="m-1") for _ in range(3)]
    other = await ask(sender, A, "other", id="m-2")

    assert (first["status"], "duplicate" in first) == ("queued" if is_away else "delivered", False)
    assert again == [first | {"duplicate": True}] * 3
    assert other["seq"] == first["seq"] + 1
    if is_away:
        target, registered = await attach(stage, A)
        assert registered["waiting"] == 2
    assert data_of(await take_until_asked(target, sender)) == ["once", "other"]
    # It says so still though it was delivered since, and though the mailbox is gone.
    assert await ask(sender, A, id="m-1") == first | {"duplicate": True}
    await target.ask("hub:unregister", {"actorAddress": A})
    assert await ask(sender, A, id="m-1") == first | {"duplicate": True}
    assert (await sender.ask_actor(A, "note", id="m-3"))["type"] == "hub:unknown_actor"


async def test_r6_repeats_do_not_fill_the_mailbox_and_refusals_are_not_remembered(
    run_stage: RunStage,
) -> None:
    async with run_stage(mailbox={"limit": 2}) as stage:
        sender = await stage.connect(SENDER)
        unknown = await sender.ask_actor(A, "note", "early", id="m-2")
        assert unknown["type"] == "hub:unknown_actor"
        await keep_away(stage, A)
        late = await sender.ask_actor(A, "note", "late", id="m-2", ttl=1, timestamp=1)
        assert code_of(late) == "message_expired"
        for message_id in ("m-0", "m-1"):
            for _ in range(3):
                await ask(sender, A, message_id, id=message_id)
        assert code_of(await sender.ask_actor(A, "note", "full", id="m-2")) == "queue_full"
        assert (await ask(sender, A, id="m-1"))["duplicate"] is True

        await stage.restart()
        target, sender = await join_durable(stage, A), await stage.connect(SENDER)
        assert data_of(await take(target, 2)) == ["m-0", "m-1"]
        served = await ask(sender, A, "served", id="m-2")

        assert "duplicate" not in served
        assert data_of(await take(target, 1)) == ["served"]


async def test_r6_key_is_sender_and_id_whatever_else_the_repeat_says(stage: Stage) -> None:
    sender, target = await stage.connect(SENDER), await join_durable(stage, A)
    await keep_away(stage, B)

    first = await ask(sender, A, "first", id="m-1")
    elsewhere = await ask(sender, B, "second", id="m-1")
    stranger = await ask(sender, A, "third", id="m-1", sender="@(local/stranger)")
    # A tell is never a repeat.
    sender.tell(A, "note", "told", id="m-1")

    assert elsewhere == first | {"duplicate": True}
    assert (stranger["seq"], "duplicate" in stranger) == (2, False)
    assert data_of(await take(target, 3)) == ["first", "third", "told"]
    assert (await attach(stage, B))[1]["waiting"] == 0


@pytest.mark.also_over_sockets
async def test_r6_repeats_while_the_first_is_on_its_way_to_the_disk_are_appended_once(
    stage: Stage,
) -> None:
    sender, other = await stage.connect(SENDER), await stage.connect(SENDER)
    await keep_away(stage, A)
    with stage.held_disk() as disk:
        disk.hold()
        for peer in (sender, sender, other):
            peer.tell(A, "note", "once", id="m-1", pattern="ask")
        await disk.wait()
        await other.nothing_more()
        await sender.nothing_more()
        disk.release()
        acks = [(await peer.reply_to("m-1"))["payload"] for peer in (sender, other)]

    for ack in acks:
        ack.pop("duplicate", None)
    assert acks[0]["status"] == "queued"
    assert acks[0] == acks[1]
    assert (await ask(sender, A, "next"))["seq"] == 2
    target = await join_durable(stage, A)
    assert data_of(await take(target, 2)) == ["once", "next"]


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


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_r6_repeat_gets_the_same_answer_after_a_restart(mortal: Stage, how: str) -> None:
    stage, sender = mortal, await mortal.connect(SENDER)
    await keep_away(stage, B, BARRIER)
    target, plain = await join_durable(stage, A), await stage.join("@(local/plain)")
    before = await all_kinds_of_asks(sender)
    await target.receive("note")
    await plain.receive("note")

    for _ in range(2):
        await stage.restart(how)
        sender = await stage.connect(SENDER)
        after = await all_kinds_of_asks(sender)
        for kind in ("durable", "away", "plain"):
            assert after[kind] == before[kind] | {"duplicate": True}
        after["broadcast"].pop("duplicate", None)
        assert after["broadcast"] == before["broadcast"]

    assert before["durable"]["status"] == before["plain"]["status"] == "delivered"
    assert before["away"]["status"] == "queued"
    target, plain = await join_durable(stage, A), await stage.join("@(local/plain)")
    back = await join_durable(stage, B)
    assert data_of(await take_until_asked(back, sender)) == ["away"]
    assert await take_until_asked(target, sender) == []
    assert await take_until_asked(plain, sender) == []


@pytest.mark.parametrize("how", ["stop", "kill"])
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

        await stage.restart(how)
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


async def test_r6_window_is_counted_from_the_first_answer_across_a_restart(
    run_stage: RunStage,
) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        await keep_away(stage, A)
        # Repeats are looked up before lifetimes.
        members = {"id": "m-1", "ttl": 1000, "timestamp": clock.now_ms()}
        first = await ask(await stage.connect(SENDER), A, **members)
        clock.advance(200)
        await stage.stop()
        clock.advance(50)
        await stage.start()
        sender = await stage.connect(SENDER)

        clock.advance(49)
        assert await ask(sender, A, **members) == first | {"duplicate": True}
        clock.advance(2)
        forgotten = await ask(sender, A, id="m-1")

        assert (forgotten["seq"], "duplicate" in forgotten) == (first["seq"] + 1, False)
