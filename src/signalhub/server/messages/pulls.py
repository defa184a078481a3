"""Consumers of durable subscriptions for those who pull.

A pull is a consumer in the session of its caller, which asks for as many messages as it wants, and
for none between two pulls: so nothing is sent that nobody has asked for, and a message that is not
settled comes again after the ack timeout, as for any consumer.

Several programs may share a token. So each pull in progress is a consumer of its own; one that is
done is used again by the next pull, and leaves after a while if there are others and nothing is
with it: in the mode key-shared at once, because the messages of its keys would wait for it. In the
modes exclusive and failover, where only one consumer gets messages, pulls take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer
from signalhub.server.callers import IDLE_S, Answer, Caller, CallRefused
from signalhub.server.messages.bodies import PullBody
from signalhub.wire.errors import Code, Refusal

if TYPE_CHECKING:
    from signalhub.clock import Clock
    from signalhub.core.hub import Hub

Name = tuple[str, str]

# Pulls of one caller from one subscription at a time.
PULLS_MAX: Final = 32
# How long a pull that does not wait may take to read what is there.
_READ_MS: Final = 250
# Those who pull seldom do it alone.
_MODE: Final = SHARED


class _Delivered(msgspec.Struct, frozen=True, gc=False):
    """Where a copy comes from, in its metadata."""

    subscription: str = ""
    seq: int = 0


class _Copy(msgspec.Struct, gc=False):
    topic: str = ""
    delivery: _Delivered = _Delivered()


class _Subscribed(msgspec.Struct, gc=False):
    subscription_id: str = msgspec.field(name="subscriptionId")


class _Unsubscribed(msgspec.Struct, gc=False):
    topic: str = ""
    subscription: str = ""
    subscription_id: str = msgspec.field(name="subscriptionId", default="")
    reason: str = ""


_decode_copy = msgspec.json.Decoder(_Copy).decode
_decode_subscribed = msgspec.json.Decoder(_Subscribed).decode
_decode_unsubscribed = msgspec.json.Decoder(_Unsubscribed).decode


class _Puller:
    """One consumer of a subscription, and what it was sent."""

    def __init__(self, caller: Caller, name: Name, number: int) -> None:
        self._caller = caller
        self._name = name
        self.number = number
        self.consumer: Consumer | None = None
        self.is_busy = False
        self.used_ms = 0
        self._window = 0
        self._found: list[Answer] = []
        self._arrived: asyncio.Future[None] | None = None
        self._left = ""

    def is_spare(self, now: int) -> bool:
        """May it leave? It has neither a pull nor unsettled messages."""
        consumer = self.consumer
        if self.is_busy or consumer is None:
            return not self.is_busy
        is_waited_for = consumer.subscription.definition.mode == KEY_SHARED
        is_old = now - self.used_ms >= IDLE_S * 1000
        return not consumer.flights and (is_waited_for or is_old)

    @property
    def has_room(self) -> bool:
        return self.consumer is None or self.consumer.flights < self._window

    async def join(self, mode: str | None, body: PullBody) -> None:
        """Become a consumer that is sent nothing yet."""
        topic, subscription = self._name
        number = f"-{self.number}" if self.number else ""
        payload: dict[str, Any] = {
            "topic": topic,
            "subscription": subscription,
            "consumer": f"http-{self._caller.session.id[-12:]}{number}",
        }
        options = {"mode": mode, "window": body.window, "from": body.start}
        payload |= {name: value for name, value in options.items() if value is not None}

        def joined(answer: Answer) -> None:
            consumer_id = _decode_subscribed(answer.payload).subscription_id
            consumer = self._caller.session.consumers.get(consumer_id)
            if isinstance(consumer, Consumer):
                self.consumer = consumer
                self._window = consumer.window
                consumer.asked = 0

        # Both may happen before anybody is told.
        self._left = "it has left as soon as it had joined"
        await self._caller.call("hub:subscribe", payload, at_once=joined)

    async def pull(
        self, body: PullBody, wait_ms: float, gone: asyncio.Future[None]
    ) -> list[Answer]:
        """Take messages; the first one is waited for, unless nobody is there to get it."""
        consumer = self.consumer
        if consumer is None:
            raise self._ended()
        if gone.done():
            return []
        self._left, self._found = "", []
        self._arrived = asyncio.get_running_loop().create_future()
        consumer.asked = body.max
        try:
            window = self._window if body.window is None else body.window
            grant = {"subscriptionId": consumer.id, "messages": window}
            await self._caller.call("hub:credit", grant)
            if consumer.subscription.lag:
                # What is there may still have to be read.
                wait_ms = max(wait_ms, _READ_MS)
            if wait_ms and not self._found and not self._left:
                await asyncio.wait(
                    (self._arrived, gone),
                    timeout=wait_ms / 1000,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            consumer.asked = 0
            self._arrived = None
        if self._left and not self._found:
            raise self._ended()
        found, self._found = self._found, []
        return found

    def _ended(self) -> CallRefused:
        self._caller.check_open()
        return CallRefused(
            409,
            Code.NOT_A_CONSUMER,
            f"The subscription ended while it was pulled from: {self._left}.",
            "Pull again.",
            retryable=True,
        )

    def arrived(self, answer: Answer) -> None:
        self._found.append(answer)
        self._wake()

    def left(self, reason: str) -> None:
        self.consumer = None
        self._left = reason
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class _Pool:
    """The consumers by which one caller takes messages of one subscription."""

    def __init__(self, caller: Caller, name: Name, now_ms: Callable[[], int]) -> None:
        self._caller = caller
        self.name = name
        self._now_ms = now_ms
        # Used longest ago first.
        self.pullers: list[_Puller] = []
        # Pulls and settlements in progress, and how many of them are pulls.
        self.users = 0
        self.pulls = 0
        self._turn = asyncio.Lock()
        self.joining = asyncio.Lock()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """One more pull; raises `CallRefused` if there are too many."""
        if self.pulls >= PULLS_MAX:
            topic, subscription = self.name
            raise CallRefused(
                429,
                Code.LIMIT_EXCEEDED,
                f"{PULLS_MAX} pulls of {subscription} on {topic} with this token are in progress, "
                "which is the limit.",
                "Pull more messages at a time (max), or use several tokens.",
                retryable=True,
            )
        self.pulls += 1
        try:
            yield
        finally:
            self.pulls -= 1

    @asynccontextmanager
    async def turn(self, wait_ms: int) -> AsyncIterator[None]:
        """Pull alone; raises `CallRefused` if another pull takes longer than one waits."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._turn.acquire()
        except TimeoutError:
            topic, subscription = self.name
            raise CallRefused(
                409,
                Code.SUBSCRIPTION_BUSY,
                f"Only one pull at a time gets messages of {subscription} on {topic}, and "
                "another one with this token is in progress.",
                "Wait longer for its end (waitMs), or use a subscription of the mode shared.",
                retryable=True,
            ) from None
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def puller(self) -> Iterator[_Puller]:
        """A consumer that no other pull uses, perhaps one that has not joined yet."""
        self.tidy()
        free = [one for one in self.pullers if not one.is_busy]
        found = next((one for one in free if one.has_room), free[0] if free else None)
        if found is None:
            numbers = {one.number for one in self.pullers}
            number = next(one for one in range(PULLS_MAX + 1) if one not in numbers)
            found = _Puller(self._caller, self.name, number)
            self.pullers.append(found)
        found.is_busy = True
        try:
            yield found
        finally:
            found.is_busy = False
            found.used_ms = self._now_ms()
            if found in self.pullers:
                self.pullers.remove(found)
                if found.consumer is not None:
                    self.pullers.append(found)
            self.tidy()

    async def join_to_settle(self) -> None:
        """Have a consumer, which is all it takes to settle."""
        async with self.joining:
            if all(one.consumer is None for one in self.pullers):
                with self.puller() as puller:
                    await puller.join(None, PullBody())

    def tidy(self) -> None:
        """Let all leave that are not needed, but one."""
        now = self._now_ms()
        while len(self.pullers) > 1:
            one = next((one for one in self.pullers if one.is_spare(now)), None)
            if one is None:
                return
            self.pullers.remove(one)
            if one.consumer is not None:
                self._caller.leave(one.consumer)

    def left(self, consumer_id: str, reason: str) -> bool:
        """A consumer was removed; `False` if it is none of these."""
        for one in self.pullers:
            if one.consumer is not None and one.consumer.id == consumer_id:
                self.pullers.remove(one)
                one.left(reason)
                return True
        return False

    def arrived(self, seq: int, answer: Answer) -> bool:
        """Give a message to whoever was sent it; `False` if it is none of these."""
        for one in self.pullers:
            consumer = one.consumer
            if consumer and consumer.subscription.window.consumer_at(seq) is consumer:
                one.arrived(answer)
                return True
        return False


