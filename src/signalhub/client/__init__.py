"""The Python client: connect to a hub, send, ask, publish, listen."""

from signalhub.client.backoff import Reconnect
from signalhub.client.client import Client, Subscription, connect
from signalhub.client.message import (
    Actor,
    ActorPage,
    BroadcastResult,
    Found,
    ListedActor,
    Message,
    QueueStats,
    Receipt,
    RefreshedToken,
    Registration,
)

__all__ = [
    "Actor",
    "ActorPage",
    "BroadcastResult",
    "Client",
    "Found",
    "ListedActor",
    "Message",
    "QueueStats",
    "Receipt",
    "Reconnect",
    "RefreshedToken",
    "Registration",
    "Subscription",
    "connect",
]
