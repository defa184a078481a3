"""`signalhub dlq`: show, redrive and purge dead letters.

Dead letters are in a topic of their own. Commands accept either that one or the topic the messages
came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.messages.messages import each, message_facts
from signalhub.cli.terminal.arguments import checked_topic
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Exit, Failure, Yes, confirm, usage
from signalhub.cli.terminal.output import OutputColumn, counted, shown
from signalhub.cli.terminal.quantities import shown_time
from signalhub.wire.errors import Code, Refused

if TYPE_CHECKING:
    from signalhub import client
    from signalhub.client import Client, Message

LIMIT = 100

Topic = Annotated[
    str, Parameter(name="TOPIC", help="The topic the messages came from, or the dead-letter topic.")
]
Seqs = Annotated[
    tuple[int, ...],
    Parameter(
        name="--seq",
        negative=(),
        show_default=False,
        validator=Number(gte=1),
        help="Position of a dead letter; repeatable.",
    ),
]
All = Annotated[
    bool, Parameter(name="--all", negative=(), show_default=False, help="All dead letters.")
]

_COLUMNS = (
    OutputColumn("seq", style="bold"),
    OutputColumn("died", style="dim"),
    OutputColumn("origin", title="from", style="green"),
    OutputColumn("attempts"),
    OutputColumn("reason", style="red"),
    OutputColumn("type", style="yellow"),
    OutputColumn("payload"),
)


def ls(
    topic: Topic,
    /,
    *,
    limit: Annotated[
        int, Parameter(validator=Number(gte=1), help="At most N dead letters.")
    ] = LIMIT,
    connection: HubConnection = LOCAL,
) -> None:
    """List dead letters: where they came from and why they failed."""
    name = checked_topic(topic)

    async def work(me: Client) -> tuple[list[Message], bool]:
        letters = await _letters_of(me, name, connection)
        found: list[Message] = []
        if letters is not None:
            async for message in each(me.replay(letters), connection):
                if message.dead_letter is None:
                    continue
                if len(found) == limit:
                    return found, True
                found.append(message)
        return found, False

    found, has_more = run(connection, work)
    output = connection.output
    rows = [letter_facts(one) if output.as_json else _row(one) for one in found]
    output.table(_COLUMNS, rows, if_empty=f"{name} has no dead letters")
    if has_more:
        connection.remark({"has_more": True}, "there are more; raise --limit to see them")


def show(
    topic: Topic,
    seq: Annotated[
        int, Parameter(name="SEQ", validator=Number(gte=1), help="Position of the dead letter.")
    ],
    /,
    *,
    connection: HubConnection = LOCAL,
) -> None:
    """Show everything about one dead letter."""
    name = checked_topic(topic)

    async def work(me: Client) -> Message | None:
        letters = await _letters_of(me, name, connection)
        if letters is None:
            return None
        found = [one async for one in each(me.replay(letters, seq, seq), connection)]
        return next((one for one in found if one.dead_letter is not None), None)

    found = run(connection, work)
    if found is None:
        raise Failure(
            Exit.FAILED,
            "unknown_dead_letter",
            f"{name} has no dead letter {seq}",
            f"list them with `signalhub dlq ls {name}`",
        )
    letter = letter_facts(found)
    if not connection.as_json:
        moments = ("publishedAt", "firstFailure", "lastFailure")
        letter |= {one: shown_time(letter[one]) for one in moments}
    connection.output.sheet(letter)


def redrive(
    topic: Topic, /, *, seq: Seqs = (), all: All = False, connection: HubConnection = LOCAL
) -> None:
    """Put dead letters back where they came from, for redelivery."""
    name, seqs = checked_topic(topic), _chosen(seq, all=all)

    async def work(me: Client) -> int:
        letters = await _letters_of(me, name, connection)
        return 0 if letters is None else await connection.in_time(me.redrive(letters, seqs))

    _count(connection, {"redriven": run(connection, work)}, "redriven", seqs)


def purge(
    topic: Topic,
    /,
    *,
    seq: Seqs = (),
    all: All = False,
    yes: Yes = False,
    connection: HubConnection = LOCAL,
) -> None:
    """Delete dead letters permanently."""
    name, seqs = checked_topic(topic), _chosen(seq, all=all)
    chosen = "all dead letters" if seqs is None else f"dead letters {', '.join(map(str, seqs))}"
    confirm(f"delete {chosen} of {name}", yes=yes)

    async def work(me: Client) -> int:
        letters = await _letters_of(me, name, connection)
        return 0 if letters is None else await connection.in_time(me.purge(letters, seqs))

    _count(connection, {"purged": run(connection, work)}, "deleted", seqs)


async def _letters_of(me: Client, name: str, connection: HubConnection) -> str | None:
    """The dead-letter topic of a topic, or the topic itself if it is one; `None` without one."""
    from signalhub.core.streams.streams import LETTERS_SUFFIX, MAILBOX_LETTERS

    if name.endswith(LETTERS_SUFFIX) or name == MAILBOX_LETTERS:
        # If it does not exist, the request for it fails.
        return name
    origin = await _definition(me, name, connection)
    letters = (origin and origin.dead_letter) or name + LETTERS_SUFFIX
    if await _definition(me, letters, connection) is not None:
        return letters
    if origin is None:
        raise Failure(
            Exit.FAILED,
            Code.UNKNOWN_TOPIC,
            f"unknown topic {name}",
            "list topics with `signalhub topic ls`",
        )
    # Any topic may be chosen for dead letters; its first message shows whether this one was.
    first = [one async for one in each(me.replay(name, origin.first or 1, limit=1), connection)]
    return name if first and first[0].dead_letter is not None else None


async def _definition(me: Client, name: str, connection: HubConnection) -> client.Topic | None:
    try:
        return await connection.in_time(me.topic(name))
    except Refused as refused:
        if refused.code != Code.UNKNOWN_TOPIC:
            raise
        return None


def letter_facts(message: Message) -> dict[str, Any]:
    """A dead letter as one JSON object; `origin` says where it came from."""
    from msgspec import to_builtins

    letter: dict[str, Any] = to_builtins(message.dead_letter)
    members = message_facts(message)
    for name in ("to", "timestamp", "attempt", "redelivered"):
        members.pop(name, None)
    origin = {
        name: letter.pop(name) for name in ("topic", "stream", "subscription", "epoch", "seq")
    }
    given = {name: value for name, value in origin.items() if value is not None}
    return members | letter | {"origin": given}


def _row(message: Message) -> dict[str, Any]:
    letter = message.dead_letter
    assert letter is not None
    stream, subscription = letter.topic or letter.stream or "", letter.subscription
    reader = f" for {shown(subscription)}" if subscription else ""
    return {
        "seq": message.delivery.seq if message.delivery else 0,
        "died": shown_time(letter.last_failure),
        "origin": f"{shown(stream)} {letter.seq}{reader}",
        "attempts": letter.attempts,
        "reason": letter.reason or "",
        "type": message.type,
        "payload": message.payload,
    }


def _chosen(seqs: tuple[int, ...], *, all: bool) -> list[int] | None:
    """`None` means all."""
    if all and seqs:
        raise usage("--seq and --all exclude each other", "give one of them")
    if not all and not seqs:
        raise usage("no dead letters chosen", "give --seq, once or more, or --all")
    return None if all else sorted(set(seqs))


def _count(
    connection: HubConnection, facts: dict[str, int], action: str, seqs: list[int] | None
) -> None:
    (count,) = facts.values()
    connection.output.fact(facts, f"{counted(count, 'dead letter')} {action}")
    missing = 0 if seqs is None else len(seqs) - count
    if missing > 0:
        verb = "holds" if missing == 1 else "hold"
        raise Failure(
            Exit.FAILED,
            "unknown_dead_letter",
            f"{missing} of the given positions {verb} no dead letter",
            "list them with `signalhub dlq ls`",
        )
