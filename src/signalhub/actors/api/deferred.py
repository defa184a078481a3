"""Deferred answers: `defer`, `resolve`, `reject`."""

from __future__ import annotations

import msgspec

from signalhub.actors.api import payload
from signalhub.actors.store.store import HostStore


class Token(msgspec.Struct, frozen=True):
    """A call that has not been answered yet. It can be stored and bound to continuations."""

    id: str


payload.extend(
    "token", Token, lambda token, packer: packer.pack_text(token.id), lambda id, _: Token(str(id))
)


class Deferred:
    """The table of unanswered calls."""

    def __init__(self, store: HostStore) -> None:
        self._execute = store.execute

    def put(self, actor: str, token: Token, caller: str, call_id: str) -> None:
        self._execute(
            "INSERT INTO deferred VALUES (?, ?, ?, ?)", (actor, token.id, caller, call_id)
        )

    def take(self, actor: str, token_id: str) -> tuple[str, str] | None:
        """Remove and return the caller and the call id; `None` if already answered."""
        found: tuple[str, str] | None = self._execute(
            "DELETE FROM deferred WHERE actor = ? AND token = ? RETURNING caller, call_id",
            (actor, token_id),
        ).fetchone()
        return found
