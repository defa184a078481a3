"""Messages between the link and the application: readers, handlers, bounds, settling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalhub.client.arrivals import REASON_CHARS_MAX, Arrivals
from signalhub.client.delivery import Delivery, Settled
from signalhub.client.message import Message
from signalhub.client.stream_requests import Ack, Extend, Nack, Term, Verdict
from signalhub.wire.errors import GaveUp, Reject, Unavailable, Unsubscribed

KEY = ("orders", "billing")


class Link:
    """An inbox for four messages, and a durable subscription whose messages come to it."""

    def __init__(self) -> None:
        self.told: list[bool] = []  # When the link was told to stop and to go on.
        self.inbox = Arrivals(4, self.told.append)
        self.open: set[int] = set()
        self.settled: list[tuple[Verdict, int, dict[str, Any]]] = []
        self.failure: Unavailable | None = None

    def is_open(self, delivery: Delivery) -> bool:
        return delivery.seq in self.open

    async def settle(
        self,
        verdict: Verdict,
        message_id: str,
        delivery: Delivery,
        facts: dict[str, Any],
        *,
        wait: bool,
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
    names: dict[str, Any] = {"id": f"m-{number}", "sender": "@(demo/bob)", "to": "@(demo/alice)"}
    return Message(type=type, payload=number, metadata={}, timestamp=0, **names, **members)


async def turns(count: int = 50) -> None:
    """Let everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    link = Link()
    yield link
    await link.inbox.close()


async def test_readers_get_messages_in_order_and_the_end_after_the_last(link: Link) -> None:
    waiting = asyncio.create_task(link.inbox.next())
    await asyncio.sleep(0)
    for number in range(3):
        link.inbox.put(message(number))
    link.inbox.end()

    assert (await waiting).payload == 0
    assert [(await link.inbox.next()).payload for _ in range(2)] == [1, 2]
    with pytest.raises(StopAsyncIteration):
        await link.inbox.next()


async def test_a_failure_is_raised_from_every_reader(link: Link) -> None:
    orders = link.inbox.open_queue(KEY)
    consumers = [asyncio.create_task(orders.next()) for _ in range(2)]
    readers = [asyncio.create_task(link.inbox.next()) for _ in range(2)]
    await asyncio.sleep(0)

    link.inbox.end_queue(KEY, Unsubscribed("taken_over", "somebody else is there"))
    link.inbox.end(GaveUp("no hub any more"))

    for consumer in consumers:
        with pytest.raises(Unsubscribed, match="somebody else"):
            await consumer
    for reader in readers:
        with pytest.raises(GaveUp, match="no hub any more"):
            await reader


