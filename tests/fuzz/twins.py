"""The same bytes through both ways: once as the native part reads them, once as Python does.

Two hubs with the same clock, the same ids and the same clients get the same reads on one socket, or
on several by turns.
Invariant: every socket of both gets the same bytes, and counters, sessions and what was charged are
the same afterwards.

A `Kind` says which messages are sent, and to hubs with which settings; see `tells.py`. What it
found is kept in the folder `found`, and comes first in every run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, groupby
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

import msgspec
import pytest

from signalhub.auth.session_tokens import SessionTokens
from signalhub.auth.tokens import Authenticator
from signalhub.clock import Ids, SteadyClock
from signalhub.core.hub import Hub
from signalhub.core.sessions.session import Session
from signalhub.counters import Histogram, Tally
from signalhub.server.port.door import Door
from signalhub.server.runner import HubRunner
from signalhub.server.sockets import connection as connection_module
from signalhub.server.sockets import writer as writer_module
from signalhub.server.sockets.connection import Connection
from signalhub.server.sockets.native import NativeConnection, switching
from signalhub.server.sockets.picows import PicowsConnection, shake_hands
from signalhub.settings.model import Settings
from signalhub.state.store import StateStore
from signalhub.testing import FakeClock
from signalhub.wire.entry import Kind as EntryKind
from signalhub.wire.entry import SettledBody, StoredEntry, decode_body, encode_body
from tests.support.memory.engine import TurningEngine
from tests.support.memory.shell import HELLO, envelope
from tests.support.memory.write_path import Doorkeeper, HandLoop, Rows, send_joined
from tests.support.socket.frames import CLOSE, TEXT, FrameReader, masked_frame

KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
FOUND: Final = Path(__file__).parent / "found"
SENDER: Final = "@(fuzz/attacker)"
# One of them reads slowly, and the sender may send to itself.
SLOW: Final = "@(fuzz/slow)"
TARGETS: Final = ("@(fuzz/victim)", "@(fuzz/other)", SLOW)
ID: Final = b"0" * 36
# After so many reads both begin anew, so that what is found can be made small.
_READS: Final = 60
# What a slow reader takes per read.
_SLOW_BYTES: Final = 2_500
# How long after a read the next one comes; hubs take turns.
_READ_MS: Final = (3, 40)
# Descriptors that are not real ones.
_DESCRIPTORS: Final = 1_000_000
# Hubs of one seed.
_NUMBERS: Final = 1_000_000
# How often it is tried to make what was found smaller.
_TRIES: Final = 600

# Frames as the client sends them, as they are read.
Reads = list[bytes]


class Kind(Protocol):
    """Which messages are sent to which hubs."""

    name: str
    senders: tuple[str, ...]
    """Whose sockets get reads by turns, one each before anything else happens; one is `SENDER`."""

    def settings(self, number: int) -> Settings:
        """Those of one hub; the kinds of hubs take turns."""

    def token(self, number: int) -> tuple[Authenticator | None, str]:
        """Who checks tokens, and the sender's; nobody and nothing if it needs none."""

    def prepare(self, way: Way, number: int) -> None:
        """Send what a new hub needs first."""

    def maker(self, random: Random, number: int) -> Callable[[], tuple[Reads, int]]:
        """Makes a few reads and says how many messages these are."""


class SameIds(Ids):
    """Ids that are all the same, because runs may use them in another order."""

    def __init__(self) -> None:
        super().__init__("0" * 20)
        self._secrets = iter(range(1_000_000_000))
        self.next = lambda: ID

    def many(self, count: int) -> bytes:
        return ID * count

    def secret(self) -> str:
        return f"secret-{next(self._secrets)}"


class Kernel:
    """Takes what connections write to descriptors themselves."""

    def __init__(self) -> None:
        self._wires: list[Wire] = []

    def opened(self, wire: Wire) -> int:
        """The descriptor of another socket."""
        self._wires.append(wire)
        return _DESCRIPTORS + len(self._wires) - 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """`os.write`."""
        size = self._wires[fd - _DESCRIPTORS].take(data)
        if not size:
            raise BlockingIOError
        return size

    def forget(self) -> None:
        """All hubs are gone."""
        self._wires.clear()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Connections write to it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection_module, "os", SimpleNamespace(write=self.write))
            patch.setattr(writer_module, "_send_joined", send_joined(self.write))
            yield


