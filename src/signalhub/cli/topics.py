"""`signalhub publish` and `subscribe`: messages to whoever is interested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.arguments import AsText, Data, Type, data
from signalhub.cli.connection import Connection, talk
from signalhub.cli.failures import usage
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
    connection: Connection = Connection(),
) -> None:
    """Send a message to everybody who is subscribed to the topic, and say how many that are."""
    value = data(payload, as_text=as_text)

    async def work(me: Client) -> int:
        return await me.publish(topic, type, value)

    count = talk(connection, work)
    connection.output.fact({"topic": topic, "subscribers": count}, f"{count} subscribers")


def subscribe(
    *topics: Annotated[
        str, Parameter(help="Topics; + stands for one level, a final # for everything below.")
    ],
    count: Count = None,
    for_s: For = None,
    connection: Connection = Connection(),
) -> None:
    """Print every message of the topics until Ctrl-C."""
    if not topics:
        raise usage("there is no topic to subscribe to", "name one, such as prices/eu or prices/#")

    async def work(me: Client) -> None:
        for topic in topics:
            await me.subscribe(topic)
        connection.note(f"subscribed to {', '.join(topics)}; Ctrl-C ends")
        await follow(me.messages(), connection.output, count=count, for_s=for_s)

    talk(connection, work, is_following=True)
