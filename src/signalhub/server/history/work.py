"""Work that takes Spark: audits and replays run as commands, each in a process of its own.

The hub may not do what commands do; it starts them, waits for them as jobs, and passes on what they
print. A replay records itself; of an audit the hub records its begin and its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from signalhub.core.effects import Append, Effect
from signalhub.server.admin.answers import JobStarted
from signalhub.server.admin.api import AdminApi, AdminRefusal, Asked, bad_request, forbidden
from signalhub.server.history.answers import ReplayExample, ReplayPreview
from signalhub.wire.entry import Entry, Kind, OperatedBody, encode_body
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.server.admin.jobs import Job, Jobs, Work
    from signalhub.server.admin.visitors import Visitor
    from signalhub.server.history.asking import Asking
    from signalhub.server.runner import HubRunner

# What a command may print; of its complaints the last ones are kept.
OUTPUT_BYTES_MAX: Final = 16 * 2**20
ERROR_BYTES_MAX: Final = 64 * 2**10
# Commands that run at once, each with a Spark of its own.
COMMANDS_MAX: Final = 2
PREVIEW_S: Final = 60.0
# A condition is read in the loop of the hub.
WHERE_CHARS_MAX: Final = 4_096
NAME_CHARS_MAX: Final = 1_024
_LINE_CHARS: Final = 2_000
_END_S: Final = 5.0
_EXIT_WRONG: Final = 1
_EXIT_BEHIND: Final = 2

Phase = Literal["begin", "end", "failed"]


class AuditBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which hours to audit, by their beginning; all of them without."""

    since: int | None = None
    until: int | None = None
    dry_run: bool = False


class ReplayBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which messages of the lake to send again, where to, and how fast."""

    where: Annotated[str, Meta(max_length=WHERE_CHARS_MAX)]
    to: Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
    job: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] | None = None
    rate: float = 1_000.0
    include_replays: bool = False
    dry_run: bool = False


class LakeWork:
    """Starts commands for people."""

    def __init__(
        self,
        hub: Hub,
        runner: HubRunner,
        asking: Asking,
        jobs: Jobs,
        data: Path,
        config: str | None,
        port: Callable[[], int],
        *,
        command: Sequence[str] = (sys.executable, "-m", "signalhub"),
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._asking = asking
        self._jobs = jobs
        self._data = data
        self._config = config
        self._port = port
        self._command = command
        self._auditing: Job | None = None
        self._begun: list[Job] = []
        self._previews = 0

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        api.add("POST", "/lake/audit", self.audit, answer=JobStarted, needs="audit", body=AuditBody)
        api.add(
            "POST", "/replay", self.replay, answer=JobStarted, preview=ReplayPreview,
            needs="republish", body=ReplayBody,
        )  # fmt: skip

    @property
    def audit_job(self) -> Job | None:
        """The audit that is running."""
        job = self._auditing
        return job if job is not None and job.ended_ms is None else None

    def _check_room(self) -> None:
        """Refuse a command if enough of them are running."""
        self._begun = [job for job in self._begun if job.ended_ms is None]
        if len(self._begun) + self._previews >= COMMANDS_MAX:
            raise AdminRefusal(
                429,
                "too_many_commands",
                f"{COMMANDS_MAX} audits, replays or previews of them are running.",
                "Wait until one ends: see `GET /jobs`.",
                headers={"Retry-After": "10"},
            )

    def _begin(self, operation: str, target: str, visitor: Visitor, work: Work) -> Job:
        self._check_room()
        job = self._jobs.begin(operation, target, visitor, work)
        self._begun.append(job)
        return job

    # Audits.

    async def audit(self, asked: Asked) -> JobStarted:
        """Prove that the lake holds what the log acknowledged, in a process of its own."""
        body = asked.parsed(AuditBody)
        self._check_lake()
        if self.audit_job is not None:
            raise AdminRefusal(
                409, "audit_running", "An audit is running.", "Wait for it: see `GET /jobs`."
            )
        arguments = ["audit", "--json", *self._place()]
        for name, at_ms in (("--since", body.since), ("--until", body.until)):
            if at_ms is not None:
                arguments += [name, _moment(at_ms)]
        if body.dry_run:
            raise bad_request("an audit changes nothing, so there is no preview of it")
        self._auditing = job = self._begin(
            "lake.audit", "the lake", asked.visitor, lambda job: self._audit(job, arguments)
        )
        return JobStarted(job=job.name)

    async def _audit(self, job: Job, arguments: list[str]) -> dict[str, Any]:
        await self._record(job, "begin")
        phase: Phase = "failed"
        detail = "interrupted"
        try:
            code, lines, error = await self._run(job, arguments)
            if code > _EXIT_BEHIND or not lines:
                detail = _reason(error)
                raise AdminRefusal(500, "audit_failed", detail, "See the hub's log.")
            result: dict[str, Any] = msgspec.json.decode(lines[-1])
            detail = str(result.get("verdict", ""))
            phase = "end"
            return {name: result.get(name) for name in ("verdict", "run_id", "head", "sentence")}
        finally:
            with contextlib.suppress(AdminRefusal):
                await self._record(job, phase, detail)

    async def _record(self, job: Job, phase: Phase, detail: str = "") -> None:
        """Write who audits to the log, and wait until it is there."""
        visitor = job.visitor
        body = OperatedBody(
            visitor.allowance.subject,
            visitor.principal.address,
            "admin",
            "audit",
            phase,
            job.name,
            "lake.audit",
            detail,
        )
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(offset: int, now: int) -> list[Effect]:
            if not written.done():
                written.set_result(None)
            return []

        def refused(refusal: Refusal, now: int) -> list[Effect]:
            if not written.done():
                written.set_exception(
                    AdminRefusal(503, refusal.code, refusal.message, refusal.resolution)
                )
            return []

        def append(now: int) -> list[Effect]:
            entry = Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body))
            return [Append(entry, committed, refused)]

        if self._hub.is_draining:
            return
        self._runner.run(append)
        await written

    # Replays.

    async def replay(self, asked: Asked) -> JobStarted | ReplayPreview:
        """Send messages of the lake again, in a process of its own; `dryRun` shows which."""
        # A condition is about all of the lake, and counts alone tell what it finds.
        if not self._asking.reach(asked).is_all:
            raise forbidden("read: *")
        body = asked.parsed(ReplayBody)
        self._check_lake()
        if "\0" in body.where + body.to + (body.job or "") or not body.where or not body.to:
            raise bad_request("where and to must be given, without NUL characters")
        if not 0 <= body.rate <= 1e9:
            raise bad_request("rate must be 0 or more")
        from signalhub.pipeline.quick_query import is_plain_condition

        if not is_plain_condition("messages", body.where):
            raise bad_request(
                "where may only compare columns of the table messages with values",
                "Join comparisons by AND, OR, NOT, IN, BETWEEN and IS NULL, such as"
                " topic = 'orders' AND key = 'c-17'; for more run `signalhub replay`.",
            )
        arguments = [
            *("replay", "--json", f"--where={body.where}", f"--to={body.to}"),
            *(f"--rate={body.rate:g}", f"--url=ws://{self._host()}:{self._port()}/ws"),
            *self._place(),
        ]
        if body.job is not None:
            arguments.append(f"--job={body.job}")
        if body.include_replays:
            arguments.append("--include-replays")
        if body.dry_run:
            return await self._previewed(asked.visitor, [*arguments, "--dry-run"])
        job = self._begin(
            "replay", body.to, asked.visitor, lambda job: self._replay(job, arguments)
        )
        return JobStarted(job=job.name)

    async def _previewed(self, visitor: Visitor, arguments: list[str]) -> ReplayPreview:
        self._check_room()
        self._previews += 1
        try:
            async with asyncio.timeout(PREVIEW_S):
                code, lines, error = await self._run(None, arguments, visitor)
        except TimeoutError:
            raise AdminRefusal(
                504, "replay_timeout", f"No preview within {PREVIEW_S:g} s.", "Choose less."
            ) from None
        finally:
            self._previews -= 1
        if code or not lines:
            raise bad_request(_reason(error), "Correct the condition or the target.")
        return _preview(msgspec.json.decode(lines[-1]))

    async def _replay(self, job: Job, arguments: list[str]) -> dict[str, Any]:
        code, lines, error = await self._run(job, arguments, job.visitor)
        if code or not lines:
            raise AdminRefusal(500, "replay_failed", _reason(error), "See `GET /jobs`.")
        result: dict[str, Any] = msgspec.json.decode(lines[-1])
        job.total, job.done = result.get("selected"), result.get("appended")
        return result

    # Processes.

    def _check_lake(self) -> None:
        if self._hub.settings.pipeline.run == "off":
            raise AdminRefusal(
                409, "no_lake", "There is no lake: the pipeline is off.",
                "Start the hub with `signalhub serve --pipeline`.",
            )  # fmt: skip

    def _place(self) -> list[str]:
        """Where hub and lake are."""
        found = [f"--data={self._data}"]
        if self._hub.settings.pipeline.lake:
            found.append(f"--lake={self._hub.settings.pipeline.lake}")
        return found if self._config is None else [*found, f"--config={self._config}"]

    def _host(self) -> str:
        host = self._hub.settings.host
        if host in ("", "0.0.0.0"):  # noqa: S104  It is what is listened on, not a choice.
            return "127.0.0.1"
        if host == "::":
            return "[::1]"
        return f"[{host}]" if ":" in host else host

    async def _run(
        self, job: Job | None, arguments: list[str], visitor: Visitor | None = None
    ) -> tuple[int, list[bytes], bytes]:
        """Run a command; its exit code, the lines it printed, and its complaints."""
        environment = dict(os.environ)
        environment.pop("SIGNALHUB_TOKEN", None)
        if visitor is not None and visitor.principal.token:
            # In the environment, because everybody may read the arguments of a process.
            environment["SIGNALHUB_TOKEN"] = visitor.principal.token.removeprefix("Bearer ")
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        if job is not None:
            job.cancel = lambda: _kill(process.pid, signal.SIGTERM)
        output = bytearray()

        def keep(part: bytes) -> None:
            if len(output) <= OUTPUT_BYTES_MAX:
                output.extend(part)
            if len(output) > OUTPUT_BYTES_MAX:
                _kill(process.pid, signal.SIGKILL)

        error = bytearray()

        def keep_last(part: bytes) -> None:
            error.extend(part)
            del error[:-ERROR_BYTES_MAX]

        try:
            await asyncio.gather(
                _read(process.stdout, keep), _read(process.stderr, keep_last), process.wait()
            )
        finally:
            if process.returncode is None:
                _kill(process.pid, signal.SIGKILL)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_S)
        if len(output) > OUTPUT_BYTES_MAX:
            raise AdminRefusal(
                500,
                "too_much_output",
                f"The command has printed more than {OUTPUT_BYTES_MAX // 2**20} MiB.",
                "Choose less, or run it in a terminal.",
            )
        lines = [bytes(line) for line in output.splitlines() if line.startswith(b"{")]
        return process.returncode or 0, lines, bytes(error)


async def _read(stream: asyncio.StreamReader, keep: Callable[[bytes], None]) -> None:
    """Read to the end, so that the command is never held up."""
    while part := await stream.read(2**16):
        keep(part)


def _kill(pid: int, number: int) -> None:
    """End a command and what it has started, such as Java."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _moment(at_ms: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise bad_request("a time is out of range") from None


