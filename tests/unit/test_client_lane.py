"""Handlers settle what they are given; readers get nothing that is settled already."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.client.arrivals import REASON_CHARS_MAX, Arrivals, HandlerLane
from signalhub.client.delivery import Delivery, Settled
from signalhub.client.message import Message
from signalhub.client.stream_requests import Ack, Extend, Nack, Term, Verdict
from signalhub.wire.errors import Reject, Unavailable, Unsubscribed

KEY = ("orders", "billing")


class Ledger:
    """A stream of which the test is the hub."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.settled: list[tuple[Verdict, int, dict[str, Any]]] = []
        self.done = asyncio.Event()
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
        self.done.set()
        if self.failure is not None:
            raise self.failure
        return None

    def message(self, seq: int) -> Message:
        self.open.add(seq)
        return Message(
            id=f"m-{seq}",
            sender="@(demo/shop)",
            to="@(demo/alice)",
            type="order",
            payload=seq,
            metadata={},
            timestamp=0,
            topic="orders",
            delivery=Delivery(epoch="e", seq=seq, subscription="billing"),
            _settler=self,
        )

    async def settlements(self, count: int) -> list[tuple[Verdict, int, dict[str, Any]]]:
        """What was settled, as soon as there are so many."""
        async with asyncio.timeout(5):
            while len(self.settled) < count:
                self.done.clear()
                await self.done.wait()
        return self.settled


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def lane() -> HandlerLane:
    return HandlerLane(lambda: None)


async def test_a_handler_that_returns_acknowledges(ledger: Ledger) -> None:
    orders = lane()
    orders.serve(lambda message: None, "orders")

    for seq in (1, 2):
        orders.put(ledger.message(seq))

    assert await ledger.settlements(2) == [(Ack, 1, {}), (Ack, 2, {})]
    await orders.close()


async def test_a_handler_that_raises_lets_the_message_come_again_with_the_reason(
    ledger: Ledger,
) -> None:
    async def fail(message: Message) -> None:
        raise KeyError("no such customer " + "x" * REASON_CHARS_MAX)

    orders = lane()
    orders.serve(fail, "orders")
    orders.put(ledger.message(1))

    ((verdict, seq, facts),) = await ledger.settlements(1)
    assert (verdict, seq) == (Nack, 1)
    assert facts["reason"].startswith("KeyError: 'no such customer")
    assert len(facts["reason"]) == REASON_CHARS_MAX
    await orders.close()


async def test_a_handler_that_rejects_gives_the_message_up(ledger: Ledger) -> None:
    def reject(message: Message) -> None:
        raise Reject("not an order")

    orders = lane()
    orders.serve(reject, "orders")
    orders.put(ledger.message(1))

    assert await ledger.settlements(1) == [(Term, 1, {"reason": "not an order"})]
    await orders.close()


async def test_what_a_handler_settled_itself_is_left_alone(ledger: Ledger) -> None:
    async def choose(message: Message) -> None:
        if message.payload == 1:
            await message.nack(delay_s=2, reason="busy")
        elif message.payload == 2:
            await message.term(reason="bad")
            raise ValueError("after all")
        else:
            await message.extend(60)

    orders = lane()
    orders.serve(choose, "orders")
    for seq in (1, 2, 3):
        orders.put(ledger.message(seq))

    assert await ledger.settlements(4) == [
        (Nack, 1, {"delay_ms": 2000, "reason": "busy"}),
        (Term, 2, {"reason": "bad"}),
        (Extend, 3, {"ms": 60000}),
        (Ack, 3, {}),
    ]
    await orders.close()


async def test_a_handler_goes_on_when_a_settlement_fails(ledger: Ledger) -> None:
    ledger.failure = Unavailable("no hub")
    orders = lane()
    orders.serve(lambda message: None, "orders")

    for seq in (1, 2):
        orders.put(ledger.message(seq))

    assert len(await ledger.settlements(2)) == 2
    await orders.close()


async def test_a_copy_of_what_was_settled_meanwhile_is_not_handed_out(ledger: Ledger) -> None:
    orders = lane()
    for seq in (1, 1, 2):
        orders.put(ledger.message(seq))

    first = await orders.next()
    await first.ack()

    assert (await orders.next()).payload == 2


async def test_a_copy_of_what_was_settled_meanwhile_is_not_handled(ledger: Ledger) -> None:
    orders = lane()
    for seq in (1, 1, 2):
        orders.put(ledger.message(seq))
    handled: list[int] = []

    orders.serve(lambda message: handled.append(message.payload), "orders")
    await ledger.settlements(2)

    assert handled == [1, 2]
    await orders.close()


async def test_a_loss_discards_what_will_come_again_and_nothing_else(ledger: Ledger) -> None:
    told: list[bool] = []
    inbox = Arrivals(4, told.append)
    orders = inbox.open_lane(KEY)
    plain = Message(
        id="p", sender="@(a/b)", to="@(a/c)", type="note", payload=0, metadata={}, timestamp=0
    )
    reader = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    inbox.put(plain)
    await reader
    for seq in (1, 2):
        inbox.put(ledger.message(seq))
    inbox.put(plain)

    inbox.lost()
    inbox.put(ledger.message(3))

    assert (await orders.next()).payload == 3
    assert (await inbox.next()).payload == 0
    assert told == []
    for seq in (4, 5, 6):
        inbox.put(ledger.message(seq))
    assert told == []
    inbox.put(ledger.message(7))
    assert told == [False]


async def test_messages_of_a_subscription_that_was_left_go_nowhere(ledger: Ledger) -> None:
    inbox = Arrivals(2, lambda is_reading: None)
    inbox.open_lane(KEY)
    inbox.put(ledger.message(1))
    inbox.end_lane(KEY)

    inbox.put(ledger.message(2))
    inbox.end()

    with pytest.raises(StopAsyncIteration):
        await inbox.next()


async def test_a_lane_that_was_ended_says_why_to_every_reader(ledger: Ledger) -> None:
    inbox = Arrivals(10, lambda is_reading: None)
    orders = inbox.open_lane(KEY)
    readers = [asyncio.create_task(orders.next()) for _ in range(2)]
    await asyncio.sleep(0)

    inbox.end_lane(KEY, Unsubscribed("taken_over", "somebody else is there"))

    for reader in readers:
        with pytest.raises(Unsubscribed, match="somebody else"):
            await reader


async def test_one_subscription_has_one_lane() -> None:
    inbox = Arrivals(10, lambda is_reading: None)
    inbox.open_lane(KEY)

    with pytest.raises(ValueError, match="consumes billing of topic orders already"):
        inbox.open_lane(KEY)

    inbox.end_lane(KEY)
    inbox.open_lane(KEY)


async def test_a_handler_at_work_when_its_lane_ends_is_ended_with_the_inbox(ledger: Ledger) -> None:
    inbox = Arrivals(10, lambda is_reading: None)
    orders = inbox.open_lane(KEY)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work(message: Message) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    orders.serve(work, "orders")
    inbox.put(ledger.message(1))
    await begun.wait()

    inbox.end_lane(KEY)
    assert not cancelled.is_set()
    await inbox.close()

    assert cancelled.is_set()
    assert ledger.settled == []
