"""One WebSocket between the kernel and the hub.

Reading: `PicowsConnection` or `NativeConnection` provide unmasked frames. Unfragmented text frames
go directly to the hub, all others through the assembler. Frames beyond the share of a tick, or
above the rates of a socket, wait in a backlog while reading is paused. Writing: frames are
collected in `queue` and written once per tick with one system call. If the kernel accepts only
part, the connection is *blocked*: the rest is held, a little of it by the transport, which reports
when the kernel accepts more; further frames wait in `waiting`, bounded. Held and waiting frames are
shared with other connections of the same fan-out.

The `Owner` of a connection receives its messages, is notified when the peer leaves, and sets the
limits: the runner for actors, a `RoomSocket` for a room.

The file descriptor is written directly, bypassing the transport, which saves a microsecond per
write. That is safe because both are used on one loop, and only while the transport's buffer is
empty and it is not closing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from picows import WSListener

from signalhub.core.messages.ask import AskReceipt
from signalhub.core.sessions.outbound import Outbound
from signalhub.core.subscriptions.window import Attempt
from signalhub.server.sockets.ledger import without
from signalhub.server.sockets.meter import GRANT_BYTES, UNIT_BYTES, Meter, extra_units
from signalhub.server.sockets.pieces import Draft, Marks, Piece, WaitingFrame
from signalhub.settings.model import OutboundSettings as Bounds
from signalhub.wire.frames import (
    Assembler,
    CloseCode,
    Closed,
    CompleteMessage,
    Opcode,
    Ping,
    Violation,
    close_frame,
    is_text,
    pong_frame,
    text_header,
)

if TYPE_CHECKING:
    from signalhub.core.messages.runs import PublishRun, Run
    from signalhub.core.sessions.registry import Recipient
    from signalhub.server.port.door import Door
    from signalhub.server.sockets.fan_out import FanBatch
    from signalhub.server.sockets.sources import Source
    from signalhub.server.sockets.writer import Writer

# The kernel's buffer is not larger, so more per write would be copied twice.
_WRITE_BYTES_MAX = 2**18
# What the transport gets of the rest. It would hold a copy of anything larger.
_TRANSPORT_BYTES_MAX = 2**14
CLOSED = -1


class Party(Protocol):
    """State for writing: of an actor's session, or of a socket in a room."""

    outbound: Outbound | None
    sent: int

    @property
    def id(self) -> str:
        """Identifies it in the hub's log messages."""


P = TypeVar("P", bound=Party, covariant=True)


class Owner(Protocol[P]):
    """Handles the events of a connection."""

    @property
    def writer(self) -> Writer: ...

    @property
    def bounds(self) -> Bounds:
        """Limits of the queue of a blocked connection."""

    @property
    def frame_bytes_max(self) -> int: ...

    @property
    def slow_code(self) -> int:
        """The close code for a client that does not read."""

    def opened(self, connection: Connection[Any]) -> P:
        """Return the session or guest of a new connection."""

    def is_welcome(self, connection: Connection[Any]) -> bool:
        """Has the hello been accepted, so that the Door can be removed?"""

    @property
    def run_bytes_max(self) -> int:
        """The largest message that may be part of a run; 0 if there are no runs."""

    def received(self, connection: Connection[Any], payload: bytes) -> None:
        """Handle a message."""

    def received_run(self, connection: Connection[Any], run: Run) -> bool:
        """Handle several messages; `False` if they have to be handled one by one."""

    def gather(self, connection: Connection[Any], run: PublishRun) -> bool:
        """Handle all of a read soon, with that of other connections; `False` as above."""

    def handle_gathered(self) -> None:
        """Handle it now, because something else happens to the connection."""

    def unheard(self, connection: Connection[Any]) -> None:
        """The connection is not read because of the disk, whatever its client sends."""

    def caught_up(self, connection: Connection[Any]) -> None:
        """The connection is no longer blocked."""

    def too_slow(self) -> None:
        """A connection is closed because its client does not read."""

    def leaving(self, connection: Connection[Any], code: int | None = None) -> None:
        """The peer closes, with `code`, or is too slow. May be called more than once."""

    def disconnected(self, connection: Connection[Any]) -> None:
        """The socket is closed."""


