"""What callers say about rooms and inboxes, checked before a byte is sent.

Ids are somebody's secret or somebody's name: no complaint repeats them.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, urlsafe_b64encode
from string import ascii_letters, digits
from typing import Final, Literal, get_args

Type = Literal[
    "mls_app", "mls_proposal", "mls_approval", "mls_rejection", "mls_commit", "mls_group_info"
]
TYPES: Final = get_args(Type)
ABOUT_PROPOSALS: Final = frozenset(("mls_proposal", "mls_approval", "mls_rejection", "mls_commit"))
SEQ_MAX: Final = 2**53 - 1

_ID_CHARS_MAX = 128
_INBOX_CHARS_MAX = 344
CAPABILITY_CHARS = 43  # Base64 of 32 bytes.
_PLAIN = frozenset(ascii_letters + digits + "._~-")
_WITH_COLON = _PLAIN | {":"}
_BASE64 = frozenset(ascii_letters + digits + "+/")


def room_name(tenant: str | None, room: str) -> str:
    """What identifies a room: its id, behind its tenant's if it has one."""
    _check("a room id", room, _WITH_COLON)
    if tenant is None:
        return room
    _check("a tenant id", tenant, _PLAIN)
    name = f"{tenant}:{room}"
    if len(name) > _ID_CHARS_MAX:
        raise ValueError(f"tenant and room have {_ID_CHARS_MAX - 1} characters together, not more")
    return name


def default_inbox(name: str) -> str:
    """The inbox of a room that nobody bound to another one. It is no secret."""
    return encoded(name.encode())


def checked_inbox(inbox: str) -> str:
    """An inbox id: the base64 of 32 bytes in either alphabet, or a plain word."""
    bare = inbox.rstrip("=") if isinstance(inbox, str) else ""
    if len(bare) == CAPABILITY_CHARS and _BASE64.issuperset(bare):
        return bare.replace("+", "-").replace("/", "_")
    _check("an inbox id", bare, _WITH_COLON, _INBOX_CHARS_MAX)
    return bare


def checked_pseudonym(pseudonym: str | None) -> str:
    """Who we are in a room; a name for this occasion only, if none is given."""
    if pseudonym is None:
        return secrets.token_hex(8)
    return _check("a pseudonym", pseudonym, _WITH_COLON)


def checked_room_message_id(message_id: str | None) -> str:
    """The id of a message; a new one if none is given."""
    if message_id is None:
        return new_message_id()
    return _check("a message id", message_id, _PLAIN)


def new_message_id() -> str:
    """An id nobody else has, and which tells nothing about who made it."""
    return secrets.token_hex(16)


def checked_kind(type: str, proposal_id: str | None) -> str:
    """The type of a room's message; some are about a proposal, which they must name."""
    if type not in TYPES:
        raise ValueError(f"there is no such type; there are {', '.join(TYPES)}")
    if type in ABOUT_PROPOSALS and proposal_id is None:
        raise ValueError(f"a message of type {type} needs a proposal id")
    if proposal_id is not None:
        _check("a proposal id", proposal_id, _PLAIN)
    return type


def checked_ciphertext(ciphertext: bytes) -> bytes:
    """What to send: bytes that only members can read, and at least one."""
    if not isinstance(ciphertext, bytes | bytearray | memoryview):
        raise TypeError("a ciphertext is bytes; encrypt and encode texts before they are sent")
    if not len(ciphertext):
        raise ValueError("a ciphertext has at least one byte")
    return bytes(ciphertext)


def checked_seq(seq: int, of_what: str, *, least: int = 0) -> int:
    """A position in an inbox."""
    if isinstance(seq, bool) or not isinstance(seq, int) or not least <= seq <= SEQ_MAX:
        raise ValueError(f"{of_what} is a whole number from {least} on")
    return seq


def encoded(data: bytes) -> str:
    """Base64url without padding, as everything binary travels."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes of a base64 text in either alphabet, padded or not; `ValueError` if it is none."""
    bare = text.rstrip("=")
    if not text.isascii() or len(text) - len(bare) > 2:
        raise ValueError("this is no base64")
    return b64decode(bare + "=" * (-len(bare) % 4), b"-_", validate=True)


def _check(what: str, text: str, letters: frozenset[str], chars_max: int = _ID_CHARS_MAX) -> str:
    if (
        not isinstance(text, str)
        or not 0 < len(text) <= chars_max
        or not letters.issuperset(text)
        or ".." in text
    ):
        signs = " ".join(sorted(letters - set(ascii_letters + digits)))
        raise ValueError(
            f"{what} has 1 to {chars_max} characters of A-Z a-z 0-9 {signs}, and no two dots "
            "in a row"
        )
    return text
