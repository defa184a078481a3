"""How topics and subscriptions are to be: options in Python's words, and in those of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, get_args

from signalhub.client.arguments import (
    Mode,
    Poison,
    Position,
    checked_name,
    checked_topic,
    wire_position,
)

_MODES = get_args(Mode)
_POISONS = get_args(Poison)

_WIRE_NAMES = {
    "window": "window",
    "strict": "strict",
    "auto_ack": "autoAck",
    "ack_timeout_s": "ackTimeoutMs",
    "max_deliveries": "maxDeliveries",
    "backoff_s": "backoffMs",
    "backoff_cap_s": "backoffCapMs",
    "heartbeat_s": "heartbeatMs",
    "rate_per_s": "ratePerSecond",
    "poison": "poison",
    "dead_letter": "deadLetter",
}
_SPANS = frozenset({"ack_timeout_s", "backoff_s", "backoff_cap_s", "heartbeat_s"})
_LEAST = {
    "window": 1,
    "ack_timeout_s": 0.001,
    "max_deliveries": 1,
    "backoff_s": 0,
    "backoff_cap_s": 0,
    "heartbeat_s": 0,
    "rate_per_s": 0,
}


class Serving(TypedDict, total=False):
    """How a durable subscription is served; what is left out stays as it is, or is the hub's
    default."""

    window: int | None
    """How many messages may be with a consumer and not settled."""
    strict: bool | None
    """Send nothing new while an earlier message is not settled."""
    auto_ack: bool | None
    """Let the hub settle what it has written; then a crash of the consumer loses messages."""
    ack_timeout_s: float | None
    """A message not settled for so long comes again."""
    max_deliveries: int | None
    """After so many failures the poison policy decides."""
    backoff_s: float | None
    """The pause before the second attempt; it doubles with each."""
    backoff_cap_s: float | None
    """The longest pause between attempts."""
    heartbeat_s: float | None
    """How often the hub's watchdog looks after the subscription; 0 is never."""
    rate_per_s: float | None
    """At most so many messages per second; 0 is without limit."""
    poison: Poison | None
    """What becomes of a message that failed too often; the topic's policy otherwise."""
    dead_letter: str | None
    """The topic for dead letters; the topic's own otherwise."""


class Definition(TypedDict, total=False):
    """How a durable topic is; what is left out stays as it is, or is the hub's default."""

    retention_s: float | None
    """How long messages are kept."""
    retention_bytes: int | None
    """How much is kept."""
    poison: Poison | None
    """What becomes of a message that failed too often: `block` stops the subscription, `drop`
    forgets it, `dead_letter` puts it aside."""
    dead_letter: str | None
    """The topic for dead letters; `<name>.dlq` otherwise."""
    heartbeat_s: float | None
    """How often the hub's watchdog looks after the subscriptions; 0 is never."""


def defined(definition: Definition) -> dict[str, Any]:
    """The definition of a topic in the words of the wire."""
    others = dict(definition)
    retention = {
        "ageSeconds": others.pop("retention_s", None),
        "bytes": others.pop("retention_bytes", None),
    }
    given = {name: kept for name, kept in retention.items() if kept is not None}
    for kept in given.values():
        if not isinstance(kept, int | float) or kept <= 0:
            raise ValueError(f"a retention of {kept} would keep nothing")
    if unknown := others.keys() - Definition.__annotations__.keys():
        raise TypeError(f"there is no option {unknown.pop()!r} of a durable topic")
    return ({"retention": given} if given else {}) | served(others)


def terms(
    *, mode: Mode, start: Position, consumer: str, serving: Mapping[str, Any]
) -> dict[str, Any]:
    """How a consumer wants to be served, in the words of `hub:subscribe`."""
    if mode not in _MODES:
        raise ValueError(f"{mode!r} is no mode; there are {', '.join(_MODES)}")
    place = {"mode": mode, "from": wire_position(start)}
    return place | {"consumer": checked_name(consumer, "a consumer")} | served(serving)


def served(serving: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a subscription in the words of the wire."""
    members: dict[str, Any] = {}
    for name, value in serving.items():
        if name not in _WIRE_NAMES:
            raise TypeError(f"there is no option {name!r} of a durable subscription")
        if value is None:
            continue
        least = _LEAST.get(name)
        if least is not None and value < least:
            raise ValueError(f"{name} must be at least {least:g}")
        if name == "poison":
            value = _checked_poison(value)
        elif name == "dead_letter":
            value = checked_topic(value)
        elif name in _SPANS:
            value = round(value * 1000)
        members[_WIRE_NAMES[name]] = value
    return members


def _checked_poison(poison: str) -> str:
    if poison not in _POISONS:
        raise ValueError(f"{poison!r} is no poison policy; there are {', '.join(_POISONS)}")
    return poison
