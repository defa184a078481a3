"""What to send with a report: an archive without payloads, tokens, keys or inbox ids.

What is kept of each file, `mask.py` says.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import msgspec

from signalhub.operate.doctor.finding import Finding
from signalhub.operate.doctor.mask import NameMask
from signalhub.privacy import opener

LOG_LINES_MAX: Final = 2_000
_LOG_BYTES_MAX: Final = 4 * 2**20
_OWN: Final = "signalhub"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


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
            [
                {
                    "check": one.check,
                    "level": one.level,
                    "text": mask.text(one.text),
                    "advice": mask.text(one.advice),
                }
                for one in findings
            ]
        ),
        "settings.json": _json(mask.settings(settings)),
        "segments.json": mask.json(_json(_segments(data / "log"))),
        "packages.txt": _packages(mask),
    }
    for name, content in measured.items():
        text = content.decode(errors="replace")
        is_page = name.endswith(".txt")
        files[name] = mask.metrics(text).encode() if is_page else mask.json(text)
    status = data / "pipeline" / "status.json"
    if status.is_file():
        files["pipeline-status.json"] = mask.json(status.read_bytes())
    if log is not None:
        files["hub.log"] = mask.lines(_last_lines(log)).encode()
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
        {"file": one.name, "bytes": one.stat().st_size, "changed": int(one.stat().st_mtime)}
        for one in sorted(folder.iterdir())
        if one.is_file()
    ]


def _packages(mask: NameMask) -> bytes:
    """Versions of what the hub needs; other packages may tell whose machine it is."""
    installed = {_normal(one.metadata["Name"]): one for one in distributions()}
    ours, waiting = set[str](), [_OWN]
    while waiting:
        name = waiting.pop()
        if name in ours or name not in installed:
            continue
        ours.add(name)
        needed = map(_NAME.match, installed[name].requires or ())
        waiting += [_normal(one[0]) for one in needed if one]
    lines = [
        f"{name if name in ours else mask.of(name)}=={one.version.partition('+')[0]}"
        for name, one in installed.items()
    ]
    return ("\n".join(sorted(lines)) + "\n").encode()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
