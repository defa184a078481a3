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

from signalhub.observe.metrics import DECLARATIONS, PROCESS

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
BOARD = DEPLOY / "grafana" / "signal-hub.json"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def exported_series() -> set[str]:
    series = set(PROCESS)
    for declaration in DECLARATIONS:
        is_histogram = declaration.kind == "histogram"
        suffixes = ("_bucket", "_count", "_sum") if is_histogram else ("",)
        series |= {declaration.name + suffix for suffix in suffixes}
    return series


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\bsignal_hub_\w+", expression))


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def board() -> dict[str, Any]:
    return dict(json.loads(BOARD.read_text()))


def expressions_of_the_board() -> list[str]:
    panels = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    return panels + [variable["query"] for variable in board()["templating"]["list"][1:]]


def test_every_rule_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["for"]


def test_every_rule_reads_exported_metrics() -> None:
    for rule in rules():
        assert series_in(rule["expr"])
        assert series_in(rule["expr"]) <= exported_series()


@pytest.mark.parametrize(
    ("alert", "threshold"),
    [
        ("SignalHubNearCapacity", "> 0.90"),
        ("SignalHubBroadcastSlow", "> 120"),
        ("SignalHubErrorRateHigh", "> 0.05"),
        ("SignalHubConnectionRateHigh", "> 150"),
    ],
)
def test_the_thresholds_asked_for_are_kept(alert: str, threshold: str) -> None:
    (rule,) = (rule for rule in rules() if rule["alert"] == alert)

    assert rule["expr"].endswith(threshold)


def test_every_panel_reads_exported_metrics() -> None:
    for expression in expressions_of_the_board():
        assert series_in(expression)
        assert series_in(expression) <= exported_series()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells


def promtool(*arguments: str) -> tuple[int, str]:
    """Exit code and all output."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    code, output = promtool("check", "rules", str(RULES))

    assert code == 0, output
    assert f"{len(rules())} rules found" in output


# Per alert: series with one value per minute that must fire it, and the same that must not.
SCENARIOS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "SignalHubDown": ({}, {"signal_hub_actors_total": "1x30"}),
    "SignalHubNearCapacity": (
        {"signal_hub_capacity_utilization": "0.91x30"},
        {"signal_hub_capacity_utilization": "0.9x30"},
    ),
    "SignalHubBroadcastSlow": (
        {
            'signal_hub_broadcast_latency_seconds_bucket{le="120.0"}': "0+90x30",
            'signal_hub_broadcast_latency_seconds_bucket{le="300.0"}': "0+100x30",
            'signal_hub_broadcast_latency_seconds_bucket{le="+Inf"}': "0+100x30",
        },
        {
            'signal_hub_broadcast_latency_seconds_bucket{le="120.0"}': "0+100x30",
            'signal_hub_broadcast_latency_seconds_bucket{le="300.0"}': "0+100x30",
            'signal_hub_broadcast_latency_seconds_bucket{le="+Inf"}': "0+100x30",
        },
    ),
    "SignalHubErrorRateHigh": (
        {
            'signal_hub_errors_total{code="unauthorized"}': "0+3x30",
            'signal_hub_errors_total{code="rate_limited"}': "0+3x30",
            "signal_hub_messages_received_total": "0+100x30",
        },
        {
            'signal_hub_errors_total{code="unauthorized"}': "0+5x30",
            "signal_hub_messages_received_total": "0+100x30",
        },
    ),
    "SignalHubConnectionRateHigh": (
        {
            "signal_hub_connections_opened_total": "0+6000x30",
            "signal_hub_connections_refused_total": "0+3600x30",
        },
        {
            "signal_hub_connections_opened_total": "0+6000x30",
            "signal_hub_connections_refused_total": "0+2400x30",
        },
    ),
    "SignalHubTellsDropped": (
        {"signal_hub_tells_dropped_total": "0+1x30"},
        {"signal_hub_tells_dropped_total": "7x30"},
    ),
    "SignalHubDedupWindowShortened": (
        {"signal_hub_dedup_window_seconds": "300x10 200x20"},
        {"signal_hub_dedup_window_seconds": "300x30"},
    ),
}


def firing(folder: Path, alert: str, series: dict[str, str]) -> bool:
    """Does the alert fire after 25 minutes? promtool only compares, so ask for silence."""
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "alert_rule_test": [{"eval_time": "25m", "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test))
    code, output = promtool("test", "rules", str(path))
    assert code == 0 or f"alertname: {alert}" in output, output
    return code != 0


def test_every_rule_has_a_scenario() -> None:
    assert SCENARIOS.keys() == {rule["alert"] for rule in rules()}


@needs_promtool
@pytest.mark.parametrize("alert", SCENARIOS)
def test_an_alert_fires_when_it_should_and_only_then(alert: str, tmp_path: Path) -> None:
    bad, good = SCENARIOS[alert]

    assert firing(tmp_path, alert, bad)
    assert not firing(tmp_path, alert, good)
