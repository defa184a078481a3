"""What rooms and inboxes are sent, checked for its structure alone.

Nothing here looks inside a ciphertext or decodes it. A refusal says which part is wrong and what
would be right, and never repeats what was given: ids and ciphertexts are nobody's business.
"""

from __future__ import annotations

import secrets
import time
from string import ascii_letters, digits
from typing import Final
from urllib.parse import unquote_plus

import msgspec

from signalhub.core.rooms.values import ABOUT_PROPOSALS, APP, TYPES
from signalhub.ids import ulid
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import (
    CAPABILITY_CHARS,
    INBOX,
    PLAIN,
    WITH_COLON,
    Form,
    default_inbox,
)

PAGE_MAX: Final = 1_000
# The largest integer that every JSON reader keeps exactly.
INTEGER_MAX: Final = 2**53 - 1
_INTEGER_CHARS_MAX: Final = len(str(INTEGER_MAX))

_ALPHANUMERIC = (ascii_letters + digits).encode()
_BASE64URL = _ALPHANUMERIC + b"-_"
_BASE64 = _ALPHANUMERIC + b"+/"
_TO_BASE64URL = bytes.maketrans(b"+/", b"-_")

# A ciphertext never has one character left over: six bits are no byte.
_PADDINGS = {0: (0,), 2: (0, 2), 3: (0, 1)}


class IdMember(msgspec.Struct, frozen=True, gc=False):
    """A member of a JSON object that holds an id, or `null`."""

    name: str
    form: Form

    def read(self, members: dict[str, object]) -> str | None:
        """The id, if there is one."""
        value = members.get(self.name)
        if value is None:
            return None
        if type(value) is str and self.form.admits(value):
            return value
        raise _bad(self.name, str(self.form))


MESSAGE_ID: Final = IdMember("messageId", PLAIN)
ROOM_ID: Final = IdMember("roomId", WITH_COLON)
TENANT_ID: Final = IdMember("tenantId", PLAIN)
PSEUDONYM_ID: Final = IdMember("pseudonymId", WITH_COLON)
PROPOSAL_ID: Final = IdMember("proposalId", PLAIN)


class Parameter(msgspec.Struct, frozen=True):
    """A whole number in a query, up to `INTEGER_MAX`."""

    name: str
    least: int
    default: int

    def read(self, text: str) -> int:
        """The number in a text."""
        if text.isascii() and text.isdigit() and len(text.lstrip("0")) <= _INTEGER_CHARS_MAX:
            number = int(text)
            if self.least <= number <= INTEGER_MAX:
                return number
        raise RoomError(
            RoomCode.BAD_REQUEST,
            f"{self.name} must be an integer from {self.least} to {INTEGER_MAX}.",
        )


FROM_SEQ: Final = Parameter("fromSeq", least=0, default=0)
LIMIT: Final = Parameter("limit", least=1, default=100)
_PAGE: Final = {one.name: one for one in (FROM_SEQ, LIMIT)}


class RoomEnvelope(msgspec.Struct, frozen=True, gc=False):
    """A message for a room as its sender wrote it, with the ciphertext in its one stored form."""

    message_id: str | None
    ciphertext: bytes
    type: str
    proposal: str
    pseudonym: str | None
    room: str | None
    tenant: str | None


def read_envelope(members: dict[str, object], ciphertext_bytes_max: int) -> RoomEnvelope:
    """The envelope in a JSON object; members it does not know are ignored."""
    kind = members.get("type")
    if kind is None:
        kind = APP
    elif type(kind) is not str or kind not in TYPES:
        raise _bad("type", f"one of {', '.join(sorted(TYPES))}")
    proposal = ""
    if kind in ABOUT_PROPOSALS:
        proposal = PROPOSAL_ID.read(members) or ""
        if not proposal:
            raise RoomError(RoomCode.BAD_ENVELOPE, "An envelope of this type needs a proposalId.")
    message_id = MESSAGE_ID.read(members)
    tenant = TENANT_ID.read(members)
    room = ROOM_ID.read(members)
    pseudonym = PSEUDONYM_ID.read(members)
    ciphertext = read_ciphertext(members, ciphertext_bytes_max)
    return RoomEnvelope(message_id, ciphertext, kind, proposal, pseudonym, room, tenant)


def read_deposit(members: dict[str, object], ciphertext_bytes_max: int) -> tuple[str, bytes]:
    """The message id and ciphertext of a direct write to an inbox; it needs both."""
    message_id = MESSAGE_ID.read(members)
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


def ciphertext_chars_max(bytes_max: int) -> int:
    """How long the base64 of a ciphertext can be; padding does not count."""
    return (bytes_max * 4 + 3) // 3


def read_range(query: str) -> tuple[int, int]:
    """Where a page begins and how many messages it may have; other parameters are ignored."""
    if not query:
        return FROM_SEQ.default, LIMIT.default
    given: dict[str, int] = {}
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        parameter = _PAGE.get(unquote_plus(name))
        if parameter is not None:
            if parameter.name in given:
                raise RoomError(RoomCode.BAD_REQUEST, f"{parameter.name} was given more than once.")
            given[parameter.name] = parameter.read(unquote_plus(value))
    limit = given.get(LIMIT.name, LIMIT.default)
    return given.get(FROM_SEQ.name, FROM_SEQ.default), min(limit, PAGE_MAX)


def room_name(tenant: str | None, room: str) -> str:
    """What identifies a room: its id, behind its tenant's if it has one."""
    if not WITH_COLON.admits(room):
        raise RoomError(RoomCode.BAD_REQUEST, f"The room id must be {WITH_COLON}.")
    if tenant is None:
        return room
    if not PLAIN.admits(tenant):
        raise RoomError(RoomCode.BAD_REQUEST, f"The tenant id must be {PLAIN}.")
    return f"{tenant}:{room}"


def inbox_id(text: str) -> str:
    """An inbox id in its one form, however it was written."""
    bare = text.rstrip("=")
    padding = len(text) - len(bare)
    if text.isascii() and bare and padding <= 2:
        given = bare.encode()
        if len(bare) == CAPABILITY_CHARS and padding <= 1 and not given.translate(None, _BASE64):
            return given.translate(_TO_BASE64URL).decode()
        if INBOX.admits(bare):
            return default_inbox(bare) if ":" in bare else bare
    raise RoomError(
        RoomCode.BAD_REQUEST,
        f"The inbox id must be 32 bytes in base64url, or {INBOX}.",
    )


def pseudonym_id(text: str) -> str:
    """A pseudonym, if it is one."""
    if not WITH_COLON.admits(text):
        raise RoomError(RoomCode.BAD_REQUEST, f"The pseudonym must be {WITH_COLON}.")
    return text


def proposal_id(text: str) -> str:
    """A proposal's id, if it is one."""
    if not PLAIN.admits(text):
        raise RoomError(RoomCode.BAD_REQUEST, f"The proposal id must be {PLAIN}.")
    return text


def new_message_id() -> str:
    """A ULID, for messages whose sender gave them no id."""
    return ulid(time.time_ns() // 1_000_000, secrets.randbits(80))


def _bad(member: str, right: str) -> RoomError:
    return RoomError(RoomCode.BAD_ENVELOPE, f"{member} must be {right}.")


def _bad_ciphertext() -> RoomError:
    return _bad("ciphertext", "a text that is not empty, in base64url or base64")
