"""Token buckets, shared ones, periods and back-off."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from signalhub.wire.errors import ClientError, OutcomeUnknown, Refused

# Refilling adds fractions; a rounding error must not refuse a caller that waited long enough.
_ONE = 1.0 - 1e-9
# Of a shared bucket: the part that is kept for sources within their share, how long it is kept
# after somebody was refused, and which sources are counted.
_RESERVED = 8
_CONTENDED_MS = 10_000
_ASKED_LATELY_MS = 2_000
_SOURCES_MAX = 4_096


class TokenBucket:
    """A token bucket that starts full and refills continuously. A rate of 0 means no limit.

    Invariant: `-burst <= tokens <= burst`, and only what is owed makes it negative.
    """

    __slots__ = ("_at_ms", "burst", "rate_s", "tokens")

    def __init__(self, rate_s: float, burst: float, now_ms: int) -> None:
        self.rate_s = rate_s
        self.burst = burst
        self.tokens = float(burst)
        self._at_ms = now_ms

    def take(self, now_ms: int) -> bool:
        """Take one token; `False` if there is none."""
        if not self.rate_s:
            return True
        if now_ms != self._at_ms:
            self._refill(now_ms)
        tokens = self.tokens
        if tokens < _ONE:
            return False
        self.tokens = tokens - 1.0 if tokens > 1.0 else 0.0
        return True

    def take_many(self, count: int, now_ms: int) -> int:
        """Take tokens, at most a full bucket; return 0, or the wait until there are enough."""
        if not self.rate_s:
            return 0
        if now_ms != self._at_ms:
            self._refill(now_ms)
        wanted = count if count < self.burst else self.burst
        missing = wanted - self.tokens
        if missing > 1e-9:
            return max(1, int(-(-missing * 1000 // self.rate_s)))
        self.tokens = max(0.0, self.tokens - wanted)
        return 0

    def owe(self, count: int, now_ms: int) -> None:
        """Take tokens for what has been done already; until they are back, nothing can be taken."""
        if self.rate_s:
            self._refill(now_ms)
            self.tokens = max(-float(self.burst), self.tokens - count)

    def left(self, now_ms: int) -> float:
        """Return the number of tokens."""
        self._refill(now_ms)
        return self.tokens

    def retry_after_ms(self, now_ms: int) -> int:
        """Return the time until a token is available; 0 if one is."""
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


class SharedBucket:
    """A token bucket that sources share fairly; a source alone may use all of it.

    Anybody may take any token until the bucket is empty once. For a while after that, a source may
    take only its share at once, or what exceeds a small reserve: with `n` sources that asked lately
    a share is `1 / (n + 1)` of the rate. All shares together are less than the rate, so the bucket
    does not stay empty: a source that asks for less than its share gets it, and so does one that
    asks for the first time. The others get what is left.
    """

    __slots__ = ("_bucket", "_contended_until_ms", "_reserve", "_shares")

    def __init__(self, rate_s: float, burst: float, now_ms: int) -> None:
        self._bucket = TokenBucket(rate_s, burst, now_ms)
        self._reserve = burst // _RESERVED
        self._contended_until_ms = -1
        # The sources that asked lately, with their share and the time: the longest silent first.
        self._shares: dict[str, tuple[float, int]] = {}

    @property
    def rate_s(self) -> float:
        return self._bucket.rate_s

    def take(self, source: str, now_ms: int) -> bool:
        """Take one token for a source; `False` if it has to wait."""
        bucket = self._bucket
        if not bucket.rate_s:
            return True
        share = self._share(source, now_ms)
        is_fair = bucket.left(now_ms) - 1.0 >= self._reserve or share >= _ONE
        is_taken = (is_fair or now_ms > self._contended_until_ms) and bucket.take(now_ms)
        if is_taken:
            share = max(0.0, share - 1.0)
        else:
            self._contended_until_ms = now_ms + _CONTENDED_MS
        self._shares[source] = (share, now_ms)
        return is_taken

    def retry_after_ms(self, now_ms: int) -> int:
        """Return the time until there is a token; 0 if there is one."""
        return self._bucket.retry_after_ms(now_ms)

    def _share(self, source: str, now_ms: int) -> float:
        """Return what is left of the share of a source, and move it to the end."""
        shares, bucket = self._shares, self._bucket
        known = shares.pop(source, None)
        while shares:
            oldest, (_, at_ms) = next(iter(shares.items()))
            if len(shares) < _SOURCES_MAX and at_ms > now_ms - _ASKED_LATELY_MS:
                break
            del shares[oldest]
        parts = len(shares) + 2
        full = max(1.0, bucket.burst / parts)
        if known is None:
            return full
        left, at_ms = known
        return min(full, left + max(0, now_ms - at_ms) * bucket.rate_s / parts / 1000)


class Period:
    """Due immediately, then every `period_ms`; at most one period late if the clock is set back."""

    __slots__ = ("_next_ms", "period_ms")

    def __init__(self, period_ms: int) -> None:
        self.period_ms = period_ms
        self._next_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Return `True` once per period."""
        if now_ms < self._next_ms <= now_ms + self.period_ms:
            return False
        self._next_ms = now_ms + self.period_ms
        return True


