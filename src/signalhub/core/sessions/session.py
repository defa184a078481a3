"""One connection as the core sees it: who it is, what it may do, what it owns.

A session is *connecting* until `hub:connect` succeeds, then *connected*, and *closed* once its
socket has closed or the hub has decided to close it. Closed is final.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from signalhub.auth.permissions import EVERYTHING, Allowance
from signalhub.pacing import TokenBucket
from signalhub.wire.envelope import encode

if TYPE_CHECKING:
    from signalhub.auth.tokens import Claims
    from signalhub.core.limits.quotas import Holder
    from signalhub.core.messages.ask import AskReceipt
    from signalhub.core.messages.audience import Subscriber
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.sessions.outbound import Outbound
    from signalhub.core.sessions.registry import Registration
    from signalhub.core.subscriptions.consumers import Consumer
    from signalhub.core.wall_time import WallTime

# A client whose clock is further behind is assumed to have a wrong clock.
CLOCK_BEHIND_MS_MAX = 300_000
# How long a session counts as one that is not read: what it has sent is read shortly after.
_UNHEARD_MS = 5_000


class SessionState(Enum):
    """The state of a session."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class Session:
    """The state of one connection.

    `link` belongs to the shell: its own object for the same socket.
    """

    __slots__ = (
        "__weakref__",
        "allowance",
        "awaited",
        "barrier",
        "bucket",
        "claimed",
        "claimed_json",
        "claims",
        "clock_behind_ms",
        "connected_at_ms",
        "consumers",
        "consuming",
        "counted",
        "has_socket",
        "hello_identity",
        "id",
        "identity",
        "internal_address",
        "last_seen_ms",
        "link",
        "number",
        "outbound",
        "registrations",
        "sent",
        "settles_mail",
        "source",
        "state",
        "subscriptions",
        "unheard_at_ms",
        "unsynced",
        "wall_ahead_ms",
    )

    def __init__(
        self,
        session_id: str,
        link: object,
        bucket: TokenBucket,
        now_ms: int,
        number: int = 0,
        source: str = "",
        *,
        has_socket: bool = True,
    ) -> None:
        self.id = session_id
        # Without one it serves requests that come by HTTP, and is in no list.
        self.has_socket = has_socket
        # Where it gets answers without a registration, and from whom it waits for some.
        self.internal_address: str | None = None
        self.awaited: dict[str, int] | None = None
        # Grows with every session of this process; pages of sessions continue after one.
        self.number = number
        self.link = link
        # Where its client is, without a port; empty if unknown.
        self.source = source
        # Whose quota it counts for once it is connected.
        self.counted: Holder | None = None
        self.bucket = bucket
        self.state = SessionState.CONNECTING
        self.identity: str | None = None
        # The last `from` that it used, and the same as JSON.
        self.claimed: str | None = None
        self.claimed_json = b""
        # Its address before it registered one.
        self.hello_identity: str | None = None
        self.allowance: Allowance = EVERYTHING
        self.claims: Claims | None = None
        self.connected_at_ms = now_ms
        self.last_seen_ms = now_ms
        # When it was last not read because of the disk.
        self.unheard_at_ms = -_UNHEARD_MS
        self.clock_behind_ms = 0
        self.wall_ahead_ms = 0
        self.sent = 0
        # The queue while the socket is blocked; written by the shell, shown by `hub:queue_stats`.
        self.outbound: Outbound | None = None
        self.registrations: dict[str, Registration] = {}
        # It announced the capability `ack`: it acknowledges messages of mailboxes.
        self.settles_mail = False
        # Its asks that are not on disk yet, the latest per recipient.
        self.unsynced: dict[str, AskReceipt] = {}
        # The ask that a fan-out waits for; later messages wait, too.
        self.barrier: AskReceipt | None = None
        # Its consumers of durable subscriptions and mailboxes, by subscription id.
        self.consumers: dict[str, Consumer | PatternConsumer] = {}
        # How many of these are of durable subscriptions.
        self.consuming = 0
        # Most sessions subscribe to nothing, so the table is created on first use.
        self.subscriptions: dict[str, Subscriber] | None = None

    def unheard(self, now_ms: int) -> None:
        """Its frames wait for the disk: call this several times a second.

        Its leases are renewed, and its acks are not late.
        """
        self.last_seen_ms = self.unheard_at_ms = now_ms

    def is_unheard(self, now_ms: int) -> bool:
        """May it have sent something that the shell did not read because of the disk?"""
        return now_ms - self.unheard_at_ms < _UNHEARD_MS

    @property
    def address(self) -> str:
        """The address for the hub's messages that are not replies."""
        return self.identity or f"@(session/{self.id})"

    @property
    def is_over(self) -> bool:
        """Has it ended?"""
        return self.state is SessionState.CLOSED

    def speaks_as(self, sender: str) -> bool:
        """May this session use `sender` as `from`?"""
        return (
            sender == self.identity
            or sender in self.registrations
            or sender == self.internal_address
            or self.allowance.may_speak_as(sender)
        )

    def claim(self, sender: str) -> None:
        """It speaks as `sender` from now on, as most sessions do in all their messages."""
        self.claimed = sender
        self.claimed_json = encode(sender)

    def awaits(self, address: str) -> None:
        """It waits for an answer of this address."""
        if self.awaited is None:
            self.awaited = {}
        self.awaited[address] = self.awaited.get(address, 0) + 1

    def awaits_no_more(self, address: str) -> None:
        """One of these answers has come, or is not waited for any more."""
        if self.awaited is None or address not in self.awaited:
            return
        self.awaited[address] -= 1
        if not self.awaited[address]:
            del self.awaited[address]

    def joined(self, consumer: Consumer | PatternConsumer) -> None:
        """Add a consumer."""
        self.consumers[consumer.id] = consumer
        self.consuming += consumer.is_named

    def left(self, consumer: Consumer | PatternConsumer) -> None:
        """Remove a consumer."""
        if self.consumers.pop(consumer.id, None) is not None:
            self.consuming -= consumer.is_named

    def subscribed(self, subscriber: Subscriber) -> None:
        """Add a subscriber of plain topics."""
        if self.subscriptions is None:
            self.subscriptions = {}
        self.subscriptions[subscriber.address] = subscriber

    def count_topics(self) -> int:
        """The number of plain topics its addresses subscribed to."""
        return sum(len(one.topics) for one in (self.subscriptions or {}).values())

    def count_subscriptions(self) -> int:
        """The number of plain topics and durable subscriptions it gets messages of."""
        return self.count_topics() + self.consuming

    def asked(self, target: str, ask: AskReceipt) -> None:
        """An ask is being written; remember the latest per recipient."""
        self.unsynced.pop(target, None)
        self.unsynced[target] = ask

    def synced(self, ask: AskReceipt) -> None:
        """An ask is on disk or rejected: nothing waits for it any more."""
        if self.unsynced.get(ask.target) is ask:
            del self.unsynced[ask.target]
        if self.barrier is ask:
            self.barrier = None

    def waits_for(self, target: str) -> AskReceipt | None:
        """The pending ask that a message to this recipient must wait for, if any."""
        ask, barrier = self.unsynced.get(target), self.barrier
        if ask is None or (barrier is not None and barrier.order > ask.order):
            return barrier
        return ask

    def fan_waits_for(self, ask: AskReceipt) -> None:
        """A fan-out waits for this ask, and later messages must not overtake it."""
        self.barrier = ask

    def set_clock(self, timestamp: float, now_ms: int, wall: WallTime) -> None:
        """Learn how far the client's clock is behind, to compute expiry correctly."""
        behind = wall.shown(now_ms) - timestamp
        self.clock_behind_ms = int(behind) if 0 < behind <= CLOCK_BEHIND_MS_MAX else 0
        self.wall_ahead_ms = wall.ahead_ms

    def own_ahead_ms(self, wall: WallTime) -> int:
        """How far the hub's own time is ahead of the client's clock."""
        return self.clock_behind_ms - min(wall.ahead_ms, self.wall_ahead_ms)

    def own_time(self, timestamp: float, wall: WallTime) -> float:
        """The hub's own time at a time of the client's clock.

        If the hub's wall clock was set since the hello, the client's clock was set with it or not:
        on the same machine it was. Nothing may expire early, so the later time counts.
        """
        return timestamp + self.clock_behind_ms - min(wall.ahead_ms, self.wall_ahead_ms)
