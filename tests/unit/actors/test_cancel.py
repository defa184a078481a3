"""Calls that are given up by whoever made them."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors import Actor, Retry, Token, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.testing.local_actors import LocalActors


class Target(Actor):
    @remote
    def work(self) -> str:
        self.state.put("worked", self.state.get("worked", 0) + 1)
        return "done"

    @remote
    def later(self) -> Token:
        self.state.put("worked", self.state.get("worked", 0) + 1)
        token = self.defer()
        self.state.put("token", token)
        return token

    @remote
    def answer(self) -> bool:
        return self.resolve(self.state.get("token"), "late")

    @remote
    def busy(self) -> None:
        raise Retry(after=10)


class Asker(Actor):
    @remote
    def ask(self, method: str) -> str:
        call_id = self.call("target/1", method, then=self.on_done)
        self.state.put("call", call_id)
        return call_id

    @remote
    def cancel(self) -> str:
        return self.cancel_call(self.state.get("call")).value

    @remote
    def cancel_and_raise(self) -> None:
        self.cancel_call(self.state.get("call"))
        raise ValueError("no")

    @remote
    def ask_and_cancel(self, target: str) -> str:
        return self.cancel_call(self.call(target, "work", then=self.on_done)).value

    @remote
    def send_and_cancel(self) -> str:
        return self.cancel_call(self.send("target/1", "work")).value

    @remote
    def cancel_unknown(self) -> str:
        return self.cancel_call("01ARZ3NDEKTSV4RRFFQ69G5FAV").value

    @remote
    def waiting(self) -> int:
        return len(self.pending_calls())

    def on_done(self, outcome: Any) -> None:
        self.state.put("outcome", str(outcome))


@pytest.fixture
def local() -> LocalActors:
    local = LocalActors(Asker, Target)
    local.call("target/1", "work")
    return local


def worked(local: LocalActors) -> Any:
    """How often since the fixture."""
    return local.state("target/1").get("worked") - 1


def test_a_call_that_has_not_been_executed_is_withdrawn(local: LocalActors) -> None:
    local.begin("asker/1", "ask", "work")
    local.begin("asker/1", "cancel")
    # Both are handled before the call is, which stands behind them in the mailbox of the host.
    cancelled = "call-3"
    local.run()

    assert local.outcome(cancelled) == "withdrawn"
    assert worked(local) == 0
    assert local.state("asker/1").get("outcome") is None
    assert local.call("asker/1", "waiting") == 0


def test_a_call_made_in_the_same_handler_is_withdrawn(local: LocalActors) -> None:
    assert local.call("asker/1", "ask_and_cancel", "target/1") == "withdrawn"
    assert worked(local) == 0


def test_a_call_to_an_actor_without_a_place_is_withdrawn(local: LocalActors) -> None:
    assert local.call("asker/1", "ask_and_cancel", "target/new") == "withdrawn"
    assert local.state("target/new").list() == {}
    local.advance(60)
    assert local.kernel.next_due_ms() is None


def test_a_call_that_was_executed_is_suppressed(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")

    assert local.call("asker/1", "cancel") == "suppressed"
    assert worked(local) == 1
    assert local.call("target/1", "answer") is True
    assert local.state("asker/1").get("outcome") is None
    assert local.kernel.counters.late_results == 1


def test_a_call_that_was_tried_and_put_off_is_suppressed_and_not_tried_again(
    local: LocalActors,
) -> None:
    local.call("asker/1", "ask", "busy")

    assert local.call("asker/1", "cancel") == "suppressed"
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 0


def test_a_call_that_has_ended_is_not_found(local: LocalActors) -> None:
    local.call("asker/1", "ask", "work")

    assert local.state("asker/1").get("outcome") == "done"
    assert local.call("asker/1", "cancel") == "not_found"


def test_the_second_cancel_finds_nothing(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")

    assert local.call("asker/1", "cancel") == "suppressed"
    assert local.call("asker/1", "cancel") == "not_found"


def test_a_call_that_has_timed_out_is_not_found(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")
    local.advance(30)

    assert local.call("asker/1", "cancel") == "not_found"


def test_an_unknown_id_is_not_found(local: LocalActors) -> None:
    assert local.call("asker/1", "cancel_unknown") == "not_found"


def test_a_send_cannot_be_cancelled(local: LocalActors) -> None:
    assert local.call("asker/1", "send_and_cancel") == "not_found"
    assert worked(local) == 1


def test_a_cancelled_call_does_not_time_out(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")
    local.call("asker/1", "cancel")
    local.advance(3_600)

    assert local.kernel.counters.timeouts == 0
    assert local.state("asker/1").get("outcome") is None


def test_another_actor_cannot_cancel_a_call(local: LocalActors) -> None:
    class Meddler(Actor):
        @remote
        def meddle(self, call_id: str) -> str:
            return self.cancel_call(call_id).value

    local = LocalActors(Asker, Target, Meddler)
    call_id = local.call("asker/1", "ask", "later")

    assert local.call("meddler/1", "meddle", call_id) == "not_found"
    assert local.call("asker/1", "cancel") == "suppressed"


def test_a_cancel_in_a_handler_that_raises_has_not_happened(local: LocalActors) -> None:
    local.begin("asker/1", "ask", "work")
    local.begin("asker/1", "cancel_and_raise")
    local.run()

    assert worked(local) == 1
    assert local.state("asker/1").get("outcome") == "done"


def test_a_cancel_of_a_stored_message_in_a_handler_that_raises_has_not_happened(
    local: LocalActors, tmp_path: Any
) -> None:
    local = LocalActors(Asker, Target, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "busy")
    local.begin("asker/1", "cancel_and_raise")
    local.run()

    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 1
    assert local.call("asker/1", "cancel") == "suppressed"


def test_an_outcome_that_waits_to_be_tried_again_is_suppressed() -> None:
    class Failing(Asker):
        def on_done(self, outcome: Any) -> None:
            raise ValueError("no")

    local = LocalActors(Failing, Target)
    local.call("failing/1", "ask", "work")

    assert local.call("failing/1", "cancel") == "suppressed"
    local.advance(3_600)
    assert local.kernel.counters.dead == 0


def test_a_request_withdrawn_by_a_handler_of_the_same_turn_is_not_executed(tmp_path: Any) -> None:
    # Both stand in the table when the turn begins, the cancelling one first.
    config = DurableConfig(inbound_batch_size=1)
    local = LocalActors(Asker, Target, path=tmp_path / "a.db", config=config)
    local.call("target/1", "work")
    local.call("asker/1", "waiting")
    local.begin("asker/1", "ask", "work")
    cancelled = local.begin("asker/1", "cancel")
    local.turn()
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 2
    local.close()
    local = LocalActors(Asker, Target, path=tmp_path / "a.db", clock=local.clock)
    local.run()

    assert local.outcome(cancelled) == "withdrawn"
    assert worked(local) == 0
