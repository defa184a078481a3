"""How commands reach the hub: their common options, one session, and what its failures mean.

One-shot commands register nothing, so they take no address from anybody, and do not reconnect;
commands that follow register theirs, and come back within seconds after a loss.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Unpack
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.arguments import URL_VARIABLE, checked_message_id, checked_url
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import AsJson, Output
from signalhub.operate.session import (
    DEFAULT_URL,
    TIMEOUT_S,
    HubAccess,
    HubOptions,
    Registering,
    brief_reconnect,
)
from signalhub.wire.errors import (
    ClientError,
    Code,
    GaveUp,
    OutcomeUnknown,
    Refused,
    Unavailable,
    UnknownActor,
    Unsubscribed,
)

if TYPE_CHECKING:
    from signalhub.client import Client

T = TypeVar("T")
Work = Callable[["Client"], Awaitable[T]]

Url = Annotated[str, Parameter(env_var=URL_VARIABLE, help="Where the hub is.")]
Timeout = Annotated[
    float,
    Parameter(name="--timeout", validator=Number(gt=0), help="Seconds to wait for an answer."),
]

CLIENT_LOG = "signalhub.client"
_SOCKET_SCHEMES = {"http": "ws", "https": "wss"}


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class HubConnection:
    """The options of every command that talks to a hub."""

    url: Url = DEFAULT_URL
    token_file: Annotated[
        Path | None,
        Parameter(help="File with a token; else SIGNALHUB_TOKEN is used."),
    ] = None
    timeout_s: Timeout = TIMEOUT_S
    as_json: AsJson = False

    @property
    def output(self) -> Output:
        return Output(self.as_json)

    def token(self) -> str | None:
        """The token to present, if there is one."""
        if self.token_file is None:
            return os.environ.get("SIGNALHUB_TOKEN", "").strip() or None
        resolution = "name another with --token-file, or leave it out and set SIGNALHUB_TOKEN"
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise usage(f"the token file {self.token_file} {problem}", resolution) from None
        except UnicodeDecodeError:
            raise usage(f"the token file {self.token_file} is no text", resolution) from None
        if not token:
            raise usage(f"the token file {self.token_file} is empty", resolution)
        return token

    def checked_id(self, message_id: str | None, sender: str | None) -> str | None:
        """An id of the user's own; the hub knows it again only from the same sender."""
        if message_id is not None and sender is None and self.token() is None:
            raise usage("an id counts only together with its sender", "name one with --from")
        return checked_message_id(message_id)

    def hub_options(self) -> HubOptions:
        """The hub, as operations take it."""
        return {
            "url": socket_url(self.url),
            "token": self.token(),
            "timeout_s": self.timeout_s,
        }

    async def in_time(self, step: Awaitable[T]) -> T:
        """Wait for one answer of the hub, as long as the user allows."""
        return await HubAccess(timeout_s=self.timeout_s).in_time(step)

    def remark(self, facts: Mapping[str, Any], sentence: str) -> None:
        """Say beside the results what programs should know as well."""
        Output(self.as_json, sys.stderr).fact(facts, sentence)

    def note(self, sentence: str) -> None:
        """Tell people, not programs, what is going on."""
        if not self.as_json:
            print(sentence, file=sys.stderr, flush=True)


LOCAL = HubConnection()


Sender = Annotated[
    str | None,
    Parameter(
        name="--from",
        group="Connection",
        help="Address to speak as.",
    ),
]


def run(connection: HubConnection, work: Work[T], *, sender: str | None = None) -> T:
    """Connect, do the work and disconnect; the work uses `in_time` for each of its steps."""
    import asyncio

    access = HubAccess(**connection.hub_options())
    with RefusalLog() as refusals:

        async def talk() -> T:
            async with access.session() as me:
                refusals.sender = sender or me.address
                return await work(me)

        try:
            result = asyncio.run(talk())
        except ClientError as error:
            raise failure_of(error) from error
    refusals.check()
    return result


def stay(
    connection: HubConnection,
    work: Work[None],
    *,
    address: str | None = None,
    **options: Unpack[Registering],
) -> None:
    """Connect and reconnect until the work is done or interrupted.

    An address is registered and taken from its owner; without one nothing is registered.
    """
    import asyncio

    access = HubAccess(**connection.hub_options())

    async def talk() -> None:
        async with access.session(address, reconnect=brief_reconnect(), **options) as me:
            await work(me)

    with losses_shown(connection):
        try:
            asyncio.run(talk())
        except GaveUp as error:
            raise dismissal_of(error) from error
        except ClientError as error:
            raise failure_of(error) from error


@contextmanager
def losses_shown(connection: HubConnection) -> Iterator[None]:
    """Tell people on standard error when the connection is lost and when it is back."""
    log = logging.getLogger(CLIENT_LOG)
    handler = logging.NullHandler() if connection.as_json else LossNotes(connection)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def socket_url(url: str) -> str:
    """The hub's WebSocket, also if the hub is named by its other URL, as rooms may name it."""
    try:
        parts = urlsplit(url)
        scheme = _SOCKET_SCHEMES[parts.scheme]
        path = parts.path if parts.path.strip("/") else "/ws"
        return checked_url(parts._replace(scheme=scheme, path=path).geturl())
    except (KeyError, ValueError, Failure):
        # Whatever is wrong is said about what was written, and where.
        return checked_url(url)


