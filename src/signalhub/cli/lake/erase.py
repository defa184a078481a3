"""`signalhub erase`: take what an actor got and sent, or an inbox, out of everything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config
from signalhub.cli.lake.erasing import ask_hub
from signalhub.cli.lake.lake import DataOption, LakeOption, lake_settings, refusals, spark_session
from signalhub.cli.terminal.arguments import DASHED
from signalhub.cli.terminal.arguments import address as full_address
from signalhub.cli.terminal.connection import LOCAL, TIMEOUT_S, Connection
from signalhub.cli.terminal.failures import Yes, confirm, usage
from signalhub.cli.terminal.output import Output, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from signalhub.pipeline.erase.certificate import Certificate
    from signalhub.pipeline.erase.subject import Subject
    from signalhub.pipeline.lake import Lake
    from signalhub.settings.model import Settings

_ANSWER_S = 600.0
"""The hub may have a long log to search."""
_TURN_S = 600.0
"""Upkeep may be at work on the tables."""


def erase(
    *,
    actor: Annotated[str | None, Parameter(help="Address of the actor.")] = None,
    inbox: Annotated[str | None, DASHED, Parameter(help="Id of the inbox.")] = None,
    certificate: Annotated[
        str | None, Parameter(help="Show what an earlier erasure came to, by its id.")
    ] = None,
    now: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Delete replaced files at once, not after a day."
        ),
    ] = False,
    yes: Yes = False,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    connection: Connection = LOCAL,
) -> None:
    """Take what an actor got and sent, or what is in an inbox, out of log and lake.

    It is unreadable when the command ends; the files that held it are deleted
    after pipeline.vacuum_s, or with --now. Prints a certificate, which names
    nobody. What was interrupted goes on when the command is repeated.
    """
    settings = lake_settings(config, data, lake)
    output = connection.output
    with refusals():
        if certificate is not None:
            _only(certificate=certificate, actor=actor, inbox=inbox)
            from signalhub.pipeline.erase.certificate import read

            _show(read(settings.data, certificate), output)
            return
        subject = _subject(settings, actor, inbox)
        _check_data(settings)
        confirm(f"erase everything of {_spoken(subject)} for good", yes=yes)
        _show(_erase(settings, subject, connection, now=now), output)


def _only(**given: str | None) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise usage(
            "this needs either --actor, --inbox or --certificate", "see `signalhub erase --help`"
        )


def _subject(settings: Settings, actor: str | None, inbox: str | None) -> Subject:
    from signalhub.pipeline.erase.subject import Subject
    from signalhub.state import inbox_key
    from signalhub.wire.room_ids import Names

    _only(actor=actor, inbox=inbox)
    if actor is not None:
        address = full_address(actor)
        return Subject("actor", address, address)
    assert inbox is not None
    if not inbox:
        raise usage("--inbox is empty", "give the id the inbox was made with")
    key = inbox_key.read(Path(settings.data))
    return Subject("inbox", inbox, "" if key is None else Names(key).inbox(inbox))


def _check_data(settings: Settings) -> None:
    if not (Path(settings.data) / "log").is_dir():
        raise usage(
            f"{settings.data} holds no log",
            "name the data folder of the hub with --data",
        )


def _spoken(subject: Subject) -> str:
    return subject.name if subject.kind == "actor" else f"the inbox {subject.name}"


def _erase(
    settings: Settings, subject: Subject, connection: Connection, *, now: bool
) -> Certificate:
    from signalhub.pipeline.erase import certificate
    from signalhub.pipeline.erase.erase import alone
    from signalhub.pipeline.lake import lake_of
    from signalhub.pipeline.run.lock import turn
    from signalhub.pipeline.tables.tables import ENTRIES

    with alone(settings.data) as is_alone:
        one = certificate.begin(settings.data, subject.kind, subject.name, _now_ms())
        connection.note("searching the log…")
        removal = ask_hub(settings, subject, one.pseudonym, _patient(connection))
        one.log = removal if one.log is None else one.log.and_then(removal)
        certificate.write(settings.data, one)
        place = lake_of(settings.data, settings.pipeline.lake)
        if place.exists(ENTRIES.name):
            with spark_session(settings) as spark, turn(settings.data, _TURN_S):
                _erase_tables(spark, place, settings, subject, one, connection, is_alone, now)
        else:
            one.unreadable_ms = one.gone_planned_ms = _now_ms()
            certificate.complete(settings.data, one, one.unreadable_ms)
        return one


def _erase_tables(
    spark: SparkSession,
    lake: Lake,
    settings: Settings,
    subject: Subject,
    one: Certificate,
    connection: Connection,
    is_alone: bool,
    now: bool,
) -> None:
    from signalhub.pipeline.erase import certificate
    from signalhub.pipeline.erase.erase import Erasure, erase, vacuum_all, wait_for
    from signalhub.pipeline.run import schedule
    from signalhub.pipeline.source.plan import Position
    from signalhub.pipeline.upkeep.compact import IN_USE_S

    assert one.log is not None
    data = settings.data
    through = Position(one.log.epoch, one.log.through)
    if not is_alone:
        connection.note("waiting for the pipeline to come past it…")
        wait_for(lake, through, lambda: schedule.ask(data))

    def tell(what: str) -> None:
        connection.note(f"{what}…")

    wanted = Erasure(subject=subject, through=through, pseudonym=one.pseudonym, now_ms=_now_ms())
    found = erase(spark, lake, wanted, tell)
    one.count(found.tables, found.positions)
    one.state, one.unreadable_ms = "unreadable", _now_ms()
    keep_s = 0.0 if now else settings.pipeline.vacuum_s
    one.gone_planned_ms = one.unreadable_ms + int(max(keep_s, IN_USE_S) * 1000)
    certificate.write(data, one)
    if now:
        vacuum_all(spark, lake, is_alone=is_alone, step=tell)
        if is_alone:
            certificate.complete(data, one, _now_ms())


def _patient(connection: Connection) -> Connection:
    """Unless told otherwise, wait as long as a long log may take."""
    from dataclasses import replace

    if connection.timeout_s != TIMEOUT_S:
        return connection
    return replace(connection, timeout_s=_ANSWER_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# What is said.


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
        "unreadable since": _told(one.unreadable_ms),
        "bytes gone": _told(one.gone_ms) if one.gone_ms else f"by {_told(one.gone_planned_ms)}",
        "entries": ", ".join(_range(*span) for span in one.positions[:_SPANS_SHOWN]) or "none",
    }
    if len(one.positions) > _SPANS_SHOWN:
        facts["entries"] = f"{facts['entries']} and {len(one.positions) - _SPANS_SHOWN} more ranges"
    if log is not None:
        facts["log"] = (
            f"{log.entries} entries emptied, {counted(log.segments, 'segment')} rewritten,"
            f" {counted(log.torn, 'torn end')} deleted"
        )
        facts["deliveries ended"] = log.settled
    for name, count in tables.items():
        facts[f"table {name}"] = counted(count, "row")
    return facts


_SPANS_SHOWN = 10
_STATES = {
    "begun": "begun, and interrupted: repeat the command",
    "unreadable": "unreadable",
    "gone": "complete",
}


def _told(at_ms: int | None) -> str:
    from datetime import UTC, datetime

    if not at_ms:
        return "not yet"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _range(epoch: int, first: int, last: int) -> str:
    span = str(first) if first == last else f"{first}–{last}"
    return f"{epoch}:{span}"
