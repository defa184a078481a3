"""`signalhub pipeline`: land the log in the lake, and show how far it is."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub.cli.hub.settings import Config
from signalhub.cli.lake.lake import DataOption, LakeOption, lake_settings, operation_errors
from signalhub.cli.lake.stopping import Stopped, stoppable
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import AsJson, Output, OutputColumn, counted
from signalhub.cli.terminal.progress import bar
from signalhub.cli.terminal.sentences import say

if TYPE_CHECKING:
    from signalhub.pipeline.land.land import Landed
    from signalhub.pipeline.run.run import Pipeline, RunSummary
    from signalhub.settings.model import Settings

Master = Annotated[
    str | None,
    Parameter(name="--master", help="Spark master, such as local[*] or spark://host:7077."),
]
_PARENT_S = 1.0


def up(
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    master: Master = None,
    config: Config = None,
    beside: Annotated[int | None, Parameter(show=False)] = None,
) -> int:
    """Land the log and keep the tables up to date until SIGTERM or Ctrl-C.

    A data folder has one pipeline at a time: a second one exits with code 5.
    The hub need not run. If the lake is unreachable, the pipeline retries.
    """
    settings = _settings(config, data, lake, master)
    _log(settings)
    if beside is not None:
        _end_with(beside)
    try:
        with stoppable() as stopping, _opened(settings, beside=beside) as pipeline:
            stopping.gently(pipeline.stop)
            pipeline.up()
    except Stopped:
        # Spark was still starting, or a second signal did not wait for the running batch.
        pass
    return Exit.DONE


def once(
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    master: Master = None,
    accept_gap: Annotated[
        bool,
        Parameter(
            negative=(), help="Continue although entries missing in the lake are gone from the log."
        ),
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Land the log, bring every table up to date, and print a summary.

    With a running hub it lands everything up to the durable head at the start,
    without one everything up to the last valid batch of the log.
    """
    settings = _settings(config, data, lake, master)
    output = Output(as_json)
    done = 0

    def landed(batch: Landed) -> None:
        nonlocal done
        done += batch.rows
        show(done, total)

    opened = _opened(settings, landed=landed, is_single_run=True)
    try:
        with stoppable() as stopping, bar("landing", output) as show, opened as pipeline:
            stopping.gently(pipeline.stop)
            total = 0 if accept_gap else pipeline.behind()
            show(done, total)
            summary = pipeline.once(accept_gap=accept_gap)
    except Stopped as stopped:
        text = "stopped before everything was landed; repeat the command to continue"
        say(text, prefix="signalhub: ")
        return 128 + stopped.number
    output.fact(_facts(summary), _sentence(summary))
    return Exit.DONE


def status(
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show the position, lag and last batch of the pipeline, and the state of each table."""
    settings = lake_settings(config, data, lake)
    from signalhub.pipeline.run.progress import standing

    with operation_errors():
        found = standing(Path(settings.data), settings.pipeline.lake)
    output = Output(as_json)
    facts = found.facts()
    if as_json:
        output.line({**facts, "tables": [one.facts() for one in found.tables]}, [])
        return
    output.sheet(facts)
    columns = (
        OutputColumn("table", style="bold"),
        OutputColumn("position"),
        OutputColumn("behind"),
        OutputColumn("files"),
    )
    rows = [
        {name: "" if value is None else value for name, value in one.facts().items()}
        for one in found.tables
    ]
    output.table([*columns, OutputColumn("bytes")], rows)


def redrive(*, data: DataOption = None, config: Config = None, as_json: AsJson = False) -> None:
    """Make a running pipeline retry now instead of waiting."""
    settings = lake_settings(config, data, None)
    from signalhub.pipeline.run.lock import is_pipeline_running
    from signalhub.pipeline.run.schedule import ask

    if not is_pipeline_running(settings.data):
        raise Failure(
            Exit.FAILED,
            "no_pipeline",
            f"no pipeline is running on {settings.data}",
            "start one with `signalhub pipeline up`",
        )
    ask(settings.data)
    Output(as_json).fact({"asked": True}, "the pipeline retries now")


def maintain(
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    master: Master = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Expire, compact and vacuum the tables now; a running pipeline does so by itself."""
    settings = _settings(config, data, lake, master)
    output = Output(as_json)
    with _opened(settings) as pipeline:
        done = pipeline.maintain(is_thorough=True)
    removed, fewer = sum(done.removed.values()), sum(done.compacted.values())
    output.fact(
        msgspec.structs.asdict(done),
        f"{counted(removed, 'row')} removed, {counted(fewer, 'file')} fewer, {done.files} left"
        + (f"; vacuumed: {', '.join(done.vacuumed)}" if done.vacuumed else ""),
    )
    if not as_json:
        for table, reason in done.failed.items():
            say(f"{table} was skipped: {reason}", prefix="signalhub: ")
    return Exit.FAILED if done.failed else Exit.DONE


def _settings(
    config: str | None, data: str | None, lake: str | None, master: str | None
) -> Settings:
    from signalhub.cli.hub.settings import loaded_settings

    overrides = {"data": data, "pipeline.lake": lake, "pipeline.master": master}
    settings: Settings = loaded_settings(config, overrides).settings
    return settings


def _log(settings: Settings) -> None:
    from signalhub.observe import logs

    logs.configure(settings.log_level, settings.log_format)


@contextmanager
def _opened(
    settings: Settings,
    *,
    landed: Callable[[Landed], None] = lambda batch: None,
    beside: int | None = None,
    is_single_run: bool = False,
) -> Iterator[Pipeline]:
    from signalhub.operate.pipeline import open_pipeline

    opened = open_pipeline(settings, landed=landed, beside=beside, is_single_run=is_single_run)
    with operation_errors(), opened as pipeline:
        yield pipeline


def _end_with(parent: int) -> None:
    """End this process and all it has started as soon as the hub that started it is gone.

    The hub holds the other end of standard input. Nothing is lost, because landing is exactly once,
    and the next pipeline need not wait for this one.
    """

    def watch() -> None:
        while os.getppid() == parent:
            with contextlib.suppress(OSError):
                select.select([sys.stdin.fileno()], [], [], _PARENT_S)
            if os.getppid() == parent:
                time.sleep(_PARENT_S / 20)
        if os.getpgid(0) == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(Exit.FAILED)

    threading.Thread(target=watch, name="signalhub-parent", daemon=True).start()


def _facts(summary: RunSummary) -> dict[str, Any]:
    return msgspec.structs.asdict(summary)


def _sentence(summary: RunSummary) -> str:
    gained = ", ".join(f"{name} {rows}" for name, rows in summary.tables.items() if rows)
    return (
        f"Landed {counted(summary.rows, 'entry')}"
        f" ({summary.bytes / 1e6:.1f} MB) in {summary.seconds:.1f} s;"
        f" position {summary.position} of epoch {summary.epoch}, {summary.lag} behind,"
        f" {counted(summary.files, 'file')}"
        + (f", {summary.quarantined} in quarantine" if summary.quarantined else "")
        + (f". Tables gained: {gained}." if gained else ".")
    )
