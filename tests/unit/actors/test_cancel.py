"""Calls that are given up by the actor that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.actors.api.config import DurableConfig
from signalhub.testing.local_actors import LocalActors
from tests.support.actors.scripted import (
    Caller,
    Target,
    ask,
    begin,
    calling,
    count,
    do,
    notes,
    stored,
)


@pytest.fixture
def local() -> LocalActors:
    local = LocalActors(Caller, Target)
    local.call("target/1", "note", "here")
    return local


def cancel(self: Caller, call_id: str = "") -> str:
    """Cancel a call; without an id, the one that is pending."""
    call_id = call_id or self.pending_calls()[0].id
    return self.cancel_call(call_id).value


def cancel_and_raise(self: Caller) -> None:
    cancel(self)
    raise ValueError("no")


@pytest.mark.parametrize("target", ["target/1", "target/new"])
def test_a_call_of_the_same_handler_is_withdrawn(local: LocalActors, target: str) -> None:
    def call_and_cancel(self: Caller) -> str:
        return cancel(self, self.call(target, "note", then=self.note))

    assert do(local, "caller/1", call_and_cancel) == "withdrawn"
    local.advance(60)
    assert notes(local, "target/1") == ["here"]
    assert local.state("target/new").list() == {}
    assert local.kernel.next_due_ms() is None


def test_a_call_that_has_not_been_executed_is_withdrawn(local: LocalActors) -> None:
    # Both are handled before the call, which stands behind them in the inbox of the host.
    begin(local, "caller/1", calling("note"))
    cancelled = begin(local, "caller/1", cancel)
    local.run()

    assert local.outcome(cancelled) == "withdrawn"
    assert notes(local, "target/1") == ["here"]
    assert notes(local) == []
    assert count(local, "pending") == 0


def test_a_request_withdrawn_by_a_handler_of_the_same_turn_is_not_executed(tmp_path: Path) -> None:
    # Both are stored when the turn begins, the handler that cancels first.
    local = stored(tmp_path, config=DurableConfig(inbound_batch_size=1, durability="process"))
    local.call("target/1", "note", "here")
    local.call("caller/1", "note")
    begin(local, "caller/1", calling("note"))
    cancelled = begin(local, "caller/1", cancel)
    local.turn()
    assert count(local, "inbox") == 2
    local.close()
    local = stored(tmp_path, clock=local.clock)
    local.run()

    assert local.outcome(cancelled) == "withdrawn"
    assert notes(local, "target/1") == ["here"]


def test_a_call_that_was_executed_is_suppressed_once_and_does_not_time_out(
    local: LocalActors,
) -> None:
    call_id = ask(local, "later")

    assert do(local, "caller/2", cancel, call_id) == "not_found", "it belongs to another actor"
    assert do(local, "caller/1", cancel, call_id) == "suppressed"
    assert do(local, "caller/1", cancel, call_id) == "not_found"
    assert local.call("target/1", "answer") == [True]
    local.advance(3_600)
    assert notes(local) == []
    assert (local.kernel.counters.late_results, local.kernel.counters.timeouts) == (1, 0)


def test_a_call_that_was_put_off_is_suppressed_and_not_tried_again(local: LocalActors) -> None:
    ask(local, "put_off")

    assert do(local, "caller/1", cancel) == "suppressed"
    assert count(local, "inbox") == 0


def test_a_call_that_has_ended_timed_out_or_never_existed_is_not_found(local: LocalActors) -> None:
    done, late = ask(local, "note", "done"), ask(local, "later")
    local.advance(30)
    sent = do(local, "caller/1", lambda self: self.send("target/1", "note", "sent"))

    for call_id in (done, late, sent, "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        assert do(local, "caller/1", cancel, call_id) == "not_found"
    assert notes(local, "target/1") == ["here", "done", "sent"]


def test_a_cancel_in_a_handler_that_raises_has_not_happened(local: LocalActors) -> None:
    begin(local, "caller/1", calling("note", "done"))
    begin(local, "caller/1", cancel_and_raise)
    local.run()
    assert notes(local) == ["done"]

    ask(local, "put_off")
    begin(local, "caller/1", cancel_and_raise)
    local.run()
    assert count(local, "inbox") == 1
    assert do(local, "caller/1", cancel) == "suppressed"


def test_an_outcome_that_waits_to_be_tried_again_is_suppressed(local: LocalActors) -> None:
    def fail(self: Caller, outcome: Any) -> None:
        raise ValueError("no")

    call_id = do(
        local, "caller/1", lambda self: self.call("target/1", "note", then=self.script(fail))
    )

    assert do(local, "caller/1", cancel, call_id) == "suppressed"
    local.advance(3_600)
    assert local.kernel.counters.dead == 0
