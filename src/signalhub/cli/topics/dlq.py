"""`signalhub dlq`: show, redrive and purge dead letters.

Dead letters are in a topic of their own. Commands accept either that one or the topic the messages
came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.messages.messages import each, message_facts
from signalhub.cli.terminal.arguments import checked_topic, decoded
from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.failures import Exit, Failure, Yes, confirm, usage
from signalhub.cli.terminal.output import OutputColumn, counted, shown
from signalhub.cli.terminal.quantities import moment, shown_time
from signalhub.wire.errors import Code, Refused

if TYPE_CHECKING:
    from signalhub import client
    from signalhub.client import (
        Client,
        LetterChoice,
        LetterCount,
        LetterEdit,
        LettersPreview,
        Message,
        Redriving,
    )

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

Where = Annotated[
    tuple[str, ...],
    Parameter(
        name="--where",
        negative=(),
        show_default=False,
        help="Only dead letters with NAME=VALUE: reason, subscription, stream, type, or from and"
        " to, the times between which they died; repeatable.",
    ),
]
Through = Annotated[
    int | None,
    Parameter(
        validator=Number(gte=1),
        help="Nothing beyond this position; the last one by default.",
    ),
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
    topic: Topic,
    /,
    *,
    seq: Seqs = (),
    all: All = False,
    where: Where = (),
    through: Through = None,
    edit: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Replace parts of a dead letter given with --seq: SEQ=JSON, an object with data,"
            " type, key or headers; repeatable.",
        ),
    ] = (),
    dry_run: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Only show what would be redriven."),
    ] = False,
    connection: HubConnection = LOCAL,
) -> None:
    """Put dead letters back where they came from, for redelivery."""
    name, seqs = checked_topic(topic), _chosen(seq, where, all=all)
    choice = cast("Redriving", _choice(where, through))
    if edit:
        choice["edits"] = _edits(edit, seqs)
    if dry_run:
        _preview(name, seqs, choice, connection)
        return

    async def work(me: Client) -> LetterCount | None:
        letters = await _letters_of(me, name, connection)
        if letters is None:
            return None
        return await connection.in_time(me.redrive(letters, seqs, **choice))

    done = run(connection, work)
    _count(connection, "redriven", "redriven", done, seqs, is_narrowed=bool(where))


def purge(
    topic: Topic,
    /,
    *,
    seq: Seqs = (),
    all: All = False,
    where: Where = (),
    through: Through = None,
    yes: Yes = False,
    connection: HubConnection = LOCAL,
) -> None:
    """Delete dead letters permanently."""
    name, seqs = checked_topic(topic), _chosen(seq, where, all=all)
    choice = _choice(where, through)
    chosen = "all dead letters" if seqs is None else f"dead letters {', '.join(map(str, seqs))}"
    chosen += "".join(f" with {one}" for one in where)
    confirm(f"delete {chosen} of {name}", yes=yes)

    async def work(me: Client) -> LetterCount | None:
        letters = await _letters_of(me, name, connection)
        if letters is None:
            return None
        return await connection.in_time(me.purge(letters, seqs, **choice))

    done = run(connection, work)
    _count(connection, "purged", "deleted", done, seqs, is_narrowed=bool(where))


async def _letters_of(me: Client, name: str, connection: HubConnection) -> str | None:
    """The dead-letter topic of a topic, or the topic itself if it is one; `None` without one."""
    from signalhub.core.streams.streams import LETTERS_SUFFIX, MAILBOX_LETTERS

    if name.endswith(LETTERS_SUFFIX) or name == MAILBOX_LETTERS:
        # If it does not exist, the request for it fails.
        return name
    try:
        origin = await _definition(me, name, connection)
    except Refused as refused:
        # Operators may read and redrive letters without being subscribers.
        if refused.code != Code.UNAUTHORIZED:
            raise
        return name + LETTERS_SUFFIX
    letters = (origin and origin.dead_letter) or name + LETTERS_SUFFIX
    if await _definition(me, letters, connection) is not None:
        return letters
    if origin is None:
        raise Failure(
            Exit.FAILED,
            Code.UNKNOWN_TOPIC,
            f"There is no durable topic {name!r}.",
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


def _chosen(seqs: tuple[int, ...], where: tuple[str, ...], *, all: bool) -> list[int] | None:
    """`None` means all."""
    if all and seqs:
        raise usage("--seq and --all exclude each other", "give one of them")
    if not all and not seqs and not where:
        raise usage("no dead letters chosen", "give --seq, once or more, --where or --all")
    return sorted(set(seqs)) or None


_TIMES = {"from": "died_from", "to": "died_to"}
_WHERE = ("reason", "subscription", "stream", "type", *_TIMES)


def _choice(where: tuple[str, ...], through: int | None) -> LetterChoice:
    chosen: dict[str, Any] = {} if through is None else {"through": through}
    for one in where:
        name, sign, value = one.partition("=")
        if not sign or name not in _WHERE:
            raise usage(
                f"invalid --where {one!r}",
                f"write NAME=VALUE with one of {', '.join(_WHERE)}",
            )
        if (member := _TIMES.get(name, name)) in chosen:
            raise usage(f"--where {name} is given twice", "give it once")
        chosen[member] = moment(value) if name in _TIMES else value
    return cast("LetterChoice", chosen)


_EDITABLE = {"data", "type", "key", "headers"}


def _edits(edits: tuple[str, ...], seqs: list[int] | None) -> dict[int, LetterEdit]:
    found: dict[int, LetterEdit] = {}
    for one in edits:
        number, sign, text = one.partition("=")
        if not sign or not number.isascii() or not number.isdigit():
            raise usage(f"invalid --edit {one!r}", 'write it like 3=\'{"data": {"n": 1}}\'')
        seq, edit = int(number), decoded(text, as_text=False)
        if seq not in (seqs or ()):
            raise usage(f"--edit of {seq}, which is not chosen", f"add --seq {seq}")
        if not isinstance(edit, dict) or not edit.keys() <= _EDITABLE:
            raise usage(
                f"invalid --edit of {seq}", "give an object with data, type, key or headers"
            )
        found[seq] = cast("LetterEdit", edit)
    return found


_REASONS = (OutputColumn("count", style="bold"), OutputColumn("reason", style="red"))


def _preview(
    name: str, seqs: list[int] | None, choice: Redriving, connection: HubConnection
) -> None:
    """What a redrive would do, and how to do exactly that."""

    async def work(me: Client) -> LettersPreview | None:
        letters = await _letters_of(me, name, connection)
        if letters is None:
            return None
        return await connection.in_time(me.preview_redrive(letters, seqs, **choice))

    from msgspec import to_builtins

    from signalhub.client import LettersPreview as Preview

    found = run(connection, work) or Preview()
    output = connection.output
    if output.as_json:
        output.sheet(to_builtins(found))
        return
    stay = f", {found.skipped} would stay" if found.skipped else ""
    counts = counted(found.count, "dead letter")
    output.fact({}, f"{counts} up to {found.through} would be redriven{stay}")
    rows = [{"count": one.count, "reason": one.reason} for one in found.by_reason or ()]
    output.table(_REASONS, rows)
    if found.count:
        connection.note(f"to redrive these only, whatever arrives: --through {found.through}")


_STAY = "their origin is gone or closed to you, or the edit is not possible"


def _count(
    connection: HubConnection,
    member: str,
    action: str,
    done: LetterCount | None,
    seqs: list[int] | None,
    *,
    is_narrowed: bool,
) -> None:
    """Tell what was done; fail if letters that were named are still there, or never were.

    Positions that --where leaves out are not missing.
    """
    count, skipped = (0, 0) if done is None else (int(done), done.skipped)
    facts = {member: count} | ({"skipped": skipped} if skipped else {})
    connection.output.fact(facts, f"{counted(count, 'dead letter')} {action}")
    verb = "stays" if skipped == 1 else "stay"
    stay = f"{skipped} {verb}: {_STAY}"
    if seqs is None:
        if skipped:
            connection.note(f"note: {stay}")
        return
    missing = 0 if is_narrowed else len(seqs) - count - skipped
    if missing > 0:
        verb = "holds" if missing == 1 else "hold"
        absent = f"{missing} of the given positions {verb} no dead letter"
        raise Failure(
            Exit.FAILED,
            "unknown_dead_letter",
            f"{absent}; {stay}" if skipped else absent,
            "list them with `signalhub dlq ls`",
        )
    if skipped:
        advice = "see them with `signalhub dlq show`"
        raise Failure(Exit.FAILED, "dead_letters_stay", stay, advice)