class Wire:
    """The transport of one socket, and its kernel; `write` is what the connection calls itself."""

    def __init__(self, loop: HandLoop, kernel: Kernel) -> None:
        self._fd = kernel.opened(self)
        self.heard = bytearray()
        self.room: float = math.inf
        self.unsent = b""
        self.is_reading = True
        self.unread = b""
        self.protocol: Any = None
        self.connection: Connection[Any]
        self._loop = loop
        self._is_closing = False
        self._is_lost = False

    def fileno(self) -> int:
        return self._fd

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, *_: object) -> int:
        return 0

    def get_extra_info(self, name: str) -> Wire | None:
        return self if name == "socket" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def take(self, data: bytes | memoryview) -> int:
        """As much as the kernel takes."""
        size = int(min(self.room, len(data)))
        self.room -= size
        self.heard += data[:size]
        return size

    def write(self, data: bytes) -> None:
        if self._is_lost:
            return
        if self.unsent:
            self.unsent += data
            return
        self.unsent = bytes(data[self.take(data) :])
        if self.unsent:
            self.connection.pause_writing()

    def read_more(self, size: float) -> None:
        """The peer reads."""
        self.room += size
        if self.unsent:
            self.unsent = self.unsent[self.take(self.unsent) :]
            if not self.unsent and not self._is_lost:
                self.connection.resume_writing()
                if self._is_closing and not self.unsent:
                    self._lose()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.unsent:
                self._lose()

    def abort(self) -> None:
        self._is_closing = True
        self._lose()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.unsent = b""
            self._loop.call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_protocol(self) -> object:
        return self.protocol

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol


class _Promise:
    """A future that nobody waits for."""

    def __init__(self) -> None:
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def exception(self) -> None:
        pass

    def set_result(self, result: object) -> None:
        self._is_done = True

    set_exception = set_result


