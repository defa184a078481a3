"""The rules and the board name only what is exported, and the rules fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

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


SUBSCRIPTION = '{instance="a",topic="orders",subscription="billing",mode="shared"}'

Series = dict[str, str]


def buckets(name: str, counts: Series) -> Series:
    """The buckets of a histogram by their bounds."""
    return {
        f'signal_hub_{name}_seconds_bucket{{le="{bound}"}}': values
        for bound, values in counts.items()
    }


def subscription(**series: str) -> Series:
    """Series of one subscription by the end of their names."""
    return {f"signal_hub_{name}{SUBSCRIPTION}": values for name, values in series.items()}


# Per alert: scenarios that must set it off, as series with one value per minute.
FIRES: dict[str, tuple[Series, ...]] = {
    "SignalHubDown": ({},),
    "SignalHubNearCapacity": ({"signal_hub_capacity_utilization": "0.91x30"},),
    "SignalHubBroadcastSlow": (
        buckets("broadcast_latency", {"120.0": "0+90x30", "300.0": "0+100x30", "+Inf": "0+100x30"}),
    ),
    "SignalHubErrorRateHigh": (
        {
            'signal_hub_errors_total{code="unauthorized"}': "0+3x30",
            'signal_hub_errors_total{code="rate_limited"}': "0+3x30",
            "signal_hub_messages_received_total": "0+100x30",
        },
    ),
    "SignalHubConnectionRateHigh": (
        {
            "signal_hub_connections_opened_total": "0+6000x30",
            "signal_hub_connections_refused_total": "0+3600x30",
        },
    ),
    "SignalHubTellsDropped": ({"signal_hub_tells_dropped_total": "0+1x30"},),
    "SignalHubDedupWindowShortened": ({"signal_hub_dedup_window_seconds": "300x10 200x20"},),
    "SignalHubStorageFailed": (
        {'signal_hub_log_state{state="failed"}': "0x20 1x10"},
        {'signal_hub_log_state{state="damaged"}': "1x30"},
    ),
    "SignalHubStorageFull": ({'signal_hub_log_state{state="full"}': "0x20 1x10"},),
    "SignalHubLogStalled": (
        {
            "signal_hub_log_waiting_entries": "5x30",
            "signal_hub_log_entries_total": "0+100x20 2000x10",
        },
    ),
    "SignalHubMessagesLost": (
        {"signal_hub_messages_lost_total": "0x20 3x10"},
        {"signal_hub_log_epoch_changes_total": "1x30"},
    ),
    "SignalHubWritesRefused": (
        {"signal_hub_log_refused_total": "0+2x30", "signal_hub_log_entries_total": "0+98x30"},
        {"signal_hub_log_refused_total": "0+2x30", "signal_hub_log_entries_total": "9x30"},
    ),
    "SignalHubSyncSlow": (
        buckets("log_fsync", {"0.25": "0+98x30", "0.5": "0+100x30", "+Inf": "0+100x30"}),
    ),
    "SignalHubCursorsNotWritten": ({"signal_hub_cursor_age_seconds": "0x5 30+60x30"},),
    "SignalHubLogUnreadable": ({"signal_hub_log_read_errors_total": "0x5 0+1x30"},),
    "SignalHubSubscriptionBehind": (
        # Nobody consumes: the oldest message gets older, though nothing new comes.
        subscription(subscription_lag_seconds="0+60x30", subscription_lag_messages="12x30"),
        # Consumers are too slow for what is published.
        subscription(subscription_lag_seconds="400x30", subscription_lag_messages="900+5x30"),
    ),
    "SignalHubSubscriptionBlocked": (
        subscription(subscription_blocked="0x15 1x15", subscription_blocked_keys="0x30"),
        subscription(subscription_blocked="0x30", subscription_blocked_keys="0x15 2x15"),
    ),
    "SignalHubMessageUnacknowledged": (
        subscription(subscription_oldest_unacked_seconds="0+60x30"),
    ),
    "SignalHubDeadLettersGrow": (
        subscription(subscription_dead_lettered_total="0x20 1x10"),
        {"signal_hub_mailbox_dead_lettered_total": "0x20 1x10"},
    ),
    "SignalHubWakesMissed": (
        subscription(dispatcher_recovered_wakes_total="0+4x30"),
        {"signal_hub_mailbox_recovered_wakes_total": "0+4x30"},
    ),
    "SignalHubWatchdogBusy": (
        subscription(
            dispatcher_heartbeat_polls_total="0+20x30", dispatcher_notifier_polls_total="0+100x30"
        ),
        # Wakes have died altogether.
        subscription(
            dispatcher_heartbeat_polls_total="0+4x30", dispatcher_notifier_polls_total="70x30"
        ),
    ),
    "SignalHubDispatcherRestarts": (
        subscription(dispatcher_restarts_total="0x20 1x10"),
        {"signal_hub_mailbox_restarts_total": "0x20 1x10"},
    ),
    "SignalHubInboxOverCap": ({"signal_hub_room_pinned_over_cap_total": "0x22 3x8"},),
    "SignalHubInboxPartial": ({"signal_hub_inbox_partial_pages_total": "0+1x30"},),
    "SignalHubPipelineDown": ({"signal_hub_pipeline_down": "0x10 1x20"},),
    "SignalHubPipelineBehind": ({"signal_hub_pipeline_lag_seconds": "0x5 0+60x25"},),
    "SignalHubPipelineRestarts": ({"signal_hub_pipeline_restarts_total": "0x12 0+1x18"},),
    "SignalHubEntriesQuarantined": ({"signal_hub_pipeline_quarantined_total": "0x20 2x10"},),
    "SignalHubArchiveFailing": ({"signal_hub_pipeline_inbox_failures": "0x10 0+1x20"},),
    "SignalHubSegmentsWaiting": ({"signal_hub_segments_waiting": "0x5 1x25"},),
}

# And scenarios that look alike and must not.
QUIET: dict[str, tuple[Series, ...]] = {
    "SignalHubDown": ({"signal_hub_actors_total": "1x30"},),
    "SignalHubNearCapacity": ({"signal_hub_capacity_utilization": "0.9x30"},),
    "SignalHubBroadcastSlow": (
        buckets(
            "broadcast_latency", {"120.0": "0+100x30", "300.0": "0+100x30", "+Inf": "0+100x30"}
        ),
    ),
    "SignalHubErrorRateHigh": (
        {
            'signal_hub_errors_total{code="unauthorized"}': "0+5x30",
            "signal_hub_messages_received_total": "0+100x30",
        },
    ),
    "SignalHubConnectionRateHigh": (
        {
            "signal_hub_connections_opened_total": "0+6000x30",
            "signal_hub_connections_refused_total": "0+2400x30",
        },
    ),
    "SignalHubTellsDropped": ({"signal_hub_tells_dropped_total": "7x30"},),
    "SignalHubDedupWindowShortened": ({"signal_hub_dedup_window_seconds": "300x30"},),
    "SignalHubStorageFailed": (
        {
            'signal_hub_log_state{state="open"}': "1x30",
            'signal_hub_log_state{state="failed"}': "0x30",
            'signal_hub_log_state{state="damaged"}': "0x30",
        },
        {'signal_hub_log_state{state="full"}': "1x30"},
    ),
    "SignalHubStorageFull": ({'signal_hub_log_state{state="full"}': "1x20 0x10"},),
    "SignalHubLogStalled": (
        {"signal_hub_log_waiting_entries": "5x30", "signal_hub_log_entries_total": "0+100x30"},
        {"signal_hub_log_waiting_entries": "0x30", "signal_hub_log_entries_total": "100x30"},
    ),
    "SignalHubMessagesLost": (
        {"signal_hub_messages_lost_total": "0x30", "signal_hub_log_epoch_changes_total": "0x30"},
    ),
    "SignalHubWritesRefused": (
        {"signal_hub_log_refused_total": "0+1x30", "signal_hub_log_entries_total": "0+99x30"},
        # It was bad, and is over.
        {"signal_hub_log_refused_total": "0+9x15 135x15", "signal_hub_log_entries_total": "0+9x30"},
        {"signal_hub_log_refused_total": "0x30", "signal_hub_log_entries_total": "0x30"},
    ),
    "SignalHubSyncSlow": (
        buckets("log_fsync", {"0.25": "0+100x30", "0.5": "0+100x30", "+Inf": "0+100x30"}),
    ),
    "SignalHubCursorsNotWritten": ({"signal_hub_cursor_age_seconds": "0x10 15x20"},),
    "SignalHubLogUnreadable": ({"signal_hub_log_read_errors_total": "4x30"},),
    "SignalHubSubscriptionBehind": (
        # Very many, but all of them young.
        subscription(subscription_lag_seconds="20x30", subscription_lag_messages="0+9000x30"),
        # Far behind, but catching up.
        subscription(
            subscription_lag_seconds="9000-200x30", subscription_lag_messages="90000-2000x30"
        ),
    ),
    "SignalHubSubscriptionBlocked": (
        subscription(subscription_blocked="0x30", subscription_blocked_keys="0x30"),
        subscription(subscription_blocked="0x15 1x5 0x10", subscription_blocked_keys="0x30"),
    ),
    "SignalHubMessageUnacknowledged": (subscription(subscription_oldest_unacked_seconds="599x30"),),
    "SignalHubDeadLettersGrow": (
        subscription(subscription_dead_lettered_total="8x30"),
        subscription(subscription_dead_lettered_total="0 8x29"),
    ),
    "SignalHubWakesMissed": (
        # A wake or two a minute may be late on a busy machine.
        subscription(dispatcher_recovered_wakes_total="0+2x30"),
        subscription(dispatcher_heartbeat_polls_total="0+600x30"),
    ),
    "SignalHubWatchdogBusy": (
        # Quiet topics: one pass of the watchdog outweighs few wakes, and means nothing.
        subscription(
            dispatcher_heartbeat_polls_total="0+1x30", dispatcher_notifier_polls_total="0+1x30"
        ),
        # Busy ones: some are nothing against many wakes.
        subscription(
            dispatcher_heartbeat_polls_total="0+50x30", dispatcher_notifier_polls_total="0+900x30"
        ),
    ),
    "SignalHubDispatcherRestarts": (subscription(dispatcher_restarts_total="2x30"),),
    "SignalHubInboxOverCap": ({"signal_hub_room_pinned_over_cap_total": "7x30"},),
    # One page, once: the archive was away for a moment.
    "SignalHubInboxPartial": ({"signal_hub_inbox_partial_pages_total": "0x22 1x8"},),
    "SignalHubPipelineDown": ({"signal_hub_pipeline_down": "0x30"},),
    # A batch is under way.
    "SignalHubPipelineBehind": ({"signal_hub_pipeline_lag_seconds": "0 5 10 0 5 10 0 5x30"},),
    "SignalHubPipelineRestarts": ({"signal_hub_pipeline_restarts_total": "0x20 1x10"},),
    "SignalHubEntriesQuarantined": ({"signal_hub_pipeline_quarantined_total": "4x30"},),
    "SignalHubArchiveFailing": ({"signal_hub_pipeline_inbox_failures": "0x20 5x10"},),
    "SignalHubSegmentsWaiting": ({"signal_hub_segments_waiting": "0x12 2x18"},),
}


def scenario(alert: str, series: Series, *, is_firing: bool) -> dict[str, Any]:
    """A test of promtool: after 25 minutes the alert has or has not been set off."""
    alerts = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    check = {
        "expr": f"count({alerts}) > bool 0 or vector(0)",
        "eval_time": "25m",
        "exp_samples": [{"labels": "{}", "value": int(is_firing)}],
    }
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
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
    assert FIRES.keys() == QUIET.keys() == EXPRESSIONS.keys()


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
        scenario(alert, series, is_firing=scenarios is FIRES)
        for scenarios in (FIRES, QUIET)
        for alert in scenarios
        for series in scenarios[alert]
    ]
    facts = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}

    code, output = promtool(tmp_path / "all.yml", "test", facts | {"tests": tests})
    assert code == 0, output

    wrong = scenario("SignalHubDown", {"signal_hub_actors_total": "1x30"}, is_firing=True)
    code, output = promtool(tmp_path / "wrong.yml", "test", facts | {"tests": [wrong]})
    assert code != 0
    assert "SignalHubDown" in output
