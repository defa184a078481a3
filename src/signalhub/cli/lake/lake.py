"""`signalhub sql`, and what all commands about the lake share: options, Spark, errors."""

from __future__ import annotations

import contextlib
import csv
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.hub.settings import Config, loaded_settings
from signalhub.cli.lake.shell import Shell
from signalhub.cli.terminal.arguments import STDIN, standard_input
from signalhub.cli.terminal.connection import failure_of
from signalhub.cli.terminal.failures import Exit, Failure, split_advice, usage
from signalhub.cli.terminal.output import Output, OutputColumn, counted
from signalhub.cli.terminal.sentences import say
from signalhub.pipeline.run.status import folder_of
from signalhub.wire.errors import ClientError, SettingsError, SignalHubError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from signalhub.pipeline.lake import Lake
    from signalhub.settings.model import Settings

DataOption = Annotated[str | None, Parameter(name="--data", help="The hub's data folder.")]
LakeOption = Annotated[
    str | None,
    Parameter(name="--lake", help="Folder or URI of the tables; default: in the data folder."),
]

_EXITS = {
    **dict.fromkeys(("query_refused", "query_wrong", "replay_conflict", "usage"), Exit.USAGE),
    "pipeline_running": Exit.BUSY,
}
"""Exit codes of errors by their code; the others have failed."""


def lake_settings(config: str | None, data: str | None, lake: str | None) -> Settings:
    """The settings of a command that works on the lake."""
    settings: Settings = loaded_settings(config, {"data": data, "pipeline.lake": lake}).settings
    return settings


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """Spark while the block runs, with a spinner on a terminal while it starts."""
    from signalhub.operate.lake import spark_session as session

    errors = Output(False, sys.stderr)
    with ExitStack() as stack:
        with errors.console.status("starting Spark…") if errors.is_terminal else nullcontext():
            spark = stack.enter_context(session(settings))
        yield spark


@contextmanager
def operation_errors(*, where: str = "") -> Iterator[None]:
    """Turn errors of an operation into failures; `where` names the option with the query."""
    try:
        yield
    except (Failure, SettingsError):
        raise
    except ClientError as error:
        raise failure_of(error) from error
    except SignalHubError as error:
        message, resolution = split_advice(error)
        prefix = where if error.code.startswith("query_") else ""
        exit = _EXITS.get(error.code, Exit.FAILED)
        raise Failure(exit, error.code, prefix + message, resolution) from error


Format = Literal["table", "csv", "json"]
_HISTORY = "sql_history"
TABLE_ROWS_MAX = 1_000
"""Rows of a table unless a limit is given, because a table is drawn in one go."""


def sql(
    text: Annotated[
        str | None,
        Parameter(name="QUERY", help="A SELECT statement; - reads standard input; none: a shell."),
    ] = None,
    /,
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    format: Annotated[Format, Parameter(help="Output format.")] = "table",
    limit: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="Print at most N rows.")
    ] = None,
) -> int:
    """Query the tables of the lake: entries, messages, deliveries and others.

    Times are UTC, bytes base64, nested values JSON. Only SELECT statements are
    run; simple ones on one small table without starting Spark. Without QUERY,
    statements that end with ; are read one after another and share one
    session; \\d lists the tables, \\q ends. docs/lake.md describes the tables
    and their columns.
    """
    settings = lake_settings(config, data, lake)
    with operation_errors():
        from signalhub.operate.lake import open_lake

        place = open_lake(settings)
    question = standard_input() if text == STDIN else text
    if question is not None and _answered(settings, place, question, format, limit):
        return Exit.DONE
    with spark_session(settings) as spark, operation_errors():
        from signalhub.pipeline.query import query_session

        asked = _Questions(settings, place, query_session(spark, place), format, limit)
        if question is not None:
            asked.answer(question)
            return Exit.DONE
        history = folder_of(settings.data) / _HISTORY
        return Shell(asked.answer, asked.describe, spark.sparkContext.cancelAllJobs, history).run()


def _answered(
    settings: Settings, lake: Lake, question: str, format: Format, limit: int | None
) -> bool:
    """Answer a small question without Spark, if that is possible."""
    from signalhub.pipeline.quick_query import quick_answer

    limit = limit or _default_limit(format)
    found = quick_answer(lake, question, None if limit is None else limit + 1)
    if found is None:
        return False
    rows = ((line,) for line in found.objects()) if format == "json" else found.texts()
    _print(found.columns, rows, format, limit)
    if not settings.pipeline.lake:
        _note_behind(settings, lake, {found.table})
    return True


@dataclass(frozen=True)
class _Questions:
    """Questions to one lake, in one session."""

    settings: Settings
    lake: Lake
    session: SparkSession
    format: Format
    limit: int | None

    def answer(self, question: str) -> None:
        from signalhub.pipeline.query import as_json, as_text, check, query, refresh, values

        with operation_errors():
            refresh(self.session, self.lake)
            limit = self.limit or _default_limit(self.format)
            rows = query(self.session, question)
            if limit is not None:
                # One more row shows whether there are more.
                rows = rows.limit(limit + 1)
            found = values(as_json(rows) if self.format == "json" else as_text(rows))
            _print(rows.columns, found, self.format, limit)
            if not self.settings.pipeline.lake:
                # The log in the data folder may not belong to another lake.
                _note_behind(self.settings, self.lake, check(self.session, question))

    def describe(self, name: str) -> None:
        """Show the columns of a table, or all tables."""
        from signalhub.pipeline.tables.tables import TABLES

        with operation_errors():
            if not name:
                found = ((one,) for one in TABLES if self.lake.exists(one))
                return _draw(["table"], found)
            table = self.lake.open(name.lower()) if name.lower() in TABLES else None
            if table is None:
                raise usage(f"there is no table {name}", "\\d lists the tables")
            columns = TABLES[name.lower()].columns
            return _draw(["column", "type"], ((one.name, one.type) for one in columns))


def _default_limit(format: Format) -> int | None:
    return TABLE_ROWS_MAX if format == "table" else None


def _print(
    columns: list[str], found: Iterator[tuple[Any, ...]], format: Format, limit: int | None
) -> None:
    """Print rows of text, or of one JSON object each; one row more shows that there are more."""
    some = islice(found, limit)
    if format == "json":
        for (line,) in some:
            print(line)
    elif format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(some)
    else:
        _draw(columns, some)
    if limit is not None and next(found, None) is not None:
        more = f"only the first {counted(limit, 'row')} shown; use --limit N to see more"
        say(more, prefix="signalhub: ")


def _note_behind(settings: Settings, lake: Lake, names: set[str]) -> None:
    """Say how far the queried tables are behind the log."""
    from signalhub.pipeline.run.lock import is_pipeline_running
    from signalhub.pipeline.run.progress import behind

    late: dict[str, int] = {}
    with contextlib.suppress(SignalHubError, OSError):
        # A user of the lake may not be permitted to read the log.
        late = behind(Path(settings.data), lake, names)
    if not late:
        return
    lags = ", ".join(f"{name} by {counted(count, 'entry')}" for name, count in late.items())
    more = f"signalhub pipeline once --data {settings.data}"
    advice = "the pipeline is running" if is_pipeline_running(settings.data) else f"run `{more}`"
    say(f"the lake is behind the log: {lags}; {advice}", prefix="signalhub: ")


def _draw(names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    cells = [
        {name: "" if value is None else value for name, value in zip(names, row, strict=True)}
        for row in rows
    ]
    columns = [OutputColumn(name) for name in names]
    Output(False).table(columns, cells, if_empty="no rows")
