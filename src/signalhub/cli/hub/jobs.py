"""`signalhub jobs`: what operators have started on a hub, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.output import OutputColumn
from signalhub.cli.terminal.quantities import shown_time

if TYPE_CHECKING:
    from signalhub.client import Client, Job, JobPage

_JOBS_MAX = 100

_COLUMNS = (
    OutputColumn("began", style="dim"),
    OutputColumn("ended", style="dim"),
    OutputColumn("operation", style="green"),
    OutputColumn("state", style="yellow"),
    OutputColumn("identity"),
    OutputColumn("detail", spare=1),
    OutputColumn("job", style="cyan", spare=2),
)


def jobs(
    *,
    limit: Annotated[
        int, Parameter(validator=Number(gte=1, lte=_JOBS_MAX), help="At most N jobs.")
    ] = _JOBS_MAX,
    connection: HubConnection = LOCAL,
) -> None:
    """List the newest jobs of a hub: replays and erasures.

    A job that is interrupted has begun and not ended, and nobody works on it:
    start its command again. Of an erasure this is the hub's part; the command
    goes on in the lake. With authentication this needs the permission admin: view.
    """

    async def work(me: Client) -> JobPage:
        return await connection.in_time(me.jobs(limit=limit))

    from msgspec.structs import asdict

    output = connection.output
    found = run(connection, work)
    rows = [asdict(one) if output.as_json else _row(one) for one in found]
    output.table(_COLUMNS, rows, if_empty="no jobs yet")


def _row(job: Job) -> dict[str, Any]:
    return {
        "began": shown_time(job.began_at),
        "ended": shown_time(job.ended_at),
        "operation": job.operation,
        "state": job.state,
        "identity": job.identity or job.subject or "",
        "detail": job.detail or "",
        "job": job.job,
    }
