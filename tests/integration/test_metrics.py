"""What is declared is what a real hub exports, and what it has counted."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import signalhub
from signalhub.counters import Histogram, Tally
from signalhub.observe.exposition import PROCESS
from signalhub.observe.subscriptions import SUBSCRIPTIONS
from signalhub.server.metrics import DECLARATIONS
from signalhub.testing import RunningHub, run_hub
from signalhub.wire.errors import Code


@pytest.fixture
async def hub() -> AsyncIterator[RunningHub]:
    async with run_hub() as running:
        yield running


def scrape(hub: RunningHub) -> dict[str, Metric]:
    """The page as a scraper reads it, by full metric name."""
    text = b"".join(hub.app._metrics.pieces()).decode()
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
    }


def value_of(metrics: dict[str, Metric], name: str) -> float:
    (sample,) = metrics[f"signal_hub_{name}"].samples
    return sample.value


def counted(of: object) -> Iterator[tuple[object, str]]:
    """Every field of a tally and of those within it, with its owner."""
    assert dataclasses.is_dataclass(of)
    for field in dataclasses.fields(of):
        value = getattr(of, field.name)
        if dataclasses.is_dataclass(value):
            yield from counted(value)
        elif isinstance(value, int):
            yield of, field.name


def histograms(of: object) -> list[Histogram]:
    assert dataclasses.is_dataclass(of)
    values = [getattr(of, field.name) for field in dataclasses.fields(of)]
    found = [value for value in values if isinstance(value, Histogram)]
    return found + [
        one for value in values if dataclasses.is_dataclass(value) for one in histograms(value)
    ]


async def test_exactly_what_is_declared_is_exported(hub: RunningHub) -> None:
    declared = {one.name: one.kind for one in DECLARATIONS}
    declared |= {one.name: one.kind for one in SUBSCRIPTIONS}
    declared |= {name: kind for name, (kind, _) in PROCESS.items()}

    exported = {name: metric.type for name, metric in scrape(hub).items()}

    assert exported == declared


async def test_no_metric_has_labels_that_are_not_declared(hub: RunningHub) -> None:
    declared = {one.name: {*one.labels} for one in DECLARATIONS}
    declared |= {one.name: {*one.labels} for one in SUBSCRIPTIONS}

    for name, metric in scrape(hub).items():
        labels = {label for sample in metric.samples for label in sample.labels}
        assert labels - {"le"} == declared.get(name, set())


async def test_every_number_of_the_tally_is_exported_once(hub: RunningHub) -> None:
    tally = hub.app.hub.tally
    for number, (owner, name) in enumerate(counted(tally), 1_000):
        setattr(owner, name, number)

    metrics = scrape(hub)
    shown = [
        sample.value
        for declaration in DECLARATIONS
        if declaration.kind == "counter" and not declaration.labels
        for sample in metrics[declaration.name].samples
        if sample.value >= 1_000
    ]

    missing = {getattr(owner, name) for owner, name in counted(tally)} - set(shown)
    # Losses are shown together with those the log itself has met; mailboxes drop nothing else.
    assert missing == {tally.loss_events, tally.mailboxes.dropped}
    assert len(shown) == len(set(shown))
    losses = tally.loss_events + tally.log.epoch_changes
    assert value_of(metrics, "loss_events") == losses


async def test_every_histogram_of_the_tally_is_exported_once(hub: RunningHub) -> None:
    kept = histograms(hub.app.hub.tally)
    for number, one in enumerate(kept, 1_000):
        one.sum_s = float(number)

    metrics = scrape(hub)

    sums = [
        sample.value
        for declaration in DECLARATIONS
        if declaration.kind == "histogram"
        for sample in metrics[declaration.name].samples
        if sample.name.endswith("_sum")
    ]
    assert sorted(sums) == [one.sum_s for one in kept]


async def test_errors_are_labelled_by_code_from_a_closed_set(hub: RunningHub) -> None:
    tally: Tally = hub.app.hub.tally
    tally.count_error(Code.RATE_LIMITED)
    tally.count_error(Code.RATE_LIMITED)
    tally.count_error("invented by a stranger")
    tally.count_error("another one")

    errors = scrape(hub)["signal_hub_errors_total"]

    shown = {sample.labels["code"]: sample.value for sample in errors.samples}
    assert shown == dict.fromkeys(Code, 0.0) | {Code.RATE_LIMITED: 2.0, "other": 2.0}


async def test_the_log_is_in_exactly_one_state(hub: RunningHub) -> None:
    states = scrape(hub)["signal_hub_log_state"]

    shown = {sample.labels["state"]: sample.value for sample in states.samples}
    assert shown == {"open": 1, "full": 0, "failed": 0, "damaged": 0}


async def test_the_hub_as_it_stands_is_shown(hub: RunningHub) -> None:
    async with signalhub.connect(hub.url, "@(demo/alice)") as alice:
        await alice.create_topic("orders")
        await alice.publish("orders", "order", 1, durable=True)
        await hub.app._gauges.refresh()
        metrics = scrape(hub)
        app = hub.app

        assert value_of(metrics, "actors_total") == 1
        assert value_of(metrics, "capacity_utilization") == app.hub.registry.utilization > 0
        assert value_of(metrics, "connections_active") == 1
        assert value_of(metrics, "message_queue_depth") == 0
        assert value_of(metrics, "dedup_ids") == app.hub.dedup.count > 0
        assert value_of(metrics, "dedup_window_seconds") == app.settings.dedup.window_s
        assert value_of(metrics, "dedup_memory_bytes") == app.hub.dedup.memory_bytes
        assert value_of(metrics, "storage_errors") == 0
        assert value_of(metrics, "storage_usage_bytes") == app._store.size_bytes() > 0
        log = app._engine.log
        assert value_of(metrics, "log_head_offset") == log.head > 0
        assert value_of(metrics, "log_durable_head_offset") == log.durable_head
        assert value_of(metrics, "log_durable_distance") == log.head - log.durable_head
        assert value_of(metrics, "log_waiting_entries") == app._engine.waiting
        assert value_of(metrics, "log_segments") == 1
        assert value_of(metrics, "log_size_bytes") == log.segments[0].bytes
        assert value_of(metrics, "cursor_age_seconds") == 0
        assert value_of(metrics, "mailboxes") == 0
        assert value_of(metrics, "mailbox_waiting") == 0
        assert value_of(metrics, "placements") == 0
        assert value_of(metrics, "rooms") == value_of(metrics, "inboxes") == 0


async def test_a_hub_without_a_lake_shows_none(hub: RunningHub) -> None:
    metrics = scrape(hub)

    names = [one.name for one in DECLARATIONS if "_pipeline_" in one.name]
    assert names
    assert {sample.value for name in names for sample in metrics[name].samples} == {0.0}
