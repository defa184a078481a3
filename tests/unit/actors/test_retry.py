"""Requests that ask to be delivered again, and the order of the others meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors import Actor, Retry, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.testing.local_actors import LocalActors


class Target(Actor):
    @remote
    def note(self, value: Any) -> Any:
        tries.append((self.now_ms, value))
        self.state.put("seen", [*self.state.get("seen", []), value])
        if value in delayed and sum(one == value for _, one in tries) <= delayed[value]:
            raise Retry(after=2)
        return value


class Asker(Actor):
    @remote
    def ask(self, *values: Any) -> None:
        for value in values:
            self.call("target/1", "note", value, then=self.on_done, timeout=None)

    def on_done(self, outcome: Any) -> None:
        self.state.put("got", [*self.state.get("got", []), outcome])


tries: list[tuple[int, Any]] = []
delayed: dict[Any, int] = {}


@pytest.fixture(autouse=True)
def _nothing_delayed() -> None:
    tries.clear()
    delayed.clear()


def test_a_request_is_tried_again_after_the_time_it_asked_for() -> None:
    delayed["a"] = 3
    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask", "a")
    local.advance(60)

    started = tries[0][0]
    assert [at - started for at, _ in tries] == [0, 2_000, 4_000, 6_000]
    assert local.state("target/1").get("seen") == ["a"]
    assert local.state("asker/1").get("got") == ["a"]


def test_there_is_no_limit_to_how_often_a_request_may_be_put_off() -> None:
    delayed["a"] = 50
    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask", "a")
    local.advance(200)

    assert local.state("asker/1").get("got") == ["a"]


def test_others_do_not_wait_for_it_and_keep_their_order() -> None:
    delayed["b"] = 1
    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask", *"abcde")
    assert local.state("target/1").get("seen") == list("acde")
    local.advance(2)

    assert local.state("target/1").get("seen") == list("acdeb")


def test_a_request_that_is_put_off_survives_a_restart(tmp_path: Any) -> None:
    delayed["a"] = 1
    local = LocalActors(Asker, Target, path=tmp_path / "a.db")
    local.call("asker/1", "ask", "a")
    local.restart()
    local.run()
    assert local.state("asker/1").get("got") is None
    local.advance(2)

    assert local.state("asker/1").get("got") == ["a"]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_order_is_kept_when_more_comes_than_a_turn_can_do(batch: int) -> None:
    local = LocalActors(Asker, Target, config=DurableConfig(inbound_batch_size=batch))
    local.begin("asker/1", "ask", *range(0, 90))
    local.begin("asker/1", "ask", *range(90, 180))
    local.run()

    assert local.state("target/1").get("seen") == list(range(180))
    assert local.state("asker/1").get("got") == list(range(180))


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_order_of_the_others_is_kept_when_a_full_mailbox_has_requests_that_are_put_off(
    batch: int, tmp_path: Any
) -> None:
    for value in range(3, 180, 10):
        delayed[value] = 2
    config = DurableConfig(inbound_batch_size=batch)
    local = LocalActors(Asker, Target, config=config, path=tmp_path / "a.db")
    local.begin("asker/1", "ask", *range(0, 90))
    local.turn()
    local.begin("asker/1", "ask", *range(90, 180))
    for _ in range(4):
        local.turn()
    local.restart()
    local.run()
    local.advance(10)

    seen = local.state("target/1").get("seen")
    assert sorted(seen) == list(range(180))
    assert [one for one in seen if one not in delayed] == [
        one for one in range(180) if one not in delayed
    ]


def test_a_new_message_does_not_overtake_those_that_a_turn_left_over() -> None:
    local = LocalActors(Asker, Target, config=DurableConfig(inbound_batch_size=3))
    local.call("asker/1", "ask", 0)
    local.begin("asker/1", "ask", *range(1, 11))
    for number in range(11, 31):
        local.begin("target/1", "note", number)
        local.turn()
    local.run()

    seen = local.state("target/1").get("seen")
    assert [one for one in seen if one <= 10] == list(range(11))
    assert [one for one in seen if one > 10] == list(range(11, 31))


def test_more_requests_than_fit_can_be_put_off_at_once() -> None:
    delayed.update(dict.fromkeys(range(90), 1))
    local = LocalActors(Asker, Target)
    local.call("asker/1", "ask", *range(90))
    assert local.state("target/1").get("seen") is None
    local.advance(2)

    assert local.state("target/1").get("seen") == list(range(90))


def test_a_guard_may_ask_for_another_try_as_well() -> None:
    class Closed(Actor):
        def is_open(self, context: Any) -> None:
            if self.now_ms < opens_ms:
                raise Retry(after=1)

        @remote(guard=is_open)
        def enter(self) -> str:
            return "in"

    local = LocalActors(Closed)
    opens_ms = local.clock.now_ms() + 5_000
    entered = local.begin("closed/1", "enter")
    local.advance(5)

    assert local.outcome(entered) == "in"
