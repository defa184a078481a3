"""Durable subscriptions of one topic, each with a consumer of its own.

Measured are a publish to all of them, and a publish, delivery and ack on another topic meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from bench.durable_shapes import WINDOW as CONSUMER_WINDOW
from bench.frames import masked
from bench.growth.plot import Line, Plot
from bench.growth.site import idle_percent, loads, memory, merged, site, sizes
from bench.lasting_shapes import SNAPSHOT_S
from bench.load import Lane
from bench.measuring import finish
from bench.protocols import envelope
from bench.store_site import Consumer, Publisher, consumers, prepare, publishers
from bench.stores import HubStore, topic_name
from bench.subjects import Column, Plan, Sample, Subject

NAME = "subscriptions"
LARGEST = 10_000
BESIDE, COMMON = 0, 1  # Topics.
WINDOW = 16
DELIVERIES = 60_000
MESSAGES = 20_000
AT_LEAST = WINDOW  # Publishes to all, so that each size has as many in flight.
IDLE_S = 3.0
COUNTED = 100  # Fewer subscriptions are lost in what else changes.


def measure(plan: Plan) -> Iterator[Sample]:
    """Let one hub grow."""
    with site() as at, ExitStack() as opened:
        prepare(at, 2)
        (consumer,) = opened.enter_context(consumers(at, 1, CONSUMER_WINDOW))
        beside, common = opened.enter_context(publishers(at, 2, topics=2))
        consumer.start()
        sockets: list[int] = []
        spent = 0
        for size in sizes(plan, LARGEST):
            names = [f"u{index:05d}" for index in range(len(sockets), size)]
            scripts = [at.dialect.registered(at.target.port, name) for name in names]
            joined = opened.enter_context(at.open(scripts)).sockets
            connected = memory(at)
            lanes = [_subscribing(*each) for each in zip(names, joined, strict=True)]
            finish(at, lanes)
            spent += memory(at) - connected
            sockets += joined
            time.sleep(plan.seconds(SNAPSHOT_S, 0.2))
            figures = {"size": size, "idle_percent": idle_percent(at, plan.seconds(IDLE_S, 0.2))}
            if size >= COUNTED:
                figures["each_kb"] = spent / size / 1e3

            here = loads(
                at,
                plan,
                plan.count(MESSAGES, at_least=WINDOW),
                partial(_elsewhere, beside, consumer),
            )
            there = loads(at, plan, plan.count(DELIVERIES), partial(_fan_out, common, sockets))
            for load, fan_out in zip(here, there, strict=True):
                figures["publish_us"] = fan_out["cpu_us"]
                figures["delivery_us"] = fan_out["cpu_us"] / size
                yield Sample(f"{size:,}", merged(figures, load))


def _elsewhere(publisher: Publisher, consumer: Consumer, messages: int) -> list[Lane]:
    acks = consumer.acks(messages)
    return [publisher.lane(messages, WINDOW, receivers=[consumer.socket], acks=acks)]


def _fan_out(publisher: Publisher, sockets: list[int], deliveries: int) -> list[Lane]:
    messages = max(AT_LEAST, deliveries // len(sockets))
    return [publisher.lane(messages, WINDOW, receivers=sockets)]


def _subscribing(name: str, socket: int) -> Lane:
    payload = {"topic": topic_name(COMMON), "subscription": name, "autoAck": True}
    payload |= {"mode": "exclusive", "from": "latest"}
    frame = masked(envelope(100, name, "hub:subscribe", json.dumps(payload), pattern="ask"))
    return Lane(
        sender=socket,
        receivers=[],
        frames=frame,
        messages=1,
        window=1,
        answer=HubStore.subscribed,
    )


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: durable, of one topic, with a consumer each, the write to its socket settles",
    columns=(
        Column("CPU µs per message elsewhere", "cpu_us", 2),
        Column("CPU µs per publish to all", "publish_us"),
        Column("per delivery", "delivery_us", 2),
        Column("kB per subscription", "each_kb", 2),
        Column("CPU while idle, %", "idle_percent", 2),
    ),
    measure=measure,
)

PLOTS = (
    Plot(
        name="subscriptions-cpu",
        title="A delivery of a publish to all, and a message on another topic",
        sizes="durable subscriptions of one topic",
        unit="CPU of the hub, µs",
        lines=(
            Line("per delivery of a publish to all", "delivery_us"),
            Line("publish, delivery and ack elsewhere", "cpu_us"),
        ),
    ),
    Plot(
        name="subscriptions-memory",
        title="Memory of one durable subscription, without its connection",
        sizes="durable subscriptions of one topic",
        unit="kB per subscription",
        lines=(Line("subscription", "each_kb"),),
    ),
)
