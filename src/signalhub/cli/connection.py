"""How commands reach the hub: their common options, one session, and what its failures mean.

One-shot commands register nothing, so they take no address from anybody, and do not reconnect;
commands that follow register theirs, and come back within seconds after a loss.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import checked_url
from signalhub.cli.failures import Exit, Failure, usage
from signalhub.cli.output import Output
from signalhub.errors import (
    ClientError,
    Code,
    GaveUp,
    OutcomeUnknown,
    Refused,
    Unavailable,
    UnknownActor,
)

if TYPE_CHECKING:
    from signalhub.client import Client, Reconnect

T = TypeVar("T")
Work = Callable[["Client"], Awaitable[T]]

DEFAULT_URL = "ws://127.0.0.1:8787/ws"
RECONNECT_JITTER_S = 0.5
RECONNECT_CAP_S = 5.0

_CLIENT_LOG = "signalhub.client"


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class Connection:
    """The options of every command that talks to a hub."""

    url: Annotated[str, Parameter(env_var="SIGNALHUB_URL", help="Where the hub is.")] = DEFAULT_URL
    token_file: Annotated[
        Path | None,
        Parameter(help="File with a token; else SIGNALHUB_TOKEN is used."),
    ] = None
    timeout_s: Annotated[
        float,
        Parameter(
            name="--timeout",
            validator=Number(gt=0),
            help="Seconds to wait for an answer.",
        ),
    ] = 5.0
    as_json: Annotated[
        bool,
        Parameter(
            name="--json",
            negative=(),
            show_default=False,
            help="Print JSON lines, errors too.",
        ),
    ] = False

    @property
    def output(self) -> Output:
        return Output(self.as_json)

    def token(self) -> str | None:
        """The token to present, if there is one."""
        if self.token_file is None:
            return os.environ.get("SIGNALHUB_TOKEN", "").strip() or None
        try:
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"the token file {self.token_file} cannot be read: {error}") from None

    async def in_time(self, step: Awaitable[T]) -> T:
        """Wait for one answer of the hub, as long as the user allows."""
        import asyncio

        try:
            async with asyncio.timeout(self.timeout_s):
                return await step
        except TimeoutError:
            raise OutcomeUnknown(f"no answer within {self.timeout_s:g} s") from None

    def remark(self, facts: Mapping[str, Any], sentence: str) -> None:
        """Say beside the results what programs should know as well."""
        Output(self.as_json, sys.stderr).fact(facts, sentence)

    def note(self, sentence: str) -> None:
        """Tell people, not programs, what is going on."""
        if not self.as_json:
            print(sentence, file=sys.stderr, flush=True)


LOCAL = Connection()

Sender = Annotated[
    str | None,
    Parameter(
        name="--from",
        group="Connection",
        help="Address to speak as.",
    ),
]


def run(connection: Connection, work: Work[T]) -> T:
    """Connect, do the work, and leave; the work uses `in_time` for each of its steps."""
    import asyncio

    with _Refusals() as refusals:
        try:
            result = asyncio.run(_talk(connection, work, register=False))
        except ClientError as error:
            raise failure_of(error) from error
    refusals.check()
    return result


def stay(
    connection: Connection,
    work: Work[None],
    *,
    address: str | None = None,
    capabilities: Sequence[str] = (),
) -> None:
    """Connect and stay, through losses, until the work is done or interrupted.

    An address is registered and taken from whoever has it; without one nobody is disturbed.
    """
    import asyncio

    from signalhub.client import Reconnect

    reconnect = Reconnect(first_jitter_s=RECONNECT_JITTER_S, cap_s=RECONNECT_CAP_S)
    log = logging.getLogger(_CLIENT_LOG)
    # Losses are shown to people; programs see the messages.
    handler = logging.NullHandler() if connection.as_json else _Notes(connection)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        asyncio.run(
            _talk(
                connection,
                work,
                address,
                capabilities=capabilities,
                register=address is not None,
                reconnect=reconnect,
            )
        )
    except GaveUp as error:
        # It never gives up trying to reconnect: this is the hub's last word.
        raise Failure(Exit.FAILED, error.code, str(error)) from error
    except ClientError as error:
        raise failure_of(error) from error
    finally:
        log.removeHandler(handler)


async def _talk(
    connection: Connection,
    work: Work[T],
    address: str | None = None,
    *,
    capabilities: Sequence[str] = (),
    register: bool = True,
    reconnect: Reconnect | None = None,
) -> T:
    from signalhub.client import connect

    token = connection.token()
    connecting = connect(
        checked_url(connection.url),
        address or _own_address(token),
        capabilities=capabilities,
        register=register,
        token=token,
        reconnect=reconnect,
    )
    try:
        me = await connection.in_time(connecting)
    except OutcomeUnknown as error:
        # Before the work itself nothing has happened yet.
        raise Unavailable(f"{connection.url}: {error}") from None
    async with me:
        return await work(me)


def _own_address(token: str | None) -> str:
    """A token's actor is the one address it surely may use; without one, any unused will do."""
    from signalhub.cli.token import actor_of

    return (token and actor_of(token)) or f"@(cli/{secrets.token_hex(4)})"


def failure_of(error: ClientError) -> Failure:
    """What a user is told when the client fails."""
    from signalhub.client.link import NotOpened

    match error:
        case UnknownActor():
            return Failure(Exit.FAILED, error.code, error.message, _WHO_IS_THERE)
        case Refused(code=Code.UNAUTHORIZED):
            return Failure(Exit.FAILED, error.code, error.message, _TOKEN)
        case Refused():
            return Failure(Exit.FAILED, error.code, error.message, error.resolution)
        case NotOpened(is_temporary=True):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _LATER)
        case Unavailable():
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NO_HUB)
        case OutcomeUnknown():
            return Failure(Exit.UNKNOWN, error.code, str(error), _UNKNOWN)
        case _:
            return Failure(Exit.FAILED, error.code, str(error))


_WHO_IS_THERE = "see with `signalhub ls` who is there"
_TOKEN = "use a token that allows it, with --token-file or SIGNALHUB_TOKEN"  # noqa: S105
_NO_HUB = "start one with `signalhub serve`, or name another with --url"
_LATER = "the hub takes no connection now; nothing was sent, so repeat the command later"
_UNKNOWN = "it may have happened: look before you repeat it, or wait longer with --timeout"


class _Refusals(logging.Handler):
    """Tells have no answer, so the client reports refused ones only in its log."""

    def __enter__(self) -> _Refusals:
        self._codes: list[str] = []
        logging.getLogger(_CLIENT_LOG).addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger(_CLIENT_LOG).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        code = getattr(record, "code", None)
        if code is not None:
            self._codes.append(str(code))

    def check(self) -> None:
        """Fail if the hub said no meanwhile."""
        for code in self._codes:
            resolution = _TOKEN if code == Code.UNAUTHORIZED else "look into the hub's log"
            raise Failure(Exit.FAILED, code, f"the hub refused the message: {code}", resolution)


class _Notes(logging.Handler):
    """Shows how the connection is lost and found again, each reason once."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        reason = getattr(record, "reason", "")
        # An error ends the command, which then says it itself.
        if reason != self._reason and record.levelno < logging.ERROR:
            sentence = record.getMessage()
            self._connection.note(f"{sentence}: {reason}" if reason else sentence)
            self._reason = reason
