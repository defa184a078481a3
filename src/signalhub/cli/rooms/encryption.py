"""Text and the bytes that are sent for it: encrypted with a key, plain, or given as ciphertext."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from signalhub.cli.terminal.arguments import data
from signalhub.cli.terminal.connection import HubConnection
from signalhub.cli.terminal.failures import Exit, Failure, usage

if TYPE_CHECKING:
    from signalhub.client import RoomMessage
    from signalhub.client.sealing import Sealing

INBOX_VARIABLE = "SIGNALHUB_INBOX"

Text = Annotated[
    str,
    Parameter(
        name="TEXT",
        help="Text to send; - reads standard input.",
        allow_leading_hyphen=True,
    ),
]
KeyFile = Annotated[
    Path | None,
    Parameter(
        name="--key",
        show_default=False,
        help="File with the room's key, for encryption and decryption.",
    ),
]
Raw = Annotated[
    bool,
    Parameter(
        name="--raw", negative=(), show_default=False, help="Send and show ciphertext as base64url."
    ),
]

_KEY_FORMS = (
    "a key is 32 bytes, or a line of base64url or hex; create one with `signalhub room key`"
)
_UNSEALED = "note: sent unencrypted, so the hub can read it; use --key to encrypt"
_UNOPENED = "(cannot be decrypted with this key for this room)"


@dataclass(frozen=True)
class TextCodec:
    """Turns text into bytes for one room, and back."""

    sealing: Sealing | None
    is_raw: bool

    def ciphertext(self, text: str, message_id: str) -> bytes:
        """The bytes to send under this id."""
        words: str = data(text, as_text=True)
        if self.is_raw:
            return _decoded(words)
        if not words:
            raise usage("nothing to send", "give a text, or - to read standard input")
        if self.sealing is None:
            return words.encode()
        return self.sealing.seal(message_id, words.encode())

    def warn(self, connection: HubConnection) -> None:
        """Warn if the hub can read what is sent."""
        if self.sealing is None and not self.is_raw:
            connection.remark({"encrypted": False}, _UNSEALED)

    def facts(self, message: RoomMessage) -> dict[str, Any]:
        """A message as one JSON object, with the names of the protocol, and `text` if it is text.

        With a key, decrypted bytes that are not text are `plaintext`; `sealed` is true if
        decryption failed.
        """
        from signalhub.wire.base64url import encoded

        content = self._content(message)
        text = self._text(content)
        is_opened = self.sealing is not None and content is not None
        facts = {
            "seq": message.seq,
            "messageId": message.message_id,
            "type": message.type,
            "pseudonymId": message.pseudonym,
            "createdAt": message.created_at,
            "ciphertext": encoded(message.ciphertext),
            "text": text,
            "plaintext": encoded(content) if is_opened and content and text is None else None,
            "sealed": True if content is None else None,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def text(self, message: RoomMessage) -> tuple[str, str]:
        """A message for people, with its style."""
        from signalhub.wire.base64url import encoded

        content = self._content(message)
        if content is None:
            return _UNOPENED, "red"
        text = self._text(content)
        return (encoded(content), "dim") if text is None else (text, "")

    def _content(self, message: RoomMessage) -> bytes | None:
        """The decrypted bytes; `None` if they cannot be decrypted."""
        from signalhub.client.sealing import Unsealable

        if self.sealing is None:
            return message.ciphertext
        try:
            return self.sealing.open(message.message_id, message.ciphertext)
        except Unsealable:
            return None

    def _text(self, content: bytes | None) -> str | None:
        if self.is_raw or content is None:
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        # Ciphertext may happen to be UTF-8, but not printable text.
        is_text = self.sealing is not None or all(
            letter.isprintable() or letter in "\n\t" for letter in text
        )
        return text if is_text else None


def codec_of(key: bytes | None, room: str, *, is_raw: bool, is_reading: bool) -> TextCodec:
    """How the text of this room is encoded.

    A reader's key also determines the inbox, so it may be combined with --raw.
    """
    if is_raw and key is not None and not is_reading:
        raise usage("--raw and --key exclude each other", "give one of them")
    if is_raw or key is None:
        return TextCodec(None, is_raw)
    from signalhub.client.sealing import Sealing

    return TextCodec(Sealing(key, room), is_raw)


def read_key(path: Path | None, option: str = "--key") -> bytes | None:
    """The key in a file, if one is given."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"cannot read the key file {path}: {error.strerror}"
        raise usage(problem, f"choose another with {option}") from None
    key = _key_of(content)
    if key is None:
        raise usage(f"invalid key file {path}", _KEY_FORMS)
    return key


def write_key(path: Path, key: bytes) -> None:
    """Write a key to a new file that only its owner can read."""
    from signalhub.wire.base64url import encoded

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Failure(
            Exit.FAILED,
            "file_exists",
            f"{path} exists and may contain a key in use",
            "choose another --out",
        ) from None
    except OSError as error:
        problem = f"cannot write the key file {path}: {error.strerror}"
        raise usage(problem, "choose another --out") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(encoded(key) + "\n")


def inbox_of(key: bytes | None, named: str | None) -> str | None:
    """The given inbox, or the one that belongs to the key."""
    from signalhub import capability
    from signalhub.client.arguments import checked_inbox

    if named:
        try:
            return checked_inbox(named)
        except ValueError as error:
            raise usage(str(error), "correct the inbox id") from None
    return None if key is None else capability.inbox_id(key)


def _key_of(content: bytes) -> bytes | None:
    from signalhub.client.sealing import KEY_BYTES

    if len(content) == KEY_BYTES:
        return content
    try:
        line = content.decode("ascii").strip()
        key = bytes.fromhex(line) if len(line) == 2 * KEY_BYTES else _decoded(line)
    except (ValueError, Failure):
        return None
    return key if len(key) == KEY_BYTES else None


def _decoded(text: str) -> bytes:
    from signalhub.wire.base64url import decoded

    try:
        content = decoded(text.strip())
    except ValueError:
        content = b""
    if not content:
        raise usage("invalid base64url", "omit --raw to send text")
    return content
