"""From measurements to published figures: statistics, plans, goals and reports."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, get_args

import pytest

from bench.actors import alarms, calls, pairs, peers
from bench.actors.__main__ import SUBJECTS
from bench.actors.goals import GOALS as ACTOR_GOALS
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
from bench.goals import GOALS
from bench.lake.goals import GOALS as LAKE_GOALS
from bench.report import notes, to_json
from bench.room_crowds import highest
from bench.servers import HUB, JETSTREAM_SYNC, NATS
from bench.session import Run, Session, plan
from bench.shapes import SHAPES
from bench.subject_report import ratios
from bench.subject_report import to_json as subjects_to_json
from bench.subjects import Results, Sample

CELLS = [Run(shape, server) for shape in SHAPES for server in shape.servers]
SPREAD = next(shape for shape in SHAPES if shape.name == "p2p-spread")
EVERY_FIGURE: dict[Figure, float] = dict.fromkeys(get_args(Figure), 12.0)


def summary(figures: dict[Figure, float]) -> Summary:
    return summarise([Measurement(figures)])


def session_of(hub_cpu_us: float, nats_cpu_us: float) -> Session:
    session = Session(seed=5)
    for server, cpu_us in ((HUB, hub_cpu_us), (NATS, nats_cpu_us)):
        figures: dict[Figure, float] = {"cpu_us": cpu_us, "rate_s": 1e6 / cpu_us}
        figures |= {"server_share": 1.0, "generator_share": 0.4}
        session.measurements["p2p-spread", server.name] = [Measurement(figures)]
    return session


def results(*samples: tuple[str, str, dict[str, float]], share: float = 1.0) -> Results:
    found = Results(seed=1, share=share)
    for subject, case, figures in samples:
        found.add(subject, Sample(case, figures))
    return found


def pairs_of(**rates: float) -> Results:
    return results(
        *(
            (pairs.NAME, getattr(pairs, case), {"rate_s": rate, "cpu_us": 1e6 / rate})
            for case, rate in rates.items()
        )
    )


def test_figures_are_percentiles_that_occurred_medians_and_ranges() -> None:
    runs = [Measurement({"cpu_us": 4.0}), Measurement({"cpu_us": 6.0, "p50_us": 70.0}, False)]

    shares = (0.01, 0.07, 0.5, 0.99, 0.995, 1.0)
    assert [percentile(range(1, 101), one) for one in shares] == [1, 7, 50, 99, 100, 100]
    assert percentile([3.5], 0.99) == 3.5
    found = spread([9.0, 1.0, 4.0])
    assert (found.median, found.low, found.high) == (4.0, 1.0, 9.0)
    both = summarise(runs)
    assert (both.runs, both.incomplete) == (2, 1)
    assert [both.median(name) for name in ("cpu_us", "p50_us", "rate_s")] == [5.0, 70.0, None]
    per_call = peers.figures_of(1_000, 0.5, 0.1, 0.3, [0.001, 0.002, 0.003])
    expected = {"rate_s": 2_000, "cpu_us": 400, "server_cpu_us": 100, "p50_ms": 2, "p99_ms": 3}
    assert {name: per_call[name] for name in expected} == pytest.approx(expected)


def test_less_cpu_and_more_rate_are_advantages_over_what_was_measured() -> None:
    assert advantage(summary({"cpu_us": 5.0}), summary({"cpu_us": 10.0}), "cpu_us") == 2.0
    assert advantage(summary({"rate_s": 10.0}), summary({"rate_s": 5.0}), "rate_s") == 2.0
    assert advantage(summary({"cpu_us": 5.0}), None, "cpu_us") is None
    assert advantage(summary({"cpu_us": 5.0}), summary({"rate_s": 5.0}), "cpu_us") is None
    found = ratios(pairs.SUBJECT, pairs_of(OURS=6e3, CELERY=1e3, OUTBOX=6e4).summaries())
    assert found[pairs.CELERY] == {"rate_s": pytest.approx(6.0), "cpu_us": pytest.approx(1 / 6)}
    assert found[pairs.OUTBOX]["rate_s"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"server_share": 0.5, "generator_share": 0.95}, True),
        ({"server_share": 0.95, "generator_share": 0.95}, False),
        ({"server_share": 0.5, "generator_share": 0.5}, False),
        # It spins to keep a schedule.
        ({"server_share": 0.3, "generator_share": 1.0, "lag_us": 200.0}, False),
    ],
)
def test_a_busy_generator_beside_an_idle_server_was_the_limit(
    figures: dict[Figure, float], expected: bool
) -> None:
    assert was_generator_bound(summary(figures)) is expected


def test_every_round_of_a_plan_has_every_cell_once_in_an_order_of_its_own() -> None:
    cells = Counter((cell.shape.name, cell.server.name) for cell in CELLS)
    runs = [(run.shape.name, run.server.name) for run in plan(CELLS, rounds=2, seed=7)]
    first, second = runs[: len(CELLS)], runs[len(CELLS) :]

    assert Counter(first) == Counter(second) == cells
    assert max(cells.values()) == 1
    assert first != second
    assert plan(CELLS, rounds=2, seed=7) == plan(CELLS, rounds=2, seed=7)
    assert all(shape.servers[0].name == HUB.name for shape in SHAPES)


@pytest.mark.parametrize(
    ("text", "shape", "figure", "good", "bad"),
    [
        ("NATS WebSocket, point to point, spread", "p2p-spread", "cpu_us", 2.85, 2.86),
        ("per idle registered", "accept-registered", "connection_bytes", 12_000, 12_001),
        ("upgrade only", "accept", "cpu_us", 4.0, 4.1),
        ("64 in flight, acked", "durable-1x64", "rate_s", 30_000.0, 29_999.0),
        ("to delivery at half load", "wake", "p99_us", 3_000.0, 3_001.0),
        ("idle rooms", "rooms-idle", "server_share", 0.0149, 0.0151),
    ],
)
def test_a_goal_is_judged_by_its_figure(
    text: str, shape: str, figure: Figure, good: float, bad: float
) -> None:
    (goal,) = [one for one in GOALS if text in one.text]
    theirs = summary({"cpu_us": 4.0, "rate_s": 2_000.0})
    others = {(shape, one.name): theirs for one in (NATS, JETSTREAM_SYNC)}

    def judged(value: float) -> str:
        ours = summary({"empty_share": 0.01, figure: value})
        return goal.judge(others | {(shape, HUB.name): ours})

    assert (judged(good), judged(bad), goal.judge({})) == ("pass", "miss", "not measured")


def test_goals_of_actors_and_the_lake_are_judged_by_the_right_cases() -> None:
    def judged(text: str, found: Results) -> tuple[Any, str]:
        (goal,) = [one for one in (*ACTOR_GOALS, *LAKE_GOALS) if text in one.text]
        value = goal.value(found.summaries())
        assert value is not None
        return pytest.approx(value), goal.judge(found.summaries())

    fast, slow = (pairs_of(OURS=6e3, CELERY=rate, CELERY_DEFAULT=100.0) for rate in (1e3, 3e3))
    assert judged("Celery", fast) == (6.0, "pass"), "compared with a Redis that syncs"
    assert judged("Celery", slow) == (2.0, "miss")
    timed = results(
        (calls.NAME, calls.ABROAD, {"p50_us": 1_200.0}), (calls.NAME, calls.AT_HOME, {"p50_us": 20})
    )
    assert judged("call()", timed) == (1.2, "miss"), "the slower kind of call, in milliseconds"
    few = (alarms.NAME, alarms.case_of(10_000), {"first_s": 0.5, "ready_s": 6.0})
    assert judged("first overdue", results(few, share=0.01))[1] == "pass"
    assert judged("first answer", results(few, share=0.01))[1] == "miss"
    sizes = ((20, 10.0), (200, 30.0), (2_000, 14.0))
    growth = results(*(("growth", f"{n} commits", {"plan_ms": ms}) for n, ms in sizes))
    assert judged("planning", growth) == (1.4, "pass"), "the largest lake and the smallest"
    assert {goal.judge({}) for goal in (*ACTOR_GOALS, *LAKE_GOALS)} == {"not measured"}


def test_every_goal_speaks_about_a_shape_that_exists() -> None:
    everything = {(cell.shape.name, cell.server.name): summary(EVERY_FIGURE) for cell in CELLS}

    assert "not measured" not in {goal.judge(everything) for goal in GOALS}


@pytest.mark.parametrize("limit", [450.0, 2_500.0, 9_000.0, 31_000.0])
def test_the_highest_rate_that_holds_is_found(limit: float) -> None:
    assert 0.9 * limit <= highest(lambda rate: rate <= limit, 2_000.0) <= limit
    assert highest(lambda rate: False, 2_000.0) == 0.0


def test_what_weakens_a_figure_is_noted() -> None:
    session = session_of(5.0, 4.0)
    weak = Measurement({"server_share": 0.5, "generator_share": 0.97}, is_complete=False)
    session.measurements["p2p-spread", HUB.name] = [weak]
    session.failures.append("accept on nats-ws: connection refused")

    limit, incomplete, failed = notes(session, session.summaries())

    assert "the generator was the limit" in limit
    assert "1 of 1 runs reached the time limit" in incomplete
    assert "connection refused" in failed
    assert "only 2% of the load" in notes(Session(seed=1, share=0.02), {})[0]


def test_results_hold_ratios_verdicts_and_single_runs() -> None:
    actors = pairs_of(OURS=6_000.0, CELERY=1_000.0)
    actors.add(pairs.NAME, Sample(pairs.OURS, {"rate_s": 8_000.0}))

    found = json.loads(json.dumps(to_json(session_of(5.0, 4.0), {"cores": 2})))
    subjects = json.loads(json.dumps(subjects_to_json(actors, {}, SUBJECTS, ACTOR_GOALS)))

    by_server = {result["server"]: result for result in found["results"]}
    assert by_server["nats-ws"]["hub_advantage"] == {"cpu": 0.8, "wall": pytest.approx(0.8)}
    assert by_server["signalhub"]["each_run"][0]["cpu_us"] == 5.0
    assert (found["seed"], found["conditions"]) == (5, {"cores": 2})
    assert found["goals"][0]["verdict"] == "miss"
    rate = subjects["results"][0]["figures"]["rate_s"]
    assert rate == {"median": 7_000.0, "low": 6_000.0, "high": 8_000.0}
    assert subjects["ratios"][pairs.NAME][pairs.CELERY]["rate_s"] == pytest.approx(7.0)
