"""Keys in PEM as a key set (JWKS)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from signalhub.wire.base64url import encoded


def key_set(pems: Mapping[str, str]) -> str:
    """Return the public halves of Ed25519 keys, by `kid`; raises `ValueError` for other keys."""
    keys = [
        {
            "kty": "OKP",
            "crv": "Ed25519",
            "use": "sig",
            "alg": "EdDSA",
            "kid": kid,
            "x": encoded(_public(kid, pem.encode()).public_bytes_raw()),
        }
        for kid, pem in pems.items()
    ]
    return msgspec.json.format(msgspec.json.encode({"keys": keys}), indent=2).decode()


def _public(kid: str, pem: bytes) -> Ed25519PublicKey:
    """The public key in a PEM file with either half."""
    with contextlib.suppress(ValueError, TypeError):
        private = load_pem_private_key(pem, password=None)
        if isinstance(private, Ed25519PrivateKey):
            return private.public_key()
    with contextlib.suppress(ValueError):
        public = load_pem_public_key(pem)
        if isinstance(public, Ed25519PublicKey):
            return public
    raise ValueError(f"{kid} is not an Ed25519 key in PEM")