class _Complaint(msgspec.Struct):
    """How commands say with `--json` why they failed."""

    error: Any = None
    message: str = ""


def _reason(error: bytes) -> str:
    """The last sentence a command has complained with."""
    for line in reversed(error.decode(errors="replace").splitlines()):
        if not line.strip():
            continue
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            found = msgspec.json.decode(line, type=_Complaint)
            inner = found.error if isinstance(found.error, dict) else {}
            text = found.message or inner.get("message") or found.error
            if isinstance(text, str) and text:
                return text[:_LINE_CHARS]
        return line[:_LINE_CHARS]
    return "The command ended without saying why."


def _preview(found: dict[str, Any]) -> ReplayPreview:
    return ReplayPreview(
        count=found.get("count", 0),
        first=_position(found.get("first")),
        last=_position(found.get("last")),
        streams=found.get("streams") or {},
        left_out={name: count for name, count in (found.get("left_out") or {}).items() if count},
        examples=[
            ReplayExample(
                position=f"{one.get('epoch')}.{one.get('offset')}",
                accepted_at=str(one.get("accepted_at", "")),
                stream=one.get("stream", ""),
                type=one.get("type"),
                key=one.get("key"),
                data=one.get("data"),
            )
            for one in found.get("examples") or []
        ],
    )


def _position(given: Any) -> str | None:
    if not isinstance(given, dict):
        return None
    return f"{given.get('epoch')}.{given.get('offset')}"
