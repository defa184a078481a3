"""picows as a frame parser that starts after the hub's own handshake, and connections that use it.

picows parses the upgrade request itself, strictly and with much logging. The Door has already
checked the request, so the parser gets a minimal valid one, and sends a 101 response that
connections share.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import picows
from picows import WSFrame, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from signalhub.server.sockets.connection import Connection, Owner, P
from signalhub.server.sockets.meter import GRANT_BYTES, UNIT_BYTES, extra_units
from signalhub.server.sockets.pieces import Piece

if TYPE_CHECKING:
    from signalhub.server.port.door import Door

log = logging.getLogger("signalhub.server")

_TEXT = WSMsgType.TEXT
# A buffer with less free space is not worth looking at.
_FREE_BYTES_MIN: Final = 2**17
# Of a client that is held back no more is read at once: about a hundred common messages.
_READ_BYTES = 3 * 2**14
# How long a large read buffer is kept after the last large frame.
_LARGE_BUFFER_S = 1.0

# The size of picows' buffer for a connection; it grows when a frame needs more, and never shrinks.
BUFFER_BYTES = 2048

# The four headers that picows checks, in the only form it accepts: it refuses
# `Connection: keep-alive, Upgrade`, which Firefox sends.
_REQUEST = (
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
)
_NO_HEADERS: dict[str, str] = {}
_ANY_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="


class _Switching:
    """The 101 response, one per subprotocol; picows sets the accept value and sends it at once."""

    status = HTTPStatus.SWITCHING_PROTOCOLS

    def __init__(self, protocol: str | None = None) -> None:
        self.headers = {"Sec-WebSocket-Accept": ""}
        self._end = b"\r\n\r\n"
        if protocol is not None:
            self._end = b"\r\nSec-WebSocket-Protocol: %b\r\n\r\n" % protocol.encode()

    def to_bytes(self) -> bytearray:
        return bytearray(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b%b"
            % (self.headers["Sec-WebSocket-Accept"].encode(), self._end)
        )


class _Discretion:
    """A logger for picows that logs protocol errors of a peer at debug level.

    Not a `logging.Logger`, because picows would create a child of it for every connection.
    """

    def isEnabledFor(self, level: int) -> bool:
        return False

    def debug(self, *_: object) -> None:
        pass

    log = info = warning = debug

    def error(self, message: str, *arguments: object) -> None:
        if isinstance(sys.exc_info()[1], picows.WSProtocolError):
            log.debug(message, *arguments)
        else:
            log.exception(message, *arguments)

    exception = error


# Bounded, because clients may choose the subprotocol.
_switching = lru_cache(maxsize=64)(_Switching)
_DISCRETION = _Discretion()


def shake_hands(
    transport: asyncio.Transport,
    session: picows.WSListener,
    key: str,
    frame_bytes_max: int,
    protocol: str | None = None,
) -> Any:
    """Answer 101 and return picows' parser, which is an `asyncio.BufferedProtocol`."""
    response: Any = _switching(protocol)
    answer = picows.WSUpgradeResponseWithListener(response, session)
    parser = WSProtocol(
        None,  # host
        None,  # path
        False,  # is_client_side
        lambda _: answer,
        _DISCRETION,
        True,  # disconnect_on_exception
        None,  # handshake timeout: the Door has its own
        False,  # auto ping
        0,
        0,
        picows.WSAutoPingStrategy.PING_WHEN_IDLE,
        False,  # auto pong: the connection answers, in order with other frames
        frame_bytes_max,
        None,  # extra headers
        BUFFER_BYTES,
    )
    parser.connection_made(transport)
    pour(parser, _REQUEST % key.encode())
    parser.transport.request.headers = _NO_HEADERS
    return parser


