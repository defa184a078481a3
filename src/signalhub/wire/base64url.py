"""Base64url without padding, the form of binary data in text."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode


def encoded(data: bytes) -> str:
    """The bytes as text."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes of a base64 text in either alphabet, padded or not; raises `ValueError`."""
    bare = text.rstrip("=")
    if not text.isascii() or len(text) - len(bare) > 2:
        raise ValueError("invalid base64")
    return b64decode(bare + "=" * (-len(bare) % 4), b"-_", validate=True)
