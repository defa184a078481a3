"""Messages to a room: written, repeated with the same id, then answered or given up.

Messages are written in the order of submission. A temporary refusal holds all of them back, because
a room that has no capacity for one message has none for the next either. It also halves the window
of unanswered messages, which every acceptance widens again. A message that would expire during the
wait is written at once: the hub may already have it, and if not, its refusal is the error to raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

import msgspec

from signalhub.client.protocol.pending import end_for
from signalhub.pacing import Attempts, retry_wait_s
from signalhub.wire.errors import ClientError, OutcomeUnknown, Unavailable

WINDOW_MAX = 256
STALE_MIN = 64


class Outgoing(msgspec.Struct, frozen=True):
    """One message to send, as a frame and as its readers will see it."""

    message_id: str
    frame: bytes
    ciphertext: bytes
    type: str
    deadline_s: float


class _Pending:
    __slots__ = ("attempts", "is_written", "order", "outgoing")

    def __init__(self, outgoing: Outgoing, order: int) -> None:
        self.outgoing = outgoing
        self.order = order
        self.attempts = Attempts()
        self.is_written = False  # Written to the current link and not answered.


class RoomOutbox:
    """Messages to send; each leaves exactly once: accepted, failed or forgotten."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._orders = count()
        self._pending: dict[str, _Pending] = {}
        self._waiting: list[tuple[int, str]] = []  # A heap; forgotten messages are skipped.
        self._urgent: list[tuple[int, str]] = []  # A heap; not held back by a refusal.
        self._deadlines: list[tuple[float, int, str]] = []  # Likewise.
        self._is_open = False
        self._is_congested = False
        self._held_until_s = 0.0
        self._held_by: ClientError | None = None
        self._window = WINDOW_MAX
        self._in_flight = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._pending

    def submit(self, outgoing: Outgoing) -> None:
        """Add a message; its id must not be pending."""
        assert outgoing.message_id not in self._pending
        pending = _Pending(outgoing, next(self._orders))
        self._pending[outgoing.message_id] = pending
        is_urgent = outgoing.deadline_s <= self._held_until_s
        queue = self._urgent if is_urgent else self._waiting
        heappush(queue, (pending.order, outgoing.message_id))
        heappush(self._deadlines, (outgoing.deadline_s, pending.order, outgoing.message_id))
        # Without a connection, forgotten messages would never be reached and skipped.
        if len(self._waiting) > STALE_MIN + 2 * len(self._pending):
            self._waiting = [one for one in self._waiting if self._find(*one) is not None]
            heapify(self._waiting)

    def opened(self) -> None:
        """The room can be written to."""
        self._is_open = True
        self._is_congested = False

    def lost(self) -> None:
        """The link is lost, and with it the answers to what was written to it."""
        self._is_open = False
        for message_id, pending in self._pending.items():
            if pending.is_written:
                pending.is_written = False
                pending.attempts.failed(OutcomeUnknown("the connection was lost before an answer"))
                heappush(self._waiting, (pending.order, message_id))
        self._in_flight = 0

    def congested(self, is_congested: bool) -> None:
        """The link's buffer is full, or has room again."""
        self._is_congested = is_congested

    def due(self, now_s: float) -> Iterator[bytes]:
        """Return the frames to write now."""
        yield from self._written(self._urgent)
        if now_s >= self._held_until_s:
            yield from self._written(self._waiting)

    def accepted(self, message_id: str) -> Outgoing | None:
        """The hub has accepted a message; return it, or `None` if it was forgotten."""
        pending = self._remove(message_id)
        if pending is None:
            return None
        self._window = min(WINDOW_MAX, self._window + 1)
        return pending.outgoing

    def refused(
        self, message_id: str, error: ClientError, retry_after_s: float | None, now_s: float
    ) -> ClientError | None:
        """The hub refused it; return the error to raise, or `None` if it is tried again."""
        pending = self._pending.get(message_id)
        if pending is None:
            return None
        pending.attempts.failed(error)
        if retry_after_s is not None:
            wait_s = retry_wait_s(retry_after_s, pending.attempts.count, self._random)
            self._held_until_s = max(self._held_until_s, now_s + wait_s)
            self._held_by = error
            self._window = max(1, self._window // 2)
            if self._held_until_s < pending.outgoing.deadline_s:
                self._put_back(pending)
                return None
        self._remove(message_id)
        return pending.attempts.failure("no answer arrived")

    def too_big(self) -> Outgoing | None:
        """Fail the largest message: the hub closed the link because of a frame beyond its limit."""
        written = [one.outgoing for one in self._pending.values() if one.is_written]
        largest = max(written, key=lambda one: len(one.frame), default=None)
        if largest is not None:
            self._remove(largest.message_id)
        return largest

    def expired(self, now_s: float) -> Iterator[tuple[str, ClientError]]:
        """Return messages past their deadline, and the error for each."""
        while (wake_at_s := self._next_deadline_s) is not None and wake_at_s <= now_s:
            _, _, message_id = heappop(self._deadlines)
            pending = self._remove(message_id)
            assert pending is not None
            yield message_id, self._timed_out(pending, now_s)

    def end(self, error: ClientError) -> Iterator[tuple[str, ClientError]]:
        """Fail everything: there will be no more links."""
        self._is_open = False
        for message_id in list(self._pending):
            pending = self._remove(message_id)
            assert pending is not None
            is_doubtful = pending.is_written or pending.attempts.is_doubtful
            yield message_id, OutcomeUnknown(str(error)) if is_doubtful else end_for(error)

    def forget(self, message_id: str) -> None:
        """Forget a message whose caller no longer waits."""
        self._remove(message_id)

    @property
    def wake_at_s(self) -> float | None:
        """When a message is due or expires."""
        is_held = bool(self._waiting) and self._may_write
        moments = [self._next_deadline_s, self._held_until_s if is_held else None]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def _may_write(self) -> bool:
        return self._is_open and not self._is_congested and self._in_flight < self._window

    @property
    def _next_deadline_s(self) -> float | None:
        while self._deadlines:
            deadline_s, order, message_id = self._deadlines[0]
            if self._find(order, message_id) is not None:
                return deadline_s
            heappop(self._deadlines)
        return None

    def _written(self, queue: list[tuple[int, str]]) -> Iterator[bytes]:
        while queue and self._may_write:
            pending = self._find(*heappop(queue))
            if pending is not None:
                pending.is_written = True
                self._in_flight += 1
                yield pending.outgoing.frame

    def _find(self, order: int, message_id: str) -> _Pending | None:
        """Return the message of an entry, unless it has left; its id may have been used again."""
        pending = self._pending.get(message_id)
        return pending if pending is not None and pending.order == order else None

    def _remove(self, message_id: str) -> _Pending | None:
        pending = self._pending.pop(message_id, None)
        if pending is not None and pending.is_written:
            self._in_flight -= 1
        return pending

    def _put_back(self, pending: _Pending) -> None:
        if pending.is_written:
            pending.is_written = False
            self._in_flight -= 1
            heappush(self._waiting, (pending.order, pending.outgoing.message_id))

    def _timed_out(self, pending: _Pending, now_s: float) -> ClientError:
        if pending.is_written:
            pending.attempts.failed(OutcomeUnknown("the hub did not answer in time"))
        if pending.attempts.count:
            return pending.attempts.failure("it timed out")
        if self._is_open and self._held_by is not None and now_s < self._held_until_s:
            return self._held_by
        return Unavailable("it was not sent: there was no connection in time")
