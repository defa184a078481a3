"""Reading a token without its key; nothing in it is verified."""

from __future__ import annotations

from typing import Any

import msgspec

from signalhub.wire import names
from signalhub.wire.base64url import decoded


def contents(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims; raises `ValueError` for anything but a JWT."""
    # The hub accepts a token with or without a leading `Bearer`.
    header, claims, _ = token.strip().rpartition(" ")[-1].split(".")
    return _part(header), _part(claims)


def actor_of(token: str) -> str | None:
    """Return the address a token is for, if it names one."""
    try:
        _, claims = contents(token)
    except ValueError:
        return None
    full = f"@({claims.get('actorId')})"
    return full if names.is_address(full) else None


def _part(text: str) -> dict[str, Any]:
    return msgspec.json.decode(decoded(text), type=dict[str, Any])
