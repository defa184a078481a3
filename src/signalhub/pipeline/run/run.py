"""A running pipeline: lands continuously, updates the other tables on slower beats, until stopped.

It retries after failures: the store may be unavailable for minutes, and everything waits in the
log. Only what waiting cannot fix ends it: damage to the log, and missing entries.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from signalhub.locks import is_hub_running
from signalhub.log.errors import CUT_ADVICE, DAMAGED_ADVICE
from signalhub.pacing import grown
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.land.here import land_here
from signalhub.pipeline.land.land import (
    CheckpointAhead,
    Landed,
    Landing,
    checkpointed,
    has_unfinished,
)
from signalhub.pipeline.land.resume import EntriesMissing, LogBehindLake, epochs, resume
from signalhub.pipeline.run.schedule import Beats, Neighbour, was_asked
from signalhub.pipeline.run.status import Journal, UpkeepRound, folder_of
from signalhub.pipeline.source import known
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.tables import catch_up
from signalhub.pipeline.tables.create import ensure_tables, ensure_tables_here, forget_tables
from signalhub.pipeline.tables.tables import ENTRIES, INBOX
from signalhub.pipeline.upkeep.upkeep import maintain
from signalhub.settings.model import PipelineSettings as Settings
from signalhub.wire.errors import SignalHubError

log = logging.getLogger("signalhub.pipeline")

_TICK_S: Final = 0.25
_GRACE_S: Final = 5.0
_PIECE_ENTRIES: Final = 250_000
"""How many entries a table that is far behind takes in at a time, before inboxes run again."""
_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
_ATTEMPTS_MAX: Final = 6
_OUR_ERROR: Final = re.compile(r"signalhub\.[\w.]+\.(\w+): ([^\n]+)")
_ANY_ERROR: Final = re.compile(r"^(?:Caused by: )?[\w.$]+(?:Error|Exception): (.+)$", re.MULTILINE)
_FIXED_BY_STARTING_OVER: Final = {"EntriesGone", CheckpointAhead.__name__}


class PipelineFailed(SignalHubError):
    """A failure that waiting cannot fix, or that a single run did not wait for."""

    code = "pipeline_failed"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a single run."""

    rows: int
    bytes: int
    quarantined: int
    files: int
    """Data files of all tables together."""
    lag: int
    """Entries added to the log meanwhile."""
    epoch: int
    position: int
    """The next offset to land."""
    seconds: float
    tables: dict[str, int]
    """Rows added by derived table."""


