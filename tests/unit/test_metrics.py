from __future__ import annotations

import dataclasses
from operator import attrgetter
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from signalhub.counters import (
    BROADCAST_BOUNDS_S,
    SYNC_BOUNDS_S,
    Histogram,
    LakeTally,
    LogTally,
    RoomTally,
    SubscriptionTally,
    Tally,
)
from signalhub.observe.declarations import DECLARATIONS, PROCESS, SUBSCRIPTIONS
from signalhub.observe.metrics import Metrics, Reading, page
from signalhub.wire.errors import Code

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "metrics.md"


class Readings:
    """A hub at a standstill."""

    def __init__(self, *subscriptions: Reading, log_state: str = "open") -> None:
        self.readings = list(subscriptions)
        self._log_state = log_state

    def actors(self) -> int:
        return 45_000

    def capacity_utilization(self) -> float:
        return 0.9

    def connections(self) -> int:
        return 300

    def queue_depth(self) -> int:
        return 12

    def dedup_entries(self) -> int:
        return 1_000

    def dedup_window_ms(self) -> int:
        return 250_500

    def dedup_memory_bytes(self) -> int:
        return 5_400

    def storage_errors(self) -> int:
        return 0

    def storage_bytes(self) -> int:
        return 4_096

    def log_state(self) -> str:
        return self._log_state

    def log_head(self) -> int:
        return 70

    def log_durable_head(self) -> int:
        return 64

    def log_durable_distance(self) -> int:
        return 6

    def log_waiting(self) -> int:
        return 2

    def log_segments(self) -> int:
        return 3

    def log_bytes(self) -> int:
        return 8_192

    def loss_events(self) -> int:
        return 0

    def cursor_age_ms(self) -> int:
        return 1_500

    def rooms(self) -> int:
        return 50

    def inboxes(self) -> int:
        return 51

    def room_sockets(self) -> int:
        return 52

    def room_ids(self) -> int:
        return 53

    def room_ids_bytes(self) -> int:
        return 54

    def room_buffer_bytes(self) -> int:
        return 55

    def room_state_bytes(self) -> int:
        return 56

    def unarchived(self) -> int:
        return 57

    def pipeline_down(self) -> int:
        return 0

    def pipeline_position(self) -> int:
        return 60

    def pipeline_lag(self) -> int:
        return 4

    def pipeline_lag_ms(self) -> int:
        return 6_500

    def pipeline_failures(self) -> int:
        return 1

    def pipeline_inbox_failures(self) -> int:
        return 2

    def pipeline_batch_ms(self) -> int:
        return 850

    def archive_position(self) -> int:
        return 59

    def segments_waiting(self) -> int:
        return 3

    def mailboxes(self) -> int:
        return 9

    def mailbox_waiting(self) -> int:
        return 33

    def placements(self) -> int:
        return 12

    def subscriptions(self) -> list[Reading]:
        return self.readings


def make_metrics(tally: Tally, readings: Readings | None = None, named_max: int = 10) -> Metrics:
    return Metrics(tally, readings or Readings(), subscriptions_max=named_max)


def scrape(metrics: Metrics) -> dict[str, Metric]:
    """The page as a scraper reads it, by full metric name."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(b"".join(metrics.pieces()).decode())
    }


def families(tally: Tally) -> dict[str, Metric]:
    return scrape(make_metrics(tally))


def value_of(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of that name and those labels."""
    (value,) = (
        sample.value
        for metric in metrics.values()
        for sample in metric.samples
        if sample.name == name and sample.labels == labels
    )
    return value


def test_exactly_what_is_declared_is_exported() -> None:
    declared = {one.name: one.kind for one in (*DECLARATIONS, *SUBSCRIPTIONS)}
    declared |= {name: kind for name, (kind, _) in PROCESS.items()}

    exported = {name: metric.type for name, metric in families(Tally()).items()}

    assert exported == declared


def test_names_are_declared_once_and_explained() -> None:
    declarations = (*DECLARATIONS, *SUBSCRIPTIONS)
    names = [declaration.name for declaration in declarations]

    assert len(names) == len(set(names))
    assert all(declaration.help.endswith(".") for declaration in declarations)


def test_every_counter_and_histogram_of_the_tally_is_exported() -> None:
    sources = {declaration.source for declaration in DECLARATIONS if declaration.kind != "gauge"}
    counted = {field.name for field in dataclasses.fields(Tally)} - {
        *("lake", "log", "mailboxes", "rooms"),
    }
    counted |= {f"lake.{field.name}" for field in dataclasses.fields(LakeTally)}
    counted |= {f"log.{field.name}" for field in dataclasses.fields(LogTally)}
    counted |= {f"rooms.{field.name}" for field in dataclasses.fields(RoomTally)}
    counted |= {f"mailboxes.{field.name}" for field in dataclasses.fields(SubscriptionTally)}

    # Losses are shown together with those the log itself has met; mailboxes drop nothing else.
    assert counted - sources == {"loss_events", "mailboxes.dropped"}
    assert sources <= counted


