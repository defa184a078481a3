"""The part of the client's face that is about durable topics and subscriptions."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from signalhub.client.arguments import Mode, Position, checked_name, checked_topic
from signalhub.client.consumer import Consumer, join
from signalhub.client.erasures import Erased
from signalhub.client.frame import Request
from signalhub.client.incoming import answer_of
from signalhub.client.lane import Handler
from signalhub.client.opening import Opening
from signalhub.client.originals import Original, Republished
from signalhub.client.replay import Replay
from signalhub.client.runner import Runner
from signalhub.client.seat import Seat, SeatKey
from signalhub.client.stream_requests import DeadLetterVerb, StreamComposer, destination
from signalhub.client.streams import (
    Count,
    Sought,
    SubscriptionInfo,
    SubscriptionPage,
    Topic,
    TopicPage,
)
from signalhub.client.terms import Definition, Serving, defined, served, terms
from signalhub.names import path_of

T = TypeVar("T")


class DurableCalls:
    """What a client can do with durable topics; `Client` adds the rest."""

    def __init__(self, address: str, runner: Runner) -> None:
        self.address = address
        self._runner = runner

    async def create_topic(self, name: str, **definition: Unpack[Definition]) -> Topic:
        """Make a topic that keeps what is published; the same again does nothing.

        Args:
            definition: How the topic is to be: `retention_s`, `retention_bytes`, `poison`,
                `dead_letter`, `heartbeat_s`; see `Definition`.

        Raises:
            Refused: With code `topic_conflict` if it exists with another definition.
        """
        request = self._streams.create_topic(name, defined(definition), self._now_ms)
        return await self._answer(request, Topic)

    async def update_topic(self, name: str, **definition: Unpack[Definition]) -> Topic:
        """Change the definition of a topic, at once; see `create_topic` for the options."""
        request = self._streams.update_topic(name, defined(definition), self._now_ms)
        return await self._answer(request, Topic)

    async def topic(self, name: str) -> Topic:
        """A durable topic."""
        return await self._answer(self._streams.topic_info(name, self._now_ms), Topic)

    async def topics(
        self, pattern: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> TopicPage:
        """A page of the durable topics, or of those whose name matches, such as `orders*`."""
        request = self._streams.list_topics(pattern, offset, limit, self._now_ms)
        return await self._answer(request, TopicPage)

    async def delete_topic(self, name: str) -> None:
        """Delete a durable topic with everything in it, and its subscriptions."""
        await self._runner.call(self._streams.delete_topic(name, self._now_ms))

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
        return await self._subscription("hub:sub_info", topic, name)

    async def subscriptions(
        self, topic: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> SubscriptionPage:
        """A page of the durable subscriptions of a topic, or of all."""
        request = self._streams.list_subscriptions(topic, offset, limit, self._now_ms)
        return await self._answer(request, SubscriptionPage)

    async def update_subscription(
        self, topic: str, name: str, **serving: Unpack[Serving]
    ) -> SubscriptionInfo:
        """Change how a durable subscription is served, at once; see `consume` for the options."""
        members = served(serving)
        return await self._subscription("hub:sub_update", topic, name, members=members)

    async def pause(self, topic: str, name: str) -> SubscriptionInfo:
        """Let a durable subscription deliver nothing until `resume`."""
        return await self._subscription("hub:sub_pause", topic, name)

    async def resume(self, topic: str, name: str) -> SubscriptionInfo:
        """Let a paused subscription deliver again."""
        return await self._subscription("hub:sub_resume", topic, name)

    async def seek(self, topic: str, name: str, to: Position, *, dry_run: bool = False) -> Sought:
        """Move a durable subscription; with `dry_run` only say what that would mean."""
        request = self._streams.seek(topic, name, to, self._now_ms, dry_run=dry_run)
        return await self._answer(request, Sought)

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a durable subscription and its position; the messages of the topic stay."""
        await self._subscription("hub:sub_delete", topic, name, is_repeatable=False)

    async def redrive(self, topic: str, seqs: Iterable[int] | None = None) -> int:
        """Put dead letters back where they came from, all of them or those named; how many."""
        return await self._dead_letters("hub:redrive", topic, seqs)

    async def purge(self, topic: str, seqs: Iterable[int] | None = None) -> int:
        """Throw dead letters away, all of them or those named; how many."""
        return await self._dead_letters("hub:purge", topic, seqs)

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
        request = self._streams.republish(job, originals, until, to, self._now_ms)
        return await self._answer(request, Republished)

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
        request = self._streams.erase(actor, inbox, pseudonym, self._now_ms)
        return await self._answer(request, Erased)

    @property
    def _streams(self) -> StreamComposer:
        return self._runner.streams

    @property
    def _now_ms(self) -> int:
        return self._runner.now().wall_ms

    async def _dead_letters(
        self, verb: DeadLetterVerb, topic: str, seqs: Iterable[int] | None
    ) -> int:
        chosen = None if seqs is None else list(seqs)
        request = self._streams.dead_letters(verb, topic, chosen, self._now_ms)
        return (await self._answer(request, Count)).count

    async def _subscription(
        self,
        type: str,
        topic: str,
        name: str,
        *,
        members: Mapping[str, Any] | None = None,
        is_repeatable: bool = True,
    ) -> SubscriptionInfo:
        request = self._streams.subscription(
            type, topic, name, self._now_ms, members=members, is_repeatable=is_repeatable
        )
        return await self._answer(request, SubscriptionInfo)

    async def _answer(
        self, request: Request, kind: type[T], then: Callable[[], None] | None = None
    ) -> T:
        answered = await self._runner.call(request, then)
        assert answered is not None
        return answer_of(answered.payload, kind)
