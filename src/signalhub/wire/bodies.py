"""Bodies of entries as JSON that people read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from signalhub.wire import entry
from signalhub.wire.entry import Kind, Outcome, StoredEntry, decode_body

_BODIES: Final[dict[int, type[entry.Body]]] = {
    Kind.MAIL: entry.MessageBody,
    Kind.PUBLISHED: entry.MessageBody,
    Kind.BROADCAST: entry.BroadcastBody,
    Kind.SETTLED: entry.SettledBody,
    Kind.CURSOR: entry.CursorBody,
    Kind.STREAM_CREATED: entry.StreamDefinitionBody,
    Kind.SUBSCRIPTION_CREATED: entry.SubscriptionDefinitionBody,
    Kind.SUBSCRIPTION_DELETED: entry.SubscriptionDefinitionBody,
    Kind.REMOVED: entry.RemovedBody,
    Kind.LOST: entry.LostBody,
    Kind.ERASED: entry.ErasedBody,
    Kind.PLACED: entry.PlacedBody,
    Kind.OPERATED: entry.OperatedBody,
}


def kind_name(kind: int) -> str:
    """A kind as written on the command line; a number if it is unknown to this version."""
    try:
        return Kind(kind).name.lower().replace("_", "-")
    except ValueError:
        return str(kind)


def body_facts(stored: StoredEntry) -> Any:
    """A body with names; the digest of an erased one, and what cannot be decoded as hex."""
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
    """Structs as objects with names, bytes as hex."""
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
