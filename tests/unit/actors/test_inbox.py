"""The mailbox of a host, by itself: nothing overtakes, nothing gets lost, nothing comes back."""

from __future__ import annotations

import os

import pytest

from signalhub.actors.kernel.inbox import HostInbox, Item
from signalhub.actors.store.store import HostStore
from signalhub.ids import Ulids

NOW = 1_760_000_000_000


@pytest.fixture
def inbox() -> HostInbox:
    inbox = HostInbox(HostStore(":memory:"), Ulids(os.urandom))
    inbox.load()
    return inbox


def item(call_id: str, actor: str = "a/1") -> Item:
    return Item(actor, "request", call_id, "b/1", b"{}")


def taken(inbox: HostInbox, now_ms: int = NOW, limit: int = 100) -> list[str]:
    return [one.call_id for one in inbox.take(now_ms, limit)]


def store(inbox: HostInbox, *call_ids: str) -> None:
    for call_id in call_ids:
        inbox.put(item(call_id), NOW)
    inbox.flush(NOW)


def test_what_comes_for_an_actor_with_stored_messages_is_stored_behind_them(
    inbox: HostInbox,
) -> None:
    store(inbox, "1", "2")
    inbox.put(item("3"), NOW)
    inbox.put(item("other", "a/2"), NOW)

    assert [one.call_id for one in inbox.fresh] == ["other"]
    assert taken(inbox) == ["1", "2", "3"]


def test_what_comes_for_an_actor_that_refuses_work_is_stored_and_not_ready(
    inbox: HostInbox,
) -> None:
    inbox.not_started("a/1", NOW + 10)
    inbox.put(item("1"), NOW)

    assert not inbox.fresh
    assert taken(inbox) == []
    assert not inbox.is_ready
    assert inbox.next_due_ms() == NOW + 10


def test_messages_of_an_actor_that_has_started_are_ready_in_order(inbox: HostInbox) -> None:
    one = item("1")
    inbox.not_started("a/1", NOW + 10)
    inbox.refuse(one, NOW)
    store(inbox, "2")
    inbox.load()
    assert inbox.to_start(NOW) == ["a/1"]
    inbox.started("a/1")
    inbox.put(item("3"), NOW)

    assert taken(inbox) == ["1", "2", "3"]
    assert inbox.next_due_ms() is None


def test_a_message_is_stored_once(inbox: HostInbox) -> None:
    store(inbox, "1", "1")

    assert taken(inbox) == ["1"]
    (one,) = inbox.take(NOW, 9)
    inbox.done(one)
    inbox.done(one)
    assert not inbox.is_ready


def test_no_more_is_taken_than_wanted(inbox: HostInbox) -> None:
    store(inbox, "1", "2", "3")

    assert taken(inbox, limit=2) == ["1", "2"]
    assert taken(inbox, limit=0) == []


def test_what_is_put_off_comes_when_it_is_due_and_before_the_rest(inbox: HostInbox) -> None:
    store(inbox, "1", "2")
    first, second = inbox.take(NOW, 9)
    inbox.later(second, NOW, NOW + 5)
    inbox.later(item("fresh"), NOW, NOW + 3)
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
    store(inbox, "stored")
    inbox.fresh.append(item("fresh"))

    for call_id in ("stored", "fresh"):
        assert inbox.has("a/1", "request", call_id)
        assert inbox.withdraw("a/1", "request", call_id)
        assert not inbox.has("a/1", "request", call_id)
        assert not inbox.withdraw("a/1", "request", call_id)
    assert not inbox.is_ready


def test_what_is_withdrawn_while_others_are_done_is_not_handed_out(inbox: HostInbox) -> None:
    store(inbox, "1", "2", "3")
    seen = []
    for one in inbox.take(NOW, 9):
        seen.append(one.call_id)
        inbox.withdraw("a/1", "request", "2")

    assert seen == ["1", "3"]


def test_a_run_that_fails_has_withdrawn_nothing_from_memory(inbox: HostInbox) -> None:
    inbox.fresh.extend([item("1"), item("2")])
    inbox.begin()
    inbox.withdraw("a/1", "request", "1")
    inbox.undo()
    assert [one.call_id for one in inbox.fresh] == ["1", "2"]
    inbox.begin()
    inbox.withdraw("a/1", "request", "1")
    inbox.keep()
    inbox.undo()

    assert [one.call_id for one in inbox.fresh] == ["2"]


def test_what_was_withdrawn_before_a_run_stays_away_when_that_fails(inbox: HostInbox) -> None:
    inbox.fresh.extend([item("1"), item("2")])
    inbox.withdraw("a/1", "request", "1")
    inbox.begin()
    inbox.undo()

    assert [one.call_id for one in inbox.fresh] == ["2"]
