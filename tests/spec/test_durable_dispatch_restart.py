"""Durable topics and subscriptions when the hub is killed without warning and started again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.stage import Spawned, spawn_stage
from tests.support.socket.topics import (
    HASTY,
    TOPIC,
    UNLIMITED,
    count_of,
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
    stored,
    sub_info,
    subscribe,
    until,
)

OF_WORK = {"topic": TOPIC, "subscription": "work"}
DLQ = f"{TOPIC}.dlq"
BACKLOG = 3_000


async def end(stage: Spawned, how: str = "SIGKILL") -> None:
    """End the hub one way or the other, and start it again."""
    if how == "SIGTERM":
        assert await stage.hub.stop() == 0
    else:
        await stage.hub.kill()
    await stage.hub.start()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
async def test_rd_s5_what_was_settled_stays_settled_and_the_rest_comes_marked(how: str) -> None:
    async with spawn_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        epoch = (await create(publisher))["epoch"]
        consumer = await enter(stage, "b", window=10)
        await publish_all(publisher, range(1, 16))
        before = {one.seq: one.envelope["id"] for one in await consumer.take(10)}
        await consumer.ack(1, 2, 4, 7)
        before |= {one.seq: one.envelope["id"] for one in await consumer.take(4)}

        await end(stage, how)

        watcher = await stage.join("@(local/w)")
        info = await sub_info(watcher)
        assert (info["floor"], info["head"], info["lag"]) == (2, 15, 11)
        assert count_of(info, "settledAboveFloor") == 2
        back = await enter(stage, "b", window=20, resume={"epoch": epoch, "seq": 2})
        assert back.joined["epoch"] == epoch
        assert back.joined["recovered"] is True
        heard = await back.take(11)
        assert seqs(heard) == [3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]
        for one in heard:
            assert one.payload == one.seq
            if one.seq in before:
                assert one.attempt >= 2
                assert one.envelope["id"] == before[one.seq]
        assert (await back.ack(*seqs(heard)))["floor"] == 15


async def test_rd_d2_subscription_exists_from_the_moment_it_was_confirmed() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        await publish_all(publisher, range(1, 6))
        for start, first in (("earliest", 1), ("latest", 6)):
            consumer = await enter(stage, start, name=start, start=start)
            assert consumer.joined["next"] == first
        await publish_all(publisher, range(6, 11))

        await end(stage)

        for name, first in (("earliest", 1), ("latest", 6)):
            back = await enter(stage, name, name=name, start="latest")
            assert back.joined["next"] == first
            assert seqs(await back.take_and_ack(11 - first)) == list(range(first, 11))


async def test_rd_d1_caught_up_subscription_needs_no_traffic_after_a_kill() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        await publish_all(publisher, range(10))
        await consumer.take_and_ack(10)

        await end(stage)

        watcher = await stage.join("@(local/w)")
        back = await enter(stage, "b")
        assert (back.joined["next"], back.joined["lag"]) == (11, 0)
        await back.quiet()
        back.peer.abort()
        await until(watcher, consumers=0)
        info = await sub_info(watcher)
        assert (info["floor"], info["lag"]) == (10, 0)


async def test_r6_duplicate_is_known_across_a_kill() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        first = [await publish(publisher, n, members={"id": f"id-{n}"}) for n in range(5)]

        await end(stage)

        again = await stage.join("@(local/a)")
        for number, original in enumerate(first):
            repeated = await publish(again, number, members={"id": f"id-{number}"})
            assert repeated["duplicate"] is True
            assert (repeated["epoch"], repeated["seq"]) == (original["epoch"], original["seq"])
        assert await stored(again) == list(range(5))
        assert (await publish(again, "new"))["seq"] == 6


async def test_rd_l3_log_goes_on_counting_through_many_lives() -> None:
    async with spawn_stage() as stage:
        epoch = ""
        for life in range(3):
            publisher = await stage.join("@(local/a)")
            created = await create(publisher)
            epoch = epoch or created["epoch"]
            assert (created["epoch"], created["head"]) == (epoch, life * 5)
            found = await publish_all(publisher, range(life * 5, life * 5 + 5))
            assert found == list(range(life * 5 + 1, life * 5 + 6))
            if life < 2:
                await end(stage)

        assert await stored(publisher) == list(range(15))
        consumer = await enter(stage, "b")
        assert [one.payload for one in await consumer.take_and_ack(15)] == list(range(15))


async def test_r19_topic_made_again_has_its_new_epoch_also_after_a_kill() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        old = (await create(publisher))["epoch"]
        await publish_all(publisher, range(3))
        await expect(publisher, "hub:topic_delete", {"topic": TOPIC}, "hub:topic_deleted")
        new = (await create(publisher))["epoch"]
        await publish(publisher, "new")
        await publish(publisher, "gone", "other")
        await expect(publisher, "hub:topic_delete", {"topic": "other"}, "hub:topic_deleted")

        await end(stage)

        peer = await stage.join("@(local/b)")
        assert new != old
        assert (await create(peer))["epoch"] == new
        assert await stored(peer) == ["new"]
        listed = await expect(peer, "hub:list_topics", {}, "hub:topic_list")
        assert [one["topic"] for one in listed["topics"]] == [TOPIC]


async def test_r23_delayed_entry_keeps_its_time_across_a_kill() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        due = stage.clock.now_ms() + 2_500
        await publish(publisher, "later", deliverAt=due)
        await publish(publisher, "now")
        await consumer.next()
        await consumer.settle("hub:ack", upTo=2)

        await end(stage)

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


async def test_rd_7_5_failures_are_remembered_across_a_kill() -> None:
    async with spawn_stage() as stage:
        options: dict[str, Any] = HASTY | {"maxDeliveries": 3, "consumer": "worker"}
        publisher = await stage.join("@(local/a)")
        await create(publisher, poison="dead_letter")
        consumer = await enter(stage, "b", **options)
        await publish(publisher, "bad")
        for _ in range(2):
            await consumer.next()
            await consumer.nack(1, reason="early")

        await end(stage)

        back = await enter(stage, "b", **options)
        again = await back.next()
        assert again.attempt >= 3
        await back.nack(1, reason="last")
        peer = await stage.join("@(local/c)")
        await until(peer, deadLettered=1, floor=1)
        (letter,) = await dead_letters(peer)
        assert letter["metadata"]["deadLetter"]["attempts"] == 3
        assert letter["metadata"]["deadLetter"]["reason"] == "last"


async def test_rd_s8_dead_letters_survive_a_kill_and_can_be_redriven() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher, poison="dead_letter")
        consumer = await enter(stage, "b", consumer="worker")
        await publish_all(publisher, range(4), key={number: f"k-{number}" for number in range(4)})
        await consumer.take(4)
        await consumer.term(1, 3, reason="broken")
        await consumer.ack(2)

        await end(stage)

        peer = await stage.join("@(local/c)")
        info = await sub_info(peer)
        assert (info["floor"], info["deadLettered"], info["lag"]) == (3, 2, 1)
        letters = await dead_letters(peer)
        assert [letter["payload"] for letter in letters] == [0, 2]
        assert {letter["metadata"]["deadLetter"]["reason"] for letter in letters} == {"broken"}
        redriven = await expect(peer, "hub:redrive", {"topic": DLQ, "all": True}, "hub:redriven")
        assert redriven["count"] == 2
        back = await enter(stage, "b", consumer="worker")
        heard = await back.take_and_ack(3)
        assert [(one.seq, one.payload) for one in heard] == [(4, 3), (5, 0), (6, 2)]
        assert [one.key for one in heard] == ["k-3", "k-0", "k-2"]


async def test_wire_definition_pause_seek_and_deletion_survive_a_kill() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher, poison="drop", retention={"ageSeconds": 3_600})
        consumer = await enter(stage, "b", mode="shared")
        await subscribe(publisher, name="deleted")
        await publish_all(await stage.join("@(local/p)"), range(1, 11))
        await consumer.take_and_ack(10)
        await expect(consumer.peer, "hub:sub_pause", OF_WORK, "hub:sub_info_response")
        await expect(consumer.peer, "hub:seek", OF_WORK | {"to": {"seq": 8}}, "hub:sought")
        gone = OF_WORK | {"subscription": "deleted"}
        await expect(consumer.peer, "hub:sub_delete", gone, "hub:sub_info_response")

        await end(stage)

        peer = await stage.join("@(local/c)")
        await create(peer, poison="drop", retention={"ageSeconds": 3_600})
        assert await refusal(peer, "hub:sub_info", gone) == "unknown_subscription"
        info = await sub_info(peer)
        assert (info["mode"], info["paused"]) == ("shared", True)
        assert (info["floor"], info["next"], info["lag"]) == (7, 8, 3)
        back = await enter(stage, "b", mode="shared")
        await back.quiet()
        await expect(peer, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
        assert sorted(seqs(await back.take_and_ack(3))) == [8, 9, 10]


async def test_rd_d11_backlog_drains_after_a_kill() -> None:
    async with spawn_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        modes = ("exclusive", "key-shared")
        for mode in modes:
            await enter(stage, mode, name=mode, mode=mode)
        keys = {number: f"k-{number % 50}" for number in range(BACKLOG)}
        await publish_all(publisher, range(BACKLOG), key=keys)

        await end(stage)

        for mode in modes:
            back = await enter(stage, mode, name=mode, mode=mode)
            heard = await back.take_and_ack(BACKLOG)
            assert sorted(seqs(heard)) == list(range(1, BACKLOG + 1))
            for key in ("k-0", "k-7", "k-49"):
                of_key = [one.seq for one in heard if one.key == key]
                assert of_key == sorted(of_key)
            assert (await back.info())["lag"] == 0


async def test_rd_9_5_kill_at_every_index_of_the_window_skips_nothing() -> None:
    async with spawn_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        await publish_all(publisher, range(1, 31))
        settled: set[int] = set()

        for index in (0, 2, 5):
            consumer = await enter(stage, "b", window=5)
            heard = await consumer.take(5)
            assert seqs(heard) == [seq for seq in range(1, 31) if seq not in settled][:5]
            # The last ones first, so that the floor stays and the gap has to be remembered.
            if chosen := seqs(heard)[5 - index :]:
                await consumer.ack(*chosen)
                settled |= set(chosen)
            await end(stage)

        consumer = await enter(stage, "b", window=5)
        rest = await consumer.take_and_ack(30 - len(settled))
        assert sorted(seqs(rest)) == [seq for seq in range(1, 31) if seq not in settled]
        assert (await consumer.info())["floor"] == 30


async def test_rd_9_kill_in_the_middle_of_a_burst_loses_no_acknowledged_publish() -> None:
    async with spawn_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        epoch = (await create(publisher))["epoch"]
        consumer = await enter(stage, "b")
        acked: dict[int, int] = {}
        for number in range(2_000):
            message = {"topic": TOPIC, "type": "note", "data": number, "durable": True}
            publisher.send("hub:publish", message, id=f"id-{number}", pattern="ask")
        while len(acked) < 300:
            reply = await publisher.receive("hub:published")
            number = int((reply["correlationId"] or "").removeprefix("id-"))
            acked[number] = reply["payload"]["seq"]
        await consumer.take(50)

        await end(stage)

        peer = await stage.join("@(local/a)")
        found = dict(enumerate(await stored(peer), 1))
        assert {seq: number for number, seq in acked.items()}.items() <= found.items()
        # What was not answered is repeated under its id: stored once, whatever had become of it.
        for number in range(2_000):
            message = {"topic": TOPIC, "type": "note", "data": number, "durable": True}
            peer.send("hub:publish", message, id=f"id-{number}", pattern="ask")
        receipts = [await peer.receive("hub:published") for _ in range(2_000)]
        assert {one["payload"]["epoch"] for one in receipts} == {epoch}
        assert await head_of(peer) == 2_000
        back = await reenter(stage, "b")
        heard = await back.take_and_ack(2_000)
        assert sorted(one.payload for one in heard) == list(range(2_000))
        assert seqs(heard) == list(range(1, 2_001))


async def test_rd_s5_acks_without_an_answer_may_repeat_but_never_lose() -> None:
    async with spawn_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", window=50)
        await publish_all(publisher, range(1, 301))
        for seq in seqs(await consumer.take(50)):
            consumer.send("hub:ack", seq=seq)
        confirmed = (await consumer.settle("hub:ack", seq=50))["floor"]
        rest = await consumer.take(40)
        for one in rest:
            consumer.send("hub:ack", seq=one.seq)

        await end(stage)

        back = await enter(stage, "b", window=50)
        assert confirmed == 50
        first = back.joined["next"]
        assert 51 <= first <= 91
        heard = await back.take_and_ack((await back.info())["lag"])
        assert set(seqs(heard)) >= set(range(91, 301))
        assert min(seqs(heard)) > confirmed
        assert all(one.attempt >= 2 for one in heard if one.seq in seqs(rest))


async def test_rd_6_modes_and_their_consumers_find_their_way_back_after_a_kill() -> None:
    async with spawn_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        modes = ("exclusive", "shared", "failover", "key-shared")
        for mode in modes:
            consumer = await enter(stage, mode, name=mode, mode=mode)
            await publish(publisher, mode, key=mode)
            await consumer.next()

        await end(stage)

        for index, mode in enumerate(modes):
            back = await enter(stage, mode, name=mode, mode=mode)
            heard = await back.take_and_ack(4)
            assert sorted(seqs(heard)) == [1, 2, 3, 4]
            assert (await back.info())["lag"] == 0
            assert heard[index].payload in modes
