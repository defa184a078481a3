"""Keys that wait for their owner: a pass skips them at no cost, and none is forgotten."""

from __future__ import annotations

import pytest

from signalhub.core.subscriptions import send
from signalhub.core.subscriptions.consumers import Consumers, KeyQueue
from signalhub.settings.model import Settings
from tests.support.memory.shell import MemoryShell
from tests.support.memory.topics import (
    NAMED,
    create,
    publish,
    seqs,
    subscribe,
    subscription_of,
    working,
)

KEYS = 1_500


def test_a_message_costs_the_same_however_many_keys_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = MemoryShell(Settings(message_rate=0.0))
    writer = shell.connect("@(a/writer)")
    create(writer)
    readers = [shell.connect(f"@(a/reader{number})") for number in range(4)]
    for number, (reader, window) in enumerate(zip(readers, (5_000, 1, 1, 1), strict=True)):
        subscribe(reader, mode="key-shared", window=window, consumer=f"c{number}")
    writer.ask("hub:sub_pause", NAMED)
    for number in range(KEYS):
        writer.tell(
            "hub:publish",
            {"topic": "t", "type": "news", "durable": True, "key": f"k{number}"},
        )
    looks = 0
    owner_of = Consumers.owner_of

    def counted(consumers: Consumers, queue: KeyQueue) -> object:
        nonlocal looks
        looks += 1
        return owner_of(consumers, queue)

    monkeypatch.setattr(Consumers, "owner_of", counted)

    writer.ask("hub:sub_resume", NAMED)

    assert subscription_of(shell).next_seq == KEYS + 1
    assert looks < 2 * KEYS


def test_a_pass_over_waiting_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "PASS_MESSAGES_MAX", 10)
    shell = MemoryShell()
    writer, reader = working(shell, mode="key-shared", window=100)
    (name,) = reader.session.consumers
    reader.ask("hub:credit", {"subscriptionId": name, "messages": 0})
    for number in range(50):
        publish(writer, key=f"k{number}")
    subscription = subscription_of(shell)
    (consumer,) = subscription.consumers
    consumer.window = 100

    is_unfinished = send.run(subscription, shell.now)

    assert is_unfinished
    assert len(subscription.sends) <= 10
    shell.hub.dispatcher.wake(subscription)
    shell.settle()
    assert seqs(reader) == list(range(1, 51))


def test_a_key_that_waits_behind_an_emptied_one_is_sent_when_there_is_room() -> None:
    shell = MemoryShell()
    writer, reader = working(shell, mode="key-shared", window=3, backoffMs=100)
    (name,) = reader.session.consumers
    for key in ("k1", "k2", "k3"):
        publish(writer, key=key)
    for seq in (1, 3):
        reader.ask("hub:nack", NAMED | {"seq": seq})
    reader.ask("hub:credit", {"subscriptionId": name, "messages": 1})
    shell.pass_time(5)
    (consumer,) = subscription_of(shell).consumers
    emptied, waiting = (queue.flights[0].seq for queue in consumer.waiting)

    reader.ask("hub:ack", NAMED | {"seq": emptied})
    reader.take()
    reader.ask("hub:ack", NAMED | {"seq": 2})

    assert seqs(reader) == [waiting]


def test_keys_of_a_consumer_that_leaves_while_they_wait_go_to_another() -> None:
    shell = MemoryShell()
    writer = shell.connect("@(a/writer)")
    one, two = shell.connect("@(a/one)"), shell.connect("@(a/two)")
    create(writer)
    for peer in (one, two):
        subscribe(peer, mode="key-shared", window=2, consumer=peer.address)
    keys = [f"k{number}" for number in range(12)]
    for key in keys:
        publish(writer, key=key)
    subscription = subscription_of(shell)
    assert any(consumer.waiting for consumer in subscription.consumers)

    one.drop()
    while subscription.position.floor != len(keys):
        held = seqs(two)
        assert held, "a key is waited for by nobody"
        two.ask("hub:ack", NAMED | {"seqs": held})

    assert not subscription.window.key_queues
