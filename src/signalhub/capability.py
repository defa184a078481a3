"""Capabilities: ids derived by members of a group from a secret that the hub never sees.

Anyone who knows an inbox id may read and write that inbox. Members derive it from the exporter
secret of their MLS group, so it need not be distributed, and the hub cannot derive the group from
it. The exporter is that of RFC 9420 §8.5 for the cipher suites with SHA-256. An exporter secret
changes with every epoch of a group, an inbox id must not: derive it once, when the group is
created, and send it to later members inside an encrypted message.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from signalhub.wire.base64url import encoded

KEY_BYTES: Final = 32
INBOX_KEY_LABEL: Final = "tunnl3d-inbox-key"

_INBOX_ID = b"inbox-id"
_MLS = b"MLS 1.0 "
_EXPORTED = b"exported"
_LENGTH_MAX = 255 * KEY_BYTES


def inbox_id(inbox_key: bytes) -> str:
    """Return the inbox id for a key: 43 characters that reveal nothing about the key."""
    digest = hmac.digest(_checked(inbox_key), _INBOX_ID, "sha256")
    return encoded(digest)


def inbox_key(exporter_secret: bytes, room: str) -> bytes:
    """Derive the key of a room's inbox from the exporter secret of its group."""
    return exporter(exporter_secret, INBOX_KEY_LABEL, room.encode(), KEY_BYTES)


def exporter(secret: bytes, label: str, context: bytes, length: int) -> bytes:
    """Compute `MLS-Exporter`; different labels or contexts give unrelated bytes."""
    if not 0 < length <= _LENGTH_MAX:
        raise ValueError(f"length must be between 1 and {_LENGTH_MAX} bytes")
    derived = _expand_with_label(_checked(secret), label.encode(), b"", KEY_BYTES)
    return _expand_with_label(derived, _EXPORTED, sha256(context).digest(), length)


def _expand_with_label(secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
    """Compute `ExpandWithLabel` of RFC 9420 §8; with an empty context, `DeriveSecret`."""
    kdf_label = length.to_bytes(2, "big") + _vector(_MLS + label) + _vector(context)
    return HKDFExpand(SHA256(), length, kdf_label).derive(secret)


def _vector(content: bytes) -> bytes:
    """Encode `opaque<V>` of RFC 9420 §2.1.2: the top two bits are the size of the length field."""
    size = len(content)
    if size < 2**6:
        return size.to_bytes(1, "big") + content
    if size < 2**14:
        return (size | 1 << 14).to_bytes(2, "big") + content
    if size < 2**30:
        return (size | 2 << 30).to_bytes(4, "big") + content
    raise ValueError("a label must have less than 2^30 bytes")


def _checked(secret: bytes) -> bytes:
    if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
        raise ValueError(f"a key or exporter secret must have {KEY_BYTES} bytes")
    return secret
