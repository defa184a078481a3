"""Durable subscriptions and topics, read without asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from signalhub.client.answers import Lost
from signalhub.client.client import Subscription
from signalhub.client.consumers import Consumer
from signalhub.client.delivery import Settled
from signalhub.client.replay import Replay
from signalhub.client.sync.background import Background, Messages
from signalhub.client.sync.message import SyncMessage


class SyncSubscription:
    """A plain subscription, as returned by `subscribe`."""

    def __init__(self, background: Background, subscription: Subscription) -> None:
        self._background = background
        self._subscription = subscription
        self.topic = subscription.topic

    def __repr__(self) -> str:
        return repr(self._subscription)

    def cancel(self) -> None:
        """Stop receiving the topic. Can be called more than once."""
        self._background.run(self._subscription.cancel())


class SyncReplay:
    """What `Replay` is: an iterator that knows afterwards whether the range is complete."""

    def __init__(self, background: Background, replay: Replay) -> None:
        self._replay = replay
        self._messages = Messages(background, replay)
        self.topic = replay.topic

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        return next(self._messages)

    @property
    def count(self) -> int:
        return self._replay.count

    @property
    def complete(self) -> bool:
        return self._replay.complete

    @property
    def next(self) -> int:
        return self._replay.next

    @property
    def lost(self) -> Lost | None:
        return self._replay.lost


class SyncConsumer:
    """What `Consumer` is: a context manager, and an iterator over messages to settle."""

    def __init__(self, background: Background, consumer: Consumer) -> None:
        self._background = background
        self._consumer = consumer
        self._messages = Messages(background, consumer)

    def __repr__(self) -> str:
        return repr(self._consumer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        return next(self._messages)

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def subscription(self) -> str:
        return self._consumer.subscription

    @property
    def name(self) -> str:
        return self._consumer.name

    @property
    def subscription_id(self) -> str:
        return self._consumer.subscription_id

    @property
    def epoch(self) -> str:
        return self._consumer.epoch

    @property
    def next(self) -> int:
        return self._consumer.next

    @property
    def head(self) -> int:
        return self._consumer.head

    @property
    def lag(self) -> int:
        return self._consumer.lag

    @property
    def recovered(self) -> bool:
        return self._consumer.recovered

    @property
    def lost(self) -> Lost | None:
        return self._consumer.lost

    @property
    def losses(self) -> Mapping[str, Lost]:
        return self._consumer.losses

    @property
    def kept(self) -> frozenset[str]:
        return self._consumer.kept

    @property
    def is_closed(self) -> bool:
        return self._consumer.is_closed

    def credit(self, *, messages: int | None = None, bytes: int | None = None) -> None:
        self._background.run(self._consumer.credit(messages=messages, bytes=bytes))

    def ack_up_to(
        self, seq: int, *, topic: str | None = None, wait: bool = False
    ) -> Settled | None:
        return self._background.run(self._consumer.ack_up_to(seq, topic=topic, wait=wait))

    def wait_closed(self) -> None:
        self._background.run(self._consumer.wait_closed())

    def close(self) -> None:
        self._background.run(self._consumer.close())
