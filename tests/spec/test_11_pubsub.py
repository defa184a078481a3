"""Section 11: what topics are, and how long a subscription lives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, code_of, numbered, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


async def hears(peer: Peer, topic: str) -> None:
    reply = await peer.ask("hub:subscribe", {"topic": topic})
    assert reply["type"] == "hub:subscribed", reply


async def count(peer: Peer, topic: str, data: Any = None) -> int:
    """Publish a note; how many copies there were."""
    reply = await peer.ask("hub:publish", {"topic": topic, "type": "note", "data": data})
    assert reply["type"] == "hub:published", reply
    return int(reply["payload"]["subscriberCount"])


@pytest.mark.parametrize("other", ["News", "news ", "new", "news/", "/news", "news/eu", "ｎews"])
async def test_11_topics_match_exactly(stage: InProcess, other: str) -> None:
    peer = await stage.join("@(local/a)")
    await hears(peer, "news")

    assert await count(peer, other) == 0
    assert await count(peer, "news") == 1


async def test_11_subscriptions_survive_registering_again(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await hears(peer, "news")

    await peer.register("@(local/a)", "changed")
    await peer.register("@(local/b)")

    assert await count(peer, "news") == 1


async def test_11_subscriptions_are_lost_on_eviction(stage: InProcess) -> None:
    old = await stage.join("@(local/a)")
    await hears(old, "news")

    new = await stage.join("@(local/a)")
    await old.until_closed()

    assert await count(new, "news") == 0
    await hears(new, "news")
    assert await count(new, "news") == 1


async def test_11_every_address_of_a_session_subscribes_for_itself(stage: InProcess) -> None:
    peer = await stage.connect()
    for address in ("@(local/a)", "@(local/b)"):
        await peer.register(address)
        await hears(peer, "news")

    assert await count(peer, "news") == 2
    assert {(await peer.receive("note"))["to"] for _ in range(2)} == {"@(local/a)", "@(local/b)"}


async def test_11_nothing_is_retained(stage: InProcess) -> None:
    publisher, late = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await count(publisher, "news", "early")

    await hears(late, "news")

    await late.nothing_more()


async def test_11_publications_of_one_publisher_keep_their_order_for_everybody() -> None:
    async with run_stage(message_rate=0, fanout_batch=3) as stage:
        publisher = await stage.connect()
        crowd = [await stage.join(address) for address in numbered("crowd", 10)]
        for peer in crowd:
            await hears(peer, "news")

        for number in range(100):
            publisher.send("hub:publish", {"topic": "news", "type": "note", "data": number})
            publisher.tell("@(crowd/3)", "note", number)

        for peer in crowd:
            wanted = [number for number in range(100) for _ in range(2 if peer is crowd[3] else 1)]
            heard = [(await peer.receive("note"))["payload"] for _ in wanted]
            assert heard == wanted


async def test_11_topic_is_changed_while_it_is_busy(stage: InProcess) -> None:
    publisher, peer = await stage.connect(), await stage.join("@(local/a)")

    for number in range(20):
        await hears(peer, "news")
        assert await count(publisher, "news", number) == 1
        peer.send("hub:unsubscribe", {"topic": "news"})
        await peer.receive("note")
        await peer.nothing_more()
        assert await count(publisher, "news", "missed") == 0


@pytest.mark.parametrize(
    ("wildcard", "fits", "does_not_fit"),
    [
        ("news/+", ["news/eu", "news/"], ["news", "news/eu/de", "other/eu"]),
        ("+/eu", ["news/eu", "/eu"], ["eu", "news/us"]),
        ("news/#", ["news", "news/eu", "news/eu/de"], ["newsroom", "other"]),
        ("#", ["news", "a/b/c"], []),
        ("+/+/de", ["news/eu/de"], ["news/de", "a/b/c/de"]),
    ],
)
async def test_11_wildcards_match_by_level(
    stage: InProcess, wildcard: str, fits: list[str], does_not_fit: list[str]
) -> None:
    peer = await stage.join("@(local/a)")
    await hears(peer, wildcard)

    assert {topic: await count(peer, topic) for topic in fits} == dict.fromkeys(fits, 1)
    assert {topic: await count(peer, topic) for topic in does_not_fit} == dict.fromkeys(
        does_not_fit, 0
    )


@pytest.mark.parametrize("topic", ["news/#/de", "#/x"])
async def test_11_subtree_must_be_the_last_level(stage: InProcess, topic: str) -> None:
    peer = await stage.join("@(local/a)")

    assert code_of(await peer.ask("hub:subscribe", {"topic": topic})) == "internal_error"


@pytest.mark.parametrize("topic", ["news/+", "#", "+/x"])
async def test_11_wildcards_cannot_be_published_to(stage: InProcess, topic: str) -> None:
    peer = await stage.join("@(local/a)")

    reply = await peer.ask("hub:publish", {"topic": topic, "type": "note"})

    assert code_of(reply) == "internal_error"


@pytest.mark.parametrize("topic", ["c++", "a+b/c", "issue #7", "#hash"])
async def test_11_wildcard_characters_inside_a_level_are_ordinary(
    stage: InProcess, topic: str
) -> None:
    peer = await stage.join("@(local/a)")
    await hears(peer, topic)

    assert await count(peer, topic) == 1
