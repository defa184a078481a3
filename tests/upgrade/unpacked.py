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
            # The first releases of Python 3.11 have no filters.
            opened.extraction_filter = getattr(tarfile, "data_filter", None)
            opened.extractall(target)
        self.data = target / "data"
        self.host = target / "host"
        self.known: dict[str, Any] = json.loads((target / "known.json").read_text())
