"""One WebSocket to a hub: frames out, messages in.

Frames of one tick are written together: one system call and one segment instead of many. Short
frames are masked here for that; long ones are masked by picows, which is faster than copying them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from ssl import SSLContext

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,
)

from signalhub.client.rooms.answers import refusal_of
from signalhub.client.transport.http import Origin, no_hub
from signalhub.wire.errors import Refused, Unavailable
from signalhub.wire.frames import (
    Assembler,
    CloseCode,
    Closed,
    CompleteMessage,
    Ping,
    Violation,
    is_text,
)

OPEN_S = 10.0
CLOSE_S = 1.0
MESSAGE_BYTES_MAX = 16 * 2**20
GATHER_BYTES = 64 * 1024
GATHER_FRAMES = 64
SHORT_BYTES = 4 * 1024

_REASON_MAX = 200
_TEMPORARY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_TEXT = WSMsgType.TEXT
_FINAL_TEXT = 0x81
_MASKED = 0x80


class NotOpened(Unavailable):
    """The link could not be opened; `retry_after_s` is set if the hub says when to try again."""

    def __init__(
        self, text: str, *, is_temporary: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(text)
        self.is_temporary = is_temporary
        self.retry_after_s = retry_after_s


class Link(WSListener):
    """An open WebSocket, until `wait_closed` returns."""

    def __init__(
        self, received: Callable[[bytes], None], congested: Callable[[bool], None]
    ) -> None:
        self._received = received
        self._congested = congested
        self._loop = asyncio.get_running_loop()
        self._assembler = Assembler(MESSAGE_BYTES_MAX)
        self._transport: WSTransport | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._tick_frames = 0
        self._is_closing = False
        self._reason = ""

    @property
    def is_busy(self) -> bool:
        """Whether so much was sent in this tick that other tasks should run."""
        return self._tick_frames >= GATHER_FRAMES

    def send(self, frame: bytes) -> None:
        """Write a frame, together with the others of this tick."""
        if self._is_closing:
            return
        if not self._tick_frames:
            self._loop.call_soon(self._end_tick)
        self._tick_frames += 1
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes >= GATHER_BYTES:
            self._write()

    def pause_reading(self) -> None:
        """Stop reading: the kernel's buffers fill up, and the hub sees a slow reader."""
        if self._transport is not None and not self._is_closing:
            self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._is_closing:
            self._transport.underlying_transport.resume_reading()

    def close(self, reason: str, code: CloseCode = CloseCode.NORMAL) -> None:
        """Close the WebSocket; a hub that does not answer in time is cut off."""
        if self._is_closing:
            return
        self._write()
        self._is_closing = True
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.send_close(WSCloseCode(code), reason.encode()[:100])
            self._loop.call_later(CLOSE_S, self._transport.disconnect, False)

    def abort(self, reason: str) -> None:
        """Cut the link at once."""
        self._is_closing = True
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.disconnect(False)

    async def wait_closed(self) -> str:
        """Wait until the link has ended; return why."""
        assert self._transport is not None
        try:
            await self._transport.wait_disconnected()
        except WSError as error:
            self._reason = self._reason or str(error)
        return self._reason or "the connection was cut"

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._is_closing:
            transport.disconnect(False)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._is_closing = True

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        has_rsv = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        if self._is_closing and frame.msg_type != WSMsgType.CLOSE:
            return
        is_whole = frame.msg_type == _TEXT and frame.fin and not has_rsv
        if is_whole and not self._assembler.is_pending and is_text(payload):
            self._received(payload)
            return
        try:
            event = self._assembler.feed(frame.msg_type.value, bool(frame.fin), has_rsv, payload)
        except Violation as violation:
            self.close(f"the hub broke the WebSocket protocol: {violation.reason}", violation.code)
            return
        match event:
            case CompleteMessage(data=data):
                self._received(data)
            case Ping(payload=payload):
                transport.send_pong(payload)
            case Closed(code=code, reason=reason):
                self._hub_closed(transport, code, reason)
            case _:
                pass

    def pause_writing(self) -> None:
        self._congested(True)

    def resume_writing(self) -> None:
        self._congested(False)

    def _hub_closed(self, transport: WSTransport, code: int | None, reason: str) -> None:
        self._write()
        self._is_closing = True
        said = f" ({reason})" if reason else ""
        self._reason = (
            self._reason or f"the hub closed the connection with {code or 'no code'}{said}"
        )
        if not transport.is_close_frame_sent:
            transport.send_close(WSCloseCode.OK)
        transport.disconnect()

    def _end_tick(self) -> None:
        self._tick_frames = 0
        self._write()

    def _write(self) -> None:
        frames, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        transport = self._transport
        if transport is None or self._is_closing or not frames:
            return
        if len(frames) == 1:
            transport.send(_TEXT, frames[0])
            return
        keys = os.urandom(4 * len(frames))
        joined = bytearray()
        for index, frame in enumerate(frames):
            if len(frame) <= SHORT_BYTES:
                joined += masked_text(frame, keys[4 * index : 4 * index + 4])
                continue
            _write_joined(transport, joined)
            joined = bytearray()
            transport.send(_TEXT, frame)
        _write_joined(transport, joined)


async def open_link(
    url: str,
    ssl: SSLContext | None,
    received: Callable[[bytes], None],
    congested: Callable[[bool], None],
) -> Link:
    """Open a WebSocket, or raise `NotOpened` with the reason."""
    link = Link(received, congested)
    try:
        await _connect(link, url, ssl)
    except WSHandshakeError as error:
        raise _turned_away(url, error) from error
    except TimeoutError as error:
        raise NotOpened(f"no answer from {url} within {OPEN_S:g} s") from error
    except (OSError, WSError) as error:
        raise NotOpened(no_hub(url, error)) from error
    return link


