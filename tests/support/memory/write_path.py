"""The real write path on a loop, a clock and sockets turned by hand.

`HubRunner`, `Writer`, `Connection` and the hub are the real ones. The kernel takes as many bytes as
its script says, and the transport behaves as uvloop's does: it tries once to write what it is
given, reports the first byte it has to keep, and reports again when the last one has left. The log
is in memory and commits a turn after it was given something.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

import pytest
from picows import WSFrame, WSMsgType, WSTransport

from signalhub import native
from signalhub.auth.session_tokens import SessionTokens
from signalhub.clock import SteadyClock
from signalhub.core.hub import Hub
from signalhub.core.messages.dedup import Recalled
from signalhub.counters import Tally
from signalhub.engine.port import Archive
from signalhub.server.port.door import Door
from signalhub.server.runner import HubRunner
from signalhub.server.sockets import connection as connection_module
from signalhub.server.sockets import fan_out as fan_out_module
from signalhub.server.sockets import ledger as ledger_module
from signalhub.server.sockets import writer as writer_module
from signalhub.server.sockets.connection import Connection, Party
from signalhub.server.sockets.picows import PicowsConnection
from signalhub.settings.model import Settings
from signalhub.state.store import RegistrationRow, StateStore
from signalhub.testing import FakeClock
from signalhub.wire.frames import Opcode, close_frame
from tests.support.memory.engine import TurningEngine
from tests.support.memory.shell import HELLO, CountedIds, Message, decoded, envelope
from tests.support.socket.frames import FrameReader

EVERYTHING = math.inf

Sending = Callable[[list[bytes], list[int], list[bytes]], list[tuple[int, int]]]
TURNS_MAX = 10_000


def send_joined(write: Callable[[int, bytes], int]) -> Sending | None:
    """What the native part sends with, on top of `os.write`; `None` if it is off."""

    def send(pieces: list[bytes], fds: list[int], addresses: list[bytes]) -> list[tuple[int, int]]:
        short: list[tuple[int, int]] = []
        for at, (fd, address) in enumerate(zip(fds, addresses, strict=True)):
            data = address.join(pieces)
            try:
                written = write(fd, data)
            except BlockingIOError:
                written = 0
            except OSError:
                written = -1
            if written != len(data):
                short.append((at, written))
        return short

    return send if native.IS_ON else None


@dataclass(eq=False)
class Timer:
    """Something to do later."""

    at_s: float
    callback: Callable[..., object]
    args: tuple[Any, ...]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """An event loop whose turns are taken by the test."""

    def __init__(self, clock: FakeClock) -> None:
        self.ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.timers: list[Timer] = []
        self._clock = clock

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(self._clock.mono_s() + delay_s, callback, args)
        self.timers.append(timer)
        return timer

    def ring(self) -> None:
        """Make ready what was asked for at a time that has come."""
        due = [timer for timer in self.timers if timer.at_s <= self._clock.mono_s() + 1e-9]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.is_cancelled:
                self.call_soon(timer.callback, *timer.args)

    def turn(self) -> None:
        """Run what is ready now; what becomes ready meanwhile waits for the next turn."""
        self.ring()
        for _ in range(len(self.ready)):
            callback, args = self.ready.popleft()
            callback(*args)

    def run_dry(self) -> None:
        """Take turns until nothing is left to do."""
        for _ in range(TURNS_MAX):
            self.ring()
            if not self.ready:
                return
            self.turn()
        raise AssertionError("the loop never comes to rest")


class Trace:
    """A stream of bytes that remembers when each of them was added."""

    def __init__(self, moments: Iterator[int]) -> None:
        self.data = bytearray()
        self._moments = moments
        self._ends: list[int] = []
        self._times: list[int] = []

    def add(self, data: bytes | memoryview) -> None:
        if data:
            self.data += data
            self._ends.append(len(self.data))
            self._times.append(next(self._moments))

    def moment_of(self, offset: int) -> int:
        """When the byte at `offset` was added."""
        return self._times[bisect_left(self._ends, offset + 1)]

    def frames(self) -> list[tuple[Opcode, bytes, int]]:
        """Opcode, payload and end of every whole frame; raises if it is no WebSocket stream."""
        found, end = [], 0
        for opcode, payload in FrameReader().feed(bytes(self.data)):
            size = len(payload)
            end += size + (2 if size < 126 else 4 if size < 2**16 else 10)
            found.append((Opcode(opcode), payload, end))
        return found


class Socket:
    """The kernel's end of a connection, as the test scripts it."""

    def __init__(self, fd: int, moments: Iterator[int]) -> None:
        self.fd = fd
        self.room: float = EVERYTHING
        # Bytes the next direct write takes at most; the transport's attempt after it has room.
        self.short: int | None = None
        self.breaks_after_write = False
        self.is_broken = False
        self.taken = Trace(moments)

    def fileno(self) -> int:
        return self.fd

    def take(self, data: bytes | memoryview, most: float = EVERYTHING) -> int:
        if self.is_broken:
            raise BrokenPipeError
        size = int(min(self.room, most, len(data)))
        self.room -= size
        self.taken.add(data[:size])
        return size

    def write(self, data: bytes) -> int:
        """`os.write`."""
        short, self.short = self.short, None
        size = self.take(data, EVERYTHING if short is None else short)
        if self.breaks_after_write:
            self.is_broken = True
        if size == 0:
            raise BlockingIOError
        return size


