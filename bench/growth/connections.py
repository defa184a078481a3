"""Idle connections, each a registered actor, while 64 others exchange messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench.growth.plot import Line, Plot
from bench.growth.site import idle_percent, loads, memory, merged, site, sizes
from bench.machine import raise_file_limit
from bench.subjects import Column, Plan, Sample, Subject
from signalhub.server.port.descriptors import places
from signalhub.settings.model import LimitsSettings

NAME = "connections"
LARGEST = 50_000
PAIRS = 32
WINDOW = 4
MESSAGES = 64_000
IDLE_S = 3.0
COUNTED = 100  # Fewer connections are lost in what else changes.


def measure(plan: Plan) -> Iterator[Sample]:
    """Let one hub grow; the same pairs send at each size."""
    possible = places(LimitsSettings(), raise_file_limit()).sockets - 2 * PAIRS
    largest = min(LARGEST, possible)
    with site() as at, at.pairs(PAIRS) as pairs, ExitStack() as opened:
        empty, there = memory(at), 0
        for size in sizes(plan, largest):
            names = [f"i{index:05d}" for index in range(there, size)]
            scripts = [at.dialect.registered(at.target.port, name) for name in names]
            opened.enter_context(at.open(scripts))
            there = size
            used = memory(at)
            figures = {"size": size, "memory_mb": used / 1e6}
            figures["idle_percent"] = idle_percent(at, plan.seconds(IDLE_S, 0.2))
            if size >= COUNTED:
                figures["each_kb"] = (used - empty) / size / 1e3
            is_short = size == largest < LARGEST
            note = f"the limit of open files allows no more than {size:,}" if is_short else ""
            count = plan.count(MESSAGES, at_least=PAIRS)
            for load in loads(at, plan, count, lambda n: pairs.lanes(max(1, n // PAIRS), WINDOW)):
                yield Sample(f"{size:,}", merged(figures, load), note)
                note = ""


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: idle, beside {PAIRS} pairs that send tells, {WINDOW} in flight each",
    columns=(
        Column("CPU µs per message", "cpu_us", 2),
        Column("messages/s", "rate_s"),
        Column("memory, MB", "memory_mb", 1),
        Column("kB per connection", "each_kb", 1),
        Column("CPU while idle, %", "idle_percent", 2),
    ),
    measure=measure,
)

PLOTS = (
    Plot(
        name="connections-cpu",
        title="A message between two of 64 busy connections, beside idle ones",
        sizes="idle connections",
        unit="CPU of the hub, µs per message",
        lines=(Line("message", "cpu_us"),),
    ),
    Plot(
        name="connections-memory",
        title="Memory of one idle connection with a registered actor",
        sizes="idle connections",
        unit="kB per connection",
        lines=(Line("connection", "each_kb"),),
    ),
)
