"""Jobs: work of operators that takes several requests or a while, such as a replay or an erasure.

A job leaves an `operated` entry when it begins and one when it ends. One that has begun and neither
ended nor is anybody working on it was interrupted: by the end of the hub, or of the command that
drove it. It is not resumed; whoever wants the rest starts the command again. The newest jobs are
remembered here across restarts, so that operators can list them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Entry, JobBody, Kind, OperatedBody, encode_body

if TYPE_CHECKING:
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.sessions.session import Session
    from signalhub.wire.envelope import Envelope
    from signalhub.wire.errors import Refusal

JOBS_MAX: Final = 100
OPERATION: Final = "view"

Phase = Literal["begin", "end", "failed"]
_STATES: Final = {"end": "done", "failed": "failed"}


class Worker(Protocol):
    """Somebody outside the hub who drives a job: a session."""

    @property
    def is_over(self) -> bool:
        """Has it ended?"""


class Jobs:
    """The newest jobs, and who works on them now."""

    def __init__(self, jobs_max: int = JOBS_MAX) -> None:
        self._jobs_max = jobs_max
        # In the order of their beginning.
        self._jobs: dict[str, JobBody] = {}
        # `None`: the hub itself works on it until its end is on record.
        self._workers: dict[str, Worker | None] = {}
        self.is_dirty = False
        # The log from this offset on contains all of them.
        self.defined_at = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def record(
        self,
        session: Session,
        request: str,
        operation: str,
        job: str,
        phase: Phase,
        now: int,
        *,
        is_named: bool = True,
        detail: str = "",
    ) -> Append:
        """Write that a job begins or ends; unless it is named, not by whom."""
        by, address = (session.allowance.subject, session.address) if is_named else ("", "")
        body = OperatedBody(by, address, "admin", operation, phase, job, request, detail)
        entry = Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body))
        return Append(entry, partial(self._recorded, body, now), partial(self._unrecorded, job))

    def _recorded(self, body: OperatedBody, at_ms: int, offset: int, now: int) -> list[Effect]:
        self.note(body, at_ms, offset)
        return []

    def _unrecorded(self, job: str, refusal: Refusal, now: int) -> list[Effect]:
        self._workers.pop(job, None)
        return []

    def drive(self, job: str, worker: Worker | None = None) -> None:
        """Somebody works on a job, from its beginning or again."""
        self._workers[job] = worker

    def note(self, body: OperatedBody, at_ms: int, offset: int) -> None:
        """An entry about a job is in the log."""
        if not body.job:
            return
        if not self._jobs:
            self.defined_at = offset
        known = self._jobs.get(body.job)
        if known is None:
            known = JobBody(body.job, body.over, body.by, body.address)
            self._jobs[body.job] = known
        if body.phase == "begin":
            known.began_ms = known.began_ms or at_ms
        else:
            known.ended_ms, known.phase, known.detail = at_ms, body.phase, body.detail
            self._workers.pop(body.job, None)
        self.is_dirty = True
        while len(self._jobs) > self._jobs_max:
            oldest = next(iter(self._jobs))
            del self._jobs[oldest]
            self._workers.pop(oldest, None)

    def forget(self, actor: str) -> None:
        """An actor is erased, and so is what it did."""
        for one in self._jobs.values():
            if actor in (one.address, one.by, f"@({one.by})"):
                one.by = one.address = ""
                self.is_dirty = True

    def state_of(self, one: JobBody) -> str:
        """`running`, `done`, `failed` or `interrupted`."""
        if one.phase:
            return _STATES.get(one.phase, one.phase)
        if one.job not in self._workers:
            return "interrupted"
        worker = self._workers[one.job]
        return "interrupted" if worker is not None and worker.is_over else "running"

    def newest(self, limit: int) -> list[JobBody]:
        """The newest jobs, the last one first."""
        return [*self._jobs.values()][: -limit - 1 : -1]

    # Across restarts.

    def state(self, *, is_named: bool) -> list[JobBody]:
        """All jobs; without names for the log, where nothing could erase them."""
        found = [*self._jobs.values()]
        if is_named:
            return found
        return [msgspec.structs.replace(one, by="", address="") for one in found]

    def restore(self, jobs: list[JobBody], offset: int, *, is_saved: bool) -> None:
        """Add jobs read from a snapshot or an anchor, unless the log said more of them."""
        if jobs and not self._jobs:
            self.defined_at = offset
        for one in jobs:
            known = self._jobs.setdefault(one.job, one)
            known.phase = known.phase or one.phase
            known.ended_ms = known.ended_ms or one.ended_ms
            known.detail = known.detail or one.detail
        self.is_dirty = self.is_dirty or (bool(jobs) and not is_saved)


class JobList:
    """Answers operators who ask for jobs."""

    def __init__(self, jobs: Jobs, replies: Replies) -> None:
        self._jobs = jobs
        self._replies = replies

    def handlers(self) -> dict[str, Handler]:
        return {"hub:list_jobs": self.show}

    def show(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:list_jobs`: the newest jobs, the last one first."""
        allowance = session.allowance
        if allowance is not EVERYTHING and not allowance.may_administer(OPERATION):
            raise refusals.unauthorized("admin", OPERATION)
        request = requests.parse_or_empty(requests.ListJobsRequest, message.payload)
        jobs = self._jobs.newest(requests.page(request.limit, JOBS_MAX))
        payload = wire.encode({"jobs": [self._row(one) for one in jobs], "total": len(self._jobs)})
        return [self._replies.reply(session, message, "hub:job_list", payload, now)]

    def _row(self, one: JobBody) -> dict[str, object]:
        # The times of its entries in the log.
        return {
            "job": one.job,
            "operation": one.operation,
            "state": self._jobs.state_of(one),
            "subject": one.by or None,
            "identity": one.address or None,
            "beganAt": one.began_ms or None,
            "endedAt": one.ended_ms or None,
            "detail": one.detail or None,
        }
