"""When to try again after a connection is lost.

The first attempt after a loss waits a random part of `first_jitter_s`, so that the clients of a
restarted hub do not return in the same moment. Later attempts wait twice as long each, up to
`cap_s`, and every wait is drawn from the upper half of its length, so that the herd stays spread.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

SETTLED_S = 5.0


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """How a client tries to get back to its hub."""

    first_jitter_s: float = 30.0
    base_s: float = 0.1
    cap_s: float = 30.0
    factor: float = 2.0
    attempts_max: int | None = None  # In a row, without success; `None` never gives up.

    def __post_init__(self) -> None:
        if self.first_jitter_s < 0 or self.base_s <= 0 or self.cap_s < self.base_s:
            raise ValueError("waits must be positive, and `cap_s` at least `base_s`")
        if self.factor < 1:
            raise ValueError("`factor` must be at least 1, or attempts would become denser")
        if self.attempts_max is not None and self.attempts_max < 0:
            raise ValueError("`attempts_max` counts attempts; use `None` for no limit")


class Backoff:
    """The schedule of one client. Invariant: no wait is shorter than the hub asked for."""

    def __init__(self, policy: Reconnect, random: Callable[[], float]) -> None:
        self.policy = policy
        self.attempts = 0
        self._random = random
        self._step = 0

    def next(self, retry_after_s: float = 0.0) -> float | None:
        """How long to wait before the next attempt; `None` when there is none left."""
        limit = self.policy.attempts_max
        if limit is not None and self.attempts >= limit:
            return None
        self.attempts += 1
        wait_s = self._wait()
        self._step += 1
        return retry_after_s + wait_s

    def succeeded(self) -> None:
        """An attempt led to a working connection."""
        self.attempts = 0

    def lost(self, lived_s: float) -> None:
        """A working connection ended. Only one that had settled earns a fresh start: a hub that
        accepts and hangs up at once must not be hammered."""
        if lived_s >= SETTLED_S:
            self._step = 0

    def _wait(self) -> float:
        policy = self.policy
        if self._step == 0:
            return policy.first_jitter_s * self._random()
        try:
            full = policy.base_s * policy.factor ** (self._step - 1)
        except OverflowError:
            full = policy.cap_s
        return min(full, policy.cap_s) * (0.5 + 0.5 * self._random())