class Transport:
    """uvloop's stream: one attempt per write while nothing is kept, then in the background."""

    def __init__(self, socket: Socket, loop: HandLoop, moments: Iterator[int]) -> None:
        self.socket = socket
        self.accepted = Trace(moments)
        # A write in which the socket breaks counts as lost from its first byte on.
        self.lost_from: float = EVERYTHING
        self.short_write_at: int | None = None
        self.unsent = b""
        self.is_gone = False
        self.is_reading = True
        self.connection: Connection[Party]
        self.ws: WebSocket
        self._loop = loop
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        self._high_water = 2**16

    def get_extra_info(self, name: str) -> Socket:
        assert name == "socket"
        return self.socket

    def set_write_buffer_limits(self, high: int) -> None:
        self._high_water = high

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_protocol(self) -> object:
        return self.ws

    def write(self, data: bytes) -> None:
        if not data or self._is_lost:
            return
        short_write_at, self.short_write_at = self.short_write_at, None
        began = len(self.accepted.data) if short_write_at is None else short_write_at
        self.accepted.add(data)
        is_first_attempt = not self.unsent and not self._is_paused
        self.unsent += data
        if is_first_attempt and not self._attempt():
            self.lost_from = began
            return
        if len(self.unsent) > self._high_water and not self._is_paused:
            self._is_paused = True
            self.connection.pause_writing()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self.unsent:
            self._lose()

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._lose()

    def become_writable(self) -> None:
        """The kernel reports room."""
        if self.unsent and not self._is_lost and self._attempt() and not self.unsent:
            if self._is_paused:
                self._is_paused = False
                self.connection.resume_writing()
            if self._is_closing and not self.unsent and not self._is_lost:
                self._lose()

    def _attempt(self) -> bool:
        try:
            self.unsent = self.unsent[self.socket.take(self.unsent) :]
        except OSError:
            self.unsent = b""
            self.abort()
            return False
        return True

    def _lose(self) -> None:
        self._is_lost = True
        self._loop.call_soon(self._connection_lost)

    def _connection_lost(self) -> None:
        self.ws.is_disconnected = True
        self.connection.on_ws_disconnected(cast(WSTransport, self.ws))
        self.unsent = b""
        self.is_gone = True


class WebSocket:
    """What `Connection` uses of picows' transport."""

    def __init__(self, transport: Transport) -> None:
        self.underlying_transport = transport
        self.is_close_frame_sent = False
        self.is_disconnected = False

    def send_close(self, code: int, reason: str = "") -> None:
        if not (self.is_close_frame_sent or self.is_disconnected):
            self.underlying_transport.write(close_frame(code, reason))
            self.is_close_frame_sent = True


