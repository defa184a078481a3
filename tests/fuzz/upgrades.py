"""Upgrade requests as clients send them, and damaged ones.

Invariant: what the native part takes is what Python would have read, and would not refuse.
"""

from __future__ import annotations

from typing import Final

from signalhub.server.port.door import handshake_refusal, wants_websocket
from signalhub.server.port.http import HttpRequest, RequestReader
from signalhub.server.sockets.native import switching
from tests.fuzz.mutations import Damage

_KEY: Final = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
CLIENTS: Final = {
    "a browser": [
        *("Host: localhost:8787", "Connection: Upgrade", "Pragma: no-cache"),
        *("Cache-Control: no-cache", "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/143.0"),
        *("Upgrade: websocket", "Origin: http://localhost:3000", "Sec-WebSocket-Version: 13"),
        *("Accept-Encoding: gzip, deflate, br, zstd", "Accept-Language: en-GB,en;q=0.9", _KEY),
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
    ],
    "another browser": [
        *("Host: localhost:8787", "User-Agent: Mozilla/5.0 Gecko/20100101 Firefox/146.0"),
        *("Accept: */*", "Accept-Language: en-GB,en;q=0.5", "Sec-WebSocket-Version: 13"),
        *("Origin: http://localhost:3000", "Sec-WebSocket-Protocol: signalhub.v1", _KEY),
        *("Connection: keep-alive, Upgrade", "Sec-Fetch-Dest: empty", "Upgrade: websocket"),
    ],
    "a library": [
        *("Host: 127.0.0.1:8787", "Upgrade: websocket", "Connection: Upgrade", _KEY),
        *("Sec-WebSocket-Version: 13", "User-Agent: Python/3.11 websockets/15.0"),
    ],
    "a proxy": [
        *("Host: hub.example.org", "X-Forwarded-For: 192.0.2.1, 198.51.100.7", _KEY),
        *("X-Forwarded-Proto: https", "Upgrade: WebSocket", "Connection: upgrade"),
        *("Sec-WebSocket-Version: 13", "Authorization: Bearer a.b.c"),
    ],
}
_TARGETS: Final = [
    *("/", "/ws", "/room", "/ws/acme/general", "/ws?token=a.b.c&x=%20", "/ws#a", "//", "/%00"),
    *("http://localhost/ws", "*", "/ws?", "/ws?a?b", "/é", "/ w", '/"', "/ws;a"),
]
_LINES: Final = [
    *("Content-Length: 0", "Content-Length: 5", "Transfer-Encoding: chunked", "Expect: x"),
    *("Upgrade: h2c", "Upgrade: websocket, h2c", "Connection: close", "Connection: Upgrade, close"),
    *("Connection: x", "Sec-WebSocket-Version: 8", "Sec-WebSocket-Version: 13", "Host: evil"),
    *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Key: x", "X:y", "X: ", "X:"),
    *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAB==", "Host:", "Host: a b", "Folded: a\r\n b"),
    *("X-Own: a", "x-own: a", "X-Own:  a", "X-Own: a ", "X-Own:\ta", "X Own: a", "X_Own: a", ":"),
    *("Origin: null", "Proxy-Connection: keep-alive", "Trailer: X", "X: \xff", "X: " + "y" * 5_000),
    *("Keep-Alive: timeout=5", "TE: trailers", "HTTP2-Settings: AAMAAABk", "A" * 40 + ": b"),
]
_TEXT: Final = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b"=", b"\xff", b"\x7f", b"\r\n\r\n"),
    *(b"Upgrade", b"websocket", b"HTTP/1.1", b"HTTP/1.0", b"GET ", b"POST ", b"X: y\r\n"),
]


class UpgradeAsker(Damage):
    """Requests that are nearly right."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, odd_text=_TEXT)
        self.taken = 0

    def next(self) -> bytes:
        lines = list(self.pick(list(CLIENTS.values())))
        for _ in range(self.below(3)):
            lines.insert(self.below(len(lines) + 1), self.pick(_LINES))
        if self.is_likely(0.2):
            del lines[self.below(len(lines))]
        self.random.shuffle(lines)
        target = "/ws" if self.is_likely(0.7) else self.pick(_TARGETS)
        data = "\r\n".join([f"GET {target} HTTP/1.1", *lines, "", ""]).encode("latin-1")
        return self.damaged(data)

    def compare(self, data: bytes) -> None:
        """Taken, it is read as Python reads it; otherwise it is for Python."""
        from signalhub_native import upgrade

        asked = upgrade(data)
        if asked is None:
            return
        self.taken += 1
        path, query, headers, answer = asked
        reader = RequestReader()
        (request,) = reader.feed(data)
        assert (reader.failure, reader.rest) == (None, b"")
        assert request == HttpRequest(
            *("GET", path, query, headers, b"", "1.1", False), authority=headers["host"]
        )
        assert list(request.headers) == list(headers)
        assert wants_websocket(request)
        assert handshake_refusal(request) is None
        assert answer == switching(headers["sec-websocket-key"])
