"""Errors of a call on their way to whoever made it."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors import Actor, CallError, CallTimeout, RemoteError, register_error, remote
from signalhub.testing.local_actors import LocalActors


@register_error
class Depleted(Exception):
    """Known on both sides."""

    def __init__(self, sku: str, left: int) -> None:
        super().__init__(f"only {left} of {sku} left")
        self.sku = sku
        self.left = left


class Unheard(Exception):
    """Not registered."""

    code = 7


class Target(Actor):
    @remote
    def known(self) -> None:
        raise Depleted("mug", 2)

    @remote
    def unknown(self) -> None:
        error = Unheard("what is this?")
        error.details = {"a": [1]}  # type: ignore[attr-defined]
        raise error

    @remote
    def caused(self) -> None:
        try:
            dict[str, int]()["missing"]
        except KeyError as error:
            raise Depleted("mug", 0) from error

    @remote
    def unsendable(self) -> object:
        self.state.put("was", "here")
        return object()

    @remote
    def relay(self) -> None:
        raise CallTimeout("the one below me was too slow", executed="no")

    @remote
    def wrong_arguments(self, one: int) -> None: ...


class Asker(Actor):
    seen: Any = None

    @remote
    def ask(self, method: str) -> None:
        Asker.seen = None
        self.call("target/1", method, then=self.on_done)

    def on_done(self, outcome: Any) -> None:
        Asker.seen = outcome


def seen(method: str) -> Any:
    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask", method)
    assert local.state("target/1").list() == {}
    return Asker.seen


def test_an_error_is_an_instance_of_its_class_with_attributes_and_text() -> None:
    error = seen("known")

    assert isinstance(error, CallError)
    assert isinstance(error, Depleted)
    assert (error.name, str(error)) == ("Depleted", "only 2 of mug left")
    assert (error.sku, error.left) == ("mug", 2)
    assert error.attrs == {"sku": "mug", "left": 2}


def test_an_error_of_an_unknown_class_has_its_name_text_and_attributes() -> None:
    error = seen("unknown")

    assert isinstance(error, RemoteError)
    assert not isinstance(error, Unheard)
    assert (error.name, error.message) == ("Unheard", "what is this?")
    assert error.attrs == {"details": {"a": [1]}}


def test_an_error_brings_its_cause_and_where_it_was_raised() -> None:
    error = seen("caused")

    assert isinstance(error.__cause__, KeyError)
    assert "in caused" in error.traceback_text
    assert 'raise Depleted("mug", 0) from error' in error.traceback_text


def test_an_error_names_the_call_that_failed() -> None:
    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask", "known")

    assert len(Asker.seen.call_id) == 26


def test_a_result_that_cannot_be_sent_is_an_error_and_takes_the_changes_back() -> None:
    error = seen("unsendable")

    assert isinstance(error, CallError)
    assert "object" in str(error)


def test_a_timeout_the_target_met_is_not_taken_for_one_of_this_call() -> None:
    error = seen("relay")

    assert not isinstance(error, CallTimeout)
    assert error.name == "CallTimeout"


def test_arguments_that_do_not_fit_are_the_error_of_the_call() -> None:
    error = seen("wrong_arguments")

    assert isinstance(error, TypeError)
    assert "missing 1 required positional argument" in str(error)


def test_an_error_is_not_tried_again() -> None:
    class Once(Actor):
        @remote
        def fail(self) -> None:
            tries.append(1)
            raise ValueError("no")

    class Caller(Actor):
        @remote
        def ask(self) -> None:
            self.call("once/1", "fail")

    tries: list[int] = []
    local = LocalActors(Once, Caller)
    local.call("caller/1", "ask")
    local.advance(3_600)

    assert tries == [1]


def test_an_error_of_a_send_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Sender(Actor):
        @remote
        def tell(self) -> None:
            self.send("target/1", "known")

    local = LocalActors(Sender, Target)
    local.call("sender/1", "tell")

    assert "no caller waits for it" in caplog.text
    assert "only 2 of mug left" in caplog.text
    assert local.kernel.counters.request_errors == 1


def test_an_outsider_gets_the_error_as_well() -> None:
    with pytest.raises(Depleted) as caught:
        LocalActors(Target).call("target/1", "known")

    assert caught.value.left == 2


def test_what_an_actor_remembers_outside_its_state_is_gone_after_an_error() -> None:
    class Forgetful(Actor):
        count = 0

        @remote
        def step(self, fails: bool) -> int:
            self.count += 1
            if fails:
                raise ValueError("no")
            return self.count

    local = LocalActors(Forgetful)

    assert local.call("forgetful/1", "step", False) == 1
    with pytest.raises(ValueError, match="no"):
        local.call("forgetful/1", "step", True)
    assert local.call("forgetful/1", "step", False) == 1
