"""`signalhub erase`: erase what an actor sent and received, or an inbox, everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: F401
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config
from signalhub.cli.lake.lake import (
    DataOption,
    LakeOption,
    lake_settings,
    operation_errors,
    spark_session,
)
from signalhub.cli.terminal.arguments import DASHED

# The parser resolves inherited annotations in the module of the subclass; hence unused imports.
from signalhub.cli.terminal.connection import (  # noqa: F401
    HubConnection,
    Timeout,
    TokenFile,
    Url,
    failure_of,
)
from signalhub.cli.terminal.failures import Exit, Failure, Yes, confirm, usage
from signalhub.cli.terminal.output import AsJson, Output, counted  # noqa: F401

if TYPE_CHECKING:
    from signalhub.pipeline.erase.certificate import Certificate
    from signalhub.pipeline.erase.subject import Subject


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class EraseOptions(HubConnection):
    """The options of an erasure, for which the hub may have a long log to search."""

    timeout_s: Timeout = 600.0


ERASE_DEFAULTS = EraseOptions()


def erase(
    *,
    actor: Annotated[str | None, Parameter(help="Address of the actor.")] = None,
    inbox: Annotated[str | None, DASHED, Parameter(help="Id of the inbox.")] = None,
    certificate: Annotated[
        str | None, Parameter(help="Show the certificate of an earlier erasure.")
    ] = None,
    now: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Delete replaced files now instead of after a day.",
        ),
    ] = False,
    yes: Yes = False,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    connection: EraseOptions = ERASE_DEFAULTS,
) -> None:
    """Erase what an actor sent and received, or an inbox, from log and lake.

    The content is unreadable when the command ends; files that contained it are
    deleted after pipeline.vacuum_s, or now with --now. Prints a certificate,
    which names nobody. To resume an interrupted erasure, repeat the command.
    While a pipeline runs, it may wait up to 300 s for it. Exit code 1 means that
    nothing was found.
    """
    settings = lake_settings(config, data, lake)
    output = connection.output
    with operation_errors():
        if certificate is not None:
            _check_one(certificate=certificate, actor=actor, inbox=inbox)
            from signalhub.pipeline.erase.certificate import read

            _show(read(settings.data, certificate), output)
            return
        _check_one(actor=actor, inbox=inbox)
        from signalhub.operate import erase as operation

        subject = operation.subject_of(settings, actor=actor, inbox=inbox)
        confirm(f"erase all data of {_name(subject)}", yes=yes)
        try:
            done = operation.erase(
                settings,
                actor=actor,
                inbox=inbox,
                now=now,
                **connection.hub_options(),
                progress=lambda step: connection.note(f"{step}…"),
                open_spark=spark_session,
            )
        except operation.HubElsewhere as error:
            failure = failure_of(error)
            failure.resolution = "give its URL with --url"
            raise failure from error
        _show(done, output)
        # With --now the files of an earlier erasure go, of which nothing else is left.
        if done.is_empty and not now:
            raise Failure(
                Exit.FAILED,
                "nothing_found",
                f"nothing of {_name(subject)} was found",
                "check the name, and --data; if it was erased before, nothing is left to do",
            )


def _check_one(**given: str | None) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise usage(
            "give exactly one of --actor, --inbox and --certificate", "see `signalhub erase --help`"
        )


def _name(subject: Subject) -> str:
    return subject.name if subject.kind == "actor" else f"the inbox {subject.name}"


def _show(one: Certificate, output: Output) -> None:
    from msgspec import to_builtins

    if output.as_json:
        output.line(to_builtins(one), [])
        return
    output.sheet(_sheet(one))
    for sentence in one.scope:
        output.fact({}, sentence)


def _sheet(one: Certificate) -> dict[str, object]:
    log, tables = one.log, one.tables
    facts: dict[str, object] = {
        "certificate": one.id,
        "about": f"{one.subject} {one.subject_sha256[:16]}… (SHA-256 of salt, newline, name)",
        "state": _STATES[one.state],
        "unreadable since": _time(one.unreadable_ms),
        "bytes gone": _time(one.gone_ms) if one.gone_ms else f"by {_time(one.gone_planned_ms)}",
        "entries": ", ".join(_range(*span) for span in one.positions[:_SPANS_SHOWN]) or "none",
    }
    if len(one.positions) > _SPANS_SHOWN:
        more = counted(len(one.positions) - _SPANS_SHOWN, "more range")
        facts["entries"] = f"{facts['entries']} and {more}"
    if log is not None:
        facts["log"] = (
            f"{counted(log.entries, 'entry')} erased, {counted(log.segments, 'segment')} rewritten,"
            f" {counted(log.torn, 'torn end')} deleted"
        )
        facts["deliveries ended"] = log.settled
    for name, count in tables.items():
        facts[f"table {name}"] = counted(count, "row")
    return facts


_SPANS_SHOWN = 10
_STATES = {
    "begun": "interrupted: repeat the command to resume",
    "unreadable": "unreadable",
    "gone": "complete",
}


def _time(at_ms: int | None) -> str:
    from datetime import UTC, datetime

    if not at_ms:
        return "not yet"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _range(epoch: int, first: int, last: int) -> str:
    span = str(first) if first == last else f"{first}–{last}"
    return f"{epoch}:{span}"
