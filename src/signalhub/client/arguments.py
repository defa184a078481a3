"""What callers pass in: each check returns its argument or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from signalhub import names

# Where to read: an end of the topic, a seq, a moment, or one of these in the wire's own words.
Position = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]
Mode = Literal["exclusive", "shared", "failover", "key-shared"]
Poison = Literal["block", "drop", "dead_letter"]

_SECRET_PARAMETERS = frozenset({"token", "access_token"})


def checked_url(url: str) -> str:
    """A WebSocket URL without secrets: URLs end up in logs and process lists."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError("a hub's URL looks like ws://127.0.0.1:8787/ws or wss://hub.example/ws")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL must not carry a user name or password; pass `token=` instead")
    if any(name.lower() in _SECRET_PARAMETERS for name, _ in parse_qsl(parts.query, True)):
        raise ValueError("the URL must not carry a token; pass `token=` instead")
    if parts.fragment:
        raise ValueError("the URL of a WebSocket has no fragment; remove the part after `#`")
    return url


def checked_address(address: str) -> str:
    """An actor's address."""
    if not isinstance(address, str) or not names.is_address(address):
        raise ValueError(f"{address!r} is no address; one looks like @(demo/alice)")
    return address


def checked_type(type: str) -> str:
    """The type of an application's message."""
    if not 0 < len(type) <= names.TYPE_CHARS_MAX:
        raise ValueError(f"a message type has 1 to {names.TYPE_CHARS_MAX} characters")
    if type.startswith(names.HUB_TYPE_PREFIX):
        raise ValueError(f"{type!r} is reserved: types that begin with `hub:` belong to the hub")
    return type


def checked_topic(topic: str) -> str:
    """A topic to publish to."""
    if not names.is_topic(topic):
        raise ValueError(f"a topic has 1 to {names.TOPIC_CHARS_MAX} characters")
    return topic


def checked_subscription(topic: str) -> str:
    """A topic or wildcard to subscribe to."""
    if not names.is_subscribable(topic):
        raise ValueError(
            f"{topic!r} cannot be subscribed to: 1 to {names.TOPIC_CHARS_MAX} characters, `+` for "
            "one level, `#` only as the last level"
        )
    return topic


def checked_capabilities(capabilities: Iterable[str]) -> list[str]:
    """Capabilities; one string alone is a mistake, not a list of letters."""
    if isinstance(capabilities, str):
        raise ValueError(f"capabilities are a list of words; did you mean ({capabilities!r},)?")
    return list(capabilities)


def checked_name(name: str, of_what: str) -> str:
    """The name of a subscription or a consumer."""
    if not isinstance(name, str) or not 0 < len(name) <= names.TOPIC_CHARS_MAX:
        raise ValueError(f"the name of {of_what} has 1 to {names.TOPIC_CHARS_MAX} characters")
    return name


def checked_message_id(message_id: str | None) -> str | None:
    """An id the caller gives to a message, so that it can be repeated after a crash."""
    if message_id is not None and not 0 < len(message_id) <= names.ID_CHARS_MAX:
        raise ValueError(f"a message id has 1 to {names.ID_CHARS_MAX} characters")
    return message_id


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers are texts with names."""
    if not all(isinstance(one, str) for member in headers.items() for one in member):
        raise ValueError("headers are texts with names, such as {'trace': 'a1b2'}")
    return dict(headers)


def epoch_ms(moment: float | datetime) -> int:
    """A moment in milliseconds since the epoch."""
    if not isinstance(moment, datetime):
        return round(moment)
    if moment.tzinfo is None:
        raise ValueError(f"{moment} is no moment without its time zone")
    return round(moment.timestamp() * 1000)


def wire_position(position: Position) -> str | dict[str, int]:
    """A place in a topic to read from, as the wire wants it."""
    match position:
        case "earliest" | "latest":
            return str(position)
        case datetime():
            return {"time": epoch_ms(position)}
        case int() if not isinstance(position, bool) and position >= 1:
            return {"seq": position}
        case Mapping():
            ((name, value),) = position.items() if len(position) == 1 else ((None, 0),)
            if name == "time":
                return {"time": epoch_ms(value)}
            if name in ("seq", "last") and value >= 1:
                return {name: value}
    raise ValueError(
        f"{position!r} is no place in a topic; it is 'earliest', 'latest', a seq, a datetime, "
        "or one of {'seq': n}, {'time': ms} and {'last': n}"
    )
