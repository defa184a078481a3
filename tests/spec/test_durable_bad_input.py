"""Requests about durable topics and mailboxes that are wrong in every way, and harm nobody.

Two kinds: what cannot be meant must be refused with a clear error; what is merely absurd may be
refused or served, but must harm nobody.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.peer import Envelope, Peer, code_of
from tests.support.socket.mailboxes import (
    ask,
    data_of,
    join_durable,
    keep_away,
    leave,
    place_of,
    settle,
    settling_pair,
    take,
    take_until_asked,
)
from tests.support.socket.topics import (
    DLQ,
    OF_WORK,
    TOPIC,
    Consumer,
    Facts,
    create,
    enter,
    publish,
    publish_all,
    sub_info,
    subscription,
    undisturbed,
)
from tests.support.stage import RunStage, Stage, addresses

A = "@(local/a)"
SETTLES = ("hub:ack", "hub:nack", "hub:extend", "hub:term")
HUGE = 10**30
LONG = "n" * 257

MADE: Facts = {"topic": "new", "durable": True}
PUBLISHED: Facts = {"topic": TOPIC, "type": "note", "durable": True}
REPLAYED: Facts = {"topic": TOPIC, "fromSeq": 1}

NOT_PAYLOADS: list[Any] = [None, [], "x", 7, True, [{}]]
NOT_NAMES: list[Any] = ["", LONG, "a\x00b", "a\nb", "\x1b[2J", "a\x7fb", 7, None, [], {}, True]
NOT_TOPICS: list[Any] = [*NOT_NAMES, "orders/+", "orders/#", "#", "+", "a/+/b", "#/a"]
NOT_SEQS: list[Any] = ["1", "", [1], {}, 1.5, True, -1]
NOT_COUNTS: list[Any] = ["1", [], {}, 1.5, True, -1]
NOT_TIMES: list[Any] = ["now", "1", [], {}, True]
NOT_PAUSES: list[Any] = [*NOT_TIMES, -1]
NOT_TEXTS: list[Any] = [1, 1.5, True, [], [A], {}]
NOT_FLAGS: list[Any] = ["yes", 1, [], {}]
NOT_STARTS: list[Any] = [
    "middle",
    "",
    7,
    True,
    [],
    {},
    {"offset": 1},
    *({"seq": seq} for seq in [*NOT_SEQS, 0, None]),
    *({"time": moment} for moment in [*NOT_TIMES, None]),
    *({"last": count} for count in [*NOT_COUNTS, None]),
]


def each(base: Facts, member: str, values: list[Any]) -> Iterator[Facts]:
    """The base with one member wrong."""
    return (base | {member: value} for value in values)


def without(base: Facts, *members: str) -> Facts:
    return {name: value for name, value in base.items() if name not in members}


def settles(**more: Any) -> list[Any]:
    """What is wrong with any settle; `SUB` stands for the victim's id."""
    base = OF_WORK | {"seq": 1} | more
    return [
        *NOT_PAYLOADS,
        {},
        more,
        {"seq": 1} | more,
        without(base, "seq"),
        without(base, "topic"),
        without(base, "subscription"),
        *each(without(base, "topic", "subscription"), "subscriptionId", ["", "nope", 7, [], LONG]),
        *each(base, "topic", [*NOT_TOPICS, "nowhere"]),
        *each(base, "subscription", [*NOT_NAMES, "nobody's"]),
        *each(base, "seq", NOT_SEQS),
        *each(without(base, "seq"), "seqs", ["1", 1, {}, ["1"], [1, None], [1.5], [[1]], [True]]),
        *each(without(base, "seq"), "upTo", NOT_SEQS),
        *each(base, "epoch", ["foreign", "", 1, [], {}]),
        *each(base, "id", [7, [], {}]),
    ]


