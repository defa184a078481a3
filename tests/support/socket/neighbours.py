"""Clients that keep a hub busy beside those who are watched, legally or not.

Each works in a thread of its own with blocking calls, which take no time of the test's loop, from
entering the context until it is left.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Self

from signalhub.wire.frames import Opcode
from tests.support.peer import HUB
from tests.support.socket.frames import masked_frame
from tests.support.socket.peer import upgrade_request

CHUNK_BYTES = 60_000
# How long a blocking call may take until it is noticed that the work is over.
BLOCKED_S = 0.05
PAUSE_S = 0.02
ANSWER_S = 5.0
# Digits of a frame that are a new number in every copy.
NUMBER = "0000000000"
SENDER = "@(busy/neighbour)"

_DIGITS = NUMBER.encode()
# No two flooders use the same numbers.
_firsts = count(0, 10**7)
# The payload stays readable, so that numbers can be replaced in it.
_NO_MASK = bytes(4)


def text(payload: str | bytes) -> bytes:
    """One text frame."""
    data = payload.encode() if isinstance(payload, str) else payload
    return masked_frame(Opcode.TEXT, data, mask=_NO_MASK)


def request(type: str, payload: Any = None, **members: Any) -> bytes:
    """One frame with a valid request; `NUMBER` in the id makes every copy another message."""
    envelope = {
        "id": str(uuid.uuid4()),
        "from": SENDER,
        "to": HUB,
        "type": type,
        "payload": payload,
        "pattern": "ask",
        "correlationId": None,
        "timestamp": int(time.time() * 1000),
        "metadata": {},
        "ttl": None,
        "signature": None,
    }
    return text(json.dumps(envelope | members))


def hello(**metadata: Any) -> bytes:
    """The frame that begins a session."""
    given = {"protocolVersion": "0.1.0", "capabilities": ["send", "receive"]} | metadata
    return request("hub:connect", metadata=given)


class Neighbour(ABC):
    """Works in a thread, again and again if it is interrupted."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._port = port
        self._source = source
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        # What it has done, and what it takes until it is at full strength.
        self._done = 0
        self._warm = 1

    @property
    def is_busy(self) -> bool:
        """Is it at full strength?"""
        return self._done >= self._warm

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
                self._work()
            self._is_over.wait(PAUSE_S)

    @abstractmethod
    def _work(self) -> None:
        """Work until it is over, or until the hub ends the connection."""

    def _dial(self, receive_bytes: int = 0) -> socket.socket:
        connection = socket.socket()
        connection.settimeout(ANSWER_S)
        # Closed with a reset, so that a storm of them does not use up the ports.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            connection.bind((self._source, 0))
            connection.connect(("127.0.0.1", self._port))
        except OSError:
            connection.close()
            raise
        return connection


