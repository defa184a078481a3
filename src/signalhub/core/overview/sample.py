"""One number per series of what the core counts and measures itself.

Reading them costs a few microseconds; what has to be looked for is in `survey.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.overview.survey import Totals
    from signalhub.counters import Histogram, Tally

COUNTERS: Final[dict[str, Callable[[Tally], float]]] = {
    "in": lambda tally: tally.received,
    "out": lambda tally: tally.sent,
    "stored": lambda tally: tally.appended,
    "published": lambda tally: tally.published,
    "deliveries": lambda tally: tally.deliveries,
    "broadcasts": lambda tally: tally.broadcasts,
    "tells_dropped": lambda tally: tally.dropped_tells,
    "expired": lambda tally: tally.expired_tells + tally.expired_asks,
    "duplicates": lambda tally: tally.duplicates,
    "unknown_targets": lambda tally: tally.unknown_targets,
    "rate_limited": lambda tally: tally.rate_limited,
    "pauses": lambda tally: tally.paused,
    "errors": lambda tally: sum(tally.errors.values()),
    "refused_logins": lambda tally: tally.logins_refused,
    "connects": lambda tally: tally.connections_opened,
    "disconnects": lambda tally: tally.connections_closed,
    "room_messages": lambda tally: tally.rooms.sent,
    "room_appends": lambda tally: tally.rooms.appended,
    "room_fetches": lambda tally: tally.rooms.fetches,
    "room_refused": lambda tally: tally.rooms.refused + tally.rooms.denied,
    "room_limited": lambda tally: tally.rooms.limited,
    "lake_rows": lambda tally: tally.lake.rows,
}
"""Counters, which are shown as rates."""

COUNTED: Final[dict[str, Callable[[Totals], float]]] = {
    "redelivered": lambda totals: totals.redelivered,
    "nacks": lambda totals: totals.nacked,
    "timeouts": lambda totals: totals.timeouts,
    "dead_letters": lambda totals: totals.dead_lettered,
}
"""Sums of the counters of subscriptions; a deleted one takes its part away."""

GAUGES: Final[dict[str, Callable[[Hub], float]]] = {
    "sessions": lambda hub: len(hub.sessions),
    "actors": lambda hub: len(hub.registry),
    "mailboxes": lambda hub: len(hub.streams.mailboxes),
    "rooms": lambda hub: len(hub.rooms.directory.rooms),
    "room_sockets": lambda hub: hub.rooms.guests,
    "buffer_bytes": lambda hub: hub.rooms.messages.buffer.bytes,
    "unarchived": lambda hub: hub.rooms.messages.unarchived,
}

SURVEYED: Final[dict[str, Callable[[Totals], float]]] = {
    "mailbox_waiting": lambda totals: totals.mailbox_waiting,
    "lag_total": lambda totals: totals.lag,
    "lag_worst": lambda totals: totals.worst_lag,
    "in_flight": lambda totals: totals.in_flight,
    "blocked": lambda totals: totals.blocked,
}

LATENCIES: Final[dict[str, tuple[Callable[[Tally], Histogram], tuple[float, ...]]]] = {
    "tell": (lambda tally: tally.delivery_latency, (0.5, 0.99)),
    "ask": (lambda tally: tally.ask_latency, (0.5, 0.99)),
    "sync": (lambda tally: tally.log.sync_latency, (0.5, 0.99)),
    "room": (lambda tally: tally.rooms.accept_latency, (0.99,)),
}
"""Histograms, and which quantiles of them are shown."""
