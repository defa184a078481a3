"""When alarms are due: arithmetic on milliseconds since the Unix epoch, without a clock.

Cron follows Debian's cron. Five fields, names (`MON`, `JAN`), `L` and `LW` as the day of the month,
`5L` and `MON#2` as weekdays; seconds and `@daily` are refused. When clocks change:

- Minute and hour both given (`30 2 * * *`): once a day. A skipped time is due when the gap
  ends; a time that occurs twice is due the first time.
- Minute or hour starting with `*` (`*/15 * * * *`): in real time. Times in the gap are left
  out, repeated times are due twice; so hourly stays hourly.

Times are those of the wall clock for cron and for a `datetime`, and the host's own time for delays
and intervals.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from math import ceil, isfinite
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from signalhub.pacing import grown

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

# Every due time can be represented as a `datetime`.
DUE_MS_MIN = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
DUE_MS_MAX = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
SECONDS_MAX = (DUE_MS_MAX - DUE_MS_MIN) // 1000

RETRY_SECONDS_MAX = 3600
CRON_FIELDS = 5
SHOWN_CHARS = 100
# A clock set back by more was wrong; one set back by less repeats no time of day.
CORRECTION_MS = 3 * 3_600_000


class ScheduleError(ValueError):
    """An invalid schedule, or one that never occurs."""


class AlarmType(StrEnum):
    """How an alarm was defined, which decides what happens after it has run."""

    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    CRON = "cron"
    INTERVAL = "interval"


# Set for a time of day, so they follow the wall clock; the others follow the time that passes.
WALL_TYPES = (AlarmType.SCHEDULED, AlarmType.CRON)


def is_of_wall(type: str, due_ms: int, occurrence_ms: int) -> bool:
    """Is this due time one of the wall clock? The end of a pause never is."""
    return type in WALL_TYPES and due_ms == occurrence_ms


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schedule of an alarm; a one-shot alarm has only a type."""

    type: AlarmType
    cron: str | None = None
    tz: str | None = None
    every_ms: int | None = None

    def __post_init__(self) -> None:
        has_cron = self.cron is not None and self.tz is not None
        has_every = self.every_ms is not None and self.every_ms >= 1
        if self.type is AlarmType.CRON and not has_cron:
            raise ScheduleError("a cron alarm needs an expression and a zone")
        if self.type is AlarmType.INTERVAL and not has_every:
            raise ScheduleError("an interval needs at least one millisecond")

    def encode(self) -> str:
        """As JSON text, for a column."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Spec:
        """Read what `encode` wrote, without looking up the time zone."""
        try:
            return msgspec.json.decode(text, type=Spec)
        except msgspec.DecodeError as error:
            raise ScheduleError(f"invalid schedule of an alarm {_shown(text)}: {error}") from None


def spec_of(
    when: datetime | timedelta | int | float | str, now_ms: int, *, tz: str = "UTC"
) -> tuple[Spec, int]:
    """The schedule that `when` describes, and its first due time.

    A naive `datetime` is a time in `tz`: if it occurs twice its `fold` decides, if it is skipped
    it moves forward by the length of the gap. Fractions of a millisecond are rounded up, so that
    nothing is early.
    """
    zone = _zone(tz)
    match when:
        case str():
            expression = " ".join(when.split())
            spec = Spec(AlarmType.CRON, cron=expression, tz=tz)
            return spec, _occurrence_after(expression, zone, now_ms)
        case datetime():
            return Spec(AlarmType.SCHEDULED), _instant_ms(when, zone)
        case _:
            return Spec(AlarmType.DELAYED), _after(now_ms, when, "a cron expression")


def interval(
    seconds: float | timedelta, now_ms: int, first: datetime | timedelta | float | None = None
) -> tuple[Spec, int]:
    """Every N seconds of real time, independent of clock changes; a naive `first` is in UTC."""
    every_ms = _length_ms(seconds)
    if every_ms < 1:
        raise ScheduleError(f"invalid interval {seconds!r}: use at least 0.001 seconds")
    spec = Spec(AlarmType.INTERVAL, every_ms=every_ms)
    if isinstance(first, datetime):
        return spec, _instant_ms(first, UTC)
    return spec, _after(now_ms, seconds if first is None else first)


def next_due(spec: Spec, due_ms: int, now_ms: int) -> int | None:
    """The next due time after the occurrence at `due_ms`; `None` if there is none.

    Missed occurrences are left out. A clock that was set back repeats nothing: the result is after
    both times. Raises `ScheduleError` if no next time can be found, such as in a time zone unknown
    to this machine: the alarm is then skipped, because another attempt would fail the same way.
    """
    match spec.type:
        case AlarmType.CRON:
            assert spec.cron is not None
            assert spec.tz is not None
            return _occurrence_after(spec.cron, _zone(spec.tz), max(due_ms, now_ms))
        case AlarmType.INTERVAL:
            assert spec.every_ms is not None
            periods = max(1, (now_ms - due_ms) // spec.every_ms + 1)
            return _reachable(due_ms + periods * spec.every_ms, spec)
        case _:
            return None


def is_repeated(expression: str, back_ms: int) -> bool:
    """Do the hours that a clock set back by so much shows again count for a cron expression?

    As in Debian's cron: always for one that follows real time, otherwise only if the clock was
    wrong by hours, and not for one that ran before a small correction.
    """
    minute, hour, *_ = expression.split()
    return minute.startswith("*") or hour.startswith("*") or back_ms > CORRECTION_MS


def retry_due(attempts: int, now_ms: int) -> int:
    """When to retry after `attempts` failures: 2, 4, 8, … seconds later, at most an hour."""
    if attempts < 1:
        raise ValueError(
            f"attempts is {attempts}; there is nothing to retry before the first attempt"
        )
    return now_ms + 1000 * int(grown(2, RETRY_SECONDS_MAX, attempts - 1))


def _occurrence_after(expression: str, zone: tzinfo, after_ms: int) -> int:
    """The first occurrence strictly after a time."""
    if len(expression.split()) != CRON_FIELDS:
        # The library would read a sixth field as seconds.
        raise _not_cron(expression, f"it has {len(expression.split())} fields")
    try:
        start = (EPOCH + after_ms * MILLISECOND).astimezone(zone)
        for occurrence in CronSim(expression, start):
            due_ms = (occurrence - EPOCH) // MILLISECOND
            # In the second pass of a repeated hour the library returns times of the first.
            if after_ms < due_ms <= DUE_MS_MAX:
                return due_ms
    except (CronSimError, ValueError) as error:
        raise _not_cron(expression, str(error)) from None
    except OverflowError:
        raise _unreachable(expression) from None
    raise _not_cron(expression, "it does not occur within 50 years")


def _not_cron(expression: str, reason: str) -> ScheduleError:
    return ScheduleError(
        f"invalid cron expression {_shown(expression)} ({reason}): use five fields, "
        "minute, hour, day, month and weekday, such as '30 9 * * MON-FRI', "
        "or pass a datetime or a number of seconds"
    )


def _instant_ms(when: datetime, zone: tzinfo) -> int:
    if when.utcoffset() is None:
        when = when.replace(tzinfo=zone)
    whole, rest = divmod(when - EPOCH, MILLISECOND)
    return _reachable(whole + bool(rest), when)


def _after(now_ms: int, delay: object, *alternatives: str) -> int:
    return _reachable(now_ms + _length_ms(delay, "a datetime", *alternatives), delay)


def _length_ms(length: object, *alternatives: str) -> int:
    """A duration, rounded up to whole milliseconds."""
    if isinstance(length, timedelta):
        whole, rest = divmod(length, MILLISECOND)
        return whole + bool(rest)
    if isinstance(length, bool) or not isinstance(length, int | float):
        wanted = ", ".join((*alternatives, "a timedelta"))
        raise TypeError(f"invalid time {_shown(length)}: use {wanted} or a number of seconds")
    if isinstance(length, float) and not isfinite(length):
        raise ScheduleError(f"invalid time {length}: use a finite number of seconds")
    if abs(length) > SECONDS_MAX:
        raise _unreachable(length)
    if isinstance(length, int):
        return length * 1000
    # Decimal, so that 16.1 is 16100 ms. Less than a nanosecond is rounding noise, as in 0.1 + 0.2,
    # and must not add a millisecond.
    return ceil(round(Decimal(float.__repr__(length)) * 1000, 6))


def _reachable(due_ms: int, when: object) -> int:
    if not DUE_MS_MIN <= due_ms <= DUE_MS_MAX:
        raise _unreachable(when)
    return due_ms


def _unreachable(when: object) -> ScheduleError:
    return ScheduleError(
        f"{_shown(when)} is outside the years 1 to 9999: "
        "use numbers in seconds, not in milliseconds"
    )


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if not isinstance(name, str):
        raise TypeError(f"invalid tz {_shown(name)}: use a name such as 'Europe/Berlin'")
    if name == "UTC":
        return UTC  # Much faster than ZoneInfo("UTC").
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # The name of a folder of time zones raises OSError.
        raise ScheduleError(
            f"unknown time zone {_shown(name)}: use a name such as 'Europe/Berlin', "
            "or update the package tzdata"
        ) from None


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits.
        return "that number"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
