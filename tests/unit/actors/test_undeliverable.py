"""Messages that find no receiver in the time they have."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors import Actor, CallError, op, remote
from signalhub.actors.kernel.dead_letters import contents
from signalhub.actors.kernel.events import Effect, LocateActors
from signalhub.testing.local_actors import LocalActors

HALF_AN_HOUR = 1_800


class Echo(Actor):
    @remote
    def echo(self, value: Any) -> Any:
        self.state.put("seen", [*self.state.get("seen", []), value])
        return value


class Asker(Actor):
    @remote
    def ask(self, value: Any) -> None:
        self.call("echo/1", op(Echo.echo, value), then=self.on_done, timeout=None)

    @remote
    def ask_unordered(self, value: Any) -> None:
        self.call("echo/1", "echo", value, then=self.on_done, timeout=None, ordered=False)

    @remote
    def tell(self, value: Any) -> None:
        self.send("echo/1", op(Echo.echo, value))

    @remote
    def try_again(self) -> list[bool]:
        return [self.redrive(letter.id) for letter in self.dead_letters()]

    @remote
    def try_again_and_raise(self) -> None:
        assert self.try_again() == [True]
        raise ValueError("no")

    def on_done(self, outcome: Any) -> None:
        self.state.put("got", outcome.name if isinstance(outcome, CallError) else outcome)


class Silent(LocalActors):
    """A hub that does not say where `echo/1` lives, until it does."""

    is_silent = True

    def _perform(self, effect: Effect) -> None:
        if self.is_silent and isinstance(effect, LocateActors) and "echo/1" in effect.actors:
            return
        super()._perform(effect)


@pytest.fixture
def local() -> Silent:
    return Silent(Asker, Echo)


@pytest.mark.parametrize("method", ["ask", "ask_unordered"])
def test_a_call_without_a_timeout_is_given_up_after_half_an_hour(
    local: Silent, method: str
) -> None:
    local.call("asker/1", method, 7)
    local.advance(HALF_AN_HOUR - 1)
    assert local.state("asker/1").get("got") is None
    local.advance(6)

    assert local.state("asker/1").get("got") == "CallUndeliverable"
    assert local.kernel.store.execute("SELECT count(*) FROM outbox").get == 0
    assert local.kernel.store.execute("SELECT count(*) FROM pending").get == 0


def test_a_call_is_made_if_its_target_is_found_before(local: Silent) -> None:
    local.call("asker/1", "ask", 7)
    local.advance(HALF_AN_HOUR - 60)
    local.is_silent = False
    local.advance(30)

    assert local.state("asker/1").get("got") == 7


def test_a_send_that_finds_no_receiver_is_a_letter(local: Silent) -> None:
    local.call("asker/1", "tell", 7)
    local.advance(HALF_AN_HOUR + 6)

    (letter,) = local.kernel.letters.of("asker/1")
    assert (letter.origin, letter.error) == ("send", "no receipt within 1800 s")
    shown = contents(local.kernel.store, "asker/1", letter.id)
    assert shown is not None
    assert shown["dest"] == "echo/1"


def test_a_letter_that_was_a_send_is_sent_again(local: Silent) -> None:
    local.call("asker/1", "tell", 7)
    local.advance(HALF_AN_HOUR + 6)
    local.is_silent = False

    assert local.call("asker/1", "try_again") == [True]
    local.advance(30)
    assert local.state("echo/1").get("seen") == [7]
    assert local.kernel.letters.of("asker/1") == []


def test_a_send_redriven_by_a_handler_that_raises_is_not_sent(local: Silent) -> None:
    local.call("asker/1", "tell", 7)
    local.advance(HALF_AN_HOUR + 6)
    local.is_silent = False
    local.call("echo/1", "echo", "is here by now")

    with pytest.raises(ValueError, match="no"):
        local.call("asker/1", "try_again_and_raise")
    local.advance(30)

    assert local.state("echo/1").get("seen") == ["is here by now"]
    assert len(local.kernel.letters.of("asker/1")) == 1
    assert local.call("asker/1", "try_again") == [True]
    assert local.state("echo/1").get("seen") == ["is here by now", 7]


def test_order_is_kept_by_what_waits_for_a_place_and_what_comes_after(local: Silent) -> None:
    for number in range(5):
        local.call("asker/1", "tell", number)
    local.is_silent = False
    for number in range(5, 10):
        local.begin("asker/1", "tell", number)
    local.advance(60)

    assert local.state("echo/1").get("seen") == list(range(10))
