"""`signalhub audit`: prove that the lake contains every entry of the log, once and unchanged."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config
from signalhub.cli.lake.lake import (
    DataOption,
    LakeOption,
    lake_settings,
    operation_errors,
    spark_session,
)
from signalhub.cli.terminal.failures import Exit, usage
from signalhub.cli.terminal.output import AsJson, Output, OutputColumn, counted
from signalhub.cli.terminal.progress import bar
from signalhub.cli.terminal.quantities import moment, option, seconds

if TYPE_CHECKING:
    from signalhub.pipeline.audit.audit import Findings
    from signalhub.pipeline.audit.hours import Hour

_EXITS = {"proven": Exit.DONE, "wrong": Exit.FAILED, "behind": Exit.USAGE}
_COUNTS = ("gaps", "duplicates", "reorders", "pending", "overdue", "removed")
# Counts that accuse nobody; what is wrong is always shown.
_HARMLESS = ("pending", "removed")
_COLUMNS = (
    OutputColumn("hour", style="bold"),
    OutputColumn("epoch", style="dim", spare=1),
    OutputColumn("from_offset", title="from", spare=1),
    OutputColumn("to_offset", title="to", spare=1),
    OutputColumn("distinct_rows", title="rows"),
    *(OutputColumn(name, spare=int(name in _HARMLESS)) for name in _COUNTS),
    OutputColumn("verdict", style="bold"),
)


def audit(
    *,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    since: Annotated[
        datetime | None, option(moment, "Audit hours that begin at this time or later.")
    ] = None,
    until: Annotated[
        datetime | None, option(moment, "Audit hours that begin before this time.")
    ] = None,
    wait: Annotated[
        float, option(seconds, "How long to wait for a running pipeline to catch up; default: 2m.")
    ] = 120.0,
    check: Annotated[
        Path | None,
        Parameter(help="Compare this proof.json with the log instead; needs no lake."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Prove, hour by hour, that the lake contains what the log acknowledged.

    Everything up to the head of the log at the start is checked: no entry is
    missing, duplicated or changed, streams are in order, and every delivery has
    ended or can still end. Exit code 0: proven. 1: faults were found and are
    listed. 2: the lake is behind the log, so nothing is proven yet.
    """
    settings = lake_settings(config, data, lake)
    output = Output(as_json)
    if check is not None:
        return _checked(check, Path(settings.data), output)
    with operation_errors(), bar("auditing", output) as show:
        from signalhub.operate import audit as operation

        findings = operation.audit(
            settings,
            since=since,
            until=until,
            wait_s=wait,
            progress=show,
            open_spark=spark_session,
        )
    _print(findings, output)
    return _EXITS[findings.verdict]


def _checked(proof: Path, data: Path, output: Output) -> int:
    """Compare a proof with the log it was made of."""
    try:
        content = proof.read_bytes()
    except OSError as error:
        raise usage(f"cannot read {proof}: {error.strerror}", "give a proof.json") from None
    with operation_errors():
        from signalhub.operate import audit as operation

        found = operation.check_proof(data, content)
    segments, hours = counted(found.segments, "segment"), counted(found.hours, "hour")
    sentence = f"{segments} and {hours} fit the log"
    if found.missing:
        sentence += f"; {counted(found.missing, 'segment')} of the proof are gone from it"
    if found.faults:
        sentence = f"The proof does not fit the log: {found.faults[0]}"
    facts = {
        "good": found.is_good,
        "segments": found.segments,
        "missing": found.missing,
        "hours": found.hours,
        "faults": found.faults,
    }
    output.fact(facts, sentence)
    for text in found.faults[1:] if not output.as_json else ():
        output.line({}, [("fault", "red"), (text, "")])
    return Exit.DONE if found.is_good else Exit.FAILED


def _print(findings: Findings, output: Output) -> None:
    output.table(_COLUMNS, [_facts(one) for one in findings.hours])
    if not output.as_json:
        for note in findings.notes:
            output.line({}, [("note", "yellow"), (note, "")])
        for hour in findings.hours:
            style = "red" if hour.is_wrong else "yellow"
            for text in hour.exceptions:
                output.line({}, [(f"{hour.begin:%Y-%m-%d %H}h", "dim"), (text, style)])
    closing = _closing(findings)
    output.fact(
        {
            "verdict": findings.verdict,
            "run_id": findings.run_id,
            "head": findings.head.offset - 1,
            "epoch": findings.head.epoch,
            "behind": findings.behind,
            "notes": findings.notes,
            "sentence": closing,
        },
        closing,
    )


def _facts(hour: Hour) -> dict[str, Any]:
    return {
        "hour": f"{hour.begin:%Y-%m-%dT%H:00Z}",
        "epoch": hour.epoch,
        "from_offset": hour.from_offset,
        "to_offset": hour.to_offset,
        "distinct_rows": hour.distinct_rows,
        **{name: getattr(hour, name) for name in _COUNTS},
        "segment_sha256": hour.segment_sha256,
        "verdict": hour.verdict,
        "exceptions": hour.exceptions,
    }


def _closing(findings: Findings) -> str:
    if findings.verdict == "behind":
        lags = [f"{name} by {_spaced(count)}" for name, count in findings.behind.items()]
        return (
            f"Nothing is proven yet: the lake is behind the log ({', '.join(lags)}). Run"
            " `signalhub pipeline once`, or wait for the pipeline."
        )
    counts = ", ".join(_count(findings.total(name), name) for name in _COUNTS)
    rows = findings.total("distinct_rows")
    entries = "entry" if rows == 1 else "entries"
    hours = counted(len(findings.hours), "hour")
    judged = f"{_spaced(rows)} {entries} in {hours}, {counts}"
    if findings.verdict == "proven":
        return f"Proven: {judged}."
    bad = sum(one.is_wrong for one in findings.hours)
    return f"Wrong in {counted(bad, 'hour')}: {judged}; see the faults above."


def _count(count: int, name: str) -> str:
    """`1 gap`, `2 gaps`, `2 pending`."""
    return f"{_spaced(count)} {name.removesuffix('s') if count == 1 else name}"


def _spaced(number: int) -> str:
    """Thousands separated by a no-break space."""
    return f"{number:,}".replace(",", "\N{NO-BREAK SPACE}")
