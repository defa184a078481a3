"""Calls that are given up by the actor that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signalhub.actors.api.config import DurableConfig
from tests.support.actors.scripted import Caller, Stage, Target, calling, stored


@pytest.fixture
def local() -> Stage:
    local = Stage(Caller, Target)
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
def test_a_call_of_the_same_handler_is_withdrawn(local: Stage, target: str) -> None:
    def call_and_cancel(self: Caller) -> str:
        return cancel(self, self.call(target, "note", then=self.note))

    assert local.do("caller/1", call_and_cancel) == "withdrawn"
    local.advance(60)
    assert local.notes("target/1") == ["here"]
    assert local.state("target/new").list() == {}
    assert local.kernel.next_due_ms() is None


def test_a_call_that_has_not_been_executed_is_withdrawn(local: Stage) -> None:
    # Both are handled before the call, which stands behind them in the inbox of the host.
    local.start("caller/1", calling("note"))
    cancelled = local.start("caller/1", cancel)
    local.run()

    assert local.outcome(cancelled) == "withdrawn"
    assert local.notes("target/1") == ["here"]
    assert local.notes() == []
    assert local.count("pending") == 0


def test_a_request_withdrawn_by_a_handler_of_the_same_turn_is_not_executed(tmp_path: Path) -> None:
    # Both are stored when the turn begins, the handler that cancels first.
    local = stored(tmp_path, config=DurableConfig(inbound_batch_size=1, durability="process"))
    local.call("target/1", "note", "here")
    local.call("caller/1", "note")
    local.start("caller/1", calling("note"))
    cancelled = local.start("caller/1", cancel)
    local.turn()
    assert local.count("inbox") == 2
    local.close()
    local = stored(tmp_path, clock=local.clock)
    local.run()

    assert local.outcome(cancelled) == "withdrawn"
    assert local.notes("target/1") == ["here"]


def test_a_call_that_was_executed_is_suppressed_once_and_does_not_time_out(
    local: Stage,
) -> None:
    call_id = local.ask("later")

    assert local.do("caller/2", cancel, call_id) == "not_found", "it belongs to another actor"
    assert local.do("caller/1", cancel, call_id) == "suppressed"
    assert local.do("caller/1", cancel, call_id) == "not_found"
    assert local.call("target/1", "answer") == [True]
    local.advance(3_600)
    assert local.notes() == []
    assert (local.kernel.counters.late_results, local.kernel.counters.timeouts) == (1, 0)


def test_a_call_that_was_put_off_is_suppressed_and_not_tried_again(local: Stage) -> None:
    local.ask("put_off")

    assert local.do("caller/1", cancel) == "suppressed"
    assert local.count("inbox") == 0


def test_a_call_that_has_ended_timed_out_or_never_existed_is_not_found(local: Stage) -> None:
    done, late = local.ask("note", "done"), local.ask("later")
    local.advance(30)
    sent = local.do("caller/1", lambda self: self.send("target/1", "note", "sent"))

    for call_id in (done, late, sent, "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        assert local.do("caller/1", cancel, call_id) == "not_found"
    assert local.notes("target/1") == ["here", "done", "sent"]


def test_a_cancel_in_a_handler_that_raises_has_not_happened(local: Stage) -> None:
    local.start("caller/1", calling("note", "done"))
    local.start("caller/1", cancel_and_raise)
    local.run()
    assert local.notes() == ["done"]

    local.ask("put_off")
    local.start("caller/1", cancel_and_raise)
    local.run()
    assert local.count("inbox") == 1
    assert local.do("caller/1", cancel) == "suppressed"


def test_an_outcome_that_waits_to_be_tried_again_is_suppressed(local: Stage) -> None:
    def fail(self: Caller, outcome: Any) -> None:
        raise ValueError("no")

    call_id = local.do(
        "caller/1", lambda self: self.call("target/1", "note", then=self.script(fail))
    )

    assert local.do("caller/1", cancel, call_id) == "suppressed"
    local.advance(3_600)
    assert local.kernel.counters.dead == 0
