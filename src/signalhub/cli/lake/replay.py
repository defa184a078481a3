"""`signalhub replay`: send messages of the lake again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.hub.settings import Config
from signalhub.cli.lake import target
from signalhub.cli.lake.lake import (
    DataOption,
    LakeOption,
    lake_settings,
    present_lake,
    refusals,
    spark_session,
)
from signalhub.cli.lake.sending import Sent, send
from signalhub.cli.lake.target import Target
from signalhub.cli.terminal.connection import LOCAL, Connection, run, stay
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import Column, counted
from signalhub.cli.terminal.progress import bar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from signalhub.client import Client
    from signalhub.pipeline.replay.job import Bound, ReplayJob, Selection
    from signalhub.pipeline.replay.select import Summary

RATE = 1_000.0

_WHY = {
    "rooms": "messages of rooms, which only their members can read",
    "broadcasts": "broadcasts, whose content is not kept",
    "calls": "calls, which must not be made twice",
    "removed": "messages whose content was removed",
    "replays": "copies of earlier replays (--include-replays takes them too)",
}
_COLUMNS = (
    Column("offset", style="bold"),
    Column("accepted_at", title="accepted", style="dim"),
    Column("stream", style="green"),
    Column("type", style="yellow"),
    Column("key"),
    Column("data"),
)


def replay(
    *,
    where: Annotated[
        str, Parameter(name="--where", help="Which messages: a condition over `messages`.")
    ],
    to: Annotated[
        str,
        Parameter(
            name="--to",
            help="topic:NAME, subscription:TOPIC:NAME, '@(ACTOR)', or a name that is only one.",
        ),
    ],
    job: Annotated[
        str | None,
        Parameter(help="Name of the replay; another name sends the same messages again."),
    ] = None,
    rate: Annotated[
        float, Parameter(validator=Number(gte=0), help="Messages per second; 0: no limit.")
    ] = RATE,
    include_replays: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Also copies of earlier replays."),
    ] = False,
    dry_run: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Only tell what would be sent."),
    ] = False,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    connection: Connection = LOCAL,
) -> None:
    """Send messages of the lake again, in order and marked as a replay, each once.

    signalhub replay --where "topic = 'orders' AND key = 'c-17'" --to topic:orders
    The same command goes on where it was interrupted.
    """
    from signalhub.pipeline.replay.job import Selection, read_job

    settings = lake_settings(config, data, lake)
    place = present_lake(settings)
    _check_name(job)
    target = _target(to, connection)
    selection = Selection(where, str(target), include_replays)
    with refusals(where="--where: "):
        known = read_job(settings.data, job, selection)
    if known is not None and known.ended_ms is not None and not dry_run:
        _say_done(known, connection)
        return
    if not dry_run:
        _ask_for(to, connection)
    with spark_session(settings) as spark, refusals(where="--where: "):
        from signalhub.pipeline.replay.select import behind, head_of, landed, select, summarise

        until = landed(spark, place, settings.data) if known is None else known.until
        if until is None:
            raise Failure(Exit.FAILED, "lake_empty", "there are no messages in the lake yet")
        selected = select(spark, place, where, until, include_replays=include_replays)
        summary = summarise(selected)
        late = behind(until, head_of(settings.data)) if known is None else 0
        if late:
            _say_late(late, connection)
        if dry_run:
            _show(summary, selected, connection)
            return
        if not summary.count:
            _say_nothing(summary, connection)
            return
        begun = known or _begin(settings.data, job, selection, until, summary)
        sent = _send(selected, begun, target, summary, rate, connection)
        for reason in _left_out(summary):
            connection.note(f"left out: {reason}")
        _end(settings.data, job, begun, sent, connection)


def _check_name(job: str | None) -> None:
    from signalhub.pipeline.replay.job import NAME

    if job is not None and not NAME.fullmatch(job):
        raise usage(
            f"--job {job!r} is no name",
            "use up to 64 letters, digits, dots, dashes and underscores",
        )


def _target(text: str, connection: Connection) -> Target:
    """What `--to` means; the hub is asked only if the text leaves it open."""
    known = target.candidates(text)
    return known[0] if len(known) == 1 else _ask_for(text, connection)


def _ask_for(text: str, connection: Connection) -> Target:
    """Have the hub say that it is there."""

    async def look(me: Client) -> Target:
        return await target.find(me, text, connection)

    return run(connection, look)


def _begin(
    data: str, name: str | None, selection: Selection, until: Bound, summary: Summary
) -> ReplayJob:
    """From here on the same command means the same messages."""
    from signalhub.pipeline.replay.job import job_of, write_job

    begun = job_of(name, selection, until, _now_ms())
    begun.selected = summary.count
    write_job(data, name, begun)
    return begun


def _send(
    selected: DataFrame,
    begun: ReplayJob,
    target: Target,
    summary: Summary,
    rate: float,
    connection: Connection,
) -> Sent:
    import asyncio

    from signalhub.pipeline.replay.select import in_order, rest

    sent = Sent(begun.job, (begun.until.epoch, begun.until.offset), target, rate)

    async def work(me: Client) -> None:
        after = await sent.ask(me, connection)
        rows = rest(selected, after)
        total = summary.count if after is None else await asyncio.to_thread(rows.count)
        with bar("replaying", total, connection.output) as advance:
            await send(me, in_order(rows, summary.bytes), sent, advance, connection)

    try:
        stay(connection, work)
    except KeyboardInterrupt:
        connection.remark(
            {"interrupted": True, "job": begun.job, "appended": sent.appended},
            f"stopped after {counted(sent.appended, 'message')}; the same command goes on there",
        )
        raise
    except Failure as failure:
        facts = {"job": begun.job, "appended": sent.appended}
        advice = "then repeat the command: it goes on where it stopped"
        resolution = f"{failure.resolution}; {advice}" if failure.resolution else advice
        raise Failure(
            failure.exit, failure.code, failure.message, resolution, facts=facts
        ) from failure
    return sent


def _end(data: str, name: str | None, begun: ReplayJob, sent: Sent, connection: Connection) -> None:
    from signalhub.pipeline.replay.job import write_job

    begun.ended_ms = _now_ms()
    write_job(data, name, begun)
    facts = _facts(begun, sent.appended, sent.skipped)
    before = begun.selected - sent.appended
    earlier = f", {before} of {begun.selected} earlier" if before > 0 else ""
    connection.output.fact(
        facts,
        f"{counted(sent.appended, 'message')} sent to {begun.selection.to}{earlier}"
        f" (job {begun.job})",
    )


# What is said.


def _facts(job: ReplayJob, appended: int, skipped: int) -> dict[str, object]:
    return {
        "job": job.job,
        "to": job.selection.to,
        "selected": job.selected,
        "appended": appended,
        "skipped": skipped,
        "until": {"epoch": job.until.epoch, "offset": job.until.offset},
    }


def _say_done(known: ReplayJob, connection: Connection) -> None:
    connection.output.fact(
        _facts(known, 0, known.selected) | {"done": True},
        f"nothing left to do: the replay {known.job} has sent its"
        f" {counted(known.selected, 'message')}; to send them again, or what came since, give"
        " another --job",
    )


def _say_late(late: int, connection: Connection) -> None:
    entries = f"{late} {'entry' if late == 1 else 'entries'}"
    connection.remark(
        {"behind": late},
        f"note: the lake is {entries} behind the log; what is in them is not considered",
    )


def _say_nothing(summary: Summary, connection: Connection) -> None:
    left = _left_out(summary)
    if left:
        raise Failure(
            Exit.FAILED,
            "nothing_to_replay",
            "nothing of what was selected can be sent again: " + ", ".join(left),
            "change --where",
            facts={"left_out": _counts(summary)},
        )
    connection.output.fact({"selected": 0, "appended": 0}, "nothing was selected")


def _show(summary: Summary, selected: DataFrame, connection: Connection) -> None:
    from msgspec import to_builtins

    from signalhub.pipeline.replay.select import examples

    output = connection.output
    found = [to_builtins(one) for one in examples(selected)]
    if output.as_json:
        output.line({"dry_run": True} | to_builtins(summary) | {"examples": found}, [])
        return
    output.fact({}, f"{counted(summary.count, 'message')} would be sent")
    if summary.first is not None and summary.last is not None:
        first, last = summary.first, summary.last
        output.fact(
            {},
            f"from offset {first.offset} of epoch {first.epoch}"
            f" to offset {last.offset} of epoch {last.epoch}",
        )
    for stream, count in summary.streams.items():
        output.line({}, [(str(count), "bold"), (stream, "green")])
    for reason in _left_out(summary):
        output.fact({}, f"left out: {reason}")
    output.table(_COLUMNS, [one | {"key": one["key"] or ""} for one in found])


def _counts(summary: Summary) -> dict[str, int]:
    from msgspec import structs

    return {name: count for name, count in structs.asdict(summary.left_out).items() if count}


def _left_out(summary: Summary) -> list[str]:
    return [f"{count} {_WHY[name]}" for name, count in _counts(summary).items()]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