async def _connect(
    link: Link,
    url: str,
    ssl: SSLContext | None,
    headers: Mapping[str, str] | None = None,
    logger: logging.Logger | None = None,
) -> None:
    """Connect a link; it is cut if that fails or is cancelled."""
    try:
        async with asyncio.timeout(OPEN_S):
            # Redirects are not followed: they would send the token, or the ids of a room, to a host
            # the user did not name.
            _, listener = await ws_connect(
                lambda: link,
                url,
                ssl_context=ssl,
                # This also ends a handshake whose task was cancelled.
                websocket_handshake_timeout=OPEN_S,
                enable_auto_pong=False,
                max_frame_size=MESSAGE_BYTES_MAX,
                max_redirects=0,
                extra_headers=headers,
                logger_name=logger,
            )
    except BaseException:
        # After a cancellation, the handshake may still succeed, or may just have succeeded.
        link.abort("no longer needed")
        raise
    if listener is None:
        raise NotOpened(f"{url} closed the connection during the handshake")


def masked_text(payload: bytes, key: bytes) -> bytes:
    """Encode a final text frame from client to server (RFC 6455 §5.3)."""
    size = len(payload)
    if size < 126:
        head = bytes((_FINAL_TEXT, _MASKED | size))
    elif size < 2**16:
        head = bytes((_FINAL_TEXT, _MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL_TEXT, _MASKED | 127)) + size.to_bytes(8, "big")
    # One XOR of two long integers is the fastest way without C.
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "big")
    return head + key + (int.from_bytes(payload, "big") ^ mask).to_bytes(size, "big")


def _write_joined(transport: WSTransport, joined: bytearray) -> None:
    if joined:
        transport.underlying_transport.write(joined)


def _turned_away(url: str, error: WSHandshakeError) -> NotOpened:
    response = error.response
    if response is None:
        return NotOpened(f"{url} does not speak WebSocket: {error}")
    status = response.status
    text = f"{url} answered HTTP {status.value} {status.phrase}"
    is_temporary = status in _TEMPORARY
    if is_temporary:
        # A hub says why in a line; the page of a proxy is longer.
        lines = (error.raw_body or b"").decode(errors="replace").splitlines()
        if len(lines) == 1 and len(lines[0]) <= _REASON_MAX and lines[0].isprintable():
            text = f"{text}: {lines[0].rstrip('.')}"
    retry_after = response.headers.get("Retry-After", "")
    if not retry_after.isdecimal():
        return NotOpened(text, is_temporary=is_temporary)
    text = f"{text}; try again in {retry_after} s"
    return NotOpened(text, is_temporary=is_temporary, retry_after_s=float(retry_after))


SOCKET_PATH = "/room"

# picows logs handshakes at debug level, and this one contains the ids of room and inbox.
_quiet = logging.getLogger("signalhub.client.room.socket")
_quiet.setLevel(logging.INFO)


class RoomLink(Link):
    """A link that reports when it is open and remembers the hub's close code.

    The hub speaks first in a room, often in the same segment as the end of the handshake: frames
    may arrive before `open_room_link` returns.
    """

    def __init__(
        self,
        opened: Callable[[RoomLink], None],
        received: Callable[[bytes], None],
        congested: Callable[[bool], None],
    ) -> None:
        super().__init__(received, congested)
        self.close_code: int | None = None
        self._opened = opened
        self._is_wanted = True

    def abort(self, reason: str) -> None:
        self._is_wanted = False
        super().abort(reason)

    def on_ws_connected(self, transport: WSTransport) -> None:
        super().on_ws_connected(transport)
        if self._is_wanted:
            self._opened(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            code = frame.get_payload_as_bytes()[:2]
            self.close_code = int.from_bytes(code, "big") if len(code) == 2 else None
        super().on_ws_frame(transport, frame)


async def open_room_link(
    url: str,
    headers: Mapping[str, str],
    ssl: SSLContext | None,
    make_link: Callable[[], RoomLink],
) -> RoomLink:
    """Open a room's socket.

    Raises:
        Refused: The hub refuses this member in this room permanently.
        NotOpened: The socket cannot be opened now.
    """
    link = make_link()
    try:
        await _connect(link, url, ssl, headers, _quiet)
    except WSHandshakeError as error:
        raise _room_turned_away(url, error) from error
    except TimeoutError as error:
        raise NotOpened(f"no answer from {_hub_of(url)} within {OPEN_S:g} s") from error
    except (OSError, WSError) as error:
        raise NotOpened(no_hub(_hub_of(url), error)) from error
    return link


def _hub_of(url: str) -> str:
    """Return the hub's URL for error texts, without the path of the room socket."""
    return Origin.of(url.removesuffix(SOCKET_PATH)).http_url


def _room_turned_away(url: str, error: WSHandshakeError) -> NotOpened | Refused:
    response = error.response
    if response is None:
        return NotOpened(f"{url} does not speak WebSocket: {error}")
    headers = {name.lower(): value for name, value in response.headers.items()}
    status = HTTPStatus(response.status)
    reason, retry_after_s, _ = refusal_of(url, status, headers, error.raw_body or b"")
    if isinstance(reason, Refused) and not reason.retryable:
        return reason
    text = reason.message if isinstance(reason, Refused) else str(reason)
    if retry_after_s:
        text = f"{text.rstrip('.')}; try again in {retry_after_s:g} s"
    is_temporary = retry_after_s is not None
    not_opened = NotOpened(text, is_temporary=is_temporary, retry_after_s=retry_after_s or 0.0)
    not_opened.is_answered = isinstance(reason, Unavailable) and reason.is_answered
    return not_opened
