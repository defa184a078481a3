"""The names under which rooms and inboxes are kept: keyed hashes of what clients call them.

Nothing the hub writes holds a clear id, and whoever gets hold of the data cannot try ids out
without the key. The version of the key is part of the name.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from functools import lru_cache
from typing import Final

from signalhub.wire.entry import InboxKey

KEY_VERSION: Final = 1
_HASH_BYTES: Final = 16
# Busy rooms are named with every message; the cache spares them two hashes.
_CACHED: Final = 16_384


class Names:
    """Hashes names with one key."""

    def __init__(self, secret: bytes, version: int = KEY_VERSION) -> None:
        self._secret = secret
        self._version = version
        self.room = lru_cache(_CACHED)(self._room)
        self.inbox = lru_cache(_CACHED)(self._inbox)

    @property
    def mark(self) -> InboxKey:
        """What the log remembers of the key, so that another one is noticed."""
        return InboxKey(self._version, self._hash(b"fingerprint", ""))

    def _room(self, name: str) -> str:
        return f"room.{self._version}.{self._hash(b'room', name)}"

    def _inbox(self, inbox_id: str) -> str:
        return f"inbox.{self._version}.{self._hash(b'inbox', inbox_id)}"

    def _hash(self, domain: bytes, text: str) -> str:
        digest = hmac.digest(self._secret, domain + b"\0" + text.encode(), "sha256")
        return urlsafe_b64encode(digest[:_HASH_BYTES]).rstrip(b"=").decode()


def default_inbox(room_name: str) -> str:
    """The inbox of a room that nobody bound to another one. It is no secret."""
    return urlsafe_b64encode(room_name.encode()).rstrip(b"=").decode()
