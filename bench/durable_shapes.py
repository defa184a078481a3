"""The shapes of load with messages that are kept: published, asked, consumed, and beside a frozen
consumer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.figures import Figure, Measurement
from bench.load import Drive, Lane, LoadFailed
from bench.measuring import (
    RUN_S_MAX,
    SETTLE_S,
    Shape,
    answer_latency,
    cost,
    latency,
    percentiles_us,
    settle,
    warm,
)
from bench.servers import (
    HUB,
    JETSTREAM,
    JETSTREAM_SYNC,
    JETSTREAM_SYNC_BATCH,
    REDIS,
    Server,
)
from bench.site import Meter, Site
from bench.store_site import Consumer, Publisher, StoreSite

WINDOW = 256
STORES = (HUB, REDIS, JETSTREAM_SYNC, JETSTREAM)
SLOW_MESSAGES_MIN = 2_000
SMALL_BUFFER_BYTES = 4_096
