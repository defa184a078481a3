"""Audits and replays that people start: commands in processes of their own, as jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from signalhub.pipeline.quick_query import is_plain_condition
from signalhub.server.history import work
from signalhub.server.history.work import COMMANDS_MAX
from signalhub.testing import FakeClock
from tests.support.socket.stage import eventually
from tests.support.socket.tokens import AUTH, token_for
from tests.support.socket.visitors import Person, open_hub

# What a command was called with, and what it shall print.
COMMAND = """
import json, os, sys
folder = {folder!r}
with open(folder + "/calls", "a") as file:
    print(json.dumps([sys.argv[1:], os.environ.get("SIGNALHUB_TOKEN")]), file=file)
with open(folder + "/script") as file:
    exec(file.read())
"""
PLAIN = {"where": "topic = 'orders' AND key = 'c-17'", "to": "topic:orders"}


def command(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", COMMAND.format(folder=str(folder)))


class Bench:
    """A hub whose commands do what a test says."""

    def __init__(self, person: Person, folder: Path) -> None:
        self.person = person
        self.folder = folder

    def will(self, script: str) -> None:
        (self.folder / "script").write_text(script)

    @property
    def calls(self) -> list[list[Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    async def ended(self, job: str) -> Any:
        jobs = self.person.hub.app.desk
        assert jobs is not None
        await eventually(lambda: jobs.jobs.find(job).state != "running")  # type: ignore[union-attr]
        return await self.person.get(f"/jobs/{job}")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    # A pipeline elsewhere, which this test has no need of.
    async with open_hub(pipeline={"run": "elsewhere"}) as hub:
        person = Person(hub)
        person.desk.work._command = command(tmp_path)
        yield Bench(person, tmp_path)


async def test_an_audit_is_a_job_on_record(bench: Bench) -> None:
    bench.will("print(json.dumps({'verdict': 'proven', 'run_id': 'r-1', 'head': 7}))")

    started = await bench.person.ask("/lake/audit", {"since": 1_760_000_000_000})
    assert started.status == 200, started.body
    job = await bench.ended(started.json["job"])

    assert (job["state"], job["result"]["verdict"]) == ("done", "proven")
    ((arguments, token),) = bench.calls
    assert arguments[:2] == ["audit", "--json"]
    assert arguments[-2:] == ["--since", "2025-10-09T08:53:20Z"]
    assert token is None
    rows = (await bench.person.get("/actions?verb=admin"))["rows"]
    assert [(one["phase"], one["over"], one["job"]) for one in rows] == [
        ("end", "audit", started.json["job"]),
        ("begin", "audit", started.json["job"]),
    ]


async def test_an_audit_that_fails_says_why(bench: Bench) -> None:
    bench.will("print(json.dumps({'message': 'no Java'}), file=sys.stderr); sys.exit(3)")

    started = await bench.person.ask("/lake/audit", {})
    job = await bench.ended(started.json["job"])

    assert (job["state"], job["detail"]) == ("failed", "no Java")
    newest = (await bench.person.get("/actions?verb=admin"))["rows"][0]
    assert (newest["phase"], newest["detail"]) == ("failed", "no Java")


async def test_there_is_one_audit_at_a_time_and_it_can_be_ended(bench: Bench) -> None:
    bench.will("import time; time.sleep(60)")
    started = await bench.person.ask("/lake/audit", {})
    await eventually((bench.folder / "calls").exists)

    second = await bench.person.ask("/lake/audit", {})
    assert (second.status, second.json["errorCode"]) == (409, "audit_running")
    assert (await bench.person.get("/lake/audit"))["isRunning"]
    ended = await bench.person.ask(f"/jobs/{started.json['job']}/cancel", {})

    assert ended.status == 200, ended.body
    job = await bench.ended(started.json["job"])
    assert job["state"] == "cancelled"


async def test_a_replay_is_previewed_and_then_a_job(bench: Bench) -> None:
    position = {"shard": 0, "epoch": 5, "offset": 17}
    found = {"count": 25, "first": position, "last": position, "streams": {"orders": 25}}
    example = {
        "epoch": 5,
        "offset": 17,
        "accepted_at": "2026-11-16",
        "stream": "orders",
        "type": "order:new",
    }
    bench.will(f"print(json.dumps({found | {'examples': [example], 'left_out': {'rooms': 0}}!r}))")

    preview = await bench.person.ask("/replay", PLAIN | {"dryRun": True})

    assert preview.status == 200, preview.body
    assert (preview.json["count"], preview.json["first"]) == (25, "5.17")
    assert [one["position"] for one in preview.json["examples"]] == ["5.17"]
    assert preview.json["leftOut"] == {}
    bench.will("print(json.dumps({'job': 'again', 'selected': 25, 'appended': 25}))")
    started = await bench.person.ask("/replay", PLAIN | {"job": "again", "rate": 5})
    job = await bench.ended(started.json["job"])
    assert (job["state"], job["done"], job["of"]) == ("done", 25, 25)
    (first, _), (second, _) = bench.calls
    assert "--dry-run" in first
    assert "--dry-run" not in second
    assert {"--rate=5", "--job=again", f"--where={PLAIN['where']}"} <= set(second)


async def test_few_commands_run_at_once(bench: Bench) -> None:
    bench.will("import time; time.sleep(60)")
    jobs = [
        (await bench.person.ask("/replay", PLAIN | {"job": f"j-{number}"})).json["job"]
        for number in range(COMMANDS_MAX)
    ]

    for path, body in (
        ("/replay", PLAIN),
        ("/replay", PLAIN | {"dryRun": True}),
        ("/lake/audit", {}),
    ):
        refused = await bench.person.ask(path, body)
        assert (refused.status, refused.json["errorCode"]) == (429, "too_many_commands")
    await eventually(lambda: (bench.folder / "calls").exists() and len(bench.calls) == len(jobs))
    assert (await bench.person.ask(f"/jobs/{jobs[0]}/cancel", {})).status == 200
    # A job that is cancelled has not ended before its command has.
    known = bench.person.hub.app.desk
    assert known is not None
    job = known.jobs._jobs[jobs[0]]
    await eventually(lambda: job.ended_ms is not None)
    bench.will("print(json.dumps({'count': 1}))")
    for _ in range(COMMANDS_MAX):
        preview = await bench.person.ask("/replay", PLAIN | {"dryRun": True})
        assert preview.status == 200, preview.body


async def test_a_command_that_prints_too_much_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "OUTPUT_BYTES_MAX", 2**20)
    bench.will("while True: print('x' * 2**16)")

    answer = await bench.person.ask("/replay", PLAIN | {"dryRun": True})

    assert (answer.status, answer.json["errorCode"]) == (500, "too_much_output")


async def test_of_many_complaints_the_last_one_is_kept(bench: Bench) -> None:
    bench.will("print('noise\\n' * 2**20 + 'out of memory', file=sys.stderr); sys.exit(1)")

    answer = await bench.person.ask("/replay", PLAIN | {"dryRun": True})

    assert (answer.status, answer.json["error"]) == (400, "out of memory")


async def test_who_may_not_read_everything_learns_nothing_from_previews(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_hub(clock=clock, auth=AUTH, pipeline={"run": "elsewhere"}) as hub:
        for given in ({}, {"read": ["orders"]}, {"subscribe": ["*"]}, {"read": ["*"]}):
            grants = {"admin": ["republish"], **given}
            person = Person(hub, token_for("ui/remy", clock, permissions=grants))
            person.desk.work._command = command(tmp_path)
            bench = Bench(person, tmp_path)
            bench.will("print(json.dumps({'count': 3, 'examples': []}))")
            for is_preview in (True, False):
                answer = await person.ask("/replay", PLAIN | {"dryRun": is_preview})

                if given == {"read": ["*"]}:
                    assert answer.status == 200, answer.body
                    continue
                assert (answer.status, answer.json["details"]) == (403, {"needs": "read: *"})
                assert not (tmp_path / "calls").exists()


DANGEROUS = (
    "reflect('java.lang.System', 'getenv', 'HOME') = 'x'",
    "java_method('java.lang.Runtime', 'getRuntime') is not null",
    "topic IN (SELECT value FROM text.`/etc/passwd`)",
    "topic = '${env:HOME}'",
    "true) OR (true",
    "1 = 1; DROP TABLE messages",
    "",
)


@pytest.mark.parametrize("where", DANGEROUS)
async def test_a_condition_that_does_more_than_compare_is_refused(where: str) -> None:
    """It would run on the machine of the hub, and with its rights."""
    assert not is_plain_condition("messages", where)


CHECKED_ALONE = """
import sys
from signalhub.server.history import work
from signalhub.pipeline.quick_query import is_plain_condition
assert is_plain_condition("messages", "topic = 'orders' AND NOT (key IS NULL)")
print([one for one in ("pyarrow", "deltalake", "pyspark", "pandas") if one in sys.modules])
"""


def test_the_hub_checks_a_condition_without_loading_what_a_lake_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECKED_ALONE], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


ONE = "topic = 'a'"


async def test_a_condition_is_short_and_not_deeply_nested(bench: Bench) -> None:
    bench.will("print(json.dumps({'count': 1}))")
    for wrong in ("(" * 999 + ONE + ")" * 999, "not " * 999 + ONE, " or ".join([ONE] * 300)):
        answer = await bench.person.ask("/replay", PLAIN | {"where": wrong, "dryRun": True})
        assert (answer.status, answer.json["errorCode"]) == (400, "bad_request")
    assert not (bench.folder / "calls").exists()
    for fine in ("(" * 50 + ONE + ")" * 50, " or ".join([ONE] * 200)):
        answer = await bench.person.ask("/replay", PLAIN | {"where": fine, "dryRun": True})
        assert answer.status == 200, answer.body


async def test_a_refused_condition_starts_nothing(bench: Bench) -> None:
    for where in DANGEROUS:
        answer = await bench.person.ask("/replay", PLAIN | {"where": where})
        assert answer.status == 400, where
    assert not (bench.folder / "calls").exists()
