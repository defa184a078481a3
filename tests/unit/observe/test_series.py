"""The ring of series against a plain list of everything that was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.counters import Histogram
from signalhub.observe.series import LENGTHS, NAMES_MAX, STEPS_MS, Ring, Row

BEGIN = 1_760_000_000_000
NAN = math.nan


def ring_of(histogram: Histogram | None = None) -> Ring:
    latencies = {} if histogram is None else {"ask": (histogram, (0.5, 0.99))}
    return Ring(("in",), ("size",), latencies)


def filled(counts: list[tuple[float, float]], step_ms: int = 1_000) -> Ring:
    """A ring that got these counts and sizes, one per second."""
    ring = ring_of()
    for number, (count, size) in enumerate(counts):
        ring.tick(Row([count], [size]), BEGIN + number * step_ms)
    return ring


def test_counters_are_rates_and_gauges_are_values() -> None:
    ring = filled([(0, 7), (10, 8), (10, 9), (5, 9)])

    step, times, found = ring.read(["in", "size"], BEGIN - 5_000, BEGIN + 60_000, 1_000)

    assert (step, times) == (1_000, [BEGIN + 1_000, BEGIN + 2_000, BEGIN + 3_000])
    # A count that shrinks, because a part of it is gone, is no rate below zero.
    assert found == {"in": [10.0, 0.0, 0.0], "size": [8.0, 9.0, 9.0]}
    assert ring.newest == {"in": 0.0, "size": 9.0}


def test_ten_seconds_are_kept_longer_and_remember_the_highest() -> None:
    ring = filled([(number, 50 if number == 34 else 1) for number in range(2_000)])

    step, times, found = ring.read(["in", "size", "size.max"], BEGIN, BEGIN + 10**7, 1_000)

    assert step == 10_000, "a second is not kept for so long"
    assert times[0] == BEGIN + 10_000
    assert set(found["in"]) == {1.0}
    assert found["size.max"][times.index(BEGIN + 40_000)] == 50.0
    assert found["size"][times.index(BEGIN + 40_000)] == 1.0
    assert ring.read(["in"], BEGIN + 1_500_000, BEGIN + 2_000_000, 1_000)[0] == 1_000
    assert ring.read(["in"], BEGIN, BEGIN + 10**7, 300_000)[0] == 300_000


def test_seconds_without_a_tick_have_no_numbers() -> None:
    ring = ring_of()
    for second in (0, 1, 2, 7, 8):
        ring.tick(Row([second * 10], [second]), BEGIN + second * 1_000)

    _, times, found = ring.read(["in", "size"], BEGIN, BEGIN + 10_000, 1_000)

    assert [(at - BEGIN) // 1_000 for at in times] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert str(found["in"]) == str([10.0, 10.0, NAN, NAN, NAN, NAN, 10.0, 10.0])
    assert found["size"][-2:] == [7.0, 8.0]


def test_quantiles_are_those_of_the_step() -> None:
    histogram = Histogram((0.001, 0.01, 0.1))
    ring = ring_of(histogram)
    histogram.observe(5.0, times=1_000)
    for second in range(4):
        ring.tick(Row([0], [0]), BEGIN + second * 1_000)
        if second == 0:
            histogram.observe(0.0005, times=99)
            histogram.observe(0.05, times=1)

    _, _, found = ring.read(["ask_p50", "ask_p99"], BEGIN, BEGIN + 9_000, 1_000)

    assert found["ask_p50"][0] == pytest.approx(0.505, abs=0.01)
    assert found["ask_p99"][0] == pytest.approx(1.0)
    assert str(found["ask_p50"][1:]) == str([NAN, NAN])


def test_before_the_first_tick_there_is_nothing() -> None:
    ring = ring_of()
    assert ring.read(["in"], 0, BEGIN, 1_000)[1:] == ([], {"in": []})
    ring.tick(Row([0], [0]), BEGIN)
    assert ring.read(["in"], 0, BEGIN + 9_000, 300_000)[1] == []


def test_it_takes_as_much_memory_as_is_promised() -> None:
    names = [f"s{number}" for number in range(NAMES_MAX // 2)]
    ring = Ring(names, [f"g{one}" for one in names], {})

    assert sum(LENGTHS) * NAMES_MAX * 8 == 2_598_912
    assert ring.bytes == sum(LENGTHS) * (NAMES_MAX + NAMES_MAX // 2) * 8


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 100)), min_size=2, max_size=60))
def test_it_is_a_list_that_forgets(ticks: list[tuple[int, int]]) -> None:
    """Whatever gaps there are: each second shows its own number or none."""
    ring, second, total = ring_of(), 0, 0
    expected: dict[int, float] = {}
    ring.tick(Row([0], [0]), BEGIN)
    for gap, count in ticks:
        second, total = second + gap, total + count
        ring.tick(Row([total], [second]), BEGIN + second * STEPS_MS[0])
        expected[second] = count / gap
    _, times, found = ring.read(["in", "size"], BEGIN, BEGIN + 10**6, 1_000)
    shown = {
        (at - BEGIN) // 1_000: rate
        for at, rate in zip(times, found["in"], strict=True)
        if not math.isnan(rate)
    }
    assert shown == pytest.approx(expected)
    assert [at for at in found["size"] if not math.isnan(at)] == list(expected)
