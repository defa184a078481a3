"""A sender of scheduled publications that sleeps in between.

The C loop of the other benchmarks spins, and would take a core that hub and pipeline need.
"""

from __future__ import annotations

import os
import select
import socket
import time
from dataclasses import dataclass, field

from bench.subjects import MeasurementFailed

FINISH_S_MAX = 60.0
_LEAD_S = 0.05
_WAIT_S_MAX = 0.05
_READ_BYTES = 2**16


@dataclass(slots=True)
class Sent:
    """When messages were due and answered, and the largest delay of a send.

    Times are from the monotonic clock; answers come in the order of the messages.
    """

    due: list[float]
    answered: list[float] = field(default_factory=list)
    lag_s: float = 0.0

    def answered_s(self, first: int) -> list[float]:
        """Return the times from schedule to answer, ascending, from message `first` on."""
        pairs = zip(self.answered[first:], self.due[first:], strict=True)
        return sorted(answered - due for answered, due in pairs)


def send_on_schedule(fd: int, frames: bytes, messages: int, rate_s: float, answer: bytes) -> Sent:
    """Send frames of equal length, `rate_s` of them a second, and wait for the last answer."""
    size = len(frames) // messages
    begin = time.monotonic() + _LEAD_S
    sent = Sent([begin + number / rate_s for number in range(messages)])
    deadline = begin + messages / rate_s + FINISH_S_MAX
    answers = _Answers(answer)
    view, done, due = memoryview(frames), 0, 0
    # The caller keeps the descriptor.
    with socket.socket(fileno=os.dup(fd)) as connection:
        connection.setblocking(False)
        while len(sent.answered) < messages:
            now = time.monotonic()
            if now > deadline:
                raise MeasurementFailed(
                    f"{len(sent.answered)} of {messages} answers arrived in time"
                )
            if due < messages and now >= sent.due[due]:
                sent.lag_s = max(sent.lag_s, now - sent.due[due])
                due = min(messages, int((now - begin) * rate_s) + 1)
            if done < due * size:
                done += _send(connection, view[done : due * size])
            wait_s = sent.due[due] - time.monotonic() if due < messages else _WAIT_S_MAX
            writers = [connection] if done < due * size else []
            readable, _, _ = select.select(
                [connection], writers, [], min(max(wait_s, 0.0), _WAIT_S_MAX)
            )
            if readable:
                count = answers.count(connection.recv(_READ_BYTES))
                sent.answered += [time.monotonic()] * count
    return sent


def _send(connection: socket.socket, data: memoryview) -> int:
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0


class _Answers:
    """Counts occurrences of a text in a stream, also across reads."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._rest = b""

    def count(self, data: bytes) -> int:
        if not data:
            raise MeasurementFailed("the hub closed the connection")
        found = self._rest + data
        count = found.count(self._text)
        # Less than the whole text, so that nothing is counted twice.
        self._rest = found[max(0, len(found) - len(self._text) + 1) :]
        return count
