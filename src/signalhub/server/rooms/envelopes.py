"""Validates what clients send to rooms and inboxes.

Only the structure is checked; ciphertexts are not decoded. An error says which part is invalid and
what is expected. It never repeats the given value, because ids and ciphertexts are confidential.
"""

from __future__ import annotations

import secrets
import time
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import Raw

from signalhub import native
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

if native.IS_ON or TYPE_CHECKING:
    from signalhub_native import RoomMessages

PAGE_MAX: Final = 1_000
# The largest integer that all JSON parsers represent exactly.
INTEGER_MAX: Final = 2**53 - 1
_INTEGER_CHARS_MAX: Final = len(str(INTEGER_MAX))

_ALPHANUMERIC = (ascii_letters + digits).encode()
_BASE64URL = _ALPHANUMERIC + b"-_"
_BASE64 = _ALPHANUMERIC + b"+/"
_TO_BASE64URL = bytes.maketrans(b"+/", b"-_")

_ABSENT = Raw(b"")
# How text and null begin, and what stands for any other value.
_TEXT = (b'"', b"n")
_OTHER: Final = object()

# Allowed padding by length modulo 4; 1 is impossible, since six bits are less than a byte.
_PADDINGS = {0: (0,), 2: (0, 2), 3: (0, 1)}


class IdMember(msgspec.Struct, frozen=True, gc=False):
    """A member of a JSON object that holds an id, or `null`."""

    name: str
    form: Form

    def read(self, members: dict[str, object]) -> str | None:
        """Return the id, if there is one."""
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


class _Members(msgspec.Struct, gc=False, rename="camel"):
    """All members of bodies and frames that are read."""

    action: Raw = _ABSENT
    type: Raw = _ABSENT
    message_id: Raw = _ABSENT
    room_id: Raw = _ABSENT
    tenant_id: Raw = _ABSENT
    pseudonym_id: Raw = _ABSENT
    proposal_id: Raw = _ABSENT
    ciphertext: Raw = _ABSENT


_decode_members = msgspec.json.Decoder(_Members).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_MEMBERS: Final = tuple(field.encode_name for field in msgspec.structs.fields(_Members))


def read_members(body: bytes) -> dict[str, object]:
    """Return the known members of a JSON object; raises `ValueError` or `RecursionError`.

    All of them are text. Other values are not made: anybody could send a mebibyte of small ones,
    which takes a tenth of a second.
    """
    members: dict[str, object] = {}
    for name, raw in zip(_MEMBERS, msgspec.structs.astuple(_decode_members(body)), strict=True):
        value = bytes(raw)
        if value:
            members[name] = _decode_text(value) if value[:1] in _TEXT else _OTHER
    return members


class Parameter(msgspec.Struct, frozen=True):
    """An integer in a query, up to `INTEGER_MAX`."""

    name: str
    least: int
    default: int

    def read(self, text: str) -> int:
        """Parse the number."""
        # Python refuses to parse thousands of digits, even if they are zeros.
        significant = text.lstrip("0") or "0"
        if text.isascii() and text.isdigit() and len(significant) <= _INTEGER_CHARS_MAX:
            number = int(significant)
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
    """A message for a room as sent, with the ciphertext in canonical form."""

    message_id: str | None
    ciphertext: bytes
    type: str
    proposal: str
    pseudonym: str | None
    room: str | None
    tenant: str | None


class EnvelopeReader:
    """Reads envelopes from JSON text: usual ones with the native part, if there is one."""

    def __init__(self, ciphertext_bytes_max: int) -> None:
        self._ciphertext_bytes_max = ciphertext_bytes_max
        self.usual: RoomMessages | None = None
        if native.IS_ON:
            self.usual = RoomMessages(
                (PLAIN.alphabet, PLAIN.chars_max),
                (WITH_COLON.alphabet, WITH_COLON.chars_max),
                _BASE64URL,
                ciphertext_bytes_max,
            )

    def read(self, body: bytes) -> RoomEnvelope:
        """Read an envelope; raises `RoomError`, or `ValueError` or `RecursionError` if the text is
        no JSON object.
        """
        if self.usual is not None:
            found = self.usual.read(body)
            if found is not None:
                message_id, ciphertext, pseudonym, room, tenant = found
                return RoomEnvelope(message_id, ciphertext, APP, "", pseudonym, room, tenant)
        return read_envelope(read_members(body), self._ciphertext_bytes_max)


