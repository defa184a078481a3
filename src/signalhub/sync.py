"""Signal Hub for scripts and notebooks: the client and rooms without asyncio."""

from __future__ import annotations

from signalhub.client.sync.client import SyncClient, connect
from signalhub.client.sync.message import SyncMessage
from signalhub.client.sync.rooms import SyncHub, SyncInboxAccess, SyncInboxMessages, SyncRoom, hub
from signalhub.client.sync.streams import SyncConsumer, SyncReplay, SyncSubscription

__all__ = [
    "SyncClient",
    "SyncConsumer",
    "SyncHub",
    "SyncInboxAccess",
    "SyncInboxMessages",
    "SyncMessage",
    "SyncReplay",
    "SyncRoom",
    "SyncSubscription",
    "connect",
    "hub",
]
