from __future__ import annotations

import math
import timeit
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
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


def at(text: str, tz: str = "UTC", *, fold: int = 0) -> int:
    """Milliseconds of an ISO time of a zone."""
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)
    return round(moment.timestamp() * 1000)


def shown(due_ms: int, tz: str = "UTC") -> str:
    """The time on the wall of a zone, with its offset."""
    return datetime.fromtimestamp(due_ms / 1000, ZoneInfo(tz)).isoformat(timespec="minutes")


NOW_MS = at("2026-01-14T12:00:00.250")


def cron(expression: str, now_ms: int = NOW_MS, tz: str = "UTC") -> int:
    return spec_of(expression, now_ms, tz=tz)[1]


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


class TestDelays:
    @pytest.mark.parametrize(
        ("when", "delay_ms"),
        [
            (1, 1000),
            (0.5, 500),
            (0.001, 1),
            (16.1, 16_100),
            (1.001, 1001),
            (1.005, 1005),
            (0.1 + 0.2, 300),
            (1_000_000_000.001, 1_000_000_000_001),
            (timedelta(milliseconds=1), 1),
            (timedelta(days=1), DAY_MS),
            (10**9, 10**12),
        ],
    )
    def test_a_delay_is_exact_to_the_millisecond(
        self, when: float | timedelta, delay_ms: int
    ) -> None:
        assert spec_of(when, NOW_MS) == (Spec(AlarmType.DELAYED), NOW_MS + delay_ms)

    @pytest.mark.parametrize(
        ("when", "delay_ms"),
        [
            (0.0001, 1),
            (1.0000001, 1001),
            (timedelta(microseconds=1), 1),
            (timedelta(microseconds=1001), 2),
        ],
    )
    def test_a_part_of_a_millisecond_is_rounded_up_so_that_nothing_is_early(
        self, when: float | timedelta, delay_ms: int
    ) -> None:
        assert spec_of(when, NOW_MS)[1] == NOW_MS + delay_ms

    @pytest.mark.parametrize(
        ("when", "delay_ms"),
        [
            (0, 0),
            (0.0, 0),
            (-0.0, 0),
            (timedelta(0), 0),
            (-0.0004, 0),
            (timedelta(microseconds=-1), 0),
            (-5, -5000),
            (-0.0015, -1),
            (timedelta(seconds=-5), -5000),
        ],
    )
    def test_no_delay_and_a_negative_one_are_due_at_once(
        self, when: float | timedelta, delay_ms: int
    ) -> None:
        due_ms = spec_of(when, NOW_MS)[1]

        assert due_ms == NOW_MS + delay_ms
        assert due_ms <= NOW_MS

    @settings(deadline=None)
    @given(
        st.floats(min_value=-1e9, max_value=1e9),
        st.integers(min_value=0, max_value=4_102_444_800_000),
    )
    def test_no_delay_is_early_nor_a_whole_millisecond_late(
        self, seconds: float, now_ms: int
    ) -> None:
        late = Decimal(spec_of(seconds, now_ms)[1] - now_ms) / 1000 - Decimal(repr(seconds))

        assert Decimal("-1e-9") <= late < Decimal("0.001")

    @settings(deadline=None)
    @given(st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)))
    def test_a_timedelta_means_the_same_whole_milliseconds_or_up_to_one_more(
        self, delay: timedelta
    ) -> None:
        late = timedelta(milliseconds=spec_of(delay, NOW_MS)[1] - NOW_MS) - delay

        assert timedelta(0) <= late < timedelta(milliseconds=1)


