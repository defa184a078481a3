"""`signalhub actors redrive`, `purge`, `move` and `forget`: changes of actors and their places."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from signalhub.cli.actors.hosts import (
    ConnectedHosts,
    NoAnswer,
    Row,
    name_of,
    no_such_host,
    talk,
    unasked,
)
from signalhub.cli.actors.options import (
    MOVE_DEFAULTS,
    ActorName,
    MoveOptions,
    NoFolder,
    check_no_folder,
    checked_actor,
    checked_id,
    no_letter,
)
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Exit, Failure, Yes, confirm
from signalhub.wire.errors import Code, Refused

if TYPE_CHECKING:
    from signalhub.client import Client, Place

_POLL_S: Final = 0.1
# Dead letters without an actor: batches that a host could not decode.
NOBODY: Final = "-"

Letter = Annotated[str, Parameter(name="ID", help="Id of the dead letter or alarm.")]


def redrive(
    actor: ActorName,
    id: Letter,
    /,
    *,
    data: NoFolder = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Retry a dead letter or a skipped alarm. Its host must be running.

    List them with `signalhub actors dead` and `alarms --status skipped`.
    """
    check_no_folder(data)
    target = checked_actor(actor)
    checked_id(id, "dead")

    async def work(hosts: ConnectedHosts) -> str:
        host = await _holder(hosts, target, id, with_alarms=True)
        if not await _asked(hosts, host, "redrive", actor=target, id=id):
            raise Failure(
                Exit.FAILED,
                "not_redriven",
                f"{id} of {target} cannot be retried: it could not be decoded",
                f"see it with `signalhub actors dead {target} --id {id}`",
            )
        return host

    host = talk(connection, work)
    facts = {"actor": target, "id": id, "host": host, "redriven": True}
    connection.output.fact(facts, f"retrying {id} of {target} on {host}")


def purge(
    actor: Annotated[
        str,
        Parameter(
            name="ACTOR",
            allow_leading_hyphen=True,
            help="The actor; - for dead letters without one.",
        ),
    ],
    id: Annotated[str, Parameter(name="ID", help="Id of the dead letter.")],
    /,
    *,
    yes: Yes = False,
    data: NoFolder = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Delete a dead letter permanently. Its host must be running."""
    check_no_folder(data)
    target = "" if actor == NOBODY else checked_actor(actor)
    checked_id(id, "dead")
    confirm(f"delete the dead letter {id} of {target or 'no actor'}", yes=yes)

    async def work(hosts: ConnectedHosts) -> str:
        host = await _holder(hosts, target, id)
        await _asked(hosts, host, "purge", actor=target, id=id)
        return host

    host = talk(connection, work)
    facts = {"actor": target, "id": id, "host": host, "purged": True}
    connection.output.fact(facts, f"deleted {id} of {target or 'no actor'}")


async def _holder(hosts: ConnectedHosts, actor: str, id: str, *, with_alarms: bool = False) -> str:
    """The host that has the dead letter or skipped alarm."""
    for host, found in (await hosts.each("dead", address=actor, id=id)).items():
        if found:
            return host
    if with_alarms:
        alarms = await hosts.each("alarms", address=actor, id=id, status="skipped")
        for host, found in alarms.items():
            if found:
                return host
    what = "dead letter or skipped alarm" if with_alarms else "dead letter"
    raise Failure(
        Exit.FAILED,
        "unknown_dead_letter",
        f"{no_letter(actor, id, what)}{unasked(hosts)}",
        "list them with `signalhub actors dead`",
    )


async def _asked(hosts: ConnectedHosts, host: str, name: str, **arguments: Any) -> Any:
    """Send a command; without an answer the outcome is unknown."""
    try:
        return await hosts.ask(host, name, **arguments)
    except NoAnswer:
        raise Failure(
            Exit.UNKNOWN,
            "outcome_unknown",
            f"host {host} did not answer in time",
            "it may have been done: check before you repeat it, or wait longer with --timeout",
        ) from None


def move(
    actor: ActorName,
    /,
    *,
    to: Annotated[str, Parameter(help="Name of the new host.")],
    wait: Annotated[
        bool, Parameter(negative="--no-wait", help="Wait until the move is complete.")
    ] = True,
    even_if_away: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Allow a host that is not connected, without authentication; the actor pauses.",
        ),
    ] = False,
    again: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Send everything again, because the new host was lost and replaced.",
        ),
    ] = False,
    data: NoFolder = None,
    connection: MoveOptions = MOVE_DEFAULTS,
) -> None:
    """Move an actor with all its data to another host.

    The actor pauses meanwhile, usually for milliseconds; messages to it wait and
    arrive in order. Both hosts must serve its kind. Once the hub has recorded
    the new host, the move continues by itself, even if this command or a host
    is stopped.
    """
    from signalhub.cli.actors.move import ActorMove

    check_no_folder(data)
    target = checked_actor(actor)
    goal = name_of(to)
    began_s = time.monotonic()

    async def work(hosts: ConnectedHosts) -> Row:
        directory = hosts.directory
        if goal not in directory.present and not (even_if_away and goal in directory.away):
            raise _no_goal(goal, hosts)
        kinds = directory.present.get(goal) or directory.away.get(goal) or frozenset()
        if target.partition("/")[0] not in kinds:
            raise Failure(
                Exit.FAILED,
                Code.NO_HOST,
                f"host {goal} does not serve the kind {target.partition('/')[0]}; it serves"
                f" {', '.join(sorted(kinds)) or 'nothing'}",
                "choose another --to, or start it with that class as well",
            )
        journey = ActorMove(hosts, target, goal)
        await (journey.repeat() if again else journey.begin())
        if wait and not journey.is_over:
            await journey.wait(connection.timeout_s, _POLL_S)
        return journey.facts()

    facts = talk(connection, work)
    came = f"from {facts['from']} " if facts["from"] else ""
    if not facts["moved"]:
        sentence = f"{target} is already on {goal}"
    elif facts["arrived"]:
        facts["seconds"] = round(time.monotonic() - began_s, 3)
        sentence = f"{target} is now on {goal}"
    else:
        sentence = (
            f"{target} is moving {came}to {goal}; follow it with `signalhub actors show {target}`"
        )
    connection.output.fact(facts, sentence)


def _no_goal(goal: str, hosts: ConnectedHosts) -> Failure:
    failure = no_such_host(goal, hosts.directory)
    if goal in hosts.directory.away:
        failure.resolution = (
            "start it, or use --even-if-away: the actor then pauses until the host is connected"
        )
    return failure


def forget(
    actor: ActorName,
    /,
    *,
    yes: Yes = False,
    data: NoFolder = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Let the hub forget where an actor lives, so that it can be placed anew.

    The next call places the actor on a host that serves its kind. If that is
    another host, the actor starts empty there. What the former host has of it
    stays in its folder, but no message of it is accepted any more.
    """
    check_no_folder(data)
    target = checked_actor(actor)
    confirm(
        f"forget where {target} lives: on another host it starts without its present state", yes=yes
    )

    async def work(me: Client) -> Place:
        try:
            return await connection.in_time(me.forget_place(target))
        except Refused as refusal:
            if refusal.code != Code.STALE_PLACEMENT:
                raise
            raise Failure(
                Exit.FAILED,
                "not_placed",
                f"{target} has no place",
                "check the name; if it was forgotten before, there is nothing left to do",
            ) from None

    place = run(connection, work)
    host = name_of(place.host)
    facts = {"actor": target, "host": host, "token": place.token, "forgotten": True}
    connection.output.fact(facts, f"{target} lived on {host}; the next call places it anew")