class Frame:
    """A frame of a client, unmasked."""

    fin = True
    rsv1 = rsv2 = rsv3 = False

    def __init__(self, msg_type: WSMsgType, payload: bytes) -> None:
        self.msg_type = msg_type
        self._payload = payload

    def get_payload_as_bytes(self) -> bytes:
        return self._payload


class Doorkeeper:
    """The door a connection opens with its hello."""

    source = "127.0.0.1"

    def opened(self) -> None:
        pass


class Rows:
    """A durable tier that keeps nothing; look-ups of ids wait for the test."""

    def __init__(self) -> None:
        self.recalled: list[tuple[list[bytes], Callable[[list[Recalled] | None], None]]] = []

    def persist(self, row: RegistrationRow) -> None:
        pass

    def forget(self, addresses: list[str]) -> None:
        pass

    def recall(
        self, keys: list[bytes], oldest_ms: int, done: Callable[[list[Recalled] | None], None]
    ) -> None:
        self.recalled.append((keys, done))


class End:
    """The far end of one socket."""

    def __init__(self, stage: Stage, connection: Connection[Party]) -> None:
        self.stage = stage
        self.socket = Socket(next(stage.fds), stage.moments)
        self.transport = Transport(self.socket, stage.loop, stage.moments)
        self.ws = WebSocket(self.transport)
        self.transport.connection = connection
        self.transport.ws = self.ws
        stage.by_fd[self.socket.fd] = self
        connection.on_ws_connected(cast(WSTransport, self.ws))

    @property
    def is_open(self) -> bool:
        """Would the hub still read what this peer sends?"""
        return not self.transport.is_closing()

    def frame(self, msg_type: WSMsgType, payload: bytes = b"") -> None:
        """Send one frame, unless the hub has stopped reading."""
        if self.is_open:
            frame = cast(WSFrame, Frame(msg_type, payload))
            self.transport.connection.on_ws_frame(cast(WSTransport, self.ws), frame)

    def say_close(self) -> None:
        """Send a close frame."""
        self.frame(WSMsgType.CLOSE, (1000).to_bytes(2, "big"))

    def hang_up(self) -> None:
        """End the stream without a word; what is on its way may still be sent."""
        self.transport.close()

    def reset(self) -> None:
        """Vanish."""
        self.socket.is_broken = True
        self.transport.abort()

    def stall(self, room: int = 0) -> None:
        """Read no more than `room` bytes from now on."""
        self.socket.room = room

    def read(self, size: float = EVERYTHING) -> None:
        """Make room in the kernel; it tells the transport."""
        self.socket.room += size
        self.transport.become_writable()


class Peer(End):
    """An actor at the far end."""

    def __init__(self, stage: Stage, address: str) -> None:
        self.address = address
        self.connection = PicowsConnection(stage.runner, cast(Door, Doorkeeper()))
        super().__init__(stage, self.connection)

    def request(self, type: str, payload: object = None, **members: Any) -> str:
        """Send a message, by default an ask; its id."""
        members.setdefault("id", self.stage.next_id())
        members.setdefault("sender", self.address)
        members.setdefault("timestamp", self.stage.clock.now_ms())
        self.frame(WSMsgType.TEXT, envelope(type, payload, **members))
        return str(members["id"])

    def tell(self, to: str, data: object, **members: Any) -> str:
        return self.request(
            "hub:send", {"to": to, "type": "news", "data": data}, pattern="tell", **members
        )

    def ask(self, to: str, data: object, **members: Any) -> str:
        return self.request("hub:send", {"to": to, "type": "news", "data": data}, **members)

    def publish(self, topic: str, data: object, **members: Any) -> str:
        return self.request(
            "hub:publish", {"topic": topic, "type": "news", "data": data}, **members
        )

    def broadcast(self, data: object, **members: Any) -> str:
        return self.request("hub:broadcast", {"type": "news", "data": data}, **members)

    def subscribe(self, topic: str) -> None:
        self.request("hub:subscribe", {"topic": topic})

    def messages(self) -> list[Message]:
        """All that has arrived."""
        return [
            decoded(data) for code, data, _ in self.socket.taken.frames() if code == Opcode.TEXT
        ]

    def heard(self) -> list[Any]:
        """The data of what other actors sent, as far as it has arrived."""
        return [one["payload"] for one in self.messages() if one["type"] == "news"]

    def replies(self, message_id: str) -> list[Message]:
        """What the hub has answered to a request."""
        return [
            one
            for one in self.messages()
            if one["correlationId"] == message_id and one["type"].startswith("hub:")
        ]


