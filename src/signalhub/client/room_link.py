"""Opening the socket of a room, and what it means when the hub does not want that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from ssl import SSLContext

from picows import WSError, WSFrame, WSHandshakeError, WSMsgType, WSTransport, ws_connect

from signalhub.client.http import Origin, no_hub
from signalhub.client.link import MESSAGE_BYTES_MAX, OPEN_S, Link, NotOpened
from signalhub.client.room_answers import refusal_of
from signalhub.errors import Refused

SOCKET_PATH = "/room"

# The library logs handshakes when it debugs, and this one names the room and its inbox.
_quiet = logging.getLogger("signalhub.client.room.socket")
_quiet.setLevel(logging.INFO)


class RoomLink(Link):
    """A link that says when it is open and remembers with which code the hub closed it.

    The hub of a room speaks first, often in the same segment as the end of the handshake: frames
    may come before `open_room_link` returns.
    """

    def __init__(
        self,
        opened: Callable[[RoomLink], None],
        received: Callable[[bytes], None],
        congested: Callable[[bool], None],
    ) -> None:
        super().__init__(received, congested)
        self.close_code: int | None = None
        self.is_open = False
        self._opened = opened
        self._is_wanted = True

    def abort(self, reason: str) -> None:
        self._is_wanted = False
        super().abort(reason)

    def on_ws_connected(self, transport: WSTransport) -> None:
        super().on_ws_connected(transport)
        if self._is_wanted:
            self.is_open = True
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
        Refused: The hub does not want this member in this room, and will not.
        NotOpened: There is no socket for now.
    """
    link = make_link()
    try:
        async with asyncio.timeout(OPEN_S):
            # Redirects are not followed: they would carry the ids to a host nobody named.
            _, listener = await ws_connect(
                lambda: link,
                url,
                ssl_context=ssl,
                enable_auto_pong=False,
                max_frame_size=MESSAGE_BYTES_MAX,
                max_redirects=0,
                extra_headers=headers,
                logger_name=_quiet,
            )
    except WSHandshakeError as error:
        raise _turned_away(url, error) from error
    except TimeoutError as error:
        raise NotOpened(f"no answer from {_hub_of(url)} within {OPEN_S:g} s") from error
    except (OSError, WSError) as error:
        raise NotOpened(no_hub(_hub_of(url), error)) from error
    finally:
        # If we were cancelled meanwhile, the handshake may still succeed without us.
        if not link.is_open:
            link.abort("not wanted any more")
    if listener is None:
        raise NotOpened(f"{url} hung up during the handshake")
    return link


def _hub_of(url: str) -> str:
    """The hub as all its users may write it; the socket's own path is none of their business."""
    return Origin.of(url.removesuffix(SOCKET_PATH)).http_url


def _turned_away(url: str, error: WSHandshakeError) -> NotOpened | Refused:
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
        text = f"{text}; try again in {retry_after_s:g} s"
    is_temporary = retry_after_s is not None
    return NotOpened(text, is_temporary=is_temporary, retry_after_s=retry_after_s or 0.0)
