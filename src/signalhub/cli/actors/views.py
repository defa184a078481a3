"""`signalhub actors ls`, `show`, `calls`, `alarms` and `dead`: what hosts have and wait for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from signalhub.cli.actors.hosts import ConnectedHosts, HostRows, Hosts, Row, look, name_of, unasked
from signalhub.cli.actors.move import residence, unknown_actor
from signalhub.cli.actors.options import (
    LIMIT,
    VIEW_DEFAULTS,
    ActorName,
    AnyActor,
    Limit,
    ViewOptions,
    checked_actor,
    checked_id,
    no_letter,
    optional_actor,
)
from signalhub.cli.actors.tables import (
    ACTOR,
    ACTORS,
    ALARMS,
    CALLS,
    CONTINUATIONS,
    DEAD,
    alarm_row,
    call_row,
    dead_row,
    made_ms,
    nested,
    written_operation,
)
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import Column, counted
from signalhub.cli.terminal.quantities import shown_moment, shown_size

T = TypeVar("T")


def ls(
    *,
    kind: Annotated[str | None, Parameter(help="Only actors of this kind, such as order.")] = None,
    host: Annotated[str | None, Parameter(help="Only actors of this host.")] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List actors: where they live, and what waits in and for each.

    Only hosts that are connected can be asked.
    """

    if host is not None and connection.data is not None:
        raise usage(
            "--host chooses one of the hosts of a hub, and --data is the folder of one host",
            "leave --host out, or ask the hub with --url instead of --data",
        )

    async def work(source: Hosts) -> HostRows:
        if host is not None and isinstance(source, ConnectedHosts):
            source.only(name_of(host))
        return await source.rows(
            "actors", limit, order=_by("actor", "host"), is_shown=_is_anything_here, kind=kind
        )

    found, source = _looked(connection, work)
    _print(connection, ACTORS, found.rows, dict, "no actor has been called yet")
    if source.away and host is None:
        names = ", ".join(source.away)
        connection.remark(
            {"away": source.away}, f"not shown are actors of hosts that are away: {names}"
        )
    _end(connection, found, source)


def _is_anything_here(row: Row) -> bool:
    """Of an actor that has moved on nothing is left, as a rule."""
    left = ("inbox", "outbox", "pending", "alarms", "dead")
    return row["status"] != "gone" or any(row[name] for name in left)


def show(actor: ActorName, /, *, connection: ViewOptions = VIEW_DEFAULTS) -> None:
    """Show an actor: where it lives, its state, calls, alarms and dead letters.

    Of its state only keys and sizes are shown. Of long lists the first 100
    are; `calls`, `alarms` and `dead` have the rest.
    """
    address = checked_actor(actor)

    async def work(source: Hosts) -> dict[str, Row]:
        return await source.each("actor", actor=address)

    found, source = _looked(connection, work)
    host = residence(found)
    if host is None:
        raise unknown_actor(address, source)
    others = [{"host": one, "status": found[one]["status"]} for one in found if one != host]
    facts = {"host": host, **found[host], "elsewhere": others}
    if connection.as_json:
        listed = [nested(one) for one in facts["alarmList"]]
        connection.output.sheet({**facts, "alarmList": listed})
    else:
        _print_actor(connection, facts, host)
    source.check(connection.timeout_s)


def _print_actor(connection: ViewOptions, facts: Mapping[str, Any], host: str) -> None:
    output = connection.output
    move = facts["move"]
    sheet = {
        "actor": facts["actor"],
        "host": host,
        "status": facts["status"],
        "token": facts["token"],
        "inbox": counted(facts["inbox"], "message"),
        "outbox": counted(facts["outbox"], "message"),
        "state": f"{counted(facts['stateKeys'], 'key')}, {_bytes(facts['stateBytes'])}",
    }
    if move is not None:
        way = "to" if move["direction"] == "leaving" else "from"
        sheet["moving"] = f"{way} {name_of(move['peer'])}, {move['step']}"
    if facts.get("moveFailed"):
        sheet["move failed"] = facts["moveFailed"]
    for other in facts["elsewhere"]:
        sheet[f"on {other['host']}"] = other["status"]
    output.sheet(sheet)
    keys = [{"key": key, "bytes": size} for key, size in facts["state"].items()]
    parts: Sequence[tuple[str, Sequence[Column], list[Row], int]] = (
        ("state", (Column("key"), Column("bytes")), keys, facts["stateKeys"]),
        ("calls", CALLS[:-1], [call_row(one) for one in facts["calls"]], facts["pending"]),
        ("alarms", ALARMS[:-1], [alarm_row(one) for one in facts["alarmList"]], facts["alarms"]),
        (
            "dead letters",
            DEAD[:-1],
            [dead_row(one) for one in facts["deadLetters"]],
            facts["dead"],
        ),
    )
    for title, columns, rows, count in parts:
        if not rows:
            continue
        cut = f"{title}, {len(rows)} of {count}:" if count > len(rows) else f"{title}:"
        output.line({}, [(cut, "bold")])
        output.table([one for one in columns if one is not ACTOR], rows)


