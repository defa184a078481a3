"""A Celery application with one task; the environment names its Redis."""

from __future__ import annotations

import os

from celery import Celery

REDIS_URL = "BENCH_REDIS_URL"

app = Celery("bench", broker=os.environ.get(REDIS_URL), backend=os.environ.get(REDIS_URL))
app.conf.update(
    # Run a task again if its worker dies, like a request whose host dies.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # The default of 4 leaves the worker waiting for the broker between tasks.
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="bench.add")  # type: ignore[untyped-decorator]
def add(number: int) -> int:
    return number + 1