async def test_a_handler_takes_its_exact_type_one_at_a_time_in_order(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Arrivals(100, link.told.append)
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
    with pytest.raises(ValueError, match="already has a handler"):
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


async def test_at_the_limit_reading_stops_and_at_half_it_goes_on(link: Link) -> None:
    reader = asyncio.create_task(link.inbox.next())
    await asyncio.sleep(0)
    for number in range(5):
        link.inbox.put(message(number))
        await asyncio.sleep(0)
    assert (await reader).payload == 0
    assert (await link.inbox.next()).payload == 1
    assert link.told == [False]
    assert (await link.inbox.next()).payload == 2
    assert link.told == [False, True]

    for number in range(2):
        link.inbox.put(message(number))
    link.inbox.lost()
    for number in (2, 3):
        link.inbox.put(message(number))

    assert link.told == [False, True, False, False], (
        "the next link is read until it is too much again"
    )


async def test_a_slow_handler_stops_reading_too(link: Link) -> None:
    go = asyncio.Event()
    seen: list[int] = []

    async def handler(each: Message) -> None:
        await go.wait()
        seen.append(each.payload)

    link.inbox.on("note", handler)
    for number in range(4):
        link.inbox.put(message(number))
    assert link.told == [False]
    go.set()
    await turns()

    assert seen == [0, 1, 2, 3]
    assert link.told == [False, True]


async def test_messages_nobody_asks_for_make_room_and_are_counted(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "signalhub.client"):
        for number in range(10):
            link.inbox.put(message(number))

    assert link.told == []
    assert link.inbox.dropped == 7
    assert caplog.text.count("dropped") == 1
    assert [(await link.inbox.next()).payload for _ in range(3)] == [7, 8, 9]


async def test_a_handler_may_close_the_inbox_that_serves_it(link: Link) -> None:
    closed = asyncio.Event()

    async def handler(each: Message) -> None:
        await link.inbox.close()
        closed.set()

    link.inbox.on("note", handler)
    link.inbox.put(message(1))

    await closed.wait()


async def test_a_handler_settles_by_how_it_ends_unless_it_has_settled_itself(link: Link) -> None:
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

    orders = link.inbox.open_queue(KEY)
    orders.serve(work, "orders")
    for seq in range(1, 7):
        orders.put(link.message(seq))
    await turns()

    reason = "KeyError: 'no such customer " + "x" * REASON_CHARS_MAX
    assert link.settled == [
        (Ack, 1, {}),
        (Nack, 2, {"reason": reason[:REASON_CHARS_MAX]}),
        (Term, 3, {"reason": "not an order"}),
        (Nack, 4, {"delay_ms": 2000, "reason": "busy"}),
        (Term, 5, {"reason": "bad"}),
        (Extend, 6, {"ms": 60000}),
        (Ack, 6, {}),
    ]


async def test_a_handler_goes_on_when_a_settlement_fails(link: Link) -> None:
    link.failure = Unavailable("no hub")
    orders = link.inbox.open_queue(KEY)
    orders.serve(lambda each: None, "orders")

    for seq in (1, 2):
        orders.put(link.message(seq))
    await turns()

    assert len(link.settled) == 2


@pytest.mark.parametrize("is_handled", [False, True])
async def test_a_copy_of_what_was_settled_meanwhile_is_left_out(
    link: Link, is_handled: bool
) -> None:
    orders = link.inbox.open_queue(KEY)
    for seq in (1, 1, 2):
        orders.put(link.message(seq))
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


async def test_a_loss_discards_what_will_come_again_and_nothing_else(link: Link) -> None:
    orders = link.inbox.open_queue(KEY)
    reader = asyncio.create_task(link.inbox.next())
    await asyncio.sleep(0)
    link.inbox.put(message(0))
    await reader
    for each in (link.message(1), link.message(2), message(9)):
        link.inbox.put(each)

    link.inbox.lost()
    link.inbox.put(link.message(3))

    assert (await orders.next()).payload == 3
    assert (await link.inbox.next()).payload == 9
    for seq in (4, 5, 6):
        link.inbox.put(link.message(seq))
    assert link.told == []
    link.inbox.put(link.message(7))
    assert link.told == [False]


async def test_a_subscription_has_one_queue_and_none_when_it_was_left(link: Link) -> None:
    link.inbox.open_queue(KEY)
    with pytest.raises(ValueError, match="already consumes billing of topic orders"):
        link.inbox.open_queue(KEY)
    link.inbox.put(link.message(1))
    link.inbox.end_queue(KEY)

    link.inbox.put(link.message(2))
    orders = link.inbox.open_queue(KEY)
    link.inbox.end()

    for reading in (link.inbox.next(), orders.next()):
        with pytest.raises(StopAsyncIteration):
            await reading


async def test_a_handler_at_work_when_its_queue_ends_is_ended_with_the_inbox(link: Link) -> None:
    orders = link.inbox.open_queue(KEY)
    cancelled = asyncio.Event()

    async def work(each: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    orders.serve(work, "orders")
    link.inbox.put(link.message(1))
    await turns()

    link.inbox.end_queue(KEY)
    assert not cancelled.is_set()
    await link.inbox.close()

    assert cancelled.is_set()
    assert link.settled == []


async def test_messages_left_in_an_ended_queue_can_be_read_and_do_not_count(link: Link) -> None:
    orders = link.inbox.open_queue(KEY)
    for seq in (1, 2, 3):
        delivery = Delivery(epoch="e", seq=seq, subscription="billing")
        link.inbox.put(message(seq, "order", topic="orders", delivery=delivery))
    link.inbox.end_queue(KEY)

    reader = asyncio.create_task(link.inbox.next())
    await asyncio.sleep(0)
    link.inbox.put(message(0))
    assert (await reader).payload == 0
    assert [(await orders.next()).payload for _ in range(2)] == [1, 2]
    for number in (4, 5, 6):
        link.inbox.put(message(number))
    assert link.told == []
    link.inbox.put(message(7))
    assert link.told == [False]


async def test_a_message_whose_handler_was_cancelled_does_not_count(link: Link) -> None:
    for seq in (1, 2, 3, 4):
        orders = link.inbox.open_queue(KEY)
        orders.serve(lambda each: asyncio.Event().wait(), "orders")
        link.inbox.put(link.message(seq))
        await turns()
        link.inbox.end_queue(KEY)
        await orders.close()

    link.inbox.on("note", lambda each: None)
    link.inbox.put(message(5))
    assert link.told == []
