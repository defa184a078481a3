"""Entries of the log in words: the name of their kind, and their body as JSON.

Whatever was written is shown: a body that this program cannot read appears as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from signalhub import entry
from signalhub.entry import Kind, Outcome, Stored, decode_body

_BODIES: Final[dict[int, type[entry.Body]]] = {
    Kind.MAIL: entry.Message,
    Kind.PUBLISHED: entry.Message,
    Kind.BROADCAST: entry.Broadcast,
    Kind.SETTLED: entry.Settled,
    Kind.CURSOR: entry.Cursor,
    Kind.STREAM_CREATED: entry.StreamDefinition,
    Kind.SUBSCRIPTION_CREATED: entry.SubscriptionDefinition,
    Kind.SUBSCRIPTION_DELETED: entry.SubscriptionDefinition,
    Kind.REMOVED: entry.Removed,
    Kind.LOST: entry.Lost,
    Kind.ERASED: entry.Erased,
    Kind.PLACED: entry.Placed,
}


def entry_facts(stored: Stored) -> dict[str, Any]:
    """An entry as one JSON object."""
    return {
        "offset": stored.offset,
        "kind": kind_name(stored.kind),
        "stream": stored.stream,
        "stream_epoch": stored.stream_epoch,
        "seq": stored.seq,
        "at_ms": stored.at_ms,
        "erased": stored.is_erased,
        "body": _body(stored),
    }


def kind_name(kind: int) -> str:
    """A kind as it is written on the command line; a number if this program is too old for it."""
    try:
        return Kind(kind).name.lower().replace("_", "-")
    except ValueError:
        return str(kind)


def _body(stored: Stored) -> Any:
    if stored.is_erased:
        return {"digest": stored.body.hex()}
    kind = _BODIES.get(stored.kind)
    try:
        if kind is not None:
            return _plain(decode_body(kind, stored.body))
        return _plain(msgspec.msgpack.decode(stored.body)) if stored.body else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {"unreadable": stored.body.hex()}


def _plain(value: Any) -> Any:
    """Structs as objects with names, and bytes as what they stand for."""
    match value:
        case msgspec.Struct():
            members = {name: getattr(value, name) for name in value.__struct_fields__}
            return {name: _member(name, member) for name, member in members.items()}
        case bytes():
            return value.hex()
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case _:
            return value


def _member(name: str, value: Any) -> Any:
    read = _READ.get(name)
    return _plain(value) if read is None else read(value)


def _json(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value) if value else None
    except (ValueError, RecursionError):
        return value.decode(errors="replace")


def _outcome(value: int) -> str:
    try:
        return Outcome(value).name.lower().replace("_", "-")
    except ValueError:
        return str(value)


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "data": _json,
    "metadata": _json,
    "ack": _json,
    "outcome": _outcome,
    "copy_id": lambda value: value.decode(errors="replace"),
}
