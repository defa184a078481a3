"""The public API of the Python client."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from ssl import SSLContext
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
from signalhub.client.arguments import (
    Mode,
    Position,
    checked_capabilities,
    checked_name,
    checked_pattern,
    checked_topic,
    checked_url,
)
from signalhub.client.arrivals import INBOX_MAX, Arrivals, Handler
from signalhub.client.consumers import Consumer, join
from signalhub.client.lifecycle import Opening
from signalhub.client.message import Message
from signalhub.client.protocol.effects import Instant
from signalhub.client.protocol.events import Listener
from signalhub.client.protocol.frame import FrameWriter, Payload, RequestOptions
from signalhub.client.protocol.protocol import LinkPhase, Protocol
from signalhub.client.protocol.restore import Membership, Seat, SeatKey
from signalhub.client.replay import Replay
from signalhub.client.replies.requester import Requester
from signalhub.client.requests import (
    Ask,
    Beat,
    Broadcast,
    CloseSession,
    Discover,
    ListActors,
    ListJobs,
    ListSessions,
    Publish,
    RefreshToken,
    Register,
    ShowLimits,
    ShowMetrics,
    ShowQueue,
    Subscribe,
    Tell,
    Unregister,
    Unsubscribe,
)
from signalhub.client.rooms.inbox import InboxAccess
from signalhub.client.rooms.room import Hub, Joining, Room
from signalhub.client.rooms.room import hub as rooms_of
from signalhub.client.transport.runner import ClientRunner
from signalhub.client.transport.token import Token, current_token
from signalhub.clock import Ids, SystemClock
from signalhub.pacing import Backoff, Reconnect
from signalhub.wire.errors import GaveUp
from signalhub.wire.names import path_of

A = TypeVar("A")
H = TypeVar("H", bound=Handler)

RECONNECT = Reconnect()


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
) -> Connecting:
    """Connect to a hub and register `address` there, unless `register` is `False`.

    Use it as `async with connect(...) as me:`, or `me = await connect(...)` and `await me.close()`.

    Args:
        url: The hub, such as `ws://127.0.0.1:8787/ws`. It must not contain a token.
        address: Our address, such as `@(demo/alice)`. Registering it takes it from its current
            owner.
        capabilities: Words by which others can find this actor.
        metadata: Any other facts about it; shown by `actors()`.
        lease_s: How long the hub keeps the address without activity; `None` is the hub's default.
            The client renews it automatically.
        register: `False` only sends as `address`: its owner keeps it, and this client cannot be
            found or addressed by it.
        durable: `True` stores asks to the address while we are away, until it is unregistered;
            `False` deletes its mailbox; `None` changes nothing.
        acknowledge: `True` if the program settles messages from mailboxes: with `message.ack()`,
            `nack()` and `term()`, or by how the handler of `on` ends. Otherwise the hub settles
            them as soon as they are written to the socket.
        token: For hubs that require one: a string, or a plain or async function that returns one
            and is called for every connection.
        reconnect: How to reconnect after a lost connection; `None` does not reconnect.
        inbox_max: How many received messages may be queued before the client stops reading.
        encoded_types: Types of messages whose payload is not decoded: it is a `msgspec.Raw`, for
            programs that pass it on, or decode it into their own types.
        ssl: For `wss://` with custom certificates.
        listener: Called with each event of the connection, such as `ConnectionLost`.

    Raises:
        ValueError: The address, the URL or the lease is invalid, or options of a registration are
            given with `register=False`; raised immediately.
        TypeError: The metadata is not JSON; raised immediately.
        Unavailable: The hub cannot be reached; raised when entered or awaited, like the following.
        Refused: The hub refused this client; `code` says why.
    """
    url = checked_url(url)
    frames = FrameWriter(address, Ids())
    registration = Register(
        address, checked_capabilities(capabilities), metadata or {}, lease_s, durable
    )
    if register:
        frames.request(registration, 0)
    elif registration != Register(address, [], {}):
        raise ValueError(
            "capabilities, metadata, a lease and a mailbox are for addresses that are registered"
        )

    async def open_client() -> Client:
        clock = SystemClock()
        membership = Membership(acknowledges=acknowledge)
        if register:
            membership.registered(registration, is_done=False)
        protocol = Protocol(frames, membership, Instant.of(clock), encoded_types)
        backoff = Backoff(reconnect or Reconnect(attempts_max=0), random.random)
        runner = ClientRunner(
            url,
            protocol,
            backoff,
            clock,
            token=token,
            ssl=ssl,
            inbox_max=inbox_max,
            listener=listener,
        )
        await runner.start()
        return Client(address, runner, ssl)

    return Connecting(open_client)


Connecting = Opening["Client"]


class Client(Requester):
    """One actor's connection to a hub, which reconnects automatically.

    Every method can be called while the connection is down: it waits for the next one. Errors:
    `Refused` and `UnknownActor` mean that the hub refused; `Unavailable` and `GaveUp` that the
    request did not happen; `OutcomeUnknown` that it may have happened.
    """

    def __init__(self, address: str, runner: ClientRunner, ssl: SSLContext | None = None) -> None:
        super().__init__(address, runner)
        self._ssl = ssl
        self._rooms: Hub | None = None

    def __repr__(self) -> str:
        return f"<Client {self.address} at {self._runner.url}, {self._protocol.phase.value}>"

    @property
    def is_connected(self) -> bool:
        """Whether it is connected, registered and subscribed right now."""
        return self._runner.is_ready

    @property
    def session_id(self) -> str:
        """The hub's name for the current connection; empty without one."""
        return self._protocol.session_id

    @property
    def durability(self) -> str | None:
        """Durability of the hub's receipts: `fsync`, `interval` or `os`; `None` without a log."""
        return self._protocol.welcome.durability

    @property
    def dropped(self) -> int:
        """How many messages without a handler were dropped because `messages()` was not read."""
        return self._runner.arrivals.dropped

    async def close(self) -> None:
        """Leave the hub and all rooms joined through this client. Can be called more than once."""
        try:
            if self._rooms is not None:
                await self._rooms.close()
        finally:
            await self._runner.close()

    async def wait_closed(self) -> None:
        """Wait until the client ends; raises `GaveUp` unless it was closed."""
        error = await self._runner.wait_stopped()
        if isinstance(error, GaveUp):
            raise GaveUp(str(error))

    async def tell(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
    ) -> None:
        """Send a message, at most once; return once it is written to the connection.

        It waits while there is no connection, the hub asks for a pause, or the hub has not read
        enough of what was sent before.

        Raises:
            Unavailable: It waited for 60 s, or 1000 other requests already wait for a connection.
        """
        request = self._runner.request(
            Tell(to, type, payload), ttl_ms=ttl_ms, metadata=metadata, sender=sender
        )
        await self._runner.call(request)

    async def ask(
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
        """Send a message and wait for the hub's receipt: at least once, repeated with the same id.

        Args:
            message_id: An id chosen by you. Sent again with it, even by another run of the program,
                the message gets the same receipt and is not stored twice.
            fences: Durable actors and their expected tokens; the hub refuses the message with code
                `stale_placement` if one differs.
            timeout_s: How long each attempt waits for the receipt.
            attempts: How often to try; the pause between attempts grows by a second each time.

        Raises:
            UnknownActor: No actor is registered under `to`.
            Refused: The hub refused it; `code` and `resolution` say why and what to do.
            Unavailable: It was never sent.
            OutcomeUnknown: It was sent, and no receipt arrived.
        """
        return await self._answer(
            Ask(to, type, payload, dict(fences) if fences else None),
            ttl_ms=ttl_ms,
            metadata=metadata,
            sender=sender,
            message_id=message_id,
            timeout_s=timeout_s,
            attempts=attempts,
        )

    async def publish(
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
        """Send a message to all subscribers of a topic.

        A durable topic stores it, and the answer comes once it is stored. With `durable`, the
        client repeats the message with the same id until it is answered, and the hub creates the
        topic if it does not exist and may be created.

        Args:
            key: Messages with the same key keep their order in `key-shared` subscriptions.
            headers: Strings sent with the payload.
            deliver_at: Do not deliver before this time: a datetime, or milliseconds since the Unix
                epoch.
            ttl_ms: Do not deliver after this time has passed.
            message_id: An id chosen by you, as for `ask`.
            timeout_s: How long each attempt waits for the answer.
            attempts: How often to try, if `durable`; plain publishes are not repeated.

        Raises:
            Refused: The hub refused it.
            Unavailable: It was never sent.
            OutcomeUnknown: It was sent, and no answer arrived.
        """
        return await self._answer(
            Publish(topic, type, payload, durable, key, headers, deliver_at),
            ttl_ms=ttl_ms,
            sender=sender,
            message_id=message_id,
            timeout_s=timeout_s,
            attempts=attempts,
        )

    async def broadcast(
        self,
        type: str,
        payload: Any = None,
        *,
        capability: str | None = None,
        exclude_self: bool = False,
        sender: str | None = None,
    ) -> BroadcastResult:
        """Send a message to every registered actor, or to those with a capability."""
        metadata = None if capability is None else {"targetCapability": capability}
        return await self._answer(
            Broadcast(type, payload, exclude_self), metadata=metadata, sender=sender
        )

    def messages(self) -> AsyncIterator[Message]:
        """Iterate over the messages that no handler takes.

        The iteration ends when the client is closed and raises `GaveUp` when the client has given
        up. Concurrent loops share the messages; each message goes to one of them.
        """
        return _Messages(self._runner.arrivals)

    @overload
    def on(self, type: str) -> Callable[[H], H]: ...
    @overload
    def on(self, type: str, handler: H) -> H: ...
    def on(self, type: str, handler: H | None = None) -> H | Callable[[H], H]:
        """Give messages of this exact type to a function, plain or async; also as a decorator.

        It is called with one message at a time, in order. Its errors are logged. If the message
        must be settled, returning acknowledges it, `Reject` terminates it, any other error has it
        redelivered.
        """

        def attach(function: H) -> H:
            self._runner.arrivals.on(type, function)
            return function

        return attach if handler is None else attach(handler)

    async def subscribe(self, topic: str, *, sender: str | None = None) -> Subscription:
        """Receive what is published to a topic; `+` matches one level, a final `#` the rest.

        The subscription is restored after reconnecting; what is published meanwhile is missed.
        """
        address = sender or self.address
        await self._answer(
            Subscribe(topic),
            lambda: self._protocol.membership.subscribed(address, topic),
            sender=address,
        )
        return Subscription(self, topic, address)

    async def unsubscribe(self, topic: str, *, sender: str | None = None) -> None:
        """Stop receiving a topic; does nothing if it was not subscribed to."""
        address = sender or self.address
        request = self._runner.request(Unsubscribe(topic), sender=address)
        self._protocol.membership.unsubscribed(address, topic)
        if self._protocol.phase is not LinkPhase.DOWN:
            await self._runner.call(request)

    async def register(
        self,
        address: str,
        *,
        capabilities: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        lease_s: float | None = None,
        durable: bool | None = None,
    ) -> Registration:
        """Register another address, or update one of ours."""
        registration = Register(
            address, checked_capabilities(capabilities), metadata or {}, lease_s, durable
        )
        return await self._answer(
            registration,
            lambda: self._protocol.membership.registered(registration),
            sender=address,
        )

    async def unregister(self, address: str) -> None:
        """Unregister an address, which also ends its subscriptions."""
        request = self._runner.request(Unregister(address), sender=address)
        self._protocol.membership.unregistered(address)
        if self._protocol.phase is not LinkPhase.DOWN:
            await self._runner.call(request)

    async def discover(
        self,
        pattern: str = "*",
        *,
        capability: str | None = None,
        limit: int = 50,
        include_away: bool = False,
    ) -> Found:
        """Find actors by address, such as `demo/*`: at most 100; `has_more` says if there are more.

        With `include_away`, actors that have a mailbox but are not connected follow.
        """
        return await self._answer(Discover(pattern, limit, capability, include_away))

    async def actors(self, *, offset: int = 0, limit: int = 100) -> ActorPage:
        """Return a page of all registered actors."""
        return await self._answer(ListActors(offset, limit))

    async def sessions(
        self, pattern: str = "*", *, after: int = 0, limit: int = 200
    ) -> SessionPage:
        """Return a page of the hub's sessions, oldest first, for operators (`admin: sessions`).

        `pattern` is about their identities; the `next` of a page is the `after` of the following.
        """
        return await self._answer(ListSessions(pattern, after, limit))

    async def close_session(self, session_id: str) -> None:
        """Close somebody's session, as an operator (`admin: sessions`)."""
        await self._answer(CloseSession(session_id))

    async def queue_stats(self) -> QueueStats:
        """Return what is queued in the hub for this connection."""
        return await self._answer(ShowQueue())

    async def metrics(self) -> dict[str, Any]:
        """Return the hub's counters of the current minute."""
        return await self._answer(ShowMetrics())

    async def jobs(self, *, limit: int = 100) -> JobPage:
        """Return the newest jobs, the last one first, for operators (`admin: view`)."""
        return await self._answer(ListJobs(limit))

    async def limits(self, identity: str | None = None, *, top: int = 10) -> LimitUsage:
        """Return the limits of the hub and who uses most, or what one identity uses.

        Needs a token with the permission `admin: limits`.
        """
        return await self._answer(ShowLimits(top, identity))

    async def ping(self) -> float:
        """Measure the round trip to the hub in seconds."""
        started = self._runner.now()
        await self._answer(Beat(started.wall_ms))
        return self._runner.now().mono_s - started.mono_s

    async def refresh_token(self, token: str | None = None) -> RefreshedToken:
        """Exchange a valid token for one that expires later, without reconnecting.

        Without an argument, the current token is exchanged. The new one is used from now on, unless
        tokens come from a function.
        """
        current = self._runner.token if isinstance(self._runner.token, str) else None
        token = token or current or self._protocol.welcome.session_token
        if token is None:
            raise ValueError("there is no token to exchange; pass one")
        refreshed = await self._answer(RefreshToken(token))
        if current is not None:
            self._runner.token = refreshed.token
        return refreshed

    async def create_topic(self, name: str, **definition: Unpack[streams.Definition]) -> Topic:
        """Create a durable topic; does nothing if it exists with the same definition.

        Args:
            definition: The options of the topic: `retention_s`, `retention_bytes`, `poison`,
                `dead_letter`, `heartbeat_s`; see `Definition`.

        Raises:
            Refused: With code `topic_conflict` if it exists with another definition.
        """
        return await self._answer(streams.CreateTopic(name, streams.defined(definition)))

    async def update_topic(self, name: str, **definition: Unpack[streams.Definition]) -> Topic:
        """Change the definition of a topic immediately; see `create_topic` for the options."""
        return await self._answer(streams.UpdateTopic(name, streams.defined(definition)))

    async def topic(self, name: str) -> Topic:
        """Return the state of a durable topic."""
        return await self._answer(streams.ShowTopic(name))

    async def topics(
        self, pattern: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> TopicPage:
        """Return a page of the durable topics, or of those that match, such as `orders*`."""
        return await self._answer(streams.ListTopics(pattern, offset, limit))

    async def delete_topic(self, name: str) -> None:
        """Delete a durable topic with its messages and subscriptions."""
        await self._answer(streams.DeleteTopic(name))

    def consume(
        self,
        topic: str,
        subscription: str,
        *,
        mode: Mode = "exclusive",
        start: Position = "earliest",
        handler: Handler | None = None,
        consumer: str | None = None,
        sender: str | None = None,
        **serving: Unpack[streams.Serving],
    ) -> Opening[Consumer]:
        """Read a durable subscription, which is created if it does not exist.

        A topic with a wildcard is a pattern: `orders/#` reads all durable topics that match, also
        those made later; `message.topic` says which. Order holds within each of them.

        Use it as `async with me.consume(...) as orders:`, or `orders = await me.consume(...)` and
        `await orders.close()`.

        Args:
            mode: Who gets a message: the only consumer (`exclusive`), the first one while others
                stand by (`failover`), all in turn (`shared`), or the one for its key
                (`key-shared`).
            start: Where a new subscription starts: `earliest`, `latest`, a seq, a datetime, or
                `{"last": n}`; a pattern at an end or `{"last": n}`.
            handler: A function, plain or async, for the messages: returning acknowledges a message,
                `Reject` terminates it, any other error has it redelivered.
            consumer: Our name in the subscription; a consumer that joins under the same name takes
                over.
            serving: How the subscription is served: `window`, `strict`, `auto_ack`,
                `ack_timeout_s`, `max_deliveries`, `backoff_s`, `backoff_cap_s`, `heartbeat_s`,
                `rate_per_s`, `poison`, `dead_letter`; see `Serving`.

        Raises:
            ValueError: An option is invalid; raised immediately.
            Refused: With code `unknown_topic`, `subscription_busy` (another session consumes
                exclusively) or `subscription_conflict` (other mode or pattern); when entered.
        """
        key = SeatKey(checked_pattern(topic), checked_name(subscription, "a subscription"))
        address = sender or self.address
        # A generated name lets this consumer take over from its own broken connection.
        name = consumer or f"{path_of(address)}-{secrets.token_hex(4)}"
        asked = streams.terms(mode=mode, start=start, consumer=name, serving=serving)
        return Opening(lambda: join(self._runner, Seat(key, asked, address), handler))

    def replay(
        self,
        topic: str,
        from_seq: int = 1,
        to_seq: int | None = None,
        *,
        limit: int | None = None,
    ) -> Replay:
        """Read a range of a durable topic once, without a subscription; both ends included."""
        return Replay(self._runner, checked_topic(topic), from_seq, to_seq, limit)

    async def subscription(self, topic: str, name: str) -> SubscriptionInfo:
        """Return the state of a durable subscription; that of a pattern adds up its topics."""
        return await self._answer(streams.ShowSubscription(topic, name))

    async def subscriptions(
        self,
        topic: str | None = None,
        *,
        patterns: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> SubscriptionPage:
        """Return a page of the durable subscriptions of a topic, of a pattern, or of all topics.

        With `patterns`, of the patterns instead, each with its topics added up.
        """
        listed = streams.ListSubscriptions(topic, offset, limit, patterns=patterns)
        return await self._answer(listed)

    async def update_subscription(
        self, topic: str, name: str, **serving: Unpack[streams.Serving]
    ) -> SubscriptionInfo:
        """Change the options of a durable subscription immediately; see `consume`.

        A pattern stands for all its topics, here and in the methods below.
        """
        return await self._answer(streams.UpdateSubscription(topic, name, streams.served(serving)))

    async def pause(self, topic: str, name: str) -> SubscriptionInfo:
        """Pause a durable subscription: nothing is delivered until `resume`."""
        return await self._answer(streams.Pause(topic, name))

    async def resume(self, topic: str, name: str) -> SubscriptionInfo:
        """Resume a paused subscription."""
        return await self._answer(streams.Resume(topic, name))

    async def seek(self, topic: str, name: str, to: Position, *, dry_run: bool = False) -> Sought:
        """Move a durable subscription; with `dry_run`, only report the effect."""
        return await self._answer(streams.Seek(topic, name, to, dry_run))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a durable subscription and its position; the topic keeps its messages."""
        await self._answer(streams.DeleteSubscription(topic, name))

    async def redrive(
        self, topic: str, seqs: Iterable[int] | None = None, **choice: Unpack[streams.Redriving]
    ) -> LetterCount:
        """Send all dead letters, or the chosen ones, back to their source; return how many."""
        return await self._answer(streams.Redrive.of(topic, seqs, choice))

    async def purge(
        self, topic: str, seqs: Iterable[int] | None = None, **choice: Unpack[streams.LetterChoice]
    ) -> LetterCount:
        """Delete all dead letters, or the chosen ones; return how many."""
        return await self._answer(streams.Purge.of(topic, seqs, choice))

    async def preview_redrive(
        self, topic: str, seqs: Iterable[int] | None = None, **choice: Unpack[streams.Redriving]
    ) -> LettersPreview:
        """Return what `redrive` would do, and change nothing."""
        return await self._answer(streams.PreviewRedrive.of(topic, seqs, choice))

    async def republish(
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
        """Send messages as a replay job, each at most once; without messages, return its progress.

        Args:
            job: The name of the job; messages it has sent before are skipped.
            originals: At most 100, ordered by position.
            until: Epoch and offset of the last position the job may reach; the same in every call.
            topic: The target, with or without `subscription`; or else `actor`, a durable actor.
            ended: Nothing follows; the hub records that the job has ended.
        """
        to = streams.destination(topic, subscription, actor)
        bound = dict(zip(("epoch", "offset"), until, strict=True))
        return await self._answer(streams.Republish(job, bound, to, originals, ended or None))

    async def erase(
        self,
        *,
        actor: str | None = None,
        inbox: str | None = None,
        pseudonym: str | None = None,
    ) -> Erased:
        """Erase what an actor received and sent, or the content of an inbox, from the hub's log.

        The answer comes once nothing of it is left there, which may take a while. Copies in the
        lake are not affected: `signalhub erase` erases from both.

        Args:
            pseudonym: The new name of the mailbox in the log, `erased.` and 32 hexadecimal digits;
                by default the hub creates one.
        """
        return await self._answer(streams.Erase(actor, inbox, pseudonym))

    async def place(
        self,
        actors: Iterable[str],
        *,
        host: str | None = None,
        tokens: Mapping[str, int] | None = None,
    ) -> Placements:
        """Return where durable actors such as `order/17` live; those without a place get one.

        Args:
            actors: At most 1000 names.
            host: An address of ours that is a host: actors without a place are placed there.
            tokens: With `host`: the last known tokens of actors that lived there before.

        Raises:
            ValueError: A name is invalid.
            Refused: The hub refused it; `code` says why.
        """
        return await self._answer(streams.FindPlaces(actors, host, tokens))

    async def move(self, actor: str, token: int, to: str) -> Place:
        """Move an actor from a host of ours to another host, under the next token.

        It can be repeated: the answer is the same.

        Raises:
            Refused: With code `stale_placement` if the actor's token has changed.
        """
        return await self._answer(streams.Move(actor, token, to))

    async def forget_place(self, actor: str) -> Place:
        """Let the hub forget where an actor lives, and return its former place.

        The next call places the actor anew, under a higher token. On another host it starts empty,
        and what the former host has of it is outdated.

        Raises:
            Refused: With code `stale_placement` if the actor has no place.
        """
        return await self._answer(streams.ForgetPlace(actor))

    def room(self, room: str, **joining: Unpack[Joining]) -> Opening[Room]:
        """Join a room of the same hub, over a separate socket; see `Hub.room`."""
        return self._hub.room(room, **joining)

    def inbox(self, inbox_id: str) -> InboxAccess:
        """Return an inbox of the same hub; see `Hub.inbox`."""
        return self._hub.inbox(inbox_id)

    @property
    def _hub(self) -> Hub:
        if self._rooms is None:
            runner, token = self._runner, self._room_token()
            self._rooms = rooms_of(runner.url, token=token, ssl=self._ssl, listener=runner.listener)
        return self._rooms

    def _room_token(self) -> Token:
        """Return a function for the current token, which may have been refreshed; or `None`."""
        if self._runner.token is None:
            return None

        async def current() -> str:
            return await current_token(self._runner.token) or ""

        return current

    @property
    def _protocol(self) -> Protocol:
        return self._runner.protocol

    async def _answer(
        self,
        payload: Payload[A],
        then: Callable[[], None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> A:
        answered = await self._runner.call(self._runner.request(payload, **options), then)
        assert answered is not None
        return payload.read(answered.payload, answered.attempts)


class Subscription:
    """A plain subscription, as returned by `subscribe`."""

    def __init__(self, client: Client, topic: str, address: str) -> None:
        self.topic = topic
        self._client = client
        self._address = address

    def __repr__(self) -> str:
        return f"<Subscription of {self._address} to {self.topic}>"

    async def cancel(self) -> None:
        """Stop receiving the topic. Can be called more than once."""
        await self._client.unsubscribe(self.topic, sender=self._address)


class _Messages:
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self._arrivals.next()
