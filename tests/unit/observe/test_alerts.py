"""The rules and the board name only what is exported, and the rules fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from signalhub.observe.exposition import PROCESS, Declaration
from signalhub.observe.subscriptions import SUBSCRIPTIONS
from signalhub.server.metrics import DECLARATIONS

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
BOARD = DEPLOY / "grafana" / "signal-hub.json"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


(GROUP,) = yaml.safe_load(RULES.read_text())["groups"]
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in GROUP["rules"]}
PANELS = json.loads(BOARD.read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = json.loads(BOARD.read_text())["templating"]["list"][1:]
# What was asked for.
THRESHOLDS = {
    "SignalHubNearCapacity": "> 0.90",
    "SignalHubBroadcastSlow": "> 120",
    "SignalHubErrorRateHigh": "> 0.05",
    "SignalHubConnectionRateHigh": "> 150",
    "SignalHubWatchdogBusy": "> 0.05",
    "SignalHubWakesMissed": "> 0.05",
}
SHOWN = {
    "signal_hub_subscription_lag_messages",
    "signal_hub_subscription_lag_seconds",
    "signal_hub_dispatcher_notifier_polls_total",
    "signal_hub_dispatcher_heartbeat_polls_total",
    "signal_hub_dispatcher_recovered_wakes_total",
    "signal_hub_subscription_redelivered_total",
    "signal_hub_subscription_dead_lettered_total",
    "signal_hub_log_fsync_seconds_bucket",
    "signal_hub_log_size_bytes",
    "signal_hub_log_state",
    "signal_hub_loss_events",
}


def exported_series() -> set[str]:
    series = set(PROCESS)
    declarations: list[Declaration[Any]] = [*DECLARATIONS, *SUBSCRIPTIONS]
    for declaration in declarations:
        is_histogram = declaration.kind == "histogram"
        suffixes = ("_bucket", "_count", "_sum") if is_histogram else ("",)
        series |= {declaration.name + suffix for suffix in suffixes}
    return series


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\bsignal_hub_\w+", expression))


def test_rules_and_panels_read_exported_metrics() -> None:
    variables = [variable["query"] for variable in VARIABLES]

    for expression in (*EXPRESSIONS.values(), *QUERIES, *variables):
        assert series_in(expression)
        assert series_in(expression) <= exported_series()
    assert set().union(*map(series_in, QUERIES)) >= SHOWN


def test_every_rule_says_what_is_wrong_and_what_to_do() -> None:
    for rule in GROUP["rules"]:
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["for"]
    for alert, threshold in THRESHOLDS.items():
        assert EXPRESSIONS[alert].endswith(threshold)


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        columns, rows = (range(place[at], place[at] + place[size]) for at, size in ("xw", "yh"))
        cells = {(x, y) for x in columns for y in rows}
        assert max(columns) < 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


OF_BILLING = '{instance="a",topic="orders",subscription="billing",mode="shared"}'


class Scenarios(NamedTuple):
    """Values of series that must set an alert off, and those that look alike and must not.

    There is one value per minute; a series without values is absent.
    """

    series: list[str]
    fires: list[list[str]]
    quiet: list[list[str]]


def one(name: str, fires: str, quiet: str) -> Scenarios:
    return Scenarios([name], [[fires]], [[quiet]])


def buckets(name: str, *bounds: str) -> list[str]:
    return [f'{name}_seconds_bucket{{le="{bound}"}}' for bound in bounds]


def billing(*names: str) -> list[str]:
    return [f"{name}{OF_BILLING}" for name in names]


ALERTS = {
    "Down": one("actors_total", "", "1x30"),
    "NearCapacity": one("capacity_utilization", "0.91x30", "0.9x30"),
    "BroadcastSlow": Scenarios(
        buckets("broadcast_latency", "120.0", "300.0", "+Inf"),
        [["0+90x30", "0+100x30", "0+100x30"]],
        [["0+100x30", "0+100x30", "0+100x30"]],
    ),
    "ErrorRateHigh": Scenarios(
        [
            'errors_total{code="unauthorized"}',
            'errors_total{code="rate_limited"}',
            "messages_received_total",
        ],
        [["0+3x30", "0+3x30", "0+100x30"]],
        [["0+5x30", "", "0+100x30"]],
    ),
    "ConnectionRateHigh": Scenarios(
        ["connections_opened_total", "connections_refused_total"],
        [["0+6000x30", "0+3600x30"]],
        [["0+6000x30", "0+2400x30"]],
    ),
    "TellsDropped": one("tells_dropped_total", "0+1x30", "7x30"),
    "DedupWindowShortened": one("dedup_window_seconds", "300x10 200x20", "300x30"),
    "StorageFailed": Scenarios(
        [f'log_state{{state="{state}"}}' for state in ("open", "failed", "damaged", "full")],
        [["", "0x20 1x10", "", ""], ["", "", "1x30", ""]],
        [["1x30", "0x30", "0x30", ""], ["", "", "", "1x30"]],
    ),
    "StorageFull": one('log_state{state="full"}', "0x20 1x10", "1x20 0x10"),
    "LogStalled": Scenarios(
        ["log_waiting_entries", "log_entries_total"],
        [["5x30", "0+100x20 2000x10"]],
        [["5x30", "0+100x30"], ["0x30", "100x30"]],
    ),
    "MessagesLost": Scenarios(
        ["messages_lost_total", "log_epoch_changes_total"],
        [["0x20 3x10", ""], ["", "1x30"]],
        [["0x30", "0x30"]],
    ),
    "WritesRefused": Scenarios(
        ["log_refused_total", "log_entries_total"],
        [["0+2x30", "0+98x30"], ["0+2x30", "9x30"]],
        # The second was bad, and is over.
        [["0+1x30", "0+99x30"], ["0+9x15 135x15", "0+9x30"], ["0x30", "0x30"]],
    ),
    "SyncSlow": Scenarios(
        buckets("log_fsync", "0.25", "0.5", "+Inf"),
        [["0+98x30", "0+100x30", "0+100x30"]],
        [["0+100x30", "0+100x30", "0+100x30"]],
    ),
    "CursorsNotWritten": one("cursor_age_seconds", "0x5 30+60x30", "0x10 15x20"),
    "LogUnreadable": one("log_read_errors_total", "0x5 0+1x30", "4x30"),
    "SubscriptionBehind": Scenarios(
        billing("subscription_lag_seconds", "subscription_lag_messages"),
        # Nobody consumes, so the oldest gets older; or consumers are too slow for what is new.
        [["0+60x30", "12x30"], ["400x30", "900+5x30"]],
        # Very many, but all of them young; or far behind, but catching up.
        [["20x30", "0+9000x30"], ["9000-200x30", "90000-2000x30"]],
    ),
    "SubscriptionBlocked": Scenarios(
        billing("subscription_blocked", "subscription_blocked_keys"),
        [["0x15 1x15", "0x30"], ["0x30", "0x15 2x15"]],
        [["0x30", "0x30"], ["0x15 1x5 0x10", "0x30"]],
    ),
    "MessageUnacknowledged": Scenarios(
        billing("subscription_oldest_unacked_seconds"), [["0+60x30"]], [["599x30"]]
    ),
    "DeadLettersGrow": Scenarios(
        [*billing("subscription_dead_lettered_total"), "mailbox_dead_lettered_total"],
        [["0x20 1x10", ""], ["", "0x20 1x10"]],
        [["8x30", ""], ["0 8x29", ""]],
    ),
    "WakesMissed": Scenarios(
        [
            *billing("dispatcher_recovered_wakes_total", "dispatcher_heartbeat_polls_total"),
            "mailbox_recovered_wakes_total",
        ],
        [["0+4x30", "", ""], ["", "", "0+4x30"]],
        # A wake or two a minute may be late on a busy machine.
        [["0+2x30", "", ""], ["", "0+600x30", ""]],
    ),
    "WatchdogBusy": Scenarios(
        billing("dispatcher_heartbeat_polls_total", "dispatcher_notifier_polls_total"),
        # In the second, wakes have died altogether.
        [["0+20x30", "0+100x30"], ["0+4x30", "70x30"]],
        # On quiet topics one pass outweighs few wakes; on busy ones some are nothing against many.
        [["0+1x30", "0+1x30"], ["0+50x30", "0+900x30"]],
    ),
    "DispatcherRestarts": Scenarios(
        [*billing("dispatcher_restarts_total"), "mailbox_restarts_total"],
        [["0x20 1x10", ""], ["", "0x20 1x10"]],
        [["2x30", ""]],
    ),
    "InboxOverCap": one("room_pinned_over_cap_total", "0x22 3x8", "7x30"),
    # One page, once: the archive was away for a moment.
    "InboxPartial": one("inbox_partial_pages_total", "0+1x30", "0x22 1x8"),
    "PipelineDown": one("pipeline_down", "0x10 1x20", "0x30"),
    # Quiet while a batch is under way.
    "PipelineBehind": one("pipeline_lag_seconds", "0x5 0+60x25", "0 5 10 0 5 10 0 5x30"),
    "PipelineRestarts": one("pipeline_restarts_total", "0x12 0+1x18", "0x20 1x10"),
    "EntriesQuarantined": one("pipeline_quarantined_total", "0x20 2x10", "4x30"),
    "ArchiveFailing": one("pipeline_inbox_failures", "0x10 0+1x20", "0x20 5x10"),
    "SegmentsWaiting": one("segments_waiting", "0x5 1x25", "0x12 2x18"),
}


def scenario(alert: str, series: list[str], values: list[str], is_firing: bool) -> dict[str, Any]:
    """A test of promtool: after 25 minutes the alert has or has not been set off."""
    alerts = f'ALERTS{{alertname="SignalHub{alert}",alertstate="firing"}}'
    check = {
        "expr": f"count({alerts}) > bool 0 or vector(0)",
        "eval_time": "25m",
        "exp_samples": [{"labels": "{}", "value": int(is_firing)}],
    }
    given = [(name, each) for name, each in zip(series, values, strict=True) if each]
    return {
        "interval": "1m",
        "input_series": [{"series": f"signal_hub_{name}", "values": each} for name, each in given],
        "promql_expr_test": [check],
    }


def promtool(path: Path, verb: str, content: dict[str, Any]) -> tuple[int, str]:
    """Exit code and all output."""
    assert PROMTOOL is not None
    path.write_text(yaml.safe_dump(content))
    command = [PROMTOOL, verb, "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_rule_has_scenarios() -> None:
    assert {f"SignalHub{alert}" for alert in ALERTS} == EXPRESSIONS.keys()
    assert all(one.fires and one.quiet for one in ALERTS.values())


@needs_promtool
def test_prometheus_accepts_the_rules_and_the_queries_of_the_board(tmp_path: Path) -> None:
    records = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(QUERIES)
    ]

    groups = [GROUP, {"name": "board", "rules": records}]
    code, output = promtool(tmp_path / "rules.yml", "check", {"groups": groups})

    assert code == 0, output
    assert f"{len(EXPRESSIONS) + len(records)} rules found" in output


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    tests = [
        scenario(alert, found.series, values, rows is found.fires)
        for alert, found in ALERTS.items()
        for rows in (found.fires, found.quiet)
        for values in rows
    ]
    facts = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}

    code, output = promtool(tmp_path / "all.yml", "test", facts | {"tests": tests})
    assert code == 0, output

    wrong = scenario("Down", ["actors_total"], ["1x30"], is_firing=True)
    code, output = promtool(tmp_path / "wrong.yml", "test", facts | {"tests": [wrong]})
    assert code != 0
    assert "SignalHubDown" in output
