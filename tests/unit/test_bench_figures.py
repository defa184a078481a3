"""The load generator's statistics, plan, goals and report."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
from rich.console import Console

from bench.__main__ import main
from bench.figures import (
    Figure,
    Measurement,
    Summary,
    advantage,
    percentile,
    spread,
    summarise,
    was_generator_bound,
)
from bench.goals import GOALS, Summaries
from bench.report import notes, print_report, progress_line, to_json
from bench.servers import HUB, JETSTREAM_SYNC, NATS, REDIS
from bench.session import Run, Session, plan, without_absent
from bench.shapes import SHAPES

CELLS = [Run(shape, server) for shape in SHAPES for server in shape.servers]
SPREAD = next(shape for shape in SHAPES if shape.name == "p2p-spread")


def summary(figures: dict[Figure, float]) -> Summary:
    return summarise([Measurement(figures)])


def session_of(hub_cpu_us: float, nats_cpu_us: float) -> Session:
    session = Session(seed=5)
    for server, cpu_us in ((HUB, hub_cpu_us), (NATS, nats_cpu_us)):
        session.measurements["p2p-spread", server.name] = [
            Measurement(
                {
                    "cpu_us": cpu_us,
                    "rate_s": 1e6 / cpu_us,
                    "server_share": 1.0,
                    "generator_share": 0.4,
                }
            )
        ]
    return session


def verdicts(summaries: Summaries) -> dict[str, str]:
    return {goal.text: goal.judge(summaries) for goal in GOALS}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1), (0.07, 7), (0.5, 50), (0.99, 99), (0.995, 100), (1.0, 100)]
)
def test_percentiles_are_values_that_occurred(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


def test_the_percentile_of_one_value_is_that_value() -> None:
    assert percentile([3.5], 0.99) == 3.5


def test_a_spread_is_median_and_range() -> None:
    found = spread([9.0, 1.0, 4.0])

    assert (found.median, found.low, found.high) == (4.0, 1.0, 9.0)


def test_runs_are_summarised_figure_by_figure() -> None:
    runs = [
        Measurement({"cpu_us": 4.0}),
        Measurement({"cpu_us": 6.0, "p50_us": 70.0}, is_complete=False),
    ]

    found = summarise(runs)

    assert (found.runs, found.incomplete) == (2, 1)
    assert found.median("cpu_us") == 5.0
    assert found.median("p50_us") == 70.0
    assert found.median("rate_s") is None


def test_needing_half_the_cpu_is_an_advantage_of_two() -> None:
    assert advantage(summary({"cpu_us": 5.0}), summary({"cpu_us": 10.0}), "cpu_us") == 2.0


def test_serving_twice_the_rate_is_an_advantage_of_two() -> None:
    assert advantage(summary({"rate_s": 10.0}), summary({"rate_s": 5.0}), "rate_s") == 2.0


def test_there_is_no_advantage_over_what_was_not_measured() -> None:
    assert advantage(summary({"cpu_us": 5.0}), None, "cpu_us") is None
    assert advantage(summary({"cpu_us": 5.0}), summary({"rate_s": 5.0}), "cpu_us") is None


@pytest.mark.parametrize(
    ("server", "generator", "expected"), [(0.5, 0.95, True), (0.95, 0.95, False), (0.5, 0.5, False)]
)
def test_a_busy_generator_beside_an_idle_server_was_the_limit(
    server: float, generator: float, expected: bool
) -> None:
    found = summary({"server_share": server, "generator_share": generator})

    assert was_generator_bound(found) is expected


def test_a_generator_that_spins_to_keep_a_schedule_was_not_the_limit() -> None:
    assert not was_generator_bound(
        summary({"server_share": 0.3, "generator_share": 1.0, "lag_us": 200.0})
    )


def test_every_round_of_a_plan_has_every_shape_on_every_server_once() -> None:
    cells = [(cell.shape.name, cell.server.name) for cell in CELLS]
    runs = [(run.shape.name, run.server.name) for run in plan(CELLS, rounds=3, seed=1)]

    assert len(runs) == 3 * len(cells)
    for start in range(0, len(runs), len(cells)):
        assert Counter(runs[start : start + len(cells)]) == Counter(cells)


def test_rounds_differ_in_order_and_a_seed_repeats_them() -> None:
    runs = plan(CELLS, rounds=2, seed=7)
    half = len(runs) // 2

    assert runs[:half] != runs[half:]
    assert runs == plan(CELLS, rounds=2, seed=7)
    assert runs != plan(CELLS, rounds=2, seed=8)


def test_a_server_that_is_not_installed_is_left_out_and_named() -> None:
    away = replace(REDIS, program="no-such-program-anywhere")
    shape = replace(SPREAD, servers=(HUB, away))  # type: ignore[type-var]

    cells, absent = without_absent([shape])

    assert [cell.server.name for cell in cells] == [HUB.name]
    assert absent == ["redis-always"]
    session = Session(seed=1, absent=absent)
    assert notes(session, {}) == ["redis-always is not installed here and takes no part"]


def test_a_session_with_a_share_of_the_load_says_so() -> None:
    assert "only 2% of the load" in notes(Session(seed=1, share=0.02), {})[0]


def test_names_of_shapes_are_unique_and_every_shape_measures_the_hub() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert all(shape.servers[0].name == HUB.name for shape in SHAPES)


def test_a_goal_is_judged_by_the_ratio_of_medians() -> None:
    goal = "× NATS WebSocket, point to point, spread"

    assert verdicts(session_of(5.0, 4.0).summaries())[goal] == "pass"
    assert verdicts(session_of(5.1, 4.0).summaries())[goal] == "miss"
    assert verdicts({})[goal] == "not measured"


def test_a_ceiling_is_judged_the_other_way_round() -> None:
    goal = "bytes of memory per idle registered connection"
    key = ("accept-registered", HUB.name)

    assert verdicts({key: summary({"connection_bytes": 12_000.0})})[goal] == "pass"
    assert verdicts({key: summary({"connection_bytes": 12_001.0})})[goal] == "miss"


def test_accepts_per_core_follow_from_the_cpu_of_one() -> None:
    goal = "accepts per second and core, upgrade only"

    assert verdicts({("accept", HUB.name): summary({"cpu_us": 140.0})})[goal] == "pass"
    assert verdicts({("accept", HUB.name): summary({"cpu_us": 150.0})})[goal] == "miss"


def test_every_goal_speaks_about_a_shape_that_exists() -> None:
    every_figure: dict[Figure, float] = dict.fromkeys(get_args(Figure), 1.0)
    everything = {(cell.shape.name, cell.server.name): summary(every_figure) for cell in CELLS}

    assert "not measured" not in verdicts(everything).values()


def test_durable_publishing_is_judged_by_the_rate_of_acks() -> None:
    key = "durable-1x64"
    goal = "× JetStream sync, durable publish and ack, 64 in flight, acked per second"

    def judged(ours: float) -> str:
        rates = {HUB.name: ours, JETSTREAM_SYNC.name: 2_000.0}
        return verdicts({(key, name): summary({"rate_s": rate}) for name, rate in rates.items()})[
            goal
        ]

    assert judged(20_000.0) == "pass"
    assert judged(19_999.0) == "miss"


def test_the_time_to_delivery_is_judged_in_milliseconds() -> None:
    goal = "ms from publication to delivery at half load, 99th percentile"

    assert verdicts({("wake", HUB.name): summary({"p99_us": 5_000.0})})[goal] == "pass"
    assert verdicts({("wake", HUB.name): summary({"p99_us": 5_001.0})})[goal] == "miss"


def test_the_json_holds_ratios_goals_and_single_runs() -> None:
    session = session_of(5.0, 4.0)

    found = json.loads(json.dumps(to_json(session, {"cores": 2})))

    assert found["conditions"] == {"cores": 2}
    assert found["seed"] == 5
    by_server = {result["server"]: result for result in found["results"]}
    assert by_server["nats-ws"]["hub_advantage"] == {"cpu": 0.8, "wall": pytest.approx(0.8)}
    assert by_server["signalhub"]["each_run"][0]["cpu_us"] == 5.0
    assert found["goals"][0]["verdict"] == "pass"


def test_the_report_shows_the_ratio_and_the_verdict() -> None:
    console = Console(file=io.StringIO(), record=True, width=160)

    print_report(console, session_of(5.0, 4.0), SHAPES)

    text = console.export_text()
    assert "point to point, 256 pairs × 4 in flight" in text
    assert "fan-out to 10 000" not in text
    nats_row = next(line for line in text.splitlines() if "nats-ws" in line)
    assert "4.00" in nats_row
    assert "0.80" in nats_row


def test_what_weakens_a_figure_is_noted() -> None:
    session = session_of(5.0, 4.0)
    session.measurements["p2p-spread", HUB.name] = [
        Measurement({"server_share": 0.5, "generator_share": 0.97}, is_complete=False)
    ]
    session.failures.append("accept on nats-ws: connection refused")

    found = notes(session, session.summaries())

    assert len(found) == 3
    assert "the generator was the limit" in found[0]
    assert "1 of 1 runs reached the time limit" in found[1]
    assert "connection refused" in found[2]


def test_a_finished_run_is_one_line_that_says_what_it_cost() -> None:
    run = Run(SPREAD, HUB)
    result = Measurement({"cpu_us": 5.123, "rate_s": 190_000.0})

    line = progress_line(3, 27, run, result, 2.0)

    assert "[  3/27] p2p-spread" in line
    assert "5.12 µs/message" in line
    assert "190,000/s" in line
    assert "failed: no answer" in progress_line(4, 27, run, "no answer", 2.0)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.shape.name}-{cell.server.name}")
def test_every_shape_has_a_table_and_a_line(cell: Run) -> None:
    figures: dict[Figure, float] = dict.fromkeys(get_args(Figure), 12.0)
    session = Session(seed=5)
    session.measurements[cell.shape.name, cell.server.name] = [Measurement(figures)]
    console = Console(file=io.StringIO(), record=True, width=200)

    print_report(console, session, SHAPES)

    assert f"{cell.server.name}" in console.export_text()
    assert "12" in progress_line(1, 1, cell, Measurement(figures), 1.0)


@pytest.mark.parametrize("share", ["0", "1.5", "much"])
def test_a_share_of_the_load_lies_between_nothing_and_all(share: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--share", share])

    assert stopped.value.code == 2


def test_an_unknown_shape_is_refused_with_the_names_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "p2p,nonsense"]) == 2

    said = capsys.readouterr().out
    assert "nonsense" in said
    assert "fanout" in said


def test_without_a_compiler_the_bench_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("bench.native.RESULTS", tmp_path)
    monkeypatch.setenv("PATH", "")

    assert main(["--quick"]) == 2

    assert "no C compiler found" in capsys.readouterr().out
