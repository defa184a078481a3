"""Bytes after the handshake: picows, the connection and the hub are real, the socket is a pair.

Invariant: whatever arrives, nothing raises, everything the hub writes is a complete frame, answers
do not depend on how the bytes were cut, a closed socket leaves nothing behind, and a bystander is
served as ever.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final, cast

from signalhub.server.port.door import Door
from signalhub.server.runner import HubRunner
from signalhub.server.sockets.connection import Connection
from signalhub.server.sockets.picows import PicowsConnection, shake_hands
from signalhub.wire.frames import is_text
from tests.fuzz.corpus import ODD_TEXT
from tests.fuzz.mutations import Damage, Mutator
from tests.support.memory.shell import HELLO, envelope
from tests.support.memory.write_path import Doorkeeper, Stage
from tests.support.socket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    FrameReader,
    masked_frame,
)

FRAME_BYTES_MAX: Final = 20_000
KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
_HEAD_END: Final = b"\r\n\r\n"
_PAYLOADS: Final = [
    *(
        b"",
        b"x",
        b"{}",
        b"ping",
        "größe \U0001f600".encode(),
        b"\xff",
        b"\xc3",
        b"\xa9",
        b"\xed\xa0",
    ),
    *(b"\x03\xe8", b"\x03\xe8bye", b"\x03", b"\x03\xec", b"\x0b\xb8\xff", b"\x00\x00", b"a" * 125),
    *(b"a" * 126, b"b" * 4_000, b"[" * 500, "é".encode() * 3_000, b"c" * (FRAME_BYTES_MAX + 1)),
]
_LENGTHS: Final = [
    *(
        b"\x00",
        b"\x01",
        b"\x7d",
        b"\x7e\x00\x00",
        b"\x7e\x00\x05",
        b"\x7e\xff\xff",
        b"\x7f" + bytes(8),
    ),
    *(b"\x7f" + b"\xff" * 8, b"\x7f" + bytes(4) + b"\xff" * 4, b"\x7f\x80" + bytes(7)),
]
_OPCODES: Final = (TEXT, TEXT, TEXT, BINARY, CONTINUATION, CONTINUATION, PING, PONG, CLOSE)


def _message(type: str, number: int, **members: Any) -> bytes:
    return envelope(type, None, id=f"m{number}", sender="@(fuzz/a)", timestamp=1, **members)


HELLO_FRAME: Final = masked_frame(TEXT, _message("hub:connect", 0, metadata=HELLO))


class Framer(Damage):
    """Streams of one to eight frames, in pieces."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, odd_text=[*ODD_TEXT, b"\x81\x00", b"\x88\x80\0\0\0\0", b"\xff" * 8])
        self._messages = Mutator(seed)

    def next(self) -> list[bytes]:
        frames = [] if self.is_likely(0.05) else [HELLO_FRAME]
        for _ in range(1 + self.below(8)):
            frames += self._fragmented() if self.is_likely(0.2) else [self._frame()]
        data = b"".join(frames)
        return self.pieces(self.damaged(data) if self.is_likely(0.7) else data)

    def _frame(self) -> bytes:
        opcode = self.pick(_OPCODES)
        if self.is_likely(0.03):
            opcode = self.below(16)
        return masked_frame(
            opcode,
            self._payload(),
            fin=self.is_likely(0.8),
            rsv=self.below(8) if self.is_likely(0.03) else 0,
            mask=None if self.is_likely(0.02) else self.random.randbytes(4),
            length=self.pick(_LENGTHS) if self.is_likely(0.03) else None,
        )

    def _fragmented(self) -> list[bytes]:
        """One message in frames, with a ping between them now and then."""
        parts = self.pieces(self._payload()) or [b""]
        last = len(parts) - 1
        frames = []
        for index, part in enumerate(parts):
            opcode = CONTINUATION if index else TEXT
            frames.append(masked_frame(opcode, part, fin=index == last))
            if self.is_likely(0.2):
                frames.append(masked_frame(PING, b"between"))
        return frames

    def _payload(self) -> bytes:
        if self.is_likely(0.3):
            return _message("hub:heartbeat", self.below(1_000))
        return self._messages.next() if self.is_likely(0.3) else self.pick(_PAYLOADS)


