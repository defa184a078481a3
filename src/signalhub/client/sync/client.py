"""The client without asyncio: the same names, and every method waits.

What the methods do, and what they raise, is said where they come from: `signalhub.Client`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from signalhub.client import stream_requests as streams
from signalhub.client.answers import (
    ActorPage,
    BroadcastResult,
    Erased,
    Found,
    JobPage,
    LetterCount,
    LettersPreview,
    LimitUsage,
    Original,
    Place,
    Placements,
    Published,
    QueueStats,
    Receipt,
    RefreshedToken,
    Registration,
    Republished,
    SessionPage,
    Sought,
    SubscriptionInfo,
    SubscriptionPage,
    Topic,
    TopicPage,
)
from signalhub.client.arguments import Mode, Position
from signalhub.client.arrivals import INBOX_MAX
from signalhub.client.client import RECONNECT, Client
from signalhub.client.client import connect as connecting
from signalhub.client.protocol.events import Listener
from signalhub.client.replies.requester import ANSWERED_AT_ONCE, REQUEST_S
from signalhub.client.rooms.room import Joining
from signalhub.client.sync.background import (
    Background,
    Messages,
    SyncHandler,
    acquire,
    awaited,
    release,
    threaded,
)
from signalhub.client.sync.message import SyncMessage
from signalhub.client.sync.rooms import SyncInboxAccess, SyncRoom
from signalhub.client.sync.streams import SyncConsumer, SyncReplay, SyncSubscription
from signalhub.client.transport.token import Token
from signalhub.pacing import Reconnect
from signalhub.wire.errors import Unavailable

T = TypeVar("T")
H = TypeVar("H", bound=SyncHandler)


def connect(
    url: str,
    address: str,
    *,
    capabilities: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    lease_s: float | None = None,
    register: bool = True,
    durable: bool | None = None,
    acknowledge: bool = False,
    token: Token = None,
    reconnect: Reconnect | None = RECONNECT,
    inbox_max: int = INBOX_MAX,
    encoded_types: Collection[str] = (),
    ssl: SSLContext | None = None,
    listener: Listener | None = None,
) -> SyncClient:
    """Connect to a hub; the arguments are those of `signalhub.connect`.

    Use it as `with signalhub.sync.connect(...) as me:`, or call `me.close()` when done. All clients
    of a process share one thread with an event loop, which ends with the last of them. A listener
    and a token function are called in that thread, and must not wait for a client.
    """
    background = acquire()
    try:
        opening = connecting(
            url,
            address,
            capabilities=capabilities,
            metadata=metadata,
            lease_s=lease_s,
            register=register,
            durable=durable,
            acknowledge=acknowledge,
            token=token,
            reconnect=reconnect,
            inbox_max=inbox_max,
            encoded_types=encoded_types,
            ssl=ssl,
            listener=listener,
        )
        client = background.run(awaited(opening))
    except BaseException:
        release(background)
        raise
    return SyncClient(background, client)


class SyncClient:
    """One actor's connection to a hub, for programs without an event loop.

    Its methods may be called from any thread but that of the loop. Ctrl-C interrupts any of them.
    """

    def __init__(self, background: Background, client: Client) -> None:
        self._background: Background | None = background
        self._client = client
        self.address = client.address

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the hub and all rooms joined through this client. Can be called more than once."""
        background, self._background = self._background, None
        if background is not None:
            try:
                background.run(self._client.close())
            finally:
                release(background)

    @property
    def late_replies(self) -> int:
        """How many replies came after their request had ended, and were dropped."""
        return self._client.late_replies

    def request(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        timeout_s: float = REQUEST_S,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
        message_id: str | None = None,
    ) -> SyncMessage:
        """Send a request to an actor and wait for its reply, whose `payload` is the result."""
        reply = self._run(
            self._client.request(
                to,
                type,
                payload,
                timeout_s=timeout_s,
                metadata=metadata,
                sender=sender,
                message_id=message_id,
            )
        )
        return SyncMessage(reply, self._open.run)

    def request_many(
        self,
        type: str,
        payload: Any = None,
        *,
        topic: str | None = None,
        capability: str | None = None,
        max: int | None = None,
        timeout_s: float = REQUEST_S,
        sender: str | None = None,
    ) -> Iterator[SyncMessage]:
        """Send a request to many actors and iterate over their replies as they arrive."""
        replies = self._client.request_many(
            type,
            payload,
            topic=topic,
            capability=capability,
            max=max,
            timeout_s=timeout_s,
            sender=sender,
        )
        background = self._open
        try:
            yield from Messages(background, replies)
        finally:
            background.run(replies.aclose())

    @overload
    def answers(self, type: str, *, at_once: int = ...) -> Callable[[H], H]: ...
    @overload
    def answers(self, type: str, handler: H, *, at_once: int = ...) -> H: ...
    def answers(
        self, type: str, handler: H | None = None, *, at_once: int = ANSWERED_AT_ONCE
    ) -> H | Callable[[H], H]:
        """Let a function answer requests of this type, in threads; also as a decorator."""

        def attach(function: H) -> H:
            background = self._open
            served = threaded(background, function)
            background.call(lambda: self._client.answers(type, served, at_once=at_once))
            return function

        return attach if handler is None else attach(handler)

    def messages(self) -> Iterator[SyncMessage]:
        """Iterate over the messages that no handler takes."""
        return Messages(self._open, self._client.messages())

    @overload
    def on(self, type: str) -> Callable[[H], H]: ...
    @overload
    def on(self, type: str, handler: H) -> H: ...
    def on(self, type: str, handler: H | None = None) -> H | Callable[[H], H]:
        """Give messages of this exact type to a function, in a thread; also as a decorator."""

        def attach(function: H) -> H:
            background = self._open
            served = threaded(background, function)
            background.call(lambda: self._client.on(type, served))
            return function

        return attach if handler is None else attach(handler)

    def subscribe(self, topic: str, *, sender: str | None = None) -> SyncSubscription:
        """Receive what is published to a topic; `+` matches one level, a final `#` the rest."""
        subscription = self._run(self._client.subscribe(topic, sender=sender))
        return SyncSubscription(self._open, subscription)

    def consume(
        self,
        topic: str,
        subscription: str,
        *,
        mode: Mode = "exclusive",
        start: Position = "earliest",
        handler: SyncHandler | None = None,
        consumer: str | None = None,
        sender: str | None = None,
        **serving: Unpack[streams.Serving],
    ) -> SyncConsumer:
        """Read a durable subscription, which is created if it does not exist."""
        background = self._open
        opening = self._client.consume(
            topic,
            subscription,
            mode=mode,
            start=start,
            handler=None if handler is None else threaded(background, handler),
            consumer=consumer,
            sender=sender,
            **serving,
        )
        return SyncConsumer(background, background.run(awaited(opening)))

    def replay(
        self,
        topic: str,
        from_seq: int = 1,
        to_seq: int | None = None,
        *,
        limit: int | None = None,
    ) -> SyncReplay:
        """Read a range of a durable topic once, without a subscription; both ends included."""
        replay = self._client.replay(topic, from_seq, to_seq, limit=limit)
        return SyncReplay(self._open, replay)

    def room(self, room: str, **joining: Unpack[Joining]) -> SyncRoom:
        """Join a room of the same hub, over a separate socket."""
        background = self._open
        return SyncRoom(background, background.run(awaited(self._client.room(room, **joining))))

    def inbox(self, inbox_id: str) -> SyncInboxAccess:
        """Return an inbox of the same hub."""
        return SyncInboxAccess(self._open, self._client.inbox(inbox_id))

    @property
    def is_connected(self) -> bool:
        """Whether it is connected, registered and subscribed right now."""
        return self._client.is_connected

    @property
    def session_id(self) -> str:
        """The hub's name for the current connection; empty without one."""
        return self._client.session_id

    @property
    def durability(self) -> str | None:
        """Durability of the hub's receipts: `fsync`, `interval` or `os`; `None` without a log."""
        return self._client.durability

    @property
    def dropped(self) -> int:
        """How many messages without a handler were dropped because `messages()` was not read."""
        return self._client.dropped

    def wait_closed(self) -> None:
        """Wait until the client ends; raises `GaveUp` unless it was closed."""
        self._run(self._client.wait_closed())

    def tell(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
    ) -> None:
        """Send a message, at most once; return once it is written to the connection."""
        self._run(
            self._client.tell(to, type, payload, ttl_ms=ttl_ms, metadata=metadata, sender=sender)
        )

    def ask(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        fences: Mapping[str, int] | None = None,
        timeout_s: float = 30.0,
        attempts: int = 3,
    ) -> Receipt:
        """Send a message and wait for the hub's receipt: at least once."""
        return self._run(
            self._client.ask(
                to,
                type,
                payload,
                ttl_ms=ttl_ms,
                metadata=metadata,
                sender=sender,
                message_id=message_id,
                fences=fences,
                timeout_s=timeout_s,
                attempts=attempts,
            )
        )

    def publish(
        self,
        topic: str,
        type: str,
        payload: Any = None,
        *,
        durable: bool = False,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: float | datetime | None = None,
        ttl_ms: float | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        timeout_s: float = 30.0,
        attempts: int = 3,
    ) -> Published:
        """Send a message to all subscribers of a topic."""
        return self._run(
            self._client.publish(
                topic,
                type,
                payload,
                durable=durable,
                key=key,
                headers=headers,
                deliver_at=deliver_at,
                ttl_ms=ttl_ms,
                sender=sender,
                message_id=message_id,
                timeout_s=timeout_s,
                attempts=attempts,
            )
        )

    def broadcast(
        self,
        type: str,
        payload: Any = None,
        *,
        capability: str | None = None,
        exclude_self: bool = False,
        sender: str | None = None,
    ) -> BroadcastResult:
        """Send a message to every registered actor, or to those with a capability."""
        return self._run(
            self._client.broadcast(
                type, payload, capability=capability, exclude_self=exclude_self, sender=sender
            )
        )

    def unsubscribe(self, topic: str, *, sender: str | None = None) -> None:
        """Stop receiving a topic; does nothing if it was not subscribed to."""
        self._run(self._client.unsubscribe(topic, sender=sender))

    def register(
        self,
        address: str,
        *,
        capabilities: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        lease_s: float | None = None,
        durable: bool | None = None,
    ) -> Registration:
        """Register another address, or update one of ours."""
        return self._run(
            self._client.register(
                address,
                capabilities=capabilities,
                metadata=metadata,
                lease_s=lease_s,
                durable=durable,
            )
        )

    def unregister(self, address: str) -> None:
        """Unregister an address, which also ends its subscriptions."""
        self._run(self._client.unregister(address))

    def discover(
        self,
        pattern: str = "*",
        *,
        capability: str | None = None,
        limit: int = 50,
        include_away: bool = False,
    ) -> Found:
        """Find actors by address, such as `demo/*`, at most 100."""
        return self._run(
            self._client.discover(
                pattern, capability=capability, limit=limit, include_away=include_away
            )
        )

    def actors(self, *, offset: int = 0, limit: int = 100) -> ActorPage:
        """Return a page of all registered actors."""
        return self._run(self._client.actors(offset=offset, limit=limit))

    def sessions(self, pattern: str = "*", *, after: int = 0, limit: int = 200) -> SessionPage:
        """Return a page of the hub's sessions, oldest first, for operators (`admin: sessions`)."""
        return self._run(self._client.sessions(pattern, after=after, limit=limit))

    def close_session(self, session_id: str) -> None:
        """Close somebody's session, as an operator (`admin: sessions`)."""
        self._run(self._client.close_session(session_id))

    def queue_stats(self) -> QueueStats:
        """Return what is queued in the hub for this connection."""
        return self._run(self._client.queue_stats())

    def metrics(self) -> dict[str, Any]:
        """Return the hub's counters of the current minute."""
        return self._run(self._client.metrics())

    def jobs(self, *, limit: int = 100) -> JobPage:
        """Return the newest jobs, the last one first, for operators (`admin: view`)."""
        return self._run(self._client.jobs(limit=limit))

    def limits(self, identity: str | None = None, *, top: int = 10) -> LimitUsage:
        """Return the limits of the hub and who uses most, or what one identity uses."""
        return self._run(self._client.limits(identity, top=top))

    def ping(self) -> float:
        """Measure the round trip to the hub in seconds."""
        return self._run(self._client.ping())

    def refresh_token(self, token: str | None = None) -> RefreshedToken:
        """Exchange a valid token for one that expires later, without reconnecting."""
        return self._run(self._client.refresh_token(token))

    def create_topic(self, name: str, **definition: Unpack[streams.Definition]) -> Topic:
        """Create a durable topic; does nothing if it exists with the same definition."""
        return self._run(self._client.create_topic(name, **definition))

    def update_topic(self, name: str, **definition: Unpack[streams.Definition]) -> Topic:
        """Change the definition of a topic immediately; see `create_topic` for the options."""
        return self._run(self._client.update_topic(name, **definition))

    def topic(self, name: str) -> Topic:
        """Return the state of a durable topic."""
        return self._run(self._client.topic(name))

    def topics(self, pattern: str | None = None, *, offset: int = 0, limit: int = 100) -> TopicPage:
        """Return a page of the durable topics, or of those that match, such as `orders*`."""
        return self._run(self._client.topics(pattern, offset=offset, limit=limit))

    def delete_topic(self, name: str) -> None:
        """Delete a durable topic with its messages and subscriptions."""
        self._run(self._client.delete_topic(name))

    def subscription(self, topic: str, name: str) -> SubscriptionInfo:
        """Return the state of a durable subscription."""
        return self._run(self._client.subscription(topic, name))

    def subscriptions(
        self,
        topic: str | None = None,
        *,
        patterns: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> SubscriptionPage:
        """Return a page of the durable subscriptions of a topic, of a pattern, or of all topics."""
        return self._run(
            self._client.subscriptions(topic, patterns=patterns, offset=offset, limit=limit)
        )

    def update_subscription(
        self, topic: str, name: str, **serving: Unpack[streams.Serving]
    ) -> SubscriptionInfo:
        """Change the options of a durable subscription immediately; see `consume`."""
        return self._run(self._client.update_subscription(topic, name, **serving))

    def pause(self, topic: str, name: str) -> SubscriptionInfo:
        """Pause a durable subscription: nothing is delivered until `resume`."""
        return self._run(self._client.pause(topic, name))

    def resume(self, topic: str, name: str) -> SubscriptionInfo:
        """Resume a paused subscription."""
        return self._run(self._client.resume(topic, name))

    def seek(self, topic: str, name: str, to: Position, *, dry_run: bool = False) -> Sought:
        """Move a durable subscription; with `dry_run`, only report the effect."""
        return self._run(self._client.seek(topic, name, to, dry_run=dry_run))

    def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a durable subscription and its position; the topic keeps its messages."""
        self._run(self._client.delete_subscription(topic, name))

    def redrive(
        self, topic: str, seqs: Iterable[int] | None = None, **choice: Unpack[streams.Redriving]
    ) -> LetterCount:
        """Send all dead letters, or the chosen ones, back to their source; return how many."""
        return self._run(self._client.redrive(topic, seqs, **choice))

    def purge(
        self, topic: str, seqs: Iterable[int] | None = None, **choice: Unpack[streams.LetterChoice]
    ) -> LetterCount:
        """Delete all dead letters, or the chosen ones; return how many."""
        return self._run(self._client.purge(topic, seqs, **choice))

    def preview_redrive(
        self, topic: str, seqs: Iterable[int] | None = None, **choice: Unpack[streams.Redriving]
    ) -> LettersPreview:
        """Return what `redrive` would do, and change nothing."""
        return self._run(self._client.preview_redrive(topic, seqs, **choice))

    def republish(
        self,
        job: str,
        originals: Sequence[Original] = (),
        *,
        until: tuple[int, int],
        topic: str | None = None,
        subscription: str | None = None,
        actor: str | None = None,
        ended: bool = False,
    ) -> Republished:
        """Send messages as a replay job, each at most once."""
        return self._run(
            self._client.republish(
                job,
                originals,
                until=until,
                topic=topic,
                subscription=subscription,
                actor=actor,
                ended=ended,
            )
        )

    def erase(
        self, *, actor: str | None = None, inbox: str | None = None, pseudonym: str | None = None
    ) -> Erased:
        """Erase what an actor received and sent, or the content of an inbox, from the hub's log."""
        return self._run(self._client.erase(actor=actor, inbox=inbox, pseudonym=pseudonym))

    def place(
        self,
        actors: Iterable[str],
        *,
        host: str | None = None,
        tokens: Mapping[str, int] | None = None,
    ) -> Placements:
        """Return where durable actors such as `order/17` live; those without a place get one."""
        return self._run(self._client.place(actors, host=host, tokens=tokens))

    def move(self, actor: str, token: int, to: str) -> Place:
        """Move an actor from a host of ours to another host, under the next token."""
        return self._run(self._client.move(actor, token, to))

    def forget_place(self, actor: str) -> Place:
        """Let the hub forget where an actor lives, and return its former place."""
        return self._run(self._client.forget_place(actor))

    @property
    def _open(self) -> Background:
        if self._background is None:
            raise Unavailable(
                "this client was closed by the program; call signalhub.sync.connect again"
            )
        return self._background

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._background is None:
            work.close()
        return self._open.run(work)
