"""How soon a message can be read from the lake, and what that costs the hub."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import QueryBuilder

from bench.figures import percentile
from bench.lake.hub import Hub, running_hub
from bench.lake.sender import Sent, send_on_schedule
from bench.load import Generator
from bench.site import Site
from bench.store_site import Publisher, prepare, publishers
from bench.stores import topic_name
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject
from signalhub.pipeline.lake import Lake, LakeUnreachable, lake_of
from signalhub.pipeline.source.plan import Segments, log_of
from signalhub.pipeline.tables.tables import AUDIT, ENTRIES, QUARANTINE, TABLES

NAME = "freshness"
BESIDE = "pipeline beside the hub"
ALONE = "hub alone"

RATE_S = 1_000.0
WARM_S = 60.0
LOAD_S = 60.0
FULL_S = 10.0
QUIET_S = 30.0
IDLE_S = 60.0
CAUGHT_UP_S_MAX = 600.0
VISIBLE_S_MAX = 120.0
WINDOW = 64
_POLL_S = 0.05
_PIECE = 20_000  # Frames are built in memory, so the highest rate is measured in parts.
_FOLLOWING = frozenset(TABLES) - {AUDIT.name, QUARANTINE.name}


def measure(plan: Plan) -> Iterator[Sample]:
    """Measure a hub with the pipeline and one without, alternately, each started from scratch."""
    generator = Generator()
    for _ in range(plan.rounds):
        for case in plan.order.sample((BESIDE, ALONE), 2):
            with running_hub(has_pipeline=case == BESIDE) as hub:
                figures = _measure(plan, hub, Site(generator, hub), is_beside=case == BESIDE)
            yield Sample(case, figures)


def _measure(plan: Plan, hub: Hub, site: Site, *, is_beside: bool) -> dict[str, float]:
    prepare(site, 1)
    with publishers(site, 1) as (publisher,):
        figures = _load(plan, hub, publisher, is_beside=is_beside)
        figures["rate_s"] = _full_rate(publisher, plan.seconds(FULL_S, 1.0))
    if is_beside:
        _await_caught_up(hub.folder)
        time.sleep(plan.seconds(QUIET_S, 2.0))
        figures["idle_percent"] = 100 * _pipeline_share(hub, plan.seconds(IDLE_S, 3.0))
    return figures


def _load(plan: Plan, hub: Hub, publisher: Publisher, *, is_beside: bool) -> dict[str, float]:
    """Publish on a schedule; only messages after the warm-up count."""
    warm = int(plan.seconds(WARM_S, 5.0) * RATE_S)
    total = warm + int(plan.seconds(LOAD_S, 5.0) * RATE_S)
    frames = publisher.lane(total, 0).frames
    watch = _Watch(hub.folder) if is_beside else None
    began = time.monotonic()
    try:
        answer = publisher.site.store.published
        with hub.metering_pipeline() as meter:
            sent = send_on_schedule(publisher.socket, frames, total, RATE_S, answer)
        share = meter.seconds / (time.monotonic() - began)
        answered = sent.answered_s(warm)
        figures = {
            "ack_p50_ms": percentile(answered, 0.5) * 1e3,
            "ack_p99_ms": percentile(answered, 0.99) * 1e3,
            "lag_ms": sent.lag_s * 1e3,
        }
        if watch is None:
            return figures
        fresh = watch.freshness(sent, warm)
    finally:
        if watch is not None:
            watch.close()
    return figures | {
        "fresh_p50_s": percentile(fresh, 0.5),
        "fresh_p99_s": percentile(fresh, 0.99),
        "fresh_max_s": fresh[-1],
        "busy_percent": 100 * share,
    }


def _full_rate(publisher: Publisher, seconds: float) -> float:
    """Return the acknowledged publications per second with some in flight."""
    generator, answers, took_s = publisher.site.generator, 0, 0.0
    while took_s < seconds:
        lane = publisher.lane(_PIECE, WINDOW)
        drive = generator.drive([lane], seconds_max=max(seconds, 5.0))
        answers += drive.answers
        took_s += drive.seconds
        if drive.answers < _PIECE:
            break
    return answers / took_s


def _pipeline_share(hub: Hub, seconds: float) -> float:
    began = time.monotonic()
    with hub.metering_pipeline() as meter:
        time.sleep(seconds)
    return meter.seconds / (time.monotonic() - began)


def _await_caught_up(data: Path) -> None:
    """Wait until every table has caught up with the log: before that, nothing is idle."""
    head = Segments(log_of(data)).published()
    assert head is not None
    lake, deadline = lake_of(data), time.monotonic() + CAUGHT_UP_S_MAX
    for name in sorted(_FOLLOWING):
        while (lake.committed(name, 0, head.epoch) or -1) < head.offset - 1:
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{name} was behind for {CAUGHT_UP_S_MAX:.0f} s")
            time.sleep(1.0)


@dataclass(slots=True)
class _Seen:
    """When which offset became readable, both ascending."""

    at: list[float] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)


class _Watch:
    """Polls the table all the time, as a reader without Spark would."""

    def __init__(self, data: Path) -> None:
        head = Segments(log_of(data)).published()
        if head is None:
            raise MeasurementFailed("the hub has not published its durable head")
        self._epoch = head.epoch
        self._lake = lake_of(data)
        self._seen = _Seen()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def freshness(self, sent: Sent, first: int) -> list[float]:
        """Return the times from schedule to visible row, ascending, from message `first` on."""
        deadline = time.monotonic() + VISIBLE_S_MAX
        while len(offsets := self._offsets()) < len(sent.due):
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{len(offsets)} of {len(sent.due)} messages were landed")
            time.sleep(1.0)
        seen = self._seen
        return sorted(
            seen.at[bisect_left(seen.offset, offset)] - due
            for offset, due in list(zip(offsets, sent.due, strict=True))[first:]
        )

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_POLL_S):
            try:
                committed = self._lake.committed(ENTRIES.name, 0, self._epoch)
            except LakeUnreachable:
                continue
            if committed is not None and committed > (self._seen.offset or [-1])[-1]:
                self._seen.at.append(time.monotonic())
                self._seen.offset.append(committed)

    def _offsets(self) -> list[int]:
        """Return the positions of the messages that were seen, in the order they were sent."""
        table = Lake(self._lake.uri).open(ENTRIES.name)
        last = (self._seen.offset or [-1])[-1]
        if table is None:
            return []
        sql = (
            f'SELECT "offset" FROM entries WHERE kind = \'published\' AND "offset" <= {last}'
            f" AND stream = '{topic_name(0)}' ORDER BY seq"
        )
        rows = QueryBuilder().register(ENTRIES.name, table).execute(sql)
        found: list[int] = pa.RecordBatchReader.from_stream(rows).read_all()[0].to_pylist()
        return found


SUBJECT = Subject(
    name=NAME,
    title="freshness: 1 000 durable messages per second, sent to visible; and the hub beside it",
    columns=(
        Column("visible p50 s", "fresh_p50_s", 2),
        Column("p99 s", "fresh_p99_s", 2),
        Column("worst s", "fresh_max_s", 2),
        Column("ack p50 ms", "ack_p50_ms", 2),
        Column("p99 ms", "ack_p99_ms", 2),
        Column("acked per s, 64 in flight", "rate_s"),
        Column("pipeline % of a core", "busy_percent", 1),
        Column("idle", "idle_percent", 2),
        Column("worst lag ms", "lag_ms", 1),
    ),
    measure=measure,
)
