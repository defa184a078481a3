"""The page at `/metrics` in the text format of Prometheus.

The page is generated in pieces, so that the server can do other work in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Generic, Literal, TypeVar

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

from signalhub.counters import Histogram

NAMESPACE: Final = "signal_hub"
OTHER: Final = "other"
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

Kind = Literal["counter", "gauge", "histogram"]
# A number, `None` if unknown; or a number per value of the label; or durations.
Measured = float | Mapping[str, float] | Histogram | None
S = TypeVar("S")


class Declaration(msgspec.Struct, Generic[S], frozen=True):
    """One exported metric; `measure` returns its current value."""

    name: str
    kind: Kind
    help: str
    measure: Callable[[S], Measured]
    labels: tuple[str, ...] = ()


def gauge(
    name: str, measure: Callable[[S], float | Mapping[str, float] | None], text: str, *labels: str
) -> Declaration[S]:
    """Declare a current value."""
    return Declaration(f"{NAMESPACE}_{name}", "gauge", text, measure, labels)


def counter(
    name: str, measure: Callable[[S], int | Mapping[str, int]], text: str, *labels: str
) -> Declaration[S]:
    """Declare a count since the start of the process."""
    return Declaration(f"{NAMESPACE}_{name}_total", "counter", text, measure, labels)


def histogram(name: str, measure: Callable[[S], Histogram], text: str) -> Declaration[S]:
    """Declare a distribution of durations."""
    return Declaration(f"{NAMESPACE}_{name}_seconds", "histogram", text, measure)


# Exported by prometheus-client under `NAMESPACE`, where /proc exists.
PROCESS: Final[dict[str, tuple[Kind, str]]] = {
    f"{NAMESPACE}_process_cpu_seconds_total": ("counter", "CPU time used, user and system."),
    f"{NAMESPACE}_process_resident_memory_bytes": ("gauge", "Memory in use (RSS)."),
    f"{NAMESPACE}_process_virtual_memory_bytes": ("gauge", "Address space in use."),
    f"{NAMESPACE}_process_start_time_seconds": ("gauge", "When the process started."),
    f"{NAMESPACE}_process_open_fds": ("gauge", "Open file descriptors."),
    f"{NAMESPACE}_process_max_fds": ("gauge", "Limit of open file descriptors."),
}


class Exposition(Collector, Generic[S]):
    """Exports the declared metrics of one source, and those of the process."""

    def __init__(self, declarations: Sequence[Declaration[S]], source: S) -> None:
        self._declarations = declarations
        self._source = source
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(namespace=NAMESPACE, registry=self._registry)

    def page(self) -> bytes:
        """Return the current values of all metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        return (_family(one, one.measure(self._source)) for one in self._declarations)


def _family(declaration: Declaration[S], measured: Measured) -> Metric:
    name, text = declaration.name, declaration.help
    if isinstance(measured, Histogram):
        bounds = [*map(str, measured.bounds_s), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(measured.counts)), strict=True))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=measured.sum_s)
    kind = CounterMetricFamily if declaration.kind == "counter" else GaugeMetricFamily
    if not isinstance(measured, Mapping):
        return kind(name, text, value=measured)
    family = kind(name, text, labels=declaration.labels)
    for label, value in measured.items():
        family.add_metric([label], value)
    return family
