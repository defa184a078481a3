from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from signalhub.counters import BROADCAST_BOUNDS_S, SYNC_BOUNDS_S, Histogram, Tally
from signalhub.observe.exposition import Declaration, Exposition, counter, gauge, histogram
from signalhub.observe.subscriptions import SUBSCRIPTIONS
from signalhub.server.metrics import DECLARATIONS, page

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "metrics.md"

LATENCY = "signal_hub_broadcast_latency_seconds"


def scrape(tally: Tally, *declarations: Declaration[Tally]) -> dict[str, Metric]:
    """The page as a scraper reads it, by full metric name."""
    text = Exposition(declarations, tally).page().decode()
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
    }


def value_of(metric: Metric, name: str | None = None, **labels: str) -> float:
    """The one sample of that name and those labels."""
    (value,) = (
        sample.value
        for sample in metric.samples
        if name in (None, sample.name) and sample.labels == labels
    )
    return value


def test_names_are_declared_once_and_explained() -> None:
    declarations: list[Declaration[Any]] = [*DECLARATIONS, *SUBSCRIPTIONS]
    names = [declaration.name for declaration in declarations]

    assert len(names) == len(set(names))
    assert all(declaration.help.endswith(".") for declaration in declarations)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("signal_hub_actors_total", "gauge"),
        ("signal_hub_capacity_utilization", "gauge"),
        ("signal_hub_broadcast_latency_seconds", "histogram"),
        ("signal_hub_connections_active", "gauge"),
        ("signal_hub_messages_received_total", "counter"),
    ],
)
def test_names_known_to_dashboards_stay(name: str, kind: str) -> None:
    assert {one.name: one.kind for one in DECLARATIONS}[name] == kind


def test_numbers_are_measured_when_somebody_looks() -> None:
    tally = Tally()
    sent: Declaration[Tally] = counter("messages_sent", lambda of: of.sent, "Sent.")
    lost: Declaration[Tally] = gauge("lost_seconds", lambda of: of.lost / 1000, "Lost.")
    exposition = Exposition((sent, lost), tally)
    tally.sent, tally.lost = 7, 2_500

    lines = exposition.page().decode().splitlines()

    assert "# HELP signal_hub_messages_sent_total Sent." in lines
    assert "# TYPE signal_hub_messages_sent_total counter" in lines
    assert "signal_hub_messages_sent_total 7.0" in lines
    assert "# TYPE signal_hub_lost_seconds gauge" in lines
    assert "signal_hub_lost_seconds 2.5" in lines


def test_what_nobody_knows_is_not_shown_as_a_number() -> None:
    metrics = scrape(Tally(), gauge("age_seconds", lambda of: None, "Age."))

    assert metrics["signal_hub_age_seconds"].samples == []


def test_a_labelled_metric_has_a_series_for_each_value() -> None:
    tally = Tally(errors={"full": 2, "gone": 0})

    metrics = scrape(tally, counter("errors", lambda of: of.errors, "Errors.", "code"))

    errors = metrics["signal_hub_errors_total"]
    assert value_of(errors, code="full") == 2
    assert value_of(errors, code="gone") == 0


def test_histograms_are_cumulative_with_sum_and_count() -> None:
    tally = Tally()
    for seconds in (0.001, 0.3, 0.5, 119.0, 1_000.0):
        tally.broadcast_latency.observe(seconds)

    found = scrape(tally, histogram("broadcast_latency", lambda of: of.broadcast_latency, "Slow."))

    metric = found[LATENCY]
    assert value_of(metric, f"{LATENCY}_bucket", le="0.001") == 1
    assert value_of(metric, f"{LATENCY}_bucket", le="0.5") == 3
    assert value_of(metric, f"{LATENCY}_bucket", le="120.0") == 4
    assert value_of(metric, f"{LATENCY}_bucket", le="+Inf") == 5
    assert value_of(metric, f"{LATENCY}_count") == 5
    assert value_of(metric, f"{LATENCY}_sum") == pytest.approx(1_119.801)


def test_alert_thresholds_are_buckets_of_their_own() -> None:
    assert 120.0 in BROADCAST_BOUNDS_S
    assert 0.25 in SYNC_BOUNDS_S


def test_a_duration_belongs_to_the_first_bound_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.100001, 1.0, 1.1):
        histogram.observe(seconds)

    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5


def test_a_negative_duration_counts_as_none() -> None:
    histogram = Histogram((0.1, 1.0))

    histogram.observe(-3.0)

    assert histogram.counts == [1, 0, 0]
    assert histogram.sum_s == 0.0


def test_tallies_share_nothing() -> None:
    first, second = Tally(), Tally()

    first.count_error("x")
    first.ask_latency.observe(1.0)

    assert second.errors == {}
    assert second.ask_latency.count == 0


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), (
        "python -m signalhub.server.metrics > docs/operate/metrics.md"
    )