class Connection(WSListener, Generic[P]):
    """A WebSocket and its owner; subclasses read from it."""

    # Nothing can be written any more.
    _is_close_sent: bool

    __slots__ = (
        "_added",
        "_assembler",
        "_backlog",
        "_buffered",
        "_buffered_total",
        "_door",
        "_extra_units",
        "_granted_in",
        "_granted_units",
        "_grants",
        "_is_close_held",
        "_is_ending",
        "_is_gone",
        "_ledger",
        "_looked_added",
        "_looked_units",
        "_meter",
        "_rest",
        "_rest_bytes",
        "_rest_offset",
        "_settled_units",
        "_transport",
        "_turn_began_s",
        "_units_left",
        "_unwritten_from",
        "_writer",
        "fan",
        "fd",
        "has_fans",
        "held",
        "is_closing",
        "is_dirty",
        "is_in_bulk",
        "last_unsent_bytes",
        "marks",
        "origin",
        "owner",
        "queue",
        "queued_in_runs",
        "queued_replies",
        "session",
        "waiting",
    )

    def __init__(self, owner: Owner[P], door: Door | None) -> None:
        """A `door` stays in place until the owner has accepted the client's hello."""
        self.owner = owner
        self._writer = owner.writer
        self._door = door
        self._assembler: Assembler | None = None
        self.fd = -1
        # What may be handled since the buckets were charged, what is left of it, how much of what
        # was used belongs to large frames, and the tick in which more was granted.
        self._granted_units = self._units_left = self._writer.grant
        self._extra_units = 0
        # What was charged so far, and how much of that was sent before anything that may wait for
        # the disk. The last entry that it added.
        self._settled_units = self._unwritten_from = 0
        self._added = 0
        # Both as they were at a look since: when that entry is on disk, so is all before the look.
        self._looked_added = self._looked_units = 0
        self._granted_in = 0
        self._grants = 0
        self._turn_began_s = 0.0
        self._meter: Meter | None = None
        # Frames that were read but not handled yet; reading is paused meanwhile.
        self._backlog: deque[bytes | Piece] | None = None
        self.session = owner.opened(self)
        # Where it comes from, which counts it until it is closed.
        self.origin: Source | None = None
        self.queue: list[bytes | tuple[FanBatch, Recipient, int]] = []
        self.queued_replies = 0
        # Messages of runs that are queued as one, besides the first of each.
        self.queued_in_runs = 0
        self.marks: Marks | None = None
        self.held: list[tuple[float, AskReceipt | Attempt]] = []
        # All bytes that ever had to be held; positions in `held` refer to this count.
        self._buffered_total = 0
        # What is held besides the bytes in the transport; of the first piece a part may be gone.
        self._ledger = self._writer.ledger
        self._rest: deque[bytes] | None = None
        self._rest_bytes = 0
        self._rest_offset = 0
        # A close frame is the last of it; the socket is closed after it.
        self._is_close_held = False
        self._is_ending = False
        self.waiting: deque[WaitingFrame] | None = None
        self.fan: FanBatch | None = None
        self.has_fans = False
        self.is_dirty = False
        self.is_in_bulk = False
        self.is_closing = False
        self.last_unsent_bytes = 0

    @property
    def source(self) -> str:
        """The network address of the client, known until its hello was accepted."""
        return "" if self._door is None else self._door.source

    # For the reading side.

    def _attach(self, transport: Any) -> None:
        """The WebSocket is open."""
        self._transport = transport
        # Called for every write.
        self._is_gone: Callable[[], bool] = transport.is_closing
        self._buffered: Callable[[], int] = transport.get_write_buffer_size
        self.fd = transport.get_extra_info("socket").fileno()
        # So that `pause_writing` reports any byte the kernel does not accept at once.
        transport.set_write_buffer_limits(high=0)
        self._writer.read_buffers.opened(self)

    def _write_close(self, code: int, reason: str) -> None:
        """Write a close frame to the transport; nothing is written after it."""
        raise NotImplementedError

    def _has_paused(self) -> None:
        """Reading was paused, because frames wait."""
        raise NotImplementedError

    def calm_down(self) -> bool:
        """Forget what was needed while it was held back; `False` if it still is."""
        raise NotImplementedError

    @property
    def read_bytes(self) -> int:
        """About how much an unfinished message takes, 0 if it is small or will soon be gone."""
        raise NotImplementedError

    @property
    def _fragment_bytes(self) -> int:
        """What the fragments of an unfinished message take, 0 if that is little."""
        held = 0 if self._assembler is None else self._assembler.held_bytes
        return held if held > GRANT_BYTES else 0

    def handle_singly(self, run: Run) -> None:
        """Handle the messages of a run one by one; only native connections have runs."""
        raise NotImplementedError

    def _handle(self, one: bytes | Piece) -> None:
        if isinstance(one, bytes):
            self._hear(one)
        else:
            self._assemble(one)

    def _hear(self, payload: bytes) -> None:
        """Handle a text that is one frame."""
        if self._assembler is not None:
            self._assemble(Piece(Opcode.TEXT, True, False, payload))
        elif payload.isascii() or is_text(payload):
            self._received(payload)
        else:
            self.close(CloseCode.INVALID_TEXT, "text must be valid UTF-8")

    # Frames beyond the grant.

    def _is_granted(self) -> bool:
        """May a frame be handled in this tick that the last grant does not cover?"""
        writer = self._writer
        tick = writer.current_tick()
        wait_s = 0.0
        if self._granted_units - self._units_left >= writer.charged:
            wait_s = self._settle()
        # Most sockets never add an entry.
        is_ahead = self._added and self._is_ahead_of_log()
        if wait_s <= 0 and not is_ahead and self._take_grant(tick):
            return True
        self._wait(wait_s or self._settle())
        return False

    def has_added(self) -> None:
        """An entry was added to the log because of a frame."""
        self._added = self._writer.unwritten.added

    def _is_ahead_of_log(self) -> bool:
        """Does too much of what it has sent wait for the disk?

        What it sent after an entry counts, too: it may have to wait behind the entry.
        """
        unwritten = self._writer.unwritten
        units = self._settled_units + self._granted_units - self._units_left
        if self._looked_added <= unwritten.written:
            self._unwritten_from = self._looked_units
            self._looked_added, self._looked_units = self._added, units
        if self._added <= unwritten.written:
            return False
        return (units - self._unwritten_from) * UNIT_BYTES > unwritten.share_bytes

    def _begin_turn(self) -> None:
        """Frames that were read, or put off, are handled one after the other from now on."""
        self._turn_began_s = self._writer.mono_s()

    def _finish_read(self) -> None:
        """A read was handled: read no more in a tick that has lasted long enough."""
        if self._backlog is None and not self.is_closing and self._writer.is_tick_long:
            self._wait(0)

    def _settle(self) -> float:
        """Charge what was used of the grants; return how long to pause before the next one."""
        writer = self._writer
        now_s = writer.mono_s()
        if self._meter is None:
            self._meter = Meter(writer.limits, now_s)
        units = self._granted_units - self._units_left
        self._settled_units += units
        wait_s = self._meter.charge(units - self._extra_units, units, now_s)
        self._granted_units = self._units_left = self._extra_units = 0
        if wait_s > 0 and self._meter.is_flood(now_s):
            writer.close_flood(self)
        return wait_s

    def _begin_grants(self) -> None:
        """The first grant of a tick is taken: a turn begins, unless it has begun with the read."""
        self._begin_turn()

    def _take_grant(self, tick: int) -> bool:
        """Take another grant; `False` if it is the turn of others."""
        if tick != self._granted_in:
            self._grants = 0
            self._granted_in = tick
            self._begin_grants()
        elif not self._writer.grants_again(self._grants, self._turn_began_s):
            return False
        self._grants += 1
        # What is left of the last grant ends with it, so that no tick gets more than its grants.
        units, left = self._writer.grant, self._units_left
        self._granted_units += units if left < 0 else units - left
        self._units_left = units + left if left < 0 else units
        return True

    def give_way(self) -> None:
        """A message took long: if the tick has, too, go on in the next one."""
        self._granted_units -= self._units_left
        self._units_left = 0
        # What is left of an earlier grant begins no turn, so the time is counted from the tick's.
        tick = self._writer.current_tick()
        if tick != self._granted_in:
            self._granted_in = tick
            self._grants = 0
        self._turn_began_s = self._writer.tick_began_s

    def _wait(self, wait_s: float) -> None:
        """Stop reading until the writer calls `go_on`."""
        self._backlog = deque()
        self._transport.pause_reading()
        self._has_paused()
        self._go_on_later(wait_s)

    def _go_on_later(self, wait_s: float) -> None:
        if self._is_ahead_of_log():
            self._writer.await_log(self)
        else:
            self._writer.postpone(self, wait_s)

    def go_on(self, tick: int) -> None:
        """Handle waiting frames; read on when there are none left."""
        backlog = self._backlog
        if backlog is None:
            return
        if backlog:
            self._begin_turn()
            # What was put off is charged when it is handled.
            self._units_left = 0
        while backlog:
            if self._units_left <= 0:
                wait_s = self._settle()
                if wait_s > 0 or self._is_ahead_of_log() or not self._take_grant(tick):
                    self._go_on_later(wait_s)
                    return
            one = backlog.popleft()
            extra = extra_units(len(one if isinstance(one, bytes) else one.payload))
            self._units_left -= 1 + extra
            self._extra_units += extra
            self._handle(one)
        self._backlog = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _disconnected(self) -> None:
        """The socket is closed."""
        self.is_closing = True
        self._door = None
        self._backlog = None
        if self.origin is not None:
            self.origin.left()
            self.origin = None
        self._writer.read_buffers.closed(self)
        self.owner.disconnected(self)
        self.drop_rest()

    def pause_writing(self) -> None:
        self._writer.block(self)

    def resume_writing(self) -> None:
        self._writer.drained(self)

    def _assemble(self, one: Piece) -> None:
        assembler = self._assembler or Assembler(self.owner.frame_bytes_max)
        try:
            event = assembler.feed(one.opcode, one.is_final, one.rsv, one.payload)
        except Violation as violation:
            self._assembler = None
            self.close(violation.code, violation.reason)
            return
        self._assembler = assembler if assembler.is_pending else None
        match event:
            case CompleteMessage(data=data):
                self._received(data)
            case Ping(payload=payload):
                self._pong(payload)
            case Closed(code=code):
                self._answer_close(code)
            case _:
                pass

    def _received(self, payload: bytes) -> None:
        if self.is_closing:
            return
        self.owner.received(self, payload)
        if self._door is not None and self.owner.is_welcome(self):
            self._door.opened()
            self._door = None

    def _pong(self, payload: bytes) -> None:
        # A peer that sends pings but does not read must not fill the hub's memory.
        if not self.is_closing and self._transport.get_write_buffer_size() == 0:
            self._writer.send_control(self, pong_frame(payload))

    def _answer_close(self, code: int | None) -> None:
        if not (self._is_close_sent or self._is_close_held):
            self._writer.write_out(self)
            self.is_closing = True
            self._send_close(code or CloseCode.NORMAL)
            self.owner.leaving(self, code)
        if self._rest:
            self._is_ending = True
        else:
            self._transport.close()
        self._writer.closing(self)

    # Called by senders.

    @property
    def is_writable(self) -> bool:
        """Is it neither closing nor blocked?"""
        return self.session.outbound is None and not self.is_closing

    @property
    def unsent_bytes(self) -> int:
        """Bytes of written frames that the kernel has not accepted."""
        return self.buffered_bytes + self._rest_bytes

    @property
    def buffered_bytes(self) -> int:
        """Those of them that the transport holds."""
        size: int = self._transport.get_write_buffer_size()
        return size

    @property
    def debt_bytes(self) -> int:
        """Everything that waits for this client, shared or not, and the large frame it sends."""
        outbound = self.session.outbound
        reading = self._writer.read_buffers.large.get(self, 0)
        return self.unsent_bytes + reading + (0 if outbound is None else outbound.bytes)

    def queue_message(self, frame: bytes, receipt: AskReceipt | Attempt | None = None) -> None:
        """Queue a frame for the end of the tick; its receipt is reported after the write."""
        if self.fan is not None:
            self.fan.is_open = False
            self.fan = None
        queue = self.queue
        queue.append(text_header(len(frame)))
        queue.append(frame)
        if receipt is not None:
            if self.marks is None:
                self.marks = []
            self.marks.append((len(queue), receipt))
        if not self.is_dirty:
            self._writer.mark(self)

    def queue_run(self, frames: bytes, count: int) -> None:
        """Queue the frames of so many messages, complete with their headers."""
        if self.fan is not None:
            self.fan.is_open = False
            self.fan = None
        # A message is queued as header and body.
        self.queue.append(b"")
        self.queue.append(frames)
        self.queued_in_runs += count - 1
        if not self.is_dirty:
            self._writer.mark(self)

    def queue_reply(self, frame: bytes) -> None:
        """Queue a frame that does not count as a dropped tell if it is lost."""
        self.queued_replies += 1
        self.queue_message(frame)

    def queue_replies(self, frames: bytes, count: int) -> None:
        """Queue the frames of so many replies, complete with their headers."""
        self.queued_replies += count
        self.queue_run(frames, count)

    def queue_announcement(self, header: bytes, frame: bytes) -> None:
        """Queue a reply with a shared header; the caller marks the connection as dirty."""
        self.queued_replies += 1
        self.queue.append(header)
        self.queue.append(frame)

    def park(self, one: WaitingFrame) -> None:
        """Add a frame to the queue of a blocked connection."""
        outbound = self.session.outbound
        assert outbound is not None
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(one)
        self._ledger.add(one.pieces)
        outbound.queued(one.size)

    # Called by the writer.

    def render(self) -> tuple[list[bytes], int]:
        """Return the bytes of a queue with fan-outs, and the number of messages."""
        self.fan = None
        self.has_fans = False
        pieces: list[bytes] = []
        ends: list[int] = []
        copies = 0
        for item in self.queue:
            before = len(pieces)
            if isinstance(item, bytes):
                pieces.append(item)
            else:
                batch, recipient, begin = item
                batch.render(recipient, begin, pieces)
                copies += (batch.count - begin) * 2 - (len(pieces) - before)
            ends.append(len(pieces))
        if self.marks is not None:
            self.marks = [(ends[count - 1], receipt) for count, receipt in self.marks]
        # A single message is queued as header and body.
        return pieces, (len(pieces) + copies) >> 1

    def write(self, data: bytes, pieces: list[bytes]) -> int:
        """Write to the kernel and hold the rest; return what the kernel accepted.

        `data` is all pieces in one. Returns `CLOSED` if the socket is closing and nothing more can
        be written.
        """
        if self._is_gone() or self._is_close_sent or self._is_close_held:
            return CLOSED
        written = 0
        if not self._buffered():
            try:
                written = os.write(self.fd, data)
            except BlockingIOError:
                pass
            except OSError:
                self._transport.abort()
                return CLOSED
            if written == len(data):
                return written
        return self._hold_rest(data, pieces, written)

    @property
    def can_be_sent_to(self) -> bool:
        """May bytes be sent to its file descriptor now?"""
        return not (
            self._is_gone() or self._is_close_sent or self._is_close_held or self._buffered()
        )

    def sent_short(self, data: bytes, written: int) -> int:
        """The kernel accepted `written` bytes of `data`, or returned an error; as `write`."""
        if written == CLOSED:
            self._transport.abort()
            return CLOSED
        return self._hold_rest(data, [data], written)

    def _hold_rest(self, data: bytes, pieces: list[bytes], written: int) -> int:
        """Hold what the kernel has not accepted of `data`; return what it has by now."""
        transport = self._transport
        if len(data) - written > _TRANSPORT_BYTES_MAX:
            self._keep(pieces, written)
            self.push()
        else:
            self._buffered_total += len(data) - written
            transport.write(data[written:] if written else data)
            if transport.is_closing():
                return CLOSED
        # The transport may have written everything at once; then `resume_writing` is not called.
        return written if self.unsent_bytes else len(data)

    def hold_back(self, pieces: list[bytes]) -> None:
        """Hold the last pieces before a close frame."""
        size = sum(map(len, pieces))
        if self._rest or self.buffered_bytes + size > _TRANSPORT_BYTES_MAX:
            self._keep(pieces)
        else:
            self._buffered_total += size
            self._transport.write(b"".join(pieces))

    def _keep(self, pieces: Iterable[bytes], written: int = 0) -> None:
        """Hold pieces, without the first `written` bytes of them."""
        kept = without(pieces, written)
        if self._rest is None:
            self._rest = deque()
        if not self._rest:
            self._rest_offset = kept.offset
        size = sum(map(len, kept.pieces)) - kept.offset
        self._rest.extend(kept.pieces)
        self._ledger.add(kept.pieces)
        self._rest_bytes += size
        self._buffered_total += size

    def push(self) -> None:
        """Write what is held until the kernel accepts no more.

        Then the transport gets a little of it, and calls `resume_writing` when that is gone.
        """
        transport, rest = self._transport, self._rest
        while rest and not transport.is_closing() and not transport.get_write_buffer_size():
            begin = self._rest_offset
            part = memoryview(rest[0])[begin : begin + _WRITE_BYTES_MAX]
            written = 0
            try:
                written = os.write(self.fd, part)
            except BlockingIOError:
                pass
            except OSError:
                transport.abort()
                return
            few = bytes(part[written : written + _TRANSPORT_BYTES_MAX])
            self._rest_bytes -= written + len(few)
            self._rest_offset += written + len(few)
            if self._rest_offset == len(rest[0]):
                self._rest_offset = 0
                self._ledger.remove((rest.popleft(),))
            if few:
                transport.write(few)
        if not rest and self._is_ending:
            transport.close()

    def drop_rest(self) -> None:
        """Forget what is held, because the socket is closed."""
        if self._rest:
            self._ledger.remove(self._rest)
        self._rest = None
        self._rest_bytes = 0

    def hold(self, marks: Marks, pieces: list[bytes], written: int) -> list[AskReceipt | Attempt]:
        """Return the receipts of complete messages; hold the others until the transport drains."""
        done: list[AskReceipt | Attempt] = []
        ends = list(accumulate(map(len, pieces), initial=0))
        # Where the data starts in `_buffered_total`; what the kernel took is not counted there.
        begin = self._buffered_total - ends[-1]
        for count, receipt in marks:
            if ends[count] <= written:
                done.append(receipt)
            else:
                self.held.append((begin + ends[count], receipt))
        return done

    def settle(self) -> list[AskReceipt | Attempt]:
        """Return the held receipts whose bytes the kernel has accepted since."""
        taken = self._buffered_total - self.unsent_bytes
        done = [receipt for end, receipt in self.held if end <= taken]
        if done:
            self.held = [(end, receipt) for end, receipt in self.held if end > taken]
        return done

    def close(self, code: int, reason: str) -> None:
        """Write queued frames, send a close frame, and close after the peer's answer."""
        if self.is_closing:
            return
        self._writer.write_out(self)
        self.is_closing = True
        if not self._transport.is_closing():
            self._writer.leave_waiting(self)
            self._send_close(code, reason)
        self._writer.closing(self)

    def _send_close(self, code: int, reason: str = "") -> None:
        if self._rest:
            self._is_close_held = True
            self._keep([close_frame(code, reason)])
            return
        before = self.unsent_bytes
        self._write_close(code, reason)
        self._buffered_total += self.unsent_bytes - before

    @property
    def queued_tells(self) -> int:
        """Number of queued tells, whose loss is not reported to a sender."""
        fans = [item[0].count - item[2] for item in self.queue if isinstance(item, tuple)]
        messages = sum(fans) + (len(self.queue) - len(fans) >> 1)
        return messages + self.queued_in_runs - self.queued_replies - len(self.marks or ())

    def forget(self) -> None:
        """Drop all queued and held frames."""
        self.held = []
        for one in self.waiting or ():
            self._ledger.remove(one.pieces)
        self.marks = self.waiting = None
        self.queue.clear()
        self.queued_replies = self.queued_in_runs = 0
        if self.fan is not None:
            self.fan.is_open = False
            self.fan = None

    def abort(self) -> None:
        """Close the socket immediately."""
        self._transport.abort()

    def take_waiting(self, now: int) -> Draft:
        """Take the next waiting frames, for one write."""
        assert self.waiting is not None
        draft = Draft()
        size = 0
        while self.waiting and size < _WRITE_BYTES_MAX:
            one = self.waiting.popleft()
            one_size = one.size
            self._ledger.remove(one.pieces)
            draft.count += 1
            draft.bytes += one_size
            if one.expires_at is not None and one.expires_at < now:
                draft.expired.append(one)
                continue
            draft.pieces.extend(one.pieces)
            draft.messages += 1
            draft.tells += one.is_tell
            size += one_size
            if one.receipt is not None:
                draft.marks.append((len(draft.pieces), one.receipt))
        return draft
