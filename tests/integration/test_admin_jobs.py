"""Jobs that people begin: how far they are, who may cancel them, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

from signalhub.server.admin.api import AdminRefusal
from signalhub.server.admin.jobs import JOBS_MAX, RUNNING_MAX, Job, Work
from signalhub.server.admin.visitors import Visitor
from signalhub.server.port.http import HttpRequest
from tests.support.socket.desk import GUARDED, Office, Person, open_office
from tests.support.socket.stage import eventually


def visitor(office: Office, person: Person) -> Visitor:
    headers = {} if person.token is None else {"authorization": f"Bearer {person.token}"}
    return office.desk.api.visitors.identify(HttpRequest("GET", "/", "", headers))


def waiting() -> tuple[Work, asyncio.Event]:
    """Work that is a quarter done and goes on until it is told to end."""
    ended = asyncio.Event()

    async def work(job: Job) -> dict[str, Any]:
        job.total, job.done, job.cancel = 100, 25, ended.set
        await ended.wait()
        job.done = 100
        return {"count": 100}

    return work, ended


async def settled(person: Person, job: str) -> Any:
    row = await person.get(f"/jobs/{job}")
    while row["endedAt"] is None:
        await asyncio.sleep(0)
        row = await person.get(f"/jobs/{job}")
    return row


async def test_a_job_tells_how_far_it_is_and_what_came_of_it() -> None:
    async with open_office() as office:
        ann = office.person()
        work, ended = waiting()
        job = office.desk.jobs.begin("test.work", "orders", visitor(office, ann), work)
        await asyncio.sleep(0)
        office.stage.clock.advance(5)  # type: ignore[attr-defined]
        row = await ann.get(f"/jobs/{job.name}")
        assert (row["state"], row["done"], row["of"]) == ("running", 25, 100)
        assert (row["rate"], row["etaMs"], row["cancellable"]) == (5.0, 15_000, True)
        page = await office.looker()
        assert (await page.watch("job", job=job.name))["full"]["done"] == 25

        ended.set()

        row = await settled(ann, job.name)
        assert (row["state"], row["done"], row["result"]) == ("done", 100, {"count": 100})
        assert row["cancellable"] is False
        late = await ann.ask("POST", f"/jobs/{job.name}/cancel", {})
        assert (late.status, late.json["errorCode"]) == (409, "not_running")


async def test_a_job_is_cancelled_by_who_began_it_or_manages_its_target() -> None:
    async with open_office(**GUARDED) as office:
        ann, bob = office.person("viewer"), office.person("operator", "people/bob")
        eve = office.person("viewer", "people/eve")
        for canceller in (ann, bob):
            work, _ = waiting()
            job = office.desk.jobs.begin("test.work", "orders", visitor(office, ann), work)
            await asyncio.sleep(0)
            path = f"/jobs/{job.name}/cancel"
            assert (await eve.ask("POST", path, {})).status == 403
            assert (await canceller.post(path))["result"] == {"state": "cancelled"}
            row = await settled(ann, job.name)
            assert (row["state"], row["subject"]) == ("cancelled", "people/ann")
        assert (await ann.ask("POST", "/jobs/none/cancel", {})).status == 404


async def test_a_job_that_fails_says_why_and_a_bug_is_not_told() -> None:
    async with open_office() as office:
        ann = office.person()
        for error, detail in (
            (AdminRefusal(409, "conflict", "The topic is gone."), "The topic is gone."),
            (RuntimeError("secret"), "Internal error; see the hub's log."),
        ):

            async def work(job: Job, error: Exception = error) -> dict[str, Any]:
                raise error

            job = office.desk.jobs.begin("test.work", "orders", visitor(office, ann), work)
            row = await settled(ann, job.name)
            assert (row["state"], row["detail"]) == ("failed", detail)


async def test_jobs_are_limited_in_number_and_the_oldest_are_forgotten() -> None:
    async with open_office() as office:
        ann = office.person()
        who, jobs = visitor(office, ann), office.desk.jobs

        async def nothing(job: Job) -> dict[str, Any]:
            return {}

        first = jobs.begin("test.work", "orders", who, nothing)
        await settled(ann, first.name)
        for _ in range(JOBS_MAX):
            last = jobs.begin("test.work", "orders", who, nothing)
            await asyncio.sleep(0)
        assert (await ann.ask("GET", f"/jobs/{first.name}")).status == 404
        assert len((await ann.get("/jobs"))["rows"]) == JOBS_MAX
        assert jobs.find(last.name) is not None
        works = [waiting() for _ in range(RUNNING_MAX)]
        for work, _ in works:
            jobs.begin("test.work", "orders", who, work)
        try:
            jobs.begin("test.work", "orders", who, nothing)
        except AdminRefusal as refusal:
            too_many = refusal.status
        assert too_many == 429
        for _, ended in works:
            ended.set()


async def test_letters_that_cannot_be_written_make_a_job_wait_and_cancelling_ends_it() -> None:
    async with open_office() as office:
        peer = await office.orders(2)
        ann = office.person()
        one = office.stage.hub.app.hub.streams.topics["orders"].subscriptions["billing"]
        await eventually(lambda: len(one.window) == 2)
        bury = {"seqs": [1, 2], "verdict": "term", "reason": "x"}
        await ann.post("/topics/orders/subscriptions/billing/settle", bury)
        with office.stage.held_disk() as disk:
            disk.hold()
            chosen = {"topic": "orders.dlq", "all": True}
            job = (await ann.post("/letters/redrive", chosen))["job"]
            assert (await ann.get(f"/jobs/{job}"))["state"] == "running"
            await ann.post(f"/jobs/{job}/cancel")
            row = await settled(ann, job)
            assert (row["state"], row["done"]) == ("cancelled", 0)
            disk.release()
        assert peer.is_open
        await ann.get("/me")
