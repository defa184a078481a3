"""`signalhub log`: inspect the log of a running or stopped hub, and acknowledge what it lost.

The log itself is only read. Every command that finds damage reports it and exits with 1.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.failures import Exit, Failure, split_advice, usage
from signalhub.cli.terminal.output import AsJson, Output, OutputColumn, counted, shown
from signalhub.cli.terminal.progress import bar
from signalhub.cli.terminal.quantities import shown_size, shown_time
from signalhub.log.errors import CUT_ADVICE, DAMAGED_ADVICE
from signalhub.wire.bodies import body_facts, kind_name
from signalhub.wire.entry import Kind, StoredEntry
from signalhub.wire.errors import SignalHubError

if TYPE_CHECKING:
    from signalhub.log.disk import SystemDisk
    from signalhub.log.head import Head
    from signalhub.log.reader import Reader
    from signalhub.log.recovery import LogRecovery
    from signalhub.log.segment import SegmentInfo
    from signalhub.log.survey import LogSurvey
    from signalhub.log.verify import Report
    from signalhub.state.losses import Loss

FOLLOW_PAUSE_S = 0.2
# Reading a log cannot fail like this; writing our output can.
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC)
CHAIN_CHARS = 12

Data = Annotated[
    Path, Parameter(env_var="SIGNALHUB_DATA", help="The hub's data folder, or its log folder.")
]
Offset = Annotated[int | None, Parameter(validator=Number(gte=0))]

HERE = Path("data")
LOG = "log"

_COLUMNS = (
    OutputColumn("base", style="bold"),
    OutputColumn("end"),
    OutputColumn("entries"),
    OutputColumn("bytes"),
    OutputColumn("sealed"),
    OutputColumn("from_time", title="from", style="dim"),
    OutputColumn("to_time", title="to", style="dim", spare=1),
    OutputColumn("chain", style="cyan", spare=1),
)


def ls(*, data: Data = HERE, as_json: AsJson = False) -> None:
    """List the segments of a log: entries, bytes, times and chain."""
    from signalhub.log.folder import examine

    with _reading(data) as disk:
        found, recovery = examine(disk, _known(disk))
    output = Output(as_json)
    segments = recovery.segments
    rows = [_segment_facts(one) if as_json else _row(one) for one in segments]
    output.table(_COLUMNS, rows, if_empty="no segments yet")
    _check(found, recovery)


def info(*, data: Data = HERE, as_json: AsJson = False) -> None:
    """Show the extent of a log, its size, and any damage."""
    from signalhub.log.folder import examine

    with _reading(data) as disk:
        found, recovery = examine(disk, _known(disk))
        open_losses = _open_losses(disk)
    segments, published = recovery.segments, found.published
    torn = recovery.torn
    facts: dict[str, Any] = {
        "epoch": recovery.epoch,
        "first": recovery.first,
        "head": recovery.head,
        "durable_head": published.durable if published else None,
        "entries": sum(one.end - one.base for one in segments),
        "segments": len(segments),
        "sealed": sum(one.is_sealed for one in segments),
        "bytes": sum(one.bytes for one in segments),
        "from_ms": min((one.min_ms for one in segments), default=None),
        "to_ms": max((one.max_ms for one in segments), default=None),
        "torn": torn and f"{torn.segment}, byte {torn.position}: {torn.bytes} bytes, {torn.reason}",
        "lost": [recovery.lost_from, recovery.lost_to - 1] if recovery.epoch_changed else None,
        "open_losses": [_loss_facts(one) for one in open_losses],
        "damage": _damage(found, recovery),
        "foreign": recovery.foreign,
    }
    if not as_json:
        facts["bytes"] = shown_size(facts["bytes"])
        facts |= {
            "from": shown_time(facts.pop("from_ms")),
            "to": shown_time(facts.pop("to_ms")),
            "open_losses": "; ".join(map(str, open_losses)),
        }
    Output(as_json).sheet(facts)
    _check(found, recovery)


def verify(*, data: Data = HERE, as_json: AsJson = False) -> int:
    """Verify a log: every batch, entry and footer, and the hash chain.

    Exit code 1 means that the log is damaged or has lost its end, or that a lost
    end would not be noticed; each fault is listed. A torn end left by a crash is
    no fault: the next start of the hub cuts it.
    """
    from signalhub.cli.terminal.progress import CountedDisk
    from signalhub.log.verify import verify as check

    output = Output(as_json)
    with _reading(data) as plain:
        total = sum(_size(plain, name) for name in plain.names() if name.endswith(".log"))
        with bar("verifying", output) as show:
            report = check(CountedDisk(plain, show, total), _known(plain))
        open_losses = _open_losses(plain)
    facts = _report_facts(report) | {"open_losses": [_loss_facts(one) for one in open_losses]}
    output.fact(facts, _verdict(report))
    for loss in open_losses if not as_json else ():
        text = f"note: {loss}: lost before, found {shown_time(loss.found_ms)}, not acknowledged"
        output.fact({}, text)
    # If the log is damaged, the same place is among its problems.
    if report.torn is not None and report.is_sound and not as_json:
        torn = report.torn
        output.fact({}, f"note: torn end in {torn.segment} at byte {torn.position}: {torn.reason}")
    if report.is_sound:
        return Exit.DONE
    if not as_json:
        for problem in report.problems:
            word = {report.loss: "lost", report.unknown_end: "unproven"}.get(problem, "damaged")
            output.line({}, [(word, "red"), (problem, "")])
    if report.is_only_short:
        raise _lost(report.loss)
    if report.is_only_unproven:
        raise Failure(
            Exit.FAILED,
            "log_end_unknown",
            report.unknown_end,
            "start the hub, which writes the file again, and continues where the log ends now",
        )
    raise _damaged(f"{counted(len(report.problems), 'fault')}, first {report.problems[0]}")


def view(
    *,
    data: Data = HERE,
    from_offset: Annotated[
        Offset, Parameter(name="--from", help="First offset; default: the oldest.")
    ] = None,
    to_offset: Annotated[
        Offset, Parameter(name="--to", help="Last offset; default: the newest.")
    ] = None,
    stream: Annotated[
        str | None, Parameter(help="Only entries of this topic or mailbox, by its exact name.")
    ] = None,
    kind: Annotated[
        tuple[Kind, ...],
        Parameter(negative=(), show_default=False, help="Only entries of this kind; repeatable."),
    ] = (),
    limit: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="Stop after N entries.")
    ] = None,
    follow: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Wait for new entries until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a log, decoded.

    Only durable entries are shown. Of an erased entry, its digest is shown.
    """
    from signalhub.log.folder import Folder, examine
    from signalhub.log.reader import Reader

    output, printed = Output(as_json), 0
    with _reading(data) as disk:
        folder = Folder(disk)
        begin = folder.first if from_offset is None else from_offset
        end = None if to_offset is None else to_offset + 1
        with closing(Reader(folder)) as reader:
            for stored in _entries(reader, begin, end, follow=follow):
                if stream not in (None, stored.stream) or (kind and stored.kind not in kind):
                    continue
                _print_entry(stored, output)
                printed += 1
                if printed == limit:
                    return
        _check(*examine(disk, _known(disk)))


