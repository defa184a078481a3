"""The same calls with Celery on Redis, and with a plain outbox in SQLite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, Any

from bench.actors.site import Meter, folder
from bench.figures import percentile
from bench.machine import choose_cores, process_tree
from bench.servers import ROOT, Server, running, unpinned
from bench.subjects import MeasurementFailed

CONCURRENCY = 4
"""Processes of the Celery worker; more than cores, because they wait for the disk."""

CALLER_S_MAX = 300.0
_REDIS_URL = "BENCH_REDIS_URL"  # Read by `bench.peers.celery_app`.


@dataclass(frozen=True, slots=True)
class Load:
    """The parameters of one run."""

    calls: int
    in_flight: int
    batch: int
    row: int


def figures_of(
    calls: int, seconds: float, server_cpu_s: float, others_cpu_s: float, row_s: list[float]
) -> dict[str, float]:
    """The results of one run; `row_s` are the times of single calls, ascending."""
    return {
        "rate_s": calls / seconds,
        "cpu_us": (server_cpu_s + others_cpu_s) / calls * 1e6,
        "server_cpu_us": server_cpu_s / calls * 1e6,
        "others_cpu_us": others_cpu_s / calls * 1e6,
        "p50_ms": percentile(row_s, 0.5) * 1e3,
        "p99_ms": percentile(row_s, 0.99) * 1e3,
        "seconds": seconds,
    }


def celery_problem(redis: Server) -> str:
    """Return why Celery cannot be measured here; empty if it can."""
    if find_spec("celery") is None:
        return "Celery is not installed; install the extra `bench`, as `make bench` does"
    if not redis.is_installed:
        return "redis-server is not installed; on Debian: apt-get install redis-server"
    return ""


def by_celery(redis: Server, load: Load) -> dict[str, float]:
    """Run Redis, a worker and a caller, each a new process."""
    cores = choose_cores()
    with running(unpinned(redis), cores) as store:
        place = {_REDIS_URL: f"redis://127.0.0.1:{store.port}/0"}
        with running(unpinned(_worker(place)), cores) as worker:
            words = ["bench.peers.celery_caller", load.calls, load.in_flight, load.row]
            with _program(words, place) as (asked, said):
                if said.readline().strip() != "warm":
                    raise MeasurementFailed("the Celery caller did not get its first results")
                meter = Meter(redis=store.pids, worker=process_tree(worker.pids[0]))
                asked.write("\n")
                asked.flush()
                took = _line(said, "the Celery caller")
                spent = meter.read()
                row = _line(said, "the Celery caller")
    others_cpu_s = spent["worker"] + took["cpu_s"]
    return figures_of(load.calls, took["seconds"], spent["redis"], others_cpu_s, row)


def by_outbox(load: Load) -> dict[str, float]:
    """Run the plain outbox: one process, one file, the upper bound for this many commits."""
    with folder() as place:
        words = ["bench.peers.sqlite_outbox", place / "outbox.db", load.calls, load.batch, load.row]
        with _program(words, {}) as (_, said):
            took, row = _line(said, "the outbox"), _line(said, "the outbox")
    return figures_of(load.calls, took["seconds"], 0.0, took["cpu_s"], row)


def _worker(place: dict[str, str]) -> Server:
    words = ["-A", "bench.peers.celery_app", "worker", "--pool", "prefork"]
    words += ["--concurrency", str(CONCURRENCY), "--loglevel", "INFO"]
    # No messages to other workers: there are none.
    words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Server(
        name="celery worker",
        command=lambda _: [sys.executable, "-m", "celery", *words],
        ready=r"celery@\S+ ready",
        environment=place,
    )


@contextmanager
def _program(words: list[Any], place: dict[str, str]) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a module as a process and return what it prints; kill it when its time is up."""
    with subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **place},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        watch = threading.Timer(CALLER_S_MAX, process.kill)
        watch.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            yield process.stdin, process.stdout
        finally:
            watch.cancel()
            process.kill()


def _line(said: IO[str], who: str) -> Any:
    try:
        return json.loads(said.readline())
    except ValueError:
        raise MeasurementFailed(f"{who} ended early, or was too slow") from None
