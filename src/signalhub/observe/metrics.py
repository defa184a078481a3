"""The page at `/metrics`, in the text format of Prometheus, and its reference for people.

Counters and histograms come from the tally, gauges are asked for when somebody looks. The page is
made in pieces, so that whoever serves it can do something else in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from signalhub.counters import Histogram, SubscriptionTally, Tally
from signalhub.observe.declarations import (
    DECLARATIONS,
    LOG_STATES,
    NAMESPACE,
    OTHER,
    PROCESS,
    SUBSCRIPTION_LABELS,
    SUBSCRIPTIONS,
    Declaration,
)
from signalhub.wire.errors import Code

_SLICE: Final = 128


class Reading(msgspec.Struct, gc=False):
    """What can be said about a subscription at one moment."""

    topic: str
    name: str
    mode: str
    tally: SubscriptionTally
    lag: int = 0
    lag_s: float | None = 0.0
    """`None` while nobody knows."""
    unacked_s: float = 0.0
    utilization: float = 0.0
    is_blocked: int = 0
    blocked_keys: int = 0
    consumers: int = 0

    def add(self, other: Reading) -> None:
        """Stand for the other one, too: with the sum, or where there is none with the worst."""
        self.tally.add(other.tally)
        self.lag += other.lag
        self.lag_s = max(self.lag_s or 0.0, other.lag_s or 0.0)
        self.unacked_s = max(self.unacked_s, other.unacked_s)
        self.utilization = max(self.utilization, other.utilization)
        self.is_blocked += other.is_blocked
        self.blocked_keys += other.blocked_keys
        self.consumers += other.consumers


class SubscriptionSeries:
    """The lines of the page that are about subscriptions."""

    def __init__(self, named_max: int) -> None:
        self._named_max = named_max
        # By tally, which lives as long as its subscription; a name may be used again.
        self._labels: dict[SubscriptionTally, str] = {}
        self._unnamed: set[SubscriptionTally] = set()
        self._gone = SubscriptionTally()

    def pieces(self, readings: Sequence[Reading]) -> Iterator[bytes]:
        """One metric after the other; an empty piece is nothing but a pause."""
        self._forget_missing({reading.tally for reading in readings})
        others = Reading(OTHER, "", "", SubscriptionTally())
        others.tally.add(self._gone)
        rows = [(_labels(others), others)]
        for number, reading in enumerate(readings, 1):
            if self._is_named(reading):
                rows.append((self._labels[reading.tally], reading))
            else:
                others.add(reading)
            if number % _SLICE == 0:
                yield b""
        for declaration in SUBSCRIPTIONS:
            yield _family(declaration, rows)

    def _is_named(self, reading: Reading) -> bool:
        tally = reading.tally
        if tally in self._labels:
            return True
        if tally in self._unnamed or len(self._labels) >= self._named_max:
            self._unnamed.add(tally)
            return False
        self._labels[tally] = _labels(reading)
        return True

    def _forget_missing(self, present: set[SubscriptionTally]) -> None:
        for tally in self._labels.keys() - present:
            del self._labels[tally]
        for tally in self._unnamed - present:
            self._unnamed.remove(tally)
            self._gone.add(tally)


def _family(declaration: Declaration, rows: list[tuple[str, Reading]]) -> bytes:
    name, value_of = declaration.name, attrgetter(declaration.source)
    lines = [f"# HELP {name} {declaration.help}", f"# TYPE {name} {declaration.kind}"]
    for labels, reading in rows:
        value = value_of(reading)
        if value is not None:
            lines.append(f"{name}{labels} {float(value)}")
    lines.append("")
    return "\n".join(lines).encode()


def _labels(reading: Reading) -> str:
    values = (reading.topic, reading.name, reading.mode)
    pairs = zip(SUBSCRIPTION_LABELS, map(_escaped, values), strict=True)
    return "{" + ",".join(f'{label}="{value}"' for label, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Gauges(Protocol):
    """What the hub can be asked at any moment."""

    def actors(self) -> int: ...

    def capacity_utilization(self) -> float: ...

    def connections(self) -> int: ...

    def queue_depth(self) -> int: ...

    def dedup_entries(self) -> int: ...

    def dedup_window_ms(self) -> int: ...

    def dedup_memory_bytes(self) -> int: ...

    def storage_bytes(self) -> int: ...

    def storage_errors(self) -> int: ...

    def log_state(self) -> str: ...

    def log_head(self) -> int: ...

    def log_durable_head(self) -> int: ...

    def log_durable_distance(self) -> int: ...

    def log_waiting(self) -> int: ...

    def log_segments(self) -> int: ...

    def log_bytes(self) -> int: ...

    def loss_events(self) -> int: ...

    def cursor_age_ms(self) -> int: ...

    def mailboxes(self) -> int: ...

    def mailbox_waiting(self) -> int: ...

    def placements(self) -> int: ...

    def rooms(self) -> int: ...

    def inboxes(self) -> int: ...

    def room_sockets(self) -> int: ...

    def room_ids(self) -> int: ...

    def room_ids_bytes(self) -> int: ...

    def room_buffer_bytes(self) -> int: ...

    def room_state_bytes(self) -> int: ...

    def unarchived(self) -> int: ...

    def pipeline_down(self) -> int: ...

    def pipeline_position(self) -> int: ...

    def pipeline_lag(self) -> int: ...

    def pipeline_lag_ms(self) -> int: ...

    def pipeline_failures(self) -> int: ...

    def pipeline_inbox_failures(self) -> int: ...

    def pipeline_batch_ms(self) -> int: ...

    def archive_position(self) -> int: ...

    def segments_waiting(self) -> int: ...

    def subscriptions(self) -> Sequence[Reading]: ...


class Metrics:
    """The page at `/metrics`."""

    def __init__(self, tally: Tally, gauges: Gauges, *, subscriptions_max: int) -> None:
        self._gauges = gauges
        self._subscriptions = SubscriptionSeries(subscriptions_max)
        self._registry = CollectorRegistry()
        self._registry.register(_HubCollector(tally, gauges))
        ProcessCollector(namespace=NAMESPACE, registry=self._registry)

    def pieces(self) -> Iterator[bytes]:
        """The page, a few milliseconds of work at a time."""
        yield generate_latest(self._registry)
        yield from self._subscriptions.pieces(self._gauges.subscriptions())


class _HubCollector(Collector):
    def __init__(self, tally: Tally, gauges: Gauges) -> None:
        self._tally = tally
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for declaration in DECLARATIONS:
            match declaration.kind:
                case "gauge":
                    yield self._gauge(declaration)
                case "counter":
                    yield self._counter(declaration)
                case "histogram":
                    yield self._histogram(declaration)

    def _gauge(self, declaration: Declaration) -> Metric:
        value: float | str = getattr(self._gauges, declaration.source)()
        if not isinstance(value, str):
            value /= declaration.divisor
            return GaugeMetricFamily(declaration.name, declaration.help, value=value)
        family = GaugeMetricFamily(declaration.name, declaration.help, labels=declaration.labels)
        for state in LOG_STATES:
            family.add_metric([state], state == value)
        return family

    def _counter(self, declaration: Declaration) -> Metric:
        counted: int | dict[str, int] = attrgetter(declaration.source)(self._tally)
        if isinstance(counted, int):
            return CounterMetricFamily(declaration.name, declaration.help, value=counted)
        family = CounterMetricFamily(declaration.name, declaration.help, labels=declaration.labels)
        for code, count in _by_known_code(counted).items():
            family.add_metric([code], count)
        return family

    def _histogram(self, declaration: Declaration) -> Metric:
        histogram: Histogram = attrgetter(declaration.source)(self._tally)
        bounds = [*map(str, histogram.bounds_s), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
        return HistogramMetricFamily(
            declaration.name, declaration.help, buckets=buckets, sum_value=histogram.sum_s
        )


def _by_known_code(errors: dict[str, int]) -> dict[str, int]:
    """A series per code from the start, so that rates see the first error, and one for the rest."""
    counts = dict.fromkeys([*Code, OTHER], 0)
    for code, count in errors.items():
        counts[code if code in counts else OTHER] += count
    return counts


_INTRODUCTION = """\
# Metrics

