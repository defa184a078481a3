"""The goals of the project, judged by the medians of a session.

A goal is for information: missing one does not fail the run, because a busy machine could be the
cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.figures import Figure, Summary, advantage
from bench.goal import Goal
from bench.room_crowds import P99_MS_MAX
from bench.servers import (
    HUB,
    JETSTREAM,
    JETSTREAM_SYNC,
    NATS,
    REDIS,
    SOCKETIO,
    STARLETTE,
    STARLETTE_GROUP,
    Server,
)

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


def _added_percent(summaries: Summaries) -> float | None:
    full = _ours("rooms-idle", "server_share")(summaries)
    empty = _ours("rooms-idle", "empty_share")(summaries)
    return None if full is None or empty is None else (full - empty) * 100


def _nats(shape: str, words: str, limit: float) -> Goal[Summaries]:
    return Goal(text=f"× NATS WebSocket, {words}", value=_ratio(shape, NATS), limit=limit)


def _redis(shape: str, words: str, limit: float) -> Goal[Summaries]:
    return Goal(
        text=f"× Redis, durable publish and ack, {words}, acked per second",
        value=_ratio(shape, REDIS, "rate_s"),
        limit=limit,
    )


def _rooms(shape: str, words: str, limit: float) -> Goal[Summaries]:
    return Goal(
        text=f"× Starlette on SQLite, {words}, per second",
        value=_ratio(shape, STARLETTE, "rate_s"),
        limit=limit,
    )


def _rooms_grouped(shape: str, words: str, limit: float) -> Goal[Summaries]:
    return Goal(
        text=f"× Starlette on SQLite with group commit, {words}, per second",
        value=_ratio(shape, STARLETTE_GROUP, "rate_s"),
        limit=limit,
    )


GOALS: tuple[Goal[Summaries], ...] = (
    _nats("p2p-spread", "point to point, spread", 1.4),
    _nats("p2p-pipelined", "point to point, pipelined", 1.5),
    _nats("fanout-1000-w1", "fan-out to 1 000, 1 in flight", 1.0),
    _nats("fanout-1000-w4", "fan-out to 1 000, 4 in flight", 1.0),
    _nats("fanout-1000-w16", "fan-out to 1 000, 16 in flight", 3.0),
    _nats("accept", "accept, upgrade only", 1.0),
    _nats("accept-registered", "accept, with hello and registration", 0.8),
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
    _redis("durable-64x1", "64 connections × 1", 1.0),
    _redis("durable-64x16", "64 connections × 16", 0.6),
    Goal(
        text="× JetStream sync, durable publish and ack, 64 in flight, acked per second",
        value=_ratio("durable-1x64", JETSTREAM_SYNC, "rate_s"),
        limit=15.0,
    ),
    Goal(
        text="× JetStream, stored messages to one consumer with acks, per second",
        value=_ratio("consume", JETSTREAM, "rate_s"),
        limit=0.8,
    ),
    Goal(
        text="asks per second, 64 pairs, delivered",
        value=_ours("ask-online", "rate_s"),
        limit=40_000,
    ),
    Goal(
        text="ms from publication to delivery at half load, 99th percentile",
        value=_ours("wake", "p99_us", 1e3),
        limit=3.0,
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
    _rooms_grouped("rooms-http-256", "room messages by HTTP, 256 bytes", 4.0),
    _rooms_grouped("rooms-http-1k", "room messages by HTTP, 1 KiB", 4.0),
    _rooms("rooms-ws-256-w1", "room messages by WebSocket, 256 bytes × 1", 5.0),
    _rooms("rooms-ws-256-w16", "room messages by WebSocket, 256 bytes × 16", 5.0),
    _rooms("rooms-ws-1k-w1", "room messages by WebSocket, 1 KiB × 1", 5.0),
    _rooms("rooms-ws-1k-w16", "room messages by WebSocket, 1 KiB × 16", 5.0),
    _rooms("inbox-fetch", "pages of 100 messages of 1 KiB", 5.0),
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
