"""How large the read buffers of picows are, as seen from outside."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import picows
import pytest

from signalhub.server.sockets.buffers import _LOOKED_AT, ReadBuffers
from signalhub.server.sockets.picows import Intake, shake_hands, size_of
from signalhub.wire.frames import Opcode
from tests.support.memory.doors import Wire
from tests.support.socket.frames import masked_frame

FRAME_BYTES_MAX = 8 * 2**20
MIB = 2**20


class Plug(Wire):
    """A wire with a socket whose options can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.socket = socket.socket()

    def get_extra_info(self, name: str) -> object:
        return self.socket if name == "socket" else super().get_extra_info(name)


@pytest.fixture
def plug() -> Iterator[Plug]:
    plug = Plug()
    with plug.socket:
        yield plug


def parser_with(unfinished: int, plug: Plug) -> Any:
    """A parser that has read so much of a large frame."""
    parser = shake_hands(cast(Any, plug), picows.WSListener(), "A" * 22 + "==", FRAME_BYTES_MAX)
    data = masked_frame(Opcode.TEXT, bytes(FRAME_BYTES_MAX))[:unfinished]
    while data:
        buffer = parser.get_buffer(-1)
        read, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(read)] = read
        parser.buffer_updated(len(read))
    return parser


@pytest.mark.parametrize("unfinished", [n * MIB // 4 for n in range(5, 32)])
async def test_a_large_buffer_is_known_within_a_factor_of_four(unfinished: int, plug: Plug) -> None:
    size = 1792  # As picows begins.
    while unfinished * 100 // size > 90:
        size *= 2

    parser = parser_with(unfinished, plug)

    assert size / 4 <= size_of(parser, FRAME_BYTES_MAX) <= 2 * size
    intake = Intake(parser, lambda: None, lambda: None)
    assert size_of(intake, FRAME_BYTES_MAX) == size_of(parser, FRAME_BYTES_MAX)
    intake.unread_bytes = unfinished
    assert size_of(intake, FRAME_BYTES_MAX) == size


@pytest.mark.parametrize("unfinished", [0, 100, 10_000, 50_000])
async def test_small_buffers_do_not_count(unfinished: int, plug: Plug) -> None:
    assert size_of(parser_with(unfinished, plug), FRAME_BYTES_MAX) == 0
    assert size_of(object(), FRAME_BYTES_MAX) == 0


@pytest.mark.parametrize("size", [40, 900, 3_000])
def test_what_a_native_reader_keeps_between_messages_does_not_count(size: int) -> None:
    made = pytest.importorskip("signalhub_native")
    reader = made.Reader(FRAME_BYTES_MAX, MIB)
    frame = masked_frame(Opcode.TEXT, bytes(size))

    for data in (frame, frame[:20], frame[20:] + frame[:9]):
        reader.read(data, 100, 1)
        assert reader.held_bytes == 0


def test_a_large_frame_that_a_native_reader_has_begun_counts_until_it_is_complete() -> None:
    made = pytest.importorskip("signalhub_native")
    reader = made.Reader(FRAME_BYTES_MAX, MIB)
    frame = masked_frame(Opcode.TEXT, bytes(MIB))

    reader.read(frame[:100_000], 1_000, 1)
    assert MIB <= reader.held_bytes <= 2 * MIB
    reader.read(frame[100_000:], 1_000, 1)
    assert reader.held_bytes == 0


def test_connections_are_looked_at_in_turn_and_those_with_large_buffers_always() -> None:
    looked: list[int] = []

    class Reader:
        def __init__(self, number: int) -> None:
            self.number = number
            self.size = 0

        @property
        def read_bytes(self) -> int:
            looked.append(self.number)
            return self.size

    buffers = ReadBuffers()
    readers = [Reader(number) for number in range(3 * _LOOKED_AT)]
    for one in readers:
        buffers.opened(cast(Any, one))
    readers[7].size = readers[8].size = MIB

    for _ in range(3):
        buffers.look()
    assert sorted(looked) == list(range(len(readers)))
    assert buffers.bytes == 2 * MIB

    looked.clear()
    readers[8].size = 0
    buffers.look()
    assert {7, 8} <= set(looked)
    assert len(looked) <= _LOOKED_AT + 2
    assert buffers.bytes == MIB
    buffers.closed(cast(Any, readers[7]))
    assert (buffers.bytes, buffers.large) == (0, {})