def acknowledge(*, data: Data = HERE, as_json: AsJson = False) -> None:
    """Acknowledge that entries of the log are lost, so that the hub is healthy again.

    The hub may be running or stopped. It writes the acknowledgement to its log,
    with your user name: a running hub within seconds, a stopped one at its start.
    """
    from signalhub.clock import SystemClock
    from signalhub.locks import is_hub_running
    from signalhub.pipeline.source import known
    from signalhub.state import losses

    output = Output(as_json)
    with _operation(data):
        lost_log = known.lost_log(data)
        if lost_log is None and not (data / LOG).is_dir():
            raise usage(f"there is no log in {data}", "give the hub's data folder with --data")
        if lost_log is not None and is_hub_running(data):
            raise Failure(
                Exit.FAILED,
                "hub_running",
                f"the hub is running, but its log is gone from {data}",
                "stop the hub, then repeat the command",
            )
        if lost_log is not None:
            losses.add(data, lost_log)
        done = losses.acknowledge(data, SystemClock().now_ms(), _user())
    for one in done:
        text = f"acknowledged the loss of {one}, found {shown_time(one.found_ms)}"
        output.fact(_loss_facts(one), text)
    if as_json:
        return
    if not done:
        output.fact({}, "no loss to acknowledge")
    elif is_hub_running(str(data)):
        output.fact({}, "the running hub records it within seconds")
    else:
        output.fact({}, "the hub records it when it starts")


def _user() -> str:
    """The name of the user, or its number if it has none, as in a container."""
    from getpass import getuser

    try:
        return getuser()
    except (KeyError, OSError):  # Since Python 3.13 an `OSError`.
        return f"uid {os.getuid()}"


def _entries(reader: Reader, begin: int, end: int | None, *, follow: bool) -> Iterator[StoredEntry]:
    """Existing entries, and then, if wanted, new ones."""
    while end is None or begin < end:
        for stored in reader.scan(begin, end):
            begin = stored.offset + 1
            yield stored
        if not follow:
            return
        sleep(FOLLOW_PAUSE_S)


def _print_entry(stored: StoredEntry, output: Output) -> None:
    facts = entry_facts(stored)
    line = [
        (str(stored.offset), "bold"),
        (shown_time(stored.at_ms), "dim"),
        (facts["kind"], "yellow"),
        (shown(stored.stream), "green"),
        (str(stored.seq or ""), "bold"),
        (shown(facts["body"]), ""),
    ]
    output.line(facts, line)


