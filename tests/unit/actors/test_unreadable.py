"""What comes in another shape or from the wrong people: refused, kept as evidence, never fatal."""

from __future__ import annotations

import json

import pytest

from signalhub.actors import Actor, remote, wire
from signalhub.actors.kernel.events import DeliveryArrived, Effect, SendBatch, SettleDelivery
from signalhub.testing.local_actors import CALLER, LocalActors

PEER = "@(actors/elsewhere)"


class Counter(Actor):
    @remote
    def add(self) -> int:
        count: int = self.state.get("count", 0) + 1
        self.state.put("count", count)
        return count


def delivered(actors: LocalActors, type: str, data: bytes, sender: str) -> list[Effect]:
    actors.call("counter/1", "add")
    event = DeliveryArrived(type, data, sender, actors.clock.now_ms(), "it")
    effects = actors.kernel.turn([event], actors.clock.now_ms())
    assert SettleDelivery("it") in effects
    actors.run()
    assert actors.state("counter/1").get("count") == 1
    return effects


def request(version: int, sender: str = "") -> bytes:
    message = {"kind": "request", "call": "c-1", "to": "counter/1", "from": sender}
    body = {"m": "add", "a": [], "k": {}}
    return json.dumps({"v": version, "messages": [message | {"body": body}]}).encode()


def test_a_call_of_another_version_is_answered_with_an_error_and_kept() -> None:
    actors = LocalActors(Counter)

    effects = delivered(actors, wire.CALL, request(2), CALLER)

    (answer,) = (one for one in effects if isinstance(one, SendBatch))
    assert answer.to == CALLER
    ((result, _),) = wire.split(answer.data)
    assert result.call == "c-1"
    assert b"version 2" in bytes(result.body)
    (letter,) = actors.kernel.letters.of("")
    assert letter.origin == "unreadable"


def test_a_batch_from_somebody_who_is_no_host_does_nothing() -> None:
    actors = LocalActors(Counter)

    effects = delivered(actors, wire.BATCH, request(1, "order/17"), "@(callers/mallory)")

    (letter,) = actors.kernel.letters.of("")
    assert "is not a host" in letter.error
    assert all(isinstance(effect, SettleDelivery) for effect in effects), "and answers nobody"
    assert actors.kernel.store.execute("SELECT count(*) FROM outbox").get == 0


@pytest.mark.parametrize("sender", ["nobody at all", "@no such (address"])
def test_a_message_from_nobody_is_kept_and_not_answered(sender: str) -> None:
    actors = LocalActors(Counter)

    effects = delivered(actors, wire.BATCH, request(1, sender), PEER)

    (letter,) = actors.kernel.letters.of("")
    assert "invalid sender" in letter.error
    assert all(isinstance(effect, SettleDelivery) for effect in effects)


def test_a_call_for_nobody_is_answered_with_an_error_and_nothing_waits() -> None:
    actors = LocalActors(Counter)
    data = request(1).replace(b"counter/1", b"Not A Name")

    effects = delivered(actors, wire.CALL, data, CALLER)

    ((result, _),) = wire.split(next(one for one in effects if isinstance(one, SendBatch)).data)
    assert b"invalid address" in bytes(result.body)
    assert actors.kernel.store.execute("SELECT count(*) FROM inbox").get == 0


def test_only_the_newest_evidence_of_what_cannot_be_read_is_kept() -> None:
    actors = LocalActors(Counter)
    events = [
        DeliveryArrived("chat:line", b"%d" % number, PEER, 1, number) for number in range(1_010)
    ]
    actors.kernel.turn(events, actors.clock.now_ms())

    kept = [row[0] for row in actors.kernel.store.execute("SELECT payload FROM dead ORDER BY 1")]
    assert len(kept) == 1_000
    assert bytes(max(kept, key=int)) == b"1009"


def test_a_batch_of_a_host_is_done() -> None:
    actors = LocalActors(Counter)
    actors.call("counter/1", "add")

    event = DeliveryArrived(wire.BATCH, request(1, "counter/1"), PEER, actors.clock.now_ms(), "it")
    actors.kernel.turn([event], actors.clock.now_ms())

    assert actors.state("counter/1").get("count") == 2


def test_whatever_else_comes_is_kept_as_evidence() -> None:
    for type in (wire.BATCH, wire.MARK, wire.MOVE, "chat:line"):
        for data in (b"[]", b'"\xff"', b'{"v":1}', b'{"v":1,"messages":[7]}', b"nonsense"):
            actors = LocalActors(Counter)
            delivered(actors, type, data, PEER)
            assert len(actors.kernel.letters.of("")) == 1
