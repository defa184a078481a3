"""`signalhub topic`: make, look at, change, read and delete durable topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import Topic, checked_topic
from signalhub.cli.confirmation import Yes, confirm
from signalhub.cli.connection import LOCAL, Connection, run
from signalhub.cli.failures import usage
from signalhub.cli.following import each, print_message
from signalhub.cli.output import Column, counted
from signalhub.cli.quantities import shown_size, shown_span
from signalhub.cli.serving import NO_TOPIC_OPTIONS, TopicOptions

if TYPE_CHECKING:
    from signalhub import client
    from signalhub.client import Client, Replay

PAGE_MAX = 100

_COLUMNS = (
    Column("topic", style="green"),
    Column("first"),
    Column("head"),
    Column("retention"),
    Column("poison"),
    Column("subscriptions"),
)


def create(
    topic: Topic,
    /,
    *,
    durable: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="It keeps what is published: the only kind that needs to be made.",
        ),
    ] = True,
    options: TopicOptions = NO_TOPIC_OPTIONS,
    connection: Connection = LOCAL,
) -> None:
    """Make a durable topic, which keeps what is published to it.

    Made again with the same options it stays as it is; with others it is
    refused. To change it, use: signalhub topic set
    """
    name, definition = checked_topic(topic), options.given()

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.create_topic(name, **definition))

    made = run(connection, work)
    facts = {"topic": name, "epoch": made.epoch, "head": made.head}
    held = counted(made.head, "message")
    connection.output.fact(facts, f"{name} is there, epoch {made.epoch}, {held}")


def ls(
    pattern: Annotated[str, Parameter(help="Names, with * for any run of characters.")] = "*",
    /,
    *,
    connection: Connection = LOCAL,
) -> None:
    """List the durable topics."""

    async def work(me: Client) -> list[client.Topic]:
        # By name, because topics that come and go shift the pages.
        listed: dict[str, client.Topic] = {}
        offset, has_more = 0, True
        while has_more:
            page = await connection.in_time(me.topics(pattern, offset=offset, limit=PAGE_MAX))
            listed |= {topic.name: topic for topic in page}
            offset += len(page)
            has_more = page.has_more and len(page) > 0
        return list(listed.values())

    topics = run(connection, work)
    output = connection.output
    rows = [facts_of(topic) if output.as_json else _row(topic) for topic in topics]
    output.table(_COLUMNS, rows, if_empty="there is no durable topic")


def info(topic: Topic, /, *, connection: Connection = LOCAL) -> None:
    """Show how a durable topic is defined, what it holds and who reads it."""
    name = checked_topic(topic)

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.topic(name))

    connection.output.sheet(facts_of(run(connection, work)))


def set(
    topic: Topic,
    /,
    *,
    options: TopicOptions = NO_TOPIC_OPTIONS,
    connection: Connection = LOCAL,
) -> None:
    """Change the definition of a durable topic, at once."""
    name, definition = checked_topic(topic), options.given()
    if options == NO_TOPIC_OPTIONS:
        raise usage("there is nothing to change", "give an option, such as --retention 7d")

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.update_topic(name, **definition))

    connection.output.sheet(facts_of(run(connection, work)))


def delete(topic: Topic, /, *, yes: Yes = False, connection: Connection = LOCAL) -> None:
    """Delete a durable topic, with its messages and its subscriptions."""
    name = checked_topic(topic)

    async def look(me: Client) -> client.Topic:
        return await connection.in_time(me.topic(name))

    async def work(me: Client) -> None:
        await connection.in_time(me.delete_topic(name))

    if not yes:
        found = run(connection, look)
        readers = counted(len(found.subscriptions), "subscription")
        confirm(f"delete {name}, everything up to seq {found.head}, and {readers}", yes=yes)
    run(connection, work)
    connection.output.fact({"topic": name, "deleted": True}, f"{name} is deleted")


def read(
    topic: Topic,
    /,
    *,
    from_seq: Annotated[
        int, Parameter(name="--from", validator=Number(gte=1), help="The first position.")
    ] = 1,
    to_seq: Annotated[
        int | None, Parameter(name="--to", validator=Number(gte=1), help="The last position.")
    ] = None,
    limit: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="At most N messages.")
    ] = None,
    connection: Connection = LOCAL,
) -> None:
    """Print what a durable topic holds, without any subscription.

    Standard error says what is gone, and where to go on if there is more.
    """
    name, output = checked_topic(topic), connection.output
    if to_seq is not None and to_seq < from_seq:
        raise usage(f"--to {to_seq} comes before --from {from_seq}", "both ends are included")

    async def work(me: Client) -> Replay:
        replay = me.replay(name, from_seq, to_seq, limit=limit)
        async for message in each(replay, connection):
            print_message(message, output, has_position=True)
        return replay

    replay = run(connection, work)
    if replay.lost is not None:
        first, last = replay.lost
        lost = {"lost_from": first, "lost_to": last}
        which = f"seq {first} is" if first == last else f"seq {first} to {last} are"
        connection.remark(lost, f"note: {which} not kept any more")
    elif not replay.complete:
        connection.remark({"next": replay.next}, f"there is more: go on with --from {replay.next}")


def facts_of(topic: client.Topic) -> dict[str, Any]:
    """A topic as one flat object."""
    from msgspec.structs import asdict

    facts = {"topic": topic.name} | asdict(topic)
    del facts["name"]
    retention = facts.pop("retention")
    facts["retention_s"] = retention and retention.age_s
    facts["retention_bytes"] = retention and retention.bytes
    return facts


def _row(topic: client.Topic) -> dict[str, Any]:
    retention = topic.retention
    kept = (shown_span(retention.age_s), shown_size(retention.bytes)) if retention else ()
    return {
        "topic": topic.name,
        "first": topic.first,
        "head": topic.head,
        "retention": [one for one in kept if one],
        "poison": topic.poison,
        "subscriptions": topic.subscriptions,
    }
