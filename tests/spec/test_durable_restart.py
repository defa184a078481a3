"""Hubs that are stopped or killed: what was acknowledged is there, in order; repeats say so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.peer import Closed, Envelope, Peer, code_of
from tests.support.socket import stage as sockets
from tests.support.socket.mailboxes import (
    DEAD_MAILBOXES,
    ask,
    ask_all,
    attach,
    attempts_of,
    data_of,
    dead_letter_of,
    delivery_of,
    join_durable,
    keep_away,
    seqs_of,
    settle,
    settled,
    settling_pair,
    take,
    take_until_asked,
)
from tests.support.socket.stage import spawn_stage
from tests.support.socket.topics import (
    DLQ,
    HASTY,
    MODES,
    OF_WORK,
    TOPIC,
    UNLIMITED,
    create,
    dead_letters,
    enter,
    expect,
    head_of,
    publish,
    publish_all,
    reenter,
    refusal,
    seqs,
    shows,
    stored,
    subscribe,
    until,
    working,
)
from tests.support.stage import RunStage, Stage, addresses

A, B = "@(local/a)", "@(local/b)"
SENDER = "@(local/sender)"
ENDINGS = pytest.mark.parametrize("how", ["stop", "kill"])
QUICK: dict[str, Any] = {"backoff_ms": 10, "backoff_cap_ms": 1000}
# The registry of a process is written behind the hub's back, within 50 ms.
REGISTRY_S = 0.15


async def rest_of(peer: Peer) -> list[Envelope]:
    """What a peer received before the hub went away."""
    heard: list[Envelope] = []
    try:
        while True:
            heard.append(await peer.receive())
    except Closed:
        return heard


# Mailboxes.


@ENDINGS
async def test_r8_everything_queued_is_delivered_after_a_restart_in_order(
    mortal: Stage, how: str
) -> None:
    stage = mortal
    await keep_away(stage, A)
    data = [{"n": number, "text": "🦉" * number} for number in range(90)]
    acks = await ask_all(await stage.connect(SENDER), A, data[:45], metadata={"mine": 7})
    await stage.restart(how)
    acks += await ask_all(await stage.connect(SENDER), A, data[45:], metadata={"mine": 7})

    await stage.restart(how)
    target, registered = await attach(stage, A)

    assert registered["waiting"] == 90
    heard = await take_until_asked(target, await stage.connect())
    assert data_of(heard) == data
    assert seqs_of(heard) == [ack["seq"] for ack in acks] == list(range(1, 91))
    # Ruling 19: the epoch stays.
    epochs = {delivery_of(message)["epoch"] for message in heard}
    assert epochs == {ack["epoch"] for ack in acks}
    assert len(epochs) == 1
    assert {message["from"] for message in heard} == {SENDER}
    assert {message["metadata"]["mine"] for message in heard} == {7}
    assert [message["metadata"]["originalMessageId"] for message in heard] == [
        ack["messageId"] for ack in acks
    ]


@ENDINGS
async def test_r4_unsettled_copies_come_again_marked_after_a_restart(
    mortal: Stage, how: str
) -> None:
    sender, target = await settling_pair(mortal)
    plain = await join_durable(mortal, B)
    await ask_all(sender, A, range(6))
    first = await take(target, 6)
    for index in (0, 1, 3):
        assert (await settle(target, "hub:ack", first[index]))["accepted"] == 1
    await ask_all(sender, B, range(10))
    await take(plain, 10)
    await mortal.pass_time(REGISTRY_S)

    await mortal.restart(how)
    back, registered = await attach(mortal, A, settles=True)

    assert registered["waiting"] == 3
    sender = await mortal.connect(SENDER)
    again = await take_until_asked(back, sender)
    assert data_of(again) == [2, 4, 5]
    assert seqs_of(again) == [3, 5, 6]
    assert min(attempts_of(again)) >= 2
    assert [message["id"] for message in again] == [first[n]["id"] for n in (2, 4, 5)]
    reply = settled(await back.ask("hub:ack", {"stream": A, "seqs": [3, 5, 6]}))
    assert reply["floor"] == 6
    # Who does not settle is not sent again what was settled on disk.
    plain, registered = await attach(mortal, B)
    assert registered["waiting"] == 0
    assert await take_until_asked(plain, sender) == []


@ENDINGS
async def test_r8_durable_actors_are_queued_for_and_plain_ones_expected(
    run_mortal: RunStage, how: str
) -> None:
    async with run_mortal(mailbox={"limit": 3}) as stage:
        sender = await stage.connect(SENDER)
        gone, changed = await stage.connect(), await stage.connect()
        await gone.register("@(local/gone)", durable=True)
        await changed.register("@(local/changed)", durable=True)
        first = await ask(sender, "@(local/gone)")
        await gone.ask("hub:unregister", {"actorAddress": "@(local/gone)"})
        await changed.register("@(local/changed)", durable=False)
        changed.abort()
        await join_durable(stage, A)
        await stage.join(B)
        await keep_away(stage, "@(local/full)")
        await ask_all(sender, "@(local/full)", range(3))
        await stage.pass_time(REGISTRY_S)

        await stage.restart(how)

        sender = await stage.connect(SENDER)
        assert await addresses(sender) == []
        assert sorted(await addresses(sender, includeAway=True)) == [A, "@(local/full)"]
        assert (await ask(sender, A, "kept"))["status"] == "queued"
        assert code_of(await sender.ask_actor(B, "note")) == "actor_reconnecting"
        refused = await sender.ask_actor("@(local/full)", "note")
        assert code_of(refused) == "queue_full"
        assert refused["payload"]["details"]["waiting"] == 3
        target, plain = await join_durable(stage, A), await stage.join(B)
        assert data_of(await take(target, 1)) == ["kept"]
        await ask(sender, B, "now")
        assert data_of(await take(plain, 1)) == ["now"]
        # A mailbox that was dropped stays dropped.
        assert (await sender.ask_actor("@(local/gone)", "note"))["type"] == "hub:unknown_actor"
        assert (await attach(stage, "@(local/gone)"))[1]["waiting"] == 0
        again = await ask(sender, "@(local/gone)")
        assert (again["epoch"] != first["epoch"], again["seq"]) == (True, 1)


@ENDINGS
async def test_rd_s7_failures_and_dead_letters_of_mailboxes_are_remembered(
    run_mortal: RunStage, how: str
) -> None:
    async with run_mortal(mailbox=QUICK | {"max_deliveries": 3}) as stage:
        sender, target = await settling_pair(stage)
        await ask_all(sender, A, ["bad", "poison"])
        bad, copy = await take(target, 2)
        await settle(target, "hub:term", bad, reason="bad")
        for _ in range(2):
            await settle(target, "hub:nack", copy, reason="no")
            [copy] = await take(target, 1)

        await stage.restart(how)
        target = await join_durable(stage, A, settles=True)
        [copy] = await take(target, 1)
        assert delivery_of(copy)["attempt"] >= 3
        await settle(target, "hub:nack", copy, reason="never")

        auditor = await stage.join("@(local/auditor)")
        audit = {"topic": DEAD_MAILBOXES, "subscription": "audit", "from": "earliest"}
        assert (await auditor.ask("hub:subscribe", audit))["type"] == "hub:subscribed"
        letters = await take(auditor, 2)
        assert data_of(letters) == ["bad", "poison"]
        facts = [dead_letter_of(letter) for letter in letters]
        assert [(one["seq"], one["reason"]) for one in facts] == [(1, "bad"), (2, "never")]
        assert {one["epoch"] for one in facts} == {delivery_of(copy)["epoch"]}


# Topics and subscriptions.


@ENDINGS
async def test_rd_s5_what_was_settled_stays_settled_and_the_rest_comes_marked(
    run_mortal: RunStage, how: str
) -> None:
    async with run_mortal(**UNLIMITED) as stage:
        _, consumer = await working(stage, 15, window=10)
        epoch = consumer.joined["epoch"]
        before = {one.seq: one.envelope["id"] for one in await consumer.take(10)}
        await consumer.ack(1, 2, 4, 7)
        before |= {one.seq: one.envelope["id"] for one in await consumer.take(4)}

        await stage.restart(how)

        watcher = await stage.join("@(local/w)")
        await shows(watcher, floor=2, head=15, lag=11, settledAboveFloor=2)
        back = await enter(stage, "b", window=20, resume={"epoch": epoch, "seq": 2})
        assert (back.joined["epoch"], back.joined["recovered"]) == (epoch, True)
        heard = await back.take(11)
        assert seqs(heard) == [3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]
        for one in heard:
            assert one.payload == one.seq
            if one.seq in before:
                assert one.attempt >= 2
                assert one.envelope["id"] == before[one.seq]
        assert (await back.ack(*seqs(heard)))["floor"] == 15


@ENDINGS
async def test_rd_d1_caught_up_subscription_needs_no_traffic_after_a_restart(
    mortal: Stage, how: str
) -> None:
    _, consumer = await working(mortal, 10)
    await consumer.take_and_ack(10)

    await mortal.restart(how)

    watcher = await mortal.join("@(local/w)")
    await shows(watcher, floor=10, lag=0, head=10, next=11)
    back = await enter(mortal, "b")
    assert (back.joined["next"], back.joined["lag"]) == (11, 0)
    await back.quiet()
    assert (await back.ack(5))["ignored"] == [5]
    back.peer.abort()
    await until(watcher, consumers=0)
    await publish(watcher, "new")
    again = await enter(mortal, "c")
    assert seqs(await again.take_and_ack(1)) == [11]


@ENDINGS
async def test_wire_definitions_starts_pauses_seeks_and_deletions_survive(
    mortal: Stage, how: str
) -> None:
    stage = mortal
    definition: dict[str, Any] = {"poison": "drop", "retention": {"ageSeconds": 3_600}}
    publisher, consumer = await working(stage, definition=definition, mode="shared")
    await subscribe(publisher, name="deleted")
    await publish_all(await stage.join("@(local/p)"), range(1, 11))
    await consumer.take_and_ack(10)
    for name in ("earliest", "latest"):
        await enter(stage, name, name=name, start=name)
    await expect(consumer.peer, "hub:sub_pause", OF_WORK, "hub:sub_info_response")
    await expect(consumer.peer, "hub:seek", OF_WORK | {"to": {"seq": 8}}, "hub:sought")
    gone = OF_WORK | {"subscription": "deleted"}
    await expect(consumer.peer, "hub:sub_delete", gone, "hub:sub_info_response")
    old = (await create(consumer.peer, "again"))["epoch"]
    for topic in ("again", "other"):
        await publish(consumer.peer, "gone", topic)
        await expect(consumer.peer, "hub:topic_delete", {"topic": topic}, "hub:topic_deleted")
    new = (await create(consumer.peer, "again"))["epoch"]
    await publish(consumer.peer, "new", "again")

    await stage.restart(how)

    peer = await stage.join("@(local/c)")
    await create(peer, **definition)
    assert await refusal(peer, "hub:sub_info", gone) == "unknown_subscription"
    await shows(peer, mode="shared", paused=True, floor=7, next=8, lag=3)
    back = await enter(stage, "b", mode="shared")
    await back.quiet()
    await expect(peer, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
    assert sorted(seqs(await back.take_and_ack(3))) == [8, 9, 10]
    for name, first in (("earliest", 1), ("latest", 11)):
        joined = (await enter(stage, name, name=name, start="latest")).joined
        assert joined["next"] == first
    # Ruling 19: a topic made again keeps its new epoch.
    assert new != old
    assert (await create(peer, "again"))["epoch"] == new
    assert await stored(peer, "again") == ["new"]
    assert await refusal(peer, "hub:topic_info", {"topic": "other"}) == "unknown_topic"


@ENDINGS
async def test_r6_positions_and_ids_go_on_through_many_lives(mortal: Stage, how: str) -> None:
    stage, epoch = mortal, ""
    for life in range(3):
        publisher = await stage.join("@(local/a)")
        created = await create(publisher)
        epoch = epoch or created["epoch"]
        assert (created["epoch"], created["head"]) == (epoch, life * 5)
        for number in range(life * 5 + 5):
            published = await publish(publisher, number, members={"id": f"id-{number}"})
            assert (published["epoch"], published["seq"]) == (epoch, number + 1)
            assert ("duplicate" in published) is (number < life * 5)
        await stage.restart(how)

    assert await stored(await stage.join("@(local/b)")) == list(range(15))


async def test_r23_delayed_entry_keeps_its_time_across_a_kill(mortal: Stage) -> None:
    stage, (publisher, consumer) = mortal, await working(mortal)
    due = stage.clock.now_ms() + 2_500
    await publish(publisher, "later", deliverAt=due)
    await publish(publisher, "now")
    await consumer.next()
    await consumer.settle("hub:ack", upTo=2)

    await stage.restart("kill")

    back = await enter(stage, "b")
    # What was parked after the last cursor is read again first, and then parked again.
    info = await back.info()
    while info["lag"] and stage.clock.now_ms() < due:
        info = await back.info()
    if stage.clock.now_ms() < due:
        assert (info["floor"], info["lag"]) == (2, 0)
    heard = await back.next()
    assert (heard.payload, heard.seq) == ("later", 1)
    assert stage.clock.now_ms() >= due
    assert (await back.ack(1))["accepted"] == 1


@ENDINGS
async def test_rd_s8_failures_and_dead_letters_survive_and_can_be_redriven(
    mortal: Stage, how: str
) -> None:
    options: dict[str, Any] = HASTY | {"maxDeliveries": 3, "consumer": "worker"}
    publisher, consumer = await working(mortal, definition={"poison": "dead_letter"}, **options)
    await publish_all(publisher, range(4), key={number: f"k-{number}" for number in range(4)})
    await consumer.take(4)
    await consumer.term(1, reason="broken")
    await consumer.ack(2)
    for _ in range(2):
        await consumer.nack(3, reason="early")
        await consumer.next()

    await mortal.restart(how)

    peer = await mortal.join("@(local/c)")
    await shows(peer, floor=2, deadLettered=1, lag=2)
    back = await enter(mortal, "b", **options)
    again = await back.take(2)
    assert [(one.seq, one.attempt >= 2) for one in again] == [(3, True), (4, True)]
    await back.nack(3, reason="last")
    await until(peer, deadLettered=2)
    letters = await dead_letters(peer)
    assert [letter["payload"] for letter in letters] == [0, 2]
    stories = [letter["metadata"]["deadLetter"] for letter in letters]
    assert [(one["reason"], one["attempts"]) for one in stories] == [("broken", 1), ("last", 3)]
    redriven = await expect(peer, "hub:redrive", {"topic": DLQ, "all": True}, "hub:redriven")
    assert redriven["count"] == 2
    await back.ack(4)
    heard = await back.take_and_ack(2)
    assert [(one.seq, one.payload, one.key) for one in heard] == [(5, 0, "k-0"), (6, 2, "k-2")]


@ENDINGS
async def test_rd_d11_backlogs_drain_in_every_mode(run_mortal: RunStage, how: str) -> None:
    async with run_mortal(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        for mode in MODES:
            consumer = await enter(stage, mode, name=mode, mode=mode)
        keys = {number: f"k-{number % 50}" for number in range(600)}
        await publish_all(publisher, range(600), key=keys)
        await consumer.next()

        await stage.restart(how)

        for mode in MODES:
            back = await enter(stage, mode, name=mode, mode=mode)
            heard = await back.take_and_ack(600)
            assert sorted(seqs(heard)) == list(range(1, 601))
            for key in ("k-0", "k-7", "k-49"):
                of_key = [one.seq for one in heard if one.key == key]
                assert of_key == sorted(of_key)
            await back.shows(lag=0)


async def test_rd_9_5_kill_at_every_index_of_the_window_skips_nothing(mortal: Stage) -> None:
    publisher = await mortal.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(1, 31))
    settled: set[int] = set()

    for index in range(6):
        consumer = await enter(mortal, "b", window=5)
        heard = await consumer.take(5)
        assert seqs(heard) == [seq for seq in range(1, 31) if seq not in settled][:5]
        # The last ones first, so that the floor stays and the gap has to be remembered.
        if chosen := seqs(heard)[5 - index :]:
            await consumer.ack(*chosen)
            settled |= set(chosen)
        await mortal.restart("kill")

    consumer = await enter(mortal, "b", window=5)
    rest = await consumer.take_and_ack(30 - len(settled))
    assert sorted(seqs(rest)) == [seq for seq in range(1, 31) if seq not in settled]
    await consumer.shows(floor=30)


# Real processes, killed while they are busy, and real files.


async def test_r4_whatever_the_kill_interrupts_nothing_comes_twice_unmarked() -> None:
    async with spawn_stage(message_rate=0) as stage:
        sender, target = await stage.connect(SENDER), await join_durable(stage, A)
        for number in range(2000):
            sender.tell(A, "note", number, pattern="ask")
        heard = await take(target, 500)

        await stage.kill()
        heard += await rest_of(target)
        answered = [m["payload"] for m in await rest_of(sender) if m["type"] == "hub:delivery_ack"]
        await stage.start()

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
        assert "Traceback" not in stage.hub.log()
        assert (await stage.health())["status"] == "ok"


@pytest.mark.parametrize("answered", [1, 150])
async def test_r3_kill_in_a_stream_of_asks_loses_nothing_that_was_acknowledged(
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

        await stage.kill()
        for sender in senders:
            acks += await rest_of(sender)
        await stage.start()

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


async def test_rd_9_kill_in_the_middle_of_a_burst_loses_no_acknowledged_publish() -> None:
    async with spawn_stage(**UNLIMITED) as stage:
        publisher, consumer = await working(stage)
        note = {"topic": TOPIC, "type": "note", "durable": True}
        acked: dict[int, int] = {}
        for number in range(2_000):
            message = note | {"data": number}
            publisher.send("hub:publish", message, id=f"id-{number}", pattern="ask")
        while len(acked) < 300:
            reply = await publisher.receive("hub:published")
            number = int((reply["correlationId"] or "").removeprefix("id-"))
            acked[reply["payload"]["seq"]] = number
        await consumer.take(50)
        assert (await consumer.settle("hub:ack", upTo=25))["floor"] == 25
        # Acks without an answer may be repeated, but nothing is lost by them.
        for seq in range(26, 51):
            consumer.send("hub:ack", seq=seq)

        await stage.restart("kill")

        peer = await stage.join("@(local/a)")
        assert acked.items() <= dict(enumerate(await stored(peer), 1)).items()
        # What was not answered is repeated under its id: stored once, whatever had become of it.
        for number in range(2_000):
            message = note | {"data": number}
            peer.send("hub:publish", message, id=f"id-{number}", pattern="ask")
        receipts = [await peer.receive("hub:published") for _ in range(2_000)]
        assert {one["payload"]["epoch"] for one in receipts} == {consumer.joined["epoch"]}
        assert await head_of(peer) == 2_000
        back = await reenter(stage, "b")
        first = back.joined["next"]
        assert 26 <= first <= 51
        heard = await back.take_and_ack(2_001 - first)
        assert [one.payload for one in heard] == (await stored(peer))[first - 1 :]
        assert seqs(heard) == list(range(first, 2_001))
        assert all(one.attempt >= 2 for one in heard if one.seq <= 50)


@pytest.mark.parametrize("sync", ["interval", "os"])
async def test_wire_other_level_of_durability_survives_a_planned_stop(sync: str) -> None:
    async with sockets.run_stage(log={"sync": sync}) as stage:
        await keep_away(stage, A)
        await ask_all(await stage.connect(SENDER), A, range(50))

        await stage.restart()

        target = await join_durable(stage, A)
        assert data_of(await take(target, 50)) == list(range(50))
