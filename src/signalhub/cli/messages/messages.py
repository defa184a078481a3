"""`signalhub tell`, `ask`, `broadcast` and `listen`: messages between actors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec.structs import asdict

from signalhub.cli.terminal.arguments import (
    Address,
    AsText,
    Data,
    MessageId,
    Type,
    address,
    checked_type,
    data,
    optional_address,
)
from signalhub.cli.terminal.connection import LOCAL, HubConnection, Sender, run, stay
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import Output, shown

if TYPE_CHECKING:
    from signalhub.client import BroadcastResult, Client, Delivery, Message, Receipt, Replay

T = TypeVar("T")

# Settles a message; `True` for the last one, whose settlement must be confirmed.
Settle = Callable[["Message", bool], Awaitable[object]]

Count = Annotated[int | None, Parameter(validator=Number(gte=1), help="Stop after N messages.")]
For = Annotated[
    float | None, Parameter(name="--for", validator=Number(gt=0), help="Stop after N seconds.")
]


async def follow(
    messages: AsyncIterable[Message],
    output: Output,
    *,
    count: int | None,
    for_s: float | None,
    settle: Settle | None = None,
    has_positions: bool = False,
    advice: str = "list possible senders with `signalhub ls`",
) -> None:
    """Print each message, then settle it; `advice` says what to do if too few arrive."""

    async def take(message: Message, is_last: bool) -> None:
        print_message(message, output, has_position=has_positions)
        if settle is not None:
            await settle(message, is_last)

    await take_each(messages, take, count=count, for_s=for_s, advice=f", or {advice}")


async def take_each(
    messages: AsyncIterable[T],
    take: Callable[[T, bool], Awaitable[object]],
    *,
    count: int | None,
    for_s: float | None,
    advice: str = "",
) -> None:
    """Take messages as they arrive; fewer than `count` when time is up is a failure."""
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
            f"only {seen} of {count} messages arrived within {for_s:g} s",
            f"wait longer with --for{advice}",
        )


async def each(replay: Replay, connection: HubConnection) -> AsyncIterator[Message]:
    """The messages of a replay, with the timeout for each."""
    while (message := await connection.in_time(anext(replay, None))) is not None:
        yield message


def print_message(message: Message, output: Output, *, has_position: bool) -> None:
    """One message as one line, with its position in the topic if wanted."""
    line = parts(message, is_terminal=output.is_terminal, has_position=has_position)
    output.line(message_facts(message), line)


def message_facts(message: Message) -> dict[str, Any]:
    """A message as one JSON object, with the names of the protocol."""
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
        # It is a copy sent by a replay.
        members["original"] = asdict(message.original)
    return members


def parts(
    message: Message, *, is_terminal: bool, has_position: bool = False
) -> list[tuple[str, str]]:
    """A message as one line, each part with its style; the time only on a terminal."""
    line = [
        (shown(message.sender), "cyan"),
        (shown(message.type), "yellow"),
        (shown(message.payload), ""),
    ]
    if has_position and message.delivery is not None:
        line[:0] = _position(message.delivery, is_terminal=is_terminal)
    if message.topic is not None:
        line.insert(0, (shown(message.topic), "green"))
    if message.original is not None:
        # At the end, so that the columns in a pipe keep their places.
        line.append((f"copy by {shown(message.original.job)}", "magenta"))
    if is_terminal:
        line.insert(0, (_clock(_made_ms(message), time.time()), "dim"))
    return line


def _made_ms(message: Message) -> int:
    """When it was published or sent; the hub forwards stored messages later."""
    published_at = message.delivery and message.delivery.published_at
    return published_at or message.timestamp


def _clock(at_ms: int, now_s: float) -> str:
    """A local time, with the date unless it is today's."""
    try:
        at, now = time.localtime(at_ms / 1000), time.localtime(now_s)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    format = "%H:%M:%S" if at[:3] == now[:3] else "%Y-%m-%d %H:%M:%S"
    return f"{time.strftime(format, at)}.{at_ms % 1000:03d}"


def _position(delivery: Delivery, *, is_terminal: bool) -> list[tuple[str, str]]:
    attempt = str(delivery.attempt)
    if is_terminal:
        attempt = f"attempt {attempt}" if delivery.attempt > 1 else ""
    return [(str(delivery.seq), "bold"), (attempt, "magenta")]