The hub answers `GET /metrics` on its own port in the text format of Prometheus.
`deploy/prometheus/alerts.yml` holds alert rules over these names, and
`deploy/grafana/signal-hub.json` a board to import.

Counters begin at zero with the process and only grow; rates come from the query, such as
`rate(signal_hub_messages_received_total[5m])`. Percentiles come from histograms:
`histogram_quantile(0.99, rate(signal_hub_broadcast_latency_seconds_bucket[5m]))`.

This page is printed by `python -m signalhub.observe.metrics`.
"""

_SUBSCRIPTIONS = f"""
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

_HEALTH = """
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


def page() -> str:
    """The reference of all metrics as a Markdown page, ending with a newline."""
    rows = [
        (declaration.name, declaration.kind, declaration.help, declaration.labels)
        for declaration in DECLARATIONS
    ]
    rows += [(name, kind, text, ()) for name, (kind, text) in PROCESS.items()]
    codes = ", ".join(f"`{code}`" for code in (*Code, OTHER))
    states = ", ".join(f"`{state}`" for state in LOG_STATES)
    table = ["| metric | kind | what it shows |", "|---|---|---|"]
    lines = [_INTRODUCTION, *table]
    for name, kind, text, labels in rows:
        labelled = f"{name}{{{','.join(labels)}}}" if labels else name
        lines.append(f"| `{labelled}` | {kind} | {text} |")
    lines += ["", f"The label `code` is one of {codes}.", "", f"`state` is one of {states}."]
    lines += [_SUBSCRIPTIONS, *table]
    lines += [f"| `{one.name}` | {one.kind} | {one.help} |" for one in SUBSCRIPTIONS]
    return "\n".join(lines) + "\n" + _HEALTH


if __name__ == "__main__":
    print(page(), end="")