class Pulls:
    """The subscriptions that callers pull from."""

    def __init__(self, hub: Hub, clock: Clock) -> None:
        self._hub = hub
        self._now_ms = clock.now_ms
        self._pools: dict[Caller, dict[Name, _Pool]] = {}

    async def pull(
        self, caller: Caller, name: Name, body: PullBody, gone: asyncio.Future[None]
    ) -> list[Answer]:
        """Take messages of a subscription, which is made if there is none.

        Once its client is `gone`, nothing more is taken.
        """
        with caller.in_use(), self._pool(caller, name) as pool, pool.admitted():
            if (self._mode(name) or body.mode) not in (EXCLUSIVE, FAILOVER):
                return await self._pull(caller, pool, body, body.wait_ms, gone)
            time = asyncio.get_running_loop().time
            begun_s = time()
            async with pool.turn(body.wait_ms):
                wait_ms = max(0, body.wait_ms - (time() - begun_s) * 1000)
                return await self._pull(caller, pool, body, wait_ms, gone, is_alone=True)

    async def _pull(
        self,
        caller: Caller,
        pool: _Pool,
        body: PullBody,
        wait_ms: float,
        gone: asyncio.Future[None],
        *,
        is_alone: bool = False,
    ) -> list[Answer]:
        with pool.puller() as puller:
            # Who settles may have to join, too.
            async with pool.joining if is_alone else nullcontext():
                if puller.consumer is None:
                    mode = body.mode
                    if mode is None and self._mode(pool.name) is None:
                        mode = _MODE
                    await puller.join(mode, body)
                else:
                    self._charge(caller)
            return await puller.pull(body, wait_ms, gone)

    async def settle(
        self, caller: Caller, type: str, name: Name, settlement: dict[str, Any]
    ) -> Answer:
        """Settle messages that were pulled, maybe before the hub was restarted."""
        topic, subscription = name
        payload = {"topic": topic, "subscription": subscription} | settlement
        with caller.in_use(), self._pool(caller, name) as pool:
            try:
                return await caller.call(type, payload)
            except CallRefused as refusal:
                if refusal.code != Code.NOT_A_CONSUMER:
                    raise
            await pool.join_to_settle()
            return await caller.call(type, payload)

    def _mode(self, name: Name) -> str | None:
        """The mode of a subscription; `None` if there is none."""
        topic = self._hub.streams.topics.get(name[0])
        found = None if topic is None else topic.subscriptions.get(name[1])
        return None if found is None else found.definition.mode

    @contextmanager
    def _pool(self, caller: Caller, name: Name) -> Iterator[_Pool]:
        pools = self._pools.get(caller)
        if pools is None:
            mine: dict[Name, _Pool] = {}
            pools = self._pools[caller] = mine
            caller.listeners.append(lambda answer: _passed_on(mine, answer))
            caller.on_end.append(lambda: self._ended(caller))
        pool = pools.get(name)
        if pool is None:
            pool = pools[name] = _Pool(caller, name, self._now_ms)
        pool.users += 1
        try:
            yield pool
        finally:
            pool.users -= 1
            pool.tidy()
            if not pool.users and not pool.pullers and pools.get(name) is pool:
                del pools[name]

    def _ended(self, caller: Caller) -> None:
        for pool in self._pools.pop(caller, {}).values():
            pullers, pool.pullers = pool.pullers, []
            for puller in pullers:
                puller.left("its session has ended")

    def _charge(self, caller: Caller) -> None:
        """A pull costs as much as any request; credit alone would cost nothing."""
        try:
            self._hub.charge(caller.session, self._now_ms())
        except Refusal as refusal:
            raise CallRefused(
                429,
                refusal.code,
                refusal.message,
                refusal.resolution,
                details=refusal.details,
                retryable=True,
            ) from None


def _passed_on(pools: dict[Name, _Pool], answer: Answer) -> bool:
    """Give a message to who pulls it."""
    if answer.type == "hub:unsubscribed":
        ended = _decode_unsubscribed(answer.payload)
        pool = pools.get((ended.topic, ended.subscription))
        if pool is None or not pool.left(ended.subscription_id, ended.reason):
            return False
        if not pool.users and not pool.pullers:
            del pools[(ended.topic, ended.subscription)]
        return True
    copy = _decode_copy(answer.metadata)
    pool = pools.get((copy.topic, copy.delivery.subscription))
    return pool is not None and pool.arrived(copy.delivery.seq, answer)