REFUSED: dict[str, list[Any]] = {
    "hub:topic_create": [
        *NOT_PAYLOADS,
        {},
        *each(MADE, "topic", NOT_TOPICS),
        *each(MADE, "durable", NOT_FLAGS),
        *each(MADE, "retention", ["1", 7, [], {"ageSeconds": "1"}, {"ageSeconds": -1}]),
        *each(MADE, "retention", [{"bytes": -1}, {"bytes": 1.5}, {"bytes": "1"}]),
        *each(MADE, "poison", ["explode", "", 7, [], True]),
        *each(MADE | {"poison": "dead_letter"}, "deadLetter", ["", LONG, "a\nb", "a/+", 7, []]),
        MADE | {"poison": "dead_letter", "deadLetter": "new"},
    ],
    "hub:topic_info": [*NOT_PAYLOADS, {}, *each({}, "topic", [*NOT_TOPICS, "nowhere"])],
    "hub:topic_delete": [*NOT_PAYLOADS, {}, *each({}, "topic", [*NOT_TOPICS, "nowhere"])],
    "hub:list_topics": [
        "x",
        7,
        [],
        *each({}, "pattern", [7, [], {}]),
        *each({}, "limit", ["1", []]),
        *each({}, "offset", ["1", []]),
    ],
    "hub:publish": [
        *NOT_PAYLOADS,
        {},
        *each(PUBLISHED, "topic", NOT_TOPICS),
        *each(PUBLISHED, "type", ["", "hub:ack", 7, None, LONG]),
        *each(PUBLISHED, "durable", NOT_FLAGS),
        *each(PUBLISHED, "key", [7, [], {}, True]),
        *each(PUBLISHED, "headers", ["x", 7, [], {"a": 1}, {"a": None}, {"a": ["b"]}]),
        *each(PUBLISHED, "deliverAt", NOT_TIMES),
    ],
    "hub:subscribe": [
        *each(subscription(name="new"), "topic", [*NOT_TOPICS, "nowhere"]),
        *each(subscription(), "subscription", [*(name for name in NOT_NAMES if name is not None)]),
        *each(subscription(name="new"), "mode", ["solo", "", "Exclusive", 7, []]),
        *each(subscription(name="new"), "from", NOT_STARTS),
        *each(subscription(name="new"), "consumer", ["", LONG, "a\nb", "a\x00b", 7, []]),
        *each(subscription(name="new"), "window", [*NOT_COUNTS, 0]),
        *each(subscription(name="new"), "ackTimeoutMs", [*NOT_PAUSES, 0]),
        *each(subscription(name="new"), "maxDeliveries", NOT_COUNTS),
        *each(subscription(name="new"), "backoffMs", NOT_PAUSES),
        *each(subscription(name="new"), "backoffCapMs", NOT_PAUSES),
        *each(subscription(name="new"), "heartbeatMs", NOT_PAUSES),
        *each(subscription(name="new"), "ratePerSecond", ["5", [], True, -1]),
        *each(subscription(name="new"), "strict", NOT_FLAGS),
        *each(subscription(name="new"), "autoAck", NOT_FLAGS),
        *each(subscription(name="new"), "resume", ["x", 7, [], {}, {"epoch": "x"}]),
        *each(subscription(name="new"), "resume", [{"epoch": "foreign", "seq": 1}]),
        *each(subscription(name="new"), "resume", [{"epoch": 1, "seq": 1}]),
    ],
    "hub:ack": settles(),
    "hub:nack": [
        *settles(),
        *each(OF_WORK | {"seq": 1}, "delayMs", NOT_PAUSES),
        *each(OF_WORK | {"seq": 1}, "reason", [7, [], {}]),
    ],
    "hub:extend": [
        *settles(ms=1_000),
        OF_WORK | {"seq": 1},
        *each(OF_WORK | {"seq": 1}, "ms", [*NOT_PAUSES, None]),
    ],
    "hub:term": [*settles(), *each(OF_WORK | {"seq": 1}, "reason", [7, [], {}])],
    "hub:credit": [
        *NOT_PAYLOADS,
        {},
        {"messages": 1},
        *each({"messages": 1}, "subscriptionId", ["", "nope", 7, [], LONG]),
        *each({"subscriptionId": "SUB"}, "messages", NOT_COUNTS),
        *each({"subscriptionId": "SUB"}, "bytes", NOT_COUNTS),
    ],
    "hub:replay": [
        *NOT_PAYLOADS,
        {},
        *each(REPLAYED, "topic", [*NOT_TOPICS, "nowhere"]),
        *each(REPLAYED, "fromSeq", NOT_SEQS),
        *each(REPLAYED, "toSeq", NOT_SEQS),
        *each(REPLAYED, "limit", NOT_COUNTS),
        *each(REPLAYED, "epoch", ["foreign", "", 1, []]),
    ],
    "hub:seek": [
        *NOT_PAYLOADS,
        {},
        OF_WORK,
        *each(OF_WORK | {"to": "earliest"}, "topic", [*NOT_TOPICS, "nowhere"]),
        *each(OF_WORK | {"to": "earliest"}, "subscription", [*NOT_NAMES, "nobody's"]),
        *each(OF_WORK, "to", [*NOT_STARTS, None]),
        *each(OF_WORK | {"to": "earliest"}, "dryRun", NOT_FLAGS),
    ],
    "hub:list_subs": ["x", 7, [], *each({}, "topic", [7, [], {}])],
    "hub:redrive": [
        *NOT_PAYLOADS,
        {},
        *each({"all": True}, "topic", [*NOT_TOPICS, "nowhere"]),
        *each({"topic": DLQ}, "seqs", ["1", 1, {}, ["1"], [1.5], [None]]),
        *each({"topic": DLQ}, "all", NOT_FLAGS),
    ],
} | {
    type: [
        *NOT_PAYLOADS,
        {},
        without(OF_WORK, "subscription"),
        without(OF_WORK, "topic"),
        *each(OF_WORK, "topic", [*NOT_TOPICS, "nowhere"]),
        *each(OF_WORK, "subscription", [*NOT_NAMES, "nobody's"]),
    ]
    for type in ("hub:sub_info", "hub:sub_pause", "hub:sub_resume", "hub:sub_delete")
}

