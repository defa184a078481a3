"""What a token must permit before dead letters are sent somewhere, put back or thrown away."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, Stage, run_stage
from tests.support.socket.tokens import AUTH, CREATE, session_of
from tests.support.socket.topics import (
    NAME,
    TOPIC,
    create,
    dead_letters,
    expect,
    head_of,
    leave,
    publish,
    refusal,
    stored,
    subscribe,
    subscription,
)

LETTERS = f"{TOPIC}.dlq"
OF_ALL = {"topic": LETTERS, "all": True}


async def owner_of(stage: Stage) -> Peer:
    """A session that may do everything."""
    everything = {"send": ["*"], "publish": ["*"], "subscribe": ["*"], CREATE: ["*"]}
    return await session_of(stage, "owner", **everything)


async def bury_one(owner: Peer) -> None:
    """One message of the topic becomes a dead letter; nobody consumes after that."""
    await create(owner, poison="dead_letter")
    consumer = await subscribe(owner)
    await publish(owner, "poison")
    await consumer.term((await consumer.next()).seq)
    await leave(consumer)


@pytest.mark.parametrize("type", ["hub:subscribe", "hub:sub_update"])
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
    type: str, permissions: dict[str, list[str]]
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await create(owner)
        await subscribe(owner)
        consumer = await session_of(stage, "consumer", subscribe=[TOPIC], **permissions)
        name = "new" if type == "hub:subscribe" else NAME
        payload = {"topic": TOPIC, "subscription": name, "deadLetter": "secret"}

        assert await refusal(consumer, type, payload) == "unauthorized"

        found = await expect(owner, "hub:list_topics", {}, "hub:topic_list")
        assert [topic["topic"] for topic in found["topics"]] == [TOPIC]


async def test_11_who_may_publish_and_make_a_topic_may_send_dead_letters_there() -> None:
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
    stage: InProcess, name: str
) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)

    for type in ("hub:subscribe", "hub:sub_update"):
        payload = subscription(name="new" if type == "hub:subscribe" else NAME, deadLetter=name)
        if type == "hub:sub_update":
            await subscribe(peer)
            payload = {"topic": TOPIC, "subscription": NAME, "deadLetter": name}
        assert await refusal(peer, type, payload) == "internal_error"


@pytest.mark.parametrize(
    "permissions",
    [{}, {"publish": ["*"]}, {"subscribe": ["*"], "publish": ["*"]}, {CREATE: ["prices*"]}],
    ids=["nothing", "publish", "publish and subscribe", "create elsewhere"],
)
async def test_11_throwing_messages_away_needs_the_right_to_delete_their_topic(
    permissions: dict[str, list[str]],
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await bury_one(owner)
        await publish(owner, "kept")
        stranger = await session_of(stage, "stranger", **permissions)

        for topic in (TOPIC, LETTERS):
            payload = {"topic": topic, "all": True}
            assert await refusal(stranger, "hub:purge", payload) == "unauthorized"

        assert len(await dead_letters(owner)) == 1
        assert (await expect(owner, "hub:purge", OF_ALL, "hub:purged"))["count"] == 1
        assert await dead_letters(owner) == []


async def test_11_putting_back_needs_the_right_to_read_the_letters() -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await bury_one(owner)
        stranger = await session_of(stage, "stranger", publish=["*"])

        assert await refusal(stranger, "hub:redrive", OF_ALL) == "unauthorized"


async def test_11_letters_are_put_back_only_where_the_session_may_publish() -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await bury_one(owner)
        reader = await session_of(stage, "reader", subscribe=["*"], publish=["prices"])
        helper = await session_of(stage, "helper", subscribe=[LETTERS], publish=[TOPIC])

        skipped = await expect(reader, "hub:redrive", OF_ALL, "hub:redriven")
        assert (skipped["count"], skipped["skipped"]) == (0, 1)
        assert await head_of(owner) == 1

        done = await expect(helper, "hub:redrive", OF_ALL, "hub:redriven")
        assert done["count"] == 1
        assert await stored(owner) == ["poison", "poison"]


UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("hub:sub_info", {"subscription": NAME}),
    ("hub:sub_pause", {"subscription": NAME}),
    ("hub:sub_delete", {"subscription": NAME}),
    ("hub:seek", {"subscription": NAME, "to": "latest"}),
    ("hub:ack", {"subscription": NAME, "seq": 1}),
    ("hub:list_subs", {}),
    ("hub:topic_info", {}),
    ("hub:replay", {"fromSeq": 1}),
    ("hub:redrive", {"all": True}),
    ("hub:purge", {"all": True}),
    ("hub:topic_delete", {}),
]


@pytest.mark.parametrize(("type", "payload"), UNKNOWN, ids=[type for type, _ in UNKNOWN])
async def test_5_nobody_learns_what_exists_from_a_refusal(
    type: str, payload: dict[str, Any]
) -> None:
    async with run_stage(auth=AUTH) as stage:
        owner = await owner_of(stage)
        await create(owner)
        await subscribe(owner)
        stranger = await session_of(stage, "stranger", subscribe=["prices"])

        for topic in (TOPIC, "no-such-topic"):
            assert await refusal(stranger, type, payload | {"topic": topic}) == "unauthorized"
