"""One WebSocket between the kernel and the hub.

Reading: picows hands over unmasked frames; whole text frames go straight to the hub, everything
else through the assembler. Writing: frames are gathered in `queue` and written once per tick of the
loop with one system call. When the kernel takes less, the rest goes to the transport and the
connection is *blocked*: further frames wait in `waiting`, bounded, until the transport has drained.

Whose connection it is decides its `Owner`: the runner for actors, a room's socket for itself. The
owner hears what arrives and that the peer leaves, and sets the bounds.

The descriptor is written directly, past the transport, which saves a microsecond per write. That is
sound because both live on one loop, the transport's buffer is empty, and it is not closing.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport

from signalhub.core.messages.ask import AskReceipt
from signalhub.core.sessions.outbound import Outbound
from signalhub.core.subscriptions.window import Attempt
from signalhub.settings.model import OutboundSettings as Bounds
from signalhub.wire.frames import (
    Assembler,
    CloseCode,
    Closed,
    CompleteMessage,
    Ping,
    Violation,
    is_text,
    pong_frame,
    text_header,
)

if TYPE_CHECKING:
    from signalhub.server.port.door import Door
    from signalhub.server.sockets.fan_out import FanBatch
    from signalhub.server.sockets.writer import Writer

_TEXT = WSMsgType.TEXT
# More per write would only be copied twice: the kernel's buffer is not larger.
_WRITE_BYTES_MAX = 2**18
CLOSED = -1


class WaitingFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame for a blocked reader."""

    frame: bytes
    expires_at: float | None = None
    receipt: AskReceipt | Attempt | None = None
    is_tell: bool = False


# A receipt, and how many pieces have to be written until its message is.
Marks = list[tuple[int, AskReceipt | Attempt]]


class Draft(msgspec.Struct):
    """What one write takes from the waiting frames; expired ones are taken, not written."""

    frames: list[bytes] = []
    marks: Marks = []
    expired: list[WaitingFrame] = []
    tells: int = 0
    count: int = 0
    bytes: int = 0


class Party(Protocol):
    """What the write path keeps of whoever is at the other end: an actor's session, or a guest."""

    outbound: Outbound | None
    sent: int

    @property
    def id(self) -> str:
        """For the log."""


P = TypeVar("P", bound=Party, covariant=True)


class Owner(Protocol[P]):
    """Whose a connection is."""

    @property
    def writer(self) -> Writer: ...

    @property
    def bounds(self) -> Bounds:
        """What may wait for a blocked reader."""

    @property
    def frame_bytes_max(self) -> int: ...

    @property
    def slow_code(self) -> int:
        """The close code of a reader that takes nothing."""

    def opened(self, connection: Connection[Any]) -> P:
        """There is a connection; whose it is."""

    def is_welcome(self, connection: Connection[Any]) -> bool:
        """May it leave the door behind?"""

    def received(self, connection: Connection[Any], payload: bytes) -> None:
        """A message arrived."""

    def caught_up(self, connection: Connection[Any]) -> None:
        """It was blocked and is not any more."""

    def too_slow(self) -> None:
        """A connection is given up because nobody reads it."""

    def leaving(self, connection: Connection[Any]) -> None:
        """The peer says goodbye, or is given up. May come more than once."""

    def disconnected(self, connection: Connection[Any]) -> None:
        """The socket is gone."""


