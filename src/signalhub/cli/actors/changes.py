"""`signalhub actors redrive`, `purge` and `move`: what running hosts do when they are told to."""

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
from signalhub.cli.terminal.connection import LOCAL, HubConnection
from signalhub.cli.terminal.failures import Exit, Failure, Yes, confirm
from signalhub.wire.errors import Code

if TYPE_CHECKING:
    pass

_POLL_S: Final = 0.1
# Letters of no actor: batches that a host could not read.
NOBODY: Final = "-"

Letter = Annotated[str, Parameter(name="ID", help="The id of the dead letter or alarm.")]


# Dead letters.


def redrive(
    actor: ActorName,
    id: Letter,
    /,
    *,
    data: NoFolder = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Try a dead letter again, or an alarm that was skipped. Its host must run.

    See with `signalhub actors dead`, and `alarms --status skipped`, which
    there are.
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
                f"{id} of {target} cannot be tried again, because it could not even be read",
                f"see it with `signalhub actors dead {target} --id {id}`",
            )
        return host

    host = talk(connection, work)
    facts = {"actor": target, "id": id, "host": host, "redriven": True}
    connection.output.fact(facts, f"{id} of {target} is tried again on {host}")


def purge(
    actor: Annotated[
        str,
        Parameter(
            name="ACTOR",
            allow_leading_hyphen=True,
            help="The actor; - for letters that belong to no actor.",
        ),
    ],
    id: Annotated[str, Parameter(name="ID", help="The id of the dead letter.")],
    /,
    *,
    yes: Yes = False,
    data: NoFolder = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Throw a dead letter away for good. Its host must run."""
    check_no_folder(data)
    target = "" if actor == NOBODY else checked_actor(actor)
    checked_id(id, "dead")
    confirm(f"throw away the dead letter {id} of {target or 'no actor'}", yes=yes)

    async def work(hosts: ConnectedHosts) -> str:
        host = await _holder(hosts, target, id)
        await _asked(hosts, host, "purge", actor=target, id=id)
        return host

    host = talk(connection, work)
    facts = {"actor": target, "id": id, "host": host, "purged": True}
    connection.output.fact(facts, f"{id} of {target or 'no actor'} is thrown away")


async def _holder(hosts: ConnectedHosts, actor: str, id: str, *, with_alarms: bool = False) -> str:
    """The host that has the letter, or the skipped alarm."""
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
        "see with `signalhub actors dead` which there are",
    )


async def _asked(hosts: ConnectedHosts, host: str, name: str, **arguments: Any) -> Any:
    """Something that is to be done; without an answer it may have been."""
    try:
        return await hosts.ask(host, name, **arguments)
    except NoAnswer:
        raise Failure(
            Exit.UNKNOWN,
            "outcome_unknown",
            f"the host {host} did not answer in time",
            "it may have happened: look before you repeat it, or wait longer with --timeout",
        ) from None


# Moves.


def move(
    actor: ActorName,
    /,
    *,
    to: Annotated[str, Parameter(help="The name of the host it shall live on.")],
    wait: Annotated[
        bool, Parameter(negative="--no-wait", help="Wait until it lives there.")
    ] = True,
    even_if_away: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Move it also to a host that is not there; until that comes, it stands still.",
        ),
    ] = False,
    again: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Send once more what is on its way: its new host was lost, and replaced.",
        ),
    ] = False,
    data: NoFolder = None,
    connection: MoveOptions = MOVE_DEFAULTS,
) -> None:
    """Move an actor to another host, with everything it has.

    It stands still meanwhile, for some milliseconds as a rule; what is sent to
    it waits and reaches it in order. Both hosts have to serve its kind. Once
    the hub has given its place away the move goes on by itself, whatever is
    stopped or restarted, this command included.
    """
    from signalhub.cli.actors.move import ActorMove

    check_no_folder(data)
    target = checked_actor(actor)
    goal = name_of(to)
    began_s = time.monotonic()

    async def work(hosts: ConnectedHosts) -> Row:
        directory = hosts.directory
        if goal not in directory.present and not (even_if_away and goal in directory.away):
            raise _no_goal(goal, target, hosts)
        kinds = directory.present.get(goal) or directory.away.get(goal) or frozenset()
        if target.partition("/")[0] not in kinds:
            raise Failure(
                Exit.FAILED,
                Code.NO_HOST,
                f"the host {goal} does not serve the kind {target.partition('/')[0]}; it serves"
                f" {', '.join(sorted(kinds)) or 'nothing'}",
                "choose another --to, or start it with that class, too",
            )
        journey = ActorMove(hosts, target, goal)
        await (journey.repeat() if again else journey.begin())
        if wait and not journey.is_over:
            await journey.wait(connection.timeout_s, _POLL_S)
        return journey.facts()

    facts = talk(connection, work)
    came = f"from {facts['from']} " if facts["from"] else ""
    if not facts["moved"]:
        sentence = f"{target} lives on {goal} already"
    elif facts["arrived"]:
        facts["seconds"] = round(time.monotonic() - began_s, 3)
        sentence = f"{target} lives on {goal} now"
    else:
        sentence = (
            f"{target} is on its way {came}to {goal}; see how far with"
            f" `signalhub actors show {target}`"
        )
    connection.output.fact(facts, sentence)


def _no_goal(goal: str, actor: str, hosts: ConnectedHosts) -> Failure:
    failure = no_such_host(goal, hosts.directory)
    if goal in hosts.directory.away:
        failure.resolution = (
            "start it, or add --even-if-away: the actor then stands still and waits in its mailbox"
        )
    return failure
