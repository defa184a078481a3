"""Effects of the client's protocol, which the runner performs, and the time it is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from signalhub.client.message import Message
from signalhub.client.protocol.events import ClientEvent
from signalhub.clock import Clock
from signalhub.wire.errors import ClientError


class Instant(NamedTuple):
    """One moment on both clocks: `wall_ms` stamps messages, `mono_s` measures intervals."""

    wall_ms: int
    mono_s: float

    @classmethod
    def of(cls, clock: Clock) -> Instant:
        return cls(clock.now_ms(), clock.mono_s())


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """Write this frame to the link."""

    frame: bytes


class Answered(msgspec.Struct, frozen=True):
    """A request is done; for tells there is no payload."""

    id: str
    payload: Any
    attempts: int
    messages: tuple[Message, ...] = ()  # The messages of a replay.


class Failed(msgspec.Struct, frozen=True):
    """A request has failed."""

    id: str
    error: ClientError


class Arrived(msgspec.Struct, frozen=True):
    """A message for the application."""

    message: Message


class Replied(msgspec.Struct, frozen=True):
    """A request to another actor has a reply; nothing follows the last one."""

    id: str
    message: Message
    is_last: bool


class Concluded(msgspec.Struct, frozen=True):
    """A request to many has ended after all its replies."""

    id: str


class Dismissed(msgspec.Struct, frozen=True):
    """A message that the program does not get: a late reply, or the repeat of a request."""

    message: Message


class ConsumerEnded(msgspec.Struct, frozen=True):
    """A durable subscription has ended for this client."""

    key: tuple[str, str]  # The topic and subscription.
    error: ClientError


class Ready(msgspec.Struct, frozen=True):
    """Connected, registered and subscribed: any request can be sent."""

    session_id: str


class Drop(msgspec.Struct, frozen=True):
    """Cut the link and try another one."""

    reason: str


class Stop(msgspec.Struct, frozen=True):
    """Stop for good; never reconnect."""

    error: ClientError


class Reported(msgspec.Struct, frozen=True):
    """An event for the log and the listener."""

    event: ClientEvent


class Warned(msgspec.Struct, frozen=True):
    """A warning for the log."""

    sentence: str
    facts: dict[str, Any]


Effect = (
    SendFrame
    | Answered
    | Failed
    | Arrived
    | Replied
    | Concluded
    | Dismissed
    | ConsumerEnded
    | Ready
    | Drop
    | Stop
    | Reported
    | Warned
)
