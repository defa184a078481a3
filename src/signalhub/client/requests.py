"""The requests a client sends to a hub, one class for each type.

Arguments are checked when a request is created: an invalid address or name raises `ValueError`.
A payload that is not JSON raises `TypeError` when its frame is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic

import msgspec

from signalhub.client.answers import (
    ActorPage,
    BroadcastResult,
    Found,
    JobPage,
    LimitUsage,
    Published,
    QueueStats,
    Receipt,
    RefreshedToken,
    Registration,
    SessionPage,
    answer_of,
)
from signalhub.client.arguments import (
    checked_address,
    checked_capabilities,
    checked_headers,
    checked_subscription,
    checked_topic,
    checked_type,
    epoch_ms,
)
from signalhub.client.protocol.frame import A, HeldBy, Payload
from signalhub.wire.envelope import TELL


class Connect(Payload[None]):
    """The first message on a new connection; all its members are in its metadata."""

    TYPE = "hub:connect"
    ANSWER = "hub:connected"
    KIND = HeldBy.EXEMPT

    def content(self) -> object:
        return None


class Disconnect(Connect):
    TYPE = "hub:disconnect"
    ANSWER = "hub:disconnect"


class Beat(Payload[None]):
    TYPE = "hub:heartbeat"
    ANSWER = "hub:heartbeat_ack"
    KIND = HeldBy.EXEMPT
    PATTERN = TELL

    timestamp: int


class Register(Payload[Registration]):
    TYPE = "hub:register"
    ANSWER = "hub:registered"

    address: str = msgspec.field(name="actorAddress")
    capabilities: Iterable[str]
    metadata: Mapping[str, Any]
    lease_s: float | None = msgspec.field(name="ttlSeconds", default=None)
    durable: bool | None = None

    def __post_init__(self) -> None:
        checked_address(self.address)
        self.capabilities = checked_capabilities(self.capabilities)
        self.metadata = dict(self.metadata)
        if self.lease_s is not None and self.lease_s <= 0:
            raise ValueError("a lease must be longer than 0 s")


class Unregister(Payload[None]):
    TYPE = "hub:unregister"
    ANSWER = "hub:unregistered"

    address: str = msgspec.field(name="actorAddress")

    def __post_init__(self) -> None:
        checked_address(self.address)


class _Send(Payload[A], Generic[A]):
    TYPE = "hub:send"

    to: str
    type: str
    data: Any

    def __post_init__(self) -> None:
        checked_address(self.to)
        checked_type(self.type)

    def subject(self) -> str:
        return f"{self.type} to {self.to}"

    def target(self) -> str:
        return self.to


class Tell(_Send[None]):
    """A message to an actor, delivered at most once."""

    KIND = HeldBy.TELL
    PATTERN = TELL


class Ask(_Send[Receipt]):
    """A message to an actor that the hub acknowledges."""

    ANSWER = "hub:delivery_ack"
    KIND = HeldBy.TRAFFIC
    NOUN = "an ask"

    fences: dict[str, int] | None = None

    def read(self, answer: Any, attempts: int) -> Receipt:
        return msgspec.structs.replace(answer_of(answer, Receipt), attempts=attempts)


class Publish(Payload[Published]):
    """A message to all subscribers of a topic."""

    TYPE = "hub:publish"
    ANSWER = "hub:published"
    KIND = HeldBy.TRAFFIC
    NOUN = "a publish"

    topic: str
    type: str
    data: Any
    durable: bool = False
    key: str | None = None
    headers: Mapping[str, str] | None = None
    deliver_at: float | datetime | None = None

    def __post_init__(self) -> None:
        checked_topic(self.topic)
        checked_type(self.type)
        if self.headers is not None:
            self.headers = checked_headers(self.headers)
        if self.deliver_at is not None:
            self.deliver_at = epoch_ms(self.deliver_at)

    def subject(self) -> str:
        return f"{self.type} on topic {self.topic}"

    def is_repeatable(self) -> bool:
        # A plain topic stores nothing, so the hub could not recognise a second copy.
        return self.durable

    def read(self, answer: Any, attempts: int) -> Published:
        return msgspec.structs.replace(answer_of(answer, Published), attempts=attempts)


class Broadcast(Payload[BroadcastResult]):
    TYPE = "hub:broadcast"
    ANSWER = "hub:broadcast_ack"
    KIND = HeldBy.TRAFFIC

    type: str
    data: Any
    exclude_self: bool

    def __post_init__(self) -> None:
        checked_type(self.type)

    def subject(self) -> str:
        return f"broadcast of {self.type}"


class Subscribe(Payload[None]):
    TYPE = "hub:subscribe"
    ANSWER = "hub:subscribed"

    topic: str

    def __post_init__(self) -> None:
        checked_subscription(self.topic)


class Unsubscribe(Subscribe):
    TYPE = "hub:unsubscribe"
    ANSWER = "hub:unsubscribed"


class Discover(Payload[Found]):
    TYPE = "hub:discover"
    ANSWER = "hub:discovered"

    pattern: str
    limit: int
    capability: str | None = None
    include_away: bool = False

    def __post_init__(self) -> None:
        if not self.pattern:
            raise ValueError("a pattern must not be empty; `*` matches every actor")


class ListActors(Payload[ActorPage]):
    TYPE = "hub:list_actors"
    ANSWER = "hub:actor_list"

    offset: int
    limit: int


class ListSessions(Payload[SessionPage]):
    TYPE = "hub:list_sessions"
    ANSWER = "hub:session_list"

    pattern: str
    after: int
    limit: int


class CloseSession(Payload[None]):
    TYPE = "hub:close_session"
    ANSWER = "hub:session_closed"

    session_id: str


class ListJobs(Payload[JobPage]):
    TYPE = "hub:list_jobs"
    ANSWER = "hub:job_list"

    limit: int


class ShowQueue(Payload[QueueStats]):
    TYPE = "hub:queue_stats"
    ANSWER = "hub:queue_stats_response"


class ShowMetrics(Payload[dict[str, Any]]):
    TYPE = "hub:metrics"
    ANSWER = "hub:metrics_response"


class ShowLimits(Payload[LimitUsage]):
    TYPE = "hub:limits"
    ANSWER = "hub:limits_response"

    limit: int
    identity: str | None = None


class RefreshToken(Payload[RefreshedToken]):
    TYPE = "hub:refresh_token"
    ANSWER = "hub:token_refreshed"

    token: str
