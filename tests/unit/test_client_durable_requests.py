"""What a client says about durable topics, and what it reads off the answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from signalhub.client.answers import (
    Published,
    Receipt,
    Registration,
    SubscriptionInfo,
    Topic,
    answer_of,
)
from signalhub.client.arguments import wire_position
from signalhub.client.delivery import Delivery
from signalhub.client.message import Message
from signalhub.client.protocol.frame import FrameWriter, HeldBy, Payload, Request
from signalhub.client.protocol.incoming import decode, message_of
from signalhub.client.protocol.restore import Membership
from signalhub.client.requests import Publish, Register
from signalhub.client.stream_requests import (
    Ack,
    CreateTopic,
    Credit,
    Nack,
    Redrive,
    Source,
    UpdateTopic,
    defined,
    served,
    terms,
)
from signalhub.clock import Ids
from signalhub.wire.errors import OutcomeUnknown

ALICE = "@(demo/alice)"
PLACE = {"topic": "orders", "subscription": "billing"}
BILLING = Source(topic="orders", subscription="billing")


def written(payload: Payload[Any], **options: Any) -> Request:
    return FrameWriter(ALICE, Ids()).request(payload, 7, **options)


def payload(request: Request) -> Any:
    return json.loads(request.frame)["payload"]


def asked(
    mode: Any = "shared", start: Any = "earliest", consumer: str = "c", **serving: Any
) -> dict[str, Any]:
    return terms(mode=mode, start=start, consumer=consumer, serving=serving)


def message(metadata: Any, type: str = "order") -> Message:
    incoming = decode(json.dumps({"type": type, "id": "m", "metadata": metadata}).encode())
    assert incoming is not None
    return message_of(incoming)


def test_only_a_client_that_acknowledges_says_so_in_its_hello() -> None:
    frames = FrameWriter(ALICE, Ids())

    hellos = [
        json.loads(Membership(acknowledges=acknowledges).hello(frames, None, 0).frame)
        for acknowledges in (False, True)
    ]

    assert ["ack" in hello["metadata"]["capabilities"] for hello in hellos] == [False, True]


@pytest.mark.parametrize(
    ("durable", "members"), [(None, {}), (True, {"durable": True}), (False, {"durable": False})]
)
def test_a_registration_mentions_its_mailbox_only_when_asked_to(
    durable: bool | None, members: dict[str, Any]
) -> None:
    request = written(Register(ALICE, [], {}, durable=durable))

    plain = {"actorAddress": ALICE, "capabilities": [], "metadata": {}}
    assert payload(request) == plain | members


def test_a_durable_publish_carries_everything_where_the_hub_looks_for_it() -> None:
    request = written(
        Publish(
            "orders",
            "order",
            {"n": 1},
            durable=True,
            key="k",
            headers={"trace": "t"},
            deliver_at=datetime(2026, 1, 2, tzinfo=UTC),
        ),
        ttl_ms=500,
        message_id="mine",
        timeout_s=5,
        attempts=4,
    )

    frame = json.loads(request.frame)
    assert (frame["id"], frame["ttl"]) == ("mine", 500)
    assert frame["payload"] == {
        "topic": "orders",
        "type": "order",
        "data": {"n": 1},
        "durable": True,
        "key": "k",
        "headers": {"trace": "t"},
        "deliverAt": 1767312000000,
    }
    assert (request.is_repeatable, request.timeout_s, request.attempts) == (True, 5, 4)


def test_a_plain_publish_is_as_it_always_was_and_is_not_repeated() -> None:
    request = written(Publish("news", "item", 1), attempts=3)

    assert payload(request) == {"topic": "news", "type": "item", "data": 1}
    assert (request.is_repeatable, request.attempts) == (False, 1)


@pytest.mark.parametrize(
    ("members", "options"),
    [
        ({}, {"ttl_ms": 0}),
        ({}, {"attempts": 0}),
        ({}, {"timeout_s": 0}),
        ({}, {"message_id": ""}),
        ({}, {"message_id": "x" * 300}),
        ({"headers": {"a": 1}}, {}),
        ({"deliver_at": datetime(2026, 1, 2)}, {}),
    ],
)
def test_a_publish_that_makes_no_sense_is_refused_before_it_is_sent(
    members: dict[str, Any], options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        written(Publish("orders", "order", 1, True, **members), **options)


@pytest.mark.parametrize(
    ("position", "wire"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (7, {"seq": 7}),
        ({"seq": 7}, {"seq": 7}),
        ({"last": 3}, {"last": 3}),
        ({"time": 1767312000000}, {"time": 1767312000000}),
        (datetime(2026, 1, 2, tzinfo=UTC), {"time": 1767312000000}),
    ],
)
def test_a_place_in_a_topic_has_several_names(position: Any, wire: Any) -> None:
    assert wire_position(position) == wire


@pytest.mark.parametrize(
    "position",
    ["now", 0, -1, True, {}, {"seq": 0}, {"seq": 1, "last": 1}, {"offset": 1}, None, 1.5],
)
def test_what_is_no_place_in_a_topic_is_refused_with_those_that_are(position: Any) -> None:
    with pytest.raises(ValueError, match="'earliest', 'latest'"):
        wire_position(position)


def test_a_moment_needs_its_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        wire_position(datetime(2026, 1, 2))


def test_terms_left_out_stay_out() -> None:
    assert asked(window=None) == {"mode": "shared", "from": "earliest", "consumer": "c"}


def test_terms_are_given_in_the_words_of_the_wire() -> None:
    given = asked(
        mode="failover",
        start={"last": 2},
        window=10,
        strict=True,
        auto_ack=False,
        ack_timeout_s=1.5,
        max_deliveries=3,
        backoff_s=0.1,
        backoff_cap_s=2,
        heartbeat_s=0,
        rate_per_s=5,
        poison="drop",
        dead_letter="bad",
    )

    assert given == {
        "mode": "failover",
        "from": {"last": 2},
        "consumer": "c",
        "window": 10,
        "strict": True,
        "autoAck": False,
        "ackTimeoutMs": 1500,
        "maxDeliveries": 3,
        "backoffMs": 100,
        "backoffCapMs": 2000,
        "heartbeatMs": 0,
        "ratePerSecond": 5,
        "poison": "drop",
        "deadLetter": "bad",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "all"},
        {"window": 0},
        {"max_deliveries": 0},
        {"ack_timeout_s": 0},
        {"backoff_s": -1},
        {"heartbeat_s": -1},
        {"rate_per_s": -1},
        {"consumer": ""},
        {"poison": "ignore"},
        {"dead_letter": ""},
    ],
)
def test_terms_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        asked(**options)


def test_options_nobody_knows_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'windows' of a durable subscription"):
        served({"windows": 1})
    with pytest.raises(TypeError, match="'window' of a durable topic"):
        defined({"window": 1})  # type: ignore[typeddict-unknown-key]


def test_a_topic_is_created_with_what_was_asked_for() -> None:
    plain = written(CreateTopic("orders", defined({"poison": None})))
    definition = defined(
        {
            "retention_s": 60,
            "retention_bytes": 2**20,
            "poison": "dead_letter",
            "dead_letter": "bad",
            "heartbeat_s": 0.5,
        }
    )
    full = written(CreateTopic("orders", definition))

    assert payload(plain) == {"topic": "orders", "durable": True}
    assert payload(full) == {
        "topic": "orders",
        "durable": True,
        "retention": {"ageSeconds": 60, "bytes": 2**20},
        "poison": "dead_letter",
        "deadLetter": "bad",
        "heartbeatMs": 500,
    }
    update = written(UpdateTopic("orders", definition))
    assert payload(update) == {"topic": "orders", **definition}


@pytest.mark.parametrize(
    "definition",
    [
        {"retention_s": 0},
        {"retention_bytes": -1},
        {"poison": "ignore"},
        {"dead_letter": ""},
        {"heartbeat_s": -1},
    ],
)
def test_a_topic_that_makes_no_sense_is_refused(definition: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        defined(definition)


def deliveries(count: int, *, has_id: bool = True) -> list[Delivery]:
    return [
        Delivery(epoch="e", seq=seq, id=f"1.{seq}.1" if has_id else None)
        for seq in range(1, count + 1)
    ]


def test_one_settlement_names_one_attempt() -> None:
    request = written(Nack.of(BILLING, deliveries(1), reason="busy"), wait=False)

    frame = json.loads(request.frame)
    assert (frame["type"], frame["pattern"]) == ("hub:nack", "tell")
    assert frame["payload"] == PLACE | {"epoch": "e", "seq": 1, "id": "1.1.1", "reason": "busy"}
    assert (request.kind, request.answer) == (HeldBy.EXEMPT, None)


def test_settlements_to_wait_for_are_asks() -> None:
    request = written(Ack.of(BILLING, deliveries(1)))

    assert json.loads(request.frame)["pattern"] == "ask"
    assert request.answer == "hub:acked"


def test_several_settlements_travel_together() -> None:
    named = written(Ack.of(BILLING, deliveries(3)), wait=False)
    nameless = written(Ack.of(Source(ALICE), deliveries(2, has_id=False)), wait=False)

    assert payload(named) == PLACE | {
        "epoch": "e",
        "seqs": [1, 2, 3],
        "ids": ["1.1.1", "1.2.1", "1.3.1"],
    }
    assert payload(nameless) == {"stream": ALICE, "epoch": "e", "seqs": [1, 2]}


@pytest.mark.parametrize("amounts", [(None, None), (-1, None), (None, -1)])
def test_a_credit_must_be_one(amounts: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="credit"):
        Credit("s", *amounts)


@pytest.mark.parametrize(("seqs", "members"), [(None, {"all": True}), ([1, 3], {"seqs": [1, 3]})])
def test_dead_letters_are_put_back_all_or_by_position(
    seqs: list[int] | None, members: dict[str, Any]
) -> None:
    request = written(Redrive.of("orders.dlq", seqs))

    assert payload(request) == {"topic": "orders.dlq"} | members
    assert not request.is_repeatable


def test_a_message_knows_where_it_came_from() -> None:
    delivery = {
        "subscription": "billing",
        "epoch": "e",
        "seq": 5,
        "attempt": 2,
        "redelivered": True,
        "publishedAt": 9,
        "id": "1.5.2",
    }
    one = message({"topic": "orders", "delivery": delivery, "key": "k", "headers": {"a": "b"}})

    assert one.delivery == Delivery(
        subscription="billing",
        epoch="e",
        seq=5,
        attempt=2,
        redelivered=True,
        published_at=9,
        id="1.5.2",
    )
    assert (one.topic, one.key, one.headers) == ("orders", "k", {"a": "b"})
    assert one.dead_letter is None


def test_a_message_from_a_mailbox_came_through_no_topic() -> None:
    delivery = {"stream": ALICE, "epoch": "m", "seq": 1, "attempt": 1, "redelivered": False}

    one = message({"topic": "the sender's own word", "delivery": delivery})

    assert one.topic is None
    assert one.delivery is not None
    assert one.delivery.stream == ALICE


@pytest.mark.parametrize("delivery", [None, 3, "x", [], {}, {"seq": 1}, {"epoch": "e", "seq": "1"}])
def test_without_a_position_there_is_no_delivery(delivery: Any) -> None:
    assert message({"delivery": delivery}).delivery is None


def test_members_of_the_wrong_shape_do_not_cost_the_others() -> None:
    delivery = {"epoch": "e", "seq": 1, "attempt": "two", "redelivered": None, "id": 7, "new": 1}
    one = message({"delivery": delivery, "key": 3, "headers": {"a": 1, "b": "c"}})

    assert one.delivery == Delivery(epoch="e", seq=1)
    assert one.key is None
    assert one.headers == {"b": "c"}
    assert message({"headers": "x"}).headers == {}


def test_a_dead_letter_says_what_became_of_it() -> None:
    facts = {
        "topic": "orders",
        "subscription": "billing",
        "epoch": "e",
        "seq": 5,
        "attempts": 6,
        "reason": "no such customer",
        "firstFailure": 1,
        "lastFailure": 2,
        "consumers": ["a", "b"],
    }
    letter = message({"deadLetter": facts}).dead_letter
    broken = message({"deadLetter": facts | {"attempts": "many", "consumers": None}}).dead_letter

    assert letter is not None
    assert broken is not None
    assert (letter.topic, letter.seq, letter.attempts) == ("orders", 5, 6)
    assert (letter.first_failure, letter.last_failure) == (1, 2)
    assert letter.consumers == ("a", "b")
    assert (broken.seq, broken.attempts, broken.consumers) == (5, 0, ())
    assert message({"deadLetter": "x"}).dead_letter is None


async def test_a_message_without_a_settler_cannot_be_settled() -> None:
    one = message({"delivery": {"epoch": "e", "seq": 1}})

    assert not one.is_settleable
    for settling in (one.ack(), one.nack(), one.extend(1), one.term()):
        with pytest.raises(RuntimeError, match="nothing to settle"):
            await settling


@pytest.mark.parametrize("payload", [{}, {"epoch": None, "later": 1}])
def test_answers_of_older_and_newer_hubs_are_read(payload: dict[str, Any]) -> None:
    receipt = answer_of({"messageId": "m"} | payload, Receipt)
    published = answer_of(payload, Published)

    assert (receipt.epoch, receipt.seq, receipt.durability) == (None, None, None)
    assert (published.subscribers, published.duplicate) == (0, False)
    assert answer_of({"actorAddress": ALICE}, Registration).waiting == 0
    assert answer_of({"topic": "t"} | payload, Topic).head == 0
    assert answer_of(payload, SubscriptionInfo).lag == 0


def test_positions_in_receipts_are_an_epoch_in_words_and_a_number() -> None:
    receipt = answer_of(
        {
            "messageId": "m",
            "status": "queued",
            "epoch": "1.4",
            "seq": 9,
            "durability": "fsync",
            "duplicate": True,
        },
        Receipt,
    )

    assert msgspec.structs.asdict(receipt) == {
        "message_id": "m",
        "status": "queued",
        "delivered_at": None,
        "epoch": "1.4",
        "seq": 9,
        "durability": "fsync",
        "duplicate": True,
        "attempts": 1,
    }
    assert not receipt.is_delivered


def test_an_answer_that_cannot_be_read_is_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        answer_of({"seq": "x"}, Published)