MANY = list(range(1_000, 60_000))
OPTIONS: list[Facts] = [
    {"window": HUGE},
    {"window": 10**9},
    {"ackTimeoutMs": HUGE},
    {"maxDeliveries": HUGE},
    {"backoffMs": HUGE, "backoffCapMs": HUGE},
    {"heartbeatMs": HUGE},
    {"ratePerSecond": 1e300},
    {"ratePerSecond": 1e-300},
    {"from": {"seq": HUGE}},
    {"from": {"time": HUGE}},
    {"from": {"time": -HUGE}},
    {"from": {"last": HUGE}},
]
POSITIONS: list[Facts] = [
    {"seq": HUGE},
    {"seq": 2**63},
    {"seq": 2**64},
    {"seqs": []},
    {"seqs": MANY},
]
ABSURD: list[tuple[str, Any]] = [
    ("hub:topic_create", MADE | {"retention": {"ageSeconds": HUGE, "bytes": HUGE}}),
    ("hub:list_topics", {"limit": HUGE, "offset": HUGE}),
    ("hub:list_topics", {"limit": -1, "offset": -1}),
    ("hub:list_topics", {"pattern": "*a" * 10_000}),
    ("hub:topic_info", {"topic": "n" * 100_000}),
    ("hub:publish", PUBLISHED | {"topic": "late", "deliverAt": HUGE}),
    ("hub:publish", PUBLISHED | {"topic": "keyed", "key": "k" * 100_000}),
    ("hub:publish", PUBLISHED | {"topic": "full", "headers": {f"h{n}": "x" for n in range(9_000)}}),
    *(
        ("hub:subscribe", subscription(name=f"absurd-{number}") | more)
        for number, more in enumerate(OPTIONS)
    ),
    *(
        (how, OF_WORK | what | {"ms": 1_000})
        for how in ("hub:ack", "hub:nack", "hub:extend", "hub:term")
        for what in POSITIONS
    ),
    ("hub:extend", OF_WORK | {"seq": 99, "ms": HUGE}),
    ("hub:nack", OF_WORK | {"seq": 99, "delayMs": HUGE, "reason": "r" * 100_000}),
    ("hub:replay", REPLAYED | {"fromSeq": HUGE}),
    ("hub:replay", REPLAYED | {"toSeq": HUGE, "limit": HUGE}),
    ("hub:replay", REPLAYED | {"fromSeq": 2, "toSeq": 1}),
    ("hub:replay", REPLAYED | {"limit": 0}),
    ("hub:seek", OF_WORK | {"to": {"seq": HUGE}, "dryRun": True}),
    ("hub:seek", OF_WORK | {"to": {"time": HUGE}, "dryRun": True}),
    ("hub:seek", OF_WORK | {"to": {"time": -HUGE}, "dryRun": True}),
    ("hub:redrive", {"topic": DLQ, "seqs": []}),
    ("hub:redrive", {"topic": DLQ, "seqs": MANY}),
    ("hub:redrive", {"topic": TOPIC, "all": True}),
]


