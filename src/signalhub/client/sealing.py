"""Sealing: end-to-end encryption with one key that the members of a room share.

For programs without an MLS implementation, and for the command line. A sealed message is a version
byte, a random nonce of 96 bits and the output of ChaCha20-Poly1305. The name of the room and the id
of the message are authenticated with it, so a hub can neither move a message to another room nor
pass it off as a new one under another id. Nothing here hides how long a message is, and whoever has
the key can write as anybody. Random nonces are good for 2^32 messages under one key.
"""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = 1 + NONCE_BYTES + TAG_BYTES

_VERSION = b"\x01"
# The key of a room also gives its inbox id; what encrypts is a sibling of that, not its parent.
_PURPOSE = b"signalhub room sealing 1"


class Unsealable(ValueError):
    """Sealed with another key, for another room or message, not sealed at all, or damaged."""


def new_key() -> bytes:
    """A key for a room, to be given to its members and to nobody else."""
    return secrets.token_bytes(KEY_BYTES)


class Sealing:
    """Seals and opens the messages of one room, named `tenant:room` if it has a tenant."""

    def __init__(self, key: bytes, room: str) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key of a room has {KEY_BYTES} bytes")
        self._cipher = ChaCha20Poly1305(HKDFExpand(SHA256(), KEY_BYTES, _PURPOSE).derive(key))
        self._room = room.encode()

    def seal(self, message_id: str, plaintext: bytes) -> bytes:
        """The ciphertext to send under this id; a repeat sends the same bytes again."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plaintext, self._bound(message_id))

    def open(self, message_id: str, sealed: bytes) -> bytes:
        """What was sealed under this id, or `Unsealable`."""
        if len(sealed) < OVERHEAD_BYTES or sealed[:1] != _VERSION:
            raise Unsealable("this was not sealed for a room")
        nonce, rest = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, rest, self._bound(message_id))
        except InvalidTag:
            raise Unsealable("another key, room or message, or damaged") from None

    def _bound(self, message_id: str) -> bytes:
        """Room and message, such that no other pair reads the same."""
        return len(self._room).to_bytes(2, "big") + self._room + message_id.encode()