@contextmanager
def _reading(data: Path) -> Iterator[SystemDisk]:
    """The folder of a log; read errors become failures."""
    from signalhub.log.disk import SystemDisk
    from signalhub.pipeline.source import known

    with _operation(data):
        known.check_log(data)
        yield SystemDisk(_folder(data), read_only=True)


@contextmanager
def _operation(data: Path) -> Iterator[None]:
    """Turn errors into failures."""
    try:
        yield
    except SignalHubError as error:
        raise Failure(Exit.FAILED, error.code, *split_advice(error)) from error
    except OSError as error:
        if error.errno in _OUTPUT_ERRORS:
            raise
        raise Failure(
            Exit.FAILED,
            "storage_failed",
            f"cannot read {error.filename or data}: {error.strerror}",
            "run the command as the user that runs the hub",
        ) from error


def _folder(data: Path) -> Path:
    """The log folder in a data folder, or the folder itself if it is a log."""
    if (data / "log").is_dir():
        return data / "log"
    if data.is_dir() and any(data.glob("[0-9]*.log")):
        return data
    raise usage(f"there is no log in {data}", "give the hub's data folder with --data")


def _owner(disk: SystemDisk) -> Path | None:
    """The data folder of a log; a copy of segments may lie anywhere."""
    return disk.path.parent if disk.path.name == LOG else None


def _known(disk: SystemDisk) -> Head | None:
    """What the hub's data folder knows about the end of its log, apart from the log."""
    from signalhub.pipeline.source import known

    data = _owner(disk)
    return None if data is None else known.known_head(data)


def _open_losses(disk: SystemDisk) -> list[Loss]:
    """What the hub has lost before, and nobody has acknowledged."""
    from signalhub.state import losses

    data = _owner(disk)
    known = [] if data is None else losses.read(data)
    return [one for one in known if not one.acknowledged_ms]


def _loss_facts(one: Loss) -> dict[str, Any]:
    return {"epoch": one.epoch, "first": one.first, "last": one.last, "found_ms": one.found_ms}


def _size(disk: SystemDisk, name: str) -> int:
    return (disk.path / name).stat().st_size


def _segment_facts(info: SegmentInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "base": info.base,
        "end": info.end,
        "entries": info.end - info.base,
        "bytes": info.bytes,
        "epoch": info.epoch,
        "sealed": info.is_sealed,
        "from_ms": info.min_ms,
        "to_ms": info.max_ms,
        "chain": info.chain.hex() or None,
    }


def _row(info: SegmentInfo) -> dict[str, Any]:
    return _segment_facts(info) | {
        "bytes": shown_size(info.bytes),
        "from_time": shown_time(info.min_ms),
        "to_time": shown_time(info.max_ms),
        "chain": info.chain.hex()[:CHAIN_CHARS],
    }


def _report_facts(report: Report) -> dict[str, Any]:
    from msgspec import to_builtins

    facts: dict[str, Any] = to_builtins(report)
    return {"sound": report.is_sound} | facts


def _verdict(report: Report) -> str:
    entries = counted(report.entries, "entry")
    extent = f"{entries} in {counted(report.segments, 'segment')}, {report.sealed} sealed"
    verdict = "damaged"
    if report.is_sound:
        verdict = "sound"
    elif report.is_only_short:
        verdict = "incomplete"
    elif report.is_only_unproven:
        verdict = "unproven"
    return f"{verdict}: {extent}, {report.erased} erased, epoch {report.epoch}"


def _damage(found: LogSurvey, recovery: LogRecovery) -> list[str]:
    damages = found.damages or ([recovery.damage] if recovery.damage else [])
    return [f"{one.segment}, byte {one.position}: {one.reason}" for one in damages]


def _check(found: LogSurvey, recovery: LogRecovery) -> None:
    """Fail if more was stored than is shown."""
    if damages := _damage(found, recovery):
        raise _damaged(damages[0])
    if recovery.loss:
        raise _lost(recovery.loss)


def _damaged(what: str) -> Failure:
    return Failure(
        Exit.FAILED,
        "storage_damaged",
        f"the log is damaged: {what}",
        DAMAGED_ADVICE,
    )


def _lost(what: str) -> Failure:
    return Failure(
        Exit.FAILED,
        "log_entries_lost",
        f"the end of the log is missing: {what}",
        CUT_ADVICE,
    )


def entry_facts(stored: StoredEntry) -> dict[str, Any]:
    """An entry as one JSON object."""
    return {
        "offset": stored.offset,
        "kind": kind_name(stored.kind),
        "stream": stored.stream,
        "stream_epoch": stored.stream_epoch,
        "seq": stored.seq,
        "at_ms": stored.at_ms,
        "erased": stored.is_erased,
        "body": body_facts(stored),
    }
