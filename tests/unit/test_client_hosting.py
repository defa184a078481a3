"""What the client says about durable actors, and how it reads the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.client.answers import Place, Placements, Unplaced, answer_of
from signalhub.client.arguments import checked_actor
from signalhub.client.protocol.frame import FrameWriter, Payload, Request
from signalhub.client.protocol.incoming import Incoming, message_of
from signalhub.client.requests import Ask
from signalhub.client.stream_requests import FindPlaces, Move
from signalhub.clock import Ids

HOST = "@(h/a)"


def written(payload: Payload[Any]) -> Request:
    return FrameWriter("@(a/caller)", Ids()).request(payload, 0)


def payload(request: Request) -> Any:
    return json.loads(request.frame)["payload"]


def test_places_are_asked_for_with_what_is_given() -> None:
    plain = written(FindPlaces(["order/1"]))
    claim = written(FindPlaces(["order/1"], HOST, {"order/1": 4}))

    assert payload(plain) == {"actors": ["order/1"]}
    assert payload(claim) == {
        "actors": ["order/1"],
        "host": HOST,
        "tokens": {"order/1": 4},
    }
    assert plain.answer == "hub:placed"


def test_a_move_may_be_repeated() -> None:
    request = written(Move("order/1", 3, HOST))

    assert payload(request) == {"actor": "order/1", "token": 3, "to": HOST}
    assert request.is_repeatable
    with pytest.raises(ValueError, match="address"):
        Move("order/1", 3, "nowhere")


@pytest.mark.parametrize("fences", [None, {"order/1": 3}])
def test_fences_travel_with_an_ask_if_there_are_any(fences: dict[str, int] | None) -> None:
    request = written(Ask(HOST, "call", 1, fences))

    content = {"to": HOST, "type": "call", "data": 1}
    assert payload(request) == content | ({"fences": fences} if fences else {})


def test_answers_are_read_leniently() -> None:
    answer = {
        "places": [{"actor": "order/1", "host": HOST, "token": 1, "since": 5}],
        "unplaced": [{"actor": "stock/1", "code": "no_host", "message": "nobody"}],
    }

    found = answer_of(answer, Placements)

    assert found.places == (Place("order/1", HOST, 1),)
    assert found.unplaced == (Unplaced("stock/1", "no_host", "nobody"),)
    assert answer_of({}, Placements) == Placements()


@pytest.mark.parametrize("name", ["order", "order/", "Order/1", "order/a\n", "/1", ""])
def test_what_is_no_actor_is_refused_before_it_is_sent(name: str) -> None:
    with pytest.raises(ValueError, match="kind/key"):
        checked_actor(name)


def test_a_message_for_a_host_says_when_it_was_accepted() -> None:
    delivery = {
        "stream": HOST,
        "epoch": "1.2",
        "seq": 7,
        "attempt": 2,
        "redelivered": True,
        "acceptedAt": 1_760_000_000_000,
    }

    message = message_of(Incoming("call", metadata={"delivery": delivery}))

    found = message.delivery
    assert found is not None
    assert (found.epoch, found.seq, found.attempt, found.redelivered) == ("1.2", 7, 2, True)
    assert found.accepted_at == 1_760_000_000_000
