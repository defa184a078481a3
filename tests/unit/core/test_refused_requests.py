"""A request that is refused has changed nothing, neither in memory nor after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from signalhub.core import refusals
from signalhub.settings.model import MailboxSettings, Settings
from tests.property.request_life import described, outline
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import HELLO, MemoryShell, Peer
from tests.support.memory.topics import (
    ACTOR,
    NAMED,
    answers,
    code_of,
    commit_all,
    create,
    mailbox_of,
    publish,
    subscribe,
    subscription_of,
    topic_of,
)
from tests.support.memory.turns import TurningShell

OWNER = "@(a/owner)"


def check_restarts(shell: MemoryShell) -> None:
    """The log says what memory says, with a snapshot and without."""
    expected = described(shell.hub)
    assert described(shell.restarted().hub) == expected
    shell.shelf = Shelf()
    assert described(shell.restarted().hub) == expected


@pytest.mark.parametrize(
    "fault",
    [
        {"key": "k" * 257},
        {"headers": {"name": "v" * 1_024}},
        {"headers": {str(number): "v" for number in range(65)}},
        {"headers": {f"{number}\\": "\\" for number in range(65)}},
        {"headers": {"name": 1}},
        {"headers": ["name"]},
        {"type": "hub:news"},
        {"topic": "t/#"},
    ],
)
def test_a_publication_that_does_not_fit_makes_no_topic(fault: dict[str, Any]) -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    payload = {"topic": "t", "type": "news", "durable": True}

    reply = writer.ask("hub:publish", payload | fault)

    assert code_of(reply) == "internal_error"
    assert not shell.hub.streams.topics
    assert code_of(writer.ask("hub:subscribe", NAMED)) == "unknown_topic"
    assert shell.engine.head == 0


@pytest.mark.parametrize("is_durable", [True, False])
def test_headers_are_refused_before_they_are_made_if_there_are_far_too_many(
    is_durable: bool,
) -> None:
    writer = MemoryShell().connect("@(a/writer)")
    # Not even their types are looked at.
    faulty = {str(number): number for number in range(1_000)}

    reply = writer.ask(
        "hub:publish", {"topic": "t", "type": "n", "durable": is_durable, "headers": faulty}
    )

    assert reply["payload"]["message"].endswith("payload.headers has more than 64 members.")


@pytest.mark.parametrize("text", ['"', '\\"', "\\", '"":,'])
def test_headers_may_hold_any_text(text: str) -> None:
    writer = MemoryShell().connect("@(a/writer)")
    headers = {f"{number}{text}": text * 200 for number in range(64)}

    reply = writer.ask(
        "hub:publish", {"topic": "t", "type": "n", "durable": True, "headers": headers}
    )

    assert reply["type"] == "hub:published"


def full_log(shell: MemoryShell) -> None:
    shell.hub.storage.stop(refusals.storage_failed())


def full_of_mailboxes(shell: MemoryShell) -> None:
    shell.connect("@(a/first)").register(durable=True)


@pytest.mark.parametrize(
    ("obstacle", "code"), [(full_log, "storage_failed"), (full_of_mailboxes, "registry_full")]
)
def test_a_registration_over_another_owner_that_is_refused_leaves_the_owner_alone(
    obstacle: Callable[[MemoryShell], None], code: str
) -> None:
    shell = MemoryShell(Settings(mailbox=MailboxSettings(count_max=1)))
    owner = shell.join(OWNER)
    owner.ask("hub:subscribe", {"topic": "plain"})
    obstacle(shell)
    rival = shell.connect("@(a/rival)")
    before = outline(shell.hub)

    reply = rival.register(OWNER, durable=True)

    assert code_of(reply) == code
    assert outline(shell.hub) == before
    assert owner.closed is None
    assert owner.ask("hub:heartbeat")["type"] == "hub:heartbeat_ack"
    assert rival.ask("hub:publish", {"topic": "plain", "type": "x"})["payload"]["subscriberCount"]


@pytest.mark.parametrize("type", ["hub:topic_create", "hub:topic_update"])
def test_an_invalid_name_of_a_dead_letter_topic_is_said_to_be_that(type: str) -> None:
    writer = MemoryShell().connect("@(a/writer)")
    create(writer, "known")

    reply = writer.ask(type, {"topic": "known", "deadLetter": "dead/#"})

    assert code_of(reply) == "internal_error"
    assert "payload.deadLetter" in reply["payload"]["message"]


def test_of_two_updates_that_are_refused_neither_stays() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer, retention={"ageSeconds": 50})
    subscribe(reader, ackTimeoutMs=1_000)
    shell.engine.is_prompt = False

    for seconds, ms in ((100, 2_000), (200, 3_000)):
        writer.request("hub:topic_update", {"topic": "t", "retention": {"ageSeconds": seconds}})
        writer.request("hub:sub_update", NAMED | {"ackTimeoutMs": ms})
    shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    assert topic_of(shell).definition.retention_s == 50
    assert subscription_of(shell).definition.ack_timeout_ms == 1_000
    check_restarts(shell)


def test_an_update_that_is_refused_leaves_consumers_as_they_were() -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    subscribe(reader, window=9)
    shell.engine.is_prompt = False

    for window in (3, 4):
        writer.request("hub:sub_update", NAMED | {"autoAck": True, "window": window})
    shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    (consumer,) = subscription_of(shell).consumers
    assert (consumer.window, consumer.auto_ack) == (9, False)


CHANGES = {
    "topic_delete": {"topic": "t"},
    "sub_delete": NAMED,
    "seek": NAMED | {"to": "earliest"},
    "sub_pause": NAMED,
    "topic_update": {"topic": "t", "poison": "drop"},
    "sub_update": NAMED | {"maxDeliveries": 1},
}


def prepared() -> tuple[MemoryShell, Peer]:
    """A topic with a subscription that is at its second message; the disk is slow."""
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer)
    subscribe(reader)
    for _ in range(3):
        publish(writer)
    reader.ask("hub:ack", NAMED | {"upTo": 2})
    shell.save_snapshot()
    writer.take()
    shell.engine.is_prompt = False
    return shell, writer


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_log_refused_did_not_happen(change: str) -> None:
    shell, writer = prepared()
    before = described(shell.hub)

    writer.request(f"hub:{change}", CHANGES[change])
    shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    assert described(shell.hub) == before
    assert publish_later(shell, writer) == 4
    check_restarts(shell)


@pytest.mark.parametrize("change", ["topic_delete", "sub_delete"])
@pytest.mark.parametrize("is_refused", [True, False])
def test_what_is_being_deleted_is_called_unknown_once_it_is_gone(
    change: str, is_refused: bool
) -> None:
    shell, writer = prepared()
    writer.request(f"hub:{change}", CHANGES[change])

    assert writer.request(f"hub:{change}", CHANGES[change]) == []
    if is_refused:
        shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    _, again = answers(writer)
    unknown = "unknown_topic" if change == "topic_delete" else "unknown_subscription"
    assert again == ("storage_full" if is_refused else unknown)


@pytest.mark.parametrize("change", ["topic_update", "sub_update"])
@pytest.mark.parametrize("is_refused", [True, False])
def test_an_update_is_confirmed_when_it_is_on_disk_and_in_no_snapshot_before(
    change: str, is_refused: bool
) -> None:
    shell, writer = prepared()
    before = described(shell.hub)

    writer.request(f"hub:{change}", CHANGES[change])
    shell.save_snapshot()
    early = answers(writer)
    if is_refused:
        shell.engine.refuse(refusals.storage_full())
    commit_all(shell)

    assert early == []
    assert len(answers(writer)) == 1
    assert (described(shell.restarted().hub) == before) is is_refused


def publish_later(shell: MemoryShell, writer: Peer) -> int:
    """The topic goes on as if nothing had been asked."""
    shell.engine.is_prompt = True
    shell.pass_time(2)
    return publish(writer)


DROPS: list[tuple[str, dict[str, Any]]] = [
    ("hub:unregister", {"actorAddress": ACTOR}),
    ("hub:register", {"actorAddress": ACTOR, "capabilities": [], "durable": False}),
]


@pytest.mark.parametrize(("type", "payload"), DROPS)
def test_a_mailbox_is_said_to_be_dropped_once_that_is_on_disk(
    type: str, payload: dict[str, Any]
) -> None:
    shell = MemoryShell()
    actor = shell.join(ACTOR, durable=True)
    shell.engine.is_prompt = False

    assert actor.request(type, payload) == []
    commit_all(shell)

    assert [one["type"] for one in actor.take()] == [f"{type}ed"]
    assert ACTOR not in shell.hub.streams.mailboxes
    check_restarts(shell)


@pytest.mark.parametrize(("type", "payload"), DROPS)
def test_a_mailbox_dropped_while_the_log_is_full_is_dropped_once_there_is_room(
    type: str, payload: dict[str, Any]
) -> None:
    shell = MemoryShell()
    actor = shell.join(ACTOR, durable=True)
    shell.engine.is_full = True

    assert actor.request(type, payload) == []
    shell.pass_time(5)
    again = actor.ask(type, payload)
    actor.take()
    shell.engine.is_full = False
    shell.pass_time(2)

    assert code_of(again) == "storage_full"
    assert [one["type"] for one in actor.take()] == [f"{type}ed"]
    assert ACTOR not in shell.hub.streams.mailboxes
    check_restarts(shell)


@pytest.mark.parametrize(("type", "payload"), DROPS)
def test_a_failed_log_keeps_mailboxes(type: str, payload: dict[str, Any]) -> None:
    shell = MemoryShell()
    actor = shell.join(ACTOR, durable=True)
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert code_of(actor.ask(type, payload)) == "storage_failed"
    assert ACTOR in shell.hub.streams.mailboxes
    assert shell.hub.registry.get(ACTOR) is not None


def test_a_registration_whose_mailbox_is_refused_is_none() -> None:
    shell = TurningShell()
    actor = shell.connect(ACTOR)
    actor.take()
    shell.engine.is_full = True

    reply = actor.register(durable=True)

    assert code_of(reply) == "storage_full"
    assert ACTOR not in shell.hub.streams.mailboxes
    assert shell.hub.registry.get(ACTOR) is None
    check_restarts(shell)


def test_a_session_whose_registration_is_refused_keeps_its_name_and_its_socket() -> None:
    shell = TurningShell()
    former, heir = shell.connect("@(a/former)"), shell.connect("@(a/heir)")
    shell.engine.is_full = True
    assert code_of(former.register(ACTOR, durable=True)) == "storage_full"
    shell.engine.is_full = False

    heir.register(ACTOR, durable=True)

    assert former.session.identity == "@(a/former)"
    assert former.closed is None


@pytest.mark.parametrize("again", ["register", "unregister"])
def test_a_refused_registration_is_answered_whatever_came_after_it(again: str) -> None:
    shell = TurningShell()
    actor = shell.connect(ACTOR)
    actor.take()
    shell.engine.is_prompt = False

    with shell.one_turn():
        actor.request("hub:register", {"actorAddress": ACTOR, "durable": True, "capabilities": []})
        payload = {"actorAddress": ACTOR, "capabilities": [], "durable": True}
        actor.request(f"hub:{again}", payload)
        shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    shell.pass_time(2)

    told = answers(actor)
    assert len(told) == 2
    assert told.count("storage_full") >= 1
    assert ("hub:registered" in told) is (ACTOR in shell.hub.streams.mailboxes)


def test_what_was_refused_is_in_no_snapshot() -> None:
    shell = MemoryShell()
    writer, actor = shell.connect("@(a/writer)"), shell.connect(ACTOR)
    shell.engine.is_prompt = False
    writer.request("hub:publish", {"topic": "t", "type": "news", "durable": True})
    actor.request("hub:register", {"actorAddress": ACTOR, "durable": True, "capabilities": []})

    shell.save_snapshot()
    shell.engine.refuse(refusals.storage_full())
    shell.save_snapshot()

    assert not shell.restarted().hub.streams.topics
    assert not shell.restarted().hub.streams.mailboxes


@pytest.mark.parametrize("is_dry", [True, False])
def test_nothing_is_made_or_moved_while_a_time_cannot_be_found(
    is_dry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = MemoryShell()
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    publish(writer)
    subscribe(reader)
    # The reading thread meets an error, and says that it knows nothing.
    monkeypatch.setattr(shell.engine, "find_time", lambda find, done: done(None))
    long_ago = {"time": shell.now - 1_000}

    sought = writer.ask("hub:seek", NAMED | {"to": long_ago, "dryRun": is_dry})
    made = writer.ask("hub:subscribe", {"topic": "t", "subscription": "new", "from": long_ago})

    assert code_of(sought) == code_of(made) == "storage_failed"
    position = subscription_of(shell).position
    assert (position.floor, position.generation) == (0, 1)
    assert list(topic_of(shell).subscriptions) == ["s"]


def test_a_mailbox_is_not_lost_by_a_registration_that_does_not_fit() -> None:
    shell = MemoryShell()
    actor = shell.connect(ACTOR)
    actor.register(durable=True)
    rival = shell.connect("@(a/rival)")

    reply = rival.register(ACTOR, durable=False, capabilities=["c" * 200])

    assert code_of(reply) == "internal_error"
    assert mailbox_of(shell).subscription.consumers


def test_a_wildcard_with_too_many_levels_is_refused_and_a_topic_with_as_many_is_not() -> None:
    shell = MemoryShell()
    reader = shell.connect("@(a/reader)")

    for topic in ("a/" * 16 + "#", "+/" * 16 + "a"):
        refused = reader.ask("hub:subscribe", {"topic": topic})
        assert code_of(refused) == "limit_exceeded"
        assert refused["payload"]["details"]["limit"] == 16
    for topic in ("a/" * 15 + "#", "a/" * 40 + "b"):
        assert reader.ask("hub:subscribe", {"topic": topic})["type"] == "hub:subscribed"


@pytest.mark.parametrize("request_type", ["hub:connect", "hub:register"])
def test_what_is_too_long_to_be_used_is_refused_before_its_values_are_made(
    request_type: str,
) -> None:
    shell = MemoryShell()
    peer = shell.connect(OWNER)
    members = {"capabilities": [{}] * 30_000, "actorAddress": OWNER}
    given = {"hub:connect": (None, HELLO | members), "hub:register": (members, {})}
    payload, metadata = given[request_type]

    reply = peer.ask(request_type, payload, metadata=metadata)

    assert code_of(reply) == "internal_error"
    assert "is longer than 65536 bytes" in reply["payload"]["message"]
    assert peer.register()["type"] == "hub:registered"
