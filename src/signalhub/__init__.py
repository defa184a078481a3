"""Signal Hub: messages between actors that can be counted on.

The client is loaded when it is first used, so that parts which need no sockets stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from signalhub.wire.errors import (
    ClientError,
    GaveUp,
    OutcomeUnknown,
    Refused,
    Reject,
    SignalHubError,
    Unavailable,
    UnknownActor,
    Unsubscribed,
)

if TYPE_CHECKING:
    from signalhub.client import (
        Client,
        Consumer,
        Hub,
        InboxAccess,
        Message,
        Published,
        Receipt,
        Reconnect,
        Room,
        RoomMessage,
        Subscription,
        connect,
        hub,
        new_message_id,
    )

__all__ = [
    "Client",
    "ClientError",
    "Consumer",
    "GaveUp",
    "Hub",
    "InboxAccess",
    "Message",
    "OutcomeUnknown",
    "Published",
    "Receipt",
    "Reconnect",
    "Refused",
    "Reject",
    "Room",
    "RoomMessage",
    "SignalHubError",
    "Subscription",
    "Unavailable",
    "UnknownActor",
    "Unsubscribed",
    "connect",
    "hub",
    "new_message_id",
]

# A type checker knows the names from above, and should go on complaining about others.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("signalhub.client"), name)


def __dir__() -> list[str]:
    return __all__
