"""Replays on real Spark: what a predicate selects, in which order, and how it reaches a hub."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import signalhub
from signalhub import Client
from signalhub.client import Consumer, Message, OriginalPosition
from signalhub.operate.replay import Behind, HubBusy, Sender, Sending
from signalhub.operate.session import HubAccess
from signalhub.operate.target import ReplayTarget
from signalhub.pipeline.query import QueryRefused, QueryWrong
from signalhub.pipeline.replay import select as selection
from signalhub.pipeline.replay.job import Bound
from signalhub.pipeline.replay.select import (
    LeftOut,
    behind,
    examples,
    head_of,
    in_order,
    landed,
    rest,
    select,
    summarise,
)
from signalhub.testing import RunningHub, run_hub
from signalhub.wire.entry import BroadcastBody, Entry, Kind, ReplayOrigin, encode_body
from signalhub.wire.entry import MessageBody as Stored
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import NOON_MS, LogScene

ORDERS = 30
END = Bound(2**40, 0)


def published(type: str = "n", topic: str = "mixed", **members: Any) -> Entry:
    body = Stored("m", b"copy", "@(demo/alice)", type, b"1", **members)
    published.seq = getattr(published, "seq", 0) + 1  # type: ignore[attr-defined]
    seq: int = published.seq  # type: ignore[attr-defined]
    return Entry(Kind.PUBLISHED, topic, 2, seq, NOON_MS, encode_body(body))


@pytest.fixture(scope="module")
def side(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakeside:
    """Orders, and one of everything that cannot be sent again."""
    data = tmp_path_factory.mktemp("replayed")
    scene = LogScene(data)
    orders = [
        scene.published("orders", {"n": n, "customer": {"id": n % 3}}, key=f"k-{n % 3}")
        for n in range(ORDERS)
    ]
    scene.append(orders)
    mail = encode_body(Stored("m-1", b"copy", "@(demo/bob)", "hello", b'{"to":"carol"}'))
    copy = ReplayOrigin("job", 0, 1, 1, "m", 1, 9)
    scene.append(
        [
            Entry(Kind.MAIL, "@(demo/carol)", 3, 1, NOON_MS, mail),
            scene.said("inbox.1.abc"),
            published("call:request"),
            published("n", replay=copy),
            Entry(
                Kind.BROADCAST, "", 0, 0, NOON_MS, encode_body(BroadcastBody("b", "@(a/b)", b"{}"))
            ),
        ]
    )
    scene.close()
    lakeside = Lakeside(spark, data)
    lakeside.shape("messages")
    return lakeside


def epoch_of(side: Lakeside) -> int:
    head = head_of(side.data)
    assert head is not None
    return head.epoch


def selected(side: Lakeside, where: str, until: Bound = END, **options: Any) -> list[int]:
    """The offsets of what a predicate selects, in order."""
    rows = select(side.spark, side.lake, where, until, **options)
    return [one.offset for one in in_order(rest(rows, None), 0)]


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("topic = 'orders'", list(range(ORDERS))),
        ("topic = 'orders' AND accepted_at > '2023-11-15 12:00:00'", []),
        ("topic = 'orders' AND key = 'k-1' AND offset < 9", [1, 4, 7]),
        ("payload:customer.id::int = 2 -- of one customer", list(range(2, ORDERS, 3))),
        ("headers['source'] = 'test' AND offset IN (SELECT min(offset) FROM messages)", [0]),
        ("sender = '@(demo/bob)'", [ORDERS]),
    ],
)
def test_a_predicate_over_messages_selects_in_the_order_of_the_log(
    side: Lakeside, where: str, offsets: list[int]
) -> None:
    assert selected(side, where) == offsets


def test_nothing_behind_the_bound_is_selected(side: Lakeside) -> None:
    assert selected(side, "topic = 'orders'", Bound(epoch_of(side), 3)) == [0, 1, 2, 3]
    assert selected(side, "topic = 'orders'", Bound(epoch_of(side) - 1, 100)) == []


def test_what_cannot_be_sent_again_is_left_out_and_counted(side: Lakeside) -> None:
    summary = summarise(select(side.spark, side.lake, "offset >= 28", END))

    assert summary.count == 3
    assert summary.streams == {"@(demo/carol)": 1, "orders": 2}
    assert summary.first == OriginalPosition(0, epoch_of(side), 28)
    assert summary.last == OriginalPosition(0, epoch_of(side), 30)
    assert summary.left_out == LeftOut(rooms=1, broadcasts=1, calls=1, replays=1)


def test_copies_of_replays_are_selected_when_they_are_asked_for(side: Lakeside) -> None:
    assert selected(side, "topic = 'mixed'") == []
    assert selected(side, "topic = 'mixed'", include_replays=True) == [33]


def test_examples_are_the_first_messages(side: Lakeside) -> None:
    first, *others = examples(select(side.spark, side.lake, "topic = 'orders'", END))

    assert (first.offset, first.stream, first.type, first.key) == (0, "orders", "order:new", "k-0")
    assert first.accepted_at == "2023-11-15 12:00:00"
    assert msgspec.json.decode(first.data) == {"n": 0, "customer": {"id": 0}}
    assert [one.offset for one in others] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("topic = ", QueryWrong, "line"),
        ("topik = 'orders'", QueryWrong, "topik"),
        ("topic", QueryWrong, "BOOLEAN"),
        ("DROP TABLE messages", QueryWrong, "line 1"),
        ("true)) UNION ALL SELECT * FROM messages WHERE ((true", QueryRefused, "one condition"),
        ("offset IN (SELECT offset FROM delta.`/somewhere`)", QueryRefused, "delta"),
        ("reflect('java.lang.System', 'exit', 0) IS NULL", QueryRefused, "reflect"),
    ],
)
def test_only_one_condition_over_the_lake_is_a_predicate(
    side: Lakeside, where: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"(?i){words}"):
        select(side.spark, side.lake, where, END)


def test_the_bound_is_what_has_landed_and_the_lag_is_known(side: Lakeside, tmp_path: Path) -> None:
    head = Bound(epoch_of(side), ORDERS + 4)

    assert head_of(side.data) == head
    assert landed(side.spark, side.lake, side.data) == head
    # A lake whose log is elsewhere.
    assert landed(side.spark, side.lake, tmp_path) == head
    assert behind(Bound(1, 4), Bound(1, 9)) == 5
    assert behind(Bound(1, 4), Bound(2, 1)) == 2
    assert behind(Bound(1, 4), Bound(1, 4)) == behind(Bound(1, 4), None) == 0


def test_the_order_holds_across_epochs_files_and_partitions(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PARTITION_BYTES", 1)
    places = [(epoch, offset) for epoch in (1, 2, 10) for offset in range(40)]
    shuffled = random.Random(7).sample(places, len(places))
    columns = "shard INT, epoch BIGINT, offset BIGINT, id STRING, type STRING, sender STRING,"
    columns += "key STRING, headers MAP<STRING, STRING>, payload_json STRING, stream STRING,"
    columns += "accepted_at TIMESTAMP, bytes BIGINT, verdict STRING"
    tail = ("i", "t", "@(a/b)", None, {"h": "1"}, '{"n": 1}', "s", None, 1, "sendable")
    rows = side.spark.createDataFrame([(0, *one, *tail) for one in shuffled], columns)

    found = [(one.epoch, one.offset) for one in in_order(rest(rows, OriginalPosition(0, 1, 30)), 8)]

    assert found == [one for one in places if one > (1, 30)]


# To a real hub.


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


@pytest.fixture
async def me(hub: RunningHub) -> AsyncIterator[Client]:
    async with signalhub.connect(hub.url, "@(demo/operator)") as client:
        await client.create_topic("again")
        yield client


async def send_all(
    me: Client, side: Lakeside, target: ReplayTarget, *, stop_after: int | None = None
) -> Sending:
    """What a replay does; after `stop_after` messages it is interrupted."""

    def progress(event: Behind | Sending | HubBusy) -> None:
        if stop_after is not None and isinstance(event, Sending) and event.sent:
            raise InterruptedError

    sender = Sender("job", END, target, 0, HubAccess(), progress)
    rows = rest(select(side.spark, side.lake, "topic = 'orders'", END), await sender.ask(me))
    originals = in_order(rows, 0)
    if stop_after is not None:
        originals = iter([next(originals) for _ in range(stop_after)])
    try:
        return await sender.send(me, originals, ORDERS)
    except InterruptedError:
        assert stop_after is not None
        return sender.sent


async def numbers(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    async for message in consumer:
        await message.ack()
        found.append(message)
        if len(found) == count:
            break
    return found


def check_copies(found: list[Message]) -> None:
    """Every order once, those of one key in order, marked and kept as they were."""
    assert [one.payload["n"] for one in found] == list(range(ORDERS))
    assert all(one.is_replay and one.ttl is None for one in found)
    first = found[0]
    assert first.original is not None
    assert (first.original.job, first.original.offset) == ("job", 0)
    assert (first.sender, first.type, first.key) == ("@(demo/alice)", "order:new", "k-0")
    assert first.headers == {"source": "test"}


async def test_an_interrupted_replay_into_a_topic_goes_on_and_sends_each_message_once(
    me: Client, hub: RunningHub, side: Lakeside
) -> None:
    target = ReplayTarget(topic="again")

    first = await send_all(me, side, target, stop_after=11)
    await hub.stop()
    await hub.start()
    async with signalhub.connect(hub.url, "@(demo/another)") as other:
        second = await send_all(other, side, target)
        third = await send_all(other, side, target)
        async with other.consume("again", "all") as consumer:
            found = await numbers(consumer, ORDERS)

    assert (first.appended, second.appended, third.appended) == (11, ORDERS - 11, 0)
    check_copies(found)


async def test_a_replay_into_a_subscription_is_for_it_alone(me: Client, side: Lakeside) -> None:
    async with me.consume("again", "billing") as billing, me.consume("again", "other") as other:
        await send_all(me, side, ReplayTarget("again", "billing"))
        await me.publish("again", "n", {"n": "last"}, durable=True)

        check_copies((await numbers(billing, ORDERS + 1))[:-1])
        (alone,) = await numbers(other, 1)

    assert alone.payload == {"n": "last"}


async def test_a_replay_to_an_actor_waits_for_it(
    me: Client, hub: RunningHub, side: Lakeside
) -> None:
    address = "@(demo/carol)"
    async with signalhub.connect(hub.url, address, durable=True):
        pass

    await send_all(me, side, ReplayTarget(actor=address))

    found: list[Message] = []
    async with signalhub.connect(hub.url, address, durable=True) as carol:
        async for message in carol.messages():
            found.append(message)
            if len(found) == ORDERS:
                break
    assert [one.payload["n"] for one in found] == list(range(ORDERS))
    assert all(one.is_replay for one in found)
