"""`signalhub sql`: ask the tables of the lake, changing nothing."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import STDIN, standard_input
from signalhub.cli.failures import Exit, Failure, usage
from signalhub.cli.output import Column, Output, counted
from signalhub.cli.settings import Config, loaded_settings
from signalhub.errors import SignalHubError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from signalhub.pipeline.lake import Lake
    from signalhub.settings import Settings

Format = Literal["table", "csv", "json"]
DataOption = Annotated[str | None, Parameter(name="--data", help="The hub's data folder.")]
LakeOption = Annotated[
    str | None,
    Parameter(name="--lake", help="Folder or address of the tables; in the data folder otherwise."),
]

TABLE_ROWS_MAX = 1_000
"""What a table shows unless a limit is given; nobody reads more, and it is drawn at once."""


def sql(
    text: Annotated[str, Parameter(name="QUERY", help="A SELECT; - reads standard input.")],
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    format: Annotated[Format, Parameter(help="How the rows are printed.")] = "table",
    limit: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="Print N rows at most.")
    ] = None,
) -> None:
    """Print what a query selects from the lake: entries, messages, deliveries and the others.

    Times are UTC, bytes base64, nested values JSON. Only queries are run. The
    tables and their columns are described in docs/lake.md.
    """
    settings = lake_settings(config, data, lake)
    place = present_lake(settings)
    question = standard_input() if text == STDIN else text
    with spark_session(settings) as spark, _refusals():
        from signalhub.pipeline.query import query, query_session

        rows = query(query_session(spark, place), question)
        _print(rows, format, limit)


def lake_settings(config: str | None, data: str | None, lake: str | None) -> Settings:
    """The settings of a command that works on the lake."""
    settings: Settings = loaded_settings(config, {"data": data, "pipeline.lake": lake}).settings
    return settings


def present_lake(settings: Settings) -> Lake:
    """The lake; a failure that says how to make one if there is none."""
    from signalhub.pipeline.lake import LakeUnreachable, lake_of
    from signalhub.pipeline.tables import ENTRIES

    place = lake_of(settings.data, settings.pipeline.lake)
    try:
        is_there = place.exists(ENTRIES.name)
    except LakeUnreachable as error:
        message, _, resolution = str(error).partition("; ")
        raise Failure(Exit.FAILED, error.code, message, resolution) from error
    if not is_there:
        raise usage(
            f"there is no lake at {place.uri}",
            f"make one with `signalhub pipeline once --data {settings.data}`, or name it with"
            " --lake",
        )
    return place


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """Spark while the block runs, with a word on a terminal while it starts."""
    errors = Output(False, sys.stderr)
    if errors.is_terminal:
        with errors.console.status("starting Spark…"):
            spark = _opened(settings)
    else:
        spark = _opened(settings)
    try:
        yield spark
    finally:
        spark.stop()


def _opened(settings: Settings) -> SparkSession:
    from signalhub.pipeline.session import open_session

    pipeline = settings.pipeline
    spark = open_session(pipeline.master or "local[*]", memory=pipeline.memory)
    # What fails is told in our own words.
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def _refusals() -> Iterator[None]:
    from signalhub.pipeline.query import QueryError, QueryRefused, QueryWrong

    try:
        yield
    except QueryError as error:
        is_usage = isinstance(error, QueryRefused | QueryWrong)
        message, _, resolution = str(error).partition("; ")
        exit = Exit.USAGE if is_usage else Exit.FAILED
        raise Failure(exit, error.code, message, resolution) from None
    except SignalHubError as error:
        raise Failure(Exit.FAILED, error.code, str(error)) from error


def _print(rows: DataFrame, format: Format, limit: int | None) -> None:
    from signalhub.pipeline.query import as_json, as_text, values

    if limit is None and format == "table":
        limit = TABLE_ROWS_MAX
    if limit is not None:
        # One more tells whether that was all.
        rows = rows.limit(limit + 1)
    found = values(as_json(rows) if format == "json" else as_text(rows))
    some = islice(found, limit)
    if format == "json":
        for (line,) in some:
            print(line)
    elif format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows.columns)
        writer.writerows(some)
    else:
        _draw(rows.columns, some)
    if limit is not None and next(found, None) is not None:
        more = f"these are the first {counted(limit, 'row')}, there are more; --limit N shows them"
        print(f"signalhub: {more}", file=sys.stderr)


def _draw(names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    cells = [
        {name: "" if value is None else value for name, value in zip(names, row, strict=True)}
        for row in rows
    ]
    columns = [Column(name) for name in names]
    Output(False).table(columns, cells, if_empty="no rows")
