"""Signal Hub: messages between actors that can be counted on.

The client is loaded when it is first used, so that parts which need no sockets stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from signalhub.errors import (
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
        Message,
        Published,
        Receipt,
        Reconnect,
        Subscription,
        connect,
    )

__all__ = [
    "Client",
    "ClientError",
    "Consumer",
    "GaveUp",
    "Message",
    "OutcomeUnknown",
    "Published",
    "Receipt",
    "Reconnect",
    "Refused",
    "Reject",
    "SignalHubError",
    "Subscription",
    "Unavailable",
    "UnknownActor",
    "Unsubscribed",
    "connect",
]

# A type checker knows the names from above, and should go on complaining about others.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("signalhub.client"), name)


def __dir__() -> list[str]:
    return __all__
