"""Refused logins: each is counted, and a limited number is logged with reason and source.

A guesser must be visible, and must not be able to fill the disk with log lines or to crowd out the
lines about others. So every source has a small allowance, and all of them share a larger one. What
was not logged is counted in the next line.
"""

from __future__ import annotations

from signalhub.core.effects import Effect, Note
from signalhub.counters import Tally
from signalhub.pacing import Period, TokenBucket

_SOURCE_RATE_S = 0.1
_SOURCE_BURST = 5
_TOTAL_RATE_S = 1.0
_TOTAL_BURST = 50
_SOURCES_MAX = 1_024
_SUMMARY_MS = 60_000


class RefusedLogins:
    """Writes the log lines about logins that were refused, by any door."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._sources: dict[str, TokenBucket] = {}
        self._total = TokenBucket(_TOTAL_RATE_S, _TOTAL_BURST, 0)
        self._suppressed = 0
        self._summary = Period(_SUMMARY_MS)

    def refused(self, source: str, door: str, reason: str, now: int) -> list[Effect]:
        """Count a refused login, and log it unless there were too many."""
        self._tally.logins_refused += 1
        bucket = self._sources.get(source)
        if bucket is None:
            if len(self._sources) >= _SOURCES_MAX:
                del self._sources[next(iter(self._sources))]
            bucket = self._sources[source] = TokenBucket(_SOURCE_RATE_S, _SOURCE_BURST, now)
        if not bucket.take(now) or not self._total.take(now):
            self._suppressed += 1
            return []
        facts: dict[str, object] = {"source": source, "door": door, "reason": reason}
        return [Note("a login was refused", facts | self._take_suppressed())]

    def tick(self, now: int) -> list[Effect]:
        """Once a minute, report what was not logged, if nothing else has."""
        if not self._summary.is_due(now) or not self._suppressed:
            return []
        return [Note("more logins were refused", self._take_suppressed())]

    def _take_suppressed(self) -> dict[str, object]:
        count, self._suppressed = self._suppressed, 0
        return {"not_logged": count} if count else {}
