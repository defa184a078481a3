"""Printing messages as they come, until enough came or time is up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec.structs import asdict

from signalhub.cli.failures import Exit, Failure
from signalhub.cli.output import Output, shown

if TYPE_CHECKING:
    from signalhub.cli.connection import Connection
    from signalhub.client import Delivery, Message, Replay

T = TypeVar("T")

# Says what became of a message; `True` for the last one, of which nothing may be left in the air.
Settle = Callable[["Message", bool], Awaitable[object]]

Count = Annotated[int | None, Parameter(validator=Number(gte=1), help="End after N messages.")]
For = Annotated[
    float | None, Parameter(name="--for", validator=Number(gt=0), help="End after so many seconds.")
]


async def follow(
    messages: AsyncIterable[Message],
    output: Output,
    *,
    count: int | None,
    for_s: float | None,
    settle: Settle | None = None,
    has_positions: bool = False,
) -> None:
    """Print each message, then settle it."""

    async def take(message: Message, is_last: bool) -> None:
        print_message(message, output, has_position=has_positions)
        if settle is not None:
            await settle(message, is_last)

    senders = ", or see with `signalhub ls` who could send"
    await take_each(messages, take, count=count, for_s=for_s, advice=senders)


async def take_each(
    messages: AsyncIterable[T],
    take: Callable[[T, bool], Awaitable[object]],
    *,
    count: int | None,
    for_s: float | None,
    advice: str = "",
) -> None:
    """Take messages as they come; fewer than `count` when time is up is a failure."""
    import asyncio

    seen = 0
    timer = asyncio.timeout(for_s)
    try:
        async with timer:
            async for message in messages:
                seen += 1
                await take(message, seen == count)
                if seen == count:
                    return
    except TimeoutError:
        if not timer.expired():
            raise
    if count is not None:
        raise Failure(
            Exit.FAILED,
            "too_few_messages",
            f"{seen} of {count} messages came within {for_s:g} s",
            f"give it more time with --for{advice}",
        )


async def each(replay: Replay, connection: Connection) -> AsyncIterator[Message]:
    """The messages of a replay, none of which may let the user wait too long."""
    while (message := await connection.in_time(anext(replay, None))) is not None:
        yield message


def print_message(message: Message, output: Output, *, has_position: bool) -> None:
    """One message as one line; its place in its topic is a column of its own."""
    line = parts(message, is_terminal=output.is_terminal, has_position=has_position)
    output.line(message_facts(message), line)


def message_facts(message: Message) -> dict[str, Any]:
    """A message as one JSON object, in the words of the wire."""
    members = {
        "id": message.original_id,
        "from": message.sender,
        "to": message.to,
        "type": message.type,
        "topic": message.topic,
        "payload": message.payload,
        "timestamp": message.timestamp,
    }
    delivery = message.delivery
    if delivery is not None:
        members |= {
            "epoch": delivery.epoch,
            "seq": delivery.seq,
            "attempt": delivery.attempt,
            "redelivered": delivery.redelivered,
            "publishedAt": delivery.published_at,
            "key": message.key,
            "headers": message.headers,
        }
    if message.original is not None:
        # A replay has sent it, and this is where it was taken from.
        members["original"] = asdict(message.original)
    return members


def parts(
    message: Message, *, is_terminal: bool, has_position: bool = False
) -> list[tuple[str, str]]:
    """A message as one line, each part with its style; only people are shown the time."""
    line = [
        (shown(message.sender), "cyan"),
        (shown(message.type), "yellow"),
        (shown(message.payload), ""),
    ]
    if has_position and message.delivery is not None:
        line[:0] = _position(message.delivery, is_terminal=is_terminal)
    if message.topic is not None:
        line.insert(0, (shown(message.topic), "green"))
    if is_terminal:
        clock = time.strftime("%H:%M:%S", time.localtime(message.timestamp / 1000))
        line.insert(0, (f"{clock}.{message.timestamp % 1000:03d}", "dim"))
    return line


def _position(delivery: Delivery, *, is_terminal: bool) -> list[tuple[str, str]]:
    attempt = str(delivery.attempt)
    if is_terminal:
        attempt = f"attempt {attempt}" if delivery.attempt > 1 else ""
    return [(str(delivery.seq), "bold"), (attempt, "magenta")]
