"""Printing messages as they come, until enough came or time is up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.failures import Exit, Failure
from signalhub.cli.output import Output, shown

if TYPE_CHECKING:
    from signalhub.client import Message

Count = Annotated[int | None, Parameter(validator=Number(gte=1), help="End after N messages.")]
For = Annotated[
    float | None, Parameter(name="--for", validator=Number(gt=0), help="End after so many seconds.")
]


async def follow(
    messages: AsyncIterable[Message], output: Output, *, count: int | None, for_s: float | None
) -> None:
    """Print each message; fewer than `count` when time is up is a failure."""
    import asyncio

    seen = 0
    timer = asyncio.timeout(for_s)
    try:
        async with timer:
            async for message in messages:
                seen += 1
                output.line(facts(message), parts(message, is_terminal=output.is_terminal))
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
            "give it more time with --for, or see with `signalhub ls` who could send",
        )


def facts(message: Message) -> dict[str, Any]:
    """A message as one JSON object, in the words of the wire."""
    return {
        "id": message.original_id,
        "from": message.sender,
        "to": message.to,
        "type": message.type,
        "topic": message.topic,
        "payload": message.payload,
        "timestamp": message.timestamp,
    }


def parts(message: Message, *, is_terminal: bool) -> list[tuple[str, str]]:
    """A message as one line, each part with its style; only people are shown the time."""
    line = [
        (shown(message.sender), "cyan"),
        (shown(message.type), "yellow"),
        (shown(message.payload), ""),
    ]
    if message.topic is not None:
        line.insert(0, (shown(message.topic), "green"))
    if is_terminal:
        clock = time.strftime("%H:%M:%S", time.localtime(message.timestamp / 1000))
        line.insert(0, (f"{clock}.{message.timestamp % 1000:03d}", "dim"))
    return line
