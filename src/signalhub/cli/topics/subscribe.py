"""`signalhub subscribe`: print published messages, live or from a durable subscription."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.messages.messages import Count, For, follow
from signalhub.cli.terminal.arguments import (
    checked_name,
    checked_pattern,
    checked_subscription,
    half_wildcard,
    optional_address,
)
from signalhub.cli.terminal.connection import LOCAL, HubConnection, stay
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import counted
from signalhub.cli.terminal.quantities import (
    TopicPosition,
    option,
    position,
    position_or_none,
    seconds,
)
from signalhub.cli.topics.topic import NO_SUBSCRIPTION_OPTIONS, Mode, SubscriptionChanges

if TYPE_CHECKING:
    from signalhub.client import Client, Consumer, Message


@Parameter(name="*", group="Durable")
@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """How a durable subscription is consumed."""

    subscription: Annotated[
        str | None, Parameter(name="--as", help="Name of the durable subscription; created if new.")
    ] = None
    mode: Annotated[
        Mode,
        Parameter(
            name="--type",
            help="How messages are distributed: to the only consumer, in turn, to the first while"
            " others stand by, or by key.",
        ),
    ] = "exclusive"
    consumer: Annotated[
        str | None, Parameter(help="Consumer name; joining with the same name takes over.")
    ] = None
    ack: Annotated[
        bool,
        Parameter(
            negative="--no-ack", show_default=False, help="Acknowledge what was printed, or do not."
        ),
    ] = True
    nack: Annotated[
        str | None, Parameter(help="Reject each message for redelivery, with this reason.")
    ] = None
    delay: Annotated[float | None, option(seconds, "With --nack: redeliver after this time.")] = (
        None
    )
    term: Annotated[str | None, Parameter(help="Give up each message, with this reason.")] = None

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if sum((not self.ack, self.nack is not None, self.term is not None)) > 1:
            raise usage("--no-ack, --nack and --term exclude each other", "give one of them")
        if self.delay is not None and self.nack is None:
            raise usage("--delay requires --nack", "give a reason with --nack")

    async def settle(self, message: Message, is_last: bool) -> None:
        """Settle a message that was printed."""
        if self.nack is not None:
            await message.nack(delay_s=self.delay, reason=self.nack, wait=is_last)
        elif self.term is not None:
            await message.term(reason=self.term, wait=is_last)
        elif self.ack:
            await message.ack(wait=is_last)


NO_CONSUMER_OPTIONS = ConsumerOptions()


def subscribe(
    *topics: Annotated[
        str,
        Parameter(
            name="TOPIC",
            required=True,
            help="A topic; + matches one level, a final # everything below.",
        ),
    ],
    start: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="With --as: where a new subscription starts: earliest, latest, seq:5, last:10 or"
            " time:2026-01-31T12:00Z. Without: the address to register.",
        ),
    ] = None,
    count: Count = None,
    for_s: For = None,
    consumer_options: ConsumerOptions = NO_CONSUMER_OPTIONS,
    options: SubscriptionChanges = NO_SUBSCRIPTION_OPTIONS,
    connection: HubConnection = LOCAL,
) -> None:
    """Print the messages of topics until Ctrl-C.

    With --as NAME they come from a durable subscription to one topic, or to all
    durable topics that match a pattern such as 'orders/#', also those made later:
    each is acknowledged after it was printed, and redelivered otherwise.
    """
    if consumer_options.subscription is None:
        if (
            consumer_options != NO_CONSUMER_OPTIONS
            or options != NO_SUBSCRIPTION_OPTIONS
            or _is_position(start)
        ):
            raise usage(
                "options of durable subscriptions require --as", "give a name, such as --as billing"
            )
        _subscribe(connection, topics, start, count, for_s)
    else:
        if len(topics) != 1:
            raise usage("a durable subscription has one topic or pattern", "run a command for each")
        consumer_options.check()
        begin: TopicPosition = "earliest" if start is None else position(start)
        _consume(
            connection, checked_pattern(topics[0]), begin, count, for_s, consumer_options, options
        )


def _is_position(text: str | None) -> bool:
    return text is not None and position_or_none(text) is not None


def _subscribe(
    connection: HubConnection,
    topics: Sequence[str],
    sender: str | None,
    count: int | None,
    for_s: float | None,
) -> None:
    """Live copies that need no settling."""
    names = [checked_subscription(topic) for topic in topics]
    for name in names:
        if (level := half_wildcard(name)) is not None:
            connection.remark(
                {"no_wildcard": name},
                f"note: {level} is not a wildcard; + and # must be whole levels, as in"
                " prices/+ or prices/#",
            )

    async def work(me: Client) -> None:
        for name in names:
            await connection.in_time(me.subscribe(name))
        connection.note(f"subscribed to {', '.join(names)}; press Ctrl-C to stop")
        await follow(me.messages(), connection.output, count=count, for_s=for_s)

    stay(connection, work, address=optional_address(sender))


def _consume(
    connection: HubConnection,
    topic: str,
    start: TopicPosition,
    count: int | None,
    for_s: float | None,
    consumer_options: ConsumerOptions,
    options: SubscriptionChanges,
) -> None:
    name = checked_name(consumer_options.subscription or "", "a subscription")
    consumer = consumer_options.consumer
    if consumer is not None:
        checked_name(consumer, "a consumer")
    serving = options.given()

    async def work(me: Client) -> None:
        joining = me.consume(
            topic, name, mode=consumer_options.mode, start=start, consumer=consumer, **serving
        )
        async with await connection.in_time(joining) as messages:
            _greet(connection, messages)
            await follow(
                messages,
                connection.output,
                count=count,
                for_s=for_s,
                settle=consumer_options.settle,
                has_positions=True,
                advice=f"see `signalhub sub info {quote(topic)} {quote(name)}`",
            )

    stay(connection, work)


def _greet(connection: HubConnection, consumer: Consumer) -> None:
    lag = counted(consumer.lag, "message")
    connection.note(
        f"consuming {consumer.topic} as {consumer.subscription}, lag {lag}; press Ctrl-C to stop"
    )
    if consumer.kept:
        names = sorted(consumer.kept)
        connection.remark(
            {"kept": names},
            f"note: the subscription keeps its own {', '.join(names)}; whoever may manage it can"
            " change that with `signalhub sub set`",
        )
    for topic, (first, last) in consumer.losses.items():
        where = "" if topic == consumer.topic else f" of {topic}"
        connection.remark(
            {"lost_from": first, "lost_to": last} | ({"topic": topic} if where else {}),
            f"note: seq {first} to {last}{where} are no longer stored and are skipped",
        )