@pytest.fixture
async def victim(stage: Stage) -> AsyncIterator[Consumer]:
    """A subscription with two messages in flight, which no nonsense may move."""
    async with undisturbed(stage):
        publisher = await stage.join("@(local/a)")
        await create(publisher, poison="dead_letter")
        consumer = await enter(stage, "victim")
        await publish_all(publisher, ["first", "second", "third"])
        await consumer.take(3)
        await consumer.term(3, reason="so that there is a dead letter")
        before = await sub_info(publisher)

        yield consumer

        after = await sub_info(publisher)
        for fact in ("mode", "floor", "next", "head", "lag", "inFlight", "paused", "waitingRetry"):
            assert after[fact] == before[fact], fact
        assert (await consumer.ack(1, 2))["floor"] == 3
        await publish(publisher, "fourth")
        assert (await consumer.next()).payload == "fourth"
        await consumer.peer.nothing_more()


async def answer(peer: Peer, type: str, payload: Any, pattern: str = "ask") -> Envelope:
    """The reply to a request; copies that come before it are not of interest."""
    message_id = peer.send(type, payload, pattern=pattern)
    while (message := await peer.receive())["correlationId"] != message_id:
        assert message["type"] == "note", message
    return message


def aimed(payload: Any, victim: Consumer) -> Any:
    return json.loads(json.dumps(payload).replace('"SUB"', json.dumps(victim.id)))


@pytest.mark.parametrize("type", REFUSED)
async def test_wire_nonsense_is_refused_and_changes_nothing(victim: Consumer, type: str) -> None:
    for payload in REFUSED[type]:
        reply = await answer(victim.peer, type, aimed(payload, victim))

        assert reply["type"] == "hub:error", (payload, reply)
        code = code_of(reply)
        assert code != "rate_limited"
        if isinstance(payload, dict) and payload.get("epoch") == "foreign":
            assert code == "wrong_epoch"
            assert reply["payload"]["details"]["current"] == victim.joined["epoch"]
        assert len(json.dumps(reply)) < 4_000


@pytest.mark.parametrize(
    "type", ["hub:ack", "hub:nack", "hub:extend", "hub:term", "hub:credit", "hub:seek"]
)
async def test_wire_nonsense_is_refused_also_as_tell(victim: Consumer, type: str) -> None:
    for payload in REFUSED[type][:8]:
        reply = await answer(victim.peer, type, aimed(payload, victim), pattern="tell")

        assert reply["type"] == "hub:error", (payload, reply)


@pytest.mark.parametrize("type", sorted({type for type, _ in ABSURD}))
async def test_wire_absurd_numbers_and_lists_harm_nobody(
    stage: Stage, victim: Consumer, type: str
) -> None:
    for number, (_, payload) in enumerate([one for one in ABSURD if one[0] == type]):
        stranger = await stage.join(f"@(stranger/{number})")
        peer = victim.peer if type not in ("hub:subscribe", "hub:replay") else stranger

        reply = await answer(peer, type, aimed(payload, victim))

        if reply["type"] == "hub:error":
            code_of(reply)
        elif "accepted" in reply["payload"]:
            assert reply["payload"]["accepted"] == 0, (payload, reply)
        elif type == "hub:redrive":
            assert reply["payload"]["count"] == 0, (payload, reply)
        elif type == "hub:seek":
            assert 1 <= reply["payload"]["next"] <= 4
        stranger.abort()


@pytest.mark.parametrize(
    "credit",
    [{}, {"messages": HUGE, "bytes": HUGE}, {"messages": 2**63}, {"bytes": 2**64}],
    ids=str,
)
async def test_wire_absurd_credit_harms_nobody(victim: Consumer, credit: dict[str, int]) -> None:
    victim.send("hub:credit", **credit)
    marker = victim.peer.send("hub:heartbeat")

    while (message := await victim.peer.receive())["correlationId"] != marker:
        code_of(message)


async def test_wire_answers_sent_to_the_hub_are_unknown(victim: Consumer) -> None:
    for type in ("topic_created", "acked", "subscribed", "published", "sought", "replayed"):
        reply = await answer(victim.peer, f"hub:{type}", OF_WORK | {"seq": 1})
        assert code_of(reply) == "internal_error"


# Mailboxes.

