"""Send messages of the lake again: in order, marked as copies, each once.

A replay is a job. Its bound is fixed when it starts, and the hub stores the position of the
original with every copy, so the same call made again after an interruption continues where it
stopped. Calls block; from a coroutine, make them in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.clock import SystemClock
from signalhub.operate import target
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.lake import OpenSpark, open_lake, spark_session
from signalhub.operate.session import DEFAULT_URL, TIMEOUT_S, HubAccess, brief_reconnect
from signalhub.operate.target import ReplayTarget
from signalhub.pacing import grown
from signalhub.pipeline.replay import select
from signalhub.pipeline.replay.job import (
    NAME,
    Bound,
    ReplayJob,
    Selection,
    job_of,
    read_job,
    write_job,
)
from signalhub.pipeline.replay.select import Example, LeftOut, SelectionSummary
from signalhub.wire.errors import Refused, SignalHubError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from signalhub.client import Client, Original, OriginalPosition, Republished
    from signalhub.client.protocol.events import Listener
    from signalhub.settings.model import Settings

RATE: Final = 1_000.0

MESSAGES_MAX: Final = 100
# Less than the hub accepts, because a request contains more than its messages.
BYTES_MAX: Final = 500 * 2**10
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 10.0


class LakeEmpty(SignalHubError):
    """No message has reached the lake."""

    code = "lake_empty"


class Behind(msgspec.Struct, frozen=True):
    """Progress: this many entries of the log are not in the lake yet and are ignored."""

    entries: int


class Sending(msgspec.Struct, frozen=True):
    """Progress: how much of a job this call has sent.

    `total` is `None` until the hub has said how much is left.
    """

    job: str
    total: int | None = None
    sent: int = 0
    appended: int = 0
    skipped: int = 0


class HubBusy(msgspec.Struct, frozen=True):
    """Progress: the hub cannot take more now; the replay continues automatically."""

    reason: str


Progress = Callable[[Behind | Sending | HubBusy], object]


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay."""

    job: str | None
    """The hub's name for the replay; `None` if nothing was selected."""
    to: str
    selected: int
    """The number of messages in the whole job."""
    appended: int = 0
    """The number of messages this call has sent."""
    skipped: int = 0
    """The number of messages the hub already had when this call sent them."""
    until: Bound
    left_out: LeftOut = LeftOut()
    was_done: bool = False
    """Whether an earlier call had sent everything."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay would send."""

    summary: SelectionSummary
    examples: list[Example]


def replay(
    settings: Settings,
    where: str,
    to: str,
    *,
    job: str | None = None,
    rate: float = RATE,
    include_replays: bool = False,
    url: str = DEFAULT_URL,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
    listener: Listener | None = None,
    progress: Progress = lambda event: None,
    open_spark: OpenSpark = spark_session,
) -> ReplayResult:
    """Select messages of the lake and send them again.

    Args:
        settings: Those of the hub; `data` and `pipeline` say where the lake is.
        where: A condition over the table `messages`, in Spark's SQL.
        to: `topic:NAME`, `subscription:TOPIC:NAME`, `@(ACTOR)`, or an unambiguous name.
        job: A name for the replay; another name sends the same messages again.
        rate: Messages per second; 0 is without limit.
        include_replays: Select copies sent by earlier replays as well.
        url: The hub.
        token: A token with the permission `admin` for `republish`, if the hub asks for one.
        timeout_s: How long to wait for one answer of the hub.
        listener: Called with events of the connection, as for `connect`.
        progress: Called with `Behind`, `Sending` and `HubBusy`.
        open_spark: Opens the Spark session.

    Raises:
        InvalidArgument: There is no lake, or `to` or `job` is invalid.
        UnknownTarget: The hub has nothing called `to`.
        QueryError: `where` is not a condition over `messages`.
        ReplayConflict: `job` is the name of another replay.
        LakeEmpty: No message has reached the lake.
        ClientError: The hub refused or could not be reached; the same call continues the job.
    """
    access = HubAccess(url=url, token=token, timeout_s=timeout_s, listener=listener)
    work = _Replay(settings, access, where, to, job, include_replays=include_replays)
    if work.known is not None and work.known.ended_ms is not None:
        return _result(work.known, LeftOut(), was_done=True)
    work.ask_for_target()
    with work.selected(open_spark, progress) as (rows, until):
        summary = select.summarise(rows)
        if not summary.count:
            return ReplayResult(
                job=None,
                to=str(work.target),
                selected=0,
                until=until,
                left_out=summary.left_out,
            )
        begun = work.known or work.begin(until, summary)
        sent = work.send(rows, summary, begun, rate, progress)
        work.end(begun)
        return _result(begun, summary.left_out, sent)


def preview(
    settings: Settings,
    where: str,
    to: str,
    *,
    job: str | None = None,
    include_replays: bool = False,
    url: str = DEFAULT_URL,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: Progress = lambda event: None,
    open_spark: OpenSpark = spark_session,
) -> Preview:
    """Return what `replay` with the same arguments would send; nothing is sent.

    Raises what `replay` raises. The hub is asked only if `to` is a plain name.
    """
    access = HubAccess(url=url, token=token, timeout_s=timeout_s)
    work = _Replay(settings, access, where, to, job, include_replays=include_replays)
    with work.selected(open_spark, progress) as (rows, _):
        return Preview(summary=select.summarise(rows), examples=select.examples(rows))


