"""What every command that works on the lake has in common: where it is, Spark, and refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.failures import Exit, Failure, usage
from signalhub.cli.output import Output
from signalhub.cli.settings import loaded_settings
from signalhub.errors import SettingsError, SignalHubError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from signalhub.pipeline.lake import Lake
    from signalhub.settings import Settings

DataOption = Annotated[str | None, Parameter(name="--data", help="The hub's data folder.")]
LakeOption = Annotated[
    str | None,
    Parameter(name="--lake", help="Folder or address of the tables; in the data folder otherwise."),
]

_USAGE = ("query_refused", "query_wrong", "replay_conflict")
"""Errors of whoever wrote the command."""


def lake_settings(config: str | None, data: str | None, lake: str | None) -> Settings:
    """The settings of a command that works on the lake."""
    settings: Settings = loaded_settings(config, {"data": data, "pipeline.lake": lake}).settings
    return settings


def present_lake(settings: Settings) -> Lake:
    """The lake; a failure that says how to make one if there is none."""
    from signalhub.pipeline.lake import lake_of
    from signalhub.pipeline.tables import ENTRIES

    place = lake_of(settings.data, settings.pipeline.lake)
    with refusals():
        is_there = place.exists(ENTRIES.name)
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
    from signalhub.pipeline.session import session

    errors = Output(False, sys.stderr)
    pipeline = settings.pipeline
    with ExitStack() as stack:
        with errors.console.status("starting Spark…") if errors.is_terminal else nullcontext():
            # What fails is told in our own words, so Spark says nothing.
            opening = session(
                pipeline.master or "local[*]", memory=pipeline.memory, log_level="OFF"
            )
            spark = stack.enter_context(opening)
        yield spark


@contextmanager
def refusals(*, where: str = "") -> Iterator[None]:
    """What the pipeline refuses, as a failure of the command; `where` names a query's option."""
    try:
        yield
    except (Failure, SettingsError):
        raise
    except SignalHubError as error:
        message, _, resolution = str(error).partition("; ")
        exit = Exit.USAGE if error.code in _USAGE else Exit.FAILED
        prefix = where if error.code.startswith("query_") else ""
        raise Failure(exit, error.code, prefix + message, resolution) from error