class Way:
    """A hub with its connections, all of them native or none."""

    def __init__(self, kind: Kind, number: int, kernel: Kernel, *, is_native: bool) -> None:
        self._kernel = kernel
        self._is_native = is_native
        self._read_s = _READ_MS[number // 8 % 2] / 1000
        self.clock = FakeClock()
        self.loop = HandLoop(self.clock)
        self.tally = Tally()
        authenticator, self._token = kind.token(number)
        self.hub = Hub(
            kind.settings(number),
            ids=SameIds(),
            authenticator=authenticator,
            session_tokens=SessionTokens(b"a secret of the tests"),
            tally=self.tally,
        )
        self.engine = TurningEngine(self.loop.call_soon)
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        store = cast(StateStore, Rows())
        self.runner = HubRunner(self.hub, store, self.engine, SteadyClock(self.clock), loop)
        self.engine.report_to(self.runner)
        # What picows needs of a running loop.
        self.running = SimpleNamespace(call_later=self.loop.call_later, create_future=_Promise)
        self.wires: dict[str, Wire] = {}
        # Who reads slowly.
        self.slow = [SLOW]
        self.closed = 0
        for address in TARGETS:
            self.join(address)
        self.senders = kind.senders
        for address in self.senders:
            self.join(address)
        self.hub.dedup.keep_fresh()
        kind.prepare(self, number)

    def join(self, address: str) -> Wire:
        """A socket that has registered its address."""
        self.wires[address] = wire = Wire(self.loop, self._kernel)
        owner, door = self.runner, cast(Door, Doorkeeper())
        transport = cast(asyncio.Transport, wire)
        if self._is_native:
            wire.protocol = wire.connection = NativeConnection(owner, door)
            wire.connection.shake_hands(wire, switching(KEY), None)
        else:
            wire.connection = PicowsConnection(owner, door)
            size = self.runner.frame_bytes_max
            asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, self.running))
            try:
                wire.protocol = shake_hands(transport, wire.connection, KEY, size)
            finally:
                asyncio._set_running_loop(None)
        hello = HELLO | ({"authToken": self._token} if self._token else {})
        self.say(address, "hub:connect", metadata=hello)
        payload = {"actorAddress": address, "capabilities": ["x"], "ttlSeconds": 3_600}
        self.say(address, "hub:register", payload)
        if address in self.slow:
            wire.room = _SLOW_BYTES
        return wire

    def say(self, address: str, type: str, payload: object = None, **members: Any) -> None:
        """Send a request and forget its answer."""
        members.setdefault("timestamp", self.clock.now_ms())
        data = masked_frame(TEXT, envelope(type, payload, sender=address, **members))
        self.feed(self.wires[address], data)
        self.loop.run_dry()

    def feed(self, wire: Wire, data: bytes) -> None:
        """The bytes arrive; what is not read now stays with the kernel."""
        wire.unread += data
        while wire.unread and wire.is_reading and not wire.is_closing():
            buffer = wire.protocol.get_buffer(-1)
            size = min(len(buffer), len(wire.unread))
            buffer[:size] = wire.unread[:size]
            wire.unread = wire.unread[size:]
            wire.protocol.buffer_updated(size)

    def read(self, reads: Sequence[bytes]) -> None:
        """Bytes of each sender arrive, and all that follows from them happens."""
        wires = [self.wires[address] for address in self.senders]
        for wire, data in zip(wires, reads, strict=False):
            self.feed(wire, data)
        self.loop.run_dry()
        for wire in wires:
            while wire.unread and wire.is_reading and not wire.is_closing():
                self.feed(wire, b"")
                self.loop.run_dry()

    @property
    def ending(self) -> set[str]:
        """Senders whose sockets were closed, or wait for that."""
        wires = [(address, self.wires[address]) for address in self.senders]
        return {
            address
            for address, wire in wires
            if wire.is_closing() or wire.connection.is_closing or wire.connection._is_close_sent
        }

    @property
    def refused(self) -> set[str]:
        """Senders of whom picows has refused a frame."""
        links = [(address, self.wires[address].connection) for address in self.senders]
        return {address for address, link in links if link._is_close_sent and not link.is_closing}

    def end(self, address: str) -> None:
        """A sender hangs up."""
        self.wires[address].close()
        self.loop.run_dry()

    def pass_time(self) -> None:
        """A little, in which the slow one reads a little."""
        self.clock.advance(self._read_s)
        for address in self.slow:
            self.wires[address].read_more(_SLOW_BYTES)
        self.writer_sweeps()

    def writer_sweeps(self) -> None:
        """What happens several times a second."""
        self.runner.writer.sweep()
        self.loop.run_dry()

    def rejoin(self) -> None:
        """Whoever was closed comes back."""
        for address, wire in list(self.wires.items()):
            if wire.is_closing():
                self.closed += 1
                self.join(address)

    def heard(self, address: str) -> bytes:
        """What a socket has got since."""
        wire = self.wires[address]
        heard, wire.heard = bytes(wire.heard), bytearray()
        return heard

    @property
    def is_waiting(self) -> bool:
        """Is something of a sender's put off to a later time?"""
        wires = [self.wires[address] for address in self.senders]
        return any(not wire.is_closing() and not wire.is_reading for wire in wires)

    def state(self) -> dict[str, object]:
        """Counters, sessions, and what was charged."""
        found = _counted(self.tally)
        found["entries"] = [_in_order(one) for one in self.engine.entries]
        found["pending"] = len(self.hub.pending)
        remembered = self.hub.dedup.take_fresh()
        records = [remembered.records[at : at + 27] for at in range(0, len(remembered.records), 27)]
        found["ids"] = (sorted(records), remembered.aside, self.hub.dedup.count)
        found["memory"] = self.hub.dedup.memory_bytes
        found["topics"] = {
            name: (
                topic.head,
                topic.next_seq,
                topic.bytes,
                [topic.recent.get(seq) for seq in topic.recent],
                {one.name: (one.lag, one.next_seq) for one in topic.subscriptions.values()},
            )
            for name, topic in self.hub.streams.topics.items()
        }
        found["mailboxes"] = {
            name: (box.head, box.next_seq, box.subscription.lag, sorted(box.expiries))
            for name, box in self.hub.streams.mailboxes.items()
        }
        found["sessions"] = len([*self.hub.sessions])
        for address, wire in self.wires.items():
            session: Session = wire.connection.session
            found[address] = (
                session.state,
                session.claimed,
                session.claimed_json,
                session.last_seen_ms,
                session.sent,
                round(session.bucket.tokens, 6),
                sorted(session.registrations),
                session.outbound is None or session.outbound.messages,
                # In the transport, or before it.
                wire.connection.unsent_bytes,
            )
        links = [self.wires[address].connection for address in self.senders]
        found["units"] = [
            one._settled_units + one._granted_units - one._units_left for one in links
        ]
        return found


