"""A hub in memory that asks for tokens, and tokens for it."""

from __future__ import annotations

from typing import Any

import msgspec

from signalhub.auth.tokens import Authenticator
from signalhub.settings.model import AuthSettings, Settings
from tests.support.memory.shell import HELLO, MemoryShell, Peer
from tests.support.socket.tokens import AUTH, token_for

_AUTH = msgspec.convert(AUTH, AuthSettings)


def guarded(**settings: Any) -> MemoryShell:
    return MemoryShell(Settings(auth=_AUTH, **settings), authenticator=Authenticator(_AUTH))


def token(
    shell: MemoryShell,
    actor: str = "local/alice",
    permissions: dict[str, list[str]] | None = None,
) -> str:
    """A token that allows everything unless said otherwise."""
    return token_for(f"@({actor})", shell.clock, permissions=permissions)


def admitted(
    shell: MemoryShell,
    actor: str = "local/alice",
    permissions: dict[str, list[str]] | None = None,
) -> Peer:
    peer = shell.open()
    given = token(shell, actor, permissions)
    welcome = peer.hello(f"@({actor})", metadata=HELLO | {"authToken": given})
    assert welcome["type"] == "hub:connected", welcome
    peer.take()
    return peer