def failure_of(error: ClientError) -> Failure:
    """What a user is told when the client fails."""
    from signalhub.client.transport.link import NotOpened

    match error:
        case UnknownActor(retryable=True):
            return Failure(Exit.FAILED, error.code, error.message, _LEFT)
        case UnknownActor():
            return Failure(Exit.FAILED, error.code, error.message, _WHO_IS_THERE)
        case Refused(code=Code.UNAUTHORIZED):
            # What a token does not permit is named; otherwise the token itself is no good.
            action = error.details.get("action")
            resolution = {None: _MINT, "speak as": _SPEAK_AS}.get(action, _PERMISSION)
            return Failure(Exit.FAILED, error.code, error.message, resolution)
        case Refused() if error.code in _BY_CODE:
            return Failure(Exit.FAILED, error.code, error.message, _BY_CODE[error.code])
        case Refused(retryable=True):
            return Failure(Exit.FAILED, error.code, error.message, _AGAIN)
        case Refused():
            return Failure(Exit.FAILED, error.code, error.message, error.resolution or _HUB_LOG)
        case NotOpened(is_temporary=True):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _LATER)
        case NotOpened() if _is_answered(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NOT_THERE)
        case Unavailable():
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NO_HUB)
        case OutcomeUnknown():
            return Failure(Exit.UNKNOWN, error.code, str(error), _UNKNOWN)
        case Unsubscribed(code="taken_over"):
            return Failure(Exit.FAILED, error.code, str(error), _TAKEN_OVER)
        case Unsubscribed():
            return Failure(Exit.FAILED, error.code, str(error), _ENDED)
        case _:
            return Failure(Exit.FAILED, error.code, str(error), _HUB_LOG)


def dismissal_of(error: GaveUp) -> Failure:
    """What a user is told when the hub ends a command that would have stayed."""
    reasons = (reason for reason in _DISMISSALS if reason in str(error))
    resolution = _DISMISSALS.get(next(reasons, ""), "start the command again")
    return Failure(Exit.FAILED, error.code, str(error), resolution)


def _is_answered(error: Unavailable) -> bool:
    """Did something answer that is no hub, or not there?"""
    return any(words in str(error) for words in ("answered HTTP", "does not speak WebSocket"))


_WHO_IS_THERE = "see with `signalhub ls` who is there"
_LEFT = "it left just now and may have seen the message: look before you repeat it"
_MINT = "make a token with `signalhub token mint`, and give it with --token-file or SIGNALHUB_TOKEN"
_PERMISSION = "use a token that allows it, with --token-file or SIGNALHUB_TOKEN"
_SPEAK_AS = "leave --from out, or use a token whose register permission covers it"
_AGAIN = "it did not happen; try again in a few seconds"
_TAKEN_OVER = "choose another --consumer, or end the program that took this one"
_ENDED = "see with `signalhub sub ls` and `signalhub topic ls` what is left"
_HUB_LOG = "look into the hub's log"
_NO_HUB = "start one with `signalhub serve`, or name another with --url"
_NOT_THERE = "something else answers there: correct --url or SIGNALHUB_URL; a hub's path is /ws"
_LATER = "the hub takes no connection now; nothing was sent, so repeat the command later"
_UNKNOWN = "it may have happened: look before you repeat it, or wait longer with --timeout"
# The hub's own advice names messages of the protocol; here it names commands.
_BY_CODE: Mapping[str, str] = {
    Code.UNKNOWN_TOPIC: "see with `signalhub topic ls` which there are; `topic create` makes one",
    Code.TOPIC_CONFLICT: "see it with `signalhub topic info`, change it with `signalhub topic set`",
    Code.UNKNOWN_SUBSCRIPTION: "see with `signalhub sub ls` which there are",
    Code.SUBSCRIPTION_BUSY: "end that consumer, take over from it with --consumer and its name, or"
    " choose another --as",
    Code.SUBSCRIPTION_CONFLICT: "give its own --type, or choose another name with --as",
    Code.STORAGE_FULL: "it did not happen; the hub's operator has to make room on its disk",
}
_DISMISSALS = {
    "duplicate_connection": "choose another address, or end the program that took this one",
    "unauthorized": "make a new token with `signalhub token mint`, and start the command again",
}


class RefusalLog(logging.Handler):
    """Tells have no answer, so the client reports refused ones only in its log."""

    def __enter__(self) -> RefusalLog:
        self.sender = ""
        self._failures: list[Failure] = []
        logging.getLogger(CLIENT_LOG).addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger(CLIENT_LOG).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        facts = vars(record)
        code = facts.get("code")
        if code is None:
            return
        message = f"the hub refused a message from {self.sender}: {facts.get('detail') or code}"
        by_code = _PERMISSION if code == Code.UNAUTHORIZED else _HUB_LOG
        resolution = facts.get("resolution") or by_code
        self._failures.append(Failure(Exit.FAILED, str(code), message, resolution))

    def check(self) -> None:
        """Fail if the hub said no meanwhile."""
        for failure in self._failures:
            raise failure


class LossNotes(logging.Handler):
    """Shows how the connection is lost and found again, each reason once."""

    _SENTENCES: ClassVar = {
        "The connection is lost": "The connection is lost: {}; reconnecting",
        "Reconnecting failed": "Not connected yet: {}; trying again until Ctrl-C",
        "Connected": "Connected again",
    }

    def __init__(self, connection: HubConnection) -> None:
        super().__init__()
        self._connection = connection
        self._reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        reason = getattr(record, "reason", "")
        # An error ends the command, which then says it itself.
        if reason != self._reason and record.levelno < logging.ERROR:
            sentence = self._SENTENCES.get(record.msg)
            if sentence is not None:
                self._connection.note(sentence.format(reason))
            self._reason = reason
