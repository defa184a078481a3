"""`signalhub tell`, `ask`, `broadcast` and `listen`: messages from actor to actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import (
    Address,
    AsText,
    Data,
    Type,
    address,
    checked_type,
    data,
    optional_address,
)
from signalhub.cli.connection import LOCAL, Connection, Sender, run, stay
from signalhub.cli.following import Count, For, follow

if TYPE_CHECKING:
    from signalhub.client import BroadcastResult, Client, Receipt

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
    sender: Sender = None,
    connection: Connection = LOCAL,
) -> None:
    """Send a message and print what became of it."""
    target, kind, value = address(to), checked_type(type), data(payload, as_text=as_text)
    speaker = optional_address(sender)

    async def work(me: Client) -> Receipt:
        return await me.ask(
            target,
            kind,
            value,
            ttl_ms=_milliseconds(ttl_s),
            sender=speaker,
            timeout_s=connection.timeout_s,
            attempts=1,
        )

    receipt = run(connection, work)
    facts = {"to": target, "type": kind, "status": receipt.status, "id": receipt.message_id}
    connection.output.fact(facts, receipt.status)


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
    count: Count = None,
    for_s: For = None,
    connection: Connection = LOCAL,
) -> None:
    """Register an address and print every message to it.

    The address is taken from whoever had it. Ctrl-C ends.
    """
    own = address(name)

    async def work(me: Client) -> None:
        connection.note(f"listening as {own}; Ctrl-C ends")
        await follow(me.messages(), connection.output, count=count, for_s=for_s)

    stay(connection, work, address=own, capabilities=capability)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
