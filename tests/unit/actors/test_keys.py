"""Keys that make repeated calls one."""

from __future__ import annotations

from typing import Any

from signalhub.actors import Actor, Retry, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.testing.local_actors import LocalActors

DAY = 86_400


class Target(Actor):
    @remote
    def count(self) -> int:
        self.state.put("count", self.state.get("count", 0) + 1)
        return int(self.state.get("count"))

    @remote
    def never(self) -> None:
        raise Retry(after=7_200)


class Asker(Actor):
    @remote
    def ask(self, key: str, method: str = "count") -> str:
        return self.call("target/1", method, key=key, timeout=None, then=self.on_done)

    @remote
    def ask_and_raise(self, key: str) -> None:
        self.ask(key)
        raise ValueError("no")

    @remote
    def cancel(self, call_id: str) -> str:
        return self.cancel_call(call_id).value

    def on_done(self, outcome: Any) -> None:
        self.state.put("done", self.state.get("done", 0) + 1)


def test_calls_with_the_same_key_are_one_call_with_one_id() -> None:
    local = LocalActors(Asker, Target)
    first = local.call("asker/1", "ask", "k")

    assert local.call("asker/1", "ask", "k") == first
    assert local.call("asker/1", "ask", "other") != first
    assert local.state("target/1").get("count") == 2
    assert local.state("asker/1").get("done") == 2


def test_keys_of_different_actors_have_nothing_to_do_with_each_other() -> None:
    local = LocalActors(Asker, Target)

    assert local.call("asker/1", "ask", "k") != local.call("asker/2", "ask", "k")


def test_a_key_is_remembered_for_a_day() -> None:
    local = LocalActors(Asker, Target)
    first = local.call("asker/1", "ask", "k")
    local.advance(DAY - 1)
    assert local.call("asker/1", "ask", "k") == first
    local.advance(1)

    assert local.call("asker/1", "ask", "k") != first


def test_a_key_stands_for_a_call_that_is_pending_however_long_that_is() -> None:
    local = LocalActors(Asker, Target)
    first = local.call("asker/1", "ask", "k", "never")
    for _ in range(60):
        # Enough turns for what is old to be cleared away.
        local.advance(DAY / 20)

    assert local.call("asker/1", "ask", "k") == first


def test_old_keys_are_cleared_away() -> None:
    local = LocalActors(Asker, Target)
    for number in range(10):
        local.call("asker/1", "ask", str(number))
    local.advance(2 * DAY)
    for _ in range(100):
        local.turn()

    assert local.kernel.store.execute("SELECT count(*) FROM keys").get == 0


def test_how_long_a_key_is_remembered_can_be_configured() -> None:
    local = LocalActors(Asker, Target, config=DurableConfig(idempotency_ttl_ms=5_000))
    first = local.call("asker/1", "ask", "k")
    local.advance(5)

    assert local.call("asker/1", "ask", "k") != first


def test_the_key_of_a_handler_that_raised_stands_for_nothing() -> None:
    local = LocalActors(Asker, Target)
    local.begin("asker/1", "ask_and_raise", "k")
    local.run()
    local.call("asker/1", "ask", "k")

    assert local.state("target/1").get("count") == 1


def test_the_key_of_a_cancelled_call_can_be_used_again() -> None:
    local = LocalActors(Asker, Target)
    first = local.call("asker/1", "ask", "k", "never")
    local.call("asker/1", "cancel", first)

    assert local.call("asker/1", "ask", "k") != first


def test_a_key_survives_a_restart(tmp_path: Any) -> None:
    local = LocalActors(Asker, Target, path=tmp_path / "a.db")
    first = local.call("asker/1", "ask", "k")
    local.restart()

    assert local.call("asker/1", "ask", "k") == first
    assert local.state("target/1").get("count") == 1
