"""Calls between actors of one host: made by a handler, executed once, answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from signalhub.actors import Actor, CallError, Ref, RemoteError, op, ref, remote
from signalhub.testing.local_actors import LocalActors


class Stock(Actor):
    """Adds up what it is told to reserve."""

    @remote
    def reserve(self, count: int) -> int:
        left = int(self.state.get("left", 100)) - count
        self.state.put("left", left)
        return left

    @remote
    def note(self, value: Any) -> None:
        self.state.put("seen", [*self.state.get("seen", []), value])

    @remote
    def fail(self) -> None:
        raise ValueError("sold out")

    @remote
    def add(self, a: int, b: int) -> int:
        self.state.put("additions", self.state.get("additions", 0) + 1)
        return a + b


class Order(Actor):
    """Makes any call it is told to make, and keeps the outcomes."""

    @remote
    def ask(self, target: str, method: str, *args: Any) -> str:
        return self.call(target, method, *args, then=self.on_done)

    @remote
    def ask_many(self, target: str, method: str, count: int) -> None:
        for number in range(count):
            self.call(target, method, number, then=self.on_done)

    @remote
    def tell(self, target: str, *values: Any) -> None:
        for value in values:
            self.send(target, "note", value)

    @remote
    def ask_and_raise(self, target: str) -> None:
        self.state.put("asked", True)
        self.call(target, Stock.reserve, 1, then=self.on_done, key="k")
        self.send(target, Stock.note, "never")
        self.alarms.schedule(0, self.on_done, "an alarm")
        raise RuntimeError("changed my mind")

    @remote
    def waiting(self) -> list[str]:
        return [call.id for call in self.pending_calls()]

    def on_done(self, outcome: Any) -> None:
        shown = repr(outcome) if isinstance(outcome, CallError) else outcome
        self.state.put("outcomes", [*self.state.get("outcomes", []), shown])


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Order, Stock)


def outcomes(local: LocalActors, target: str = "order/1") -> Any:
    return local.state(target).get("outcomes", [])


def test_a_call_is_executed_and_its_value_reaches_the_continuation(local: LocalActors) -> None:
    local.call("order/1", "ask", "stock/mug", "reserve", 3)

    assert local.state("stock/mug").get("left") == 97
    assert outcomes(local) == [97]


def test_calls_made_one_after_the_other_all_come_back(local: LocalActors) -> None:
    for _ in range(3):
        local.call("order/1", "ask", "stock/mug", "reserve", 1)

    assert outcomes(local) == [99, 98, 97]


def test_call_returns_an_id_that_names_the_pending_call() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> list[Any]:
            call_id = self.call(ref(Stock, "mug"), op(Stock.reserve, 1), timeout=9, key="k")
            (pending,) = self.pending_calls()
            return [call_id, pending.id, pending.target, pending.method, pending.deadline_ms]

    local = LocalActors(Asker, Stock)

    call_id, pending_id, *about = local.call("asker/1", "ask")

    assert call_id == pending_id
    assert len(call_id) == 26
    assert about == ["stock/mug", "reserve", local.clock.now_ms() + 9_000]


def test_a_call_whose_continuation_has_run_is_not_pending_any_more(local: LocalActors) -> None:
    local.call("order/1", "ask", "stock/mug", "reserve", 1)

    assert local.call("order/1", "waiting") == []


def test_nothing_of_a_call_happens_before_the_handler_that_made_it_has_returned() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> Any:
            self.call("other/1", Other.get_busy)
            return LOOKS.append("returned")

    class Other(Actor):
        @remote
        def get_busy(self) -> None:
            LOOKS.append("executed")

    LOOKS: list[str] = []
    local = LocalActors(Asker, Other)
    local.call("other/1", "get_busy")
    LOOKS.clear()

    local.call("asker/1", "ask")

    assert LOOKS == ["returned", "executed"]


@pytest.mark.parametrize("value", [0, "", None, False, [], {}, b"", 0.0])
def test_falsy_results_are_values(value: Any) -> None:
    class Echo(Actor):
        @remote
        def echo(self, value: Any) -> Any:
            return value

    class Asker(Actor):
        @remote
        def ask(self, value: Any) -> None:
            self.call("echo/1", "echo", value, then=self.on_value, catch=self.on_error)

        def on_value(self, value: Any) -> None:
            self.state.put("value", [value])

        def on_error(self, error: CallError) -> None:
            self.state.put("error", repr(error))

    local = LocalActors(Asker, Echo)
    local.call("asker/1", "ask", value)

    assert local.state("asker/1").list() == {"value": [value]}


def test_a_thousand_calls_at_once_are_executed_once_each_in_order(local: LocalActors) -> None:
    local.call("order/1", "ask_many", "stock/mug", "note", 1_000)

    assert local.state("stock/mug").get("seen") == list(range(1_000))
    assert outcomes(local) == [None] * 1_000
    assert local.kernel.counters.late_results == 0
    # The calls, and the one from outside.
    assert local.kernel.counters.requests == 1_001


def test_many_callers_at_once_are_all_answered(local: LocalActors) -> None:
    for number in range(200):
        local.begin(f"order/{number}", "ask", "stock/mug", "reserve", 0)
    local.run()

    assert [outcomes(local, f"order/{number}") for number in range(200)] == [[100]] * 200


def test_a_send_is_executed_and_nobody_hears_of_it(local: LocalActors) -> None:
    local.call("order/1", "tell", "stock/mug", 1, 2)

    assert local.state("stock/mug").get("seen") == [1, 2]
    assert outcomes(local) == []
    assert local.call("order/1", "waiting") == []


def test_a_call_to_oneself_is_a_message_like_any_other() -> None:
    class Loner(Actor):
        @remote
        def start(self) -> None:
            self.call(self.ref, Loner.step, then=self.on_step)
            self.state.put("order", ["start"])

        @remote
        def step(self) -> str:
            self.state.put("order", [*self.state.get("order"), "step"])
            return "done"

        def on_step(self, outcome: str) -> None:
            self.state.put("order", [*self.state.get("order"), outcome])

    local = LocalActors(Loner)
    local.call("loner/1", "start")

    assert local.state("loner/1").get("order") == ["start", "step", "done"]


def test_a_handler_that_raises_leaves_no_call_no_send_no_alarm_and_no_key(
    local: LocalActors,
) -> None:
    local.call("stock/mug", "note", "here")

    with pytest.raises(RemoteError, match="changed my mind"):
        local.call("order/1", "ask_and_raise", "stock/mug")
    local.advance(3_600)

    assert local.state("order/1").list() == {}
    assert local.state("stock/mug").list() == {"seen": ["here"]}
    for table in ("pending", "outbox", "inbox", "alarms", "keys"):
        assert local.kernel.store.execute(f"SELECT count(*) FROM {table}").get == 0, table


def test_a_handler_that_raises_leaves_nothing_for_an_actor_without_a_place_either(
    local: LocalActors,
) -> None:
    with pytest.raises(RemoteError, match="changed my mind"):
        local.call("order/1", "ask_and_raise", "stock/new")

    assert local.state("stock/new").list() == {}
    local.advance(3_600)
    assert local.kernel.next_due_ms() is None


def test_changing_an_argument_after_the_call_has_no_effect() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> None:
            items = [1]
            kept = {"n": 1}
            self.call("stock/mug", "note", items, then=self.on_done)
            self.call("stock/mug", "note", kept)
            self.state.put("kept", kept)
            items.append(2)
            kept["n"] = 2

        def on_done(self, outcome: Any) -> None: ...

    local = LocalActors(Asker, Stock)
    local.call("asker/1", "ask")

    assert local.state("stock/mug").get("seen") == [[1], {"n": 1}]
    assert local.state("asker/1").get("kept") == {"n": 1}


def test_nested_operations_run_at_the_target_in_one_hop_and_once_each() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> None:
            self.call(
                "stock/mug",
                op("add", op(Stock.add, 1, 10), op(Stock.add, 100, 1000)),
                then=self.on_done,
            )

        def on_done(self, outcome: Any) -> None:
            self.state.put("sum", outcome)

    local = LocalActors(Asker, Stock)
    local.call("asker/1", "ask")

    assert local.state("asker/1").get("sum") == 1111
    assert local.state("stock/mug").get("additions") == 3


def test_arguments_may_be_named_and_of_many_types() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> None:
            self.call("target/1", op(Target.take, {1, 2}, when=timedelta(seconds=3), who=self.ref))

    class Target(Actor):
        @remote
        def take(self, numbers: set[int], *, when: timedelta, who: Ref) -> None:
            self.state.put("got", [sorted(numbers), when, str(who)])

    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask")

    assert local.state("target/1").get("got") == [[1, 2], timedelta(seconds=3), "asker/1"]


def test_a_call_may_be_unordered(local: LocalActors) -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> None:
            self.call("stock/mug", "note", "x", ordered=False)

    local = LocalActors(Asker, Stock)
    local.call("asker/1", "ask")

    assert local.state("stock/mug").get("seen") == ["x"]
