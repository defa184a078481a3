"""A client in a thread of its own that sends one frame over and over, as fast as the hub reads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.socket.peer import upgrade_request

CHUNK_BYTES = 60_000
PAUSE_S = 0.02


class Flooder:
    """Sends in a loop while it is used as a context; comes back whenever it is closed.

    Blocking calls in threads take no time of the test's own loop.
    """

    def __init__(
        self,
        port: int,
        frame: bytes,
        *,
        path: str = "/ws",
        headers: Mapping[str, str] | None = None,
        first: bytes = b"",
        reads: bool = False,
    ) -> None:
        """`first` is sent once, and answered, before the frames.

        Unless it `reads`, the other answers of the hub wait.
        """
        self._port = port
        self._many = frame * max(1, CHUNK_BYTES // len(frame))
        self._opening = upgrade_request(path, headers)
        self._first = first
        self._reads = reads
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with suppress(OSError):
                self._flood()
            time.sleep(PAUSE_S)

    def _flood(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=0.2) as connection:
            connection.sendall(self._opening)
            head = connection.recv(65_536)
            if not head.startswith(b"HTTP/1.1 101 "):
                return
            if self._first:
                connection.sendall(self._first)
                connection.recv(65_536)
            if self._reads:
                threading.Thread(target=_read, args=(connection,), daemon=True).start()
            while not self._is_over.is_set():
                self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        view = memoryview(self._many)
        while view and not self._is_over.is_set():
            # A hub that does not read makes it wait; that is the point.
            with suppress(TimeoutError):
                sent = connection.send(view)
                self.sent_bytes += sent
                view = view[sent:]


def _read(connection: socket.socket) -> None:
    while True:
        try:
            if not connection.recv(65_536):
                return
        except TimeoutError:
            pass
        except OSError:
            return
