"""Calls between actors of one host: executed once and answered, refused, or given up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import RESULT, Actor, Ref, RemoteError, cont, op, ref, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.operation import Continuation
from signalhub.actors.kernel import calls
from signalhub.actors.store import views
from tests.support.actors.scripted import (
    Caller,
    Scripted,
    Stage,
    Target,
    calling,
    number_of,
    stored,
)

DAY = 86_400
QUEUES = ("pending", "outbox", "inbox", "alarms", "keys", "offloads")


@pytest.fixture
def local() -> Stage:
    return Stage(Caller, Target)


def test_calls_are_executed_once_each_and_their_values_reach_the_continuation(local: Stage) -> None:
    for number in (1, 2, 3):
        local.ask("note", number)

    assert local.notes("target/1") == local.notes() == [1, 2, 3]
    assert local.do("caller/1", lambda self: len(self.pending_calls())) == 0


def test_call_returns_the_id_of_the_pending_call(local: Stage) -> None:
    def call(self: Caller) -> list[Any]:
        call_id = self.call(ref(Target, "1"), op(Target.note, 1), timeout=9, key="k")
        (pending,) = self.pending_calls()
        return [call_id, pending.id, pending.target, pending.method, pending.deadline_ms]

    call_id, pending_id, *about = local.do("caller/1", call)

    assert call_id == pending_id
    assert len(call_id) == 26
    assert about == ["target/1", "note", local.clock.now_ms() + 9_000]


def test_nothing_of_a_call_happens_before_its_handler_has_returned(local: Stage) -> None:
    def work(self: Target) -> None:
        log.append("executed")

    def call(self: Caller) -> None:
        self.call("target/1", "run", number_of(work))
        self.call(self.ref, "run", number_of(work))
        log.append("returned")

    log: list[str] = []
    local.call("target/1", "note")
    local.do("caller/1", call)

    assert log == ["returned", "executed", "executed"]


def test_falsy_results_are_values(local: Stage) -> None:
    values = [0, "", None, False, [], {}, b"", 0.0]
    for value in values:
        local.ask("note", value, catch="script")

    assert list(map(repr, local.notes())) == list(map(repr, values))


def test_a_thousand_calls_and_many_callers_at_once_are_all_answered(local: Stage) -> None:
    def call(self: Caller) -> None:
        for number in range(1_000):
            self.call("target/1", "note", number, then=self.note)

    local.do("caller/1", call)
    assert local.notes("target/1") == local.notes() == list(range(1_000))
    assert local.kernel.counters.late_results == 0
    # The calls, and the one from outside.
    assert local.kernel.counters.requests == 1_001

    for number in range(200, 400):
        local.start(f"caller/{number}", calling("run", number_of(lambda self: "yes")))
    local.run()
    assert [local.notes(f"caller/{number}") for number in range(200, 400)] == [["yes"]] * 200


def test_a_send_a_call_to_oneself_and_an_unordered_call_are_executed(local: Stage) -> None:
    local.do("caller/1", lambda self: self.send("target/1", "note", "sent"))
    assert (local.notes("target/1"), local.notes()) == (["sent"], []), "it has no outcome"
    assert local.count("pending") == 0

    local.ask("note", "x", ordered=False)
    local.ask("note", "y", target="caller/1")
    assert local.notes("target/1") == ["sent", "x"]
    assert local.notes() == ["x", "y", "y"]


@pytest.mark.parametrize("target", ["target/1", "target/new"])
def test_a_handler_that_raises_leaves_no_call_no_send_no_alarm_and_no_key(
    local: Stage, target: str
) -> None:
    def call_and_raise(self: Caller) -> None:
        self.note("asked")
        self.call(target, "note", 1, then=self.note, key="k")
        self.send(target, "note", "never")
        self.alarms.schedule(0, self.note, "an alarm")
        raise RuntimeError("changed my mind")

    local.call("target/1", "note", "here")
    with pytest.raises(RemoteError, match="changed my mind"):
        local.do("caller/1", call_and_raise)
    local.advance(3_600)

    assert (local.notes(), local.notes("target/1")) == ([], ["here"])
    assert local.state("target/new").list() == {}
    assert local.count(*QUEUES) == 0
    assert local.kernel.next_due_ms() is None


def test_changing_an_argument_after_the_call_has_no_effect(local: Stage) -> None:
    def call(self: Caller) -> None:
        items = [1]
        self.call("target/1", "note", items)
        self.state.put("items", items)
        items.append(2)

    local.do("caller/1", call)

    assert local.notes("target/1") == [[1]]
    assert local.state("caller/1").get("items") == [1]


def test_arguments_may_be_named_of_many_types_and_continuations_that_are_not_run() -> None:
    class Keeper(Scripted):
        @remote
        def take(self, some: set[int], todo: Continuation, *, when: timedelta, who: Ref) -> None:
            self.note([sorted(some), f"{todo.method} {todo.args}", when, str(who)])

    def call(self: Caller) -> None:
        todo: Any = cont(self.note, 7)
        when = timedelta(seconds=3)
        self.call("keeper/1", op(Keeper.take, {1, 2}, todo, when=when, who=self.ref))

    local = Stage(Caller, Keeper)
    local.do("caller/1", call)

    assert local.notes("keeper/1") == [[[1, 2], "note (7,)", timedelta(seconds=3), "caller/1"]]


class Stranger(Actor):
    @remote
    def other(self) -> None: ...


class Unserved(Actor):
    """Of another host."""

    @remote
    def known(self) -> None: ...


class Careless(Scripted):
    async def on_async(self, outcome: Any) -> None: ...

    def on_generator(self, outcome: Any) -> Any:
        yield outcome

    def local_only(self) -> None: ...


async def a_coroutine() -> None: ...


def unsendable_context(self: Any) -> None:
    self.context.state["x"] = object()
    self.call("target/1", "note", key="k")


REFUSED: list[tuple[str, Callable[[Any], object]]] = [
    ("unknown kind nobody", lambda self: self.call("nobody/1", "note")),
    ("unknown kind nobody", lambda self: self.send("nobody/1", "note")),
    ("Target has no method absent", lambda self: self.call("target/1", "absent")),
    ("Target has no method absent", lambda self: self.send("target/1", "absent")),
    ("is not marked with @remote", lambda self: self.call("target/1", "script")),
    ("is not marked with @remote", lambda self: self.call("target/1", op(Target.script, print))),
    ("a continuation must be a method", lambda self: self.call("target/1", "note", then=print)),
    ("has no method 'absent'", lambda self: self.call("target/1", "note", then="absent")),
    ("argument 1", lambda self: self.call("target/1", "note", object())),
    ("argument 1", lambda self: self.send("target/1", "note", object())),
    ("argument 1", lambda self: self.call("target/1", "note", then=partial(self.note, object()))),
    ("101 arguments", lambda self: self.call("target/1", "note", *range(101))),
    ("invalid address", lambda self: self.call("target", "note")),
    ("a target must be ref(kind, key)", lambda self: self.call(7, "note")),
    ("an operation must be op", lambda self: self.call("target/1", 7)),
    ("invalid method name", lambda self: self.call("target/1", "_note")),
    ("not both", lambda self: self.call("target/1", op("note", 1), 2)),
    ("not a method of the target Target", lambda self: self.call("target/1", Stranger.other)),
    ("not a method of the target Target", lambda self: self.call("target/1", Unserved.known)),
    ("the target is a elsewhere", lambda self: self.call("elsewhere/1", Unserved.known)),
    ("timeout is 0", lambda self: self.call("target/1", "note", timeout=0)),
    ("timeout must be a number", lambda self: self.call("target/1", "note", timeout="x")),
    ("tombstone_ttl_ms", lambda self: self.call("target/1", "note", timeout=1e9)),
    ("the key of a call", lambda self: self.call("target/1", "note", key="")),
    ("the key of a call", lambda self: self.call("target/1", "note", key=7)),
    ("errors_only needs", lambda self: self.call("target/1", "note", errors_only=True)),
    ("RESULT is only for", lambda self: self.call("target/1", "note", RESULT)),
    ("on_async is async", lambda self: self.call("target/1", "note", then=self.on_async)),
    ("on_async is async", lambda self: self.call("target/1", "note", catch=self.on_async)),
    ("is async", lambda self: self.call("target/1", "note", then=self.on_generator)),
    ("more than 1048576 bytes", lambda self: self.call("target/1", "note", "x" * 2**21)),
    ("the call context", unsendable_context),
    ("offload runs async functions", lambda self: self.offload(print)),
    ("cannot be found by name", lambda self: self.offload(self.on_async)),
    ("cannot be found by name", lambda self: self.offload(partial(a_coroutine))),
    ("cannot be sent", lambda self: self.offload(a_coroutine, object())),
    ("a continuation must be a method", lambda self: self.offload(a_coroutine, then=len)),
]


@pytest.mark.parametrize(("expected", "attempt"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_wrong_call_is_refused_where_it_is_made_and_leaves_nothing(
    expected: str, attempt: Callable[[Any], object]
) -> None:
    def try_it(self: Careless) -> None:
        # The handler ends well, so whatever was stored would stay.
        with pytest.raises((TypeError, ValueError)) as caught:
            attempt(self)
        assert expected in str(caught.value)

    local = Stage(Careless, Target, Stranger)
    local.call("target/1", "note")
    local.do("careless/1", try_it)

    assert local.count(*QUEUES) == 0


def test_kinds_of_other_hosts_may_be_called_by_their_methods_or_once_they_are_declared() -> None:
    local = Stage(Caller, foreign=["faraway"])

    local.do("caller/1", lambda self: self.call(ref(Unserved, "1"), Unserved.known))
    local.do("caller/1", lambda self: self.call("faraway/1", "anything", 1))


def test_an_actor_can_only_call_while_its_host_runs_one_of_its_methods(local: Stage) -> None:
    kept: list[Caller] = []
    local.do("caller/1", kept.append)

    with pytest.raises(RuntimeError, match="only while its host runs one of its methods"):
        kept[0].call("target/1", "note")
    with pytest.raises(RuntimeError, match="create actors through a host"):
        Caller(ref(Caller, "1")).call("target/1", "note")


def test_calls_with_the_same_key_are_one_call_until_it_is_forgotten(tmp_path: Path) -> None:
    local = stored(tmp_path)
    first = local.ask("note", 1, key="k")
    local.restart()

    assert local.ask("note", 2, key="k") == first
    assert local.ask("note", 3, key="other") != first
    assert local.do("caller/2", calling("note", 4, key="k")) != first
    assert local.notes("target/1") == [1, 3, 4]
    assert local.notes() == [1, 3]
    local.advance(DAY - 1)
    assert local.ask("note", 5, key="k") == first
    local.advance(1)
    assert local.ask("note", 6, key="k") != first


def test_how_long_a_key_is_remembered_can_be_configured_and_old_keys_are_deleted() -> None:
    local = Stage(Caller, Target, config=DurableConfig(idempotency_ttl_ms=5_000))
    first = local.ask("note", key="k")
    local.advance(5)

    assert local.ask("note", key="k") != first
    local.advance(2 * DAY)
    for _ in range(100):
        local.turn()
    assert local.count("keys") == 0


def test_a_key_stands_for_a_pending_call_however_long_that_is(local: Stage) -> None:
    first = local.ask("later", key="k", timeout=None)
    for _ in range(60):
        # Enough turns for what is old to be deleted.
        local.advance(DAY / 20)

    assert local.ask("note", key="k") == first


def test_the_key_of_a_failed_handler_or_a_cancelled_call_can_be_used_again(local: Stage) -> None:
    def call_and_raise(self: Caller) -> None:
        self.call("target/1", "note", 1, key="k")
        raise ValueError("no")

    local.start("caller/1", call_and_raise)
    local.ask("note", 2, key="k")
    assert local.notes("target/1") == [2]

    first = local.ask("later", key="other")
    local.do("caller/1", lambda self: self.cancel_call(first).value)
    assert local.ask("note", 3, key="other") != first


@pytest.fixture
def placed() -> Stage:
    placed = Stage(Caller, Target)
    placed.call("target/1", "note", "here")
    return placed


def cancel(self: Caller, call_id: str = "") -> str:
    """Cancel a call; without an id, the one that is pending."""
    return self.cancel_call(call_id or self.pending_calls()[0].id).value


def cancel_and_raise(self: Caller) -> None:
    cancel(self)
    raise ValueError("no")


def test_a_call_that_has_not_been_executed_is_withdrawn(placed: Stage) -> None:
    def call_and_cancel(self: Caller, target: str) -> str:
        return cancel(self, self.call(target, "note", then=self.note))

    # Both are handled before the call, which stands behind them in the inbox of the host.
    placed.start("caller/1", calling("note"))
    cancelled = placed.start("caller/1", cancel)
    placed.run()
    assert placed.outcome(cancelled) == "withdrawn"
    for target in ("target/1", "target/new"):
        assert placed.do("caller/1", call_and_cancel, target) == "withdrawn"
    placed.advance(60)

    assert (placed.notes(), placed.notes("target/1")) == ([], ["here"])
    assert placed.state("target/new").list() == {}
    assert placed.count("pending") == 0
    assert placed.kernel.next_due_ms() is None


def test_a_request_withdrawn_by_a_handler_of_the_same_turn_is_not_executed(tmp_path: Path) -> None:
    # Both are stored when the turn begins, the handler that cancels first.
    placed = stored(tmp_path, config=DurableConfig(inbound_batch_size=1, durability="process"))
    placed.call("target/1", "note", "here")
    placed.call("caller/1", "note")
    placed.start("caller/1", calling("note"))
    cancelled = placed.start("caller/1", cancel)
    placed.turn()
    assert placed.count("inbox") == 2
    placed.close()
    placed = stored(tmp_path, clock=placed.clock)
    placed.run()

    assert placed.outcome(cancelled) == "withdrawn"
    assert placed.notes("target/1") == ["here"]


def test_a_call_that_was_executed_or_put_off_is_suppressed_once(placed: Stage) -> None:
    def fail(self: Caller, outcome: Any) -> None:
        raise ValueError("no")

    call_id = placed.ask("later")
    assert placed.do("caller/2", cancel, call_id) == "not_found", "it belongs to another actor"
    assert placed.do("caller/1", cancel, call_id) == "suppressed"
    assert placed.do("caller/1", cancel, call_id) == "not_found"
    assert placed.call("target/1", "answer") == [True]
    placed.ask("put_off")
    assert placed.do("caller/1", cancel) == "suppressed"
    assert placed.count("inbox") == 0, "it is not tried again"
    failing = placed.do("caller/1", lambda self: calling("note", then=self.script(fail))(self))
    assert placed.do("caller/1", cancel, failing) == "suppressed"
    placed.advance(3_600)

    assert placed.notes() == []
    counters = placed.kernel.counters
    assert (counters.late_results, counters.timeouts, counters.dead) == (1, 0, 0)


def test_a_call_that_has_ended_timed_out_or_never_existed_is_not_found(placed: Stage) -> None:
    done, late = placed.ask("note", "done"), placed.ask("later")
    placed.advance(30)
    sent = placed.do("caller/1", lambda self: self.send("target/1", "note", "sent"))

    for call_id in (done, late, sent, "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        assert placed.do("caller/1", cancel, call_id) == "not_found"
    assert placed.notes("target/1") == ["here", "done", "sent"]


def test_a_cancel_in_a_handler_that_raises_has_not_happened(placed: Stage) -> None:
    placed.start("caller/1", calling("note", "done"))
    placed.start("caller/1", cancel_and_raise)
    placed.run()
    assert placed.notes() == ["done"]

    placed.ask("put_off")
    placed.start("caller/1", cancel_and_raise)
    placed.run()
    assert placed.count("inbox") == 1
    assert placed.do("caller/1", cancel) == "suppressed"


def test_the_newest_requests_that_were_executed_are_remembered(tmp_path: Path) -> None:
    local = stored(tmp_path)
    for _ in range(calls.FINISHED_MAX + 250):
        local.begin("target/1", "note", 1)
    local.begin("target/1", "fail")
    local.run()
    local.restart()

    newest, *others = views.finished(local.kernel.store, limit=10_000)
    assert (newest["actor"], newest["method"]) == ("target/1", "fail")
    assert newest["outcome"] == "ValueError: no"
    assert {row["outcome"] for row in others} == {"returned"}
    assert calls.FINISHED_MAX <= len(others) + 1 < calls.FINISHED_MAX + 100


def test_a_deferred_request_ends_with_its_answer(local: Stage) -> None:
    local.begin("target/1", "later")
    local.run()
    (before,) = views.finished(local.kernel.store)
    local.call("target/1", "answer")
    _, after = views.finished(local.kernel.store)

    assert (before["outcome"], before["endedMs"]) == ("deferred", None)
    assert (after["outcome"], after["endedMs"]) == ("returned", local.clock.now_ms())
