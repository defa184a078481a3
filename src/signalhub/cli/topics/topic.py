"""`signalhub topic`: make, look at, change, read and delete durable topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.messages.messages import each, print_message
from signalhub.cli.terminal.arguments import Topic, checked_topic, optional_topic
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Yes, confirm, usage
from signalhub.cli.terminal.output import Column, counted
from signalhub.cli.terminal.quantities import byte_count, option, seconds, shown_size, shown_span

if TYPE_CHECKING:
    from signalhub import client
    from signalhub.client import Client, Definition, Replay, Serving

Mode = Literal["exclusive", "shared", "failover", "key-shared"]
Poison = Literal["block", "drop", "dead_letter"]

_POSITIVE = Number(gt=0)
_NOT_NEGATIVE = Number(gte=0)

_Poison = Annotated[
    Poison | None,
    Parameter(help="What becomes of a message that failed too often."),
]
_DeadLetter = Annotated[str | None, Parameter(help="The topic for dead letters.")]
_Heartbeat = Annotated[
    float | None,
    option(seconds, "How often the hub's watchdog looks; 0 is never.", validator=_NOT_NEGATIVE),
]


@Parameter(name="*", group="Topic")
@dataclass(frozen=True, kw_only=True)
class TopicChanges:
    """The definition of a durable topic; what is left out stays, or is the hub's default."""

    retention: Annotated[
        float | None,
        option(seconds, "How long messages are kept, such as 7d.", validator=_POSITIVE),
    ] = None
    retention_bytes: Annotated[
        int | None, option(byte_count, "How much is kept, such as 1G.", validator=_POSITIVE)
    ] = None
    poison: _Poison = None
    dead_letter: _DeadLetter = None
    heartbeat: _Heartbeat = None

    def given(self) -> Definition:
        """What was given, in the words of the client."""
        chosen: Definition = {
            "retention_s": self.retention,
            "retention_bytes": self.retention_bytes,
            "poison": self.poison,
            "dead_letter": optional_topic(self.dead_letter),
            "heartbeat_s": self.heartbeat,
        }
        return chosen


@Parameter(name="*", group="Subscription")
@dataclass(frozen=True, kw_only=True)
class SubscriptionChanges:
    """How a durable subscription is served; what is left out stays, or is the hub's default."""

    window: Annotated[
        int | None,
        Parameter(validator=Number(gte=1), help="Messages with a consumer and not yet settled."),
    ] = None
    rate: Annotated[
        float | None,
        Parameter(validator=_NOT_NEGATIVE, help="Messages per second; 0 is without limit."),
    ] = None
    strict: Annotated[
        bool | None, Parameter(help="Send nothing new while an earlier one is not settled.")
    ] = None
    ack_timeout: Annotated[
        float | None,
        option(seconds, "Unsettled for so long, it comes again.", validator=Number(gte=0.001)),
    ] = None
    max_deliveries: Annotated[
        int | None,
        Parameter(validator=Number(gte=1), help="After so many failures the poison policy counts."),
    ] = None
    backoff: Annotated[
        float | None, option(seconds, "Pause before the second attempt.", validator=_NOT_NEGATIVE)
    ] = None
    backoff_cap: Annotated[
        float | None, option(seconds, "The longest pause.", validator=_NOT_NEGATIVE)
    ] = None
    poison: _Poison = None
    dead_letter: _DeadLetter = None
    heartbeat: _Heartbeat = None

    def given(self) -> Serving:
        """What was given, in the words of the client."""
        chosen: Serving = {
            "window": self.window,
            "rate_per_s": self.rate,
            "strict": self.strict,
            "ack_timeout_s": self.ack_timeout,
            "max_deliveries": self.max_deliveries,
            "backoff_s": self.backoff,
            "backoff_cap_s": self.backoff_cap,
            "poison": self.poison,
            "dead_letter": optional_topic(self.dead_letter),
            "heartbeat_s": self.heartbeat,
        }
        return chosen


NO_TOPIC_OPTIONS = TopicChanges()
NO_SUBSCRIPTION_OPTIONS = SubscriptionChanges()


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
    options: TopicChanges = NO_TOPIC_OPTIONS,
    connection: HubConnection = LOCAL,
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
    connection: HubConnection = LOCAL,
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


def info(topic: Topic, /, *, connection: HubConnection = LOCAL) -> None:
    """Show how a durable topic is defined, what it holds and who reads it."""
    name = checked_topic(topic)

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.topic(name))

    connection.output.sheet(facts_of(run(connection, work)))


def set(
    topic: Topic,
    /,
    *,
    options: TopicChanges = NO_TOPIC_OPTIONS,
    connection: HubConnection = LOCAL,
) -> None:
    """Change the definition of a durable topic, at once."""
    name, definition = checked_topic(topic), options.given()
    if options == NO_TOPIC_OPTIONS:
        raise usage("there is nothing to change", "give an option, such as --retention 7d")

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.update_topic(name, **definition))

    connection.output.sheet(facts_of(run(connection, work)))


def delete(topic: Topic, /, *, yes: Yes = False, connection: HubConnection = LOCAL) -> None:
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
    connection: HubConnection = LOCAL,
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
