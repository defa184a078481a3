"""The syntax of room, inbox and member ids, and the names under which the hub stores them.

The names are keyed hashes of the clients' names. The hub never writes a clear id, and anyone who
gets the data cannot test ids without the key. The version of the key is part of the name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final

from signalhub import native
from signalhub.wire.base64url import decoded, encoded
from signalhub.wire.entry import InboxKeyBody

if native.IS_ON or TYPE_CHECKING:
    import signalhub_native

KEY_VERSION: Final = 1
# The stored names of inboxes begin with this, those of rooms do not.
INBOX_PREFIX: Final = "inbox."
_HASH_BYTES: Final = 16
# A digest has 32 bits: as much as a record of a known id has room for.
_HALF_BYTES: Final = 2
_HALF_BITS: Final = 8 * _HALF_BYTES
_HALF_MASK: Final = 2**_HALF_BITS - 1
# Every message names its room; the cache saves busy rooms two hashes.
_CACHED: Final = 16_384


class Form:
    """How ids of one kind are written: letters, digits and some marks, and no two dots in a row.

    `str` describes the form in words.
    """

    __slots__ = ("_marks", "alphabet", "chars_max")

    def __init__(self, marks: str, chars_max: int = 128) -> None:
        self.chars_max = chars_max
        self._marks = marks
        self.alphabet = (ascii_letters + digits + marks).encode()

    def __str__(self) -> str:
        marks = " ".join(self._marks)
        return f"1 to {self.chars_max} characters of A-Z a-z 0-9 {marks} without two dots in a row"

    @property
    def pattern(self) -> str:
        """The same as a regular expression, without anchors."""
        return rf"(?!.*\.\.)[A-Za-z0-9{self._marks}]{{1,{self.chars_max}}}"

    def admits(self, text: str) -> bool:
        """Is this an id of the kind?"""
        return (
            0 < len(text) <= self.chars_max
            and text.isascii()
            and not text.encode().translate(None, self.alphabet)
            and ".." not in text
        )


PLAIN: Final = Form("._~-")
WITH_COLON: Final = Form("._~:-")
# Enough for base64url of the longest name of a room with a tenant.
INBOX: Final = Form("._~:-", 344)
# What base64 makes of 32 bytes, which is what an inbox id should be.
CAPABILITY_CHARS: Final = 43
# A room, after its tenant and a colon.
_FULL_NAME: Final = Form("._~:-", 257)


class Names:
    """Hashes names with one key."""

    def __init__(self, secret: bytes, version: int = KEY_VERSION) -> None:
        self._secret = secret
        self._version = version
        self.room = lru_cache(_CACHED)(self._room)
        self.inbox = lru_cache(_CACHED)(self._inbox)
        content_key = hmac.digest(secret, b"content\0", "sha256")
        self._keyed = blake2b(digest_size=_HALF_BYTES, key=content_key)
        # A digest of a message and its sender, for `is_other_content`; never 0.
        self.content: Callable[[str, bytes], int] = self.content_in_python
        if native.IS_ON:
            self.content = signalhub_native.Contents(content_key).digest

    @property
    def mark(self) -> InboxKeyBody:
        """A fingerprint of the key in the log, so that a different key is noticed."""
        return InboxKeyBody(self._version, self._hash(b"fingerprint", ""))

    def content_in_python(self, pseudonym: str, ciphertext: bytes) -> int:
        """What `content` does without the native part.

        The upper half is of the ciphertext, the lower one of both, 0 without a pseudonym. So two
        messages of one sender have nothing in common.
        """
        digest = self._keyed.copy()
        digest.update(ciphertext)
        upper = int.from_bytes(digest.digest(), "little") or 1
        if not pseudonym:
            return upper << _HALF_BITS
        # No ciphertext contains this byte.
        digest.update(b"\0" + pseudonym.encode())
        return upper << _HALF_BITS | (int.from_bytes(digest.digest(), "little") or 1)

    def _room(self, name: str) -> str:
        return f"room.{self._version}.{self._hash(b'room', name)}"

    def _inbox(self, inbox_id: str) -> str:
        return f"{INBOX_PREFIX}{self._version}.{self._hash(b'inbox', inbox_id)}"

    def _hash(self, domain: bytes, text: str) -> str:
        digest = hmac.digest(self._secret, domain + b"\0" + text.encode(), "sha256")
        return encoded(digest[:_HASH_BYTES])


def is_other_content(first: int, second: int) -> bool:
    """Do two digests stand for different ciphertexts, or for different pseudonyms?

    A message without a pseudonym may repeat one with a pseudonym.
    """
    if first >> _HALF_BITS != second >> _HALF_BITS:
        return True
    one, other = first & _HALF_MASK, second & _HALF_MASK
    return bool(one and other and one != other)


def default_inbox(room_name: str) -> str:
    """The default inbox of a room that was not bound to another one. It is not secret."""
    return encoded(room_name.encode())


@lru_cache(_CACHED)
def name_behind(inbox_id: str) -> str | None:
    """The room that has this inbox by default; `None` if the id follows from no name.

    Random ids do not: the odds that 32 random bytes are characters of names are one in 2^60.
    """
    try:
        name = decoded(inbox_id).decode("ascii")
    except ValueError:
        return None
    return name if _FULL_NAME.admits(name) and default_inbox(name) == inbox_id else None
