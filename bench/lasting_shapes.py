"""Shapes for a hub with much state: idle subscriptions, and restarts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import Figure, Measurement
from bench.load import Lane, LoadFailed
from bench.measuring import Shape
from bench.servers import HUB, Server
from bench.site import Meter, Site
from bench.store_site import FILL_S_MAX, Publisher, prepare, publishers
from bench.stores import HubStore
from signalhub.log.disk import SystemDisk
from signalhub.log.recovery import recover

SUBSCRIBE_WINDOW = 64
SNAPSHOT_S = 11.0  # The hub writes its state to disk within ten seconds of the last change.
# The hub stores only what differs between messages; these become entries of 400 bytes.
FULL_ENTRIES = replace(HUB, store=HubStore(message_bytes=535))
REBUILT = ("state.db*", "index.db*")  # Rebuilt from the log if they are missing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Subscriptions with one live consumer each, and no messages."""

    name: str
    group: str = "idle"
    title: str
    unit: str = "subscription"
    sessions: int
    subscriptions: int
    topics: int
    seconds: float
    servers: Sequence[Server] = (HUB,)

    def measure(self, site: Site) -> Measurement:
        each = max(1, site.messages(self.subscriptions) // self.sessions)
        prepare(site, self.topics)
        with publishers(site, self.sessions, topics=self.topics) as sessions:
            lanes = [self._subscribing(session, each) for session in sessions]
            drive = site.generator.drive(lanes, seconds_max=FILL_S_MAX)
            made = drive.answers
            time.sleep(SNAPSHOT_S)
            meter = Meter(site.target)
            began = time.monotonic()
            time.sleep(self.seconds)
            share = meter.cpu_s() / (time.monotonic() - began)
        if made < each * self.sessions:
            raise LoadFailed(f"only {made} of {each * self.sessions} subscriptions were created")
        return Measurement({"server_share": share})

    @staticmethod
    def _subscribing(session: Publisher, each: int) -> Lane:
        names = [f"{session.name}-{index:05d}" for index in range(each)]
        return Lane(
            sender=session.socket,
            receivers=[],
            frames=HubStore().subscribes(session.name, session.topic, names),
            messages=each,
            window=SUBSCRIBE_WINDOW,
            refill_at=SUBSCRIBE_WINDOW - 1,
            answer=HubStore.subscribed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A hub killed with a long log and restarted; then again without the files that can be
    rebuilt from the log."""

    name: str
    group: str = "recovery"
    title: str
    unit: str = "entry"
    entries: int
    servers: Sequence[Server] = (FULL_ENTRIES,)

    def measure(self, site: Site) -> Measurement:
        target = site.target
        target.kill()
        figures: dict[Figure, float] = {"empty_ready_s": target.start()}
        count = site.messages(self.entries)
        prepare(site, 1)
        with publishers(site, 1) as (publisher,):
            publisher.fill(count)
        target.kill()
        figures["log_s"] = _log_recovery_s(target.folder / "log", count)
        figures["ready_s"] = target.start()
        target.kill()
        for pattern in REBUILT:
            for file in target.folder.rglob(pattern):
                file.unlink()
        figures["rebuilt_ready_s"] = target.start()
        return Measurement(figures)


def _log_recovery_s(folder: Path, entries: int) -> float:
    """How long the log takes to find its end, without changing anything."""
    disk = SystemDisk(folder)
    began = time.perf_counter()
    found = recover(disk, repair=False)
    took_s = time.perf_counter() - began
    if found.head < entries:
        raise LoadFailed(f"the log ends at {found.head}, before the last of {entries} entries")
    return took_s


SHAPES: tuple[Shape, ...] = (
    Idle(
        name="idle",
        title="10 000 durable subscriptions with a consumer each, nothing published",
        sessions=20,
        subscriptions=10_000,
        topics=20,
        seconds=5.0,
    ),
    Recovery(
        name="recovery",
        title="1 000 000 entries of 400 bytes in the log, hub killed and started again",
        entries=1_000_000,
    ),
)
