"""Landing of a running pipeline: what arrives lands in this process, a little every few seconds.

A micro-batch of Spark takes half a second of a core, however small it is; this takes hundredths. A
query of Spark (`land`) does what cannot be done here: a long backlog, which may be distributed, and
whatever is unusual. It runs for a while, until it has caught up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from signalhub.pipeline.land.files import can_write
from signalhub.pipeline.land.here import land_steadily
from signalhub.pipeline.land.land import Landing, checkpointed, has_unfinished
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.tables.tables import ENTRIES

log = logging.getLogger("signalhub.pipeline")

_TICK_S: Final = 0.25
_GRACE_S: Final = 5.0
_QUERY_S_MIN: Final = 60.0
"""Starting a query takes seconds, so do not do that for every entry that is unusual."""


class Lander:
    """Lands from a position on, in a thread of its own."""

    def __init__(
        self, landing: Landing, position: LogPosition, head: Callable[[], LogPosition]
    ) -> None:
        self._landing = landing
        self._position = position
        self._committed = self._found(position.epoch)
        self._segments = Segments(log_of(landing.data))
        self._head = head
        self._stopping = threading.Event()
        self._query: StreamingQuery | None = None
        self._query_since = 0.0
        self._query_to = position
        self._is_leaving = False
        self._failure: Exception | None = None
        self._waiting_since: float | None = None
        self._landed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="signalhub-land", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the running step, unless that takes too long."""
        self._stopping.set()
        self._thread.join(_GRACE_S)
        if self._query is not None:
            stop_query(self._query)

    def check(self) -> StreamingQuery | None:
        """Raise what has ended it; return the query that has ended."""
        if self._failure is not None:
            raise self._failure
        query = self._query
        is_over = query is not None and not self._is_leaving and not query.isActive
        return query if is_over else None

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_TICK_S):
                if self._query is None:
                    self._step()
                elif not self._query.isActive:
                    return
                elif self._has_caught_up():
                    self._leave_query(self._query)
        except Exception as error:
            self._failure = error

    def _step(self) -> None:
        head = self._head()
        if not self._is_due(head):
            return
        landed = land_steadily(self._landing, self._segments, self._position, head, self._committed)
        if landed is None:
            self._query_to, self._query_since = head, time.monotonic()
            self._query = query = self._landing.begin(self._position)
            if self._stopping.is_set():
                # Whoever stops it has not seen it: beginning takes seconds.
                stop_query(query)
            return
        self._position, self._committed = landed, landed.offset - 1
        if landed == head:
            self._landed_at = time.monotonic()

    def _is_due(self, head: LogPosition) -> bool:
        """Return whether enough entries wait, or they have waited long enough."""
        now, landing = time.monotonic(), self._landing
        if head <= self._position:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._landed_at < landing.poll_s:
            return False
        waiting = head.offset - self._position.offset
        is_other = head.epoch != self._position.epoch
        is_due = (
            is_other
            or waiting >= landing.batch_entries
            or now - self._waiting_since >= landing.batch_s
        )
        if is_due:
            self._waiting_since = None
        return is_due

    def _has_caught_up(self) -> bool:
        """Return whether the query need not go on."""
        if time.monotonic() - self._query_since < _QUERY_S_MIN:
            return False
        landing, head = self._landing, self._head()
        done = checkpointed(landing.checkpoint, landing.shard)
        return (
            done is not None
            and done >= self._query_to
            and done.epoch == head.epoch
            and not has_unfinished(landing.checkpoint)
            and can_write(landing.lake)
        )

    def _leave_query(self, query: StreamingQuery) -> None:
        self._is_leaving = True
        stop_query(query)
        # It may have landed more meanwhile.
        epoch = self._head().epoch
        committed = self._found(epoch)
        if committed is None:
            raise RuntimeError("the table has been changed; landing starts again")
        self._position, self._committed = LogPosition(epoch, committed + 1), committed
        self._query, self._is_leaving = None, False

    def _found(self, epoch: int) -> int | None:
        return self._landing.lake.committed(ENTRIES.name, self._landing.shard, epoch)


def stop_query(query: StreamingQuery) -> None:
    """End a query after the running batch, unless that takes too long."""
    deadline = time.monotonic() + _GRACE_S
    try:
        while query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_TICK_S / 5)
        query.stop()
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        log.warning("the query could not be stopped", extra={"reason": text.splitlines()[0]})
