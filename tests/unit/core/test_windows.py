"""The window of a subscription: what is ready, and what is due to the millisecond."""

from __future__ import annotations

import math
from typing import cast

import pytest

from signalhub.core.sessions.session import Session
from signalhub.core.streams.streams import Held
from signalhub.core.subscriptions.consumers import Consumer
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import EXHAUSTED, READY, SETTLED, WAITING, Flight, Window
from signalhub.pacing import TokenBucket
from signalhub.wire.entry import MessageBody


def consumer() -> Consumer:
    session = Session("s", None, TokenBucket(0, 1, 0), 0)
    nobodys = cast(Subscription, None)
    return Consumer(
        "sub", "c", session, "@(c)", nobodys, window=10, bytes_max=1_000, auto_ack=False
    )


def flight(seq: int, key: str | None = None) -> Flight:
    message = MessageBody(f"m{seq}", b"id", "@(sender)", "t", b"1", key=key)
    return Flight(seq, Held(seq, seq, 0, message, 100), 0, False)


def sent(count: int = 1) -> tuple[Window, Consumer, list[Flight]]:
    """A window with messages that are sent until 100, and their consumer."""
    window, one = Window(is_keyed=False), consumer()
    flights = [flight(seq) for seq in range(1, count + 1)]
    for each in flights:
        window.add(each)
        window.sent(each, one, 0, 100)
    return window, one, flights


def test_the_oldest_ready_message_is_first_whatever_came_back_when() -> None:
    window, one, flights = sent(3)

    for each in (flights[2], flights[0], flights[1]):
        window.back(each)

    assert window.next_ready() is flights[0]
    assert one.flights == one.bytes == 0


def test_a_sent_message_counts_for_its_consumer_until_it_is_settled() -> None:
    window, one, (only,) = sent()

    assert (one.flights, one.bytes, only.deliveries) == (1, 100, 1)
    assert window.next_ready() is None
    window.remove(only)

    assert (one.flights, one.bytes, len(window)) == (0, 0, 0)
    assert only.phase is SETTLED
    assert window.next_due_ms() == math.inf
    assert list(window.overdue(1_000)) == []


@pytest.mark.parametrize(
    "deadlines", [[100], [500], [50], [50, 500]], ids=["as sent", "extended", "shortened", "both"]
)
def test_an_attempt_is_overdue_at_its_deadline_and_not_before(deadlines: list[int]) -> None:
    window, _, (only,) = sent()
    for deadline in deadlines:
        if deadline != 100:
            window.set_deadline(only, deadline)

    assert window.next_due_ms() <= deadline
    assert list(window.overdue(deadline - 1)) == []
    assert list(window.overdue(deadline)) == [only]


def test_the_deadline_of_an_earlier_attempt_means_nothing() -> None:
    window, one, (only,) = sent()
    window.back(only)
    window.sent(only, one, 50, 150)

    assert list(window.overdue(149)) == []
    assert list(window.overdue(150)) == [only]


def test_a_pause_ends_at_its_time() -> None:
    window, _, (only,) = sent()

    window.wait(only, 70)

    assert only.phase is WAITING
    assert window.next_ready() is None
    assert list(window.overdue(69)) == []
    assert list(window.overdue(70)) == [only]


def test_exhausted_messages_are_counted_once() -> None:
    window, _, (lost,) = sent()

    window.exhaust(lost)
    window.exhaust(lost)

    assert (window.exhausted, lost.phase) == (1, EXHAUSTED)
    window.remove(lost)
    assert window.exhausted == 0


def test_settling_one_in_the_middle_of_a_key_lets_nothing_overtake() -> None:
    window = Window(is_keyed=True)
    first, second, third = flights = [flight(seq, "a") for seq in (1, 2, 3)]
    for each in flights:
        window.add(each)
    window.keyed.clear()
    window.sent(first, consumer(), 0, 100)

    window.remove(second)
    assert not window.keyed
    assert list(window.key_queues["a"].flights) == [first, third]
    window.back(first)
    (queue,) = window.keyed

    assert list(queue.flights) == [first, third]
    assert first.phase is READY
