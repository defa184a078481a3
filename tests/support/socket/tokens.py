"""Keys and tokens for hubs that ask for one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt import PyJWS

from signalhub.auth.tokens import mint
from signalhub.clock import Clock
from signalhub.settings.model import Key
from tests.support.peer import Peer
from tests.support.stage import Stage

# Long enough for HS512 too, which the hub must refuse for other reasons.
SECRET = "a shared secret of more than the sixty-four bytes that HS512 asks for"
KEYED_SECRET = "another secret, chosen by its kid in the token"
EVERYTHING: dict[str, Sequence[str]] = {
    verb: ["*"] for verb in ("send", "broadcast", "publish", "subscribe", "register")
}


class KeyPair(NamedTuple):
    """An Ed25519 pair in PEM."""

    private: str
    public: str


def key_pair() -> KeyPair:
    private = Ed25519PrivateKey.generate()
    return KeyPair(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
        private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    )


PAIR = key_pair()
AUTH: dict[str, Any] = {
    "enabled": True,
    "secret": SECRET,
    "keys": {
        "shared": {"algorithm": "HS256", "secret": KEYED_SECRET},
        "signed": {"algorithm": "EdDSA", "public_key": PAIR.public},
    },
}


def token_for(
    actor: str,
    clock: Clock,
    *,
    permissions: Mapping[str, Sequence[str]] | None = None,
    lifetime_s: float = 3600,
    kid: str | None = None,
) -> str:
    """A good token: HS256 without a kid or with `shared`, EdDSA with `signed`."""
    algorithm = "EdDSA" if kid == "signed" else "HS256"
    secret = KEYED_SECRET if kid == "shared" else SECRET
    return mint(
        Key(algorithm="EdDSA") if algorithm == "EdDSA" else Key(secret=secret),
        kid=kid,
        subject=actor,
        actor=actor,
        permissions=EVERYTHING if permissions is None else permissions,
        lifetime_s=lifetime_s,
        issuer="signal-hub",
        now_s=clock.now_ms() / 1000,
        private_key=PAIR.private if algorithm == "EdDSA" else "",
    )


def odd_token(clock: Clock, algorithm: str = "HS256", **claims: Any) -> str:
    """A token signed with the right secret whose claims are the test's; `...` leaves one out."""
    now_s = clock.now_ms() // 1000
    body = {"iss": "signal-hub", "sub": "user-1", "actorId": "local/a", "iat": now_s} | claims
    present = {name: value for name, value in body.items() if value is not ...}
    # The signing layer alone: `jwt.encode` has opinions on claims, and the hub is to have them.
    return PyJWS().encode(json.dumps(present).encode(), SECRET, algorithm=algorithm)


# The permission to make topics, beside the five verbs of the wire protocol.
CREATE = "create"


async def session_of(stage: Stage, name: str, **permissions: list[str]) -> Peer:
    address = f"@(local/{name})"
    token = token_for(address, stage.clock, permissions=permissions)
    return await stage.connect(address, authToken=token)
