"""picows the way the hub uses it: a frame parser that starts after our own handshake.

picows reads an upgrade request itself and is strict and talkative about it. The front door has
already decided, so the parser is given a request it cannot refuse, answers with a 101 that
connections share, and keeps nothing of either.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import cache
from http import HTTPStatus
from typing import Any

import picows
from picows.picows import WSProtocol  # type: ignore[attr-defined]

log = logging.getLogger("signalhub.server")

# The size of picows' buffer for a connection; it grows when a frame needs more.
BUFFER_BYTES = 2048

# The four headers picows looks at, in the only spelling it accepts: it refuses the
# `Connection: keep-alive, Upgrade` of Firefox.
_REQUEST = (
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
)
_NO_HEADERS: dict[str, str] = {}


class _Switching:
    """The 101: picows puts the accept value in and sends it at once, so one serves everybody.

    One for each protocol that is chosen, that is.
    """

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
    """What picows logs, at this project's levels: a peer's mistakes are not our errors.

    It is no `logging.Logger`, or picows would make a child of it for every connection.
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


# The protocols are the hub's own choice, so there are few.
_switching = cache(_Switching)
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
        None,  # handshake timeout: the front door keeps the time
        False,  # auto ping
        0,
        0,
        picows.WSAutoPingStrategy.PING_WHEN_IDLE,
        False,  # auto pong: the session answers, in order with everything else
        frame_bytes_max,
        None,  # extra headers
        BUFFER_BYTES,
    )
    parser.connection_made(transport)
    pour(parser, _REQUEST % key.encode())
    parser.transport.request.headers = _NO_HEADERS
    return parser


def pour(parser: Any, data: bytes) -> None:
    """Hand bytes to the parser in pieces that fit its buffer without making it grow."""
    view = memoryview(data)
    while view:
        buffer = parser.get_buffer(-1)
        piece = view[: len(buffer) * 3 // 4]
        buffer[: len(piece)] = piece
        parser.buffer_updated(len(piece))
        view = view[len(piece) :]
