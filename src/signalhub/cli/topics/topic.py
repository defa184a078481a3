"""`signalhub topic`: create, show, change, read and delete durable topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.messages.messages import each, print_message
from signalhub.cli.terminal.arguments import Topic, checked_topic, optional_topic
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Yes, confirm, must_ask, usage
from signalhub.cli.terminal.output import OutputColumn, counted
from signalhub.cli.terminal.paging import PAGE_MAX, every
from signalhub.cli.terminal.quantities import (
    byte_count,
    option,
    seconds,
    shown_duration,
    shown_size,
)

if TYPE_CHECKING:
    from signalhub import client
    from signalhub.client import Client, Definition, Replay, Serving

Mode = Literal["exclusive", "shared", "failover", "key-shared"]
Poison = Literal["block", "drop", "dead_letter"]
BacklogPolicy = Literal["drop_oldest", "refuse"]

_POSITIVE = Number(gt=0)
_NOT_NEGATIVE = Number(gte=0)

_Poison = Annotated[
    Poison | None,
    Parameter(help="What to do with a message that failed too often."),
]
_DeadLetter = Annotated[str | None, Parameter(help="Topic for dead letters.")]
_Heartbeat = Annotated[
    float | None,
    option(seconds, "Interval of the hub's watchdog; 0 turns it off.", validator=_NOT_NEGATIVE),
]


@Parameter(name="*", group="Topic")
@dataclass(frozen=True, kw_only=True)
class TopicChanges:
    """The definition of a durable topic; omitted options keep their value or the default."""

    retention: Annotated[
        float | None,
        option(seconds, "Keep messages for this time, such as 7d.", validator=_POSITIVE),
    ] = None
    retention_bytes: Annotated[
        int | None, option(byte_count, "Keep at most this much, such as 1G.", validator=_POSITIVE)
    ] = None
    poison: _Poison = None
    dead_letter: _DeadLetter = None
    heartbeat: _Heartbeat = None

    def given(self) -> Definition:
        """The given options, as arguments of the client."""
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
    """The options of a durable subscription; omitted ones keep their value or the default."""

    window: Annotated[
        int | None,
        Parameter(validator=Number(gte=1), help="Unsettled messages per consumer."),
    ] = None
    rate: Annotated[
        float | None,
        Parameter(validator=_NOT_NEGATIVE, help="Messages per second; 0 for no limit."),
    ] = None
    strict: Annotated[bool | None, Parameter(help="Deliver one message at a time.")] = None
    ack_timeout: Annotated[
        float | None,
        option(
            seconds, "Redeliver if not acknowledged within this time.", validator=Number(gte=0.001)
        ),
    ] = None
    max_deliveries: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1), help="Apply the poison policy after this many failures."
        ),
    ] = None
    backoff: Annotated[
        float | None,
        option(
            seconds, "Pause before the second attempt; doubles with each.", validator=_NOT_NEGATIVE
        ),
    ] = None
    backoff_cap: Annotated[
        float | None, option(seconds, "Longest pause between attempts.", validator=_NOT_NEGATIVE)
    ] = None
    poison: _Poison = None
    dead_letter: _DeadLetter = None
    heartbeat: _Heartbeat = None
    idle_expiry: Annotated[
        float | None,
        option(
            seconds,
            "Delete it after this time without a consumer; 0 for never.",
            validator=_NOT_NEGATIVE,
        ),
    ] = None
    backlog_max: Annotated[
        int | None,
        Parameter(validator=_NOT_NEGATIVE, help="Unsettled messages; 0 for no limit."),
    ] = None
    backlog_policy: Annotated[
        BacklogPolicy | None,
        Parameter(help="Beyond --backlog-max: drop the oldest messages, or refuse to publish."),
    ] = None

    def given(self) -> Serving:
        """The given options, as arguments of the client."""
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
            "idle_expiry_s": self.idle_expiry,
            "backlog_max": self.backlog_max,
            "backlog_policy": self.backlog_policy,
        }
        return chosen


NO_TOPIC_OPTIONS = TopicChanges()
NO_SUBSCRIPTION_OPTIONS = SubscriptionChanges()


_COLUMNS = (
    OutputColumn("topic", style="green"),
    OutputColumn("first"),
    OutputColumn("head"),
    OutputColumn("retention"),
    OutputColumn("poison"),
    OutputColumn("subscriptions"),
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
            help="Create a durable topic; this is the default and the only kind.",
        ),
    ] = True,
    options: TopicChanges = NO_TOPIC_OPTIONS,
    connection: HubConnection = LOCAL,
) -> None:
    """Create a durable topic, which stores the messages published to it.

    Creating it again with the same options does nothing; with other options it
    is refused. To change a topic, use `signalhub topic set`.
    """
    name, definition = checked_topic(topic), options.given()

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.create_topic(name, **definition))

    made = run(connection, work)
    facts = {"topic": name, "epoch": made.epoch, "head": made.head}
    head = counted(made.head, "message")
    connection.output.fact(facts, f"topic {name} is ready (epoch {made.epoch}, {head})")


def ls(
    pattern: Annotated[str, Parameter(help="Names; * matches any characters.")] = "*",
    /,
    *,
    connection: HubConnection = LOCAL,
) -> None:
    """List durable topics."""

    async def work(me: Client) -> list[client.Topic]:
        return await every(
            connection,
            lambda offset: me.topics(pattern, offset=offset, limit=PAGE_MAX),
            lambda topic: topic.name,
        )

    topics = run(connection, work)
    output = connection.output
    rows = [facts_of(topic) if output.as_json else _row(topic) for topic in topics]
    output.table(_COLUMNS, rows, if_empty="no durable topics")


def info(topic: Topic, /, *, connection: HubConnection = LOCAL) -> None:
    """Show the definition, the extent and the subscriptions of a durable topic."""
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
    """Change the definition of a durable topic, effective immediately."""
    name, definition = checked_topic(topic), options.given()
    if options == NO_TOPIC_OPTIONS:
        raise usage("nothing to change", "give an option, such as --retention 7d")

    async def work(me: Client) -> client.Topic:
        return await connection.in_time(me.update_topic(name, **definition))

    connection.output.sheet(facts_of(run(connection, work)))


def delete(topic: Topic, /, *, yes: Yes = False, connection: HubConnection = LOCAL) -> None:
    """Delete a durable topic with its messages and subscriptions."""
    name = checked_topic(topic)

    async def look(me: Client) -> client.Topic:
        return await connection.in_time(me.topic(name))

    async def work(me: Client) -> None:
        await connection.in_time(me.delete_topic(name))

    if must_ask(yes):
        found = run(connection, look)
        readers = counted(len(found.subscriptions), "subscription")
        confirm(f"delete topic {name}, its messages up to seq {found.head}, and {readers}", yes=yes)
    run(connection, work)
    connection.output.fact({"topic": name, "deleted": True}, f"deleted topic {name}")


def read(
    topic: Topic,
    /,
    *,
    from_seq: Annotated[
        int, Parameter(name="--from", validator=Number(gte=1), help="First position.")
    ] = 1,
    to_seq: Annotated[
        int | None, Parameter(name="--to", validator=Number(gte=1), help="Last position.")
    ] = None,
    limit: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="At most N messages.")
    ] = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Print the messages of a durable topic, without a subscription.

    Standard error says which messages are no longer stored, and where to
    continue if there are more.
    """
    name, output = checked_topic(topic), connection.output
    if to_seq is not None and to_seq < from_seq:
        raise usage(
            f"--to {to_seq} is below --from {from_seq}", "give a range; both ends are included"
        )

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
        connection.remark(lost, f"note: {which} no longer stored")
        # A range that has lost messages is never complete, so only the limit says something.
        more = "there may be more" if replay.count == limit else ""
    else:
        more = "" if replay.complete else "there is more"
    if more:
        connection.remark({"next": replay.next}, f"{more}: continue with --from {replay.next}")


def facts_of(topic: client.Topic) -> dict[str, Any]:
    """A topic as one flat JSON object."""
    from msgspec.structs import asdict

    facts = {"topic": topic.name} | asdict(topic)
    del facts["name"]
    retention = facts.pop("retention")
    facts["retention_s"] = retention and retention.age_s
    facts["retention_bytes"] = retention and retention.bytes
    return facts


def _row(topic: client.Topic) -> dict[str, Any]:
    retention = topic.retention
    kept = (shown_duration(retention.age_s), shown_size(retention.bytes)) if retention else ()
    return {
        "topic": topic.name,
        "first": topic.first,
        "head": topic.head,
        "retention": [one for one in kept if one],
        "poison": topic.poison,
        "subscriptions": topic.subscriptions,
    }
