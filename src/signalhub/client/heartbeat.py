"""When to send a heartbeat, and when its missing answer means that the link is dead.

A heartbeat is due when the link was silent in either direction for an interval: what we send renews
our leases, what we hear proves that the hub is there. While we ourselves do not read, a missing
answer proves nothing, so the link is not declared dead.
"""

from __future__ import annotations

HEARTBEAT_S = 100.0
ANSWER_S = 10.0


class Heartbeat:
    """The signs of life of one link."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self.interval_s = interval_s
        self._sent_s = self._heard_s = now_s
        self._message_id: str | None = None
        self._since_s = now_s
        self._is_reading = True

    def sent(self, now_s: float) -> None:
        self._sent_s = now_s

    def heard(self, now_s: float) -> None:
        self._heard_s = now_s

    def beat(self, message_id: str, now_s: float) -> None:
        """A heartbeat was sent."""
        self._message_id, self._since_s = message_id, now_s

    def answered(self, message_id: str | None) -> None:
        """Only the answer to the heartbeat on its way counts: others may be late."""
        if message_id == self._message_id:
            self._message_id = None

    def reading(self, is_reading: bool, now_s: float) -> None:
        """We stopped or resumed reading; the wait for an answer begins anew."""
        self._is_reading = is_reading
        self._since_s = now_s

    @property
    def wake_at_s(self) -> float | None:
        """When a heartbeat will be due, or the link dead."""
        if self._message_id is None:
            return min(self._sent_s, self._heard_s) + self.interval_s
        return self._since_s + ANSWER_S if self._is_reading else None

    def is_due(self, now_s: float) -> bool:
        return self._message_id is None and self._is_past(now_s)

    def is_dead(self, now_s: float) -> bool:
        return self._message_id is not None and self._is_past(now_s)

    def _is_past(self, now_s: float) -> bool:
        wake_at_s = self.wake_at_s
        return wake_at_s is not None and now_s >= wake_at_s
