"""One subscription that is behind, up to ten million messages, on a topic that has them all.

Its window is full while messages are published; then it catches up.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator

from bench.frames import masked
from bench.growth import stored
from bench.growth.plot import Line, Plot
from bench.growth.site import ask, drain, loads, memory, merged, stopped, times, took
from bench.load import Generator, Lane
from bench.measuring import SETTLE_S, finish
from bench.protocols import Script, SignalHub, Step, envelope
from bench.site import PAIR_BUFFER_BYTES, Meter, Site
from bench.store_site import publishers
from bench.stores import HubStore, topic_name
from bench.subjects import Column, Plan, Sample, Subject

NAME = "lag"
LARGEST = 10_000_000
SMALLEST = 1_000
DATA_BYTES = 60
WINDOW = 256
PUBLISHED = 20_000
NEWEST = 250_000
DELIVERED = 30_000
ASKED = 50
TOPIC = 0
ACK_MS = 86_400_000  # Nothing is redelivered meanwhile.
CONSUMER = "behind"
INFO = b'"hub:sub_info_response"'
SOUGHT = b'"hub:sought"'


def measure(plan: Plan) -> Iterator[Sample]:
    """Run one hub on a topic with as many messages as the largest lag."""
    topic = stored.Topic(TOPIC, DATA_BYTES)
    largest = plan.count(LARGEST, at_least=SMALLEST)
    with stopped() as target:
        plan.say(f"writing {largest:,} messages")
        with stored.open_log(target.folder) as log:
            stored.create(log, [topic])
            stored.fill(log, topic, largest)
        # This start reads what was just written; the hub then saves how far it is.
        target.start()
        target.kill()
        target.start()
        at = Site(Generator(), target)
        with publishers(at, 1) as (publisher,):
            # What the hub keeps of the newest messages is as much as ever before the first figure.
            publisher.fill(plan.count(NEWEST, at_least=WINDOW))
        for lag in _lags(largest):
            yield from _behind(plan, at, lag)


def _lags(largest: int) -> list[int]:
    found = [0]
    size = SMALLEST
    while size < largest:
        found.append(size)
        size *= 10
    return [*found, largest]


def _behind(plan: Plan, at: Site, lag: int) -> Iterator[Sample]:
    """Measure a new subscription that begins this far behind, and delete it."""
    script = _consumer(at.target.port, {"last": lag} if lag else "latest")
    before = memory(at)
    with at.open([script], buffer_bytes=PAIR_BUFFER_BYTES) as opened:
        (socket,) = opened.sockets
        figures = {"size": lag, "added_mb": (memory(at) - before) / 1e6}
        count = plan.count(ASKED, at_least=2)
        info = [took(socket, _request("hub:sub_info"), INFO) for _ in range(count)]
        with publishers(at, 1) as (publisher,):
            published = loads(
                at,
                plan,
                plan.count(PUBLISHED, at_least=WINDOW),
                lambda messages: [publisher.lane(messages, WINDOW)],
            )
        ask(socket, _request("hub:sub_pause"), INFO)
        seek = [took(socket, _seek({"last": max(1, lag)}), SOUGHT) for _ in range(count)]
        figures = merged(figures, times(info, "info"), times(seek, "seek"))
        for load in published:
            caught_up = {"delivery_us": _catch_up(plan, at, socket, lag)} if lag else {}
            yield Sample(f"{lag:,}", merged(figures, load, caught_up))
        ask(socket, _request("hub:sub_delete"), INFO)


def _catch_up(plan: Plan, at: Site, socket: int, lag: int) -> float:
    """Return the cost of one delivery with its ack, from this far behind on."""
    delivered, wanted, cpu_s = 0, plan.count(DELIVERED, at_least=WINDOW), 0.0
    while delivered < wanted:
        head = int(re.findall(rb'"head":(\d+)', ask(socket, _request("hub:sub_info"), INFO))[-1])
        first = head - lag + 1
        ask(socket, _seek({"seq": first}), SOUGHT)
        time.sleep(SETTLE_S)
        drain(socket)
        count = min(lag, max(wanted, 2 * WINDOW))
        lane = Lane(
            sender=socket,
            receivers=[socket],
            frames=b"",
            messages=count,
            window=count,
            acks=_acks(first, count, is_all=count == lag),
        )
        meter = Meter(at.target)
        os.write(socket, _request("hub:sub_resume"))
        finish(at, [lane])
        cpu_s += meter.cpu_s()
        delivered += count
        ask(socket, _request("hub:sub_pause"), INFO)
    return cpu_s / delivered * 1e6


def _acks(first: int, count: int, *, is_all: bool) -> bytes:
    """Return one ack for each message, or, at the end, for one that is settled already.

    Without new acks for the last of them exactly `count` messages are sent.
    """
    store = HubStore()
    if is_all:
        return store.acks(CONSUMER, TOPIC, range(first, first + count))
    acks = store.acks(CONSUMER, TOPIC, range(first, first + count - WINDOW))
    return acks + store.acks(CONSUMER, TOPIC, range(first, first + 1)) * WINDOW


def _consumer(port: int, start: object) -> Script:
    options = {"mode": "exclusive", "from": start, "window": WINDOW, "ackTimeoutMs": ACK_MS}
    step = Step(_request("hub:subscribe", **options), HubStore.subscribed)
    return [*SignalHub().registered(port, CONSUMER), step]


def _seek(to: object) -> bytes:
    return _request("hub:seek", to=to)


def _request(type: str, **more: object) -> bytes:
    payload = {"topic": topic_name(TOPIC), "subscription": CONSUMER, **more}
    return masked(envelope(100, CONSUMER, type, json.dumps(payload), pattern="ask"))


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: of one subscription with a full window of {WINDOW}, small messages",
    columns=(
        Column("CPU µs per publish", "cpu_us", 2),
        Column("per delivery and ack, catching up", "delivery_us", 2),
        Column("sub info, p50 ms", "info_p50_ms", 2),
        Column("seek, p50 ms", "seek_p50_ms", 2),
        Column("memory added, MB", "added_mb", 2),
    ),
    measure=measure,
)

_SIZES = "messages that the subscription is behind"
PLOTS = (
    Plot(
        name="lag-cpu",
        title="A publish beside a subscription that is behind, and its catching up",
        sizes=_SIZES,
        unit="CPU of the hub, µs",
        lines=(Line("publish", "cpu_us"), Line("delivery and ack, catching up", "delivery_us")),
    ),
    Plot(
        name="lag-requests",
        title="Requests about a subscription that is behind, median",
        sizes=_SIZES,
        unit="milliseconds",
        lines=(Line("sub info", "info_p50_ms"), Line("seek", "seek_p50_ms")),
    ),
)