class Pipeline:
    """Copies the log of one data folder into one lake and keeps its tables up to date."""

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        lake: Lake,
        data: Path,
        settings: Settings,
        *,
        shard: int = 0,
        landed: Callable[[Landed], None] = lambda batch: None,
        landing: type[Landing] = Landing,
        hub: Neighbour | None = None,
        tables: Sequence[str] = catch_up.ORDER,
    ) -> None:
        """`spark` is a session, or opens one; then a single run with little to do needs none.

        `landed` is called after every batch; `landing` lands it; `hub` has precedence.

        `tables` are the derived tables to keep up to date.
        """
        self._open = spark if callable(spark) else None
        self._opened = None if callable(spark) else spark
        self._lake = lake
        self._data = data
        self._settings = settings
        self._shard = shard
        self._landed = landed
        self._landing_kind = landing
        self._hub = hub or Neighbour()
        self._tables = tables
        self._disk = log_of(data)
        self._segments = Segments(self._disk)
        self._journal = Journal(data)
        self._stopping = threading.Event()
        self._is_over = threading.Event()
        self._retry = threading.Event()
        self._hurried = threading.Event()
        self._gained: dict[str, int] = {}
        self._epochs: list[int] = []

    @property
    def _spark(self) -> SparkSession:
        if self._opened is None:
            assert self._open is not None
            if self._stopping.is_set():
                raise PipelineFailed("stopped before Spark was needed")
            self._opened = self._open()
        return self._opened

    # Called by others, from any thread or signal handler.

    def stop(self) -> None:
        """Stop soon: running work has a moment to finish and is otherwise left for later."""
        self._stopping.set()
        self._retry.set()
        threading.Thread(target=self._cut_short, name="signalhub-stop", daemon=True).start()

    def _cut_short(self) -> None:
        if self._is_over.wait(_GRACE_S) or self._opened is None:
            # Other threads may be using the session.
            return
        with contextlib.suppress(Exception):
            self._opened.sparkContext.cancelAllJobs()

    def hurry(self) -> None:
        """Do not wait any longer, neither after a failure nor until a table is due."""
        self._hurried.set()
        self._retry.set()

    # Running until stopped.

    def up(self) -> None:
        """Work until `stop`; raises `PipelineFailed` for what waiting cannot fix."""
        failures = 0
        beats = Beats(self._settings, self._hub, self._tables)
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._work(beats)
            except (PipelineFailed, EntriesMissing, LogBehindLake) as error:
                self._journal.failed(str(error))
                raise
            except Exception as error:
                if self._stopping.is_set():
                    break
                failures = 1 if time.monotonic() - started > _PAUSE_MAX_S * 2 else failures + 1
                self._wait_after(error, failures)
        self._is_over.set()
        self._journal.stopped()

    def _work(self, beats: Beats) -> None:
        forget_tables(self._spark)
        ensure_tables(self._spark, self._lake, self._settings, self._tables)
        position = resume(self._disk, self._lake, self._shard)
        self._journal.running(position, self._head())
        query = self._landing().begin(position)
        try:
            while not self._stopping.wait(_TICK_S):
                if not query.isActive:
                    self._ended(query)
                self._journal.look(self._head())
                self._beat(beats)
        finally:
            _stop(query)

    def _landing(self, *, until: LogPosition | None = None, beyond: bool = False) -> Landing:
        settings = self._settings
        return self._landing_kind(
            spark=self._spark,
            lake=self._lake,
            data=self._data,
            checkpoint=self._landing_checkpoint,
            report=self._report,
            shard=self._shard,
            batch_entries=settings.batch_entries,
            batch_s=settings.batch_s,
            until=until,
            beyond_published=beyond,
        )

    def _report(self, batch: Landed) -> None:
        self._journal.landed(batch, self._head())
        self._landed(batch)

    def _head(self) -> LogPosition:
        return self._segments.published() or self._segments.valid()

    def _ended(self, query: StreamingQuery) -> NoReturn:
        """The query has ended by itself: decide whether to try again."""
        name, message = cause(str(query.exception() or "the query ended without an error"))
        if name == "LogDamaged":
            raise PipelineFailed(message)
        if name in _FIXED_BY_STARTING_OVER:
            self._landing().forget_checkpoint()
        raise RuntimeError(message)

    def _wait_after(self, error: Exception, failures: int) -> None:
        pause_s = grown(_PAUSE_S, _PAUSE_MAX_S, failures - 1)
        reason = first_line(error)
        log.warning(
            "landing failed and will be retried",
            extra={"reason": reason, "failures": failures, "pause_s": pause_s},
        )
        self._journal.retrying(reason, failures)
        until = time.monotonic() + pause_s
        while not self._retry.wait(_TICK_S) and time.monotonic() < until:
            self._check_hurry()
        if not self._stopping.is_set():
            self._retry.clear()

    def _check_hurry(self) -> None:
        if was_asked(self._data):
            self.hurry()

    # The slower beats.

    def _beat(self, beats: Beats) -> None:
        """Do one step of what is due; inboxes come first."""
        now = int(time.monotonic() * 1000)
        self._check_hurry()
        if self._hurried.is_set():
            self._hurried.clear()
            beats.hurry()
        if self._beat_inbox(beats):
            return
        if table := beats.next_table(now):
            self._try(partial(self._take_piece, beats, table), f"the table {table}")
        elif beats.is_upkeep_due(self._journal.upkeep, now):
            pause = partial(self._beat_inbox, beats)
            self._try(partial(self.maintain, pause=pause), "the upkeep of the tables")

    def _take_piece(self, beats: Beats, table: str) -> None:
        if not self._take(table, pieces_max=1):
            beats.put_back(table)

    def _beat_inbox(self, beats: Beats) -> bool:
        """Archive inboxes if it is time; return whether it was."""
        if self._stopping.is_set() or not beats.inbox.is_due(int(time.monotonic() * 1000)):
            return False
        has_failed = self._try(partial(self._take, INBOX.name), "the archive of inboxes")
        self._journal.inbox_failures = self._journal.inbox_failures + 1 if has_failed else 0
        return True

    def _try(self, work: Callable[[], object], what: str) -> bool:
        """Return whether it failed; then the next beat tries again, and landing continues."""
        try:
            work()
        except Exception as error:
            if not self._stopping.is_set():
                facts = {"what": what, "reason": first_line(error)}
                log.warning("a step failed and will be retried", extra=facts)
            return True
        return False

    def _take(self, table: str, *, pieces_max: int | None = None) -> bool:
        """Advance a table by a few pieces; return whether it is up to date."""
        for epoch in self._known_epochs():
            to = self._lake.committed(ENTRIES.name, self._shard, epoch)
            done = self._lake.committed(table, self._shard, epoch)
            if to is not None and (done is None or done < to):
                progress = catch_up.catch_up(
                    lambda: self._spark,
                    self._lake,
                    table,
                    self._shard,
                    epoch,
                    to,
                    piece_entries=_PIECE_ENTRIES,
                    pieces_max=pieces_max,
                )
                self._gained[table] = self._gained.get(table, 0) + progress.rows
                done = progress.to
                if done is not None and done < to and done != progress.start:
                    self._journal.reached(table, done)
                    return False
            self._journal.reached(table, done)
        return True

    def _known_epochs(self) -> list[int]:
        """Return every epoch of the log; read footers again only when a new one has started."""
        if self._head().epoch not in self._epochs:
            self._epochs = epochs(self._disk)
        return self._epochs

    def maintain(
        self, *, is_thorough: bool = False, pause: Callable[[], object] = lambda: None
    ) -> UpkeepRound:
        """Expire, compact and vacuum what is due, or everything."""
        self._journal.upkeep = done = maintain(
            self._spark,
            self._lake,
            self._data,
            self._settings,
            last=self._journal.upkeep,
            thorough=is_thorough,
            is_alone=is_thorough,
            pause=pause,
        )
        return done

    # A single run.

    def once(self, *, accept_gap: bool = False) -> RunSummary:
        """Land everything there is now, update every table, and end.

        With a running hub, "now" is its durable head; without one, the last valid batch. Raises
        `PipelineFailed` after several attempts.
        """
        self._is_over.clear()
        try:
            return self._once(accept_gap=accept_gap)
        finally:
            self._is_over.set()

    def _once(self, *, accept_gap: bool) -> RunSummary:
        began = time.monotonic()
        is_hub_there = is_hub_running(self._data)
        target = self._head() if is_hub_there else self._segments.valid()
        before = self._journal.totals()
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                if self._open is None or not self._land_here(target):
                    self._land_to(target, accept_gap=accept_gap, beyond=not is_hub_there)
                tables = self._catch_up()
                self._check_log()
                break
            except (PipelineFailed, EntriesMissing, LogBehindLake) as error:
                if self._stopping.is_set():
                    self._journal.stopped()
                else:
                    self._journal.failed(str(error))
                raise
            except Exception as error:
                if self._stopping.is_set():
                    self._journal.stopped()
                    raise PipelineFailed("stopped before everything was landed") from error
                if attempt == _ATTEMPTS_MAX:
                    self._journal.failed(first_line(error))
                    raise PipelineFailed(first_line(error)) from error
                self._wait_after(error, attempt)
        self._journal.stopped()
        totals = self._journal.totals()
        return RunSummary(
            rows=totals.rows - before.rows,
            bytes=totals.bytes - before.bytes,
            quarantined=totals.quarantined - before.quarantined,
            files=self._lake.files(),
            lag=max(0, self._head().offset - target.offset) if is_hub_there else 0,
            epoch=target.epoch,
            position=target.offset,
            seconds=round(time.monotonic() - began, 3),
            tables=tables,
        )

    def _check_log(self) -> None:
        """Raise `PipelineFailed` if not everything that was in the log can be read."""
        found = known.examined(self._data)
        if found.damage is not None:
            raise PipelineFailed(f"the log is damaged: {found.problem}; {DAMAGED_ADVICE}")
        if found.loss:
            raise PipelineFailed(f"the end of the log is missing: {found.loss}; {CUT_ADVICE}")

    def behind(self) -> int:
        """Return approximately how many entries a single run would land now."""
        head = self._head() if is_hub_running(self._data) else self._segments.valid()
        position = resume(self._disk, self._lake, self._shard)
        return max(0, head.offset - position.offset)

    def _land_here(self, target: LogPosition) -> bool:
        """Land without Spark; return `False` if that is impossible, or there is too much."""
        if not ensure_tables_here(self._lake, self._settings, self._tables):
            return False
        try:
            position = resume(self._disk, self._lake, self._shard)
        except EntriesMissing:
            return False
        self._journal.running(position, target)
        return land_here(
            self._lake,
            self._data,
            self._landing_checkpoint,
            position,
            target,
            shard=self._shard,
            report=self._report,
        )

    @property
    def _landing_checkpoint(self) -> Path:
        return folder_of(self._data) / "checkpoint"

    def _land_to(self, target: LogPosition, *, accept_gap: bool, beyond: bool) -> None:
        forget_tables(self._spark)
        ensure_tables(self._spark, self._lake, self._settings, self._tables)
        landing = self._landing(until=target, beyond=beyond)
        try:
            position = resume(self._disk, self._lake, self._shard)
        except EntriesMissing as gap:
            if not accept_gap:
                raise
            log.warning("a gap was accepted", extra={"from": gap.first, "to": gap.last})
            position = self._segments.first
            landing.forget_checkpoint()
        self._journal.running(position, target)
        if position >= target and not has_unfinished(landing.checkpoint):
            return
        query = landing.begin(position)
        try:
            while not self._is_there(landing, target):
                if self._stopping.wait(_TICK_S):
                    raise PipelineFailed("stopped before everything was landed")
                if not query.isActive:
                    self._ended(query)
        finally:
            _stop(query)

    def _is_there(self, landing: Landing, target: LogPosition) -> bool:
        """Return whether everything has landed and its batch is finished."""
        done = checkpointed(landing.checkpoint, self._shard)
        return done is not None and done >= target

    def _catch_up(self) -> dict[str, int]:
        """Bring all tables up to date with `entries`; return the rows added by table."""
        before = dict(self._gained)
        for name in self._tables:
            if self._stopping.is_set():
                raise PipelineFailed("stopped before every table was up to date")
            self._take(name)
        return {name: self._gained[name] - before.get(name, 0) for name in self._gained}


def cause(text: str) -> tuple[str, str]:
    """Return the class of our own error in Spark's, if there is one, and the text to show."""
    if found := _OUR_ERROR.findall(text):
        name, message = found[-1]
        return name, message
    if found := _ANY_ERROR.findall(text):
        return "", found[-1]
    return "", text.strip().splitlines()[0]


def first_line(error: BaseException) -> str:
    """Return the text of an error without its stack trace."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]


def _stop(query: StreamingQuery) -> None:
    """End the query after the running batch, unless that takes too long."""
    deadline = time.monotonic() + _GRACE_S
    try:
        while query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_TICK_S / 5)
        query.stop()
    except Exception as error:
        log.warning("the query could not be stopped", extra={"reason": first_line(error)})