class TestPointsInTime:
    def test_an_aware_time_is_that_instant_whatever_the_zone_of_the_alarm(self) -> None:
        when = datetime(2026, 7, 1, 9, tzinfo=timezone(timedelta(hours=5, minutes=30)))

        assert spec_of(when, NOW_MS, tz=BERLIN) == (
            Spec(AlarmType.SCHEDULED),
            at("2026-07-01T03:30"),
        )

    def test_a_naive_time_is_in_the_zone_of_the_alarm_which_is_utc_unless_said(self) -> None:
        when = datetime(2026, 7, 1, 9)

        assert spec_of(when, NOW_MS)[1] == at("2026-07-01T09:00")
        assert spec_of(when, NOW_MS, tz=BERLIN)[1] == at("2026-07-01T07:00")

    def test_a_time_in_the_past_stays_what_it_is(self) -> None:
        assert spec_of(datetime(1960, 1, 1), NOW_MS)[1] == at("1960-01-01T00:00")

    def test_microseconds_are_rounded_up(self) -> None:
        due_ms = at("2026-07-01T00:00")

        assert spec_of(datetime(2026, 7, 1, microsecond=1), NOW_MS)[1] == due_ms + 1
        assert spec_of(datetime(2026, 7, 1, microsecond=1000), NOW_MS)[1] == due_ms + 1

    def test_a_time_that_occurs_twice_is_the_first_unless_fold_says_otherwise(self) -> None:
        when = datetime(2026, 10, 25, 2, 30)

        assert spec_of(when, NOW_MS, tz=BERLIN)[1] == at("2026-10-25T00:30")
        assert spec_of(when.replace(fold=1), NOW_MS, tz=BERLIN)[1] == at("2026-10-25T01:30")

    def test_a_time_that_is_skipped_moves_on_by_the_length_of_the_gap(self) -> None:
        when = datetime(2026, 3, 29, 2, 30)

        assert shown(spec_of(when, NOW_MS, tz=BERLIN)[1], BERLIN) == "2026-03-29T03:30+02:00"

    def test_the_first_and_the_last_millisecond_of_the_calendar_can_be_reached(self) -> None:
        last = datetime.max.replace(microsecond=999_000)

        assert spec_of(datetime.min, NOW_MS)[1] == -62_135_596_800_000
        assert spec_of(last, NOW_MS)[1] == 253_402_300_799_999


class TestRefusals:
    @pytest.mark.parametrize(
        "when", [True, False, None, b"0 0 * * *", date(2026, 7, 1), Decimal(1), [1], object()]
    )
    def test_what_is_no_time_is_refused_with_what_to_give_instead(self, when: object) -> None:
        with pytest.raises(TypeError, match=r"use a datetime, a cron expression, a timedelta or"):
            spec_of(when, NOW_MS)  # type: ignore[arg-type]

    @pytest.mark.parametrize("when", [math.nan, math.inf, -math.inf])
    def test_what_is_no_finite_number_is_refused(self, when: float) -> None:
        with pytest.raises(ScheduleError, match="finite number of seconds"):
            spec_of(when, NOW_MS)

    @pytest.mark.parametrize(
        "when",
        [
            timedelta.max,
            timedelta.min,
            1e300,
            -1e300,
            10**400,
            -(10**400),
            10**5000,
            1_760_000_000_000,
            datetime.max,
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
        ],
        ids=lambda when: str(type(when).__name__),
    )
    def test_a_time_outside_the_calendar_is_refused(
        self, when: datetime | timedelta | float
    ) -> None:
        with pytest.raises(ScheduleError, match=r"years 1 to 9999: use .* in seconds") as refusal:
            spec_of(when, NOW_MS)
        assert len(str(refusal.value)) < 300

    @pytest.mark.parametrize(
        "tz",
        [
            "Atlantis/Capital",
            "",
            "Europe",
            "../../etc/passwd",
            "/etc/localtime",
            "Ü",
            "a\0b",
            "CEST",
        ],
    )
    @pytest.mark.parametrize("when", [60, datetime(2026, 7, 1), "0 0 * * *"])
    def test_an_unknown_zone_is_refused_by_name(
        self, tz: str, when: datetime | float | str
    ) -> None:
        with pytest.raises(ScheduleError) as refusal:
            spec_of(when, NOW_MS, tz=tz)
        assert repr(tz) in str(refusal.value)

    def test_a_zone_is_given_by_name(self) -> None:
        with pytest.raises(TypeError, match="use a name such as 'Europe/Berlin'"):
            spec_of(60, NOW_MS, tz=ZoneInfo(BERLIN))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "expression",
        [
            "",
            "   ",
            "* * * *",
            "* * * * * *",
            "0 0 0 * * * *",
            "@daily",
            "2026-07-01T09:00:00",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 * ",
            "* * * * 8",
            "-1 * * * *",
            "*/0 * * * *",
            "5-1 * * * *",
            "L * * * *",
            "* * * * MON#6",
            "* * * * MONDAY",
            "one * * * *",
            "1.5 * * * *",
            "٣ * * * *",
            "9" * 5000 + " * * * *",
        ],
    )
    def test_what_is_no_cron_expression_of_five_fields_is_refused(self, expression: str) -> None:
        with pytest.raises(ScheduleError, match="use five fields") as refusal:
            cron(expression)
        assert len(str(refusal.value)) < 500

    @pytest.mark.parametrize(
        "expression",
        ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 2 *", "* * */20 * 1L"],
    )
    @pytest.mark.parametrize("tz", ["UTC", BERLIN])
    def test_a_cron_expression_that_never_occurs_is_refused(self, expression: str, tz: str) -> None:
        with pytest.raises(ScheduleError, match="use five fields"):
            cron(expression, tz=tz)


