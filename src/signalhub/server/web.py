"""The files of the page for people, from memory: `/ui/`, `/ui/assets/{}` and `/sdk.js`.

They are read and compressed once, when the hub starts. A file whose name contains a digest of its
content never changes, so browsers keep it for a year; the others are asked for again every time and
usually answered 304. The page may load and reach nothing but this hub.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from signalhub.server.port.http import HttpRequest, Response, Routes, text

STATIC: Final = Path(__file__).parent.parent / "web" / "static"
PAGE: Final = "/ui/"
SDK: Final = "/sdk.js"
ASSETS: Final = f"{PAGE}assets/"
_INDEX: Final = "index.html"
_DIGEST: Final = re.compile(r"[\w-]+\.[0-9A-Za-z_-]{8,64}\.[a-z0-9]+")
_SDK_FILE: Final = re.compile(r"signalhub\.[0-9A-Za-z_-]{8,64}\.js")
# Smaller files do not get smaller.
_COMPRESSED_FROM_BYTES: Final = 256

CONTENT_SECURITY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".map": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_MISSING: Final = text(
    404,
    "This installation comes without the page: install a released package, or run `make web`.",
    HEADERS,
)
_NO_FILE: Final = text(404, "There is no such file. Load the page again.", HEADERS)


class Asset(msgspec.Struct, frozen=True):
    """One file, as it is and compressed."""

    content: bytes
    compressed: bytes | None
    content_type: str
    tag: str
    cache: str

    def answer(self, request: HttpRequest) -> Response:
        """Return the file, or 304 if the client has it."""
        packed = self.compressed if _accepts_gzip(request) else None
        tag = f'"{self.tag}"' if packed is None else f'"{self.tag}-gzip"'
        headers = HEADERS | {"ETag": tag, "Cache-Control": self.cache, "Vary": "Accept-Encoding"}
        if self._is_known(request.headers.get("if-none-match", "")):
            return Response(304, headers=headers)
        if packed is None:
            return Response(200, self.content, self.content_type, headers)
        return Response(200, packed, self.content_type, headers | {"Content-Encoding": "gzip"})

    def _is_known(self, listed: str) -> bool:
        tags = (one.strip().removeprefix("W/") for one in listed.split(","))
        return any(one in ("*", f'"{self.tag}"', f'"{self.tag}-gzip"') for one in tags)


class Web:
    """All files of a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = STATIC if folder is None else folder
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        self._assets = {path.name: _read(path) for path in paths if path.suffix in _TYPES}
        self._sdk = next((name for name in self._assets if _SDK_FILE.fullmatch(name)), None)

    def add_to(self, routes: Routes) -> None:
        """Register the paths."""
        routes.add(PAGE, self.page, "GET")
        routes.add(PAGE.rstrip("/"), self.redirect, "GET")
        routes.add(f"{ASSETS}{{}}", self.asset, "GET")
        routes.add(SDK, self.sdk, "GET")
        routes.add_landing(self.landing)

    def page(self, request: HttpRequest) -> Response:
        """`/ui/`: the page; where in it one is, is in the fragment, which is not sent."""
        index = self._assets.get(_INDEX)
        return _MISSING if index is None else index.answer(request)

    def redirect(self, request: HttpRequest) -> Response:
        """`/ui`: the page is at `/ui/`."""
        return _moved(308, PAGE)

    def landing(self, request: HttpRequest) -> Response:
        """`/` in a browser."""
        return _moved(302, PAGE)

    def asset(self, request: HttpRequest, name: str) -> Response:
        """`/ui/assets/{}`: one file."""
        found = self._assets.get(name)
        return _NO_FILE if found is None or name == _INDEX else found.answer(request)

    def sdk(self, request: HttpRequest) -> Response:
        """`/sdk.js`: the client for JavaScript, for pages of this origin."""
        return _NO_FILE if self._sdk is None else _moved(302, f"{ASSETS}{self._sdk}")


def _moved(status: int, to: str) -> Response:
    return text(status, f"See {to}", HEADERS | {"Location": to, "Cache-Control": "no-cache"})


def _accepts_gzip(request: HttpRequest) -> bool:
    """Is `gzip` in `Accept-Encoding`, with a weight perhaps, that is not 0?"""
    for one in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= _COMPRESSED_FROM_BYTES else b""
    is_fixed = _DIGEST.fullmatch(path.name) is not None
    return Asset(
        content,
        packed if packed and len(packed) < len(content) else None,
        _TYPES[path.suffix],
        hashlib.sha256(content).hexdigest()[:32],
        "public, max-age=31536000, immutable" if is_fixed else "no-cache",
    )
