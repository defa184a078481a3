"""`signalhub replay`: send messages of the lake again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.hub.settings import Config
from signalhub.cli.lake.lake import (
    DataOption,
    LakeOption,
    lake_settings,
    operation_errors,
    spark_session,
)
from signalhub.cli.terminal.connection import (
    LOCAL,
    HubConnection,
    LossNotes,
    dismissal_of,
    failure_of,
    quiet_client_log,
)
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.cli.terminal.output import OutputColumn, counted
from signalhub.cli.terminal.progress import Show, bar
from signalhub.wire.errors import ClientError, GaveUp

if TYPE_CHECKING:
    from signalhub.operate.replay import Behind, HubBusy, Preview, ReplayResult, Sending
    from signalhub.pipeline.replay.select import LeftOut

RATE = 1_000.0

_REASONS = {
    "rooms": "messages of rooms, which only their members can read",
    "broadcasts": "broadcasts, whose content is not kept",
    "calls": "calls and commands, which must not be made twice",
    "removed": "messages whose content was removed",
    "replays": "copies made by earlier replays (add --include-replays to send them)",
}
_COLUMNS = (
    OutputColumn("offset", style="bold"),
    OutputColumn("accepted_at", title="accepted", style="dim"),
    OutputColumn("stream", style="green"),
    OutputColumn("type", style="yellow"),
    OutputColumn("key"),
    OutputColumn("data"),
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
            help="topic:NAME, subscription:TOPIC:NAME, '@(ACTOR)', or an unambiguous name.",
        ),
    ],
    job: Annotated[
        str | None,
        Parameter(help="Name of the replay; another name sends the same messages again."),
    ] = None,
    rate: Annotated[
        float, Parameter(validator=Number(gte=0), help="Messages per second; 0 for no limit.")
    ] = RATE,
    include_replays: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Include copies made by earlier replays."),
    ] = False,
    dry_run: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Show what would be sent; send nothing."),
    ] = False,
    data: DataOption = None,
    lake: LakeOption = None,
    config: Config = None,
    connection: HubConnection = LOCAL,
) -> None:
    """Send messages of the lake again: in order, each once, marked as copies.

    signalhub replay --where "topic = 'orders' AND key = 'c-17'" --to topic:orders
    To resume an interrupted replay, repeat the command.
    """
    settings = lake_settings(config, data, lake)
    events = _Events(connection)
    hub = connection.hub_options()
    with operation_errors(where="--where: "), quiet_client_log():
        from signalhub.operate import replay as operation

        if dry_run:
            found = operation.preview(
                settings,
                where,
                to,
                job=job,
                include_replays=include_replays,
                **hub,
                progress=events,
                open_spark=spark_session,
            )
            _show(found, connection)
            return
        with events.resumable(), bar("replaying", connection.output) as events.show:
            done = operation.replay(
                settings,
                where,
                to,
                job=job,
                rate=rate,
                include_replays=include_replays,
                **hub,
                listener=LossNotes(connection),
                progress=events,
                open_spark=spark_session,
            )
    _report(done, connection)


class _Events:
    """Shows the progress of a replay, and what to do if it is interrupted."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection
        self._last: Sending | None = None
        self.show: Show = lambda done, total: None

    def __call__(self, event: Behind | Sending | HubBusy) -> None:
        from signalhub.operate.replay import Behind, Sending

        match event:
            case Behind(entries):
                count = counted(entries, "entry")
                self._connection.remark(
                    {"behind": entries},
                    f"note: the lake is {count} behind the log; messages in them are not included",
                )
            case Sending():
                self._last = event
                if event.total is not None:
                    self.show(event.sent, event.total)
            case _:
                self._connection.note(f"the hub cannot accept more now ({event.reason}); waiting")

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Say how much was sent when the block fails or is interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            if self._last is not None:
                sent = counted(self._last.appended, "message")
                self._connection.remark(
                    {"interrupted": True, **self._facts(self._last)},
                    f"stopped after {sent}; repeat the command to resume",
                )
            raise
        except ClientError as error:
            if self._last is None:
                raise
            failure = dismissal_of(error) if isinstance(error, GaveUp) else failure_of(error)
            advice, given = "then repeat the command to resume", failure.resolution
            failure.resolution = f"{given}; {advice}" if given else advice
            failure.facts = self._facts(self._last)
            raise failure from error

    def _facts(self, sending: Sending) -> dict[str, object]:
        return {"job": sending.job, "appended": sending.appended}


def _report(done: ReplayResult, connection: HubConnection) -> None:
    output = connection.output
    if done.was_done:
        output.fact(
            _facts(done) | {"done": True},
            f"nothing left to do: {done.job} has sent its"
            f" {counted(done.selected, 'message')}; to send them again, or later messages, give"
            " another --job",
        )
        return
    reasons = _reasons(done.left_out)
    if done.job is None:
        if reasons:
            raise Failure(
                Exit.FAILED,
                "nothing_to_replay",
                "none of the selected messages can be sent again: " + ", ".join(reasons),
                "change --where",
                facts={"left_out": _counts(done.left_out)},
            )
        output.fact({"selected": 0, "appended": 0}, "no messages selected")
        return
    for reason in reasons:
        connection.note(f"left out: {reason}")
    before = done.selected - done.appended
    earlier = f", {before} of {done.selected} earlier" if before > 0 else ""
    output.fact(
        _facts(done),
        f"{counted(done.appended, 'message')} sent to {done.to}{earlier} (job {done.job})",
    )


def _facts(done: ReplayResult) -> dict[str, object]:
    return {
        "job": done.job,
        "to": done.to,
        "selected": done.selected,
        "appended": done.appended,
        "skipped": done.skipped,
        "until": {"epoch": done.until.epoch, "offset": done.until.offset},
    }


def _show(found: Preview, connection: HubConnection) -> None:
    from msgspec import to_builtins

    output, summary = connection.output, found.summary
    rows = [to_builtins(one) for one in found.examples]
    if output.as_json:
        output.line({"dry_run": True} | to_builtins(summary) | {"examples": rows}, [])
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
    for reason in _reasons(summary.left_out):
        output.fact({}, f"left out: {reason}")
    output.table(_COLUMNS, [one | {"key": one["key"] or ""} for one in rows])


def _counts(left_out: LeftOut) -> dict[str, int]:
    from msgspec import structs

    return {name: count for name, count in structs.asdict(left_out).items() if count}


def _reasons(left_out: LeftOut) -> list[str]:
    return [f"{count} {_REASONS[name]}" for name, count in _counts(left_out).items()]
