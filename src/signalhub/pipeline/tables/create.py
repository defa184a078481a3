"""Creates missing tables, and recreates tables of another version.

Only tables that can be derived from `entries` again are ever dropped. Tables with data of their own
get the missing columns instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import SparkSession

from signalhub.pipeline.commit import LOG
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.storage import Storage
from signalhub.pipeline.tables.tables import (
    AUDIT,
    ENTRIES,
    QUARANTINE,
    TABLES,
    VERSION_PROPERTY,
    Column,
    Table,
)
from signalhub.settings.model import PipelineSettings as Settings

KEPT: Final = frozenset({ENTRIES.name, QUARANTINE.name, AUDIT.name})
"""Tables whose rows exist nowhere else."""
_DAY_S: Final = 86_400


def ensure_tables(
    spark: SparkSession,
    lake: Lake,
    settings: Settings | None = None,
    names: Iterable[str] = TABLES,
) -> list[str]:
    """Create missing and outdated tables; return the names of those that start empty."""
    chosen = _with_kept(names)
    made = [name for name in chosen if ensure_table(spark, lake, name, settings)]
    for name in chosen:
        remember(spark, lake, name, settings or Settings())
    return made


def ensure_tables_here(lake: Lake, settings: Settings, names: Iterable[str] = TABLES) -> bool:
    """Create missing tables without Spark; returns `False` if Spark has more to do."""
    for name in _with_kept(names):
        if not ensure_table_here(lake, name, settings):
            return False
        opened = lake.open(name)
        assert opened is not None
        if _differing(opened.metadata().configuration, settings):
            return False
    return True


def ensure_table_here(lake: Lake, name: str, settings: Settings | None = None) -> bool:
    """Create a table if necessary, without Spark; returns `False` if Spark has more to do."""
    table = TABLES[name]
    opened = lake.open(name)
    if opened is None:
        return _create_here(lake, table, settings or Settings())
    if name in KEPT:
        return not _missing(lake, table)
    return _is_current(opened.metadata().configuration, table)


def _with_kept(names: Iterable[str]) -> list[str]:
    return [name for name in TABLES if name in names or name in KEPT]


def _create_here(lake: Lake, table: Table, settings: Settings) -> bool:
    return lake.create(table, {**table.properties, **_remembering(settings)})


def _is_current(configuration: Mapping[str, str], table: Table) -> bool:
    return configuration.get(VERSION_PROPERTY) == str(table.version)


def _remembering(settings: Settings) -> dict[str, str]:
    return {
        "delta.deletedFileRetentionDuration": _days(settings.vacuum_s),
        "delta.logRetentionDuration": _days(max(settings.vacuum_s, settings.commits_s)),
    }


def _differing(configuration: Mapping[str, str], settings: Settings) -> dict[str, str]:
    wanted = _remembering(settings)
    return wanted if any(configuration.get(key) != wanted[key] for key in wanted) else {}


def remember(spark: SparkSession, lake: Lake, name: str, settings: Settings) -> None:
    """Set how long a table remembers replaced files and commits.

    VACUUM treats files that are not remembered as lost writes.
    """
    table = lake.open(name)
    assert table is not None
    if wanted := _differing(table.metadata().configuration, settings):
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in wanted.items())
        spark.sql(f"ALTER TABLE delta.`{lake.location(name)}` SET TBLPROPERTIES ({listed})")


def _days(seconds: float) -> str:
    return f"interval {max(1, math.ceil(seconds / _DAY_S))} days"


def forget_tables(spark: SparkSession) -> None:
    """Check every table again: one may have been deleted or restored."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()


def ensure_table(
    spark: SparkSession, lake: Lake, name: str, settings: Settings | None = None
) -> bool:
    """Create a table if necessary; return whether it is new and therefore empty."""
    table = TABLES[name]
    opened = lake.open(name)
    if opened is not None:
        if name in KEPT:
            _add_columns(spark, lake, table)
            return False
        if _is_current(opened.metadata().configuration, table):
            return False
        drop_table(spark, lake, name)
    _clear_attempt(spark, lake, name)
    if not _create_here(lake, table, settings or Settings()):
        spark.sql(table.create(lake.location(name)))
    lake.forget(name)
    return True


def _clear_attempt(spark: SparkSession, lake: Lake, name: str) -> None:
    """Delete the empty log left when a table could not be created, for example on a full disk.

    Spark would treat it as a table, and the first rows would create one without the declared
    schema.
    """
    log = Storage(spark, f"{lake.location(name)}/{LOG}")
    if log.exists() and not any(one[0].isdigit() for one in log.names()):
        log.delete_all()
        forget_tables(spark)


def drop_table(spark: SparkSession, lake: Lake, name: str) -> None:
    """Delete a derived table with its history, so that no position of it remains."""
    assert name not in KEPT
    # Replacing the table instead would keep its transactions, and with them its position.
    Storage(spark, lake.location(name)).delete_all()
    lake.forget(name)


def _add_columns(spark: SparkSession, lake: Lake, table: Table) -> None:
    if missing := _missing(lake, table):
        columns = ", ".join(f"`{one.name}` {one.type}" for one in missing)
        spark.sql(f"ALTER TABLE delta.`{lake.location(table.name)}` ADD COLUMNS ({columns})")
        lake.forget(table.name)


def _missing(lake: Lake, table: Table) -> list[Column]:
    opened = lake.open(table.name)
    assert opened is not None
    known = {field.name for field in opened.schema().fields}
    return [one for one in table.columns if one.name not in known]
