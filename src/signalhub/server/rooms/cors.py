"""Which web pages may use rooms and inboxes: those whose origin may open a WebSocket.

Browsers ask before they send any of these requests, because each needs a header or a content type
of its own. A page of another origin is told no, and could not read an answer either.
"""

from __future__ import annotations

from typing import Final

import msgspec

from signalhub.server.handshake import ORIGIN_REFUSED, origin_allowed
from signalhub.server.http import Request, Response
from signalhub.server.rooms.answers import ETAG, OLDEST_SEQ, REPLAY, RETRY_AFTER

ALLOW_ORIGIN: Final = "Access-Control-Allow-Origin"
_ANSWERED: Final = {
    "Vary": "Origin",
    "Access-Control-Expose-Headers": ", ".join((REPLAY, OLDEST_SEQ, ETAG, RETRY_AFTER)),
}
_PREFLIGHT: Final = {
    "Vary": "Origin",
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT",
    "Access-Control-Allow-Headers": (
        "Content-Type, If-Match, If-None-Match, X-Inbox-ID, X-Pseudonym-ID, X-Room-ID"
    ),
    "Access-Control-Max-Age": "600",
}


class Cors:
    """Cross-origin permissions for the origins of the settings."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = origins

    def preflight(self, request: Request) -> Response:
        """May a page send such a request? Who is no page is told nothing new."""
        origin = request.headers.get("origin")
        if origin is None:
            return Response(204)
        if not origin_allowed(origin, self._origins):
            return ORIGIN_REFUSED
        return Response(204, headers={ALLOW_ORIGIN: origin, **_PREFLIGHT})

    def admits(self, origin: str | None) -> bool:
        """May a request of this origin be served at all? Programs that are no browser send none."""
        return origin is None or origin_allowed(origin, self._origins)

    def dress(self, response: Response, origin: str | None) -> Response:
        """The response, readable by the page that asked, if it may read it."""
        if origin is None or not origin_allowed(origin, self._origins):
            return response
        headers = {**response.headers, ALLOW_ORIGIN: origin, **_ANSWERED}
        return msgspec.structs.replace(response, headers=headers)
