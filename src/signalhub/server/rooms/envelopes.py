"""What rooms and inboxes are sent, checked for its structure alone.

Nothing here looks inside a ciphertext or decodes it. A refusal says which part is wrong and what
would be right, and never repeats what was given: ids and ciphertexts are nobody's business.
"""

from __future__ import annotations

import secrets
import time
from string import ascii_letters, digits
from typing import Final

import msgspec

from signalhub.core.rooms.values import ABOUT_PROPOSALS, APP, TYPES
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import default_inbox

ID_CHARS_MAX: Final = 128
# Enough for base64url of the longest name of a room with a tenant.
INBOX_CHARS_MAX: Final = 344
# What base64 makes of 32 bytes, which is what an inbox id should be.
CAPABILITY_CHARS: Final = 43

_ALPHANUMERIC = (ascii_letters + digits).encode()
_PLAIN = _ALPHANUMERIC + b"._~-"
_WITH_COLON = _PLAIN + b":"
_BASE64URL = _ALPHANUMERIC + b"-_"
_BASE64 = _ALPHANUMERIC + b"+/"
_TO_BASE64URL = bytes.maketrans(b"+/", b"-_")

# A ciphertext never has one character left over: six bits are no byte.
_PADDINGS = {0: (0,), 2: (0, 2), 3: (0, 1)}


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """A message for a room as its sender wrote it, with the ciphertext in its one stored form."""

    message_id: str | None
    ciphertext: bytes
    type: str
    proposal: str
    pseudonym: str | None
    room: str | None
    tenant: str | None


def read_envelope(members: dict[str, object], ciphertext_bytes_max: int) -> Envelope:
    """The envelope in a JSON object; members it does not know are ignored."""
    kind = members.get("type")
    if kind is None:
        kind = APP
    elif type(kind) is not str or kind not in TYPES:
        raise _bad("type", f"one of {', '.join(sorted(TYPES))}")
    proposal = (_id(members, "proposalId") or "") if kind in ABOUT_PROPOSALS else ""
    if not proposal and kind in ABOUT_PROPOSALS:
        raise RoomError(RoomCode.BAD_ENVELOPE, "An envelope of this type needs a proposalId.")
    message_id = _id(members, "messageId")
    tenant = _id(members, "tenantId")
    room = _id(members, "roomId", _WITH_COLON)
    pseudonym = _id(members, "pseudonymId", _WITH_COLON)
    ciphertext = read_ciphertext(members, ciphertext_bytes_max)
    return Envelope(message_id, ciphertext, kind, proposal, pseudonym, room, tenant)


def read_deposit(members: dict[str, object], ciphertext_bytes_max: int) -> tuple[str, bytes]:
    """The message id and ciphertext of a direct write to an inbox; it needs both."""
    message_id = _id(members, "messageId")
    if message_id is None:
        raise RoomError(RoomCode.BAD_ENVELOPE, "An append needs a messageId.")
    return message_id, read_ciphertext(members, ciphertext_bytes_max)


def read_ciphertext(members: dict[str, object], bytes_max: int) -> bytes:
    """The ciphertext as base64url without padding, whichever base64 it came in."""
    text = members.get("ciphertext")
    if type(text) is not str or not text.isascii():
        raise _bad_ciphertext()
    given = text.encode()
    bare = given.rstrip(b"=")
    count = len(bare)
    if count * 3 // 4 > bytes_max:
        raise RoomError(
            RoomCode.TOO_LARGE, f"A ciphertext has at most {bytes_max} bytes, decoded from base64."
        )
    if not count or len(given) - count not in _PADDINGS.get(count % 4, ()):
        raise _bad_ciphertext()
    if bare.translate(None, _BASE64URL):
        if bare.translate(None, _BASE64):
            raise _bad_ciphertext()
        return bare.translate(_TO_BASE64URL)
    return bare


def room_name(tenant: str | None, room: str) -> str:
    """What identifies a room: its id, behind its tenant's if it has one."""
    if not _is_id(room, _WITH_COLON):
        raise RoomError(RoomCode.BAD_REQUEST, f"The room id must be {_form(':')}.")
    if tenant is None:
        return room
    if not _is_id(tenant, _PLAIN):
        raise RoomError(RoomCode.BAD_REQUEST, f"The tenant id must be {_form()}.")
    return f"{tenant}:{room}"


def inbox_id(text: str) -> str:
    """An inbox id in its one form, however it was written."""
    bare = text.rstrip("=")
    padding = len(text) - len(bare)
    if text.isascii() and bare and padding <= 2:
        given = bare.encode()
        if len(bare) == CAPABILITY_CHARS and padding <= 1 and not given.translate(None, _BASE64):
            return given.translate(_TO_BASE64URL).decode()
        if (
            len(bare) <= INBOX_CHARS_MAX
            and not given.translate(None, _WITH_COLON)
            and ".." not in bare
        ):
            return default_inbox(bare) if ":" in bare else bare
    raise RoomError(
        RoomCode.BAD_REQUEST,
        f"The inbox id must be 32 bytes in base64url, or 1 to {INBOX_CHARS_MAX} characters of "
        "A-Z a-z 0-9 . _ ~ : - without two dots in a row.",
    )


def pseudonym_id(text: str) -> str:
    """A pseudonym, if it is one."""
    if not _is_id(text, _WITH_COLON):
        raise RoomError(RoomCode.BAD_REQUEST, f"The pseudonym must be {_form(':')}.")
    return text


def proposal_id(text: str) -> str:
    """A proposal's id, if it is one."""
    if not _is_id(text, _PLAIN):
        raise RoomError(RoomCode.BAD_REQUEST, f"The proposal id must be {_form()}.")
    return text


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)
_SHIFTS = tuple(range(120, -1, -10))


def new_message_id() -> str:
    """A ULID, for messages whose sender gave them no id: 48 bits of time, 80 of chance."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join([_PAIRS[number >> shift & 0x3FF] for shift in _SHIFTS])


def _id(members: dict[str, object], name: str, alphabet: bytes = _PLAIN) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if type(value) is str and _is_id(value, alphabet):
        return value
    raise _bad(name, _form(":" if alphabet is _WITH_COLON else ""))


def _is_id(text: str, alphabet: bytes) -> bool:
    return (
        0 < len(text) <= ID_CHARS_MAX
        and text.isascii()
        and not text.encode().translate(None, alphabet)
        and ".." not in text
    )


def _form(colon: str = "") -> str:
    characters = " ".join(("A-Z a-z 0-9 . _ ~", *colon, "-"))
    return f"1 to {ID_CHARS_MAX} characters of {characters} without two dots in a row"


def _bad(member: str, right: str) -> RoomError:
    return RoomError(RoomCode.BAD_ENVELOPE, f"{member} must be {right}.")


def _bad_ciphertext() -> RoomError:
    return _bad("ciphertext", "a text that is not empty, in base64url or base64")
