"""When alarms are due: delays, points in time, cron, intervals, and the pauses between tries."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.actors.api.schedules import (
    AlarmType,
    ScheduleError,
    Spec,
    interval,
    next_due,
    retry_due,
    spec_of,
)

BERLIN = "Europe/Berlin"
NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"  # Its clocks change by half an hour.
HAVANA = "America/Havana"  # Its clocks change at midnight.
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
END_MS = 253_402_300_799_999


def at(text: str, tz: str = "UTC", *, fold: int = 0) -> int:
    """Milliseconds of an ISO time of a zone."""
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)
    return round(moment.timestamp() * 1000)


def shown(due_ms: int, tz: str = "UTC") -> str:
    """The time on the wall of a zone, with its offset."""
    return datetime.fromtimestamp(due_ms / 1000, ZoneInfo(tz)).isoformat(timespec="minutes")


NOW_MS = at("2026-01-14T12:00:00.250")


def due(when: Any, now_ms: int = NOW_MS, tz: str = "UTC") -> int:
    return spec_of(when, now_ms, tz=tz)[1]


def series(expression: str, tz: str, start: str, end: str) -> list[str]:
    """Every time a cron alarm runs if each occurrence is done with at once."""
    end_ms = at(end, tz)
    spec, due_ms = spec_of(expression, at(start, tz), tz=tz)
    found = []
    while due_ms < end_ms:
        found.append(shown(due_ms, tz))
        following = next_due(spec, due_ms, due_ms)
        assert following is not None
        due_ms = following
    return found


@pytest.mark.parametrize(
    ("when", "delay_ms"),
    [
        *[(1, 1000), (0.5, 500), (0.001, 1), (16.1, 16_100), (1.001, 1001), (1.005, 1005)],
        *[(0.1 + 0.2, 300), (1_000_000_000.001, 1_000_000_000_001), (10**9, 10**12)],
        *[(timedelta(milliseconds=1), 1), (timedelta(days=1), DAY_MS)],
        # A part of a millisecond is rounded up, so that nothing is early.
        *[(0.0001, 1), (1.0000001, 1001), (-0.0004, 0), (-0.0015, -1)],
        *[(timedelta(microseconds=1), 1), (timedelta(microseconds=1001), 2)],
        # Due at once.
        *[(0, 0), (0.0, 0), (-0.0, 0), (timedelta(0), 0), (timedelta(microseconds=-1), 0)],
        *[(-5, -5000), (timedelta(seconds=-5), -5000)],
    ],
)
def test_a_delay_is_exact_to_the_millisecond(when: float | timedelta, delay_ms: int) -> None:
    assert spec_of(when, NOW_MS) == (Spec(AlarmType.DELAYED), NOW_MS + delay_ms)


@given(st.floats(-1e9, 1e9), st.integers(0, 4_102_444_800_000))
def test_no_delay_is_early_nor_a_whole_millisecond_late(seconds: float, now_ms: int) -> None:
    late = Decimal(due(seconds, now_ms) - now_ms) / 1000 - Decimal(repr(seconds))

    assert Decimal("-1e-9") <= late < Decimal("0.001")


@given(st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)))
def test_no_timedelta_is_early_nor_a_whole_millisecond_late(delay: timedelta) -> None:
    late = timedelta(milliseconds=due(delay) - NOW_MS) - delay

    assert timedelta(0) <= late < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("when", "tz", "expected"),
    [
        (datetime(2026, 7, 1, 9, tzinfo=timezone(timedelta(hours=5.5))), BERLIN, "07-01T03:30"),
        (datetime(2026, 7, 1, 9), "UTC", "07-01T09:00"),
        (datetime(2026, 7, 1, 9), BERLIN, "07-01T07:00"),
        (datetime(2026, 7, 1, microsecond=1), "UTC", "07-01T00:00:00.001"),
        (datetime(2026, 7, 1, microsecond=1000), "UTC", "07-01T00:00:00.001"),
        (datetime(2026, 10, 25, 2, 30), BERLIN, "10-25T00:30"),
        (datetime(2026, 10, 25, 2, 30, fold=1), BERLIN, "10-25T01:30"),
        (datetime(2026, 3, 29, 2, 30), BERLIN, "03-29T01:30"),
    ],
    ids=["aware", "naive", "of a zone", "rounded up", "exact", "first", "second", "skipped hour"],
)
def test_a_point_in_time(when: datetime, tz: str, expected: str) -> None:
    assert spec_of(when, NOW_MS, tz=tz) == (Spec(AlarmType.SCHEDULED), at(f"2026-{expected}"))


def test_the_whole_calendar_can_be_reached() -> None:
    assert due(datetime(1960, 1, 1)) == at("1960-01-01T00:00")
    assert due(datetime.min) == -62_135_596_800_000
    assert due(datetime.max.replace(microsecond=999_000)) == END_MS


@pytest.mark.parametrize(
    "when", [True, False, None, b"0 0 * * *", date(2026, 7, 1), Decimal(1), [1], object()]
)
def test_an_invalid_time_is_refused_with_what_to_give_instead(when: Any) -> None:
    with pytest.raises(TypeError, match=r"use a datetime, a cron expression, a timedelta or"):
        spec_of(when, NOW_MS)


@pytest.mark.parametrize(
    "when",
    [
        *[math.nan, math.inf, -math.inf, timedelta.max, timedelta.min, 1e300, -1e300],
        *[10**400, -(10**400), 10**5000, 1_760_000_000_000, datetime.max],
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
    ],
    ids=lambda when: str(type(when).__name__),
)
def test_a_time_outside_the_calendar_is_refused(when: datetime | timedelta | float) -> None:
    is_finite = not isinstance(when, float) or math.isfinite(when)
    expected = r"years 1 to 9999: use .* in seconds" if is_finite else "finite number of seconds"
    with pytest.raises(ScheduleError, match=expected) as refusal:
        spec_of(when, NOW_MS)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("when", [60, datetime(2026, 7, 1), "0 0 * * *"])
def test_an_unknown_zone_is_refused_by_name(when: Any) -> None:
    unknown = ["Atlantis/Capital", "", "Europe", "../../etc/passwd", "/etc/localtime"]
    for tz in (*unknown, "Ü", "a\0b", "CEST"):
        with pytest.raises(ScheduleError) as refusal:
            spec_of(when, NOW_MS, tz=tz)
        assert repr(tz) in str(refusal.value)
    zone: Any = ZoneInfo(BERLIN)
    with pytest.raises(TypeError, match="use a name such as 'Europe/Berlin'"):
        spec_of(when, NOW_MS, tz=zone)


@pytest.mark.parametrize(
    "expression",
    [
        *["", "   ", "* * * *", "* * * * * *", "0 0 0 * * * *", "@daily", "2026-07-01T09:00:00"],
        *["60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 * ", "* * * * 8"],
        *["-1 * * * *", "*/0 * * * *", "5-1 * * * *", "L * * * *", "* * * * MON#6"],
        *["* * * * MONDAY", "one * * * *", "1.5 * * * *", "٣ * * * *", "9" * 5000 + " * * * *"],
        # Never.
        *["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 2 *", "* * */20 * 1L"],
    ],
)
def test_an_invalid_cron_expression_is_refused(expression: str) -> None:
    for tz in ("UTC", BERLIN):
        with pytest.raises(ScheduleError, match="use five fields") as refusal:
            due(expression, tz=tz)
        assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", "2026-01-14T12:01"),
        ("*/5 * * * *", "2026-01-14T12:05"),
        ("0 12 * * *", "2026-01-15T12:00"),
        ("30 9 * * MON-FRI", "2026-01-15T09:30"),
        ("0 0 * * 0", "2026-01-18T00:00"),
        ("0 0 * * 7", "2026-01-18T00:00"),
        ("0 0 * * sun", "2026-01-18T00:00"),
        ("15,45 3-5 1 jan,jul *", "2026-07-01T03:15"),
        ("0 0 L * *", "2026-01-31T00:00"),
        ("0 0 LW * *", "2026-01-30T00:00"),
        ("0 0 * * 5L", "2026-01-30T00:00"),
        ("0 0 * * MON#2", "2026-02-09T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 0 * 2 MON#5", "2044-02-29T00:00"),
        ("0 0 31 2 MON", "2026-02-02T00:00"),  # Day or weekday: as in every cron.
        ("  0\t12 *  * * ", "2026-01-15T12:00"),
    ],
)
def test_the_first_occurrence_comes_after_now(expression: str, expected: str) -> None:
    assert due(expression) == at(expected)


def test_cron_holds_its_zone_and_begins_after_this_very_millisecond() -> None:
    noon_ms = at("2026-01-14T12:00")

    assert [due("0 12 * * *", noon_ms + n) - noon_ms for n in (-1, 0, 1)] == [0, DAY_MS, DAY_MS]
    assert shown(due("0 9 * * *", tz=NEW_YORK), NEW_YORK) == "2026-01-14T09:00-05:00"
    assert shown(due("0 9 * * *", tz="Asia/Kolkata")) == "2026-01-15T03:30+00:00"
    spec, _ = spec_of(" 0  9 * * MON ", NOW_MS, tz=BERLIN)
    assert spec == Spec(AlarmType.CRON, cron="0 9 * * MON", tz=BERLIN)


@pytest.mark.parametrize(
    ("late_ms", "hours"),
    [
        *[(0, 1), (5 * HOUR_MS + 1, 6), (365 * DAY_MS, 365 * 24 + 1)],
        # A clock that was set back, or an occurrence that was run by hand, repeats nothing.
        *[(-1, 1), (-3 * HOUR_MS, 1)],
    ],
)
def test_cron_leaves_out_what_was_missed_and_repeats_nothing(late_ms: int, hours: int) -> None:
    spec, due_ms = spec_of("0 * * * *", NOW_MS)

    assert next_due(spec, due_ms, due_ms + late_ms) == due_ms + hours * HOUR_MS


@pytest.mark.parametrize(
    ("expression", "tz", "due_ms", "expected"),
    [
        ("0 0 * * *", "Atlantis/Capital", NOW_MS, r"unknown time zone 'Atlantis/Capital'.*tzdata"),
        ("0 0 31 2 *", "UTC", NOW_MS, "0 0 31 2"),
        *[
            (expression, tz, END_MS, "years 1 to 9999")
            for expression in ("59 23 31 12 *", "* * * * *", "0 0 1 1 *")
            for tz in ("UTC", BERLIN, NEW_YORK)
        ],
    ],
)
def test_a_stored_cron_that_cannot_be_followed_is_an_error(
    expression: str, tz: str, due_ms: int, expected: str
) -> None:
    with pytest.raises(ScheduleError, match=expected):
        next_due(Spec(AlarmType.CRON, cron=expression, tz=tz), due_ms, NOW_MS)


@pytest.mark.parametrize(
    ("tz", "expression", "start", "runs"),
    [
        # A time of day that is skipped happens when the gap ends.
        (BERLIN, "30 2 * * *", "03-28", ["28T02:30+01:00", "29T03:00+02:00", "30T02:30+02:00"]),
        (NEW_YORK, "30 2 * * *", "03-07", ["07T02:30-05:00", "08T03:00-04:00", "09T02:30-04:00"]),
        (LORD_HOWE, "15 2 * * *", "10-03", ["03T02:15+10:30", "04T02:30+11:00", "05T02:15+11:00"]),
        (HAVANA, "0 0 * * *", "03-07", ["08T01:00-04:00", "09T00:00-04:00"]),
        (BERLIN, "0,15 2,3 * * *", "03-29", ["29T03:00+02:00", "29T03:15+02:00", "30T02:00+02:00"]),
        # One that occurs twice happens the first time.
        (BERLIN, "30 2 * * *", "10-24", ["24T02:30+02:00", "25T02:30+02:00", "26T02:30+01:00"]),
        (NEW_YORK, "30 1 * * *", "10-31", ["31T01:30-04:00", "01T01:30-04:00", "02T01:30-05:00"]),
        (LORD_HOWE, "45 1 * * *", "04-04", ["04T01:45+11:00", "05T01:45+11:00", "06T01:45+10:30"]),
        (HAVANA, "0 0 * * *", "10-31", ["01T00:00-04:00", "02T00:00-05:00"]),
        # As in Debian, only times of day are made up for: a star repeats what is repeated.
        (BERLIN, "*/30 2 * * *", "03-29", ["30T02:00+02:00", "30T02:30+02:00"]),
        (
            BERLIN,
            "*/30 2 * * *",
            "10-25",
            ["25T02:00+02:00", "25T02:30+02:00", "25T02:00+01:00", "25T02:30+01:00"],
        ),
    ],
)
def test_cron_when_clocks_change(tz: str, expression: str, start: str, runs: list[str]) -> None:
    end = shown(at(f"2026-{start}T00:00", tz) + 4 * DAY_MS, tz)[:10]
    found = [run[8:] for run in series(expression, tz, f"2026-{start}T00:00", f"{end}T00:00")]

    assert found[: len(runs)] == runs


@pytest.mark.parametrize(
    ("tz", "start", "end", "hours"),
    [
        (BERLIN, "2026-03-28T23:30", "2026-03-30T00:00", 23),
        (BERLIN, "2026-10-24T23:30", "2026-10-26T00:00", 25),
        (NEW_YORK, "2026-03-07T23:30", "2026-03-09T00:00", 23),
        (NEW_YORK, "2026-10-31T23:30", "2026-11-02T00:00", 25),
    ],
)
def test_hourly_stays_hourly_when_clocks_change(tz: str, start: str, end: str, hours: int) -> None:
    runs = [datetime.fromisoformat(one) for one in series("0 * * * *", tz, start, end)]

    assert len(runs) == hours
    assert {later - earlier for earlier, later in pairwise(runs)} == {timedelta(hours=1)}


def test_an_alarm_set_in_the_second_pass_of_an_hour_waits_for_the_next_day() -> None:
    for minute in (0, 15, 29, 30, 31, 59):
        second_ms = at(f"2026-10-25T02:{minute:02}", BERLIN, fold=1)
        assert shown(due("30 2 * * *", second_ms, BERLIN), BERLIN) == "2026-10-26T02:30+01:00"


@pytest.mark.parametrize("tz", [BERLIN, NEW_YORK, LORD_HOWE, HAVANA, "Africa/Casablanca"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "15 1 * * *", "0 0 * * *", "59 23 * * *"])
def test_a_time_of_day_happens_once_on_every_day_of_a_year(tz: str, expression: str) -> None:
    days = [run[:10] for run in series(expression, tz, "2027-12-31T23:59", "2029-01-01T00:00")]

    assert len(days) == len(set(days)) == 366


@given(
    st.sampled_from(["30 2 * * *", "0-59 1-3 * * *", "*/7 * * * *", "0 */3 * * *", "5 0 L * *"]),
    st.sampled_from(["UTC", BERLIN, NEW_YORK, LORD_HOWE, HAVANA]),
    st.integers(at("2000-01-01T00:00"), at("2036-01-01T00:00")),
    st.integers(-400 * DAY_MS, 400 * DAY_MS),
)
def test_the_next_occurrence_depends_only_on_the_later_of_both_times(
    expression: str, tz: str, due_ms: int, offset_ms: int
) -> None:
    spec = Spec(AlarmType.CRON, cron=expression, tz=tz)
    now_ms = due_ms + offset_ms
    found = next_due(spec, due_ms, now_ms)

    assert found is not None
    assert found > max(due_ms, now_ms)
    assert found % 60_000 == 0
    assert next_due(spec, now_ms, due_ms) == found
    assert next_due(spec, due_ms, found - 1) == found


@pytest.mark.parametrize(
    ("first", "due_ms"),
    [
        *[(None, NOW_MS + 60_000), (0, NOW_MS), (0.0, NOW_MS), (2.5, NOW_MS + 2500)],
        *[(-1, NOW_MS - 1000), (timedelta(minutes=1), NOW_MS + 60_000)],
        (datetime(2026, 7, 1), at("2026-07-01T00:00")),
        (datetime(2026, 7, 1, tzinfo=ZoneInfo(BERLIN)), at("2026-06-30T22:00")),
    ],
)
def test_the_first_time_is_one_interval_from_now_or_chosen(first: Any, due_ms: int) -> None:
    assert interval(60, NOW_MS, first) == (Spec(AlarmType.INTERVAL, every_ms=60_000), due_ms)
    assert interval(timedelta(minutes=1), NOW_MS, first)[1] == due_ms


@pytest.mark.parametrize("seconds", [0.001, 0.0004, timedelta(microseconds=1)])
def test_the_shortest_interval_is_a_millisecond(seconds: float | timedelta) -> None:
    assert interval(seconds, NOW_MS)[0].every_ms == 1


WRONG_INTERVALS: dict[tuple[Any, str], list[Any]] = {
    (ScheduleError, r"use at least 0\.001 seconds"): [
        *[0, 0.0, -1, -0.0001, timedelta(0), timedelta(days=-1)]
    ],
    (ScheduleError, "finite number|years 1 to 9999"): [
        math.nan,
        math.inf,
        1e300,
        10**400,
        timedelta.max,
    ],
    (TypeError, "use a timedelta or a number of seconds"): [
        *[True, None, "60", "* * * * *", datetime(2026, 7, 1)]
    ],
}


def test_an_invalid_interval_is_refused() -> None:
    for (error, text), intervals in WRONG_INTERVALS.items():
        for seconds in intervals:
            with pytest.raises(error, match=text):
                interval(seconds, NOW_MS)
    firsts: list[Any] = [True, "60", "* * * * *", date(2026, 7, 1)]
    for first in firsts:
        with pytest.raises(TypeError, match="use a datetime, a timedelta or a number of seconds"):
            interval(60, NOW_MS, first)


@pytest.mark.parametrize(
    ("late_ms", "periods"),
    [(-5000, 1), (-1, 1), (0, 1), (1, 1), (999, 1), (1000, 2), (1001, 2), (10**12, 10**9 + 1)],
)
def test_an_interval_leaves_out_what_was_missed(late_ms: int, periods: int) -> None:
    spec, due_ms = interval(1, NOW_MS)

    assert next_due(spec, due_ms, due_ms + late_ms) == due_ms + periods * 1000


@given(st.integers(1, 10**10), st.integers(0, 4 * 10**12), st.integers(-(10**12), 10**12))
def test_an_interval_never_drifts_nor_bursts(every_ms: int, due_ms: int, late_ms: int) -> None:
    now_ms = due_ms + late_ms
    found = next_due(Spec(AlarmType.INTERVAL, every_ms=every_ms), due_ms, now_ms)

    assert found is not None
    assert (found - due_ms) % every_ms == 0
    assert found - every_ms <= max(due_ms, now_ms) < found


def test_an_interval_ends_with_the_calendar() -> None:
    with pytest.raises(ScheduleError, match="years 1 to 9999"):
        next_due(Spec(AlarmType.INTERVAL, every_ms=DAY_MS), END_MS, NOW_MS)


@pytest.mark.parametrize("when", [0, 60, timedelta(days=1), datetime(2026, 7, 1)])
def test_one_shots_do_not_come_again(when: Any) -> None:
    spec, due_ms = spec_of(when, NOW_MS)

    assert [next_due(spec, due_ms, due_ms + n) for n in (0, DAY_MS, -DAY_MS)] == [None] * 3


def test_the_pauses_between_tries_double_up_to_an_hour() -> None:
    pauses = [retry_due(attempts, NOW_MS) - NOW_MS for attempts in (1, 2, 3, 4, 5, 11)]

    assert pauses == [2000, 4000, 8000, 16_000, 32_000, 2_048_000]
    for attempts in (12, 13, 64, 10**9):
        assert retry_due(attempts, NOW_MS) == NOW_MS + HOUR_MS
    for attempts in (0, -1):
        with pytest.raises(ValueError, match="before the first"):
            retry_due(attempts, NOW_MS)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Spec(AlarmType.SCHEDULED), '{"type":"scheduled"}'),
        (Spec(AlarmType.DELAYED), '{"type":"delayed"}'),
        (
            # A stored zone need not be known to be read.
            Spec(AlarmType.CRON, cron="0 9 * * MON", tz="Atlantis/Capital"),
            '{"type":"cron","cron":"0 9 * * MON","tz":"Atlantis/Capital"}',
        ),
        (Spec(AlarmType.INTERVAL, every_ms=1), '{"type":"interval","every_ms":1}'),
    ],
)
def test_a_spec_is_stored_as_json_text_and_read_back(spec: Spec, text: str) -> None:
    assert spec.encode() == text
    assert Spec.decode(text) == spec


def test_an_invalid_spec_is_an_error() -> None:
    fields = ['"weekly"', '"cron","cron":"0 0 * * *"', '"cron","tz":"UTC"', '"interval"']
    fields += ['"interval","every_ms":0', '"interval","every_ms":"1"']
    for text in ("", "{", "null", "{}", *(f'{{"type":{field}}}' for field in fields)):
        with pytest.raises(ScheduleError, match="invalid schedule of an alarm"):
            Spec.decode(text)
    with pytest.raises(ScheduleError, match="expression and a zone"):
        Spec(AlarmType.CRON, cron="0 0 * * *")
    with pytest.raises(ScheduleError, match="one millisecond"):
        Spec(AlarmType.INTERVAL, every_ms=0)
