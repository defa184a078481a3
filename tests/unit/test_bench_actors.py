"""The benchmarks of durable actors: what they ask for, count and conclude, without a hub."""

from __future__ import annotations

import json
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.actors import alarms, calls, crowd, pairs, peers
from bench.actors.__main__ import SUBJECTS
from bench.actors.goals import GOALS
from bench.actors.roles import TOOK_S, Callee, Caller, Keeper, Neighbour
from bench.actors.single import single
from bench.goal import Goal
from bench.peers import sqlite_outbox
from bench.servers import REDIS, Server
from bench.subject_report import print_report, ratios, to_json
from bench.subject_session import choose
from bench.subjects import Results, Sample, Subject, Summaries
from signalhub.actors import op
from signalhub.actors.host.host import FILE
from signalhub.actors.store.store import HostStore
from signalhub.testing.local_actors import LocalActors


def pairs_results(**rates: float) -> Results:
    results = Results(seed=1, share=1.0)
    for case, rate in rates.items():
        results.add(
            pairs.NAME, Sample(getattr(pairs, case), {"rate_s": rate, "cpu_us": 1e6 / rate})
        )
    return results


def goal_about(text: str) -> Goal[Summaries]:
    (found,) = [one for one in GOALS if text in one.text]
    return found


def test_a_goal_nobody_measured_is_neither_reached_nor_missed() -> None:
    assert {goal.judge({}) for goal in GOALS} == {"not measured"}


@pytest.mark.parametrize(("celery", "verdict"), [(1_000.0, "pass"), (3_000.0, "miss")])
def test_celery_is_compared_by_the_rates_of_a_redis_that_syncs(celery: float, verdict: str) -> None:
    results = pairs_results(OURS=6_000.0, CELERY=celery, CELERY_DEFAULT=100.0)
    goal = goal_about("Celery")

    assert goal.value(results.summaries()) == pytest.approx(6_000 / celery)
    assert goal.judge(results.summaries()) == verdict


def test_the_slower_kind_of_call_is_judged_and_in_milliseconds() -> None:
    results = Results(seed=1, share=1.0)
    results.add(calls.NAME, Sample(calls.ABROAD, {"p50_us": 1_200.0}))
    results.add(calls.NAME, Sample(calls.AT_HOME, {"p50_us": 20.0}))
    goal = goal_about("call()")

    assert goal.value(results.summaries()) == pytest.approx(1.2)
    assert goal.judge(results.summaries()) == "miss"


def test_alarms_are_judged_whatever_the_share_of_them() -> None:
    results = Results(seed=1, share=0.01)
    results.add(alarms.NAME, Sample(alarms.case_of(10_000), {"first_s": 0.5, "ready_s": 6.0}))

    assert goal_about("first overdue").judge(results.summaries()) == "pass"
    assert goal_about("first answer").judge(results.summaries()) == "miss"


def test_ratios_are_ours_divided_by_each_peer() -> None:
    results = pairs_results(OURS=6_000.0, CELERY=1_000.0, OUTBOX=60_000.0)

    found = ratios(pairs.SUBJECT, results.summaries())

    assert found[pairs.CELERY] == {"rate_s": pytest.approx(6.0), "cpu_us": pytest.approx(1 / 6)}
    assert found[pairs.OUTBOX]["rate_s"] == pytest.approx(0.1)
    assert ratios(calls.SUBJECT, results.summaries()) == {}


def test_the_report_shows_subjects_ratios_goals_and_what_is_missing() -> None:
    results = pairs_results(OURS=6_000.0, CELERY=1_000.0)
    note = "without Celery: redis-server is not installed"
    results.add(pairs.NAME, Sample(pairs.OURS, {"rate_s": 6_000.0}, note))
    console = Console(file=StringIO(), width=200)

    print_report(console, results, SUBJECTS, GOALS)

    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "signalhub ÷ the others" in shown
    assert "6,000" in shown
    assert "not measured" in shown
    assert note in shown


