"""The token that a client presents: a string, or a function that returns one when it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

Token = str | Callable[[], str | Awaitable[str]] | None


async def current_token(token: Token) -> str | None:
    """Return the token to present now. The function belongs to the caller and may raise."""
    found = token() if callable(token) else token
    return await found if inspect.isawaitable(found) else found


def bearer(token: str | None) -> dict[str, str]:
    """Return the header that presents a token; raises `ValueError` for one that fits no header."""
    if token is None:
        return {}
    bare = token.strip()
    if not bare.isascii() or not bare.isprintable():
        raise ValueError("a token is one line of ASCII characters")
    return {"Authorization": f"Bearer {bare.removeprefix('Bearer ')}"}
