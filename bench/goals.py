"""The goals of the project, judged by the medians of a session.

A goal is for information: missing one does not fail the run, because a busy machine could be the
cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.figures import Figure, Summary, advantage
from bench.goal import Goal
from bench.room_crowds import P99_MS_MAX
from bench.servers import HUB, JETSTREAM_SYNC, NATS, REDIS, SOCKETIO, STARLETTE, Server

Summaries = Mapping[tuple[str, str], Summary]


def _ratio(
    shape: str, peer: Server, figure: Figure = "cpu_us"
) -> Callable[[Summaries], float | None]:
    def value(summaries: Summaries) -> float | None:
        ours, theirs = summaries.get((shape, HUB.name)), summaries.get((shape, peer.name))
        return advantage(ours, theirs, figure)

    return value


def _ours(shape: str, figure: Figure, divisor: float = 1.0) -> Callable[[Summaries], float | None]:
    def value(summaries: Summaries) -> float | None:
        ours = summaries.get((shape, HUB.name))
        median = ours.median(figure) if ours else None
        return None if median is None else median / divisor

    return value


def _accepts_per_core(summaries: Summaries) -> float | None:
    cpu_us = _ours("accept", "cpu_us")(summaries)
    return 1e6 / cpu_us if cpu_us else None


def _added_percent(summaries: Summaries) -> float | None:
    full = _ours("rooms-idle", "server_share")(summaries)
    empty = _ours("rooms-idle", "empty_share")(summaries)
    return None if full is None or empty is None else (full - empty) * 100


def _rooms(shape: str, words: str, limit: float) -> Goal[Summaries]:
    return Goal(
        text=f"× Starlette on SQLite, {words}, per second",
        value=_ratio(shape, STARLETTE, "rate_s"),
        limit=limit,
    )


GOALS: tuple[Goal[Summaries], ...] = (
    Goal(
        text="× NATS WebSocket, point to point, spread",
        value=_ratio("p2p-spread", NATS),
        limit=0.8,
    ),
    Goal(
        text="× NATS WebSocket, fan-out to 1 000, 1 in flight",
        value=_ratio("fanout-1000-w1", NATS),
        limit=1.0,
    ),
    Goal(
        text="× NATS WebSocket, fan-out to 1 000, 4 in flight",
        value=_ratio("fanout-1000-w4", NATS),
        limit=1.0,
    ),
    Goal(
        text="× NATS WebSocket, fan-out to 1 000, 16 in flight",
        value=_ratio("fanout-1000-w16", NATS),
        limit=2.5,
    ),
    Goal(
        text="× python-socketio, point to point, spread",
        value=_ratio("p2p-spread", SOCKETIO),
        limit=25.0,
    ),
    Goal(
        text="bytes of memory per idle registered connection",
        value=_ours("accept-registered", "connection_bytes"),
        limit=12_000,
        is_ceiling=True,
    ),
    Goal(
        text="accepts per second and core, upgrade only",
        value=_accepts_per_core,
        limit=7_000,
    ),
    Goal(
        text="× Redis, durable publish and ack, 64 connections × 1, acked per second",
        value=_ratio("durable-64x1", REDIS, "rate_s"),
        limit=1.0,
    ),
    Goal(
        text="× Redis, durable publish and ack, 64 connections × 16, acked per second",
        value=_ratio("durable-64x16", REDIS, "rate_s"),
        limit=1.0,
    ),
    Goal(
        text="× JetStream sync, durable publish and ack, 64 in flight, acked per second",
        value=_ratio("durable-1x64", JETSTREAM_SYNC, "rate_s"),
        limit=10.0,
    ),
    Goal(
        text="ms from publication to delivery at half load, 99th percentile",
        value=_ours("wake", "p99_us", 1e3),
        limit=5.0,
        is_ceiling=True,
    ),
    Goal(
        text="share of a core for 10 000 idle subscriptions",
        value=_ours("idle", "server_share"),
        limit=0.05,
        is_ceiling=True,
    ),
    Goal(
        text="s to recover a log of 1 000 000 entries",
        value=_ours("recovery", "log_s"),
        limit=1.0,
        is_ceiling=True,
    ),
    Goal(
        text="× the calm 99th percentile of publish and ack, beside a frozen consumer",
        value=_ours("frozen", "shift"),
        limit=1.1,
        is_ceiling=True,
    ),
    _rooms("rooms-http-256", "room messages by HTTP, 256 bytes", 5.0),
    _rooms("rooms-http-1k", "room messages by HTTP, 1 KiB", 5.0),
    _rooms("rooms-ws-256-w1", "room messages by WebSocket, 256 bytes × 1", 5.0),
    _rooms("rooms-ws-256-w16", "room messages by WebSocket, 256 bytes × 16", 5.0),
    _rooms("rooms-ws-1k-w1", "room messages by WebSocket, 1 KiB × 1", 5.0),
    _rooms("rooms-ws-1k-w16", "room messages by WebSocket, 1 KiB × 16", 5.0),
    _rooms("inbox-fetch", "pages of 100 messages of 1 KiB", 3.0),
    Goal(
        text="% of a core that 10 000 idle rooms and 1 000 idle sockets add",
        value=_added_percent,
        limit=0.5,
        is_ceiling=True,
    ),
    Goal(
        text="ms to the ack in 1 000 rooms at 2 000 messages per second, 99th percentile",
        value=_ours("rooms-live", "ack_p99_us", 1e3),
        limit=P99_MS_MAX,
        is_ceiling=True,
    ),
    Goal(
        text="ms to the listener in 1 000 rooms at 2 000 messages per second, 99th percentile",
        value=_ours("rooms-live", "p99_us", 1e3),
        limit=P99_MS_MAX,
        is_ceiling=True,
    ),
)
