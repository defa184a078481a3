"""What the client says about durable actors, and how it reads the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.client.client import Place, Placements, Unplaced, _checked_actor
from signalhub.client.protocol.incoming import Incoming, answer_of, message_of
from signalhub.client.requests import Composer
from signalhub.clock import Ids

HOST = "@(h/a)"


def composer() -> Composer:
    return Composer("@(a/caller)", Ids())


def payload(frame: bytes) -> Any:
    return json.loads(frame)["payload"]


def test_places_are_asked_for_with_what_is_given() -> None:
    streams = composer().streams

    plain = streams.place(["order/1"], None, None, 0)
    claim = streams.place(["order/1"], HOST, {"order/1": 4}, 0)

    assert payload(plain.frame) == {"actors": ["order/1"]}
    assert payload(claim.frame) == {
        "actors": ["order/1"],
        "host": HOST,
        "tokens": {"order/1": 4},
    }
    assert plain.answer == "hub:placed"


def test_a_move_may_be_repeated() -> None:
    request = composer().streams.move("order/1", 3, HOST, 0)

    assert payload(request.frame) == {"actor": "order/1", "token": 3, "to": HOST}
    assert request.is_repeatable
    with pytest.raises(ValueError, match="address"):
        composer().streams.move("order/1", 3, "nowhere", 0)


@pytest.mark.parametrize("fences", [None, {}, {"order/1": 3}])
def test_fences_travel_with_an_ask_if_there_are_any(fences: dict[str, int] | None) -> None:
    request = composer().ask(HOST, "call", 1, 0, fences=fences, timeout_s=1, attempts=1)

    content = {"to": HOST, "type": "call", "data": 1}
    assert payload(request.frame) == content | ({"fences": fences} if fences else {})


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
        _checked_actor(name)


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