Lifetime = Annotated[
    float | None,
    Parameter(name="--ttl", validator=Number(gt=0), help="Seconds until the message expires."),
]


def tell(
    to: Address,
    payload: Data,
    /,
    *,
    type: Type = "text",
    ttl_s: Lifetime = None,
    as_text: AsText = False,
    sender: Sender = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Send a message at most once, without acknowledgement."""
    target, kind, value = address(to), checked_type(type), data(payload, as_text=as_text)
    speaker = optional_address(sender)

    async def work(me: Client) -> None:
        sending = me.tell(target, kind, value, ttl_ms=_milliseconds(ttl_s), sender=speaker)
        await connection.in_time(sending)
        # The hub answers in order, so a refusal has arrived by now.
        await connection.in_time(me.ping())

    run(connection, work, sender=speaker)
    connection.output.fact(
        {"to": target, "type": kind, "sent": True},
        f"sent to the hub for {target}; a tell is not acknowledged, use ask for that",
    )


def ask(
    to: Address,
    payload: Data,
    /,
    *,
    type: Type = "text",
    ttl_s: Lifetime = None,
    as_text: AsText = False,
    message_id: MessageId = None,
    sender: Sender = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Send a message and print its status: delivered or queued.

    It is queued if the actor is away and has a mailbox. With a mailbox, its
    position there and its durability are printed as well.
    """
    target, kind, value = address(to), checked_type(type), data(payload, as_text=as_text)
    speaker, own = optional_address(sender), connection.checked_id(message_id, sender)

    async def work(me: Client) -> Receipt:
        return await me.ask(
            target,
            kind,
            value,
            ttl_ms=_milliseconds(ttl_s),
            sender=speaker,
            message_id=own,
            timeout_s=connection.timeout_s,
            attempts=1,
        )

    receipt = run(connection, work)
    facts = {
        "to": target,
        "type": kind,
        "status": receipt.status,
        "id": receipt.message_id,
        "epoch": receipt.epoch,
        "seq": receipt.seq,
        "durability": receipt.durability,
        "duplicate": receipt.duplicate,
    }
    connection.output.fact(facts, _outcome(receipt))


def broadcast(
    payload: Data,
    /,
    *,
    capability: Annotated[
        str | None, Parameter(help="Only to actors with this capability.")
    ] = None,
    type: Type = "text",
    as_text: AsText = False,
    sender: Sender = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Send a message to every registered actor."""
    kind, value = checked_type(type), data(payload, as_text=as_text)
    speaker = optional_address(sender)

    async def work(me: Client) -> BroadcastResult:
        return await connection.in_time(
            me.broadcast(kind, value, capability=capability, sender=speaker)
        )

    result = run(connection, work)
    facts = {"delivered": result.delivered, "failed": result.failed, "queued": result.queued}
    connection.output.fact(
        facts,
        f"{result.delivered} sent, {result.queued} to follow in batches, {result.failed} too slow",
    )


def listen(
    name: Address,
    /,
    *,
    capability: Annotated[
        tuple[str, ...],
        Parameter(help="Capability to register; repeatable.", negative=(), show_default=False),
    ] = (),
    durable: Annotated[
        bool | None,
        Parameter(
            negative="--no-durable",
            help="Keep a mailbox for the address, or delete it.",
        ),
    ] = None,
    ack: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Acknowledge mailbox messages after printing, not when they are sent.",
        ),
    ] = False,
    count: Count = None,
    for_s: For = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Register an address and print its messages until Ctrl-C.

    The address is taken over from its current owner. With --durable it gets a
    mailbox, which remains after the command ends.
    """
    own = address(name)

    async def work(me: Client) -> None:
        connection.note(f"listening as {own}; press Ctrl-C to stop")
        settle = _acknowledge if ack else None
        await follow(me.messages(), connection.output, count=count, for_s=for_s, settle=settle)

    stay(
        connection,
        work,
        address=own,
        capabilities=capability,
        durable=durable,
        acknowledge=ack,
    )


async def _acknowledge(message: Message, is_last: bool) -> None:
    if message.is_settleable:
        await message.ack(wait=is_last)


def _outcome(receipt: Receipt) -> str:
    """The outcome of an ask, in a few words."""
    outcome = receipt.status
    if receipt.seq is not None:
        outcome += f", seq {receipt.seq} of epoch {receipt.epoch}, {receipt.durability}"
    return f"{outcome} (duplicate)" if receipt.duplicate else outcome


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