def grown(base: float, cap: float, step: int, factor: float = 2.0) -> float:
    """Return `base * factor**step`, at most `cap`: exponential back-off.

    Works with any unit of time.
    """
    if not base:
        return base
    try:
        return min(base * factor**step, cap)
    except OverflowError:
        return cap


def spread(pause: float, share: float, chance: float) -> float:
    """Return the pause, longer or shorter by up to `share` of it.

    So that requests that failed together are not retried together; `chance` is between 0 and 1.
    """
    return pause * (1 + share * (2 * chance - 1))


# A connection that lasted this long resets the back-off.
SETTLED_S = 5.0


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reconnects."""

    first_jitter_s: float = 30.0
    base_s: float = 0.1
    cap_s: float = 30.0
    factor: float = 2.0
    attempts_max: int | None = None  # Consecutive failures; `None` means no limit.

    def __post_init__(self) -> None:
        if self.first_jitter_s < 0 or self.base_s <= 0 or self.cap_s < self.base_s:
            raise ValueError("waits must be positive, and `cap_s` at least `base_s`")
        if self.factor < 1:
            raise ValueError("`factor` must be at least 1")
        if self.attempts_max is not None and self.attempts_max < 0:
            raise ValueError("`attempts_max` must not be negative; use `None` for no limit")


class Backoff:
    """The back-off of one client. Invariant: no wait is shorter than the hub asked for."""

    def __init__(self, policy: Reconnect, random: Callable[[], float]) -> None:
        self.policy = policy
        self.attempts = 0
        self._random = random
        self._step = 0

    def next(self, retry_after_s: float = 0.0) -> float | None:
        """Return the wait before the next attempt; `None` if no attempt is left."""
        limit = self.policy.attempts_max
        if limit is not None and self.attempts >= limit:
            return None
        self.attempts += 1
        wait_s = self._wait()
        self._step += 1
        return retry_after_s + wait_s

    def succeeded(self) -> None:
        """Record a successful attempt."""
        self.attempts = 0

    def lost(self, lived_s: float) -> None:
        """Record the loss of a connection. Only a long one resets the back-off, so that a hub that
        accepts and closes immediately is not flooded."""
        if lived_s >= SETTLED_S:
            self._step = 0

    def _wait(self) -> float:
        policy = self.policy
        if self._step == 0:
            return policy.first_jitter_s * self._random()
        full_s = grown(policy.base_s, policy.cap_s, self._step - 1, policy.factor)
        return full_s * (0.5 + 0.5 * self._random())


BASE_S = 0.1
CAP_S = 10.0


def retry_wait_s(retry_after_s: float, attempts: int, random: Callable[[], float]) -> float:
    """Return a wait with jitter, not shorter than the hub asked for.

    The hub names the time at which one waiting client may retry; without jitter all would.
    """
    step_s = grown(BASE_S, CAP_S, attempts)
    return max(retry_after_s, step_s / 2) + random() * max(step_s / 2, retry_after_s / 4)


class Attempts:
    """The attempts of one request that is repeated with the same id.

    After an attempt without an answer the outcome is doubtful. A later refusal resolves that,
    because the hub checks for repeats before it applies limits.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_doubtful = False
        self._error: ClientError | None = None

    def failed(self, error: ClientError) -> None:
        """Record a failed attempt."""
        self.count += 1
        self._error = error
        if isinstance(error, OutcomeUnknown):
            self.is_doubtful = True
        elif isinstance(error, Refused):
            self.is_doubtful = False

    def failure(self, text: str) -> ClientError:
        """Return the exception to raise after a timeout; with `text` if there was no error."""
        if self.is_doubtful and not isinstance(self._error, OutcomeUnknown):
            return OutcomeUnknown(f"{text}: {self._error}")
        return self._error or OutcomeUnknown(text)
