"""What to send with a report: an archive without payloads, tokens, keys or inbox ids.

Names of topics, subscriptions and actors, and network addresses, are replaced by short hashes with
a salt that is not kept, so the same name is the same hash within one archive only.
"""

from __future__ import annotations

import io
import ipaddress
import os
import re
import secrets
import tarfile
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import msgspec

from signalhub.operate.doctor.finding import Finding
from signalhub.privacy import opener

LOG_LINES_MAX: Final = 2_000
_LOG_BYTES_MAX: Final = 4 * 2**20
HIDDEN: Final = "hidden"

_ADDRESS: Final = re.compile(r"@\([^()\s]{1,250}\)")
_NUMBERS: Final = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
# Both forms of the hub's log: members of JSON objects, and words with an equals sign.
_NAMED: Final = re.compile(
    r'(?P<begin>"(?P<key>\w+)": ?"|\b(?P<word>\w+)=(?:"|(?="?\S)))(?P<value>(?:[^"\\\s]|\\.)+)'
)
_NAMES: Final = frozenset(
    {
        *("actor", "actors", "address", "caller", "consumer", "host", "identity", "inbox", "name"),
        *("owner", "peer", "room", "sender", "session", "source", "stream", "subject"),
        *("subscription", "target", "topic", "user"),
    }
)
# Base64 of 32 bytes, as inbox ids and keys are, and tokens.
_SECRET: Final = re.compile(r"(?<![\w-])(?:[\w-]{43}=?|eyJ[\w-]+\.[\w-]+\.[\w-]*)(?![\w-])")


class NameMask:
    """Replaces names, or leaves them if the user wants to send them; secrets always go."""

    def __init__(self, *, with_names: bool) -> None:
        self._with_names = with_names
        self._salt = secrets.token_bytes(16)

    def of(self, name: str) -> str:
        """What stands for a name."""
        if self._with_names or not name:
            return name
        return "n-" + blake2b(name.encode(), key=self._salt, digest_size=4).hexdigest()

    def text(self, text: str) -> str:
        """A text without secrets, and without what is known to be a name."""
        text = _SECRET.sub(HIDDEN, text)
        if self._with_names:
            return text
        text = _ADDRESS.sub(lambda found: f"@({self.of(found[0])})", text)
        text = _NUMBERS.sub(lambda found: self._source(found[0]), text)
        return _NAMED.sub(self._member, text)

    def _member(self, found: re.Match[str]) -> str:
        if (found["key"] or found["word"]) not in _NAMES or found["value"].startswith("@(n-"):
            return found[0]
        return found["begin"] + self.of(found["value"])

    def _source(self, text: str) -> str:
        try:
            return text if ipaddress.ip_address(text).is_loopback else self.of(text)
        except ValueError:
            return text


def contents_of(
    findings: Sequence[Finding],
    settings: Mapping[str, Any],
    *,
    data: Path,
    measured: Mapping[str, bytes],
    log: Path | None,
    mask: NameMask,
) -> dict[str, bytes]:
    """The files of a bundle by name; `settings` come without secrets."""
    files = {
        "report.json": _json(
            [{**msgspec.to_builtins(one), "text": mask.text(one.text)} for one in findings]
        ),
        "settings.json": mask.text(_json(settings).decode()).encode(),
        "segments.json": _json(_segments(data / "log")),
        "packages.txt": _packages(),
    }
    for name, content in measured.items():
        files[name] = mask.text(content.decode(errors="replace")).encode()
    status = data / "pipeline" / "status.json"
    if status.is_file():
        files["pipeline-status.json"] = mask.text(status.read_text(errors="replace")).encode()
    if log is not None:
        files["hub.log"] = mask.text(_last_lines(log)).encode()
    return files


def write_bundle(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new archive, for its owner only; raises `FileExistsError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with (
        os.fdopen(opener(str(path), flags), "wb") as out,
        tarfile.open(fileobj=out, mode="w:gz") as archive,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(f"signalhub-doctor/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(content))


def _segments(folder: Path) -> list[dict[str, object]]:
    if not folder.is_dir():
        return []
    return [
        {"name": one.name, "bytes": one.stat().st_size, "changed": int(one.stat().st_mtime)}
        for one in sorted(folder.iterdir())
        if one.is_file()
    ]


def _packages() -> bytes:
    found = {f"{one.metadata['Name']}=={one.version}" for one in distributions()}
    return ("\n".join(sorted(found, key=str.lower)) + "\n").encode()


def _last_lines(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        begin = max(0, file.tell() - _LOG_BYTES_MAX)
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines(keepends=True)
    # The first one may be a part of a line.
    return "".join(lines[1 if begin else 0 :][-LOG_LINES_MAX:])


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
