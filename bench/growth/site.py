"""A hub whose limits are far away, and what a message costs at each of its sizes."""

from __future__ import annotations

import dataclasses
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figures import percentile
from bench.load import Generator, Lane
from bench.machine import choose_cores, data_folder, pss_bytes
from bench.measuring import SETTLE_S, finish
from bench.servers import HUB, Running, running
from bench.site import Meter, Site
from bench.subjects import MeasurementFailed, Plan

ANSWER_S_MAX = 30.0
WARM_SHARE = 0.1
_READ_BYTES = 2**18
_KEPT_BYTES = 2_000
_MANY = "1000000000"
LIMITS = {
    "SIGNALHUB_REGISTRY_LIMIT": "1000000",
    "SIGNALHUB_TOPICS_LIMIT": "1000000",
    "SIGNALHUB_DISPATCH_LIMIT": "1000000",
    "SIGNALHUB_SUBSCRIPTIONS_MAX": "1000000",
    "SIGNALHUB_ROOMS_UNARCHIVED_MAX": _MANY,
    "SIGNALHUB_LOG_RETENTION_BYTES": str(2**40),
}
SERVER = dataclasses.replace(HUB, environment=HUB.environment | LIMITS)

Lanes = Callable[[int], Sequence[Lane]]


@contextmanager
def site() -> Iterator[Site]:
    """Run a hub in a new folder while the block runs."""
    with running(SERVER, choose_cores()) as target:
        yield Site(Generator(), target)


@contextmanager
def stopped() -> Iterator[Running]:
    """Return a hub that was started once and killed, so that its folder can be filled."""
    with running(SERVER, choose_cores()) as target:
        target.kill()
        yield target


def sizes(plan: Plan, largest: int) -> list[int]:
    """Return the powers of ten up to the largest size, which is the last."""
    last = plan.count(largest)
    found = []
    size = 1
    while size < last:
        found.append(size)
        size *= 10
    return [*found, last]


def loads(at: Site, plan: Plan, messages: int, lanes: Lanes) -> list[dict[str, float]]:
    """Return what each of several loads cost per message, after one that does not count.

    `lanes` builds the lanes for about that many messages; copies count where nothing is answered.
    """
    finish(at, lanes(max(1, int(messages * WARM_SHARE))))
    time.sleep(SETTLE_S)
    found = []
    for _ in range(plan.rounds):
        prepared = lanes(messages)
        meter = Meter(at.target)
        drive = finish(at, prepared)
        count = drive.answers or drive.deliveries
        found.append({"cpu_us": meter.cpu_s() / count * 1e6, "rate_s": count / drive.seconds})
    return found


def memory(at: Site) -> int:
    """Return the memory of the hub's processes, shared pages in proportion."""
    time.sleep(SETTLE_S)
    return pss_bytes(at.target.pids)


def idle_percent(at: Site, seconds: float) -> float:
    """Return what the hub uses of its core while nothing is sent."""
    meter = Meter(at.target)
    began = time.monotonic()
    time.sleep(seconds)
    return meter.cpu_s() / (time.monotonic() - began) * 100


def ask(fd: int, request: bytes, answer: bytes) -> bytes:
    """Send a request and read until its answer has begun; return the end of what was read."""
    os.write(fd, request)
    found = b""
    while answer not in found:
        if not select.select([fd], [], [], ANSWER_S_MAX)[0]:
            raise MeasurementFailed(f"no answer with {answer!r} but {found!r}")
        fresh = os.read(fd, _READ_BYTES)
        found = found[-_KEPT_BYTES:] + fresh
        if not fresh or b'"hub:error"' in found:
            raise MeasurementFailed(f"refused, or closed: {found[-_KEPT_BYTES:]!r}")
    return found[-_KEPT_BYTES:]


def took(fd: int, request: bytes, answer: bytes) -> float:
    """Return the seconds until the answer of a request."""
    began = time.perf_counter()
    ask(fd, request, answer)
    return time.perf_counter() - began


def drain(fd: int) -> None:
    """Discard what has arrived."""
    while select.select([fd], [], [], 0)[0] and os.read(fd, _READ_BYTES):
        pass


def times(asked: Sequence[float], name: str) -> dict[str, float]:
    """Return median and 99th percentile in milliseconds, as figures of that name."""
    ordered = sorted(asked)
    return {
        f"{name}_p50_ms": percentile(ordered, 0.5) * 1e3,
        f"{name}_p99_ms": percentile(ordered, 0.99) * 1e3,
    }


def forget_pages(folder: Path) -> None:
    """Drop what the kernel caches of the files in a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def free_bytes() -> int:
    """Return the space where servers keep their data."""
    found = os.statvfs(data_folder())
    return found.f_bavail * found.f_frsize


def merged(*figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for each in figures for name, value in each.items()}
