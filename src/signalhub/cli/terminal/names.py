"""`signalhub __complete`: names for the shell, of contexts and of the topics of a hub.

A shell waits for it at every press of a key, so it imports next to nothing, speaks just enough of
the protocol for one question, and gives up after 0.3 s. Names come from strangers: those with
characters that mean something to a shell are left out.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from signalhub.wire.names import HUB_ADDRESS

LIMIT_S: Final = 0.3
NAMES_MAX: Final = 100
DEFAULT_URL: Final = "ws://127.0.0.1:8787/ws"
PROTOCOL: Final = "0.1.0"

_OF_CONTEXTS: Final = frozenset({"use", "show", "rm"})
_OF_TOPICS: Final = frozenset({"info", "set", "read", "delete"})
_WITH_VALUE: Final = frozenset({"--context", "--url", "--token-file", "--timeout"})
_FRAME_BYTES_MAX: Final = 2**20
_is_safe = re.compile(r"[\w./:+@%=~-]+").fullmatch


def context_path() -> Path:
    """Where contexts are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "signalhub" / "contexts.toml"


def main(words: Sequence[str]) -> None:
    """Print the names that may follow; `words` ends with the word that has been begun."""
    for name in names(words):
        print(name)


def names(words: Sequence[str]) -> list[str]:
    """The names that begin like the last word; none if anything is wrong."""
    *before, begun = words or [""]
    wanted = kind_of(before)
    try:
        if wanted == "context":
            found = list(_contexts().get("contexts", {}))
        elif wanted == "topic":
            found = _topics(before, begun)
        else:
            return []
    except Exception:
        # Whatever it is, a shell has no place to say it.
        return []
    return sorted(name for name in found if name.startswith(begun) and _is_safe(name))


def kind_of(before: Sequence[str]) -> str | None:
    """What the next word names."""
    if before and before[-1] == "--context":
        return "context"
    if before and before[-1].startswith("-"):
        return None
    values = {at + 1 for at, word in enumerate(before) if word in _WITH_VALUE}
    match [word for at, word in enumerate(before) if at not in values and not word.startswith("-")]:
        case ["context", verb] if verb in _OF_CONTEXTS:
            return "context"
        case ["publish" | "subscribe"] | ["sub" | "dlq", _]:
            return "topic"
        case ["topic", verb] if verb in _OF_TOPICS:
            return "topic"
    return None


def _contexts() -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(context_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _topics(before: Sequence[str], begun: str) -> list[str]:
    """Ask the hub of this command line."""
    known = _contexts()
    named = _value(before, "--context")
    name = named or os.environ.get("SIGNALHUB_CONTEXT") or known.get("current")
    context = known.get("contexts", {}).get(name, {})
    given = _value(before, "--url") or (None if named else os.environ.get("SIGNALHUB_URL"))
    url = given or context.get("url") or DEFAULT_URL
    token_file = _value(before, "--token-file")
    if token_file is None and given is None:
        token_file = context.get("token_file")
    # As in commands: the variable belongs to another hub than the context that is named.
    is_foreign = bool(named) and given is None
    token = "" if is_foreign else os.environ.get("SIGNALHUB_TOKEN", "").strip()
    if token_file:
        token = Path(token_file).expanduser().read_text(encoding="utf-8").strip()
    asked = {"limit": NAMES_MAX} | ({"pattern": f"{begun}*"} if begun else {})
    answer = _ask(url, token, "hub:list_topics", asked)
    return [str(topic["topic"]) for topic in answer["topics"]]


def _value(words: Sequence[str], option: str) -> str | None:
    """What was given for an option."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _ask(url: str, token: str, type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One request over one connection."""
    deadline_s = time.monotonic() + LIMIT_S
    parts = urlsplit(url)
    is_secure = parts.scheme in ("wss", "https")
    host, port = parts.hostname or "", parts.port or (443 if is_secure else 80)
    with socket.create_connection((host, port), LIMIT_S) as plain:
        link = _Link(_secured(plain, host) if is_secure else plain, deadline_s)
        link.upgrade(parts.netloc, parts.path.rstrip("/") or "/ws")
        hello: dict[str, Any] = {"protocolVersion": PROTOCOL, "capabilities": ["send"]}
        link.send("hub:connect", None, hello | ({"authToken": token} if token else {}))
        if link.receive()["type"] != "hub:connected":
            raise PermissionError
        link.send(type, payload, {})
        answer: dict[str, Any] = link.receive()["payload"]
        return answer


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


class _Link:
    """A WebSocket for a few short messages."""

    def __init__(self, stream: socket.socket, deadline_s: float) -> None:
        self._stream = stream
        self._deadline_s = deadline_s
        self._read = b""
        self._sent = 0
        self._sender = f"@(cli/{os.urandom(4).hex()})"

    def upgrade(self, authority: str, path: str) -> None:
        key = "c2lnbmFsaHViIG5hbWVzIQ=="
        self._stream.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._read:
            self._fill()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            raise ConnectionError

    def send(self, type: str, payload: object, metadata: dict[str, Any]) -> None:
        self._sent += 1
        message = {
            "id": f"complete-{self._sent}",
            "from": self._sender,
            "to": HUB_ADDRESS,
            "type": type,
            "payload": payload,
            "pattern": "ask",
            "correlationId": None,
            "timestamp": int(time.time() * 1000),
            "metadata": metadata,
            "ttl": None,
            "signature": None,
        }
        text = json.dumps(message).encode()
        # The mask is for proxies; zeros leave the text as it is.
        size = (
            bytes([0x81, 0x80 | len(text)])
            if len(text) < 126
            else b"\x81\xfe" + struct.pack(">H", len(text))
        )
        self._stream.sendall(size + bytes(4) + text)

    def receive(self) -> dict[str, Any]:
        """The next message of text."""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self._take(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self._take(8))
            if size > _FRAME_BYTES_MAX:
                raise ConnectionError
            body = self._take(size)
            if first & 0x0F == 1:
                message: dict[str, Any] = json.loads(body)
                return message

    def _take(self, count: int) -> bytes:
        while len(self._read) < count:
            self._fill()
        taken, self._read = self._read[:count], self._read[count:]
        return taken

    def _fill(self) -> None:
        self._stream.settimeout(max(0.001, self._deadline_s - time.monotonic()))
        part = self._stream.recv(2**16)
        if not part or time.monotonic() > self._deadline_s:
            raise ConnectionError
        self._read += part


if __name__ == "__main__":
    main(sys.argv[1:])
