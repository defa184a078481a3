"""Messages between the link and the application."""

from __future__ import annotations

import asyncio
import logging

import pytest

from signalhub.client.arrivals import Arrivals
from signalhub.client.message import Message
from signalhub.wire.errors import GaveUp


class Reading:
    """Remembers when the link was told to stop and to go on."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def __call__(self, is_reading: bool) -> None:
        self.told.append(is_reading)


def message(number: int, type: str = "note") -> Message:
    return Message(
        id=f"m-{number}",
        sender="@(demo/bob)",
        to="@(demo/alice)",
        type=type,
        payload=number,
        metadata={},
        timestamp=0,
    )


async def test_messages_come_in_order() -> None:
    inbox = Arrivals(10, Reading())
    for number in range(3):
        inbox.put(message(number))

    assert [(await inbox.next()).payload for _ in range(3)] == [0, 1, 2]


async def test_a_waiting_reader_is_woken() -> None:
    inbox = Arrivals(10, Reading())
    reader = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)

    inbox.put(message(1))

    assert (await reader).payload == 1


async def test_handlers_take_their_exact_type_one_at_a_time_in_order() -> None:
    inbox = Arrivals(100, Reading())
    served: list[int] = []
    active = 0

    async def handler(each: Message) -> None:
        nonlocal active
        active += 1
        assert active == 1
        await asyncio.sleep(0)
        served.append(each.payload)
        active -= 1
        if each.payload == 9:
            done.set()

    done = asyncio.Event()
    inbox.on("task", handler)
    for number in range(10):
        inbox.put(message(number, "task"))
    inbox.put(message(99, "task:other"))
    await done.wait()

    assert served == list(range(10))
    assert (await inbox.next()).payload == 99
    await inbox.close()


async def test_a_plain_function_is_a_handler_too() -> None:
    inbox = Arrivals(10, Reading())
    served: asyncio.Queue[Message] = asyncio.Queue()
    inbox.on("note", served.put_nowait)

    inbox.put(message(1))

    assert (await served.get()).payload == 1
    await inbox.close()


async def test_a_handler_gets_what_arrived_before_it_was_attached() -> None:
    inbox = Arrivals(10, Reading())
    inbox.put(message(1))
    inbox.put(message(2, "other"))
    served: asyncio.Queue[Message] = asyncio.Queue()

    inbox.on("note", served.put_nowait)

    assert (await served.get()).payload == 1
    assert (await inbox.next()).payload == 2
    await inbox.close()


async def test_a_failing_handler_is_logged_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Arrivals(10, Reading())
    served: asyncio.Queue[int] = asyncio.Queue()

    def handler(each: Message) -> None:
        if each.payload == 0:
            raise RuntimeError("stumbled")
        served.put_nowait(each.payload)

    inbox.on("note", handler)
    inbox.put(message(0))
    inbox.put(message(1))

    assert await served.get() == 1
    assert "A handler failed" in caplog.text
    assert "stumbled" in caplog.text
    await inbox.close()


async def test_a_type_has_one_handler() -> None:
    inbox = Arrivals(10, Reading())
    inbox.on("note", print)

    with pytest.raises(ValueError, match="has a handler already"):
        inbox.on("note", print)
    await inbox.close()


async def test_at_the_limit_reading_stops_and_at_half_it_goes_on() -> None:
    reading = Reading()
    inbox = Arrivals(4, reading)
    reader = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    for number in range(5):
        inbox.put(message(number))
        await asyncio.sleep(0)
    assert (await reader).payload == 0
    assert reading.told == [False]

    assert [(await inbox.next()).payload for _ in range(1)] == [1]
    assert reading.told == [False]
    assert (await inbox.next()).payload == 2

    assert reading.told == [False, True]


async def test_a_slow_handler_stops_reading_too() -> None:
    reading = Reading()
    inbox = Arrivals(3, reading)
    go = asyncio.Event()
    seen: list[int] = []

    async def handler(each: Message) -> None:
        await go.wait()
        seen.append(each.payload)

    inbox.on("note", handler)
    for number in range(3):
        inbox.put(message(number))
    assert reading.told == [False]

    go.set()
    for _ in range(20):
        await asyncio.sleep(0)

    assert seen == [0, 1, 2]
    assert reading.told == [False, True]
    await inbox.close()


async def test_after_a_loss_the_next_link_is_read_until_the_limit_is_met_again() -> None:
    reading = Reading()
    inbox = Arrivals(2, reading)
    reader = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    for number in range(3):
        inbox.put(message(number))
    await reader

    inbox.lost()
    inbox.put(message(3))

    assert reading.told == [False, False]


async def test_messages_nobody_asks_for_make_room_and_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading = Reading()
    inbox = Arrivals(3, reading)

    with caplog.at_level(logging.WARNING, "signalhub.client"):
        for number in range(10):
            inbox.put(message(number))

    assert reading.told == []
    assert inbox.dropped == 8
    assert caplog.text.count("dropped") == 1
    assert [(await inbox.next()).payload for _ in range(2)] == [8, 9]


async def test_the_end_comes_after_the_last_message() -> None:
    inbox = Arrivals(10, Reading())
    inbox.put(message(1))
    inbox.end()

    assert (await inbox.next()).payload == 1
    with pytest.raises(StopAsyncIteration):
        await inbox.next()


async def test_a_failure_is_raised_from_every_reader_after_the_last_message() -> None:
    inbox = Arrivals(10, Reading())
    readers = [asyncio.create_task(inbox.next()) for _ in range(2)]
    await asyncio.sleep(0)

    inbox.end(GaveUp("no hub any more"))

    for reader in readers:
        with pytest.raises(GaveUp, match="no hub any more"):
            await reader


async def test_a_handler_may_close_the_inbox_that_serves_it() -> None:
    inbox = Arrivals(10, Reading())
    closed = asyncio.Event()

    async def handler(each: Message) -> None:
        await inbox.close()
        closed.set()

    inbox.on("note", handler)
    inbox.put(message(1))

    await closed.wait()