class Flooder(Neighbour):
    """Sends frames, or requests, over one connection as fast as the hub reads them."""

    def __init__(
        self,
        port: int,
        frame: bytes,
        *,
        path: str | None = "/ws",
        headers: Mapping[str, str] | None = None,
        first: bytes = b"",
        reads: bool = False,
        pause_s: float = 0.0,
        warm_bytes: int = 1,
    ) -> None:
        """Without a path it speaks HTTP. `first` is sent once, and answered, before the frames.

        Unless it `reads`, the other answers of the hub wait. It pauses after every few frames, and
        is at full strength when it has sent some bytes.
        """
        super().__init__(port)
        self._warm = warm_bytes
        self._frame = frame
        self._copies = max(1, CHUNK_BYTES // len(frame))
        self._is_numbered = _DIGITS in frame
        self._many = frame * self._copies
        self._opening = b"" if path is None else upgrade_request(path, headers)
        self._first = first
        self._reads = reads
        self._pause_s = pause_s
        self._number = next(_firsts)

    def _work(self) -> None:
        with self._dial() as connection:
            for said in filter(None, (self._opening, self._first)):
                connection.sendall(said)
                if not connection.recv(65_536):
                    return
            connection.settimeout(BLOCKED_S)
            if self._reads:
                threading.Thread(target=_drain, args=(connection,), daemon=True).start()
            while not self._is_over.is_set():
                self._send(connection)
                if self._pause_s:
                    self._is_over.wait(self._pause_s)

    def _send(self, connection: socket.socket) -> None:
        view = memoryview(self._next())
        while view and not self._is_over.is_set():
            # A hub that does not read makes it wait; that is the point.
            with suppress(TimeoutError):
                sent = connection.send(view)
                self._done += sent
                view = view[sent:]

    def _next(self) -> bytes:
        if not self._is_numbered:
            return self._many
        first, self._number = self._number, self._number + self._copies
        digits = [b"%010d" % number for number in range(first, self._number)]
        return b"".join([self._frame.replace(_DIGITS, one) for one in digits])


def _drain(connection: socket.socket) -> None:
    while True:
        try:
            if not connection.recv(65_536):
                return
        except TimeoutError:
            pass
        except OSError:
            return


class Caller(Neighbour):
    """Connects again and again. Says something and reads the answer, or stays and says nothing."""

    def __init__(
        self,
        port: int,
        said: bytes = b"",
        *,
        source: str = "127.0.0.1",
        stays: int = 0,
        warm: int = 1,
        pause_s: float = 0.001,
    ) -> None:
        """The last connections stay open, as many as it says; each waits for no answer then.

        It is at full strength after so many calls, and when as many are open as stay.
        """
        super().__init__(port, source)
        self._warm = max(warm, stays)
        self._said = said
        self._stays = stays
        self._pause_s = pause_s
        self._open: deque[socket.socket] = deque()
        # Status codes.
        self.answers: Counter[int] = Counter()

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                self._call()
                self._done += 1
                self._is_over.wait(self._pause_s)
        finally:
            while self._open:
                self._open.popleft().close()

    def _call(self) -> None:
        connection = self._dial()
        connection.sendall(self._said)
        if self._stays:
            self._open.append(connection)
            if len(self._open) > self._stays:
                self._open.popleft().close()
            return
        with connection:
            answer = connection.recv(65_536)
            if answer:
                self.answers[int(answer[9:12])] += 1


class Crowd(Neighbour):
    """Many WebSockets that listen to somebody, or that do not even read."""

    def __init__(
        self,
        port: int,
        count: int,
        speaker: Flooder,
        *,
        path: str = "/ws",
        headers: Mapping[str, str] | None = None,
        first: bytes = b"",
        until: bytes,
        reads: bool,
    ) -> None:
        """Each has arrived when it was answered with something that contains `until`."""
        super().__init__(port)
        self._count = count
        self._speaker = speaker
        self._opening = upgrade_request(path, headers)
        self._first = first
        self._until = until
        self._reads = reads
        self._sockets: list[socket.socket] = []

    @property
    def is_busy(self) -> bool:
        return self._speaker.is_busy

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._sockets.append(self._arrive())
        self._speaker.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._speaker.__exit__(*error)
        super().__exit__(*error)
        for one in self._sockets:
            one.close()

    def _arrive(self) -> socket.socket:
        connection = self._dial(receive_bytes=4096)
        connection.sendall(self._opening)
        heard = connection.recv(65_536)
        connection.sendall(self._first)
        while self._until not in heard:
            more = connection.recv(65_536)
            assert more, heard
            heard += more
        return connection

    def _work(self) -> None:
        if not self._reads:
            self._is_over.wait()
            return
        with selectors.DefaultSelector() as selector:
            for one in self._sockets:
                one.setblocking(False)
                selector.register(one, selectors.EVENT_READ, one)
            while not self._is_over.is_set():
                for key, _ in selector.select(BLOCKED_S):
                    with suppress(OSError):
                        if not key.data.recv(2**18):
                            selector.unregister(key.data)
