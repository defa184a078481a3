"""Messages between the link and the application: readers, handlers, bounds, settling."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from signalhub.client.arrivals import REASON_CHARS_MAX, Arrivals
from signalhub.client.delivery import Delivery, Settled
from signalhub.client.message import Message
from signalhub.client.stream_requests import Ack, Extend, Nack, Term, Verdict
from signalhub.wire.errors import GaveUp, Reject, Unavailable, Unsubscribed

KEY = ("orders", "billing")


class Stream:
    """A durable subscription, and what its messages were settled with."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.settled: list[tuple[Verdict, int, dict[str, Any]]] = []
        self.failure: Unavailable | None = None

    def is_open(self, delivery: Delivery) -> bool:
        return delivery.seq in self.open

    async def settle(
        self, verdict: Verdict, delivery: Delivery, facts: dict[str, Any], *, wait: bool
    ) -> Settled | None:
        if verdict is not Extend:
            self.open.discard(delivery.seq)
        given = {name: fact for name, fact in facts.items() if fact is not None}
        self.settled.append((verdict, delivery.seq, given))
        if self.failure is not None:
            raise self.failure
        return None

    def message(self, seq: int) -> Message:
        self.open.add(seq)
        delivery = Delivery(epoch="e", seq=seq, subscription="billing")
        return message(seq, "order", topic="orders", delivery=delivery, _settler=self)


def message(number: int, type: str = "note", **members: Any) -> Message:
    names = {"id": f"m-{number}", "sender": "@(demo/bob)", "to": "@(demo/alice)"}
    return Message(type=type, payload=number, metadata={}, timestamp=0, **names, **members)


