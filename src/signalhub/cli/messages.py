"""`signalhub tell`, `ask`, `broadcast` and `listen`: messages from actor to actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.arguments import Address, AsText, Data, Type, address, data
from signalhub.cli.connection import Connection, talk
from signalhub.cli.following import Count, For, Watch

if TYPE_CHECKING:
    from signalhub.client import Client

Lifetime = Annotated[
    float | None, Parameter(name="--ttl", help="Seconds after which it is no longer delivered.")
]


def tell(
    to: Address,
    payload: Data,
    /,
    *,
    type: Type = "text",
    ttl_s: Lifetime = None,
    as_text: AsText = False,
    connection: Connection = Connection(),
) -> None:
    """Send a message and do not wait: at most once, and nobody says whether it arrived."""
    target, value = address(to), data(payload, as_text=as_text)

    async def work(me: Client) -> None:
        await me.tell(target, type, value, ttl_ms=_milliseconds(ttl_s))

    talk(connection, work)
    connection.output.fact({"to": target, "type": type, "sent": True}, f"sent to {target}")


def ask(
    to: Address,
    payload: Data,
    /,
    *,
    type: Type = "text",
    ttl_s: Lifetime = None,
    as_text: AsText = False,
    connection: Connection = Connection(),
) -> None:
    """Send a message and wait until the hub says what became of it."""
    target, value = address(to), data(payload, as_text=as_text)

    async def work(me: Client) -> Receipt:
        return await me.ask(
            target, type, value, ttl_ms=_milliseconds(ttl_s), timeout_s=connection.timeout_s
        )

    receipt = talk(connection, work)
    facts = {"to": target, "status": receipt.status, "id": receipt.message_id}
    connection.output.fact(facts, receipt.status)


def broadcast(
    payload: Data,
    /,
    *,
    capability: Annotated[str | None, Parameter(help="Only actors that can do this.")] = None,
    type: Type = "text",
    as_text: AsText = False,
    connection: Connection = Connection(),
) -> None:
    """Send a message to every registered actor."""
    value = data(payload, as_text=as_text)

    async def work(me: Client) -> BroadcastResult:
        return await me.broadcast(type, value, capability=capability, exclude_self=True)

    result = talk(connection, work)
    facts = {"delivered": result.delivered, "failed": result.failed, "queued": result.queued}
    text = ", ".join(f"{count} {name}" for name, count in facts.items())
    connection.output.fact(facts, text)
