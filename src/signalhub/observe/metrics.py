"""What the hub exports to Prometheus; every name is declared here, once.

Counters and histograms come from the core's tally, gauges are asked for when somebody looks.
Labels have closed sets of values; no actor, topic or address ever becomes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Literal, Protocol

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

from signalhub.core.tally import Histogram, Tally
from signalhub.errors import Code

NAMESPACE: Final = "signal_hub"
OTHER_CODE: Final = "other"

Kind = Literal["counter", "gauge", "histogram"]


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


class Declaration(msgspec.Struct, frozen=True):
    """One exported metric: its name, what it means, and what of the hub it shows."""

    name: str
    kind: Kind
    source: str  # A member of `Tally`, or of `Gauges` for a gauge.
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1


def _gauge(name: str, source: str, text: str, divisor: int = 1) -> Declaration:
    return Declaration(f"{NAMESPACE}_{name}", "gauge", source, text, divisor=divisor)


def _counter(name: str, source: str, text: str, labels: tuple[str, ...] = ()) -> Declaration:
    return Declaration(f"{NAMESPACE}_{name}_total", "counter", source, text, labels)


def _histogram(name: str, source: str, text: str) -> Declaration:
    return Declaration(f"{NAMESPACE}_{name}_seconds", "histogram", source, text)


DECLARATIONS: Final = (
    # A gauge despite its suffix: dashboards know it by this name.
    _gauge("actors_total", "actors", "Registered actors."),
    _gauge(
        "capacity_utilization",
        "capacity_utilization",
        "Share of the registry in use, 0 to 1.",
    ),
    _counter("registrations", "registrations", "Registrations and re-registrations accepted."),
    _counter("registrations_refused", "registry_refused", "Registrations refused: registry full."),
    _gauge("connections_active", "connections", "Open WebSocket connections."),
    _counter("connections_opened", "connections_opened", "WebSocket connections accepted."),
    _counter("connections_closed", "connections_closed", "WebSocket connections ended."),
    _counter(
        "connections_refused",
        "connections_refused",
        "Upgrades refused: too many per second, or no capacity.",
    ),
    _counter(
        "handshakes_refused",
        "handshakes_refused",
        "Connections refused for a bad request or origin, or for being late or too big.",
    ),
    _counter("reconnections", "reconnections", "Actors that came back."),
    _counter("messages_received", "received", "Messages received from clients."),
    _counter("messages_sent", "sent", "Messages handed over for clients, replies included."),
    _gauge("message_queue_depth", "queue_depth", "Messages waiting for slow readers, all sockets."),
    _counter("deliveries", "deliveries", "Messages forwarded from one actor to another."),
    _counter("publications", "published", "Messages published to topics."),
    _counter("broadcasts", "broadcasts", "Broadcasts accepted."),
    _counter("broadcast_copies", "broadcast_copies", "Copies of broadcasts queued for recipients."),
    _counter("broadcast_failures", "broadcast_failed", "Copies of broadcasts lost on the way."),
    _counter("duplicates", "duplicates", "Repeated messages answered without a second delivery."),
    _counter("tells_expired", "expired_tells", "Tells dropped because their time had passed."),
    _counter("asks_expired", "expired_asks", "Asks refused because their time had passed."),
    _counter("tells_dropped", "dropped_tells", "Tells dropped: the recipient is too slow or gone."),
    _counter("unknown_targets", "unknown_targets", "Messages to addresses nobody has registered."),
    _counter("rate_limited", "rate_limited", "Messages refused: sent faster than allowed."),
    _counter("pauses", "paused", "Times a sender was asked to pause."),
    _counter("resumes", "resumed", "Times a sender was told to go on."),
    _counter("slow_connections_closed", "slow_closed", "Connections closed: nothing was read."),
    _counter("errors", "errors", "Refusals sent, by code.", labels=("code",)),
    _histogram(
        "delivery_latency",
        "delivery_latency",
        "From receipt of frames to the hand-over of what they caused, per turn of the event loop.",
    ),
    _histogram("ask_latency", "ask_latency", "From receipt of an ask to its acknowledgement."),
    _histogram(
        "broadcast_latency", "broadcast_latency", "From receipt of a broadcast to its last copy."
    ),
    _gauge("dedup_ids", "dedup_entries", "Accepted messages remembered to recognise repeats."),
    _gauge(
        "dedup_window_seconds",
        "dedup_window_ms",
        "How far back repeats are recognised; shrinks when memory runs out.",
        divisor=1000,
    ),
    _gauge("dedup_memory_bytes", "dedup_memory_bytes", "Memory used to recognise repeats."),
    _gauge("storage_errors", "storage_errors", "Writes of the durable registry that failed."),
    _gauge("storage_usage_bytes", "storage_bytes", "Disk used by the durable registry."),
)

# Exported by prometheus-client under `NAMESPACE`, where /proc exists.
PROCESS: Final[dict[str, tuple[Kind, str]]] = {
    f"{NAMESPACE}_process_cpu_seconds_total": ("counter", "CPU time used, user and system."),
    f"{NAMESPACE}_process_resident_memory_bytes": ("gauge", "Memory in use (RSS)."),
    f"{NAMESPACE}_process_virtual_memory_bytes": ("gauge", "Address space in use."),
    f"{NAMESPACE}_process_start_time_seconds": ("gauge", "When the process started."),
    f"{NAMESPACE}_process_open_fds": ("gauge", "Open file descriptors."),
    f"{NAMESPACE}_process_max_fds": ("gauge", "How many file descriptors may be open."),
}


class Metrics:
    """The page at `/metrics`."""

    def __init__(self, tally: Tally, gauges: Gauges) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_HubCollector(tally, gauges))
        ProcessCollector(namespace=NAMESPACE, registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """The page in the text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


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
        value = getattr(self._gauges, declaration.source)() / declaration.divisor
        return GaugeMetricFamily(declaration.name, declaration.help, value=value)

    def _counter(self, declaration: Declaration) -> Metric:
        counted: int | dict[str, int] = getattr(self._tally, declaration.source)
        if isinstance(counted, int):
            return CounterMetricFamily(declaration.name, declaration.help, value=counted)
        family = CounterMetricFamily(declaration.name, declaration.help, labels=declaration.labels)
        for code, count in _by_known_code(counted).items():
            family.add_metric([code], count)
        return family

    def _histogram(self, declaration: Declaration) -> Metric:
        histogram: Histogram = getattr(self._tally, declaration.source)
        bounds = [*map(str, histogram.bounds_s), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
        return HistogramMetricFamily(
            declaration.name, declaration.help, buckets=buckets, sum_value=histogram.sum_s
        )


def _by_known_code(errors: dict[str, int]) -> dict[str, int]:
    """A series per code from the start, so that rates see the first error, and one for the rest."""
    counts = dict.fromkeys([*Code, OTHER_CODE], 0)
    for code, count in errors.items():
        counts[code if code in counts else OTHER_CODE] += count
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


def page() -> str:
    """The reference of all metrics as a Markdown page, ending with a newline."""
    rows = [
        (declaration.name, declaration.kind, declaration.help, declaration.labels)
        for declaration in DECLARATIONS
    ]
    rows += [(name, kind, text, ()) for name, (kind, text) in PROCESS.items()]
    codes = ", ".join(f"`{code}`" for code in (*Code, OTHER_CODE))
    lines = [_INTRODUCTION, "| metric | kind | what it shows |", "|---|---|---|"]
    for name, kind, text, labels in rows:
        labelled = f"{name}{{{','.join(labels)}}}" if labels else name
        lines.append(f"| `{labelled}` | {kind} | {text} |")
    lines += ["", f"The label `code` is one of {codes}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
