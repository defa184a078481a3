"""`signalhub publish`: send messages to a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.arguments import (
    STDIN,
    AsText,
    Data,
    MessageId,
    Topic,
    Type,
    checked_topic,
    checked_type,
    data,
    decoded,
    optional_address,
    standard_input,
)
from signalhub.cli.terminal.connection import LOCAL, HubConnection, Sender, run
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import counted
from signalhub.cli.terminal.progress import bar
from signalhub.cli.terminal.quantities import moment, option, seconds
from signalhub.wire.errors import ClientError

if TYPE_CHECKING:
    from signalhub.client import Client, Published

IN_FLIGHT_MAX = 64
# Fewer are done before a bar could be read.
BAR_FROM = 200


@Parameter(name="*", group="Durable")
@dataclass(frozen=True, kw_only=True)
class DeliveryOptions:
    """How a message is stored, and when it is delivered."""

    durable: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Require that it is stored; creates the topic if needed.",
        ),
    ] = False
    key: Annotated[
        str | None, Parameter(help="Messages with the same key keep their order in key-shared.")
    ] = None
    header: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(), show_default=False, help="NAME=TEXT sent with the data; repeatable."
        ),
    ] = ()
    deliver_at: Annotated[
        datetime | None, option(moment, "Deliver no earlier than this, such as 2026-01-31T12:00Z.")
    ] = None
    delay: Annotated[
        float | None, option(seconds, "Deliver no earlier than after this time, such as 5s.")
    ] = None
    ttl: Annotated[
        float | None,
        option(seconds, "Expire after this time.", validator=Number(gt=0)),
    ] = None

    def given(self) -> dict[str, Any]:
        """As arguments of the client."""
        if self.deliver_at is not None and self.delay is not None:
            raise usage("--deliver-at and --delay exclude each other", "give one of them")
        due = self.deliver_at
        if self.delay is not None:
            try:
                due = datetime.now(UTC) + timedelta(seconds=self.delay)
            except OverflowError:
                raise usage("--delay is too long", "the last year is 9999") from None
        return {
            "durable": self.durable,
            "key": self.key,
            "headers": dict(map(_header, self.header)) or None,
            "deliver_at": due,
            "ttl_ms": None if self.ttl is None else self.ttl * 1000,
        }


NO_DELIVERY_OPTIONS = DeliveryOptions()


def publish(
    topic: Topic,
    payload: Data,
    /,
    *,
    lines: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="With -: send each line of standard input as one message.",
        ),
    ] = False,
    type: Type = "text",
    as_text: AsText = False,
    message_id: MessageId = None,
    options: DeliveryOptions = NO_DELIVERY_OPTIONS,
    sender: Sender = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Send a message to the subscribers of a topic.

    A durable topic stores it; then its position and durability are printed.
    With --lines and --id the messages have the ids ID-1, ID-2 and so on, so
    the same input can be sent again without duplicates.
    """
    if lines and payload != STDIN:
        raise usage("--lines reads standard input", "give - as the data")
    values = _lines(as_text=as_text) if lines else [data(payload, as_text=as_text)]
    sending = _Publication(
        checked_topic(topic),
        checked_type(type),
        {
            **options.given(),
            "sender": optional_address(sender),
            "timeout_s": connection.timeout_s,
            "attempts": 1,
        },
        connection.checked_id(message_id, sender),
    )
    if lines:
        _publish_all(connection, sending, values)
    else:
        _publish_one(connection, sending, values[0])


@dataclass(frozen=True)
class _Publication:
    """What all messages of one command have in common."""

    topic: str
    type: str
    options: dict[str, Any]
    message_id: str | None

    async def one(self, me: Client, value: Any, number: int | None = None) -> Published:
        own = self.message_id
        if own is not None and number is not None:
            own = f"{own}-{number}"
        return await me.publish(self.topic, self.type, value, message_id=own, **self.options)


def _publish_one(connection: HubConnection, sending: _Publication, value: Any) -> None:
    async def work(me: Client) -> Published:
        return await sending.one(me, value)

    published = run(connection, work)
    connection.output.fact(_facts(published, sending.topic), _sentence(published))


def _publish_all(connection: HubConnection, sending: _Publication, values: Sequence[Any]) -> None:
    """Programs see every position, people a summary."""
    output = connection.output

    async def work(me: Client) -> list[Published]:
        done: list[Published] = []
        total = len(values) if len(values) >= BAR_FROM else 0
        with bar("publishing", output) as show:
            try:
                async for published in _in_order(me, sending, values):
                    done.append(published)
                    if output.as_json:
                        output.fact(_facts(published, sending.topic), "")
                    show(len(done), total)
            except ClientError:
                _report_failed(connection, len(done) + 1)
                raise
        return done

    done = run(connection, work)
    if not output.as_json:
        output.fact({}, _summary(done))


async def _in_order(
    me: Client, sending: _Publication, values: Sequence[Any]
) -> AsyncIterator[Published]:
    """Send many, some concurrently; stop at the first failure, after those already sent."""
    import asyncio
    from collections import deque

    waiting: deque[asyncio.Task[Published]] = deque()
    try:
        for number, value in enumerate(values, 1):
            waiting.append(asyncio.create_task(sending.one(me, value, number)))
            if len(waiting) >= IN_FLIGHT_MAX:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        await asyncio.gather(*waiting, return_exceptions=True)


def _report_failed(connection: HubConnection, number: int) -> None:
    """Say which one failed; later ones that were already sent may have arrived."""
    connection.remark(
        {"failed": number},
        f"message {number} failed; all before it are published, some after it may be",
    )


def _lines(*, as_text: bool) -> list[Any]:
    """The messages on standard input; empty lines are skipped."""
    # `splitlines` would also split at characters that JSON allows inside a string.
    lines = [line for line in standard_input().replace("\r\n", "\n").split("\n") if line]
    if not lines:
        raise usage("standard input is empty", "send at least one line")
    return [decoded(line, as_text=as_text) for line in lines]


def _header(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise usage(f"invalid header {text!r}", "write it like trace=a1b2")
    return name, value


def _facts(published: Published, topic: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "subscribers": published.subscribers,
        "epoch": published.epoch,
        "seq": published.seq,
        "durability": published.durability,
        "duplicate": published.duplicate,
    }


def _sentence(published: Published) -> str:
    readers = counted(published.subscribers, "subscriber")
    if published.seq is None:
        return readers
    place = f"seq {published.seq} of epoch {published.epoch}, {published.durability}, {readers}"
    return f"{place} (duplicate)" if published.duplicate else place


def _summary(done: Sequence[Published]) -> str:
    last = done[-1]
    count = counted(len(done), "message")
    if last.seq is None:
        return count
    repeated = sum(one.duplicate for one in done)
    place = f"{count}, the last is seq {last.seq} of epoch {last.epoch}, {last.durability}"
    return f"{place}; {counted(repeated, 'duplicate')}" if repeated else place
