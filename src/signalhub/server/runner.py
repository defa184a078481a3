"""Performs the hub's effects and reports back what became of them.

All writing happens in `_flush`, once per tick of the loop: first every connection with frames of
its own, then one chunk of a large fan-out, so that ten thousand subscribers cannot hold up two
actors talking. Acks are queued only after the target's bytes of the tick were given to the kernel.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from typing import assert_never

from signalhub.clock import Clock
from signalhub.core.effects import Close, Deliver, Effect, FanOut, Forget, Persist, Reply
from signalhub.core.flow import Outbound
from signalhub.core.hub import Hub
from signalhub.core.registry import Recipient, Registration
from signalhub.core.router import FanReceipt, Receipt
from signalhub.core.session import Session
from signalhub.core.tally import Tally
from signalhub.server.connection import CLOSED, Connection, Marks
from signalhub.server.fanout import FanBatch
from signalhub.state.store import RegistrationRow, Store
from signalhub.websocket import CloseCode, text_header

log = logging.getLogger("signalhub.server")

# How long a peer may take to answer our close frame before the socket is dropped.
_CLOSE_GRACE_MS = 1_000


class Runner:
    """The one place where effects become bytes."""

    def __init__(
        self, hub: Hub, store: Store, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.hub = hub
        self.tally: Tally = hub.tally
        self.connections: set[Connection] = set()
        self.frame_bytes_max = hub.settings.frame_bytes_max
        self._bounds = hub.settings.outbound
        self._store = store
        self._now_ms = clock.now_ms
        self._mono_s = clock.mono_s
        self._loop = loop
        self._dirty: list[Connection] = []
        self._bulk: deque[tuple[list[Connection], FanReceipt | None]] = deque()
        self._handed_over: list[Receipt] = []
        self._blocked: set[Connection] = set()
        self._closing: list[tuple[int, int, Connection]] = []
        # The time of the running tick; 0 between ticks.
        self._tick_ms = 0
        self._tick_began_s = 0.0
        self._receive = hub.received
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    # Events of connections.

    def opened(self, connection: Connection) -> Session:
        """A socket was upgraded."""
        self.connections.add(connection)
        self._is_empty.clear()
        return self.hub.opened(connection, self._now_ms())

    def received(self, connection: Connection, payload: bytes) -> None:
        """A message arrived."""
        now = self._tick_ms or self._begin_tick()
        try:
            effects = self._receive(connection.session, payload, now)
        except Exception:
            log.exception("a message could not be handled")
            effects = self.hub.failed(connection.session, payload, now)
        for effect in effects:
            if type(effect) is Deliver:
                self._deliver(effect, now)
            else:
                self._perform_one(effect, now)

    def disconnected(self, connection: Connection) -> None:
        """A socket is gone."""
        now = self._now_ms()
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()
        self._blocked.discard(connection)
        self.perform(self.hub.closed(connection.session, now), now)
        self._abandon(connection, now)

    def drained(self, connection: Connection) -> None:
        """The kernel has taken all the transport held: go on with what waits."""
        now = self._now_ms()
        outbound = connection.session.outbound
        if outbound is None or connection.is_closing:
            return
        outbound.progress_at_ms = now
        self._handed_over.extend(connection.settle())
        while connection.waiting:
            draft = connection.take_waiting(now)
            outbound.drained(draft.count, draft.bytes, now)
            for receipt in draft.expired:
                if receipt is not None:
                    self.perform(self.hub.undelivered(receipt, now), now)
                else:
                    self.tally.expired_tells += 1
            if draft.frames and not self._write(connection, draft.frames, draft.marks):
                self._release(outbound, now)
                return
        connection.session.outbound = None
        connection.waiting = None
        self._blocked.discard(connection)
        self._release(outbound, now)

    def _release(self, outbound: Outbound, now: int) -> None:
        held = outbound.release()
        if held:
            self.perform(self.hub.resume(held, now), now)
        if self._handed_over and not self._tick_ms:
            self._begin_tick()

    def _abandon(self, connection: Connection, now: int) -> None:
        """Whatever was still on its way to a dead socket is reported to those who care."""
        lost = [receipt for _, receipt in connection.held]
        lost += [receipt for _, receipt in connection.marks or ()]
        lost += [receipt for _, _, receipt in connection.waiting or () if receipt is not None]
        connection.held = []
        connection.marks = connection.waiting = None
        connection.queue.clear()
        if connection.fan is not None:
            connection.fan.is_open = False
            connection.fan = None
        for receipt in lost:
            self.perform(self.hub.undelivered(receipt, now), now)
        outbound = connection.session.outbound
        if outbound is not None:
            # Nobody may wait for ever for a reader that will not come back.
            connection.session.outbound = None
            self.perform(self.hub.resume(list(outbound.paused), now), now)

    async def wait_until_empty(self) -> None:
        """Return when the last connection is gone."""
        await self._is_empty.wait()

    # Effects.

    def perform(self, effects: list[Effect], now: int) -> None:
        """Carry out effects in order."""
        for effect in effects:
            self._perform_one(effect, now)

    def _perform_one(self, effect: Effect, now: int) -> None:
        match effect:
            case Reply():
                self._reply(effect, now)
            case Deliver():
                self._deliver(effect, now)
            case FanOut():
                self._fan_out(effect, now)
            case Close(session=session, code=code, reason=reason):
                _connection(session).close(code, reason)
            case Persist(registration=registration):
                self._store.persist(_row(registration))
            case Forget(addresses=addresses):
                self._store.forget(addresses)
            case _:
                assert_never(effect)

    def _deliver(self, effect: Deliver, now: int) -> None:
        session = effect.session
        connection: Connection = session.link  # type: ignore[assignment]
        if session.outbound is not None or connection.is_closing:
            self._park_message(connection, effect, now)
            return
        self.tally.deliveries += 1
        # `_enqueue`, spelled out because every message between two actors passes here.
        if connection.fan is not None:
            connection.fan.is_open = False
            connection.fan = None
        frame = effect.frame
        queue = connection.queue
        queue.append(text_header(len(frame)))
        queue.append(frame)
        if effect.receipt is not None:
            if connection.marks is None:
                connection.marks = []
            connection.marks.append((len(queue), effect.receipt))
        if not connection.is_dirty:
            connection.is_dirty = True
            self._dirty.append(connection)
            if not self._tick_ms:
                self._begin_tick()

    def _reply(self, effect: Reply, now: int) -> None:
        connection = _connection(effect.session)
        frame = effect.frame
        if connection.is_closing:
            return
        if connection.session.outbound is not None:
            self._park(connection, text_header(len(frame)) + frame, None, None, now)
            return
        self._enqueue(connection, frame)

    def _enqueue(self, connection: Connection, frame: bytes) -> None:
        """Queue a frame on a connection that keeps up; it is written at the end of the tick."""
        if connection.fan is not None:
            connection.fan.is_open = False
            connection.fan = None
        queue = connection.queue
        queue.append(text_header(len(frame)))
        queue.append(frame)
        if not connection.is_dirty:
            connection.is_dirty = True
            self._dirty.append(connection)
            if not self._tick_ms:
                self._begin_tick()

    def _park_message(self, connection: Connection, effect: Deliver, now: int) -> None:
        """The target is blocked or closing: the message waits, bounded, or is counted as lost."""
        outbound, receipt = connection.session.outbound, effect.receipt
        if outbound is None or connection.is_closing:
            if receipt is not None:
                self.perform(self.hub.undelivered(receipt, now), now)
            else:
                self.tally.dropped_tells += 1
            return
        frame = text_header(len(effect.frame)) + effect.frame
        if not outbound.admits(len(frame)):
            if receipt is not None:
                self.perform(self.hub.overflowed(receipt, outbound.messages, now), now)
            else:
                self.tally.dropped_tells += 1
            return
        self.tally.deliveries += 1
        self._park(connection, frame, effect.expires_at, receipt, now)
        if outbound.pause(effect.sender, effect.address):
            self.perform(self.hub.hold(effect.sender, effect.address, now), now)

    def _park(
        self,
        connection: Connection,
        frame: bytes,
        expires_at: float | None,
        receipt: Receipt | None,
        now: int,
    ) -> None:
        outbound = connection.session.outbound
        assert outbound is not None
        if connection.waiting is None:
            connection.waiting = deque()
        connection.waiting.append((frame, expires_at, receipt))
        outbound.queued(len(frame))
        if outbound.is_overrun:
            self._close_slow(connection, now)

    def _fan_out(self, effect: FanOut, now: int) -> None:
        audience = effect.audience
        batch: FanBatch | None = audience.batch
        failed = 0
        if batch is not None and batch.is_open:
            batch.add(effect.head, effect.tail)
        else:
            batch = audience.batch = FanBatch()
            batch.add(effect.head, effect.tail)
            self._enlist(batch, audience.recipients, effect)
        for recipient in batch.blocked:
            failed += not self._park_copy(recipient, effect, now)
        queued = batch.joined + len(batch.blocked) - failed
        self.tally.deliveries += queued
        self.perform(self.hub.fanned_out(effect.receipt, queued, failed, now), now)

    def _enlist(self, batch: FanBatch, recipients: list[Recipient], effect: FanOut) -> None:
        """Queue the batch on every connection that keeps up, and line these up for writing."""
        connections = []
        for recipient in recipients:
            connection: Connection = recipient.session.link  # type: ignore[assignment]
            if recipient.session.outbound is not None or connection.is_closing:
                batch.blocked.append(recipient)
                continue
            connection.queue.append((batch, recipient.address_json))
            connection.has_fans = True
            if connection.fan is not None and connection.fan is not batch:
                connection.fan.is_open = False
            connection.fan = batch
            connections.append(connection)
        batch.joined = len(connections)
        receipt = effect.receipt if effect.receipt.topic is None else None
        for start in range(0, len(connections), effect.chunk):
            end = start + effect.chunk
            last = receipt if end >= len(connections) else None
            self._bulk.append((connections[start:end], last))
        if not self._tick_ms:
            self._begin_tick()

    def _park_copy(self, recipient: Recipient, effect: FanOut, now: int) -> bool:
        connection = _connection(recipient.session)
        outbound = recipient.session.outbound
        if connection.is_closing:
            return False
        payload = b"".join((effect.head, recipient.address_json, effect.tail))
        if outbound is None:
            # It has caught up since the batch was opened.
            self._enqueue(connection, payload)
            return True
        if not outbound.admits(len(payload)):
            self.tally.dropped_tells += 1
            return False
        frame = text_header(len(payload)) + payload
        self._park(connection, frame, effect.receipt.expires_at, None, now)
        return True

    # Writing.

    def _begin_tick(self) -> int:
        """All that happens before the next flush happens at one time; the flush ends it."""
        self._tick_ms = now = self._now_ms()
        self._tick_began_s = self._mono_s()
        self._loop.call_soon(self._flush)
        return now

    def _flush(self) -> None:
        self._tick_ms = 0
        began_s = self._tick_began_s
        self._write_dirty()
        if self._bulk:
            connections, broadcast = self._bulk.popleft()
            for connection in connections:
                if connection.queue:
                    self.write_out(connection)
            if broadcast is not None:
                took_ms = self._now_ms() - broadcast.received_at_ms
                self.tally.broadcast_latency.observe(took_ms / 1000)
        while self._handed_over:
            receipts, self._handed_over = self._handed_over, []
            now = self._now_ms()
            for receipt in receipts:
                self.perform(self.hub.handed_over(receipt, now), now)
            self._write_dirty()
        self.tally.delivery_latency.observe(self._mono_s() - began_s)
        if self._bulk and not self._tick_ms:
            self._begin_tick()

    def _write_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.is_dirty = False
            if connection.queue:
                self.write_out(connection)

    def write_out(self, connection: Connection) -> None:
        """Write what one connection has queued; it is blocked if the kernel takes less."""
        queue = connection.queue
        if not queue:
            return
        pieces: list[bytes]
        if connection.has_fans:
            pieces, count = connection.render()
            connection.queue = []
        else:
            pieces, count = queue, len(queue) >> 1  # type: ignore[assignment]
        connection.session.sent += count
        self.tally.sent += count
        marks, connection.marks = connection.marks, None
        self._write(connection, pieces, marks)
        pieces.clear()

    def _write(self, connection: Connection, pieces: list[bytes], marks: Marks | None) -> bool:
        """Write; hand over what the kernel took. `False` when it did not take everything."""
        data = b"".join(pieces)
        written = connection.write(data)
        if written == len(data):
            if marks:
                self._handed_over.extend([receipt for _, receipt in marks])
            return True
        if written == CLOSED:
            # Reported as lost when the connection is gone.
            connection.marks = marks
            return False
        if marks:
            self._handed_over.extend(connection.hold(marks, pieces, written))
        self.block(connection)
        return False

    def block(self, connection: Connection) -> None:
        """The transport holds bytes the kernel does not take: from now on frames wait."""
        if connection.session.outbound is None:
            connection.session.outbound = Outbound(self._bounds, self._now_ms())
        connection.buffered_bytes = connection.unsent_bytes
        self._blocked.add(connection)

    def send_control(self, connection: Connection, frame: bytes) -> None:
        """A pong; it may overtake queued messages but not break one."""
        if connection.is_writable:
            self._write(connection, [frame], None)

    # Time.

    def closing(self, connection: Connection) -> None:
        """The peer has a moment to answer our close frame."""
        is_flushed = connection.unsent_bytes == 0
        grace_ms = _CLOSE_GRACE_MS if is_flushed else int(self.hub.settings.drain_s * 1000)
        heapq.heappush(self._closing, (self._now_ms() + grace_ms, id(connection), connection))

    def sweep(self) -> None:
        """Several times a second: drop what does not close, close who does not read."""
        now = self._now_ms()
        while self._closing and self._closing[0][0] <= now:
            heapq.heappop(self._closing)[2].abort()
        for connection in list(self._blocked):
            outbound = connection.session.outbound
            if outbound is None:
                continue
            unsent = connection.unsent_bytes
            if unsent < connection.buffered_bytes:
                outbound.progress_at_ms = now
                self._handed_over.extend(connection.settle())
            connection.buffered_bytes = unsent
            if outbound.is_stalled(now):
                self._close_slow(connection, now)
        if self._handed_over and not self._tick_ms:
            self._begin_tick()

    def _close_slow(self, connection: Connection, now: int) -> None:
        if connection.is_closing:
            return
        self.tally.slow_closed += 1
        log.warning("a slow consumer was closed", extra={"session": connection.session.id})
        self._blocked.discard(connection)
        self.perform(self.hub.closed(connection.session, now), now)
        self._abandon(connection, now)
        connection.close(CloseCode.POLICY_VIOLATION, "slow consumer")

    def depth(self) -> int:
        """Messages waiting for readers that do not keep up."""
        waiting = 0
        for connection in self._blocked:
            if connection.session.outbound is not None:
                waiting += connection.session.outbound.messages
        return waiting


def _connection(session: Session) -> Connection:
    connection = session.link
    assert isinstance(connection, Connection)
    return connection


def _row(registration: Registration) -> RegistrationRow:
    return RegistrationRow(
        address=registration.address,
        capabilities=list(registration.capabilities),
        metadata_json=registration.metadata,
        registered_at=registration.registered_at_ms,
        expires_at=registration.expires_at_ms(),
        lease_ms=registration.lease_ms,
        version=registration.version,
    )
