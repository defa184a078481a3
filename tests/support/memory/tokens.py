"""A hub in memory that asks for tokens, and tokens for it."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from jwt import PyJWT

from signalhub.auth.tokens import Authenticator
from signalhub.settings.model import AuthSettings, Key, Settings
from tests.support.memory.shell import HELLO, MemoryShell, Message, Peer

ALL = {"send": ["*"], "broadcast": ["*"], "publish": ["*"], "subscribe": ["*"], "register": ["*"]}


PRIVATE = Ed25519PrivateKey.from_private_bytes(b"\1" * 32)


PUBLIC_PEM = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


PRIVATE_PEM = PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


SECRET = "a shared secret that is long enough for anybody"


AUTH = AuthSettings(
    enabled=True,
    secret=SECRET,
    keys={"ed": Key(algorithm="EdDSA", public_key=PUBLIC_PEM.decode())},
)


def guarded() -> MemoryShell:
    return MemoryShell(Settings(auth=AUTH), authenticator=Authenticator(AUTH))


def token(
    shell: MemoryShell,
    actor: str = "local/alice",
    *,
    lifetime_s: float = 600,
    is_ed: bool = False,
    permissions: object = ALL,
) -> str:
    now_s = shell.now / 1000
    claims = {
        "iss": "signal-hub",
        "sub": "user",
        "actorId": actor,
        "iat": int(now_s),
        "exp": now_s + lifetime_s,
        "permissions": permissions,
    }
    if is_ed:
        return PyJWT().encode(claims, PRIVATE_PEM, "EdDSA", headers={"kid": "ed"})
    return PyJWT().encode(claims, SECRET, "HS256")


def hello(peer: Peer, given: object, address: str = "@(local/whoever)") -> Message:
    return peer.hello(address, metadata=HELLO | {"authToken": given})


def admitted(shell: MemoryShell, actor: str = "local/alice", **claims: Any) -> Peer:
    peer = shell.open()
    welcome = hello(peer, token(shell, actor, **claims))
    assert welcome["type"] == "hub:connected", welcome
    peer.address = f"@({actor})"
    peer.take()
    return peer
