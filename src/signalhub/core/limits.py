"""Token bucket: a burst at once, a steady rate after it, and when to try again."""

from __future__ import annotations

# Refilling adds fractions; whoever waited as long as told must not fail for a rounding error.
_ONE = 1.0 - 1e-9


class TokenBucket:
    """Starts full; refills continuously. A rate of 0 never refuses.

    Invariant: `0 <= tokens <= burst`.
    """

    __slots__ = ("_at_ms", "burst", "rate_s", "tokens")

    def __init__(self, rate_s: float, burst: float, now_ms: int) -> None:
        self.rate_s = rate_s
        self.burst = burst
        self.tokens = float(burst)
        self._at_ms = now_ms

    def take(self, now_ms: int) -> bool:
        """Use one token, if there is one."""
        if not self.rate_s:
            return True
        self._refill(now_ms)
        if self.tokens < _ONE:
            return False
        self.tokens = max(0.0, self.tokens - 1.0)
        return True

    def retry_after_ms(self, now_ms: int) -> int:
        """How long until a token is there; 0 when one is."""
        if not self.rate_s:
            return 0
        self._refill(now_ms)
        missing = 1.0 - self.tokens
        return 0 if missing <= 0 else int(-(-missing * 1000 // self.rate_s))

    def _refill(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._at_ms
        self._at_ms = now_ms
        # A clock that jumps back must not empty the bucket.
        if elapsed_ms > 0:
            self.tokens = min(float(self.burst), self.tokens + elapsed_ms * self.rate_s / 1000)