def test_the_json_has_every_run_the_ratios_and_the_goals() -> None:
    results = pairs_results(OURS=6_000.0, CELERY=1_000.0)
    results.add(pairs.NAME, Sample(pairs.OURS, {"rate_s": 8_000.0}))

    facts = json.loads(json.dumps(to_json(results, {"cores": 2}, SUBJECTS, GOALS)))

    ours = facts["results"][0]
    assert (ours["case"], ours["runs"]) == (pairs.OURS, 2)
    assert ours["figures"]["rate_s"] == {"median": 7_000.0, "low": 6_000.0, "high": 8_000.0}
    assert facts["ratios"][pairs.NAME][pairs.CELERY]["rate_s"] == pytest.approx(7.0)
    assert len(facts["goals"]) == len(GOALS)


def test_subjects_are_chosen_by_name() -> None:
    def names(subjects: list[Subject]) -> list[str]:
        return [one.name for one in subjects]

    assert names(choose(None, SUBJECTS)) == ["call", "pairs", "concurrent", "alarms"]
    assert names(choose("alarms, call", SUBJECTS)) == ["call", "alarms"]
    with pytest.raises(ValueError, match="no subject is called calls"):
        choose("calls", SUBJECTS)


def test_figures_of_a_run_are_per_call() -> None:
    figures = peers.figures_of(1_000, 0.5, 0.1, 0.3, [0.001, 0.002, 0.003])

    assert figures["rate_s"] == pytest.approx(2_000)
    assert figures["cpu_us"] == pytest.approx(400)
    assert figures["server_cpu_us"] == pytest.approx(100)
    assert [figures["p50_ms"], figures["p99_ms"]] == pytest.approx([2.0, 3.0])


def test_a_redis_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = Server(name="none", command=lambda _: [], ready="", program="no-such-redis")
    monkeypatch.setattr(peers, "find_spec", lambda name: name)

    assert "apt-get install redis-server" in peers.celery_problem(absent)

    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert "Celery is not installed" in peers.celery_problem(REDIS)


@pytest.mark.parametrize(("chains", "length"), [(1, 1), (3, 4)])
def test_the_callers_answer_is_the_number_of_calls_that_were_made(chains: int, length: int) -> None:
    actors = LocalActors(Caller, Callee)

    assert actors.call("caller/1", op(Caller.keep_in_flight, chains, length)) == chains * length
    assert actors.kernel.counters.continuations == chains * length
    actors.close()


def test_the_callers_of_a_crowd_and_of_a_row_hear_of_every_call() -> None:
    actors = LocalActors(Caller, Callee)

    assert actors.call("caller/1", op(Caller.all_at_once, 30, "target")) == 30
    took_s = actors.call("caller/1", op(Caller.one_by_one, 5))
    assert len(took_s) == 5
    assert took_s == sorted(took_s)
    actors.close()


@pytest.mark.parametrize("kind", [Callee.kind, Neighbour.kind])
def test_calls_are_timed_in_a_handler_and_leave_nothing_to_do(tmp_path: Path, kind: str) -> None:
    with single(tmp_path, [Caller, Neighbour], [Callee.kind], now_ms=None) as host:
        TOOK_S.clear()
        host.request("caller/1", op(Caller.timed_calls, 7, kind))

        assert len(TOOK_S) == 7
        assert not host.kernel.has_work
        made = host.kernel.counters.continuations
        assert made == (7 if kind == Neighbour.kind else 0)


def test_alarms_that_were_set_are_overdue_and_those_of_the_store_are_not(tmp_path: Path) -> None:
    alarms.fill(tmp_path, 2_000)
    figures = alarms.set_alarms(tmp_path, 200)
    assert figures["set_rate_s"] > 0

    Keeper.fired = 0
    with single(tmp_path, [Keeper], now_ms=time.time_ns() // 1_000_000) as host:
        for _ in range(5):
            host.kernel.turn([], host.now_ms)
    assert Keeper.fired == 200
    store = HostStore(tmp_path / FILE)
    assert store.execute("SELECT count(*) FROM alarms").get == 2_000
    store.close()


def test_the_bare_outbox_prints_its_time_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "outbox.db"

    sqlite_outbox.main(str(file), 250, 100, 3)

    took, row = map(json.loads, capsys.readouterr().out.splitlines())
    assert took.keys() == {"seconds", "cpu_s"}
    assert len(row) == 3


def test_the_crowd_is_as_large_as_its_goal_says() -> None:
    assert f"{crowd.TARGETS:,}" in goal_about("came back").text
