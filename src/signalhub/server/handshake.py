"""Who may become a WebSocket: the rules of RFC 6455 section 4.2.1, and those about origins."""

from __future__ import annotations

import binascii
import ipaddress
import re

from signalhub.server.http import Request, Response, text

WEBSOCKET_VERSION = "13"

UPGRADE_REQUIRED = text(426, "WebSocket only: ask for an upgrade.", {"Upgrade": "websocket"})
ORIGIN_REFUSED = text(403, "This origin is not on the hub's list.")
_OTHER_VERSION = text(
    426,
    f"The hub speaks WebSocket version {WEBSOCKET_VERSION}.",
    {"Upgrade": "websocket", "Sec-WebSocket-Version": WEBSOCKET_VERSION},
)
_NOT_GET = text(400, "A WebSocket begins with GET in HTTP/1.1 and without a body.")
NO_CONNECTION = text(400, "The Connection header must name Upgrade.")
_BAD_KEY = text(400, "Sec-WebSocket-Key must be 16 bytes in base64.")

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^/?#@:\[\]\s]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def wants_websocket(request: Request) -> bool:
    """Does the client ask to leave HTTP for WebSocket, well or badly?"""
    return request.has_token("upgrade", "websocket")


def refusal(request: Request) -> Response | None:
    """Why this upgrade cannot be, or `None` when it can."""
    headers = request.headers
    if (
        request.method != "GET"
        or request.version != "1.1"
        or request.body
        or "transfer-encoding" in headers
    ):
        return _NOT_GET
    if not request.has_token("connection", "upgrade"):
        return NO_CONNECTION
    if headers.get("sec-websocket-version") != WEBSOCKET_VERSION:
        return _OTHER_VERSION
    if not _is_key(headers.get("sec-websocket-key", "")):
        return _BAD_KEY
    return None


def _is_key(key: str) -> bool:
    try:
        return len(key) == 24 and len(binascii.a2b_base64(key, strict_mode=True)) == 16
    except ValueError:
        return False


def origin_allowed(origin: str | None, origins: tuple[str, ...]) -> bool:
    """May a page of this origin connect? Clients that send none are no browsers and may.

    With a list only its members may, compared as scheme, host and port; without one only pages that
    this machine serves itself.
    """
    if origin is None:
        return True
    given = _parts(origin)
    if given is None:
        return False
    if origins:
        return any(given == _parts(listed) for listed in origins)
    scheme, host, _ = given
    return scheme in _DEFAULT_PORTS and _is_loopback(host)


def _parts(origin: str) -> tuple[str, str, int | None] | None:
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None:
        return None
    scheme, host, port = match.groups()
    return scheme, host, int(port) if port else _DEFAULT_PORTS.get(scheme)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
