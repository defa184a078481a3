"""How durable topics and subscriptions are to be: the options of the commands that make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import optional_topic
from signalhub.cli.quantities import byte_count, option, seconds

if TYPE_CHECKING:
    from signalhub.client import Definition, Serving

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
class TopicOptions:
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
class SubscriptionOptions:
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


NO_TOPIC_OPTIONS = TopicOptions()
NO_SUBSCRIPTION_OPTIONS = SubscriptionOptions()
