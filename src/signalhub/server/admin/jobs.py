"""`/jobs`, and the work on dead letters that goes on as one.

A job is a task of this process: closing the page changes nothing, stopping the hub ends it. Other
parts start theirs with `Jobs.begin`. Jobs of commands (`signalhub jobs`) are listed beside them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from signalhub.core.requests import (
    EDITS_MAX,
    SEQS_MAX,
    LetterFilter,
    LettersRequest,
    Position,
)
from signalhub.server.admin.answers import (
    Done,
    JobRow,
    JobsAnswer,
    JobStarted,
    LetterPreviewRow,
    LettersPreview,
    ReasonCount,
)
from signalhub.server.admin.api import AdminApi, AdminRefusal, Asked, forbidden, not_found
from signalhub.server.callers import CallRefused
from signalhub.wire.errors import unworded
from signalhub.wire.names import TYPE_CHARS_MAX

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.streams.streams import Topic
    from signalhub.server.admin.visitors import Visitor, Visitors

log = logging.getLogger("signalhub.admin")

JOBS_MAX: Final = 100
RUNNING_MAX: Final = 16
FAILURES_MAX: Final = 100
_LETTERS_S: Final = 86_400.0


class LetterEditBody(msgspec.Struct, frozen=True, rename="camel"):
    """What a redriven copy has instead of its letter; null removes key or headers."""

    data: Any = None
    type: Annotated[str, Meta(min_length=1, max_length=TYPE_CHARS_MAX)] | None = None
    key: str | None = None
    headers: dict[str, str] | None = None


class LettersBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which dead letters: `seqs`, a `filter` or `all`, none of them after `through`.

    It is described here and checked as the request of the wire protocol, `LettersRequest`.
    """

    topic: str
    seqs: Annotated[list[Position], Meta(max_length=SEQS_MAX)] | None = None
    all: bool | None = None
    filter: LetterFilter | None = None
    through: Position | None = None
    epoch: str | None = None
    edits: Annotated[dict[str, LetterEditBody], Meta(max_length=EDITS_MAX)] | None = None
    dry_run: bool = False


State = Literal["running", "done", "failed", "interrupted", "cancelled"]


class Job:
    """One job; its work keeps `done` and `total` up to date."""

    def __init__(
        self, name: str, operation: str, target: str, visitor: Visitor, began_ms: int
    ) -> None:
        self.name = name
        self.operation = operation
        self.target = target
        self.visitor = visitor
        self.began_ms = began_ms
        self.ended_ms: int | None = None
        self.state: State = "running"
        self.done: int | None = None
        self.total: int | None = None
        self.detail: str | None = None
        self.result: dict[str, Any] | None = None
        self.failures: list[str] = []
        # Ends the work early; `None` if that is impossible.
        self.cancel: Callable[[], None] | None = None
        # How far the work is, if it is not told but looked at.
        self.measure: Callable[[], int] | None = None

    def row(self, now: int, shown: Callable[[int], int]) -> JobRow:
        """What people see of it."""
        done = self.measure() if self.measure is not None and not self.ended_ms else self.done
        elapsed_s = max(1, (self.ended_ms or now) - self.began_ms) / 1000
        rate = None if done is None else done / elapsed_s
        eta_ms = None
        if not self.ended_ms and rate and self.total is not None and done is not None:
            eta_ms = int(1000 * max(0, self.total - done) / rate)
        return JobRow(
            job=self.name,
            operation=self.operation,
            target=self.target,
            state=self.state,
            subject=self.visitor.allowance.subject or None,
            identity=self.visitor.principal.address,
            began_at=shown(self.began_ms),
            ended_at=None if self.ended_ms is None else shown(self.ended_ms),
            done=done,
            total=self.total,
            rate=rate,
            eta_ms=eta_ms,
            detail=self.detail,
            result=self.result,
            failures=self.failures[:FAILURES_MAX],
            cancellable=self.state == "running" and self.cancel is not None,
        )


