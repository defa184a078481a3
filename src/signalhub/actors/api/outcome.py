"""The outcome of a call, a value or an error, as it is sent and stored."""

from __future__ import annotations

from typing import Any

import msgspec

from signalhub.actors.api import errors, payload
from signalhub.actors.api.errors import CallError


class _Outcome(msgspec.Struct):
    ok: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Outcome).decode


def of_value(value: Any, *, max_depth: int, max_bytes: int) -> bytes:
    """Raises `PayloadError` if the value cannot be sent."""
    return b'{"ok":%b}' % payload.encode(value, max_depth=max_depth, max_bytes=max_bytes)


def of_error(error: BaseException) -> bytes:
    return b'{"error":%b}' % payload.encode(errors.describe(error))


def read(data: bytes, call_id: str) -> Any:
    """The value, or a `CallError`; also one if the outcome is unreadable."""
    try:
        outcome = _decode(data)
        value, fault = bytes(outcome.ok), bytes(outcome.error)
        if not fault:
            return payload.decode(value)
        error = errors.rebuild(payload.decode(fault))
        error.call_id = call_id
        return error
    except (payload.PayloadError, msgspec.MsgspecError, ValueError, RecursionError) as unreadable:
        text = f"the outcome cannot be read: {unreadable}"
        return errors.RemoteError("Unreadable", text, call_id=call_id)


def is_error(value: Any) -> bool:
    return isinstance(value, CallError)
