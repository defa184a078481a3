"""Calls that end by time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from signalhub.actors import Actor, CallTimeout, Retry, Token, remote, wire
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.wire import ActorMessage
from signalhub.testing.local_actors import LocalActors


class Target(Actor):
    @remote
    def later(self) -> Token:
        token = self.defer()
        self.state.put("tokens", [*self.state.get("tokens", []), token])
        return token

    @remote
    def answer(self) -> None:
        for token in self.state.get("tokens"):
            self.resolve(token, "late")

    @remote
    def quick(self) -> str:
        return "quick"

    @remote
    def busy(self) -> None:
        raise Retry(after=3_600)


class Asker(Actor):
    @remote
    def ask(self, method: str, timeout: Any = 5) -> str:
        return self.call("target/1", method, then=self.on_done, timeout=timeout)

    @remote
    def ask_by_default(self) -> None:
        self.call("target/1", "later", then=self.on_done)

    def on_done(self, outcome: Any) -> None:
        if isinstance(outcome, CallTimeout):
            outcome = ["timeout", outcome.executed, self.now_ms]
        self.state.put("outcomes", [*self.state.get("outcomes", []), outcome])


@pytest.fixture
def local() -> LocalActors:
    local = LocalActors(Asker, Target)
    local.call("target/1", "quick")
    return local


def outcomes(local: LocalActors) -> Any:
    return local.state("asker/1").get("outcomes", [])


def test_a_call_without_an_answer_times_out_to_the_millisecond(local: LocalActors) -> None:
    started = local.clock.now_ms()
    local.call("asker/1", "ask", "later")
    local.advance(4.999)
    assert outcomes(local) == []
    local.advance(0.001)

    assert outcomes(local) == [["timeout", "unknown", started + 5_000]]
    assert local.kernel.counters.timeouts == 1


def test_an_answer_in_time_is_the_outcome_and_no_timeout_follows(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")
    local.advance(4.999)
    local.call("target/1", "answer")
    local.advance(60)

    assert outcomes(local) == ["late"]
    assert local.kernel.counters.timeouts == 0


def test_a_result_after_the_timeout_is_counted_and_dropped(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")
    local.advance(5)
    local.call("target/1", "answer")

    assert [one[0] for one in outcomes(local)] == ["timeout"]
    assert local.kernel.counters.late_results == 1


def test_a_call_times_out_after_30_seconds_unless_said_otherwise(local: LocalActors) -> None:
    local.call("asker/1", "ask_by_default")
    local.advance(29.999)
    assert outcomes(local) == []
    local.advance(0.001)

    assert len(outcomes(local)) == 1


def test_the_default_can_be_configured_for_the_host_and_for_a_class() -> None:
    class Hasty(Asker):
        config_overrides: ClassVar = {"call_timeout_ms": 1_000}

    local = LocalActors(Asker, Hasty, Target, config=DurableConfig(call_timeout_ms=2_000))
    local.call("asker/1", "ask_by_default")
    local.call("hasty/1", "ask_by_default")
    local.advance(1)
    assert len(local.state("hasty/1").get("outcomes", [])) == 1
    assert outcomes(local) == []
    local.advance(1)

    assert len(outcomes(local)) == 1


def test_a_timeout_may_be_a_timedelta(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later", timedelta(milliseconds=1))
    local.advance(0.001)

    assert len(outcomes(local)) == 1


def test_a_call_without_a_timeout_waits_for_ever(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later", None)
    local.advance(10 * 86_400)
    local.call("target/1", "answer")

    assert outcomes(local) == ["late"]


def test_a_call_that_never_left_the_outbox_was_not_executed() -> None:
    class Refusing(LocalActors):
        """A hub that does not answer where actors live."""

        def _perform(self, effect: Any) -> None:
            if type(effect).__name__ == "LocateActors" and "target/1" in effect.actors:
                return
            super()._perform(effect)

    local = Refusing(Asker, Target)
    local.call("asker/1", "ask", "quick")
    assert local.kernel.store.execute("SELECT count(*) FROM outbox").get == 1
    local.advance(5)

    assert [one[:2] for one in outcomes(local)] == [["timeout", "no"]]
    assert local.kernel.store.execute("SELECT count(*) FROM outbox").get == 0
    assert local.state("target/1").list() == {}


def test_a_call_that_waits_in_the_mailbox_of_its_target_was_not_executed() -> None:
    class Broken(Target):
        kind = "target"

        def on_start(self) -> None:
            raise ValueError("not today")

    local = LocalActors(Asker, Broken)
    local.call("asker/1", "ask", "quick")
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 1
    local.advance(5)

    assert [one[:2] for one in outcomes(local)] == [["timeout", "no"]]
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 0


def test_taking_back_a_call_that_timed_out_leaves_what_else_came_in_that_turn_as_it_is() -> None:
    class Broken(Target):
        kind = "target"

        def on_start(self) -> None:
            raise ValueError("not today")

    class Raising(Actor):
        @remote
        def work(self) -> None:
            tries.append(self.now_ms)
            raise ValueError("no")

    tries: list[int] = []
    local = LocalActors(Asker, Broken, Raising)
    local.call("asker/1", "ask", "quick")
    local.begin("raising/1", "work")
    local.run()
    local.clock.advance(5)
    local.begin("raising/1", "work")
    local.run()

    assert outcomes(local)[0][:2] == ["timeout", "no"]
    assert len(tries) == 2


def test_a_call_that_was_tried_and_put_off_may_have_been_executed(local: LocalActors) -> None:
    local.call("asker/1", "ask", "busy")
    local.advance(5)

    assert [one[:2] for one in outcomes(local)] == [["timeout", "unknown"]]
    assert local.kernel.store.execute("SELECT count(*) FROM inbox").get == 0


def test_timeouts_come_in_the_order_of_their_deadlines(local: LocalActors) -> None:
    started = local.clock.now_ms()
    for timeout in (9, 3, 6):
        local.call("asker/1", "ask", "later", timeout)
    local.clock.advance(10)
    local.run()

    assert len(outcomes(local)) == 3
    assert {one[2] for one in outcomes(local)} == {started + 10_000}
    assert local.kernel.counters.timeouts == 3


def test_a_timeout_that_passed_while_the_host_was_down_is_delivered_at_the_start(
    tmp_path: Any,
) -> None:
    local = LocalActors(Asker, Target, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "later")
    local.clock.advance(3_600)
    local.restart()
    local.run()

    assert [one[:2] for one in outcomes(local)] == [["timeout", "unknown"]]


def test_a_result_that_comes_in_the_turn_of_the_timeout_is_the_only_outcome(
    local: LocalActors,
) -> None:
    call_id = local.call("asker/1", "ask", "later")
    local.clock.advance(5)
    result = ActorMessage("result", call_id, "asker/1", msgspec.Raw(b'{"ok":"just in time"}'))
    local.deliver(wire.BATCH, wire.join([wire.encode(result)]), "@(actors/other)")
    local.run()

    assert outcomes(local) == ["just in time"]
    assert local.kernel.counters.timeouts == 0
    assert local.kernel.counters.late_results == 0


def test_a_result_that_is_stored_when_the_time_is_up_is_the_only_outcome() -> None:
    local = LocalActors(Asker, Target, config=DurableConfig(inbound_batch_size=1))
    local.call("asker/1", "ask", "later")
    local.begin("target/1", "answer")
    local.turn()
    assert local.kernel.store.execute("SELECT kind FROM inbox").get == "result"
    local.clock.advance(5)
    local.run()

    assert outcomes(local) == ["late"]
    assert local.kernel.counters.timeouts == 0


def test_a_result_that_is_made_in_the_turn_of_the_timeout_is_late(local: LocalActors) -> None:
    local.call("asker/1", "ask", "later")
    local.clock.advance(5)
    local.call("target/1", "answer")

    assert [one[0] for one in outcomes(local)] == ["timeout"]
    assert local.kernel.counters.late_results == 1


def test_a_result_that_waits_for_another_try_is_not_replaced_by_a_timeout() -> None:
    class Failing(Asker):
        kind = "asker"

        def on_done(self, outcome: Any) -> None:
            tries.append(self.now_ms)
            if len(tries) < 4:
                raise ValueError("no")
            super().on_done(outcome)

    tries: list[int] = []
    local = LocalActors(Failing, Target)
    local.call("asker/1", "ask", "quick", 3)
    local.advance(3_600)

    assert outcomes(local) == ["quick"]
    assert local.kernel.counters.timeouts == 0


def test_a_failing_continuation_of_a_timeout_is_tried_again_with_the_same_outcome() -> None:
    class Failing(Asker):
        kind = "asker"

        def on_done(self, outcome: Any) -> None:
            tries.append(self.now_ms)
            if len(tries) < 3:
                raise ValueError("no")
            super().on_done(outcome)

    tries: list[int] = []
    local = LocalActors(Failing, Target)
    local.call("asker/1", "ask", "later")
    local.advance(60)
    local.call("target/1", "answer")

    assert [one[:2] for one in outcomes(local)] == [["timeout", "unknown"]]
    assert local.kernel.counters.late_results == 1


def test_timeouts_and_alarms_do_not_get_into_each_others_way() -> None:
    class Both(Asker):
        @remote
        def go(self) -> None:
            self.alarms.schedule(8, self.note, "8 s")
            self.alarms.schedule(2, self.note, "2 s")
            self.ask("later", 5)
            self.alarms.schedule(4, self.note, "4 s")

        def note(self, text: str) -> None:
            self.state.put("outcomes", [*self.state.get("outcomes", []), text])

        def on_done(self, outcome: Any) -> None:
            self.note("timeout")

    local = LocalActors(Both, Target)
    local.call("both/1", "go")
    local.advance(10)

    assert local.state("both/1").get("outcomes") == ["2 s", "4 s", "timeout", "8 s"]


def test_a_thousand_timeouts_at_once_all_arrive(local: LocalActors) -> None:
    class Many(Asker):
        @remote
        def go(self) -> None:
            for _ in range(1_000):
                self.ask("later", 5)

        def on_done(self, outcome: Any) -> None:
            self.state.put("count", self.state.get("count", 0) + 1)

    class Silent(Target):
        kind = "target"

        @remote
        def later(self) -> Token:
            return self.defer()

    local = LocalActors(Many, Silent)
    local.call("many/1", "go")
    local.advance(5)

    assert local.state("many/1").get("count") == 1_000
