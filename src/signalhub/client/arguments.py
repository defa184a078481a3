"""What callers pass in: each check returns its argument or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from signalhub import names

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
