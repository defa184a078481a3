"""Dead letters: what they tell, that nothing falls between, how they are put back, and by whom."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.peer import Peer
from tests.support.socket.tokens import AUTH, CREATE, session_of
from tests.support.socket.topics import (
    DLQ,
    HASTY,
    MODES,
    NAME,
    TOPIC,
    Consumer,
    create,
    dead_letters,
    enter,
    expect,
    head_of,
    leave,
    publish,
    publish_all,
    refusal,
    seqs,
    stored,
    subscribe,
    until,
    working,
)
from tests.support.stage import RunStage, Stage

BURIES: dict[str, Any] = {"poison": "dead_letter"}
OF_ALL = {"topic": DLQ, "all": True}


async def terminated(stage: Stage, count: int, **definition: Any) -> tuple[Peer, Consumer]:
    """A topic whose first `count` messages are dead letters."""
    publisher, consumer = await working(
        stage, definition=BURIES | definition, consumer="worker-1", **HASTY
    )
    for number in range(count):
        key, headers = f"k-{number}", {"number": str(number)}
        await publish(publisher, f"bad-{number}", type=f"type-{number}", key=key, headers=headers)
    for delivery in await consumer.take(count):
        await consumer.term(delivery.seq, reason="broken")
    return publisher, consumer


async def redrive(peer: Peer, **which: Any) -> dict[str, Any]:
    return await expect(peer, "hub:redrive", {"topic": DLQ} | which, "hub:redriven")


@pytest.mark.parametrize("mode", MODES)
async def test_r22_exhausted_message_becomes_a_dead_letter_with_its_story(
    stage: Stage, mode: str
) -> None:
    options = HASTY | {"mode": mode, "consumer": "worker-1", "maxDeliveries": 2}
    publisher, consumer = await working(stage, definition=BURIES, **options)
    before = stage.clock.now_ms()
    await publish(publisher, {"n": 1}, type="order:placed", key="k-1", headers={"h": "1"})

    for reason in ("first reason", "last reason"):
        await consumer.next()
        await consumer.nack(1, reason=reason)

    await publish(publisher, "good", key="k-1")
    assert seqs(await consumer.take_and_ack(1)) == [2]
    (letter,) = await dead_letters(publisher)
    assert (letter["type"], letter["payload"]) == ("order:placed", {"n": 1})
    metadata = letter["metadata"]
    assert (metadata["topic"], metadata["key"], metadata["headers"]) == (DLQ, "k-1", {"h": "1"})
    story = metadata["deadLetter"]
    first, last = story.pop("firstFailure"), story.pop("lastFailure")
    # The hub reads its clock once per turn, which may have begun a little earlier.
    assert before - 1_000 <= first <= last <= stage.clock.now_ms()
    assert story == {
        "topic": TOPIC,
        "subscription": NAME,
        "epoch": consumer.joined["epoch"],
        "seq": 1,
        "attempts": 2,
        "reason": "last reason",
        "consumers": ["worker-1"],
    }
    await consumer.shows(deadLettered=1, floor=2, lag=0)


async def test_rd_s8_dead_letter_is_durable_before_the_original_is_settled(stage: Stage) -> None:
    publisher, consumer = await terminated(stage, 20)

    # The answer to a settle comes when it is durable; by then the letter must be there.
    await consumer.shows(floor=20)
    assert await stored(publisher, DLQ) == [f"bad-{number}" for number in range(20)]


async def test_r22_term_makes_a_dead_letter_at_once_under_the_name_the_topic_gives(
    stage: Stage,
) -> None:
    publisher, _ = await terminated(stage, 1, deadLetter="morgue/orders")

    (letter,) = await dead_letters(publisher, "morgue/orders")

    assert letter["metadata"]["topic"] == "morgue/orders"
    story = letter["metadata"]["deadLetter"]
    assert (story["reason"], story["attempts"]) == ("broken", 1)
    assert await refusal(publisher, "hub:topic_info", {"topic": DLQ}) == "unknown_topic"


async def test_rd_7_6_dead_letters_are_an_ordinary_topic_without_dead_letters(
    stage: Stage,
) -> None:
    publisher, _ = await terminated(stage, 3)

    undertaker = await enter(stage, "c", DLQ, "undertaker", window=2, maxDeliveries=1, **HASTY)
    heard = await undertaker.take_and_ack(2)
    heard += await undertaker.take(1)
    await undertaker.term(3)

    assert [one.payload for one in heard] == ["bad-0", "bad-1", "bad-2"]
    assert [one.envelope["metadata"]["deadLetter"]["seq"] for one in heard] == [1, 2, 3]
    await undertaker.shows(floor=3, deadLettered=0)
    assert await refusal(publisher, "hub:topic_info", {"topic": f"{DLQ}.dlq"}) == "unknown_topic"
    assert await head_of(publisher, DLQ) == 3


async def test_wire_every_subscription_has_dead_letters_of_its_own(stage: Stage) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, **BURIES)
    consumers = [await enter(stage, name, name=name) for name in ("b", "c")]
    await publish(publisher, "bad")

    for consumer in consumers:
        await consumer.next()
        await consumer.term(1, reason=f"of {consumer.name}")

    stories = [one["metadata"]["deadLetter"] for one in await dead_letters(publisher)]
    assert [(one["subscription"], one["reason"]) for one in stories] == [
        ("b", "of b"),
        ("c", "of c"),
    ]
    for consumer in consumers:
        await consumer.shows(deadLettered=1)


async def test_r22_poison_among_good_messages_takes_nothing_along(stage: Stage) -> None:
    options = HASTY | {"window": 3, "maxDeliveries": 2}
    publisher, consumer = await working(stage, 30, definition=BURIES, **options)
    poisoned, settled = {3, 4, 17, 30}, set[int]()

    for _ in range(30 + len(poisoned)):
        heard = await consumer.next()
        if heard.seq in poisoned:
            consumer.send("hub:nack", seq=heard.seq, reason="poison")
        else:
            consumer.send("hub:ack", seq=heard.seq)
            settled.add(heard.seq)

    assert settled == set(range(1, 31)) - poisoned
    await until(publisher, floor=30, deadLettered=4, lag=0)
    letters = await dead_letters(publisher)
    assert {letter["metadata"]["deadLetter"]["seq"] for letter in letters} == poisoned


@pytest.mark.also_over_sockets
async def test_wire_redrive_puts_chosen_letters_back_or_all_in_order(stage: Stage) -> None:
    publisher, consumer = await terminated(stage, 4)
    origin = (await dead_letters(publisher))[0]["metadata"]["deadLetter"]

    assert (await redrive(publisher, seqs=[1, 3]))["count"] == 2
    back = await consumer.take_and_ack(2)
    redriven = back[0].envelope["metadata"]["redriven"]
    assert (redriven["epoch"], redriven["seq"]) == (origin["epoch"], origin["seq"])
    assert redriven["id"] != back[0].envelope["id"]
    assert "deadLetter" not in back[0].envelope["metadata"]
    assert [one.payload for one in back] == ["bad-0", "bad-2"]
    assert [(one.seq, one.attempt) for one in back] == [(5, 1), (6, 1)]
    await consumer.quiet()

    assert (await redrive(publisher, all=True))["count"] == 2
    for number, one in zip((1, 3), await consumer.take(2), strict=True):
        assert (one.payload, one.envelope["type"]) == (f"bad-{number}", f"type-{number}")
        metadata = one.envelope["metadata"]
        assert (metadata["topic"], metadata["key"]) == (TOPIC, f"k-{number}")
        assert metadata["headers"] == {"number": str(number)}
        # What fails again is a dead letter again.
        await consumer.term(one.seq, reason="still broken")
    last = (await dead_letters(publisher))[-1]
    assert last["payload"] == "bad-3"
    story = last["metadata"]["deadLetter"]
    assert (story["reason"], story["seq"]) == ("still broken", 8)
    await consumer.shows(deadLettered=6)


# What a token must permit.


async def owner_of(stage: Stage) -> Peer:
    """A session that may do everything."""
    everything = {"send": ["*"], "publish": ["*"], "subscribe": ["*"], CREATE: ["*"]}
    return await session_of(stage, "owner", **everything)


async def bury_one(owner: Peer) -> None:
    """One message of the topic becomes a dead letter; nobody consumes after that."""
    await create(owner, **BURIES)
    consumer = await subscribe(owner)
    await publish(owner, "poison")
    await consumer.term((await consumer.next()).seq)
    await leave(consumer)


@pytest.mark.parametrize(
    "permissions",
    [
        {},
        {"publish": ["secret"]},
        {CREATE: ["secret"]},
        {"publish": ["secrets/*"], CREATE: ["*"]},
    ],
    ids=["neither", "publish", "create", "another topic"],
)
async def test_11_dead_letters_go_only_where_the_session_could_publish_them_itself(
    run_stage: RunStage, permissions: dict[str, list[str]]
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await create(owner)
        await subscribe(owner)
        consumer = await session_of(stage, "consumer", subscribe=[TOPIC], **permissions)

        for type, name in (("hub:subscribe", "new"), ("hub:sub_update", NAME)):
            payload = {"topic": TOPIC, "subscription": name, "deadLetter": "secret"}
            assert await refusal(consumer, type, payload) == "unauthorized"

        found = await expect(owner, "hub:list_topics", {}, "hub:topic_list")
        assert [topic["topic"] for topic in found["topics"]] == [TOPIC]


async def test_11_who_may_publish_and_make_a_topic_may_send_dead_letters_there(
    run_stage: RunStage,
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await create(owner)
        permissions = {"subscribe": [TOPIC], "publish": ["letters"], CREATE: ["letters"]}
        peer = await session_of(stage, "consumer", **permissions)
        consumer = await subscribe(peer, deadLetter="letters", poison="dead_letter")
        await publish(owner, "poison")

        await consumer.term((await consumer.next()).seq)

        assert [letter["payload"] for letter in await dead_letters(owner, "letters")] == ["poison"]


@pytest.mark.parametrize("name", ["secret/#", "a/+", "", TOPIC, "x" * 300, "line\nbreak"])
async def test_wire_dead_letters_need_the_plain_name_of_another_topic(
    stage: Stage, name: str
) -> None:
    peer, _ = await working(stage)

    for type, subscription in (("hub:subscribe", "new"), ("hub:sub_update", NAME)):
        payload = {"topic": TOPIC, "subscription": subscription, "deadLetter": name}
        assert await refusal(peer, type, payload) == "internal_error"


@pytest.mark.also_over_sockets
async def test_11_throwing_messages_away_needs_the_right_to_delete_their_topic(
    run_stage: RunStage,
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await bury_one(owner)
        await publish_all(owner, ["kept"])

        for number, permissions in enumerate(
            ({}, {"publish": ["*"]}, {"subscribe": ["*"], "publish": ["*"]}, {CREATE: ["prices*"]})
        ):
            stranger = await session_of(stage, f"stranger-{number}", **permissions)
            for topic in (TOPIC, DLQ):
                payload = {"topic": topic, "all": True}
                assert await refusal(stranger, "hub:purge", payload) == "unauthorized"

        assert len(await dead_letters(owner)) == 1
        assert (await expect(owner, "hub:purge", OF_ALL, "hub:purged"))["count"] == 1
        assert await dead_letters(owner) == []


async def test_11_putting_back_needs_the_right_to_read_the_letters_and_to_publish(
    run_stage: RunStage,
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await bury_one(owner)
        stranger = await session_of(stage, "stranger", publish=["*"])
        reader = await session_of(stage, "reader", subscribe=["*"], publish=["prices"])
        helper = await session_of(stage, "helper", subscribe=[DLQ], publish=[TOPIC])

        assert await refusal(stranger, "hub:redrive", OF_ALL) == "unauthorized"
        skipped = await redrive(reader, all=True)
        assert (skipped["count"], skipped["skipped"]) == (0, 1)
        assert await head_of(owner) == 1

        assert (await redrive(helper, all=True))["count"] == 1
        assert await stored(owner) == ["poison", "poison"]
