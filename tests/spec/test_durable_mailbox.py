"""Durable actors: what asks to them promise, who is away, what waits, and what ends a mailbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import HUB, code_of
from tests.support.socket import stage as sockets
from tests.support.socket.mailboxes import (
    ask,
    ask_all,
    attach,
    attempts_of,
    counters,
    data_of,
    delivery_of,
    join_durable,
    keep_away,
    leave,
    risen_by,
    seqs_of,
    take,
    take_until_asked,
)
from tests.support.socket.slow_readers import block
from tests.support.socket.stage import SMALL_BUFFER
from tests.support.stage import RunStage, Stage, addresses, numbered, until_gone

A, B = "@(local/a)", "@(local/b)"

# Everything a codec that decodes and encodes again would change.
RAW = (
    '{ "b":1.0,"a" : 1e2, "big":123456789012345678901234567890,"neg":-0.0,"dup":1,"dup":2,'
    '"esc":"\\u0041\\/\\ud83e\\udd89","deep":[[[[ ]]]] }'
)


# Acks and copies.


@pytest.mark.also_over_sockets
async def test_wire_acks_and_copies_of_a_durable_actor_name_the_position(stage: Stage) -> None:
    sender, target = await stage.join(B), await join_durable(stage, A)
    metadata = {"mine": 7, "delivery": {"stream": B, "epoch": "forged", "seq": 99, "attempt": 9}}

    reply = await sender.ask_actor(A, "chart:draw", {"n": [1, None]}, id="m-1", metadata=metadata)

    assert (reply["type"], reply["from"], reply["metadata"]) == ("hub:delivery_ack", HUB, {})
    ack = reply["payload"]
    assert (ack["messageId"], ack["status"], ack["seq"]) == ("m-1", "delivered", 1)
    assert ack["deliveredAt"] <= stage.clock.now_ms()
    assert "duplicate" not in ack
    copy = await target.receive("chart:draw")
    assert (copy["from"], copy["to"], copy["payload"]) == (B, A, {"n": [1, None]})
    assert (copy["correlationId"], copy["ttl"]) == (None, None)
    assert delivery_of(copy)["epoch"] == ack["epoch"]
    assert copy["metadata"] == {
        "mine": 7,
        "forwarded": True,
        "via": HUB,
        "originalMessageId": "m-1",
        "delivery": {
            "stream": A,
            "epoch": ack["epoch"],
            "seq": 1,
            "attempt": 1,
            "redelivered": False,
        },
    }
    await leave(target)
    queued = await ask(sender, A, id="m-2")
    assert (queued["messageId"], queued["status"], queued["seq"]) == ("m-2", "queued", 2)
    assert queued["epoch"] == ack["epoch"]


async def test_rd_l2_level_os_does_not_wait_for_the_disk() -> None:
    async with sockets.run_stage(log={"sync": "os"}) as stage:
        sender, target = await stage.connect(), await join_durable(stage, A)
        with stage.held_disk() as disk:
            disk.hold()

            assert (await ask(sender, A))["durability"] == "os"
            await target.receive("note")


async def test_wire_positions_are_dense_per_mailbox_and_not_spent_on_what_is_refused(
    run_stage: RunStage,
) -> None:
    async with run_stage(mailbox={"limit": 2}) as stage:
        sender = await stage.connect()
        names = list(numbered("local", 3))
        await keep_away(stage, *names[:2])
        target = await join_durable(stage, names[2])
        # One session may hold several mailboxes.
        assert (await target.register(A, durable=True))["payload"]["durable"] is True
        names.append(A)

        for name in names:
            assert [ack["seq"] for ack in await ask_all(sender, name, range(2))] == [1, 2]
        full = await sender.ask_actor(names[0], "note", "too many")
        expired = await sender.ask_actor(names[0], "note", "too late", ttl=1, timestamp=1)
        assert (code_of(full), code_of(expired)) == ("queue_full", "message_expired")
        back = await join_durable(stage, names[0])
        assert (await ask(sender, names[0], 2))["seq"] == 3
        assert seqs_of(await take(back, 3)) == [1, 2, 3]
        streams = [delivery_of(message)["stream"] for message in await take(target, 4)]
        assert streams == [names[2]] * 2 + [A] * 2


async def test_wire_copy_from_the_backlog_looks_like_a_live_one(stage: Stage) -> None:
    sender = await stage.join(B)
    live = await join_durable(stage, A)
    sent = {"metadata": {"mine": 7}, "ttl": 60_000, "pattern": "ask"}
    sender.tell(A, "chart:draw", {"n": 1}, **sent)
    first = await live.receive("chart:draw")
    await leave(live)
    await sender.ask_actor(A, "chart:draw", {"n": 1}, **sent)

    second = await (await join_durable(stage, A)).receive("chart:draw")

    assert delivery_of(second) == delivery_of(first) | {"seq": 2}
    for message in (first, second):
        del message["metadata"]["delivery"], message["metadata"]["originalMessageId"]
    own = {"id", "timestamp"}
    one, other = ({k: v for k, v in each.items() if k not in own} for each in (first, second))
    assert one == other


@pytest.mark.parametrize("is_away", [False, True], ids=["live", "away"])
async def test_r1_data_and_metadata_pass_through_a_mailbox_byte_by_byte(
    stage: Stage, is_away: bool
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    if is_away:
        await leave(target)
    payload = {"to": A, "type": "x", "data": "DATA"}
    message = json.dumps(sender.envelope("hub:send", payload, metadata="METADATA", pattern="ask"))

    sender.send_text(message.replace('"DATA"', RAW).replace('"METADATA"', RAW))
    await sender.receive("hub:delivery_ack")
    if is_away:
        target = await join_durable(stage, A)

    text = await target.receive_text()
    assert f'"payload":{RAW},' in text
    assert RAW.strip("{ }") in text.replace(f'"payload":{RAW},', "")


async def test_wire_odd_ids_and_large_messages_survive_a_mailbox(stage: Stage) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    large = "x" * 900_000
    odd = ["", " ", "\u0000", "🦉", "m/1\n", "x" * 256, '"\\"']

    for message_id in odd:
        first, again = [await ask(sender, A, large, id=message_id) for _ in range(2)]
        assert first["messageId"] == message_id
        assert again == first | {"duplicate": True}

    target = await join_durable(stage, A)
    heard = await take(target, len(odd))
    assert [message["metadata"]["originalMessageId"] for message in heard] == odd
    assert data_of(heard) == [large] * len(odd)
    await target.nothing_more()


async def test_wire_tells_broadcasts_and_publications_have_no_place_in_the_mailbox(
    stage: Stage,
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    await target.ask("hub:subscribe", {"topic": "news"})

    sender.tell(A, "tell")
    await sender.ask("hub:broadcast", {"type": "broadcast"})
    await sender.ask("hub:publish", {"topic": "news", "type": "publication"})

    for type in ("tell", "broadcast", "publication"):
        assert "delivery" not in (await target.receive(type))["metadata"]
    await leave(target)
    # None of them waits for who is away.
    sender.tell(A, "tell")
    reply = await sender.ask("hub:broadcast", {"type": "broadcast"})
    assert (reply["payload"]["deliveredCount"], reply["payload"]["failedCount"]) == (0, 0)
    back, registered = await attach(stage, A)
    assert registered["waiting"] == 0
    await back.nothing_more()
    assert (await ask(sender, A))["seq"] == 1


async def test_r5_plain_actor_is_told_nothing_new_and_leaves_nothing_behind(stage: Stage) -> None:
    sender, target = await stage.connect(), await stage.connect()

    payload = (await target.register(A))["payload"]
    assert {"actorAddress", "expiresAt", "renewalToken", "version"} <= set(payload)
    assert not payload.get("durable")
    assert not payload.get("waiting")
    sender.tell(A, "note", 0)
    ack = await ask(sender, A, 1)

    assert ack["status"] == "delivered"
    assert not {"epoch", "seq", "duplicate"} & set(ack)
    heard = await take(target, 2)
    assert data_of(heard) == [0, 1]
    for message in heard:
        assert message["metadata"].keys() == {"forwarded", "via", "originalMessageId"}
    await leave(target)
    gone = await sender.ask_actor(A, "note")
    assert gone["type"] == "hub:unknown_actor"
    assert "not registered" in gone["payload"]["message"]
    await (await stage.join(A)).nothing_more()


# Being away.


@pytest.mark.parametrize("how", ["disconnect", "close", "abort"])
async def test_wire_mailbox_outlives_the_session_however_it_ends(stage: Stage, how: str) -> None:
    sender = await stage.connect()
    target, registered = await attach(stage, A)
    assert (registered["durable"], registered["waiting"]) == (True, 0)
    assert {"actorAddress", "expiresAt", "renewalToken", "version"} <= set(registered)
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


@pytest.mark.also_over_sockets
async def test_r9_backlog_arrives_complete_in_order_and_unmarked(stage: Stage) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    acks = await ask_all(sender, A, range(100))
    target = await stage.connect()

    payload = {"actorAddress": A, "capabilities": [], "durable": True}
    target.send("hub:register", payload, pattern="ask", sender=A)

    # The answer comes before the backlog.
    assert (await target.receive("hub:registered"))["payload"]["waiting"] == 100
    target.sender = A
    heard = await take_until_asked(target, sender)
    assert data_of(heard) == list(range(100))
    assert seqs_of(heard) == [ack["seq"] for ack in acks] == list(range(1, 101))
    assert {delivery_of(message)["epoch"] for message in heard} == {acks[0]["epoch"]}
    assert attempts_of(heard) == [1] * 100
    # What was written to a session that does not settle is settled, however much it is.
    acks = await ask_all(sender, A, range(300))
    assert {ack["status"] for ack in acks} == {"delivered"}
    assert data_of(await take(target, 300)) == list(range(300))
    await leave(target)
    back, registered = await attach(stage, A)
    assert registered["waiting"] == 0
    assert await take_until_asked(back, sender) == []


async def test_r9_away_actors_are_found_only_by_those_who_ask_for_them(stage: Stage) -> None:
    peer = await stage.join(B)
    await keep_away(stage, A)

    assert await addresses(peer) == [B]
    assert await addresses(peer, includeAway=False) == [B]
    assert sorted(await addresses(peer, includeAway=True)) == [A, B]
    assert await addresses(peer, "local/a", includeAway=True) == [A]
    assert await addresses(peer, "other/*", includeAway=True) == []


async def test_r9_hundred_wait_for_an_actor_and_the_next_is_refused(stage: Stage) -> None:
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


async def test_r9_limit_counts_only_while_no_session_is_attached(run_stage: RunStage) -> None:
    async with run_stage(mailbox={"limit": 3}) as stage:
        sender, target = await stage.connect(), await join_durable(stage, A, settles=True)
        await ask_all(sender, A, range(10))
        assert data_of(await take(target, 10)) == list(range(10))
        await leave(target)

        refused = await sender.ask_actor(A, "note")

        assert code_of(refused) == "queue_full"
        assert refused["payload"]["details"]["waiting"] == 10
        back, registered = await attach(stage, A, settles=True)
        assert registered["waiting"] == 10
        assert (await ask(sender, A, 10))["seq"] == 11
        assert data_of(await take(back, 11)) == list(range(11))
        # Emptied, it has room again.
        await back.ask("hub:ack", {"stream": A, "upTo": 11})
        await leave(back)
        await ask_all(sender, A, range(3))
        assert code_of(await sender.ask_actor(A, "note")) == "queue_full"


async def test_r9_new_asks_queue_behind_the_backlog_and_tells_do_not(run_stage: RunStage) -> None:
    async with run_stage(mailbox={"window": 2}) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask_all(sender, A, range(5))
        target = await join_durable(stage, A, settles=True)
        assert seqs_of(await take(target, 2)) == [1, 2]

        ack = await ask(sender, A, 5)
        sender.tell(A, "urgent")

        assert (ack["status"], ack["seq"]) == ("queued", 6)
        await target.receive("urgent")
        await target.nothing_more()
        rest = []
        for seq in range(1, 5):
            target.send("hub:ack", {"stream": A, "seq": seq})
            rest += await take(target, 1)
        assert data_of(rest) == [2, 3, 4, 5]


async def test_r5_ask_to_a_durable_reader_that_dies_before_its_bytes_leave_is_queued() -> None:
    async with sockets.run_stage(message_rate=0) as stage:
        sender = await stage.join("@(local/sender)")
        slow = await stage.connect(receive_bytes=SMALL_BUFFER)
        await slow.register(A, durable=True)
        slow.pause()
        await block(sender, A)
        asked = sender.tell(A, "question", "kept", pattern="ask")

        slow.abort()

        ack = await sender.reply_to(asked)
        assert (ack["type"], ack["payload"]["status"]) == ("hub:delivery_ack", "queued")
        back = await join_durable(stage, A)
        copy = await back.receive("question")
        assert copy["payload"] == "kept"
        assert copy["metadata"]["originalMessageId"] == asked


# What ends a mailbox and what is in it.


async def test_r9_registering_again_without_durable_keeps_the_mailbox(stage: Stage) -> None:
    sender, plain = await stage.connect(), await stage.join(A)
    assert "seq" not in await ask(sender, A)

    assert (await plain.register(A, durable=True))["payload"]["durable"] is True
    await leave(plain)
    assert (await ask(sender, A, "kept"))["seq"] == 1
    target = await stage.connect()
    registered = (await target.register(A))["payload"]

    assert (registered["durable"], registered["waiting"]) == (True, 1)
    assert data_of(await take(target, 1)) == ["kept"]
    await leave(target)
    assert (await ask(sender, A))["seq"] == 2


@pytest.mark.parametrize("how", ["unregister", "false"])
async def test_r19_dropped_mailbox_counts_what_was_in_it_and_made_again_has_another_epoch(
    how: str,
) -> None:
    async with sockets.run_stage() as stage:
        sender, target = await stage.connect(), await join_durable(stage, A, settles=True)
        acks = await ask_all(sender, A, range(17))
        await take(target, 17)
        before = await counters(stage)

        if how == "unregister":
            reply = await target.ask("hub:unregister", {"actorAddress": A})
            assert reply["type"] == "hub:unregistered"
            assert await addresses(sender, includeAway=True) == []
        else:
            payload = (await target.register(A, durable=False))["payload"]
            assert not payload["durable"]
            assert not payload["waiting"]
            assert "seq" not in await ask(sender, A, "live")
            assert data_of(await take(target, 1)) == ["live"]
        assert risen_by(17, before, await counters(stage))
        await leave(target)
        assert (await sender.ask_actor(A, "note"))["type"] == "hub:unknown_actor"

        back, registered = await attach(stage, A)
        assert registered["waiting"] == 0
        await back.nothing_more()
        again = await ask(sender, A)
        assert again["epoch"] != acks[0]["epoch"]
        assert again["seq"] == 1


@pytest.mark.parametrize("idle_s", [3600, None], ids=["an hour", "the default of seven days"])
async def test_r9_mailbox_is_kept_for_its_idle_time_and_no_longer(
    run_stage: RunStage, idle_s: int | None
) -> None:
    length_s = idle_s or 7 * 86_400
    settings: dict[str, Any] = {
        "mailbox": {} if idle_s is None else {"idle_s": idle_s},
        "registry": {"sweep_s": 0.02},
        "message_rate": 0,
    }
    clock = FakeClock()
    async with run_stage(clock, **settings) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask(sender, A, "kept")
        clock.advance(length_s - 60)
        target = await join_durable(stage, A)
        assert data_of(await take(target, 1)) == ["kept"]
        await ask(sender, A)
        await leave(target)
        clock.advance(length_s - 60)
        assert await addresses(sender, includeAway=True) == [A]

        clock.advance(120)

        async for _ in sender.polls():
            if not await addresses(sender, includeAway=True):
                break
        assert (await sender.ask_actor(A, "note"))["type"] == "hub:unknown_actor"


async def test_r8_mailbox_does_not_end_with_the_lease(run_stage: RunStage) -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        target, sender = await join_durable(stage, A), await stage.connect()
        clock.advance(301)
        # Hidden by its lease, it misses nothing.
        assert (await ask(sender, A, "first"))["seq"] == 1
        await target.ask("hub:heartbeat")
        assert data_of(await take(target, 1)) == ["first"]
        await leave(target)
        await stage.restart()
        clock.advance(4000)

        sender = await stage.connect()
        assert (await ask(sender, A, "kept"))["status"] == "queued"
        back = await join_durable(stage, A)
        assert data_of(await take(back, 1)) == ["kept"]


async def test_r12_what_expires_while_it_waits_is_dropped_counted_and_stops_nobody() -> None:
    clock = FakeClock()
    async with sockets.run_stage(clock, message_rate=0) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask(sender, A, "no lifetime")
        await ask_all(sender, A, ["short"] * 17, ttl=1000)
        await ask(sender, A, "long", ttl=60_000)
        clock.advance(2)
        before = await counters(stage)

        target, registered = await attach(stage, A)

        assert registered["waiting"] == 2
        heard = await take_until_asked(target, sender)
        assert data_of(heard) == ["no lifetime", "long"]
        assert seqs_of(heard) == [1, 19]
        assert risen_by(17, before, await counters(stage))


@pytest.mark.parametrize("is_down", [False, True], ids=["meanwhile", "while the hub is down"])
async def test_r12_unsettled_copy_that_expires_is_not_sent_again(
    run_stage: RunStage, is_down: bool
) -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        sender, target = await stage.connect(), await join_durable(stage, A, settles=True)
        late = await sender.ask_actor(A, "note", ttl=1000, timestamp=clock.now_ms() - 1001)
        assert code_of(late) == "message_expired"
        assert late["payload"]["retryable"] is False
        await ask(sender, A, "short", ttl=1000)
        await ask(sender, A, "long", ttl=60_000)
        await take(target, 2)
        await leave(target)

        if is_down:
            await stage.stop()
        clock.advance(2)
        if is_down:
            await stage.start()

        back, registered = await attach(stage, A, settles=True)
        assert registered["waiting"] == 1
        assert data_of(await take_until_asked(back, await stage.connect())) == ["long"]
