"""`signalhub limits`: who uses how much of what is limited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.output import OutputColumn

if TYPE_CHECKING:
    from signalhub.client import Client, LimitUsage
    from signalhub.client.answers import ResourceUsage

TOP_MAX = 100

_COLUMNS = (
    OutputColumn("resource", style="cyan", is_whole=True),
    OutputColumn("of"),
    OutputColumn("name"),
    OutputColumn("used", is_whole=True),
    OutputColumn("limit", is_whole=True),
)


def limits(
    *,
    identity: Annotated[
        str | None, Parameter(help="Only what this subject of tokens uses.")
    ] = None,
    top: Annotated[
        int, Parameter(validator=Number(gte=1, lte=TOP_MAX), help="The N largest users of each.")
    ] = 3,
    connection: HubConnection = LOCAL,
) -> None:
    """Show who uses how much of what the hub limits."""

    async def work(me: Client) -> LimitUsage:
        return await connection.in_time(me.limits(identity, top=top))

    found = run(connection, work)
    rows = [row for one in found.resources for row in _rows(one, identity)]
    connection.output.table(_COLUMNS, rows)


def _rows(one: ResourceUsage, identity: str | None) -> Iterator[dict[str, object]]:
    """The total, then the largest users; without a limit the last column is empty."""
    if identity is None:
        yield _row(one.resource, "all", "", one.used, one.limit)
    for holder in one.identities:
        yield _row(one.resource, "identity", holder.identity, holder.used, one.per_identity)
    for holder in one.sources:
        yield _row(one.resource, "source", holder.source, holder.used, one.per_source)


def _row(resource: str, of: str, name: str, used: int, limit: int | None) -> dict[str, object]:
    shown: int | str = "" if limit is None else limit
    return {"resource": resource, "of": of, "name": name, "used": used, "limit": shown}
