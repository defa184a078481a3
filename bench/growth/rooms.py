"""Rooms with a message each, while messages are posted to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import rooms
from bench.growth.plot import Line, Plot
from bench.growth.site import loads, memory, merged, site, sizes
from bench.load import Lane
from bench.measuring import finish
from bench.room_shapes import asking
from bench.site import Site
from bench.subjects import Column, Plan, Sample, Subject

NAME = "rooms"
LARGEST = 100_000
CONNECTIONS = 64
MESSAGE_BYTES = 256
MESSAGES = 40_000
COUNTED = 100  # Fewer rooms are lost in what else changes.
AT_ONCE = 20_000


def measure(plan: Plan) -> Iterator[Sample]:
    """Let one hub grow; each message goes to a room chosen at random."""
    with site() as at, at.open([rooms.connected(at.target.port)] * CONNECTIONS) as opened:
        there, spent = 0, 0
        for size in sizes(plan, LARGEST):
            before = memory(at)
            for first in range(there, size, AT_ONCE):
                finish(at, _lanes(at, opened.sockets, range(first, min(size, first + AT_ONCE))))
            there = size
            # Other messages fill memories that have limits of their own, so only this counts.
            spent += (used := memory(at)) - before
            figures = {"size": size, "memory_mb": used / 1e6}
            if size >= COUNTED:
                figures["each_kb"] = spent / size / 1e3

            def lanes(messages: int, size: int = size) -> list[Lane]:
                return _lanes(at, opened.sockets, plan.order.choices(range(size), k=messages))

            for load in loads(at, plan, plan.count(MESSAGES, at_least=CONNECTIONS), lanes):
                yield Sample(f"{size:,}", merged(figures, load))


def _lanes(at: Site, sockets: Sequence[int], chosen: Sequence[int]) -> list[Lane]:
    """Return lanes that post a message to each of the rooms; the connections take turns."""
    found = []
    for index, socket in enumerate(sockets):
        names = [rooms.room_name(room) for room in chosen[index :: len(sockets)]]
        if names:
            requests = rooms.posts(at.target.port, names, at.ids(len(names)), MESSAGE_BYTES)
            found.append(asking(socket, requests, len(names), rooms.ACCEPTED))
    return found


SUBJECT = Subject(
    name=NAME,
    title=f"{NAME}: {MESSAGE_BYTES} bytes to one at random by HTTP, {CONNECTIONS} × 1 in flight",
    columns=(
        Column("CPU µs per message", "cpu_us", 2),
        Column("messages/s", "rate_s"),
        Column("memory, MB", "memory_mb", 1),
        Column("kB per room", "each_kb", 2),
    ),
    measure=measure,
)

PLOTS = (
    Plot(
        name="rooms-cpu",
        title="A message to one of many rooms, chosen at random, by HTTP",
        sizes="rooms",
        unit="CPU of the hub, µs per message",
        lines=(Line("message", "cpu_us"),),
    ),
    Plot(
        name="rooms-memory",
        title="Memory of one room with its inbox and its first message",
        sizes="rooms",
        unit="kB per room",
        lines=(Line("room", "each_kb"),),
    ),
)
