"""`signalhub backup` and `signalhub restore`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config, loaded_settings
from signalhub.cli.terminal.failures import Exit, Failure, split_advice, usage
from signalhub.cli.terminal.output import AsJson, Output, counted
from signalhub.cli.terminal.progress import bar
from signalhub.cli.terminal.quantities import shown_size, shown_time
from signalhub.wire.errors import SettingsError, SignalHubError

if TYPE_CHECKING:
    from signalhub.operate.backup import Manifest

Data = Annotated[str | None, Parameter(name="--data", help="The hub's data folder.")]
LakeFolder = Annotated[
    str | None, Parameter(name="--lake", help="Folder of the lake; default: in the data folder.")
]


def backup(
    target: Annotated[Path, Parameter(name="TARGET", help="A new folder for the backup.")],
    /,
    *,
    data: Data = None,
    lake: LakeFolder = None,
    host_data: Annotated[
        tuple[Path, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Data folder of a host of durable actors; repeatable.",
        ),
    ] = (),
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Back up a hub with its lake and its hosts, running or stopped.

    Hub and hosts are copied as they are at one moment. The log is verified, and
    the SHA-256 of every file is written to TARGET/SHA256SUMS.
    """
    from signalhub.operate.backup import back_up

    settings = loaded_settings(config, {"data": data, "pipeline.lake": lake}).settings
    output, errors = Output(as_json), Output(False, sys.stderr)
    status = errors.console.status("copying…") if errors.is_terminal else None
    with _operation(), status or nullcontext():

        def show(step: str) -> None:
            if status is not None:
                status.update(f"copying: {step}…")

        manifest = back_up(settings, target, hosts=host_data, progress=show)
    output.fact(_facts(manifest) | {"backup": str(target)}, f"{target}: {_sentence(manifest)}")
    if manifest.lake_left_out and not as_json:
        note = f"the lake at {manifest.lake_left_out} is not part of it: copy it before the hub"
        output.line({}, [("note", "yellow"), (note, "")])


def restore(
    backup: Annotated[Path, Parameter(name="BACKUP", help="A folder written by `backup`.")],
    /,
    *,
    data: Data = None,
    lake: LakeFolder = None,
    host_data: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            metavar="NAME=FOLDER",
            help="Restore a host of durable actors into a folder; repeatable.",
        ),
    ] = (),
    keep_epoch: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Keep positions valid; only if the hub accepted nothing after the backup.",
        ),
    ] = False,
    check: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Only check the backup.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into empty folders, and verify its log.

    Every file is compared with its SHA-256; a damaged backup is refused and
    changes nothing. The log begins a new epoch, so that clients which have seen
    more than the backup contains are told.
    """
    from signalhub.operate import restore as operation

    output = Output(as_json)
    if check:
        with _operation(), bar("checking", output) as show:
            manifest = operation.check(backup, progress=show)
        output.fact(_facts(manifest) | {"sound": True}, f"sound: {_sentence(manifest)}")
        return
    settings = loaded_settings(config, {"data": data, "pipeline.lake": lake}).settings
    hosts = dict(map(_host, host_data))
    with _operation(), bar("restoring", output) as show:
        done = operation.restore(
            settings, backup, hosts=hosts, keeps_epoch=keep_epoch, progress=show
        )
    facts = _facts(done.manifest) | {
        "data": settings.data,
        "epoch": done.log.epoch,
        "restored_hosts": done.hosts,
        "hosts_left_out": done.left_out,
    }
    output.fact(facts, f"restored into {settings.data}: {_sentence(done.manifest)}")
    if done.left_out and not as_json:
        name = done.left_out[0]
        text = f"not restored: {', '.join(done.left_out)}; use --host-data {name}=FOLDER"
        output.line({}, [("note", "yellow"), (text, "")])


def _host(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise usage(f"invalid --host-data {text!r}", "write it as NAME=FOLDER")
    return name, Path(folder)


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "version": manifest.version,
        "taken_ms": manifest.taken_ms,
        "epoch": manifest.log.epoch,
        "first": manifest.log.first,
        "head": manifest.log.head,
        "lake": manifest.lake,
        "lake_left_out": manifest.lake_left_out or None,
        "hosts": [one.name for one in manifest.hosts],
        "files": manifest.files,
        "bytes": manifest.bytes,
    }


def _sentence(manifest: Manifest) -> str:
    log = manifest.log
    parts = [counted(log.head - log.first, "entry")]
    if manifest.lake is not None:
        parts.append(f"a lake of {counted(len(manifest.lake), 'table')}")
    if manifest.hosts:
        parts.append(counted(len(manifest.hosts), "host"))
    extent = f"{counted(manifest.files, 'file')}, {shown_size(manifest.bytes)}"
    return f"{', '.join(parts)}; {extent}; taken {shown_time(manifest.taken_ms)}"


@contextmanager
def _operation() -> Iterator[None]:
    """Turn errors into failures."""
    try:
        yield
    except SettingsError:
        raise
    except SignalHubError as error:
        exit = Exit.USAGE if error.code == "usage" else Exit.FAILED
        raise Failure(exit, error.code, *split_advice(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Failure(
            Exit.FAILED,
            "storage_failed",
            f"{where}{error.strerror}",
            "check the disk, and run the command as the user that runs the hub",
        ) from error
