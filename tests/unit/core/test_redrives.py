"""Dead letters put back where they came from, or thrown away, while the rest of the world moves."""

from __future__ import annotations

import pytest

from signalhub.settings.model import Settings, TopicsSettings
from signalhub.wire import envelope as wire
from tests.support.memory.shell import SETTLING_HELLO, MemoryShell, Peer, envelope
from tests.support.memory.topics import (
    ACTOR,
    NAME,
    NAMED,
    answers,
    commit_all,
    create,
    mailbox_of,
    publish,
    seqs,
    subscribe,
    subscription_of,
    topic_of,
    working,
)
from tests.support.memory.turns import TurningShell

DEAD = "dead"


def bury_one_each(shell: MemoryShell, *topics: str) -> tuple[Peer, Peer]:
    """Topics with one dead letter each, all in one place; writer and reader."""
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    for topic in topics:
        create(writer, topic, poison="dead_letter", deadLetter=DEAD)
        subscribe(reader, topic)
        publish(writer, topic=topic)
        reader.ask("hub:term", {"topic": topic, "subscription": NAME, "seq": 1})
    reader.take()
    return writer, reader


def test_a_letter_whose_topic_is_gone_is_skipped_and_the_others_are_put_back() -> None:
    shell = MemoryShell()
    writer, reader = bury_one_each(shell, "t", "u")
    writer.ask("hub:topic_delete", {"topic": "u"})

    reply = writer.ask("hub:redrive", {"topic": DEAD, "all": True})

    assert (reply["type"], reply["payload"]) == ("hub:redriven", {"count": 1, "skipped": 1})
    assert list(topic_of(shell, DEAD).removed) == [(1, 1)]
    assert publish(writer) == 3
    assert seqs(reader) == [2, 3]


def test_a_letter_whose_topic_is_being_deleted_stays() -> None:
    shell = TurningShell()
    writer, _ = bury_one_each(shell, "t")
    writer.take()
    shell.engine.is_prompt = False

    with shell.one_turn():
        writer.request("hub:topic_delete", {"topic": "t"})
        writer.request("hub:redrive", {"topic": DEAD, "all": True})
    commit_all(shell)

    assert answers(writer) == ["hub:redriven", "hub:topic_deleted"]
    assert not topic_of(shell, DEAD).removed
    assert "t" not in shell.restarted().hub.streams.topics


def test_a_letter_whose_mailbox_is_gone_stays() -> None:
    shell = MemoryShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    sender.send(ACTOR, 1, pattern="ask")
    actor.ask("hub:term", {"stream": ACTOR, "seq": 1})
    actor.ask("hub:unregister", {"actorAddress": ACTOR})

    reply = sender.ask("hub:redrive", {"topic": "dead.mailboxes", "all": True})

    assert reply["payload"] == {"count": 0, "skipped": 1}
    actor.register(durable=True)
    assert mailbox_of(shell).head == 0
    assert sender.send(ACTOR, 2, pattern="ask")[0]["payload"]["seq"] == 1


def test_a_letter_that_is_put_back_into_a_mailbox_dropped_meanwhile_is_answered() -> None:
    shell = TurningShell()
    sender = shell.connect("@(a/sender)")
    actor = shell.connect(ACTOR, metadata=SETTLING_HELLO)
    actor.register(durable=True)
    sender.send(ACTOR, 1, pattern="ask")
    actor.ask("hub:term", {"stream": ACTOR, "seq": 1})
    sender.take()
    shell.engine.is_prompt = False

    sender.send(ACTOR, 2, pattern="ask")
    sender.request("hub:redrive", {"topic": "dead.mailboxes", "all": True})
    actor.request("hub:unregister", {"actorAddress": ACTOR})
    commit_all(shell)

    assert answers(sender) == ["hub:unknown_actor", "hub:redriven"]
    assert ACTOR not in shell.restarted().hub.streams.mailboxes


def test_dead_letters_go_somewhere_however_many_topics_there_are() -> None:
    shell = MemoryShell(Settings(topics=TopicsSettings(limit=1)))
    _, reader = working(shell, 3, definition={"poison": "dead_letter"})

    reply = reader.ask("hub:term", NAMED | {"seq": 1})

    assert reply["payload"]["floor"] == 1
    assert topic_of(shell, "t.dlq").head == 1
    assert subscription_of(shell).stats.restarts == 0


