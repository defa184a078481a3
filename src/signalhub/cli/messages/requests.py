"""`signalhub request` and `answer`: requests that wait for their reply."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.messages.messages import Count, For, take_each
from signalhub.cli.terminal.arguments import (
    Address,
    AsText,
    Data,
    MessageId,
    Type,
    address,
    checked_type,
    data,
    optional_address,
)
from signalhub.cli.terminal.connection import LOCAL, HubConnection, Sender, run, stay
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import shown

if TYPE_CHECKING:
    from signalhub.cli.messages.programs import ProgramResult
    from signalhub.client import Client, Message


def request(
    to: Address,
    payload: Data = "null",
    /,
    *,
    type: Type = "text",
    as_text: AsText = False,
    message_id: MessageId = None,
    sender: Sender = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Send a request to an actor and print its reply.

    The reply comes to the address of --from. By default that is the token's own, which is taken
    over from a service that uses it, or without a token a random one.
    """
    target, kind, value = address(to), checked_type(type), data(payload, as_text=as_text)
    own = connection.checked_id(message_id, sender)
    reply_address = optional_address(sender) or connection.own_address()

    async def work(me: Client) -> Message:
        return await me.request(target, kind, value, timeout_s=connection.timeout_s, message_id=own)

    reply = run(connection, work, address=reply_address)
    facts = {
        "from": reply.sender,
        "type": reply.type,
        "id": reply.in_reply_to,
        "payload": reply.payload,
    }
    connection.output.fact(facts, shown(reply.payload))


def answer(
    name: Address,
    /,
    *command: Annotated[
        str,
        Parameter(
            name="COMMAND",
            help="The command and its arguments, after --.",
            allow_leading_hyphen=True,
        ),
    ],
    type: Type = "text",
    at_once: Annotated[
        int, Parameter(validator=Number(gte=1, lte=64), help="Commands that run at once.")
    ] = 4,
    limit_s: Annotated[
        float,
        Parameter(name="--limit", validator=Number(gt=0), help="Seconds a command may take."),
    ] = 30.0,
    durable: Annotated[
        bool | None,
        Parameter(negative="--no-durable", help="Keep a mailbox for the address, or delete it."),
    ] = None,
    count: Count = None,
    for_s: For = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Answer requests with what a command prints, until Ctrl-C.

    The command runs once per request, without a shell. Its standard input is the data of the
    request, and what it prints is the reply: as JSON if it parses as JSON, else as text. An exit
    code other than 0 is a failure, with the text on its standard error.
    """
    own, kind = address(name), checked_type(type)
    if not command:
        raise usage("COMMAND is missing", "write it last, after --, such as: -- date")
    if shutil.which(command[0]) is None:
        raise usage(f"cannot run {command[0]}: no such command", "check its name and PATH")

    async def work(me: Client) -> None:
        import asyncio

        from signalhub.cli.messages.programs import run_program

        done: asyncio.Queue[tuple[Message, ProgramResult]] = asyncio.Queue()

        async def serve(message: Message) -> Any:
            result = await run_program(command, _text(message.payload), limit_s=limit_s)
            done.put_nowait((message, result))
            return _reply(result, limit_s)

        async def each() -> AsyncIterator[tuple[Message, ProgramResult]]:
            while True:
                yield await done.get()

        async def print_one(one: tuple[Message, ProgramResult], _is_last: bool) -> None:
            message, result = one
            if result.ended_by is None:
                end = f"exit {result.exit}"
            else:
                end = f"killed: too much {result.ended_by}"
            facts = {
                "from": message.sender,
                "type": message.type,
                "id": message.original_id,
                "exit": result.exit,
                "endedBy": result.ended_by,
            }
            connection.output.line(
                facts, [(shown(message.sender), "cyan"), (shown(message.type), "yellow"), (end, "")]
            )

        me.answers(kind, serve, at_once=at_once)
        connection.note(f"answering as {own}; press Ctrl-C to stop")
        await take_each(each(), print_one, count=count, for_s=for_s)
        # The last reply may still be on its way.
        await me.ping()

    with _ended_by_sigterm():
        stay(connection, work, address=own, durable=durable, acknowledge=bool(durable))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the commands that run, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _text(payload: Any) -> str:
    """What the command reads: text as it is, anything else as JSON."""
    return payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()


def _reply(result: ProgramResult, limit_s: float) -> Any:
    """The value for a result, or the failure."""
    from signalhub.cli.messages.programs import OUTPUT_BYTES_MAX
    from signalhub.wire.errors import RequestFailed

    match result.ended_by:
        case "time":
            raise RequestFailed(f"the command took more than {limit_s:g} s", code="too_slow")
        case "output":
            text = f"the command wrote more than {OUTPUT_BYTES_MAX} bytes"
            raise RequestFailed(text, code="too_long")
    if result.exit:
        text = result.errors.strip() or "the command said nothing on standard error"
        raise RequestFailed(text, code=f"exit_{result.exit}")
    text = result.output.removesuffix("\n")
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
