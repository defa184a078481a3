"""Consumers of durable subscriptions for those who pull.

A pull makes a consumer in the session of its caller, which is given credit for as many messages as
it wants, and none between two pulls: so nothing is sent that nobody has asked for, and a message
that is not settled comes again after the ack timeout, as for any consumer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.core.subscriptions.consumers import Consumer
from signalhub.server.callers import Answer, Caller, CallRefused
from signalhub.server.messages.bodies import PullBody
from signalhub.wire.errors import Code, Refusal

if TYPE_CHECKING:
    from signalhub.clock import Clock
    from signalhub.core.hub import Hub

Name = tuple[str, str]

# How long a pull that does not wait may take to read what is there.
_READ_MS = 250


class _Delivered(msgspec.Struct, frozen=True, gc=False):
    """Where a copy comes from, in its metadata."""

    subscription: str = ""


class _Copy(msgspec.Struct, gc=False):
    topic: str = ""
    delivery: _Delivered = _Delivered()


class _Subscribed(msgspec.Struct, gc=False):
    subscription_id: str = msgspec.field(name="subscriptionId")


class _Unsubscribed(msgspec.Struct, gc=False):
    topic: str = ""
    subscription: str = ""
    reason: str = ""


_decode_copy = msgspec.json.Decoder(_Copy).decode
_decode_subscribed = msgspec.json.Decoder(_Subscribed).decode
_decode_unsubscribed = msgspec.json.Decoder(_Unsubscribed).decode


class _Puller:
    """One subscription as one caller takes its messages."""

    def __init__(self, caller: Caller, name: Name) -> None:
        self._caller = caller
        self._name = name
        self._consumer: Consumer | None = None
        self._window = 0
        self._found: list[Answer] = []
        self._arrived: asyncio.Future[None] | None = None
        self._left = ""
        # One pull after the other.
        self.turn = asyncio.Lock()

    @property
    def is_joined(self) -> bool:
        return self._consumer is not None

    async def join(self, hub: Hub, body: PullBody) -> None:
        """Become a consumer that is sent nothing yet."""
        topic, subscription = self._name
        payload: dict[str, Any] = {
            "topic": topic,
            "subscription": subscription,
            "consumer": f"http-{self._caller.session.id[-12:]}",
        }
        mode = body.mode
        known = hub.streams.topics.get(topic)
        if mode is None and (known is None or subscription not in known.subscriptions):
            # Those who pull seldom do it alone.
            mode = "shared"
        options = {"mode": mode, "window": body.window, "from": body.start}
        payload |= {name: value for name, value in options.items() if value is not None}

        def joined(answer: Answer) -> None:
            consumer_id = _decode_subscribed(answer.payload).subscription_id
            consumer = self._caller.session.consumers[consumer_id]
            assert isinstance(consumer, Consumer)
            self._consumer = consumer
            self._window = consumer.window
            consumer.grant(0)

        self._left = ""
        await self._caller.call("hub:subscribe", payload, at_once=joined)

    async def pull(self, body: PullBody, gone: asyncio.Future[None]) -> list[Answer]:
        """Take messages; the first one is waited for, unless nobody is there to get it."""
        consumer = self._consumer
        assert consumer is not None
        if gone.done():
            return []
        window = self._window if body.window is None else body.window
        self._found = []
        credit = min(window, consumer.flights + body.max)
        self._arrived = asyncio.get_running_loop().create_future()
        try:
            grant = {"subscriptionId": consumer.id, "messages": credit}
            await self._caller.call("hub:credit", grant)
            wait_ms = body.wait_ms
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
            consumer.grant(0)
            self._arrived = None
        if self._left and not self._found:
            self._caller.check_open()
            raise CallRefused(
                409,
                Code.NOT_A_CONSUMER,
                f"The subscription ended while it was pulled from: {self._left}.",
                "Pull again.",
                retryable=True,
            )
        found, self._found = self._found, []
        return found

    def arrived(self, answer: Answer) -> None:
        self._found.append(answer)
        self._wake()

    def left(self, reason: str) -> None:
        self._consumer = None
        self._left = reason
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class Pulls:
    """The subscriptions that callers pull from."""

    def __init__(self, hub: Hub, clock: Clock) -> None:
        self._hub = hub
        self._now_ms = clock.now_ms
        self._pullers: dict[Caller, dict[Name, _Puller]] = {}

    async def pull(
        self, caller: Caller, name: Name, body: PullBody, gone: asyncio.Future[None]
    ) -> list[Answer]:
        """Take messages of a subscription, which is made if there is none.

        Once its client is `gone`, nothing more is taken.
        """
        with caller.in_use():
            puller = self._puller(caller, name)
            try:
                async with puller.turn:
                    if not puller.is_joined:
                        await puller.join(self._hub, body)
                    else:
                        self._charge(caller)
                    return await puller.pull(body, gone)
            finally:
                self._forget_unless_joined(caller, name, puller)

    async def settle(
        self, caller: Caller, type: str, name: Name, settlement: dict[str, Any]
    ) -> Answer:
        """Settle messages that were pulled, maybe before the hub was restarted."""
        topic, subscription = name
        payload = {"topic": topic, "subscription": subscription} | settlement
        with caller.in_use():
            try:
                return await caller.call(type, payload)
            except CallRefused as refusal:
                if refusal.code != Code.NOT_A_CONSUMER:
                    raise
            puller = self._puller(caller, name)
            try:
                async with puller.turn:
                    if not puller.is_joined:
                        await puller.join(self._hub, PullBody())
                return await caller.call(type, payload)
            finally:
                self._forget_unless_joined(caller, name, puller)

    def _puller(self, caller: Caller, name: Name) -> _Puller:
        pullers = self._pullers.get(caller)
        if pullers is None:
            mine: dict[Name, _Puller] = {}
            pullers = self._pullers[caller] = mine
            caller.listeners.append(lambda answer: _passed_on(mine, answer))
            caller.on_end.append(lambda: self._ended(caller))
        puller = pullers.get(name)
        if puller is None:
            puller = pullers[name] = _Puller(caller, name)
        return puller

    def _ended(self, caller: Caller) -> None:
        for puller in self._pullers.pop(caller, {}).values():
            puller.left("its session has ended")

    def _forget_unless_joined(self, caller: Caller, name: Name, puller: _Puller) -> None:
        pullers = self._pullers.get(caller, {})
        if not puller.is_joined and not puller.turn.locked() and pullers.get(name) is puller:
            del pullers[name]

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


def _passed_on(pullers: dict[Name, _Puller], answer: Answer) -> bool:
    """Give a message to who pulls it."""
    if answer.type == "hub:unsubscribed":
        ended = _decode_unsubscribed(answer.payload)
        puller = pullers.pop((ended.topic, ended.subscription), None)
        if puller is not None:
            puller.left(ended.reason)
        return puller is not None
    copy = _decode_copy(answer.metadata)
    puller = pullers.get((copy.topic, copy.delivery.subscription))
    if puller is None:
        return False
    puller.arrived(answer)
    return True
