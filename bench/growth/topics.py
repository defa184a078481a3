"""Durable topics, while messages are published to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.frames import masked_run
from bench.growth.plot import Line, Plot
from bench.growth.site import loads, memory, merged, site, sizes
from bench.load import Lane
from bench.measuring import finish
from bench.protocols import envelopes
from bench.site import Site
from bench.store_site import Publisher, publishers
from bench.stores import publications, topic_name
from bench.subjects import Column, Plan, Sample, Subject

NAME = "topics"
LARGEST = 100_000
PUBLISHERS = 64
MESSAGES = 40_000
COUNTED = 100  # Fewer topics are lost in what else changes.
AT_ONCE = 20_000


def measure(plan: Plan) -> Iterator[Sample]:
    """Let one hub grow; each message goes to a topic chosen at random."""
    with site() as at, publishers(at, PUBLISHERS) as senders:
        there, spent = 0, 0
        for size in sizes(plan, LARGEST):
            before = memory(at)
            for first in range(there, size, AT_ONCE):
                _create(at, senders, range(first, min(size, first + AT_ONCE)))
            there = size
            # Messages fill memories that have limits of their own, so only this counts.
            spent += (used := memory(at)) - before
            figures = {"size": size, "memory_mb": used / 1e6}
            if size >= COUNTED:
                figures["each_kb"] = spent / size / 1e3

            def lanes(messages: int, size: int = size) -> list[Lane]:
                return _lanes(at, senders, plan.order.choices(range(size), k=messages))

            for load in loads(at, plan, plan.count(MESSAGES, at_least=PUBLISHERS), lanes):
                yield Sample(f"{size:,}", merged(figures, load))


def _create(at: Site, senders: Sequence[Publisher], topics: Sequence[int]) -> None:
    lanes = []
    for index, sender in enumerate(senders):
        if mine := topics[index :: len(senders)]:
            payloads = (f'{{"topic":"{topic_name(topic)}","durable":true}}' for topic in mine)
            ids = zip(at.ids(len(mine)), payloads, strict=True)
            type, more = "hub:topic_create", {"pattern": "ask", "ttl": "null"}
            texts = [envelopes([each], sender.name, type, text, **more)[0] for each, text in ids]
            lanes.append(_lane(sender, texts, b'"hub:topic_created"'))
    finish(at, lanes)


def _lanes(at: Site, senders: Sequence[Publisher], topics: Sequence[int]) -> list[Lane]:
    """Return lanes that publish a message to each of the topics; the senders take turns."""
    found = []
    for index, sender in enumerate(senders):
        if mine := topics[index :: len(senders)]:
            ids = zip(mine, at.ids(len(mine)), strict=True)
            texts = [publications(sender.name, topic, [each])[0] for topic, each in ids]
            found.append(_lane(sender, texts, at.store.published))
    return found


def _lane(sender: Publisher, texts: Sequence[bytes], answer: bytes) -> Lane:
    return Lane(
        sender=sender.socket,
        receivers=[],
        frames=masked_run(texts),
        messages=len(texts),
        window=1,
        answer=answer,
    )


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: durable, 400 bytes to one at random, {PUBLISHERS} connections × 1 in flight",
    columns=(
        Column("CPU µs per publish", "cpu_us", 2),
        Column("publishes/s", "rate_s"),
        Column("memory, MB", "memory_mb", 1),
        Column("kB per topic", "each_kb", 2),
    ),
    measure=measure,
)

PLOTS = (
    Plot(
        name="topics-cpu",
        title="A durable publish to one of many topics, chosen at random",
        sizes="durable topics",
        unit="CPU of the hub, µs per publish",
        lines=(Line("publish", "cpu_us"),),
    ),
    Plot(
        name="topics-memory",
        title="Memory of one durable topic",
        sizes="durable topics",
        unit="kB per topic",
        lines=(Line("topic", "each_kb"),),
    ),
)
