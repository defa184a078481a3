"""The HTTP API of rooms and inboxes.

Requests are validated before they reach the core, in a fixed order: the token first; for a message
the content type, then the envelope, then the headers; for an inbox its header.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec

from signalhub.clock import Clock
from signalhub.core.hub import Hub
from signalhub.core.rooms.access import Requester
from signalhub.core.rooms.values import BLOBS, Deposit, Read, Result, SendToRoom
from signalhub.server.port.door import ORIGIN_REFUSED, origin_allowed
from signalhub.server.port.hosts import Proxies
from signalhub.server.port.http import HttpRequest, Later, Response, Routes
from signalhub.server.rooms import answers, envelopes, openapi
from signalhub.server.rooms.answers import ETAG, OLDEST_SEQ, REPLAY, RETRY_AFTER
from signalhub.server.rooms.posts import Posts
from signalhub.server.rooms.state_api import Render, StateApi, Step
from signalhub.server.runner import HubRunner
from signalhub.wire.errors import RoomCode, RoomError

T = TypeVar("T")

ALLOW_ORIGIN: Final = "Access-Control-Allow-Origin"
_ANSWERED: Final = {
    "Vary": "Origin",
    "Access-Control-Expose-Headers": ", ".join((REPLAY, OLDEST_SEQ, ETAG, RETRY_AFTER)),
}
_PREFLIGHT: Final = {
    "Vary": "Origin",
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, X-Inbox-ID,"
        " X-Pseudonym-ID, X-Room-ID"
    ),
    "Access-Control-Max-Age": "600",
}


class Cors:
    """Cross-origin permissions for the origins of the settings."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = origins

    def preflight(self, request: HttpRequest) -> Response:
        """Answer a preflight request."""
        origin = request.headers.get("origin")
        if origin is None:
            return Response(204)
        if not origin_allowed(origin, self._origins):
            return ORIGIN_REFUSED
        return Response(204, headers={ALLOW_ORIGIN: origin, **_PREFLIGHT})

    def admits(self, origin: str | None) -> bool:
        """May a request of this origin be served? Clients other than browsers send none."""
        return origin is None or origin_allowed(origin, self._origins)

    def dress(self, response: Response, origin: str | None) -> Response:
        """Add the CORS headers, if the origin is allowed."""
        if origin is None or not origin_allowed(origin, self._origins):
            return response
        headers = {**response.headers, ALLOW_ORIGIN: origin, **_ANSWERED}
        return msgspec.structs.replace(response, headers=headers)


# Converts a request and the parts of its path into a call of the core and a renderer.
Prepare = Callable[..., tuple[Step, Render]]


class Asked(Later):
    """A pending request; the core calls `answer` with the result."""

    __slots__ = ("_cors", "_has_answered", "_origin", "mono_ms", "render")

    def __init__(self, cors: Cors, origin: str | None, mono_ms: int) -> None:
        super().__init__()
        self._cors = cors
        self._origin = origin
        self._has_answered = False
        # When it came, by the monotonic clock.
        self.mono_ms = mono_ms
        self.render: Render

    def answer(self, result: Result, message_id: str) -> None:
        """Respond with the result."""
        if isinstance(result, RoomError):
            self._say(answers.error_response(result))
            return
        try:
            response = self.render(result)
        except Exception:
            self.fail()
            raise
        self._say(response)

    def fail(self) -> None:
        """Respond with an internal error, unless the core has answered before."""
        if not self._has_answered:
            self._say(answers.INTERNAL_ERROR)

    def _say(self, response: Response) -> None:
        self._has_answered = True
        if self._origin is not None:
            response = self._cors.dress(response, self._origin)
        self.respond(response)


