"""`signalhub tell`, `ask`, `broadcast` and `listen`: messages from actor to actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import (
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
from signalhub.cli.connection import LOCAL, Connection, Sender, run, stay
from signalhub.cli.following import Count, For, follow

if TYPE_CHECKING:
    from signalhub.client import BroadcastResult, Client, Message, Receipt

Lifetime = Annotated[
    float | None,
    Parameter(name="--ttl", validator=Number(gt=0), help="Seconds in which it may be delivered."),
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
    connection: Connection = LOCAL,
) -> None:
    """Send a message, at most once and unacknowledged: one to nobody vanishes."""
    target, kind, value = address(to), checked_type(type), data(payload, as_text=as_text)
    speaker = optional_address(sender)

    async def work(me: Client) -> None:
        sending = me.tell(target, kind, value, ttl_ms=_milliseconds(ttl_s), sender=speaker)
        await connection.in_time(sending)
        # The hub answers in order: had it refused the tell, we would know by now.
        await connection.in_time(me.ping())

    run(connection, work, sender=speaker)
    connection.output.fact(
        {"to": target, "type": kind, "sent": True},
        f"sent to the hub for {target}; a tell is not acknowledged, an ask is",
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
    connection: Connection = LOCAL,
) -> None:
    """Send a message and print what became of it: delivered, or queued.

    It is queued for an actor that is away and has a mailbox. With a mailbox,
    the position in it is printed, and how safe it is there.
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
    connection.output.fact(facts, _fate(receipt))


def broadcast(
    payload: Data,
    /,
    *,
    capability: Annotated[str | None, Parameter(help="Only to actors that can do this.")] = None,
    type: Type = "text",
    as_text: AsText = False,
    sender: Sender = None,
    connection: Connection = LOCAL,
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
        f"{result.delivered} sent, {result.queued} following in batches, {result.failed} too slow",
    )


def listen(
    name: Address,
    /,
    *,
    capability: Annotated[
        tuple[str, ...],
        Parameter(help="A word to be found by; repeatable.", negative=(), show_default=False),
    ] = (),
    durable: Annotated[
        bool | None,
        Parameter(
            negative="--no-durable",
            help="Keep asks to the address while nobody listens; or drop those that were kept.",
        ),
    ] = None,
    ack: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Settle what comes from the mailbox after printing, not when it is written to us.",
        ),
    ] = False,
    count: Count = None,
    for_s: For = None,
    connection: Connection = LOCAL,
) -> None:
    """Register an address and print every message to it.

    The address is taken from whoever had it. With --durable it has a mailbox,
    which stays when the command ends. Ctrl-C ends.
    """
    own = address(name)

    async def work(me: Client) -> None:
        connection.note(f"listening as {own}; Ctrl-C ends")
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


def _fate(receipt: Receipt) -> str:
    """What became of an ask, in a few words."""
    fate = receipt.status
    if receipt.seq is not None:
        fate += f", seq {receipt.seq} of epoch {receipt.epoch}, {receipt.durability}"
    return f"{fate}; it was there already" if receipt.duplicate else fate


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
