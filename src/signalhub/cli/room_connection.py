"""How the commands about rooms and inboxes reach the hub, and what its failures mean there.

They need no token and no address: whoever knows the ids may use them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.arguments import URL_VARIABLE
from signalhub.cli.connection import (
    DEFAULT_URL,
    RECONNECT_CAP_S,
    RECONNECT_JITTER_S,
    Connection,
    failure_of,
)
from signalhub.cli.failures import Exit, Failure, usage
from signalhub.errors import (
    ClientError,
    GaveUp,
    OutcomeUnknown,
    Refused,
    RoomCode,
    Unavailable,
)

if TYPE_CHECKING:
    from signalhub.client import Hub, Reconnect, Room
    from signalhub.client.opening import Opening

T = TypeVar("T")
Work = Callable[["Hub"], Awaitable[T]]

_CLIENT_LOG = "signalhub.client"


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class RoomConnection:
    """The options of every command about rooms and inboxes."""

    url: Annotated[str, Parameter(env_var=URL_VARIABLE, help="Where the hub is.")] = DEFAULT_URL
    timeout_s: Annotated[
        float,
        Parameter(name="--timeout", validator=Number(gt=0), help="Seconds to wait for an answer."),
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
    def plain(self) -> Connection:
        """The same for those who need no more than this."""
        return Connection(url=self.url, timeout_s=self.timeout_s, as_json=self.as_json)


NEARBY = RoomConnection()


def run(connection: RoomConnection, work: Work[T]) -> T:
    """Do the work with the hub's rooms and inboxes, and leave."""
    import asyncio

    from signalhub.client import hub

    async def talk() -> T:
        async with hub(_checked_url(connection.url)) as rooms:
            return await work(rooms)

    # What the client logs the command says itself, better.
    silence = logging.NullHandler()
    log = logging.getLogger(_CLIENT_LOG)
    log.addHandler(silence)
    try:
        return asyncio.run(talk())
    except ClientError as error:
        raise room_failure_of(error) from error
    finally:
        log.removeHandler(silence)


async def joined(connection: RoomConnection, opening: Opening[Room]) -> Room:
    """Join a room in time; before that nothing has happened."""
    try:
        return await connection.plain.in_time(opening)
    except OutcomeUnknown as error:
        raise Unavailable(f"{connection.url}: {error}") from None


def comes_back() -> Reconnect:
    """How a command that stays comes back to the hub: within seconds."""
    from signalhub.client import Reconnect

    return Reconnect(first_jitter_s=RECONNECT_JITTER_S, cap_s=RECONNECT_CAP_S)


@contextmanager
def losses_shown(connection: RoomConnection) -> Iterator[None]:
    """Tell people how the connection is lost and found again."""
    log = logging.getLogger(_CLIENT_LOG)
    handler = _Losses(connection.plain)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def room_failure_of(error: ClientError) -> Failure:
    """What a user is told when something about rooms fails."""
    match error:
        case Refused(code=RoomCode.CONFLICT):
            # The hub's own words are about headers.
            return Failure(Exit.FAILED, error.code, _CONFLICT, _FIRST_INBOX)
        case Refused() if error.code in _BY_CODE:
            return Failure(Exit.FAILED, error.code, error.message, _BY_CODE[error.code])
        case GaveUp():
            return Failure(Exit.FAILED, error.code, str(error), "start the command again")
        case Unavailable() if "answered HTTP" in str(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NO_ROOMS)
        case _:
            return failure_of(error)


def _checked_url(url: str) -> str:
    from signalhub.client.http import Origin

    origin = URL_VARIABLE if os.environ.get(URL_VARIABLE) == url else "--url"
    try:
        Origin.of(url)
    except ValueError as error:
        complaint, _, _ = str(error).partition(";")
        # What may hold a secret is not repeated.
        is_told = "@" not in url and "?" not in url
        raise usage(
            f"{origin} is {url!r}: {complaint}" if is_told else f"{origin}: {complaint}",
            f"correct {origin}",
        ) from None
    return url


_NO_ROOMS = "correct --url or SIGNALHUB_URL; a hub serves rooms unless rooms.enabled is off"
_WHICH_INBOX = "--inbox, SIGNALHUB_INBOX or --key"
_CONFLICT = "the room is bound to another inbox, or the inbox to another room"
_FIRST_INBOX = f"name the inbox the room was first used with, by {_WHICH_INBOX}"
_BY_CODE: Mapping[str, str] = {
    RoomCode.BAD_REQUEST: f"this hub may want the room's inbox: name it by {_WHICH_INBOX}",
    RoomCode.TOO_LARGE: "send less at once; a hub takes 64 KiB unless rooms.ciphertext_bytes_max"
    " says otherwise",
    RoomCode.BAD_ENVELOPE: "correct the message; see --help",
}


class _Losses(logging.Handler):
    """Shows each reason once."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        reason = getattr(record, "reason", "")
        is_ours = record.name == _CLIENT_LOG and record.levelno < logging.WARNING
        if reason == self._reason or not is_ours:
            return
        self._reason = reason
        if record.msg == "Connected":
            self._connection.note("Connected again")
        elif reason:
            self._connection.note(f"{record.msg}: {reason}; trying again until Ctrl-C")