class Stage:
    """A hub, its write path, and peers; used as a context, because it stands in for the kernel."""

    def __init__(
        self, archive: Archive | None = None, held_bytes: int | None = None, **settings: Any
    ) -> None:
        """Connections hold all but `held_bytes` of what the kernel does not take themselves."""
        self._held_bytes = held_bytes
        self.clock = FakeClock()
        self.steady = SteadyClock(self.clock)
        self.loop = HandLoop(self.clock)
        self.tally = Tally()
        self.hub = Hub(
            Settings(**({"message_rate": 0.0} | settings)),
            ids=CountedIds(),
            authenticator=None,
            session_tokens=SessionTokens(b"a secret of the tests"),
            tally=self.tally,
        )
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.engine = TurningEngine(self.loop.call_soon)
        self.rows = Rows()
        store = cast(StateStore, self.rows)
        self.runner = HubRunner(self.hub, store, self.engine, self.steady, loop, archive)
        self.engine.report_to(self.runner)
        self.writer = self.runner.writer
        self.moments = count()
        self.peers: list[Peer] = []
        self.by_fd: dict[int, End] = {}
        self.fds = count(1_000)
        self._ids = map("m{}".format, count(1))
        self._kernel = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        self._kernel.setattr(connection_module, "os", SimpleNamespace(write=self._write))
        self._kernel.setattr(writer_module, "_send_joined", send_joined(self._write))
        if self._held_bytes is not None:
            self._kernel.setattr(connection_module, "_TRANSPORT_BYTES_MAX", self._held_bytes)
            self._kernel.setattr(ledger_module, "SHARED_BYTES", 2 * self._held_bytes)
            self._kernel.setattr(fan_out_module, "SHARED_BYTES", 2 * self._held_bytes)
        drop_rest, push = Connection.drop_rest, Connection.push

        def pushed(connection: Connection[Any]) -> None:
            """What a connection holds was written before, even if the socket breaks now."""
            transport = cast(Transport, connection._transport)
            lost_from = transport.lost_from
            push(connection)
            transport.lost_from = lost_from

        def dropped(connection: Connection[Any]) -> None:
            """What a connection still holds was given to it, as to a transport."""
            transport = cast(Transport, connection._transport)
            rest = b"".join(connection._rest or ())
            transport.accepted.add(rest[connection._rest_offset :])
            drop_rest(connection)

        self._kernel.setattr(Connection, "push", pushed)
        self._kernel.setattr(Connection, "drop_rest", dropped)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kernel.undo()

    def next_id(self) -> str:
        return next(self._ids)

    def _write(self, fd: int, data: bytes) -> int:
        end = self.by_fd[fd]
        transport = end.transport
        assert not transport.unsent, "a direct write overtakes what the transport holds"
        assert not transport.is_closing(), "a direct write to a closing transport"
        transport.short_write_at = len(transport.accepted.data)
        size = end.socket.write(data)
        transport.accepted.add(data[:size])
        if size == len(data):
            transport.short_write_at = None
        return size

    def join(self, address: str, *topics: str) -> Peer:
        """A peer with a registered address that hears `topics`; the loop has come to rest."""
        peer = self.arrive(address, *topics)
        self.loop.run_dry()
        return peer

    def arrive(self, address: str, *topics: str) -> Peer:
        """A peer that has sent all it takes to join."""
        peer = Peer(self, address)
        self.peers.append(peer)
        peer.request("hub:connect", metadata=HELLO)
        peer.request("hub:register", {"actorAddress": address, "capabilities": []})
        for topic in topics:
            peer.subscribe(topic)
        return peer

    def pass_time(self, seconds: float) -> None:
        """Let time go by with the regular sweeps in it."""
        while seconds > 0:
            step = min(0.25, seconds)
            seconds -= step
            self.clock.advance(step)
            self.writer.sweep()
            self.loop.run_dry()
