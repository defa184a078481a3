"""The face of the Python client."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from ssl import SSLContext
from typing import Any, Self, TypeVar, Unpack, overload

from signalhub.client.answers import (
    ActorPage,
    BroadcastResult,
    Erased,
    Found,
    Original,
    Place,
    Placements,
    Published,
    QueueStats,
    Receipt,
    RefreshedToken,
    Registration,
    Republished,
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
    checked_topic,
    checked_url,
)
from signalhub.client.arrivals import INBOX_MAX, Arrivals, Handler
from signalhub.client.consumers import Consumer, join
from signalhub.client.lifecycle import Opening, Resource
from signalhub.client.message import Message
from signalhub.client.protocol.effects import Instant
from signalhub.client.protocol.frame import FrameWriter, Payload, RequestOptions
from signalhub.client.protocol.protocol import LinkPhase, Protocol
from signalhub.client.protocol.restore import Membership, Seat, SeatKey
from signalhub.client.replay import Replay
from signalhub.client.requests import (
    Ask,
    Beat,
    Broadcast,
    Discover,
    ListActors,
    Publish,
    RefreshToken,
    Register,
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
from signalhub.client.stream_requests import (
    CreateTopic,
    Definition,
    DeleteSubscription,
    DeleteTopic,
    Erase,
    FindPlaces,
    ListSubscriptions,
    ListTopics,
    Move,
    Pause,
    Purge,
    Redrive,
    Republish,
    Resume,
    Seek,
    Serving,
    ShowSubscription,
    ShowTopic,
    UpdateSubscription,
    UpdateTopic,
    defined,
    destination,
    served,
    terms,
)
from signalhub.client.transport.runner import ClientRunner, Token
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
    ssl: SSLContext | None = None,
) -> Connecting:
    """Connect to a hub and, unless told otherwise, register `address` there.

    Use it as `async with connect(...) as me:`, or `me = await connect(...)` and `await me.close()`.

    Args:
        url: The hub, such as `ws://127.0.0.1:8787/ws`. Never with a token in it.
        address: Who we are, such as `@(demo/alice)`. Registering it takes it from whoever had it.
        capabilities: Words by which others can find this actor.
        metadata: Anything else to be known about it; shown by `actors()`.
        lease_s: How long the hub keeps the address without a sign of life; the hub's default if
            `None`. The client renews it by itself.
        register: `False` only speaks as `address`: whoever has it keeps it, and nobody finds us or
            can write to us by it.
        durable: `True` keeps asks to the address while we are away, until it is unregistered;
            `False` drops what was kept; `None` leaves that as it is.
        acknowledge: We settle ourselves what comes from mailboxes: with `message.ack()` and its
            kin, or by how the handler of `on` ends. Otherwise what is written to us is settled.
        token: For hubs that want one: a text, or a function that returns one, or returns an
            awaitable of one, called for every connection.
        reconnect: How to come back after a loss; `None` does not.
        inbox_max: How many received messages may wait before the link is no longer read.
        ssl: For `wss://` with certificates of your own.

    Raises:
        ValueError: The address, the URL or the lease cannot be used, or something is to be known
            about an address that is not registered; raised at once.
        TypeError: The metadata is no JSON; raised at once.
        Unavailable: Nobody answers; raised when entered or awaited, like the following.
        Refused: The hub does not want this client; `code` says why.
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
        protocol = Protocol(frames, membership, Instant.of(clock))
        backoff = Backoff(reconnect or Reconnect(attempts_max=0), random.random)
        runner = ClientRunner(
            url, protocol, backoff, clock, token=token, ssl=ssl, inbox_max=inbox_max
        )
        await runner.start()
        return Client(address, runner, ssl)

    return Connecting(open_client)


Connecting = Opening["Client"]


