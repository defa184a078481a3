"""picows as a frame parser that starts after the hub's own handshake.

picows parses the upgrade request itself, strictly and with much logging. The Door has already
checked the request, so the parser gets a minimal valid one, and sends a 101 response that
connections share.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import picows
from picows.picows import WSProtocol  # type: ignore[attr-defined]

log = logging.getLogger("signalhub.server")

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


def pour(parser: Any, data: bytes) -> None:
    """Feed bytes to the parser in pieces that do not make its buffer grow."""
    view = memoryview(data)
    while view:
        buffer = parser.get_buffer(-1)
        piece = view[: len(buffer) * 3 // 4]
        buffer[: len(piece)] = piece
        parser.buffer_updated(len(piece))
        view = view[len(piece) :]