class _Replay:
    """One call: its arguments, and the job it belongs to if that has started."""

    def __init__(
        self,
        settings: Settings,
        access: HubAccess,
        where: str,
        to: str,
        job: str | None,
        *,
        include_replays: bool,
    ) -> None:
        if job is not None and not NAME.fullmatch(job):
            raise InvalidArgument(
                f"invalid job name {job!r}",
                "use up to 64 letters, digits, dots, dashes and underscores",
            )
        self._settings = settings
        self._lake = open_lake(settings)
        self._access = access
        self._to = to
        self._name = job
        possible = target.candidates(to)
        self.target = possible[0] if len(possible) == 1 else self.ask_for_target()
        self._selection = Selection(where, str(self.target), include_replays)
        self.known = read_job(settings.data, job, self._selection)

    def ask_for_target(self) -> ReplayTarget:
        """Have the hub confirm that the target exists."""

        async def look() -> ReplayTarget:
            async with self._access.session() as me:
                return await target.find(me, self._to, self._access)

        return asyncio.run(look())

    @contextmanager
    def selected(
        self, open_spark: OpenSpark, progress: Progress
    ) -> Iterator[tuple[DataFrame, Bound]]:
        """Select the rows to send from the lake; yield them and the bound they end at."""
        data, known = self._settings.data, self.known
        with open_spark(self._settings) as spark:
            until = select.landed(spark, self._lake, data) if known is None else known.until
            if until is None:
                raise LakeEmpty("there are no messages in the lake yet")
            rows = select.select(
                spark,
                self._lake,
                self._selection.where,
                until,
                include_replays=self._selection.include_replays,
            )
            late = select.behind(until, select.head_of(data)) if known is None else 0
            if late:
                progress(Behind(late))
            yield rows, until

    def begin(self, until: Bound, summary: SelectionSummary) -> ReplayJob:
        """Store the job: from now on, the same call selects the same messages."""
        begun = job_of(self._name, self._selection, until, SystemClock().now_ms())
        begun.selected = summary.count
        write_job(self._settings.data, self._name, begun)
        return begun

    def send(
        self,
        rows: DataFrame,
        summary: SelectionSummary,
        begun: ReplayJob,
        rate: float,
        progress: Progress,
    ) -> Sending:
        """Send the rest of the job; a lost connection is restored."""
        sender = Sender(begun.job, begun.until, self.target, rate, self._access, progress)

        async def work() -> Sending:
            async with self._access.session(reconnect=brief_reconnect()) as me:
                after = await sender.ask(me)
                left = select.rest(rows, after)
                total = summary.count if after is None else await asyncio.to_thread(left.count)
                return await sender.send(me, select.in_order(left, summary.bytes), total)

        progress(sender.sent)
        return asyncio.run(work())

    def end(self, begun: ReplayJob) -> None:
        begun.ended_ms = SystemClock().now_ms()
        write_job(self._settings.data, self._name, begun)


def _result(
    job: ReplayJob, left_out: LeftOut, sent: Sending | None = None, *, was_done: bool = False
) -> ReplayResult:
    return ReplayResult(
        job=job.job,
        to=job.selection.to,
        selected=job.selected,
        appended=0 if sent is None else sent.appended,
        skipped=job.selected if sent is None else sent.skipped,
        until=job.until,
        left_out=left_out,
        was_done=was_done,
    )


class Sender:
    """Sends the messages of a job: one request at a time, at a steady rate."""

    def __init__(
        self,
        job: str,
        until: Bound,
        target: ReplayTarget,
        rate: float,
        access: HubAccess,
        progress: Progress = lambda event: None,
    ) -> None:
        self.sent = Sending(job)
        self._until = (until.epoch, until.offset)
        self._target = target
        self._rate = rate
        self._access = access
        self._progress = progress

    async def ask(self, me: Client) -> OriginalPosition | None:
        """Return the position of the last original the hub has a copy of."""
        answer = await self._access.in_time(self._republish(me, []))
        return answer.position

    async def send(self, me: Client, originals: Iterator[Original], total: int) -> Sending:
        """Send everything; wait while the hub cannot take more."""
        loop = asyncio.get_running_loop()
        requests = batches(originals, batch_size(self._rate))
        began = loop.time()
        self._report(total=total)
        # Spark may take a while; in a thread, so that the connection stays alive.
        while batch := await asyncio.to_thread(next, requests, None):
            if self._rate:
                await asyncio.sleep(began + self.sent.sent / self._rate - loop.time())
            answer = await self._send(me, batch)
            self._report(
                sent=self.sent.sent + len(batch),
                appended=self.sent.appended + answer.appended,
                skipped=self.sent.skipped + answer.skipped,
            )
        await self._access.in_time(self._republish(me, [], ended=True))
        return self.sent

    def _report(self, **changes: int) -> None:
        self.sent = msgspec.structs.replace(self.sent, **changes)
        self._progress(self.sent)

    async def _send(self, me: Client, batch: list[Original]) -> Republished:
        attempts = 0
        while True:
            try:
                return await self._republish(me, batch)
            except Refused as refused:
                if not refused.retryable:
                    raise
                if attempts == 0:
                    self._progress(HubBusy(refused.message))
                await asyncio.sleep(grown(PAUSE_S, PAUSE_MAX_S, attempts))
                attempts += 1

    async def _republish(
        self, me: Client, batch: list[Original], *, ended: bool = False
    ) -> Republished:
        return await me.republish(
            self.sent.job, batch, until=self._until, ended=ended, **self._target.members
        )


def batch_size(rate: float) -> int:
    """Return the size of a request: at most one second's worth, so that a low rate stays steady."""
    return max(1, min(MESSAGES_MAX, int(rate))) if rate else MESSAGES_MAX


def batches(originals: Iterator[Original], count_max: int) -> Iterator[list[Original]]:
    """Split into requests of a size the hub accepts; a larger message gets a request to itself."""
    batch: list[Original] = []
    size = 0
    for one in originals:
        more = len(msgspec.json.encode(one)) + 1
        if batch and (len(batch) >= count_max or size + more > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += more
    if batch:
        yield batch
