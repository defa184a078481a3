"""One sample a second for all who look, and the ring that keeps it.

The ring takes one row a second in any case: that costs a few microseconds. What has to be looked
for among many subscriptions is looked for every second while somebody looks, and slowly otherwise.
`look` and `watchers` say that somebody
does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Final

from signalhub.core.overview.sample import COUNTED, COUNTERS, GAUGES, LATENCIES, SURVEYED
from signalhub.core.overview.survey import Survey
from signalhub.counters import Histogram
from signalhub.observe.series import Ring, Row

if TYPE_CHECKING:
    from pathlib import Path

    from signalhub.clock import SteadyClock
    from signalhub.core.hub import Hub
    from signalhub.engine.local import LocalEngine
    from signalhub.server.lake import Lakeside
    from signalhub.server.runner import HubRunner

log = logging.getLogger("signalhub.admin")

# Subscriptions looked at per second while nobody looks, and per turn while somebody does.
IDLE_STEP: Final = 50
STEP: Final = 80
# Steps per second while somebody looks: a round of more takes several seconds, because it must not
# take more than a hundredth of the time of the hub.
STEPS_MAX: Final = 25
# Somebody who asked without a live socket counts as looking for this time.
LOOKING_MS: Final = 5_000
# What costs more than a few microseconds is measured this rarely.
SELDOM_TICKS: Final = 10
LAG_TIMER_S: Final = 0.1
LAG_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_SELDOM: Final = ("log_bytes", "disk_free", "rss", "fds")
_OF_SERVER: Final = (
    *("queue_messages", "queue_bytes", "log_segments", "log_waiting", "oldest_worst"),
    *("lake_lag", "lake_lag_s", "lake_batch_ms", "lake_failures"),
)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Sampler:
    """Measures the hub once a second."""

    def __init__(
        self,
        hub: Hub,
        runner: HubRunner,
        engine: LocalEngine,
        clock: SteadyClock,
        data: Path,
        lakeside: Lakeside | None = None,
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._engine = engine
        self._clock = clock
        self._data = data
        self._lakeside = lakeside
        self.survey = Survey(hub.streams, hub.sessions, hub.settings)
        self.loop_lag = Histogram(LAG_BOUNDS_S)
        latencies = {name: (of(hub.tally), shares) for name, (of, shares) in LATENCIES.items()}
        latencies["loop_lag"] = (self.loop_lag, (0.99,))
        self.ring = Ring(
            (*COUNTERS, *COUNTED, "cpu"), (*GAUGES, *SURVEYED, *_OF_SERVER, *_SELDOM), latencies
        )
        self.started_ms = clock.now_ms()
        self._ticks = 0
        self._seldom = dict.fromkeys(_SELDOM, math.nan)
        # How many look all the time.
        self.watchers = 0
        self._looked_ms = -LOOKING_MS
        self._round: asyncio.Task[None] | None = None
        self._measuring: asyncio.Future[dict[str, float]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expected_s = 0.0
        # Counts of errors by code in the last minutes, oldest first.
        self.errors: list[tuple[int, dict[str, int]]] = []

    # Who looks.

    async def look(self) -> None:
        """Somebody looks once: the survey is at most a second old afterwards."""
        was_watched = self.is_watched
        self._looked_ms = self._clock.now_ms()
        if not was_watched or not self.survey.rounds:
            await self._go_round()

    @property
    def is_watched(self) -> bool:
        """Does anybody look?"""
        return self.watchers > 0 or self._clock.now_ms() - self._looked_ms < LOOKING_MS

    # Measuring.

    def start(self) -> None:
        """Begin to measure how late timers fire."""
        self._wait()

    def stop(self) -> None:
        """Measure no more."""
        for one in (self._timer, self._round):
            if one is not None:
                one.cancel()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._expected_s = loop.time() + LAG_TIMER_S
        self._timer = loop.call_at(self._expected_s, self._fired)

    def _fired(self) -> None:
        self.loop_lag.observe(asyncio.get_running_loop().time() - self._expected_s)
        self._wait()

    def tick(self, now: int) -> None:
        """Once a second: one row for the ring."""
        if self._ticks % SELDOM_TICKS == 0:
            self._measure_seldom()
            self._note_errors(now)
        self._ticks += 1
        if self.is_watched:
            self.begin_round()
        elif self._round is None:
            self.survey.step(IDLE_STEP, now, with_sessions=False)
        self.ring.tick(self._row(now), now)

    def begin_round(self) -> None:
        """Look at as much as one second allows, unless that is under way."""
        if self._round is None:
            self._round = asyncio.ensure_future(self._look_round())

    def _row(self, now: int) -> Row:
        hub, tally, totals = self._hub, self._hub.tally, self.survey.totals
        counters = [
            *[of(tally) for of in COUNTERS.values()],
            *[of_totals(totals) for of_totals in COUNTED.values()],
            time.process_time(),
        ]
        lake, writer, engine = self._lakeside, self._runner.writer, self._engine
        status = None if lake is None else lake.status
        batch = None if status is None else status.last_batch
        oldest = totals.oldest_ms
        gauges = [
            *[of_hub(hub) for of_hub in GAUGES.values()],
            *[of_totals(totals) for of_totals in SURVEYED.values()],
            writer.depth(),
            writer.waiting_bytes,
            engine.segments,
            engine.waiting,
            0 if oldest is None else max(0, now - oldest) / 1000,
            0 if lake is None else lake.lag,
            0 if lake is None else lake.lag_ms(now) / 1000,
            0 if batch is None else batch.ms,
            0 if status is None else status.failures,
            *self._seldom.values(),
        ]
        return Row(counters, gauges)

    def _measure_seldom(self) -> None:
        """A disk may take its time, so it is asked in a thread."""
        if self._measuring is not None and not self._measuring.done():
            return
        segments, data = self._engine.log.segments, self._data

        def measure() -> dict[str, float]:
            found = os.statvfs(data)
            return {
                "log_bytes": sum(one.bytes for one in segments),
                "disk_free": found.f_bavail * found.f_frsize,
                "rss": _resident_bytes(),
                "fds": _open_files(),
            }

        def measured(done: asyncio.Future[dict[str, float]]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._seldom = done.result()

        self._measuring = asyncio.get_running_loop().run_in_executor(None, measure)
        self._measuring.add_done_callback(measured)

    def _note_errors(self, now: int) -> None:
        """Keep what is needed to say which errors there were in the last 15 minutes."""
        self.errors.append((now, dict(self._hub.tally.errors)))
        if len(self.errors) > 15 * 60 // SELDOM_TICKS + 1:
            del self.errors[0]

    def recent_errors(self) -> dict[str, int]:
        """Errors by code in the last 15 minutes, the most frequent first."""
        before = self.errors[0][1] if self.errors else {}
        counts = {
            code: count - before.get(code, 0) for code, count in self._hub.tally.errors.items()
        }
        return dict(sorted(((c, n) for c, n in counts.items() if n), key=lambda one: -one[1]))

    async def _look_round(self) -> None:
        """Go on with the round, or begin one, as far as one second allows."""
        try:
            for _ in range(STEPS_MAX):
                if self.survey.step(STEP, self._clock.now_ms(), with_sessions=True):
                    break
                await asyncio.sleep(0)
        except Exception:
            log.exception("subscriptions could not be looked at")
        finally:
            self._round = None

    async def _go_round(self) -> None:
        """Look at everything once, a step per turn."""
        now = self._clock.now_ms
        rounds = self.survey.rounds
        while self.survey.rounds == rounds:
            if not self.survey.step(STEP, now(), with_sessions=True):
                await asyncio.sleep(0)


def _open_files() -> int:
    """The number of open files, which newer kernels tell without listing them."""
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
