"""`signalhub actors ls`, `show`, `calls`, `alarms` and `dead`: the state of actors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
    FINISHED,
    alarm_row,
    call_row,
    dead_row,
    finished_row,
    made_ms,
    nested,
    written_operation,
)
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import OutputColumn, counted
from signalhub.cli.terminal.quantities import shown_size, shown_time

T = TypeVar("T")


def ls(
    *,
    kind: Annotated[str | None, Parameter(help="Only actors of this kind, such as order.")] = None,
    host: Annotated[str | None, Parameter(help="Only actors of this host.")] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List actors: their hosts, and what is queued and pending for each.

    Only connected hosts are queried.
    """
    if host is not None and connection.data is not None:
        raise usage(
            "--host and --data exclude each other",
            "omit --host, or use --url instead of --data",
        )

    async def work(source: Hosts) -> HostRows:
        if host is not None and isinstance(source, ConnectedHosts):
            source.only(name_of(host))
        return await source.rows(
            "actors", limit, order=_by("actor", "host"), is_shown=_is_anything_here, kind=kind
        )

    found, source = _looked(connection, work)
    _print(connection, ACTORS, found.rows, dict, "no actors yet")
    if source.away and host is None:
        names = ", ".join(source.away)
        connection.remark({"away": source.away}, f"hosts that are away are not included: {names}")
    _end(connection, found, source)


def _is_anything_here(row: Row) -> bool:
    """Usually nothing is left of an actor that has moved away."""
    left = ("inbox", "outbox", "pending", "alarms", "dead")
    return row["status"] != "gone" or any(row[name] for name in left)


def show(actor: ActorName, /, *, connection: ViewOptions = VIEW_DEFAULTS) -> None:
    """Show an actor: its host, state, calls, alarms and dead letters.

    Only keys and sizes of its state are shown, and the first 100 rows of long
    lists; see `calls`, `alarms` and `dead` for the rest.
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
    _tell_withheld(connection, [facts, *facts["alarmList"], *facts["deadLetters"]])
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
    parts: Sequence[tuple[str, Sequence[OutputColumn], list[Row], int]] = (
        ("state", (OutputColumn("key"), OutputColumn("bytes")), keys, facts["stateKeys"]),
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
    id: Annotated[str | None, Parameter(help="Only this call, as seen by both sides.")] = None,
    finished: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="List what was executed instead: the last 1 000 requests of each host.",
        ),
    ] = False,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List open calls of actors.

    A call is stored, sent and accepted by the hub. On the other side, which
    --id queries as well, it is waiting, held, retrying, deferred, executed or
    answering. Then it is answered, and once the caller has processed the
    answer, it is done and forgotten.
    """
    if id is not None:
        _one_call(checked_id(id, "calls"), connection)
        return
    address = optional_actor(actor)
    if finished:
        _finished_calls(address, limit, connection)
        return

    async def work(source: Hosts) -> HostRows:
        found = await source.rows("calls", limit, order=_by("call"), address=address)
        await _check_known(source, address, found)
        return found

    found, source = _looked(connection, work)
    _print(connection, CALLS, found.rows, call_row, "no open calls")
    _end(connection, found, source)


def _finished_calls(address: str | None, limit: int, connection: ViewOptions) -> None:
    async def work(source: Hosts) -> HostRows:
        found = await source.rows("finished", limit, order=_newest_first, address=address)
        await _check_known(source, address, found)
        return found

    found, source = _looked(connection, work)
    _print(connection, FINISHED, found.rows, finished_row, "nothing was executed yet")
    _end(connection, found, source)


def _newest_first(row: Row) -> tuple[Any, ...]:
    # What is still to be answered has no end, and comes before what has.
    ended_ms = row["endedMs"]
    return (ended_ms is not None, -(ended_ms or 0))


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
        connection.remark({"away": source.away}, f"hosts that are away were not queried: {names}")
    source.check(connection.timeout_s)


def alarms(
    actor: AnyActor = None,
    /,
    *,
    status: Annotated[
        Literal["pending", "skipped"] | None,
        Parameter(help="Only pending alarms, or only those skipped after too many failures."),
    ] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List alarms, the next one first.

    Retry a skipped one with `signalhub actors redrive ACTOR ID`.
    """
    address = optional_actor(actor)

    async def work(source: Hosts) -> HostRows:
        order = _by("dueMs", "id")
        found = await source.rows("alarms", limit, order=order, address=address, status=status)
        await _check_known(source, address, found)
        return found

    found, source = _looked(connection, work)
    _print(connection, ALARMS, found.rows, alarm_row, "no alarms")
    _end(connection, found, source)


def dead(
    actor: AnyActor = None,
    /,
    *,
    id: Annotated[str | None, Parameter(help="Only this dead letter, with its content.")] = None,
    limit: Limit = LIMIT,
    connection: ViewOptions = VIEW_DEFAULTS,
) -> None:
    """List dead letters: what failed for good, and why.

    `redrive ACTOR ID` retries one, `purge ACTOR ID` deletes it. Dead letters
    without an actor are messages that a host could not decode.
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
    _print(connection, DEAD, found.rows, dead_row, "no dead letters")
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
            "list them with `signalhub actors dead`",
        )
    contents: Row | None = found["contents"]
    _tell_withheld(connection, [found])
    if connection.as_json:
        connection.output.sheet({**found, "contents": contents and nested(contents)})
        return
    found.pop("withheld", None)
    del found["contents"]
    found["died"] = shown_time(found.pop("deadMs"))
    for name, value in (contents or {}).items():
        if value not in (None, "") and name not in found:
            found[f"its {name}"] = written_operation(value) if name in CONTINUATIONS else value
    connection.output.sheet(found)


def _looked(connection: ViewOptions, work: Callable[[Hosts], Awaitable[T]]) -> tuple[T, Hosts]:
    """The result, and the hosts that were queried."""

    async def both(source: Hosts) -> tuple[T, Hosts]:
        return await work(source), source

    return look(connection, both)


async def _check_known(source: Hosts, address: str | None, found: HostRows) -> None:
    """Without rows, tell an actor that has none from an unknown actor."""
    if address is None or found.rows:
        return
    if not await source.each("actor", actor=address):
        raise unknown_actor(address, source)


def _print(
    connection: ViewOptions,
    columns: Sequence[OutputColumn],
    rows: list[Row],
    drawn: Callable[[Row], Row],
    if_empty: str,
) -> None:
    output = connection.output
    shape = nested if output.as_json else drawn
    output.table(columns, [shape(row) for row in rows], if_empty=if_empty)


def _end(connection: ViewOptions, found: HostRows, source: Hosts) -> None:
    if found.has_more:
        connection.remark({"has_more": True}, "there are more; raise --limit to see them")
    _tell_withheld(connection, found.rows)
    source.check(connection.timeout_s)


def _tell_withheld(connection: ViewOptions, rows: Iterable[Mapping[str, Any]]) -> None:
    """Hosts show no contents to operators without the permission `read`."""
    if any(row.get("withheld") for row in rows):
        connection.remark(
            {"withheld": True}, "contents are not shown: that needs `read` over the host"
        )


def _by(*names: str) -> Callable[[Row], tuple[Any, ...]]:
    return lambda row: tuple(row[name] for name in names)


def _bytes(count: int) -> str:
    return counted(count, "byte") if count < 1024 else shown_size(count)
