"""What the hub knows of the lake and of the pipeline that fills it.

Every few seconds, while something has not arrived there, the archive is asked how far it is, and
what the pipeline says about itself is read. Inboxes and segments of the log then know what may be
let go; operators see how far behind the pipeline is, and when it is in trouble.
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
from signalhub.engine.archive import LakeArchive, Sight
from signalhub.engine.local import LocalEngine
from signalhub.pacing import Period
from signalhub.pipeline.lake import Lake, LakeUnreachable, lake_of
from signalhub.pipeline.run.status import PipelineStatus, read_status
from signalhub.server.pipeline_process import Beside, obstacle, pipeline_command
from signalhub.settings import model

log = logging.getLogger("signalhub.pipeline")

_LOOK_MS: Final = 5_000
_PATIENCE_MS: Final = 60_000
_INBOX_FAILURES_MAX: Final = 6
_SAMPLES_MAX: Final = 4_096
_ILL: Final = ("retrying", "stopped", "failed")


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
    """The hub's side of the lake, where a pipeline is wanted and possible.

    `command` starts another program in its place, whatever this machine lacks.
    """
    if chosen.run == "off":
        return None
    lake = lake_of(data, chosen.lake)
    beside: Beside | None = None
    if chosen.run == "beside":
        reason = None if command else await asyncio.to_thread(obstacle)
        if reason is None:
            beside = Beside(command or pipeline_command(data, config), hub.tally.lake)
        else:
            log.warning("the pipeline is off: %s", reason)
            if not await asyncio.to_thread(_is_begun, lake):
                return None
    archive = LakeArchive(
        lake,
        engine.epoch,
        clock,
        asyncio.get_running_loop(),
        hub.tally.lake,
        # What a shortened log no longer holds may be there, and must not be passed over.
        is_needed=engine.first > 0,
        log_head=lambda: engine.head,
        # Of an earlier epoch nobody knows how much there was.
        log_cut=lambda: engine.first if engine.first == engine.epoch_first else 0,
        log_first=None if hub.settings.rooms.always_query_store else lambda: engine.first,
    )
    lakeside = Lakeside(archive, beside, data, hub, engine, clock)
    hub.rooms.archived_to(await archive.first_look())
    return lakeside


def _is_begun(lake: Lake) -> bool:
    """Is there a lake that may hold what the log does not? If nobody knows, there is."""
    try:
        return lake.exists("entries") or lake.exists("inbox")
    except LakeUnreachable:
        return True


class Lakeside:
    """The archive, the pipeline beside the hub if there is one, and what both say."""

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
        # When the log had grown to which offset, as far as that has not landed; oldest first.
        self._samples: deque[tuple[int, int]] = deque()
        self._ill_since_ms: int | None = None
        self._position_before = -1

    # What it does.

    def start(self) -> None:
        """The hub listens: the pipeline may begin."""
        if self._beside is not None:
            self._beside.start()

    async def stop(self) -> None:
        """End the pipeline beside the hub; the archive still answers."""
        if self._beside is not None:
            await self._beside.stop()

    def close(self) -> None:
        self.archive.close()

    def tick(self, now: int, landed: Callable[[], None]) -> None:
        """Look, if it is time; `landed` is called when segments have arrived since."""
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

    def _note_lag(self, now: int) -> None:
        head, samples = self._engine.log.durable_head, self._samples
        if len(samples) < _SAMPLES_MAX and (not samples or samples[-1][1] < head):
            samples.append((now, head))
        while samples and samples[0][1] <= self.position:
            samples.popleft()

    def _note_health(self, now: int) -> None:
        status = self.status
        is_stuck = self.lag > 0 and self.position == self._position_before
        is_ill = status is None or status.state in _ILL or is_stuck
        self._position_before = self.position
        if not is_ill:
            self._ill_since_ms = None
        elif self._ill_since_ms is None:
            self._ill_since_ms = now

    # What it knows.

    @property
    def position(self) -> int:
        """The next offset the pipeline will land."""
        if self.status is None:
            return self._engine.first
        if self.status.epoch == self._engine.epoch:
            return self.status.position
        # Of a log that was begun anew, or lost entries, it knows at most what was there before.
        return min(self.status.position, self._engine.epoch_first)

    @property
    def lag(self) -> int:
        """Entries that have not landed."""
        return max(0, self._engine.log.durable_head - self.position)

    def lag_ms(self, now: int) -> int:
        """How long ago the oldest of these was written, to within a few seconds."""
        return max(0, now - self._samples[0][0]) if self.lag and self._samples else 0

    def is_down(self, now: int) -> bool:
        """Has the pipeline been silent, failing or stuck for too long?"""
        return self._ill_since_ms is not None and now - self._ill_since_ms > _PATIENCE_MS

    def degradations(self, now: int) -> list[str]:
        """What is wrong, in the words of `/health`."""
        found = ["pipeline_down"] if self.is_down(now) else []
        if self.status is not None and self.status.inbox_failures >= _INBOX_FAILURES_MAX:
            found.append("archive_failing")
        return found
