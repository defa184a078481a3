"""Which waiting request may be written now.

Requests leave in the order they were made, except that what restores a connection goes first,
control requests do not wait behind paused traffic, and tells to a paused target step aside. The
hub's advertised message rate is kept with some headroom: refused messages are sent again, but
behind those that passed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from signalhub.client.frame import Kind
from signalhub.client.pending import Pending
from signalhub.core.limits import TokenBucket

HEADROOM = 0.95
# A busy hub tells the time once per turn of its loop, so its bucket fills a little late.
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

    def greeted(self, message_rate: float, message_burst: float, now_s: float) -> None:
        """The hub said hello: what restores the connection may go."""
        self._is_greeted = True
        if message_rate > 0:
            burst = min(HEADROOM * message_burst, message_burst - HUB_LAG_S * message_rate)
            burst = max(1.0, burst)
            self._bucket = TokenBucket(HEADROOM * message_rate, burst, _ms(now_s))

    def opened(self) -> None:
        """The connection is restored: everything may go."""
        self._is_open = True
        self._down_s = None

    def closed(self, now_s: float) -> None:
        """The connection is lost: everything waits, pauses are over, nothing is being restored."""
        for target in list(self._parked):
            self.resume(target)
        self._paused_s.clear()
        self.waiting -= sum(pending.is_waiting for pending in self._restoring)
        self._restoring.clear()
        self._is_greeted = self._is_open = self.is_congested = False
        self._bucket = None
        self._held_until_s = 0.0
        self._all_paused_s = None
        if self._down_s is None:
            self._down_s = now_s

    def pause(self, target: str | None, now_s: float) -> None:
        """The hub wants no traffic, or no tells to one target."""
        if target is not None:
            self._paused_s.setdefault(target, now_s)
        elif self._all_paused_s is None:
            self._all_paused_s = now_s

    def resume(self, target: str | None) -> None:
        """The hub takes traffic again, or tells to one target."""
        if target is None:
            self._all_paused_s = None
            return
        self._paused_s.pop(target, None)
        parked = self._parked.pop(target, ())
        self._traffic = _in_order(self._traffic, parked)

    def hold(self, until_s: float) -> None:
        """The hub found us too fast: write nothing that costs a token until then."""
        self._held_until_s = max(self._held_until_s, until_s)
        if self._bucket is not None:
            self._bucket.tokens = 0.0

    def add(self, pending: Pending) -> None:
        """A new request, the youngest of all."""
        pending.is_waiting = True
        self.waiting += 1
        self._line(pending).append(pending)

    def put_back(self, again: Collection[Pending]) -> None:
        """Requests to be written once more take their old places."""
        for pending in again:
            pending.is_waiting = True
        self.waiting += len(again)
        for line in (self._restoring, self._control, self._traffic):
            if returning := [pending for pending in again if self._line(pending) is line]:
                merged = _in_order(line, returning)
                line.clear()
                line.extend(merged)

    def withdraw(self, pending: Pending) -> None:
        """It is not to be written any more; its empty place is cleared when it comes up."""
        if not pending.is_waiting:
            return
        pending.is_waiting = False
        self.waiting -= 1
        self._empty += 1
        # Places in front of a long stall never come up, and each holds a whole frame.
        if self._empty > EMPTY_MIN + self.waiting:
            self._sweep()

    def _sweep(self) -> None:
        self._empty = 0
        for line in (self._control, self._traffic, *self._parked.values()):
            kept = [pending for pending in line if pending.is_waiting]
            line.clear()
            line.extend(kept)

    def take(self, now_s: float) -> Pending | None:
        """The next request to write now."""
        line = self._head_line()
        if line is None or (line[0].request.kind is not Kind.EXEMPT and not self._may_spend(now_s)):
            return None
        pending = line.popleft()
        pending.is_waiting = False
        self.waiting -= 1
        return pending

    def wake_at_s(self, now_s: float) -> float | None:
        """When to look again although nothing happens; `None` if that would not help."""
        if self._head_line() is None:
            return None
        wait_ms = 0 if self._bucket is None else self._bucket.retry_after_ms(_ms(now_s))
        return max(self._held_until_s, now_s + wait_ms / 1000)

    def stalled_since_s(self, pending: Pending) -> float | None:
        """Since when nothing like this one moves; `None` while it does."""
        for since_s in (self._down_s, self._all_paused_s):
            if since_s is not None:
                return since_s
        return self._paused_s.get(pending.request.target)

    def _line(self, pending: Pending) -> deque[Pending]:
        if pending.is_restoring:
            return self._restoring
        is_traffic = pending.request.kind in (Kind.TELL, Kind.TRAFFIC)
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
            if request.kind is not Kind.TELL or request.target not in self._paused_s:
                return self._traffic
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
