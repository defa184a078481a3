"""Calls that cannot be made: refused where they are made, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from signalhub.actors import RESULT, Actor, Ref, RemoteError, cont, op, ref, remote
from signalhub.actors.api.operation import Continuation
from signalhub.testing.local_actors import LocalActors


class Target(Actor):
    @remote
    def take(self, *args: Any) -> None: ...

    def not_remote(self) -> None: ...


class Stranger(Actor):
    @remote
    def other(self) -> None: ...


class Unheard(Actor):
    """Not served by the host of these tests."""

    @remote
    def known(self) -> None: ...


Attempt = Callable[["Caller"], object]


class Caller(Actor):
    """Runs what the test wants tried, and lives on."""

    attempt: Attempt

    @remote
    def try_it(self) -> str:
        try:
            type(self).attempt(self)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "it was made"

    def on_done(self, outcome: Any) -> None: ...

    async def on_async(self, outcome: Any) -> None: ...

    def on_generator(self, outcome: Any) -> Any:
        yield outcome


def refusal(attempt: Attempt) -> str:
    """What the handler gets; it goes on after it, so whatever was stored would stay."""

    class Trying(Caller):
        kind = "caller"

    Trying.attempt = staticmethod(attempt)
    local = LocalActors(Trying, Target, Stranger)
    local.call("target/1", "take")
    text: str = local.call("caller/1", "try_it")
    for table in ("pending", "outbox", "inbox", "alarms", "keys", "offloads"):
        assert local.kernel.store.execute(f"SELECT count(*) FROM {table}").get == 0, table
    return text


async def a_coroutine() -> None: ...


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (lambda actor: actor.call("nobody/1", "take"), "unknown kind nobody"),
        (lambda actor: actor.call("target/1", "absent"), "Target has no method absent"),
        (lambda actor: actor.call("target/1", "not_remote"), "is not marked with @remote"),
        (lambda actor: actor.call("target/1", op(Target.not_remote)), "not marked with @remote"),
        (
            lambda actor: actor.call("target/1", "take", then=print),
            "a continuation must be a method",
        ),
        (lambda actor: actor.call("target/1", "take", then="absent"), "has no method 'absent'"),
        (lambda actor: actor.call("target/1", "take", then=len), "a continuation must be a method"),
        (lambda actor: actor.call("target/1", "take", object()), "argument 1"),
        (lambda actor: actor.call("target/1", "take", *range(101)), "101 arguments"),
        (lambda actor: actor.send("nobody/1", "take"), "unknown kind nobody"),
        (lambda actor: actor.send("target/1", "absent"), "Target has no method absent"),
        (lambda actor: actor.send("target/1", "take", object()), "argument 1"),
    ],
)
def test_a_wrong_call_is_refused_at_once_and_leaves_nothing(
    attempt: Attempt, expected: str
) -> None:
    assert expected in refusal(attempt)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (lambda actor: actor.call("target", "take"), "invalid address"),
        (lambda actor: actor.call(7, "take"), "a target must be ref(kind, key)"),
        (lambda actor: actor.call("target/1", 7), "an operation must be op"),
        (lambda actor: actor.call("target/1", "_take"), "invalid method name"),
        (lambda actor: actor.call("target/1", op("take", 1), 2), "not both"),
        (lambda actor: actor.call("target/1", Stranger.other), "not a method of the target Target"),
        (lambda actor: actor.call("target/1", Unheard.known), "not a method of the target Target"),
        (lambda actor: actor.call("elsewhere/1", Unheard.known), "the target is a elsewhere"),
        (lambda actor: actor.call("target/1", "take", timeout=0), "timeout is 0"),
        (lambda actor: actor.call("target/1", "take", timeout="x"), "timeout must be a number"),
        (lambda actor: actor.call("target/1", "take", timeout=1e9), "tombstone_ttl_ms"),
        (lambda actor: actor.call("target/1", "take", key=""), "the key of a call"),
        (lambda actor: actor.call("target/1", "take", key=7), "the key of a call"),
        (lambda actor: actor.call("target/1", "take", errors_only=True), "errors_only needs"),
        (lambda actor: actor.call("target/1", "take", RESULT), "RESULT is only for"),
        (lambda actor: actor.call("target/1", "take", then=actor.on_async), "on_async is async"),
        (lambda actor: actor.call("target/1", "take", catch=actor.on_async), "on_async is async"),
        (lambda actor: actor.call("target/1", "take", then=actor.on_generator), "is async"),
        (
            lambda actor: actor.call("target/1", "take", then=partial(actor.on_done, object())),
            "argument 1",
        ),
        (lambda actor: actor.call("target/1", "take", "x" * 2**21), "more than 1048576 bytes"),
        (lambda actor: actor.offload(print), "offload runs async functions"),
        (lambda actor: actor.offload(actor.on_async), "cannot be found by name"),
        (lambda actor: actor.offload(partial(a_coroutine)), "cannot be found by name"),
        (lambda actor: actor.offload(a_coroutine, object()), "cannot be sent"),
        (lambda actor: actor.offload(a_coroutine, then=len), "a continuation must be a method"),
    ],
)
def test_other_mistakes_are_refused_at_once_as_well(attempt: Attempt, expected: str) -> None:
    assert expected in refusal(attempt)


def test_a_call_with_unsendable_context_is_refused_and_leaves_nothing() -> None:
    def attempt(actor: Caller) -> object:
        actor.context.state["x"] = object()
        return actor.call("target/1", "take", key="k")

    assert "the call context" in refusal(attempt)


def test_an_actor_without_a_host_cannot_call() -> None:
    class Loose(Actor):
        @remote
        def go(self) -> None:
            self.call("target/1", "take")

    with pytest.raises(RuntimeError, match="create actors through a host"):
        Loose(ref(Loose, "1")).go()


def test_an_actor_cannot_call_outside_of_its_methods() -> None:
    class Kept(Actor):
        seen: Any = None

        @remote
        def hello(self) -> None:
            Kept.seen = self

    LocalActors(Kept).call("kept/1", "hello")

    with pytest.raises(RuntimeError, match="only while its host runs one of its methods"):
        Kept.seen.call("kept/1", "hello")


def test_a_class_that_is_not_served_here_may_be_called_by_its_methods() -> None:
    def attempt(actor: Caller) -> object:
        return actor.cancel_call(actor.call(ref(Unheard, "1"), Unheard.known))

    assert refusal(attempt) == "it was made"


def test_kinds_of_other_hosts_may_be_called_by_name_once_they_are_declared() -> None:
    class Asker(Actor):
        @remote
        def ask(self) -> None:
            self.call("faraway/1", "anything", 1)

    local = LocalActors(Asker, foreign=["faraway"])

    assert local.call("asker/1", "ask") is None
    with pytest.raises(RemoteError, match="unknown kind faraway"):
        LocalActors(Asker).call("asker/1", "ask")


def test_a_continuation_sent_as_an_argument_is_data() -> None:
    class Keeper(Actor):
        @remote
        def keep(self, wanted: Continuation) -> str:
            return f"{wanted.method} {wanted.args}"

    class Asker(Actor):
        @remote
        def ask(self) -> None:
            self.call("keeper/1", "keep", cont(self.on_done, 7), then=self.on_done)

        def on_done(self, outcome: Any) -> None:
            self.state.put("outcome", outcome)

    local = LocalActors(Asker, Keeper)
    local.call("asker/1", "ask")

    assert local.state("asker/1").get("outcome") == "on_done (7,)"


def test_an_address_is_checked_before_anything_is_called() -> None:
    with pytest.raises(ValueError, match="invalid kind"):
        ref("No Kind", "1")
    assert str(Ref("target", "1")) == "target/1"
