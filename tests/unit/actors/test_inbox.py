"""The inbox of a host: nothing overtakes, nothing gets lost, and what is put off comes again."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Retry, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.kernel.inbox import HostInbox, Item
from signalhub.actors.store.store import HostStore
from signalhub.ids import Ulids
from tests.support.actors.scripted import Caller, Scripted, Stage, stored

NOW = 1_760_000_000_000


@pytest.fixture
def inbox() -> HostInbox:
    inbox = HostInbox(HostStore(":memory:"), partial(Ulids(os.urandom).next, NOW))
    inbox.load()
    return inbox


def item(call_id: str, actor: str = "a/1") -> Item:
    return Item(actor, "request", call_id, "b/1", b"{}")


def taken(inbox: HostInbox, now_ms: int = NOW, limit: int = 100) -> list[str]:
    return [one.call_id for one in inbox.take(now_ms, limit)]


def fresh(inbox: HostInbox) -> list[str]:
    return [one.call_id for one in inbox.fresh]


def store(inbox: HostInbox, *call_ids: str) -> None:
    for call_id in call_ids:
        inbox.put(item(call_id))
    inbox.flush()


def test_what_comes_is_stored_once_behind_the_messages_that_are_stored(inbox: HostInbox) -> None:
    store(inbox, "1", "2", "2")
    inbox.put(item("3"))
    inbox.put(item("other", "a/2"))

    assert fresh(inbox) == ["other"]
    assert taken(inbox) == ["1", "2", "3"]
    assert (taken(inbox, limit=2), taken(inbox, limit=0)) == (["1", "2"], [])
    for one in [*inbox.take(NOW, 9)] * 2:
        inbox.done(one)
    assert taken(inbox) == []


def test_messages_of_an_actor_that_cannot_start_wait_for_it_in_order(inbox: HostInbox) -> None:
    inbox.not_started("a/1", NOW + 10)
    inbox.refuse(item("1"))
    inbox.put(item("2"))
    assert not inbox.fresh
    assert taken(inbox) == []
    assert not inbox.is_ready
    assert inbox.next_due_ms() == NOW + 10

    inbox.load()
    assert inbox.to_start(NOW) == ["a/1"]
    inbox.started("a/1")
    inbox.put(item("3"))
    assert taken(inbox) == ["1", "2", "3"]
    assert inbox.next_due_ms() is None


def test_what_is_put_off_comes_when_it_is_due_and_before_the_rest(inbox: HostInbox) -> None:
    store(inbox, "1", "2")
    first, second = inbox.take(NOW, 9)
    inbox.later(second, NOW + 5)
    inbox.later(item("fresh"), NOW + 3)
    assert taken(inbox) == ["1"]
    assert inbox.next_due_ms() == NOW + 3

    assert taken(inbox, NOW + 5) == ["fresh", "2", "1"]
    assert (first.attempts, second.attempts) == (0, 1)


def test_held_messages_are_ready_again_in_the_order_they_came_in(inbox: HostInbox) -> None:
    store(inbox, "1", "2")
    inbox.not_started("a/1", NOW + 10)
    inbox.hold("a/1")
    assert not inbox.is_ready
    assert inbox.next_due_ms() is None
    inbox.release("a/1")

    assert taken(inbox) == ["1", "2"]


def test_a_withdrawn_message_is_gone_wherever_it_stands(inbox: HostInbox) -> None:
    store(inbox, "1", "2", "3")
    inbox.fresh.append(item("fresh"))
    seen = []
    for one in inbox.take(NOW, 9):
        seen.append(one.call_id)
        inbox.withdraw("a/1", "request", "2")
    assert seen == ["1", "3"]

    for call_id in ("1", "3", "fresh"):
        assert inbox.has("a/1", "request", call_id)
        assert inbox.withdraw("a/1", "request", call_id)
        assert not inbox.has("a/1", "request", call_id)
        assert not inbox.withdraw("a/1", "request", call_id)
    assert not inbox.is_ready


def test_a_run_that_fails_has_withdrawn_nothing_from_memory(inbox: HostInbox) -> None:
    inbox.fresh.extend([item("0"), item("1"), item("2")])
    inbox.withdraw("a/1", "request", "0")
    inbox.begin()
    inbox.withdraw("a/1", "request", "1")
    inbox.undo()
    assert fresh(inbox) == ["1", "2"]
    inbox.begin()
    inbox.withdraw("a/1", "request", "1")
    inbox.keep()
    inbox.undo()

    assert fresh(inbox) == ["2"]


tries: list[tuple[int, Any]] = []
# Values to how often they are put off.
delayed: dict[Any, int] = {}


@pytest.fixture(autouse=True)
def _nothing_delayed() -> None:
    tries.clear()
    delayed.clear()


class Target(Scripted):
    @remote
    def take(self, value: Any) -> Any:
        tries.append((self.now_ms, value))
        self.note(value)
        if sum(one == value for _, one in tries) <= delayed.get(value, 0):
            raise Retry(after=2)
        return value


def call(self: Caller, *values: Any) -> None:
    for value in values:
        self.call("target/1", "take", value, then=self.note, timeout=None)


@pytest.mark.parametrize("times", [3, 50])
def test_a_request_is_tried_again_as_often_as_it_asks_for(tmp_path: Path, times: int) -> None:
    delayed["b"] = times
    local = stored(tmp_path, Caller, Target)
    local.do("caller/1", call, *"abcde")
    local.restart()
    assert local.notes("target/1") == list("acde"), "others do not wait for it"
    local.advance(2 * times)

    own = [at for at, value in tries if value == "b"]
    assert [at - own[0] for at in own] == [2_000 * n for n in range(times + 1)]
    assert local.notes("target/1") == local.notes() == list("acdeb")


@pytest.mark.parametrize("batch", [1, 7, 100])
@pytest.mark.parametrize("are_delayed", [False, True])
def test_order_is_kept_when_a_turn_cannot_do_all(
    tmp_path: Path, batch: int, are_delayed: bool
) -> None:
    if are_delayed:
        delayed.update(dict.fromkeys(range(3, 180, 10), 2))
    config = DurableConfig(inbound_batch_size=batch, durability="process")
    local = stored(tmp_path, Caller, Target, config=config)
    local.start("caller/1", call, *range(0, 90))
    local.turn()
    local.start("caller/1", call, *range(90, 180))
    for _ in range(4):
        local.turn()
    local.restart()
    local.advance(10)

    seen = local.notes("target/1")
    assert sorted(seen) == sorted(local.notes()) == list(range(180))
    in_time = [one for one in seen if one not in delayed]
    assert in_time == sorted(in_time)


def test_a_new_message_does_not_overtake_those_that_a_turn_left_over() -> None:
    local = Stage(Caller, Target, config=DurableConfig(inbound_batch_size=3))
    local.do("caller/1", call, 0)
    local.start("caller/1", call, *range(1, 11))
    for number in range(11, 31):
        local.begin("target/1", "take", number)
        local.turn()
    local.run()

    seen = local.notes("target/1")
    assert [one for one in seen if one <= 10] == list(range(11))
    assert [one for one in seen if one > 10] == list(range(11, 31))


def test_more_requests_than_fit_can_be_put_off_at_once() -> None:
    delayed.update(dict.fromkeys(range(90), 1))
    local = Stage(Caller, Target)
    local.do("caller/1", call, *range(90))
    assert local.notes("target/1") == []
    local.advance(2)

    assert local.notes("target/1") == list(range(90))


def test_a_guard_may_ask_for_another_try_as_well() -> None:
    class Closed(Scripted):
        def is_open(self, context: Any) -> None:
            if self.now_ms < opens_ms:
                raise Retry(after=1)

        @remote(guard=is_open)
        def enter(self) -> str:
            return "in"

    local = Stage(Closed)
    opens_ms = local.clock.now_ms() + 5_000
    entered = local.begin("closed/1", "enter")
    local.advance(5)

    assert local.outcome(entered) == "in"