class Client(Resource):
    """One actor's connection to a hub, which mends itself.

    Every method may be called while the connection is down: it waits for the next one. Errors:
    `Refused` and `UnknownActor` mean that the hub said no; `Unavailable` and `GaveUp` that the
    request did not happen; `OutcomeUnknown` that it may have happened.
    """

    def __init__(self, address: str, runner: ClientRunner, ssl: SSLContext | None = None) -> None:
        self.address = address
        self._runner = runner
        self._ssl = ssl
        self._rooms: Hub | None = None

    def __repr__(self) -> str:
        return f"<Client {self.address} at {self._runner.url}, {self._protocol.phase.value}>"

    @property
    def is_connected(self) -> bool:
        """Is it connected, registered and subscribed right now?"""
        return self._runner.is_ready

    @property
    def session_id(self) -> str:
        """The hub's name for the present connection; empty without one."""
        return self._protocol.session_id

    @property
    def durability(self) -> str | None:
        """How safe the hub's receipts are: `fsync`, `interval` or `os`; `None` if it has no log."""
        return self._protocol.welcome.durability

    @property
    def dropped(self) -> int:
        """How many messages without a handler made room because nobody asked for `messages()`."""
        return self._runner.inbox.dropped

    async def close(self) -> None:
        """Leave the hub, and the rooms joined through this client. Harmless when repeated."""
        if self._rooms is not None:
            await self._rooms.close()
        await self._runner.close()

    async def wait_closed(self) -> None:
        """Wait until the client ends; raises `GaveUp` if that was not by `close`."""
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
        """Send a message, at most once; returns when it is on its way to the hub.

        It waits while there is no connection or the hub asks for a pause.

        Raises:
            Unavailable: It waited for 60 s, or 1000 others already wait for a connection.
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
        """Send a message and wait for the hub's receipt: at least once, repeated under one id.

        Args:
            message_id: An id of your own. Sent again, even by another run of the program, the
                message gets the same receipt and is not stored twice.
            fences: Durable actors and the tokens they must have, else it is refused with the code
                `stale_placement`.
            timeout_s: How long each attempt waits for the receipt.
            attempts: How often to try; the pauses between them grow by a second each.

        Raises:
            UnknownActor: Nobody is registered under `to`.
            Refused: The hub said no; `code` and `resolution` say why and what to do.
            Unavailable: It was never sent.
            OutcomeUnknown: It was sent, and no receipt came.
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
        """Send a message to everybody subscribed to the topic.

        A durable topic keeps it, and the answer comes when it is safe. With `durable` the client
        relies on that: it repeats the message under one id until it is answered, and the hub makes
        the topic if it may and there is none.

        Args:
            key: Messages of one key keep their order in `key-shared` subscriptions.
            headers: Texts that travel beside the payload.
            deliver_at: Not before this moment: a datetime, or milliseconds since the epoch.
            ttl_ms: After that long it is not delivered any more.
            message_id: An id of your own, as for `ask`.
            timeout_s: How long each attempt waits for the answer.
            attempts: How often to try, if `durable`; plain publishes are not repeated.

        Raises:
            Refused: The hub said no.
            Unavailable: It was never sent.
            OutcomeUnknown: It was sent, and no answer came.
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
        """The messages no handler takes, as they come.

        It ends when the client is closed and raises `GaveUp` when the client has given up. Several
        loops share the messages, each goes to one of them.
        """
        return _Messages(self._runner.inbox)

    @overload
    def on(self, type: str) -> Callable[[H], H]: ...
    @overload
    def on(self, type: str, handler: H) -> H: ...
    def on(self, type: str, handler: H | None = None) -> H | Callable[[H], H]:
        """Give messages of this exact type to a function, plain or async; also as a decorator.

        It serves one message at a time, in order. What it raises is logged; and if the message is
        to be settled, returning acknowledges it, raising lets it come again, `Reject` gives it up.
        """

        def attach(function: H) -> H:
            self._runner.inbox.on(type, function)
            return function

        return attach if handler is None else attach(handler)

    async def subscribe(self, topic: str, *, sender: str | None = None) -> Subscription:
        """Receive what is published on a topic; `+` stands for one level, a last `#` for the rest.

        The subscription survives reconnecting; what is published meanwhile is not seen.
        """
        address = sender or self.address
        await self._answer(
            Subscribe(topic),
            lambda: self._protocol.membership.subscribed(address, topic),
            sender=address,
        )
        return Subscription(self, topic, address)

    async def unsubscribe(self, topic: str, *, sender: str | None = None) -> None:
        """Stop receiving a topic; harmless if it was not subscribed to."""
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
        """Answer to another address, too; or change what is known about one of ours."""
        registration = Register(
            address, checked_capabilities(capabilities), metadata or {}, lease_s, durable
        )
        return await self._answer(
            registration,
            lambda: self._protocol.membership.registered(registration),
            sender=address,
        )

    async def unregister(self, address: str) -> None:
        """Give an address up, and what it is subscribed to."""
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
        """Actors whose address matches, such as `demo/*`; at most 100, and are there more?

        With `include_away` those with a mailbox that are not there follow.
        """
        return await self._answer(Discover(pattern, limit, capability, include_away))

    async def actors(self, *, offset: int = 0, limit: int = 100) -> ActorPage:
        """A page of all registered actors."""
        return await self._answer(ListActors(offset, limit))

    async def queue_stats(self) -> QueueStats:
        """What waits in the hub for this connection."""
        return await self._answer(ShowQueue())

    async def metrics(self) -> dict[str, Any]:
        """The hub's own counters of the running minute."""
        return await self._answer(ShowMetrics())

    async def ping(self) -> float:
        """The round trip to the hub in seconds."""
        started = self._runner.now()
        await self._answer(Beat(started.wall_ms))
        return self._runner.now().mono_s - started.mono_s

    async def refresh_token(self, token: str | None = None) -> RefreshedToken:
        """Exchange a valid token for one that lasts longer, without reconnecting.

        Without an argument the token in use is exchanged. The new one is used from now on, unless
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

    async def create_topic(self, name: str, **definition: Unpack[Definition]) -> Topic:
        """Make a topic that keeps what is published; the same again does nothing.

        Args:
            definition: How the topic is to be: `retention_s`, `retention_bytes`, `poison`,
                `dead_letter`, `heartbeat_s`; see `Definition`.

        Raises:
            Refused: With code `topic_conflict` if it exists with another definition.
        """
        return await self._answer(CreateTopic(name, defined(definition)))

    async def update_topic(self, name: str, **definition: Unpack[Definition]) -> Topic:
        """Change the definition of a topic, at once; see `create_topic` for the options."""
        return await self._answer(UpdateTopic(name, defined(definition)))

    async def topic(self, name: str) -> Topic:
        """A durable topic."""
        return await self._answer(ShowTopic(name))

    async def topics(
        self, pattern: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> TopicPage:
        """A page of the durable topics, or of those whose name matches, such as `orders*`."""
        return await self._answer(ListTopics(pattern, offset, limit))

    async def delete_topic(self, name: str) -> None:
        """Delete a durable topic with everything in it, and its subscriptions."""
        await self._answer(DeleteTopic(name))

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
        **serving: Unpack[Serving],
    ) -> Opening[Consumer]:
        """Read a durable subscription, which is made if it does not exist.

        Use it as `async with me.consume(...) as orders:`, or `orders = await me.consume(...)` and
        `await orders.close()`.

        Args:
            mode: Who gets a message: the one consumer (`exclusive`), the first with others standing
                by (`failover`), all in turn (`shared`), or the one for its key (`key-shared`).
            start: Where a new subscription begins: `earliest`, `latest`, a seq, a datetime, or
                `{"last": n}`.
            handler: A function, plain or async, for the messages: returning acknowledges, raising
                lets the message come again, raising `Reject` gives it up.
            consumer: Our name in the subscription; whoever joins under the same one takes over.
            serving: How the subscription is served: `window`, `strict`, `auto_ack`,
                `ack_timeout_s`, `max_deliveries`, `backoff_s`, `backoff_cap_s`, `heartbeat_s`,
                `rate_per_s`, `poison`, `dead_letter`; see `Serving`.

        Raises:
            ValueError: An option cannot be used; raised at once.
            Refused: With code `unknown_topic`, `subscription_busy` (somebody else consumes
                exclusively) or `subscription_conflict` (it has another mode); raised when entered.
        """
        key = SeatKey(checked_topic(topic), checked_name(subscription, "a subscription"))
        address = sender or self.address
        # A name of its own lets this very consumer take over from its broken connection.
        name = consumer or f"{path_of(address)}-{secrets.token_hex(4)}"
        asked = terms(mode=mode, start=start, consumer=name, serving=serving)
        return Opening(lambda: join(self._runner, Seat(key, asked, address), handler))

    def replay(
        self,
        topic: str,
        from_seq: int = 1,
        to_seq: int | None = None,
        *,
        limit: int | None = None,
    ) -> Replay:
        """Read a part of a durable topic once, whatever subscriptions do; both ends included."""
        return Replay(self._runner, checked_topic(topic), from_seq, to_seq, limit)

    async def subscription(self, topic: str, name: str) -> SubscriptionInfo:
        """How a durable subscription is doing."""
        return await self._answer(ShowSubscription(topic, name))

    async def subscriptions(
        self, topic: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> SubscriptionPage:
        """A page of the durable subscriptions of a topic, or of all."""
        return await self._answer(ListSubscriptions(topic, offset, limit))

    async def update_subscription(
        self, topic: str, name: str, **serving: Unpack[Serving]
    ) -> SubscriptionInfo:
        """Change how a durable subscription is served, at once; see `consume` for the options."""
        return await self._answer(UpdateSubscription(topic, name, served(serving)))

    async def pause(self, topic: str, name: str) -> SubscriptionInfo:
        """Let a durable subscription deliver nothing until `resume`."""
        return await self._answer(Pause(topic, name))

    async def resume(self, topic: str, name: str) -> SubscriptionInfo:
        """Let a paused subscription deliver again."""
        return await self._answer(Resume(topic, name))

    async def seek(self, topic: str, name: str, to: Position, *, dry_run: bool = False) -> Sought:
        """Move a durable subscription; with `dry_run` only say what that would mean."""
        return await self._answer(Seek(topic, name, to, dry_run))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a durable subscription and its position; the messages of the topic stay."""
        await self._answer(DeleteSubscription(topic, name))

    async def redrive(self, topic: str, seqs: Iterable[int] | None = None) -> int:
        """Put dead letters back where they came from, all of them or those named; how many."""
        return await self._answer(Redrive.of(topic, seqs))

    async def purge(self, topic: str, seqs: Iterable[int] | None = None) -> int:
        """Throw dead letters away, all of them or those named; how many."""
        return await self._answer(Purge.of(topic, seqs))

    async def republish(
        self,
        job: str,
        originals: Sequence[Original] = (),
        *,
        until: tuple[int, int],
        topic: str | None = None,
        subscription: str | None = None,
        actor: str | None = None,
    ) -> Republished:
        """Send messages again as a replay, each at most once; without any, ask how far it is.

        Args:
            job: Names the replay; what it has sent before is skipped.
            originals: At most 100, in the order of their positions.
            until: Epoch and offset of the last position this replay may come to, always the same.
            topic: Where to, with or without `subscription`, or else `actor`, which is durable.
        """
        to = destination(topic, subscription, actor)
        epoch, offset = until
        return await self._answer(Republish(job, {"epoch": epoch, "offset": offset}, to, originals))

    async def erase(
        self,
        *,
        actor: str | None = None,
        inbox: str | None = None,
        pseudonym: str | None = None,
    ) -> Erased:
        """Take what an actor got and sent, or what is in an inbox, out of the hub's log.

        The answer comes when nothing of it is left there, which may take a while. Copies that the
        pipeline has made are another matter: `signalhub erase` takes care of both.

        Args:
            pseudonym: What the mailbox is to be called in the log from now on, `erased.` and 32
                hexadecimal digits; the hub makes one up otherwise.
        """
        return await self._answer(Erase(actor, inbox, pseudonym))

    async def place(
        self,
        actors: Iterable[str],
        *,
        host: str | None = None,
        tokens: Mapping[str, int] | None = None,
    ) -> Placements:
        """Where durable actors such as `order/17` live; those without a place get one.

        Args:
            actors: At most 1000 names.
            host: An address of ours that is a host: it gets those that live nowhere.
            tokens: With `host`: tokens under which actors lived there before, as far as we know.

        Raises:
            ValueError: A name is none.
            Refused: The hub said no; `code` says why.
        """
        return await self._answer(FindPlaces(actors, host, tokens))

    async def move(self, actor: str, token: int, to: str) -> Place:
        """Give an actor that lives on a host of ours to another host, under the next token.

        It may be repeated: once it has happened the answer is the same.

        Raises:
            Refused: With code `stale_placement` if the actor has another token by now.
        """
        return await self._answer(Move(actor, token, to))

    def room(self, room: str, **joining: Unpack[Joining]) -> Opening[Room]:
        """Join a room of the same hub, over a socket of its own; see `Hub.room`."""
        return self._hub.room(room, **joining)

    def inbox(self, inbox_id: str) -> InboxAccess:
        """An inbox of the same hub; see `Hub.inbox`."""
        return self._hub.inbox(inbox_id)

    @property
    def _hub(self) -> Hub:
        if self._rooms is None:
            self._rooms = rooms_of(self._runner.url, ssl=self._ssl)
        return self._rooms

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
    """What `subscribe` returns."""

    def __init__(self, client: Client, topic: str, address: str) -> None:
        self.topic = topic
        self._client = client
        self._address = address

    def __repr__(self) -> str:
        return f"<Subscription of {self._address} to {self.topic}>"

    async def cancel(self) -> None:
        """Stop receiving the topic. Harmless when repeated."""
        await self._client.unsubscribe(self.topic, sender=self._address)


class _Messages:
    def __init__(self, inbox: Arrivals) -> None:
        self._inbox = inbox

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self._inbox.next()
