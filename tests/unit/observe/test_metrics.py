"""Metrics: how they are declared, measured, written, and shared by subscriptions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from signalhub.counters import (
    BROADCAST_BOUNDS_S,
    SYNC_BOUNDS_S,
    Histogram,
    SubscriptionTally,
    Tally,
)
from signalhub.observe.exposition import Declaration, Exposition, counter, gauge, histogram
from signalhub.observe.subscriptions import SUBSCRIPTIONS, SubscriptionReading, SubscriptionSeries
from signalhub.server.metrics import DECLARATIONS, page

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "metrics.md"
# Dashboards know them.
KNOWN = {
    "signal_hub_actors_total": "gauge",
    "signal_hub_capacity_utilization": "gauge",
    "signal_hub_broadcast_latency_seconds": "histogram",
    "signal_hub_connections_active": "gauge",
    "signal_hub_messages_received_total": "counter",
}
LAG = "signal_hub_subscription_lag_messages"
DELIVERED = "signal_hub_subscription_delivered_total"
OTHER = ("other", "", "")

Series = dict[tuple[str, str, str], float]


def test_metrics_are_declared_once_explained_and_documented() -> None:
    declarations: list[Declaration[Any]] = [*DECLARATIONS, *SUBSCRIPTIONS]
    kinds = {one.name: one.kind for one in declarations}

    assert len(kinds) == len(declarations)
    assert all(one.help.endswith(".") for one in declarations)
    assert kinds | KNOWN == kinds
    assert 120.0 in BROADCAST_BOUNDS_S, "an alert has this threshold"
    assert 0.25 in SYNC_BOUNDS_S, "another one this"
    command = "python -m signalhub.server.metrics > docs/operate/metrics.md"
    assert PAGE.read_text() == page(), command


def test_numbers_are_measured_when_somebody_looks() -> None:
    tally = Tally(errors={"full": 2, "gone": 0})
    declared: tuple[Declaration[Tally], ...] = (
        counter("messages_sent", lambda of: of.sent, "Sent."),
        gauge("lost_seconds", lambda of: of.lost / 1000, "Lost."),
        gauge("age_seconds", lambda of: None, "Unknown, so not shown as a number."),
        counter("errors", lambda of: of.errors, "Errors.", "code"),
    )
    exposition = Exposition(declared, tally)
    tally.sent, tally.lost = 7, 2_500

    lines = exposition.page().decode().splitlines()

    assert {
        "# HELP signal_hub_messages_sent_total Sent.",
        "# TYPE signal_hub_messages_sent_total counter",
        "signal_hub_messages_sent_total 7.0",
        "# TYPE signal_hub_lost_seconds gauge",
        "signal_hub_lost_seconds 2.5",
        'signal_hub_errors_total{code="full"} 2.0',
        'signal_hub_errors_total{code="gone"} 0.0',
    } <= set(lines)
    assert [line for line in lines if line.startswith("signal_hub_age_seconds")] == []


def test_histograms_are_cumulative_with_sum_and_count() -> None:
    tally, name = Tally(), "signal_hub_broadcast_latency_seconds"
    for seconds in (0.001, 0.3, 0.5, 119.0, 1_000.0):
        tally.broadcast_latency.observe(seconds)
    declared: Declaration[Tally] = histogram(
        "broadcast_latency", lambda of: of.broadcast_latency, "Slow."
    )

    text = Exposition((declared,), tally).page().decode()

    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    found = {(one.name, one.labels.get("le")): one.value for one in samples}
    for bound, count in (("0.001", 1), ("0.5", 3), ("120.0", 4), ("+Inf", 5)):
        assert found[f"{name}_bucket", bound] == count
    assert found[f"{name}_count", None] == 5
    assert found[f"{name}_sum", None] == pytest.approx(1_119.801)


def test_a_duration_belongs_to_the_first_bound_it_does_not_exceed() -> None:
    one = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.100001, 1.0, 1.1):
        one.observe(seconds)
    negative = Histogram((0.1, 1.0))
    negative.observe(-3.0)

    assert (one.counts, one.count) == ([2, 2, 1], 5)
    assert (negative.counts, negative.sum_s) == ([1, 0, 0], 0.0), "it counts as none"


def test_tallies_share_nothing() -> None:
    first, second = Tally(), Tally()

    first.count_error("x")
    first.ask_latency.observe(1.0)

    assert (second.errors, second.ask_latency.count) == ({}, 0)


def reading(
    topic: str, name: str = "work", mode: str = "shared", delivered: int = 0, lag: int = 0
) -> SubscriptionReading:
    found = SubscriptionReading(topic, name, mode, SubscriptionTally(delivered=delivered))
    found.lag = lag
    return found


def scrape(series: SubscriptionSeries, *readings: SubscriptionReading) -> dict[str, Series]:
    """Values by name of the sample and labels."""
    found: dict[str, Series] = {}
    text = b"".join(series.pieces(readings)).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            key = labels["topic"], labels["subscription"], labels["mode"]
            assert key not in found.setdefault(sample.name, {})
            found[sample.name][key] = sample.value
    return found


def test_a_subscription_is_labelled_by_topic_name_and_mode_of_any_spelling() -> None:
    topic, name = 'a "quoted" \\ back\\nslash\nand a line', "überall / 場所 }="
    unknown = reading(topic, name, lag=8)
    unknown.lag_s = None

    found = scrape(
        SubscriptionSeries(10), reading("orders", "billing", "exclusive", lag=7), unknown
    )

    assert found[LAG] == {
        ("orders", "billing", "exclusive"): 7,
        (topic, name, "shared"): 8,
        OTHER: 0,
    }
    ages = found["signal_hub_subscription_lag_seconds"]
    assert (topic, name, "shared") not in ages, "an unknown age is not shown as a number"


def test_every_number_of_a_reading_is_shown() -> None:
    one = SubscriptionReading("t", "s", "shared", SubscriptionTally(), 1, 2.5, 3.5, 0.4, 1, 5, 6, 7)
    counters = dataclasses.fields(SubscriptionTally)
    for number, field in enumerate(counters, 100):
        setattr(one.tally, field.name, number)

    found = scrape(SubscriptionSeries(10), one)

    shown = [found[declaration.name]["t", "s", "shared"] for declaration in SUBSCRIPTIONS]
    assert shown[:8] == [1, 2.5, 3.5, 0.4, 1, 5, 6, 7]
    assert sorted(shown[8:]) == list(range(100, 100 + len(counters)))


def test_beyond_the_limit_subscriptions_share_sums_and_the_worst() -> None:
    readings = [reading(f"t{number}", delivered=10**number, lag=number) for number in range(4)]
    for number, one in enumerate(readings):
        one.lag_s, one.utilization = float(number), number / 10

    found = scrape(SubscriptionSeries(2), *readings)

    assert found[DELIVERED].keys() == {("t0", "work", "shared"), ("t1", "work", "shared"), OTHER}
    assert (found[DELIVERED][OTHER], found[LAG][OTHER]) == (1_100, 5)
    assert found["signal_hub_subscription_lag_seconds"][OTHER] == 3.0
    assert found["signal_hub_subscription_window_utilization"][OTHER] == 0.3


def test_shared_counters_never_fall_and_whoever_shares_goes_on_sharing() -> None:
    series = SubscriptionSeries(1)
    first, second, third = (reading(f"t{number}", delivered=10) for number in range(3))
    assert scrape(series, first, second, third)[DELIVERED][OTHER] == 20
    second.tally.delivered += 5

    deleted = scrape(series, first, third)
    room = scrape(series, third, reading("t3", delivered=4))

    assert (deleted[DELIVERED][OTHER], deleted[LAG][OTHER]) == (25, 0)
    assert room[DELIVERED] == {("t3", "work", "shared"): 4, OTHER: 25}


def test_a_subscription_made_again_under_its_old_name_starts_at_zero() -> None:
    series = SubscriptionSeries(10)
    scrape(series, reading("orders", delivered=9))

    assert scrape(series, reading("orders"))[DELIVERED] == {
        ("orders", "work", "shared"): 0,
        OTHER: 0,
    }