def calls(
    actor: AnyActor = None,
    /,
    *,
    id: Annotated[
        str | None, Parameter(help="Only this call, as both of its sides see it.")
    ] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List calls that actors have made and that have not ended.

    A call is stored, sent, and accepted by the hub; then it is up to the
    other side, which --id asks, too: there it waits, or is held, retried,
    deferred, executed or answering. Then the caller has the answer, and when
    the caller has dealt with it, the call is done and forgotten.
    """
    if id is not None:
        _one_call(checked_id(id, "calls"), connection)
        return
    address = optional_actor(actor)

    async def work(source: Hosts) -> HostRows:
        found = await source.rows("calls", limit, order=_by("call"), address=address)
        await _check_known(source, address, found)
        return found

    found, source = _looked(connection, work)
    _print(connection, CALLS, found.rows, call_row, "no call is under way")
    _end(connection, found, source)


def _one_call(call_id: str, connection: ViewOptions) -> None:
    from signalhub.cli.actors.tables import home_of, merged, sheet_of, unknown_call

    async def work(source: Hosts) -> Row | None:
        found = await source.each("call", call=call_id)
        if not found:
            return None
        facts = merged(call_id, found, made_ms(call_id))
        return {**facts, "home": await home_of(facts, source)}

    facts, source = _looked(connection, work)
    if facts is None:
        source.check(connection.timeout_s)
        raise unknown_call(call_id, source)
    connection.output.sheet(facts if connection.as_json else sheet_of(facts))
    if source.away and (facts["caller"] is None or facts["callee"] is None):
        names = ", ".join(source.away)
        connection.remark({"away": source.away}, f"not asked are hosts that are away: {names}")
    source.check(connection.timeout_s)


def alarms(
    actor: AnyActor = None,
    /,
    *,
    status: Annotated[
        Literal["pending", "skipped"] | None,
        Parameter(help="Only those to come, or those that failed too often and were skipped."),
    ] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List alarms, the next one first.

    One that was skipped can be tried again with `redrive ACTOR ID`.
    """
    address = optional_actor(actor)

    async def work(source: Hosts) -> HostRows:
        order = _by("dueMs", "id")
        found = await source.rows("alarms", limit, order=order, address=address, status=status)
        await _check_known(source, address, found)
        return found

    found, source = _looked(connection, work)
    _print(connection, ALARMS, found.rows, alarm_row, "there are no alarms")
    _end(connection, found, source)


def dead(
    actor: AnyActor = None,
    /,
    *,
    id: Annotated[str | None, Parameter(help="Only this one, with what is in it.")] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List dead letters: what actors have given up, and why.

    `redrive ACTOR ID` tries one again, `purge ACTOR ID` throws it away. Those
    of no actor are messages that a host could not read.
    """
    address = optional_actor(actor)
    if id is not None:
        _one_letter(address, checked_id(id, "dead"), connection)
        return

    async def work(source: Hosts) -> HostRows:
        found = await source.rows("dead", limit, order=_by("id"), address=address)
        await _check_known(source, address, found)
        return found

    found, source = _looked(connection, work)
    _print(connection, DEAD, found.rows, dead_row, "there are no dead letters")
    _end(connection, found, source)


def _one_letter(address: str | None, id: str, connection: ViewOptions) -> None:
    async def work(source: Hosts) -> Row | None:
        for host, letters in (await source.each("dead", address=address, id=id)).items():
            for letter in letters:
                contents = await source.ask(host, "letter", actor=letter["actor"], id=id)
                return {**letter, "host": host, "contents": contents}
        return None

    found, source = _looked(connection, work)
    if found is None:
        source.check(connection.timeout_s)
        raise Failure(
            Exit.FAILED,
            "unknown_dead_letter",
            f"{no_letter(address, id)}{unasked(source)}",
            "see with `signalhub actors dead` which there are",
        )
    contents: Row | None = found["contents"]
    if connection.as_json:
        connection.output.sheet({**found, "contents": contents and nested(contents)})
        return
    del found["contents"]
    found["died"] = shown_moment(found.pop("deadMs"))
    for name, value in (contents or {}).items():
        if value not in (None, "") and name not in found:
            found[f"its {name}"] = written_operation(value) if name in CONTINUATIONS else value
    connection.output.sheet(found)


# What they share.


def _looked(connection: ViewOptions, work: Callable[[Hosts], Awaitable[T]]) -> tuple[T, Hosts]:
    """What was found, and who was asked, for what is missing from it."""

    async def both(source: Hosts) -> tuple[T, Hosts]:
        return await work(source), source

    return look(connection, both)


async def _check_known(source: Hosts, address: str | None, found: HostRows) -> None:
    """Nothing found of an actor may mean that it has nothing, or that nobody knows it."""
    if address is None or found.rows:
        return
    if not await source.each("actor", actor=address):
        raise unknown_actor(address, source)


def _print(
    connection: ViewOptions,
    columns: Sequence[Column],
    rows: list[Row],
    drawn: Callable[[Row], Row],
    if_empty: str,
) -> None:
    output = connection.output
    shape = nested if output.as_json else drawn
    output.table(columns, [shape(row) for row in rows], if_empty=if_empty)


def _end(connection: ViewOptions, found: HostRows, source: Hosts) -> None:
    if found.has_more:
        connection.remark({"has_more": True}, "there are more than these; see them with --limit")
    source.check(connection.timeout_s)


def _by(*names: str) -> Callable[[Row], tuple[Any, ...]]:
    return lambda row: tuple(row[name] for name in names)


def _bytes(count: int) -> str:
    return counted(count, "byte") if count < 1024 else shown_size(count)
