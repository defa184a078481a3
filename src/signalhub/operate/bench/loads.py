"""The loads, as the clients of one process make them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from signalhub.client import Client, Message, Reconnect, Room, connect
from signalhub.client.transport.link import NotOpened
from signalhub.operate.bench.latencies import Latencies
from signalhub.operate.bench.plan import LoadPlan
from signalhub.wire.errors import ClientError

# How many connections are opened at once, and how often a busy hub is asked again.
_OPENING: Final = 16
_ATTEMPTS: Final = 100
_TYPE: Final = "bench:message"
_ANSWER: Final = "bench:answer"
_SUBSCRIPTION: Final = "bench"
_IN_PROGRESS_MAX: Final = 20_000
_QUIET_NS: Final = 500_000_000


class Meter:
    """What one process has seen."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.lags = Latencies()  # How late messages were begun by this process itself.
        self.sent = 0
        self.received = 0
        self.failed: Counter[str] = Counter()
        self.last_ns = 0

    def arrived(self, due_ns: int) -> None:
        """Something that was due at this time has come to its end."""
        now_ns = time.monotonic_ns()
        self.latencies.add((now_ns - due_ns) // 1_000)
        self.received += 1
        self.last_ns = max(self.last_ns, now_ns)


class Load:
    """One kind of load: `prepare`, then `fire` for every message, then `finish`."""

    def __init__(self, plan: LoadPlan, process: int, url: str, token: str | None) -> None:
        self.plan = plan
        self.process = process
        self.meter = Meter()
        self.clients: list[Client] = []
        self.expected: int | None = None  # What this process waits for at the end, if it knows.
        self._url = url
        self._token = token
        self._stack = AsyncExitStack()
        self._filler = "x" * plan.size

    async def prepare(self) -> None:
        """Connect, and whatever else comes before the first message."""
        await self._connect(self.plan.clients_of(self.process))

    async def fire(self, number: int, due_ns: int) -> None:
        """Send a message and see it through."""
        raise NotImplementedError

    @property
    def is_sender(self) -> bool:
        return True

    async def finish(self) -> None:
        await self._stack.aclose()

    def content(self, due_ns: int) -> dict[str, Any]:
        return {"due": due_ns, "fill": self._filler}

    def by_turns(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    def next_of(self, client: Client) -> Client:
        """The client that gets what this one sends."""
        return self.clients[(self.clients.index(client) + 1) % len(self.clients)]

    def count_messages(self) -> None:
        """Count messages where they arrive."""
        for client in self.clients:
            client.on(_TYPE, self.noted)

    def noted(self, message: Message) -> None:
        self.meter.arrived(message.payload["due"])

    def opening(self, number: int) -> Awaitable[Client]:
        address = self.plan.address(number)
        # A load that loses its connection has failed; reconnecting would hide it for a while.
        quick = Reconnect(first_jitter_s=0.5, cap_s=2.0, attempts_max=5)
        return connect(self._url, address, token=self._token, reconnect=quick)

    async def _connect(self, numbers: Iterable[int]) -> None:
        room = asyncio.Semaphore(_OPENING)

        async def one(number: int) -> Client:
            async with room:
                return await patiently(lambda: self.opening(number))

        self.clients = await asyncio.gather(*map(one, numbers))
        for client in self.clients:
            self._stack.push_async_callback(client.close)


async def patiently(opening: Callable[[], Awaitable[Client]]) -> Client:
    """Connect; a hub that accepts no more connections for now is asked again."""
    for attempt in range(_ATTEMPTS):
        try:
            return await opening()
        except NotOpened as error:
            if not error.is_temporary or attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(max(0.1, min(error.retry_after_s, 2.0)))
    raise AssertionError("unreachable")


class Tells(Load):
    """Tells from client to client; a latency ends where the message arrives."""

    async def prepare(self) -> None:
        await super().prepare()
        self.count_messages()

    async def fire(self, number: int, due_ns: int) -> None:
        sender = self.by_turns(number)
        await sender.tell(self.next_of(sender).address, _TYPE, self.content(due_ns))


class Asks(Load):
    """Asks from client to client; a latency ends with the hub's receipt."""

    async def prepare(self) -> None:
        await super().prepare()
        for client in self.clients:
            client.on(_TYPE, lambda _: None)

    async def fire(self, number: int, due_ns: int) -> None:
        sender = self.by_turns(number)
        await sender.ask(self.next_of(sender).address, _TYPE, self.content(due_ns), attempts=1)
        self.meter.arrived(due_ns)


class RoundTrips(Load):
    """Tells that are answered with a tell; a latency ends with the answer."""

    async def prepare(self) -> None:
        await super().prepare()
        for client in self.clients:
            client.on(_TYPE, self._answering(client))
            client.on(_ANSWER, self.noted)

    def _answering(self, client: Client) -> Callable[[Message], Awaitable[None]]:
        async def answer(message: Message) -> None:
            await client.tell(message.sender, _ANSWER, message.payload)

        return answer

    async def fire(self, number: int, due_ns: int) -> None:
        sender = self.by_turns(number)
        await sender.tell(self.next_of(sender).address, _TYPE, self.content(due_ns))


class FanOut(Load):
    """Publications to a topic to which all clients subscribe; every copy counts."""

    async def prepare(self) -> None:
        await super().prepare()
        self.count_messages()
        for client in self.clients:
            await client.subscribe(self.plan.topic)
        self.expected = self.plan.messages * len(self.clients)

    @property
    def is_sender(self) -> bool:
        return self.process == 0

    async def fire(self, number: int, due_ns: int) -> None:
        await self.clients[0].publish(self.plan.topic, _TYPE, self.content(due_ns))


class DurablePublishes(Load):
    """Publications to a durable topic; a latency ends when the hub has stored the message."""

    async def fire(self, number: int, due_ns: int) -> None:
        content = self.content(due_ns)
        await self.by_turns(number).publish(
            self.plan.topic, _TYPE, content, durable=True, attempts=1
        )
        self.meter.arrived(due_ns)


class Consuming(Load):
    """Publications to a durable topic with a consumer in each process, which acknowledges."""

    async def prepare(self) -> None:
        await super().prepare()
        consumer = await self.clients[0].consume(
            self.plan.topic,
            _SUBSCRIPTION,
            mode="shared",
            consumer=f"bench-{self.process}",
            handler=self.noted,
        )
        self._stack.push_async_callback(consumer.close)

    async def fire(self, number: int, due_ns: int) -> None:
        content = self.content(due_ns)
        await self.by_turns(number).publish(
            self.plan.topic, _TYPE, content, durable=True, attempts=1
        )


class Connecting(Load):
    """Connections, each with hello and registration; a latency ends when it can be used."""

    async def prepare(self) -> None:
        self._room = asyncio.Semaphore(max(1, len(self.plan.clients_of(self.process))))

    async def fire(self, number: int, due_ns: int) -> None:
        async with self._room:
            # One address for each, so that none takes it from another.
            client = await self.opening(number)
            self.meter.arrived(due_ns)
            await client.close()


class RoomPosts(Load):
    """Messages to a room of which all clients are members; every copy counts."""

    def __init__(self, plan: LoadPlan, process: int, url: str, token: str | None) -> None:
        super().__init__(plan, process, url, token)
        self._rooms: list[Room] = []
        self._reading: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await super().prepare()
        for client in self.clients:
            room = await client.room(f"bench-{self.plan.run}", since=None)
            self._rooms.append(room)
            self._reading.append(asyncio.create_task(self._read(room)))
        self.expected = self.plan.messages * len(self.clients)

    async def _read(self, room: Room) -> None:
        async for message in room:
            self.meter.arrived(int.from_bytes(message.ciphertext[:8], "big"))

    @property
    def is_sender(self) -> bool:
        return self.process == 0

    async def fire(self, number: int, due_ns: int) -> None:
        room = self._rooms[number % len(self._rooms)]
        await room.send(due_ns.to_bytes(8, "big") + bytes(self.plan.size))

    async def finish(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await super().finish()


LOADS: Final[dict[str, type[Load]]] = {
    "tell": Tells,
    "ask": Asks,
    "rtt": RoundTrips,
    "fanout": FanOut,
    "durable": DurablePublishes,
    "consume": Consuming,
    "connect": Connecting,
    "room": RoomPosts,
}


async def drive(load: Load, start_ns: int, grace_s: float) -> None:
    """Begin every message when it is due, and wait for the last one, but not for ever."""
    plan, meter = load.plan, load.meter
    senders = 1 if _is_single(load) else plan.processes
    tasks: set[asyncio.Task[None]] = set()
    for number in range(load.process if senders > 1 else 0, plan.messages, senders):
        if not load.is_sender:
            break
        due_ns = start_ns + round(number * 1e9 / plan.rate)
        if (wait_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
            await asyncio.sleep(wait_s)
        elif not number % 64:
            await asyncio.sleep(0)
        meter.lags.add((time.monotonic_ns() - due_ns) // 1_000)
        if len(tasks) >= _IN_PROGRESS_MAX:
            meter.failed["not_begun"] += 1
            continue
        meter.sent += 1
        task = asyncio.create_task(_watched(load.fire(number, due_ns), meter))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    end_ns = start_ns + round(plan.messages * 1e9 / plan.rate) + round(grace_s * 1e9)
    await _all_seen(load, tasks, end_ns)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_single(load: Load) -> bool:
    return isinstance(load, FanOut | RoomPosts)


async def _all_seen(load: Load, tasks: set[asyncio.Task[None]], end_ns: int) -> None:
    """Wait until nothing is open, or the time is up."""
    meter = load.meter
    expected = meter.sent if load.expected is None else load.expected
    while time.monotonic_ns() < end_ns:
        if isinstance(load, Consuming):
            # Another process may get what this one has sent.
            is_complete = time.monotonic_ns() - meter.last_ns > _QUIET_NS
        else:
            is_complete = meter.received + meter.failed.total() >= expected
        if not tasks and is_complete:
            return
        await asyncio.sleep(0.02)


async def _watched(firing: Awaitable[None], meter: Meter) -> None:
    try:
        await firing
    except ClientError as error:
        meter.failed[error.code] += 1
