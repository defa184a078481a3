"""`signalhub publish` and `subscribe`: messages to whoever is interested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.arguments import (
    AsText,
    Data,
    Type,
    checked_subscription,
    checked_topic,
    checked_type,
    data,
    half_wildcard,
    optional_address,
)
from signalhub.cli.connection import LOCAL, Connection, Sender, run, stay
from signalhub.cli.following import Count, For, follow

if TYPE_CHECKING:
    from signalhub.client import Client


def publish(
    topic: Annotated[str, Parameter(help="The topic, such as prices/eu.")],
    payload: Data,
    /,
    *,
    type: Type = "text",
    as_text: AsText = False,
    sender: Sender = None,
    connection: Connection = LOCAL,
) -> None:
    """Send a message to the subscribers of a topic."""
    name, kind, value = checked_topic(topic), checked_type(type), data(payload, as_text=as_text)
    speaker = optional_address(sender)

    async def work(me: Client) -> int:
        return await connection.in_time(me.publish(name, kind, value, sender=speaker))

    count = run(connection, work)
    noun = "subscriber" if count == 1 else "subscribers"
    connection.output.fact({"topic": name, "subscribers": count}, f"{count} {noun}")


def subscribe(
    *topics: Annotated[
        str,
        Parameter(
            name="TOPIC",
            required=True,
            help="A topic; + stands for one level, a final # for everything below.",
        ),
    ],
    count: Count = None,
    for_s: For = None,
    sender: Sender = None,
    connection: Connection = LOCAL,
) -> None:
    """Print every message on the topics. Ctrl-C ends."""
    names = [checked_subscription(topic) for topic in topics]
    for name in names:
        if (level := half_wildcard(name)) is not None:
            connection.remark(
                {"no_wildcard": name},
                f"note: {level} in {name} stands for itself; + and # are wildcards only as a whole"
                " level, as in prices/+ or prices/#",
            )

    async def work(me: Client) -> None:
        for name in names:
            await connection.in_time(me.subscribe(name))
        connection.note(f"subscribed to {', '.join(names)}; Ctrl-C ends")
        await follow(me.messages(), connection.output, count=count, for_s=for_s)

    stay(connection, work, address=optional_address(sender))
