"""What a load has shown, and how it compares with an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.bench.latencies import Latencies
from signalhub.operate.bench.plan import SHAPES, LoadPlan
from signalhub.operate.bench.worker import WorkResult

# A load that was begun later than this by its own processes says little about the hub.
_LAG_MAX_MS: Final = 10.0
_OPTIONS: Final = ("rate", "clients", "seconds", "size", "processes")


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one load. `latency_ms` counts from the time at which a message was due."""

    kind: str
    plan: dict[str, float]
    sent: int
    received: int
    expected: int
    failed: dict[str, int] = {}
    rate: float = 0.0  # Received in a second, copies included.
    latency_ms: dict[str, float] = {}
    lag_ms: dict[str, float] = {}
    hub_cpu_s: float | None = None  # `None` if the hub is elsewhere.
    hub_cpu_us: float | None = None  # For each message or copy received.
    clients_cpu_s: float = 0.0
    machine: dict[str, Any] = {}

    @property
    def missing(self) -> int:
        """What neither arrived nor failed within the time."""
        return max(0, self.expected - self.received - sum(self.failed.values()))

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures should know."""
        found = []
        if self.failed:
            codes = ", ".join(f"{count} {code}" for code, count in sorted(self.failed.items()))
            found.append(f"{sum(self.failed.values())} of {self.sent} failed: {codes}")
        if self.missing:
            found.append(f"{self.missing} of {self.expected} did not arrive in time")
        if self.lag_ms.get("p99", 0.0) > _LAG_MAX_MS:
            found.append(
                f"the clients themselves were up to {self.lag_ms['p99']:g} ms late in 99 of 100"
                " messages: use a lower --rate, or a machine with more cores"
            )
        return found


def report_of(
    plan: LoadPlan,
    results: Sequence[WorkResult],
    *,
    start_ns: int,
    hub_cpu_s: float | None,
    machine: dict[str, Any],
) -> BenchReport:
    """Put together what the processes have seen."""
    latencies, lags = Latencies(), Latencies()
    failed: dict[str, int] = {}
    for one in results:
        latencies.merge(Latencies(one.latencies, one.largest_us))
        lags.merge(Latencies(one.lags, one.largest_lag_us))
        for code, count in one.failed.items():
            failed[code] = failed.get(code, 0) + count
    sent = sum(one.sent for one in results)
    received = sum(one.received for one in results)
    last_ns = max((one.last_ns for one in results), default=0)
    took_s = (last_ns - start_ns) / 1e9
    hub_cpu_us = None if not received or hub_cpu_s is None else hub_cpu_s / received * 1e6
    copies = plan.clients if SHAPES[plan.kind].is_copied else 1
    return BenchReport(
        kind=plan.kind,
        plan={
            name: getattr(plan, name)
            for name in ("rate", "clients", "seconds", "size", "processes")
        },
        sent=sent,
        received=received,
        expected=sent * copies,
        failed=failed,
        rate=round(received / took_s, 1) if took_s > 0 else 0.0,
        latency_ms=latencies.figures_ms(),
        lag_ms=lags.figures_ms(),
        hub_cpu_s=None if hub_cpu_s is None else round(hub_cpu_s, 3),
        hub_cpu_us=None if hub_cpu_us is None else round(hub_cpu_us, 1),
        clients_cpu_s=round(sum(one.cpu_s for one in results), 3),
        machine=machine,
    )


def _options(plan: LoadPlan) -> dict[str, float]:
    return {name: getattr(plan, name) for name in _OPTIONS}


def read_report(text: bytes, name: str) -> BenchReport:
    """Read the result of an earlier load; raises `InvalidArgument` if it is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=BenchReport)
    except msgspec.MsgspecError:
        raise InvalidArgument(
            f"{name} is not a result of `signalhub bench`",
            "write one with --json: signalhub bench ask --json > before.json",
        ) from None


class Change(msgspec.Struct, frozen=True):
    """One figure before and now."""

    name: str
    before: float
    now: float

    @property
    def ratio(self) -> float | None:
        """How many times as large it is now; `None` if it was nothing before."""
        return round(self.now / self.before, 3) if self.before else None


def check_comparable(before: BenchReport, plan: LoadPlan) -> None:
    """Raise `InvalidArgument` if an earlier result is of another load than this."""
    if before.kind != plan.kind or before.plan != _options(plan):
        asked = " ".join(f"{name}={value:g}" for name, value in before.plan.items())
        raise InvalidArgument(
            f"the earlier result is of another load: {before.kind} {asked}",
            "repeat it with the same options",
        )


def changes(before: BenchReport, now: BenchReport) -> list[Change]:
    """Return what two results have in common, one figure after the other."""
    pairs: list[tuple[str, float | None, float | None]] = [
        ("rate", before.rate, now.rate),
        *(
            (f"latency_ms.{name}", before.latency_ms.get(name), value)
            for name, value in now.latency_ms.items()
        ),
        ("hub_cpu_us", before.hub_cpu_us, now.hub_cpu_us),
        ("clients_cpu_s", before.clients_cpu_s, now.clients_cpu_s),
    ]
    return [
        Change(name, was, value)
        for name, was, value in pairs
        if was is not None and value is not None
    ]
