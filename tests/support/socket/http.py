"""A bare HTTP/1.1 client: it sends requests exactly as a test writes them.

One `Web` is one connection, kept alive as long as the hub keeps it and opened again when it does
not. It shares no code with the hub or the SDK.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PATIENCE_S = 20.0
JSON = {"Content-Type": "application/json"}

Headers = Mapping[str, str] | Sequence[tuple[str, str]]

_BODILESS = (101, 204, 304)


class Answer(NamedTuple):
    """What the hub answered; headers in their order and spelling."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, which must not be there twice."""
        values = [value for known, value in self.headers if known.lower() == name.lower()]
        assert len(values) <= 1, f"{name} is there {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        """The body, which must be strict JSON and say so."""
        assert self.header("Content-Type") in (
            "application/json",
            "application/json; charset=utf-8",
        ), self.headers
        return read_json(self.body)

    @property
    def undated(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """All of it but the date."""
        headers = [(name, value) for name, value in self.headers if name.lower() != "date"]
        return self.status, headers, self.body


class HungUp(Exception):
    """The hub ended the connection without an answer."""


class Web:
    """One connection to the hub's port."""

    def __init__(self, port: int) -> None:
        self.connects = 0
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def get(self, path: str, headers: Headers = ()) -> Answer:
        return await self.request("GET", path, headers)

    async def post(self, path: str, value: Any, headers: Headers = ()) -> Answer:
        """Post a value as JSON."""
        return await self.request("POST", path, [*JSON.items(), *pairs(headers)], encode(value))

    async def put(self, path: str, body: bytes, headers: Headers = ()) -> Answer:
        return await self.request("PUT", path, headers, body)

    async def request(
        self, method: str, path: str, headers: Headers = (), body: bytes | None = None
    ) -> Answer:
        """One request, one answer; requests of several tasks take turns."""
        async with self._turn, asyncio.timeout(PATIENCE_S):
            reader, writer = await self._connected()
            writer.write(request_bytes(method, path, headers, body))
            try:
                answer = await read_answer(reader, has_body=method != "HEAD")
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                self.close()
                raise HungUp from error
            if answer.header("Connection") == "close":
                self.close()
            return answer

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            self.connects += 1
        return self._streams


def pairs(headers: Headers) -> list[tuple[str, str]]:
    """Headers as a list, in which one may come twice."""
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def request_bytes(
    method: str, path: str, headers: Headers = (), body: bytes | None = None
) -> bytes:
    """A request as it travels."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in pairs(headers)]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


async def read_answer(reader: asyncio.StreamReader, *, has_body: bool = True) -> Answer:
    """The next answer on a connection; after an upgrade what follows is left unread."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1", first
    parted = (line.partition(":") for line in lines)
    headers = tuple((name, value.strip()) for name, _, value in parted)
    answer = Answer(int(status), headers, b"")
    assert answer.header("Transfer-Encoding") is None, headers
    if not has_body or answer.status in _BODILESS:
        return answer
    length = answer.header("Content-Length")
    assert length is not None, headers
    return answer._replace(body=await reader.readexactly(int(length)))


def encode(value: Any) -> bytes:
    """A value as JSON; bytes are taken as they are, so that a test can send nonsense."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def read_json(text: bytes | str) -> Any:
    """Strict JSON: no constants that only JavaScript knows, no member twice."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"the hub sent {name}, which is not JSON")


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in members]
    assert len(names) == len(set(names)), f"a member is there twice: {names}"
    return dict(members)
