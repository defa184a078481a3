"""The hub's view of the lake, and of the pipeline that fills it.

Every few seconds the status file of the pipeline is read and, while entries have not landed, the
position of the archive. Inboxes and segments that have landed can then be released, and operators
see the lag and the failures of the pipeline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from signalhub.clock import Clock
from signalhub.core.hub import Hub
from signalhub.core.limits.degradations import Degraded
from signalhub.engine.archive import LakeArchive, Sight
from signalhub.engine.local import LocalEngine
from signalhub.pacing import Period
from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run.progress import oldest_ms
from signalhub.pipeline.run.status import PipelineStatus, read_status
from signalhub.pipeline.source.plan import LogPosition
from signalhub.server.pipeline_process import Beside, check_machine, pipeline_command
from signalhub.settings import model
from signalhub.wire.errors import SignalHubError

log = logging.getLogger("signalhub.pipeline")

_LOOK_MS: Final = 5_000
_PATIENCE_MS: Final = 60_000
_START_MS: Final = 300_000
"""How long a pipeline may take to start and to land its first batch."""
_INBOX_FAILURES_MAX: Final = 6
_SAMPLES_MAX: Final = 4_096
_FAILING: Final = ("retrying", "stopped", "failed")
_EARLY: Final = ("starting", "running")


async def check_pipeline(
    chosen: model.PipelineSettings, command: Sequence[str] | None = None
) -> None:
    """Raise `SettingsError` if a pipeline beside the hub cannot run here.

    `command` replaces it, and is not checked.
    """
    if chosen.run == "beside" and command is None:
        await asyncio.to_thread(check_machine)


async def open_lakeside(
    chosen: model.PipelineSettings,
    data: Path,
    hub: Hub,
    engine: LocalEngine,
    clock: Clock,
    *,
    config: str | None = None,
    command: Sequence[str] | None = None,
) -> Lakeside | None:
    """Open the hub's side of the lake; `None` if there is no pipeline.

    `command` replaces the pipeline.
    """
    if chosen.run == "off":
        return None
    lake = lake_of(data, chosen.lake)
    beside: Beside | None = None
    if chosen.run == "beside":
        beside = Beside(command or pipeline_command(data, config), hub.tally.lake)
    archive = LakeArchive(
        lake,
        engine.epoch,
        clock,
        asyncio.get_running_loop(),
        hub.tally.lake,
        # Messages cut from the log may be in the archive and must not be skipped.
        is_needed=engine.first > 0,
        log_head=lambda: engine.head,
        # 0 after a change of epoch: it is unknown how many entries the earlier one had.
        log_cut=lambda: engine.first if engine.first == engine.epoch_first else 0,
        log_first=None if hub.settings.rooms.always_query_store else lambda: engine.first,
    )
    lakeside = Lakeside(archive, beside, data, hub, engine, clock)
    await lakeside.note_oldest()
    hub.rooms.archived_to(await archive.first_look())
    return lakeside


class Lakeside:
    """The archive, the pipeline beside the hub if there is one, and their state."""

    def __init__(
        self,
        archive: LakeArchive,
        beside: Beside | None,
        data: Path,
        hub: Hub,
        engine: LocalEngine,
        clock: Clock,
    ) -> None:
        self.archive = archive
        self._beside = beside
        self._data = data
        self._hub = hub
        self._engine = engine
        self._clock = clock
        self._look = Period(_LOOK_MS)
        self._is_looking = False
        self.status: PipelineStatus | None = None
        # Samples of (time, head of the log) that have not landed yet, oldest first.
        self._samples: deque[tuple[int, int]] = deque()
        self._failing_since_ms: int | None = None
        self._position_before = -1
        # The pipeline that has not landed anything yet, and since when it is known.
        self._starting: tuple[int, int] | None = None

    # Lifecycle.

    def start(self) -> None:
        """Start the pipeline, once the hub listens."""
        if self._beside is not None:
            self._beside.start()

    async def stop(self) -> None:
        """Stop the pipeline beside the hub; the archive stays open."""
        if self._beside is not None:
            await self._beside.stop()

    def close(self) -> None:
        self.archive.close()

    def tick(self, now: int, landed: Callable[[], None]) -> None:
        """Check the lake if due; `landed` is called if more segments have landed."""
        if self._is_looking or not self._look.is_due(now):
            return
        self._read_status(now)
        if self.archive.position >= self._engine.head and not self.archive.wanted:
            return
        before = self.archive.landed
        self._is_looking = True

        def looked(sight: Sight | None) -> None:
            self._is_looking = False
            if sight is None or self._hub.is_draining:
                return
            if sight.position != self._hub.rooms.messages.archived:
                self._hub.rooms.archived_to(sight.position)
            if sight.landed > before:
                landed()

        self.archive.look(looked)

    def _read_status(self, now: int) -> None:
        self.status = status = read_status(self._data)
        if status is not None:
            tally, totals = self._hub.tally.lake, status.totals
            tally.batches, tally.rows, tally.bytes = totals.batches, totals.rows, totals.bytes
            tally.quarantined = totals.quarantined
        self._note_lag(now)
        self._note_health(now)

    async def note_oldest(self) -> None:
        """Find out how old the oldest entry is that had not landed when the hub started."""
        self.status = await asyncio.to_thread(read_status, self._data)
        begin = LogPosition(self._engine.epoch, self.position)
        try:
            at_ms = await asyncio.to_thread(oldest_ms, self._data, begin)
        except (SignalHubError, OSError) as error:
            log.warning("the age of the oldest entry is unknown", extra={"reason": str(error)})
            return
        if at_ms is not None:
            self._samples.append((at_ms, self._engine.log.durable_head))

    def _note_lag(self, now: int) -> None:
        head, samples = self._engine.log.durable_head, self._samples
        if len(samples) < _SAMPLES_MAX and (not samples or samples[-1][1] < head):
            samples.append((now, head))
        while samples and samples[0][1] <= self.position:
            samples.popleft()

    def _note_health(self, now: int) -> None:
        status = self.status
        is_stuck = self.lag > 0 and self.position == self._position_before
        is_failing = status is None or status.state in _FAILING or is_stuck
        self._position_before = self.position
        if self._is_starting(now):
            is_failing = self._failing_since_ms is not None and self._has_failed_before
        if not is_failing:
            self._failing_since_ms = None
        elif self._failing_since_ms is None:
            self._failing_since_ms = now

    def _is_starting(self, now: int) -> bool:
        """Is there a pipeline that has not landed anything yet, and still has time for it?"""
        status, child = self.status, None if self._beside is None else self._beside.pid
        if child is not None and (status is None or status.pid != child):
            # It has not said anything yet.
            pid = child
        elif status is None or status.totals.batches or status.state not in _EARLY:
            return False
        else:
            pid = status.pid
        if self._starting is None or self._starting[0] != pid:
            self._starting = (pid, now)
        return now - self._starting[1] <= _START_MS

    @property
    def _has_failed_before(self) -> bool:
        return self._hub.tally.lake.restarts > 0 or bool(self.status and self.status.failures)

    # State.

    @property
    def position(self) -> int:
        """The next offset the pipeline will land."""
        if self.status is None:
            return self._engine.first
        if self.status.epoch == self._engine.epoch:
            return self.status.position
        # The pipeline has not seen the new epoch yet, so at most what was before it has landed.
        return min(self.status.position, self._engine.epoch_first)

    @property
    def lag(self) -> int:
        """Entries that have not landed."""
        return max(0, self._engine.log.durable_head - self.position)

    def lag_ms(self, now: int) -> int:
        """Return the age of the oldest of these entries, to within a few seconds."""
        return max(0, now - self._samples[0][0]) if self.lag and self._samples else 0

    def is_down(self, now: int) -> bool:
        """Has the pipeline been silent, failing or stuck for too long?"""
        return self._failing_since_ms is not None and now - self._failing_since_ms > _PATIENCE_MS

    def degradations(self, now: int) -> list[Degraded]:
        """Return the degradations for `/health`."""
        found = [Degraded.PIPELINE_DOWN] if self.is_down(now) else []
        if self.status is not None and self.status.inbox_failures >= _INBOX_FAILURES_MAX:
            found.append(Degraded.ARCHIVE_FAILING)
        return found
