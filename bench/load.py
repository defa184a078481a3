"""Connections and messages, as the Python side of the C loop.

Everything is prepared here; `open_connections` and `Generator.drive` then call `loop.c`, which runs
until all is done or the time is up.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_double, c_int, pointer
from dataclasses import dataclass
from ipaddress import IPv4Address

from bench import native
from bench.protocols import MARKER, Script

AT_ONCE = 128  # Concurrent handshakes.
OPEN_S_MAX = 60.0


class LoadFailed(Exception):
    """The load could not be applied; the text says what happened and what the server answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Messages from one socket to others, or only to the server, which then has to answer.

    `window` messages are in flight, refilled when only `refill_at` are left; a window of 0 follows
    the run's schedule. With an `answer`, that text is counted in what the sender receives, and the
    window counts answers. With `acks`, a frame for each copy, the receiver acknowledges. The run
    does not wait for a background lane.
    """

    sender: int
    receivers: Sequence[int]
    frames: bytes
    messages: int
    window: int = 0
    refill_at: int = 0
    answer: bytes = b""
    acks: bytes = b""
    is_background: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one lane achieved.

    `took_s` has each completed message's time to its last copy, `answered_s` to its answer.
    """

    deliveries: int
    took_s: list[float]
    answered_s: list[float]


@dataclass(frozen=True, slots=True)
class Drive:
    """The result of a run, lane by lane."""

    seconds: float
    generator_cpu_s: float
    lag_s: float
    lanes: list[Traffic]

    @property
    def deliveries(self) -> int:
        return sum(lane.deliveries for lane in self.lanes)

    @property
    def answers(self) -> int:
        return sum(len(lane.answered_s) for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Opened:
    """Connections that have finished their script, and the total time."""

    sockets: list[int]
    seconds: float
    generator_cpu_s: float


class Generator:
    """The C loop, ready for use."""

    def __init__(self) -> None:
        self._loop = native.load_loop()
        # A different block of loopback addresses per process: sockets of an earlier one may still
        # hold its ports.
        self._source = int(IPv4Address("127.1.0.1")) + os.getpid() % 2**15 * 2**8

    @contextmanager
    def connections(
        self, port: int, scripts: Sequence[Script], *, buffer_bytes: int = 0
    ) -> Iterator[Opened]:
        """Open one connection per script; all scripts have the same number of steps."""
        total, steps = len(scripts), len(scripts[0])
        requests = [step.request for script in scripts for step in script]
        answers = [step.answer for step in scripts[0]]
        assert len(requests) == total * steps, "scripts differ in their number of steps"
        assert max(map(len, answers)) <= native.MARKER_BYTES_MAX
        sockets = (c_int * total)(*[-1] * total)
        outcome = native.Outcome()
        try:
            code = self._loop.open_all(
                port,
                self._source,
                total,
                AT_ONCE,
                buffer_bytes,
                steps,
                (c_char_p * len(requests))(*requests),
                (c_int * len(requests))(*map(len, requests)),
                (c_char_p * steps)(*answers),
                OPEN_S_MAX,
                (native.Visitor * total)(),
                sockets,
                pointer(outcome),
            )
            _check(code, "opening connections", outcome)
            yield Opened(list(sockets), outcome.seconds, outcome.cpu)
        finally:
            for socket in sockets:
                if socket >= 0:
                    os.close(socket)

    def drive(self, lanes: Sequence[Lane], *, seconds_max: float, rate_s: float = 0.0) -> Drive:
        """Send the messages of every lane; scheduled lanes come first and share `rate_s`."""
        prepared = (native.Lane * len(lanes))(*[_prepare(lane) for lane in lanes])
        receivers = _receivers(lanes)
        outcome = native.Outcome()
        code = self._loop.drive(
            prepared,
            len(lanes),
            receivers,
            len(receivers),
            rate_s,
            seconds_max,
            pointer(outcome),
        )
        _check(code, "sending", outcome)
        done = [
            Traffic(lane.deliveries, lane.took[: lane.complete], lane.answered[: lane.answers])
            for lane in prepared
        ]
        drive = Drive(outcome.seconds, outcome.cpu, outcome.lag, done)
        if not drive.deliveries and not drive.answers:
            raise LoadFailed(f"nothing arrived; the sender was told {_answer(outcome)}")
        return drive


def _prepare(lane: Lane) -> native.Lane:
    count = lane.messages
    assert len(lane.frames) % count == 0, "frames of one lane differ in length"
    return native.Lane(
        sender=lane.sender,
        receivers=len(lane.receivers),
        messages=count,
        is_answered=bool(lane.answer),
        frame_bytes=len(lane.frames) // count,
        window=lane.window,
        refill_at=lane.refill_at,
        background=lane.is_background,
        left=(c_int * count)(),
        frames=lane.frames,
        began=(c_double * count)(),
        took=(c_double * count)(),
        answered=(c_double * count)(),
    )


def _receivers(lanes: Sequence[Lane]) -> ctypes.Array[native.Receiver]:
    """Return the sockets to read: those of receivers and of senders."""
    found: list[native.Receiver] = []
    for index, lane in enumerate(lanes):
        found += [_receiver(fd, index, native.COPIES, MARKER, lane) for fd in lane.receivers]
        if lane.answer:
            assert lane.sender not in lane.receivers, "a socket counts copies or answers, not both"
            found.append(_receiver(lane.sender, index, native.ANSWERS, lane.answer))
        elif lane.sender not in lane.receivers:
            found.append(_receiver(lane.sender, index, native.DRAINED))
    return (native.Receiver * len(found))(*found)


def _receiver(
    fd: int, index: int, role: int, marker: bytes = b"", acknowledged: Lane | None = None
) -> native.Receiver:
    acks = acknowledged.acks if acknowledged else b""
    ack_bytes = len(acks) // acknowledged.messages if acknowledged else 0
    return native.Receiver(
        fd=fd,
        lane=index,
        role=role,
        marker_bytes=len(marker),
        ack_bytes=ack_bytes,
        marker=marker,
        acks=acks,
    )


def _check(code: int, doing: str, outcome: native.Outcome) -> None:
    if code:
        reason = os.strerror(-code)
        raise LoadFailed(f"{doing}: {reason}; the last answer was {_answer(outcome)}")


def _answer(outcome: native.Outcome) -> str:
    return repr(bytes(outcome.answer).rstrip(b"\0")) if any(outcome.answer) else "nothing"
