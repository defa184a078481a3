"""Frames and answers that say something about Python; `tests/vectors/client` has the others."""

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
from signalhub.client.message import Message
from signalhub.client.protocol.incoming import decode, message_of

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
