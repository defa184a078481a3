"""How commands reach the hub: their common options, one session, and what its failures mean.

One-shot commands register no address and do not reconnect. Commands that follow messages register
theirs and reconnect within seconds.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Unpack
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal import contexts
from signalhub.cli.terminal.arguments import URL_VARIABLE, checked_message_id, checked_url
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import AsJson, Output
from signalhub.cli.terminal.sentences import clause, say
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
    RequestFailed,
    Unavailable,
    UnknownActor,
    Unsubscribed,
)

if TYPE_CHECKING:
    from signalhub.client import Client
    from signalhub.client.protocol.events import ClientEvent

T = TypeVar("T")
Work = Callable[["Client"], Awaitable[T]]

Url = Annotated[str, Parameter(env_var=URL_VARIABLE, help="URL of the hub.")]
TokenFile = Annotated[
    Path | None, Parameter(help="File that contains a token; default: SIGNALHUB_TOKEN.")
]
Timeout = Annotated[
    float,
    Parameter(name="--timeout", validator=Number(gt=0), help="Seconds to wait for an answer."),
]

_CLIENT_LOG = "signalhub.client"
_SOCKET_SCHEMES = {"http": "ws", "https": "wss"}


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class HubConnection:
    """The options of every command that talks to a hub."""

    url: Url = DEFAULT_URL
    token_file: TokenFile = None
    timeout_s: Timeout = TIMEOUT_S
    as_json: AsJson = False

    @property
    def output(self) -> Output:
        return Output(self.as_json)

    def token(self) -> str | None:
        """The token to present, if any."""
        if self.token_file is None:
            return contexts.variable_token()
        resolution = "choose another with --token-file, or set SIGNALHUB_TOKEN instead"
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            problem = f"cannot read the token file {self.token_file}: {error.strerror}"
            raise usage(problem, resolution) from None
        except UnicodeDecodeError:
            raise usage(f"the token file {self.token_file} is not text", resolution) from None
        if not token:
            raise usage(f"the token file {self.token_file} is empty", resolution)
        return token

    def checked_id(self, message_id: str | None, sender: str | None) -> str | None:
        """A message id chosen by the user; the hub recognises it only from the same sender."""
        if message_id is not None and sender is None and self.token() is None:
            raise usage("--id needs a sender", "give one with --from")
        return checked_message_id(message_id)

    def own_address(self) -> str:
        """The address to use if none is given."""
        return HubAccess(**self.hub_options()).own_address()

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
        """Report on standard error what programs should know as well."""
        Output(self.as_json, sys.stderr).fact(facts, sentence)

    def note(self, sentence: str) -> None:
        """Tell people, but not programs, what is happening."""
        if not self.as_json:
            say(sentence)


LOCAL = HubConnection()


Sender = Annotated[
    str | None,
    Parameter(
        name="--from",
        group="Connection",
        help="Address to send as.",
    ),
]


def run(
    connection: HubConnection,
    work: Work[T],
    *,
    sender: str | None = None,
    address: str | None = None,
) -> T:
    """Connect, do the work and disconnect; the work uses `in_time` for each of its steps.

    An address is registered, and taken from its owner; without one nothing is registered.
    """
    import asyncio

    refusals = RefusalLog()
    access = HubAccess(**connection.hub_options(), listener=refusals)
    with quiet_client_log():

        async def talk() -> T:
            async with access.session(address) as me:
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

    access = HubAccess(**connection.hub_options(), listener=LossNotes(connection))

    async def talk() -> None:
        async with access.session(address, reconnect=brief_reconnect(), **options) as me:
            await work(me)

    with quiet_client_log():
        try:
            asyncio.run(talk())
        except GaveUp as error:
            raise dismissal_of(error) from error
        except ClientError as error:
            raise failure_of(error) from error


@contextmanager
def quiet_client_log() -> Iterator[None]:
    """Keep the client's log off standard error while the block runs; the command says it all."""
    log, handler = logging.getLogger(_CLIENT_LOG), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def socket_url(url: str) -> str:
    """The hub's WebSocket URL; rooms may name the hub by its HTTP URL."""
    try:
        parts = urlsplit(url)
        scheme = _SOCKET_SCHEMES[parts.scheme]
        path = parts.path if parts.path.strip("/") else "/ws"
        return checked_url(parts._replace(scheme=scheme, path=path).geturl())
    except (KeyError, ValueError, Failure):
        # Errors are about the URL as the user wrote it.
        return checked_url(url)


