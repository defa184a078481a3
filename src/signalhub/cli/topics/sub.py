"""`signalhub sub`: show, pause, seek, change and delete durable subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from signalhub.cli.terminal.arguments import checked_name, checked_pattern, optional_pattern
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Yes, confirm, must_ask, usage
from signalhub.cli.terminal.output import OutputColumn, counted
from signalhub.cli.terminal.paging import PAGE_MAX, every
from signalhub.cli.terminal.quantities import PositionText, position
from signalhub.cli.topics.topic import NO_SUBSCRIPTION_OPTIONS, SubscriptionChanges

if TYPE_CHECKING:
    from signalhub.client import Client, Sought, SubscriptionInfo

Where = Annotated[
    str, Parameter(name="TOPIC", help="The topic, or the pattern of a pattern subscription.")
]
Name = Annotated[str, Parameter(name="NAME", help="The subscription, such as billing.")]

# Only patterns and their topics have them.
_OF_PATTERNS = ("pattern", "topics", "topics_behind", "topics_blocked")
# What each topic of a pattern has for itself.
_OF_TOPICS = ("epoch", "floor", "next", "head", "generation", "first", "heartbeat_ms")

_COLUMNS = (
    OutputColumn("topic", style="green"),
    OutputColumn("subscription", style="cyan"),
    OutputColumn("mode", spare=1),
    OutputColumn("state"),
    OutputColumn("consumers"),
    OutputColumn("lag"),
    OutputColumn("in_flight", title="in flight"),
    OutputColumn("waiting_retry", title="retrying", spare=1),
    OutputColumn("dead_lettered", title="dead letters"),
)


def ls(
    topic: Annotated[
        str | None,
        Parameter(
            name="TOPIC",
            help="Only subscriptions of this topic, or the topics of a pattern.",
        ),
    ] = None,
    /,
    *,
    connection: HubConnection = LOCAL,
) -> None:
    """List durable subscriptions and their lag.

    A pattern has one row, which adds up its topics.
    """
    name = optional_pattern(topic)

    async def rows_of(me: Client, *, patterns: bool) -> list[SubscriptionInfo]:
        return await every(
            connection,
            lambda offset: me.subscriptions(name, patterns=patterns, offset=offset, limit=PAGE_MAX),
            lambda one: (one.topic, one.name),
        )

    async def work(me: Client) -> list[SubscriptionInfo]:
        if name is not None:
            return await rows_of(me, patterns=False)
        # A pattern has one row here, and its topics are listed by its name.
        patterns = [one for one in await rows_of(me, patterns=True) if one.is_pattern]
        others = await rows_of(me, patterns=False)
        return [*patterns, *(one for one in others if one.pattern is None)]

    output = connection.output
    rows = [facts_of(one) for one in run(connection, work)]
    if not output.as_json:
        rows = [row | {"consumers": len(row["consumers"])} for row in rows]
    output.table(_COLUMNS, rows, if_empty="no durable subscriptions")


def info(topic: Where, name: Name, /, *, connection: HubConnection = LOCAL) -> None:
    """Show the position and the consumers of a durable subscription.

    A pattern has no position; its topics are added up.
    """
    _show(connection, topic, name, lambda me, *place: me.subscription(*place))


def pause(topic: Where, name: Name, /, *, connection: HubConnection = LOCAL) -> None:
    """Pause delivery to a durable subscription until it is resumed."""
    _show(connection, topic, name, lambda me, *place: me.pause(*place))


def resume(topic: Where, name: Name, /, *, connection: HubConnection = LOCAL) -> None:
    """Resume delivery to a paused subscription."""
    _show(connection, topic, name, lambda me, *place: me.resume(*place))


def set(
    topic: Where,
    name: Name,
    /,
    *,
    options: SubscriptionChanges = NO_SUBSCRIPTION_OPTIONS,
    connection: HubConnection = LOCAL,
) -> None:
    """Change the options of a durable subscription, effective immediately."""
    serving = options.given()
    if options == NO_SUBSCRIPTION_OPTIONS:
        raise usage("nothing to change", "give an option, such as --window 16")
    _show(connection, topic, name, lambda me, *place: me.update_subscription(*place, **serving))


def seek(
    topic: Where,
    name: Name,
    to: PositionText,
    /,
    *,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show the effect without seeking.")
    ] = False,
    yes: Yes = False,
    connection: HubConnection = LOCAL,
) -> None:
    """Move a durable subscription to another position in its topic.

    Settled messages after that position are redelivered, unsettled ones before
    it are skipped. Both are counted and shown before anything changes. All topics
    of a pattern are moved, to earliest, latest, last or a time.
    """
    stream, subscription = checked_pattern(topic), checked_name(name, "a subscription")
    target = position(to)

    def sought(*, is_rehearsal: bool) -> Sought:
        async def work(me: Client) -> Sought:
            seeking = me.seek(stream, subscription, target, dry_run=is_rehearsal)
            return await connection.in_time(seeking)

        return run(connection, work)

    if dry_run:
        _say(connection, sought(is_rehearsal=True), is_done=False)
        return
    if must_ask(yes):
        expected = sought(is_rehearsal=True)
        replays = f"replay {expected.will_replay}, skip {expected.will_skip}"
        place = f"seq {expected.next} of {stream}"
        if expected.topics is not None:
            place = f"{to} on {counted(expected.topics, 'topic')} of {stream}"
        confirm(f"move {subscription} to {place} ({replays})", yes=yes)
    _say(connection, sought(is_rehearsal=False), is_done=True)


def delete(
    topic: Where, name: Name, /, *, yes: Yes = False, connection: HubConnection = LOCAL
) -> None:
    """Delete a durable subscription; the topic keeps its messages.

    A pattern is deleted on all its topics, and other subscriptions stay.
    """
    stream, subscription = checked_pattern(topic), checked_name(name, "a subscription")

    async def look(me: Client) -> SubscriptionInfo:
        return await connection.in_time(me.subscription(stream, subscription))

    async def work(me: Client) -> None:
        await connection.in_time(me.delete_subscription(stream, subscription))

    if must_ask(yes):
        lag = counted(run(connection, look).lag, "message")
        confirm(f"delete {subscription} of {stream} with a lag of {lag}", yes=yes)
    run(connection, work)
    facts = {"topic": stream, "subscription": subscription, "deleted": True}
    connection.output.fact(facts, f"deleted subscription {subscription} of {stream}")


def facts_of(subscription: SubscriptionInfo) -> dict[str, Any]:
    """A subscription as one JSON object, with its state."""
    from msgspec.structs import asdict

    facts = asdict(subscription)
    del facts["name"]
    for name in _OF_TOPICS if subscription.is_pattern else _OF_PATTERNS:
        if facts[name] is None or subscription.is_pattern:
            del facts[name]
    facts["consumers"] = [asdict(one) for one in subscription.consumers]
    if subscription.held_up is not None:
        facts["held_up"] = asdict(subscription.held_up)
    state = {"state": _state(subscription)}
    return {"topic": subscription.topic, "subscription": subscription.name} | state | facts


def _state(subscription: SubscriptionInfo) -> str:
    if subscription.held_up is not None:
        return "held up"
    if subscription.paused:
        return "paused"
    if subscription.blocked:
        return "blocked"
    return "active" if subscription.consumers else "idle"


def _show(
    connection: HubConnection,
    topic: str,
    name: str,
    request: Callable[[Client, str, str], Awaitable[SubscriptionInfo]],
) -> None:
    """Send a request about a subscription and show the result."""
    stream, subscription = checked_pattern(topic), checked_name(name, "a subscription")

    async def work(me: Client) -> SubscriptionInfo:
        return await connection.in_time(request(me, stream, subscription))

    facts = facts_of(run(connection, work))
    if not connection.as_json:
        facts["consumers"] = [one["name"] for one in facts["consumers"]]
    connection.output.sheet(facts)


def _say(connection: HubConnection, sought: Sought, *, is_done: bool) -> None:
    facts = {
        "epoch": sought.epoch,
        "next": sought.next,
        "will_replay": sought.will_replay,
        "will_skip": sought.will_skip,
        "done": is_done,
    }
    verb = "continues" if is_done else "would continue"
    if sought.topics is not None:
        moved = "moved" if is_done else "would move"
        connection.output.fact(
            facts | {"topics": sought.topics},
            f"{moved} {counted(sought.topics, 'topic')}:"
            f" will replay {sought.will_replay}, skip {sought.will_skip}",
        )
        return
    connection.output.fact(
        facts,
        f"{verb} at seq {sought.next} of epoch {sought.epoch}:"
        f" will replay {sought.will_replay}, skip {sought.will_skip}",
    )
