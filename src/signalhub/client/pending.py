"""Requests on their way, when each is due, and the tells that may still be refused."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from signalhub.client.frame import Kind, Request
from signalhub.client.message import Message
from signalhub.client.seat import Seat
from signalhub.errors import ClientError, GaveUp, OutcomeUnknown, Unavailable

RETRY_PAUSE_S = 1.0
RECENT_MAX = 2_048
RECENT_BYTES_MAX = 4 * 2**20

_STALE_MIN = 64


class Pending:
    """A request that waits to be written, rests between attempts, or waits for its answer."""

    __slots__ = (
        "attempt",
        "collected",
        "due_s",
        "end_s",
        "is_resting",
        "is_restoring",
        "is_waiting",
        "order",
        "refusal",
        "refusals",
        "request",
        "seat",
        "sends",
        "since_s",
        "then",
        "unanswered",
    )

    def __init__(
        self,
        request: Request,
        order: int,
        now_s: float,
        *,
        then: Callable[[], None] | None = None,
        seat: Seat | None = None,
        is_restoring: bool = False,
    ) -> None:
        pauses = request.attempts * (request.attempts - 1) // 2
        self.request = request
        self.order = order
        self.then = then
        self.seat = seat
        self.collected: list[Message] = []
        self.is_restoring = is_restoring
        self.is_waiting = False
        self.is_resting = False
        self.since_s = now_s
        self.due_s = now_s + request.timeout_s
        self.end_s = now_s + request.timeout_s * request.attempts + RETRY_PAUSE_S * pauses
        self.attempt = 1
        self.sends = 0
        self.unanswered = 0
        self.refusals = 0
        self.refusal: ClientError | None = None

    def outcome(self, reason: str) -> ClientError:
        """What is true of it when it ends without an answer."""
        text = f"{self.request.subject}: {reason}"
        if self.unanswered and self.request.answer is not None:
            return OutcomeUnknown(f"{text}; it was sent {self.sends}×")
        return self.refusal or Unavailable(text)

    def ended(self, error: ClientError) -> ClientError:
        """What is true of it when the client ends."""
        is_traffic = self.request.kind in (Kind.TELL, Kind.TRAFFIC)
        if is_traffic and self.unanswered:
            return self.outcome(str(error))
        return end_for(error, f"{self.request.subject}: {error}")


def end_for(end: ClientError, text: str) -> Unavailable:
    """A new error for each who is told of the client's end; final if the end is."""
    return GaveUp(text) if isinstance(end, GaveUp) else Unavailable(text)


class Deadlines:
    """The next moment of every pending request, earliest first.

    Entries are not removed when a request is done but skipped when they come up; the heap is
    rebuilt when most of it is stale, so it stays in proportion to what is pending.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Pending]] = []
        self._live: dict[int, Pending] = {}

    def set(self, pending: Pending, due_s: float) -> None:
        pending.due_s = due_s
        self._live[pending.order] = pending
        heapq.heappush(self._heap, (due_s, pending.order, pending))
        if len(self._heap) > _STALE_MIN + 4 * len(self._live):
            self._heap = [(each.due_s, each.order, each) for each in self._live.values()]
            heapq.heapify(self._heap)

    def clear(self, pending: Pending) -> None:
        self._live.pop(pending.order, None)

    def due(self, now_s: float) -> Iterator[Pending]:
        """Take those whose moment has come."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, order, pending = heapq.heappop(self._heap)
            if self._live.get(order) is pending and pending.due_s == due_s:
                del self._live[order]
                yield pending

    @property
    def next_s(self) -> float | None:
        """The earliest moment; it may turn out to be stale."""
        return self._heap[0][0] if self._heap else None


class Recent:
    """The tells written last, by id, bounded in number and bytes: the hub may still refuse them
    for their rate, and then they are sent again."""

    def __init__(self) -> None:
        self._tells: dict[str, Pending] = {}
        self._bytes = 0

    def add(self, pending: Pending) -> None:
        self._tells[pending.request.id] = pending
        self._bytes += len(pending.request.frame)
        while len(self._tells) > RECENT_MAX or self._bytes > RECENT_BYTES_MAX:
            self.pop(next(iter(self._tells)))

    def pop(self, message_id: str) -> Pending | None:
        pending = self._tells.pop(message_id, None)
        if pending is not None:
            self._bytes -= len(pending.request.frame)
        return pending

    def clear(self) -> None:
        self._tells.clear()
        self._bytes = 0
