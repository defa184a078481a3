"""How commands about rooms and inboxes reach the hub, and what its failures mean.

They need no address, and a token only if the hub requires one and no inbox id is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, TypeVar

from cyclopts import Parameter

from signalhub.cli.terminal.arguments import checked_url_by
from signalhub.cli.terminal.connection import (
    MAYBE_TLS,
    HubConnection,
    Timeout,
    TokenFile,
    Url,
    failure_of,
    is_behind_proxy,
    may_want_tls,
    quiet_client_log,
)
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import AsJson
from signalhub.cli.terminal.sentences import clause
from signalhub.operate.session import DEFAULT_URL, TIMEOUT_S
from signalhub.wire.errors import (
    ClientError,
    GaveUp,
    OutcomeUnknown,
    Refused,
    RoomCode,
    Unavailable,
)

if TYPE_CHECKING:
    from signalhub.client import Hub, Missed, Room
    from signalhub.client.lifecycle import Opening
    from signalhub.client.protocol.events import ClientEvent

T = TypeVar("T")
Work = Callable[["Hub"], Awaitable[T]]

# JSON numbers above are not exact, so the hub has no such positions.
SEQ_MAX = 2**53 - 1


@Parameter(name="*", group="Connection")
@dataclass(frozen=True, kw_only=True)
class RoomConnection:
    """The options of every command about rooms and inboxes."""

    url: Url = DEFAULT_URL
    token_file: TokenFile = None
    timeout_s: Timeout = TIMEOUT_S
    as_json: AsJson = False

    @property
    def plain(self) -> HubConnection:
        """The same as a `HubConnection`."""
        return HubConnection(
            url=self.url,
            token_file=self.token_file,
            timeout_s=self.timeout_s,
            as_json=self.as_json,
        )


LOCAL_ROOMS = RoomConnection()


def run(connection: RoomConnection, work: Work[T], *, is_following: bool = False) -> T:
    """Do the work with the hub's rooms and inboxes, and report what happens meanwhile."""
    import asyncio

    from signalhub.client import hub
    from signalhub.client.transport.http import Origin

    url = checked_url_by(Origin.of, connection.url)
    token = connection.plain.token()
    notes = RoomNotes(connection, is_following=is_following)

    async def talk() -> T:
        async with hub(url, token=token, listener=notes) as rooms:
            return await work(rooms)

    with quiet_client_log():
        try:
            return asyncio.run(talk())
        except ClientError as error:
            raise room_failure_of(error) from error


async def joined(connection: RoomConnection, opening: Opening[Room]) -> Room:
    """Join a room in time; if that fails, nothing was sent."""
    try:
        return await connection.plain.in_time(opening)
    except OutcomeUnknown as error:
        raise Unavailable(f"{connection.url}: {error}") from None


LOST = "skipped: the hub has lost entries of its log"


def tell_missing(connection: RoomConnection, missed: Missed, of_one: str, of_many: str) -> None:
    """Report missing positions on standard error."""
    first, last = missed
    sentence = f"seq {first} {of_one}" if first == last else f"seq {first} to {last} {of_many}"
    connection.plain.remark({"lost_from": first, "lost_to": last}, f"note: {sentence}")


def room_failure_of(error: ClientError) -> Failure:
    """The failure for an error about rooms."""
    match error:
        case Refused(code=RoomCode.RATE_LIMIT_EXCEEDED):
            again = _again_in(error)
            return Failure(Exit.FAILED, error.code, error.message, again, facts=error.details)
        case Refused(code=RoomCode.FORBIDDEN) if "the limit is" in error.message:
            return Failure(Exit.FAILED, error.code, error.message, _QUOTA)
        case Refused(code=RoomCode.UNAUTHORIZED | RoomCode.FORBIDDEN):
            return Failure(Exit.FAILED, error.code, error.message, _PERMITTED)
        case Refused() if "blind" in error.message:
            return Failure(Exit.FAILED, error.code, error.message, _ONE_ID)
        case Refused() if "X-Inbox-ID" in error.message:
            # The hub's message names headers; commands have options instead.
            return Failure(Exit.FAILED, error.code, error.message, _INBOX_HEADER)
        case Refused() if error.code in _BY_CODE:
            return Failure(Exit.FAILED, error.code, error.message, _BY_CODE[error.code])
        case GaveUp():
            return Failure(Exit.FAILED, error.code, str(error), "restart the command")
        case Unavailable(is_answered=True):
            return Failure(Exit.FAILED, error.code, str(error), _NOT_NOW)
        case Unavailable() if may_want_tls(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), MAYBE_TLS)
        case Unavailable() if "answered HTTP" in str(error) and not is_behind_proxy(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _NO_ROOMS)
        case Unavailable() if "no answer" in str(error):
            return Failure(Exit.UNREACHABLE, error.code, str(error), _SLOW)
        case _:
            return failure_of(error)


