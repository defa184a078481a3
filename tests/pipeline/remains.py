"""What is left of some text in a folder, also where a file is compressed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def remains(folder: Path, text: str) -> list[str]:
    """The files that hold it, whether anything refers to them or not."""
    needle = text.encode()
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in files if _holds(path, needle))


def _holds(path: Path, needle: bytes) -> bool:
    if needle in path.read_bytes():
        return True
    if path.suffix != ".parquet" or "_delta_log" in path.parts:
        return False
    table = pq.ParquetFile(path).read()
    return needle in repr(table.to_pylist()).encode()
