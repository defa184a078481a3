"""Durable asks on the wire: what acks and copies say, and what clients of old still see."""

from __future__ import annotations

import json

import pytest

from tests.support.socket.mailboxes import (
    ask,
    ask_all,
    attach,
    data_of,
    delivery_of,
    held_disk,
    join_durable,
    keep_away,
    leave,
    seqs_of,
    take,
)
from tests.support.socket.peer import HUB
from tests.support.socket.stage import InProcess, code_of, numbered, run_stage

A, B = "@(local/a)", "@(local/b)"
LEVELS = [("always", "fsync"), ("interval", "interval"), ("os", "os")]

# Everything a codec that decodes and encodes again would change.
RAW = (
    '{ "b":1.0,"a" : 1e2, "big":123456789012345678901234567890,"neg":-0.0,"dup":1,"dup":2,'
    '"esc":"\\u0041\\/\\ud83e\\udd89","deep":[[[[ ]]]] }'
)


@pytest.mark.parametrize(("sync", "durability"), LEVELS)
async def test_wire_hub_says_on_connect_how_durable_it_is(sync: str, durability: str) -> None:
    async with run_stage(log={"sync": sync}) as stage:
        peer = await stage.dial()

        capabilities = (await peer.connect())["payload"]["capabilities"]

        assert capabilities["durable"] is True
        assert capabilities["durability"] == durability
        assert capabilities["supportsBackpressure"] is True
        assert capabilities["supportedContentTypes"] == ["application/json"]


@pytest.mark.parametrize(("sync", "durability"), LEVELS)
async def test_wire_every_ack_says_how_durable_its_message_is(sync: str, durability: str) -> None:
    async with run_stage(log={"sync": sync}) as stage:
        sender, _ = await stage.connect(), await join_durable(stage, A)
        await keep_away(stage, B)

        acks = [await ask(sender, address) for address in (A, B)]

        assert [ack["status"] for ack in acks] == ["delivered", "queued"]
        assert [ack["durability"] for ack in acks] == [durability] * 2


async def test_rd_l2_level_os_does_not_wait_for_the_disk() -> None:
    async with run_stage(log={"sync": "os"}) as stage:
        sender, target = await stage.connect(), await join_durable(stage, A)
        with held_disk() as disk:
            disk.hold()

            ack = await ask(sender, A)

            assert ack["durability"] == "os"
            await target.receive("note")


async def test_wire_ack_of_a_durable_actor_names_the_position(stage: InProcess) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)

    reply = await sender.ask_actor(A, "note", 1, id="m-1")

    assert reply["type"] == "hub:delivery_ack"
    assert reply["from"] == HUB
    assert reply["metadata"] == {}
    ack = reply["payload"]
    assert ack["messageId"] == "m-1"
    assert ack["status"] == "delivered"
    assert ack["deliveredAt"] <= stage.clock.now_ms()
    assert ack["seq"] == 1
    assert "duplicate" not in ack
    delivery = delivery_of(await target.receive("note"))
    assert delivery["epoch"] == ack["epoch"]


async def test_wire_ack_for_an_actor_that_is_away_names_the_position_too(
    stage: InProcess,
) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)

    ack = await ask(sender, A, id="m-1")

    assert ack["messageId"] == "m-1"
    assert ack["status"] == "queued"
    assert ack["seq"] == 1
    assert isinstance(ack["epoch"], str)
    assert ack["epoch"]
    assert "duplicate" not in ack


async def test_wire_positions_are_dense_per_mailbox_and_start_at_one(stage: InProcess) -> None:
    sender = await stage.connect()
    names = list(numbered("local", 3))
    await keep_away(stage, *names[:2])
    await join_durable(stage, names[2])

    acks = {name: [(await ask(sender, name))["seq"] for _ in range(4)] for name in names}

    assert acks == {name: [1, 2, 3, 4] for name in names}


async def test_wire_seq_is_not_spent_on_what_is_refused() -> None:
    async with run_stage(mailbox={"limit": 2}) as stage:
        sender = await stage.connect()
        await keep_away(stage, A)
        await ask_all(sender, A, range(2))
        refused = await sender.ask_actor(A, "note", "too many")
        expired = await sender.ask_actor(A, "note", "too late", ttl=1, timestamp=1)
        target = await join_durable(stage, A)

        ack = await ask(sender, A, 2)

        assert code_of(refused) == "queue_full"
        assert code_of(expired) == "message_expired"
        assert ack["seq"] == 3
        assert seqs_of(await take(target, 3)) == [1, 2, 3]


async def test_wire_copy_is_what_it_always_was_plus_its_delivery(stage: InProcess) -> None:
    sender, target = await stage.join(B), await join_durable(stage, A)

    asked = sender.tell(A, "chart:draw", {"n": [1, None]}, pattern="ask", metadata={"mine": 7})

    copy = await target.receive("chart:draw")
    assert (copy["from"], copy["to"]) == (B, A)
    assert copy["payload"] == {"n": [1, None]}
    assert copy["correlationId"] is None
    assert copy["ttl"] is None
    assert copy["metadata"] == {
        "mine": 7,
        "forwarded": True,
        "via": HUB,
        "originalMessageId": asked,
        "delivery": {
            "stream": A,
            "epoch": delivery_of(copy)["epoch"],
            "seq": 1,
            "attempt": 1,
            "redelivered": False,
        },
    }


