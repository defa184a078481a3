"""Requests of one connection, the plain ones read by the native part.

Plain is a whole request of a known method whose head has nothing that changes where it ends.
Everything from the first request on that is not plain is parsed by httptools, and what follows it
in the same read. Without the native part, httptools parses all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub import native
from signalhub.server.port.http import HttpRequest, RequestReader

if native.IS_ON or TYPE_CHECKING:
    from signalhub_native import Requests

    _plain = Requests(HttpRequest)


class NativeRequestReader(RequestReader):
    """Gives the same requests as its parent, and ends in the same way."""

    __slots__ = ("_is_after",)

    def __init__(self) -> None:
        super().__init__()
        # Has the parser seen the end of every request that it has seen the beginning of?
        self._is_after = True

    @property
    def is_between(self) -> bool:
        return self._parser is not None and self._is_after and not self._unparsed_bytes

    def feed(self, data: bytes) -> list[HttpRequest]:
        if not self.is_between:
            return super().feed(data)
        requests, end = _plain.read(data, self.peer, self.local)
        if end == len(data):
            return requests
        if not requests:
            return super().feed(data)
        # As in the parent, a head that begins in the same read as a whole request is not counted.
        self._unparsed_bytes = end - len(data)
        requests += super().feed(data[end:])
        self._unparsed_bytes = 0
        return requests

    def on_message_begin(self) -> None:
        self._is_after = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # The parser takes nothing after the last request of a connection.
        self._is_after = self._complete[-1].keep_alive


def new_reader() -> RequestReader:
    """Return the reader of a new connection."""
    return NativeRequestReader() if native.IS_ON else RequestReader()
