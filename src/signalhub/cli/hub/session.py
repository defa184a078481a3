"""`signalhub session`: who is connected to a hub, and closing their sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub.cli.terminal.arguments import address
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import OutputColumn, counted
from signalhub.cli.terminal.paging import every
from signalhub.wire.errors import Code, Refused

if TYPE_CHECKING:
    from signalhub.client import Client, SessionInfo

_PREFIX = "session-"

COLUMNS = (
    OutputColumn("session", style="cyan", is_whole=True),
    OutputColumn("identity", style="green", word_chars=30),
    OutputColumn("subject", spare=3),
    OutputColumn("source", spare=2),
    OutputColumn("connected_s", title="connected, s", spare=1),
    OutputColumn("registrations", spare=5),
    OutputColumn("subscriptions", spare=5),
    OutputColumn("queued_bytes", title="queued bytes", spare=4),
)


def ls(
    pattern: Annotated[
        str, Parameter(name="PATTERN", help="Identities; * matches any characters.")
    ] = "*",
    /,
    *,
    connection: HubConnection = LOCAL,
) -> None:
    """List the sessions of a hub, oldest first.

    With authentication this needs the permission admin: sessions.
    """

    async def work(me: Client) -> list[SessionInfo]:
        return await _sessions(connection, me, pattern)

    output = connection.output
    missing = None if output.as_json else ""
    now_ms = time.time() * 1000
    rows = [
        {
            "session": one.id,
            "identity": one.identity or missing,
            "subject": one.subject or missing,
            "source": one.source,
            "connected_s": max(0, round((now_ms - one.connected_at) / 1000)),
            "registrations": one.registrations,
            "subscriptions": one.subscriptions + one.consumers,
            "queued_bytes": one.queued_bytes,
            "token_id": one.token_id,
        }
        for one in run(connection, work)
    ]
    output.table(COLUMNS, rows, if_empty="no session matches")


def close(
    session: Annotated[
        str,
        Parameter(name="SESSION", help="The id of a session, or the identity of several."),
    ],
    /,
    *,
    connection: HubConnection = LOCAL,
) -> None:
    """Close sessions of a hub; the clients are told.

    A client may connect again with its token. To keep it out, use
    `signalhub token revoke`, which ends its sessions, too.
    """
    identity = None if session.startswith(_PREFIX) else address(session)

    async def work(me: Client) -> list[str]:
        ids = [session]
        if identity is not None:
            found = await _sessions(connection, me, identity)
            ids = [one.id for one in found if one.identity == identity and one.id != me.session_id]
        closed = []
        for one in ids:
            try:
                await connection.in_time(me.close_session(one))
            except Refused as refusal:
                # One of several may have ended by itself meanwhile.
                if identity is None or refusal.code != Code.UNKNOWN_SESSION:
                    raise
            else:
                closed.append(one)
        return closed

    closed = run(connection, work)
    if not closed:
        raise Failure(
            Exit.FAILED,
            "unknown_session",
            f"{identity} has no session",
            "list them with `signalhub session ls`",
        )
    connection.output.fact({"closed": closed}, f"closed {counted(len(closed), 'session')}")


async def _sessions(connection: HubConnection, me: Client, pattern: str) -> list[SessionInfo]:
    return await every(
        connection, lambda after: me.sessions(pattern, after=after), lambda one: one.id
    )