async def test_wire_copy_from_the_backlog_looks_like_a_live_one(stage: InProcess) -> None:
    sender = await stage.join(B)
    live = await join_durable(stage, A)
    sent = {"metadata": {"mine": 7}, "ttl": 60_000, "pattern": "ask"}
    sender.tell(A, "chart:draw", {"n": 1}, **sent)
    first = await live.receive("chart:draw")
    await leave(live)
    asked = await sender.ask_actor(A, "chart:draw", {"n": 1}, **sent)

    second = await (await join_durable(stage, A)).receive("chart:draw")

    assert asked["payload"]["status"] == "queued"
    assert delivery_of(second) == delivery_of(first) | {"seq": 2}
    for message in (first, second):
        del message["metadata"]["delivery"], message["metadata"]["originalMessageId"]
    own = {"id", "timestamp"}
    one, other = ({k: v for k, v in each.items() if k not in own} for each in (first, second))
    assert one == other


@pytest.mark.parametrize("is_away", [False, True], ids=["live", "away"])
async def test_r1_data_and_metadata_pass_through_a_mailbox_byte_by_byte(
    stage: InProcess, is_away: bool
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


async def test_wire_sender_cannot_forge_a_delivery(stage: InProcess) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    forged = {"stream": B, "epoch": "e", "seq": 99, "attempt": 9, "redelivered": True}

    ack = await ask(sender, A, metadata={"delivery": forged})

    delivery = delivery_of(await target.receive("note"))
    assert delivery == {
        "stream": A,
        "epoch": ack["epoch"],
        "seq": 1,
        "attempt": 1,
        "redelivered": False,
    }


async def test_wire_tells_broadcasts_and_publications_have_no_place_in_the_mailbox(
    stage: InProcess,
) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    await target.ask("hub:subscribe", {"topic": "news"})

    sender.tell(A, "tell")
    await sender.ask("hub:broadcast", {"type": "broadcast"})
    await sender.ask("hub:publish", {"topic": "news", "type": "publication"})

    for type in ("tell", "broadcast", "publication"):
        assert "delivery" not in (await target.receive(type))["metadata"]
    assert (await ask(sender, A))["seq"] == 1


async def test_r5_ask_to_a_plain_actor_has_no_position_and_no_delivery(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join(A)

    ack = await ask(sender, A)

    assert ack["status"] == "delivered"
    assert not {"epoch", "seq", "duplicate"} & set(ack)
    assert "delivery" not in (await target.receive("note"))["metadata"]


async def test_r5_plain_actor_that_leaves_leaves_nothing_behind(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join(A)
    await ask(sender, A)
    await leave(target)

    reply = await sender.ask_actor(A, "note")

    assert reply["type"] == "hub:unknown_actor"
    assert "not registered" in reply["payload"]["message"]
    back = await stage.join(A)
    await back.nothing_more()


async def test_wire_client_of_old_is_told_nothing_it_does_not_know(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.dial()
    await target.connect()

    registered = await target.register(A)

    payload = registered["payload"]
    assert {"actorAddress", "expiresAt", "renewalToken", "version"} <= set(payload)
    assert not payload.get("durable")
    assert not payload.get("waiting")
    sender.tell(A, "note", 0)
    await ask(sender, A, 1)
    heard = await take(target, 2)
    assert data_of(heard) == [0, 1]
    assert [set(message["metadata"]) for message in heard] == [
        {"forwarded", "via", "originalMessageId"}
    ] * 2
    await target.nothing_more()


async def test_wire_durable_actor_that_never_settles_gets_everything(stage: InProcess) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)

    acks = await ask_all(sender, A, range(300))

    assert [ack["status"] for ack in acks] == ["delivered"] * 300
    assert data_of(await take(target, 300)) == list(range(300))
    await leave(target)
    _, registered = await attach(stage, A)
    assert registered["waiting"] == 0


@pytest.mark.parametrize("odd", ["", " ", "\u0000", "🦉", "m/1\n", "x" * 256, '"\\"'])
async def test_wire_ids_of_any_kind_survive_a_mailbox(stage: InProcess, odd: str) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)

    first = await ask(sender, A, id=odd)
    again = await ask(sender, A, id=odd)

    assert first["messageId"] == odd
    assert again == first | {"duplicate": True}
    target = await join_durable(stage, A)
    assert (await target.receive("note"))["metadata"]["originalMessageId"] == odd
    await target.nothing_more()


async def test_wire_largest_message_fits_into_a_mailbox(stage: InProcess) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)
    data = "x" * 900_000

    assert (await ask(sender, A, data))["status"] == "queued"

    target = await join_durable(stage, A)
    assert (await target.receive("note"))["payload"] == data


async def test_wire_one_session_may_hold_several_mailboxes(stage: InProcess) -> None:
    sender, target = await stage.connect(), await join_durable(stage, A)
    assert (await target.register(B, durable=True))["payload"]["durable"] is True

    first, second = await ask(sender, A, "a"), await ask(sender, B, "b")

    assert (first["seq"], second["seq"]) == (1, 1)
    heard = await take(target, 2)
    assert [delivery_of(message)["stream"] for message in heard] == [A, B]
