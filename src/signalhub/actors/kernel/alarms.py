"""Alarms: calls at a time, after a delay, by cron, or at an interval.

A due alarm runs like a message, alone and in its own savepoint. After it has run, its row is
deleted or gets its next time, unless the handler has set or cancelled the same alarm.

An alarm for a time of day follows the wall clock; delays, intervals and pauses before a retry
follow the time that passes, which is the host's own time.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.actors.api import schedules
from signalhub.actors.api.operation import Continuation, cont, decode_continuation
from signalhub.actors.api.schedules import AlarmType, ScheduleError, Spec
from signalhub.actors.store.schema import IS_OF_WALL

if TYPE_CHECKING:
    from signalhub.actors.api.actor import Then
    from signalhub.actors.kernel.kernel import Kernel
    from signalhub.actors.kernel.run import Running
    from signalhub.actors.store.host_time import HostTime

log = logging.getLogger("signalhub.actors")

_COLUMNS = (
    "actor, id, type, due_ms, occurrence_ms, spec, continuation, attempts, max_attempts, status,"
    " generation, last_error"
)
_IS_HERE = "NOT EXISTS (SELECT 1 FROM actors WHERE address = alarms.actor AND status <> 'here')"
# Due by the host's own time, then by the wall clock; each an interval of the index.
_DUE = " UNION ALL ".join(
    f"SELECT * FROM (SELECT {_COLUMNS}, due_ms - ? * {is_of_wall} AS at FROM alarms"  # noqa: S608
    f" WHERE status = 'pending' AND {IS_OF_WALL} = {is_of_wall} AND due_ms <= ? AND {_IS_HERE}"
    " ORDER BY due_ms, id LIMIT ?)"
    for is_of_wall in (0, 1)
)
_NEXT = (
    f"SELECT due_ms FROM alarms WHERE status = 'pending' AND {IS_OF_WALL} = ? AND {_IS_HERE}"  # noqa: S608
    " ORDER BY due_ms, id LIMIT 1"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The largest share of a turn for due alarms, so that messages are not held up.
_SHARE = 2


class Schedule(msgspec.Struct, frozen=True):
    """One alarm, as its actor sees it."""

    id: str
    type: AlarmType
    due_ms: int
    continuation: Continuation
    spec: Spec
    status: str = "pending"
    attempts: int = 0
    last_error: str | None = None

    @property
    def due(self) -> datetime:
        """When it runs next."""
        return _EPOCH + timedelta(milliseconds=self.due_ms)


class AlarmRow(msgspec.Struct):
    """A row of the table `alarms`; `occurrence_ms` is the scheduled time, without retries."""

    actor: str
    id: str
    type: str
    due_ms: int
    occurrence_ms: int
    spec: str
    continuation: bytes
    attempts: int
    max_attempts: int
    status: str
    generation: str
    last_error: str | None = None

    @property
    def is_of_wall(self) -> bool:
        """Is `due_ms` a time of the wall clock?"""
        return schedules.is_of_wall(self.type, self.due_ms, self.occurrence_ms)

    def shown(self, time: HostTime) -> Schedule:
        return Schedule(
            self.id,
            AlarmType(self.type),
            self.due_ms if self.is_of_wall else time.shown(self.due_ms),
            decode_continuation(self.continuation),
            Spec.decode(self.spec),
            self.status,
            self.attempts,
            self.last_error,
        )


class AlarmTable:
    """The alarms of all actors of a host."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._execute = kernel.store.execute
        self._time = kernel.time

    def put(self, row: AlarmRow) -> None:
        self._execute(
            "INSERT OR REPLACE INTO alarms VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            msgspec.structs.astuple(row),
        )

    def find(self, actor: str, alarm_id: str) -> AlarmRow | None:
        found = self._execute(
            f"SELECT {_COLUMNS} FROM alarms WHERE actor = ? AND id = ?",  # noqa: S608
            (actor, alarm_id),
        ).fetchone()
        return None if found is None else AlarmRow(*found)

    def of(self, actor: str) -> list[AlarmRow]:
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM alarms WHERE actor = ? ORDER BY due_ms, id",  # noqa: S608
            (actor,),
        )
        return [AlarmRow(*columns) for columns in rows]

    def remove(self, actor: str, alarm_id: str) -> None:
        self._execute("DELETE FROM alarms WHERE actor = ? AND id = ?", (actor, alarm_id))

    def due(self, limit: int) -> list[AlarmRow]:
        """The next alarms to run, of actors placed here."""
        ahead_ms = self._time.ahead_ms
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM ({_DUE}) ORDER BY at, id LIMIT ?",  # noqa: S608
            (ahead_ms, self._time.own_ms, limit, ahead_ms, self._time.wall_ms, limit, limit),
        )
        return [AlarmRow(*columns) for columns in rows]

    def is_due(self, row: AlarmRow) -> bool:
        return row.due_ms <= (self._time.wall_ms if row.is_of_wall else self._time.own_ms)

    def next_due_ms(self) -> int | None:
        """By the host's own time; a wall clock that is set meanwhile changes the answer."""
        own_ms: int | None = self._execute(_NEXT, (0,)).get
        wall_ms: int | None = self._execute(_NEXT, (1,)).get
        if wall_ms is None:
            return own_ms
        due_ms = self._time.own(wall_ms)
        return due_ms if own_ms is None else min(own_ms, due_ms)

    def set_back(self, back_ms: int) -> None:
        """The wall clock was set back: what was next by cron may now be too far away.

        What has run before a small correction is not repeated.
        """
        rows: list[Any] = self._execute(
            f"SELECT {_COLUMNS} FROM alarms WHERE type = ? AND status = 'pending'",  # noqa: S608
            (AlarmType.CRON,),
        ).fetchall()
        wall_ms = self._time.wall_ms
        for columns in rows:
            row = AlarmRow(*columns)
            try:
                spec = Spec.decode(row.spec)
                if spec.cron is None or not schedules.is_repeated(spec.cron, back_ms):
                    continue
                next_ms = schedules.next_due(spec, wall_ms, wall_ms)
            except ScheduleError:
                continue  # It fails when it has run, and is then reported.
            if next_ms is None or next_ms >= row.occurrence_ms:
                continue
            if row.is_of_wall:
                row.due_ms = row.occurrence_ms = next_ms
            else:
                # It waits for a retry, after which its next time is looked up.
                row.occurrence_ms = wall_ms
            self.put(row)

    def share(self, limit: int) -> int:
        return max(1, limit // _SHARE)

    # The result of a run.

    def ran(self, row: AlarmRow) -> None:
        """The run succeeded; reschedule or delete the alarm unless its handler has changed it."""
        current = self._unchanged(row)
        if current is not None:
            current.last_error = None
            self._go_on(current)

    def postpone(self, row: AlarmRow, due_ms: int) -> None:
        """It could not run, or asked to run later; that does not count as a failure."""
        current = self._unchanged(row)
        if current is not None:
            current.due_ms = due_ms
            self.put(current)

    def failed(self, row: AlarmRow, error: str) -> None:
        """The run failed: retry after a pause, or skip the alarm."""
        current = self._unchanged(row)
        if current is None:
            return
        row = current
        row.attempts += 1
        row.last_error = error
        if row.attempts < row.max_attempts:
            row.due_ms = schedules.retry_due(row.attempts, self._time.own_ms)
            self.put(row)
            return
        if row.type in (AlarmType.CRON, AlarmType.INTERVAL):
            self._kernel.letters.bury(
                row.actor, "alarm", row.id, msgspec.msgpack.encode(row), error, row.attempts
            )
            self._go_on(row)
            return
        self.set_aside(row, error)

    def set_aside(self, row: AlarmRow, error: str) -> None:
        """Keep the alarm for inspection; it does not run again."""
        self._kernel.counters.skipped += 1
        log.error("alarm %s of %s is skipped: %s", row.id, row.actor, error)
        row.status, row.last_error = "skipped", error
        self.put(row)

    def _go_on(self, row: AlarmRow) -> None:
        is_of_wall = row.type in schedules.WALL_TYPES
        now_ms = self._time.wall_ms if is_of_wall else self._time.own_ms
        try:
            due_ms = schedules.next_due(Spec.decode(row.spec), row.occurrence_ms, now_ms)
        except ScheduleError as fault:
            self.set_aside(row, str(fault))
            return
        if due_ms is None:
            self.remove(row.actor, row.id)
            return
        row.due_ms = row.occurrence_ms = due_ms
        row.attempts = 0
        row.generation = self._kernel.new_id()
        self.put(row)

    def _unchanged(self, row: AlarmRow) -> AlarmRow | None:
        """Return the current row, unless the alarm was replaced or deleted."""
        now = self.find(row.actor, row.id)
        return None if now is None or now.generation != row.generation else now

    def redrive(self, actor: str, data: bytes) -> None:
        """Run a skipped occurrence once more, in addition to later ones."""
        now_ms = self._time.own_ms
        row = msgspec.msgpack.decode(data, type=AlarmRow)
        again = AlarmRow(
            actor,
            self._kernel.new_id(),
            AlarmType.DELAYED,
            now_ms,
            now_ms,
            Spec(AlarmType.DELAYED).encode(),
            row.continuation,
            0,
            row.max_attempts,
            "pending",
            self._kernel.new_id(),
        )
        self.put(again)

    def retry_skipped(self, actor: str, alarm_id: str) -> bool:
        """Run an alarm that was skipped."""
        row = self.find(actor, alarm_id)
        if row is None or row.status != "skipped":
            return False
        row.status, row.attempts, row.due_ms = "pending", 0, self._time.own_ms
        row.generation = self._kernel.new_id()
        self.put(row)
        return True


class Alarms:
    """`self.alarms`: the alarms of one actor, changed within its handler's transaction."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._table = running.kernel.alarms
        self._time = running.kernel.time

    def schedule(
        self,
        when: datetime | timedelta | float | str,
        continuation: Then,
        *args: Any,
        id: str | None = None,
        tz: str = "UTC",
        max_attempts: int | None = None,
    ) -> Schedule:
        """Call a method of this actor later.

        A recurring alarm set again with the same id, expression and time zone keeps its schedule.

        Args:
            when: A time, seconds or a timedelta from now (0 or less: as soon as this is
                committed), or a cron expression of five fields. Times and cron follow the wall
                clock if it is set; seconds and a timedelta do not.
            continuation: A method of this actor, `partial(self.method, …)` or `cont(…)`.
            args: Arguments for a plain method.
            id: Replaces an existing alarm with that id.
            tz: The time zone of cron expressions and of naive times.
            max_attempts: How often to try if it raises; 5 unless configured otherwise.
        """
        spec, due_ms = schedules.spec_of(when, self._time.wall_ms, tz=tz)
        return self._put(spec, due_ms, continuation, args, id, max_attempts)

    def every(
        self,
        seconds: float | timedelta,
        continuation: Then,
        *args: Any,
        id: str | None = None,
        first: datetime | timedelta | float | None = None,
        max_attempts: int | None = None,
    ) -> Schedule:
        """Call a method at a fixed interval; missed times are combined into one call.

        Set again with the same id and interval, as in `on_start`, it keeps its schedule. It does
        not follow a wall clock that is set later, not even if `first` is a time.
        """
        spec, due_ms = schedules.interval(seconds, self._time.wall_ms, first)
        return self._put(spec, due_ms, continuation, args, id, max_attempts)

    def get(self, id: str) -> Schedule | None:
        row = self._table.find(self._running.address, id)
        return None if row is None else row.shown(self._time)

    def list(
        self,
        *,
        type: AlarmType | str | None = None,
        status: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> list[Schedule]:
        """Alarms by due time, from `start` to `end` inclusive."""
        wanted = None if type is None else AlarmType(type)
        found = [row.shown(self._time) for row in self._table.of(self._running.address)]
        return [
            one
            for one in sorted(found, key=lambda one: (one.due_ms, one.id))
            if (wanted is None or one.type == wanted)
            and (status is None or one.status == status)
            and (start is None or one.due_ms >= _ms(start))
            and (end is None or one.due_ms <= _ms(end))
        ]

    def cancel(self, id: str) -> Schedule | None:
        """Remove and return an alarm; `None` if it does not exist."""
        row = self._table.find(self._running.address, id)
        if row is None:
            return None
        self._table.remove(self._running.address, id)
        return row.shown(self._time)

    def trigger(self, count: int | None = None) -> int:
        """For tests: run the `count` earliest alarms next, due or not; without it the overdue ones.

        Returns their number.
        """
        now_ms = self._time.own_ms
        rows = [row for row in self._table.of(self._running.address) if row.status == "pending"]
        if count is None:
            rows = [row for row in rows if self._table.is_due(row)]
        for row in rows[:count]:
            if not self._table.is_due(row):
                row.due_ms = now_ms
                self._table.put(row)
        return len(rows[:count])

    def redrive(self, id: str) -> bool:
        """Retry an alarm that was skipped."""
        return self._table.retry_skipped(self._running.address, id)

    def _put(
        self,
        spec: Spec,
        due_ms: int,
        continuation: Then,
        args: tuple[Any, ...],
        alarm_id: str | None,
        max_attempts: int | None,
    ) -> Schedule:
        running = self._running
        config = running.config
        if max_attempts is not None and (isinstance(max_attempts, bool) or max_attempts < 1):
            raise ValueError("max_attempts must be an integer of 1 or more")
        if alarm_id is not None and not (isinstance(alarm_id, str) and 0 < len(alarm_id) <= 256):
            raise ValueError("the id of an alarm must be a string of 1 to 256 characters")
        data = running.stored(cont(continuation, *args), has_outcome=False)
        tries = max_attempts or config.handler_max_attempts
        alarm_id = alarm_id or running.kernel.new_id()
        row = self._table.find(running.address, alarm_id)
        if spec.type not in schedules.WALL_TYPES:
            due_ms = self._time.own(due_ms)
        is_recurring = spec.type in (AlarmType.CRON, AlarmType.INTERVAL)
        if row is not None and is_recurring and _is_same(row, spec):
            # Set again, as in `on_start`: keep its schedule and what is known about the present
            # occurrence; only its continuation may have changed.
            row.continuation, row.max_attempts = data, tries
            self._table.put(row)
            return row.shown(self._time)
        row = AlarmRow(
            running.address,
            alarm_id,
            spec.type,
            due_ms,
            due_ms,
            spec.encode(),
            data,
            0,
            tries,
            "pending",
            running.kernel.new_id(),
        )
        self._table.put(row)
        return row.shown(self._time)


def _is_same(row: AlarmRow, spec: Spec) -> bool:
    return row.status == "pending" and row.spec == spec.encode()


def _ms(when: datetime) -> int:
    moment = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