class TestCron:
    @pytest.mark.parametrize(
        ("expression", "due"),
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
    def test_the_first_occurrence_comes_after_now(self, expression: str, due: str) -> None:
        assert cron(expression) == at(due)

    def test_an_occurrence_at_this_very_millisecond_is_not_after_now(self) -> None:
        noon_ms = at("2026-01-14T12:00")

        assert cron("0 12 * * *", noon_ms - 1) == noon_ms
        assert cron("0 12 * * *", noon_ms) == noon_ms + DAY_MS
        assert cron("0 12 * * *", noon_ms + 1) == noon_ms + DAY_MS

    def test_the_time_of_day_is_one_of_the_zone(self) -> None:
        assert shown(cron("0 9 * * *", tz=NEW_YORK), NEW_YORK) == "2026-01-14T09:00-05:00"
        assert shown(cron("0 9 * * *", tz="Asia/Kolkata")) == "2026-01-15T03:30+00:00"

    def test_the_spec_holds_the_expression_and_its_zone(self) -> None:
        spec, _ = spec_of(" 0  9 * * MON ", NOW_MS, tz=BERLIN)

        assert spec == Spec(AlarmType.CRON, cron="0 9 * * MON", tz=BERLIN)

    def test_what_was_missed_while_nothing_ran_is_left_out(self) -> None:
        spec, due_ms = spec_of("0 * * * *", NOW_MS)

        assert next_due(spec, due_ms, due_ms + 5 * HOUR_MS + 1) == due_ms + 6 * HOUR_MS
        assert next_due(spec, due_ms, due_ms + 365 * DAY_MS) == due_ms + 365 * DAY_MS + HOUR_MS

    def test_a_clock_set_back_repeats_nothing(self) -> None:
        spec, due_ms = spec_of("0 * * * *", NOW_MS)

        assert next_due(spec, due_ms, due_ms - 1) == due_ms + HOUR_MS
        assert next_due(spec, due_ms, due_ms - 3 * HOUR_MS) == due_ms + HOUR_MS

    def test_an_occurrence_run_by_hand_before_its_time_is_not_run_again(self) -> None:
        spec, due_ms = spec_of("0 0 * * *", NOW_MS)

        assert next_due(spec, due_ms, NOW_MS) == due_ms + DAY_MS

    def test_a_zone_that_is_no_longer_known_is_an_error_and_not_another_time(self) -> None:
        spec = Spec(AlarmType.CRON, cron="0 0 * * *", tz="Atlantis/Capital")

        with pytest.raises(ScheduleError, match=r"unknown time zone 'Atlantis/Capital'.*tzdata"):
            next_due(spec, NOW_MS, NOW_MS)

    def test_an_expression_that_is_no_longer_understood_is_an_error(self) -> None:
        spec = Spec(AlarmType.CRON, cron="0 0 31 2 *", tz="UTC")

        with pytest.raises(ScheduleError, match="0 0 31 2"):
            next_due(spec, NOW_MS, NOW_MS)

    @pytest.mark.parametrize("tz", ["UTC", BERLIN, NEW_YORK])
    @pytest.mark.parametrize("expression", ["59 23 31 12 *", "* * * * *", "0 0 1 1 *"])
    def test_the_end_of_the_calendar_is_an_error(self, tz: str, expression: str) -> None:
        spec = Spec(AlarmType.CRON, cron=expression, tz=tz)

        with pytest.raises(ScheduleError, match="years 1 to 9999"):
            next_due(spec, 253_402_300_799_999, NOW_MS)


class TestClockChanges:
    @pytest.mark.parametrize(
        ("tz", "expression", "start", "end", "runs"),
        [
            (
                BERLIN,
                "30 2 * * *",
                "2026-03-28T00:00",
                "2026-03-31T00:00",
                ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
            ),
            (
                NEW_YORK,
                "30 2 * * *",
                "2026-03-07T00:00",
                "2026-03-10T00:00",
                ["2026-03-07T02:30-05:00", "2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
            ),
            (
                LORD_HOWE,
                "15 2 * * *",
                "2026-10-03T00:00",
                "2026-10-06T00:00",
                ["2026-10-03T02:15+10:30", "2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
            ),
            (
                HAVANA,
                "0 0 * * *",
                "2026-03-07T00:00",
                "2026-03-10T00:00",
                ["2026-03-08T01:00-04:00", "2026-03-09T00:00-04:00"],
            ),
        ],
    )
    def test_a_time_of_day_that_is_skipped_happens_when_the_gap_ends(
        self, tz: str, expression: str, start: str, end: str, runs: list[str]
    ) -> None:
        assert series(expression, tz, start, end) == runs

    @pytest.mark.parametrize(
        ("tz", "expression", "start", "end", "runs"),
        [
            (
                BERLIN,
                "30 2 * * *",
                "2026-10-24T00:00",
                "2026-10-27T00:00",
                ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
            ),
            (
                NEW_YORK,
                "30 1 * * *",
                "2026-10-31T00:00",
                "2026-11-03T00:00",
                ["2026-10-31T01:30-04:00", "2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"],
            ),
            (
                LORD_HOWE,
                "45 1 * * *",
                "2026-04-04T00:00",
                "2026-04-07T00:00",
                ["2026-04-04T01:45+11:00", "2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
            ),
            (
                HAVANA,
                "0 0 * * *",
                "2026-10-31T12:00",
                "2026-11-03T00:00",
                ["2026-11-01T00:00-04:00", "2026-11-02T00:00-05:00"],
            ),
        ],
    )
    def test_a_time_of_day_that_occurs_twice_happens_the_first_time(
        self, tz: str, expression: str, start: str, end: str, runs: list[str]
    ) -> None:
        assert series(expression, tz, start, end) == runs

    @pytest.mark.parametrize(
        ("tz", "start", "end", "hours"),
        [
            (BERLIN, "2026-03-28T23:30", "2026-03-30T00:00", 23),
            (BERLIN, "2026-10-24T23:30", "2026-10-26T00:00", 25),
            (NEW_YORK, "2026-03-07T23:30", "2026-03-09T00:00", 23),
            (NEW_YORK, "2026-10-31T23:30", "2026-11-02T00:00", 25),
        ],
    )
    def test_hourly_stays_hourly_on_the_day_clocks_change(
        self, tz: str, start: str, end: str, hours: int
    ) -> None:
        runs = [datetime.fromisoformat(one) for one in series("0 * * * *", tz, start, end)]

        assert len(runs) == hours
        assert {later - earlier for earlier, later in pairwise(runs)} == {timedelta(hours=1)}

    def test_a_star_for_the_minutes_leaves_the_gap_out_and_repeats_what_is_repeated(self) -> None:
        """As in Debian: only times of day are made up for."""
        assert series("*/30 2 * * *", BERLIN, "2026-03-29T00:00", "2026-03-30T00:00") == []
        assert series("*/30 2 * * *", BERLIN, "2026-10-25T00:00", "2026-10-26T00:00") == [
            "2026-10-25T02:00+02:00",
            "2026-10-25T02:30+02:00",
            "2026-10-25T02:00+01:00",
            "2026-10-25T02:30+01:00",
        ]

    def test_several_times_of_day_in_one_gap_happen_once(self) -> None:
        assert series("0,15,45 2,3 * * *", BERLIN, "2026-03-29T00:00", "2026-03-30T00:00") == [
            "2026-03-29T03:00+02:00",
            "2026-03-29T03:15+02:00",
            "2026-03-29T03:45+02:00",
        ]

    @pytest.mark.parametrize("minute", [0, 15, 29, 30, 31, 59])
    def test_an_alarm_set_in_the_second_pass_of_an_hour_waits_for_the_next_day(
        self, minute: int
    ) -> None:
        second_ms = at(f"2026-10-25T02:{minute:02}", BERLIN, fold=1)

        assert shown(cron("30 2 * * *", second_ms, BERLIN), BERLIN) == "2026-10-26T02:30+01:00"

    @pytest.mark.parametrize("tz", [BERLIN, NEW_YORK, LORD_HOWE, HAVANA, "Africa/Casablanca"])
    @pytest.mark.parametrize("expression", ["30 2 * * *", "15 1 * * *", "0 0 * * *", "59 23 * * *"])
    def test_a_time_of_day_happens_once_on_every_day_of_years(
        self, tz: str, expression: str
    ) -> None:
        days = [run[:10] for run in series(expression, tz, "2025-12-31T23:59", "2029-01-01T00:00")]

        assert len(days) == len(set(days)) == 366 + 365 + 365

    @settings(deadline=None)
    @given(
        st.sampled_from(
            ["30 2 * * *", "0-59 1-3 * * *", "*/7 * * * *", "0 */3 * * *", "5 0 L * *"]
        ),
        st.sampled_from(["UTC", BERLIN, NEW_YORK, LORD_HOWE, HAVANA]),
        st.integers(min_value=at("2000-01-01T00:00"), max_value=at("2036-01-01T00:00")),
        st.integers(min_value=-400 * DAY_MS, max_value=400 * DAY_MS),
    )
    def test_the_next_occurrence_is_after_both_times_and_depends_only_on_the_later(
        self, expression: str, tz: str, due_ms: int, offset_ms: int
    ) -> None:
        spec = Spec(AlarmType.CRON, cron=expression, tz=tz)
        now_ms = due_ms + offset_ms
        found = next_due(spec, due_ms, now_ms)

        assert found is not None
        assert found > max(due_ms, now_ms)
        assert found % 60_000 == 0
        assert next_due(spec, now_ms, due_ms) == found
        assert next_due(spec, due_ms, found - 1) == found


class TestIntervals:
    def test_the_first_time_is_one_interval_from_now(self) -> None:
        assert interval(1.5, NOW_MS) == (Spec(AlarmType.INTERVAL, every_ms=1500), NOW_MS + 1500)
        assert interval(timedelta(hours=1), NOW_MS)[1] == NOW_MS + HOUR_MS

    @pytest.mark.parametrize(
        ("first", "due_ms"),
        [
            (0, NOW_MS),
            (0.0, NOW_MS),
            (2.5, NOW_MS + 2500),
            (-1, NOW_MS - 1000),
            (timedelta(minutes=1), NOW_MS + 60_000),
            (datetime(2026, 7, 1), at("2026-07-01T00:00")),
            (datetime(2026, 7, 1, tzinfo=ZoneInfo(BERLIN)), at("2026-06-30T22:00")),
        ],
    )
    def test_the_first_time_can_be_chosen(
        self, first: datetime | timedelta | float, due_ms: int
    ) -> None:
        assert interval(60, NOW_MS, first) == (Spec(AlarmType.INTERVAL, every_ms=60_000), due_ms)

    @pytest.mark.parametrize("seconds", [0.001, 0.0004, timedelta(microseconds=1)])
    def test_the_shortest_interval_is_a_millisecond(self, seconds: float | timedelta) -> None:
        assert interval(seconds, NOW_MS)[0].every_ms == 1

    @pytest.mark.parametrize("seconds", [0, 0.0, -1, -0.0001, timedelta(0), timedelta(days=-1)])
    def test_an_interval_without_length_is_refused(self, seconds: float | timedelta) -> None:
        with pytest.raises(ScheduleError, match=r"use at least 0\.001 seconds"):
            interval(seconds, NOW_MS)

    @pytest.mark.parametrize("seconds", [True, None, "60", "* * * * *", datetime(2026, 7, 1)])
    def test_an_interval_is_a_length_of_time(self, seconds: object) -> None:
        with pytest.raises(TypeError, match="use a timedelta or a number of seconds"):
            interval(seconds, NOW_MS)  # type: ignore[arg-type]

    @pytest.mark.parametrize("first", [True, "60", "* * * * *", date(2026, 7, 1)])
    def test_the_first_time_is_a_time_or_a_delay(self, first: object) -> None:
        with pytest.raises(TypeError, match="use a datetime, a timedelta or a number of seconds"):
            interval(60, NOW_MS, first)  # type: ignore[arg-type]

    @pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e300, 10**400, timedelta.max])
    def test_an_interval_that_never_ends_is_refused(self, seconds: float | timedelta) -> None:
        with pytest.raises(ScheduleError):
            interval(seconds, NOW_MS)

    @pytest.mark.parametrize(
        ("late_ms", "periods"),
        [(-5000, 1), (-1, 1), (0, 1), (1, 1), (999, 1), (1000, 2), (1001, 2), (10**12, 10**9 + 1)],
    )
    def test_the_next_time_keeps_the_beat_and_leaves_out_what_was_missed(
        self, late_ms: int, periods: int
    ) -> None:
        spec, due_ms = interval(1, NOW_MS)

        assert next_due(spec, due_ms, due_ms + late_ms) == due_ms + periods * 1000

    @settings(deadline=None)
    @given(
        st.integers(min_value=1, max_value=10**10),
        st.integers(min_value=0, max_value=4 * 10**12),
        st.integers(min_value=-(10**12), max_value=10**12),
    )
    def test_an_interval_never_drifts_nor_comes_in_a_burst(
        self, every_ms: int, due_ms: int, late_ms: int
    ) -> None:
        now_ms = due_ms + late_ms
        found = next_due(Spec(AlarmType.INTERVAL, every_ms=every_ms), due_ms, now_ms)

        assert found is not None
        assert (found - due_ms) % every_ms == 0
        assert found > max(due_ms, now_ms)
        assert found - every_ms <= max(due_ms, now_ms)

    def test_the_end_of_the_calendar_is_an_error(self) -> None:
        spec = Spec(AlarmType.INTERVAL, every_ms=DAY_MS)

        with pytest.raises(ScheduleError, match="years 1 to 9999"):
            next_due(spec, 253_402_300_799_999, NOW_MS)


class TestOneShots:
    @pytest.mark.parametrize("when", [0, 60, timedelta(days=1), datetime(2026, 7, 1)])
    def test_they_do_not_come_again(self, when: datetime | timedelta | float) -> None:
        spec, due_ms = spec_of(when, NOW_MS)

        assert next_due(spec, due_ms, due_ms) is None
        assert next_due(spec, due_ms, due_ms + DAY_MS) is None
        assert next_due(spec, due_ms, due_ms - DAY_MS) is None


class TestRetries:
    def test_the_pauses_double(self) -> None:
        pauses = [retry_due(attempts, NOW_MS) - NOW_MS for attempts in range(1, 6)]

        assert pauses == [2000, 4000, 8000, 16_000, 32_000]

    @pytest.mark.parametrize("attempts", [12, 13, 64, 10**9])
    def test_no_pause_is_longer_than_an_hour(self, attempts: int) -> None:
        assert retry_due(11, NOW_MS) == NOW_MS + 2_048_000
        assert retry_due(attempts, NOW_MS) == NOW_MS + HOUR_MS

    @pytest.mark.parametrize("attempts", [0, -1])
    def test_before_the_first_attempt_there_is_nothing_to_repeat(self, attempts: int) -> None:
        with pytest.raises(ValueError, match="before the first"):
            retry_due(attempts, NOW_MS)


class TestStoring:
    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            (Spec(AlarmType.SCHEDULED), '{"type":"scheduled"}'),
            (Spec(AlarmType.DELAYED), '{"type":"delayed"}'),
            (
                Spec(AlarmType.CRON, cron="0 9 * * MON", tz=BERLIN),
                '{"type":"cron","cron":"0 9 * * MON","tz":"Europe/Berlin"}',
            ),
            (Spec(AlarmType.INTERVAL, every_ms=1), '{"type":"interval","every_ms":1}'),
        ],
    )
    def test_a_spec_is_stored_as_json_text_and_read_back(self, spec: Spec, text: str) -> None:
        assert spec.encode() == text
        assert Spec.decode(text) == spec

    def test_a_stored_zone_need_not_be_known_to_be_read(self) -> None:
        spec = Spec(AlarmType.CRON, cron="0 0 * * *", tz="Atlantis/Capital")

        assert Spec.decode(spec.encode()) == spec

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "null",
            "{}",
            '{"type":"weekly"}',
            '{"type":"cron","cron":"0 0 * * *"}',
            '{"type":"cron","tz":"UTC"}',
            '{"type":"interval"}',
            '{"type":"interval","every_ms":0}',
            '{"type":"interval","every_ms":"1"}',
        ],
    )
    def test_what_is_no_spec_is_an_error(self, text: str) -> None:
        with pytest.raises(ScheduleError, match="invalid schedule of an alarm"):
            Spec.decode(text)

    def test_a_spec_that_could_not_come_round_cannot_be_made(self) -> None:
        with pytest.raises(ScheduleError, match="expression and a zone"):
            Spec(AlarmType.CRON, cron="0 0 * * *")
        with pytest.raises(ScheduleError, match="one millisecond"):
            Spec(AlarmType.INTERVAL, every_ms=0)


@pytest.mark.parametrize("tz", ["UTC", BERLIN])
@pytest.mark.parametrize("expression", ["* * * * *", "30 2 * * *", "0 9 * * MON-FRI", "0 0 1 1 *"])
def test_finding_the_next_occurrence_takes_no_time_to_speak_of(expression: str, tz: str) -> None:
    """A limit far above what it needs, which only another algorithm would exceed."""
    spec = Spec(AlarmType.CRON, cron=expression, tz=tz)
    due_ms = spec_of(datetime(2026, 3, 1, tzinfo=UTC), NOW_MS)[1]

    best = min(timeit.repeat(lambda: next_due(spec, due_ms, due_ms), number=20, repeat=10)) / 20

    assert best < 0.001