def _again_in(error: Refused) -> str:
    """When to try again, rounded up."""
    wait_s = ceil(error.details.get("retryAfterMs", 0) / 1000)
    return f"nothing was done; try again in {max(1, wait_s)} s"


_NOT_NOW = "nothing was done; see the hub's /health, and try again later"
_NO_ROOMS = "correct --url or SIGNALHUB_URL, or turn on rooms.enabled in the hub"
_QUOTA = "use a room that exists, or ask the operator to raise the limit"
_WHICH_INBOX = "--inbox, SIGNALHUB_INBOX or --key"
_INBOX_HEADER = f"X-Inbox-ID is set by {_WHICH_INBOX}"
_PERMITTED = f"pass a token with --token-file or SIGNALHUB_TOKEN, or use {_WHICH_INBOX}"
_ONE_ID = f"give the inbox id from {_WHICH_INBOX} as ROOM"
_SLOW = "wait longer with --timeout; if that does not help, see the hub's log"
_BY_CODE: Mapping[str, str] = {
    RoomCode.BAD_REQUEST: "correct the command; see --help",
    RoomCode.TOO_LARGE: "send less at once; the limit is rooms.ciphertext_bytes_max, 64 KiB by"
    " default",
    RoomCode.BAD_ENVELOPE: "correct the message; see --help",
}


class RoomNotes:
    """Reports on standard error what happens to the connection.

    The first wait for the hub always; lost connections, each reason once, and messages that cannot
    be read only if the command follows a room.
    """

    def __init__(self, connection: RoomConnection, *, is_following: bool) -> None:
        self._connection = connection
        self._is_following = is_following
        self._has_waited = False
        self._reason = ""

    def __call__(self, event: ClientEvent) -> None:
        from signalhub.client.protocol.events import WaitingForHub

        if isinstance(event, WaitingForHub):
            self._wait(event.reason, max(1, ceil(event.wait_s)))
        elif self._is_following:
            self._follow(event)

    def _wait(self, reason: str, wait_s: int) -> None:
        if not self._has_waited:
            self._has_waited = True
            sentence = f"note: {clause(reason)}; continuing in {wait_s} s"
            self._connection.plain.remark({"waiting_s": wait_s, "reason": reason}, sentence)

    def _follow(self, event: ClientEvent) -> None:
        from signalhub.client.protocol.events import (
            Connected,
            ConnectionLost,
            MessagesDeleted,
            PositionsSkipped,
            ReconnectFailed,
            RoomRewound,
        )

        match event:
            case Connected() if self._reason:
                self._reason = ""
                self._connection.plain.remark({"connection": "back"}, "reconnected")
            case ConnectionLost(reason=reason):
                self._lost("connection lost", reason)
            case ReconnectFailed(reason=reason):
                self._lost("not connected", reason)
            case MessagesDeleted(first=first, last=last):
                self._gone(first, last, "cannot be read: deleted, or in another inbox")
            case PositionsSkipped(first=first, last=last):
                self._gone(first, last, LOST)
            case RoomRewound(last=last):
                ends = f"the room ends at {last}; reading from the beginning"
                self._connection.plain.remark({"room_ends_at": last}, f"note: {ends}")

    def _lost(self, what: str, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            sentence = f"{what}: {clause(reason)}; retrying until Ctrl-C"
            self._connection.plain.remark({"connection": "lost", "reason": reason}, sentence)

    def _gone(self, first: int, last: int, reason: str) -> None:
        from signalhub.client import Missed

        tell_missing(self._connection, Missed(first, last), reason, reason)