async def turns(count: int = 50) -> None:
    """Let everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def told() -> list[bool]:
    """When the link was told to stop and to go on."""
    return []


@pytest.fixture
def inbox(told: list[bool]) -> Arrivals:
    return Arrivals(4, told.append)


@pytest.fixture
def stream() -> Stream:
    return Stream()


async def test_readers_get_messages_in_order_and_the_end_after_the_last(inbox: Arrivals) -> None:
    waiting = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    for number in range(3):
        inbox.put(message(number))
    inbox.end()

    assert (await waiting).payload == 0
    assert [(await inbox.next()).payload for _ in range(2)] == [1, 2]
    with pytest.raises(StopAsyncIteration):
        await inbox.next()


async def test_a_failure_is_raised_from_every_reader(inbox: Arrivals, stream: Stream) -> None:
    orders = inbox.open_lane(KEY)
    consumers = [asyncio.create_task(orders.next()) for _ in range(2)]
    readers = [asyncio.create_task(inbox.next()) for _ in range(2)]
    await asyncio.sleep(0)

    inbox.end_lane(KEY, Unsubscribed("taken_over", "somebody else is there"))
    inbox.end(GaveUp("no hub any more"))

    for consumer in consumers:
        with pytest.raises(Unsubscribed, match="somebody else"):
            await consumer
    for reader in readers:
        with pytest.raises(GaveUp, match="no hub any more"):
            await reader


async def test_a_handler_takes_its_exact_type_one_at_a_time_in_order(
    told: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Arrivals(100, told.append)
    served: list[int] = []
    active = 0

    async def handler(each: Message) -> None:
        nonlocal active
        active += 1
        assert active == 1
        await asyncio.sleep(0)
        active -= 1
        if each.payload == 1:
            raise RuntimeError("stumbled")
        served.append(each.payload)

    inbox.put(message(0, "task"))
    inbox.put(message(99, "task:other"))
    inbox.on("task", handler)
    with pytest.raises(ValueError, match="has a handler already"):
        inbox.on("task", print)
    for number in (1, 2):
        inbox.put(message(number, "task"))
    await turns()
    plain: list[Message] = []
    inbox.on("note", plain.append)
    inbox.put(message(3))
    await turns()

    assert served == [0, 2]
    assert [each.payload for each in plain] == [3]
    assert "A handler failed" in caplog.text
    assert "stumbled" in caplog.text
    assert (await inbox.next()).payload == 99
    await inbox.close()


async def test_at_the_limit_reading_stops_and_at_half_it_goes_on(
    inbox: Arrivals, told: list[bool]
) -> None:
    reader = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    for number in range(5):
        inbox.put(message(number))
        await asyncio.sleep(0)
    assert (await reader).payload == 0
    assert (await inbox.next()).payload == 1
    assert told == [False]
    assert (await inbox.next()).payload == 2
    assert told == [False, True]

    for number in range(2):
        inbox.put(message(number))
    inbox.lost()
    for number in (2, 3):
        inbox.put(message(number))

    assert told == [False, True, False, False], "the next link is read until it is too much again"


async def test_a_slow_handler_stops_reading_too(inbox: Arrivals, told: list[bool]) -> None:
    go = asyncio.Event()
    seen: list[int] = []

    async def handler(each: Message) -> None:
        await go.wait()
        seen.append(each.payload)

    inbox.on("note", handler)
    for number in range(4):
        inbox.put(message(number))
    assert told == [False]
    go.set()
    await turns()

    assert seen == [0, 1, 2, 3]
    assert told == [False, True]
    await inbox.close()


async def test_messages_nobody_asks_for_make_room_and_are_counted(
    inbox: Arrivals, told: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "signalhub.client"):
        for number in range(10):
            inbox.put(message(number))

    assert told == []
    assert inbox.dropped == 7
    assert caplog.text.count("dropped") == 1
    assert [(await inbox.next()).payload for _ in range(3)] == [7, 8, 9]


async def test_a_handler_may_close_the_inbox_that_serves_it(inbox: Arrivals) -> None:
    closed = asyncio.Event()

    async def handler(each: Message) -> None:
        await inbox.close()
        closed.set()

    inbox.on("note", handler)
    inbox.put(message(1))

    await closed.wait()


async def test_a_handler_settles_by_how_it_ends_unless_it_has_settled_itself(
    inbox: Arrivals, stream: Stream
) -> None:
    async def work(each: Message) -> None:
        match each.payload:
            case 2:
                raise KeyError("no such customer " + "x" * REASON_CHARS_MAX)
            case 3:
                raise Reject("not an order")
            case 4:
                await each.nack(delay_s=2, reason="busy")
            case 5:
                await each.term(reason="bad")
                raise ValueError("after all")
            case 6:
                await each.extend(60)

    orders = inbox.open_lane(KEY)
    orders.serve(work, "orders")
    for seq in range(1, 7):
        orders.put(stream.message(seq))
    await turns()

    reason = "KeyError: 'no such customer " + "x" * REASON_CHARS_MAX
    assert stream.settled == [
        (Ack, 1, {}),
        (Nack, 2, {"reason": reason[:REASON_CHARS_MAX]}),
        (Term, 3, {"reason": "not an order"}),
        (Nack, 4, {"delay_ms": 2000, "reason": "busy"}),
        (Term, 5, {"reason": "bad"}),
        (Extend, 6, {"ms": 60000}),
        (Ack, 6, {}),
    ]
    await inbox.close()


async def test_a_handler_goes_on_when_a_settlement_fails(inbox: Arrivals, stream: Stream) -> None:
    stream.failure = Unavailable("no hub")
    orders = inbox.open_lane(KEY)
    orders.serve(lambda each: None, "orders")

    for seq in (1, 2):
        orders.put(stream.message(seq))
    await turns()

    assert len(stream.settled) == 2
    await inbox.close()


@pytest.mark.parametrize("is_handled", [False, True])
async def test_a_copy_of_what_was_settled_meanwhile_is_left_out(
    inbox: Arrivals, stream: Stream, is_handled: bool
) -> None:
    orders = inbox.open_lane(KEY)
    for seq in (1, 1, 2):
        orders.put(stream.message(seq))
    seen: list[int] = []

    if is_handled:
        orders.serve(lambda each: seen.append(each.payload), "orders")
        await turns()
    else:
        for _ in range(2):
            each = await orders.next()
            seen.append(each.payload)
            await each.ack()

    assert seen == [1, 2]
    await inbox.close()


async def test_a_loss_discards_what_will_come_again_and_nothing_else(
    inbox: Arrivals, stream: Stream, told: list[bool]
) -> None:
    orders = inbox.open_lane(KEY)
    reader = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    inbox.put(message(0))
    await reader
    for each in (stream.message(1), stream.message(2), message(9)):
        inbox.put(each)

    inbox.lost()
    inbox.put(stream.message(3))

    assert (await orders.next()).payload == 3
    assert (await inbox.next()).payload == 9
    for seq in (4, 5, 6):
        inbox.put(stream.message(seq))
    assert told == []
    inbox.put(stream.message(7))
    assert told == [False]


async def test_a_subscription_has_one_lane_and_none_when_it_was_left(
    inbox: Arrivals, stream: Stream
) -> None:
    inbox.open_lane(KEY)
    with pytest.raises(ValueError, match="consumes billing of topic orders already"):
        inbox.open_lane(KEY)
    inbox.put(stream.message(1))
    inbox.end_lane(KEY)

    inbox.put(stream.message(2))
    orders = inbox.open_lane(KEY)
    inbox.end()

    for reading in (inbox.next(), orders.next()):
        with pytest.raises(StopAsyncIteration):
            await reading


async def test_a_handler_at_work_when_its_lane_ends_is_ended_with_the_inbox(
    inbox: Arrivals, stream: Stream
) -> None:
    orders = inbox.open_lane(KEY)
    cancelled = asyncio.Event()

    async def work(each: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    orders.serve(work, "orders")
    inbox.put(stream.message(1))
    await turns()

    inbox.end_lane(KEY)
    assert not cancelled.is_set()
    await inbox.close()

    assert cancelled.is_set()
    assert stream.settled == []
