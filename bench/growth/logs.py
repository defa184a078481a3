"""A log that grows: appending to it, starting on it after a kill, reading old messages from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from bench.frames import masked
from bench.growth import stored
from bench.growth.plot import Line, Plot
from bench.growth.site import (
    forget_pages,
    free_bytes,
    loads,
    memory,
    merged,
    stopped,
    times,
    took,
)
from bench.load import Generator, Lane
from bench.protocols import envelope
from bench.servers import Running
from bench.site import Site
from bench.store_site import publishers
from bench.stores import topic_name
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject

NAME = "log"
LARGEST = 20 * 10**9
SMALLEST = 10**6
ENTRY_BYTES = 4_096
OVERHEAD_BYTES = 120  # Of an entry, besides its data.
SPARE_BYTES = 10 * 10**9  # What is left of the disk, whatever else.
OLD, NEW = 0, 1  # Topics.
PUBLISHERS = 64
MESSAGES = 40_000
PAGE = 100
PAGES = 100


def measure(plan: Plan) -> Iterator[Sample]:
    """Fill one log step by step; a hub runs on it only while something is measured."""
    possible = free_bytes() - SPARE_BYTES
    if possible < SMALLEST:
        raise MeasurementFailed("the disk has not enough space")
    old = stored.Topic(OLD, ENTRY_BYTES - OVERHEAD_BYTES)
    with stopped() as target:
        with stored.open_log(target.folder) as log:
            stored.create(log, [old, stored.Topic(NEW, 0)])
        for size in _sizes(min(plan.count(LARGEST, at_least=SMALLEST), possible)):
            plan.say(f"filling the log up to {_case(size)}")
            with stored.open_log(target.folder) as log:
                stored.fill(log, old, max(PAGE, size // ENTRY_BYTES) - old.head)
            # This start reads what was just written; the hub then saves how far it is.
            target.start()
            at = Site(Generator(), target)
            figures = merged({"size": size, "memory_mb": memory(at) / 1e6}, _pages(plan, at, old))
            for _ in range(plan.rounds):
                appended = _append(plan, Site(Generator(), target))
                # The first start has what was just published to read again, the second has nothing.
                ready = {"ready_s": _killed(target), "again_s": _killed(target)}
                yield Sample(_case(size), merged(figures, appended, ready))
            target.kill()


def _killed(target: Running) -> float:
    """Kill the hub and start it again on files that are not cached; return the seconds."""
    target.kill()
    forget_pages(target.folder / "log")
    return target.start()


def _append(plan: Plan, at: Site) -> dict[str, float]:
    with publishers(at, 2 * PUBLISHERS, topics=2) as opened:
        senders = [one for one in opened if one.topic == NEW]

        def lanes(messages: int) -> list[Lane]:
            return [one.lane(max(1, messages // len(senders)), 1) for one in senders]

        once = replace(plan, rounds=1)
        (load,) = loads(at, once, plan.count(MESSAGES, at_least=PUBLISHERS), lanes)
        return load


def _pages(plan: Plan, at: Site, old: stored.Topic) -> dict[str, float]:
    """Read pages at random positions, twice: from the disk, and what the kernel has cached."""
    count = plan.count(PAGES, at_least=3)
    first = [plan.order.randint(1, old.head - PAGE + 1) for _ in range(count)]
    name = "reader"
    with at.open([at.dialect.registered(at.target.port, name)]) as opened:
        (socket,) = opened.sockets
        forget_pages(at.target.folder / "log")
        cold = [_page(socket, name, each) for each in first]
        warm = [_page(socket, name, each) for each in first]
    return merged(times(cold, "cold"), times(warm, "warm"))


def _page(socket: int, name: str, first: int) -> float:
    payload = {"topic": topic_name(OLD), "fromSeq": first, "limit": PAGE}
    request = envelope(1, name, "hub:replay", json.dumps(payload), pattern="ask")
    return took(socket, masked(request), b'"hub:replayed"')


def _sizes(largest: int) -> list[int]:
    found, size = [], SMALLEST
    while size < largest:
        found.append(size)
        size *= 10
    return [*found, largest]


def _case(size: int) -> str:
    return f"{size / 1e9:g} GB" if size >= 10**9 else f"{size / 1e6:g} MB"


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: of entries of {ENTRY_BYTES:,} bytes; pages of {PAGE} at random positions",
    columns=(
        Column("CPU µs per publish", "cpu_us", 2),
        Column("publishes/s", "rate_s"),
        Column("ready after a kill, s", "ready_s", 3),
        Column("and again, s", "again_s", 3),
        Column("page from disk, p50 ms", "cold_p50_ms", 2),
        Column("p99 ms", "cold_p99_ms", 1),
        Column("cached, p50 ms", "warm_p50_ms", 2),
        Column("memory, MB", "memory_mb"),
    ),
    measure=measure,
)

PLOTS = (
    Plot(
        name="log-append",
        title="A durable publish of 400 bytes into a log of this size",
        sizes="log",
        unit="CPU of the hub, µs per publish",
        lines=(Line("publish", "cpu_us"),),
        is_bytes=True,
    ),
    Plot(
        name="log-ready",
        title="Start of a hub that was killed, until it listens; nothing cached",
        sizes="log",
        unit="seconds",
        lines=(
            Line("killed after publishes", "ready_s"),
            Line("killed again at once", "again_s"),
        ),
        is_bytes=True,
    ),
    Plot(
        name="log-page",
        title=f"{PAGE} messages of 4 KB from a random position, median",
        sizes="log",
        unit="milliseconds",
        lines=(Line("from the disk", "cold_p50_ms"), Line("cached", "warm_p50_ms")),
        is_bytes=True,
    ),
)