Work = Callable[[Job], Awaitable[dict[str, Any]]]


class Jobs:
    """The jobs of this API, the newest last."""

    def __init__(self, hub: Hub, visitors: Visitors, now_ms: Callable[[], int]) -> None:
        self._hub = hub
        self._visitors = visitors
        self._now_ms = now_ms
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        api.add("GET", "/jobs", self.list_jobs, answer=JobsAnswer)
        api.add("GET", "/jobs/{}", self.show_job, answer=JobRow)
        api.add("POST", "/jobs/{}/cancel", self.cancel_job, answer=Done)
        letters: dict[str, Any] = {
            "answer": JobStarted,
            "body": LettersBody,
            "preview": LettersPreview,
        }
        api.add("POST", "/letters/redrive", self.redrive, **letters)
        api.add("POST", "/letters/purge", self.purge, **letters)

    def begin(self, operation: str, target: str, visitor: Visitor, work: Work) -> Job:
        """Start work as a job; what it returns is the result of the job.

        The work may set `total`, `done`, `failures`, `cancel` and `measure` of its job. If it
        raises, the job has failed, and the error says why.
        """
        running = sum(one.state == "running" for one in self._jobs.values())
        if running >= RUNNING_MAX:
            raise AdminRefusal(
                429, "too_many_jobs", f"{RUNNING_MAX} jobs are running.", "Wait until one ends."
            )
        name = f"{operation}-{self._hub.ids.next().decode()}"
        job = Job(name, operation, target, visitor, self._now_ms())
        self._jobs[name] = job
        while len(self._jobs) > JOBS_MAX:
            ended = (one.name for one in self._jobs.values() if one.ended_ms is not None)
            del self._jobs[next(ended)]
        task = asyncio.ensure_future(self._run(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Job, work: Work) -> None:
        try:
            job.result = await work(job)
            state: State = "done"
        except asyncio.CancelledError:
            state = "interrupted"
        except (CallRefused, AdminRefusal) as refusal:
            state, job.detail = "failed", str(refusal)
        except Exception as error:
            log.error("a job failed", exc_info=unworded(error), extra={"job": job.name})
            state, job.detail = "failed", "Internal error; see the hub's log."
        if job.measure is not None:
            job.done, job.measure = job.measure(), None
        if job.state == "running":
            job.state = state
        job.cancel = None
        job.ended_ms = self._now_ms()

    def stop(self) -> None:
        """The hub stops: what still runs is interrupted."""
        for task in self._tasks:
            task.cancel()

    # Routes.

    def find(self, name: str) -> JobRow | None:
        """One job, of this API or of a command."""
        job = self._jobs.get(name)
        if job is not None:
            return job.row(self._now_ms(), self._hub.wall.shown)
        return next((one for one in self._of_commands() if one.job == name), None)

    def list_jobs(self, asked: Asked) -> JobsAnswer:
        """The newest jobs, the last one first."""
        now, shown = self._now_ms(), self._hub.wall.shown
        rows = [one.row(now, shown) for one in self._jobs.values()] + self._of_commands()
        rows.sort(key=lambda one: one.began_at or 0, reverse=True)
        return JobsAnswer(rows=rows[:JOBS_MAX])

    def show_job(self, asked: Asked, name: str) -> JobRow:
        """One job."""
        found = self.find(name)
        if found is None:
            raise not_found(f"There is no job {name!r} (any more).")
        return found

    def cancel_job(self, asked: Asked, name: str) -> Done:
        """End a job early; what it has done stays done."""
        job = self._jobs.get(name)
        if job is None:
            raise not_found(f"There is no job {name!r} that could be cancelled.")
        is_own = job.visitor.name == asked.visitor.name
        if not is_own and not asked.may("manage", job.target):
            raise forbidden(f"manage: {job.target}")
        if job.state != "running" or job.cancel is None:
            raise AdminRefusal(409, "not_running", f"The job is {job.state}.", "Look at it again.")
        job.state = "cancelled"
        job.cancel()
        return Done(operation="job.cancel", target=name, result={"state": job.state})

    def _of_commands(self) -> list[JobRow]:
        jobs = self._hub.replays.jobs
        return [
            JobRow(
                job=one.job,
                operation=one.operation,
                target="",
                state=jobs.state_of(one),  # type: ignore[arg-type]
                subject=one.by or None,
                identity=one.address or None,
                began_at=one.began_ms or None,
                ended_at=one.ended_ms or None,
                done=None,
                total=None,
                rate=None,
                eta_ms=None,
                detail=one.detail or None,
                result=None,
                failures=[],
                cancellable=False,
            )
            for one in jobs.newest(JOBS_MAX)
        ]

    # Dead letters.

    async def redrive(self, asked: Asked) -> LettersPreview | JobStarted:
        """Put dead letters back where they came from; `dryRun` shows which."""
        return await self._letters(asked, "redrive", "manage")

    async def purge(self, asked: Asked) -> LettersPreview | JobStarted:
        """Delete dead letters; `dryRun` shows which."""
        return await self._letters(asked, "purge", "delete")

    async def _letters(self, asked: Asked, what: str, verb: str) -> LettersPreview | JobStarted:
        request = asked.parsed(LettersRequest)
        topic = self._hub.streams.topics.get(request.topic)
        if topic is None or topic.is_deleting:
            raise not_found(f"There is no topic {request.topic!r}.", "Dead letters are in topics.")
        asked.require(verb, topic.name, topic.definition.owner)
        if request.edits:
            asked.require("read", topic.name)
        given = _members(asked.request.body)
        preview = _preview(
            topic.name, await asked.result(f"hub:{what}", given | _without_edits(request))
        )
        if request.dry_run:
            return preview
        # What comes from now on is left alone.
        given |= {"through": preview.through, "epoch": preview.epoch}
        job = self.begin(
            f"letters.{what}",
            topic.name,
            asked.visitor,
            lambda job: self._work(job, topic, what, given, preview.count),
        )
        return JobStarted(job=job.name)

    async def _work(
        self, job: Job, topic: Topic, what: str, given: dict[str, Any], count: int
    ) -> dict[str, Any]:
        removed = topic.removed.count
        job.total = count
        job.measure = lambda: min(count, max(0, topic.removed.count - removed))
        # A session of its own: it ends when the job is cancelled, and the work with it.
        caller = self._visitors.caller(job.visitor, f"@(hub/job.{job.name})")
        job.cancel = caller.end
        try:
            answer = await caller.call(f"hub:{what}", given, timeout_s=_LETTERS_S)
        except CallRefused:
            if job.state == "cancelled":
                return {"count": job.measure()}
            raise
        finally:
            if not caller.is_over:
                caller.end()
        found: dict[str, Any] = msgspec.json.decode(answer.payload)
        if found.get("skipped"):
            job.failures.append(f"{found['skipped']} letters stay: their origin is gone or closed")
        job.done, job.measure = found.get("count"), None
        return found


def _members(body: bytes) -> dict[str, Any]:
    """The members of the body, whose values are passed on as they are written."""
    members = msgspec.json.decode(body or b"{}", type=dict[str, msgspec.Raw])
    members.pop("dryRun", None)
    return dict(members)


def _without_edits(request: LettersRequest) -> dict[str, Any]:
    """What makes a preview of a request: its edits change nothing about who is chosen."""
    return {"dryRun": True} if request.edits is None else {"dryRun": True, "edits": None}


def _preview(topic: str, found: dict[str, Any]) -> LettersPreview:
    reasons = found.get("byReason")
    return LettersPreview(
        topic=topic,
        epoch=found["epoch"],
        through=found["through"],
        count=found["count"],
        skipped=found.get("skipped", 0),
        first=msgspec.convert(found["first"], list[LetterPreviewRow]),
        by_reason=None if reasons is None else msgspec.convert(reasons, list[ReasonCount]),
    )
