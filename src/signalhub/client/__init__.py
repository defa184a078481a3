"""The Python client: connect to a hub, send, ask, publish, listen, consume, join rooms."""

from signalhub.client.backoff import Reconnect
from signalhub.client.client import Client, Subscription, connect
from signalhub.client.consumer import Consumer
from signalhub.client.delivery import DeadLetter, Delivery, Settled
from signalhub.client.erasures import Erased
from signalhub.client.hosting import Place, Placements, Unplaced
from signalhub.client.inbox_access import InboxAccess, InboxMessages
from signalhub.client.message import (
    Actor,
    ActorPage,
    BroadcastResult,
    Found,
    ListedActor,
    Message,
    Published,
    QueueStats,
    Receipt,
    RefreshedToken,
    Registration,
)
from signalhub.client.originals import Copied, Original, OriginalPosition, Republished
from signalhub.client.replay import Replay
from signalhub.client.room import Room
from signalhub.client.room_arguments import new_message_id
from signalhub.client.room_message import InboxPage, Missed, RoomMessage, Sent, Stored
from signalhub.client.rooms import Hub, Joining, hub
from signalhub.client.streams import (
    ConsumerInfo,
    Lost,
    Retention,
    Sought,
    SubscriptionInfo,
    SubscriptionPage,
    Topic,
    TopicPage,
)
from signalhub.client.terms import Definition, Serving

__all__ = [
    "Actor",
    "ActorPage",
    "BroadcastResult",
    "Client",
    "Consumer",
    "ConsumerInfo",
    "Copied",
    "DeadLetter",
    "Definition",
    "Delivery",
    "Erased",
    "Found",
    "Hub",
    "InboxAccess",
    "InboxMessages",
    "InboxPage",
    "Joining",
    "ListedActor",
    "Lost",
    "Message",
    "Missed",
    "Original",
    "OriginalPosition",
    "Place",
    "Placements",
    "Published",
    "QueueStats",
    "Receipt",
    "Reconnect",
    "RefreshedToken",
    "Registration",
    "Replay",
    "Republished",
    "Retention",
    "Room",
    "RoomMessage",
    "Sent",
    "Serving",
    "Settled",
    "Sought",
    "Stored",
    "Subscription",
    "SubscriptionInfo",
    "SubscriptionPage",
    "Topic",
    "TopicPage",
    "Unplaced",
    "connect",
    "hub",
    "new_message_id",
]
