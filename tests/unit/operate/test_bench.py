"""Loads on a hub: what they count, what they may be, and what their figures mean."""

from __future__ import annotations

import time
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub import connect
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.bench.latencies import Latencies
from signalhub.operate.bench.loads import LOADS, drive
from signalhub.operate.bench.machine import hub_process, machine_facts
from signalhub.operate.bench.plan import SHAPES, LoadKind, LoadPlan, planned
from signalhub.operate.bench.report import (
    BenchReport,
    changes,
    check_comparable,
    read_report,
    report_of,
)
from signalhub.operate.bench.worker import WorkResult, result_of
from signalhub.testing import run_hub


def plan_of(kind: LoadKind, **options: Any) -> LoadPlan:
    return planned(kind, "r", **{"rate": 100.0, "clients": 4, "seconds": 0.2, "size": 8} | options)


@pytest.mark.parametrize("kind", get_args(LoadKind))
async def test_a_load_sees_every_message_it_sends(kind: LoadKind) -> None:
    plan = plan_of(kind)
    async with run_hub() as hub:
        async with connect(hub.url, "@(demo/alice)") as me:
            await me.create_topic(plan.topic)
        load = LOADS[kind](plan, 0, hub.url, None)
        try:
            await load.prepare()
            start_ns = time.monotonic_ns()
            await drive(load, start_ns, grace_s=10.0)
        finally:
            await load.finish()
        kept = len(hub.app.hub.registry)

    found = report_of(plan, [result_of(load, 0.1)], start_ns=start_ns, hub_cpu_s=0.2, machine={})
    assert (found.sent, found.failed, found.missing) == (plan.messages, {}, 0)
    assert found.received == plan.messages * (plan.clients if SHAPES[kind].is_copied else 1)
    assert 0 < found.latency_ms["p50"] <= found.latency_ms["max"]
    assert found.hub_cpu_us == round(0.2 / found.received * 1e6, 1)
    assert kept == 0


async def test_what_the_hub_refuses_is_counted_by_its_code() -> None:
    plan = plan_of("ask")
    async with run_hub(message_bytes_max=2_000) as hub:
        load = LOADS["ask"](msgspec.structs.replace(plan, size=5_000), 0, hub.url, None)
        try:
            await load.prepare()
            await drive(load, time.monotonic_ns(), grace_s=10.0)
        finally:
            await load.finish()

    assert load.meter.failed == {"message_too_large": plan.messages}
    assert load.meter.received == 0


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_a_percentile_is_exact_to_a_thousandth_also_when_histograms_are_added(
    values: list[int],
) -> None:
    parts = Latencies(), Latencies()
    for index, us in enumerate(values):
        parts[index % 2].add(us)
    whole = Latencies()
    for part in parts:
        whole.merge(Latencies(part.counts, part.largest_us))

    assert (whole.count, whole.largest_us) == (len(values), max(values))
    for percent in (50.0, 99.0):
        rank = max(1, -(-len(values) * percent // 100))
        exact = sorted(values)[int(rank) - 1]
        found = whole.percentile_us(percent)
        assert found is not None
        assert exact * 0.999 - 1 <= found <= exact


def test_without_a_latency_there_is_no_percentile() -> None:
    assert Latencies().percentile_us(50.0) is None
    assert Latencies().figures_ms() == {}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"rate": 0.0}, "a rate of 0"),
        ({"rate": 1e6}, "--rate"),
        ({"seconds": 601.0}, "--for"),
        ({"size": 2**20}, "--size"),
        ({"clients": 1}, "--clients"),
        ({"rate": 50_000.0, "seconds": 600.0}, "number of messages"),
    ],
)
def test_a_load_is_bounded(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        plan_of("tell", **options)


def test_copies_are_bounded_together() -> None:
    with pytest.raises(InvalidArgument, match="number of copies"):
        plan_of("fanout", rate=1_000.0, clients=5_000, seconds=10.0)


def test_the_clients_are_shared_out_and_each_process_has_enough_of_them() -> None:
    plan = plan_of("tell", clients=7, processes=9)

    assert plan.processes == 3
    assert [len(plan.clients_of(one)) for one in range(3)] == [2, 2, 3]
    assert [*plan.clients_of(2)] == [4, 5, 6]


def seen(**figures: Any) -> BenchReport:
    plan = plan_of("durable")
    blank = WorkResult(
        sent=20, received=20, failed={}, latencies={1_000: 20}, largest_us=1_000, lags={0: 20},
        largest_lag_us=0, last_ns=10**9, cpu_s=0.1,
    )  # fmt: skip
    result = msgspec.structs.replace(blank, **figures)
    return report_of(plan, [result, result], start_ns=0, hub_cpu_s=0.004, machine={"cores": 2})


def test_results_of_processes_are_added_and_survive_being_written() -> None:
    found = seen(failed={"queue_full": 2}, received=17)

    assert (found.sent, found.received, found.failed) == (40, 34, {"queue_full": 4})
    assert (found.missing, found.rate, found.clients_cpu_s) == (2, 34.0, 0.2)
    assert found.latency_ms["p99"] == 1.0
    assert found.notes == ["4 of 40 failed: 4 queue_full", "2 of 40 did not arrive in time"]
    assert read_report(b"\n" + msgspec.json.encode(found) + b"\n", "x") == found


def test_late_clients_are_named_in_a_note() -> None:
    (note,) = seen(lags={50_000: 20}, largest_lag_us=50_000).notes

    assert "lower --rate" in note


def test_a_comparison_shows_how_many_times_as_much_it_is_now() -> None:
    before, now = seen(), seen(latencies={2_000: 20}, largest_us=2_000)

    ratios = {one.name: one.ratio for one in changes(before, now)}

    assert ratios["rate"] == 1.0
    assert ratios["hub_cpu_us"] == 1.0
    assert 1.99 < (ratios["latency_ms.p99"] or 0) < 2.01


def test_only_results_of_the_same_load_are_compared() -> None:
    check_comparable(seen(), plan_of("durable"))
    for plan in (plan_of("ask"), plan_of("durable", rate=50.0)):
        with pytest.raises(InvalidArgument, match="another load: durable rate=100"):
            check_comparable(seen(), plan)
    with pytest.raises(InvalidArgument, match="is not a result"):
        read_report(b"{}", "x.json")


async def test_the_process_of_a_local_hub_is_found_and_its_cpu_read() -> None:
    async with run_hub() as hub:
        found = hub_process(hub.url)
        elsewhere = hub_process("ws://hub.example:8787/ws")

    assert elsewhere is None
    assert found is not None
    assert (found.cpu_s() or 0) > 0
    assert machine_facts()["cores"] >= 1