class Connection(WSListener, Generic[P]):
    """A socket and whose it is."""

    __slots__ = (
        "_assembler",
        "_buffered_total",
        "_door",
        "_fd",
        "_transport",
        "_writer",
        "_ws",
        "fan",
        "has_fans",
        "held",
        "is_closing",
        "is_dirty",
        "is_in_bulk",
        "last_unsent_bytes",
        "marks",
        "owner",
        "queue",
        "queued_replies",
        "session",
        "waiting",
    )

    def __init__(self, owner: Owner[P], door: Door | None) -> None:
        """With a door, which stays until the owner has welcomed the client."""
        self.owner = owner
        self._writer = owner.writer
        self._door = door
        self._assembler: Assembler | None = None
        self._fd = -1
        self.session = owner.opened(self)
        self.queue: list[bytes | tuple[FanBatch, bytes]] = []
        self.queued_replies = 0
        self.marks: Marks | None = None
        self.held: list[tuple[float, AskReceipt | Attempt]] = []
        # All bytes ever left to the transport; what is settled is counted against them.
        self._buffered_total = 0
        self.waiting: deque[WaitingFrame] | None = None
        self.fan: FanBatch | None = None
        self.has_fans = False
        self.is_dirty = False
        self.is_in_bulk = False
        self.is_closing = False
        self.last_unsent_bytes = 0

    # What picows calls.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        self._transport = transport.underlying_transport
        self._fd = self._transport.get_extra_info("socket").fileno()
        # Any byte the kernel does not take at once is reported by `pause_writing`.
        self._transport.set_write_buffer_limits(high=0)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if (
            self._assembler is None
            and frame.fin
            and frame.msg_type == _TEXT
            and not (frame.rsv1 or frame.rsv2 or frame.rsv3)
        ):
            payload = frame.get_payload_as_bytes()
            if not (payload.isascii() or is_text(payload)):
                self.close(CloseCode.INVALID_TEXT, "text must be valid UTF-8")
            elif self._door is None and not self.is_closing:
                self.owner.received(self, payload)
            else:
                self._received(payload)
            return
        self._assemble(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.is_closing = True
        self._door = None
        self.owner.disconnected(self)

    def pause_writing(self) -> None:
        self._writer.block(self)

    def resume_writing(self) -> None:
        self._writer.drained(self)

    def _assemble(self, frame: WSFrame) -> None:
        assembler = self._assembler or Assembler(self.owner.frame_bytes_max)
        rsv = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        try:
            event = assembler.feed(
                frame.msg_type.value, bool(frame.fin), rsv, frame.get_payload_as_bytes()
            )
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
        # A peer that sends pings but reads nothing must not fill our memory.
        if not self.is_closing and self._transport.get_write_buffer_size() == 0:
            self._writer.send_control(self, pong_frame(payload))

    def _answer_close(self, code: int | None) -> None:
        if not self._ws.is_close_frame_sent:
            self._writer.write_out(self)
            self.is_closing = True
            self._send_close(code or CloseCode.NORMAL)
            self.owner.leaving(self)
        self._transport.close()
        self._writer.closing(self)

    # What whoever has something to say calls.

    @property
    def is_writable(self) -> bool:
        """Neither closing nor blocked."""
        return self.session.outbound is None and not self.is_closing

    @property
    def unsent_bytes(self) -> int:
        """What the transport holds because the kernel would not take it."""
        return self._transport.get_write_buffer_size()

    def queue_message(self, frame: bytes, receipt: AskReceipt | Attempt | None = None) -> None:
        """Have a frame written at the end of the tick; then its receipt is handed over."""
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

    def queue_reply(self, frame: bytes) -> None:
        """The same for a frame that is nobody's tell: losing it is not counted as losing one."""
        self.queued_replies += 1
        self.queue_message(frame)

    def queue_announcement(self, header: bytes, frame: bytes) -> None:
        """A reply with a header that many share; the writer is still to be told of it."""
        self.queued_replies += 1
        self.queue.append(header)
        self.queue.append(frame)

    def park(self, one: WaitingFrame) -> None:
        """Have a frame wait for a blocked reader."""
        outbound = self.session.outbound
        assert outbound is not None
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(one)
        outbound.queued(len(one.frame))

    # What the writer calls.

    def render(self) -> tuple[list[bytes], int]:
        """A queue with fan-outs in it as the bytes to write, and the number of messages."""
        if self.fan is not None:
            self.fan.is_open = False
            self.fan = None
        self.has_fans = False
        pieces: list[bytes] = []
        copies = 0
        for item in self.queue:
            if isinstance(item, bytes):
                pieces.append(item)
            else:
                batch, address_json = item
                pieces.append(batch.render(address_json))
                copies += len(batch) * 2 - 1
        # A message of its own is queued as header and body.
        return pieces, (len(pieces) + copies) >> 1

    def write(self, data: bytes) -> int:
        """Give bytes to the kernel, the rest to the transport; how many the kernel took.

        `CLOSED` when the socket is closing and nothing will leave any more.
        """
        transport = self._transport
        if transport.is_closing() or self._ws.is_close_frame_sent:
            return CLOSED
        written = 0
        if transport.get_write_buffer_size() == 0:
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                pass
            except OSError:
                transport.abort()
                return CLOSED
            if written == len(data):
                return written
        self.buffer(data[written:] if written else data)
        if transport.is_closing():
            return CLOSED
        # The kernel may have made room meanwhile; then nobody will report that it has.
        return written if transport.get_write_buffer_size() else len(data)

    def hold(self, marks: Marks, pieces: list[bytes], written: int) -> list[AskReceipt | Attempt]:
        """The receipts of what was written whole; the others wait for the transport to drain."""
        done: list[AskReceipt | Attempt] = []
        ends = list(accumulate(map(len, pieces), initial=0))
        kernel_end = self._buffered_total - (ends[-1] - written) - written
        for count, receipt in marks:
            if ends[count] <= written:
                done.append(receipt)
            else:
                self.held.append((kernel_end + ends[count], receipt))
        return done

    def settle(self) -> list[AskReceipt | Attempt]:
        """The held receipts whose bytes have left the transport since."""
        taken = self._buffered_total - self.unsent_bytes
        done = [receipt for end, receipt in self.held if end <= taken]
        if done:
            self.held = [(end, receipt) for end, receipt in self.held if end > taken]
        return done

    def buffer(self, data: bytes) -> None:
        """Leave bytes to the transport."""
        self._buffered_total += len(data)
        self._transport.write(data)

    def close(self, code: int, reason: str) -> None:
        """Write what is queued, say goodbye, and close once the peer has answered."""
        if self.is_closing:
            return
        self._writer.write_out(self)
        self.is_closing = True
        if not self._transport.is_closing():
            self._writer.leave_waiting(self)
            self._send_close(code, reason)
        self._writer.closing(self)

    def _send_close(self, code: int, reason: str = "") -> None:
        before = self.unsent_bytes
        self._ws.send_close(code, reason)  # type: ignore[arg-type]
        self._buffered_total += self.unsent_bytes - before

    @property
    def queued_tells(self) -> int:
        """How many messages that nobody is told about are queued and not written."""
        fans = [len(item[0]) for item in self.queue if isinstance(item, tuple)]
        messages = sum(fans) + (len(self.queue) - len(fans) >> 1)
        return messages - self.queued_replies - len(self.marks or ())

    def forget(self) -> None:
        """Let go of everything that was on its way."""
        self.held = []
        self.marks = self.waiting = None
        self.queue.clear()
        self.queued_replies = 0
        if self.fan is not None:
            self.fan.is_open = False
            self.fan = None

    def abort(self) -> None:
        """Drop the socket at once."""
        self._transport.abort()

    def take_waiting(self, now: int) -> Draft:
        """The next waiting frames, up to one write."""
        assert self.waiting is not None
        draft = Draft()
        size = 0
        while self.waiting and size < _WRITE_BYTES_MAX:
            one = self.waiting.popleft()
            draft.count += 1
            draft.bytes += len(one.frame)
            if one.expires_at is not None and one.expires_at < now:
                draft.expired.append(one)
                continue
            draft.frames.append(one.frame)
            draft.tells += one.is_tell
            size += len(one.frame)
            if one.receipt is not None:
                draft.marks.append((len(draft.frames), one.receipt))
        return draft
