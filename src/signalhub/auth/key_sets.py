"""Key sets (JWKS, RFC 7517): the public keys of an issuer, which it may rotate.

Only Ed25519 keys for signatures that have a `kid` are taken; others are ignored, as the standard
asks. So a set cannot make the hub accept another algorithm.
"""

from __future__ import annotations

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from signalhub.wire.base64url import decoded
from signalhub.wire.errors import SettingsError

SET_BYTES_MAX = 256 * 2**10
KEYS_MAX = 256


class _Set(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


def read(text: bytes) -> dict[str, Ed25519PublicKey]:
    """The usable keys of a set by `kid`; raises `SettingsError` if there is none."""
    if len(text) > SET_BYTES_MAX:
        raise SettingsError(f"the key set is longer than {SET_BYTES_MAX} bytes")
    try:
        listed = msgspec.json.decode(text, type=_Set).keys
    except (ValueError, RecursionError):
        raise SettingsError("the key set is not JSON with a list `keys`") from None
    if len(listed) > KEYS_MAX:
        raise SettingsError(f"the key set has more than {KEYS_MAX} keys")
    found: dict[str, Ed25519PublicKey] = {}
    for one in listed:
        key = _key(one)
        if key is None:
            continue
        kid = one["kid"]
        if kid in found:
            raise SettingsError("the key set has two keys with one `kid`")
        found[kid] = key
    if not found:
        raise SettingsError("the key set has no Ed25519 key (kty OKP, crv Ed25519) with a `kid`")
    return found


def _key(jwk: dict[str, Any]) -> Ed25519PublicKey | None:
    kid, x, operations = jwk.get("kid"), jwk.get("x"), jwk.get("key_ops")
    is_for_us = (
        jwk.get("kty") == "OKP"
        and jwk.get("crv") == "Ed25519"
        and jwk.get("use", "sig") == "sig"
        and jwk.get("alg", "EdDSA") in ("EdDSA", "Ed25519")
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )
    if not is_for_us or not isinstance(kid, str) or not kid or not isinstance(x, str):
        return None
    try:
        return Ed25519PublicKey.from_public_bytes(decoded(x))
    except ValueError:
        return None
