"""Dead letters: what they tell, that nothing falls between, and how they are put back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess
from tests.support.socket.topics import (
    HASTY,
    TOPIC,
    Consumer,
    create,
    dead_letters,
    enter,
    expect,
    head_of,
    publish,
    publish_all,
    refusal,
    seqs,
    stored,
    until,
)

DLQ = f"{TOPIC}.dlq"


async def terminated(stage: InProcess, count: int, **definition: Any) -> tuple[Peer, Consumer]:
    """A topic whose first `count` messages are dead letters."""
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="dead_letter", **definition)
    consumer = await enter(stage, "b", consumer="worker-1", **HASTY)
    await publish_all(publisher, [f"bad-{number}" for number in range(count)])
    for delivery in await consumer.take(count):
        await consumer.term(delivery.seq, reason="broken")
    return publisher, consumer


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover", "key-shared"])
async def test_r22_exhausted_message_becomes_a_dead_letter_with_its_story(
    stage: InProcess, mode: str
) -> None:
    publisher = await stage.join("@(local/a)")
    epoch = (await create(publisher, poison="dead_letter"))["epoch"]
    consumer = await enter(stage, "b", mode=mode, consumer="worker-1", maxDeliveries=2, **HASTY)
    before = stage.clock.now_ms()
    await publish(publisher, {"n": 1}, type="order:placed", key="k-1", headers={"h": "1"})

    await consumer.next()
    await consumer.nack(1, reason="first reason")
    await consumer.next()
    await consumer.nack(1, reason="last reason")

    await publish(publisher, "good", key="k-1")
    assert seqs(await consumer.take_and_ack(1)) == [2]
    (letter,) = await dead_letters(publisher)
    assert letter["type"] == "order:placed"
    assert letter["payload"] == {"n": 1}
    assert letter["metadata"]["topic"] == DLQ
    assert letter["metadata"]["key"] == "k-1"
    assert letter["metadata"]["headers"] == {"h": "1"}
    story = letter["metadata"]["deadLetter"]
    assert (story["topic"], story["subscription"]) == (TOPIC, "work")
    assert (story["epoch"], story["seq"]) == (epoch, 1)
    assert story["attempts"] == 2
    assert story["reason"] == "last reason"
    assert before <= story["firstFailure"] <= story["lastFailure"] <= stage.clock.now_ms()
    assert story["consumers"] == ["worker-1"]
    info = await consumer.info()
    assert (info["deadLettered"], info["floor"], info["lag"]) == (1, 2, 0)


async def test_r22_term_makes_a_dead_letter_at_once(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="dead_letter")
    consumer = await enter(stage, "b")
    await publish_all(publisher, ["bad", "good"])
    await consumer.take(2)

    settled = await consumer.term(1, reason="cannot be read")

    assert settled["accepted"] == 1
    info = await until(publisher, deadLettered=1)
    assert (info["floor"], info["lag"]) == (1, 1)
    (letter,) = await dead_letters(publisher)
    assert letter["payload"] == "bad"
    assert letter["metadata"]["deadLetter"]["reason"] == "cannot be read"
    assert letter["metadata"]["deadLetter"]["attempts"] == 1


async def test_rd_s8_dead_letter_is_durable_before_the_original_is_settled(
    stage: InProcess,
) -> None:
    publisher, consumer = await terminated(stage, 20)

    # The answer to a settle comes when it is durable; by then the letter must be there.
    assert (await consumer.info())["floor"] == 20
    assert await stored(publisher, DLQ) == [f"bad-{number}" for number in range(20)]


async def test_wire_dead_letters_may_have_a_topic_of_another_name(stage: InProcess) -> None:
    publisher, _ = await terminated(stage, 1, deadLetter="morgue/orders")

    (letter,) = await dead_letters(publisher, "morgue/orders")

    assert letter["metadata"]["topic"] == "morgue/orders"
    assert await refusal(publisher, "hub:topic_info", {"topic": DLQ}) == "unknown_topic"


async def test_wire_dead_letter_topic_is_an_ordinary_durable_topic(stage: InProcess) -> None:
    publisher, _ = await terminated(stage, 3)
    await stage.join("@(local/listener)")

    undertaker = await enter(stage, "c", DLQ, "undertaker", window=2)
    heard = await undertaker.take_and_ack(3)

    assert [one.payload for one in heard] == ["bad-0", "bad-1", "bad-2"]
    assert [one.envelope["metadata"]["deadLetter"]["seq"] for one in heard] == [1, 2, 3]
    assert (await undertaker.info())["floor"] == 3
    assert await head_of(publisher, DLQ) == 3


async def test_wire_every_subscription_has_dead_letters_of_its_own(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="dead_letter")
    consumers = [await enter(stage, name, name=name) for name in ("b", "c")]
    await publish(publisher, "bad")

    for consumer in consumers:
        await consumer.next()
        await consumer.term(1, reason=f"of {consumer.name}")

    letters = await dead_letters(publisher)
    stories = [letter["metadata"]["deadLetter"] for letter in letters]
    assert [(one["subscription"], one["reason"]) for one in stories] == [
        ("b", "of b"),
        ("c", "of c"),
    ]
    for consumer in consumers:
        assert (await consumer.info())["deadLettered"] == 1


async def test_wire_redrive_puts_chosen_letters_back(stage: InProcess) -> None:
    publisher, consumer = await terminated(stage, 4)

    redriven = await expect(
        publisher, "hub:redrive", {"topic": DLQ, "seqs": [1, 3]}, "hub:redriven"
    )

    assert redriven["count"] == 2
    back = await consumer.take_and_ack(2)
    assert [one.payload for one in back] == ["bad-0", "bad-2"]
    assert seqs(back) == [5, 6]
    assert {one.attempt for one in back} == {1}
    await consumer.quiet()


async def test_wire_redrive_puts_all_letters_back_in_order_with_key_and_headers(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="dead_letter")
    consumer = await enter(stage, "b")
    for number in range(5):
        key, headers = f"k-{number}", {"number": str(number)}
        await publish(publisher, number, type=f"type-{number}", key=key, headers=headers)
    for delivery in await consumer.take(5):
        await consumer.term(delivery.seq)

    redriven = await expect(publisher, "hub:redrive", {"topic": DLQ, "all": True}, "hub:redriven")

    assert redriven["count"] == 5
    for number, one in enumerate(await consumer.take_and_ack(5)):
        assert one.payload == number
        assert one.envelope["type"] == f"type-{number}"
        assert one.envelope["metadata"]["key"] == f"k-{number}"
        assert one.envelope["metadata"]["headers"] == {"number": str(number)}
        assert one.envelope["metadata"]["topic"] == TOPIC


async def test_wire_redriven_message_that_fails_again_is_a_dead_letter_again(
    stage: InProcess,
) -> None:
    publisher, consumer = await terminated(stage, 1)
    await expect(publisher, "hub:redrive", {"topic": DLQ, "all": True}, "hub:redriven")

    again = await consumer.next()
    await consumer.term(again.seq, reason="still broken")

    last = (await dead_letters(publisher))[-1]
    assert last["payload"] == "bad-0"
    assert last["metadata"]["deadLetter"]["reason"] == "still broken"
    assert last["metadata"]["deadLetter"]["seq"] == 2
    assert (await consumer.info())["deadLettered"] == 2


async def test_rd_7_6_dead_letters_have_no_dead_letters(stage: InProcess) -> None:
    publisher, _ = await terminated(stage, 1)
    undertaker = await enter(stage, "c", DLQ, "undertaker", maxDeliveries=1, **HASTY)
    await undertaker.next()

    await undertaker.term(1)

    assert (await undertaker.info())["deadLettered"] == 0
    for topic in (f"{DLQ}.dlq", f"{TOPIC}.dlq.dlq"):
        assert await refusal(publisher, "hub:topic_info", {"topic": topic}) == "unknown_topic"
    assert await head_of(publisher, DLQ) == 1


async def test_r22_poison_among_good_messages_takes_nothing_along(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="dead_letter")
    consumer = await enter(stage, "b", window=3, maxDeliveries=2, **HASTY)
    await publish_all(publisher, range(1, 31))
    poisoned, settled = {3, 4, 17, 30}, set[int]()

    for _ in range(30 + len(poisoned)):
        heard = await consumer.next()
        if heard.seq in poisoned:
            consumer.send("hub:nack", seq=heard.seq, reason="poison")
        else:
            consumer.send("hub:ack", seq=heard.seq)
            settled.add(heard.seq)

    assert settled == set(range(1, 31)) - poisoned
    info = await until(publisher, floor=30)
    assert (info["deadLettered"], info["lag"]) == (4, 0)
    letters = await dead_letters(publisher)
    assert {letter["metadata"]["deadLetter"]["seq"] for letter in letters} == poisoned