def _in_order(entry: StoredEntry) -> StoredEntry:
    """An entry of settlements in the order of positions: sockets may be written in any order."""
    if entry.kind != EntryKind.SETTLED or entry.stream:
        return entry
    body = decode_body(SettledBody, entry.body)
    deliveries = sorted(body.deliveries, key=lambda one: one.offset)
    ordered = msgspec.structs.replace(body, deliveries=deliveries)
    return msgspec.structs.replace(entry, body=encode_body(ordered))


def _counted(tally: Any) -> dict[str, object]:
    """The counters of a tally, and of those in it; not the times that things took."""
    found: dict[str, object] = {}
    for field in dataclasses.fields(tally):
        value = getattr(tally, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = _counted(value)
        elif not isinstance(value, Histogram):
            found[field.name] = value
    return found


class Difference(AssertionError):
    """Both ways do not do the same."""


# Opcodes and payloads; of close frames only the code, because reasons differ.
Told = list[tuple[int, bytes]]


def _told(data: bytearray) -> Told:
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    frames = FrameReader()
    try:
        told = frames.feed(rest if head.startswith(b"HTTP/") else bytes(data))
    except AssertionError:
        # A slow reader begins in the middle of a frame.
        return [(-1, bytes(data))]
    found = [(opcode, payload[:2] if opcode == CLOSE else payload) for opcode, payload in told]
    return [*found, (-1, bytes(frames._buffer))]


_FROM_HUB: Final = b'","from":"@(cloudflare/signal-hub)","to":'
_target_of: Final = re.compile(rb'"to":("[^"]*")').search


def _copies(frames: Told) -> Told:
    """The copies of messages, those to the same address in the order in which they came."""
    copies = [one for one in frames if one[0] == TEXT and _FROM_HUB not in one[1]]
    return sorted(copies, key=lambda one: found[1] if (found := _target_of(one[1])) else b"")


def _is_one_more(frames: Told, expected: Told) -> bool:
    """Does the first have all of the second, and at most one more?"""
    return len(frames) - len(expected) in (0, 1) and _has_all(frames, expected)


def _has_all(frames: Told, expected: Told) -> bool:
    """Does the first have all of the second, in this order?"""
    rest = iter(frames)
    return all(one in rest for one in expected)


class Twins:
    """Both ways, side by side."""

    def __init__(self, kind: Kind, number: int, kernel: Kernel) -> None:
        self.native = Way(kind, number, kernel, is_native=True)
        self.python = Way(kind, number, kernel, is_native=False)
        self._ways = (self.native, self.python)
        # They have gone apart for a reason.
        self._is_over = False
        # picows has refused a frame, and may have dropped a message of which nobody hears.
        self._was_refused = False
        self._check(set())

    def read(self, *reads: bytes) -> None:
        """The same bytes for both, from each sender; raise `Difference` unless the same follows."""
        if self._is_over:
            return
        for way in self._ways:
            way.read(reads)
        refused = self.python.refused & self.native.ending
        self._was_refused = self._was_refused or bool(refused)
        for address in sorted(self.native.ending | self.python.ending):
            for way in self._ways:
                way.end(address)
        self._check(refused)
        for way in self._ways:
            way.rejoin()
            way.pass_time()

    def _check(self, refused: set[str]) -> None:
        if self.native.is_waiting or self.python.is_waiting:
            # Held back by its rates: it goes on at the same time in both.
            return
        for address, wire in self.native.wires.items():
            other = self.python.wires[address]
            if wire.heard != other.heard:
                self._compare(address, _told(wire.heard), _told(other.heard), refused)
            wire.heard.clear()
            other.heard.clear()

    def _compare(self, address: str, frames: Told, expected: Told, refused: set[str]) -> None:
        if sorted(frames) == sorted(expected):
            # There is no order between targets, nor between answers about messages to them.
            frames, expected = _copies(frames), _copies(expected)
        if frames == expected:
            return
        if refused and (
            _is_one_more(_copies(frames), _copies(expected))
            or (address in refused and _has_all(_copies(frames), _copies(expected)))
        ):
            # picows drops the message before a frame that it refuses in the same read, and writes
            # its close frame at once, so that what waits for the same socket is not written.
            self._is_over = True
            return
        at = next(at for at in count() if frames[at : at + 1] != expected[at : at + 1])
        here, there = frames[at : at + 1], expected[at : at + 1]
        raise Difference(f"frame {at} to {address} is\n{here}\ninstead of\n{there}")

    def finish(self) -> None:
        """Compare what is not compared after each read."""
        if self._is_over or self._was_refused:
            return
        ours, theirs = self.native.state(), self.python.state()
        if ours != theirs:
            names = [name for name in ours if ours[name] != theirs[name]]
            found = {name: (ours[name], theirs[name]) for name in names}
            raise Difference(f"natively and otherwise: {found}")


def fire(kind: Kind, seed: int, cases: int) -> None:
    """Send at least that many messages, and before them what was found earlier."""
    kernel = Kernel()
    with kernel.in_place():
        for path in sorted(FOUND.glob(f"{kind.name}-*.txt")):
            first, *lines = path.read_text().splitlines()
            _run(kind, int(first), kernel, [literal_eval(line) for line in lines])
        done = 0
        for number in count(seed * _NUMBERS):
            if done >= cases:
                break
            make = kind.maker(Random(f"{kind.name} {number}"), number)
            reads: Reads = []
            while len(reads) < _READS:
                some, messages = make()
                reads += some
                done += messages
            try:
                _run(kind, number, kernel, reads)
            except Exception as error:
                text = "\n".join([str(number), *map(repr, _smallest(kind, number, kernel, reads))])
                path = FOUND / f"{kind.name}-{number}.txt"
                path.parent.mkdir(exist_ok=True)
                path.write_text(text + "\n")
                error.add_note(f"seed {seed}, kept as {path.name}:\n{text:.8000}")
                raise


def _run(kind: Kind, number: int, kernel: Kernel, reads: Reads) -> None:
    kernel.forget()
    twins = Twins(kind, number, kernel)
    together = len(kind.senders)
    for at in range(0, len(reads), together):
        twins.read(*reads[at : at + together])
    twins.finish()


def _smallest(kind: Kind, number: int, kernel: Kernel, reads: Reads) -> Reads:
    """As few frames as it takes to differ still; all if a new hub does not differ again."""
    tries = iter(range(_TRIES))

    def differs(parts: list[tuple[int, bytes]]) -> bool:
        if next(tries, None) is None:
            return False
        try:
            _run(kind, number, kernel, _joined(parts))
        except Exception:
            return True
        return False

    parts = list(enumerate(reads))
    for cut in (lambda one: [one], _frames):
        parts = [(at, piece) for at, data in parts for piece in cut(data)]
        size = len(parts) // 2
        while size:
            at = 0
            while at < len(parts):
                fewer = parts[:at] + parts[at + size :]
                if differs(fewer):
                    parts = fewer
                else:
                    at += size
            size //= 2
    return _joined(parts)


def _joined(parts: list[tuple[int, bytes]]) -> Reads:
    return [b"".join(piece for _, piece in some) for _, some in groupby(parts, lambda one: one[0])]


def _frames(data: bytes) -> Reads:
    """The frames of a read, as far as it begins with whole ones; then the rest."""
    found, at = [], 0
    while len(data) >= at + 6:
        size, head = data[at + 1] & 0x7F, 6
        if size == 126:
            size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 8
        elif size == 127:
            size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 14
        found.append(data[at : at + head + size])
        at += head + size
    return [*found, data[at:]] if data[at:] else found
