"""A server that answers like the admin API, from a table: for pages that a hub seldom shows.

It serves the built page with the headers of the hub, the requests of a `Scene`, and the live
socket. What was asked for is recorded, so that a test can look at it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

STATIC: Final = Path(__file__).parents[2] / "src" / "signalhub" / "web" / "static"
PREFIX: Final = "/api/admin/v1"
# The same as those of the hub; the test of the real hub compares them.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Query = dict[str, str]


class Refusal(Exception):
    """An answer that is none of the good ones."""

    def __init__(self, status: int, code: str, text: str, **details: object) -> None:
        super().__init__(text)
        self.status = status
        self.answer = {"error": text, "errorCode": code, "resolution": "", "details": details}


class Asked(NamedTuple):
    """One request that came."""

    method: str
    path: str
    query: Query
    body: str


class Scene:
    """What a hub shows: answers by path, and frames by watch."""

    def __init__(self, me: dict[str, Any]) -> None:
        self.me = me
        self.token: str | None = None
        self._answers: dict[tuple[str, str], Callable[[Asked], Any]] = {}
        self._watches: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def on(self, method: str, path: str, answer: Any) -> None:
        """Answer a request; a callable is given what was asked."""
        self._answers[method, path] = answer if callable(answer) else lambda _: answer

    def shows(self, what: str, frame: Any) -> None:
        """Answer a watch with one frame."""
        self._watches[what] = frame if callable(frame) else lambda _: frame

    def answer(self, asked: Asked) -> Any:
        """The answer to a request."""
        found = self._answers.get((asked.method, asked.path))
        if found is None:
            raise Refusal(404, "not_found", f"There is no {asked.path} here.")
        return found(asked)

    def frame(self, what: str, request: dict[str, Any]) -> Any:
        """The frame of a watch; `None` if it shows nothing."""
        found = self._watches.get(what)
        return None if found is None else found(request)


class ScriptedHub:
    """The server; `asked` has every request of the API in order."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.asked: list[Asked] = []
        self.is_away = False
        self.sockets: set[socket.socket] = set()
        handler = type("Bound", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def leave(self) -> None:
        """Close every socket, and answer nothing until `come_back`."""
        self.is_away = True
        for one in list(self.sockets):
            one.shutdown(socket.SHUT_RDWR)

    def come_back(self) -> None:
        """Answer again."""
        self.is_away = False

    def close(self) -> None:
        """End it."""
        self.leave()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: ScriptedHub
    _saying = threading.Lock()
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test fails with what it asserts."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if self.hub.is_away:
            self.close_connection = True
        elif path == f"{PREFIX}/live":
            self._live()
        elif path.startswith(PREFIX):
            self._api("GET")
        else:
            self._file(path)

    def do_POST(self) -> None:
        self._api("POST")

    def do_PUT(self) -> None:
        self._api("PUT")

    def do_PATCH(self) -> None:
        self._api("PATCH")

    def do_DELETE(self) -> None:
        self._api("DELETE")

    def _file(self, path: str) -> None:
        name = "index.html" if path == "/ui/" else path.removeprefix("/ui/assets/")
        found = STATIC / Path(name).name
        if not path.startswith("/ui/") or not found.is_file():
            self._send(404, b"", "text/plain")
            return
        kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        if found.suffix == ".js":
            kind = "text/javascript"
        self._send(200, found.read_bytes(), kind)

    def _api(self, method: str) -> None:
        if self.hub.is_away:
            self.close_connection = True
            return
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = unquote(split.path.removeprefix(PREFIX))
        asked = Asked(method, path, dict(parse_qsl(split.query)), body)
        self.hub.asked.append(asked)
        token = self.hub.scene.token
        try:
            if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
                raise Refusal(401, "unauthorized", "The token was refused.")
            found = self.hub.scene.me if path == "/me" else self.hub.scene.answer(asked)
            self._send(200, json.dumps(found).encode(), "application/json")
        except Refusal as refusal:
            self._send(refusal.status, json.dumps(refusal.answer).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _live(self) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            self.send_header(name, value)
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.hub.sockets.add(self.connection)
        self.close_connection = True
        gone = threading.Event()
        watched: dict[int, dict[str, Any]] = {}
        ticking = threading.Thread(target=self._tick, args=(watched, gone))
        ticking.start()
        try:
            self._talk(watched)
        except (OSError, EOFError, struct.error):
            pass
        finally:
            gone.set()
            ticking.join()
            self.hub.sockets.discard(self.connection)

    def _tick(self, watched: dict[int, dict[str, Any]], gone: threading.Event) -> None:
        """Send the watches again, once a second."""
        while not gone.wait(1.0):
            for request in list(watched.values()):
                try:
                    self._show(request)
                except OSError:
                    return

    def _show(self, request: dict[str, Any]) -> None:
        frame = self.hub.scene.frame(request["what"], request)
        if frame is not None:
            self._say({"id": request["id"], "at": int(time.time() * 1000), **frame})

    def _talk(self, watched: dict[int, dict[str, Any]]) -> None:
        while (text := self._heard()) is not None:
            request = json.loads(text)
            if request["op"] == "hello":
                self._say({"op": "welcome", **self.hub.scene.me})
            elif request["op"] == "watch":
                watched[request["id"]] = request
                self._show(request)
            elif request["op"] == "stop":
                watched.pop(request["id"], None)

    def _heard(self) -> str | None:
        first, second = self._read(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack(">H", self._read(2))
        mask = self._read(4)
        data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self._read(length)))
        return data.decode() if first & 0x0F == 1 else None

    def _read(self, count: int) -> bytes:
        data = self.rfile.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def _say(self, frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        head = b"\x81" + (
            bytes([len(data)])
            if len(data) < 126
            else b"\x7e" + struct.pack(">H", len(data))
            if len(data) < 2**16
            else b"\x7f" + struct.pack(">Q", len(data))
        )
        with self._saying:
            self.wfile.write(head + data)
            self.wfile.flush()
