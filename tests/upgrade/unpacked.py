"""What earlier releases wrote, unpacked."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))


class Folder:
    """The unpacked folder of one release."""

    def __init__(self, archive: Path, target: Path) -> None:
        with tarfile.open(archive) as opened:
            opened.extractall(target, filter="data")
        self.data = target / "data"
        self.host = target / "host"
        self.known: dict[str, Any] = json.loads((target / "known.json").read_text())
