"""Commits to tables in local folders, made without Spark and in milliseconds.

A commit is a file in the table's log whose name is the next version. It is linked into place, never
over another one, so of several writers one wins and the others notice. Data files are on disk
before the commit that names them; without it nobody sees them, and upkeep deletes them later.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from signalhub.clock import SystemClock
from signalhub.privacy import make_folder, opener

LOG: Final = "_delta_log"
"""The folder of a table's commits and checkpoints."""
_ENGINE: Final = "signalhub"
# Bodies and ids hardly ever repeat.
_NO_DICTIONARY: Final = frozenset({"body", "id"})
# Spark and delta-rs store no more than this of a text.
_TEXT_MAX: Final = 32
_EPOCH: Final = datetime(1970, 1, 1)


def write_commit(
    table: Path,
    version: int,
    operation: str,
    actions: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, str],
) -> bool:
    """Write a commit, complete and on disk, or nothing; returns whether this version was free."""
    now_ms = SystemClock().now_ms()
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": parameters,
        "isBlindAppend": True,
        "engineInfo": _ENGINE,
    }
    lines = msgspec.json.Encoder().encode_lines([{"commitInfo": info}, *actions])
    path = table / LOG / f"{version:020d}.json"
    draft = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    try:
        with open(draft, "wb", opener=opener) as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except OSError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def create_table(
    table: Path,
    *,
    about: str,
    schema: Mapping[str, Any],
    properties: Mapping[str, str],
    cluster_by: Sequence[str],
    readers: Sequence[str],
    writers: Sequence[str],
) -> bool:
    """Create an empty table; returns `False` if somebody else has just done so."""
    make_folder(table.parent)
    make_folder(table)
    make_folder(table / LOG)
    now_ms = SystemClock().now_ms()
    metadata = {
        "id": str(uuid.uuid4()),
        "description": about,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, separators=(",", ":"), ensure_ascii=False),
        "partitionColumns": [],
        "configuration": properties,
        "createdTime": now_ms,
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": readers,
        "writerFeatures": writers,
    }
    actions: list[dict[str, Any]] = [{"metaData": metadata}, {"protocol": protocol}]
    if cluster_by:
        domain = "delta.clustering"
        stated = {"clusteringColumns": [[name] for name in cluster_by], "domainName": domain}
        configuration = json.dumps(stated, separators=(",", ":"))
        said = {"domain": domain, "configuration": configuration, "removed": False}
        actions.append({"domainMetadata": said})
    parameters = {
        "partitionBy": "[]",
        "clusterBy": json.dumps(cluster_by, separators=(",", ":")),
        "description": about,
        "isManaged": "false",
        "properties": json.dumps(properties, separators=(",", ":")),
    }
    return write_commit(table, 0, "CREATE TABLE", actions, parameters)


def transaction(application: str, version: int) -> dict[str, Any]:
    """Return the action that records the version of an application's transaction."""
    now_ms = SystemClock().now_ms()
    return {"txn": {"appId": application, "version": version, "lastUpdated": now_ms}}


def append_rows(
    table: Path,
    version: int,
    rows: pa.Table,
    statistics: Sequence[str],
    transactions: Sequence[Mapping[str, Any]],
) -> bool:
    """Append rows in one file and one commit; returns `False` if that failed, or is taken."""
    try:
        files = [write_file(table, rows, statistics)] if rows.num_rows else []
    except OSError:
        return False
    if add_files(table, version, files, transactions):
        return True
    for one in files:
        (table / one["path"]).unlink(missing_ok=True)
    return False


def add_files(
    table: Path,
    version: int,
    files: Sequence[Mapping[str, Any]],
    transactions: Sequence[Mapping[str, Any]],
) -> bool:
    """Add written files in one commit; returns whether this version was free."""
    actions = [*transactions, *({"add": one} for one in files)]
    return write_commit(table, version, "WRITE", actions, {"mode": "Append", "partitionBy": "[]"})


def write_file(table: Path, rows: pa.Table, statistics: Sequence[str]) -> dict[str, Any]:
    """Write rows as a data file, and return what a commit says about it."""
    path = table / f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    try:
        _write_rows(path, rows)
        stat = path.stat()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return {
        "path": path.name,
        "partitionValues": {},
        "size": stat.st_size,
        "modificationTime": stat.st_mtime_ns // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(_statistics(rows, statistics), separators=(",", ":")),
    }


def _write_rows(path: Path, rows: pa.Table) -> None:
    """Write a data file as Spark does: see its settings."""
    # The hub reads tables and never writes them.
    import pyarrow.parquet as pq

    names = [name for name in rows.schema.names if name not in _NO_DICTIONARY]
    with open(path, "xb", opener=opener) as file:
        pq.write_table(
            rows,
            file,
            row_group_size=rows.num_rows,
            compression="zstd",
            use_dictionary=names,
            # With these, a reader of a few rows decodes only their pages.
            write_page_index=True,
            write_page_checksum=True,
            # It would repeat names and types of the file's own schema.
            store_schema=False,
        )
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _statistics(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    """Return the statistics by which readers skip a file."""
    import pyarrow.compute as pc

    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    missing: dict[str, int] = {}
    for name in (one for one in names if one in rows.schema.names):
        column = rows[name]
        missing[name] = column.null_count
        if column.null_count == len(column):
            continue
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        found = pc.min_max(column)
        low, high = found["min"].as_py(), found["max"].as_py()
        if pa.types.is_timestamp(rows[name].type):
            try:
                low, high = _moment(low // 1_000), _moment(-(-high // 1_000))
            except OverflowError:
                # Beyond the year 9999.
                continue
        elif isinstance(low, str) and max(len(low), len(high)) > _TEXT_MAX:
            continue
        lowest[name], highest[name] = low, high
    return {
        "numRecords": rows.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": missing,
        "tightBounds": True,
    }


def _moment(milliseconds: int) -> str:
    """Return a time as it is written in statistics, which are to the millisecond."""
    seconds, rest = divmod(milliseconds, 1_000)
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{rest:03d}Z"
