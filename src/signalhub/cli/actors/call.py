"""`signalhub actors call`: call an actor and wait for its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from signalhub.cli.actors.hosts import hosts_at, name_of, reach
from signalhub.cli.actors.options import CALL_DEFAULTS, ActorName, CallOptions, checked_actor
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.wire.errors import Code

if TYPE_CHECKING:
    from signalhub.actors import CallError
    from signalhub.actors.api.operation import Operation
    from signalhub.actors.host.caller import ActorHub
    from signalhub.cli.terminal.connection import RefusalLog

_RAISED: Final = "call_failed"


def call(
    actor: ActorName,
    method: Annotated[str, Parameter(name="METHOD", help="A method marked with @remote.")],
    /,
    *arguments: Annotated[
        str,
        Parameter(
            name="ARGUMENT",
            allow_leading_hyphen=True,
            help="Arguments, each as JSON: 3, true, '\"blue-mug\"', '{\"n\": 1}'.",
        ),
    ],
    wait: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="If no host serves the actor's kind, wait for one until the timeout.",
        ),
    ] = False,
    connection: CallOptions = CALL_DEFAULTS,
) -> None:
    """Call a method of an actor and print its result as JSON.

    The first call creates the actor. If the method raises, or no host serves
    the actor's kind, the exit code is 1; without an answer in time it is 4.
    """
    from signalhub.actors import CallError

    target = checked_actor(actor)
    values = [_value(number, text) for number, text in enumerate(arguments, 1)]
    wanted = _operation(method, values)

    async def work(hub: ActorHub, refusals: RefusalLog) -> Any:
        found = await connection.in_time(hub.client.place([target]))
        if found.unplaced and found.unplaced[0].code == Code.NO_HOST:
            reason = found.unplaced[0].message.rstrip(".")
            served = await _served(hub, connection)
            if not wait:
                raise _nobody(f"{reason}; {served}", "wait for one with --wait")
            connection.note(f"{reason}; {served}; waiting up to {connection.timeout_s:g} s for one")
        elif found.unplaced:
            refused = found.unplaced[0]
            raise Failure(
                Exit.FAILED,
                refused.code,
                f"{target} was not called: {refused.message}",
                refused.resolution or "see `signalhub limits`, or the permissions of the token",
            )
        try:
            return await hub.ask(target, wanted, timeout=connection.timeout_s)
        except CallError as error:
            failure = await _call_failure(hub, target, method, error)
            if failure.code == _RAISED and not connection.as_json:
                failure.resolution += "; --json shows the traceback"
            raise failure from None

    data = msgspec.json.encode(reach(connection, work), enc_hook=str)
    # A value, not a sentence, so it is not wrapped.
    connection.output.line({"value": msgspec.Raw(data)}, [(_printable(data.decode()), "")])


async def _served(hub: ActorHub, connection: CallOptions) -> str:
    """Which kinds are served."""
    present = (await hosts_at(hub, connection)).present
    kinds = sorted(frozenset().union(*present.values()))
    return f"served kinds: {', '.join(kinds)}" if kinds else "no kind is served now"


def _nobody(message: str, other: str = "", *, facts: Mapping[str, object] | None = None) -> Failure:
    """The failure of a call that reached no host."""
    advice = "nothing was called; start a host for it with `signalhub actors run`"
    return Failure(
        Exit.FAILED,
        Code.NO_HOST,
        message,
        f"{advice}, or {other}" if other else advice,
        facts=facts,
    )


def _value(number: int, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        pass
    if text.startswith("--"):
        raise usage(f"unknown option {text}", "see `signalhub actors call --help`")
    quoted = msgspec.json.encode(text).decode().replace("'", "'\\''")
    raise usage(
        f"argument {number} is not JSON: {text}",
        f"quote strings twice, for JSON and for the shell: '{quoted}'",
    )


def _operation(method: str, values: list[Any]) -> Operation:
    from signalhub.actors import PayloadError, op
    from signalhub.actors.api.operation import encode_operation

    try:
        wanted = op(method, *values)
        encode_operation(wanted)
        return wanted
    except (PayloadError, TypeError, ValueError) as error:
        raise usage(str(error), "correct the method or its arguments") from None


def _printable(text: str) -> str:
    """JSON without control characters."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


async def _call_failure(hub: ActorHub, target: str, method: str, error: CallError) -> Failure:
    from signalhub.actors import CallTimeout, CallUndeliverable

    call_id = f"{hub.client.address}#{error.call_id}"
    facts = {"name": error.name, "actor": target, "method": method, "call": call_id}
    match error:
        case CallUndeliverable():
            return _nobody(error.message, facts=facts)
        case CallTimeout():
            away = await _host_away(hub, target)
            look = f"`signalhub actors calls --id '{call_id}'`"
            reason = f"; its host {away} is not connected" if away else ""
            resolution = (
                "start that host with `signalhub actors run`; the call may have reached it before"
                f" it disconnected: check {look} then, and call again only if the call is unknown"
                if away
                else f"it may have been executed, or still be: see {look}, or wait longer with"
                " --timeout"
            )
            return Failure(
                Exit.UNKNOWN, "call_timeout", f"{error.message}{reason}", resolution, facts=facts
            )
        case _ if error.name == "Unreadable":
            return Failure(
                Exit.FAILED,
                "unreadable",
                f"{target}.{method} was executed, but {error.message}",
                "return plain values from methods that are called by name",
                facts=facts,
            )
        case _:
            return Failure(
                Exit.FAILED,
                _RAISED,
                f"{target}.{method} raised {error.name}: {error.message}",
                "correct the call or the actor",
                facts={
                    **facts,
                    "text": error.message,
                    "attrs": msgspec.to_builtins(error.attrs, enc_hook=str, str_keys=True),
                    "traceback": error.traceback_text,
                },
            )


async def _host_away(hub: ActorHub, target: str) -> str | None:
    """The host of the actor, if it is not connected."""
    found = await hub.client.place([target])
    for place in found.places:
        if not len(await hub.client.discover(place.host)):
            return name_of(place.host)
    return None