def test_every_counter_of_a_subscription_is_exported() -> None:
    sources = {one.source for one in SUBSCRIPTIONS if one.kind == "counter"}

    assert sources == {f"tally.{field.name}" for field in dataclasses.fields(SubscriptionTally)}


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
    assert families(Tally())[name].type == kind


def test_counters_show_the_tally() -> None:
    tally = Tally()
    metrics = make_metrics(tally)
    counters = [
        declaration
        for declaration in DECLARATIONS
        if declaration.kind == "counter" and not declaration.labels
    ]
    for number, declaration in enumerate(counters, start=1):
        *path, name = declaration.source.split(".")
        setattr(attrgetter(path[0])(tally) if path else tally, name, number)

    lines = b"".join(metrics.pieces()).decode().splitlines()

    for number, declaration in enumerate(counters, start=1):
        assert f"{declaration.name} {float(number)}" in lines


def test_gauges_are_read_when_somebody_looks() -> None:
    metrics = families(Tally())

    assert value_of(metrics, "signal_hub_actors_total") == 45_000
    assert value_of(metrics, "signal_hub_capacity_utilization") == 0.9
    assert value_of(metrics, "signal_hub_connections_active") == 300
    assert value_of(metrics, "signal_hub_message_queue_depth") == 12
    assert value_of(metrics, "signal_hub_dedup_ids") == 1_000
    assert value_of(metrics, "signal_hub_dedup_window_seconds") == 250.5
    assert value_of(metrics, "signal_hub_storage_usage_bytes") == 4_096
    assert value_of(metrics, "signal_hub_log_head_offset") == 70
    assert value_of(metrics, "signal_hub_log_durable_head_offset") == 64
    assert value_of(metrics, "signal_hub_log_durable_distance") == 6
    assert value_of(metrics, "signal_hub_log_waiting_entries") == 2
    assert value_of(metrics, "signal_hub_log_segments") == 3
    assert value_of(metrics, "signal_hub_log_size_bytes") == 8_192
    assert value_of(metrics, "signal_hub_cursor_age_seconds") == 1.5
    assert value_of(metrics, "signal_hub_mailboxes") == 9
    assert value_of(metrics, "signal_hub_mailbox_waiting") == 33


@pytest.mark.parametrize("state", ["open", "full", "failed", "damaged"])
def test_exactly_one_state_of_the_log_is_shown_as_true(state: str) -> None:
    metrics = scrape(make_metrics(Tally(), Readings(log_state=state)))

    shown = {
        sample.labels["state"]: sample.value for sample in metrics["signal_hub_log_state"].samples
    }
    assert shown == {one: one == state for one in ("open", "full", "failed", "damaged")}


def test_errors_are_labelled_by_code_from_a_closed_set() -> None:
    tally = Tally()
    tally.count_error(Code.RATE_LIMITED)
    tally.count_error(Code.RATE_LIMITED)
    tally.count_error("invented by a stranger")
    tally.count_error("another one")

    metrics = families(tally)

    name = "signal_hub_errors_total"
    assert value_of(metrics, name, code="rate_limited") == 2
    assert value_of(metrics, name, code="other") == 2
    assert value_of(metrics, name, code="unauthorized") == 0
    assert {sample.labels["code"] for sample in metrics[name].samples} == {*Code, "other"}


def test_no_metric_has_labels_that_are_not_declared() -> None:
    declared = {one.name: {*one.labels} for one in (*DECLARATIONS, *SUBSCRIPTIONS)}

    for name, metric in families(Tally()).items():
        labels = {label for sample in metric.samples for label in sample.labels}
        assert labels - {"le"} == declared.get(name, set())


def test_histograms_are_cumulative_with_sum_and_count() -> None:
    tally = Tally()
    for seconds in (0.001, 0.3, 0.5, 119.0, 1_000.0):
        tally.broadcast_latency.observe(seconds)

    metrics = families(tally)

    name = "signal_hub_broadcast_latency_seconds"
    assert value_of(metrics, f"{name}_bucket", le="0.001") == 1
    assert value_of(metrics, f"{name}_bucket", le="0.5") == 3
    assert value_of(metrics, f"{name}_bucket", le="120.0") == 4
    assert value_of(metrics, f"{name}_bucket", le="+Inf") == 5
    assert value_of(metrics, f"{name}_count") == 5
    assert value_of(metrics, f"{name}_sum") == pytest.approx(1_119.801)


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
        "python -m signalhub.observe.metrics > docs/operate/metrics.md"
    )
