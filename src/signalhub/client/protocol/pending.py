"""Pending requests: their deadlines, what holds them back, and tells that may still be refused."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from signalhub.client.message import Message
from signalhub.client.protocol.frame import HeldBy, Request
from signalhub.client.protocol.restore import Seat
from signalhub.pacing import TokenBucket
from signalhub.wire.errors import ClientError, GaveUp, OutcomeUnknown, Unavailable

RETRY_PAUSE_S = 1.0
RECENT_MAX = 2_048
RECENT_BYTES_MAX = 4 * 2**20

_STALE_MIN = 64


class Pending:
    """A request that waits to be written, waits between attempts, or waits for its answer."""

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
        """Return the error of a request that ends without an answer."""
        text = f"{self.request.subject}: {reason}"
        if self.unanswered and self.request.answer is not None:
            return OutcomeUnknown(f"{text}; it was sent {self.sends}×")
        return self.refusal or Unavailable(text)

    def ended(self, error: ClientError) -> ClientError:
        """Return the error of a request that is pending when the client ends."""
        is_traffic = self.request.kind in (HeldBy.TELL, HeldBy.TRAFFIC)
        if is_traffic and self.unanswered:
            return self.outcome(str(error))
        return end_for(error, self.request.subject)


def end_for(end: ClientError, subject: str = "") -> Unavailable:
    """Return the error of one caller when the client ends; `GaveUp` if the client gave up.

    Each caller gets a new one: an error that is raised again and again collects tracebacks.
    """
    text = f"{subject}: {end}" if subject else str(end)
    return GaveUp(text) if isinstance(end, GaveUp) else Unavailable(text)


class Due(Protocol):
    """Something with a deadline; `order` tells it from others."""

    order: int
    due_s: float


D = TypeVar("D", bound=Due)


class Deadlines(Generic[D]):
    """The next deadline of every pending request, or of something else, earliest first.

    Entries of finished requests are not removed but skipped when they are reached; the heap is
    rebuilt when most of it is stale, so its size stays proportional to what is pending.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        self._live: dict[int, D] = {}

    def set(self, pending: D, due_s: float) -> None:
        pending.due_s = due_s
        self._live[pending.order] = pending
        heapq.heappush(self._heap, (due_s, pending.order, pending))
        if len(self._heap) > _STALE_MIN + 4 * len(self._live):
            self._heap = [(each.due_s, each.order, each) for each in self._live.values()]
            heapq.heapify(self._heap)

    def clear(self, pending: D) -> None:
        self._live.pop(pending.order, None)

    def due(self, now_s: float) -> Iterator[D]:
        """Remove and return those whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, order, pending = heapq.heappop(self._heap)
            if self._live.get(order) is pending and pending.due_s == due_s:
                del self._live[order]
                yield pending

    @property
    def next_s(self) -> float | None:
        """Return the earliest deadline, which may be stale."""
        return self._heap[0][0] if self._heap else None


class Recent:
    """The last tells written, by id, limited in number and bytes: the hub may still refuse them
    because of their rate, and then they are sent again."""

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


class Unread:
    """Tells on their way: written, and perhaps not yet read by the hub.

    The hub answers a heartbeat after it has read all that was written before, and a pause that this
    has caused arrives before the answer. So a reader that is too slow gets no more than these after
    it has told the hub, which has room for them.
    """

    MESSAGES_MAX = 512
    BYTES_MAX = 2**19
    # So many heartbeats may be on their way, each after a part of what may be.
    MARKS = 4

    def __init__(self) -> None:
        self._messages = self._bytes = 0
        # Of these, what was written since the last heartbeat.
        self._new_messages = self._new_bytes = 0
        # Heartbeats without an answer, with the messages and bytes since the one before.
        self._marks: deque[tuple[str, int, int]] = deque()

    def add(self, size: int) -> None:
        self._messages += 1
        self._bytes += size
        self._new_messages += 1
        self._new_bytes += size

    def has_room(self, size: int) -> bool:
        """May another tell of this size follow? Above half of the limit it has to fit."""
        return self._messages < self.MESSAGES_MAX and (
            2 * self._bytes < self.BYTES_MAX or self._bytes + size <= self.BYTES_MAX
        )

    @property
    def is_mark_due(self) -> bool:
        """Is it time for a heartbeat?"""
        return len(self._marks) < self.MARKS and (
            self.MARKS * self._new_messages >= self.MESSAGES_MAX
            or self.MARKS * self._new_bytes >= self.BYTES_MAX
        )

    def mark(self, message_id: str) -> None:
        """A heartbeat was written."""
        self._marks.append((message_id, self._new_messages, self._new_bytes))
        self._new_messages = self._new_bytes = 0

    def answered(self, message_id: str | None) -> None:
        """A heartbeat was answered, and so all that was written before it was read."""
        if all(mark != message_id for mark, _, _ in self._marks):
            return
        mark = None
        while mark != message_id:
            mark, messages, size = self._marks.popleft()
            self._messages -= messages
            self._bytes -= size


HEADROOM = 0.95
# A busy hub reads its clock once per tick, so its token bucket fills a little late.
HUB_LAG_S = 0.1
EMPTY_MIN = 64


class Flow:
    """Waiting requests and what holds them back."""

    def __init__(self, now_s: float) -> None:
        self.waiting = 0
        self._empty = 0
        self.is_congested = False
        self._is_greeted = False
        self._is_open = False
        self._down_s: float | None = now_s
        self._all_paused_s: float | None = None
        self._paused_s: dict[str, float] = {}
        self._parked: dict[str, deque[Pending]] = {}
        self._restoring: deque[Pending] = deque()
        self._control: deque[Pending] = deque()
        self._traffic: deque[Pending] = deque()
        self._bucket: TokenBucket | None = None
        self._held_until_s = 0.0
        self.unread = Unread()
        self.is_reading = True

    def greeted(self, message_rate: float, message_burst: float, now_s: float) -> None:
        """The hub said hello: requests that restore the connection can be sent."""
        self._is_greeted = True
        if message_rate > 0:
            burst = min(HEADROOM * message_burst, message_burst - HUB_LAG_S * message_rate)
            burst = max(1.0, burst)
            self._bucket = TokenBucket(HEADROOM * message_rate, burst, _ms(now_s))

    def opened(self) -> None:
        """The connection is restored: all requests can be sent."""
        self._is_open = True
        self._down_s = None

    def closed(self, now_s: float) -> None:
        """The connection is lost: everything waits, and pauses and restoring end.

        The next one is read, even if the program was too slow for this one.
        """
        for target in list(self._parked):
            self.resume(target)
        self._paused_s.clear()
        for pending in self._restoring:
            self.waiting -= pending.is_waiting
            pending.is_waiting = False
        self._restoring.clear()
        self._is_greeted = self._is_open = self.is_congested = False
        self._bucket = None
        self._held_until_s = 0.0
        self.unread = Unread()
        self.is_reading = True
        self._all_paused_s = None
        if self._down_s is None:
            self._down_s = now_s

    def pause(self, target: str | None, now_s: float) -> None:
        """The hub has paused all traffic, or tells to one target."""
        if target is not None:
            self._paused_s.setdefault(target, now_s)
        elif self._all_paused_s is None:
            self._all_paused_s = now_s

    def resume(self, target: str | None) -> None:
        """The hub has resumed all traffic, or tells to one target."""
        if target is None:
            self._all_paused_s = None
            return
        self._paused_s.pop(target, None)
        parked = self._parked.pop(target, ())
        self._traffic = _in_order(self._traffic, parked)

    def hold(self, until_s: float) -> None:
        """The hub's rate limit was exceeded: send nothing that counts until then."""
        self._held_until_s = max(self._held_until_s, until_s)
        if self._bucket is not None:
            self._bucket.tokens = 0.0

    def add(self, pending: Pending) -> None:
        """Add a new request at the end of its queue."""
        pending.is_waiting = True
        self.waiting += 1
        self._line(pending).append(pending)

    def put_back(self, again: Collection[Pending]) -> None:
        """Put requests that must be written again back at their old positions."""
        for pending in again:
            pending.is_waiting = True
        self.waiting += len(again)
        for line in (self._restoring, self._control, self._traffic):
            if returning := [pending for pending in again if self._line(pending) is line]:
                merged = _in_order(line, returning)
                line.clear()
                line.extend(merged)

    def withdraw(self, pending: Pending) -> None:
        """Do not write this request; its entry is removed when it reaches the front."""
        if not pending.is_waiting:
            return
        pending.is_waiting = False
        self.waiting -= 1
        self._empty += 1
        # Entries behind a long stall never reach the front, and each holds a whole frame.
        if self._empty > EMPTY_MIN + self.waiting:
            self._sweep()

    def _sweep(self) -> None:
        self._empty = 0
        for line in (self._control, self._traffic, *self._parked.values()):
            kept = [pending for pending in line if pending.is_waiting]
            line.clear()
            line.extend(kept)

    def take(self, now_s: float) -> Pending | None:
        """Return the next request that can be written now."""
        line = self._head_line()
        if line is None or (
            line[0].request.kind is not HeldBy.EXEMPT and not self._may_spend(now_s)
        ):
            return None
        pending = line.popleft()
        pending.is_waiting = False
        self.waiting -= 1
        if pending.request.kind is HeldBy.TELL:
            self.unread.add(len(pending.request.frame))
        return pending

    def wake_at_s(self, now_s: float) -> float | None:
        """Return when to call `take` again without an event; `None` if only an event helps."""
        if self._head_line() is None:
            return None
        wait_ms = 0 if self._bucket is None else self._bucket.retry_after_ms(_ms(now_s))
        return max(self._held_until_s, now_s + wait_ms / 1000)

    def stalled_since_s(self, pending: Pending) -> float | None:
        """Return since when requests like this one are held back; `None` if they are not."""
        for since_s in (self._down_s, self._all_paused_s):
            if since_s is not None:
                return since_s
        return self._paused_s.get(pending.request.target)

    def _line(self, pending: Pending) -> deque[Pending]:
        if pending.is_restoring:
            return self._restoring
        is_traffic = pending.request.kind in (HeldBy.TELL, HeldBy.TRAFFIC)
        return self._traffic if is_traffic else self._control

    def _head_line(self) -> deque[Pending] | None:
        if not self._is_greeted or self.is_congested:
            return None
        if self._restoring:
            return self._restoring
        if not self._is_open:
            return None
        if self._has_next(self._control):
            return self._control
        if self._all_paused_s is not None:
            return None
        while self._has_next(self._traffic):
            request = self._traffic[0].request
            if request.kind is not HeldBy.TELL:
                return self._traffic
            if request.target not in self._paused_s:
                # A program that does not read hears no answers, and may have to send to go on.
                may_send = not self.is_reading or self.unread.has_room(len(request.frame))
                return self._traffic if may_send else None
            self._parked.setdefault(request.target, deque()).append(self._traffic.popleft())
        return None

    def _has_next(self, line: deque[Pending]) -> bool:
        while line and not line[0].is_waiting:
            line.popleft()
            self._empty -= 1
        return bool(line)

    def _may_spend(self, now_s: float) -> bool:
        if now_s < self._held_until_s:
            return False
        return self._bucket is None or self._bucket.take(_ms(now_s))


def _in_order(line: Iterable[Pending], more: Iterable[Pending]) -> deque[Pending]:
    return deque(sorted((*line, *more), key=lambda pending: pending.order))


def _ms(now_s: float) -> int:
    return int(now_s * 1000)
