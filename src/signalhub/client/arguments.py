"""Checks of arguments: each function returns its argument or raises an error that explains."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from string import ascii_letters, digits
from typing import Final, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

from signalhub.wire import names
from signalhub.wire.entry import ACTOR
from signalhub.wire.room_ids import CAPABILITY_CHARS, INBOX, PLAIN, WITH_COLON, Form

# Where to read: an end of the topic, a seq, a time, or a position as on the wire.
Position = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]
Mode = Literal["exclusive", "shared", "failover", "key-shared"]
Poison = Literal["block", "drop", "dead_letter"]
BacklogPolicy = Literal["drop_oldest", "refuse"]

_SECRET_PARAMETERS = frozenset({"token", "access_token"})


def checked_url(url: str) -> str:
    """Check a WebSocket URL. It must not contain secrets: URLs end up in logs and process lists."""
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
    """Check an actor's address."""
    if not isinstance(address, str) or not names.is_address(address):
        raise ValueError(f"invalid address {address!r}; one looks like @(demo/alice)")
    return address


def checked_type(type: str) -> str:
    """Check the type of an application message."""
    if not 0 < len(type) <= names.TYPE_CHARS_MAX:
        raise ValueError(f"a message type has 1 to {names.TYPE_CHARS_MAX} characters")
    if type.startswith(names.HUB_TYPE_PREFIX):
        raise ValueError(f"{type!r} is reserved: types that begin with `hub:` belong to the hub")
    return type


def checked_topic(topic: str) -> str:
    """Check the name of a topic to publish to."""
    if not names.is_topic(topic):
        raise ValueError(f"a topic has 1 to {names.TOPIC_CHARS_MAX} characters")
    return topic


def checked_subscription(topic: str) -> str:
    """Check a topic or wildcard to subscribe to."""
    if not names.is_subscribable(topic):
        raise ValueError(
            f"{topic!r} cannot be subscribed to: 1 to {names.TOPIC_CHARS_MAX} characters, `+` for "
            "one level, `#` only as the last level"
        )
    return topic


def checked_pattern(topic: str) -> str:
    """Check the topic of a durable subscription, or the pattern of all its topics."""
    return checked_subscription(topic) if names.has_wildcard(topic) else checked_topic(topic)


def checked_capabilities(capabilities: Iterable[str]) -> list[str]:
    """Check capabilities; a single string is an error, not a list of letters."""
    if isinstance(capabilities, str):
        raise ValueError(f"capabilities are a list of words; did you mean ({capabilities!r},)?")
    return list(capabilities)


def checked_name(name: str, of_what: str) -> str:
    """Check the name of a subscription or consumer."""
    if not isinstance(name, str) or not 0 < len(name) <= names.TOPIC_CHARS_MAX:
        raise ValueError(f"the name of {of_what} has 1 to {names.TOPIC_CHARS_MAX} characters")
    return name


def checked_message_id(message_id: str | None) -> str | None:
    """Check a message id chosen by the caller."""
    if message_id is not None and not 0 < len(message_id) <= names.ID_CHARS_MAX:
        raise ValueError(f"a message id has 1 to {names.ID_CHARS_MAX} characters")
    return message_id


def checked_lifetime(ttl_ms: float | None) -> float | None:
    """Check a time to live."""
    if ttl_ms is not None and ttl_ms <= 0:
        raise ValueError("a lifetime must be longer than 0 ms; leave it out for none")
    return ttl_ms


def checked_actor(actor: str) -> str:
    """Check the name of a durable actor."""
    if re.search(ACTOR, actor) is None:
        raise ValueError(f"invalid durable actor {actor!r}; write it as kind/key, like order/17")
    return actor


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Check headers: a mapping of strings to strings."""
    if not all(isinstance(one, str) for member in headers.items() for one in member):
        raise ValueError("headers must map strings to strings, such as {'trace': 'a1b2'}")
    return dict(headers)


def epoch_ms(moment: float | datetime) -> int:
    """Return a time in milliseconds since the Unix epoch."""
    if not isinstance(moment, datetime):
        return round(moment)
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return round(moment.timestamp() * 1000)


def wire_position(position: Position) -> Position:
    """Return a position in a topic in the form used on the wire."""
    match position:
        case "earliest" | "latest":
            return position
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
        f"invalid position {position!r}; use 'earliest', 'latest', a seq, a datetime, "
        "or one of {'seq': n}, {'time': ms} and {'last': n}"
    )


Type = Literal[
    "mls_app", "mls_proposal", "mls_approval", "mls_rejection", "mls_commit", "mls_group_info"
]
TYPES: Final = get_args(Type)
ABOUT_PROPOSALS: Final = frozenset(("mls_proposal", "mls_approval", "mls_rejection", "mls_commit"))
SEQ_MAX: Final = 2**53 - 1

_BASE64 = frozenset(ascii_letters + digits + "+/")


def room_name(tenant: str | None, room: str) -> str:
    """Return the id of a room, prefixed with its tenant's id if it has one."""
    _check("a room id", room, WITH_COLON)
    if tenant is None:
        return room
    _check("a tenant id", tenant, PLAIN)
    name = f"{tenant}:{room}"
    if len(name) > PLAIN.chars_max:
        raise ValueError(
            f"tenant and room must have at most {PLAIN.chars_max - 1} characters together"
        )
    return name


def checked_inbox(inbox: str) -> str:
    """Check an inbox id: the base64 of 32 bytes in either alphabet, or a plain word."""
    bare = inbox.rstrip("=") if isinstance(inbox, str) else ""
    if len(bare) == CAPABILITY_CHARS and _BASE64.issuperset(bare):
        return bare.replace("+", "-").replace("/", "_")
    _check("an inbox id", bare, INBOX)
    return bare


def checked_pseudonym(pseudonym: str | None) -> str:
    """Check the pseudonym of a member; create a random one if none is given."""
    if pseudonym is None:
        return secrets.token_hex(8)
    return _check("a pseudonym", pseudonym, WITH_COLON)


def checked_room_message_id(message_id: str | None) -> str:
    """Check a message id; create one if none is given."""
    if message_id is None:
        return new_message_id()
    return _check("a message id", message_id, PLAIN)


def new_message_id() -> str:
    """Return a random id that reveals nothing about its creator."""
    return secrets.token_hex(16)


def checked_kind(type: str, proposal_id: str | None) -> str:
    """Check the type of a room message; some types require a proposal id."""
    if type not in TYPES:
        raise ValueError(f"invalid type {type!r}; use one of {', '.join(TYPES)}")
    if type in ABOUT_PROPOSALS and proposal_id is None:
        raise ValueError(f"a message of type {type} needs a proposal id")
    if proposal_id is not None:
        _check("a proposal id", proposal_id, PLAIN)
    return type


def checked_ciphertext(ciphertext: bytes) -> bytes:
    """Check the bytes to send: at least one byte."""
    if not isinstance(ciphertext, bytes | bytearray | memoryview):
        raise TypeError("a ciphertext must be bytes; encode and encrypt text before sending it")
    if not len(ciphertext):
        raise ValueError("a ciphertext must have at least one byte")
    return bytes(ciphertext)


def checked_seq(seq: int, of_what: str, *, least: int = 0) -> int:
    """Check a position in an inbox."""
    if isinstance(seq, bool) or not isinstance(seq, int) or not least <= seq <= SEQ_MAX:
        raise ValueError(f"{of_what} must be a whole number, at least {least}")
    return seq


def _check(what: str, text: str, form: Form) -> str:
    if not isinstance(text, str) or not form.admits(text):
        raise ValueError(f"{what} has {form}")
    return text
