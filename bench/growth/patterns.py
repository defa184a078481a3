"""Durable topics that match one pattern subscription, whose only consumer takes them all.

Every topic has messages, so that each has its part. Measured are a publish to one of them, with its
delivery, and what the hub uses while nobody publishes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bench.frames import masked, masked_run
from bench.growth.plot import Line, Plot
from bench.growth.site import idle_percent, loads, memory, merged, site, sizes
from bench.lasting_shapes import SNAPSHOT_S
from bench.load import Lane
from bench.measuring import finish
from bench.protocols import envelope
from bench.site import Site
from bench.store_site import Publisher, publishers
from bench.stores import HubStore, publications
from bench.subjects import Column, Plan, Sample, Subject

NAME = "patterns"
LARGEST = 10_000
IN_FLIGHT = 16
MESSAGES = 20_000
WINDOW = 10_000
COUNTED = 100  # Fewer topics are lost in what else changes.
IDLE_S = 3.0


def measure(plan: Plan) -> Iterator[Sample]:
    """Let one hub grow."""
    with site() as at, ExitStack() as opened:
        (sender,) = opened.enter_context(publishers(at, 1))
        script = at.dialect.registered(at.target.port, "reader")
        (reader,) = opened.enter_context(at.open([script])).sockets
        finish(at, [_subscribing("reader", reader)])
        there, spent = 0, 0
        for size in sizes(plan, LARGEST):
            before = memory(at)
            finish(at, [_lane(at, sender, range(there, size), reader)])
            there = size
            spent += memory(at) - before
            time.sleep(plan.seconds(SNAPSHOT_S, 0.2))
            figures = {"size": size, "idle_percent": idle_percent(at, plan.seconds(IDLE_S, 0.2))}
            if size >= COUNTED:
                figures["each_kb"] = spent / size / 1e3

            def lanes(messages: int, size: int = size) -> list[Lane]:
                return [_lane(at, sender, plan.order.choices(range(size), k=messages), reader)]

            for load in loads(at, plan, plan.count(MESSAGES, at_least=IN_FLIGHT), lanes):
                yield Sample(f"{size:,}", merged(figures, load))


def _lane(at: Site, sender: Publisher, topics: Sequence[int], reader: int) -> Lane:
    """Return a lane that publishes a message to each of the topics."""
    ids = zip(topics, at.ids(len(topics)), strict=True)
    texts = [publications(sender.name, topic, [each])[0] for topic, each in ids]
    return Lane(
        sender=sender.socket,
        receivers=[reader],
        frames=masked_run(texts),
        messages=len(texts),
        window=IN_FLIGHT,
        refill_at=IN_FLIGHT - 1,
        answer=at.store.published,
    )


def _subscribing(name: str, socket: int) -> Lane:
    payload = {"pattern": "#", "subscription": "all", "autoAck": True, "window": WINDOW}
    frame = masked(envelope(100, name, "hub:subscribe", json.dumps(payload), pattern="ask"))
    return Lane(
        sender=socket, receivers=[], frames=frame, messages=1, window=1, answer=HubStore.subscribed
    )


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: durable topics of one pattern, with one consumer, the write settles",
    columns=(
        Column("CPU µs per publish and delivery", "cpu_us", 2),
        Column("publishes/s", "rate_s"),
        Column("kB per topic with its part", "each_kb", 2),
        Column("CPU while idle, %", "idle_percent", 2),
    ),
    measure=measure,
)

PLOTS = (
    Plot(
        name="patterns-cpu",
        title="A publish to one of many topics of a pattern, and its delivery",
        sizes="durable topics that match",
        unit="CPU of the hub, µs",
        lines=(Line("publish and delivery", "cpu_us"),),
    ),
    Plot(
        name="patterns-memory",
        title="Memory of a durable topic and its part",
        sizes="durable topics that match",
        unit="kB per topic",
        lines=(Line("topic with its part", "each_kb"),),
    ),
)