def read_envelope(members: dict[str, object], ciphertext_bytes_max: int) -> RoomEnvelope:
    """Read the envelope from a JSON object; unknown members are ignored."""
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
    """Read the message id and ciphertext of a deposit; both are required."""
    message_id = MESSAGE_ID.read(members)
    if message_id is None:
        raise RoomError(RoomCode.BAD_ENVELOPE, "An append needs a messageId.")
    return message_id, read_ciphertext(members, ciphertext_bytes_max)


def read_ciphertext(members: dict[str, object], bytes_max: int) -> bytes:
    """Return the ciphertext as base64url without padding, from any base64 variant."""
    text = members.get("ciphertext")
    if type(text) is not str or not text.isascii():
        raise _bad_ciphertext()
    given = text.encode()
    bare = given.rstrip(b"=")
    count = len(bare)
    if count * 3 // 4 > bytes_max:
        raise RoomError(
            RoomCode.TOO_LARGE, f"A ciphertext may have at most {bytes_max} bytes after decoding."
        )
    if not count or len(given) - count not in _PADDINGS.get(count % 4, ()):
        raise _bad_ciphertext()
    if bare.translate(None, _BASE64URL):
        if bare.translate(None, _BASE64):
            raise _bad_ciphertext()
        return bare.translate(_TO_BASE64URL)
    return bare


def ciphertext_chars_max(bytes_max: int) -> int:
    """Return the maximum length of a ciphertext in base64, without padding."""
    return (bytes_max * 4 + 3) // 3


def read_range(query: str) -> tuple[int, int]:
    """Read the start and the limit of a page; other parameters are ignored."""
    if not query:
        return FROM_SEQ.default, LIMIT.default
    is_quoted = "%" in query or "+" in query
    given: dict[str, int] = {}
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if is_quoted:
            name, value = unquote_plus(name), unquote_plus(value)
        parameter = _PAGE.get(name)
        if parameter is not None:
            if parameter.name in given:
                raise RoomError(RoomCode.BAD_REQUEST, f"{parameter.name} was given more than once.")
            given[parameter.name] = parameter.read(value)
    limit = given.get(LIMIT.name, LIMIT.default)
    return given.get(FROM_SEQ.name, FROM_SEQ.default), min(limit, PAGE_MAX)


def room_name(tenant: str | None, room: str) -> str:
    """Return the full name of a room: its id, after its tenant's if it has one."""
    if not WITH_COLON.admits(room):
        raise RoomError(RoomCode.BAD_REQUEST, f"The room id must be {WITH_COLON}.")
    if tenant is None:
        return room
    if not PLAIN.admits(tenant):
        raise RoomError(RoomCode.BAD_REQUEST, f"The tenant id must be {PLAIN}.")
    return f"{tenant}:{room}"


def inbox_id(text: str) -> str:
    """Return an inbox id in canonical form."""
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


def bearer_token(authorization: str) -> str | None:
    """Return the token in the header of a request, if it has one."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def pseudonym_id(text: str) -> str:
    """Validate a pseudonym."""
    if not WITH_COLON.admits(text):
        raise RoomError(RoomCode.BAD_REQUEST, f"The pseudonym must be {WITH_COLON}.")
    return text


def proposal_id(text: str) -> str:
    """Validate the id of a proposal."""
    if not PLAIN.admits(text):
        raise RoomError(RoomCode.BAD_REQUEST, f"The proposal id must be {PLAIN}.")
    return text


def new_message_id() -> str:
    """Return a ULID for a message without an id."""
    return ulid(time.time_ns() // 1_000_000, secrets.randbits(80))


def _bad(member: str, right: str) -> RoomError:
    return RoomError(RoomCode.BAD_ENVELOPE, f"{member} must be {right}.")


def _bad_ciphertext() -> RoomError:
    return _bad("ciphertext", "a non-empty string in base64url or base64")
