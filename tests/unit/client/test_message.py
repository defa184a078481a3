"""What a client makes of frames from the hub: messages, deliveries, answers of any age."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from signalhub.client.answers import (
    Placements,
    Published,
    Receipt,
    Registration,
    SubscriptionInfo,
    Topic,
    answer_of,
)
from signalhub.client.delivery import DeadLetter, Delivery
from signalhub.client.message import Message
from signalhub.client.protocol.incoming import decode, message_of
from signalhub.wire.errors import OutcomeUnknown

ALICE = "@(demo/alice)"


def message(metadata: Any) -> Message:
    incoming = decode(json.dumps({"type": "order", "id": "m", "metadata": metadata}).encode())
    assert incoming is not None
    return message_of(incoming)


def test_numbers_outside_the_usual_range_do_not_cost_the_message() -> None:
    frame = b'{"type":"x","payload":{"a":1e999,"b":' + b"9" * 5_000 + b',"c":7}}'

    incoming = decode(frame)

    assert incoming is not None
    assert incoming.payload == {"a": math.inf, "b": math.inf, "c": 7}


def test_a_message_knows_its_stream_and_what_its_publisher_gave_it() -> None:
    members = {"epoch": "e", "seq": 5, "attempt": 2, "redelivered": True, "id": "1.5.2"}
    times = {"publishedAt": 9, "acceptedAt": 8}
    attempt = Delivery(
        epoch="e", seq=5, attempt=2, redelivered=True, id="1.5.2", published_at=9, accepted_at=8
    )

    published = message(
        {"topic": "orders", "delivery": members | times, "key": "k", "headers": {"a": "b"}}
    )
    mailed = message({"topic": "the sender's word", "delivery": members | {"stream": ALICE}})

    assert published.delivery == attempt
    assert (published.topic, published.key, published.headers) == ("orders", "k", {"a": "b"})
    assert (published.dead_letter, published.original_id) == (None, "m")
    assert mailed.delivery is not None
    assert (mailed.delivery.stream, mailed.topic) == (ALICE, None)


@pytest.mark.parametrize("delivery", [None, 3, "x", [], {}, {"seq": 1}, {"epoch": "e", "seq": "1"}])
def test_without_a_position_there_is_no_delivery(delivery: Any) -> None:
    assert message({"delivery": delivery}).delivery is None


def test_a_member_of_the_wrong_type_does_not_cost_the_others() -> None:
    delivery = {"epoch": "e", "seq": 1, "attempt": "two", "redelivered": None, "id": 7, "new": 1}
    one = message({"delivery": delivery, "key": 3, "headers": {"a": 1, "b": "c"}})

    assert one.delivery == Delivery(epoch="e", seq=1)
    assert (one.key, one.headers) == (None, {"b": "c"})
    assert message({"headers": "x"}).headers == {}


def test_a_dead_letter_says_what_became_of_it() -> None:
    facts = {"topic": "orders", "subscription": "billing", "epoch": "e", "seq": 5, "attempts": 6}
    facts |= {"reason": "no such customer", "firstFailure": 1, "lastFailure": 2, "consumers": ["a"]}
    letter = DeadLetter(
        topic="orders",
        subscription="billing",
        epoch="e",
        seq=5,
        attempts=6,
        reason="no such customer",
        first_failure=1,
        last_failure=2,
        consumers=("a",),
    )

    assert message({"deadLetter": facts}).dead_letter == letter
    broken = message({"deadLetter": facts | {"attempts": "many", "consumers": None}}).dead_letter
    assert broken is not None
    assert (broken.seq, broken.attempts, broken.consumers) == (5, 0, ())
    assert message({"deadLetter": "x"}).dead_letter is None


def test_copies_sent_by_a_replay_say_so() -> None:
    copy = message({"original": {"job": "j", "epoch": 7, "offset": 3, "id": "m0"}})

    assert copy.is_replay
    assert copy.original is not None
    assert (copy.original.job, copy.original.offset, copy.original.id) == ("j", 3, "m0")
    assert message({"replay": True}).is_replay
    assert not message({}).is_replay


async def test_a_message_without_a_settler_cannot_be_settled() -> None:
    one = message({"delivery": {"epoch": "e", "seq": 1}})

    assert not one.is_settleable
    assert one.is_open
    for settling in (one.ack(), one.nack(), one.extend(1), one.term()):
        with pytest.raises(RuntimeError, match="nothing to settle"):
            await settling


@pytest.mark.parametrize("payload", [{}, {"epoch": None, "later": 1}])
def test_answers_of_older_and_newer_hubs_are_read(payload: dict[str, Any]) -> None:
    assert answer_of({"messageId": "m"} | payload, Receipt) == Receipt(message_id="m")
    assert answer_of(payload, Published) == Published()
    assert answer_of({"actorAddress": ALICE} | payload, Registration).waiting == 0
    assert answer_of({"topic": "t"} | payload, Topic) == Topic(name="t")
    assert answer_of(payload, SubscriptionInfo) == SubscriptionInfo()
    assert answer_of(payload, Placements) == Placements()


def test_an_answer_that_cannot_be_read_is_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        answer_of({"seq": "x"}, Published)