def failure_of(error: ClientError) -> Failure:
    """The failure for an error of the client."""
    from signalhub.client.transport.link import NotOpened

    match error:
        case UnknownActor(retryable=True):
            return Failure(Exit.FAILED, error.code, error.message, _LEFT)
        case UnknownActor():
            return Failure(Exit.FAILED, error.code, error.message, _WHO_IS_THERE)
        case Refused(code=Code.UNAUTHORIZED) if "`aud`" in error.message:
            return Failure(Exit.FAILED, error.code, error.message, _AUDIENCE)
        case Refused(code=Code.UNAUTHORIZED) if error.resolution.startswith("Try again"):
            # The key set of the issuer may have a newer key.
            return Failure(Exit.FAILED, error.code, error.message, error.resolution)
        case Refused(code=Code.UNAUTHORIZED):
            # A missing permission is named by `action`; without one the token itself is invalid.
            action = error.details.get("action")
            resolution = {None: _MINT, "speak as": _SPEAK_AS}.get(action, _PERMISSION)
            return Failure(Exit.FAILED, error.code, error.message, resolution)
        case Refused() if error.code in _BY_CODE:
            return Failure(Exit.FAILED, error.code, error.message, _BY_CODE[error.code])
        case Refused(retryable=True) if error.code != Code.LIMIT_EXCEEDED:
            return Failure(Exit.FAILED, error.code, error.message, _AGAIN)
        case Refused():
            return Failure(Exit.FAILED, error.code, error.message, error.resolution or _HUB_LOG)
        case NotOpened(is_temporary=True):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _LATER)
        case Unavailable() if is_behind_proxy(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _PROXY)
        case Unavailable() if may_want_tls(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), MAYBE_TLS)
        case Unavailable() if "does not speak TLS" in str(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NO_TLS)
        case NotOpened() if _is_answered(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NOT_THERE)
        case NotOpened() if "certificate is not trusted" in str(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _TRUST)
        case NotOpened() if "refuses the TLS handshake" in str(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _TLS_NAME)
        case Unavailable():
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NO_HUB)
        case OutcomeUnknown():
            advice = error.resolution or _UNKNOWN
            return Failure(Exit.UNKNOWN, error.code, str(error), advice)
        case RequestFailed():
            return Failure(Exit.FAILED, error.code, error.text, _OTHER_SIDE)
        case Unsubscribed(code="taken_over"):
            return Failure(Exit.FAILED, error.code, str(error), _TAKEN_OVER)
        case Unsubscribed():
            return Failure(Exit.FAILED, error.code, str(error), _ENDED)
        case _:
            return Failure(Exit.FAILED, error.code, str(error), _HUB_LOG)


def dismissal_of(error: GaveUp) -> Failure:
    """The failure of a command that the hub has disconnected for good."""
    reasons = (reason for reason in _DISMISSALS if reason in str(error))
    resolution = _DISMISSALS.get(next(reasons, ""), "restart the command")
    return Failure(Exit.FAILED, error.code, str(error), resolution)


def _is_answered(error: Unavailable) -> bool:
    """Did something other than a hub answer?"""
    return any(words in str(error) for words in ("answered HTTP", "does not speak WebSocket"))


def is_behind_proxy(error: Unavailable) -> bool:
    """Did a proxy answer that has found no hub behind it?"""
    return any(words in str(error) for words in ("answered HTTP 502", "answered HTTP 504"))


def may_want_tls(error: Unavailable) -> bool:
    """Did what may be a port for TLS refuse a connection without it?

    nginx answers in HTTP/1.1, and Go programs such as Caddy in HTTP/1.0.
    """
    text = str(error)
    is_refused = "answered HTTP 400" in text or "http/1.0 400" in text.lower()
    return is_refused and text.startswith(("ws://", "http://"))