# Fields that settling topics has too are read by the same code.
NOT_SETTLED: list[Facts] = [
    *({}, {"seq": 1}, {"epoch": "e"}, {"stream": A}, {"stream": None, "seq": 1}),
    *({"stream": stream, "seq": 1} for stream in NOT_TEXTS),
    *({"stream": A, "seq": seq} for seq in NOT_SEQS[:-1]),
    *({"stream": A, "seq": 1, "epoch": epoch} for epoch in NOT_TEXTS),
]
ABSURD_MAIL: list[Facts] = [
    *({"seqs": [seq]} for seq in (0, -1, -(2**63), 2**31, 2**63, 2**64, HUGE)),
    {"seqs": list(range(2, 50_002))},
    {"seqs": []},
    {"seq": 1, "id": "no such attempt"},
]


@pytest.fixture
async def quiet(run_stage: RunStage) -> AsyncIterator[Stage]:
    """A hub that sends nothing again by itself."""
    mailbox = {"backoff_ms": 60_000, "backoff_cap_ms": 600_000, "ack_timeout_ms": 600_000}
    async with run_stage(message_rate=0, mailbox=mailbox) as stage:
        yield stage


@pytest.fixture
async def owner(quiet: Stage) -> AsyncIterator[Peer]:
    """A settling actor with one copy in its hands, which it can still settle in the end."""
    sender, owner = await settling_pair(quiet)
    await ask(sender, A, "precious")
    [copy] = await take(owner, 1)

    yield owner

    assert copy["payload"] == "precious"
    assert data_of(await take_until_asked(owner, sender)) == []
    assert (await settle(owner, "hub:ack", copy))["floor"] == 1


@pytest.mark.parametrize("type", SETTLES)
async def test_settling_nothing_in_particular_is_refused(owner: Peer, type: str) -> None:
    for payload in NOT_SETTLED:
        for pattern in ("tell", "ask"):
            asked = owner.send(type, {"ms": 1_000} | payload, pattern=pattern)
            reply = await owner.reply_to(asked)
            assert code_of(reply) == "internal_error", payload
            assert reply["payload"]["retryable"] is False


@pytest.mark.parametrize("type", SETTLES)
async def test_absurd_positions_settle_nothing(owner: Peer, type: str) -> None:
    for what in ABSURD_MAIL:
        reply = await owner.ask(type, {"stream": A, "ms": 1_000} | what)
        if reply["type"] == "hub:error":
            assert code_of(reply) == "internal_error"
        else:
            assert (reply["payload"]["floor"], reply["payload"]["accepted"]) == (0, 0), what


async def test_session_that_did_not_announce_ack_settles_nothing_and_loses_nothing(
    quiet: Stage,
) -> None:
    sender, peer = await quiet.connect(), await join_durable(quiet, A)
    await ask(sender, A, "precious")
    [copy] = await take(peer, 1)

    for type in SETTLES:
        reply = await peer.ask(type, place_of(copy) | {"ms": 1000})
        if reply["type"] == "hub:error":
            assert code_of(reply) == "not_a_consumer"
        else:
            assert reply["payload"]["accepted"] == 0

    assert data_of(await take_until_asked(peer, sender)) == []
    await leave(peer)


@pytest.mark.parametrize("flag", ["true", "", 1, 0, 1.5, [], [True], {}], ids=json.dumps)
async def test_flags_of_the_wrong_type_are_refused_and_touch_no_mailbox(
    stage: Stage, flag: Any
) -> None:
    peer = await stage.connect()
    await keep_away(stage, A)
    await ask(peer, A, "precious")
    made = {"actorAddress": "@(local/new)", "capabilities": [], "durable": flag}

    for pattern in ("tell", "ask"):
        for payload in (made, made | {"actorAddress": A}):
            reply = await peer.ask("hub:register", payload, pattern=pattern)
            assert code_of(reply) == "internal_error"
            assert reply["payload"]["retryable"] is False
    found = await peer.ask("hub:discover", {"pattern": "*", "includeAway": flag})
    assert code_of(found) == "internal_error"

    assert await addresses(peer, includeAway=True) == [A]
    back = await join_durable(stage, A)
    assert data_of(await take(back, 1)) == ["precious"]


@pytest.mark.parametrize("metadata", [None, "text", [], 7], ids=json.dumps)
async def test_odd_metadata_of_an_ask_does_not_spoil_its_delivery(
    stage: Stage, metadata: Any
) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)

    reply = await sender.ask_actor(A, "note", "precious", metadata=metadata)

    back = await join_durable(stage, A)
    if reply["type"] == "hub:error":
        code_of(reply)
        await back.nothing_more()
    else:
        copies = await take(back, 1)
        assert data_of(copies) == ["precious"]
        assert place_of(copies[0])["seq"] == reply["payload"]["seq"] == 1
