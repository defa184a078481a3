"""What comes in another shape or from the wrong people: refused, kept as evidence, never fatal."""

from __future__ import annotations

import json

import pytest

from signalhub.actors import wire
from signalhub.actors.kernel.events import DeliveryArrived, Effect, SendBatch, SettleDelivery
from signalhub.testing.local_actors import CALLER
from tests.support.actors.scripted import Stage, Target

PEER = "@(actors/elsewhere)"


@pytest.fixture
def local() -> Stage:
    local = Stage(Target)
    local.call("target/1", "note", "here")
    return local


def deliver(local: Stage, type: str, data: bytes, sender: str) -> list[Effect]:
    event = DeliveryArrived(type, data, sender, local.clock.now_ms(), "it")
    effects = local.kernel.turn([event], local.clock.now_ms())
    assert SettleDelivery("it") in effects
    local.run()
    return effects


def request(version: int, sender: str = "", to: str = "target/1", kind: str = "request") -> bytes:
    message = {"kind": kind, "call": "c-1", "to": to, "from": sender}
    body = {"m": "note", "a": ["done"], "k": {}}
    return json.dumps({"v": version, "messages": [message | {"body": body}]}).encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [(request(2), b"version 2"), (request(1, to="Not A Name"), b"invalid address")],
    ids=["version", "address"],
)
def test_a_call_that_cannot_be_done_is_answered_with_an_error(
    local: Stage, data: bytes, text: bytes
) -> None:
    effects = deliver(local, wire.CALL, data, CALLER)

    (answer,) = (one for one in effects if isinstance(one, SendBatch))
    assert answer.to == CALLER
    ((result, _),) = wire.split(answer.data)
    assert result.call == "c-1"
    assert text in bytes(result.body)
    assert local.notes("target/1") == ["here"]
    assert local.count("inbox") == 0


@pytest.mark.parametrize(
    ("type", "data", "sender", "error"),
    [
        (wire.BATCH, request(1, "order/17"), "@(callers/mallory)", "is not a host"),
        (wire.BATCH, request(1, "nobody at all"), PEER, "invalid sender"),
        (wire.BATCH, request(1, "@no such (address"), PEER, "invalid sender"),
        (wire.CALL, request(1, kind="result"), CALLER, "can only make requests"),
        (wire.BATCH, b'{"v":2,"messages":[]}', PEER, "version 2"),
        (wire.BATCH, b'{"messages":[]}', PEER, ""),
        *[
            (type, data, PEER, "")
            for type in (wire.BATCH, wire.MARK, wire.MOVE, "chat:line")
            for data in (b"[]", b'"\xff"', b'{"v":1}', b'{"v":1,"messages":[7]}', b"nonsense")
        ],
    ],
)
def test_what_cannot_be_read_is_kept_as_evidence_and_answers_nobody(
    local: Stage, type: str, data: bytes, sender: str, error: str
) -> None:
    effects = deliver(local, type, data, sender)

    (letter,) = local.kernel.letters.of("")
    assert letter.origin == "unreadable"
    assert error in letter.error
    assert local.kernel.counters.unreadable == 1
    assert all(isinstance(effect, SettleDelivery) for effect in effects)
    assert local.notes("target/1") == ["here"]
    assert local.count("outbox") == 0
    assert local.call("target/1", "note", "well") == "well"


def test_a_batch_of_a_host_is_done(local: Stage) -> None:
    deliver(local, wire.BATCH, request(1, "target/1"), PEER)

    assert local.notes("target/1") == ["here", "done"]


def test_only_the_newest_evidence_is_kept(local: Stage) -> None:
    events = [DeliveryArrived("chat:line", b"%d" % n, PEER, 1, n) for n in range(1_010)]
    local.kernel.turn(events, local.clock.now_ms())

    kept = [row[0] for row in local.kernel.store.execute("SELECT payload FROM dead ORDER BY 1")]
    assert len(kept) == 1_000
    assert bytes(max(kept, key=int)) == b"1009"
