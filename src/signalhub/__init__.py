"""Signal Hub: reliable messages between actors.

The client is imported on first use, so that other parts do not load its dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from signalhub.wire.errors import (
    ClientError,
    GaveUp,
    NoReply,
    OutcomeUnknown,
    Refused,
    Reject,
    RequestFailed,
    SignalHubError,
    StaleDelivery,
    Unavailable,
    UnknownActor,
    Unsubscribed,
)
from signalhub.wire.release import __version__

if TYPE_CHECKING:
    from signalhub import sync
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
    "NoReply",
    "OutcomeUnknown",
    "Published",
    "Receipt",
    "Reconnect",
    "Refused",
    "Reject",
    "RequestFailed",
    "Room",
    "RoomMessage",
    "SignalHubError",
    "StaleDelivery",
    "Subscription",
    "Unavailable",
    "UnknownActor",
    "Unsubscribed",
    "__version__",
    "connect",
    "hub",
    "new_message_id",
    "sync",
]

# Hidden from type checkers, which know the names from above and should report any others.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "sync":
            return import_module("signalhub.sync")
        return getattr(import_module("signalhub.client"), name)


def __dir__() -> list[str]:
    return __all__
