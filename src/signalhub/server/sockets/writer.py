"""Writes to clients, once per tick.

A tick starts with the first event after a flush and ends with the next flush. The flush writes
every connection with direct messages, then a limited number of those that only wait for a large
fan-out, so that ten thousand subscribers do not delay two actors. Acks are queued only after the
bytes for the target were handed over to the kernel.

A connection whose kernel buffer is full is *blocked* until its transport has drained. A client that
reads nothing for too long is closed; one that does not answer the close frame is aborted. Both use
the monotonic clock, because the wall clock may jump.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from signalhub import native
from signalhub.clock import SteadyClock
from signalhub.core.effects import Effect
from signalhub.core.hub import Hub
from signalhub.core.messages.ask import AskReceipt, FanReceipt
from signalhub.core.sessions.outbound import Outbound
from signalhub.core.subscriptions.window import Attempt
from signalhub.engine.port import Unwritten
from signalhub.server.sockets.buffers import ReadBuffers
from signalhub.server.sockets.connection import CLOSED, Connection, Party
from signalhub.server.sockets.fan_out import Cut
from signalhub.server.sockets.ledger import Ledger
from signalhub.server.sockets.meter import charge_of, grant_of, limits_of
from signalhub.server.sockets.pieces import Draft, Marks
from signalhub.wire.frames import CloseCode

if native.IS_ON or TYPE_CHECKING:
    from signalhub_native import send_joined

_send_joined = send_joined if native.IS_ON else None

log = logging.getLogger("signalhub.server")

# The most that is read from a socket at once.
READ_BYTES = 2**16
# Of a fan-out, a recipient counts once for each of these bytes.
_BULK_BYTES = 2**14
# How much of a fan-out is written at once.
_AT_ONCE_BYTES = 2**22
# How long a peer may take to answer a close frame before the socket is aborted.
_CLOSE_GRACE_S = 1.0
# How long a connection may go on before it waits for the next tick: longer if a frame takes less
# than `_CHEAP_S`, as a tell does on most machines and a malformed message does not.
_TURN_S = 0.0005
_CHEAP_TURN_S = 0.001
_CHEAP_S = 0.000_008
# How long a tick may be before no connection reads twice in it.
_TICK_S = 0.008
# So that a clock that stands still or jumps does not stop a connection for long.
_PAUSE_S_MAX = 0.25


class Crowd:
    """Connections that are written the same frames, but for the address in them."""

    __slots__ = ("addresses", "connections", "count", "cut", "fds")

    def __init__(self, cut: Cut, count: int) -> None:
        self.cut = cut
        # The messages for each of them.
        self.count = count
        self.connections: list[Connection[Party]] = []
        self.fds: list[int] = []
        self.addresses: list[bytes] = []


class Debtor(Protocol):
    """A connection that is not a WebSocket and has not read its answer."""

    @property
    def buffered_bytes(self) -> int:
        """What its transport holds."""

    @property
    def debt_bytes(self) -> int:
        """Everything that waits for it."""

    def give_up(self) -> None:
        """Close at once."""


class Writer:
    """Tracks which connections have frames to write, are blocked, or are closing."""

    def __init__(
        self,
        hub: Hub,
        clock: SteadyClock,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[list[Effect], int], None],
        ending: Callable[[int], None],
        flushed: Callable[[], None],
        unwritten: Unwritten,
    ) -> None:
        self._hub = hub
        self._tally = hub.tally
        self._bulk_budget = hub.settings.broadcast_batch
        # The first chunk of a fan-out gets a whole tick.
        self._is_bulk_new = False
        self._now_ms = clock.now_ms
        self._time_at = clock.at
        self._wall_ms = clock.wall_ms
        self._wall = hub.wall
        self.mono_s = self._mono_s = clock.mono_s
        self.limits = limits_of(hub.settings)
        self.grant = grant_of(self.limits)
        self.charged = charge_of(self.limits)
        # The most grants a connection may have in a tick.
        self._grants_max = self.limits.frames_per_tick // self.grant - 1
        self.ledger = Ledger()
        self.read_buffers = ReadBuffers()
        # What connections read into, one after the other.
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self._bytes_max = hub.settings.outbound.total_bytes_max
        # Bytes in transports and in large read buffers when they were looked at last.
        self._buffered_bytes = 0
        self._others: Callable[[], Iterable[Debtor]] = tuple
        self._ticks = 0
        # Connections with unhandled frames: for the next tick, and all that were held back lately.
        self._postponed: list[Connection[Party]] = []
        self._postponed_in = 0
        self._held_back: set[Connection[Party]] = set()
        # What waits for the disk, and connections with too much of it.
        self.unwritten = unwritten
        self._ahead: list[Connection[Party]] = []
        self._loop = loop
        self._perform = perform
        self._ending = ending
        self._flushed = flushed
        self.dirty: list[Connection[Party]] = []
        # What all queues held that were written.
        self._offered_bytes = 0
        # Connections waiting for a large fan-out, each once; a receipt marks a broadcast's end.
        self._bulk: deque[Connection[Party] | FanReceipt] = deque()
        self._handed_over: list[AskReceipt | Attempt] = []
        self._blocked: set[Connection[Party]] = set()
        self._closing: list[tuple[float, int, Connection[Party]]] = []
        # The time of the running tick; 0 between ticks.
        self.tick_ms = 0
        self.tick_began_s = 0.0

    def begin_tick(self) -> int:
        """Start a tick: all events until the next flush share one time."""
        self.tick_began_s = began_s = self._mono_s()
        self.tick_ms = now = self._time_at(began_s)
        self._wall.ahead_ms = self._wall_ms() - now
        self._ticks += 1
        self._loop.call_soon(self._flush)
        return now

    def current_tick(self) -> int:
        """Return the number of the running tick; start one if there is none."""
        if not self.tick_ms:
            self.begin_tick()
        return self._ticks

    def grants_again(self, grants: int, began_s: float) -> bool:
        """May a connection that had `grants` in this tick, and began a turn then, have another?"""
        if grants >= self._grants_max:
            return False
        took_s = self._mono_s() - began_s
        return took_s < _TURN_S or took_s < min(_CHEAP_TURN_S, grants * self.grant * _CHEAP_S)

    @property
    def is_tick_long(self) -> bool:
        """Has the running tick lasted so long that it is the turn of others?"""
        return bool(self.tick_ms) and self._mono_s() - self.tick_began_s >= _TICK_S

    def postpone(self, connection: Connection[Party], wait_s: float) -> None:
        """Let the connection go on in the next tick, or after a pause."""
        self.revisit(connection)
        if wait_s > 0:
            self._loop.call_later(min(wait_s, _PAUSE_S_MAX), self._line_up, connection)
        else:
            self._line_up(connection)

    def await_log(self, connection: Connection[Party]) -> None:
        """Let the connection go on when the log has."""
        self.revisit(connection)
        self._ahead.append(connection)

    def log_went_on(self) -> None:
        """Entries were committed or refused: those who waited for that may go on."""
        ahead, self._ahead = self._ahead, []
        for connection in ahead:
            self._line_up(connection)

    def revisit(self, connection: Connection[Party]) -> None:
        """Look at the connection from time to time, until it needs nothing special."""
        self._held_back.add(connection)

    def _line_up(self, connection: Connection[Party]) -> None:
        if not self._postponed:
            self._postponed_in = self._ticks
            self._loop.call_soon(self._go_on)
        self._postponed.append(connection)

    def _go_on(self) -> None:
        if self.tick_ms and self._ticks == self._postponed_in:
            # Still the tick that they have used up.
            self._loop.call_soon(self._go_on)
            return
        postponed, self._postponed = self._postponed, []
        tick = self.current_tick()
        for at, connection in enumerate(postponed):
            if at and self.is_tick_long:
                # The others go on in the next tick, before those that have had their turn.
                later, self._postponed = self._postponed, []
                for one in (*postponed[at:], *later):
                    self._line_up(one)
                break
            try:
                connection.go_on(tick)
            except Exception:
                self._give_up(connection)

    def close_flood(self, connection: Connection[Party]) -> None:
        """Close a connection whose client sends more than its rates all the time."""
        if connection.is_closing:
            return
        self._tally.floods_closed += 1
        log.warning("a flooding client was closed", extra={"session": connection.session.id})
        connection.owner.leaving(connection)
        connection.close(CloseCode.POLICY_VIOLATION, "too many frames or bytes")

    def mark(self, connection: Connection[Party]) -> None:
        """Write the connection in this tick."""
        if not connection.is_dirty:
            connection.is_dirty = True
            self.dirty.append(connection)
            if not self.tick_ms:
                self.begin_tick()

    def mark_all(
        self,
        connections: list[Connection[Party]],
        audience: int,
        at_once: int,
        size: int,
        broadcast: FanReceipt | None,
    ) -> None:
        """Write the connections of a fan-out: `at_once` in this tick, the others in later ones.

        Fewer at once if the copies are large, so that others do not have to wait for them.

        While an earlier large fan-out is running, a publish to a large `audience` is queued behind
        it, even if few of them are left to be queued: each connection is written once for both. A
        broadcast is not, because its sender is told that the first chunk was delivered.
        """
        at_once = min(at_once, max(1, _AT_ONCE_BYTES // size))
        if self._bulk and broadcast is None and audience > at_once:
            at_once = 0
        if not self._bulk and at_once < len(connections):
            self._is_bulk_new = True
        for connection in connections[:at_once]:
            if not connection.is_dirty:
                connection.is_dirty = True
                self.dirty.append(connection)
        for connection in connections[at_once:]:
            if not connection.is_in_bulk:
                connection.is_in_bulk = True
                self._bulk.append(connection)
        if broadcast is not None:
            self._bulk.append(broadcast)
        if (self._bulk or self.dirty) and not self.tick_ms:
            self.begin_tick()

    def _flush(self) -> None:
        try:
            self._ending(self.tick_ms)
            self._write_dirty()
            if self._is_bulk_new:
                self._is_bulk_new = False
            else:
                self._write_bulk()
            self._acknowledge()
            if self.ledger.bytes + self._buffered_bytes > self._bytes_max:
                self._collect_debts()
            self._tally.delivery_latency.observe(self._mono_s() - self.tick_began_s)
            self._flushed()
        finally:
            # Even after an exception the next event must be able to start a tick.
            self.tick_ms = 0
            if self._bulk or self.dirty or self._handed_over or self._hub.has_woken:
                self.begin_tick()

    def _acknowledge(self) -> None:
        while self._handed_over:
            receipts, self._handed_over = self._handed_over, []
            now = self._now_ms()
            self._perform(self._hub.handed_over(receipts, now), now)
            self._write_dirty()

    def _write_dirty(self) -> None:
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.is_dirty = False
        self._write_each(dirty)

    def _write_each(self, connections: Iterable[Connection[Party]]) -> None:
        """Write the queues of many connections.

        For those with nothing but a fan-out, a run or one message it does the same as `write_out`,
        with fewer calls.
        """
        sent = 0
        send_joined = _send_joined
        crowd: Crowd | None = None
        data: bytes | None
        for connection in connections:
            queue = connection.queue
            data = marks = None
            try:
                if len(queue) == 1:
                    # A message is queued as header and body, so this is a fan-out.
                    only = queue[0]
                    assert isinstance(only, tuple)
                    batch, recipient, begin = only
                    if not batch.is_large:
                        count = tells = batch.count - begin
                        cut = batch.cut(recipient, begin)
                        connection.fan = None
                        connection.has_fans = False
                        if send_joined is not None and connection.can_be_sent_to:
                            queue.clear()
                            self._offered_bytes += cut.size
                            if crowd is None or crowd.cut is not cut:
                                if crowd is not None:
                                    sent += self._send(crowd)
                                crowd = Crowd(cut, count)
                            crowd.connections.append(connection)
                            crowd.fds.append(connection.fd)
                            crowd.addresses.append(recipient.address_json)
                            continue
                        data = recipient.address_json.join(cut.pieces)
                elif len(queue) == 2 and not connection.has_fans:
                    count = 1 + connection.queued_in_runs
                    # All of them are replies, or none.
                    tells = 0 if connection.queued_replies else count
                    connection.queued_replies = connection.queued_in_runs = 0
                    head, data = queue  # type: ignore[assignment]
                    if head:
                        data = head + data  # type: ignore[operator]
                    marks = connection.marks
                    if marks is not None:
                        tells, connection.marks = 0, None
                if data is None:
                    self._offered_bytes += self.write_out(connection)
                    continue
                queue.clear()
                size = len(data)
                self._offered_bytes += size
                written = connection.write(data, [data])
                if written == size:
                    connection.session.sent += count
                    sent += count
                    if marks is not None:
                        self._handed_over += [receipt for _, receipt in marks]
                else:
                    # In one piece now.
                    marks = marks and [(1, receipt) for _, receipt in marks]
                    self._wrote(connection, written, size, [data], count, tells, marks)
            except Exception:
                self._give_up(connection)
        if crowd is not None:
            sent += self._send(crowd)
        self._tally.sent += sent

    def _send(self, crowd: Crowd) -> int:
        """Write the same frames to many with one call; return how many messages were written."""
        connections, cut, count = crowd.connections, crowd.cut, crowd.count
        assert _send_joined is not None
        try:
            short = dict(_send_joined(cut.pieces, crowd.fds, crowd.addresses))
        except Exception:
            for connection in connections:
                self._give_up(connection)
            return 0
        sent = 0
        for at, connection in enumerate(connections):
            if at in short:
                try:
                    data = crowd.addresses[at].join(cut.pieces)
                    written = connection.sent_short(data, short[at])
                    self._wrote(connection, written, cut.size, [data], count, count, None)
                except Exception:
                    self._give_up(connection)
            else:
                connection.session.sent += count
                sent += count
        return sent

    def write_replies(self, connection: Connection[Party], frames: bytes, count: int) -> None:
        """Write the complete frames of so many replies: now, unless something is queued."""
        if connection.queue:
            connection.queue_replies(frames, count)
            return
        try:
            size = len(frames)
            written = connection.write(frames, [frames])
            if written == size:
                connection.session.sent += count
                self._tally.sent += count
            else:
                self._wrote(connection, written, size, [frames], count, 0, None)
        except Exception:
            self._give_up(connection)

    def _give_up(self, connection: Connection[Party]) -> None:
        """Log an exception and abort the connection, so that others are not affected."""
        log.exception(
            "a connection could not be written to", extra={"session": connection.session.id}
        )
        connection.abort()

    def _write_bulk(self) -> None:
        if self._bulk:
            self._write_each(self._next_in_bulk())

    def _next_in_bulk(self) -> Iterator[Connection[Party]]:
        """Connections that wait for a large fan-out, as many as a tick may write."""
        budget = self._bulk_budget
        while self._bulk and budget > 0:
            next_one = self._bulk.popleft()
            if isinstance(next_one, FanReceipt):
                took_ms = self._now_ms() - next_one.received_at_ms
                self._tally.broadcast_latency.observe(took_ms / 1000)
                continue
            next_one.is_in_bulk = False
            if next_one.queue:
                before = self._offered_bytes
                yield next_one
                budget -= 1 + (self._offered_bytes - before) // _BULK_BYTES

    def write_out(self, connection: Connection[Party]) -> int:
        """Write the queue of a connection; block it if the kernel accepts only part.

        Returns the bytes of the queue.
        """
        queue = connection.queue
        if not queue:
            return 0
        pieces: list[bytes]
        if connection.has_fans:
            pieces, count = connection.render()
            queue.clear()
        else:
            pieces, count = queue, len(queue) >> 1  # type: ignore[assignment]
        count += connection.queued_in_runs
        # A run is complete already.
        data = pieces[1] if len(pieces) == 2 and not pieces[0] else b"".join(pieces)
        size = len(data)
        written = connection.write(data, pieces)
        marks = connection.marks
        if written == size and marks is None:
            connection.session.sent += count
            self._tally.sent += count
        else:
            connection.marks = None
            tells = count - connection.queued_replies - len(marks or ())
            self._wrote(connection, written, size, pieces, count, tells, marks)
        connection.queued_replies = connection.queued_in_runs = 0
        pieces.clear()
        return size

    def _write(
        self,
        connection: Connection[Party],
        pieces: list[bytes],
        count: int,
        tells: int,
        marks: Marks | None,
    ) -> bool:
        """Write `count` messages, `tells` of them tells; report the receipts of what was written.

        Returns `False` unless the kernel accepted everything.
        """
        data = b"".join(pieces)
        written = connection.write(data, pieces)
        return self._wrote(connection, written, len(data), pieces, count, tells, marks)

    def _wrote(
        self,
        connection: Connection[Party],
        written: int,
        size: int,
        pieces: list[bytes],
        count: int,
        tells: int,
        marks: Marks | None,
    ) -> bool:
        """The kernel accepted `written` of `size` bytes of these pieces."""
        if written == CLOSED:
            # Asks are reported as undelivered when the connection is removed.
            connection.held += [(math.inf, receipt) for _, receipt in marks or ()]
            self._tally.dropped_tells += tells
            return False
        connection.session.sent += count
        self._tally.sent += count
        if written == size:
            if marks:
                self._handed_over.extend([receipt for _, receipt in marks])
            return True
        if marks:
            self._handed_over.extend(connection.hold(marks, pieces, written))
        self.block(connection)
        return False

    def hand_over(self, receipt: AskReceipt | Attempt) -> None:
        """A message has reached a session without a socket."""
        self._handed_over.append(receipt)
        if not self.tick_ms:
            self.begin_tick()

    def send_control(self, connection: Connection[Party], frame: bytes) -> None:
        """Send a pong."""
        # Queued frames go first; otherwise later ones could overtake them if the pong blocks.
        self.write_out(connection)
        if connection.is_writable:
            self._write(connection, [frame], 0, 0, None)

    def block(self, connection: Connection[Party]) -> None:
        """Mark as blocked: the transport holds bytes, so further frames have to wait."""
        if connection.session.outbound is None:
            connection.session.outbound = Outbound(connection.owner.bounds, self._mono_ms())
        connection.last_unsent_bytes = connection.unsent_bytes
        self._blocked.add(connection)

    def drained(self, connection: Connection[Party]) -> None:
        """The transport has drained: continue with the waiting frames."""
        connection.push()
        self._handed_over.extend(connection.settle())
        outbound = connection.session.outbound
        if outbound is not None and connection.unsent_bytes:
            outbound.progress_at_ms = self._mono_ms()
        elif outbound is not None and not connection.is_closing:
            self._write_waiting(connection, outbound)
            held = outbound.release()
            if held:
                now = self._now_ms()
                self._perform(self._hub.resume(held, now), now)
        if self._handed_over and not self.tick_ms:
            self.begin_tick()

    def _write_waiting(self, connection: Connection[Party], outbound: Outbound) -> None:
        outbound.progress_at_ms = self._mono_ms()
        while connection.waiting:
            draft = self._take_waiting(connection, outbound)
            if draft.messages and not self._write(
                connection, draft.pieces, draft.messages, draft.tells, draft.marks
            ):
                return
        connection.session.outbound = None
        connection.waiting = None
        self._blocked.discard(connection)
        connection.owner.caught_up(connection)

    def leave_waiting(self, connection: Connection[Party]) -> None:
        """Before a close: hold all waiting frames, to be sent within the grace."""
        outbound = connection.session.outbound
        while connection.waiting and outbound is not None:
            draft = self._take_waiting(connection, outbound)
            connection.hold_back(draft.pieces)
            connection.hold(draft.marks, draft.pieces, 0)
            connection.session.sent += draft.messages
            self._tally.sent += draft.messages
        connection.push()

    def _take_waiting(self, connection: Connection[Party], outbound: Outbound) -> Draft:
        """Take the waiting frames for one write; drop and report expired ones."""
        now = self._now_ms()
        draft = connection.take_waiting(now)
        outbound.drained(draft.count, draft.bytes, self._mono_ms())
        for one in draft.expired:
            if one.receipt is None:
                self._tally.expired_tells += 1
            else:
                self._perform(self._hub.undelivered(one.receipt, now), now)
        return draft

    def abandon(self, connection: Connection[Party]) -> None:
        """Count unsent tells to a closed socket as dropped, and report unsent asks."""
        now = self._now_ms()
        waiting = connection.waiting or ()
        lost: list[AskReceipt | Attempt] = [receipt for _, receipt in connection.held]
        lost += [receipt for _, receipt in connection.marks or ()]
        lost += [one.receipt for one in waiting if one.receipt is not None]
        self._tally.dropped_tells += sum(one.is_tell for one in waiting)
        self._tally.dropped_tells += connection.queued_tells
        outbound, connection.session.outbound = connection.session.outbound, None
        connection.forget()
        self._blocked.discard(connection)
        for receipt in lost:
            self._perform(self._hub.undelivered(receipt, now), now)
        if outbound is not None:
            # Paused senders must not wait forever.
            self._perform(self._hub.resume(list(outbound.paused), now), now)

    def closing(self, connection: Connection[Party]) -> None:
        """Set the deadline for the peer's close frame; longer if unsent bytes remain."""
        connection.last_unsent_bytes = connection.unsent_bytes
        is_flushed = connection.last_unsent_bytes == 0
        grace_s = _CLOSE_GRACE_S if is_flushed else self._hub.settings.drain_s
        heapq.heappush(self._closing, (self._mono_s() + grace_s, id(connection), connection))

    def sweep(self) -> None:
        """Run several times a second: abort closing connections that are late, close slow ones."""
        while self._closing and self._closing[0][0] <= self._mono_s():
            heapq.heappop(self._closing)[2].abort()
        self._held_back -= {one for one in self._held_back if one.calm_down()}
        for connection in self._ahead:
            connection.owner.unheard(connection)
        self.read_buffers.look()
        self._look_at_transports()
        if self.waiting_bytes > self._bytes_max:
            self._collect_debts()
        now = self._mono_ms()
        for connection in list(self._blocked):
            outbound = connection.session.outbound
            if outbound is None:
                continue
            unsent = connection.unsent_bytes
            if unsent == 0:
                self.drained(connection)
                continue
            if unsent < connection.last_unsent_bytes:
                outbound.progress_at_ms = now
                self._handed_over.extend(connection.settle())
            connection.last_unsent_bytes = unsent
            if outbound.is_stalled(now):
                self.close_slow(connection)
        if self._handed_over and not self.tick_ms:
            self.begin_tick()

    def close_slow(self, connection: Connection[Party]) -> None:
        """Close a connection whose client does not read."""
        if connection.is_closing:
            return
        connection.owner.too_slow()
        log.warning("a slow consumer was closed", extra={"session": connection.session.id})
        connection.owner.leaving(connection)
        self.abandon(connection)
        connection.close(connection.owner.slow_code, "slow consumer")

    # The budget of all connections.

    def watch(self, others: Callable[[], Iterable[Debtor]]) -> None:
        """Count what these have not read, too."""
        self._others = others

    @property
    def waiting_bytes(self) -> int:
        """The memory of what waits to be written, and of large frames that are being read."""
        return self.ledger.bytes + self._buffered_bytes

    def _debtors(self) -> list[Connection[Party] | Debtor]:
        closing = [connection for _, _, connection in self._closing]
        some = dict.fromkeys([*self._blocked, *closing, *self.read_buffers.large])
        return [*some, *self._others()]

    def _look_at_transports(self) -> None:
        buffered = sum(one.buffered_bytes for one in self._debtors())
        self._buffered_bytes = buffered + self.read_buffers.bytes

    def _collect_debts(self) -> None:
        """Close those who take most until the others fit well into the budget."""
        self._look_at_transports()
        enough = self._bytes_max - self._bytes_max // 8
        if self.waiting_bytes <= self._bytes_max:
            return
        for debtor in sorted(self._debtors(), key=lambda one: one.debt_bytes, reverse=True):
            if self.waiting_bytes <= enough:
                break
            self._buffered_bytes -= debtor.buffered_bytes
            self._tally.debtors_closed += 1
            if isinstance(debtor, Connection):
                reading = self.read_buffers.large.get(debtor, 0)
                log.warning(
                    "a client that does not read was closed: too much waits to be written"
                    if reading * 2 < debtor.debt_bytes
                    else "a client with an unfinished large message was closed: too many are read",
                    extra={"session": debtor.session.id, "bytes": debtor.debt_bytes},
                )
                self._buffered_bytes -= reading
                self.read_buffers.closed(debtor)
                self._cut_off(debtor)
            else:
                debtor.give_up()

    def _cut_off(self, connection: Connection[Party]) -> None:
        """Close without a close frame, which would come after everything else."""
        connection.owner.leaving(connection)
        self.abandon(connection)
        connection.is_closing = True
        connection.drop_rest()
        connection.abort()

    def depth(self) -> int:
        """Return the number of messages that wait for blocked connections."""
        outbounds = [connection.session.outbound for connection in self._blocked]
        return sum(outbound.messages for outbound in outbounds if outbound is not None)

    def _mono_ms(self) -> int:
        return int(self._mono_s() * 1000)
