"""Reading a durable subscription."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from signalhub.client.answers import Lost
from signalhub.client.arrivals import Handler, MessageQueue
from signalhub.client.delivery import Settled
from signalhub.client.lifecycle import Resource
from signalhub.client.message import Message
from signalhub.client.protocol.frame import Request
from signalhub.client.protocol.protocol import LinkPhase
from signalhub.client.protocol.restore import Seat
from signalhub.client.settle import DeliverySettler, PatternSettler
from signalhub.client.stream_requests import Credit, Leave
from signalhub.client.transport.runner import ClientRunner
from signalhub.wire.errors import Code, OutcomeUnknown, Refused, Unavailable

_GONE = frozenset({Code.NOT_A_CONSUMER, Code.UNKNOWN_SUBSCRIPTION, Code.UNKNOWN_TOPIC})


class Consumer(Resource):
    """One consumer of a durable subscription: `async for message in consumer`.

    It survives reconnecting: it joins the subscription again under the same consumer name and drops
    messages that were received but not yet returned, because the hub redelivers them. The iteration
    ends when the consumer or its client is closed, or raises what else ended it: `Unsubscribed`
    if the hub ended it, `Refused` if it could not join again, `GaveUp` if the client has given up.
    """

    def __init__(
        self,
        runner: ClientRunner,
        seat: Seat,
        settler: DeliverySettler | PatternSettler,
        queue: MessageQueue,
    ) -> None:
        self._runner = runner
        self._seat = seat
        self._settler = settler
        self._queue = queue
        self._is_serving = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._is_serving:
            raise RuntimeError("the messages of this consumer go to its handler")
        return await self._queue.next()

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.subscription}, topic {self.topic}>"

    @property
    def topic(self) -> str:
        """The topic, or the pattern of all topics; `message.topic` has that of a message."""
        return self._seat.key.topic

    @property
    def subscription(self) -> str:
        return self._seat.key.subscription

    @property
    def name(self) -> str:
        """The consumer's name; another consumer that joins under it takes over."""
        return str(self._seat.terms["consumer"])

    @property
    def subscription_id(self) -> str:
        """The hub's id of this consumer on the current connection."""
        return self._seat.subscription_id

    @property
    def epoch(self) -> str:
        """The topic's epoch; positions of different epochs cannot be compared.

        A pattern has none, and neither `next` nor `head`: every topic has its own.
        """
        return self._seat.epoch

    @property
    def next(self) -> int:
        """The next position to be delivered, as of the last join."""
        return self._seat.next

    @property
    def head(self) -> int:
        """The last position of the topic, as of the last join."""
        return self._seat.head

    @property
    def lag(self) -> int:
        """How many messages were unsettled, as of the last join."""
        return self._seat.lag

    @property
    def recovered(self) -> bool:
        """Whether every message after the last position was available, as of the last join."""
        return self._seat.recovered

    @property
    def lost(self) -> Lost | None:
        """The positions that were no longer available, as of the last join."""
        return self._seat.lost

    @property
    def losses(self) -> Mapping[str, Lost]:
        """The same by topic, also for a pattern."""
        return self._seat.losses

    @property
    def kept(self) -> frozenset[str]:
        """Options by their names on the wire whose values this consumer asked to change, in vain.

        As of the last join: the subscription exists, and this session may not manage it.
        """
        return self._seat.kept

    @property
    def is_closed(self) -> bool:
        return self._queue.ended.is_set()

    def serve(self, handler: Handler) -> None:
        """Give the messages to a handler, one at a time."""
        self._is_serving = True
        self._queue.serve(handler, repr(self))

    async def credit(self, *, messages: int | None = None, bytes: int | None = None) -> None:
        """Set how many messages or bytes this consumer may have unsettled; 0 pauses it.

        It applies to the current connection; a new one starts with the consumer's window.
        """
        credit = Credit(self.subscription_id, messages, bytes)
        await self._runner.call(self._runner.request(credit))

    async def ack_up_to(
        self, seq: int, *, topic: str | None = None, wait: bool = False
    ) -> Settled | None:
        """Acknowledge everything up to a position; only in modes `exclusive` and `failover`.

        With a pattern, `topic` says which topic is meant.
        """
        if isinstance(self._settler, DeliverySettler):
            return await self._settler.ack_up_to(self.epoch, seq, wait=wait)
        if topic is None:
            raise ValueError(f"{self!r} reads many topics; name one with `topic=`")
        settler = self._settler.of(topic)
        return await settler.ack_up_to(self._seat.progress_of(topic).epoch or "", seq, wait=wait)

    async def wait_closed(self) -> None:
        """Wait until the consumer ends; raises the error that ended it, unless it was closed."""
        await self._queue.ended.wait()
        if self._queue.failure is not None:
            raise self._queue.failure.with_traceback(None)

    async def close(self) -> None:
        """Leave the subscription, which keeps its position. Can be called more than once."""
        if _left(self._runner, self._seat):
            try:
                with suppress(OutcomeUnknown, Unavailable):
                    await self._leave()
            except Refused as error:
                if error.code not in _GONE:
                    raise
        await self._queue.close()

    async def _leave(self) -> None:
        """Tell the hub; without a connection there is nothing to leave."""
        match self._runner.protocol.phase:
            case LinkPhase.READY:
                await self._runner.call(_leaving(self._runner, self._seat))
            case LinkPhase.RESTORING:
                # It may just be joining again, so it leaves as soon as that is done.
                self._runner.post(_leaving(self._runner, self._seat))


async def join(runner: ClientRunner, seat: Seat, handler: Handler | None) -> Consumer:
    """Join the subscription."""
    queue = runner.arrivals.open_queue(seat.key)
    consumer = Consumer(runner, seat, runner.settlers.add(seat), queue)
    runner.protocol.membership.seated(seat)
    if handler is not None:
        consumer.serve(handler)
    try:
        request = seat.request(runner.protocol.frames, runner.now().wall_ms)
        await runner.call(request, seat=seat)
    except BaseException as error:
        _left(runner, seat)
        # The hub may have granted it, or may still do so.
        if runner.is_ready and not isinstance(error, Refused):
            runner.post(_leaving(runner, seat))
        await queue.close()
        raise
    return consumer


def _left(runner: ClientRunner, seat: Seat) -> bool:
    """Leave the subscription; return `False` if it was already left."""
    if not runner.protocol.membership.left(seat):
        return False
    runner.settlers.remove(seat.key)
    runner.arrivals.end_queue(seat.key)
    return True


def _leaving(runner: ClientRunner, seat: Seat) -> Request:
    return runner.request(Leave(*seat.key), sender=seat.address)
