"""WebSockets of rooms: the room, pseudonym and inbox of an upgrade request.

Ids are sent in headers, so that they do not appear in the access logs of proxies. Browsers cannot
set headers on a WebSocket; they send ids as subprotocols, or use the path with tenant and room. An
id that is given more than once must be the same each time. A token is sent in the header
`Authorization`, or as the subprotocol `token.<jwt>`.
"""

from __future__ import annotations

import binascii
from typing import Final
from urllib.parse import parse_qs

import msgspec

from signalhub.clock import Clock
from signalhub.server.port.door import Door
from signalhub.server.port.hosts import Proxies
from signalhub.server.port.http import HttpRequest, Response, Routes, Upgrade
from signalhub.server.rooms.answers import error_response
from signalhub.server.rooms.envelopes import bearer_token, inbox_id, pseudonym_id, room_name
from signalhub.server.rooms.socket import RoomSocket, Terms, Visit
from signalhub.server.runner import HubRunner
from signalhub.wire.errors import RoomCode, RoomError

PROTOCOL: Final = "tunnl3d.v1"
PATH: Final = "/room"
TENANT_PATH: Final = "/ws/{}/{}"

_HEADERS = {"room": "x-room-id", "pseudonym": "x-pseudonym-id", "inbox": "x-inbox-id"}
_TOKEN: Final = "token."  # noqa: S105
_CODES = {
    400: RoomCode.BAD_REQUEST,
    426: RoomCode.UPGRADE_REQUIRED,
    429: RoomCode.RATE_LIMIT_EXCEEDED,
    500: RoomCode.INTERNAL_ERROR,
    503: RoomCode.UNAVAILABLE,
}


class Gate:
    """Accepts sockets of rooms."""

    def __init__(self, runner: HubRunner, clock: Clock) -> None:
        self._terms = Terms(runner, clock)
        self._proxies = Proxies(runner.hub.settings)

    def add_to(self, routes: Routes) -> None:
        """Register both paths."""
        routes.add_socket(PATH, self.open_room, rephrased)
        routes.add_socket(TENANT_PATH, self.open_room, rephrased)

    def open_room(
        self, request: HttpRequest, door: Door, tenant: str | None = None, room: str | None = None
    ) -> Response | Upgrade:
        """Enter the room of the request; `tenant` and `room` are from the path."""
        try:
            visit = visit_of(request, tenant, room)
            requester = self._terms.rooms.identify(
                token_of(request),
                self._proxies.client_of(request),
                self._terms.now_ms(),
                self._terms.mono_ms(),
                has_inbox=visit.inbox is not None,
            )
        except RoomError as error:
            return error_response(error)
        socket = RoomSocket(self._terms, visit, requester)
        refusal = socket.join()
        if refusal is not None:
            return error_response(refusal)
        return Upgrade(
            socket.connection,
            PROTOCOL if PROTOCOL in _protocols(request) else None,
            self._terms.frame_bytes_max,
            needs_hello=False,
        )


def visit_of(request: HttpRequest, tenant: str | None = None, room: str | None = None) -> Visit:
    """Return the room, pseudonym and inbox of an upgrade request; raises `RoomError`."""
    said = _said(request)
    rooms, pseudonyms = said["room"], said["pseudonym"]
    if room is not None:
        # Headers may also hold the full name.
        name = room_name(tenant, room)
        rooms = [room, *(one for one in rooms if one != name)]
        pseudonyms += parse_qs(request.query, keep_blank_values=True).get("pseudonym", [])
    chosen = _only("room", rooms)
    speaker = pseudonym_id(_only("pseudonym", pseudonyms))
    # Different spellings of one inbox id are equal.
    inboxes = [inbox_id(one) for one in said["inbox"]]
    inbox = _only("inbox", inboxes) if inboxes else None
    return Visit(room_name(tenant, chosen), tenant, chosen, speaker, inbox)


def token_of(request: HttpRequest) -> str | None:
    """Return the token of an upgrade request, if it has one; raises `RoomError` for several."""
    offered = [one.removeprefix(_TOKEN) for one in _protocols(request) if one.startswith(_TOKEN)]
    header = bearer_token(request.headers.get("authorization", ""))
    tokens = offered if header is None else [header, *offered]
    return _only("token", tokens) if tokens else None


def _said(request: HttpRequest) -> dict[str, list[str]]:
    """Return the ids in headers and subprotocols, by kind."""
    said = {
        kind: [request.headers[header]] if header in request.headers else []
        for kind, header in _HEADERS.items()
    }
    for protocol in _protocols(request):
        kind, dot, text = protocol.partition(".")
        if dot and kind in said:
            said[kind].append(_decoded(text))
    return said


def _only(kind: str, said: list[str]) -> str:
    if not said:
        raise RoomError(RoomCode.BAD_REQUEST, f"The request must name its {kind}.")
    if len(set(said)) > 1:
        raise RoomError(RoomCode.BAD_REQUEST, f"The request names more than one {kind}.")
    return said[0]


def _protocols(request: HttpRequest) -> list[str]:
    offered = request.headers.get("sec-websocket-protocol")
    return [one.strip() for one in offered.split(",")] if offered else []


def _decoded(text: str) -> str:
    """Decode an id from a subprotocol."""
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return binascii.a2b_base64(bare + "=" * (-len(bare) % 4), strict_mode=True).decode()
    except ValueError:
        raise RoomError(
            RoomCode.BAD_REQUEST, "An id in a subprotocol must be UTF-8 in base64url."
        ) from None


def rephrased(refusal: Response) -> Response:
    """Convert a refusal of the port into a room error; others stay plain text."""
    code = _CODES.get(refusal.status)
    if code is None:
        return refusal
    retry_after_s = refusal.headers.get("Retry-After")
    error = RoomError(
        code,
        refusal.body.decode().strip(),
        retry_after_ms=int(retry_after_s) * 1000 if retry_after_s else None,
    )
    response = error_response(error)
    return msgspec.structs.replace(response, headers=response.headers | refusal.headers)