_WHO_IS_THERE = "list registered actors with `signalhub ls`"
_LEFT = "it has just disconnected and may have received the message: check before you repeat it"
_MINT = "create a token with `signalhub token mint`; pass it with --token-file or SIGNALHUB_TOKEN"
_AUDIENCE = (
    "create a token for this hub with `signalhub token mint --audience NAME`, one of its"
    " auth.audience; without --audience if it has no names"
)
_PERMISSION = "use a token that permits it, with --token-file or SIGNALHUB_TOKEN"
_SPEAK_AS = "omit --from, or use a token whose register permission covers it"
_AGAIN = "nothing was done; try again in a few seconds"
_TAKEN_OVER = "choose another --consumer, or stop the program that took this one"
_ENDED = "see `signalhub sub ls` and `signalhub topic ls`"
_HUB_LOG = "see the hub's log"
_NO_HUB = "start one with `signalhub serve`, or choose another with --url"
_OTHER_SIDE = "the actor that was asked says so; see its log"
_TRUST = "if it is signed by an authority of yours, name its file in SSL_CERT_FILE"
_NOT_THERE = "this is not a hub: correct --url or SIGNALHUB_URL; the path of a hub is /ws"
MAYBE_TLS = "this is no hub, or its port is for TLS: then begin --url with wss://"
_NO_TLS = "begin --url with ws:// if the hub is on this machine, or use the port of its TLS proxy"
_TLS_NAME = "use the host name of its certificate in --url or SIGNALHUB_URL"
_PROXY = "a proxy is there, but does not reach its hub: start the hub, or correct the proxy"
_LATER = "the hub accepts no connections now; nothing was sent, try again later"
_UNKNOWN = "it may have been done: check before you repeat it, or wait longer with --timeout"
# The hub's advice is about protocol messages; this one is about commands.
_BY_CODE: Mapping[str, str] = {
    Code.UNKNOWN_TOPIC: "list topics with `signalhub topic ls`,"
    " create one with `signalhub topic create`",
    Code.TOPIC_CONFLICT: "see `signalhub topic info`; change it with `signalhub topic set`",
    Code.UNKNOWN_SUBSCRIPTION: "list subscriptions with `signalhub sub ls`",
    Code.SUBSCRIPTION_BUSY: "stop that consumer, take over with --consumer and its name, or choose"
    " another --as",
    Code.SUBSCRIPTION_CONFLICT: "name the pattern if it is a part of one, give the --type it has,"
    " or choose another name",
    Code.STORAGE_FULL: "nothing was done; the hub needs disk space, or a faster disk:"
    " see its /health",
}
_DISMISSALS = {
    "duplicate_connection": "choose another address, or stop the program that took this one",
    "unauthorized": "create a new token with `signalhub token mint`, and restart the command",
}


class RefusalLog:
    """Collects the messages that the hub refused after they were sent."""

    def __init__(self) -> None:
        self.sender = ""
        self._failures: list[Failure] = []

    def __call__(self, event: ClientEvent) -> None:
        from signalhub.client.protocol.events import MessageRefused

        if not isinstance(event, MessageRefused):
            return
        code = event.code
        message = f"the hub refused a message from {self.sender}: {event.detail or code}"
        by_code = _PERMISSION if code == Code.UNAUTHORIZED else _HUB_LOG
        self._failures.append(Failure(Exit.FAILED, code, message, event.resolution or by_code))

    def check(self) -> None:
        """Fail if the hub has refused a message."""
        for failure in self._failures:
            raise failure


class LossNotes:
    """Says on standard error when the connection is lost, each reason once, and back.

    The same goes for a log that keeps the hub from delivering more.
    """

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection
        self._reason = ""

    def __call__(self, event: ClientEvent) -> None:
        from signalhub.client.protocol.events import (
            Connected,
            ConnectionLost,
            DeliveryHeldUp,
            ReconnectFailed,
        )

        match event:
            case DeliveryHeldUp():
                facts: dict[str, Any] = {"held_up_at": event.seq, "reason": event.code}
                if event.topic:
                    facts |= {"topic": event.topic, "subscription": event.subscription}
                advice = f" {event.resolution}" if event.resolution else ""
                self._connection.remark(facts, f"note: {event.detail}{advice}")
            case Connected() if self._reason:
                self._reason = ""
                self._connection.note("reconnected")
            case ConnectionLost(reason=reason) if reason != self._reason:
                self._reason = reason
                self._connection.note(f"connection lost: {clause(reason)}; reconnecting")
            case ReconnectFailed(reason=reason) if reason != self._reason:
                self._reason = reason
                self._connection.note(f"not connected: {clause(reason)}; retrying until Ctrl-C")