class PairedSocket:
    """One end of a pair of sockets, with the options of TCP."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._heard = bytearray()

    def fileno(self) -> int:
        return self._near.fileno()

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, *_: object) -> int:
        return 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._near.send(view) :]
            except BlockingIOError:
                self._hear()

    def take(self) -> bytes:
        """What the hub has written since."""
        self._hear()
        heard, self._heard = bytes(self._heard), bytearray()
        return heard

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while data := self._far.recv(2**16):
                self._heard += data

    def close(self) -> None:
        self._near.close()
        self._far.close()


class PairedTransport:
    """What picows and a connection use of their transport; everything is written at once."""

    def __init__(self, sock: PairedSocket) -> None:
        self._sock = sock
        self.protocol: Any = None
        self.is_reading = True
        self._is_closing = False

    def get_extra_info(self, name: str) -> PairedSocket | None:
        return self._sock if name == "socket" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self._sock.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self._sock.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_protocol(self) -> object:
        return self.protocol

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol


class HandTimers:
    """A running loop for picows whose timers go off by hand."""

    def __init__(self, stage: Stage) -> None:
        self.call_later = stage.loop.call_later
        self.create_future = asyncio.get_running_loop().create_future


class Ear:
    """The owner of a connection, who keeps what it gets."""

    def __init__(self, runner: HubRunner) -> None:
        self._runner = runner
        self.heard: list[bytes] = []

    def received(self, connection: Connection[Any], payload: bytes) -> None:
        assert is_text(payload)
        assert len(payload) <= FRAME_BYTES_MAX
        self.heard.append(payload)
        self._runner.received(connection, payload)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class SocketTarget:
    """A hub with one socket at a time; a new hub now and then, because its log is in memory."""

    CASES: Final = 500
    COMPARED: Final = 4

    def __init__(self) -> None:
        self._left = 0
        self._socket: PairedSocket | None = None
        self.heard: list[bytes] = []
        self.closes = 0
        self.answers = 0

    def fire(self, pieces: list[bytes]) -> None:
        if self._left == 0:
            self._open()
        self._left -= 1
        running = asyncio.get_running_loop()
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, HandTimers(self._stage)))
        try:
            self.heard, code = self._send(pieces)
            if self._left % self.COMPARED == 0:
                self._compare(code, *self._send([b"".join(pieces)]))
        finally:
            asyncio._set_running_loop(running)

    def _compare(self, code: bytes, whole: list[bytes], its_code: bytes) -> None:
        """Messages before a frame that is refused may be lost with it, and no others."""
        count = min(len(self.heard), len(whole))
        assert self.heard[:count] == whole[:count], "it matters how they are cut"
        assert bool(code) is bool(its_code)
        assert code or len(self.heard) == len(whole)

    def _open(self) -> None:
        self._left = self.CASES
        self.close()
        self._stage = Stage(frame_bytes_max=FRAME_BYTES_MAX, message_bytes_max=FRAME_BYTES_MAX)
        self._socket = PairedSocket()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _send(self, pieces: list[bytes]) -> tuple[list[bytes], bytes]:
        """The messages the hub got, and the code it closed with, or nothing."""
        assert self._socket is not None
        stage, transport, ear = self._stage, PairedTransport(self._socket), Ear(self._stage.runner)
        connection = PicowsConnection(cast(HubRunner, ear), cast(Door, Doorkeeper()))
        near = cast(asyncio.Transport, transport)
        transport.protocol = shake_hands(near, connection, KEY, FRAME_BYTES_MAX)
        for piece in pieces:
            self._feed(transport, piece)
        stage.loop.run_dry()
        frames = FrameReader()
        head, _, rest = self._socket.take().partition(_HEAD_END)
        assert head.startswith(b"HTTP/1.1 101 ")
        written = frames.feed(rest)
        assert frames.is_empty, "a frame is not complete"
        codes = [payload[:2] for opcode, payload in written if opcode == CLOSE]
        assert len(codes) <= 1
        self.closes += len(codes)
        self.answers += len(written) - len(codes)
        transport.close()
        transport.protocol.connection_lost(None)
        stage.pass_time(0.02)
        assert not [*stage.hub.sessions], "a session is left"
        assert not len(stage.hub.registry)
        return ear.heard, b"".join(codes)

    def _feed(self, transport: PairedTransport, piece: bytes) -> None:
        while piece and not transport.is_closing():
            if not transport.is_reading:
                self._stage.pass_time(0.5)
                continue
            buffer = transport.protocol.get_buffer(-1)
            size = min(len(buffer), len(piece))
            buffer[:size] = piece[:size]
            transport.protocol.buffer_updated(size)
            piece = piece[size:]
        # One tick per piece: the hub writes its answers.
        self._stage.loop.turn()
