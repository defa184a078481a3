"""Calls that are answered later than they are handled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from signalhub.actors import Actor, CallError, RemoteError, Token, remote
from signalhub.testing.local_actors import LocalActors, Unanswered


class Clerk(Actor):
    @remote
    def file(self, name: str) -> Token:
        token = self.defer()
        self.state.put(name, token)
        return token

    @remote
    def finish(self, name: str, value: Any) -> bool:
        return self.resolve(self.state.get(name), value)

    @remote
    def finish_by_id(self, name: str, value: Any) -> bool:
        return self.resolve(Token(self.state.get(name).id), value)

    @remote
    def give_up(self, name: str) -> bool:
        return self.reject(self.state.get(name), KeyError(name))

    @remote
    def file_and_raise(self) -> Token:
        self.file("raised")
        raise ValueError("no")

    @remote
    def at_once(self) -> Token:
        token = self.defer()
        assert self.resolve(token, "at once")
        return token

    @remote
    def forget_the_token(self) -> str:
        self.defer()
        return "forgotten"

    @remote
    def return_another(self) -> Token:
        return Token("made up")

    @remote
    def finish_nonsense(self) -> bool:
        return self.resolve("nonsense", 1)  # type: ignore[arg-type]

    @remote
    def twice(self) -> Token:
        assert self.defer() == self.defer()
        return self.file("twice")


class Asker(Actor):
    @remote
    def ask(self, method: str, *args: Any) -> None:
        self.call("clerk/1", method, *args, then=self.on_done, timeout=None)

    @remote
    def tell(self, method: str, *args: Any) -> None:
        self.send("clerk/1", method, *args)

    def on_done(self, outcome: Any) -> None:
        shown = repr(outcome) if isinstance(outcome, CallError) else outcome
        self.state.put("got", [*self.state.get("got", []), shown])


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Asker, Clerk)


def got(local: LocalActors) -> Any:
    return local.state("asker/1").get("got")


def test_the_caller_gets_the_value_when_the_call_is_resolved(local: LocalActors) -> None:
    local.call("asker/1", "ask", "file", "a")
    assert got(local) is None
    assert local.call("clerk/1", "finish", "a", 7) is True

    assert got(local) == [7]


def test_the_caller_gets_the_error_when_the_call_is_rejected(local: LocalActors) -> None:
    local.call("asker/1", "ask", "file", "a")
    assert local.call("clerk/1", "give_up", "a") is True

    assert got(local) == ["<RemoteError KeyError: \"'a'\">"]


def test_a_token_is_what_its_id_says(local: LocalActors) -> None:
    local.call("asker/1", "ask", "file", "a")

    assert local.call("clerk/1", "finish_by_id", "a", 7) is True
    assert got(local) == [7]


def test_a_call_is_answered_once(local: LocalActors) -> None:
    local.call("asker/1", "ask", "file", "a")
    local.call("clerk/1", "finish", "a", 1)

    assert local.call("clerk/1", "finish", "a", 2) is False
    assert local.call("clerk/1", "give_up", "a") is False
    assert got(local) == [1]


def test_calls_may_be_answered_in_any_order(local: LocalActors) -> None:
    local.call("asker/1", "ask", "file", "a")
    local.call("asker/1", "ask", "file", "b")
    local.call("clerk/1", "finish", "b", "second")
    local.call("clerk/1", "finish", "a", "first")

    assert got(local) == ["second", "first"]


def test_somebody_outside_is_answered_later_as_well(local: LocalActors) -> None:
    first, second = local.begin("clerk/1", "file", "a"), local.begin("clerk/1", "file", "b")
    local.run()
    with pytest.raises(Unanswered):
        local.outcome(first)
    local.call("clerk/1", "finish", "a", 7)
    local.call("clerk/1", "give_up", "b")

    assert local.outcome(first) == 7
    with pytest.raises(KeyError):
        local.outcome(second)


def test_a_deferred_call_survives_a_restart(tmp_path: Any) -> None:
    local = LocalActors(Asker, Clerk, path=tmp_path / "a.db")
    outside = local.begin("clerk/1", "file", "outside")
    local.call("asker/1", "ask", "file", "a")
    local.restart()
    local.call("clerk/1", "finish", "a", 7)
    local.call("clerk/1", "finish", "outside", 8)

    assert got(local) == [7]
    assert local.outcome(outside) == 8


def test_a_handler_that_raises_has_not_deferred(local: LocalActors) -> None:
    local.call("asker/1", "ask", "file_and_raise")

    assert got(local) == ["<RemoteError ValueError: 'no'>"]
    assert local.kernel.store.execute("SELECT count(*) FROM deferred").get == 0


def test_a_call_can_be_resolved_in_the_handler_that_deferred_it(local: LocalActors) -> None:
    local.call("asker/1", "ask", "at_once")

    assert got(local) == ["at once"]
    assert local.call("clerk/1", "at_once") == "at once"
    assert local.kernel.counters.late_results == 0


def test_a_deferred_call_whose_token_is_not_returned_is_an_error(local: LocalActors) -> None:
    local.call("asker/1", "ask", "forget_the_token")

    assert "a method that defers must return the token from self.defer()" in got(local)[0]
    assert local.kernel.store.execute("SELECT count(*) FROM deferred").get == 0


def test_a_token_that_was_not_given_by_defer_is_an_error(local: LocalActors) -> None:
    local.call("asker/1", "ask", "return_another")

    assert "a method that defers must return the token from self.defer()" in got(local)[0]


def test_only_tokens_can_be_resolved(local: LocalActors) -> None:
    with pytest.raises(TypeError, match="answered with its token"):
        local.call("clerk/1", "finish_nonsense")


def test_deferring_twice_is_deferring_once(local: LocalActors) -> None:
    local.call("asker/1", "ask", "twice")
    local.call("clerk/1", "finish", "twice", 7)

    assert got(local) == [7]


def test_a_send_can_be_deferred_and_nobody_is_answered(local: LocalActors) -> None:
    local.call("asker/1", "tell", "file", "a")

    assert local.call("clerk/1", "finish", "a", 7) is True
    assert got(local) is None
    assert local.kernel.counters.late_results == 0


def test_there_is_nothing_to_defer_in_an_alarm_or_a_continuation() -> None:
    class Late(Actor):
        @remote
        def go(self) -> None:
            self.alarms.schedule(0, self.wake)

        def wake(self) -> None:
            self.defer()

    local = LocalActors(Late)
    local.call("late/1", "go")

    (alarm,) = local.kernel.alarms.of("late/1")
    assert "only possible while handling a call" in str(alarm.last_error)


def test_another_actor_cannot_resolve_a_token() -> None:
    class Thief(Actor):
        @remote
        def steal(self, token: Token) -> bool:
            return self.resolve(token, "stolen")

    local = LocalActors(Asker, Clerk, Thief)
    local.call("asker/1", "ask", "file", "a")
    token = local.state("clerk/1").get("a")

    assert local.call("thief/1", "steal", token) is False
    assert got(local) is None


@pytest.mark.parametrize("method", ["right", "wrong"])
def test_a_call_is_answered_with_the_outcome_of_another(method: str) -> None:
    class Broker(Actor):
        @remote
        def ask(self, method: str) -> Token:
            token = self.defer()
            self.call("source/1", method, then=partial(self.resolve, token))
            return token

    class Source(Actor):
        @remote
        def right(self) -> str:
            return "right"

        @remote
        def wrong(self) -> None:
            raise LookupError("wrong")

    local = LocalActors(Broker, Source)

    if method == "right":
        assert local.call("broker/1", "ask", method) == "right"
    else:
        with pytest.raises(RemoteError, match="wrong"):
            local.call("broker/1", "ask", method)
