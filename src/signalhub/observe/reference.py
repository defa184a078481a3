"""The reference of all metrics for people, as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from signalhub.observe.exposition import OTHER, PROCESS, Declaration
from signalhub.observe.subscriptions import SUBSCRIPTIONS
from signalhub.wire.errors import Code

_INTRODUCTION: Final = """\
# Metrics

The hub answers `GET /metrics` on its own port in the text format of Prometheus.
`deploy/prometheus/alerts.yml` holds alert rules over these names, and
`deploy/grafana/signal-hub.json` a board to import.

Counters begin at zero with the process and only grow; rates come from the query, such as
`rate(signal_hub_messages_received_total[5m])`. Percentiles come from histograms:
`histogram_quantile(0.99, rate(signal_hub_broadcast_latency_seconds_bucket[5m]))`.

This page is printed by `python -m signalhub.server.metrics`.
"""

_SUBSCRIPTIONS: Final = f"""
## Subscriptions

These have the labels `topic`, `subscription` and `mode`, with or without a consumer attached. Only
`metrics_subscriptions_max` subscriptions have series of their own; all others share the series
`topic="{OTHER}"` with an empty `subscription`, where a gauge in seconds or of a share is the worst
of them and everything else the sum. Mailboxes never have series of their own: what they count is
above, for all together.

Lag is judged by its seconds and by whether it grows, not by the number of messages. Dispatch passes
that the watchdog begins are harmless; `signal_hub_dispatcher_recovered_wakes_total` counts those
that should not have been necessary.
"""

_HEALTH: Final = """
## Health

`GET /health` answers with `"status": "ok"`, or `"degraded"` and the reasons in `degradations`. The
status of the answer is 503 when the log takes no more entries until a restart: asks and durable
publishes are refused then, while everything else goes on.

| reason | status | what it means |
|---|---|---|
| `registry_near_capacity` | 200 | More actors than `registry.warn_above` of the limit. |
| `dedup_window_shortened` | 200 | Repeats are recognised for less than `dedup.window_s`. |
| `log_entries_lost` | 200 | Entries that had been shown were gone at the start. |
| `registry_not_written` | 200 | The durable registry could not be written. |
| `pipeline_down` | 200 | For a minute the pipeline has been away, failing or standing still. |
| `archive_failing` | 200 | Six times in a row messages of rooms could not be archived. |
| `storage_full` | 200 | The disk is full: durable messages are refused until there is room. |
| `storage_failed` | 503 | The disk failed: restart the hub, which checks the log. |
| `storage_damaged` | 503 | The log is damaged, read-only: `signalhub log verify` says where. |

A subscription that is blocked or behind is not the hub's illness; its metrics tell of it.
"""


def page(declarations: Sequence[Declaration[Any]], states: Sequence[str]) -> str:
    """The page, ending with a newline; `states` are those of the log."""
    rows = [
        (declaration.name, declaration.kind, declaration.help, declaration.labels)
        for declaration in declarations
    ]
    rows += [(name, kind, text, ()) for name, (kind, text) in PROCESS.items()]
    codes = ", ".join(f"`{code}`" for code in (*Code, OTHER))
    state = ", ".join(f"`{one}`" for one in states)
    table = ["| metric | kind | what it shows |", "|---|---|---|"]
    lines = [_INTRODUCTION, *table]
    for name, kind, text, labels in rows:
        labelled = f"{name}{{{','.join(labels)}}}" if labels else name
        lines.append(f"| `{labelled}` | {kind} | {text} |")
    lines += ["", f"The label `code` is one of {codes}.", "", f"`state` is one of {state}."]
    lines += [_SUBSCRIPTIONS, *table]
    lines += [f"| `{one.name}` | {one.kind} | {one.help} |" for one in SUBSCRIPTIONS]
    return "\n".join(lines) + "\n" + _HEALTH
