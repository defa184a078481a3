"""The Python client: connect to a hub, send, ask, publish, listen, consume, join rooms."""

from signalhub.client.answers import (
    Actor,
    ActorPage,
    BroadcastResult,
    ConsumerInfo,
    Copied,
    Erased,
    Found,
    ListedActor,
    Lost,
    Original,
    OriginalPosition,
    Place,
    Placements,
    Published,
    QueueStats,
    Receipt,
    RefreshedToken,
    Registration,
    Republished,
    Retention,
    Sought,
    SubscriptionInfo,
    SubscriptionPage,
    Topic,
    TopicPage,
    Unplaced,
)
from signalhub.client.arguments import new_message_id
from signalhub.client.client import Client, Subscription, connect
from signalhub.client.consumers import Consumer
from signalhub.client.delivery import DeadLetter, Delivery, Settled
from signalhub.client.message import Message
from signalhub.client.replay import Replay
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage, Sent, Stored
from signalhub.client.rooms.inbox import InboxAccess, InboxMessages
from signalhub.client.rooms.room import Hub, Joining, Room, hub
from signalhub.client.stream_requests import Definition, Serving
from signalhub.pacing import Reconnect

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
