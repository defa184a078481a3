"""Connections that the native part reads for, with one call for each read.

Without the native part, connections are those of `picows.py`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import deque
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final

from signalhub import native
from signalhub.server.sockets.connection import Connection, Owner, P
from signalhub.server.sockets.picows import PicowsConnection
from signalhub.server.sockets.pieces import Piece
from signalhub.server.sockets.writer import READ_BYTES
from signalhub.wire.frames import CloseCode, close_frame

if native.IS_ON or TYPE_CHECKING:
    from signalhub_native import Ask, Publishes, Reader, Settles, Tells

    _RUNS: Final = (Tells, Ask, Publishes, Settles)


if TYPE_CHECKING:
    from signalhub.core.messages.runs import Run
    from signalhub.server.port.door import Door

    # A run, a text, another frame, or a close code with its reason.
    Item = (
        Tells | Ask | Publishes | Settles | bytes | tuple[int, bool, bool, bytes] | tuple[int, str]
    )

# So many messages of a run cost about as much as one that is handled by itself.
_SHARE: Final = 4
_SWITCHING: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %b\r\n"
)
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def switching(key: str) -> bytes:
    """Return the beginning of the answer to an upgrade request, without what is optional."""
    return _SWITCHING % b64encode(sha1(key.encode() + _GUID, usedforsecurity=False).digest())


class NativeConnection(Connection[P], asyncio.BufferedProtocol):
    """A connection that takes the runs and frames of a read together."""

    __slots__ = ("_gave_way", "_is_close_sent", "_reader", "_share")

    def __init__(self, owner: Owner[P], door: Door | None) -> None:
        super().__init__(owner, door)
        self._reader = Reader(owner.frame_bytes_max, owner.run_bytes_max)
        self._is_close_sent = False
        self._share = 1
        # A message took long, while others of the same read may wait behind it.
        self._gave_way = False

    def shake_hands(self, transport: Any, answer: bytes, protocol: str | None) -> None:
        """Answer 101; from now on the transport belongs to this connection."""
        if protocol is not None:
            answer += b"Sec-WebSocket-Protocol: %b\r\n" % protocol.encode()
        self._attach(transport)
        transport.write(answer + b"\r\n")

    # Called by the transport, or by the door that still stands before it.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._writer.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._writer.read_buffer[:nbytes])
        if self._backlog is None:
            self._take(data)
        else:
            # Nothing is handed over but a violation, if that comes next.
            self._backlog += self._reader.read(data, 0, 1)[0]  # type: ignore[arg-type]
        if nbytes == READ_BYTES:
            self._finish_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.handle_gathered()
        self._disconnected()

    def _take(self, data: bytes) -> None:
        """Handle what was read as far as grants allow."""
        while True:
            items, units, spared, extra, has_more = self._reader.read(
                data, self._units_left, self._share
            )
            self._units_left -= units
            if spared or extra:
                # They are charged, but leave the grant to others.
                self._granted_units += spared
                self._extra_units += extra
            if len(items) == 1 and type(items[0]) in _RUNS:
                run: Any = items[0]
                # The usual case, without another call.
                if (
                    self._assembler is None
                    and self._door is None
                    and not self.is_closing
                    and (
                        self.owner.gather(self, run)
                        if type(run) is Publishes and not has_more
                        else self.owner.received_run(self, run)
                    )
                ):
                    self._share = _SHARE
                else:
                    self.handle_singly(run)
            elif not self._handle_all(items):
                return
            if not has_more or not self._is_granted():
                return
            data = b""

    def _handle_all(self, items: list[Item]) -> bool:
        """Handle items that are counted already; `False` if some wait for another turn."""
        for at, item in enumerate(items, 1):
            if type(item) is bytes:
                if (
                    self._assembler is None
                    and self._door is None
                    and not self.is_closing
                    and item.isascii()
                ):
                    self.owner.received(self, item)
                else:
                    self.owner.handle_gathered()
                    self._hear(item)
            elif type(item) in _RUNS:
                self._handle_run(item)  # type: ignore[arg-type]
            else:
                self._handle_other(item)  # type: ignore[arg-type]
            if self._gave_way:
                self._gave_way = False
                if at < len(items) and not self._is_granted():
                    self._backlog = deque(items[at:])  # type: ignore[arg-type]
                    return False
        return self._backlog is None

    def _handle_run(self, run: Run) -> None:
        if (
            self._assembler is None
            and self._door is None
            and not self.is_closing
            and self.owner.received_run(self, run)
        ):
            self._share = _SHARE
        else:
            self.handle_singly(run)

    def handle_singly(self, run: Run) -> None:
        """Handle the messages of a run one by one."""
        # What follows is probably as it is, and costs more.
        self._share = 1
        if type(run) is Publishes:
            self._reader.doubt()
        for message in run.messages():
            self._hear(message)

    def _handle_other(self, item: tuple[int, bool, bool, bytes] | tuple[int, str]) -> None:
        # It may close the connection, or begin a message of several frames.
        self.owner.handle_gathered()
        if len(item) == 2:
            self.close(*item)
        else:
            self._assemble(Piece(*item))

    def give_way(self) -> None:
        self._gave_way = True
        super().give_way()

    def go_on(self, tick: int) -> None:
        waiting = self._backlog
        if waiting is None:
            return
        self._begin_turn()
        if self._units_left <= 0:
            wait_s = self._settle()
            if wait_s > 0 or self._is_ahead_of_log() or not self._take_grant(tick):
                self._go_on_later(wait_s)
                return
        self._backlog = None
        if self._handle_all(list(waiting)):  # type: ignore[arg-type]
            self._take(b"")
        if self._backlog is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _has_paused(self) -> None:
        pass

    def calm_down(self) -> bool:
        return self._backlog is None or self.is_closing or self._transport.is_closing()

    @property
    def read_bytes(self) -> int:
        if self.is_closing or self._transport.is_closing():
            return 0
        return self._reader.held_bytes + self._fragment_bytes

    # Closing; a door closes it before the hello.

    def _write_close(self, code: int, reason: str) -> None:
        if not self._is_close_sent:
            self._is_close_sent = True
            self._transport.write(close_frame(code, reason))

    @property
    def transport(self) -> NativeConnection[P]:
        """What a door closes, as that of picows."""
        return self

    def send_close(self, code: CloseCode, reason: str) -> None:
        """Send a close frame."""
        self._write_close(code, reason)


def new_connection(owner: Owner[P], door: Door | None) -> Connection[P]:
    """Return a connection; a `door` stays in place until its owner has accepted the hello."""
    return NativeConnection(owner, door) if native.IS_ON else PicowsConnection(owner, door)
