"""Series: messages that are sent together and acknowledged in order need no flights."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core.subscriptions.window import SENT, WAITING
from signalhub.settings.model import Settings
from signalhub.wire.entry import Kind, SettledBody, Settlement, decode_body
from tests.support.memory.shell import MemoryShell, Peer
from tests.support.memory.topics import (
    NAMED,
    attempts,
    position_of,
    publish,
    seqs,
    subscribe,
    subscription_of,
    working,
)
from tests.support.memory.turns import TurningShell


def stored(messages: int, **options: Any) -> tuple[MemoryShell, Peer]:
    """A consumer that was sent all stored messages in one pass."""
    shell = MemoryShell(Settings(message_rate=0.0))
    writer, reader = working(shell)
    reader.ask("hub:unsubscribe", NAMED)
    for number in range(messages):
        publish(writer, number)
    reader.take()
    subscribe(reader, **options)
    assert seqs(reader) == list(range(1, messages + 1))
    return shell, reader


def ack(reader: Peer, **payload: object) -> None:
    reader.tell("hub:ack", NAMED | payload)


def written(shell: MemoryShell) -> list[Settlement]:
    """The settlements in the log."""
    return [
        one
        for entry in shell.engine.entries
        if entry.kind == Kind.SETTLED
        for one in decode_body(SettledBody, entry.body).deliveries
    ]


def test_messages_acknowledged_in_order_stay_in_their_series() -> None:
    shell, reader = stored(5)
    subscription = subscription_of(shell)
    (consumer,) = subscription.consumers
    (series,) = subscription.window.series
    assert (consumer.flights, len(series.held), len(subscription.window)) == (5, 5, 5)

    for seq in (1, 2):
        ack(reader, seq=seq)

    assert subscription.window.series[0] is series
    assert (series.first, consumer.flights, subscription.position.floor) == (3, 3, 2)
    assert consumer.bytes == sum(held.size for held in series.held)
    assert subscription.window.count(SENT) == 3


def test_settlements_of_a_series_are_written_one_by_one() -> None:
    shell, reader = stored(3)

    sent_ms = shell.now
    ack(reader, seq=1)
    shell.pass_time(5)
    ack(reader, seq=2)

    settled = written(shell)
    assert [(one.seq, one.attempts, one.first_sent, one.last_sent) for one in settled] == [
        (1, 1, sent_ms, sent_ms),
        (2, 1, sent_ms, sent_ms),
    ]
    topic = shell.hub.streams.topics["t"]
    assert [one.offset for one in settled] == [topic.recent[seq].offset for seq in (1, 2)]


@pytest.mark.parametrize("named", [{"seq": 3}, {"seqs": [2, 3]}, {"upTo": 3}])
def test_any_other_acknowledgement_counts_as_well(named: dict[str, object]) -> None:
    shell, reader = stored(4)

    ack(reader, **named)

    left = {"seq": [1, 2, 4], "seqs": [1, 4], "upTo": [4]}[next(iter(named))]
    assert sorted(subscription_of(shell).window.flights) == left


@pytest.mark.parametrize("mistake", [{"id": "x.1.1.1"}, {"attempt": 2}])
def test_an_acknowledgement_of_another_attempt_is_ignored(mistake: dict[str, object]) -> None:
    shell, reader = stored(2)

    ack(reader, seq=1, **mistake)

    assert position_of(shell).floor == 0
    assert subscription_of(shell).stats.ignored == 1


def test_what_is_not_acknowledged_in_time_comes_again() -> None:
    shell, reader = stored(3, ackTimeoutMs=50, backoffMs=0)
    ack(reader, seq=1)

    shell.advance(49)
    assert attempts(reader) == []
    shell.advance(1)

    assert attempts(reader) == [(2, 2), (3, 2)]


def test_a_shorter_timeout_holds_for_what_is_sent_after_it() -> None:
    shell, reader = stored(2, ackTimeoutMs=10_000, backoffMs=0)
    writer = shell.peers[0]
    writer.ask("hub:sub_update", NAMED | {"ackTimeoutMs": 50})
    publish(writer)
    assert seqs(reader) == [3]

    shell.advance(50)
    assert attempts(reader) == [(3, 2)]
    shell.advance(9_950)

    assert (1, 2) in attempts(reader)


def test_one_failure_ends_the_series_and_the_others_are_still_acknowledged() -> None:
    shell, reader = stored(3)
    subscription = subscription_of(shell)

    reader.tell("hub:nack", NAMED | {"seq": 2, "delayMs": 1_000})
    ack(reader, seq=1)
    ack(reader, seq=3)

    assert not subscription.window.series
    assert subscription.window.count(WAITING) == 1
    assert subscription.position.floor == 1


def test_what_a_consumer_leaves_behind_goes_to_the_next_one() -> None:
    shell, reader = stored(3)
    ack(reader, seq=1)
    reader.drop()

    other = shell.connect("@(a/other)")
    subscribe(other)

    assert attempts(other) == [(2, 2), (3, 2)]


def test_looking_at_a_window_leaves_its_series_alone() -> None:
    shell, reader = stored(3)
    subscription = subscription_of(shell)

    reader.ask("hub:sub_info", NAMED)
    seen = subscription.window.seen()

    assert sorted(seen) == [1, 2, 3]
    assert len(subscription.window.series) == 1
    assert 2 in subscription.window
    assert subscription.oldest_ms() == seen[1].held.at_ms  # type: ignore[union-attr]


def test_messages_sent_at_different_times_are_written_with_their_own() -> None:
    shell = TurningShell(Settings(message_rate=0.0))
    writer, reader = working(shell, 1)
    sent_ms = shell.now
    shell.pass_time(5)
    publish(writer)

    with shell.one_turn():
        for seq in (1, 2):
            ack(reader, seq=seq)

    assert [(one.seq, one.first_sent) for one in written(shell)] == [
        (1, sent_ms),
        (2, sent_ms + 5_000),
    ]


def test_a_series_takes_no_more_than_the_credit_in_bytes() -> None:
    shell = MemoryShell(Settings(message_rate=0.0))
    writer, reader = working(shell)
    consumer_id = next(iter(reader.session.consumers))
    reader.tell("hub:sub_pause", NAMED)
    for number in range(5):
        publish(writer, number)
    size = shell.hub.streams.topics["t"].recent[1].size
    reader.tell("hub:credit", {"subscriptionId": consumer_id, "bytes": 2 * size + 1})

    reader.tell("hub:sub_resume", NAMED)

    # A consumer has room until its credit is used up.
    assert seqs(reader) == [1, 2, 3]


def test_a_large_series_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signalhub.core.subscriptions.send.SERIES_BYTES_MAX", 300)

    shell, _ = stored(9)

    assert len(subscription_of(shell).window.series) > 1


def test_a_hub_that_was_asleep_waits_longer() -> None:
    shell, reader = stored(1, ackTimeoutMs=8_000, backoffMs=0)
    shell.perform(shell.hub.tick(shell.now))

    shell.clock.advance(60)
    shell.perform(shell.hub.tick(shell.now))
    assert attempts(reader) == []
    shell.advance(8_000)

    assert attempts(reader) == [(1, 2)]
