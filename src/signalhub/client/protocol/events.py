"""What happens to a client, as values: given to a listener, and logged.

Programs that show the state of a connection use a listener. The log is for people; its sentences
may change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

import msgspec

from signalhub.wire.errors import ClientError, Refused

log = logging.getLogger("signalhub.client")


class ClientEvent(msgspec.Struct, frozen=True):
    """Something that happened; its members are logged with its sentence."""

    SENTENCE: ClassVar[str] = ""
    LEVEL: ClassVar[int] = logging.INFO


class Connected(ClientEvent, frozen=True):
    """Connected, registered and subscribed, or in the room; for the first time or again."""

    SENTENCE = "Connected"

    url: str
    session: str = ""


class ConnectionLost(ClientEvent, frozen=True):
    """The connection is lost; the client reconnects if it may."""

    SENTENCE = "The connection is lost"

    url: str
    reason: str


class ReconnectFailed(ClientEvent, frozen=True):
    """An attempt to reconnect failed; the next one follows."""

    SENTENCE = "Reconnecting failed"

    url: str
    reason: str


class Disconnected(ClientEvent, frozen=True):
    """The program has closed the client."""

    SENTENCE = "Disconnected"
    LEVEL = logging.DEBUG

    url: str


class WaitingForHub(ClientEvent, frozen=True):
    """The hub refused a request for now; it is repeated after the wait."""

    SENTENCE = "Waiting for the hub"

    reason: str
    wait_s: float


class MessageRefused(ClientEvent, frozen=True):
    """The hub refused a message after its sender had returned, as with tells."""

    SENTENCE = "The hub refused a message"
    LEVEL = logging.WARNING

    code: str
    subject: str = ""
    detail: str = ""
    resolution: str = ""


class DeliveryHeldUp(ClientEvent, frozen=True):
    """A subscription, or a mailbox (without a topic), gets nothing more: the log is damaged."""

    SENTENCE = "The hub cannot deliver more: its log is damaged"
    LEVEL = logging.WARNING

    code: str
    seq: int  # Where it waits; everything before it is delivered.
    topic: str = ""
    subscription: str = ""
    detail: str = ""
    resolution: str = ""


class MessagesDeleted(ClientEvent, frozen=True):
    """Messages of a room were deleted before they could be read; both ends are included."""

    SENTENCE = "Messages were deleted before they could be read"
    LEVEL = logging.WARNING

    first: int
    last: int


class PositionsSkipped(ClientEvent, frozen=True):
    """The hub has lost entries of its log, so a room skips positions; both ends are included."""

    SENTENCE = "The hub has lost entries of its log: messages may be missing"
    LEVEL = logging.WARNING

    first: int
    last: int


class RoomRewound(ClientEvent, frozen=True):
    """The room ends before what was read; reading starts from its beginning."""

    SENTENCE = "The room ends before what was read"
    LEVEL = logging.WARNING

    last: int


def waiting(error: ClientError, wait_s: float) -> WaitingForHub:
    """The event for a request that is repeated after a refusal."""
    return WaitingForHub(error.message if isinstance(error, Refused) else str(error), wait_s)


Listener = Callable[[ClientEvent], None]


class Reports:
    """Logs the events of a client and gives them to its listener.

    A failure to reconnect that repeats the one before is logged for debugging only.
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener
        self._failure: ClientEvent | None = None

    def __call__(self, event: ClientEvent) -> None:
        level = event.LEVEL
        if isinstance(event, ReconnectFailed):
            level = logging.DEBUG if event == self._failure else level
            self._failure = event
        elif isinstance(event, Connected):
            self._failure = None
        if log.isEnabledFor(level):
            log.log(level, event.SENTENCE, extra=msgspec.structs.asdict(event))
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:
            # It belongs to the caller and must not end the connection.
            log.exception("A listener failed")