class Substitute:
    """The transport of a socket, as a second parser of the same socket sees it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.close = transport.close
        self.abort = transport.abort
        self._is_mute = True

    def write(self, data: bytes) -> None:
        if not self._is_mute:
            self.transport.write(data)

    def speak(self) -> None:
        """From now on, write."""
        self._is_mute = False


def renew(transport: asyncio.Transport, session: picows.WSListener, frame_bytes_max: int) -> Any:
    """Return a parser with a small buffer for a WebSocket that is open.

    The former parser must hold no part of a frame. `session` gets another `on_ws_connected`.
    """
    substitute: Any = Substitute(transport)
    parser = shake_hands(substitute, session, _ANY_KEY, frame_bytes_max)
    substitute.speak()
    return parser


class Intake(asyncio.BufferedProtocol):
    """Stands before picows while a client sends faster than it is served.

    picows doubles its buffer whenever a read fills it, and hands over all frames of a read at once.
    Reads of a limited size keep both small. It also stands there after a large frame, until the
    large buffer is empty and can be replaced.
    """

    __slots__ = ("_begin", "_finish", "_parser", "unread_bytes")

    def __init__(self, parser: Any, begin: Callable[[], None], finish: Callable[[], None]) -> None:
        """`begin` is called before the frames of a read are handled, and `finish` after them."""
        self._parser = parser
        self._begin = begin
        self._finish = finish
        # What picows holds of an unfinished frame; `None` until that is known.
        self.unread_bytes: int | None = None

    @property
    def parser(self) -> Any:
        """What it stands before."""
        return self._parser

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self._parser.get_buffer(sizehint)
        return buffer[:_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self.unread_bytes is not None:
            self.unread_bytes += nbytes
        self._begin()
        self._parser.buffer_updated(nbytes)
        self._finish()

    def eof_received(self) -> bool | None:
        ends: bool | None = self._parser.eof_received()
        return ends

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser.connection_lost(exc)

    def pause_writing(self) -> None:
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        self._parser.resume_writing()


def sparing(buffer: memoryview) -> memoryview:
    """Return as much of picows' buffer as can be filled without making it grow."""
    return buffer[: len(buffer) * 3 // 4]


def size_of(protocol: Any, frame_bytes_max: int) -> int:
    """Return about how large the buffer of a parser is, 0 if it is small.

    picows does not say how large a buffer is, only how much of it is free. It doubles a buffer that
    is nine tenths full, so the size is known within a factor of four, and exactly if an `Intake`
    counts what is in it.
    """
    unread = None
    parser = protocol
    if isinstance(protocol, Intake):
        parser, unread = protocol.parser, protocol.unread_bytes
    if type(parser) is not WSProtocol:
        return 0
    free = len(parser.get_buffer(-1))
    if free < _FREE_BYTES_MIN:
        return 0
    size = 2 ** ((4 * free).bit_length() - 1) if unread is None else free + unread
    return min(size, 2 * frame_bytes_max)


def whole_or_piece(frame: WSFrame, payload: bytes) -> bytes | Piece:
    """Return the payload of a text that is one frame, anything else as a piece."""
    rsv = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
    if frame.fin and frame.msg_type == _TEXT and not rsv:
        return payload
    return Piece(frame.msg_type.value, bool(frame.fin), rsv, payload)


def pour(parser: Any, data: bytes) -> None:
    """Feed bytes to the parser in pieces that do not make its buffer grow."""
    view = memoryview(data)
    while view:
        buffer = parser.get_buffer(-1)
        piece = view[: len(buffer) * 3 // 4]
        buffer[: len(piece)] = piece
        parser.buffer_updated(len(piece))
        view = view[len(piece) :]


class PicowsConnection(Connection[P]):
    """A connection whose frames picows parses, each with a call."""

    __slots__ = ("_intake", "_large_until_s", "_ws")

    def __init__(self, owner: Owner[P], door: Door | None) -> None:
        super().__init__(owner, door)
        # Stands before picows while a client sends too much, or for a time after a large frame.
        self._intake: Intake | None = None
        self._large_until_s: float | None = None

    # Called by picows.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        underlying: Any = transport.underlying_transport
        self._attach(underlying.transport if type(underlying) is Substitute else underlying)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if transport.is_close_frame_sent and not self.is_closing:
            # picows has refused a frame. It reads on until it disconnects, in the middle of that
            # frame perhaps; nothing of it counts.
            return
        payload = frame.get_payload_as_bytes()
        self._units_left = left = self._units_left - 1
        if (left >= 0 and len(payload) <= UNIT_BYTES and self._intake is None) or self._may_go_on(
            len(payload), frame
        ):
            if (
                frame.fin
                and frame.msg_type == _TEXT
                and not (frame.rsv1 or frame.rsv2 or frame.rsv3)
            ):
                if (
                    self._assembler is None
                    and self._door is None
                    and not self.is_closing
                    and payload.isascii()
                ):
                    self.owner.received(self, payload)
                else:
                    self._hear(payload)
            else:
                self._handle(whole_or_piece(frame, payload))
        else:
            assert self._backlog is not None
            self._backlog.append(whole_or_piece(frame, payload))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._disconnected()

    def _may_go_on(self, size: int, frame: WSFrame) -> bool:
        """May a frame that is large, or that the grant does not cover, be handled in this tick?"""
        if size > GRANT_BYTES:
            self._watch_buffer()
        if self._backlog is None:
            extra = extra_units(size)
            if self._units_left >= extra or self._is_one_granted():
                self._units_left -= extra
                self._extra_units += extra
        if self._intake is not None and frame.last_in_buffer:
            self._intake.unread_bytes = frame.tail_size
        return self._backlog is None

    def _is_one_granted(self) -> bool:
        """Is a frame granted that was counted already?"""
        self._units_left += 1
        if self._is_granted():
            self._units_left -= 1
            return True
        return False

    # The buffer of picows.

    def _watch_buffer(self) -> None:
        """The buffer has grown, or will: replace it when it has not been needed for a while."""
        self._large_until_s = self._writer.mono_s() + _LARGE_BUFFER_S
        self._writer.revisit(self)
        protocol = self._transport.get_protocol()
        if type(protocol) is WSProtocol:
            self._intake = Intake(protocol, self._begin_turn, self._finish_read)
            self._transport.set_protocol(self._intake)

    _has_paused = _watch_buffer

    def _begin_grants(self) -> None:
        if self._intake is None:
            self._begin_turn()

    def _is_buffer_large(self) -> bool:
        """Replace a buffer that is no longer needed; `True` while there is a large one."""
        intake = self._intake
        if intake is None or self._large_until_s is None:
            return False
        if intake.unread_bytes != 0 or self._writer.mono_s() < self._large_until_s:
            return True
        self._large_until_s = self._intake = None
        parser = renew(self._transport, self, self.owner.frame_bytes_max)
        self._transport.set_protocol(parser)
        return False

    @property
    def read_bytes(self) -> int:
        if self.is_closing or self._transport.is_closing():
            return 0
        buffer = size_of(self._transport.get_protocol(), self.owner.frame_bytes_max)
        return buffer + self._fragment_bytes

    def calm_down(self) -> bool:
        """Give the socket back to picows; `False` if it still has to wait for its turns."""
        if self._transport.is_closing() or self.is_closing:
            return True
        if self._backlog is not None or self._is_buffer_large():
            return False
        if self._intake is not None:
            self._transport.set_protocol(self._intake.parser)
            self._intake = None
        return True

    # Closing.

    @property
    def _is_close_sent(self) -> bool:  # type: ignore[override]
        return self._ws.is_close_frame_sent

    def _write_close(self, code: int, reason: str) -> None:
        self._ws.send_close(code, reason)  # type: ignore[arg-type]
