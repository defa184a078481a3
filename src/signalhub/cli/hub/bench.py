"""`signalhub bench`: how fast a hub is, with a load that is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from signalhub.cli.terminal.connection import LOCAL, HubConnection, failure_of, quiet_client_log
from signalhub.cli.terminal.failures import Exit, Failure, Yes, confirm, usage
from signalhub.cli.terminal.output import OutputColumn, counted
from signalhub.cli.terminal.quantities import byte_count, option, seconds

if TYPE_CHECKING:
    from signalhub.operate.bench.plan import LoadPlan
    from signalhub.operate.bench.report import BenchReport, Change

_PROCESSES = 4

_COLUMNS = (
    OutputColumn("figure", style="bold"),
    OutputColumn("value", is_whole=True),
)
_COMPARED = (
    OutputColumn("figure", style="bold"),
    OutputColumn("before", is_whole=True),
    OutputColumn("value", title="now", is_whole=True),
    OutputColumn("ratio", is_whole=True),
)


def bench(
    kind: Annotated[
        Literal["tell", "ask", "rtt", "fanout", "durable", "consume", "connect", "room"],
        Parameter(name="LOAD", help="What is sent."),
    ],
    *,
    rate: Annotated[
        float | None, Parameter(help="Messages a second in all; default: by the load.")
    ] = None,
    clients: Annotated[int | None, Parameter(help="Connections; default: by the load.")] = None,
    for_s: Annotated[float, option(seconds, "How long, at most 10m.", name="--for")] = 10.0,
    size: Annotated[int, option(byte_count, "Bytes in a message, at most 32K.")] = 128,
    processes: Annotated[
        int | None, Parameter(help="Processes of clients; default: by the cores.")
    ] = None,
    compare: Annotated[
        Path | None, Parameter(help="A result of --json, to compare this one with.")
    ] = None,
    yes: Yes = False,
    connection: HubConnection = LOCAL,
) -> None:
    """Measure a hub under a load.

    tell and rtt measure to the recipient and back, ask and durable to the
    hub's receipt, fanout and room to every copy, consume through a durable
    subscription, connect to a connection that is registered. Messages are due
    at fixed times, and latencies count from then, also while the hub does not
    answer. A hub that asks for tokens is in use by others: for it, --yes is
    needed. Topics of the load are deleted; a room stays.
    """
    import asyncio
    import secrets

    from signalhub.operate.arguments import InvalidArgument
    from signalhub.operate.bench.plan import planned
    from signalhub.operate.bench.report import changes, check_comparable, read_report
    from signalhub.operate.bench.runner import BenchFailed, asks_for_tokens
    from signalhub.operate.bench.runner import bench as measure
    from signalhub.operate.session import HubAccess
    from signalhub.wire.errors import ClientError

    try:
        plan = planned(
            kind,
            secrets.token_hex(4),
            rate=rate,
            clients=clients,
            seconds=for_s,
            size=size,
            processes=_processes() if processes is None else processes,
        )
        before = None if compare is None else read_report(_content(compare), str(compare))
        if before is not None:
            check_comparable(before, plan)
        access = HubAccess(**connection.hub_options())
        with quiet_client_log():
            if asyncio.run(asks_for_tokens(access)):
                confirm(f"put a load on the hub at {access.url}, which others use", yes=yes)
            connection.note(_begin(plan))
            report = asyncio.run(measure(plan, access))
        rows = None if before is None else changes(before, report)
    except InvalidArgument as error:
        raise usage(error.message, error.resolution) from None
    except BenchFailed as error:
        raise Failure(Exit.FAILED, error.code, error.message, error.resolution) from None
    except ClientError as error:
        raise failure_of(error) from error
    for note in report.notes:
        connection.note(f"note: {note}")
    _show(connection, report, rows)
    if not report.received:
        advice = "see the codes under failed, and the hub's log; a lower --rate may help"
        raise Failure(Exit.FAILED, "nothing_arrived", "no message arrived", advice)


def _show(connection: HubConnection, report: BenchReport, rows: list[Change] | None) -> None:
    output = connection.output
    if output.as_json:
        compared = {} if rows is None else {"compared": [_compared(one) for one in rows]}
        output.line(_facts(report) | compared, [])
        return
    figures = [{"figure": name, "value": value} for name, value in _figures(report)]
    if rows is None:
        output.table(_COLUMNS, figures)
        return
    known = {one.name: _compared(one) for one in rows}
    none = {"before": "", "ratio": ""}
    output.table(_COMPARED, [known.get(row["figure"], none) | row for row in figures])


def _compared(one: Change) -> dict[str, Any]:
    return {"figure": one.name, "before": one.before, "now": one.now, "ratio": one.ratio}


def _begin(plan: LoadPlan) -> str:
    processes = "1 process" if plan.processes == 1 else f"{plan.processes} processes"
    return (
        f"{plan.kind}: {counted(plan.messages, 'message')} at {plan.rate:g} a second over"
        f" {counted(plan.clients, 'client')} in {processes}; press Ctrl-C to stop"
    )


def _facts(report: BenchReport) -> dict[str, Any]:
    from msgspec.structs import asdict

    return asdict(report) | {"missing": report.missing, "notes": report.notes}


def _figures(report: BenchReport) -> list[tuple[str, str]]:
    """The figures as people read them, with the names they have in JSON."""
    failed = ", ".join(f"{count} {code}" for code, count in sorted(report.failed.items()))
    rows: list[tuple[str, str]] = [
        ("sent", f"{report.sent}"),
        ("received", f"{report.received}"),
        ("failed", failed or "0"),
        ("missing", f"{report.missing}"),
        ("rate", f"{report.rate:g}"),
        *((f"latency_ms.{name}", f"{ms:g}") for name, ms in report.latency_ms.items()),
        ("lag_ms.p99", f"{report.lag_ms.get('p99', 0.0):g}"),
        ("hub_cpu_us", "" if report.hub_cpu_us is None else f"{report.hub_cpu_us:g}"),
        ("clients_cpu_s", f"{report.clients_cpu_s:g}"),
        *((f"machine.{name}", f"{value}") for name, value in report.machine.items()),
    ]
    return rows


def _processes() -> int:
    """One core is the hub's."""
    from signalhub.operate.bench.machine import usable_cores

    return max(1, min(_PROCESSES, usable_cores() - 1))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise usage(
            f"cannot read {path}: {error.strerror}", "choose another with --compare"
        ) from None
