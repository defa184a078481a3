"""The record of an erasure: what was removed, from where, and when nothing of it was left.

A certificate never names its subject. It contains a salted hash instead, which anyone who knows the
name can check. It is written before anything is removed and again after each stage, so that an
interrupted erasure is found and continued.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from signalhub.pipeline.run.status import folder_of, replace_json
from signalhub.wire.entry import PSEUDONYM_PREFIX
from signalhub.wire.errors import SignalHubError

log = logging.getLogger("signalhub.pipeline")

FOLDER: Final = "certificates"
SCOPE: Final = (
    "Covered: the log, the hub's state and every table of the lake in this data folder.",
    "Not covered: backups and copies made earlier, and what recipients have stored.",
    "Not covered: messages of others that mention the subject.",
    "Not covered: the subject's name as a consumer of other streams, in the log and in the bodies"
    " of the table entries.",
    "Not covered: conditions of replays that name the subject; messages of the subject's mailbox"
    " that a replay has sent to others; copies that a replay sends during the erasure.",
)
_ID: Final = re.compile(r"[0-9a-f]{16}")

State = Literal["begun", "unreadable", "gone"]
Subject = Literal["actor", "inbox"]


class CertificateUnknown(SignalHubError):
    """There is no such certificate."""

    code = "certificate_unknown"

    def __init__(self, id: str, known: list[str]) -> None:
        existing = f"there are {', '.join(known)}" if known else "nothing was erased here"
        super().__init__(f"there is no certificate {id!r}; {existing}")


class LogRemoval(msgspec.Struct, kw_only=True):
    """What the hub removed from its log."""

    entries: int
    settled: int
    """Deliveries that were not settled yet; their outcome is `erased`."""
    mailbox: bool
    segments: int
    """Log files that were rewritten."""
    torn: int
    """Saved torn ends that were deleted."""
    epoch: int
    through: int
    """The log was searched up to this offset."""

    def and_then(self, later: LogRemoval) -> LogRemoval:
        """Return the sum of two attempts of one erasure."""
        return LogRemoval(
            entries=self.entries + later.entries,
            settled=self.settled + later.settled,
            mailbox=self.mailbox or later.mailbox,
            segments=self.segments + later.segments,
            torn=self.torn + later.torn,
            epoch=later.epoch,
            through=later.through,
        )


class Certificate(msgspec.Struct, kw_only=True):
    """One erasure."""

    id: str
    subject: Subject
    salt: str
    subject_sha256: str
    state: State = "begun"
    begun_ms: int
    pseudonym: str
    """Replaces the name in log and lake where a name is required."""
    unreadable_ms: int = 0
    """Since when none of it can be read."""
    gone_planned_ms: int = 0
    gone_ms: int | None = None
    """Since when no file contains any of it."""
    log: LogRemoval | None = None
    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """How many rows of each table were deleted or lost their content."""
    positions: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    """The affected entries: epoch, first and last offset."""
    scope: tuple[str, ...] = SCOPE

    def is_about(self, kind: Subject, name: str) -> bool:
        return self.subject == kind and self.subject_sha256 == _hash(self.salt, name)

    @property
    def is_empty(self) -> bool:
        """Was nothing found in log and lake?"""
        log = self.log
        in_log = log is not None and (log.entries or log.settled or log.mailbox or log.torn)
        return not (in_log or self.positions or any(self.tables.values()))

    def count(self, tables: Mapping[str, int], positions: Sequence[tuple[int, int, int]]) -> None:
        """Add what one attempt has removed from the tables."""
        for name, rows in tables.items():
            self.tables[name] = self.tables.get(name, 0) + rows
        self.positions = sorted({*self.positions, *positions})


def interrupted(data: str | Path, kind: Subject, name: str) -> Certificate | None:
    """Return the certificate of an erasure that has begun and not ended."""
    for one in known(data):
        if one.state == "begun" and one.is_about(kind, name):
            return one
    return None


def begin(data: str | Path, kind: Subject, name: str, now_ms: int) -> Certificate:
    """Return the certificate of an interrupted erasure, or a new one, stored on disk."""
    if earlier := interrupted(data, kind, name):
        return earlier
    salt = secrets.token_hex(16)
    made = Certificate(
        id=secrets.token_hex(8),
        subject=kind,
        salt=salt,
        subject_sha256=_hash(salt, name),
        begun_ms=now_ms,
        pseudonym=PSEUDONYM_PREFIX + secrets.token_hex(16),
    )
    write(data, made)
    return made


def withdraw(data: str | Path, one: Certificate) -> None:
    """Forget an erasure of which nothing has happened."""
    _path(data, one.id).unlink(missing_ok=True)


def due(data: str | Path, now_ms: int) -> list[Certificate]:
    """Return erasures whose replaced files may now be deleted.

    A certificate that cannot be read is logged and left out: upkeep must go on without it.
    """
    found = []
    for path in _paths(data):
        try:
            one = _read(path)
        except SignalHubError as error:
            log.error("%s", error)
            continue
        if one.state == "unreadable" and one.gone_planned_ms <= now_ms:
            found.append(one)
    return _oldest_first(found)


def complete(data: str | Path, one: Certificate, now_ms: int) -> None:
    """Record that nothing of the subject is left."""
    one.state = "gone"
    one.gone_ms = now_ms
    write(data, one)


def known(data: str | Path) -> list[Certificate]:
    """Return every certificate, the oldest first."""
    return _oldest_first([_read(path) for path in _paths(data)])


def read(data: str | Path, id: str) -> Certificate:
    """Read one certificate; raises `CertificateUnknown`."""
    path = _path(data, id)
    if not _ID.fullmatch(id) or not path.exists():
        raise CertificateUnknown(id, [one.id for one in known(data)])
    return _read(path)


def write(data: str | Path, one: Certificate) -> None:
    """Replace the file atomically and sync it to disk."""
    replace_json(_path(data, one.id), one)


def _oldest_first(found: list[Certificate]) -> list[Certificate]:
    return sorted(found, key=lambda one: (one.begun_ms, one.id))


def _paths(data: str | Path) -> list[Path]:
    return list((folder_of(data) / FOLDER).glob("*.json"))


def _path(data: str | Path, id: str) -> Path:
    return folder_of(data) / FOLDER / f"{id}.json"


def _read(path: Path) -> Certificate:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Certificate)
    except msgspec.MsgspecError as error:
        raise SignalHubError(f"the certificate {path} cannot be read: {error}") from error


def _hash(salt: str, name: str) -> str:
    return hashlib.sha256(f"{salt}\n{name}".encode()).hexdigest()
