"""Unsettled messages: one phase each, one place each."""

from __future__ import annotations

import math
from typing import cast

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


def read(window: Window, *flights: Flight) -> None:
    for one in flights:
        window.add(one)


def test_the_oldest_ready_message_is_first_whatever_came_back_when() -> None:
    window, one = Window(is_keyed=False), consumer()
    flights = [flight(seq) for seq in (1, 2, 3)]
    read(window, *flights)
    for each in flights:
        window.sent(each, one, 0, 100)

    for each in (flights[2], flights[0], flights[1]):
        window.back(each)

    assert window.next_ready() is flights[0]
    assert one.flights == one.bytes == 0


def test_a_sent_message_counts_for_its_consumer_until_it_is_settled() -> None:
    window, one = Window(is_keyed=False), consumer()
    sent = flight(1)
    read(window, sent)

    window.sent(sent, one, 5, 100)

    assert (one.flights, one.bytes, sent.deliveries) == (1, 100, 1)
    assert window.next_ready() is None
    window.remove(sent)
    assert (one.flights, one.bytes) == (0, 0)
    assert sent.phase is SETTLED
    assert not len(window)


def test_an_attempt_is_overdue_at_its_deadline_and_not_before() -> None:
    window = Window(is_keyed=False)
    sent = flight(1)
    read(window, sent)
    window.sent(sent, consumer(), 0, 100)

    assert window.next_due_ms() == 100
    assert list(window.overdue(99)) == []
    assert list(window.overdue(100)) == [sent]


def test_an_extended_attempt_is_overdue_later() -> None:
    window = Window(is_keyed=False)
    sent = flight(1)
    read(window, sent)
    window.sent(sent, consumer(), 0, 100)

    window.set_deadline(sent, 500)

    assert list(window.overdue(499)) == []
    assert list(window.overdue(500)) == [sent]


def test_a_shortened_attempt_is_overdue_sooner() -> None:
    window = Window(is_keyed=False)
    sent = flight(1)
    read(window, sent)
    window.sent(sent, consumer(), 0, 100)

    window.set_deadline(sent, 50)

    assert list(window.overdue(50)) == [sent]


def test_the_deadline_of_an_earlier_attempt_means_nothing() -> None:
    window, one = Window(is_keyed=False), consumer()
    sent = flight(1)
    read(window, sent)
    window.sent(sent, one, 0, 100)
    window.back(sent)
    window.sent(sent, one, 50, 150)

    assert list(window.overdue(149)) == []
    assert list(window.overdue(150)) == [sent]


def test_a_pause_ends_at_its_time() -> None:
    window = Window(is_keyed=False)
    waiting = flight(1)
    read(window, waiting)
    window.sent(waiting, consumer(), 0, 100)

    window.wait(waiting, 70)

    assert waiting.phase is WAITING
    assert window.next_ready() is None
    assert list(window.overdue(69)) == []
    assert list(window.overdue(70)) == [waiting]


def test_nothing_is_due_when_all_is_settled() -> None:
    window = Window(is_keyed=False)
    sent = flight(1)
    read(window, sent)
    window.sent(sent, consumer(), 0, 100)
    window.remove(sent)

    assert window.next_due_ms() == math.inf
    assert list(window.overdue(1_000)) == []


def test_exhausted_messages_are_counted_once() -> None:
    window = Window(is_keyed=False)
    lost = flight(1)
    read(window, lost)
    window.sent(lost, consumer(), 0, 100)

    window.exhaust(lost)
    window.exhaust(lost)

    assert (window.exhausted, lost.phase) == (1, EXHAUSTED)
    window.remove(lost)
    assert window.exhausted == 0


# Keys.


def test_the_messages_of_a_key_wait_for_each_other() -> None:
    window = Window(is_keyed=True)
    first, second, other = flight(1, "a"), flight(2, "a"), flight(3, "b")

    read(window, first, second, other)

    assert [lane.queue[0] for lane in window.keyed] == [first, other]


def test_the_next_of_a_key_may_go_when_the_first_is_settled() -> None:
    window = Window(is_keyed=True)
    first, second = flight(1, "a"), flight(2, "a")
    read(window, first, second)
    window.keyed.clear()
    window.sent(first, consumer(), 0, 100)

    window.remove(first)

    (lane,) = window.keyed
    assert lane.queue[0] is second


def test_a_message_that_comes_back_is_still_the_first_of_its_key() -> None:
    window = Window(is_keyed=True)
    first, second = flight(1, "a"), flight(2, "a")
    read(window, first, second)
    window.keyed.clear()
    window.sent(first, consumer(), 0, 100)

    window.back(first)

    (lane,) = window.keyed
    assert list(lane.queue) == [first, second]
    assert first.phase is READY


def test_settling_one_in_the_middle_lets_nothing_overtake() -> None:
    window = Window(is_keyed=True)
    first, second, third = flight(1, "a"), flight(2, "a"), flight(3, "a")
    read(window, first, second, third)
    window.keyed.clear()
    window.sent(first, consumer(), 0, 100)

    window.remove(second)

    assert not window.keyed
    assert list(window.lanes["a"].queue) == [first, third]


def test_a_message_without_a_key_goes_by_its_sender() -> None:
    window = Window(is_keyed=True)

    read(window, flight(1), flight(2))

    assert list(window.lanes) == ["@(sender)"]


def test_a_key_without_messages_is_forgotten() -> None:
    window = Window(is_keyed=True)
    only = flight(1, "a")
    read(window, only)

    window.remove(only)

    assert not window.lanes


def test_clearing_takes_everything_from_the_consumers() -> None:
    window, one = Window(is_keyed=False), consumer()
    sent, ready = flight(1), flight(2)
    read(window, sent, ready)
    window.sent(sent, one, 0, 100)
    window.exhaust(ready)

    window.clear()

    assert (one.flights, window.exhausted, len(window)) == (0, 0, 0)
    assert window.next_due_ms() == math.inf
    assert window.of(one) == []
    assert sent.phase is SETTLED