class Api:
    """All HTTP endpoints of rooms and inboxes, and their OpenAPI document."""

    def __init__(self, hub: Hub, runner: HubRunner, clock: Clock) -> None:
        self._proxies = Proxies(hub.settings)
        self._rooms = hub.rooms
        self._run = runner.run
        self._writer = runner.writer
        self._now_ms = clock.now_ms
        self._mono_s = clock.mono_s
        self._settings = settings = hub.settings.rooms
        self._cors = Cors(hub.settings.origins)
        self._envelopes = reader = envelopes.EnvelopeReader(settings.ciphertext_bytes_max)
        self._posts = None if reader.usual is None else Posts(hub, runner, reader.usual)
        self._deposited = partial(answers.deposited, timestamps=settings.timestamps)
        is_checked = hub.settings.auth.enabled and not settings.public
        self.description = openapi.describe(settings, is_checked=is_checked)

    def add_to(self, routes: Routes) -> None:
        """Register the routes."""
        state = StateApi(self._rooms, self._settings, self._mono_ms)
        routes.add(openapi.MESSAGE, partial(self._ask, self._send), "POST")
        routes.add(openapi.MESSAGES, partial(self._ask, self._fetch), "GET")
        routes.add(openapi.APPEND, partial(self._ask, self._append), "POST")
        for name in BLOBS:
            handler = partial(self._ask, partial(state.blob, name))
            routes.add(f"{openapi.ROOM}/{name}", handler, "GET", "PUT")
        routes.add(openapi.PROPOSALS, partial(self._ask, state.proposals), "GET")
        routes.add(f"{openapi.PROPOSALS}/{{}}", partial(self._ask, state.proposal), "GET")
        routes.add_options(self._cors.preflight)
        if self._posts is not None:
            self._posts.add_to(routes)

    def _ask(self, prepare: Prepare, request: HttpRequest, *parts: str) -> Response | Later:
        headers = request.headers
        origin = headers.get("origin")
        if origin is not None and not self._cors.admits(origin):
            return ORIGIN_REFUSED
        asked = Asked(self._cors, origin, mono_ms := round(self._mono_s() * 1000))
        try:
            requester = self._rooms.identify(
                envelopes.bearer_token(headers.get("authorization", "")),
                self._proxies.client_of(request),
                self._writer.tick_ms or self._now_ms(),
                mono_ms,
                has_inbox="x-inbox-id" in headers,
            )
            step, asked.render = prepare(request, asked, requester, *parts)
        except RoomError as error:
            return self._cors.dress(answers.error_response(error), origin)
        if not self._run(step):
            asked.fail()
        return asked

    def _send(
        self, request: HttpRequest, caller: Asked, requester: Requester
    ) -> tuple[Step, Render]:
        headers = request.headers
        envelope = _decoded(request, self._envelopes.read)
        inbox = headers.get("x-inbox-id")
        send = SendToRoom(
            caller,
            _room(envelope, headers.get("x-room-id")),
            None if inbox is None else envelopes.inbox_id(inbox),
            envelope.message_id or envelopes.new_message_id(),
            envelope.ciphertext,
            caller.mono_ms,
            envelope.type,
            _pseudonym(envelope, headers.get("x-pseudonym-id")),
            envelope.proposal,
            requester=requester,
        )
        rooms = self._rooms
        return lambda now: rooms.send(send, now), answers.sent

    def _fetch(
        self, request: HttpRequest, caller: Asked, requester: Requester
    ) -> tuple[Step, Render]:
        inbox = _inbox(request)
        from_seq, limit = envelopes.read_range(request.query)
        read = Read(caller, inbox, from_seq, limit, caller.mono_ms, requester)
        rooms = self._rooms
        return lambda now: rooms.read(read, now), answers.page

    def _append(
        self, request: HttpRequest, caller: Asked, requester: Requester
    ) -> tuple[Step, Render]:
        inbox = _inbox(request)
        message_id, ciphertext = envelopes.read_deposit(
            _decoded(request, envelopes.read_members), self._settings.ciphertext_bytes_max
        )
        deposit = Deposit(caller, inbox, message_id, ciphertext, caller.mono_ms, requester)
        rooms = self._rooms
        return lambda now: rooms.deposit(deposit, now), self._deposited

    def _mono_ms(self) -> int:
        return round(self._mono_s() * 1000)


def _decoded(request: HttpRequest, decode: Callable[[bytes], T]) -> T:
    """Decode the JSON object in the body."""
    media_type = request.headers.get("content-type", "")
    if media_type != answers.JSON:
        media_type = media_type.partition(";")[0].strip().lower()
        if media_type != answers.JSON:
            raise RoomError(
                RoomCode.UNSUPPORTED_MEDIA_TYPE, f"Send JSON, as Content-Type: {answers.JSON}."
            )
    try:
        return decode(request.body)
    except (ValueError, RecursionError):
        raise RoomError(RoomCode.BAD_ENVELOPE, "The body must be a JSON object.") from None


def _room(envelope: envelopes.RoomEnvelope, header: str | None) -> str:
    """Return the name of the room; raises `RoomError` if envelope and header disagree."""
    if header is None:
        if envelope.room is None:
            raise RoomError(
                RoomCode.BAD_ENVELOPE, "Name the room: as roomId, or in the header X-Room-ID."
            )
        # Both are valid, as all members of an envelope.
        tenant, room = envelope.tenant, envelope.room
        return room if tenant is None else f"{tenant}:{room}"
    if envelope.room is None and header.startswith(f"{envelope.tenant}:"):
        # The header holds the full name.
        return envelopes.room_name(None, header)
    name = envelopes.room_name(envelope.tenant, envelope.room or header)
    if envelope.room is not None and header not in (envelope.room, name):
        raise RoomError(RoomCode.BAD_REQUEST, "X-Room-ID and roomId name different rooms.")
    return name


def _pseudonym(envelope: envelopes.RoomEnvelope, header: str | None) -> str:
    if header is None:
        return envelope.pseudonym or ""
    if envelope.pseudonym not in (None, header):
        raise RoomError(
            RoomCode.BAD_REQUEST, "X-Pseudonym-ID and pseudonymId name different pseudonyms."
        )
    return envelopes.pseudonym_id(header)


def _inbox(request: HttpRequest) -> str:
    inbox = request.headers.get("x-inbox-id")
    if inbox is None:
        raise RoomError(RoomCode.BAD_REQUEST, "Name the inbox in the header X-Inbox-ID.")
    return envelopes.inbox_id(inbox)