def test_a_letter_for_a_topic_that_is_being_deleted_goes_to_the_one_made_after_it() -> None:
    shell = TurningShell()
    writer, reader = bury_one_each(shell, "t")
    publish(writer)
    reader.take()
    shell.engine.is_prompt = False

    with shell.one_turn():
        writer.request("hub:topic_delete", {"topic": DEAD})
        reader.request("hub:term", NAMED | {"seq": 2})
    for _ in range(3):
        commit_all(shell)
        shell.advance(5_000)

    letter = topic_of(shell, DEAD)
    assert letter.head == 1
    assert subscription_of(shell).position.floor == 2
    assert shell.restarted().hub.streams.topics[DEAD].head == 1


@pytest.mark.parametrize("type", ["hub:redrive", "hub:purge"])
def test_a_page_that_cannot_be_read_is_not_taken_for_the_end(
    type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = MemoryShell()
    writer, _ = bury_one_each(shell, "t")
    monkeypatch.setattr(shell.engine, "_found", lambda fetch: None)

    reply = writer.ask(type, {"topic": DEAD, "all": True})

    assert reply["payload"]["code"] == "storage_failed"
    assert not topic_of(shell, DEAD).removed


def test_what_was_removed_is_forgotten_once_retention_has_taken_it() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    create(writer)
    for _ in range(10):
        publish(writer)
    for seq in (1, 3, 5, 7, 9):
        writer.ask("hub:purge", {"topic": "t", "seqs": [seq]})

    shell.perform(shell.hub.retention.lose_before(topic_of(shell), 6, shell.now))

    assert list(topic_of(shell).removed) == [(7, 7), (9, 9)]


def test_a_letter_put_back_for_one_subscription_is_no_backlog_of_another() -> None:
    shell = MemoryShell()
    writer, _ = bury_one_each(shell, "t")
    other = shell.connect("@(a/other)")
    subscribe(other, name="other", **{"from": "latest"})
    other.drop()

    writer.ask("hub:redrive", {"topic": DEAD, "all": True})

    assert subscription_of(shell, name="other").lag == 0
    assert subscription_of(shell.restarted(), name="other").lag == 0
    assert subscription_of(shell).lag == 1


def test_the_letter_of_a_message_of_the_largest_size_is_not_larger_than_a_message_may_be() -> None:
    shell = MemoryShell(Settings(message_bytes_max=65_536))
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    create(writer, poison="dead_letter", deadLetter=DEAD)
    create(writer, DEAD)
    subscribe(writer, DEAD)
    subscribe(reader)
    payload = {"topic": NAMED["topic"], "type": "note", "data": ""}
    spare = 65_536 - 1_024 - len(envelope("hub:publish", payload, sender="@(a/writer)"))

    published = writer.ask("hub:publish", payload | {"data": "x" * (spare - 50)})
    reader.ask("hub:term", NAMED | {"seq": 1, "reason": "why " * 250})

    assert published["type"] == "hub:published"
    (letter,) = [one for one in writer.take() if "deadLetter" in (one["metadata"] or {})]
    assert letter["metadata"]["deadLetter"]["reason"].startswith("why why")
    assert len(wire.encode(letter)) <= 65_536


def test_the_letter_of_a_message_that_very_many_have_failed_on_is_not_too_large_either() -> None:
    shell = MemoryShell(Settings(message_bytes_max=65_536))
    writer = shell.connect("@(a/writer)")
    create(writer, DEAD)
    subscribe(writer, DEAD)
    create(writer, poison="dead_letter", deadLetter=DEAD)
    publish(writer, "x" * 40_000)

    for number in range(120):
        reader = shell.connect(f"@(a/{'reader' * 40}{number})")
        consumer = subscribe(reader, maxDeliveries=120, backoffMs=1, backoffCapMs=1)
        reader.ask("hub:nack", {"subscriptionId": consumer, "seq": 1})
        reader.drop()
        shell.clock.advance(1)

    (letter,) = [one for one in writer.take() if "deadLetter" in (one["metadata"] or {})]
    assert letter["metadata"]["deadLetter"]["consumers"] == [reader.address]
    assert len(wire.encode(letter)) <= 65_536
