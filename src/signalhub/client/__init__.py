"""The Python client: connect to a hub, send, ask, publish, listen, consume."""

from signalhub.client.backoff import Reconnect
from signalhub.client.client import Client, Subscription, connect
from signalhub.client.consumer import Consumer
from signalhub.client.delivery import DeadLetter, Delivery, Settled
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
from signalhub.client.replay import Replay
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
    "DeadLetter",
    "Definition",
    "Delivery",
    "Found",
    "ListedActor",
    "Lost",
    "Message",
    "Published",
    "QueueStats",
    "Receipt",
    "Reconnect",
    "RefreshedToken",
    "Registration",
    "Replay",
    "Retention",
    "Serving",
    "Settled",
    "Sought",
    "Subscription",
    "SubscriptionInfo",
    "SubscriptionPage",
    "Topic",
    "TopicPage",
    "connect",
]
