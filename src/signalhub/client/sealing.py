"""Sealing: end-to-end encryption with one key shared by the members of a room.

For programs without an MLS implementation, and for the command line. A sealed message is a version
byte, a random nonce of 96 bits and the output of an authenticated cipher: AES-256-GCM in version 2,
which this module seals and every browser has, ChaCha20-Poly1305 in version 1, which it still opens.
The name of the room and the id of the message are authenticated with it, so a hub can neither move
a message to another room nor pass it off as a new one under another id. The length of a message is
not hidden, and anyone who has the key can write as any member. Random nonces are safe for 2^32
messages under one key.
"""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = 1 + NONCE_BYTES + TAG_BYTES

_CHACHA = b"\x01"
_AES = b"\x02"
# The inbox id is derived from the same room key, so each version derives a key of its own: none can
# be computed from another.
_PURPOSE = b"signalhub room sealing "


class Unsealable(ValueError):
    """Sealed with another key, for another room or message, not sealed, or damaged."""


def new_key() -> bytes:
    """Create a key for a room, to be shared with its members only."""
    return secrets.token_bytes(KEY_BYTES)


class Sealing:
    """Seals and opens the messages of one room, named `tenant:room` if it has a tenant."""

    def __init__(self, key: bytes, room: str) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key of a room has {KEY_BYTES} bytes")
        self._aes = AESGCM(_derived(key, 2))
        chacha = ChaCha20Poly1305(_derived(key, 1))
        self._ciphers: dict[bytes, AESGCM | ChaCha20Poly1305] = {_AES: self._aes, _CHACHA: chacha}
        self._room = room.encode()

    def seal(self, message_id: str, plaintext: bytes) -> bytes:
        """Return the ciphertext to send under this id; a repeat sends the same bytes again."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _AES + nonce + self._aes.encrypt(nonce, plaintext, self._bound(message_id))

    def open(self, message_id: str, sealed: bytes) -> bytes:
        """Return what was sealed under this id, by any version; raises `Unsealable`."""
        cipher = self._ciphers.get(sealed[:1])
        if cipher is None or len(sealed) < OVERHEAD_BYTES:
            raise Unsealable("not a sealed message, or one of a newer version")
        nonce, rest = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, rest, self._bound(message_id))
        except InvalidTag:
            raise Unsealable(
                "sealed with another key, for another room or message, or damaged"
            ) from None

    def _bound(self, message_id: str) -> bytes:
        """Encode room and message id so that no two pairs have the same encoding."""
        return len(self._room).to_bytes(2, "big") + self._room + message_id.encode()


def _derived(key: bytes, version: int) -> bytes:
    return HKDFExpand(SHA256(), KEY_BYTES, _PURPOSE + b"%d" % version).derive(key)
